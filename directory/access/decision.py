"""Decision: whether something is allowed, and by which grant; and what one is made of.

``CompiledGrants`` are the grants of one entry, sorted by whom they are about, their operations as
bits. Whether a bit is set is exact for topics and clusters. Groups and transactional ids have names
that bits cannot know: there a set bit means that the grants themselves must be looked at.
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
"""Questions that are remembered: most are without a name, and asked with each call."""


class AccessQuestion(NamedTuple):
    """Question that each level of a path is evaluated for; ``bit`` encodes operation and kind."""

    operation: Operation
    kind: ResourceType
    name: str
    bit: int

    @classmethod
    @lru_cache(_QUESTIONS)
    def for_operation(
        cls, operation: Operation, kind: ResourceType = ResourceType.TOPIC, name: str = ""
    ) -> AccessQuestion:
        """Returns a question. The name is that of a group or transactional id; empty = none that a
        grant names.
        """
        return cls(operation, kind, name, bit_of(kind, operation))


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
        # Where there is one grant its own number is kept, and not one that is equal: a hundred
        # thousand of them are the memory of one.
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
