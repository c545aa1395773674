"""Decision: whether something is allowed, and what decided it; refuses to decide."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from directory.access.grant import Grant, Operation
from resolver.path import Path

__all__ = ["SUPER_USER", "AccessMode", "Decision", "DecisionReason"]


class AccessMode(enum.Enum):
    """What holds where no grant matches (``access`` in the config). Denies and closed
    directories hold in every mode.
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
    """Why a decision is as it is; the value is for people."""

    GRANT = "a matching grant"
    SUPER_USER = "a super user"
    OPEN = "no matching grant; access mode is open"
    NO_GRANT = "no matching grant"
    CLOSED = "a closed directory, and no grant on it or above lets this principal pass it"
    EXPIRED = "an inherited allow was not confirmed by the parent for too long"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed, and why."""

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
