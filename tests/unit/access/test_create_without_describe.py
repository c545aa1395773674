"""CREATE without DESCRIBE reaches the directory that has the grant, and none below it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from kdir.v1 import directory_pb2, entry_pb2

from resolver.errors import Absent, InvalidNamespace, KdirError, PermissionDenied
from tests.unit.access.conftest import ADMIN, House, topic

Make = Callable[..., House]


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    made.mkdir("/la/p/q")
    made.grant("bob", "create", "/la/p")
    return made


def creating(path: str, *, make_parents: bool = False) -> directory_pb2.CreateEntryRequest:
    entry = entry_pb2.Entry(directory={})
    return directory_pb2.CreateEntryRequest(path=path, entry=entry, make_parents=make_parents)


def arguments(refused: KdirError, name: str) -> str:
    facts = sorted(refused.metadata.items())
    return f"{type(refused).__name__} {refused.message} {facts}".replace(name, "NAME")


def test_it_makes_entries_right_in_the_directory_that_has_the_grant(la: House) -> None:
    assert la.ask("bob", "CreateEntry", creating("/la/p/new")).entry.path == "/la/p/new"
    la.grant("bob", "create", "/la")  # one further up takes nothing away
    assert la.ask("bob", "CreateEntry", creating("/la/p/more")).entry.path == "/la/p/more"


def test_below_it_a_directory_is_as_if_it_were_absent(la: House) -> None:
    hidden = la.refusal("bob", "CreateEntry", creating("/la/p/q/new"))
    absent = la.refusal("bob", "CreateEntry", creating("/la/p/zzqz/new"))
    assert isinstance(hidden, InvalidNamespace)
    assert arguments(hidden, "/q") == arguments(absent, "/zzqz")
    la.ask("bob", "CreateEntry", creating("/la/p/own"))
    assert isinstance(la.refusal("bob", "CreateEntry", creating("/la/p/own/x")), InvalidNamespace)
    la.grant("bob", "describe", "/la/p")
    la.ask("bob", "CreateEntry", creating("/la/p/own/x"))


@pytest.mark.parametrize("make_parents", [False, True])
def test_a_directory_with_another_grant_of_its_own_lacks_describe(
    la: House, make_parents: bool
) -> None:
    la.grant("bob", "alter-configs", "/la/p/q")
    request = creating("/la/p/q/new", make_parents=make_parents)
    refused = la.refusal("bob", "CreateEntry", request)
    assert isinstance(refused, PermissionDenied)
    assert refused.metadata["operation"] == "DESCRIBE"
    assert refused.message.startswith("User:bob may not DESCRIBE /la/p/q: ")
    la.grant("bob", "-all", "/la/p/q")  # a grant that a deny takes away makes nothing known
    assert not isinstance(la.refusal("bob", "CreateEntry", request), PermissionDenied)


def test_what_a_right_further_up_does_on_an_entry_takes_describe(
    la: House, caplog: pytest.LogCaptureFixture
) -> None:
    la.mkdir("/la/p/d")
    la.grant("bob", "delete,-describe", "/la/p")
    request = directory_pb2.DeleteEntryRequest(path="/la/p/d")
    assert isinstance(la.refusal("bob", "DeleteEntry", request), Absent)
    la.grant("bob", "describe-configs", "/la/p/d")
    with caplog.at_level(logging.INFO, "kdir.audit"):
        refused = la.refusal("bob", "DeleteEntry", request)
    assert isinstance(refused, PermissionDenied)
    assert refused.metadata["operation"] == "DESCRIBE"
    (line,) = [one.getMessage() for one in caplog.records if one.name == "kdir.audit"]
    assert 'result="DENIED" principal="User:bob"' in line
    assert 'operation="DESCRIBE" resource="TOPIC:/la/p/d"' in line
    la.grant("bob", "delete", "/la/p/d")
    la.ask("bob", "DeleteEntry", request)
    assert isinstance(la.refusal(ADMIN, "DeleteEntry", request), Absent)


def test_a_hidden_directory_beside_a_visible_topic_is_as_if_it_were_absent(la: House) -> None:
    la.grant("bob", "describe", "/la/p")
    la.mkdir("/la/p/zzhz")
    la.grant("bob", "-describe", "/la/p/zzhz")
    for name in ("zzhz", "zzqz"):
        topic(la, f"/la/p/{name}")
    for below in ("x", "x/y"):
        hidden, absent = (
            la.refusal("bob", "CreateEntry", creating(f"/la/p/{name}/{below}"))
            for name in ("zzhz", "zzqz")
        )
        assert isinstance(hidden, InvalidNamespace)
        assert arguments(hidden, "zzhz") == arguments(absent, "zzqz")


@pytest.mark.parametrize("make_parents", [False, True])
def test_a_mount_whose_root_is_not_described_is_denied_and_not_absent(
    la: House, make_parents: bool
) -> None:
    """It was "/la does not exist; the nearest directory that does is /la"."""
    request = creating("/la/new", make_parents=make_parents)
    refused = la.refusal("eve", "CreateEntry", request)
    assert isinstance(refused, PermissionDenied)
    assert refused.message.startswith("User:eve may not CREATE /la: ")
