"""Decision: whether something is allowed, and by which grant; and ``GrantEvaluator``, which
collects the grants of one path level by level for ``authorizer.py``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from directory.access.compiled_grants import PASSING, AccessQuestion, CompiledGrants
from directory.access.grant import Grant, Operation, Permission
from directory.access.principals import Caller
from resolver.path import Path

__all__ = [
    "SUPER_USER",
    "AccessMode",
    "Decision",
    "DecisionReason",
    "GrantEvaluator",
    "TraverseRight",
    "traverse_right_after",
]


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
"""What every super user is told, always."""


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
        """Whether any grant, whoever it is for, speaks of the resource at all."""

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
        """Notes whether the level speaks of the resource; only asked where that matters."""
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
