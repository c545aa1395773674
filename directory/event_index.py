"""Where the events of each revision lie in the store, in memory; refuses to hold the events.

Rows of events are found by their change ids, which lie about, not exactly, in the order of their
revisions. The index is read from the store once, when somebody first asks for what is older than
this server, and kept current by what the replica applies. It costs some 100 bytes a row.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from directory.namespace.keys import EVENT
from directory.store.base import Put, Store
from directory.store.events import FLOOR_KEY, Events, event_count, events_of
from directory.store.replica import Applied

__all__ = ["EventIndex"]

_PAGE: Final = 1_000


class EventIndex:
    """The ``o/`` rows of one store by revision. Told by the replica's thread, asked by any."""

    def __init__(self, store: Store) -> None:
        self._store: Final = store
        self._lock: Final = threading.Lock()
        self._building: Final = threading.Lock()
        self._complete = False
        self._begin = 0  # rows of later revisions came by ``applied``
        self._revisions: list[int] = []
        self._keys: list[bytes] = []
        self._removed: set[bytes] = set()
        self._events = 0  # in all rows of _keys

    def applied(self, applied: Applied) -> None:
        """Takes in what one step wrote or removed."""
        with self._lock:
            if applied.reloaded:
                self._complete, self._begin = False, applied.revision
                self._revisions, self._keys, self._removed, self._events = [], [], set(), 0
                return
            for write in applied.writes:
                if not write.key.startswith(EVENT) or write.key == FLOOR_KEY:
                    continue
                if isinstance(write, Put):
                    self._revisions.append(applied.revision)
                    self._keys.append(write.key)
                    self._events += event_count(write.key)
                else:
                    self._removed.add(write.key)
            if len(self._removed) > _PAGE:
                self._compact()

    def oldest(self, keep_events: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """At most ``limit`` of the oldest rows that are in excess of the newest ``keep_events``
        events, oldest first, as (revision, key).

        Raises:
            StoreAway
        """
        self._build()
        with self._lock:
            self._compact()
            excess = self._events - keep_events
            rows: list[tuple[int, bytes]] = []
            for revision, key in zip(self._revisions, self._keys, strict=True):
                excess -= event_count(key)
                if excess < 0 or len(rows) == limit:
                    break
                rows.append((revision, key))
            return rows

    def forget(self, keys: Iterable[bytes]) -> None:
        """These rows are removed, though the replica need not know it yet."""
        with self._lock:
            self._removed.update(keys)

    def floor(self) -> int:
        """Events up to this revision are no longer kept.

        Raises:
            StoreAway
        """
        rows = self._store.read(FLOOR_KEY, limit=1)
        return int(rows[0].value) if rows else 0

    def page(self, after: int, until: int, events: int) -> tuple[list[tuple[int, Events]], int]:
        """The next events of revisions after ``after`` up to ``until``, in order, and the revision
        up to which they are all. About so many events: a revision is read whole.

        Raises:
            StoreAway
        """
        self._build()
        with self._lock:
            begin = bisect_right(self._revisions, after)
            last = bisect_right(self._revisions, until)
            end, count = begin, 0
            while end < last and count < events:
                count += event_count(self._keys[end])
                end += 1
            # In a store that was filled many rows share one revision.
            end = min(last, bisect_right(self._revisions, self._revisions[end - 1])) if end else 0
            wanted = dict(zip(self._keys[begin:end], self._revisions[begin:end], strict=True))
            reached = self._revisions[end - 1] if begin < end < last else until
        return self._fetch(wanted), reached

    def read_back(self, before: int, limit: int) -> list[tuple[int, Events]]:
        """About ``limit`` events of the newest revisions before one, newest first.

        Raises:
            StoreAway
        """
        self._build()
        with self._lock:
            self._compact()
            end = begin = bisect_left(self._revisions, before)
            count = 0
            while begin and count < limit:
                begin -= 1
                count += event_count(self._keys[begin])
            # A revision is read whole: in a store that was filled many rows share one.
            begin = bisect_left(self._revisions, self._revisions[begin]) if begin < end else begin
            wanted = dict(zip(self._keys[begin:end], self._revisions[begin:end], strict=True))
        return self._fetch(wanted)[::-1]

    def _fetch(self, wanted: dict[bytes, int]) -> list[tuple[int, Events]]:
        """Reads rows by ranges of keys, in which the wanted ones lie close together."""
        found: dict[int, Events] = {}
        cluster_id = self._store.identity.cluster_id
        keys = sorted(wanted)
        after = b""
        while keys:
            # Right below the next key that is wanted, or closely so.
            after = max(after, keys[0][:-1])
            rows = self._store.read(EVENT, limit=min(_PAGE, 2 * len(keys) + 10), after=after)
            for row in rows:
                revision = wanted.get(row.key)
                if revision is not None:
                    events = events_of(revision, [Put(row.key, row.value)], cluster_id)
                    if events:
                        found[revision] = found.get(revision, ()) + events
            if not rows:
                break
            after = rows[-1].key
            keys = keys[bisect_right(keys, after) :]
        return sorted(found.items())

    def _build(self) -> None:
        """Adds the rows that were there before the replica told of any."""
        with self._building:
            while True:
                with self._lock:
                    if self._complete:
                        return
                    begin = self._begin
                older = self._scan(begin)
                with self._lock:
                    if self._begin != begin:
                        continue  # loaded anew meanwhile
                    self._revisions[:0] = [revision for revision, _ in older]
                    self._keys[:0] = [key for _, key in older]
                    self._events += sum(event_count(key) for _, key in older)
                    self._complete = True

    def _scan(self, until: int) -> list[tuple[int, bytes]]:
        older: list[tuple[int, bytes]] = []
        after = FLOOR_KEY
        while rows := self._store.read(EVENT, limit=_PAGE, after=after):
            older += [(row.revision, row.key) for row in rows if row.revision <= until]
            after = rows[-1].key
        return sorted(older)

    def _compact(self) -> None:
        if self._removed:
            kept = [
                (revision, key)
                for revision, key in zip(self._revisions, self._keys, strict=True)
                if key not in self._removed
            ]
            self._revisions = [revision for revision, _ in kept]
            self._keys = [key for _, key in kept]
            self._events = sum(map(event_count, self._keys))
            self._removed = set()
