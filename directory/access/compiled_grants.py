"""Compiled grants of one entry, and the question and the decision about an operation.

``CompiledGrants`` are the grants of one entry, sorted by principal and host, their operations as
bits; ``authorizer.GrantEvaluator`` combines those of one path level by level. A bit is one
operation on one kind of resource. For topics and clusters a bit is exact. Groups and transactional
ids have names that bits cannot encode: there a set bit means that the grants themselves must be
compared.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import immutables

from directory.access.grants import (
    Grant,
    Operation,
    Permission,
    ResourceType,
    bit_of,
    in_order,
)
from directory.access.principals import ANY_HOST, Caller, key_of
from resolver.path import Path

__all__ = [
    "NO_RULES",
    "SUPER_USER",
    "AccessMode",
    "AccessQuestion",
    "CompiledGrants",
    "Decision",
    "DecisionReason",
    "PrincipalGrants",
]

_EVERYTHING: Final = -1
_QUESTIONS: Final = 1024
"""Number of cached questions: most have no name and are asked with each call."""


class AccessQuestion(NamedTuple):
    """Operation and resource to evaluate at each level of a path; ``bit`` encodes operation and
    kind.
    """

    operation: Operation
    kind: ResourceType
    name: str
    bit: int

    @classmethod
    @lru_cache(_QUESTIONS)
    def for_operation(
        cls, operation: Operation, kind: ResourceType = ResourceType.TOPIC, name: str = ""
    ) -> AccessQuestion:
        """Returns a question. ``name`` is that of a group or transactional id; empty = a name that
        no grant mentions.
        """
        return cls(operation, kind, name, bit_of(kind, operation))


class PrincipalGrants(NamedTuple):
    """Combined grants of one entry for one principal from one host."""

    allow: int
    """Allowed operations; for a kind with names, those allowed for at least one name."""
    deny: int
    """Denied operations; for a kind with names, those denied for all names."""
    partial_deny: int
    """Operations that are denied for at least one name."""
    kept: int
    """Operations that no grant of the entry denies to this principal and host, by their own key or
    a wider one (everybody, every host). Only these can be live, here or below.
    """
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class CompiledGrants:
    """Compiled grants of one entry, sorted by key. Built once for all entries with equal grants."""

    grants: tuple[Grant, ...]
    by_key: Mapping[str, PrincipalGrants]
    live: immutables.Map[str, int]
    """Operations that the entry allows and that are ``PrincipalGrants.kept``, by key."""

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
    """Returns the keys of all grants that apply to every caller that this one applies to."""
    return Caller(grant.principal, "" if grant.host == ANY_HOST else grant.host).keys


def _own(grants: tuple[Grant, ...]) -> PrincipalGrants:
    allow = deny = deny_some = 0
    for grant in grants:
        # With one grant its own integer object is kept, not an equal one: with a hundred thousand
        # entries that saves the memory of as many integers.
        bits = grant.bits
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
    """Allowed: the mode in which an adopted cluster starts."""
    OPEN_IF_NO_GRANTS = "open where ungranted"
    """Allowed if no grant on the resource exists for anybody, else denied: Kafka's
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
    """Result for one question, with the reason."""

    allowed: bool
    reason: DecisionReason
    grant: Grant | None = None
    """The grant that decided: of several denies, or of several allows, the outermost."""
    path: Path | None = None
    """Path of that grant, or of the closed directory."""
    implied_by: Operation | None = None
    """The operation of the allow, where it implies the one in the question."""

    def __str__(self) -> str:
        verdict = "allowed" if self.allowed else "denied"
        if self.grant is None:
            at = f": {self.path}" if self.path is not None else ""
            return f"{verdict}: {self.reason.value}{at}"
        implied = f", which {self.implied_by.name} implies" if self.implied_by else ""
        return f"{verdict}: {self.grant} on {self.path}{implied}"


SUPER_USER: Final = Decision(allowed=True, reason=DecisionReason.SUPER_USER)
"""Decision for every question of a super user."""
