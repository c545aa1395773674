"""The changes that are past, and those to come, for who watches; refuses to filter by path.

The newest events are held in memory, up to a bound; older ones are read from the store's ``o/``
rows, which ``store/maintenance.py`` trims. Each subscription has a queue of its own: who is slow
loses its place (``Resync``), and nobody waits for it (RELIABILITY S16).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from directory.event_index import EventIndex
from directory.store.base import Store, StoreAway
from directory.store.events import Events
from directory.store.replica import Applied, Replica
from resolver.errors import NotReady, Resync, StoreUnavailable

__all__ = ["History", "Revised", "Subscription"]

Revised = tuple[int, Events]
"""The events of one revision, which are at least one, by position."""


class History:
    """Remembers and hands on what one replica sees. Make it before the replica is started."""

    def __init__(
        self,
        replica: Replica,
        store: Store,
        *,
        kept_events: int = 20_000,
        queue_events: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``kept_events`` in memory for all; ``queue_events`` that one subscription may lag."""
        self._kept_events: Final = kept_events
        self._queue_events: Final = queue_events
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._recent: deque[Revised] = deque()
        self._recent_count = 0
        self._recent_after = -1  # _recent holds all events of later revisions; -1: not loaded
        self._subscriptions: set[Subscription] = set()
        self.index: Final = EventIndex(store)
        """Where the events of each revision lie in the store."""
        self._unsubscribe: Final = replica.subscribe(self._applied)

    def since(self, revision: int) -> Sequence[Revised]:
        """All events after a revision, in order.

        Raises:
            Resync: they are no longer kept.
            StoreUnavailable: they are kept in the store only, and it is away.
            NotReady: nothing is loaded yet.
        """
        subscription = self.follow(revision)
        try:
            return subscription.next(0)
        finally:
            subscription.close()

    def follow(self, after_revision: int) -> Subscription:
        """All events after a revision, those to come included; the caller closes it.

        Raises:
            Resync, StoreUnavailable, NotReady: as ``since``.
        """
        older: list[Revised] = []
        reached = after_revision
        while True:
            with self._lock:
                if self._recent_after < 0:
                    raise NotReady("the tree is not loaded yet")
                if reached >= self._recent_after:
                    recent = [one for one in self._recent if one[0] > reached]
                    subscription = Subscription(self, [*older, *recent], self._clock)
                    self._subscriptions.add(subscription)
                    return subscription
                begin = self._recent_after
            # Not under the lock: the replica's thread must not wait for the store.
            older += self._read(reached, begin)
            reached = begin

    def page_back(self, before_revision: int, limit: int) -> Sequence[Revised]:
        """The newest revisions with events before this one, newest first; empty when no older ones
        are kept. About ``limit`` events, and at least one revision's.

        Raises:
            StoreUnavailable, NotReady
        """
        found: list[Revised] = []
        count = 0
        with self._lock:
            if self._recent_after < 0:
                raise NotReady("the tree is not loaded yet")
            for revised in reversed(self._recent):
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
        """Events up to this revision are no longer kept.

        Raises:
            StoreUnavailable
        """
        try:
            return self.index.floor()
        except StoreAway as reason:
            raise StoreUnavailable(f"the store is away: {reason}") from reason

    def lags(self) -> list[int]:
        """For each subscription, how many events wait in its queue."""
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

    def _read(self, after: int, until: int) -> list[Revised]:
        try:
            found = self.index.read(after, until)
            floor = self.index.floor()  # asked last: what was trimmed before is missing above
        except StoreAway as reason:
            raise StoreUnavailable(
                f"the changes after revision {after} are in the store only, and it is away: "
                f"{reason}"
            ) from reason
        if after < floor:
            raise Resync(
                f"the changes after revision {after} are no longer kept (oldest: {floor}): list "
                "again, then watch",
                oldest=floor,
            )
        return found

    def _read_back(self, before: int, limit: int) -> list[Revised]:
        try:
            return self.index.read_back(before, limit)
        except StoreAway as reason:
            raise StoreUnavailable(f"the store is away: {reason}") from reason

    # -- the replica's part ------------------------------------------------------------------

    def _applied(self, applied: Applied) -> None:
        self.index.applied(applied)
        with self._lock:
            if applied.reloaded:
                self._recent.clear()
                self._recent_count = 0
                self._recent_after = applied.revision
                left_behind = list(self._subscriptions)
            else:
                left_behind = []
                if applied.events:
                    self._remember((applied.revision, applied.events))
            subscriptions = list(self._subscriptions)
        for subscription in left_behind:
            subscription.lose("the tree was loaded anew: list again, then watch")
        if applied.events:
            for subscription in subscriptions:
                subscription.put((applied.revision, applied.events), self._queue_events)

    def _remember(self, revised: Revised) -> None:
        self._recent.append(revised)
        self._recent_count += len(revised[1])
        while self._recent_count > self._kept_events:
            self._recent_after, events = self._recent.popleft()
            self._recent_count -= len(events)

    def forget(self, subscription: Subscription) -> None:
        """Hands nothing more to a subscription; it calls this when it is closed."""
        with self._lock:
            self._subscriptions.discard(subscription)


class Subscription:
    """One watcher's queue. ``next`` is for one thread; ``close`` for any."""

    def __init__(
        self, history: History, begin: Iterable[Revised], clock: Callable[[], float]
    ) -> None:
        self._history: Final = history
        self._clock: Final = clock
        self._changed: Final = threading.Condition()
        self._queue: list[Revised] = list(begin)
        self._count = 0  # of events that came since it began: the begin itself is no lag
        self._lost = ""
        self._closed = False

    def next(self, timeout_seconds: float) -> list[Revised]:
        """What came, in order; empty when nothing did in time, or when it is closed.

        Raises:
            Resync: more came than its queue holds, or the tree was loaded anew.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._queue or self._lost or self._closed, timeout_seconds
            )
            if self._closed:
                return []
            if self._lost:
                raise Resync(self._lost)
            found, self._queue, self._count = self._queue, [], 0
            return found

    @property
    def waiting(self) -> int:
        """How many events came and were not taken yet."""
        return self._count

    def close(self) -> None:
        """Ends it; a waiting ``next`` returns."""
        self._history.forget(self)
        with self._changed:
            self._closed = True
            self._queue = []
            self._changed.notify_all()

    def put(self, revised: Revised, limit: int) -> None:
        """Adds to the queue, or gives it up where it is full: no watcher slows the replica."""
        with self._changed:
            if self._lost or self._closed:
                return
            if self._count + len(revised[1]) > max(limit, len(revised[1])):
                self._give_up(f"more than {limit} changes were not read in time")
                return
            self._queue.append(revised)
            self._count += len(revised[1])
            self._changed.notify_all()

    def lose(self, why: str) -> None:
        """There is a gap: it cannot go on."""
        with self._changed:
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self._lost = why
        self._queue = []
        self._changed.notify_all()
