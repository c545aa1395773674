"""The change log on a real broker: every change once and in order, and the store's own state."""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kdir.v1 import entry_pb2

from deploy.local.kafka import KafkaBroker, KafkaCluster
from directory.change_log.topic_writer import LogRecord, TopicWriter
from directory.namespace.keys import ENTRY, EVENT, is_logged_fact
from directory.store.addresses import open_store
from directory.store.base import Store
from directory.store.event_rows import FLOOR_KEY, unpack
from resolver.changes.record import fingerprint, schema_text
from resolver.changes.topic_reader import TopicReader
from resolver.errors import KafkaUnavailable, KdirError
from tests.conftest import SharedBroker
from tests.integration.servers.test_processes import workers
from tests.support.change_logs import ChangeLogTopics, LogContents, WrittenLog
from tests.support.federation import Server, eventually


@pytest.fixture
def server(tmp_path: Path, kafka_broker: SharedBroker) -> Server:
    settings = {
        "change_log": {"bootstrap": [kafka_broker.bootstrap]},
        "store": f"sqlite:///{tmp_path / 'la.sqlite'}",
    }
    return Server(tmp_path / "la", "/la", settings)


def log_of(server: Server, broker: SharedBroker | KafkaBroker | KafkaCluster) -> ChangeLogTopics:
    cluster_id = server.cluster_id
    return ChangeLogTopics(broker.bootstrap, cluster_id, suffix=f".{cluster_id}")


def changes_of(found: LogContents) -> list[tuple[str, str]]:
    return [(one.action, one.path) for one in found.history if one.checkpoint is None]


def opened_store(store: str) -> Store:
    """Opens the store of cluster la, at an address or in a file."""
    return open_store(store if "://" in store else f"sqlite:///{store}", "la")


def logged_rows(store: str) -> dict[bytes, bytes]:
    """Returns the rows of a store that a log holds by their keys: all but the grants of entries."""
    with closing(opened_store(store)) as opened:
        return {
            key: value
            for page in opened.load().pages()
            for key, value in page
            if key.startswith(ENTRY) or is_logged_fact(key)
        }


def caught_up(log: ChangeLogTopics, store: str, timeout_seconds: float = 60) -> LogContents:
    """Returns what the log holds once it has all that the store's outbox has."""
    found: list[LogContents] = []

    def is_there() -> bool:
        found[:] = [log.read()]
        point, outbox = found[0].checkpoint, outbox_of(store)
        return point is not None and (not outbox or point.revision >= outbox[-1][0])

    eventually(is_there, timeout_seconds)
    return found[0]


def outbox_of(store: str, after: int = 0) -> list[tuple[int, int, str]]:
    """Returns what the store's own outbox has of later revisions: revision, position, path."""
    with closing(opened_store(store)) as opened:
        return sorted(
            (row.revision, event.position, event.path)
            for row in opened.read(EVENT, limit=100_000)
            if row.key != FLOOR_KEY and row.revision > after
            for event in unpack(row.value, row.revision, "").events
        )


def test_changes_are_in_the_log_once_and_in_order(
    server: Server, kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    store = str(tmp_path / "la.sqlite")
    with server:
        for name in "abc":
            server.mkdir(f"/la/{name}")
        log = log_of(server, kafka_broker)
        first = caught_up(log, store)
        assert changes_of(first) == [], "what there was before is in the state only"
        for number in range(20):
            server.mkdir(f"/la/a/t{number}")
        found = caught_up(log, store)
        rows = logged_rows(store)
    assert changes_of(found) == [("insert", f"/la/a/t{number}") for number in range(20)]
    assert found.rows == rows


def test_K3_of_two_processes_of_a_server_one_publishes_and_then_the_other(
    tmp_path: Path, kafka_broker: SharedBroker
) -> None:
    """A producer that was made before a fork would hang in the child."""
    store = str(tmp_path / "la.sqlite")
    settings = {
        "change_log": {"bootstrap": [kafka_broker.bootstrap]},
        "store": f"sqlite:///{store}",
    }
    with Server(tmp_path / "la", "/la", settings, processes=2) as server:
        log = log_of(server, kafka_broker)
        caught_up(log, store)
        for number, worker in enumerate(workers(server)):
            os.kill(worker, signal.SIGKILL)
            eventually(partial(server.mkdir, f"/la/b{number}"))
            caught_up(log, store)
        found = caught_up(log, store)
        rows = logged_rows(store)
    assert changes_of(found) == [("insert", "/la/b0"), ("insert", "/la/b1")]
    assert found.rows == rows


class WatchedWriter(TopicWriter):
    """Writer that notes what is asked of Kafka's client while that calls back."""

    def watch(self) -> Watched:
        watched = Watched(self._producer)
        self._producer: Any = watched
        return watched


class Watched:
    """Proxy of a producer that notes what it is asked for while it calls back."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._is_in_callback = False
        self.callbacks, self.asked_in_callbacks = 0, list[str]()

    def __getattr__(self, name: str) -> Any:
        if self._is_in_callback:
            self.asked_in_callbacks.append(name)
        return getattr(self._real, name)

    def produce(self, *arguments: Any, on_delivery: Callable[[Any, object], None]) -> None:
        def called(error: Any, message: object) -> None:
            self._is_in_callback = True
            on_delivery(error, message)
            self._is_in_callback = False
            self.callbacks += 1

        self.__getattr__("produce")(*arguments, on_delivery=called)


def test_K2_K5_more_than_the_clients_queue_holds_is_one_transaction(
    kafka_broker: SharedBroker,
) -> None:
    topic = f"k5-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    properties = {"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0}
    writer = WatchedWriter({**properties, "queue.buffering.max.messages": 10}, topic, 30.0)
    watched = writer.watch()
    writer.write(LogRecord(topic, str(number), b"x") for number in range(500))
    assert watched.callbacks == 500
    assert watched.asked_in_callbacks == [], "a client that is asked there may crash"
    reader = TopicReader(properties, topic)
    found = [one.key for one in reader.read(*reader.bounds())]
    reader.close()
    assert found == [b"%d" % number for number in range(500)]


def test_what_a_publisher_that_lost_its_role_has_read_is_not_taken_for_all(
    kafka_broker: SharedBroker,
) -> None:
    """What was not read would be published anew, as if the log had never been."""
    log = WrittenLog(kafka_broker.bootstrap, f"kc-{secrets.token_hex(4)}")
    log.add("/la/a")
    log.add_schema(schema_text(), fingerprint())
    log.topics.state_digests()
    assert log.topics.end(log.topics.history).checkpoint is not None
    for read in (log.topics.state_digests, partial(log.topics.end, log.topics.history)):
        with pytest.raises(KafkaUnavailable, match="was ended before offset"):
            read(lambda: False)


def test_K4_brokers_that_accept_and_never_answer_are_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(KafkaUnavailable):
            TopicWriter({"bootstrap.servers": bootstrap, "log_level": 0}, "k4", 1.0)


def change_at_random(server: Server, thread: int, chance: random.Random) -> int:
    """Makes one change of what this thread has, as far as the server is there; returns the id of
    the entry where one was inserted, and that was acknowledged, else 0.
    """
    home = f"/la/w{thread}"
    one, other = (f"{home}/{chance.randrange(6)}" for _ in range(2))
    with suppress(KdirError):
        match chance.randrange(6):
            case 0 | 1:
                return int(server.mkdir(f"{one}/{chance.randrange(4)}").entry.entry_id)
            case 2:
                return int(server.link(f"{one}/l{chance.randrange(4)}", "/la").entry.entry_id)
            case 3:
                server.entries("DeleteEntry", path=one, recursive=True)
            case 4:
                server.entries("MoveEntry", path=one, new_path=f"{other}/m{chance.randrange(9)}")
            case _:
                changed = entry_pb2.Entry()
                changed.policies.owner = f"owner-{chance.randrange(99)}"
                mask = {"paths": ["policies.owner"]}
                server.entries("UpdateEntry", path=one, entry=changed, update_mask=mask)
    return 0
