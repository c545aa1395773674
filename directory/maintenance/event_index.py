"""Index of the events in the store, by revision, in memory; the events themselves stay in the
store.

Rows of events are found by their change ids, which are roughly, not exactly, ordered by revision.
The index is read from the store once, on the first request for events from before this server's
start, and updated by the replica's commits. It costs some 290 bytes a row.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple, Self

from directory.namespace.keys import EVENT
from directory.store.base import Put, Store
from directory.store.event_rows import (
    FLOOR_KEY,
    Events,
    OutboxCommit,
    commit_of,
    event_count,
    floor_in,
    made_at_ms,
)
from directory.store.replica import AppliedCommit

__all__ = ["EventIndex", "WaitingRows"]

_PAGE: Final = 1_000
_READ_BYTES: Final = 4 << 20
"""Bytes of events that are read from the store at a time, about; one row may be larger."""


class _Row(NamedTuple):
    """Row of events; rows are ordered by revision, and within one by key."""

    revision: int
    key: bytes
    size: int
    """Bytes of its value."""
    since_ms: int
    """Time of its commit, Unix milliseconds: the time in its key, which may be later
    (``EventKeys``), but at most the time of its receipt.
    """

    @classmethod
    def receive(cls, revision: int, key: bytes, value: bytes) -> Self:
        """Returns the row of a key and its value, received now."""
        return cls(revision, key, len(value), min(made_at_ms(key), time.time_ns() // 1_000_000))


class WaitingRows(NamedTuple):
    """Number of rows that wait to be published."""

    commits: int
    size_bytes: int
    since_ms: int
    """Time of the first of these rows, Unix milliseconds; 0 = there is none."""


class EventIndex:
    """Index of the ``o/`` rows of one store by revision. A callback of the replica updates
    it; any thread reads it.
    """

    def __init__(self, store: Store) -> None:
        self._store: Final = store
        self._lock: Final = threading.Lock()
        self._building: Final = threading.Lock()
        self._complete = False
        self._begin = 0  # ``applied`` adds the rows of later revisions
        self._end = 0  # newest revision applied; the replica may be ahead
        self._rows: list[_Row] = []
        self._by_key: dict[bytes, _Row] = {}
        """Rows of ``_rows`` by key."""
        self._removed: set[bytes] | None = None
        """Keys removed while the store is read, of rows that are not in ``_rows`` yet; None: no
        reading.
        """
        self._of_facts: deque[_Row] = deque()
        """Rows without events; removed ones may be among them."""
        self._events = 0  # in all rows
        self._bytes = 0  # of all rows
        self._floor = 0  # as ``floor``, as of the newest commit; 0 until the older rows are read

    def applied(self, applied: AppliedCommit) -> None:
        """Adds and removes the rows of one commit."""
        with self._lock:
            self._end = applied.revision
            if applied.reloaded:
                self._complete, self._begin = False, applied.revision
                self._rows, self._by_key = [], {}
                self._of_facts.clear()
                self._events = self._bytes = self._floor = 0
                return
            added: list[_Row] = []
            removed: list[bytes] = []
            for write in applied.writes:
                if write.key == FLOOR_KEY:
                    self._floor = (isinstance(write, Put) and floor_in(write.value)) or 0
                    continue
                if not write.key.startswith(EVENT):
                    continue
                if isinstance(write, Put):
                    added.append(_Row.receive(applied.revision, write.key, write.value))
                else:
                    removed.append(write.key)
            added.sort()
            self._rows += added
            self._by_key.update((row.key, row) for row in added)
            self._of_facts.extend(_of_facts(added))
            events, size = _totals(added)
            self._events += events
            self._bytes += size
            self._remove(removed)

    def oldest(
        self, keep_events: int, keep_bytes: int, limit: int, until: int | None = None
    ) -> Sequence[tuple[int, bytes]]:
        """Returns at most ``limit`` of the oldest rows beyond the newest ``keep_events`` events or
        ``keep_bytes`` bytes, oldest first, as (revision, key); none of revisions after ``until``.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        self._build()
        with self._lock:
            events, size = self._events, self._bytes
            rows: list[tuple[int, bytes]] = []
            for row in self._rows:
                events -= event_count(row.key)
                is_within = size <= keep_bytes
                size -= row.size
                # At least ``keep_events`` stay, unless they exceed ``keep_bytes``.
                if (events < keep_events and is_within) or len(rows) == limit:
                    break
                if until is not None and row.revision > until:
                    break
                rows.append((row.revision, row.key))
            return rows

    def oldest_of_facts(self, until: int, limit: int) -> Sequence[bytes]:
        """Returns the keys of at most ``limit`` of the oldest rows without events, of revisions up
        to ``until``. They are not part of the history.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        self._build()
        with self._lock:
            oldest = islice(self._of_facts, limit)
            return [row.key for row in takewhile(lambda row: row.revision <= until, oldest)]

    def forget(self, keys: Iterable[bytes]) -> None:
        """Removes these rows before the replica receives their removal."""
        with self._lock:
            self._remove(keys)

    def floor(self) -> int:
        """Returns the revision up to which events are no longer kept; if it cannot be read, that
        before the oldest row (S21).

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        rows = self._store.read(FLOOR_KEY, limit=1)
        if not rows:
            return 0
        floor = floor_in(rows[0].value)
        if floor is not None:
            return floor
        self._build()
        with self._lock:
            return self._rows[0].revision - 1 if self._rows else self._end

    def page(self, after: int, until: int, events: int) -> tuple[list[tuple[int, Events]], int]:
        """Returns the next events of revisions after ``after`` up to ``until``, in order, and the
        revision up to which they are complete. About ``events`` events: a revision is read
        whole.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        commits, reached = self.commits(after, until, events)
        return [(one.revision, one.events) for one in commits if one.events], reached

    def waiting(self, after: int, until: int | None = None) -> WaitingRows:
        """Returns the number of rows of later revisions that may wait to be published; none of
        revisions after ``until``.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        self._build()
        with self._lock:
            end = None if until is None else bisect_right(self._rows, until, key=_revision)
            rows = self._rows[self._first_waiting(after) : end]
        since_ms = rows[0].since_ms if rows else 0
        return WaitingRows(len(rows), sum(row.size for row in rows), since_ms)

    def count_after(self, revision: int) -> tuple[int, int]:
        """Returns the number of rows of later revisions that may wait to be published, and the
        time of the first (Unix milliseconds; 0 = there is none).

        Does not read the store and is fast for any number. Until the rows from before this server's
        start are read, it is a lower bound.
        """
        with self._lock:
            begin = self._first_waiting(revision)
            since_ms = self._rows[begin].since_ms if begin < len(self._rows) else 0
            return len(self._rows) - begin, since_ms

    def _first_waiting(self, after: int) -> int:
        """Returns the position of the first row of later revisions that may wait. Rows up to the
        floor were put in by a restore or a migration: they were published before, or never are.
        """
        floor = self._floor if self._floor <= self._end else 0  # not a damaged floor (S21)
        return bisect_right(self._rows, max(after, floor), key=_revision)

    def commits(self, after: int, until: int, events: int) -> tuple[list[OutboxCommit], int]:
        """Returns commits as ``page`` returns events, with the facts that each one wrote; stops
        before revisions that the replica has not received.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        self._build()
        with self._lock:
            until = max(after, min(until, self._end))
            begin = bisect_right(self._rows, after, key=_revision)
            last = bisect_right(self._rows, until, key=_revision)
            end, count, size = begin, 0, 0
            while end < last and count < events and size < _READ_BYTES:
                count += max(1, event_count(self._rows[end].key))
                size += self._rows[end].size
                end += 1
            # In a store that was filled many rows share one revision.
            if end:
                same = bisect_right(self._rows, self._rows[end - 1].revision, key=_revision)
                end = min(last, same)
            wanted = {row.key: row.revision for row in self._rows[begin:end]}
            reached = self._rows[end - 1].revision if begin < end < last else until
        return self._fetch(wanted), reached

    def read_back(self, before: int, limit: int) -> list[tuple[int, Events]]:
        """Returns about ``limit`` events of the newest revisions before ``before``, by revision,
        newest first.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        self._build()
        while True:
            wanted, oldest = self._rows_before(before, limit)
            commits = self._fetch(wanted)
            found = [(one.revision, one.events) for one in reversed(commits) if one.events]
            # No row of this page can be read. An empty page would mean that no older events are
            # kept (S21).
            if found or not wanted:
                return found
            before = oldest

    def _rows_before(self, before: int, limit: int) -> tuple[dict[bytes, int], int]:
        """Returns the revisions of the newest rows before a revision, by key, and the oldest of
        them.
        """
        with self._lock:
            end = begin = bisect_left(self._rows, before, key=_revision)
            count = size = 0
            # Continues until there are events.
            while begin and count < limit and (size < _READ_BYTES or not count):
                begin -= 1
                count += event_count(self._rows[begin].key)
                size += self._rows[begin].size
            # A revision is read whole: in a store that was filled many rows share one.
            if begin < end:
                begin = bisect_left(self._rows, self._rows[begin].revision, key=_revision)
            wanted = {row.key: row.revision for row in self._rows[begin:end]}
            return wanted, self._rows[begin].revision if wanted else before

    def _fetch(self, wanted: dict[bytes, int]) -> list[OutboxCommit]:
        """Reads the wanted rows in pages, each from just below the next wanted key."""
        found: dict[int, OutboxCommit] = {}
        cluster_id = self._store.identity.cluster_id
        keys = sorted(wanted)
        after = b""
        while keys:
            # Right or closely below the next wanted key.
            after = max(after, keys[0][:-1])
            rows = self._store.read(EVENT, limit=min(_PAGE, 2 * len(keys) + 10), after=after)
            for row in rows:
                revision = wanted.get(row.key)
                if revision is not None:
                    one = commit_of(row.key, row.value, revision, cluster_id)
                    before = found.get(revision)
                    found[revision] = one if before is None else before.joined(one)
            if not rows:
                break
            after = rows[-1].key
            keys = keys[bisect_right(keys, after) :]
        return [found[revision] for revision in sorted(found)]

    def _build(self) -> None:
        """Reads the rows from before the replica's first commit from the store, and adds them."""
        with self._building:
            while True:
                with self._lock:
                    if self._complete:
                        return
                    begin, self._removed = self._begin, set()
                try:
                    older = self._scan(begin)
                    floor = self._store.read(FLOOR_KEY, limit=1)
                except BaseException:
                    with self._lock:
                        self._removed = None
                    raise
                # Not under the lock, for which each commit waits.
                by_key = {row.key: row for row in older}
                of_facts, (events, size) = _of_facts(older), _totals(older)
                with self._lock:
                    removed, self._removed = self._removed, None
                    if self._begin != begin:
                        continue  # loaded again meanwhile
                    self._rows[:0] = older
                    by_key.update(self._by_key)
                    self._by_key = by_key
                    self._of_facts.extendleft(reversed(of_facts))
                    self._events += events
                    self._bytes += size
                    if floor:  # a newer one is higher
                        self._floor = max(self._floor, floor_in(floor[0].value) or 0)
                    self._complete = True
                    self._remove(removed or ())

    def _scan(self, until: int) -> list[_Row]:
        older: list[_Row] = []
        after, limit = FLOOR_KEY, _PAGE // 10
        while rows := self._store.read(EVENT, limit=limit, after=after):
            # Rows may be large: the next page has as many as fit, at the mean size of these.
            size = 1 + sum(len(row.value) for row in rows) // len(rows)
            limit = max(1, min(_PAGE, _READ_BYTES // size))
            older += [
                _Row.receive(row.revision, row.key, row.value)
                for row in rows
                if row.revision <= until
            ]
            after = rows[-1].key
        return sorted(older)

    def _remove(self, keys: Iterable[bytes]) -> None:
        """Removes rows; the caller holds the lock, for which each commit waits: so only the rows
        between the first and the last removed one are visited.
        """
        gone: list[_Row] = []
        for key in keys:
            row = self._by_key.pop(key, None)
            if row is not None:
                gone.append(row)
            elif self._removed is not None:
                self._removed.add(key)
        if not gone:
            return
        begin, end = bisect_left(self._rows, min(gone)), bisect_right(self._rows, max(gone))
        between = self._rows[begin:end]
        self._rows[begin:end] = [row for row in between if row.key in self._by_key]
        events, size = _totals(gone)
        self._events -= events
        self._bytes -= size
        while self._of_facts and self._of_facts[0].key not in self._by_key:
            self._of_facts.popleft()


def _revision(row: _Row) -> int:
    return row.revision


def _of_facts(rows: Iterable[_Row]) -> list[_Row]:
    """Returns the rows that have no events."""
    return [row for row in rows if not event_count(row.key)]


def _totals(rows: Sequence[_Row]) -> tuple[int, int]:
    """Returns the number of events in the rows, and the rows' size in bytes."""
    return sum(event_count(row.key) for row in rows), sum(row.size for row in rows)
