"""Keeps count of the topics that stand otherwise than well, without being noticed.

A small tree is counted when somebody asks. A large one, which takes 12 µs a topic, is counted in
the background, a little at a time: whoever asks gets the last count, and the first one none.
Refuses to keep a caller, or the calls of others, waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from directory.kafka import recorded_topics
from directory.kafka.recorded_topics import TopicCounts
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["TopicCounter"]

_AT_ONCE: Final = 10_000
"""Topics that are counted while the caller waits: about a tenth of a second's work."""
_SHARE: Final = 10
"""Counting takes at most this part of the time, however often it is asked for."""
_LOOK_AFTER: Final = 200
"""Topics between two looks at the clock."""


class TopicCounter:
    """Of one cluster; for any thread.

    Args:
        mount_at: where the cluster hung at a snapshot.
        clock: monotonic seconds.
        at_once: trees of so many topics are counted while the caller waits.
    """

    def __init__(
        self,
        mount_at: Callable[[Snapshot], Path],
        clock: Callable[[], float] = time.monotonic,
        at_once: int = _AT_ONCE,
    ) -> None:
        self._mount_at: Final = mount_at
        self._clock: Final = clock
        self._at_once: Final = at_once
        self._lock: Final = threading.Lock()
        self._stop: Final = threading.Event()
        self._last = TopicCounts()
        self._due = 0.0
        self._counting = False

    def latest(self, snapshot: Snapshot) -> TopicCounts:
        """Returns the newest count that there is; its ``revision`` says of when, -1: none yet."""
        with self._lock:
            outdated = self._last.revision != snapshot.revision
            if not outdated or self._counting or self._clock() < self._due or self._stop.is_set():
                return self._last
            self._counting = True
        if snapshot.topic_count > self._at_once:
            threading.Thread(
                target=self._count, args=(snapshot, self._rest), name="census", daemon=True
            ).start()
        else:
            self._count(snapshot, lambda _: None)
        return self._last

    def stop(self) -> None:
        """Ends a count that is under way."""
        self._stop.set()

    def _count(self, snapshot: Snapshot, rest: Callable[[float], object]) -> None:
        worked, begun = 0.0, self._clock()
        try:
            for topic_counts in recorded_topics.count_topics(
                snapshot, self._mount_at(snapshot), _LOOK_AFTER
            ):
                seconds = self._clock() - begun
                worked += seconds
                rest(seconds)
                if self._stop.is_set():
                    return
                if topic_counts.revision == snapshot.revision:
                    self._last = topic_counts
                begun = self._clock()
        finally:
            with self._lock:
                self._due = self._clock() + worked * _SHARE
                self._counting = False

    def _rest(self, seconds: float) -> None:
        self._stop.wait(seconds * (_SHARE - 1))
