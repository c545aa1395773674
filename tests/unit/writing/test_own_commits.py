"""Commits that the thread that made them applies itself, on a real sqlite file."""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from directory.namespace.keys import kafka_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Committed, Conflict, KeyEquals, Put, Transaction
from directory.store.replica import AppliedCommit, Replica
from directory.store.sqlite import watch as watching
from directory.store.sqlite.store import SqliteStore
from directory.store.sqlite.watch import SqliteWatch
from resolver.errors import KdirError
from tests.support.waiting import eventually
from tests.unit.writing.bench import Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Yields a server whose replica does not look at the file unless it is woken."""
    monkeypatch.setattr(watching, "subscribe", lambda *_: None)
    monkeypatch.setattr(watching, "POLL_SECONDS", math.inf)
    with closing(SqliteStore(tmp_path / "store.db", "la")) as store, Bench(store) as bench:
        eventually(lambda: is_waiting(bench.replica))
        yield bench


def is_waiting(replica: Replica) -> bool:
    """True if the replica's thread has nothing to do."""
    return isinstance(replica.watch, SqliteWatch) and replica.watch.is_waiting


def test_who_commits_calls_the_subscribers_itself(bench: Bench) -> None:
    callers: list[threading.Thread] = []
    bench.replica.subscribe(lambda _: callers.append(threading.current_thread()))
    for number in range(20):
        bench.create(f"/la/t{number}")
    assert len(callers) == 20
    assert threading.current_thread() in callers


def test_who_commits_calls_the_subscribers_in_the_context_of_the_replica(bench: Bench) -> None:
    """As the replica's thread does: what they log names their cluster, not the caller's."""
    cluster = contextvars.ContextVar("cluster", default="of the replica")
    found: dict[threading.Thread, str] = {}
    bench.replica.subscribe(lambda _: found.update({threading.current_thread(): cluster.get()}))
    cluster.set("of the caller")
    bench.create("/la/t")
    assert found == {threading.current_thread(): "of the replica"}


def test_many_threads_apply_each_commit_once_in_order_and_one_at_a_time(bench: Bench) -> None:
    applied: list[int] = []
    inside = threading.Lock()
    together: list[int] = []

    def note(commit: AppliedCommit) -> None:
        if not inside.acquire(blocking=False):
            together.append(commit.revision)
            return
        applied.append(commit.revision)
        assert commit.before.revision == commit.revision - 1
        inside.release()

    first = bench.replica.snapshot.revision + 1
    bench.replica.subscribe(note)

    def work(thread: int) -> None:
        for number in range(25):
            made = bench.create(f"/la/t{thread}-{number}")
            assert bench.replica.snapshot.revision >= made.revision

    threads = [threading.Thread(target=work, args=(one,)) for one in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    eventually(lambda: len(applied) >= 200)
    assert together == []
    assert applied == list(range(first, first + 200))
    assert len(bench.names()) == 200


def test_a_bug_in_applying_ones_own_leads_to_a_reload_not_to_silence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Snapshot.apply

    def broken(*_: object) -> Snapshot:
        monkeypatch.setattr(Snapshot, "apply", apply)
        raise ZeroDivisionError("a bug")

    bench.create("/la/before")
    monkeypatch.setattr(Snapshot, "apply", broken)
    assert bench.create("/la/lost").plan.entry is not None
    eventually(lambda: bench.names() == {"before", "lost"})
    eventually(lambda: bench.replica.state.value == "serving")
    assert bench.replica.reloads == 1
    bench.create("/la/after")
    assert bench.names() == {"before", "lost", "after"}


def test_what_a_callback_writes_is_no_part_of_what_its_thread_decides(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread collides with another's commit, and calls the subscribers for that one."""
    key, pin = kafka_key("x"), kafka_key("pin")
    writers: list[threading.Thread] = []
    commit = bench.store.commit

    def write(applied: AppliedCommit) -> None:
        if not writers and applied.after.fact(key) is not None:
            writers.append(threading.current_thread())
            bench.writer.put_facts([Put(pin, b"1")])

    def commit_after_another(transaction: Transaction, seconds: float) -> Committed | Conflict:
        monkeypatch.setattr(bench.store, "commit", commit)
        commit(Transaction((), (Put(key, b"theirs"),)))
        return commit(transaction, seconds)

    def attempt() -> None:
        attempts.append(bench.replica.snapshot.fact(key))
        if attempts[-1] is None:
            bench.writer.put_facts([Put(key, b"ours")], guards=[KeyEquals(key, None)])

    attempts: list[bytes | None] = []
    bench.replica.subscribe(write)
    monkeypatch.setattr(bench.store, "commit", commit_after_another)
    bench.writer.decide(attempt)
    assert writers == [threading.current_thread()]
    assert attempts == [None, b"theirs"]
    eventually(lambda: bench.replica.snapshot.fact(pin) == b"1")


def test_after_the_replica_has_stopped_nothing_is_applied(bench: Bench) -> None:
    stopped = threading.Event()
    late: list[int] = []
    bench.replica.subscribe(lambda one: late.append(one.revision) if stopped.is_set() else None)
    over = threading.Event()

    def work(thread: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            try:
                bench.create(f"/la/t{thread}-{number}", timeout_seconds=0.2)
            except KdirError:
                return

    threads = [threading.Thread(target=work, args=(one,)) for one in range(4)]
    for one in threads:
        one.start()
    eventually(lambda: len(bench.names()) > 20)
    bench.replica.stop()
    stopped.set()
    revision = bench.replica.snapshot.revision
    over.set()
    for one in threads:
        one.join(60)
    assert late == []
    assert bench.replica.snapshot.revision == revision
