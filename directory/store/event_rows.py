"""Change events as the store keeps them; refuses to know who reads them.

An ``o/`` row holds all events of one commit as a ``kdir.v1.OutboxRow``. Revision and cluster are
not in it, since they are not known before the commit: whoever reads the row fills them in. It also
names the facts that the commit wrote and that a change log holds; their values are read when they
are published. Its change id begins with the time, so that rows lie about in the order of their
revisions and a page of history is a short range of keys, and says how many events there are, so
that they can be counted without being read.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from kdir.v1 import policies_pb2, watch_pb2

from directory.namespace.command import EntryChange
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import EVENT, event_key, is_logged_fact
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Write
from directory.wire.entry_codec import change_to_proto, policies_to_proto
from resolver.errors import LimitExceeded
from resolver.path import Path

__all__ = [
    "FLOOR_KEY",
    "Events",
    "Operation",
    "OutboxCommit",
    "commit_of",
    "event_count",
    "events_of",
    "logged_facts",
    "made_at_ms",
    "new_change_id",
    "operated_change",
    "pack",
    "random_bits",
    "unpack",
]

_log = logging.getLogger(__name__)

FLOOR_KEY: Final = event_key("-")
"""Decimal text: events up to this revision are no longer kept. Sorts before all change ids."""

_MOST_AFTER_BYTES: Final = 2 * 1024 * 1024
"""Of an entry after a change, with its grants: a record of the change log has 8 MiB, and holds the
entry's row and its fields as text."""

_RANDOM_BYTES: Final = 4_096
_RANDOM_NUMBERS: Final[deque[int]] = deque()
os.register_at_fork(after_in_child=_RANDOM_NUMBERS.clear)  # two processes must not use the same

Events = tuple[watch_pb2.ChangeEvent, ...]
"""The events of one revision, by position."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Act of an operator on the cluster that changes no entry; it is a change event all the same,
    of scope OPERATED.
    """

    text: str
    """What was done, for people."""
    principal: str = ""
    request_id: str = ""


def operated_change(snapshot: Snapshot, mount: Path, operation: Operation) -> EntryChange:
    """Returns the event of an operator's act: of the directory at the mount, which stays as it is,
    so that who may not see that directory is shown nothing of it.
    """
    root = snapshot.root.directory
    return EntryChange(
        kind=Kind.DIRECTORY,
        entry_id=ROOT_ID,
        parent_id=0,
        path=mount,
        before=root,
        after=root,
        operation=operation.text,
    )


def random_bits() -> int:
    """Returns a random number of 64 bits, for ids, from the system's source.

    They are fetched many at a time: each call of the system lets other threads of the process go
    first, which costs a write more than the number does.
    """
    while True:
        try:
            return _RANDOM_NUMBERS.pop()
        except IndexError:
            _RANDOM_NUMBERS.extend(memoryview(os.urandom(_RANDOM_BYTES)).cast("Q"))


def new_change_id(now_ms: int, count: int) -> str:
    """Returns a new id of a commit with so many events: ``<unix ms>-<count>-<random>``, in hex."""
    return f"{now_ms:012x}-{count:x}-{random_bits() >> 16:012x}"


def event_count(key: bytes) -> int:
    """Returns how many events an ``o/`` row holds, by its key; 1 for a key of another make."""
    parts = key.removeprefix(EVENT).split(b"-")
    try:
        return int(parts[1], 16)
    except (IndexError, ValueError):
        return 1


def made_at_ms(key: bytes) -> int:
    """Returns when the commit of an ``o/`` row was made, Unix milliseconds, by its key; 0 for a key
    of another make.
    """
    try:
        return int(key.removeprefix(EVENT).split(b"-")[0], 16)
    except ValueError:
        return 0


def logged_facts(writes: Iterable[Write]) -> tuple[bytes, ...]:
    """Returns the keys of the facts among these writes that a change log holds, in key order."""
    return tuple(sorted(write.key for write in writes if is_logged_fact(write.key)))


def pack(
    changes: Sequence[EntryChange],
    *,
    time_ms: int,
    principal: str = "",
    request_id: str = "",
    facts: Sequence[bytes] = (),
    is_logged: bool = False,
) -> bytes:
    """Returns the value of an ``o/`` row. ``facts`` are those of ``logged_facts``; ``is_logged``:
    the cluster keeps a change log, one record of which has to hold what each entry is afterwards.

    Raises:
        LimitExceeded
    """
    message = watch_pb2.OutboxRow(logged_facts=facts)
    # Of many topics of one directory it is the same: made once.
    effective: dict[int, policies_pb2.Policies] = {}
    for position, change in enumerate(changes):
        holds = change.effective
        if holds is not None and id(holds) not in effective:
            effective[id(holds)] = policies_to_proto(holds)
        event = change_to_proto(
            change,
            time_ms=time_ms,
            position=position,
            principal=principal,
            request_id=request_id,
            effective=effective.get(id(holds)),
        )
        if is_logged:
            _refuse_unloggable(event)
        message.events.append(event)
    return message.SerializeToString()


def _refuse_unloggable(event: watch_pb2.ChangeEvent) -> None:
    size = event.after.ByteSize() + event.grants_after.ByteSize()
    if size > _MOST_AFTER_BYTES:
        raise LimitExceeded(
            f"{event.path} would have {size:,} bytes; in the change log of the cluster an entry and"
            f" its grants have {_MOST_AFTER_BYTES:,} at most",
            limit=_MOST_AFTER_BYTES,
        )


@dataclass(frozen=True, slots=True)
class OutboxCommit:
    """Contents of the ``o/`` rows of one revision."""

    revision: int
    events: Events
    logged_facts: tuple[bytes, ...]
    """Keys; see ``logged_facts``."""

    def joined(self, other: OutboxCommit) -> OutboxCommit:
        """Returns this and another row of the same revision, as a store that was filled has."""
        facts = self.logged_facts + other.logged_facts
        return OutboxCommit(self.revision, self.events + other.events, facts)


def unpack(value: bytes, revision: int, cluster_id: str) -> OutboxCommit:
    """Returns what an ``o/`` row holds, with what only its reader knows.

    Raises:
        ValueError: no such row.
    """
    try:
        message = watch_pb2.OutboxRow.FromString(value)
    except DecodeError as error:
        raise ValueError(f"not change events: {error}") from None
    for event in message.events:
        event.revision = revision
        event.cluster_id = cluster_id
    return OutboxCommit(revision, tuple(message.events), tuple(message.logged_facts))


def commit_of(key: bytes, value: bytes, revision: int, cluster_id: str) -> OutboxCommit:
    """Returns what ``unpack`` does. A row that cannot be read holds nothing, and is logged: a
    watcher must not be stopped for good by it.
    """
    try:
        return unpack(value, revision, cluster_id)
    except ValueError as error:
        _log.error("revision %d: %r: %s", revision, key, error)
        return OutboxCommit(revision, (), ())


def events_of(revision: int, writes: Iterable[Write], cluster_id: str) -> Events:
    """Returns the events among a revision's writes."""
    return tuple(
        event
        for write in writes
        if isinstance(write, Put) and write.key.startswith(EVENT) and write.key != FLOOR_KEY
        for event in commit_of(write.key, write.value, revision, cluster_id).events
    )
