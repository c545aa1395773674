"""What an ACL of Kafka is, as values: who may do what on which resource; refuses to decide.

Operations and permissions are those of grants; numbers on the wire are ``acl_admin_client.py``'s to
know.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import total_ordering
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from directory.access.grant import Operation, Permission, ResourceKind
from directory.access.principals import ANY_HOST

__all__ = ["CLOSED", "OPERATIONS", "Acl", "AclBinding", "PatternType", "Resource", "kafka_host"]

OPERATIONS: Final = {
    ResourceKind.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceKind.GROUP: frozenset(
        {
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceKind.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE}),
}
"""What Kafka asks for on each kind of resource (``AclEntry.supportedOperations``), besides ALL;
without TWO_PHASE_COMMIT, which its client here cannot write."""


class PatternType(enum.Enum):
    """How a resource's name is meant."""

    LITERAL = "literal"
    """This very name; ``*`` is every name."""
    PREFIXED = "prefixed"
    """Every name that begins so."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Resource:
    """What ACLs are about: a name, or a pattern of names."""

    kind: ResourceKind
    name: str
    pattern: PatternType = PatternType.LITERAL

    def covers(self, other: Resource) -> bool:
        """True if its ACLs are about every name that the other stands for."""
        if self.kind is not other.kind:
            return False
        if self.pattern is PatternType.LITERAL:
            if self.name == "*":
                return True
            return other.pattern is PatternType.LITERAL and self.name == other.name
        return other.name.startswith(self.name) and other != Resource(self.kind, "*")

    def __lt__(self, other: Resource) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[int, str, str]:
        return self.kind, self.name, self.pattern.value

    def __str__(self) -> str:
        kind = self.kind.name.lower().replace("_", "-")
        prefixed = " (prefixed)" if self.pattern is PatternType.PREFIXED else ""
        return f"{kind} {self.name}{prefixed}"


class Acl(NamedTuple):
    """Who may do what, or may not. ``host`` is as Kafka writes an address, or ``*``."""

    permission: Permission
    principal: str
    operation: Operation
    host: str = ANY_HOST

    def __str__(self) -> str:
        return f"{self.permission.name} {self.principal} {self.operation.name} from {self.host}"


class AclBinding(NamedTuple):
    """One ACL as Kafka keeps it."""

    resource: Resource
    acl: Acl

    def __str__(self) -> str:
        return f"{self.resource}: {self.acl}"


CLOSED: Final = Acl(Permission.DENY, "User:kdir-closed", Operation.ALL, "0.0.0.0")  # noqa: S104
"""Denies nobody anything, as no client has that address; a resource that has it has an ACL."""


def kafka_host(host: str) -> str:
    """Returns an address as Kafka compares it (Java's ``InetAddress.getHostAddress``): IPv6 is
    written with all eight groups, none shortened.
    """
    if host == ANY_HOST:
        return host
    address = ip_address(host)
    if not isinstance(address, IPv6Address):
        return str(address)
    groups = address.exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups)
