"""What the store keeps of parent and children, where it cannot be read (S21)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kdir.v1 import federation_pb2

from directory.access.grants import Grant, Operation, Permission
from directory.federation import child_state, inheritance, parent_state
from directory.namespace import keys
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put
from directory.wire.entry_codec import ProtoCodec
from directory.wire.grant_messages import grant_to_proto
from resolver.errors import NotReady
from tests.support.trees import path

CONFIGURED = path("/configured")
TIME = b"\0\0\0\0\0\0\0\1"
NONSENSE = [b"", b"\xff", b"\xff\xfe\0nonsense", TIME + b"\xff\xfe\0nonsense"]
NO_PATH = TIME + federation_pb2.MountRow(mount="no path").SerializeToString()
BELOW = b"f/below/kc-child"
LINKED = b"f/linked/kc-child"


def holding(rows: Mapping[bytes, bytes]) -> Snapshot:
    return Snapshot.load(ProtoCodec(), "i", 1, [sorted(rows.items())])


def output(message: federation_pb2.Welcome | federation_pb2.MountRow) -> bytes:
    return TIME + message.SerializeToString()


def welcome(mount: str = "/la") -> federation_pb2.Welcome:
    return federation_pb2.Welcome(mount=mount, epoch=7, parent_cluster_id="kc-root")


def row(mount: str) -> federation_pb2.MountRow:
    return federation_pb2.MountRow(mount=mount, cluster_id="kc-ny")


@pytest.mark.parametrize("value", [*NONSENSE, output(welcome("no path"))])
def test_S21_an_unreadable_welcome_is_none_and_the_next_one_is_kept(value: bytes) -> None:
    snapshot = holding({keys.PARENT: value})
    assert parent_state.position_of(snapshot, CONFIGURED) == parent_state.Position(CONFIGURED)
    assert parent_state.ancestors(snapshot, 0) == []
    kept, moved = parent_state.welcome_writes(snapshot, welcome(), 1)
    assert kept == Put(keys.PARENT, output(welcome()))
    assert moved == Put(keys.MOVED, b"1")


@pytest.mark.parametrize("value", [*NONSENSE, NO_PATH])
def test_S21_an_unreadable_row_of_the_mount_table_is_left_out_and_replaced(value: bytes) -> None:
    bad, good = keys.mount_row_key("/bad"), keys.mount_row_key("/ny")
    snapshot = holding({bad: value, good: output(row("/ny"))})
    assert [one.mount for one in parent_state.table_rows(snapshot)] == [path("/ny")]
    (gone,) = parent_state.table_writes(snapshot, [parent_state.TableRow(row("/ny"), 1)])
    assert gone == Delete(bad)


@pytest.mark.parametrize("value", NONSENSE[1:])
def test_S21_what_cannot_be_read_of_a_child_is_as_if_it_never_linked(value: bytes) -> None:
    child = keys.child_key("kc-child")
    odd = keys.CHILD + b"\xff"
    snapshot = holding({child: value, odd: value, BELOW: value, LINKED: value})
    assert child_state.child_hello(snapshot, "kc-child") in (None, (federation_pb2.Hello(), 255))
    assert child_state.below_rows(snapshot, "kc-child") == []
    assert child_state.link_of(snapshot, "kc-child") is not None
    hello = federation_pb2.Hello(cluster_id="kc-child")
    assert [one.key for one in child_state.child_writes(snapshot, hello, 1)] == [child]
    below = [parent_state.TableRow(row("/la/x"), 1)]
    assert [one.key for one in child_state.below_writes(snapshot, "kc-child", below, 1)] == [BELOW]
    assert child_state.forget_writes(snapshot, {"kc-child"}) == (Delete(odd),)


def test_S21_a_mount_below_a_child_that_is_no_path_is_left_out() -> None:
    table = federation_pb2.MountTable(rows=[row("no path"), row("/la/x")])
    snapshot = holding({BELOW: TIME + table.SerializeToString()})
    assert [one.mount for one in child_state.below_rows(snapshot, "kc-child")] == [path("/la/x")]


def test_S21_inherited_records_that_cannot_be_read_are_not_nothing() -> None:
    snapshot = holding({keys.INHERITED: NONSENSE[-1], keys.PARENT: output(welcome())})
    for read in (
        inheritance.inherited_levels,
        inheritance.inherited_policies,
        inheritance.inherited_origins,
    ):
        with pytest.raises(NotReady, match="inherited policies are unreadable"):
            read(snapshot)
    assert parent_state.ancestors(snapshot, 0) == []
    kept, marked = inheritance.inherited_writes(
        snapshot, federation_pb2.Inherited(incarnation="i"), 1
    )
    assert (kept.key, marked.key) == (keys.INHERITED, keys.GRANTS_MARK)


def test_only_what_changes_somebodys_rights_above_is_marked_as_a_change_of_grants() -> None:
    def inherited(owner: str, *, mount: str = "/la", **level: Any) -> federation_pb2.Inherited:
        one = federation_pb2.InheritedLevel(path="/", policies={"owner": owner}, **level)
        return federation_pb2.Inherited(incarnation="i", mount=mount, epoch=7, levels=[one])

    before = holding({keys.INHERITED: TIME + inherited("ana").SerializeToString()})

    def marks(output: federation_pb2.Inherited) -> bool:
        written = [one.key for one in inheritance.inherited_writes(before, output, 1)]
        assert keys.INHERITED in written
        return keys.GRANTS_MARK in written

    assert not marks(inherited("bob"))
    assert marks(inherited("ana", closed=True))
    allow = grant_to_proto(Grant("User:a", "*", Operation.READ, Permission.ALLOW))
    assert marks(inherited("ana", grants=[allow]))
    assert marks(inherited("ana", mount="/ny"))


def test_S21_a_reason_that_is_no_text_still_says_that_it_is_unmounted() -> None:
    snapshot = holding({parent_state.UNMOUNTED_KEY: b"\xffgone"})
    assert parent_state.position_of(snapshot, CONFIGURED).unmounted == "\ufffdgone"
