"""Stored records of kdir's last requests to Kafka: configs per topic, ACLs per resource, and the
plan per armed entry.

ACLs are stored by resource and not by entry: several directories may desire one group's ACL, and a
topic that is made again has the name of an earlier one. Keys: ``k/pushed/<entry id>``,
``k/acls/<kind><pattern>/<name>``, ``k/acl_basis``, ``k/armed/<aspect>/<entry id>``; see
``keys.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from directory.access.grants import Operation, Permission, ResourceType
from directory.kafka.admin_contract import Acl, PatternType, Resource
from directory.kafka.kafka_context import ACLS, CONFIGS
from directory.namespace.keys import PUSHED, kafka_key, pushed_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = [
    "ACL_BASIS",
    "ACL_ROWS",
    "ARMED",
    "AclCounts",
    "AppliedRecord",
    "AppliedSetting",
    "ArmedRecord",
    "acl_counts",
    "acls_to_write",
    "armed_anywhere",
    "armed_records",
    "config_issues",
    "configs_to_write",
    "count_topics_with_issues",
    "load_applied_acls",
    "load_applied_configs",
    "load_armed_record",
    "load_every_applied_acls",
    "states_of",
]

ACL_ROWS: Final = kafka_key("acls/")
ACL_BASIS: Final = kafka_key("acl_basis")
ARMED: Final = kafka_key("armed/")
_KINDS: Final = {
    b"t": ResourceType.TOPIC,
    b"g": ResourceType.GROUP,
    b"x": ResourceType.TRANSACTIONAL_ID,
}
_APPLIED: Final = {CONFIGS: (PUSHED,), ACLS: (ACL_ROWS,)}
"""Prefixes of the records of pushed settings, by aspect."""
_PATTERNS: Final = {b"l": PatternType.LITERAL, b"p": PatternType.PREFIXED}
_KIND_LETTERS: Final = {kind: letter for letter, kind in _KINDS.items()}
_PATTERN_LETTERS: Final = {pattern: letter for letter, pattern in _PATTERNS.items()}
_STATES: Final[Mapping[bytes, str]] = {
    b'"held":': "needs-approval", b'"contested":': "contested", b'"refused":': "rejected",
}  # fmt: skip
"""State of a record whose JSON has this key; inside a value these quotes would be escaped."""

_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class AppliedSetting:
    """One config or ACL, as it was desired when it was last compared with Kafka."""

    value: str = ""
    """Value of a config; empty for an ACL."""
    ours: bool = True
    """True: kdir set it in Kafka. False: Kafka had it already, and kdir never takes it back."""
    done: bool = True
    """True: Kafka had it. False: the call was about to be made, and its outcome is not known."""
    put_back: int = 0
    """Number of times that another client changed or removed it and kdir was to set it again."""
    was: str | None = None
    """For a config that is not done: its previous value, if kdir had set it."""


@dataclass(frozen=True, slots=True)
class AppliedRecord(Generic[_K]):
    """One topic's configs by name, or one resource's ACLs. Immutable, as its maps are (P16)."""

    settings: Mapping[_K, AppliedSetting] = field(default_factory=lambda: MappingProxyType({}))
    """Settings that kdir requested, or found as desired; no other ACL is ever removed."""
    held: frozenset[_K] = frozenset()
    """Settings whose change waits until an operator has read a plan."""
    contested: frozenset[_K] = frozenset()
    """Settings that another client changes or removes again and again; kdir leaves them alone."""
    lost: frozenset[_K] = frozenset()
    """ACLs of ours that another client removed, and that were not put back."""
    path: str = ""
    """Path of the entry that desired the ACLs last."""
    waits: str = ""
    """Why ACLs wait, as a sentence for people; empty = none wait."""
    refused: str = ""
    """Kafka's message, if it refused the last calls."""
    refused_calls: str = ""
    """Hash of the refused calls: the same calls are not made again."""

    @property
    def is_empty(self) -> bool:
        """Whether the record holds nothing to store."""
        return not (self.settings or self.held or self.waits or self.refused)

    def path_below(self, mount: Path) -> Path:
        """Returns ``path`` if it is below the cluster's mount, else the mount, which moved since:
        the record is then found where the whole cluster is listed or armed.
        """
        with suppress(InvalidPath):
            found = Path.parse(self.path)
            if mount.is_prefix_of(found):
                return found
        return mount

    @property
    def state(self) -> str:
        """State to report to people, as one term; empty = no issue."""
        if self.refused:
            return "rejected"
        if self.waits or self.held:
            return "needs-approval"
        if self.contested:
            return "contested"
        return "drift" if self.lost else ""


# -- configs ---------------------------------------------------------------------------------------


def configs_to_write(entry_id: int, record: AppliedRecord[str]) -> Write:
    """Returns the write that stores a topic's record, or removes it if it would be empty."""
    settings = sorted(record.settings.items())
    rows = {name: [one.value, int(one.ours), int(one.done), one.put_back] for name, one in settings}
    value: dict[str, Any] = {"configs": rows}
    # Not in the rows: an older server refuses rows with another number of fields.
    if was := {name: one.was for name, one in settings if one.was is not None}:
        value["was"] = was
    return _to_write(pushed_key(entry_id), value, record, str)


def load_applied_configs(snapshot: Snapshot, entry_id: int) -> AppliedRecord[str]:
    """Returns the record of a topic's configs.

    Raises:
        ValueError: the record cannot be read: nothing may be done to this topic.
    """
    value = snapshot.fact(pushed_key(entry_id))
    return AppliedRecord() if value is None else _read(value, _configs, str)


def count_topics_with_issues(snapshot: Snapshot) -> tuple[int, int]:
    """Returns the numbers of topics with a setting that (needs approval, is contested)."""
    states = [states_of(value) for _, value in snapshot.facts(PUSHED)]
    return (
        sum("needs-approval" in one for one in states),
        sum("contested" in one for one in states),
    )


def states_of(value: bytes) -> tuple[str, ...]:
    """Returns the states of a config record to report to people, without parsing it."""
    return tuple(state for text, state in _STATES.items() if text in value)


def config_issues(snapshot: Snapshot, entry_id: int) -> Mapping[str, str]:
    """Returns the issues of a topic's configs, by name: ``needs-approval``, ``contested``,
    ``rejected``; ``partitions`` is one of the names.
    """
    try:
        known = load_applied_configs(snapshot, entry_id)
    except ValueError:
        return {}
    found = dict.fromkeys(known.contested, "contested")
    found |= dict.fromkeys(known.held, "needs-approval")
    if known.refused:
        unsure = (name for name, one in known.settings.items() if not one.done)
        found |= dict.fromkeys(unsure, "rejected")
    return found


def _configs(found: Any) -> dict[str, AppliedSetting]:
    was = {str(name): str(text) for name, text in found.get("was", {}).items()}
    return {
        str(name): AppliedSetting(str(text), bool(ours), bool(done), int(back), was.get(name))
        for name, (text, ours, done, back) in found["configs"].items()
    }


# -- ACLs ------------------------------------------------------------------------------------------


def acls_to_write(resource: Resource, record: AppliedRecord[Acl]) -> Write:
    """Returns the write that stores a resource's record, or removes it if it would be empty."""
    rows = [
        [*_acl_fields(acl), int(one.done), one.put_back]
        for acl, one in sorted(record.settings.items())
    ]
    value = {"path": record.path, "ours": rows}
    return _to_write(_resource_key(resource), value, record, _acl_fields)


def load_applied_acls(snapshot: Snapshot, resource: Resource) -> AppliedRecord[Acl]:
    """Returns the record of a resource's ACLs.

    Raises:
        ValueError: the record cannot be read: nothing may be done to this resource.
    """
    value = snapshot.fact(_resource_key(resource))
    return AppliedRecord() if value is None else _read_acls(value)


def load_every_applied_acls(
    snapshot: Snapshot,
) -> Iterator[tuple[Resource, AppliedRecord[Acl] | None]]:
    """Yields all resources with their records; None = the record cannot be read."""
    for key, value in snapshot.facts(ACL_ROWS):
        resource = _resource(key)
        if resource is None:
            continue
        try:
            yield resource, _read_acls(value)
        except ValueError:
            yield resource, None


class AclCounts(NamedTuple):
    """Numbers of a cluster's ACLs."""

    pushed: int = 0
    """ACLs in Kafka that kdir added."""
    waiting: int = 0
    """Resources with ACLs that wait."""
    refused: int = 0
    """Resources with calls that Kafka refused."""
    lost: int = 0


def acl_counts(snapshot: Snapshot) -> AclCounts:
    """Counts the ACLs and resources of all records, without unreadable ones."""
    rows = [kept for _, kept in load_every_applied_acls(snapshot) if kept is not None]
    lost = sum(len(one.lost) for one in rows)
    return AclCounts(
        sum(ours.done for one in rows for ours in one.settings.values()) - lost,
        sum(bool(one.waits) for one in rows),
        sum(bool(one.refused) for one in rows),
        lost,
    )


@lru_cache(20_000)
def _read_acls(value: bytes) -> AppliedRecord[Acl]:
    # Cached: each comparison reads all rows, of which few have changed since the last one.
    return _read(value, _ours, _acl)


def _resource_key(resource: Resource) -> bytes:
    kind, pattern = _KIND_LETTERS[resource.kind], _PATTERN_LETTERS[resource.pattern]
    return b"%b%b%b/%b" % (ACL_ROWS, kind, pattern, resource.name.encode())


def _resource(key: bytes) -> Resource | None:
    rest = key.removeprefix(ACL_ROWS)
    kind, pattern = _KINDS.get(rest[:1]), _PATTERNS.get(rest[1:2])
    if kind is None or pattern is None or rest[2:3] != b"/":
        return None  # a newer server's
    return Resource(kind, rest[3:].decode(errors="replace"), pattern)


def _ours(found: Any) -> dict[Acl, AppliedSetting]:
    return {
        _acl(row[:4]): AppliedSetting(done=bool(row[4]), put_back=int(row[5]))
        for row in found.get("ours", ())
    }


def _acl_fields(acl: Acl) -> list[str]:
    return [acl.permission.name, acl.principal, acl.operation.name, acl.host]


def _acl(row: Any) -> Acl:
    permission, principal, operation, host = row
    return Acl(Permission[permission], str(principal), Operation[operation], str(host))


# -- common to configs and ACLs --------------------------------------------------------------------


def _to_write(
    key: bytes,
    value: dict[str, Any],
    record: AppliedRecord[_K],
    to_json: Callable[[_K], object],
) -> Write:
    if record.is_empty:
        return Delete(key)
    for name in ("held", "lost", "contested"):
        some: Iterable[Any] = getattr(record, name)
        if some:
            value[name] = [to_json(one) for one in sorted(some)]
    if record.waits:
        value["waits"] = record.waits
    if record.refused:
        value["refused"] = [record.refused, record.refused_calls]
    return Put(key, json.dumps(value, separators=(",", ":")).encode())


def _read(
    value: bytes,
    settings_of: Callable[[Any], dict[_K, AppliedSetting]],
    from_json: Callable[[Any], _K],
) -> AppliedRecord[_K]:
    try:
        found = json.loads(value)
        refused, refused_calls = found.get("refused", ("", ""))
        held, contested, lost = (
            frozenset(map(from_json, found.get(name, ()))) for name in ("held", "contested", "lost")
        )
        return AppliedRecord(
            MappingProxyType(settings_of(found)),
            held,
            contested,
            lost,
            str(found.get("path", "")),
            str(found.get("waits", "")),
            str(refused),
            str(refused_calls),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"no record of what was pushed: {error}") from None


# -- armed entries ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedRecord:
    """An entry at which an aspect was armed, and its plan. Only a hint: the entry's policies decide
    whether it is still armed.
    """

    aspect: str
    entry_id: int
    place: tuple[int, str] | None = None
    """Parent id and name of a topic; None = the entry is a directory."""
    plan: str
    calls: int = 0
    made: int = 0
    pending: bool = True
    """True: some calls are still to be made; the next leader continues."""
    basis: str = ""
    """``inherited_basis`` of the plan, which approves waiting calls only while this is current."""
    message: str = ""
    """Why some planned calls were not made; empty = all were, or are under way."""
    takeover: bool = False
    """For ``acls``: True if resources that were open to all are closed to those without a grant."""
    physical_name: str = ""
    """For a topic: its name in Kafka, by which its entry is found wherever it moves."""

    @property
    def key(self) -> bytes:
        """Key of the stored record."""
        return _mark_key(self.aspect, self.entry_id)

    @property
    def is_traceable(self) -> bool:
        """True if the record finds its entry wherever it moves; False if the record cannot be read,
        or is a topic's that an older server wrote.
        """
        return bool(self.plan) and (self.place is None or bool(self.physical_name))

    def to_put(self) -> Put:
        """Returns the write that stores it."""
        value = asdict(self)
        del value["aspect"], value["entry_id"]
        return Put(self.key, json.dumps(value).encode())


def armed_anywhere(snapshot: Snapshot, aspect: str) -> bool:
    """True if the aspect is armed at an entry, or was and records of pushed settings are left."""
    prefixes = (ARMED + aspect.encode() + b"/", *_APPLIED.get(aspect, ()))
    return any(next(snapshot.facts(one), None) is not None for one in prefixes)


def load_armed_record(snapshot: Snapshot, aspect: str, entry_id: int) -> ArmedRecord | None:
    """Returns the record of an armed entry; None = it was never armed."""
    value = snapshot.fact(_mark_key(aspect, entry_id))
    return None if value is None else _mark(aspect, entry_id, value)


def armed_records(snapshot: Snapshot, aspect: str) -> list[ArmedRecord]:
    """Returns the records of all entries at which the aspect was armed. A sweep removes those of
    entries that are gone.
    """
    prefix = ARMED + aspect.encode() + b"/"
    return [
        _mark(aspect, int(key.removeprefix(prefix), 16), value)
        for key, value in snapshot.facts(prefix)
    ]


def _mark_key(aspect: str, entry_id: int) -> bytes:
    return b"%b%b/%016x" % (ARMED, aspect.encode(), entry_id)


def _mark(aspect: str, entry_id: int, value: bytes) -> ArmedRecord:
    try:
        found = json.loads(value)
        known = {name: found[name] for name in _ARMED_FIELDS & found.keys()}
        if known["place"] is not None:
            parent_id, name = known["place"]
            known["place"] = (int(parent_id), str(name))
        return ArmedRecord(aspect=aspect, entry_id=entry_id, **known)
    except (ValueError, KeyError, TypeError, AttributeError):
        # A newer server's, perhaps: the entry is armed, and the record releases nothing.
        return ArmedRecord(aspect=aspect, entry_id=entry_id, plan="", pending=False)


_ARMED_FIELDS: Final = {one.name for one in fields(ArmedRecord)} - {"aspect", "entry_id"}
