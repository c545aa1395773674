"""The state of a cluster, added up from the records of its state topic; computation only.

A record counts only with the checkpoint after it, and only if it is not older than what is known:
by (generation, revision), since a new incarnation of the store counts its revisions from the start.
What cannot be read is counted and left out, and stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from sys import intern
from typing import Any, Final, NamedTuple

import immutables

from resolver.changes.record import (
    CHECKPOINT,
    INHERITED,
    Change,
    Schemas,
    SchemaUnavailable,
    UndecodableRecord,
)
from resolver.changes.registry import SchemaRegistry
from resolver.errors import KafkaUnavailable

__all__ = ["LogState", "Place", "StateFold", "StateRow"]


class Place(NamedTuple):
    """Place of an entry: a topic and a container may share a name. The root directory has parent 0
    and no name.
    """

    parent_id: int
    is_topic: bool
    name: str


class StateRow(NamedTuple):
    """One row of the store, as the newest record of its state key holds it."""

    order: tuple[int, int, int]
    scope: str
    entry_id: int
    key: bytes | None
    """Key of the row in the store; None for grants, which are where their entry is."""
    record: bytes
    kind: str = ""
    place: Place | None = None
    """Of an entry."""


@dataclass(frozen=True, slots=True)
class LogState:
    """State at a checkpoint. It never changes: the next one is another."""

    cluster_id: str = ""
    checkpoint: Change | None = None
    rows: Mapping[str, StateRow] = field(default_factory=immutables.Map)
    """By key of the state topic; schemas and the checkpoint left out."""
    places: immutables.Map[Place, StateRow] = field(default_factory=immutables.Map)
    """The entries among them, by where they are."""
    unreadable: immutables.Map[str, str] = field(default_factory=immutables.Map)
    """Keys whose newest record cannot be read, with the reason."""
    skipped: int = 0
    """Number of records that were left out: without a key, of an unknown kind or another cluster,
    not decodable, or older than what was known."""
    other_clusters: frozenset[str] = frozenset()
    """Ids of other clusters that have records in the topic."""


class _Unreadable(NamedTuple):
    value: bytes
    reason: str


class StateFold:
    """Sum of records, in the order of their offsets.

    Args:
        cluster_id: that of the cluster; empty = the one of the first record.
        registry: has the schemas of records that are framed by an id.
        new_table: makes an empty mapping, for a state that need not fit in memory: its rows are in
            such a one, which changes with each checkpoint, and it has no ``places``.
    """

    def __init__(
        self,
        cluster_id: str = "",
        registry: SchemaRegistry | None = None,
        new_table: Callable[[], MutableMapping[str, Any]] | None = None,
    ) -> None:
        self._table: Final = None if new_table is None else new_table()
        rows: Mapping[str, StateRow] = immutables.Map() if self._table is None else self._table
        self.state = LogState(cluster_id, rows=rows)
        """As of the newest checkpoint."""
        self.has_older_checkpoint = False
        """A checkpoint came that is older than the one before: it was published twice, or the log
        was begun again."""
        self.unreadable_checkpoint = ""
        """Why the newest checkpoint cannot be read; empty = it was read."""
        self._schemas: Final = Schemas(registry)
        self._pending: Final[MutableMapping[str, StateRow | _Unreadable | None]] = (
            {} if new_table is None else new_table()
        )
        self._kept: dict[str, _Unreadable] = {}  # in ``state.unreadable``
        self._schema_count = self._schemas.count
        """When the unreadable ones were decoded last."""
        self._skipped = 0
        self._others: set[str] = set()
        self._cluster_id = cluster_id

    @property
    def pending_count(self) -> int:
        """Number of keys whose newest record has no checkpoint after it yet."""
        return len(self._pending)

    def add(self, key: bytes | None, value: bytes | None) -> bool:
        """Takes in the next record; True if ``state`` is another now.

        Raises:
            KafkaUnavailable: the registry does not answer; the sum is of no use any more.
        """
        text = (key or b"").decode(errors="replace")
        cluster_id, _, name = text.partition("/")
        if not name:
            self._skipped += 1
            return False
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id != self._cluster_id:
            self._skipped += 1
            self._others.add(cluster_id)
            return False
        if name == CHECKPOINT:
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
            self._pending[key] = None
            return
        row = self._row_of(value)
        before = self._pending.get(key)
        if isinstance(row, StateRow) and isinstance(before, StateRow) and row.order < before.order:
            self._skipped += 1
        else:
            self._pending[key] = row

    def _row_of(self, value: bytes) -> StateRow | _Unreadable:
        try:
            change = self._schemas.decode_fields(value)
        except SchemaUnavailable as error:
            raise KafkaUnavailable(str(error)) from None
        except UndecodableRecord as error:
            return _Unreadable(value, str(error))
        if change["record"] is None:
            return _Unreadable(value, "it holds no row of the store")
        scope, kind = intern(change["scope"]), intern(change["kind"])
        return StateRow(
            (change["generation"], change["revision"], change["position"]),
            scope,
            change["entry_id"],
            change["key"],
            change["record"],
            kind,
            _place_of(change) if scope == "entry" else None,
        )

    def _add_checkpoint(self, value: bytes) -> bool:
        try:
            point = self._schemas.decode(value)
        except SchemaUnavailable as error:
            raise KafkaUnavailable(str(error)) from None
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
            self._pending.clear()
            self.has_older_checkpoint = True
            return False
        self._apply(since)
        self.state = replace(
            self.state,
            cluster_id=self._cluster_id,
            checkpoint=point,
            unreadable=immutables.Map({key: one.reason for key, one in self._kept.items()}),
            skipped=self._skipped,
            other_clusters=frozenset(self._others),
        )
        return True

    def _apply(self, since: tuple[int, ...]) -> None:
        """Makes the next state of all that waits for its checkpoint."""
        late: dict[str, _Unreadable] = {}  # it came before what is known
        if self._schema_count != self._schemas.count:
            late = {key: one for key, one in self._kept.items() if key not in self._pending}
            self._schema_count = self._schemas.count
        held: Any = self.state.rows
        rows: Any = held.mutate() if self._table is None else self._table
        places = self.state.places.mutate()
        for key, found in chain(late.items(), self._pending.items()):
            row = self._row_of(found.value) if isinstance(found, _Unreadable) else found
            if isinstance(row, _Unreadable):
                self._skipped += key not in self._kept
                self._kept[key] = row
                continue
            before = rows.get(key)
            if row is not None and (
                (row.order[:2] < since and key not in late)
                or (before is not None and row.order < before.order)
            ):
                self._skipped += 1
                continue
            self._kept.pop(key, None)
            if before is not None and before.place and places.get(before.place) == before:
                del places[before.place]
            if row is None:
                rows.pop(key, None)
                continue
            rows[key] = row
            if row.place is not None and self._table is None:
                places[row.place] = row
        self._pending.clear()
        if self._table is None:
            self.state = replace(self.state, rows=rows.finish(), places=places.finish())


def _place_of(change: Mapping[str, Any]) -> Place:
    if not change["parent_id"]:
        return Place(0, is_topic=False, name="")
    name = change["path"].rpartition("/")[2]
    return Place(change["parent_id"], is_topic=change["kind"] == "topic", name=name)
