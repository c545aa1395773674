"""Grants as values: reading, matching, adding and removing."""

from __future__ import annotations

import pytest
from kdir.v1 import access_pb2

from directory.access.grants import (
    Grant,
    Operation,
    Permission,
    ResourceType,
    in_order,
)
from directory.namespace.plan_grants import add_grants, remove_grants
from resolver.errors import InvalidArgument
from tests.unit.access.places import grant


def test_the_numbers_are_those_of_the_contract() -> None:
    for ours, theirs in (
        (Operation, access_pb2.Operation),
        (Permission, access_pb2.Permission),
        (ResourceType, access_pb2.ResourceType),
    ):
        numbers = {one.name: one.value for one in ours}
        for name, number in theirs.items():
            short = name.removeprefix(f"{theirs.Name(0).removesuffix('UNSPECIFIED')}")
            assert short == "UNSPECIFIED" or numbers[short] == number


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("read", Operation.READ),
        ("ALL", Operation.ALL),
        ("describe-configs", Operation.DESCRIBE_CONFIGS),
        ("Alter_Configs", Operation.ALTER_CONFIGS),
    ],
)
def test_an_operation_is_read(text: str, operation: Operation) -> None:
    assert Operation.parse(text) is operation


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("reed", "operation: found 'reed'; did you mean READ?"),
        ("", "operation: found ''; expected one of ALL, READ"),
        ("any", "operation: found 'any'"),
        ("unknown", "operation: found 'unknown'"),
    ],
)
def test_A7_an_unknown_operation_names_the_nearest(text: str, output: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Operation.parse(text)
    assert caught.value.message.startswith(output)


@pytest.mark.parametrize(
    ("principal", "host", "kind", "name", "field"),
    [
        ("bob", "*", ResourceType.TOPIC, "", "principal"),
        ("User:bob", "example.org", ResourceType.TOPIC, "", "host"),
        ("User:bob", "", ResourceType.TOPIC, "", "host"),
        ("User:bob", "*", ResourceType.TOPIC, "orders", "resource_name"),
        ("User:bob", "*", ResourceType.CLUSTER, "kafka-cluster", "resource_name"),
        ("User:bob", "*", ResourceType.GROUP, "", "resource_name"),
        ("User:bob", "*", ResourceType.GROUP, "a*b", "resource_name"),
        ("User:bob", "*", ResourceType.GROUP, "**", "resource_name"),
        ("User:bob", "*", ResourceType.GROUP, "a\nb", "resource_name"),
        ("User:bob", "*", ResourceType.TRANSACTIONAL_ID, "x" * 1025, "resource_name"),
    ],
)
def test_A7_a_wrong_grant_is_refused(
    principal: str, host: str, kind: ResourceType, name: str, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Grant.from_fields(principal, host, Operation.READ, Permission.ALLOW, kind, name)
    assert caught.value.metadata["field"] == field
    if field == "host":
        assert caught.value.message.endswith("expected an IP address, or * for every host")


def test_an_address_is_kept_in_its_one_form() -> None:
    made = Grant.from_fields("User:a", "::FFFF:10.0.0.1", Operation.READ, Permission.DENY)
    assert made.host == "10.0.0.1"


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "pay", True),
        ("*", "", True),
        ("pay", "pay", True),
        ("pay", "payments", False),
        ("pay*", "payments", True),
        ("pay*", "pay", True),
        ("pay*", "pa", False),
        ("p*", "", False),
    ],
)
def test_names_match_by_character(pattern: str, name: str, *, matches: bool) -> None:
    assert grant(f"allow User:a read group {pattern}").matches_name(name) is matches


@pytest.mark.parametrize(
    ("outer", "inner", "includes"),
    [
        ("*", "pay*", True),
        ("*", "*", True),
        ("pay*", "pay", True),
        ("pay*", "pay*", True),
        ("pa*", "pay*", True),
        ("pay*", "pa*", False),
        ("pay", "pay", True),
        ("pay", "pay*", False),
        ("pay*", "*", False),
        ("pay", "*", False),
    ],
)
def test_which_names_are_all_of_others(outer: str, inner: str, *, includes: bool) -> None:
    one, other = (grant(f"deny User:a read group {name}") for name in (outer, inner))
    assert one.includes(other) is includes


def test_grants_are_kept_in_the_order_of_principal_then_operation() -> None:
    texts = ["deny User:b read", "allow User:b all", "allow User:a write", "allow User:b read"]
    assert [str(one) for one in in_order(map(grant, [*texts, texts[0]]))] == [
        "ALLOW User:a WRITE TOPIC from *",
        "ALLOW User:b ALL TOPIC from *",
        "DENY User:b READ TOPIC from *",
        "ALLOW User:b READ TOPIC from *",
    ]


def test_adding_is_a_union() -> None:
    first = add_grants((), map(grant, ["allow User:a read", "allow User:a write"]))
    both = add_grants(first, map(grant, ["allow User:a write", "deny User:a read"]))
    assert len(both) == 3
    assert both == in_order(both)


def test_A8_removing_one_leaves_the_others() -> None:
    texts = ["allow User:a read", "deny User:a read", "allow User:a read from 10.0.0.1"]
    grants = in_order(map(grant, texts))
    left = remove_grants(grants, [grant("allow User:a read")])
    assert left == in_order(map(grant, texts[1:]))
    assert remove_grants(left, [grant("allow User:a write")]) == left


def test_a_grant_is_shown_in_one_line_whatever_is_in_it() -> None:
    made = Grant("User:a\nx", "*", Operation.READ, Permission.DENY, ResourceType.GROUP, "b\nc")
    assert str(made) == r"DENY 'User:a\nx' READ GROUP 'b\nc' from *"
