"""Change events as the store keeps them.

An ``o/`` row holds all events of one commit as a ``kdir.v1.OutboxRow``. It has no revision, which
is unknown before the commit, and no cluster: the reader fills both in. The row also lists the facts
that the commit wrote and that a change log needs; their values are read when they are published.
The change id in its key begins with the time, or with a later one if an earlier row's time is not
lower (``EventKeys``). So keys are in the order of revisions, except for commits of two servers at
the same moment: a page of history is a short range of keys, and a store that is filled keeps the
order of commits. The id also contains the number of events, so that they can be counted without
being read.
"""

from __future__ import annotations

import logging
import os
import threading
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
from directory.store.base import Put, Store, Write
from directory.wire.entry_codec import change_to_proto, policies_to_proto
from resolver.errors import LimitExceeded
from resolver.path import Path

__all__ = [
    "FLOOR_KEY",
    "EventKeys",
    "Events",
    "Operation",
    "OutboxCommit",
    "commit_of",
    "event_count",
    "events_of",
    "floor_in",
    "logged_facts",
    "made_at_ms",
    "new_change_id",
    "noted_in",
    "operated_change",
    "pack",
    "part_key",
    "published_in",
    "random_bits",
    "skip_in",
    "unpack",
]

_log = logging.getLogger(__name__)

FLOOR_KEY: Final = event_key("-")
"""Decimal text: events up to this revision are no longer kept. Sorts before all change ids."""
_INT64_DIGITS: Final = 19
"""Numbers with as many digits may be too large for a revision."""


def floor_in(value: bytes) -> int | None:
    """Returns the revision in the value of ``FLOOR_KEY``; None if the value cannot be read."""
    return int(value) if value.isdigit() and len(value) < _INT64_DIGITS else None


def noted_in(value: bytes | None) -> watch_pb2.ChangeLogState | None:
    """Returns the progress of the change log, from the value of ``CHANGE_LOG``; None: the cluster
    has no change log. If the value cannot be read, nothing counts as published (S21).
    """
    if value is None:
        return None
    try:
        return watch_pb2.ChangeLogState.FromString(value)
    except DecodeError:
        return watch_pb2.ChangeLogState()


def skip_in(value: bytes | None, incarnation: str) -> watch_pb2.ChangeLogSkip | None:
    """Returns the record of changes that an operator gave up in this incarnation of the store, from
    the value of ``CHANGE_LOG_SKIP``; None: none, or it cannot be read.
    """
    if value is None:
        return None
    try:
        skip = watch_pb2.ChangeLogSkip.FromString(value)
    except DecodeError:
        return None
    return skip if skip.incarnation == incarnation else None


def published_in(noted: bytes | None, skip: bytes | None, incarnation: str) -> int | None:
    """Returns the revision up to which no change of this incarnation waits for the change log, from
    the values of ``CHANGE_LOG`` and ``CHANGE_LOG_SKIP``. None: no change log is kept.
    """
    state = noted_in(noted)
    if state is None:
        return None
    given_up = skip_in(skip, incarnation)
    revision = state.revision if state.incarnation == incarnation else 0
    return max(revision, 0 if given_up is None else given_up.revision)


_MOST_AFTER_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of an entry after a change, with its grants: a record of the change log has 8 MiB, and
holds the entry's row and its fields as text.
"""

_PARTS_OF_ROW_KEY: Final = 4
"""Most parts of a row's key that is not of ``part_key``: time, count, random number and, in stores
that an earlier release filled, the number of a part.
"""
_LAST_MS: Final = 1 << 47
"""Keys with a later time are not of a commit: the times of all new keys must fit into 12 hex
digits.
"""
_RANDOM_BYTES: Final = 4_096
_RANDOM_NUMBERS: Final[deque[int]] = deque()
os.register_at_fork(after_in_child=_RANDOM_NUMBERS.clear)  # two processes must not share them

Events = tuple[watch_pb2.ChangeEvent, ...]
"""Events of one revision, by position."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Operator's act on the cluster that changes no entry; recorded as a change event of scope
    OPERATED.
    """

    text: str
    """Description, for people."""
    principal: str = ""
    request_id: str = ""


def operated_change(snapshot: Snapshot, mount: Path, operation: Operation) -> EntryChange:
    """Returns the event of an operator's act. It is an event of the directory at the mount, so
    callers who may not see that directory do not see the event either.
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

    One system call fetches many numbers: each call switches to other threads of the process, which
    delays a write more than making the number does.
    """
    while True:
        try:
            return _RANDOM_NUMBERS.pop()
        except IndexError:
            _RANDOM_NUMBERS.extend(memoryview(os.urandom(_RANDOM_BYTES)).cast("Q"))


def new_change_id(now_ms: int, count: int) -> str:
    """Returns a new commit id for ``count`` events: ``<unix ms>-<count>-<random>``, in hex."""
    return f"{now_ms:012x}-{count:x}-{random_bits() >> 16:012x}"


class EventKeys:
    """Keys of new ``o/`` rows, each later than those that this server has received, since clocks
    differ and are set back. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._newest_ms = 0

    def new_key(self, now_ms: int, count: int) -> bytes:
        """Returns the key of a new row with ``count`` events."""
        with self._lock:
            self._newest_ms = time_ms = max(now_ms, self._newest_ms + 1)
        return event_key(new_change_id(time_ms, count))

    def receive(self, writes: Iterable[Write]) -> None:
        """Records the times of the ``o/`` rows among the writes of a commit."""
        for write in writes:
            if isinstance(write, Put) and write.key.startswith(EVENT):
                self._receive_time(made_at_ms(write.key))

    def receive_stored(self, store: Store, now_ms: int) -> None:
        """Records the time of a store's latest row, if it is later than ``now_ms``.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        begin, end = now_ms, _LAST_MS
        middle = begin
        while begin < end:
            rows = store.read(EVENT, limit=1, after=EVENT + b"%012x~" % middle)
            later_ms = made_at_ms(rows[0].key) if rows else 0
            if middle < later_ms <= end:
                self._receive_time(later_ms)
                begin = later_ms
            elif middle == now_ms:
                return
            else:
                end = middle
            middle = (begin + end) // 2

    def _receive_time(self, time_ms: int) -> None:
        if time_ms < _LAST_MS:
            with self._lock:
                self._newest_ms = max(self._newest_ms, time_ms)


def part_key(key: bytes, number: int, count: int) -> bytes:
    """Returns the key of a part with ``count`` events of an ``o/`` row, for a store in which the
    row is too large: right after the row's key in the order of keys.
    """
    return b"%b-%06x-%x" % (key, number, count)


def event_count(key: bytes) -> int:
    """Returns the number of events in an ``o/`` row by its key; 1 for a key in another format."""
    parts = key.removeprefix(EVENT).split(b"-")
    try:
        return int(parts[-1] if len(parts) > _PARTS_OF_ROW_KEY else parts[1], 16)
    except (IndexError, ValueError):
        return 1


def made_at_ms(key: bytes) -> int:
    """Returns the time of an ``o/`` row's commit by its key, Unix milliseconds; 0 for a key in
    another format.
    """
    try:
        return int(key.removeprefix(EVENT).split(b"-")[0], 16)
    except ValueError:
        return 0


def logged_facts(writes: Iterable[Write]) -> tuple[bytes, ...]:
    """Returns the keys, in order, of the written facts that a change log holds."""
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
    """Returns the value of an ``o/`` row.

    ``facts``: keys from ``logged_facts``; ``is_logged``: the cluster keeps a change log, in which
    each entry must fit one record.

    Raises:
        LimitExceeded: an entry is too large for a record.
    """
    message = watch_pb2.OutboxRow(logged_facts=facts)
    # Effective policies are one object for many topics of a directory: encoded once.
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
    """Keys of the written facts that a change log holds."""
    is_readable: bool = True
    """False: a row cannot be read, and its contents are missing here."""

    def joined(self, other: OutboxCommit) -> OutboxCommit:
        """Returns the contents of this and another row of the same revision, which a store that was
        filled may have.
        """
        return OutboxCommit(
            self.revision,
            self.events + other.events,
            self.logged_facts + other.logged_facts,
            self.is_readable and other.is_readable,
        )


def unpack(value: bytes, revision: int, cluster_id: str) -> OutboxCommit:
    """Returns the contents of an ``o/`` row, with revision and cluster filled in.

    Raises:
        ValueError: not a valid row.
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
    """Returns the contents of an ``o/`` row, as ``unpack`` does. For an unreadable row, logs it and
    returns no events, so that it does not stop watchers for good.
    """
    try:
        return unpack(value, revision, cluster_id)
    except ValueError as error:
        _log.error("revision %d: %r: %s", revision, key, error)
        return OutboxCommit(revision, (), (), is_readable=False)


def events_of(revision: int, writes: Iterable[Write], cluster_id: str) -> Events:
    """Returns the events among a revision's writes."""
    return tuple(
        event
        for write in writes
        if isinstance(write, Put) and write.key.startswith(EVENT) and write.key != FLOOR_KEY
        for event in commit_of(write.key, write.value, revision, cluster_id).events
    )
