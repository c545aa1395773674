"""What a watch of a sqlite file takes from memory, and when it looks at the file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from directory.store.base import Committed, CommittedWrites, Put, Transaction
from directory.store.sqlite.store import SqliteStore
from directory.store.sqlite.watch import CommitSignal
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


def test_no_more_than_some_are_held() -> None:
    signal = CommitSignal()
    for number in range(2, 1_000):
        signal.notify(f"id{number - 1}", [commit(number)])
    assert signal.following(1, "id1") == []
    assert signal.following(998, "id998") == [commit(999)]


def test_each_revision_comes_once_and_in_order_whoever_writes(tmp_path: Path) -> None:
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
