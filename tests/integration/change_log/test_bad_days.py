"""A change log whose store, topics or brokers are not as they were: it waits, says why, loses
nothing.
"""

from __future__ import annotations

import gc
import shutil
import signal
import sqlite3
import weakref
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kdir.v1 import admin_pb2, admin_pb2_grpc, watch_pb2, watch_pb2_grpc

from deploy.local.kafka import KafkaBroker
from directory.change_log.log_topics import LogTopics
from directory.change_log.settings import ChangeLogConfig
from directory.change_log.topic_writer import LogRecord, TopicWriter
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.own_client_settings import ClientProperties
from directory.maintenance.log_backup import log_rows
from directory.namespace.keys import ENTRY
from directory.store.addresses import open_store
from resolver.errors import KafkaUnavailable
from tests.conftest import SharedBroker, SharedEtcd
from tests.integration.change_log.test_publishing import (
    caught_up,
    changes_of,
    log_of,
    logged_rows,
)
from tests.integration.change_log.test_restore_from_log import checkpoint, entry
from tests.support.backups import back_up, put_back
from tests.support.change_logs import ChangeLogTopics
from tests.support.federation import Server, eventually


def made(folder: Path, bootstrap: str, **settings: Any) -> Server:
    folder.mkdir(exist_ok=True)
    store = f"sqlite:///{folder / 'la.sqlite'}"
    return Server(
        folder, "/la", {"store": store, "change_log": {"bootstrap": [bootstrap]}, **settings}
    )


def backup_in(store: Path) -> bytes:
    with closing(open_store(f"sqlite:///{store}", "la")) as opened:
        return back_up(opened)


def copy_store(source: Path, target: Path) -> None:
    """Copies a sqlite store, with what is still in its write-ahead log only: a server that ends
    need not have moved all of it to the file.
    """
    with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
        read.backup(written)


def state_of(server: Server) -> watch_pb2.GetChangeLogResponse:
    answer: watch_pb2.GetChangeLogResponse = server.ask(
        watch_pb2_grpc.WatchServiceStub, "GetChangeLog", watch_pb2.GetChangeLogRequest()
    )
    return answer


def waits_because(server: Server, text: str) -> watch_pb2.GetChangeLogResponse:
    def waits() -> watch_pb2.GetChangeLogResponse:
        found = state_of(server)
        assert text in found.state.message, found
        return found

    return eventually(waits, 120)


def confirm(server: Server) -> None:
    request = admin_pb2.ResyncChangeLogRequest()
    server.ask(admin_pb2_grpc.AdminServiceStub, "ResyncChangeLog", request)


def admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def test_brokers_away_changes_are_made_and_wait_for_them(
    tmp_path: Path, kafka_brokers: Callable[..., KafkaBroker]
) -> None:
    with kafka_brokers() as broker, made(tmp_path / "la", broker.bootstrap) as server:
        log = log_of(server, broker)
        store = str(tmp_path / "la" / "la.sqlite")
        caught_up(log, store)
        broker.kill()
        for number in range(10):
            server.mkdir(f"/la/a{number}")
        eventually(lambda: state_of(server).waiting_commits >= 10)
        assert state_of(server).configured
        eventually(lambda: server.status().change_log.message)
        # It ends while the brokers are away, and an attempt at them is on its way.
        server.process.signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        server.start()
        broker.start()
        found = caught_up(log, store)
        eventually(lambda: state_of(server).waiting_commits == 0)
        assert state_of(server).state.message == ""
    assert [path for _, path in changes_of(found)] == [f"/la/a{number}" for number in range(10)]


@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_another_incarnation_of_the_store_is_the_next_generation(
    tmp_path: Path, kafka_broker: SharedBroker, runs: bool
) -> None:
    store = tmp_path / "la" / "la.sqlite"
    server = made(tmp_path / "la", kafka_broker.bootstrap)
    with server:
        server.mkdir("/la/kept")
        log = log_of(server, kafka_broker)
        caught_up(log, str(store))
        if not runs:
            server.stop()
        backup = backup_in(store)
        if not runs:
            server.start()
        server.mkdir("/la/lost")
        caught_up(log, str(store))
        if runs:
            put_back(backup, f"sqlite:///{store}", force=True)
        else:
            server.stop()
            put_back(backup, f"sqlite:///{store}")
            server.start()
        eventually(lambda: state_of(server).state.generation == 2)
        server.mkdir("/la/new")
        eventually(lambda: "/la/new" in [path for _, path in changes_of(log.read())])
        found = log.read()
        rows = logged_rows(str(store))
    assert found.rows == rows
    assert found.checkpoint is not None
    assert found.checkpoint.generation == 2
    by_cause = [(one.cause, one.action, one.generation) for one in found.history if one.path != ""]
    assert ("change", "insert", 1) in by_cause
    gone = [one for one in found.history if one.cause == "resync" and one.action == "delete"]
    assert len(gone) == 1, "of the change that the restored store does not have"


def test_a_store_that_lost_much_does_not_empty_the_log_by_itself(
    tmp_path: Path, kafka_broker: SharedBroker
) -> None:
    store = tmp_path / "la" / "la.sqlite"
    server = made(tmp_path / "la", kafka_broker.bootstrap)
    with server:
        server.stop()
        copy_store(store, tmp_path / "empty.sqlite")
        server.start()
        log = log_of(server, kafka_broker)
        for number in range(40):
            server.mkdir(f"/la/a{number}")
        before = caught_up(log, str(store))
        server.stop()
        for suffix in ("-wal", "-shm"):
            store.with_name(store.name + suffix).unlink(missing_ok=True)
        shutil.copy(tmp_path / "empty.sqlite", store)
        server.start()
        found = waits_because(server, "40 of 40 entries of the log are not in the store")
        assert found.state.waits_for_operator
        assert log.read().rows == before.rows
        confirm(server)
        eventually(lambda: log.read().rows == logged_rows(str(store)))
        eventually(lambda: state_of(server).state.message == "")


def test_of_a_store_and_its_copy_the_one_that_did_not_publish_last_waits(
    tmp_path: Path, kafka_broker: SharedBroker
) -> None:
    """Two stores with one cluster id: neither writes over what the other published by itself."""
    one, two = (made(tmp_path / name, kafka_broker.bootstrap) for name in ("one", "two"))
    stores = [tmp_path / name / "la.sqlite" for name in ("one", "two")]
    with one:
        one.mkdir("/la/a")
        log = log_of(one, kafka_broker)
        caught_up(log, str(stores[0]))
        one.stop()
        copy_store(*stores)
        one.start()
        with two:
            eventually(lambda: state_of(two).state.generation == 2)
            one.mkdir("/la/b")
            found = waits_because(one, "a copy of the store publishes too")
            assert found.state.waits_for_operator
            two.mkdir("/la/c")
            caught_up(log, str(stores[1]))
            assert log.read().rows == logged_rows(str(stores[1]))
        confirm(one)
        eventually(lambda: log.read().rows == logged_rows(str(stores[0])))
        assert "/la/c" in [path for _, path in changes_of(log.read())], "nothing of it is lost"


def test_a_producer_closed_after_an_error_keeps_nothing_of_it(kafka_broker: SharedBroker) -> None:
    class Tree:
        """What a publisher has at hand when it fails."""

    def fail() -> weakref.ref[Tree]:
        tree = Tree()
        writer = TopicWriter({"bootstrap.servers": kafka_broker.bootstrap}, "failing")
        try:
            raise KafkaUnavailable("as the test wants it")
        except KafkaUnavailable:
            writer.close()
        return weakref.ref(tree)

    gc.disable()  # a server's collector may not come for hours
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_P14_P15_a_topic_that_was_deleted_is_made_again_only_for_an_operator(
    tmp_path: Path, kafka_broker: SharedBroker
) -> None:
    store = tmp_path / "la" / "la.sqlite"
    server = made(tmp_path / "la", kafka_broker.bootstrap)
    with server:
        server.mkdir("/la/a")
        log = log_of(server, kafka_broker)
        caught_up(log, str(store))
        server.stop()
        admin = admin_of(kafka_broker.bootstrap)
        admin.delete_topics([log.state_topic])[log.state_topic].result(30)
        server.start()
        gone = waits_because(server, f"topic {log.state_topic} is not in Kafka any more")
        assert gone.state.waits_for_operator
        assert log.state_topic not in admin.list_topics(timeout=10).topics
        confirm(server)
        eventually(lambda: state_of(server).state.message == "")
        eventually(lambda: log.read().rows == logged_rows(str(store)))
        assert state_of(server).state.generation == 2, "readers see that it is another topic"
        # Of a log that lost records: what an operator did and the difference share a revision.
        lost = [key for key in log.read().state if "/e/" in key]
        writer = TopicWriter({"bootstrap.servers": kafka_broker.bootstrap}, "another")
        writer.write(LogRecord(log.state_topic, key, None) for key in lost)
        confirm(server)
        eventually(lambda: log.read().rows == logged_rows(str(store)))
        made_after = [one for one in log.read().history if one.generation == 2]
    orders = [one.order for one in made_after if one.checkpoint is None]
    assert orders == sorted(set(orders)), "each has a place of its own"
    assert {"operated", "entry"} <= {one.scope for one in made_after}


def test_the_log_of_another_cluster_is_taken_over_only_for_an_operator(
    tmp_path: Path, kafka_broker: SharedBroker
) -> None:
    """Such as that of a cluster whose store was lost, and whose Kafka has a new directory."""
    store, where = tmp_path / "la" / "la.sqlite", {"bootstrap": [kafka_broker.bootstrap]}
    (tmp_path / "la").mkdir()
    with Server(tmp_path / "la", "/la", {"store": f"sqlite:///{store}"}) as server:
        server.mkdir("/la/a")
        log = log_of(server, kafka_broker)
        topics = LogTopics("kc-other", log.state_topic, log.history_topic, where["bootstrap"], dict)
        with closing(ConfluentAdmin(where["bootstrap"])) as admin:
            topics.make_and_check(admin, were_there=False)
        there = [entry("kc-other", 1), entry("kc-other", 2), checkpoint("kc-other")]
        topics.writer("kdir-kc-other").write(
            LogRecord(log.state_topic, key, value) for key, value in there
        )
        server.stop()
        server.settings["change_log"] = where
        server.start()
        found = waits_because(server, "holds the log of cluster kc-other: name another Kafka")
        assert found.state.waits_for_operator
        assert log.records(log.state_topic) == there, "nothing of it is lost"
        confirm(server)
        eventually(lambda: state_of(server).state.message == "")
        newest = dict(log.records(log.state_topic))
        assert [newest[key] for key, _ in there] == [None] * 3
        config = ChangeLogConfig((kafka_broker.bootstrap,), ClientProperties(), is_shared=True)
        with log_rows(config, "la", server.cluster_id) as (header, rows):
            assert header.cluster_id == server.cluster_id
            entries = {key for key in logged_rows(str(store)) if key.startswith(ENTRY)}
            assert entries
            assert {key for key, _ in rows()} >= entries


@pytest.mark.parametrize(
    ("partitions", "config", "because"),
    [
        (1, {"cleanup.policy": "delete"}, "cleanup.policy = delete; a change log needs compact"),
        (2, {"cleanup.policy": "compact"}, "has 2 partitions"),
        (1, {"cleanup.policy": "compact"}, "max.message.bytes"),
    ],
)
def test_P19_topics_that_are_not_as_needed_are_refused(
    tmp_path: Path,
    kafka_broker: SharedBroker,
    partitions: int,
    config: dict[str, str],
    because: str,
) -> None:
    server = made(tmp_path / "la", kafka_broker.bootstrap)
    with server:
        cluster_id = server.cluster_id
        server.stop()
        store = tmp_path / "la" / "la.sqlite"
        log = ChangeLogTopics(kafka_broker.bootstrap, cluster_id, suffix=f".{cluster_id}")
        admin = admin_of(kafka_broker.bootstrap)
        if log.state_topic in admin.list_topics(timeout=10).topics:
            admin.delete_topics([log.state_topic])[log.state_topic].result(30)
            eventually(lambda: log.state_topic not in admin.list_topics(timeout=10).topics)
        topic = NewTopic(log.state_topic, partitions, 1, config=config)
        admin.create_topics([topic])[log.state_topic].result(30)
        server.start()
        waits_because(server, because)
        server.mkdir("/la/a")
        if partitions > 1:
            return
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in (("cleanup.policy", "compact"), ("max.message.bytes", "8388608"))
        ]
        resource = ConfigResource(
            ConfigResource.Type.TOPIC, log.state_topic, incremental_configs=entries
        )
        admin.incremental_alter_configs([resource])[resource].result(30)
        assert caught_up(log, str(store)).rows == logged_rows(str(store))


def test_two_servers_on_one_store_the_other_goes_on(
    tmp_path: Path, kafka_broker: SharedBroker, etcd_cluster: SharedEtcd
) -> None:
    store = etcd_cluster.address()
    servers = [
        made(tmp_path / name, kafka_broker.bootstrap, store=store) for name in ("one", "two")
    ]
    one, two = servers
    expected: list[str] = []

    def is_there(log: ChangeLogTopics) -> bool:
        return [path for _, path in changes_of(log.read())] == expected

    with one, two:
        log = log_of(one, kafka_broker)
        eventually(lambda: state_of(one).publisher and log.read().checkpoint is not None)
        for number in range(2):
            asked = servers[number % 2]
            asked.mkdir(f"/la/a{number}")
            publisher = state_of(asked).publisher
            holder = next(s for s in servers if s.status().authority.server == publisher)
            other = next(s for s in servers if s is not holder)
            # A pause ends after its lease and, once the other one publishes, after its transaction.
            end, begin = (holder.pause, holder.resume) if number else (holder.kill, holder.start)
            end()
            other.mkdir(f"/la/b{number}")
            expected += [f"/la/a{number}", f"/la/b{number}"]
            eventually(lambda: is_there(log))
            begin()
        # The one that was paused is fenced off, whatever it was about to send.
        for number, asked in enumerate(servers * 2):
            # After its pause it finds etcd again, and refuses to write until then.
            eventually(partial(asked.mkdir, f"/la/c{number}"))
            expected.append(f"/la/c{number}")
        eventually(lambda: is_there(log))
