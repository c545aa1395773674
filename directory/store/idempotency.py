"""Record of an answered request, by which a repeated request gets the same answer (S17, AIP-155).

The record holds no revision, since its row has one, and none of the plan's writes.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.namespace.command import Command, Plan
from directory.namespace.entry import Codec
from directory.store.base import KeyEquals
from resolver.errors import InvalidPath, RequestIdReused
from resolver.path import Path

__all__ = ["RequestRecord", "command_fingerprint", "replay_answer", "unanswered"]


def unanswered(key: bytes) -> KeyEquals:
    """Returns the guard that no earlier try of a request was committed; each transaction of the
    request has it. ``key``: the request's ``keys.request_key``.
    """
    return KeyEquals(key, None)


def command_fingerprint(command: Command) -> str:
    """Returns a fingerprint that is equal for equal commands, in every process and every version
    with the same fields.
    """
    return hashlib.sha256(json.dumps(_plain(command)).encode()).hexdigest()


_compact_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_AS_THEY_ARE: Final = frozenset({type(None), bool, int, float, str})


def _plain(value: object) -> object:
    """Returns a value as JSON types. Fields with their default are left out: a version that adds a
    field still recognizes requests of the previous version.
    """
    if type(value) in _AS_THEY_ARE:
        return value
    match value:
        case Path():
            return str(value)
        case enum.Enum():
            return value.name
        case bytes():
            return base64.b64encode(value).decode()
        case int() | float() | str():
            return value
        case Mapping():
            return sorted([str(key), _plain(one)] for key, one in value.items())
        case tuple() | list():
            return [_plain(one) for one in value]
        case _ if dataclasses.is_dataclass(value):
            kind: type = type(value)
            parts: list[tuple[str, object]] = []
            for name, default in _fields(kind):
                one = getattr(value, name)
                if one is not default and one != default:
                    parts.append((name, _plain(one)))
            return [kind.__name__, parts]
        case _:
            raise TypeError(f"type of {value!r}: not one that a command can have")


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, object], ...]:
    """Returns the fields of a dataclass with their defaults, by name."""
    return tuple(sorted((field.name, _default(field)) for field in dataclasses.fields(kind)))


def _default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Value of a ``q/`` row."""

    fingerprint: str
    answered_at_ms: int
    path: str | None
    entry: bytes | None
    topic_count: int
    directory_count: int
    notes: tuple[str, ...]
    kafka_topics_deleted: bool = False
    unreadable_count: int = 0
    grants: tuple[Grant, ...] = ()
    grants_changed: tuple[Grant, ...] = ()

    @classmethod
    def from_plan(cls, command: Command, plan: Plan, codec: Codec, now_ms: int) -> Self:
        """Returns the record of a plan that is about to be committed."""
        return cls(
            fingerprint=command_fingerprint(command),
            answered_at_ms=now_ms,
            path=None if plan.path is None else str(plan.path),
            entry=None if plan.entry is None else codec.encode(plan.entry),
            topic_count=plan.topic_count,
            directory_count=plan.directory_count,
            notes=plan.notes,
            kafka_topics_deleted=plan.kafka_topics_deleted,
            unreadable_count=plan.unreadable_count,
            grants=plan.grants,
            grants_changed=plan.grants_changed,
        )

    def replay_plan(self, codec: Codec) -> Plan:
        """Returns a plan without writes that has the answer of the first plan.

        Raises:
            ValueError: its entry or its path cannot be read.
        """
        try:
            path = None if self.path is None else Path.parse(self.path)
        except (InvalidPath, TypeError, AttributeError) as error:
            raise ValueError(f"path: {error}") from None
        return Plan(
            guards=(),
            writes=(),
            changes=(),
            entry=None if self.entry is None else codec.decode(self.entry),
            path=path,
            topic_count=self.topic_count,
            directory_count=self.directory_count,
            notes=self.notes,
            kafka_topics_deleted=self.kafka_topics_deleted,
            unreadable_count=self.unreadable_count,
            grants=self.grants,
            grants_changed=self.grants_changed,
        )

    def to_bytes(self) -> bytes:
        """Returns the stored form: JSON, so that a newer version can add fields."""
        fields: dict[str, object] = {
            "fingerprint": self.fingerprint,
            "answered_at_ms": self.answered_at_ms,
            "path": self.path,
            "entry": None if self.entry is None else base64.b64encode(self.entry).decode(),
            "topic_count": self.topic_count,
            "directory_count": self.directory_count,
            "notes": self.notes,
            "kafka_topics_deleted": self.kafka_topics_deleted,
            "unreadable_count": self.unreadable_count,
            "grants": [_grant_fields(one) for one in self.grants],
            "grants_changed": [_grant_fields(one) for one in self.grants_changed],
        }
        return _compact_json(fields).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Parses the form of ``to_bytes``.

        Raises:
            ValueError: not a valid row.
        """
        try:
            fields = json.loads(value)
            entry = fields["entry"]
            return cls(
                fingerprint=fields["fingerprint"],
                answered_at_ms=int(fields["answered_at_ms"]),
                path=fields["path"],
                entry=None if entry is None else base64.b64decode(entry),
                topic_count=int(fields["topic_count"]),
                directory_count=int(fields["directory_count"]),
                notes=tuple(fields["notes"]),
                # Rows of earlier releases lack some fields.
                kafka_topics_deleted=bool(fields.get("kafka_topics_deleted")),
                unreadable_count=int(fields.get("unreadable_count", 0)),
                grants=tuple(map(_grant, fields.get("grants", ()))),
                grants_changed=tuple(map(_grant, fields.get("grants_changed", ()))),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not an answered request: {error!r}") from None


def replay_answer(row: bytes, request_id: str, command: Command, codec: Codec) -> Plan:
    """Returns the earlier answer to a request id, as a plan without writes. ``row``: the stored
    value for the id.

    Raises:
        RequestIdReused: the id was used for another command, or the row cannot be read.
    """
    try:
        record = RequestRecord.from_bytes(row)
        is_other = record.fingerprint != command_fingerprint(command)
        answer = None if is_other else record.replay_plan(codec)
    except ValueError as error:
        raise RequestIdReused(
            f"request_id: {request_id!r} was used for a request that is kept in a form this server "
            "cannot read; a new request needs a new id",
            request_id=request_id,
        ) from error
    if answer is None:
        raise RequestIdReused(
            f"request_id: {request_id!r} was used for another request; a new request needs a new "
            "id",
            request_id=request_id,
        )
    return answer


def _grant_fields(grant: Grant) -> list[str | int]:
    return [
        grant.principal,
        grant.host,
        grant.operation.value,
        grant.permission.value,
        grant.kind.value,
        grant.name,
    ]


def _grant(message: list[Any]) -> Grant:
    """Decodes the stored form.

    Raises:
        ValueError: it is of a newer version.
    """
    principal, host, operation, permission, kind, name = message
    return Grant(
        principal,
        host,
        Operation(operation),
        Permission(permission),
        ResourceType(kind),
        name,
    )
