"""What a watch of a sqlite file takes from memory, and when it looks at the file."""

from __future__ import annotations

import math
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

import pytest

from directory.store.base import (
    Committed,
    CommittedWrites,
    HistoryCompacted,
    Put,
    StoreUnreachable,
    Transaction,
)
from directory.store.sqlite import watch as watching
from directory.store.sqlite.file_events import subscribe
from directory.store.sqlite.store import SqliteStore
from directory.store.sqlite.watch import (
    AGAIN_SECONDS,
    POLL_SECONDS,
    REPORTED_SECONDS,
    CommitSignal,
    SqliteWatch,
)
from tests.support.waiting import eventually


def commit(revision: int, size: int = 1) -> CommittedWrites:
    return CommittedWrites(revision, f"id{revision}", (Put(b"k", b"v" * size),))


def test_commits_that_follow_each_other_are_held() -> None:
    signal = CommitSignal()
    signal.notify("id1", [commit(2), commit(3)])
    signal.notify("id3", [commit(4)])
    assert signal.following(1, "id1") == [commit(2), commit(3), commit(4)]
    assert signal.following(3, "id3") == [commit(4)]
    assert signal.following(4, "id4") == []
    assert signal.is_newest("id4")
    assert not signal.is_newest("id3")


def test_commits_after_another_process_wrote_are_read_from_the_file() -> None:
    signal = CommitSignal()
    signal.notify("id1", [commit(2)])
    signal.notify("other", [commit(4)])
    assert signal.following(1, "id1") == [commit(2)]
    assert signal.following(2, "id2") == []
    assert not signal.is_newest("id2")


def test_commits_of_another_incarnation_are_read_from_the_file() -> None:
    """Its revisions are higher; its commits have other ids."""
    signal = CommitSignal()
    signal.notify("id1", [commit(2)])
    assert signal.following(1, "restored") == []


def test_large_commits_are_read_from_the_file() -> None:
    signal = CommitSignal()
    signal.notify("id1", [commit(2), commit(3, 100_000), commit(4)])
    assert signal.following(1, "id1") == [commit(2)]
    assert signal.following(2, "id2") == []
    assert not signal.is_newest("id2")
    assert signal.following(3, "id3") == [commit(4)]


def test_after_something_else_than_a_commit_the_file_is_looked_at() -> None:
    signal = CommitSignal()
    signal.notify("id1", [commit(2)])
    signal.notify()
    assert not signal.is_newest("id2")


def test_what_is_reported_right_after_a_commit_of_ours_is_passed_over() -> None:
    now = 100.0
    signal = CommitSignal(lambda: now)
    signal.notify("id1", [commit(2)])
    signal.report()
    assert signal.is_newest("id2")
    assert signal.settled_at == now + POLL_SECONDS
    now = signal.settled_at
    signal.report()
    assert not signal.is_newest("id2")
    assert signal.again_at == now + AGAIN_SECONDS


def test_a_commit_that_its_thread_takes_wakes_nobody_and_one_that_it_leaves_does() -> None:
    entered = threading.Event()

    def clock() -> float:
        entered.set()  # by who waits, while it holds the lock that it gives up by waiting
        return time.monotonic()

    signal = CommitSignal(clock)
    signal.join(1)
    count, until = signal.count(), time.monotonic() + 3600
    waiting = threading.Thread(target=lambda: signal.wait(count, until), daemon=True)
    waiting.start()
    assert entered.wait(30)
    signal.hold()
    signal.notify("id1", [commit(2)])
    signal.release("id2")
    waiting.join(0.1)
    assert waiting.is_alive()
    signal.hold()
    signal.notify("id2", [commit(3)])
    signal.release("id2")
    waiting.join(30)
    assert not waiting.is_alive()


def test_no_more_than_some_are_held() -> None:
    signal = CommitSignal()
    for number in range(2, 1_000):
        signal.notify(f"id{number - 1}", [commit(number)])
    assert signal.following(1, "id1") == []
    assert signal.following(998, "id998") == [commit(999)]


@pytest.fixture(params=["reported", "polled"])
def noticing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns how writes of others are noticed: by that alone."""
    if request.param == "polled":
        monkeypatch.setattr(watching, "subscribe", lambda *_: None)
    elif sys.platform != "linux":
        pytest.skip("reported on Linux only")
    monkeypatch.setattr(watching, "REPORTED_SECONDS", math.inf)
    return str(request.param)


def put(store: SqliteStore, key: bytes) -> Committed:
    done = store.commit(Transaction((), (Put(key, b"v"),)))
    assert isinstance(done, Committed)
    return done


@pytest.mark.usefixtures("noticing")
def test_a_commit_of_another_store_object_ends_the_wait(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with closing(SqliteStore(file, "la")) as ours, closing(SqliteStore(file, "la")) as theirs:
        loading = ours.load()
        with closing(ours.watch(loading.revision, loading.commit_id)) as watch:
            assert list(watch.next(0.1)) == []
            answers: list[CommittedWrites] = []
            thread = threading.Thread(target=lambda: answers.extend(watch.next(60)))
            thread.start()
            done = put(theirs, b"k")
            thread.join(30)
            assert [one.revision for one in answers] == [done.revision]


@pytest.mark.usefixtures("noticing")
def test_a_commit_of_another_store_object_right_after_ours_is_seen(tmp_path: Path) -> None:
    """Where writes are reported, its report is passed over."""
    file = tmp_path / "store.db"
    with closing(SqliteStore(file, "la")) as ours, closing(SqliteStore(file, "la")) as theirs:
        loading = ours.load()
        with closing(ours.watch(loading.revision, loading.commit_id)) as watch:
            assert list(watch.next(0.1)) == []
            expected = [put(ours, b"a").revision, put(theirs, b"b").revision]
            seen: list[int] = []
            while len(seen) < len(expected):
                found = watch.next(30)
                assert found
                seen += [one.revision for one in found]
    assert seen == expected


_VERY_LONG = 3600.0
"""Longer than any test waits: a commit that wakes nobody is not found by the end of the time."""


class Following:
    """A thread that follows a watch, and what it and those who commit took from it, in order."""

    def __init__(self, watch: SqliteWatch) -> None:
        self.watch = watch
        self.seen: list[int] = []
        self.returned: list[int] = []
        """Of ``seen``, what ``next`` returned."""
        self.raised: list[Exception] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self.watch.is_waiting)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.watch.close()
        self._thread.join(30)

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                changes = self.watch.next(_VERY_LONG)
            except RuntimeError as error:
                self.raised.append(error)
                continue
            self.take(changes)
            self.returned += [one.revision for one in changes]

    def take(self, changes: Sequence[CommittedWrites]) -> None:
        self.seen += [one.revision for one in changes]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "store.db", "la")) as store:
        yield store


@pytest.fixture
def following(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    """Yields a thread that waits and does not look at the file unless it is woken."""
    monkeypatch.setattr(watching, "subscribe", lambda *_: None)
    monkeypatch.setattr(watching, "POLL_SECONDS", math.inf)
    loading = store.load()
    with (
        closing(store.watch(loading.revision, loading.commit_id)) as watch,
        Following(watch) as following,
    ):
        yield following


def test_who_commits_takes_it_in_the_place_of_the_thread_that_waits(
    store: SqliteStore, following: Following
) -> None:
    with following.watch.giving_own_to(following.take):
        first = put(store, b"a")
    assert following.seen == [first.revision]
    second = put(store, b"b")
    eventually(lambda: following.seen == [first.revision, second.revision])
    assert following.returned == [second.revision]


def test_while_nobody_waits_a_commit_is_left_for_who_comes(store: SqliteStore) -> None:
    loading = store.load()
    with closing(store.watch(loading.revision, loading.commit_id)) as watch:
        taken: list[CommittedWrites] = []
        with watch.giving_own_to(taken.extend):
            done = put(store, b"a")
        assert taken == []
        assert [one.revision for one in watch.next(30)] == [done.revision]
        with watch.giving_own_to(taken.extend):
            done = put(store, b"b")
        assert taken == []
        assert [one.revision for one in watch.next(30)] == [done.revision]


def test_a_commit_while_another_is_taken_comes_after_it(
    store: SqliteStore, following: Following
) -> None:
    def take_slowly(changes: Sequence[CommittedWrites]) -> None:
        with following.watch.giving_own_to(following.take):
            revisions.append(put(store, b"b").revision)
        following.take(changes)

    revisions: list[int] = []
    with following.watch.giving_own_to(take_slowly):
        revisions.insert(0, put(store, b"a").revision)
    eventually(lambda: following.seen == sorted(revisions))
    assert len(revisions) == 2


def test_a_commit_of_another_before_ours_is_read_from_the_file(
    tmp_path: Path, following: Following, store: SqliteStore
) -> None:
    with (
        closing(SqliteStore(tmp_path / "store.db", "la")) as theirs,
        following.watch.giving_own_to(following.take),
    ):
        expected = [put(theirs, b"b").revision, put(store, b"a").revision]
    eventually(lambda: following.seen == expected)


@pytest.mark.usefixtures("noticing")
def test_a_commit_of_another_store_right_after_an_own_commit_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with closing(SqliteStore(file, "la")) as ours, closing(SqliteStore(file, "la")) as theirs:
        loading = ours.load()
        watch = ours.watch(loading.revision, loading.commit_id)
        with closing(watch), Following(watch) as following:
            expected: list[int] = []
            for number in range(20):
                with watch.giving_own_to(following.take):
                    expected.append(put(ours, b"a%d" % number).revision)
                expected.append(put(theirs, b"b%d" % number).revision)
                eventually(lambda: following.seen == expected)


def test_with_two_watches_both_are_woken(store: SqliteStore, following: Following) -> None:
    loading = store.load()
    other = store.watch(loading.revision, loading.commit_id)
    with closing(other), Following(other) as also, following.watch.giving_own_to(following.take):
        done = put(store, b"a")
        eventually(lambda: also.seen == following.seen == [done.revision])


def test_however_many_commit_each_commit_is_taken_once_and_in_order(tmp_path: Path) -> None:
    file, each = tmp_path / "store.db", 40
    with closing(SqliteStore(file, "la")) as ours, closing(SqliteStore(file, "la")) as theirs:
        loading = ours.load()
        watch = ours.watch(loading.revision, loading.commit_id)
        with closing(watch), Following(watch) as following:

            def commit_own(thread: int) -> None:
                for number in range(each):
                    with watch.giving_own_to(following.take):
                        put(ours, b"%d-%d" % (thread, number))

            def commit_others() -> None:
                for number in range(each):
                    put(theirs, b"other-%d" % number)

            threads = [threading.Thread(target=commit_own, args=(one,)) for one in range(4)]
            threads.append(threading.Thread(target=commit_others))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            eventually(lambda: len(following.seen) >= 5 * each)
    assert following.seen == list(range(loading.revision + 1, loading.revision + 1 + 5 * each))


def put_over(file: Path, backup: Path) -> None:
    for leftover in ("-wal", "-shm"):
        file.with_name(file.name + leftover).unlink()
    backup.rename(file)


def copy_over(file: Path, backup: Path) -> None:
    for leftover in ("-wal", "-shm"):
        file.with_name(file.name + leftover).unlink()
    file.unlink()
    shutil.copyfile(backup, file)


def restore_through_sqlite(file: Path, backup: Path) -> None:
    with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(file)) as target:
        source.backup(target)


def put_another_directory_there(file: Path, backup: Path) -> None:
    file.parent.rename(file.parent.with_name("before"))
    file.parent.mkdir()
    backup.rename(file)


@pytest.mark.parametrize(
    "restore", [put_over, copy_over, restore_through_sqlite, put_another_directory_there]
)
@pytest.mark.usefixtures("noticing")
def test_S11_a_restore_ends_the_wait(tmp_path: Path, restore: Callable[[Path, Path], None]) -> None:
    file, backup = tmp_path / "data" / "store.db", tmp_path / "backup.db"
    file.parent.mkdir()
    with closing(SqliteStore(file, "la")) as store:
        put(store, b"kept")
        with closing(sqlite3.connect(file)) as source:
            source.execute("VACUUM INTO ?", (str(backup),))
        lost = put(store, b"lost")
        with closing(store.watch(lost.revision, lost.commit_id)) as watch:
            assert list(watch.next(0.1)) == []
            ended = threading.Event()

            def wait() -> None:
                while not ended.is_set():
                    try:
                        watch.next(60)
                    except HistoryCompacted:
                        ended.set()
                    except StoreUnreachable:  # it looked while nothing was there
                        time.sleep(0.01)

            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            restore(file, backup)
            assert ended.wait(30)
            thread.join(30)


def test_an_idle_watch_looks_at_the_file_as_often_as_it_must(
    tmp_path: Path, noticing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "REPORTED_SECONDS", REPORTED_SECONDS)
    with closing(SqliteStore(tmp_path / "store.db", "la")) as store:
        done = put(store, b"k")
        with closing(store.watch(done.revision, done.commit_id)) as watch:
            looks = 0
            look = watch._poll

            def counted() -> list[CommittedWrites]:
                nonlocal looks
                looks += 1
                return look()

            watch._poll = counted  # type: ignore[method-assign]
            begin = time.monotonic()
            assert list(watch.next(0.5)) == []
            seconds = time.monotonic() - begin
    rest, least = (REPORTED_SECONDS, 1) if noticing == "reported" else (POLL_SECONDS, 3)
    assert least <= looks <= seconds / rest + 3


def test_a_directory_that_is_gone_is_reported_once_and_not_any_more(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    called = threading.Event()
    subscription = subscribe(directory, ["store.db"], called.set)
    if subscription is None:
        pytest.skip("nothing is reported here")
    assert subscription.is_active
    directory.rmdir()
    assert called.wait(30)
    eventually(lambda: not subscription.is_active)
    subscription.close()


def test_files_of_other_names_and_what_comes_after_the_end_are_not_reported(
    tmp_path: Path,
) -> None:
    called: list[str] = []
    subscriptions = [
        subscribe(tmp_path, [name], lambda name=name: called.append(name))  # type: ignore[misc]
        for name in ("ours", "closed", "last")
    ]
    if None in subscriptions:
        pytest.skip("nothing is reported here")
    for one in subscriptions[1:2]:
        assert one is not None
        one.close()
        one.close()
    for name in ("closed", "other", "ours", "last"):
        (tmp_path / name).write_bytes(b"x")
    eventually(lambda: set(called) >= {"ours", "last"})
    assert set(called) == {"ours", "last"}
    for one in subscriptions:
        assert one is not None
        one.close()


@pytest.mark.usefixtures("noticing")
def test_each_revision_comes_once_and_in_order_for_all_writers(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with closing(SqliteStore(file, "la")) as ours, closing(SqliteStore(file, "la")) as theirs:
        loading = ours.load()
        with closing(ours.watch(loading.revision, loading.commit_id)) as watch:
            seen: list[CommittedWrites] = []
            expected: list[tuple[int, str]] = []
            for number in range(60):
                store = theirs if number % 3 == 0 else ours
                size = 100_000 if number % 5 == 0 else 1
                done = store.commit(Transaction((), (Put(b"%d" % number, b"v" * size),)))
                assert isinstance(done, Committed)
                expected.append((done.revision, done.commit_id))
                if number % 7 == 0:
                    seen += eventually(lambda: watch.next(1.0))
            while len(seen) < len(expected):
                seen += eventually(lambda: watch.next(1.0))
    assert [(one.revision, one.commit_id) for one in seen] == expected
    assert [one.writes[0].key for one in seen] == [b"%d" % number for number in range(60)]
