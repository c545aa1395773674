"""History of changes, past and future, for watches; and its retention.

The newest events are in memory, limited by number and bytes; older ones are read from the store's
``o/`` rows, which ``RetentionTrimmer`` trims. A subscription that begins in the past reads them
page by page as its watcher takes them, and then has a queue of its own: a slow watcher loses its
place (``Resync``) and delays nobody (S16).

Trimming works in small transactions; a step that was interrupted, or done by two servers at the
same time, does no harm.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from directory.store.event_rows import FLOOR_KEY, Events
from directory.store.idempotency import RequestRecord
from directory.store.replica import AppliedCommit, Replica
from resolver.errors import NotReady, Resync, StoreUnavailable

__all__ = ["ChangeHistory", "RetentionLimits", "RetentionTrimmer", "Revised", "Subscription"]

_log = logging.getLogger(__name__)
_BATCH: Final = 500
_BATCHES: Final = 10  # of each kind in one step
_ROUNDS: Final = 100
"""Number of times that all answered requests are visited, at most, while one is kept."""

Revised = tuple[int, Events]
"""Events of one revision, at least one, by position."""

_PAGE_EVENTS: Final = 200
"""Older events that are read from the store at a time for one subscription."""
_READERS: Final = 4
"""Subscriptions that read a page from the store at the same time."""
_WAIT_SECONDS: Final = 5.0


class ChangeHistory:
    """History of the changes of one replica, for watches. To be made before the replica
    is started.
    """

    def __init__(
        self,
        replica: Replica,
        store: Store,
        *,
        kept_events: int = 20_000,
        kept_bytes: int = 64 << 20,
        queue_events: int = 10_000,
        queue_bytes: int = 64 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``kept_events`` and ``kept_bytes``: in memory for all; ``queue_events`` and
        ``queue_bytes``: the lag that one subscription may have.
        """
        self._kept_events: Final = kept_events
        self._kept_bytes: Final = kept_bytes
        self._queue_events: Final = queue_events
        self._queue_bytes: Final = queue_bytes
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._recent: deque[tuple[Revised, int]] = deque()
        """With the bytes of each."""
        self._recent_count = 0
        self._recent_bytes = 0
        self._loads = 0
        """How often the tree was loaded: what was read before is no basis to go on from."""
        self._reading: Final = threading.BoundedSemaphore(_READERS)
        self._recent_after = -1  # _recent holds all events of later revisions; -1: not loaded
        self._subscriptions: set[Subscription] = set()
        self.index: Final = EventIndex(store)
        """Where the events of each revision lie in the store."""
        self._unsubscribe: Final = replica.subscribe(self._applied)

    def since(self, revision: int) -> Sequence[Revised]:
        """Returns all events after a revision, in order.

        Raises:
            Resync: they are no longer kept.
            StoreUnavailable: they are only in the store, which cannot be reached.
            NotReady: nothing is loaded yet.
        """
        found: list[Revised] = []
        subscription = self.follow(revision)
        try:
            while page := subscription.next(0):
                found += page
        finally:
            subscription.close()
        return found

    def follow(self, after_revision: int) -> Subscription:
        """Returns a subscription to all events after a revision, future ones included; the caller
        closes it.

        Raises:
            Resync, StoreUnavailable, NotReady: as ``since``.
        """
        with self._lock:
            if self._recent_after < 0:
                raise NotReady("the tree is not loaded yet")
            subscription = Subscription(self, after_revision, self._loads, self._clock)
            if after_revision >= self._recent_after:
                subscription.join(self._later(after_revision))
                self._subscriptions.add(subscription)
                return subscription
        self._refuse_forgotten(after_revision)
        return subscription

    def page(self, subscription: Subscription, after: int) -> tuple[list[Revised], int]:
        """Returns the next events of a subscription that begins in the past, and the revision that
        they reach. When the rest is in memory, the subscription is added to those that get new
        events.

        Raises:
            Resync: the events are no longer kept.
            StoreUnavailable: they are only in the store, which cannot be reached.
        """
        with self._lock:
            if subscription.loads != self._loads:
                raise Resync(_RELOADED)
            if after >= self._recent_after:
                subscription.join(self._later(after))
                self._subscriptions.add(subscription)
                return [], after
            until = self._recent_after
        # Not under the lock: the replica's thread must not wait for the store.
        return self._read(after, until)

    def _later(self, after: int) -> list[Revised]:
        """Returns the events of later revisions in memory; the lock is held."""
        return [revised for revised, _ in self._recent if revised[0] > after]

    def page_before(self, before_revision: int, limit: int) -> Sequence[Revised]:
        """Returns the newest revisions with events before this one, newest first; empty if no older
        ones are kept. About ``limit`` events, and at least one revision's.

        Raises:
            StoreUnavailable: they are only in the store, which cannot be reached.
            NotReady: nothing is loaded yet.
        """
        found: list[Revised] = []
        count = 0
        with self._lock:
            if self._recent_after < 0:
                raise NotReady("the tree is not loaded yet")
            for revised, _ in reversed(self._recent):
                if revised[0] < before_revision:
                    found.append(revised)
                    count += len(revised[1])
                    if count >= limit:
                        return found
            before = min(before_revision, self._recent_after + 1)
        if not found:
            found += self._read_back(before, limit)
        return found

    def oldest_revision(self) -> int:
        """Returns the revision up to which events are no longer kept.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        try:
            return self.index.floor()
        except StoreUnreachable as reason:
            raise StoreUnavailable(f"the store is away: {reason}") from reason

    def lags(self) -> list[int]:
        """Returns the number of events in the queue of each subscription."""
        with self._lock:
            subscriptions = list(self._subscriptions)
        return [one.waiting for one in subscriptions]

    def close(self) -> None:
        """Ends every subscription."""
        self._unsubscribe()
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()

    # -- the store's part --------------------------------------------------------------------

    def _read(self, after: int, until: int) -> tuple[list[Revised], int]:
        if not self._reading.acquire(timeout=_WAIT_SECONDS):
            raise StoreUnavailable(f"{_READERS} others read older changes; ask again")
        try:
            found, reached = self.index.page(after, until, _PAGE_EVENTS)
        except StoreUnreachable as reason:
            raise StoreUnavailable(
                f"the changes after revision {after} are in the store only, and it is away: "
                f"{reason}"
            ) from reason
        finally:
            self._reading.release()
        self._refuse_forgotten(after)  # asked last: what was trimmed before is missing above
        return found, reached

    def _refuse_forgotten(self, after: int) -> None:
        floor = self.oldest_revision()
        if after < floor:
            raise Resync(
                f"the changes after revision {after} are no longer kept (oldest: {floor}): list "
                "again, then watch",
                oldest=floor,
            )

    def _read_back(self, before: int, limit: int) -> list[Revised]:
        try:
            return self.index.read_back(before, limit)
        except StoreUnreachable as reason:
            raise StoreUnavailable(f"the store is away: {reason}") from reason

    # -- the replica's part ------------------------------------------------------------------

    def _applied(self, applied: AppliedCommit) -> None:
        self.index.applied(applied)
        size = 0
        with self._lock:
            if applied.reloaded:
                self._recent.clear()
                self._recent_count = self._recent_bytes = 0
                self._recent_after = applied.revision
                self._loads += 1
                left_behind = list(self._subscriptions)
            else:
                left_behind = []
                if applied.events:
                    size = self._remember((applied.revision, applied.events))
            subscriptions = list(self._subscriptions)
        for subscription in left_behind:
            subscription.drop(_RELOADED)
        if applied.events and not applied.reloaded:
            for subscription in subscriptions:
                subscription.put(
                    (applied.revision, applied.events), size, self._queue_events, self._queue_bytes
                )

    def _remember(self, revised: Revised) -> int:
        """Keeps events in memory and drops the oldest; returns their bytes."""
        size = sum(event.ByteSize() for event in revised[1])
        self._recent.append((revised, size))
        self._recent_count += len(revised[1])
        self._recent_bytes += size
        while self._recent_count > self._kept_events or self._recent_bytes > self._kept_bytes:
            (self._recent_after, events), gone = self._recent.popleft()
            self._recent_count -= len(events)
            self._recent_bytes -= gone
        return size

    def forget(self, subscription: Subscription) -> None:
        """Removes a subscription, which calls this when it is closed."""
        with self._lock:
            self._subscriptions.discard(subscription)


class Subscription:
    """Position of one watcher. One thread at a time calls ``next``; any thread may ``close`` it."""

    def __init__(
        self, history: ChangeHistory, after: int, loads: int, clock: Callable[[], float]
    ) -> None:
        self.loads: Final = loads
        """How often the tree had been loaded when it began."""
        self.on_ready: Callable[[], object] = bool
        """Is called when ``next`` has something new to return or to raise: from any thread, and
        it must not wait."""
        self._history: Final = history
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._waiter: threading.Event | None = None
        """Of a thread that waits in ``next``; most subscriptions have none, and ``put`` is called
        for all of them before a change is acknowledged."""
        self._after = after
        """Up to this revision it has read what is past."""
        self._joined = False
        """Changes are handed to it."""
        self._queue: list[Revised] = []
        self._count = 0
        self._bytes = 0
        self._lost = ""
        self._closed = False

    def next(self, timeout_seconds: float) -> list[Revised]:
        """Returns the next events, in order; empty if none came in time, or after ``close``. Past
        events come a page at a time.

        Raises:
            Resync: its queue overflowed, the tree was loaded again, or past events were trimmed
                before they were read.
            StoreUnavailable: past events are only in the store, which cannot be reached.
        """
        while not self._joined:
            if self._closed:
                return []
            page, self._after = self._history.page(self, self._after)
            if page:
                return page
        if timeout_seconds > 0:
            self._wait(timeout_seconds)
        with self._lock:
            if not self._closed:
                if self._lost:
                    raise Resync(self._lost)
                found, self._queue, self._count, self._bytes = self._queue, [], 0, 0
                return found
        self._history.forget(self)  # where it joined while it was being closed
        return []

    def _wait(self, seconds: float) -> None:
        with self._lock:
            if self._queue or self._lost or self._closed:
                return
            waiter = self._waiter = threading.Event()
        waiter.wait(seconds)
        self._waiter = None

    def join(self, begin: list[Revised]) -> None:
        """Begins its queue; the first contents count as no lag."""
        with self._lock:
            self._queue = begin
            self._joined = True

    @property
    def waiting(self) -> int:
        """Number of events in the queue."""
        return self._count

    @property
    def has_joined(self) -> bool:
        """True if all past events were read: ``next`` does not wait for the store."""
        return self._joined or self._closed

    @property
    def is_ready(self) -> bool:
        """True if ``next`` would return or raise something at once, or read past events."""
        return bool(self._queue or self._lost) or not self.has_joined

    def close(self) -> None:
        """Ends the subscription; a waiting ``next`` returns."""
        with self._lock:
            self._closed = True
            self._queue = []
            self._notify()
        self._history.forget(self)

    def put(self, revised: Revised, size: int, most_events: int, most_bytes: int) -> None:
        """Adds to the queue, or gives it up if it is full: no watcher slows the replica."""
        with self._lock:
            if self._lost or self._closed:
                return
            if self._count and self._count + len(revised[1]) > most_events:
                self._give_up(_lagged(f"more than {most_events} changes", "watch_queue_events"))
                return
            if self._count and self._bytes + size > most_bytes:
                found = f"changes of more than {most_bytes} bytes"
                self._give_up(_lagged(found, "watch_queue_bytes"))
                return
            self._queue.append(revised)
            self._count += len(revised[1])
            self._bytes += size
            if self._waiter is not None:
                self._waiter.set()
        self.on_ready()

    def drop(self, why: str) -> None:
        """Ends the subscription because of a gap in it."""
        with self._lock:
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self._lost = why
        self._queue = []
        self._notify()

    def _notify(self) -> None:
        if self._waiter is not None:
            self._waiter.set()
        self.on_ready()


def _lagged(found: str, setting: str) -> str:
    return f"{found} were not read in time (limits.{setting}): list again, then watch"


_RELOADED: Final = "the tree was loaded again: list again, then watch"


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Time and size limits of what is kept."""

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
    ) -> None:
        """``published`` returns the revision up to which the change log has the events: later ones
        are kept. None: there is no change log.
        """
        self._store: Final = store
        self._index: Final = index
        self._published: Final = published
        self._retention: Final = retention or RetentionLimits()
        self._now_ms: Final = now_ms
        self._batch: Final = min(_BATCH, store.limits.max_writes // 2 - 1)
        self._after = b""  # the answered request up to which the last step looked
        self._oldest_ms = 0
        """When the oldest request was answered that this round, or the last one, left."""
        self._next_round_ms = 0

    def step(self) -> int:
        """Trims some rows; returns how many. Called every few seconds; an unreachable store raises
        nothing, since the next call retries.
        """
        try:
            return self._trim_requests() + self._trim_events()
        except StoreUnreachable as reason:
            _log.warning("nothing trimmed, the store is away: %s", reason)
            return 0

    def _trim_requests(self) -> int:
        """Visits all answered requests, some at each step, since their keys have no age;
        and again once one of those that were left has expired.
        """
        now_ms, kept_ms = self._now_ms(), self._retention.requests_ms
        if not self._after:
            # Later than a whole retention from now: the clock was set back.
            if now_ms < self._next_round_ms <= now_ms + kept_ms + 1:
                return 0
            self._oldest_ms = now_ms
        removed = 0
        for _ in range(_BATCHES):
            rows = self._store.read(REQUEST, limit=self._batch, after=self._after)
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
            return False  # of a newer version, perhaps; it knows for how long
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

    def _trim_facts(self) -> int:
        """Removes rows that only name facts for the change log, once they are published."""
        published = self._published()
        if published is None:
            return 0
        keys = self._index.oldest_of_facts(published, self._batch)
        removed = self._remove((), tuple(Delete(key) for key in keys), len(keys))
        self._index.forget(keys)
        return removed

    def _remove(self, guards: tuple[Guard, ...], writes: tuple[Write, ...], count: int) -> int:
        if not count:
            return 0
        done = self._store.commit(Transaction(guards, writes))
        return 0 if isinstance(done, Conflict) else count
