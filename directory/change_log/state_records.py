"""Records of the state topic, from rows of the outbox and of the tree, and the changes that the
history topic gets with them; computation only.

The state topic keeps one record for each row of the store: of an entry, of its grants, or of a
fact. A record's key stays the same if the entry is moved (``resolver/changes/record.py``). A
removed row becomes a record without a value, under the same key (P7). The history topic keeps one
record for each change event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
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
from directory.namespace.traversal import entry_path
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.event_rows import OutboxCommit
from directory.wire.entry_codec import ProtoCodec
from resolver.changes import record
from resolver.changes.record import Change, Checkpoint, grants_text
from resolver.path import Path

__all__ = [
    "MOST_RECORD_BYTES",
    "LoggedRow",
    "OversizedRecord",
    "StateRecords",
    "checkpoint_of",
    "encode_within",
    "page_records",
    "row_digest",
    "snapshot_records",
    "snapshot_rows",
]

MOST_RECORD_BYTES: Final = (8 * 1024 - 64) * 1024
"""Largest value of one record; the topics accept a little more."""
_CUT: Final = ("effective", "before", "grants_before")
"""Fields that a record loses, in this order, if it would be larger: earlier records have them,
too.
"""
_OF_THE_CLUSTER: Final = frozenset(
    (watch_pb2.CHANGE_SCOPE_INHERITED, watch_pb2.CHANGE_SCOPE_OPERATED)
)
"""Scopes of events that leave their entry as it was."""

_PLAIN_ROOT: Final = ProtoCodec().encode(Directory(entry_id=ROOT_ID))
"""Record of a root directory on which nothing is set; the log leaves it out."""

StateRecords = Mapping[str, Change | None]
"""The newest value of each key of the state topic; None = the row is gone."""


class OversizedRecord(Exception):
    """Error of a record that is too large even without the fields that may be cut."""


def encode_within(
    change: Change, most_bytes: int = MOST_RECORD_BYTES, framing: bytes = b""
) -> bytes:
    """Returns a record of at most ``most_bytes``; its field ``cut`` lists the fields that it lost
    for that.

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


def page_records(
    commits: Iterable[OutboxCommit],
    snapshot: Snapshot,
    cluster_id: str,
    generation: int,
    now_ms: int,
) -> tuple[StateRecords, list[Change]]:
    """Returns the records of some commits, for the state topic and, in order, for the history
    topic. Facts have their values in ``snapshot``, which is newer than the commits.
    """
    state: dict[str, Change | None] = {}
    history: list[Change] = []
    for commit in commits:
        for event in commit.events:
            change = record.change_of_event(event, generation)
            history.append(change)
            state.update(_state_of_event(event, change))
        for key in commit.logged_facts:
            value = _fact_value(snapshot, key)
            name = _fact_key(cluster_id, key)
            if value is None:
                state[name] = None
                continue
            state[name] = Change(
                cluster_id=cluster_id,
                generation=generation,
                revision=commit.revision,
                time=now_ms,
                scope=_fact_scope(key),
                key=key,
                record=value,
            )
    return state, history


def _fact_value(snapshot: Snapshot, key: bytes) -> bytes | None:
    """Returns the newest value of a fact or of a removed entry's record; None = it is gone."""
    if not key.startswith(ENTRY):
        return snapshot.fact(key)
    return snapshot.entry_record(parse_entry_key(key))


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


def _fact_scope(key: bytes) -> str:
    return "inherited" if key == INHERITED else "fact"


def _state_of_event(
    event: watch_pb2.ChangeEvent, change: Change
) -> Iterator[tuple[str, Change | None]]:
    """Yields the records of one event for the state topic, with their keys."""
    entry = record.entry_key(event.cluster_id, event.entry_id)
    grants = record.grants_key(event.cluster_id, event.entry_id)
    if event.scope == watch_pb2.CHANGE_SCOPE_GRANTS:
        yield grants, _grants_record(change, event.grants_after) if change.grants_after else None
    elif event.scope in _OF_THE_CLUSTER:
        pass  # their changes are among the facts
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
    """Returns an entry's record in the store, from the entry in a change event."""
    stored = entry_pb2.Entry()
    stored.CopyFrom(entry)
    stored.ClearField("path")
    stored.ClearField("etag")
    return stored.SerializeToString(deterministic=True)


# -- the whole state -------------------------------------------------------------------------------


class LoggedRow(NamedTuple):
    """Row of a tree, for the state topic. The topic usually has most rows already, of up to a
    million: the other fields of a record are computed only for rows that it lacks.
    """

    state_key: str
    scope: str
    key: bytes | None
    """Key of the row in the store; None for grants, whose key follows from their entry's."""
    value: bytes
    entry_id: int = 0
    kind: str = ""


def snapshot_rows(snapshot: Snapshot, cluster_id: str) -> Iterator[LoggedRow]:
    """Yields all rows of a tree that the state topic is to hold, in no order."""

    def entry_row(kind: Kind, key: bytes, value: bytes) -> LoggedRow:
        entry_id = codec.entry_id(value)
        state_key = record.entry_key(cluster_id, entry_id)
        return LoggedRow(state_key, "entry", key, value, entry_id, record.KINDS[kind.value])

    def fact_row(key: bytes, value: bytes) -> LoggedRow:
        return LoggedRow(_fact_key(cluster_id, key), _fact_scope(key), key, value)

    codec = snapshot.codec
    root = codec.encode(snapshot.root.directory)
    if root != _PLAIN_ROOT and not snapshot.unreadable(ROOT_KEY):
        yield entry_row(Kind.DIRECTORY, ROOT_KEY, root)
    for parent_id, contents in snapshot.contents():
        containers = contents.containers.items()
        for kind, name, value in chain(
            ((Kind.TOPIC, name, value) for name, value in contents.topics.items()),
            ((one.kind, name, codec.encode(one)) for name, one in containers),
        ):
            key = entry_key(parent_id, kind, name)
            is_removed = parent_id == DELETED_ID
            yield fact_row(key, value) if is_removed else entry_row(kind, key, value)
    for prefix in LOGGED_PREFIXES:
        for key, value in snapshot.facts(prefix):
            if is_logged_fact(key):
                yield fact_row(key, value)
            elif key.startswith(GRANTS) and (owner := _owner_of(snapshot, key)):
                state_key = record.grants_key(cluster_id, owner)
                yield LoggedRow(state_key, "grants", None, value, owner)


def _owner_of(snapshot: Snapshot, key: bytes) -> int:
    """Returns the id of the entry whose grants have this key; 0: there is none, or it is
    unreadable.
    """
    try:
        place = parse_grants_key(key)
        if not place.parent_id:
            return ROOT_ID
        value = snapshot.entry_record(place)
        return 0 if value is None else snapshot.codec.entry_id(value)
    except ValueError:
        return 0


def snapshot_records(
    snapshot: Snapshot,
    mount: Path,
    cluster_id: str,
    generation: int,
    *,
    revision: int,
    now_ms: int,
    keys: AbstractSet[str] | None = None,
) -> Iterator[tuple[str, Change]]:
    """Yields the records of a whole tree for the state topic, with their keys; without checkpoint
    and schemas.

    Args:
        revision: revision of the records.
        keys: keys of the records to yield; None = all.
    """

    @lru_cache(1)  # entries of one directory follow each other
    def directory_path(directory_id: int) -> Path | None:
        above = snapshot.path_of(directory_id)
        return None if above is None else entry_path(mount, above)

    for row in snapshot_rows(snapshot, cluster_id) if keys is None or keys else ():
        if keys is not None and row.state_key not in keys:
            continue
        yield (
            row.state_key,
            Change(
                cluster_id=cluster_id,
                generation=generation,
                revision=revision,
                time=now_ms,
                scope=row.scope,
                entry_id=row.entry_id,
                kind=row.kind,
                key=row.key,
                record=row.value,
                **_fields_of_row(row, mount, directory_path),
            ),
        )


def _fields_of_row(
    row: LoggedRow, mount: Path, directory_path: Callable[[int], Path | None]
) -> dict[str, Any]:
    """Returns the fields of a record besides its row. The log has the row as it is, even if its
    value cannot be read (S21).
    """
    if row.scope == "grants":
        try:
            grants = access_pb2.Grants.FromString(row.value)
        except DecodeError:
            return {"cause": "resync"}
        return {"cause": "resync", "grants_after": grants_text(grants)}
    if row.scope != "entry":
        return {}
    parent_id, path = 0, str(mount)
    if row.key and row.key != ROOT_KEY:
        parent_id, _, name = parse_entry_key(row.key)
        above = directory_path(parent_id)
        path = "" if above is None else str(entry_path(above, (name,)))
    try:
        after = record.fields_of(entry_pb2.Entry.FromString(row.value))
    except DecodeError:
        after = {}
    return {
        "cause": "resync",
        "action": "insert",
        "parent_id": parent_id,
        "path": path,
        "after": after,
    }


def row_digest(key: bytes | None, value: bytes | None) -> bytes:
    """Returns the hash by which two rows of the state are compared."""
    return hashlib.blake2b((key or b"") + b"\0" + (value or b""), digest_size=16).digest()
