"""``kdir verify`` on real servers and a real Kafka: what is planted is named, nothing else is."""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import admin_pb2, admin_pb2_grpc

from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import TopicToCreate
from directory.namespace.entry import Kind
from directory.namespace.keys import entry_key
from directory.store.addresses import open_store
from directory.store.base import Put, Transaction
from tests.conftest import SharedBroker
from tests.integration.maintenance.conftest import Addresses, Kdir
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import admin_of, drop, make

pytestmark = pytest.mark.slow


def verified(kdir: Kdir, server: Server, *arguments: str, code: int) -> list[dict[str, Any]]:
    """Returns the differences; the summary last."""
    done = kdir("verify", "--at", server.address, "-o", "json", *arguments, code=code)
    return [json.loads(line) for line in done.stdout.splitlines()]


def brief(messages: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    found = [message["difference"] for message in messages[:-1]]
    assert messages[-1]["summary"].get("differences", 0) == len(found)
    return [
        (one["compared"], one["path_or_key"], one["field"], one["expected"], one["actual"])
        for one in found
    ]


def test_a_cluster_that_is_sound_has_no_differences(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    federation.start("/")
    server = federation.join("/la", "/", store=new_address())
    server.mkdir("/la/a/b")
    server.link("/la/l", "/la/a")
    server.entries("DeleteEntry", path="/la/l")
    for one in federation.servers.values():
        (last,) = verified(kdir, one, code=0)
        assert last["summary"]["revision"] > 0
        assert last["summary"]["rows"] > 3
        assert "kafka_topics" not in last["summary"]
        assert "message" not in last["summary"]
    done = kdir("verify", "/la", "--at", federation["/"].address)
    assert done.stdout == ""
    assert "no differences" in done.stderr
    assert not [line for line in server.process.log.read_text().splitlines() if "ERROR" in line]


def test_a_tree_is_compared_while_it_changes(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    server = federation.start("/la", store=new_address())
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            server.mkdir(f"/la/d{number % 40}")
            server.entries("DeleteEntry", path=f"/la/d{number % 40}")
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        revisions = set()
        for _ in range(4):
            (last,) = verified(kdir, server, code=0)
            revisions.add(last["summary"]["revision"])
    finally:
        stop.set()
        thread.join()
    assert len(revisions) > 1


def test_S11_sixty_comparisons_and_backups_while_clients_write_begin_no_incarnation(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    """On etcd it has three members. A commit between reading the head and comparing it is none."""
    server = federation.start("/la", store=new_address())
    server.mkdir("/la/d0")
    first = server.status().authority
    stop = threading.Event()

    def write(number: int) -> None:
        count = 0
        while not stop.is_set():
            server.mkdir(f"/la/d{number}/e{count % 40}")
            server.entries("DeleteEntry", path=f"/la/d{number}/e{count % 40}")
            count += 1

    def call(method: str, request: Any) -> list[Any]:
        stub = admin_pb2_grpc.AdminServiceStub(server.channel)
        return list(getattr(stub, method)(request, timeout=60))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            assert call("Backup", admin_pb2.BackupRequest())[-1].HasField("trailer")
            (last,) = call("Verify", admin_pb2.VerifyRequest())
            assert not last.summary.message
        verified(kdir, server, code=0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert server.status().authority.incarnation == first.incarnation
    server.entries("GetEntry", path="/la/d0", token=first.token)  # of before, and good still
    assert "restored" not in server.process.log.read_text()


def test_rows_that_changed_behind_the_log_are_found_and_those_set_aside_are_counted(
    federation: Federation, kdir: Kdir, tmp_path: Path
) -> None:
    file = tmp_path / "la.db"
    server = federation.start("/la", store=f"sqlite:///{file}")
    server.mkdir("/la/a")
    server.mkdir("/la/b")
    with closing(sqlite3.connect(file)) as connection, connection:
        rows = dict(connection.execute("SELECT key, value FROM kv"))
        a, b = (entry_key(1, Kind.DIRECTORY, name) for name in "ab")
        (revision,) = connection.execute("SELECT revision FROM kv WHERE key = ?", (b,)).fetchone()
        connection.execute("UPDATE kv SET value = ? WHERE key = ?", (rows[b], a))
        connection.execute("DELETE FROM kv WHERE key = ?", (b,))
        connection.execute("INSERT INTO kv VALUES (?, ?, 1)", (b"p/nobody", b"nobody"))
    first, second, third = brief(verified(kdir, server, code=5))
    assert first[:3] == ("store-replica", "/la/a", "value")
    assert "entry_id=" in first[3]
    assert second == ("store-replica", "/la/b", "row", "missing", "there")
    assert third[:3] == ("store", "p/nobody", "claim")
    reported = kdir("verify", "--at", server.address, "-o", "table", code=5)
    assert (
        "row, value: restart this server" in reported.stderr
        or "value, row: restart" in reported.stderr
    )
    assert "3 differences" in reported.stderr

    # What a server that starts now cannot read: set aside, counted, and all named by verify.
    server.stop()
    with closing(sqlite3.connect(file)) as connection, connection:
        for number in range(12):
            key = entry_key(1, Kind.DIRECTORY, f"broken{number:02}")
            connection.execute("INSERT INTO kv VALUES (?, x'ff', 1)", (key,))
        connection.execute("DELETE FROM kv WHERE key = ?", (b"p/nobody",))
        connection.execute("UPDATE kv SET value = ? WHERE key = ?", (rows[a], a))
        connection.execute("INSERT INTO kv VALUES (?, ?, ?)", (b, rows[b], revision))
    server.start()
    eventually(lambda: server.status().unreadable_value_count == 12)
    doctor = kdir("doctor", "--local", "--at", server.address, code=3).stderr
    assert "12 unreadable values in the store were quarantined; kdir verify" in doctor
    assert doctor.count("broken") == 5
    found = brief(verified(kdir, server, code=5))
    assert [one[1] for one in found] == [f"/la/broken{number:02}" for number in range(12)]
    assert {one[0] for one in found} == {"store"}


def test_orphans_and_mounts_without_an_entry_are_found_on_every_store(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    """Planted through the store itself, so that replicas see it too."""
    address = new_address()
    server = federation.start("/la", store=address)
    server.mkdir("/la/a/b")
    with closing(open_store(address, "la")) as store:
        (row,) = store.read(entry_key(1, Kind.DIRECTORY, "a"), limit=1)
        lost = entry_key(0x63, Kind.DIRECTORY, "child")
        writes = (
            Put(lost, row.value[:1] + (77).to_bytes(8, "little") + row.value[9:]),
            Put(b"f/mounted/kc-nobody", b"12 3"),
            Put(b"o/-", b"999999999999999"),
        )
        done = store.commit(Transaction((), writes))
    eventually(lambda: server.status().store_status.revision >= done.revision)
    found = brief(verified(kdir, server, code=5))
    assert [one[:3] for one in found] == [
        ("store", "directory 63", "parent"),
        ("store", "o/-", "floor"),
        ("store", "f/mounted/kc-nobody", "mounted"),
    ]


@pytest.fixture
def names() -> Callable[[str], str]:
    """Returns names of topics that nobody else on the broker has."""
    prefix = f"v{secrets.token_hex(3)}"
    return lambda name: f"{prefix}-{name}"


@pytest.fixture
def kafka(kafka_broker: SharedBroker) -> Iterator[ConfluentAdmin]:
    with closing(admin_of(kafka_broker.bootstrap)()) as admin:
        yield admin


def test_each_difference_to_kafka_is_named(
    federation: Federation,
    kdir: Kdir,
    kafka: ConfluentAdmin,
    kafka_broker: SharedBroker,
    names: Callable[[str], str],
) -> None:
    for name in ("gone", "other", "grown", "good"):
        make(kafka, TopicToCreate(names(name), partitions=2))
    everything_else = {"match": "*", "ignore": True}
    mine = {"match": names("*"), "split_on": "-", "strip_prefix": names("")}
    server = federation.start(
        "/la",
        kafka={
            "bootstrap": [kafka_broker.bootstrap],
            "sweep_interval_seconds": 0.5,
            "mapping_rules": [mine, everything_else],
        },
    )
    eventually(lambda: set(server.names("/la")) == {"gone", "other", "grown", "good"})
    # From now on it looks seldom, so that what is planted stays planted.
    server.stop()
    server.settings["kafka"]["sweep_interval_seconds"] = 3600
    server.start()
    eventually(
        lambda: (
            server.status().kafka.last_sweep_seconds is not None and server.status().kafka.reachable
        )
    )
    assert brief(verified(kdir, server, code=0)) == []

    drop(kafka, names("gone"), names("other"))
    make(
        kafka,
        TopicToCreate(names("other"), partitions=2),
        TopicToCreate(names("new"), partitions=1),
    )
    kdir("set", "-y", "/la/good", "retention.ms=1234567", "--at", server.address)
    kdir("set", "-y", "/la/grown", "retention.ms=1234567", "--at", server.address)
    found = brief(verified(kdir, server, code=5))
    assert sorted((one[1], one[2]) for one in found) == [
        ("/la/gone", "topic"),
        ("/la/good", "config[retention.ms]"),
        ("/la/grown", "config[retention.ms]"),
        ("/la/new", "entry"),
        ("/la/other", "topic_id"),
    ]
    assert {one[0] for one in found} == {"kafka"}
    # Those that are alike are one row for people.
    table = kdir("verify", "--at", server.address, "-o", "table", code=5)
    (alike,) = [line for line in table.stdout.splitlines() if "retention.ms" in line]
    assert alike.split()[-4:] == ["(default)", "2", "/la/good,", "/la/grown"]
    assert "change it in Kafka, or record what Kafka has" in table.stderr
    assert brief(verified(kdir, server, "--skip-kafka", code=0)) == []


def test_a_kafka_that_is_away_is_not_equal(federation: Federation, kdir: Kdir) -> None:
    server = federation.start("/la", kafka={"bootstrap": ["127.0.0.1:9"]})
    done = kdir("verify", "--at", server.address, code=3)
    assert "not compared: no broker of 127.0.0.1:9 answered" in done.stderr
    assert "no differences in the parts compared" in done.stderr
    kdir("verify", "--at", server.address, "--skip-kafka", code=0)


def test_another_kafka_is_one_difference_not_all_of_them(
    federation: Federation,
    kdir: Kdir,
    kafka: ConfluentAdmin,
    kafka_broker: SharedBroker,
    tmp_path: Path,
) -> None:
    file = tmp_path / "la.db"
    with closing(open_store(f"sqlite:///{file}", "la")) as store:
        store.commit(Transaction((), (Put(b"k/pin", b"another"),)))
    server = federation.start(
        "/la",
        store=f"sqlite:///{file}",
        kafka={
            "bootstrap": [kafka_broker.bootstrap],
            "mapping_rules": [{"match": "*", "ignore": True}],
        },
    )
    messages = verified(kdir, server, code=5)
    assert brief(messages) == [("kafka", "/la", "cluster_id", "another", kafka_broker.cluster_id)]
    assert "another Kafka" in messages[-1]["summary"]["message"]
