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

from directory.access.compiled_grants import PASSING, Question, Rules
from directory.access.grant import Grant, Permission
from directory.access.principals import Caller

__all__ = ["Passing", "Walk", "passing_after"]


class Passing(enum.Enum):
    """Whether a closed directory here could be passed."""

    NOT_YET = "no matching grant so far"
    YES = "DESCRIBE is allowed"
    NEVER = "DESCRIBE is denied"


def passing_after(passing: Passing, allow: int, deny: int) -> Passing:
    """After a level with these allows and denies."""
    if deny & PASSING or passing is Passing.NEVER:
        return Passing.NEVER
    return Passing.YES if allow & PASSING else passing


class Walk:
    """On its way along one path. What was found, it was found at ``…_at``: the number of the level,
    as the caller of ``enter`` counts them.
    """

    __slots__ = (
        "allow",
        "allow_at",
        "blocked",
        "caller",
        "deny",
        "deny_at",
        "expired",
        "passing",
        "question",
        "shut_at",
        "spoken",
    )

    def __init__(self, caller: Caller, question: Question) -> None:
        self.caller: Final = caller
        self.question: Final = question
        self.allow: Grant | None = None
        """The outermost allow that counts."""
        self.allow_at = 0
        self.deny: Grant | None = None
        """The outermost deny. Nothing further down can change the answer."""
        self.deny_at = 0
        self.passing = Passing.NOT_YET
        self.shut_at: int | None = None
        """The outermost closed directory that the caller cannot pass."""
        self.blocked = False
        """Whether an allow was found below that one."""
        self.expired = False
        """Whether an allow was found that was confirmed too long ago."""
        self.spoken = False
        """Whether any grant, whoever it is for, speaks of the resource at all."""

    def enter(self, rules: Rules, at: int, *, closed: bool, allows_count: bool = True) -> None:
        """Takes in the next level."""
        bit = self.question.bit
        allow = deny = 0
        for key in self.caller.keys:
            own = rules.by_key.get(key)
            if own is None:
                continue
            if own.deny_some & bit and self.deny is None:
                self.deny = own.find(Permission.DENY, self.question)
                self.deny_at = at
            if own.allow & bit:
                self._allowed(own.find(Permission.ALLOW, self.question), at, allows_count)
            allow |= own.allow
            deny |= own.deny
        self.passing = passing_after(self.passing, allow if allows_count else 0, deny)
        if closed and self.shut_at is None and self.passing is not Passing.YES:
            self.shut_at = at

    def listen(self, rules: Rules) -> None:
        """Notes whether the level speaks of the resource; only asked where that matters."""
        question = self.question
        self.spoken = self.spoken or any(
            grant.kind is question.kind
            and (not grant.kind.has_names or grant.matches_name(question.name))
            for grant in rules.grants
        )

    def fork(self) -> Walk:
        """A walk that has come as far, and goes on alone."""
        other = Walk(self.caller, self.question)
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
            self.shut_at is None,
            self.blocked,
            self.spoken,
        )

    def _allowed(self, grant: Grant | None, at: int, counts: bool) -> None:  # noqa: FBT001 - hot
        if grant is None:
            return
        if not counts:
            self.expired = True
        elif self.shut_at is not None:
            self.blocked = True
        elif self.allow is None:
            self.allow, self.allow_at = grant, at


_FOUND: Final = tuple(name for name in Walk.__slots__ if name not in {"caller", "question"})
