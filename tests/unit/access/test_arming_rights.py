"""Arming shows and changes all that lies below: it takes a view of all of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kdir.v1 import policies_pb2

from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessMode
from resolver.errors import Absent, PermissionDenied, VanishGuard
from tests.unit.access.conftest import ADMIN, House, topic

Make = Callable[..., House]


@pytest.fixture
def la(house: Make, monkeypatch: pytest.MonkeyPatch) -> House:
    """Returns whose arming ends with VanishGuard once the caller may do it."""
    made = house(kafka={"bootstrap": ["127.0.0.1:1"], "ceiling": ["configs", "acls"]})
    reconciler = made.cluster.reconciler
    assert reconciler is not None

    def reached(*_: object, **__: object) -> None:
        raise VanishGuard("reached")

    for name in ("plan", "arm"):
        monkeypatch.setattr(type(reconciler.arming_service), name, reached)
    made.mkdir("/la/p/deep")
    made.mkdir("/la/p/closed", closed=True)
    for path in ("t", "deep/x", "closed/y"):
        topic(made, f"/la/p/{path}")
    return made


def calls(path: str) -> Iterator[tuple[str, Any]]:
    for aspect in ("configs", "acls"):
        yield "PlanArming", policies_pb2.PlanArmingRequest(path=path, aspect=aspect)
        yield "Arm", policies_pb2.ArmRequest(path=path, aspect=aspect, plan_hash="abc")


def refusals(la: House, who: str, path: str = "/la/p") -> list[Any]:
    return [la.refusal(who, method, request) for method, request in calls(path)]


def test_arming_is_refused_where_something_below_is_hidden(la: House) -> None:
    la.grant("bob", "alter,alter-configs,describe", "/la/p")
    la.grant("bob", "read", "/la/p/deep/x")  # a grant of its own on what it sees hides nothing
    for refused in refusals(la, "bob"):
        assert isinstance(refused, VanishGuard)
    for hidden in ("/la/p/t", "/la/p/deep", "/la/p/deep/x"):
        la.grant("bob", "-describe", hidden)
        for refused in refusals(la, "bob"):
            assert isinstance(refused, PermissionDenied)
            assert refused.metadata["operation"] == "DESCRIBE"
            assert refused.message == "User:bob may not DESCRIBE all that lies below /la/p"
        for refused in refusals(la, ADMIN):
            assert isinstance(refused, VanishGuard)
        la.revoke("bob", "-describe", hidden)


def test_arming_is_refused_where_a_closed_directory_below_hides_something(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(la.cluster), "access_at", _open(type(la.cluster).access_at))
    (refused, *_) = refusals(la, "bob")
    assert isinstance(refused, PermissionDenied)
    assert refused.message == "User:bob may not ALTER_CONFIGS all that lies below /la/p"
    la.grant("bob", "alter-configs", "/la/p/closed")
    (refused, *_) = refusals(la, "bob")
    assert refused.message == "User:bob may not DESCRIBE all that lies below /la/p"
    la.grant("bob", "describe", "/la/p/closed")
    (refused, *_) = refusals(la, "bob")
    assert isinstance(refused, VanishGuard)


def _open(access_at: Callable[..., Authorizer]) -> Callable[..., Authorizer]:
    """Returns the same where access is open."""
    return lambda *of: replace(access_at(*of), mode=AccessMode.OPEN)


def test_arming_takes_describe_on_the_entry(la: House, caplog: pytest.LogCaptureFixture) -> None:
    la.grant("bob", "alter-configs", "/la/p/t")
    la.grant("bob", "alter-configs", "/la/p/deep")
    for path in ("/la/p/t", "/la/p/deep"):
        request = policies_pb2.PlanArmingRequest(path=path, aspect="configs")
        caplog.clear()
        with caplog.at_level(logging.INFO, "kdir.audit"):
            refused = la.refusal("bob", "PlanArming", request)
        assert isinstance(refused, PermissionDenied)
        assert refused.message.startswith(f"User:bob may not DESCRIBE {path}: ")
        (line,) = [one.getMessage() for one in caplog.records if one.name == "kdir.audit"]
        assert 'result="DENIED"' in line
        assert f'operation="DESCRIBE" resource="TOPIC:{path}"' in line
        la.grant("bob", "describe", path)
        assert isinstance(la.refusal("bob", "PlanArming", request), VanishGuard)
    la.grant("carol", "alter-configs", "/la/p")
    request = policies_pb2.PlanArmingRequest(path="/la/p/t", aspect="configs")
    assert isinstance(la.refusal("carol", "PlanArming", request), Absent)


def test_an_operator_with_rights_above_may_arm(la: House) -> None:
    la.grant("bob", "-describe", "/la/p/deep")
    la.grant("carol", "alter,alter-configs", "/la")
    for refused in refusals(la, "carol"):
        assert isinstance(refused, VanishGuard)
