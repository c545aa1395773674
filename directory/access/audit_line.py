"""The audit line of a decision (A11): what it says, and how important it is; refuses to write it.

Only what is listed here is ever in a line: no token, no certificate, no header.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from directory.access.compiled_grants import AccessQuestion
from directory.access.decision import Decision
from directory.access.principals import Caller
from resolver.path import Path

__all__ = ["AuditLevel", "AuditLine", "audit_line"]


class AuditLevel(enum.IntEnum):
    """How important a decision is; the numbers are those of Python's logging, without a
    TRACE of its own.
    """

    TRACE = 5
    DEBUG = 10
    INFO = 20


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One decision, as fields in the order in which they are shown."""

    level: AuditLevel
    fields: Mapping[str, str]

    def __str__(self) -> str:
        # Quoted, so that a principal of a certificate cannot begin a line, or a field, of its own.
        return " ".join(f"{key}={json.dumps(value)}" for key, value in self.fields.items())


def audit_line(
    caller: Caller,
    question: AccessQuestion,
    path: Path,
    decision: Decision,
    *,
    request: str,
    resources: int = 1,
    explicit: bool = True,
) -> AuditLine:
    """Returns the line of one decision.

    ``request`` names the RPC; ``resources`` is how many it asked for. ``explicit`` is false where
    something is only left out of an answer: what nobody asked for by name is no refusal. Levels as
    in Kafka: explicitly denied INFO, explicitly allowed DEBUG, all else TRACE.
    """
    if not explicit:
        level = AuditLevel.TRACE
    else:
        level = AuditLevel.DEBUG if decision.allowed else AuditLevel.INFO
    kind, name = question.kind, question.name
    resource = f"{kind.name}:{path}:{name}" if kind.has_names else f"{kind.name}:{path}"
    fields = {
        "result": "ALLOWED" if decision.allowed else "DENIED",
        "principal": caller.principal,
        "host": caller.host,
        "operation": question.operation.name,
        "resource": resource,
        "request": request,
        "resources": str(resources),
        "rule": _rule(decision),
    }
    return AuditLine(level, MappingProxyType(fields))


def _rule(decision: Decision) -> str:
    if decision.grant is not None:
        return f"{decision.grant} on {decision.path}"
    at = f": {decision.path}" if decision.path is not None else ""
    return f"{decision.reason.value}{at}"
