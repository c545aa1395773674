"""Servers that share a real store: killed, restarted, restored under; what they answered holds."""

import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path as FilePath

import pytest

from directory.namespace.command import CreateTopic
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import EVENT, entry_key
from directory.store.addresses import open_store
from directory.store.replica import ReplicaState
from resolver.errors import KdirError, StoreUnavailable
from tests.unit.writing.bench import Bench, eventually, path

ROOT = FilePath(__file__).resolve().parents[3]


class Servers:
    """Servers of one store, in this process and in others."""

    def __init__(self, address: str, cleanup: ExitStack) -> None:
        self.address = address
        self._cleanup = cleanup

    @property
    def file(self) -> FilePath:
        """Of an sqlite store."""
        return FilePath(self.address.removeprefix("sqlite:///"))

    def here(self) -> Bench:
        store = open_store(self.address, "la")
        self._cleanup.callback(store.close)
        return self._cleanup.enter_context(Bench(store))

    def elsewhere(self, name: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                str(FilePath(__file__).with_name("server_process.py")),
                self.address,
                name,
            ],
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._cleanup.callback(process.wait)
        self._cleanup.callback(process.kill)
        return process


@pytest.fixture
def servers(tmp_path: FilePath) -> Iterator[Servers]:
    with ExitStack() as cleanup:
        yield Servers(f"sqlite:///{tmp_path / 'store.db'}", cleanup)


@pytest.fixture(params=["sqlite", "etcd"])
def any_servers(request: pytest.FixtureRequest, tmp_path: FilePath) -> Iterator[Servers]:
    """Yields servers of each kind of store."""
    with ExitStack() as cleanup:
        if request.param == "etcd":
            address = request.getfixturevalue("etcd_cluster").address()
        else:
            address = f"sqlite:///{tmp_path / 'store.db'}"
        yield Servers(address, cleanup)


def answered_until_killed(process: subprocess.Popen[str], seconds: float) -> list[tuple[int, ...]]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(seconds)
    process.kill()
    lines = [line for line in process.stdout if line.endswith("\n")]
    process.wait()
    return [tuple(int(part) for part in line.split()) for line in lines]


def test_S17_after_kill_9_each_request_has_exactly_one_effect_and_its_first_answer(
    any_servers: Servers,
) -> None:
    chance = random.Random(2)
    bench = any_servers.here()
    total = 0
    for round_number in range(6):
        name = f"r{round_number}"
        answers = answered_until_killed(any_servers.elsewhere(name), chance.uniform(0.02, 0.15))
        total += len(answers)
        # All that was answered, the one that may have been under way, and one that was not.
        for number in range(len(answers) + 2):
            text = f"/la/{name}-{number}"
            written = bench.writer.commit_command(
                CreateTopic(path=path(text)), request_id=f"{name}-{number}", timeout_seconds=60
            )
            assert written.plan.entry is not None
            if number < len(answers):
                assert written.repeated
                reported = (number, written.revision, written.plan.entry.entry_id)
                assert reported == answers[number]
            if number == len(answers) + 1:
                assert not written.repeated
        events = [
            event
            for _, group in bench.history.since(0)
            for event in group
            if f"/{name}-" in event.path
        ]
        assert len(events) == len({event.path for event in events}) == len(answers) + 2
    assert total > 20
    # A server that starts now loads what the one that lived through it followed.
    fresh = any_servers.here()
    assert fresh.names() == bench.names()
    assert len(fresh.names()) == total + 12
    assert fresh.replica.snapshot.topic_count == bench.replica.snapshot.topic_count


def test_S18_two_processes_that_write_at_once_lose_nothing_of_each_other(
    any_servers: Servers,
) -> None:
    bench = any_servers.here()
    processes = [any_servers.elsewhere(name) for name in ("one", "two")]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answered: set[str] = set()
    for name, process in zip(("one", "two"), processes, strict=True):
        assert process.stdout is not None
        for _ in range(40):
            number, revision, _ = process.stdout.readline().split()
            answered.add(f"{name}-{number}")
            bench.replica.wait_for(int(revision), 60)
    assert answered <= bench.names()
    for process in processes:
        process.kill()
        process.wait()
    revisions = [revision for revision, _ in bench.history.since(0)]
    assert revisions == sorted(set(revisions))


def test_S4_a_store_that_is_taken_away_leaves_reads_stale_and_writes_refused(
    servers: Servers,
) -> None:
    bench = servers.here()
    bench.create("/la/t")
    away = servers.file.with_name("away.db")
    servers.file.rename(away)
    eventually(lambda: bench.replica.state is ReplicaState.STALE)
    assert bench.names() == {"t"}
    assert bench.replica.age_seconds >= 0
    with pytest.raises(StoreUnavailable, match="the store is away"):
        bench.create("/la/u")
    away.rename(servers.file)
    eventually(lambda: bench.replica.state is ReplicaState.SERVING)
    bench.create("/la/u")
    assert bench.names() == {"t", "u"}


@pytest.mark.parametrize("by", ["rename", "copy", "sqlite"])
def test_S11_a_restore_under_running_servers_is_noticed_by_all_of_them(
    servers: Servers, tmp_path: FilePath, by: str
) -> None:
    one, two = servers.here(), servers.here()
    one.create("/la/kept")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(servers.file)) as source:
        source.execute("VACUUM INTO ?", (str(backup),))
    lost = one.create("/la/lost").revision
    two.replica.wait_for(lost, 60)
    incarnation = two.replica.snapshot.incarnation
    match by:
        case "sqlite":  # as `.restore` of its shell does
            with (
                closing(sqlite3.connect(backup)) as source,
                closing(sqlite3.connect(servers.file)) as target,
            ):
                source.backup(target)
        case _:
            for leftover in ("-wal", "-shm"):
                servers.file.with_name(servers.file.name + leftover).unlink(missing_ok=True)
            if by == "rename":
                backup.rename(servers.file)
            else:
                servers.file.unlink()
                shutil.copyfile(backup, servers.file)
    for bench in (one, two):
        eventually(lambda bench=bench: bench.replica.snapshot.incarnation != incarnation)  # type: ignore[misc]
        assert bench.names() == {"kept"}
        assert bench.replica.snapshot.revision > lost
    assert one.replica.snapshot.incarnation == two.replica.snapshot.incarnation
    revision = two.create("/la/new").revision
    one.replica.wait_for(revision, 60)
    assert one.names() == two.names() == {"kept", "new"}


def test_S21_rows_that_cannot_be_read_do_not_keep_a_server_from_starting(servers: Servers) -> None:
    bench = servers.here()
    for name in ("good", "spoilt"):
        bench.create(f"/la/{name}")
    spoilt = entry_key(ROOT_ID, Kind.TOPIC, "spoilt")
    garbage = (b"e/garbage", b"e/\0\0\0\0\0\0\0\1t\xff", b"o/garbage", b"l/x", b"zzz/unknown")
    with closing(sqlite3.connect(servers.file)) as connection, connection:
        for key in garbage:
            connection.execute("INSERT INTO kv VALUES (?, ?, 1)", (key, b"\xff\xfe"))
        connection.execute("UPDATE kv SET value = x'ff' WHERE key = ?", (spoilt,))
    later = servers.here()
    assert set(later.replica.snapshot.unreadable_values) == {spoilt, *garbage[:2]}
    later.create("/la/more")
    assert later.names() == {"good", "more"}
    assert [event.path for _, events in later.history.since(0) for event in events] == [
        "/la/good",
        "/la/spoilt",
        "/la/more",
    ]


def test_many_writers_of_one_server_are_all_answered(any_servers: Servers) -> None:
    bench = any_servers.here()
    bench.mkdir("/la/a")
    failed: list[KdirError] = []

    def make(worker: int) -> None:
        for number in range(20):
            try:
                bench.create(f"/la/a/{worker}-{number}", request_id=f"{worker}-{number}")
            except KdirError as error:
                failed.append(error)

    threads = [threading.Thread(target=make, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(bench.names("/la/a")) == 160
    assert len(bench.store.read(EVENT)) == 161
