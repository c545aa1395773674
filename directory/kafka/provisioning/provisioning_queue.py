"""Queue of topics to create in Kafka and to delete from it, filled by commits and sweeps."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from directory.kafka.adoption import recorded_topics
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.namespace.entry import DELETED_ID
from directory.namespace.keys import ENTRY, parse_entry_key
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Put, Write
from resolver.path import Path

__all__ = ["Backoff", "DueWork", "RetryQueue"]

_FIRST_RETRY_SECONDS: Final = 0.5
_LAST_RETRY_SECONDS: Final = 10.0
_BATCH: Final = 500
"""Most topics created, and most deleted, in one go, before others are next."""


class Backoff:
    """Wait that grows with each failure, with jitter: servers do not retry at the same time."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._seconds = _FIRST_RETRY_SECONDS

    def next(self) -> float:
        """Returns the seconds to wait now; the next wait is longer."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, _LAST_RETRY_SECONDS)
        return seconds * self._chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Resets the wait after a success."""
        self._seconds = _FIRST_RETRY_SECONDS


class DueWork(NamedTuple):
    """Topics to create and to delete in one go."""

    create: Sequence[RecordedTopic]
    delete: Sequence[RecordedTopic]


class RetryQueue:
    """Queue of one leader. Any thread may call ``hint`` and ``waiting_count``, one the rest."""

    def __init__(self, clock: Callable[[], float], chance: random.Random) -> None:
        self._clock = clock
        self._backoff = Backoff(chance)
        self._lock = threading.Lock()
        self._hints: set[tuple[int, str]] = set()
        self._places: dict[tuple[int, str], float] = {}  # (parent id, name) → not before
        self._removed_due: float | None = 0.0  # None = no removed topic waits
        self._removed_after = ""  # topics that cannot be deleted do not hold up those after it

    def hint(self, writes: Iterable[Write]) -> bool:
        """Adds the topics that a commit wrote; returns whether there is any."""
        found = False
        for write in writes:
            is_entry = isinstance(write, Put) and write.key.startswith(ENTRY)
            if not is_entry or write.key == ROOT_KEY:
                continue  # the root is a directory, and the only entry without a name
            key = parse_entry_key(write.key)
            if key.parent_id == DELETED_ID or key.is_topic:
                found = True
                with self._lock:
                    self._hints.add((key.parent_id, key.name))
        return found

    def add(self, places: Iterable[tuple[int, str]]) -> None:
        """Adds the places of topics that wait; does not bring forward one that was put off."""
        for place in places:
            self._places.setdefault(place, 0.0)

    def due(self, snapshot: Snapshot, mount: Path) -> DueWork:
        """Returns the topics to create and delete now; drops queued ones that need neither."""
        with self._lock:
            hints, self._hints = self._hints, set()
        self.add(place for place in hints if place[0] != DELETED_ID)
        if self._removed_due is None and any(place[0] == DELETED_ID for place in hints):
            self._removed_due = 0.0
        now = self._clock()
        create: list[RecordedTopic] = []
        for place, not_before in list(self._places.items()):
            if not_before > now:
                continue
            if (one := recorded_topics.pending(snapshot, mount, place)) is None:
                del self._places[place]
            elif len(create) < _BATCH:
                create.append(one)
        return DueWork(create, self._removed(snapshot, mount, now))

    def _removed(self, snapshot: Snapshot, mount: Path, now: float) -> list[RecordedTopic]:
        if self._removed_due is None or self._removed_due > now:
            return []
        after = self._removed_after
        found = list(recorded_topics.pending_deletions(snapshot, mount, _BATCH, after))
        if not found and self._removed_after:
            self._removed_after = ""
            return self._removed(snapshot, mount, now)
        self._removed_after = found[-1].path.name if len(found) == _BATCH else ""
        if not found:
            self._removed_due = None
        return found

    def done(self, snapshot: Snapshot, mount: Path, later: DueWork) -> None:
        """Adds the due topics that have to be retried (``later``), after a wait."""
        if not later.create and not later.delete:
            self._backoff.reset()
            return
        not_before = self._clock() + self._backoff.next()
        for one in later.create:
            place = recorded_topics.place_of(snapshot, mount, one)
            if place is not None:
                self._places[place] = not_before
        if later.delete:
            self._removed_due = not_before

    def waiting_count(self) -> int:
        """Returns the number of queued topics; any thread may call it."""
        with self._lock:
            return len(self._hints) + len(self._places)

    def next_due(self) -> float | None:
        """Returns the time of the next work, by the clock; None = nothing waits."""
        with self._lock:
            if self._hints:
                return 0.0
        due = list(self._places.values())
        if self._removed_due is not None:
            due.append(self._removed_due)
        return min(due, default=None)
