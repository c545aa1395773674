"""Grant: one ACL entry as a value: parsing, checks, and what it covers.

Operations, permissions and matching are Kafka's (``AclOperation``, ``StandardAuthorizerData``); the
numbers of the enums are those of ``kdir.v1``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import reduce
from operator import or_
from typing import Final, TypeVar

from directory.access.principals import ANY_HOST, check_principal, parse_host, quote_for_message
from resolver.errors import InvalidArgument

__all__ = [
    "IMPLIED_BY",
    "MOST_GRANTS",
    "Grant",
    "Operation",
    "Permission",
    "ResourceType",
    "bit_of",
    "in_order",
]

MOST_GRANTS: Final = 1000
"""Most grants on one entry: they are one record in the store, and every request on the path reads
all of them.
"""
_MOST_NAME: Final = 1024


class Operation(enum.IntEnum):
    """Operation that a grant allows or denies."""

    ALL = 1
    READ = 2
    WRITE = 3
    CREATE = 4
    DELETE = 5
    ALTER = 6
    DESCRIBE = 7
    DESCRIBE_CONFIGS = 8
    ALTER_CONFIGS = 9
    CLUSTER_ACTION = 10
    IDEMPOTENT_WRITE = 11
    CREATE_TOKENS = 12
    DESCRIBE_TOKENS = 13
    TWO_PHASE_COMMIT = 14

    @classmethod
    def parse(cls, text: str) -> Operation:
        """Parses a name such as ``read`` or ``describe-configs``.

        Raises:
            InvalidArgument: not an operation; names the nearest.
        """
        return _named(cls, "operation", text)


class Permission(enum.IntEnum):
    """Effect of a grant: allow or deny."""

    DENY = 1
    ALLOW = 2

    @classmethod
    def parse(cls, text: str) -> Permission:
        """Parses a name.

        Raises:
            InvalidArgument: neither allow nor deny.
        """
        return _named(cls, "permission", text)


class ResourceType(enum.IntEnum):
    """Type of the resources that a grant covers."""

    TOPIC = 1
    """The entry with the grant and all below it: topics, and the directories that hold them."""
    GROUP = 2
    """Consumer groups, by a pattern, of the clusters at and below the directory."""
    TRANSACTIONAL_ID = 3
    """Transactional ids, by a pattern, of the clusters at and below the directory."""
    CLUSTER = 4
    """The clusters at and below the directory themselves."""

    has_names: bool
    """True if resources of this type have names besides the entry's path."""

    def __init__(self, number: int) -> None:
        self.has_names = number in {2, 3}

    @classmethod
    def parse(cls, text: str) -> ResourceType:
        """Parses a name such as ``topic`` or ``transactional-id``.

        Raises:
            InvalidArgument: not a kind; names the nearest.
        """
        return _named(cls, "resource kind", text)


IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Operations whose allow also allows the key. A deny implies nothing."""


_WIDTH: Final = 16
_ALL: Final = (1 << _WIDTH) - 1


def bit_of(kind: ResourceType, operation: Operation) -> int:
    """Returns the bit of an operation on a kind of resource."""
    return 1 << (_WIDTH * (kind - 1) + operation)


_IMPLIES: Final[Mapping[Operation, tuple[Operation, ...]]] = {
    own: tuple(one for one, by in IMPLIED_BY.items() if own in by) for own in Operation
}


def _bits(kind: ResourceType, operation: Operation, permission: Permission) -> int:
    if operation is Operation.ALL:
        return _ALL << (_WIDTH * (kind - 1))
    implied = _IMPLIES[operation] if permission is Permission.ALLOW else ()
    return reduce(or_, (bit_of(kind, one) for one in (operation, *implied)))


_BITS: Final = {
    (kind, one, permission): _bits(kind, one, permission)
    for kind in ResourceType
    for one in Operation
    for permission in Permission
}


@dataclass(frozen=True, slots=True)
class Grant:
    """One ACL entry, for an entry of the tree and all below it.

    ``name`` is only for groups and transactional ids: a literal name, ``*`` for all, or a prefix
    followed by ``*``.
    """

    principal: str
    host: str
    operation: Operation
    permission: Permission
    kind: ResourceType = ResourceType.TOPIC
    name: str = ""
    bits: int = field(init=False, repr=False, compare=False)
    """Bits (``bit_of``) of the grant's operation on its kind of resource; of an allow, also of the
    operations that it implies.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", _BITS[self.kind, self.operation, self.permission])

    @classmethod
    def from_fields(
        cls,
        principal: str,
        host: str,
        operation: Operation,
        permission: Permission,
        kind: ResourceType = ResourceType.TOPIC,
        name: str = "",
    ) -> Grant:
        """Returns a checked grant from untrusted fields.

        Raises:
            InvalidArgument: names the field, the value found and the values expected.
        """
        address = host if host == ANY_HOST else parse_host(host, ", or * for every host")
        _check_name(kind, name)
        return cls(check_principal(principal), address, operation, permission, kind, name)

    def covers(self, operation: Operation) -> bool:
        """True if the grant covers the operation; an allow covers those that it implies, too."""
        return bool(self.bits & bit_of(self.kind, operation))

    def matches_name(self, name: str) -> bool:
        """True if the grant covers the group or transactional id of this name."""
        own = self.name
        return name.startswith(own[:-1]) if own.endswith("*") else name == own

    def includes(self, other: Grant) -> bool:
        """True if the names that this grant covers include all that the other covers."""
        if self.name.endswith("*"):
            return other.name.startswith(self.name[:-1])
        return self.name == other.name

    def __str__(self) -> str:
        about = (
            self.kind.name if not self.name else f"{self.kind.name} {quote_for_message(self.name)}"
        )
        name = self.principal if self.principal.isprintable() else quote_for_message(self.principal)
        return f"{self.permission.name} {name} {self.operation.name} {about} from {self.host}"


def in_order(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Returns each grant once, ordered by principal, then operation: the order of storage and
    output.
    """
    return tuple(
        sorted(
            set(grants),
            key=lambda one: (
                one.principal,
                one.operation,
                one.permission,
                one.host,
                one.kind,
                one.name,
            ),
        )
    )


def _check_name(kind: ResourceType, name: str) -> None:
    if not kind.has_names:
        if name:
            raise InvalidArgument(
                f"resource name: found {quote_for_message(name)}; expected none: a "
                f"{kind.name.lower()} is named "
                f"by the path that the grant is set on",
                field="resource_name",
            )
        return
    if not name:
        raise InvalidArgument(
            f"resource name: a grant on a {kind.name.lower()} has a name, * for all, or a "
            f"prefix followed by *",
            field="resource_name",
        )
    if len(name) > _MOST_NAME or not name.isprintable():
        raise InvalidArgument(
            f"resource name: found {quote_for_message(name)}; expected at most {_MOST_NAME} "
            "printable "
            f"characters",
            field="resource_name",
        )
    if "*" in name[:-1]:
        raise InvalidArgument(
            f"resource name: found {quote_for_message(name)}; * may stand only at its end",
            field="resource_name",
        )


_E = TypeVar("_E", bound=enum.IntEnum)


def _named(cls: type[_E], what: str, text: str) -> _E:
    member = text.strip().upper().replace("-", "_")
    if member in cls.__members__:
        return cls[member]
    near = next(iter(get_close_matches(member, cls.__members__, n=1)), "")
    hint = f"did you mean {near}?" if near else f"expected one of {', '.join(cls.__members__)}"
    raise InvalidArgument(f"{what}: found {quote_for_message(text)}; {hint}", field=what, near=near)
