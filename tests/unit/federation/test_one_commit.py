"""A mount and what is inherited there are kept in one commit, whatever the parent sends."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import federation_pb2

from directory.federation import inheritance, parent_state
from directory.federation.inheritance import parent_of, read_inherited
from directory.namespace import keys
from directory.namespace.command import CreateDirectory, CreateMount, DeleteEntry
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.config import Limits, ServerConfig
from directory.store.base import Put
from directory.store.replica import AppliedCommit
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import NotReady
from resolver.path import MAX_PATH_BYTES, MAX_SEGMENTS
from resolver.path import Path as Path_
from tests.conftest import SharedEtcd
from tests.support.federation import eventually
from tests.support.scripted_parent import HEARTBEAT, ScriptedParent
from tests.unit.federation.test_inherited import inherited_message


class Parent(ScriptedParent):
    """Parent that sends what ``say`` is given; on each link first what ``first`` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[federation_pb2.LinkResponse] = []
        self._reported: queue.SimpleQueue[federation_pb2.LinkResponse] = queue.SimpleQueue()

    def say(self, **fields: Any) -> None:
        self._reported.put(federation_pb2.LinkResponse(**fields))

    def send(
        self, requests: Iterator[federation_pb2.LinkRequest]
    ) -> Iterator[federation_pb2.LinkResponse]:
        yield from list(self.first)
        while True:
            try:
                yield self._reported.get(timeout=0.05)
            except queue.Empty:
                yield HEARTBEAT


def welcome(mount: str, epoch: int, incarnation: str = "i") -> federation_pb2.Welcome:
    return federation_pb2.Welcome(
        mount=mount,
        epoch=epoch,
        parent_cluster_id="kc-root",
        parent_mount="/",
        incarnation=incarnation,
    )


def inherited(level: str, mount: str = "", epoch: int = 0) -> federation_pb2.Inherited:
    levels = [{"path": level}]
    return federation_pb2.Inherited(incarnation="i", levels=levels, mount=mount, epoch=epoch)


def kept(snapshot: Snapshot) -> tuple[str, str, int]:
    """Mounts, the mount that the inherited is of, and how many levels that has."""
    parent, inherits = parent_of(snapshot), read_inherited(snapshot)
    if inherits is None:
        return ("" if parent is None else parent[0].mount, "", 0)
    assert parent is not None
    return parent[0].mount, inherits.message.mount, len(inherits.message.levels)


class Child:
    """One that is linked to a scripted parent, and what its trees were one after the other."""

    def __init__(self, store: str, parent: Parent) -> None:
        config = ServerConfig.quick(
            Path_.parse("/a"),
            cluster="a",
            store=store,
            listen="127.0.0.1:0",
            parent=(parent.address,),
            limits=Limits(link_heartbeat_seconds=5.0),
        )
        self.cluster = Cluster.open(config)
        self.trees: list[tuple[str, str, int]] = []
        self.cluster.replica.subscribe(self._applied)
        self.cluster.start()

    def _applied(self, applied: AppliedCommit) -> None:
        now = kept(applied.after)
        if not self.trees or self.trees[-1] != now:
            self.trees.append(now)

    @property
    def linked(self) -> bool:
        return self.cluster.link_status().linked

    def holds(self, mount: str, levels: int = 1) -> bool:
        return self.linked and kept(self.cluster.replica.snapshot) == (mount, mount, levels)


@pytest.fixture(params=["sqlite", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a.sqlite'}"
    etcd: SharedEtcd = request.getfixturevalue("etcd_cluster")
    return etcd.address()


@pytest.fixture
def parent() -> Iterator[Parent]:
    with Parent() as scripted:
        yield scripted


@pytest.fixture
def child(store: str, parent: Parent) -> Iterator[Child]:
    """Yields a child that is linked, and mounted at ``/a`` with one level."""
    parent.say(welcome=welcome("/a", 1))
    parent.say(inherited=inherited("/one", "/a", 1))
    made = Child(store, parent)
    eventually(lambda: made.holds("/a"))
    yield made
    made.cluster.stop()


def test_a_mount_waits_for_what_is_inherited_there_and_so_does_the_table(
    child: Child, parent: Parent
) -> None:
    row = federation_pb2.MountRow(mount="/b", cluster_id="kc-a", epoch=2)
    parent.say(remounted=welcome("/b", 2))
    parent.say(mount_table=federation_pb2.MountTable(rows=[row]))
    eventually(lambda: "has not sent yet what is inherited" in child.cluster.link_status().message)
    assert child.cluster.mount == Path_.parse("/a")
    parent.say(inherited=inherited("/two", "/b", 2))
    eventually(lambda: child.holds("/b"))
    eventually(lambda: list(parent_state.table_rows(child.cluster.replica.snapshot)))
    assert child.trees == [("", "", 0), ("/a", "/a", 1), ("/b", "/b", 1)]
    # Where no level is another, the mount is.
    parent.say(remounted=welcome("/c", 3))
    parent.say(inherited=inherited("/two", "/c", 3))
    eventually(lambda: child.holds("/c"))
    assert parent.links == 1


@pytest.mark.parametrize(("mount", "epoch"), [("/b", 1), ("/a", 1)])
def test_a_mount_by_a_restored_parent_waits_for_what_is_inherited_from_it_now(
    child: Child, parent: Parent, mount: str, epoch: int
) -> None:
    """At a path and an epoch of before, perhaps the same ones."""
    parent.say(remounted=welcome(mount, epoch, "j"))
    eventually(lambda: "has not sent yet what is inherited" in child.cluster.link_status().message)
    assert child.trees == [("", "", 0), ("/a", "/a", 1)]
    parent.say(inherited=inherited("/two", mount, epoch))
    eventually(lambda: child.holds(mount))
    output = parent_of(child.cluster.replica.snapshot)
    assert output is not None
    assert output[0].incarnation == "j"


def test_as_much_as_is_inherited_and_the_mount_change_in_one_transaction(
    child: Child, parent: Parent
) -> None:
    def hand_down(mount: str, epoch: int) -> None:
        large = inherited_message(6, name=mount[1:])
        large.mount, large.epoch = mount, epoch
        # Also on a new link: a slow machine may take the parent for silent.
        parent.first = [
            federation_pb2.LinkResponse(welcome=welcome(mount, epoch)),
            federation_pb2.LinkResponse(inherited=large),
        ]
        parent.say(remounted=welcome(mount, epoch))
        parent.say(inherited=large)
        eventually(lambda: child.holds(mount, 6), 90)

    hand_down("/b", 2)
    hand_down("/c", 3)
    assert child.trees == [("", "", 0), ("/a", "/a", 1), ("/b", "/b", 6), ("/c", "/c", 6)]


def test_what_is_inherited_at_another_mount_ends_the_link_and_is_not_kept(
    child: Child, parent: Parent
) -> None:
    parent.say(inherited=inherited("/two", "/b", 2))
    eventually(lambda: parent.links == 2)
    parent.say(welcome=welcome("/b", 2))
    parent.say(inherited=inherited("/two", "/a", 1))
    eventually(lambda: parent.links == 3)
    assert child.trees == [("", "", 0), ("/a", "/a", 1)]
    parent.say(welcome=welcome("/b", 2))
    parent.say(inherited=inherited("/two", "/b", 2))
    eventually(lambda: child.holds("/b"))


def test_a_mount_below_which_a_mount_has_no_valid_path_is_refused_and_not_kept(
    child: Child, parent: Parent
) -> None:
    deep = Path_.parse("/a" + "/d" * (MAX_SEGMENTS - 1))
    writer = child.cluster.writer
    writer.commit_command(CreateDirectory(path=deep.parent, make_parents=True))
    writer.commit_command(CreateMount(path=deep, cluster_id="kc-d"))
    parent.say(remounted=welcome("/b/c", 2))
    eventually(lambda: parent.links == 2)
    assert f"where {deep} has no valid path" in child.cluster.link_status().message
    assert child.trees == [("", "", 0), ("/a", "/a", 1)]
    assert child.cluster.federation.view().mounts["kc-d"][0] == deep
    parent.say(welcome=welcome("/b", 3))
    parent.say(inherited=inherited("/two", "/b", 3))
    eventually(lambda: child.holds("/b"))


def test_a_mount_at_which_a_directory_has_no_valid_path_is_refused_and_not_kept(
    child: Child, parent: Parent
) -> None:
    deep = Path_.parse("/a" + "/d" * (MAX_SEGMENTS - 1))
    long = Path_(("a", *["n" * 249] * 4, "n" * (MAX_PATH_BYTES - 2 - 4 * 250 - 1)))
    assert len(str(long)) == MAX_PATH_BYTES
    writer = child.cluster.writer
    for at, mount in ((deep, "/b/c"), (long, "/bc")):
        links = parent.links
        writer.commit_command(CreateDirectory(path=at, make_parents=True))
        parent.say(remounted=welcome(mount, 2))
        eventually(lambda before=links: parent.links > before)  # type: ignore[misc]
        assert f"where {at} has no valid path" in child.cluster.link_status().message
        writer.commit_command(DeleteEntry(path=Path_(at.segments[:2]), recursive=True))
    assert child.trees == [("", "", 0), ("/a", "/a", 1)]
    parent.say(welcome=welcome("/b/c", 3))
    parent.say(inherited=inherited("/two", "/b/c", 3))
    eventually(lambda: child.holds("/b/c"))


def test_rows_of_two_mounts_are_not_ready() -> None:
    time = (7).to_bytes(8, "big")
    rows = {
        keys.PARENT: time + welcome("/b", 2).SerializeToString(),
        keys.INHERITED: time + inherited("/one", "/a", 1).SerializeToString(),
    }
    snapshot = Snapshot.load(ProtoCodec(), "i", 1, [sorted(rows.items())])
    assert inheritance.is_inherited_corrupt(snapshot)
    with pytest.raises(NotReady):
        inheritance.inherited_access(snapshot)
    with pytest.raises(NotReady):
        inheritance.inherited_policies(snapshot)
    now = snapshot.apply(2, (Put(keys.PARENT, time + welcome("/a", 1).SerializeToString()),))
    assert inheritance.inherited_access(now) == ()
