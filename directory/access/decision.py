"""Decision: whether something is allowed, and by which grant.

``CompiledGrants`` are the grants of one entry, sorted by whom they are about, their operations as
bits; ``GrantEvaluator`` collects those of one path level by level for ``authorizer.py``. A bit
means one operation on one kind of resource. Whether it is set is exact for topics and
clusters. Groups and transactional ids have names that bits cannot know: there a set bit means that
the grants themselves must be looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

import immutables

from directory.access.grants import (
    IMPLIED_BY,
    Grant,
    Operation,
    Permission,
    ResourceType,
    in_order,
)
from directory.access.principals import ANY_HOST, Caller, key_of
from resolver.path import Path

__all__ = [
    "NO_RULES",
    "PASSING",
    "SUPER_USER",
    "AccessMode",
    "AccessQuestion",
    "CompiledGrants",
    "Decision",
    "DecisionReason",
    "GrantEvaluator",
    "PrincipalGrants",
    "TraverseRight",
    "traverse_right_after",
]

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
        """True if the grant applies to this, whoever it is for."""
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
        """Returns the grant that applies to the question; one that names the operation is first."""
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


class AccessMode(enum.Enum):
    """Default where no grant matches (``access`` in the config). Denies and closed directories hold
    in every mode.
    """

    ENFORCE = "enforce"
    """Denied."""
    OPEN = "open"
    """Allowed: how an adopted cluster starts."""
    OPEN_IF_NO_GRANTS = "open where ungranted"
    """Allowed if there is no grant on the resource for anybody, else denied: what Kafka does with
    ``allow.everyone.if.no.acl.found``. kdir's servers have no such setting.
    """


class DecisionReason(enum.Enum):
    """Reason of a decision; the value is for people."""

    GRANT = "a matching grant"
    SUPER_USER = "a super user"
    OPEN = "no matching grant; access mode is open"
    NO_GRANT = "no matching grant"
    CLOSED = "a closed directory, and no grant on it or above lets this principal pass it"
    EXPIRED = "an inherited allow was not confirmed by the parent for too long"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision whether something is allowed, with its reason."""

    allowed: bool
    reason: DecisionReason
    grant: Grant | None = None
    """The grant that decided: of several denies, or of several allows, the outermost."""
    path: Path | None = None
    """Where that grant is, or the closed directory."""
    implied_by: Operation | None = None
    """The operation that the grant allows, where that implies the one that was asked."""

    def __str__(self) -> str:
        verdict = "allowed" if self.allowed else "denied"
        if self.grant is None:
            at = f": {self.path}" if self.path is not None else ""
            return f"{verdict}: {self.reason.value}{at}"
        implied = f", which {self.implied_by.name} implies" if self.implied_by else ""
        return f"{verdict}: {self.grant} on {self.path}{implied}"


SUPER_USER: Final = Decision(allowed=True, reason=DecisionReason.SUPER_USER)
"""The decision for a super user, always the same."""


class TraverseRight(enum.Enum):
    """Right to pass a closed directory here."""

    UNDECIDED = "no matching grant so far"
    ALLOWED = "DESCRIBE is allowed"
    DENIED = "DESCRIBE is denied"


def traverse_right_after(passing: TraverseRight, allow: int, deny: int) -> TraverseRight:
    """Returns the right after a level with these allows and denies."""
    if deny & PASSING or passing is TraverseRight.DENIED:
        return TraverseRight.DENIED
    return TraverseRight.ALLOWED if allow & PASSING else passing


class GrantEvaluator:
    """Evaluation along one path. A result ``…_at`` is the number of the level where it was found,
    as the caller of ``add_level`` counts them.
    """

    __slots__ = (
        "allow",
        "allow_at",
        "blocked_at",
        "caller",
        "deny",
        "deny_at",
        "has_blocked_allow",
        "has_expired_allow",
        "has_grants",
        "passing",
        "question",
    )

    def __init__(self, caller: Caller, question: AccessQuestion) -> None:
        self.caller: Final = caller
        self.question: Final = question
        self.allow: Grant | None = None
        """The outermost allow that counts."""
        self.allow_at = 0
        self.deny: Grant | None = None
        """The outermost deny. Nothing further down can change the answer."""
        self.deny_at = 0
        self.passing = TraverseRight.UNDECIDED
        self.blocked_at: int | None = None
        """The outermost closed directory that the caller cannot pass."""
        self.has_blocked_allow = False
        """Whether an allow was found below that one."""
        self.has_expired_allow = False
        """Whether an allow was found that was confirmed too long ago."""
        self.has_grants = False
        """Whether any grant, whoever it is for, applies to the resource at all."""

    def add_level(
        self, rules: CompiledGrants, at: int, *, closed: bool, allows_count: bool = True
    ) -> None:
        """Takes in the next level."""
        bit = self.question.bit
        allow = deny = 0
        for key in self.caller.keys:
            own = rules.by_key.get(key)
            if own is None:
                continue
            if own.partial_deny & bit and self.deny is None:
                self.deny = own.deciding_grant(Permission.DENY, self.question)
                self.deny_at = at
            if own.allow & bit:
                self._allowed(own.deciding_grant(Permission.ALLOW, self.question), at, allows_count)
            allow |= own.allow
            deny |= own.deny
        self.passing = traverse_right_after(self.passing, allow if allows_count else 0, deny)
        if closed and self.blocked_at is None and self.passing is not TraverseRight.ALLOWED:
            self.blocked_at = at

    def note_mention(self, rules: CompiledGrants) -> None:
        """Notes whether a grant of the level applies to the resource; called only where needed."""
        question = self.question
        self.has_grants = self.has_grants or any(
            grant.kind is question.kind
            and (not grant.kind.has_names or grant.matches_name(question.name))
            for grant in rules.grants
        )

    def copy(self) -> GrantEvaluator:
        """Returns an evaluation at the same level, which continues on its own."""
        other = GrantEvaluator(self.caller, self.question)
        for name in _FOUND:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def state(self) -> tuple[object, ...]:
        """All of it that the answers further down depend on."""
        return (
            self.deny is None,
            self.allow is None,
            self.passing,
            self.blocked_at is None,
            self.has_blocked_allow,
            self.has_grants,
        )

    def _allowed(self, grant: Grant | None, at: int, counts: bool) -> None:  # noqa: FBT001 - hot
        if grant is None:
            return
        if not counts:
            self.has_expired_allow = True
        elif self.blocked_at is not None:
            self.has_blocked_allow = True
        elif self.allow is None:
            self.allow, self.allow_at = grant, at


_FOUND: Final = tuple(
    name for name in GrantEvaluator.__slots__ if name not in {"caller", "question"}
)
