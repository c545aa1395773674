"""The topics of a snapshot, with their paths, and the numbers of topics by state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from directory.kafka.applying.desired_configs import DesiredConfigs, RecordedTopic, directories_at
from directory.namespace.entry import DELETED_ID, ROOT_ID, Provision
from directory.namespace.plan_delete import DELETED
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import entry_path
from resolver.path import Path

__all__ = [
    "TopicCounter",
    "TopicCounts",
    "count_topics",
    "pending",
    "pending_deletions",
    "place_of",
    "recorded_at",
    "recorded_topics",
]


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """Numbers of topics by state."""

    revision: int = -1
    pending: int = 0
    """Topics that wait to be made in Kafka or deleted from it."""
    missing: int = 0
    drifting: int = 0
    replaced: int = 0


def recorded_topics(
    snapshot: Snapshot, mount: Path, directory_id: int = ROOT_ID
) -> Iterator[RecordedTopic]:
    """Yields every topic at or below a directory: each directory's own before deeper ones."""
    desired_configs = DesiredConfigs(snapshot)
    for segments, node in directories_at(snapshot, mount, directory_id):
        for name in node.topics:
            topic = snapshot.readable_topic(node.entry_id, name)
            if topic is not None:
                desired_config = desired_configs.for_topic(node.entry_id, topic)
                yield RecordedTopic(Path((*segments, name)), topic, desired_config)


def recorded_at(snapshot: Snapshot, mount: Path, path: Path) -> Iterator[RecordedTopic]:
    """Yields the topic at this path, if any, and every topic below it, if it is a directory."""
    relative = path.below(mount)
    if relative:
        parent_id = snapshot.find_directory(relative[:-1])
        topic = None if parent_id is None else snapshot.topic(parent_id, relative[-1])
        if topic is not None and parent_id is not None:
            yield RecordedTopic(path, topic, DesiredConfigs(snapshot).for_topic(parent_id, topic))
    directory_id = snapshot.find_directory(relative)
    if directory_id is not None:
        yield from recorded_topics(snapshot, mount, directory_id)


def pending_deletions(
    snapshot: Snapshot, mount: Path, limit: int | None = None, after: str = ""
) -> Iterator[RecordedTopic]:
    """Yields the removed topics that Kafka may still have, in order of names below ``DELETED_ID``,
    from the name ``after`` on.
    """
    node = snapshot.nodes.get(DELETED_ID)
    names = () if node is None else node.topics.items(after, inclusive=False)
    found = ((name, snapshot.readable_topic(DELETED_ID, name)) for name, _ in names)
    waiting = (
        RecordedTopic(entry_path(mount, (DELETED, name)), topic)
        for name, topic in found
        if topic is not None and topic.provision is Provision.DELETING
    )
    yield from islice(waiting, limit)


def pending(snapshot: Snapshot, mount: Path, place: tuple[int, str]) -> RecordedTopic | None:
    """Returns the topic at a place (parent id, name); None if it does not wait to be made."""
    parent_id, name = place
    topic = snapshot.readable_topic(parent_id, name)
    above = snapshot.path_of(parent_id)
    if topic is None or above is None or topic.provision is not Provision.PENDING:
        return None
    return RecordedTopic(entry_path(mount, (*above, name)), topic)


def place_of(snapshot: Snapshot, mount: Path, one: RecordedTopic) -> tuple[int, str] | None:
    """Returns the place (parent id, name) for a topic's path; None = its directory is gone, or the
    cluster was mounted elsewhere meanwhile.
    """
    if not mount.is_prefix_of(one.path):
        return None
    relative = one.path.below(mount)
    parent_id = snapshot.find_directory(relative[:-1])
    return None if parent_id is None else (parent_id, relative[-1])


_COMPARED: Final = {Provision.ACTIVE, Provision.MISSING, Provision.REPLACED}
"""States in which ``topic_drift`` lists differences of a topic."""


def count_topics(snapshot: Snapshot, mount: Path, every: int) -> Iterator[TopicCounts]:
    """Counts the topics that are pending, missing, drifting or replaced: yields the counts so far,
    with revision -1, after every ``every`` topics, and the final ones at the end.
    """
    waiting = sum(1 for _ in pending_deletions(snapshot, mount))
    missing = drifting = replaced = 0
    for number, one in enumerate(recorded_topics(snapshot, mount), start=1):
        waiting += one.topic.provision is Provision.PENDING
        missing += one.topic.provision is Provision.MISSING
        replaced += one.topic.provision is Provision.REPLACED
        drifting += one.topic.drift_count > 0 and one.topic.provision in _COMPARED
        if number % every == 0:
            yield TopicCounts(-1, waiting, missing, drifting, replaced)
    yield TopicCounts(snapshot.revision, waiting, missing, drifting, replaced)


_AT_ONCE: Final = 10_000
"""Most topics that are counted while the caller waits: about 0.1 s of work."""
_SHARE: Final = 10
"""Counting takes at most one part in this many of the time, however often counts are requested."""
_LOOK_AFTER: Final = 200
"""Topics between two reads of the clock."""


class TopicCounter:
    """Counter of one cluster's topics that wait for Kafka or differ from it; for any thread.

    A small tree is counted while the caller waits. A large one, which takes 12 µs per topic, is
    counted in the background, in steps: callers get the last counts, at first none.

    ``at_once``: most topics of a small tree.
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
        """Returns the newest counts, with the snapshot's ``revision``; -1 = none yet."""
        with self._lock:
            outdated = self._last.revision != snapshot.revision
            if not outdated or self._counting or self._clock() < self._due or self._stop.is_set():
                return self._last
            self._counting = True
        if snapshot.topic_count > self._at_once:
            count = partial(self._count, snapshot, self._rest)
            threading.Thread(target=count, name="topic counts", daemon=True).start()
        else:
            self._count(snapshot, lambda _: None)
        return self._last

    def stop(self) -> None:
        """Ends a count that is under way."""
        self._stop.set()

    def _count(self, snapshot: Snapshot, rest: Callable[[float], object]) -> None:
        worked, begun = 0.0, self._clock()
        try:
            for topic_counts in count_topics(snapshot, self._mount_at(snapshot), _LOOK_AFTER):
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
