"""Explanation of a decision, level by level: each grant for the caller or for everybody, with its
effect (``kdir check --explain``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from directory.access.authorizer import (
    MOUNT_ROOT,
    Authorizer,
    GrantEvaluator,
    InheritedGrantLevel,
)
from directory.access.compiled_grants import AccessQuestion, Decision, DecisionReason
from directory.access.grant_tree import EntryPlace, GrantNode
from directory.access.grants import Grant, Permission
from directory.access.principals import ANY_HOST, EVERYBODY, Caller
from resolver.path import Path

__all__ = ["Effect", "EvaluatedGrant", "EvaluatedLevel", "Explanation", "explain"]


class Effect(enum.Enum):
    """Effect of a grant on the path; the value is for people."""

    DECIDES = "decides"
    AGREES = "says the same"
    OVERRULED = "overruled by the deny"
    BLOCKED = "does not count: below a closed directory"
    EXPIRED = "does not count: no parent confirmed it for too long"
    OTHER_OPERATION = "is about another operation"
    OTHER_HOST = "is about another host"
    OTHER_NAME = "is about another name"


@dataclass(frozen=True, slots=True)
class EvaluatedGrant:
    """A grant on the path for the caller or for everybody, with its effect."""

    grant: Grant
    effect: Effect


@dataclass(frozen=True, slots=True)
class EvaluatedLevel:
    """An entry on the path that has grants or is closed."""

    path: Path
    grants: tuple[EvaluatedGrant, ...]
    closed: bool
    inherited: bool
    """Whether the entry lies above the mount."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with all levels that were evaluated for it, outermost first."""

    decision: Decision
    levels: tuple[EvaluatedLevel, ...]

    def lines(self) -> Iterator[str]:
        """Yields the explanation as lines of text, the decision first."""
        yield str(self.decision)
        for level in self.levels:
            closed = " (closed)" if level.closed else ""
            inherited = " (inherited)" if level.inherited else ""
            yield f"  {level.path}{closed}{inherited}"
            for seen in level.grants:
                yield f"    {seen.grant}: {seen.effect.value}"


def explain(
    access: Authorizer,
    caller: Caller,
    question: AccessQuestion,
    place: EntryPlace = MOUNT_ROOT,
    *,
    age_seconds: float = 0.0,
) -> Explanation:
    """Explains the decision of ``Authorizer.authorize``, with every level that could have affected
    it.

    Raises:
        NotReady: as ``Authorizer.authorize``.
    """
    decision = access.authorize(caller, question, place, age_seconds=age_seconds)
    if decision.reason is DecisionReason.SUPER_USER:
        return Explanation(decision, ())
    expired = access.has_expired(age_seconds)
    evaluator = GrantEvaluator(caller, question)
    levels: list[EvaluatedLevel] = []
    for path, level, inherited in _levels(access, place):
        ended = expired and inherited
        does_not_count = (
            Effect.EXPIRED if ended else None if evaluator.blocked_at is None else Effect.BLOCKED
        )
        seen = tuple(
            EvaluatedGrant(grant, _effect(grant, path, decision, does_not_count))
            if (other := _mismatch(grant, caller, question)) is None
            else EvaluatedGrant(grant, other)
            for grant in level.rules.grants
            if grant.kind is question.kind and grant.principal in {caller.principal, EVERYBODY}
        )
        if seen or level.closed:
            levels.append(EvaluatedLevel(path, seen, level.closed, inherited))
        access.add_level(evaluator, level, 0, allows_count=not ended)
    return Explanation(decision, tuple(levels))


def _levels(
    access: Authorizer, place: EntryPlace
) -> Iterator[tuple[Path, GrantNode | InheritedGrantLevel, bool]]:
    for level in access.inherited_grants():
        yield level.path, level, True
    for depth, node in access.own_grants().levels_to(place):
        yield Path((*access.mount.segments, *place.relative[:depth])), node, False


def _mismatch(grant: Grant, caller: Caller, question: AccessQuestion) -> Effect | None:
    if not grant.covers(question.operation):
        return Effect.OTHER_OPERATION
    if grant.host not in {ANY_HOST, caller.host}:
        return Effect.OTHER_HOST
    if grant.kind.has_names and not grant.matches_name(question.name):
        return Effect.OTHER_NAME
    return None


def _effect(grant: Grant, path: Path, decision: Decision, does_not_count: Effect | None) -> Effect:
    if grant == decision.grant and path == decision.path:
        return Effect.DECIDES
    if grant.permission is Permission.DENY:
        return Effect.AGREES
    if decision.grant is not None and decision.grant.permission is Permission.DENY:
        return Effect.OVERRULED
    return does_not_count or Effect.AGREES
