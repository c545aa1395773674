"""Audit line of a decision: its fields, and its log level as in Kafka."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from directory.access.compiled_grants import AccessQuestion, Decision
from directory.access.principals import Caller
from resolver.path import Path

__all__ = ["AuditLevel", "AuditLine", "audit_line"]


class AuditLevel(enum.IntEnum):
    """Log level of an audit line: the numbers are Python's, with a TRACE below DEBUG."""

    TRACE = 5
    DEBUG = 10
    INFO = 20


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One decision as fields, in the order in which they are written."""

    level: AuditLevel
    fields: Mapping[str, str]

    def __str__(self) -> str:
        # Quoted, so that the principal of a certificate cannot forge a line or a field.
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
    """Returns the audit line of one decision.

    ``request`` is the request id; ``resources`` is the number of resources in the request.
    ``explicit`` is false where an entry is only omitted from an answer: the caller did not name it,
    so nothing was refused. Levels as in Kafka: an explicit deny is INFO, an explicit allow DEBUG,
    all else TRACE.
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
