"""History of changes, past and future, for watches.

The newest events are in memory, limited by number and bytes; older ones are read from the store's
``o/`` rows, which ``retention.py`` trims. A subscription that begins in the past reads them page by
page as its watcher takes them, and then has a queue of its own: a slow watcher loses its place
(``Resync``) and delays nobody (S16).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from directory.maintenance.event_index import EventIndex, WaitingRows
from directory.store.base import (
    Store,
    StoreUnreachable,
)
from directory.store.event_rows import Events
from directory.store.replica import AppliedCommit, Replica
from resolver.errors import NotReady, Resync, StoreUnavailable

__all__ = ["ChangeHistory", "Revised", "Subscription"]

_log = logging.getLogger(__name__)
Revised = tuple[int, Events]
"""Events of one revision, at least one, by position."""

_PAGE_EVENTS: Final = 200
"""Number of older events that are read from the store at a time for one subscription."""
_READERS: Final = 4
"""Number of subscriptions that may read a page from the store at the same time."""
_WAIT_SECONDS: Final = 5.0


@contextmanager
def _reporting_unreachable() -> Iterator[None]:
    try:
        yield
    except StoreUnreachable as reason:
        raise StoreUnavailable(f"the store is away: {reason}") from reason


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
        """``kept_events`` and ``kept_bytes``: limits of the events in memory for all;
        ``queue_events`` and ``queue_bytes``: limits of the lag of one subscription.
        """
        self._kept_events: Final = kept_events
        self._kept_bytes: Final = kept_bytes
        self._queue_events: Final = queue_events
        self._queue_bytes: Final = queue_bytes
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._recent: deque[tuple[Revised, int]] = deque()
        """Newest events in memory, by revision, with their size in bytes."""
        self._recent_count = 0
        self._recent_bytes = 0
        self._loads = 0
        """Number of loads of the tree: each ends the subscriptions from before it."""
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
        with closing(self.follow(revision)) as subscription:
            while page := subscription.next(0):
                found += page
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
        they reach. When the rest is in memory, the subscription joins the ones that get new events.

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
        # Not under the lock: a callback of the replica must not wait for the store.
        return self._read(after, until)

    def _later(self, after: int) -> list[Revised]:
        """Returns the events of later revisions in memory; the lock is held."""
        return [revised for revised, _ in self._recent if revised[0] > after]

    def page_before(self, before_revision: int, limit: int) -> Sequence[Revised]:
        """Returns the newest revisions with events before this one, newest first; empty if no older
        ones are kept. Returns about ``limit`` events, at least those of one revision.

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
        with _reporting_unreachable():
            return self.index.floor()

    def waiting(self, after: int, until: int | None = None) -> WaitingRows:
        """Returns the counts of rows that may wait to be published, of revisions after ``after``
        and up to ``until``.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        with _reporting_unreachable():
            return self.index.waiting(after, until)

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

    # -- reads of the store ------------------------------------------------------------------

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
        self._refuse_forgotten(after)  # last: events trimmed before are missing above
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
        with _reporting_unreachable():
            return self.index.read_back(before, limit)

    # -- callbacks of the replica ------------------------------------------------------------

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
        """Keeps events in memory and drops the oldest; returns the size of the new events in
        bytes.
        """
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
        """Number of loads of the tree when the subscription began."""
        self.on_ready: Callable[[], object] = bool
        """Called, from any thread, when ``next`` has something new to return or to raise; must not
        wait.
        """
        self._history: Final = history
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._waiter: threading.Event | None = None
        """Event that wakes a thread in ``next``; None: no thread waits, as in most subscriptions.
        ``put`` is called for all subscriptions before a change is acknowledged.
        """
        self._after = after
        """Revision up to which past events were read."""
        self._joined = False
        """True once new events are added to the queue."""
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
        self._history.forget(self)  # it may have joined while it was being closed
        return []

    def _wait(self, seconds: float) -> None:
        with self._lock:
            if self._queue or self._lost or self._closed:
                return
            waiter = self._waiter = threading.Event()
        waiter.wait(seconds)
        self._waiter = None

    def join(self, begin: list[Revised]) -> None:
        """Starts the queue with these events, which do not count as lag."""
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
        """Adds events, or ends the subscription if the queue is full: the replica must not wait."""
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
