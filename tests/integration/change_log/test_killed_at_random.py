"""Publisher, broker, or both, killed at any moment while others write: the history holds every
acknowledged change once and in order, and the state is the store's.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from deploy.local.etcd import EtcdCluster, EtcdMember
from deploy.local.kafka import KafkaBroker, KafkaCluster
from resolver.errors import KdirError
from tests.integration.change_log.test_bad_days import made, state_of
from tests.integration.change_log.test_publishing import (
    caught_up,
    change_at_random,
    log_of,
    logged_rows,
    outbox_of,
)
from tests.support.change_logs import LogContents, held_rows, rebuilt_rows
from tests.support.federation import Server, eventually

_WRITERS = 8


class Writers:
    """Threads that change what each has, at a pace, and note what was acknowledged."""

    def __init__(self, servers: Sequence[Server], pause_seconds: float) -> None:
        self._servers, self._pause_seconds = servers, pause_seconds
        self._ended = threading.Event()
        self.acknowledged: list[int] = []
        """Ids of entries that were inserted."""
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(_WRITERS)
        ]

    def _write(self, number: int) -> None:
        chance = random.Random(number)
        while not self._ended.wait(chance.uniform(0, 2 * self._pause_seconds)):
            made = change_at_random(chance.choice(self._servers), number, chance)
            if made:
                self.acknowledged.append(made)

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for one in self._threads:
            one.join()


def publisher_among(servers: Sequence[Server]) -> Server | None:
    """Returns the server that publishes, as one of them knows; None: none does right now."""
    for one in servers:
        try:
            holder = state_of(one).publisher
            return next(s for s in servers if s.status().authority.server == holder)
        except (KdirError, StopIteration):
            continue
    return None


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_killed_at_random_the_log_holds_every_acknowledged_change_once(
    kind: str,
    tmp_path: Path,
    kafka_brokers: Callable[..., KafkaBroker],
    request: pytest.FixtureRequest,
) -> None:
    is_long = request.config.getoption("--soak")  # make soak-log
    kills, pause_seconds = (100, 0.3) if is_long else (3, 0.1)
    chance = random.Random(14)
    if kind == "etcd":
        store = request.getfixturevalue("etcd_cluster").address()
        names = ["one", "two"]
    else:
        store, names = f"sqlite:///{tmp_path / 'la.sqlite'}", ["one"]
    with ExitStack() as stack:
        broker = stack.enter_context(kafka_brokers())
        servers = [
            stack.enter_context(made(tmp_path / name, broker.bootstrap, store=store))
            for name in names
        ]
        for number in range(_WRITERS):
            servers[0].mkdir(f"/la/w{number}")
        log = log_of(servers[0], broker)
        begun = caught_up(log, store)
        assert begun.checkpoint is not None
        with Writers(servers, pause_seconds) as writers:
            for number in range(kills):
                time.sleep(chance.uniform(0.5, 3.0))
                kill_and_start(number, servers, broker, chance)
        found = caught_up(log, store, 300)
        eventually(lambda: state_of(servers[0]).waiting_commits == 0)
        count = count_whole(found, store, begun.checkpoint.revision, writers.acknowledged)
        assert count > 30 * kills
        assert rebuilt_rows(broker.bootstrap, servers[0].cluster_id) == held_rows(store)


def count_whole(found: LogContents, store: str, first: int, acknowledged: list[int]) -> int:
    """Returns the number of changes since a revision, after it has checked that the history has
    each once and in order, and the state what the store has.
    """
    made_since = [one for one in found.history if one.checkpoint is None and one.revision > first]
    expected = outbox_of(store, first)
    assert [(one.revision, one.position, one.path) for one in made_since] == expected
    inserted = [one.entry_id for one in made_since if one.action == "insert"]
    assert set(inserted).issuperset(acknowledged)
    assert len(inserted) == len(set(inserted))
    assert found.rows == logged_rows(store)
    return len(made_since)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(4))
def test_killed_and_paused_at_random_with_three_brokers_and_three_members_of_etcd(
    tmp_path: Path,
    kafka_clusters: Callable[..., KafkaCluster],
    etcd_clusters: Callable[..., EtcdCluster],
    seed: int,
) -> None:
    """A server that is paused loses its role in the middle of whatever it does, and goes on."""
    chance = random.Random(seed)
    with kafka_clusters() as kafka, etcd_clusters() as etcd, ExitStack() as stack:
        store = f"etcd://{','.join(etcd.endpoints)}/la"
        settings = {"store": store, "change_log": {"bootstrap": kafka.bootstrap.split(",")}}
        servers = [
            stack.enter_context(made(tmp_path / name, "", **settings)) for name in ("one", "two")
        ]
        for number in range(_WRITERS):
            servers[0].mkdir(f"/la/w{number}")
        log = log_of(servers[0], kafka)
        begun = caught_up(log, store)
        assert begun.checkpoint is not None
        with Writers(servers, 0.1) as writers:
            for _ in range(20):
                disturb(servers, kafka, etcd, chance)
                time.sleep(chance.uniform(0, 2))
        found = caught_up(log, store, 300)
        eventually(lambda: state_of(servers[0]).waiting_commits == 0)
        count_whole(found, store, begun.checkpoint.revision, writers.acknowledged)


def disturb(
    servers: Sequence[Server], kafka: KafkaCluster, etcd: EtcdCluster, chance: random.Random
) -> None:
    """Kills or pauses one server, one broker, or one or all members of etcd, and has it go on. A
    server may pause for longer than its role is its own.
    """
    server, member = chance.choice(servers), chance.choice(etcd.members)
    broker = kafka.broker(chance.randint(1, len(kafka.brokers)))
    match chance.choice(["kill", "kill", "pause", "pause all"]):
        case "kill":
            kinds: list[Server | KafkaBroker | EtcdMember] = [server, broker, member]
            killed = chance.choice(kinds)
            killed.kill()
            time.sleep(chance.uniform(0, 4))
            killed.start()
            member.await_ready()
        case "pause":
            may_pause: list[Server | EtcdMember] = [server, member]
            paused = chance.choice(may_pause)
            paused.pause()
            time.sleep(chance.uniform(0, 12))
            paused.resume()
        case _:
            for one in etcd.members:
                one.pause()
            time.sleep(chance.uniform(0, 8))
            for one in etcd.members:
                one.resume()


def kill_and_start(
    number: int, servers: Sequence[Server], broker: KafkaBroker, chance: random.Random
) -> None:
    """Kills the publisher, the broker, or both, and starts them again."""
    publisher = publisher_among(servers) or chance.choice(servers)
    choices: list[list[Server | KafkaBroker]] = [[publisher], [broker], [publisher, broker]]
    victims = choices[number % 3]
    for one in chance.sample(victims, len(victims)):
        one.kill()
    if number % 2:
        time.sleep(chance.uniform(0, 1))
    for one in victims:
        one.start()
