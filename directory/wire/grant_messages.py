"""Converts grants to messages of the contract and back."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar, cast

from google.protobuf.message import DecodeError
from kdir.v1 import access_pb2

from directory.access.grants import Grant, Operation, Permission, ResourceType, in_order
from directory.access.principals import quote_for_message
from directory.namespace.entry import EntryGrants
from resolver.errors import InvalidArgument

__all__ = [
    "entry_grants_from_bytes",
    "entry_grants_to_proto",
    "grant_from_proto",
    "grant_to_proto",
    "grants_from_proto",
    "operation_from_proto",
    "resource_kind_from_proto",
    "stored_grant",
]

_E = TypeVar("_E", bound=IntEnum)


def grant_to_proto(grant: Grant) -> access_pb2.Grant:
    """Returns the message of a grant."""
    return access_pb2.Grant(
        principal=grant.principal,
        host=grant.host,
        operation=cast("access_pb2.Operation", grant.operation.value),
        permission=cast("access_pb2.Permission", grant.permission.value),
        resource_type=cast("access_pb2.ResourceType", grant.kind.value),
        resource_name=grant.name,
    )


def grant_from_proto(message: access_pb2.Grant) -> Grant:
    """Decodes and checks a grant of a request. An unset host is every host, an unset kind TOPIC.

    Raises:
        InvalidArgument: names the field, the value found and the value expected (A7).
    """
    return Grant.from_fields(
        message.principal,
        message.host or "*",
        operation_from_proto(message.operation),
        _parse_enum(Permission, message.permission, "permission"),
        resource_kind_from_proto(message.resource_type),
        message.resource_name,
    )


def grants_from_proto(messages: Iterable[access_pb2.Grant]) -> tuple[Grant, ...]:
    """Returns the grants of a request, in order.

    Raises:
        InvalidArgument: as ``grant_from_proto``; or there is none.
    """
    grants = in_order(map(grant_from_proto, messages))
    if not grants:
        raise InvalidArgument("grants: none; expected at least one", field="grants")
    return grants


def operation_from_proto(number: int) -> Operation:
    """Returns an operation of the contract.

    Raises:
        InvalidArgument: unset, or a number that this version does not define.
    """
    return _parse_enum(Operation, number, "operation")


def resource_kind_from_proto(number: int) -> ResourceType:
    """Decodes a resource kind of the contract; unset = TOPIC.

    Raises:
        InvalidArgument: a number that this version does not define.
    """
    return _parse_enum(ResourceType, number or ResourceType.TOPIC, "resource_type")


def _parse_enum(kind: type[_E], number: int, field: str) -> _E:
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{one.name} = {one.value}" for one in kind)
        raise InvalidArgument(
            f"{field}: found {quote_for_message(number)}; known are {known}", field=field
        ) from None


def stored_grant(message: access_pb2.Grant) -> Grant:
    """Decodes a stored or inherited grant, which was checked when it was created.

    Raises:
        ValueError: it has a number that this version does not define.
    """
    return Grant(
        message.principal,
        message.host,
        Operation(message.operation),
        Permission(message.permission),
        ResourceType(message.resource_type),
        message.resource_name,
    )


def entry_grants_to_proto(grants: EntryGrants) -> access_pb2.Grants:
    """Returns the stored form."""
    message = access_pb2.Grants(
        grants=map(grant_to_proto, grants.grants),
        change_count=grants.change_count,
        changed_by=grants.changed_by,
    )
    if grants.changed_at_ms:
        message.changed_at.FromMilliseconds(grants.changed_at_ms)
    return message


def entry_grants_from_bytes(record: bytes) -> EntryGrants:
    """Decodes the stored form.

    Raises:
        ValueError: not such a record, or one with fields that this version does not know: a grant
            with an unknown condition must not be applied without it.
    """
    try:
        message = access_pb2.Grants.FromString(record)
    except DecodeError as error:
        raise ValueError(f"not a kdir.v1.Grants: {error}") from None
    grants = EntryGrants(
        grants=tuple(map(stored_grant, message.grants)),
        change_count=message.change_count,
        changed_at_ms=message.changed_at.ToMilliseconds(),
        changed_by=message.changed_by,
    )
    if entry_grants_to_proto(grants).SerializeToString(deterministic=True) != record:
        raise ValueError("not in the form in which this version writes grants")
    if not grants.grants:
        raise ValueError("no grants")
    return grants
