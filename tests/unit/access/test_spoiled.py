"""What is inherited and cannot be read any more: nobody is let in by it, and it can be mended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kdir.v1 import admin_pb2, directory_pb2, entry_pb2, federation_pb2, resolve_pb2

from directory.federation import inheritance, parent_state
from directory.federation.federation_state import unix_ms
from directory.federation.link_records import encode_record
from directory.namespace.entry import Kind
from directory.namespace.keys import INHERITED, entry_key
from directory.server.health import State, health_of
from directory.store.base import Put
from resolver.errors import Absent, InvalidArgument, InvalidNamespace, NotReady, UnreadableRecord
from tests.unit.access.conftest import ADMIN, House, grants

STORES = ("sqlite", "etcd")

Make = Callable[..., House]
NO_PATH = federation_pb2.Inherited(incarnation="i", levels=[{"path": "no path"}])
SPOILED = [
    b"\xff\xfe\0nonsense\xff",
    b"nonsense",  # eight bytes: a time, and a message of nothing
    b"",
    encode_record(1, NO_PATH.SerializeToString()),
]
RESOLVE = resolve_pb2.ResolveRequest(path="/la/a")
STATUS = admin_pb2.GetStatusRequest()


def status_of(house: House, who: str) -> admin_pb2.GetStatusResponse:
    answer: admin_pb2.GetStatusResponse = house.ask(who, "GetStatus", STATUS)
    return answer


def detach(house: House, who: str, *, keep: bool = False) -> admin_pb2.DetachParentResponse:
    request = admin_pb2.DetachParentRequest(keep_inherited=keep)
    answer: admin_pb2.DetachParentResponse = house.ask(who, "DetachParent", request)
    return answer


@pytest.mark.parametrize("value", SPOILED)
def test_S21_nobody_is_let_in_and_a_super_user_sees_it_and_mends_it(
    house: Make, value: bytes
) -> None:
    la = house(parent=["127.0.0.1:1"])
    la.mkdir("/la/a")
    la.grant("bob", "read", "/la/a")
    la.put(Put(INHERITED, value))
    assert isinstance(la.refusal("bob", "Resolve", RESOLVE), NotReady)
    health = health_of(la.cluster)
    assert (health.state, health.ready) == (State.AWAITING_PARENT, False)
    status = status_of(la, ADMIN)
    assert "f/inherited" in status.parent.inherited_missing_reason
    assert status.unreadable_value_count == 1
    assert status.unreadable_values[0].startswith("b'f/inherited': ")
    keep = admin_pb2.DetachParentRequest(keep_inherited=True)
    assert isinstance(la.refusal(ADMIN, "DetachParent", keep), NotReady)
    assert la.cluster.replica.snapshot.fact(parent_state.DETACHED_KEY) is None
    detach(la, ADMIN)
    assert la.outcome("bob", "/la/a") == "resolution"
    assert health_of(la.cluster).state is State.SERVING
    assert not status_of(la, ADMIN).unreadable_value_count
    assert not status_of(la, ADMIN).parent.inherited_missing_reason


def test_what_was_dropped_once_is_dropped_for_each_server_that_is_asked(house: Make) -> None:
    """A caller whose first server hangs asks the second one, and learns that it is done."""
    la = house(parent=["127.0.0.1:1"])
    la.put(Put(INHERITED, SPOILED[0]))
    other = house(parent=["127.0.0.1:1"])
    first = detach(la, ADMIN)
    again = admin_pb2.DetachParentRequest(token=first.token)
    second: admin_pb2.DetachParentResponse = other.ask(ADMIN, "DetachParent", again)
    assert list(first.kept) == list(second.kept) == []


def test_what_is_kept_does_not_go_with_a_second_detach(house: Make) -> None:
    la = house(parent=["127.0.0.1:1"])
    inherited = federation_pb2.Inherited(incarnation="i")
    inherited.levels.add(path="/", grants=grants("bob", "read", host="*"))
    la.put(*inheritance.inherited_writes(la.cluster.replica.snapshot, inherited, unix_ms()))
    detach(la, ADMIN, keep=True)
    drop = admin_pb2.DetachParentRequest()
    assert isinstance(la.refusal(ADMIN, "DetachParent", drop), InvalidArgument)


def test_what_can_be_read_does_not_go_with_the_parent(house: Make) -> None:
    la = house(parent=["127.0.0.1:1"])
    inherited = federation_pb2.Inherited(incarnation="i")
    inherited.levels.add(path="/", grants=grants("bob", "read", host="*"))
    la.put(*inheritance.inherited_writes(la.cluster.replica.snapshot, inherited, unix_ms()))
    drop = admin_pb2.DetachParentRequest()
    assert isinstance(la.refusal(ADMIN, "DetachParent", drop), InvalidArgument)
    assert list(detach(la, ADMIN, keep=True).kept) == ["/"]


def test_an_open_cluster_lets_nobody_in_by_what_it_cannot_read(house: Make) -> None:
    """Somebody may have been denied; and of those who may mend it there are none but all."""
    la = house("open", auth={"allow_anonymous": True})
    la.mkdir("/la/a")
    la.put(Put(INHERITED, SPOILED[0]))
    listing = directory_pb2.ListEntriesRequest(path="/la")
    for method, request in (("Resolve", RESOLVE), ("ListEntries", listing)):
        assert isinstance(la.refusal("bob", method, request), NotReady)
    assert status_of(la, "").parent.inherited_missing_reason
    detach(la, "bob")
    assert la.outcome("bob", "/la/a") == "resolution"


def test_an_open_cluster_with_super_users_is_mended_by_them(house: Make) -> None:
    la = house("open")
    la.mkdir("/la/a")
    la.put(Put(INHERITED, SPOILED[0]))
    drop = admin_pb2.DetachParentRequest()
    assert isinstance(la.refusal("bob", "DetachParent", drop), NotReady)
    detach(la, ADMIN)
    assert la.outcome("bob", "/la/a") == "resolution"


@pytest.mark.parametrize("access", ["enforce", "open"])
def test_S21_a_change_of_an_entry_that_cannot_be_read_is_not_answered_with_absent(
    house: Make, access: str
) -> None:
    """Who may not describe it learns nothing of it."""
    la = house(access)
    la.mkdir("/la/d/x")
    directory_id = la.cluster.replica.snapshot.find_directory(["d"])
    assert directory_id is not None
    la.put(Put(entry_key(directory_id, Kind.DIRECTORY, "x"), b"\xff"))
    set_closed = entry_pb2.Entry(directory=entry_pb2.Directory(closed=True))
    for method, request in (
        ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/d/x")),
        ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/d/x/below")),
        (
            "UpdateEntry",
            directory_pb2.UpdateEntryRequest(
                path="/la/d/x", entry=set_closed, update_mask={"paths": ["directory.closed"]}
            ),
        ),
        ("MoveEntry", directory_pb2.MoveEntryRequest(path="/la/d/x", new_path="/la/d/y")),
        ("CreateEntry", directory_pb2.CreateEntryRequest(path="/la/d/x/t", entry=set_closed)),
    ):
        refusal = la.refusal(ADMIN, method, request)
        assert isinstance(refusal, UnreadableRecord)
        assert "the record of /la/d/x cannot be read: " in refusal.message
        if access == "enforce":
            assert isinstance(la.refusal("bob", method, request), Absent | InvalidNamespace)
