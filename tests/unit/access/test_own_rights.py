"""A caller who asks what it may do itself gets the true answer about the grants that it has, and
about what is hidden the answer of what is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import pytest
from kdir.v1 import access_pb2

from tests.unit.access.conftest import House, topic

Make = Callable[..., House]
GROUP: Final = access_pb2.RESOURCE_TYPE_GROUP
TRANSACTIONAL_ID: Final = access_pb2.RESOURCE_TYPE_TRANSACTIONAL_ID
ABSENT: Final = "zzqz"


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    made.mkdir("/la/p/q/hidd/in")
    made.mkdir("/la/p/q/hidc", closed=True)
    made.mkdir("/la/p/q/hidc/in")
    for path in ("hidt", "hidd/x", "hidc/x"):
        topic(made, f"/la/p/q/{path}")
    return made


def check(la: House, path: str, operation: str, **fields: Any) -> access_pb2.CheckAccessResponse:
    request = access_pb2.CheckAccessRequest(
        principal="User:bob", path=path, operation=f"OPERATION_{operation}", **fields
    )
    answer: access_pb2.CheckAccessResponse = la.ask("bob", "CheckAccess", request)
    return answer


@pytest.mark.parametrize(
    ("kind", "operation"), [(GROUP, "READ"), (TRANSACTIONAL_ID, "WRITE"), (GROUP, "DESCRIBE")]
)
@pytest.mark.parametrize("path", ["/la/p/q", "/la/p/q/hidd", "/la/p/q/hidc"])
def test_a_right_on_a_group_is_there_without_describe(
    la: House, kind: access_pb2.ResourceType, operation: str, path: str
) -> None:
    la.grant("bob", operation.lower(), path, kind=kind, name="mine")
    asked: dict[str, Any] = {"resource_type": kind, "resource_name": "mine"}
    for where in (path, f"{path}/in", f"{path}/{ABSENT}"):
        assert check(la, where, operation, **asked).allowed
    assert not check(la, path, operation, resource_type=kind, resource_name="other").allowed
    assert not check(la, "/la/p", operation, **asked).allowed


@pytest.mark.parametrize("operation", ["CREATE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"])
@pytest.mark.parametrize("path", ["/la/p/q", "/la/p/q/hidd", "/la/p/q/hidt"])
def test_a_grant_on_the_very_entry_is_there_without_describe(
    la: House, operation: str, path: str
) -> None:
    la.grant("bob", operation.lower().replace("_", "-"), path)
    found = check(la, path, operation)
    assert found.allowed
    assert found.message.startswith(f"allowed: User:bob has {operation} and lacks DESCRIBE on")
    assert not check(la, path, "READ").allowed


def test_a_grant_below_a_closed_directory_is_not_had(la: House) -> None:
    la.grant("bob", "create", "/la/p/q/hidc/in")
    assert not check(la, "/la/p/q/hidc/in", "CREATE").allowed
    la.grant("bob", "describe", "/la/p/q/hidc")
    assert check(la, "/la/p/q/hidc/in", "CREATE").allowed


def answers(la: House, name: str) -> list[str]:
    """Returns what is answered about an entry and below it, but for its name."""
    found = []
    for below, kind, operation, resource in product(
        ("", "/x", "/in", "/in/y"),
        range(5),
        ("READ", "CREATE", "DESCRIBE"),
        (access_pb2.RESOURCE_TYPE_TOPIC, GROUP),
    ):
        fields: dict[str, Any] = {"kind": kind, "resource_type": resource, "explain": True}
        answer = check(la, f"/la/p/q/{name}{below}", operation, **fields)
        answer.token = ""
        found.append(str(answer).replace(name, "NAME"))
    return found


@pytest.mark.parametrize("hidden", ["hidd", "hidt", "hidc"])
@pytest.mark.parametrize("above", ["/la", "/la/p", "/la/p/q"])
@pytest.mark.parametrize("arguments", ["read", "create", "create,read", "all"])
def test_what_is_hidden_is_answered_as_what_is_absent_wherever_the_grants_are(
    la: House, above: str, arguments: str, hidden: str
) -> None:
    la.grant("bob", arguments, above)
    la.grant("bob", "read", above, kind=GROUP, name="*")
    assert any("allowed: true" in one for one in answers(la, ABSENT))
    la.grant("bob", "-all", f"/la/p/q/{hidden}")
    la.grant("bob", "-read", f"/la/p/q/{hidden}", kind=GROUP, name="*")
    assert answers(la, hidden) == answers(la, ABSENT)
