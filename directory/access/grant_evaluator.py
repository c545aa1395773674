"""Walk: what the levels of a path say to one question of one caller, taken in from the outermost to
the entry; refuses to know which levels there are.

The rules, in one place (KIP-37, Kafka's ``StandardAuthorizerData``):

* A deny on any level beats every allow, wherever either stands (A9). It implies nothing.
* An allow on any level covers all below. READ, WRITE, DELETE and ALTER imply DESCRIBE;
  ALTER_CONFIGS implies DESCRIBE_CONFIGS.
* An allow needs none on the directories above it: it implies passing them, not listing them. But a
  directory that is *closed* is passed only by who may DESCRIBE it, by grants on it or above. For
  everybody else an allow further below does not count; one on it or above does.
* An allow from above the mount that no parent confirmed for too long does not count; a deny does.
"""

from __future__ import annotations

import enum
from typing import Final

from directory.access.compiled_grants import PASSING, AccessQuestion, CompiledGrants
from directory.access.grant import Grant, Permission
from directory.access.principals import Caller

__all__ = ["GrantEvaluator", "TraverseRight", "traverse_right_after"]


class TraverseRight(enum.Enum):
    """Whether a closed directory here could be passed."""

    UNDECIDED = "no matching grant so far"
    ALLOWED = "DESCRIBE is allowed"
    DENIED = "DESCRIBE is denied"


def traverse_right_after(passing: TraverseRight, allow: int, deny: int) -> TraverseRight:
    """After a level with these allows and denies."""
    if deny & PASSING or passing is TraverseRight.DENIED:
        return TraverseRight.DENIED
    return TraverseRight.ALLOWED if allow & PASSING else passing


class GrantEvaluator:
    """On its way along one path. What was found, it was found at ``…_at``: the number of the level,
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
        """A walk that has come as far, and goes on alone."""
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
