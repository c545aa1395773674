"""Records of the change log, from rows of the outbox and of the tree; computation only.

State keeps one record a row of the store: that of an entry, of its grants, or of a fact, under a
key that stays the same where the entry is moved (``resolver/changes/record.py``). History keeps
one record a change event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kdir.v1 import access_pb2, entry_pb2, watch_pb2

from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory, Kind
from directory.namespace.keys import (
    ENTRY,
    GRANTS,
    INHERITED,
    LOGGED_PREFIXES,
    entry_key,
    is_logged_fact,
    parse_entry_key,
    parse_grants_key,
)
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.event_rows import OutboxCommit
from directory.wire.entry_codec import ProtoCodec
from resolver.changes import record
from resolver.changes.record import Change, Checkpoint, grants_text
from resolver.path import ROOT, Path

__all__ = [
    "MOST_RECORD_BYTES",
    "OversizedRecord",
    "PageRecords",
    "StateRecords",
    "checkpoint_of",
    "encode_within",
    "fact_value",
    "page_records",
    "row_digest",
    "snapshot_records",
    "snapshot_rows",
    "state_digest",
]

MOST_RECORD_BYTES: Final = (8 * 1024 - 64) * 1024
"""Of the value of one record; the topics take a little more."""
_CUT: Final = ("effective", "before", "grants_before")
"""Fields that a record loses, in this order, where it would be larger: they are in the records
before it, too."""
_OF_THE_CLUSTER: Final = frozenset(
    (watch_pb2.CHANGE_SCOPE_INHERITED, watch_pb2.CHANGE_SCOPE_OPERATED)
)
"""Scopes of events that leave their entry as it was."""

_PLAIN_ROOT: Final = ProtoCodec().encode(Directory(entry_id=ROOT_ID))
"""Record of a root directory on which nothing is set: as well as none, and none in the log."""

StateRecords = Mapping[str, Change | None]
"""The newest value of each key of the state topic; None = the row is gone."""


class OversizedRecord(Exception):
    """Error of a record that is too large even without what it can lose."""


def encode_within(
    change: Change, most_bytes: int = MOST_RECORD_BYTES, framing: bytes = b""
) -> bytes:
    """Returns a record of at most so many bytes; ``cut`` names the fields that it lost for that.

    Raises:
        OversizedRecord
    """
    value = record.encode(change, framing)
    for name in _CUT:
        if len(value) <= most_bytes:
            return value
        if getattr(change, name) is not None:
            lost: dict[str, Any] = {name: None, "cut": (*change.cut, name)}
            change = replace(change, **lost)
            value = record.encode(change, framing)
    if len(value) > most_bytes:
        raise OversizedRecord(
            f"the record of {change.path or change.entry_id} at revision {change.revision} has "
            f"{len(value):,} bytes; a record of the change log has {most_bytes:,} at most"
        )
    return value


@dataclass(frozen=True, slots=True)
class PageRecords:
    """Set of records that one transaction publishes, but for its checkpoint."""

    state: StateRecords
    history: tuple[Change, ...]
    time: int
    """Of the newest change, Unix milliseconds; 0 where there is none."""


def page_records(
    commits: Iterable[OutboxCommit],
    cluster_id: str,
    generation: int,
    fact: Callable[[bytes], bytes | None],
    now_ms: int,
) -> PageRecords:
    """Returns the records of some commits, in order.

    Args:
        fact: returns the value of a row of the store now; None = it is gone.
    """
    state: dict[str, Change | None] = {}
    history: list[Change] = []
    time = 0
    for commit in commits:
        for event in commit.events:
            change = record.change_of_event(event, generation)
            history.append(change)
            time = max(time, change.time)
            state.update(_state_of_event(event, change))
        for key in commit.logged_facts:
            value = fact(key)
            name = _fact_key(cluster_id, key)
            state[name] = (
                None
                if value is None
                else _fact_record(
                    key, value, cluster_id, generation, revision=commit.revision, time=now_ms
                )
            )
    return PageRecords(state, tuple(history), time)


def fact_value(snapshot: Snapshot, key: bytes) -> bytes | None:
    """Returns the value of a fact now, also of the record of a removed entry; None = it is gone."""
    if not key.startswith(ENTRY):
        return snapshot.fact(key)
    parent_id, is_topic, name = parse_entry_key(key)
    node = snapshot.nodes.get(parent_id)
    if node is None:
        return None
    if is_topic:
        return node.topics.get(name)
    one = node.containers.get(name)
    return None if one is None else snapshot.codec.encode(one)


def _fact_record(
    key: bytes, value: bytes, cluster_id: str, generation: int, *, revision: int, time: int
) -> Change:
    """Returns the record of a row of the store that is neither an entry nor grants."""
    return Change(
        cluster_id=cluster_id,
        generation=generation,
        revision=revision,
        time=time,
        scope="inherited" if key == INHERITED else "fact",
        key=key,
        record=value,
    )


def checkpoint_of(
    point: Checkpoint, cluster_id: str, generation: int, *, revision: int, time: int
) -> Change:
    """Returns the record that ends a transaction."""
    return Change(
        cluster_id=cluster_id,
        generation=generation,
        revision=revision,
        time=time,
        scope="checkpoint",
        checkpoint=point,
    )


def _fact_key(cluster_id: str, key: bytes) -> str:
    if key == INHERITED:
        return record.inherited_key(cluster_id)
    return record.fact_key(cluster_id, key)


def _state_of_event(
    event: watch_pb2.ChangeEvent, change: Change
) -> Iterator[tuple[str, Change | None]]:
    """Yields what one event means for the state."""
    entry = record.entry_key(event.cluster_id, event.entry_id)
    grants = record.grants_key(event.cluster_id, event.entry_id)
    if event.scope == watch_pb2.CHANGE_SCOPE_GRANTS:
        yield grants, _grants_record(change, event.grants_after) if change.grants_after else None
    elif event.scope in _OF_THE_CLUSTER:
        pass  # what they changed is among the facts
    elif event.HasField("after"):
        row = stored_form(event.after)
        if event.entry_id == ROOT_ID:
            if row == _PLAIN_ROOT:
                yield entry, None
                return
            change, key = replace(change, parent_id=0), ROOT_KEY
        else:
            name = event.path.rpartition("/")[2]
            key = entry_key(event.parent_id, Kind(event.kind), name)
        yield entry, replace(change, before=None, key=key, record=row)
    else:
        yield entry, None
        if event.HasField("grants_before"):
            yield grants, None


def _grants_record(change: Change, grants: access_pb2.Grants) -> Change:
    value = grants.SerializeToString(deterministic=True)
    return replace(change, before=None, after=None, grants_before=None, record=value)


def stored_form(entry: entry_pb2.Entry) -> bytes:
    """Returns the record of an entry in the store, from that in its event."""
    stored = entry_pb2.Entry()
    stored.CopyFrom(entry)
    stored.ClearField("path")
    stored.ClearField("etag")
    return stored.SerializeToString(deterministic=True)


# -- the whole state -------------------------------------------------------------------------------


def snapshot_records(
    snapshot: Snapshot,
    mount: Path,
    cluster_id: str,
    generation: int,
    *,
    revision: int,
    now_ms: int,
) -> Iterator[tuple[str, Change]]:
    """Yields the state of a whole tree: every record that the state topic is to hold, by its key,
    but for checkpoint and schemas. ``revision``: the one that the records have.
    """
    made = _SnapshotRecords(snapshot, mount, cluster_id, generation, revision, now_ms)
    yield from made.entries()
    yield from made.facts()


def snapshot_rows(snapshot: Snapshot, cluster_id: str) -> Iterator[tuple[str, Change]]:
    """Yields the same records with their rows alone, for who compares them: of a million most are
    equal, and what is in their fields need not be read.
    """
    made = _SnapshotRows(snapshot, ROOT, cluster_id, 0, 0, 0)
    yield from made.entries()
    yield from made.facts()


class _SnapshotRecords:
    def __init__(
        self,
        snapshot: Snapshot,
        mount: Path,
        cluster_id: str,
        generation: int,
        revision: int,
        now_ms: int,
    ) -> None:
        self._snapshot: Final = snapshot
        self._mount: Final = mount
        self._cluster_id: Final = cluster_id
        self._generation: Final = generation
        self._revision: Final = revision
        self._now_ms: Final = now_ms

    def entries(self) -> Iterator[tuple[str, Change]]:
        """Yields entries, in no order; those that were removed are facts."""
        codec = self._snapshot.codec
        root = codec.encode(self._snapshot.root.directory)
        if root != _PLAIN_ROOT:
            yield self._entry(0, (), Kind.DIRECTORY, "", root)
        for directory_id, contents in self._snapshot.contents():
            if directory_id == DELETED_ID:
                for name, value in contents.topics.items():
                    yield self._fact(entry_key(directory_id, Kind.TOPIC, name), value)
                for name, one in contents.containers.items():
                    yield self._fact(entry_key(directory_id, one.kind, name), codec.encode(one))
                continue
            relative = self._snapshot.path_of(directory_id)
            for name, value in contents.topics.items():
                yield self._entry(directory_id, relative, Kind.TOPIC, name, value)
            for name, one in contents.containers.items():
                yield self._entry(directory_id, relative, one.kind, name, codec.encode(one))

    def facts(self) -> Iterator[tuple[str, Change]]:
        """Yields the grants of entries, and the facts that the log holds."""
        for prefix in LOGGED_PREFIXES:
            for key, value in self._snapshot.facts(prefix):
                if is_logged_fact(key):
                    yield self._fact(key, value)
                elif key.startswith(GRANTS) and (owner := self._owner_of(key)):
                    grants = access_pb2.Grants.FromString(value)
                    change = self._change(
                        scope="grants",
                        entry_id=owner,
                        grants_after=grants_text(grants),
                        record=value,
                    )
                    yield record.grants_key(self._cluster_id, owner), change

    def _entry(
        self,
        parent_id: int,
        relative: tuple[str, ...] | None,
        kind: Kind,
        name: str,
        value: bytes,
    ) -> tuple[str, Change]:
        entry_id = self._snapshot.codec.entry_id(value)
        message = entry_pb2.Entry.FromString(value)
        names = (name,) if name else ()  # the root directory has none
        change = self._change(
            scope="entry",
            action="insert",
            kind=record.KINDS[kind.value],
            entry_id=entry_id,
            parent_id=parent_id,
            path="" if relative is None else str(self._mount.join((*relative, *names))),
            after=record.fields_of(message),
            key=entry_key(parent_id, kind, name),
            record=value,
        )
        return record.entry_key(self._cluster_id, entry_id), change

    def _fact(self, key: bytes, value: bytes) -> tuple[str, Change]:
        change = _fact_record(
            key,
            value,
            self._cluster_id,
            self._generation,
            revision=self._revision,
            time=self._now_ms,
        )
        return _fact_key(self._cluster_id, key), change

    def _owner_of(self, key: bytes) -> int:
        """Returns the id of the entry that these are the grants of; 0: there is none."""
        place = parse_grants_key(key)
        if not place.parent_id:
            return ROOT_ID
        node = self._snapshot.nodes.get(place.parent_id)
        if node is None:
            return 0
        if place.is_topic:
            value = node.topics.get(place.name)
            return 0 if value is None else self._snapshot.codec.entry_id(value)
        one = node.containers.get(place.name)
        return 0 if one is None else one.entry_id

    def _change(self, **fields: Any) -> Change:
        return Change(
            cluster_id=self._cluster_id,
            generation=self._generation,
            revision=self._revision,
            time=self._now_ms,
            cause="resync",
            **fields,
        )


class _SnapshotRows(_SnapshotRecords):
    def _entry(
        self,
        parent_id: int,
        relative: tuple[str, ...] | None,
        kind: Kind,
        name: str,
        value: bytes,
    ) -> tuple[str, Change]:
        entry_id = self._snapshot.codec.entry_id(value)
        change = self._change(key=entry_key(parent_id, kind, name), record=value)
        return record.entry_key(self._cluster_id, entry_id), change


def state_digest(change: Change) -> bytes:
    """Returns what two records of the state are compared by: the row that they stand for."""
    return row_digest(change.key, change.record)


def row_digest(key: bytes | None, value: bytes | None) -> bytes:
    """Returns what ``state_digest`` does, of the row itself."""
    return hashlib.blake2b((key or b"") + b"\0" + (value or b""), digest_size=16).digest()
