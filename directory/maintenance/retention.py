"""Trims what a store keeps for a while only: answered requests and events.

Refuses to do much at once: a step is a few small transactions, and a step that was cut off, or
done by two servers at the same time, does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
from directory.store.event_rows import FLOOR_KEY
from directory.store.idempotency import RequestRecord

__all__ = ["RetentionLimits", "RetentionTrimmer"]

_log = logging.getLogger(__name__)
_BATCH: Final = 500
_BATCHES: Final = 10  # of each kind in one step


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Time and size limits of what is kept."""

    requests_ms: int = 24 * 3600 * 1000
    """An answered request is known for so long."""
    events: int = 100_000
    """The newest so many events can be read back."""
    event_bytes: int = 256 * 1024 * 1024
    """No more of them than so many bytes."""


class RetentionTrimmer:
    """Trimmer of one store; used by one thread."""

    def __init__(
        self,
        store: Store,
        index: EventIndex,
        retention: RetentionLimits | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store: Final = store
        self._index: Final = index
        self._retention: Final = retention or RetentionLimits()
        self._now_ms: Final = now_ms
        self._batch: Final = min(_BATCH, store.limits.max_writes // 2 - 1)
        self._after = b""  # the answered request up to which the last step looked

    def step(self) -> int:
        """Trims some; answers how many rows went. To be called every few seconds.

        Nothing is raised when the store is away: there is a next time.
        """
        try:
            return self._trim_requests() + self._trim_events()
        except StoreUnreachable as reason:
            _log.warning("nothing trimmed, the store is away: %s", reason)
            return 0

    def _trim_requests(self) -> int:
        """Goes round all of them, some at each step; their keys say nothing of their age."""
        removed = 0
        for _ in range(_BATCHES):
            rows = self._store.read(REQUEST, limit=self._batch, after=self._after)
            old = [row for row in rows if self._is_old(row)]
            # By value: the id may be in use again.
            guards = tuple(KeyEquals(row.key, row.value) for row in old)
            removed += self._remove(guards, tuple(Delete(row.key) for row in old), len(old))
            self._after = rows[-1].key if len(rows) == self._batch else b""
            if not self._after:
                break
        return removed

    def _is_old(self, row: Row) -> bool:
        try:
            answered_at_ms = RequestRecord.from_bytes(row.value).answered_at_ms
        except ValueError:
            return False  # of a newer version, perhaps; it knows for how long
        return answered_at_ms < self._now_ms() - self._retention.requests_ms

    def _trim_events(self) -> int:
        removed = 0
        for _ in range(_BATCHES):
            rows = self._index.oldest(
                self._retention.events, self._retention.event_bytes, self._batch
            )
            if not rows:
                break
            known = self._store.read(FLOOR_KEY, limit=1)
            floor = max(rows[-1][0], int(known[0].value) if known else 0)
            guards = (KeyEquals(FLOOR_KEY, known[0].value if known else None),)
            writes: list[Write] = [Delete(key) for _, key in rows]
            writes.append(Put(FLOOR_KEY, b"%d" % floor))
            done = self._remove(guards, tuple(writes), len(rows))
            if not done:
                break  # another server trims too
            self._index.forget(key for _, key in rows)
            removed += done
        return removed

    def _remove(self, guards: tuple[Guard, ...], writes: tuple[Write, ...], count: int) -> int:
        if not count:
            return 0
        done = self._store.commit(Transaction(guards, writes))
        return 0 if isinstance(done, Conflict) else count
