"""Commits that the thread that made them applies itself, on a real sqlite file."""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from directory.namespace.command import CreateDirectory, CreateTopic
from directory.namespace.entry import Policies
from directory.namespace.keys import kafka_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import (
    Committed,
    Conflict,
    KeyEquals,
    Put,
    StoreUnreachable,
    Transaction,
)
from directory.store.replica import AppliedCommit, Replica
from directory.store.sqlite import watch as watching
from directory.store.sqlite.store import SqliteStore
from directory.store.sqlite.watch import SqliteWatch
from directory.store.writer import CommitResult
from resolver.errors import KdirError
from tests.support.waiting import eventually
from tests.unit.writing.bench import Bench, path


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


def test_a_write_that_may_be_applied_later_is_taken_and_applied_once(bench: Bench) -> None:
    applied, left = note_revisions(bench), list[Callable[[], None]]()
    first = create_later(bench, "/la/a", left.append)
    assert bench.replica.is_taken(first.revision)
    assert applied == []
    assert bench.names() == set()
    for _ in range(2):
        left[0]()
        assert applied == [first.revision]
        assert bench.names() == {"a"}
    assert bench.create("/la/b").revision == first.revision + 1
    assert applied == [first.revision, first.revision + 1]


def test_what_comes_after_a_taken_commit_is_applied_after_it(tmp_path: Path, bench: Bench) -> None:
    """By this thread, by the replica's with a commit of another process, and by one that waits."""
    applied, left = note_revisions(bench), list[Callable[[], None]]()
    expected = [create_later(bench, "/la/a", left.append).revision]
    expected.append(bench.create("/la/b").revision)
    assert applied == expected
    expected.append(create_later(bench, "/la/c", left.append).revision)
    with closing(SqliteStore(tmp_path / "store.db", "la")) as theirs:
        done = theirs.commit(Transaction((), (Put(kafka_key("x"), b"theirs"),)), 30)
    assert isinstance(done, Committed)
    expected.append(done.revision)
    expected.append(bench.writer.put_facts([Put(kafka_key("y"), b"ours")]))
    assert applied == expected
    eventually(lambda: is_waiting(bench.replica))
    expected.append(create_later(bench, "/la/d", left.append).revision)
    assert applied == expected[:-1]
    bench.replica.wait_for(expected[-1], 0)
    assert applied == expected


def test_while_others_write_too_each_applies_its_own_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, left = bench.store.commit, list[Callable[[], None]]()
    other = threading.Thread(target=bench.create, args=("/la/b",))

    def commit_beside_another(transaction: Transaction, seconds: float) -> Committed | Conflict:
        monkeypatch.setattr(bench.store, "commit", hold_back)
        other.start()
        assert begun.wait(30)
        return commit(transaction, seconds)

    def hold_back(transaction: Transaction, seconds: float) -> Committed | Conflict:
        begun.set()
        assert over.wait(30)
        return commit(transaction, seconds)

    begun, over = threading.Event(), threading.Event()
    monkeypatch.setattr(bench.store, "commit", commit_beside_another)
    made = create_later(bench, "/la/a", left.append)
    assert left == []
    assert bench.replica.is_known(made.revision)
    over.set()
    other.join(60)
    assert bench.names() == {"a", "b"}


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_that_another_thread_took_is_applied_by_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The other thread takes it with its own commit, or though its own commit failed, and is slow
    to apply it.
    """
    commit, left = bench.store.commit, list[Callable[[], None]]()
    taken, go_on = threading.Event(), threading.Event()

    def take(_: Transaction, __: float) -> Committed | Conflict:
        if fails:
            raise StoreUnreachable("others wrote for all of the time")
        return commit(Transaction((), (Put(kafka_key("x"), b"theirs"),)), 30)

    def hold(_: object) -> None:
        taken.set()
        assert go_on.wait(30)

    def write() -> None:
        with suppress(KdirError):
            bench.writer.put_facts([Put(kafka_key("x"), b"theirs")])

    def commit_before_another(transaction: Transaction, seconds: float) -> Committed | Conflict:
        done = commit(transaction, seconds)
        monkeypatch.setattr(bench.store, "commit", take)
        other.start()
        assert taken.wait(30)
        return done

    other = threading.Thread(target=write)
    bench.replica.subscribe(hold)
    monkeypatch.setattr(bench.store, "commit", commit_before_another)
    create_later(bench, "/la/a", left.append)
    assert len(left) == 1
    go_on.set()
    left[0]()
    assert bench.names() == {"a"}
    other.join(60)


def test_below_a_quota_nothing_is_left_for_later(bench: Bench) -> None:
    left: list[Callable[[], None]] = []
    bench.writer.commit_command(
        CreateDirectory(path=path("/la/d"), policies=Policies(max_topics=9)), timeout_seconds=30
    )
    create_later(bench, "/la/d/a", left.append)
    assert left == []
    assert bench.names("/la/d") == {"a"}


def test_a_bug_in_applying_later_leads_to_a_reload_not_to_silence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, left = Snapshot.apply, list[Callable[[], None]]()

    def broken(*_: object) -> Snapshot:
        monkeypatch.setattr(Snapshot, "apply", apply)
        raise ZeroDivisionError("a bug")

    create_later(bench, "/la/lost", left.append)
    monkeypatch.setattr(Snapshot, "apply", broken)
    left[0]()
    eventually(lambda: bench.names() == {"lost"})
    assert bench.replica.reloads == 1
    eventually(lambda: bench.replica.state.value == "serving")
    assert bench.create("/la/after").plan.entry is not None
    assert bench.names() == {"lost", "after"}
    assert bench.replica.reloads == 1


def test_a_thread_that_ends_while_it_applies_leads_to_a_reload(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Snapshot.apply

    def give_up(*_: object) -> Snapshot:
        monkeypatch.setattr(Snapshot, "apply", apply)
        raise SystemExit

    monkeypatch.setattr(Snapshot, "apply", give_up)
    with pytest.raises(SystemExit):
        bench.create("/la/lost")
    eventually(lambda: bench.names() == {"lost"})
    assert bench.replica.reloads == 1


def test_after_a_replica_has_stopped_nothing_is_applied_later(bench: Bench) -> None:
    applied, left = note_revisions(bench), list[Callable[[], None]]()
    create_later(bench, "/la/a", left.append)
    bench.replica.stop()  # its thread may still apply it
    before = list(applied)
    left[0]()
    assert applied == before


def note_revisions(bench: Bench) -> list[int]:
    """Returns the list to which the revision of each commit is added when it is applied."""
    applied: list[int] = []
    bench.replica.subscribe(lambda one: applied.append(one.revision))
    return applied


def create_later(
    bench: Bench, text: str, later: Callable[[Callable[[], None]], None]
) -> CommitResult:
    command = CreateTopic(path=path(text))
    return bench.writer.commit_command(command, timeout_seconds=30, later=later)


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
