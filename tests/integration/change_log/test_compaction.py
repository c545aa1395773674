"""A state topic that Kafka's own log cleaner compacted: what is made of it is the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from kdir.v1 import entry_pb2

from deploy.local.kafka import KafkaBroker
from resolver.changes.log_load import boot_seconds
from resolver.changes.record import entry_key
from resolver.changes.state_fold import StateFold
from resolver.changes.state_reader import StateReader
from resolver.changes.topic_reader import TopicReader, TopicRecord
from tests.integration.change_log.test_bad_days import admin_of, made, state_of
from tests.integration.change_log.test_publishing import caught_up, log_of
from tests.integration.change_log.test_restore_from_log import fill
from tests.support.change_logs import held_rows, rebuilt_rows
from tests.support.federation import Server, eventually

_UNREAD: Mapping[str, Any] = {
    "queued.min.messages": 1,
    "fetch.message.max.bytes": 1_000,
    "fetch.queue.backoff.ms": 10,
}
"""Of a consumer that fetches next to nothing ahead."""


class Gate:
    """Clock of a reader that stands still where it is asked while the gate is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ahead_seconds = 0.0
        self.asked_count = 0
        self.closes_at = 0
        """Number of the question at which it closes itself; 0 = at none."""

    def clock(self) -> float:
        self.asked_count += 1
        if self.asked_count == self.closes_at:
            self._lock.acquire()
        with self._lock:
            return boot_seconds() + self.ahead_seconds

    def open(self) -> None:
        self._lock.release()

    @contextmanager
    def closed(self) -> Iterator[None]:
        with self._lock:
            yield


class CompactedLog:
    """The log of a running server, in segments so small that the cleaner is busy with it."""

    def __init__(self, server: Server, store: str, broker: KafkaBroker) -> None:
        self.server, self._store, self.bootstrap = server, store, broker.bootstrap
        self._topic = log_of(server, broker).state_topic
        self._count = 0
        self._admin = admin_of(self.bootstrap)
        self.configure({"segment.ms": "20", "min.cleanable.dirty.ratio": "0.01"})
        self.configure({"delete.retention.ms": "60000"})

    def configure(self, settings: Mapping[str, str]) -> None:
        """Sets configs of the state topic."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(
            ConfigResource.Type.TOPIC, self._topic, incremental_configs=entries
        )
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def change(self) -> None:
        """Publishes one page more: it ends a segment, and gives the cleaner something to do."""
        self._count += 1
        end = self._end()
        changed = entry_pb2.Entry()
        changed.policies.owner = f"owner-{self._count}"
        mask = {"paths": ["policies.owner"]}
        self.server.entries("UpdateEntry", path="/la", entry=changed, update_mask=mask)
        eventually(lambda: self._end() > end)

    def _end(self) -> int:
        with closing(self.topic_reader()) as reader:
            return reader.bounds()[1]

    def wait(self) -> None:
        """Returns once everything is published."""
        eventually(lambda: state_of(self.server).waiting_commits == 0)

    def reader(self, **options: Any) -> StateReader:
        properties = {"bootstrap.servers": self.bootstrap, "log_level": 0, **_UNREAD}
        return StateReader(properties, self._topic, **options)

    def records(self) -> list[TopicRecord]:
        with closing(self.topic_reader()) as reader:
            return list(reader.read(*reader.bounds()))

    def topic_reader(self) -> TopicReader:
        return TopicReader({"bootstrap.servers": self.bootstrap, "log_level": 0}, self._topic)

    def clean(self, *gone: int) -> None:
        """Returns once the cleaner left one record of each key of all that there is now, and of
        these entries none.
        """
        before = self.records()
        keys_gone = {entry_key(self.server.cluster_id, one).encode() for one in gone}

        def is_clean() -> bool:
            self.change()
            found = self.records()
            keys = [one.key for one in found if one.offset <= before[-1].offset]
            return (
                len(keys) < len(before)
                and len(keys) == len(set(keys))
                and keys_gone.isdisjoint(one.key for one in found)
            )

        eventually(is_clean)

    @contextmanager
    def short_tombstones(self) -> Iterator[None]:
        """Lets tombstones that are cleaned in this block go soon; later ones stay for a minute."""
        self.configure({"delete.retention.ms": "1"})
        yield
        self.configure({"delete.retention.ms": "60000"})

    def check(self) -> None:
        """Compares with the store, row by row.

        Not once: what the reconciler sees of the topics' new settings is written between the two
        reads now and then.
        """

        def is_equal() -> bool:
            self.wait()
            assert rebuilt_rows(self.bootstrap, self.server.cluster_id) == held_rows(self._store)
            return True

        eventually(is_equal)


def remove(server: Server, *paths: str) -> None:
    for path in paths:
        server.entries("DeleteEntry", path=path, recursive=True)


def test_P7_P9_what_the_cleaner_left_is_the_store_and_its_readers_miss_nothing(
    tmp_path: Path, kafka_brokers: Callable[..., KafkaBroker]
) -> None:
    with kafka_brokers(properties={"log.cleaner.backoff.ms": "100"}) as broker:
        kafka = {"bootstrap": [broker.bootstrap], "ceiling": ["create", "delete"]}
        with made(tmp_path / "la", broker.bootstrap, kafka=kafka) as la:
            compact_and_compare(la, tmp_path / "la" / "la.sqlite", broker)


def compact_and_compare(la: Server, store: Path, broker: KafkaBroker) -> None:
    caught_up(log_of(la, broker), str(store))
    log = CompactedLog(la, f"sqlite:///{store}", broker)
    fill(la)
    ids = {n: la.mkdir(f"/la/x{n}").entry.entry_id for n in range(60)}
    log.wait()

    # A reader stands in the middle of its load while the cleaner goes over the topic.
    gate = Gate()
    gate.closes_at = 3  # after a hundred records
    with closing(log.reader(clock=gate.clock)) as reader, closing(log.topic_reader()) as other:
        low, high = other.bounds()
        fold, middle = StateFold(), (low + high) // 2
        for one in other.read(low, middle):
            fold.add(one.key, one.value)
        eventually(lambda: gate.asked_count >= gate.closes_at)
        remove(la, "/la/x2", "/la/x3")
        la.entries("MoveEntry", path="/la/x4", new_path="/la/x5/moved")
        log.clean()
        log.check()
        assert other.bounds()[0] == low == 0, "compaction moves no beginning"
        gate.open()
        for one in other.read(middle, other.bounds()[1]):
            fold.add(one.key, one.value)
        state = reader.wait(lambda state: state.checkpoint == fold.state.checkpoint, 60)
        assert dict(state.rows.items()) == dict(fold.state.rows.items())
        assert state.skipped == fold.state.skipped == 0
        assert state.rows.get(entry_key(la.cluster_id, ids[2])) is None

    # Who was away for longer than tombstones stay begins again.
    with closing(log.reader(clock=gate.clock)) as reader:
        gone = entry_key(la.cluster_id, ids[6])
        assert reader.loaded(60).rows.get(gone) is not None
        assert reader.load_count == 1
        with gate.closed():
            for _ in range(4):  # more than the reader's client fetches ahead
                log.change()
            with log.short_tombstones():
                remove(la, "/la/x6", "/la/x7")
                log.clean(ids[6], ids[7])
            log.check()
            gate.ahead_seconds = 31.0
        reader.wait(lambda state: state.rows.get(gone) is None, 60)
        assert reader.load_count > 1
