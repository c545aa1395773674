"""An update by a caller who may not describe the entry shows nothing of it, planned or made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import directory_pb2

from resolver.errors import EtagMismatch
from tests.unit.access.conftest import ADMIN, House, topic

Make = Callable[..., House]
KEY = "policies.topic_config.retention.ms"


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    made.mkdir("/la/p/d/below")
    for path in ("/la/p/t", "/la/p/d/x"):
        topic(made, path, physical_name=f"secret{path.replace('/', '.')}")
    for path in ("/la/p", "/la/p/d", "/la/p/t"):
        made.ask(ADMIN, "UpdateEntry", setting(path, "1000"))
        made.ask(ADMIN, "UpdateEntry", owning(path))
    for path in ("/la/p/t", "/la/p/d"):
        made.grant("bob", "alter-configs", path)
    return made


def setting(path: str, value: str, *, plan: bool = False) -> directory_pb2.UpdateEntryRequest:
    entry: Any = {"policies": {"topic_config": {"retention.ms": {"value": value}}}}
    mask = FieldMask(paths=[KEY])
    return directory_pb2.UpdateEntryRequest(
        path=path, entry=entry, update_mask=mask, validate_only=plan
    )


def owning(path: str) -> directory_pb2.UpdateEntryRequest:
    entry: Any = {"policies": {"owner": "secret"}}
    mask = FieldMask(paths=["policies.owner"])
    return directory_pb2.UpdateEntryRequest(path=path, entry=entry, update_mask=mask)


@pytest.mark.parametrize("path", ["/la/p/t", "/la/p/d"])
def test_an_update_and_its_plan_show_nothing_of_what_may_not_be_described(
    la: House, path: str
) -> None:
    planned = la.ask("bob", "UpdateEntry", setting(path, "2000", plan=True))
    made = la.ask("bob", "UpdateEntry", setting(path, "2000"))
    assert not planned.plan.ByteSize()
    for answer in (planned, made):
        assert not answer.HasField("entry")
        assert answer.token
        assert "secret" not in str(answer)
    every = la.ask(ADMIN, "UpdateEntry", setting(path, "3000", plan=True))
    assert [one.before for one in every.plan.policies] == ["2000"]
    assert every.entry.policies.owner == "secret"


@pytest.mark.parametrize("path", ["/la/p/t", "/la/p/d"])
def test_who_may_describe_it_is_shown_it(la: House, path: str) -> None:
    la.grant("bob", "describe", path)
    planned = la.ask("bob", "UpdateEntry", setting(path, "2000", plan=True))
    assert planned.plan.policies
    assert planned.entry.policies.owner == "secret"
    assert la.ask("bob", "UpdateEntry", setting(path, "2000")).entry.policies.owner == "secret"


@pytest.mark.parametrize("path", ["/la/p/t", "/la/p/d"])
def test_the_etag_of_what_may_not_be_described_is_not_named(la: House, path: str) -> None:
    request = setting(path, "2000")
    request.etag = "1-1"
    known = la.ask(ADMIN, "GetEntry", directory_pb2.GetEntryRequest(path=path)).entry.etag
    with pytest.raises(EtagMismatch) as hidden:
        la.ask("bob", "UpdateEntry", request)
    assert known not in f"{hidden.value}{hidden.value.metadata}"
    la.grant("bob", "describe", path)
    with pytest.raises(EtagMismatch, match=f"its etag is {known}"):
        la.ask("bob", "UpdateEntry", request)


def test_a_repeated_update_is_answered_as_the_first(la: House) -> None:
    request = setting("/la/p/t", "2000")
    request.request_id = "once"
    assert not la.ask("bob", "UpdateEntry", request).HasField("entry")
    topic(la, "/la/p/t", physical_name="secret.by.now")
    la.grant("bob", "describe", "/la/p/t")
    assert not la.ask("bob", "UpdateEntry", request).HasField("entry")
    request.request_id = "another"
    shown = la.ask("bob", "UpdateEntry", request).entry
    la.grant("bob", "-describe", "/la/p/t")
    topic(la, "/la/p/t", physical_name="secret.since")
    assert la.ask("bob", "UpdateEntry", request).entry == shown
