"""A scan that is held goes on for the caller that began it, for a while, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kdir.v1 import directory_pb2, federation_pb2, scan_pb2

from directory.api import scan_service
from directory.api.scan_service import ScanService
from directory.federation import inheritance
from directory.federation.federation_state import unix_ms
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
    """A cluster that inherits a right of bob on all of it, and gives a right on ``b`` itself."""
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
