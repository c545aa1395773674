"""Closing a directory that is then closed to whoever closes it: refused unless it is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import field_mask_pb2
from kdir.v1 import directory_pb2, entry_pb2

from resolver.errors import LocksOut
from tests.unit.access.conftest import ADMIN, House

STORES = ("sqlite", "etcd")

Make = Callable[..., House]
CLOSED = entry_pb2.Entry(directory=entry_pb2.Directory(closed=True))


def close(path: str, *, closed: bool = True, **fields: Any) -> directory_pb2.UpdateEntryRequest:
    return directory_pb2.UpdateEntryRequest(
        path=path,
        entry=entry_pb2.Entry(directory=entry_pb2.Directory(closed=closed)),
        update_mask=field_mask_pb2.FieldMask(paths=["directory.closed"]),
        **fields,
    )


def is_closed(la: House, path: str) -> bool:
    request = directory_pb2.GetEntryRequest(path=path)
    return bool(la.ask(ADMIN, "GetEntry", request).entry.directory.closed)


@pytest.fixture
def la(house: Make) -> House:
    made = house("open")
    made.mkdir("/la/d/below", "")
    return made


@pytest.mark.parametrize("who", ["", "bob"])
def test_in_an_open_cluster_without_grants_it_is_refused(la: House, who: str) -> None:
    refused = la.refusal(who, "UpdateEntry", close("/la/d"))
    assert isinstance(refused, LocksOut)
    assert "/la/d" in refused.message
    assert (f"User:{who}" if who else "User:ANONYMOUS") in refused.message
    assert not is_closed(la, "/la/d")


def test_confirmed_it_is_done(la: House) -> None:
    la.ask("bob", "UpdateEntry", close("/la/d", allow_lock_out=True))
    assert is_closed(la, "/la/d")
    assert la.refusal("bob", "UpdateEntry", close("/la/d", closed=False)).reason in {
        "ABSENT",
        "PERMISSION_DENIED",
    }
    la.ask(ADMIN, "UpdateEntry", close("/la/d", closed=False))
    assert not is_closed(la, "/la/d")


def test_its_plan_says_so_and_is_not_refused(la: House) -> None:
    answer = la.ask("bob", "UpdateEntry", close("/la/d", validate_only=True))
    assert answer.plan.locks_out
    assert not is_closed(la, "/la/d")
    opening = la.ask("bob", "UpdateEntry", close("/la/d", closed=False, validate_only=True))
    assert not opening.plan.locks_out


def test_who_is_let_pass_by_a_grant_may_close(la: House) -> None:
    la.grant("bob", "alter", "/la")
    assert not la.ask("bob", "UpdateEntry", close("/la/d", validate_only=True)).plan.locks_out
    la.ask("bob", "UpdateEntry", close("/la/d"))
    la.ask("bob", "UpdateEntry", close("/la/d", closed=False))
    # A grant further below does not let anybody pass.
    la.revoke("bob", "alter", "/la")
    la.grant("bob", "all", "/la/d/below")
    assert isinstance(la.refusal("bob", "UpdateEntry", close("/la/d")), LocksOut)


def test_a_super_user_is_never_locked_out(la: House) -> None:
    la.ask(ADMIN, "UpdateEntry", close("/la/d"))
    assert is_closed(la, "/la/d")


def test_a_new_directory_is_no_trap_either(la: House) -> None:
    for path, parents in (("/la/new", False), ("/la/x/y/z", True)):
        asked = directory_pb2.CreateEntryRequest(path=path, entry=CLOSED, make_parents=parents)
        for asked.validate_only in (True, False):
            assert isinstance(la.refusal("bob", "CreateEntry", asked), LocksOut)
        asked.allow_lock_out = True
        la.ask("bob", "CreateEntry", asked)
        assert is_closed(la, path)


def test_where_access_is_enforced_closing_takes_nothing_from_who_may(house: Make) -> None:
    la = house("enforce")
    la.mkdir("/la/d")
    la.grant("bob", "alter,create", "/la")
    la.ask("bob", "UpdateEntry", close("/la/d"))
    la.ask("bob", "CreateEntry", directory_pb2.CreateEntryRequest(path="/la/n", entry=CLOSED))
    la.ask("bob", "UpdateEntry", close("/la/d", closed=False))
