"""State of a cluster, computed from the records of its state topic; no I/O.

A record counts only after the next checkpoint, and only if it is not older than the previous one.
Ages are compared by (generation, revision), since revisions begin again with each incarnation of
the store. Unreadable records are skipped, and tried again when schemas are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple, Self

import immutables

from resolver.changes.record import (
    CHECKPOINT,
    INHERITED,
    Change,
    Schemas,
    UndecodableRecord,
)
from resolver.changes.registry import SchemaRegistry

__all__ = [
    "SQL_KEY",
    "SQL_KEY_SIZE",
    "SQL_RECORD",
    "LogState",
    "StateFold",
    "StateRow",
    "StateRows",
    "pack_row",
    "place_of",
]

_GONE: Final = b""
_ROW: Final = b"r"
_UNREADABLE: Final = b"u"
"""First byte of a pending value, as is ``_ROW``; the pending value of a removed row is
``_GONE``.
"""
_ORDER: Final = Struct(">QQI")
_WHOLE_ORDER: Final = slice(1, 1 + _ORDER.size)
_HEAD: Final = Struct(">cQQIQ10s")
_NUMBERS: Final = itemgetter("generation", "revision", "position", "entry_id")
_ENTRY_ID: Final = slice(_WHOLE_ORDER.stop, _WHOLE_ORDER.stop + 8)
_KEY_SIZE: Final = slice(_HEAD.size - 10, _HEAD.size)
SQL_KEY_SIZE: Final = f"CAST(substr(value, {_KEY_SIZE.start + 1}, 10) AS INTEGER)"
SQL_KEY: Final = f"substr(value, {_HEAD.size + 1}, {SQL_KEY_SIZE})"
SQL_RECORD: Final = f"substr(value, {_HEAD.size + 1} + {SQL_KEY_SIZE})"
"""SQL for the record of a packed row in the column ``value``, as ``SQL_KEY`` is for its key. The
size of the key is in decimal digits, since SQL cannot read binary numbers.
"""
_PLACE: Final = Struct(">2sQc")
_REMEMBERED: Final = 4_096


class StateRow(NamedTuple):
    """One row of the store, as in the newest record of its state key.

    A state holds packed rows (``pack_row``): a million objects take twice the memory of their
    bytes, and the cycle collector visits each.
    """

    entry_id: int
    key: bytes | None
    """Key of the row in the store; for an entry, that of ``place_of``. None for grants, whose key
    follows from their entry's.
    """
    record: bytes

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Returns the row that ``pack_row`` packed."""
        key = _packed_key(packed)
        entry_id = int.from_bytes(packed[_ENTRY_ID], "big")
        return cls(entry_id, key or None, packed[_HEAD.size + len(key) :])


def pack_row(change: Mapping[str, Any]) -> bytes:
    """Returns the packed row of a change from ``Schemas.decode_row``. It begins with the change's
    order, so packed rows compare in the order of changes.

    Raises:
        struct.error: a number is negative or too large.
    """
    key = change["key"] or b""
    head = _HEAD.pack(_ROW, *_NUMBERS(change), b"%10d" % len(key))
    return b"".join((head, key, change["record"]))


_unpack_often: Final = lru_cache(_REMEMBERED)(StateRow.unpack)


def place_of(parent_id: int, *, is_topic: bool, name: str) -> bytes:
    """Returns the key of an entry in the store. A topic and a container (any other entry) have
    different keys, since they may have the same name. The root directory has parent 0 and no name.
    """
    return _PLACE.pack(b"e/", parent_id, b"t" if is_topic else b"c") + name.encode()


class StateRows(Mapping[str, StateRow]):
    """Rows by key of the state topic, without schemas and checkpoints."""

    def __init__(self, packed: Mapping[str, bytes]) -> None:
        self._packed: Final = packed

    def __getitem__(self, key: str) -> StateRow:
        return StateRow.unpack(self._packed[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


@dataclass(frozen=True, slots=True)
class LogState:
    """State at a checkpoint. Immutable, except for the rows of a ``StateFold`` with
    ``new_table``.
    """

    cluster_id: str = ""
    checkpoint: Change | None = None
    rows_by_key: Mapping[str, bytes] = field(default_factory=immutables.Map)
    """Packed rows by key of the state topic."""
    rows_by_place: immutables.Map[bytes, bytes] = field(default_factory=immutables.Map)
    """Packed rows of entries, by ``place_of``."""
    unreadable: immutables.Map[str, str] = field(default_factory=immutables.Map)
    """Keys whose newest record cannot be read, with the reason."""
    skipped: int = 0
    """Number of skipped records: without a key, of an unknown kind or another cluster, undecodable,
    or older than the known record.
    """
    other_clusters: frozenset[str] = frozenset()
    """Ids of other clusters that have records in the topic."""

    @property
    def rows(self) -> StateRows:
        """All rows, unpacked on access."""
        return StateRows(self.rows_by_key)

    def find_entry(self, parent_id: int, *, is_topic: bool, name: str) -> StateRow | None:
        """Returns the entry with the key ``place_of``; None = there is none."""
        packed = self.rows_by_place.get(place_of(parent_id, is_topic=is_topic, name=name))
        return None if packed is None else _unpack_often(packed)


class _Unreadable(NamedTuple):
    value: bytes
    reason: str


class StateFold:
    """State that is computed from records, added in the order of their offsets.

    Args:
        cluster_id: id of the cluster; empty = the cluster of the first record.
        registry: has the schemas of records that are framed by an id.
        new_table: returns an empty mapping outside memory, for large states. It then holds the rows
            of ``state`` and changes with each checkpoint; ``find_entry`` finds nothing.
    """

    def __init__(
        self,
        cluster_id: str = "",
        registry: SchemaRegistry | None = None,
        new_table: Callable[[], MutableMapping[str, bytes]] | None = None,
    ) -> None:
        self._table = None if new_table is None else new_table()
        rows: Mapping[str, bytes] = immutables.Map() if self._table is None else self._table
        self.state = LogState(cluster_id, rows_by_key=rows)
        """State as of the newest checkpoint."""
        self.has_older_checkpoint = False
        """True if a checkpoint was older than the previous one: it was published twice, or the log
        was started again.
        """
        self.unreadable_checkpoint = ""
        """Reason why the newest checkpoint cannot be read; empty = it can."""
        self.is_checkpoint_removed = False
        """True if the cluster's newest checkpoint was removed."""
        self.newest_checkpoint_of = ""
        """Id of the cluster, this or another one, to which the newest checkpoint belongs; empty =
        there is no checkpoint.
        """
        self.cluster_id = cluster_id
        """Id of the cluster; empty = not known, since no record was added."""
        self._schemas: Final = Schemas(registry)
        self._pending = {} if new_table is None else new_table()
        self._has_unreadable = False
        """True if a pending record could not be read."""
        self._newest = b""
        """Greatest order (``Change.order``, packed) of a row so far."""
        self._kept: dict[str, _Unreadable] = {}  # in ``state.unreadable``
        self._schema_count = self._schemas.count
        """``Schemas.count`` when the unreadable records were last tried."""
        self._skipped = 0
        self._others: set[str] = set()  # keys of other clusters

    @property
    def pending_count(self) -> int:
        """Number of keys whose newest record has no checkpoint after it yet."""
        return len(self._pending)

    def add(self, key: bytes | None, value: bytes | None) -> bool:
        """Adds the next record; returns True if it made a new ``state``.

        Raises:
            RegistryUnavailable: the registry does not answer; the fold must be dropped.
        """
        text = (key or b"").decode(errors="replace")
        cluster_id, _, name = text.partition("/")
        if not name:
            self._skipped += 1
            return False
        self.cluster_id = self.cluster_id or cluster_id
        if name == CHECKPOINT and value is not None:
            self.newest_checkpoint_of = cluster_id
        if cluster_id != self.cluster_id:
            self._skipped += 1
            (self._others.discard if value is None else self._others.add)(text)
            return False
        if name == CHECKPOINT:
            self.is_checkpoint_removed = value is None
            return value is not None and self._add_checkpoint(value)
        if name.startswith("s/"):
            self._add_schema(value)
        elif name.startswith(("e/", "g/", "r/")) or name == INHERITED:
            self._add_row(text, value)
        else:
            self._skipped += 1
        return False

    def _add_schema(self, value: bytes | None) -> None:
        try:
            self._schemas.add((value or b"").decode(errors="replace"))
        except UndecodableRecord:
            self._skipped += 1

    def _add_row(self, key: str, value: bytes | None) -> None:
        if value is None:
            if self.state.checkpoint is None:
                self._pending.pop(key, None)  # without a state, only a pending row can be removed
            else:
                self._pending[key] = _GONE
            return
        found = self._packed(value)
        if isinstance(found, _Unreadable):
            self._pending[key] = _UNREADABLE + value
            self._has_unreadable = True
            return
        order = found[_WHOLE_ORDER]
        if order >= self._newest:
            self._newest = order  # so the pending record of the key is not newer
        else:
            before = self._pending.get(key, _GONE)
            if before[:1] == _ROW and order < before[_WHOLE_ORDER]:
                self._skipped += 1
                return
        self._pending[key] = found

    def _packed(self, value: bytes) -> bytes | _Unreadable:
        try:
            change = self._schemas.decode_row(value)
        except UndecodableRecord as error:
            return _Unreadable(value, str(error))
        if change["record"] is None:
            return _Unreadable(value, "it holds no row of the store")
        try:
            return pack_row(change)
        except struct_error as error:
            return _Unreadable(value, str(error))

    def _add_checkpoint(self, value: bytes) -> bool:
        try:
            point = self._schemas.decode(value)
        except UndecodableRecord as error:
            self._skipped += 1
            self.unreadable_checkpoint = str(error)
            return False
        if point.checkpoint is None:
            self._skipped += 1
            return False
        self.unreadable_checkpoint = ""
        held = self.state.checkpoint
        since = (0, 0) if held is None else held.order[:2]
        if point.order[:2] < since:
            self._skipped += 1 + len(self._pending)
            self._clear_pending()
            self.has_older_checkpoint = True
            return False
        if self._table is not None and held is None and not self._has_unreadable:
            # The table of pending rows becomes the first state, without a copy.
            self._table, self._pending = self._pending, self._table
            self.state = replace(self.state, rows_by_key=self._table)
        else:
            self._apply(since)
        self.state = replace(
            self.state,
            cluster_id=self.cluster_id,
            checkpoint=point,
            unreadable=immutables.Map({key: one.reason for key, one in self._kept.items()}),
            skipped=self._skipped,
            other_clusters=frozenset(key.partition("/")[0] for key in self._others),
        )
        return True

    def _apply(self, since: tuple[int, ...]) -> None:
        """Applies the pending records. ``since``: (generation, revision) of the state so far."""
        late: dict[str, bytes] = {}  # unreadable until now; they may be older than ``since``
        if self._schema_count != self._schemas.count:
            late = {
                key: _UNREADABLE + one.value
                for key, one in self._kept.items()
                if key not in self._pending
            }
            self._schema_count = self._schemas.count
        oldest = _ORDER.pack(*since, 0)
        held: Any = self.state.rows_by_key
        rows: Any = held.mutate() if self._table is None else self._table
        places = self.state.rows_by_place.mutate()
        entries = f"{self.cluster_id}/e/"
        for key, found in chain(late.items(), self._pending.items()):
            row = self._packed(found[1:]) if found[:1] == _UNREADABLE else found
            if isinstance(row, _Unreadable):
                self._skipped += key not in self._kept
                self._kept[key] = row
                continue
            before = rows.get(key)
            if row and (
                (row[_WHOLE_ORDER] < oldest and key not in late)
                or (before is not None and row[_WHOLE_ORDER] < before[_WHOLE_ORDER])
            ):
                self._skipped += 1
                continue
            self._kept.pop(key, None)
            if self._table is None and key.startswith(entries):
                if before is not None and places.get(place := _packed_key(before)) is before:
                    del places[place]
                if row:
                    places[_packed_key(row)] = row
            if row:
                rows[key] = row
            elif before is not None:
                del rows[key]
        self._clear_pending()
        if self._table is None:
            self.state = replace(
                self.state, rows_by_key=rows.finish(), rows_by_place=places.finish()
            )

    def _clear_pending(self) -> None:
        self._pending.clear()
        self._has_unreadable = False


def _packed_key(packed: bytes) -> bytes:
    """Returns the store's key in a packed row; empty for grants."""
    return packed[_HEAD.size : _HEAD.size + int(packed[_KEY_SIZE])]
