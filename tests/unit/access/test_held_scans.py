"""A scan that is held goes on for the caller that began it, for a while, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest
from kdir.v1 import admin_pb2, directory_pb2, federation_pb2, scan_pb2

from directory.api import scan_service
from directory.api.scan_service import ScanService
from directory.federation import inheritance, parent_state
from directory.federation.child_state import link_write
from directory.federation.federation_state import unix_ms
from directory.federation.link_records import encode_record
from directory.namespace.keys import PARENT, child_key, kafka_key, member_key, mount_row_key
from directory.store.base import Put
from resolver.index.cluster_discovery import cluster_state_from_authority
from resolver.index.row_schema import ClusterState
from tests.unit.access.conftest import ADMIN, House, grants, topic

Make = Callable[..., House]


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    made.mkdir("/la/p/hid")
    for path in ("/la/p/a", "/la/p/b", "/la/p/hid/x", "/la/p/z"):
        topic(made, path)
    made.grant("bob", "describe", "/la/p")
    made.grant("bob", "-describe", "/la/p/hid")
    return made


def page(la: House, who: str, token: str = "") -> scan_pb2.ScanTopicsResponse:
    request = scan_pb2.ScanTopicsRequest(path="/la/p", page_size=1, page_token=token)
    answer: scan_pb2.ScanTopicsResponse = la.ask(who, "ScanTopics", request)
    return answer


def paths(la: House, who: str, token: str) -> list[str]:
    found: list[str] = []
    while token:
        answer = page(la, who, token)
        found += [one.path for one in answer.entries]
        token = answer.next_page_token
    return found


def forget(la: House) -> None:
    """Deletes what was hidden, and its deny with it."""
    request = directory_pb2.DeleteEntryRequest(path="/la/p/hid", recursive=True)
    la.ask(ADMIN, "DeleteEntry", request)


def test_what_was_hidden_in_the_snapshot_of_a_scan_stays_so(la: House) -> None:
    begun = page(la, "bob").next_page_token
    forget(la)
    assert paths(la, "bob", begun) == ["/la/p/b", "/la/p/z"]


def test_nobody_goes_on_in_the_scan_of_another(la: House) -> None:
    begun = page(la, ADMIN)
    forget(la)
    answer = page(la, "bob", begun.next_page_token)  # nothing in it is signed
    assert answer.authority.revision > begun.authority.revision
    assert paths(la, "bob", begun.next_page_token) == ["/la/p/b", "/la/p/z"]
    mine = page(la, ADMIN, begun.next_page_token)
    assert mine.authority.revision == begun.authority.revision


def test_a_right_that_is_gone_ends_what_a_scan_shows(la: House) -> None:
    begun = page(la, "bob").next_page_token
    la.grant("bob", "-describe", "/la/p/z")
    assert paths(la, "bob", begun) == ["/la/p/b"]


def test_N5_a_scan_asks_for_rights_where_its_topics_are_now(la: House) -> None:
    for path in ("/la/p/d/in/x", "/la/p/d/y", "/la/p/m", "/la/p/n", "/la/p/o"):
        la.mkdir(path.rpartition("/")[0])
        topic(la, path)
    la.mkdir("/la/q")
    begun, whole = (page(la, who).next_page_token for who in ("bob", ADMIN))
    for old, new in (
        ("/la/p/d", "/la/p/e"),  # denied there
        ("/la/p/m", "/la/q/m"),  # not granted there
        ("/la/p/n", "/la/q/n"),  # granted there
        ("/la/p/o", "/la/p/oo"),  # denied there
    ):
        la.ask(ADMIN, "MoveEntry", directory_pb2.MoveEntryRequest(path=old, new_path=new))
    topic(la, "/la/p/z", partitions=12)
    la.grant("bob", "-describe", "/la/p/e")
    la.grant("bob", "describe", "/la/q/n")
    la.grant("bob", "-describe", "/la/p/oo")
    la.ask(ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/p/b"))
    # Removed ones stay, as all that is of the snapshot.
    assert paths(la, "bob", begun) == ["/la/p/b", "/la/p/n", "/la/p/z"]
    assert len(paths(la, ADMIN, whole)) == 8, "all but the first, of the same snapshot"


def test_a_scan_is_held_for_a_while_only(la: House, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = page(la, "bob")
    topic(la, "/la/p/new")
    held = page(la, "bob", begun.next_page_token)
    assert held.authority.revision == begun.authority.revision
    monkeypatch.setattr(scan_service, "_HELD_SECONDS", 0.0)
    later = page(la, "bob", begun.next_page_token)
    assert later.authority.revision > begun.authority.revision


def test_a_scan_that_nobody_continues_is_dropped_without_another_call(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = ScanService(la.router)
    la.handlers.update(scans.method_handlers())
    begun = page(la, "bob")
    topic(la, "/la/p/new")
    scans.end_late()
    held = page(la, "bob", begun.next_page_token)
    assert held.authority.revision == begun.authority.revision
    with monkeypatch.context() as later:
        later.setattr(scan_service, "_HELD_SECONDS", 0.0)
        scans.end_late()
    again = page(la, "bob", begun.next_page_token)
    assert again.authority.revision > begun.authority.revision


@pytest.fixture
def unconfirmed_seconds() -> list[float]:
    """Returns the time since the parent confirmed what ``child`` inherits."""
    return [0.0]


@pytest.fixture
def child(house: Make, unconfirmed_seconds: list[float]) -> House:
    """Makes a cluster that inherits a right of bob on all, and grants one on ``b`` itself."""
    limits = {"inherited_grants_max_age_seconds": 60.0}
    made = house(parent=["127.0.0.1:1"], limits=limits)
    made.mkdir("/la/p")
    for path in ("/la/p/a", "/la/p/b", "/la/p/z"):
        topic(made, path)
    made.grant("bob", "describe", "/la/p/b")
    message = federation_pb2.Inherited(revision=1, incarnation="i")
    message.levels.add(path="/", grants=grants("bob", "describe", host="*"))
    made.put(*inheritance.inherited_writes(made.cluster.replica.snapshot, message, unix_ms()))
    made.cluster.unconfirmed_seconds = lambda: unconfirmed_seconds[0]  # type: ignore[method-assign]
    return made


def test_a_scan_that_began_while_inherited_grants_did_not_count_ends_when_they_do(
    child: House, unconfirmed_seconds: list[float]
) -> None:
    unconfirmed_seconds[0] = 1000.0
    begun = page(child, "bob")
    assert [one.path for one in begun.entries] == ["/la/p/b"]
    unconfirmed_seconds[0] = 0.0
    again = page(child, "bob")
    assert again.authority.revision == begun.authority.revision
    assert [one.path for one in again.entries] == ["/la/p/a"]
    assert paths(child, "bob", again.next_page_token) == ["/la/p/b", "/la/p/z"]


def test_a_page_marks_that_expired_inherited_grants_would_show_more(
    child: House, unconfirmed_seconds: list[float]
) -> None:
    """An index does not see it by the revision."""
    child.grant("carol", "describe", "/la/p")
    for seconds in (0.0, 1000.0):
        unconfirmed_seconds[0] = seconds
        assert page(child, "bob").inherited_grants_expired is bool(seconds)
        assert not page(child, "carol").inherited_grants_expired
        assert not page(child, ADMIN).inherited_grants_expired


def state(la: House) -> ClusterState:
    """Returns the state of the cluster by which an index decides whether to read it again."""
    status = la.ask(ADMIN, "GetStatus", admin_pb2.GetStatusRequest())
    return replace(
        cluster_state_from_authority(status.authority, datetime.now(UTC)),
        unchanged_since=status.topics_unchanged_since,
    )


def test_what_servers_write_by_themselves_changes_no_scan(child: House) -> None:
    before = state(child)
    child.put(parent_state.parent_contact_write(unix_ms(), linked=True))
    child.put(link_write("kc-child", "server", 7))
    child.put(Put(mount_row_key("/ny"), b"row"), Put(child_key("kc-child"), b"hello"))
    child.put(Put(member_key("another"), b"member"), Put(kafka_key("managing"), b"1"))
    now = state(child)
    assert (now.revision or 0) >= (before.revision or 0) + 4
    assert before.same_rows(now)
    assert not now.same_rows(before)  # of a server whose replica is behind


def set_owner(la: House) -> None:
    request = directory_pb2.UpdateEntryRequest(path="/la/p", entry={"policies": {"owner": "us"}})
    request.update_mask.paths.append("policies.owner")
    la.ask(ADMIN, "UpdateEntry", request)


def inherit_again(la: House) -> None:
    message = federation_pb2.Inherited(revision=2, incarnation="i")
    message.levels.add(path="/", policies={"owner": "them"})
    la.put(*inheritance.inherited_writes(la.cluster.replica.snapshot, message, unix_ms()))


def move(la: House) -> None:
    time = encode_record(unix_ms(), b"")
    moved = federation_pb2.Welcome(mount="/b", epoch=2, parent_mount="/")
    la.put(Put(PARENT, time + moved.SerializeToString()))


CHANGES: Final[dict[str, Callable[[House], object]]] = {
    "a grant": lambda la: la.grant("dave", "describe", "/la/p"),
    "a removed grant": lambda la: la.revoke("bob", "describe", "/la/p/b"),
    "a policy": set_owner,
    "partitions": lambda la: topic(la, "/la/p/z", partitions=12),
    "a new topic": lambda la: topic(la, "/la/p/new"),
    "what is inherited": inherit_again,
    "the mount": move,
    "a delete": lambda la: la.ask(
        ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/p/z")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_scan_is_seen_by_an_index(child: House, change: str) -> None:
    before = state(child)
    CHANGES[change](child)
    changed = state(child)
    assert not before.same_rows(changed)
    child.put(parent_state.parent_contact_write(unix_ms(), linked=True))
    assert not before.same_rows(state(child))
    assert changed.same_rows(state(child))
