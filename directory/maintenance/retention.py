"""Retention of change events and of answered requests in the store.

Trimming works in small transactions; a step that was interrupted, or done by two servers at the
same time, does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from directory.maintenance.event_index import EventIndex
from directory.namespace.keys import REQUEST
from directory.store.base import (
    Conflict,
    Delete,
    Guard,
    KeyEquals,
    Put,
    Row,
    Store,
    StoreUnreachable,
    Transaction,
    Write,
)
from directory.store.event_rows import FLOOR_KEY, floor_in
from directory.store.idempotency import RequestRecord

__all__ = ["RetentionLimits", "RetentionTrimmer"]

_log = logging.getLogger(__name__)
_BATCH: Final = 500
_BATCHES: Final = 10  # batches of each kind in one step
_BEHIND: Final = 10
"""If more than one in this many visited answers has expired, the visits are too slow."""
_ROUNDS: Final = 100
"""Most rounds of visiting all answered requests in the time for which one is kept."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Time and size limits of the answered requests and events that are kept."""

    requests_ms: int = 24 * 3600 * 1000
    """Time for which an answered request is kept."""
    events: int = 100_000
    """Number of newest events that can be read back."""
    event_bytes: int = 256 * 1024 * 1024
    """Most bytes of these events."""


class RetentionTrimmer:
    """Trimmer of one store; used by one thread."""

    def __init__(
        self,
        store: Store,
        index: EventIndex,
        retention: RetentionLimits | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        published: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``published`` returns the revision up to which the change log has the events: later ones
        are kept. None: there is no change log.
        """
        self._store: Final = store
        self._index: Final = index
        self._published: Final = published
        self._retention: Final = retention or RetentionLimits()
        self._now_ms: Final = now_ms
        self._clock: Final = clock
        self._batch: Final = min(_BATCH, store.limits.max_writes // 2 - 1)
        self._after = b""  # last key visited in this round; empty: no round runs
        self._oldest_ms = 0
        """Time of the oldest answer that this round, or the last one, did not remove."""
        self._next_round_ms = 0
        self._is_behind = False
        """True if the last step probably left many rows to trim."""

    def run(self, seconds: float, wait: Callable[[float], bool]) -> int:
        """Runs steps for ``seconds`` at most, until few rows are left to trim; returns the number
        of removed rows. After each step it waits for as long as that took, since commits wait for
        each of its transactions; ``wait`` returns True if trimming has to end.
        """
        until = self._clock() + seconds
        removed = 0
        while True:
            started = self._clock()
            removed += self.step()
            ended = self._clock()
            if not self._is_behind or ended >= until or wait(ended - started):
                return removed

    def step(self) -> int:
        """Trims some rows; returns their number. Called every few seconds; raises nothing if the
        store is unreachable, since the next call retries.
        """
        try:
            self._is_behind = False
            return self._trim_requests() + self._trim_events()
        except StoreUnreachable as reason:
            self._is_behind = False
            _log.warning("nothing trimmed, the store is away: %s", reason)
            return 0

    def _trim_requests(self) -> int:
        """Removes expired answers. Visits all answered requests, some at each step, since their
        keys show no age; the next round begins once the oldest that was kept has expired.
        """
        now_ms, kept_ms = self._now_ms(), self._retention.requests_ms
        if not self._after:
            # Waits, unless for longer than a whole retention: then the clock was set back.
            if now_ms < self._next_round_ms <= now_ms + kept_ms + 1:
                return 0
            self._oldest_ms = now_ms
        removed = visited = 0
        for _ in range(_BATCHES):
            rows = self._store.read(REQUEST, limit=self._batch, after=self._after)
            visited += len(rows)
            old = [row for row in rows if self._is_old(row, now_ms - kept_ms)]
            for some in self._within_limits(old):
                # By value: the id may be in use again.
                guards = tuple(KeyEquals(row.key, row.value) for row in some)
                removed += self._remove(guards, tuple(Delete(row.key) for row in some), len(some))
            self._after = rows[-1].key if len(rows) == self._batch else b""
            if not self._after:
                soon = now_ms + kept_ms // _ROUNDS
                self._next_round_ms = max(soon, self._oldest_ms + kept_ms + 1)
                break
        else:
            # If fewer have expired, a round takes less than a tenth of the time for which answers
            # are kept.
            self._is_behind |= removed * _BEHIND > visited
        return removed

    def _within_limits(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        """Yields the rows in parts that one transaction can compare and delete."""
        part: list[Row] = []
        size = 0
        for row in rows:
            more = 2 * len(row.key) + len(row.value)
            if part and size + more > self._store.limits.max_bytes:
                yield part
                part, size = [], 0
            part.append(row)
            size += more
        if part:
            yield part

    def _is_old(self, row: Row, before_ms: int) -> bool:
        try:
            answered_at_ms = RequestRecord.from_bytes(row.value).answered_at_ms
        except ValueError:
            return False  # perhaps of a newer version, which removes it
        if answered_at_ms < before_ms:
            return True
        self._oldest_ms = min(self._oldest_ms, answered_at_ms)
        return False

    def _trim_events(self) -> int:
        removed = self._trim_facts()
        for _ in range(_BATCHES):
            rows = self._index.oldest(
                self._retention.events,
                self._retention.event_bytes,
                self._batch,
                self._published(),
            )
            if not rows:
                break
            known = self._store.read(FLOOR_KEY, limit=1)
            before = floor_in(known[0].value) if known else None
            floor = max(rows[-1][0], before or 0)
            guards = (KeyEquals(FLOOR_KEY, known[0].value if known else None),)
            writes: list[Write] = [Delete(key) for _, key in rows]
            writes.append(Put(FLOOR_KEY, b"%d" % floor))
            done = self._remove(guards, tuple(writes), len(rows))
            if not done:
                break  # another server trims too
            self._index.forget(key for _, key in rows)
            removed += done
            if len(rows) < self._batch:
                break  # those that came meanwhile are left for the next step
        else:
            self._is_behind = True
        return removed

    def _trim_facts(self) -> int:
        """Removes rows that only list facts for the change log, once they are published."""
        published = self._published()
        if published is None:
            return 0
        keys = self._index.oldest_of_facts(published, self._batch)
        removed = self._remove((), tuple(Delete(key) for key in keys), len(keys))
        self._index.forget(keys)
        self._is_behind |= len(keys) == self._batch
        return removed

    def _remove(self, guards: tuple[Guard, ...], writes: tuple[Write, ...], count: int) -> int:
        if not count:
            return 0
        done = self._store.commit(Transaction(guards, writes))
        return 0 if isinstance(done, Conflict) else count
