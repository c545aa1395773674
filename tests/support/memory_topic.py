"""State topic of a change log in memory, for tests of its readers without brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from resolver.changes.record import Change, Checkpoint, checkpoint_key, encode, entry_key
from resolver.changes.topic_reader import EndReached, TopicRecord
from resolver.errors import KafkaUnavailable

__all__ = ["MemoryTopic"]


class MemoryTopic:
    """Topic whose brokers may be away. ``reader`` is called as ``TopicReader``."""

    def __init__(self) -> None:
        self.records: list[TopicRecord] = []
        self.is_away = False
        self.withheld_count = 0
        """Number of records that the brokers have, and do not give yet."""
        self.on_wait: Callable[[float], object] = lambda _: None
        """Called with the timeout of each request that is not answered while they are away."""

    def reader(
        self, _properties: Any, _topic: str, *, keep_on: Callable[[], bool], **_: Any
    ) -> _MemoryReader:
        return _MemoryReader(self, keep_on)

    def add(self, key: str, value: bytes | None) -> None:
        """Adds a record as it is."""
        self.records.append(TopicRecord(len(self.records), key.encode(), value))

    def put(self, cluster_id: str, revision: int, entry_id: int, key: bytes, record: bytes) -> None:
        """Adds the row of an entry."""
        change = Change(
            cluster_id=cluster_id,
            generation=1,
            revision=revision,
            time=0,
            entry_id=entry_id,
            key=key,
            record=record,
        )
        self.add(entry_key(cluster_id, entry_id), encode(change))

    def end_page(self, cluster_id: str, revision: int, mount: str = "/") -> None:
        """Adds a checkpoint."""
        change = Change(
            cluster_id=cluster_id,
            generation=1,
            revision=revision,
            time=0,
            scope="checkpoint",
            checkpoint=Checkpoint(incarnation="i", incarnations=("i",), cluster="a", mount=mount),
        )
        self.add(checkpoint_key(cluster_id), encode(change))


class _MemoryReader:
    def __init__(self, topic: MemoryTopic, keep_on: Callable[[], bool]) -> None:
        self._topic = topic
        self._keep_on = keep_on

    def bounds(self, timeout_seconds: float = 30.0) -> tuple[int, int]:
        if self._topic.is_away:
            self._topic.on_wait(timeout_seconds)
            raise KafkaUnavailable("no broker answered")
        return 0, len(self._topic.records) + self._topic.withheld_count

    def most_pause_seconds(self) -> float:
        return 43_200.0

    def read(self, begin: int, end: int) -> Iterator[TopicRecord]:
        yield from self._topic.records[begin:end]

    def tails(self) -> Iterator[Iterator[TopicRecord]]:
        yield self.read(*self.bounds())

    def follow(self, begin: int) -> Iterator[TopicRecord | EndReached | None]:
        at = begin
        while self._keep_on():
            if at == len(self._topic.records):
                time.sleep(0.005)
                yield None
                continue
            yield self._topic.records[at]
            at += 1
            if at == len(self._topic.records):
                yield EndReached(at)

    def close(self) -> None:
        pass
