"""When an elected reconciler may begin: an older tree says what was, not what is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest

from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.kafka_context import KafkaContext
from directory.kafka.reconciler import Reconciler
from directory.namespace.command import Command, RecordObservations
from directory.namespace.snapshot import Snapshot
from directory.server.config_kafka import KafkaConfig
from directory.store.base import Leadership, Put, Transaction
from directory.store.sqlite.store import SqliteStore
from directory.store.writer import CommitResult, Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import KafkaUnavailable, OutboxFull
from resolver.path import ROOT
from tests.support.large_trees import FakeKafka
from tests.support.reconciler import eventually
from tests.support.reconciler import world as server


class Lagging:
    """A replica that is as new as the test lets it be."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.catch_up()

    def catch_up(self) -> None:
        loading = self._store.load()
        self.snapshot = Snapshot.load(ProtoCodec(), "i", loading.revision, loading.pages())


class World:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.replica = Lagging(store)
        replica: Any = self.replica
        self.asked = 0
        context = KafkaContext(
            "la-1",
            store.limits,
            lambda: replica.snapshot,
            Writer(store, replica, ProtoCodec(), lambda _: ROOT),
            lambda _: ROOT,
            KafkaConfig(bootstrap=("unused:1",), ceiling=frozenset()),
            self.open_admin,
            clock=itertools.count(0, 100).__next__,
        )
        self.reconciler = Reconciler(context, store, replica, sleep=lambda _: None)

    def open_admin(self, _: float) -> KafkaAdmin:
        self.asked += 1
        raise KafkaUnavailable("away")


@pytest.fixture
def world(tmp_path: FilePath) -> Iterator[World]:
    store = SqliteStore(tmp_path / "store.db", "la")
    made = World(store)
    yield made
    made.reconciler.resign()
    store.close()


def test_S19_nothing_is_asked_of_kafka_until_the_tree_has_come_to_the_election(
    world: World,
) -> None:
    for _ in range(3):
        assert world.reconciler.run_once() < 0.5
    assert world.asked == 0
    world.replica.catch_up()
    world.reconciler.run_once()
    assert world.asked == 1


def test_S19_who_sees_that_the_role_is_anothers_resigns(world: World) -> None:
    world.reconciler.run_once()
    world.replica.catch_up()
    world.reconciler.run_once()
    ((key, _),) = world.replica.snapshot.facts(b"l/")
    world.store.commit(Transaction((), (Put(key, b"another\n1"),)))
    world.replica.catch_up()
    asked = world.asked
    assert world.reconciler.run_once() >= 0.5
    assert world.asked == asked
    assert world.reconciler.term is None


def test_a_server_that_is_not_elected_does_not_ask_for_the_role_at_each_commit(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = FakeKafka()
    with server(tmp_path / "s.db", kafka) as leader, server(tmp_path / "s.db", kafka) as other:
        leader.reconciler.run_once()
        elect, asked = other.store.elect, list[str]()

        def noted(role: str, candidate: str) -> Leadership | None:
            asked.append(role)
            return elect(role, candidate)

        monkeypatch.setattr(other.store, "elect", noted)
        began = time.monotonic()
        other.reconciler.start()
        for number in range(100):
            other.mkdir(f"d{number}")
        assert len(asked) <= 2 + (time.monotonic() - began) / 0.5
        assert leader.reconciler.term is not None
        leader.reconciler.resign()
        eventually(lambda: other.reconciler.term is not None)


class _Refuses:
    """Writer that records nothing of topics."""

    def __init__(self, real: Writer) -> None:
        self._real = real
        self.is_full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit_command(self, command: Command, **options: Any) -> CommitResult:
        if self.is_full and isinstance(command, RecordObservations):
            raise OutboxFull("too many changes wait")
        return self._real.commit_command(command, **options)


def test_where_making_topics_fails_for_good_sweeps_go_on(tmp_path: FilePath) -> None:
    kafka, writers = FakeKafka(*(f"t{number}" for number in range(20))), list[_Refuses]()

    def writer(real: Writer) -> _Refuses:
        writers.append(_Refuses(real))
        return writers[-1]

    with server(tmp_path / "s.db", kafka, writer=writer) as here:
        here.sweep()
        writers[0].is_full = True  # the reconciler's
        here.create("new")
        for number in range(3):
            del kafka.topics[f"t{number}"]
        here.sweep()
        assert kafka.made == []
        assert here.stopped.startswith("3 of 20 topics vanished")
