"""Rules: the grants of one entry, sorted by whom they are about, their operations as bits; refuses
to know where the entry stands.

A bit stands for one operation on one kind of resource. Whether a bit is set is exact for topics and
clusters. Groups and transactional ids have names that bits cannot know: there a set bit means that
the grants themselves must be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

import immutables

from directory.access.grant import (
    IMPLIED_BY,
    Grant,
    Operation,
    Permission,
    ResourceType,
    in_order,
)
from directory.access.principals import ANY_HOST, Caller, key_of

__all__ = ["NO_RULES", "PASSING", "AccessQuestion", "CompiledGrants", "PrincipalGrants"]

_WIDTH: Final = 16
_ALL: Final = (1 << _WIDTH) - 1
_EVERYTHING: Final = -1


def _bit(kind: ResourceType, operation: Operation) -> int:
    return 1 << (_WIDTH * (kind - 1) + operation)


_IMPLIES: Final[Mapping[Operation, tuple[Operation, ...]]] = {
    own: tuple(one for one, by in IMPLIED_BY.items() if own in by) for own in Operation
}


def _bits(kind: ResourceType, operation: Operation, permission: Permission) -> int:
    if operation is Operation.ALL:
        return _ALL << (_WIDTH * (kind - 1))
    implied = _IMPLIES[operation] if permission is Permission.ALLOW else ()
    return reduce(or_, (_bit(kind, one) for one in (operation, *implied)))


_BITS: Final = {
    (kind, one, permission): _bits(kind, one, permission)
    for kind in ResourceType
    for one in Operation
    for permission in Permission
}
_BIT: Final = {(kind, one): _bit(kind, one) for kind in ResourceType for one in Operation}
PASSING: Final = _bit(ResourceType.TOPIC, Operation.DESCRIBE)
"""Who may DESCRIBE a closed directory may pass it."""


class AccessQuestion(NamedTuple):
    """Question that each level of a path is evaluated for; ``bit`` encodes operation and kind."""

    operation: Operation
    kind: ResourceType
    name: str
    bit: int

    @classmethod
    def for_operation(
        cls, operation: Operation, kind: ResourceType = ResourceType.TOPIC, name: str = ""
    ) -> AccessQuestion:
        """Returns a question. The name is that of a group or transactional id; empty = none that a
        grant names.
        """
        return cls(operation, kind, name, _BIT[kind, operation])

    def matches_grant(self, grant: Grant) -> bool:
        """True if the grant speaks of this, whoever it is for."""
        return (
            grant.kind is self.kind
            and grant.covers(self.operation)
            and (not self.kind.has_names or grant.matches_name(self.name))
        )


class PrincipalGrants(NamedTuple):
    """Result of one entry's grants for one principal from one host."""

    allow: int
    """What is allowed; of a kind with names, for at least one name."""
    deny: int
    """What is denied; of a kind with names, for all names."""
    partial_deny: int
    """What is denied for at least one name."""
    kept: int
    """What no grant of the entry denies to whoever these grants are about: theirs, or everybody's,
    or for every host. Only these bits can be live, here or below.
    """
    grants: tuple[Grant, ...]

    def deciding_grant(self, permission: Permission, question: AccessQuestion) -> Grant | None:
        """Returns the grant that speaks of the question; rather one of the very operation."""
        found: Grant | None = None
        for grant in self.grants:
            if grant.permission is permission and question.matches_grant(grant):
                if grant.operation is question.operation:
                    return grant
                found = found or grant
        return found


@dataclass(frozen=True, slots=True)
class CompiledGrants:
    """The grants of one entry. Made once, and shared by entries with the same grants."""

    grants: tuple[Grant, ...]
    by_key: Mapping[str, PrincipalGrants]
    live: immutables.Map[str, int]
    """For each key the operations that its allows give, as far as they are
    ``PrincipalGrants.kept``.
    """

    @classmethod
    def compile(cls, grants: Iterable[Grant]) -> CompiledGrants:
        """Compiles an entry's grants, in any order."""
        ordered = in_order(grants)
        if not ordered:
            return NO_RULES
        sorted_out: dict[str, list[Grant]] = {}
        for grant in ordered:
            sorted_out.setdefault(key_of(grant.principal, grant.host), []).append(grant)
        by_key = {key: _own(tuple(some)) for key, some in sorted_out.items()}
        for key, own in by_key.items():
            denied = 0
            for wider in _wider(own.grants[0]):
                denied |= by_key[wider].deny if wider in by_key else 0
            by_key[key] = own._replace(kept=~denied)
        live = immutables.Map(
            {
                key: own.allow if own.kept == _EVERYTHING else own.allow & own.kept
                for key, own in by_key.items()
            }
        )
        return cls(ordered, by_key, live)

    def __bool__(self) -> bool:
        return bool(self.grants)


def _wider(grant: Grant) -> tuple[str, ...]:
    """Returns the keys of all grants that are about whoever this one is about."""
    return Caller(grant.principal, "" if grant.host == ANY_HOST else grant.host).keys


def _own(grants: tuple[Grant, ...]) -> PrincipalGrants:
    allow = deny = deny_some = 0
    for grant in grants:
        # Where there is one grant the table's own number is kept, and not one that is equal: a
        # hundred thousand of them are the memory of one.
        bits = _BITS[grant.kind, grant.operation, grant.permission]
        if grant.permission is Permission.ALLOW:
            allow = allow | bits if allow else bits
        else:
            deny_some = deny_some | bits if deny_some else bits
            if not grant.kind.has_names or grant.name == "*":
                deny = deny | bits if deny else bits
    return PrincipalGrants(allow, deny, deny_some, ~deny, grants)


NO_RULES: Final = CompiledGrants((), {}, immutables.Map())
