"""When the holder of a role may act in it: not by a tree older than its election."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from directory.namespace.keys import role_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Transaction
from directory.store.leader import Leader, LeadershipLost
from directory.store.sqlite.store import SqliteStore
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import NotReady
from tests.support.lost_locks import forget_lock, lose_lock


class Lagging:
    """A replica that is as new as the test lets it be."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._snapshot: Snapshot | None = None

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            raise NotReady("nothing is loaded")
        return self._snapshot

    def catch_up(self) -> None:
        loading = self._store.load()
        self._snapshot = Snapshot.load(ProtoCodec(), "i", loading.revision, loading.pages())


class World:
    def __init__(self, file: Path) -> None:
        self.store, self.other = SqliteStore(file, "la"), SqliteStore(file, "la")
        self.replica = Lagging(self.store)
        replica: Any = self.replica
        self.leader = Leader(self.store, replica, "publisher", "one")

    def elected(self) -> Leader:
        self.replica.catch_up()
        assert self.leader.campaign() is not None
        return self.leader


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store.db")
    yield made
    made.leader.resign()
    made.store.close()
    made.other.close()


def test_nobody_campaigns_before_the_replica_has_loaded(world: World) -> None:
    with pytest.raises(NotReady):
        world.leader.campaign()
    assert world.other.elect("publisher", "two") is not None


def test_a_role_that_another_holds_is_not_taken(world: World) -> None:
    held = world.other.elect("publisher", "two")
    assert held is not None
    world.replica.catch_up()
    assert world.leader.campaign() is None
    assert not world.leader.leads
    held.release()
    assert world.leader.campaign() is not None
    assert world.leader.leads


def test_one_term_is_one_leadership(world: World) -> None:
    leader = world.elected()
    first = leader.campaign()
    assert leader.campaign() is first
    leader.resign()
    assert leader.campaign() is not first


def test_S19_the_role_is_acted_in_once_the_replica_has_reached_the_election(world: World) -> None:
    leader = world.elected()
    looks: list[float] = []
    assert not leader.wait_for_election(looks.append)
    assert looks
    assert not leader.has_reached_election()
    world.replica.catch_up()
    assert leader.wait_for_election(looks.append)


def test_S19_the_role_waits_for_what_it_wrote_itself(world: World) -> None:
    leader = world.elected()
    world.replica.catch_up()
    done = world.store.commit(Transaction((leader.guard,), (Put(b"k/x", b"1"),)))
    assert leader.has_reached_election()
    assert not leader.has_reached_election(done.revision)
    world.replica.catch_up()
    assert leader.has_reached_election(done.revision)


def test_S19_a_term_ends_when_the_tree_names_another(world: World) -> None:
    leader = world.elected()
    world.replica.catch_up()
    assert leader.has_reached_election()
    # The lock goes without the process knowing, as after a long pause; another is elected.
    lost = leader.leadership
    lose_lock(lost)
    assert world.other.elect("publisher", "two") is not None
    assert leader.has_reached_election(), "the replica is older than the other's election"
    world.replica.catch_up()
    with pytest.raises(LeadershipLost):
        leader.has_reached_election()
    forget_lock(lost)


def test_who_resigned_has_no_guard_and_another_may_be_elected(world: World) -> None:
    leader = world.elected()
    assert leader.guard.key == role_key("publisher")
    leader.resign()
    with pytest.raises(LeadershipLost):
        _ = leader.guard
    with pytest.raises(LeadershipLost):
        leader.has_reached_election()
    assert world.other.elect("publisher", "two") is not None
