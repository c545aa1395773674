"""What the store keeps of the ACLs that kdir pushed: a row a resource of Kafka; values and bytes.

By resource and not by entry: several directories may wish one group's ACL, and a topic that is made
anew has the name of one before. Refuses to decide what is pushed (``acl_diff.py``), and to push
it. Keys: ``k/acls/<kind><pattern>/<name>`` and ``k/acl_basis``; see ``keys.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from directory.access.grant import Operation, Permission, ResourceType
from directory.kafka.admin_contract import Acl, PatternType, Resource
from directory.namespace.keys import kafka_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write

__all__ = [
    "ACL_BASIS",
    "ACL_ROWS",
    "NOTHING_KEPT",
    "AclCounts",
    "AppliedAcl",
    "AppliedResource",
    "acl_counts",
    "kept_rows",
    "load_applied_resource",
]

ACL_ROWS: Final = kafka_key("acls/")
ACL_BASIS: Final = kafka_key("acl_basis")
_KINDS: Final = {
    b"t": ResourceType.TOPIC,
    b"g": ResourceType.GROUP,
    b"x": ResourceType.TRANSACTIONAL_ID,
}
_PATTERNS: Final = {b"l": PatternType.LITERAL, b"p": PatternType.PREFIXED}
_KIND_LETTERS: Final = {kind: letter for letter, kind in _KINDS.items()}
_PATTERN_LETTERS: Final = {pattern: letter for letter, pattern in _PATTERNS.items()}


@dataclass(frozen=True, slots=True)
class AppliedAcl:
    """How one ACL of ours stands."""

    done: bool = True
    """Kafka had it; else it was to be asked for, and whether it was is not known."""
    put_back: int = 0
    """So often somebody else has removed it since."""


@dataclass(frozen=True, slots=True)
class AppliedResource:
    """One resource. Immutable, as its maps are."""

    path: str = ""
    """Who wished it last."""
    ours: Mapping[Acl, AppliedAcl] = field(default_factory=lambda: MappingProxyType({}))
    """What kdir asked Kafka for; nothing else is ever removed."""
    held: frozenset[Acl] = frozenset()
    """Those to be added, or removed, once an operator has read a plan."""
    lost: frozenset[Acl] = frozenset()
    """Ours that somebody else removed, and that were not put back."""
    contested: frozenset[Acl] = frozenset()
    """Ours that somebody else keeps removing: left alone."""
    waits: str = ""
    """Why something waits, as a sentence for people; empty = nothing does."""
    refused: str = ""
    """Kafka's words, when it refused what was asked last."""
    refused_calls: str = ""
    """Which calls those were: the same ones are not asked again."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not (self.ours or self.held or self.waits or self.refused)

    def to_write(self, resource: Resource) -> Write:
        """Returns what keeps it, or what forgets it where there is nothing to keep."""
        key = _key(resource)
        if self.is_empty:
            return Delete(key)
        value: dict[str, object] = {
            "path": self.path,
            "ours": [
                [*_acl_fields(acl), int(one.done), one.put_back]
                for acl, one in sorted(self.ours.items())
            ],
        }
        for name in ("held", "lost", "contested"):
            acls: frozenset[Acl] = getattr(self, name)
            if acls:
                value[name] = [_acl_fields(acl) for acl in sorted(acls)]
        if self.waits:
            value["waits"] = self.waits
        if self.refused:
            value["refused"] = [self.refused, self.refused_calls]
        return Put(key, json.dumps(value, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Back from ``to_write``.

        Raises:
            ValueError: no such record.
        """
        try:
            found = json.loads(value)
            ours = {
                _acl(row[:4]): AppliedAcl(bool(row[4]), int(row[5]))
                for row in found.get("ours", ())
            }
            return cls(
                str(found["path"]),
                MappingProxyType(ours),
                _acls(found.get("held", ())),
                _acls(found.get("lost", ())),
                _acls(found.get("contested", ())),
                str(found.get("waits", "")),
                *map(str, found.get("refused", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"no record of what was pushed: {error}") from None


NOTHING_KEPT: Final = AppliedResource()


def load_applied_resource(snapshot: Snapshot, resource: Resource) -> AppliedResource:
    """Returns what is kept of a resource.

    Raises:
        ValueError: it cannot be read: nothing may be done to this resource.
    """
    value = snapshot.fact(_key(resource))
    return NOTHING_KEPT if value is None else AppliedResource.from_bytes(value)


def kept_rows(snapshot: Snapshot) -> Iterator[tuple[Resource, AppliedResource | None]]:
    """Yields all of them; None for what cannot be read."""
    for key, value in snapshot.facts(ACL_ROWS):
        resource = _resource(key)
        if resource is None:
            continue
        try:
            yield resource, _read(value)
        except ValueError:
            yield resource, None


@lru_cache(20_000)
def _read(value: bytes) -> AppliedResource:
    # All rows are read at each look, and few have changed since the last one.
    return AppliedResource.from_bytes(value)


class AclCounts(NamedTuple):
    """How the ACLs of a cluster stand."""

    pushed: int = 0
    """In Kafka, by kdir."""
    waiting: int = 0
    """Resources of which something waits."""
    refused: int = 0
    """Resources of which Kafka refused something."""
    lost: int = 0
    """ACLs that somebody else removed."""


def acl_counts(snapshot: Snapshot) -> AclCounts:
    """Counted from all rows; what cannot be read is not counted."""
    rows = [kept for _, kept in kept_rows(snapshot) if kept is not None]
    lost = sum(len(one.lost) for one in rows)
    return AclCounts(
        sum(ours.done for one in rows for ours in one.ours.values()) - lost,
        sum(bool(one.waits) for one in rows),
        sum(bool(one.refused) for one in rows),
        lost,
    )


def _key(resource: Resource) -> bytes:
    kind, pattern = _KIND_LETTERS[resource.kind], _PATTERN_LETTERS[resource.pattern]
    return b"%b%b%b/%b" % (ACL_ROWS, kind, pattern, resource.name.encode())


def _resource(key: bytes) -> Resource | None:
    rest = key.removeprefix(ACL_ROWS)
    kind, pattern = _KINDS.get(rest[:1]), _PATTERNS.get(rest[1:2])
    if kind is None or pattern is None or rest[2:3] != b"/":
        return None  # a newer server's
    return Resource(kind, rest[3:].decode(errors="replace"), pattern)


def _acl_fields(acl: Acl) -> list[str]:
    return [acl.permission.name, acl.principal, acl.operation.name, acl.host]


def _acl(row: Any) -> Acl:
    permission, principal, operation, host = row
    return Acl(Permission[permission], str(principal), Operation[operation], str(host))


def _acls(rows: Iterable[Any]) -> frozenset[Acl]:
    return frozenset(map(_acl, rows))
