"""Transactions that wait for a sqlite file are committed together, as if one after the other."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

import pytest

from directory.store.base import (
    Committed,
    Conflict,
    KeyEquals,
    Put,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
)
from directory.store.sqlite.store import SqliteStore
from directory.store.sqlite.transaction import SqliteTransaction
from tests.support.waiting import eventually

COUNT = 8
Outcome = Committed | Conflict


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "store.db", "la")) as store:
        yield store


@contextmanager
def blocked(file: Path) -> Iterator[None]:
    """Holds the write lock of the file for the time of the block, as another process would."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def together(store: SqliteStore, transactions: list[Transaction]) -> list[Future[Outcome]]:
    """Commits them once all are queued."""
    with ThreadPoolExecutor(len(transactions)) as threads:
        with blocked(Path(store.describe().removeprefix("sqlite:///"))):
            futures: list[Future[Outcome]] = []
            for number, one in enumerate(transactions, 1):
                futures.append(threads.submit(store.commit, one, 30))
                eventually(lambda number=number: store.queued == number)  # type: ignore[misc]
        return futures


def put(number: int) -> Put:
    return Put(b"key/%d" % number, b"v")


def test_each_gets_a_revision_of_its_own_and_they_are_seen_at_once(store: SqliteStore) -> None:
    loading = store.load()
    with closing(store.watch(loading.revision, loading.commit_id)) as watch:
        pairs = [(put(one), put(100 + one)) for one in range(COUNT)]
        done = together(store, [Transaction((), pair) for pair in pairs])
        found: list[Committed] = []
        for one in done:
            outcome = one.result()
            assert isinstance(outcome, Committed)
            found.append(outcome)
        changes = eventually(lambda: watch.next(1.0))
    revisions = [one.revision for one in changes]
    assert revisions == list(range(loading.revision + 1, loading.revision + COUNT + 1))
    assert {one.revision: one.commit_id for one in found} == {
        one.revision: one.commit_id for one in changes
    }
    for number, outcome in enumerate(found):
        (change,) = [one for one in changes if one.revision == outcome.revision]
        assert change.writes == pairs[number]


@pytest.mark.parametrize("guard", [KeyEquals(b"key/1", None), UnchangedSince(b"key/", 0)])
def test_guards_hold_on_what_others_wrote_before(
    store: SqliteStore, guard: KeyEquals | UnchangedSince
) -> None:
    done = together(store, [Transaction((guard,), (put(1),))] * COUNT)
    outcomes = [one.result() for one in done]
    (made,) = [one for one in outcomes if isinstance(one, Committed)]
    refused = [one for one in outcomes if isinstance(one, Conflict)]
    assert [one.guard for one in refused] == [guard] * (COUNT - 1)
    assert {one.revision for one in refused} == {made.revision}
    assert store.load().revision == made.revision


def test_where_one_fails_none_is_made_and_each_gets_the_error(store: SqliteStore) -> None:
    before = store.load().revision
    write, count = SqliteTransaction.write, iter(range(COUNT))

    def failing(change: SqliteTransaction, writes: tuple[Put, ...]) -> None:
        if next(count) == COUNT - 1:
            raise sqlite3.OperationalError("disk I/O error")
        write(change, writes)

    with mock.patch.object(SqliteTransaction, "write", failing):
        done = together(store, [Transaction((), (put(one),)) for one in range(COUNT)])
    for one in done:
        with pytest.raises(StoreUnreachable, match="disk I/O error"):
            one.result()
    assert store.load().revision == before
    assert isinstance(store.commit(Transaction((), (put(1),))), Committed)


def test_a_batch_is_bounded_also_by_what_was_queued_before(store: SqliteStore) -> None:
    batches: Counter[SqliteTransaction] = Counter()
    write = SqliteTransaction.write

    def counted(change: SqliteTransaction, writes: tuple[Put, ...]) -> None:
        batches[change] += len(writes)
        write(change, writes)

    rows = [tuple(put(1_000 * one + row) for row in range(600)) for one in range(COUNT)]
    with mock.patch.object(SqliteTransaction, "write", counted):
        done = together(store, [Transaction((), some) for some in rows])
        revisions = {one.result().revision for one in done}
    assert len(revisions) == COUNT
    assert batches.total() == 600 * COUNT
    assert max(batches.values()) <= 1_200, "two of 600 are beyond the bound of 1,000"


def test_who_waits_for_too_long_gets_an_error_and_nothing_is_made(
    store: SqliteStore, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(3) as threads, blocked(tmp_path / "store.db"):
        first = threads.submit(store.commit, Transaction((), (put(1),)), 30)
        eventually(lambda: store.queued == 1)
        with pytest.raises(StoreUnreachable, match=r"others wrote for 0\.1 s"):
            store.commit(Transaction((), (put(2),)), 0.1)
        assert store.queued == 1
        assert not first.done()
    assert isinstance(first.result(), Committed)
    assert [row.key for row in store.read(b"key/")] == [b"key/1"]


# -- killed at every step -----------------------------------------------------------------------

_STEPS = [
    *(f"{when} {number}" for number in (1, 2, 5, COUNT) for when in ("before", "after")),
    "before note",
    "after note",
]
_KILLED = """
import os, signal, sys, threading
from contextlib import closing
from pathlib import Path
from unittest import mock
from directory.store.base import Put, Transaction
from directory.store.sqlite.database_file import DatabaseFile
from directory.store.sqlite.store import SqliteStore
from directory.store.sqlite.transaction import SqliteTransaction
from tests.unit.store.test_group_commit import COUNT, together

file, when, what = sys.argv[1:]
store = SqliteStore(Path(file), "la")
seen = 0

def killing(function, is_meant):
    def run(*arguments):
        global seen
        seen += 1
        if when == "before" and is_meant():
            os.kill(os.getpid(), signal.SIGKILL)
        answer = function(*arguments)
        if when == "after" and is_meant():
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return run

def make(number):
    return Transaction((), (Put(b"a/%d" % number, b"v"), Put(b"b/%d" % number, b"v")))

for number in range(3):
    print(number, store.commit(make(number)).revision, flush=True)
if what == "note":
    meant = DatabaseFile, "committed", lambda: True
else:
    meant = SqliteTransaction, "write", lambda: seen == int(what)
kind, name, is_meant = meant
with mock.patch.object(kind, name, killing(getattr(kind, name), is_meant)):
    for number, one in enumerate(together(store, [make(3 + one) for one in range(COUNT)]), 3):
        print(number, one.result().revision, flush=True)
"""


@pytest.mark.parametrize("step", _STEPS)
def test_killed_at_any_step_all_or_none_of_them_are_made(tmp_path: Path, step: str) -> None:
    file = tmp_path / "store.db"
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", _KILLED, str(file), *step.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    acknowledged = dict(map(str.split, ended.stdout.splitlines()))
    with closing(SqliteStore(file, "la")) as store:
        rows = {row.key: row.revision for row in store.read(b"")}
        made = [int(key[2:]) for key in rows if key.startswith(b"a/")]
        is_committed = step.endswith("note")
        assert sorted(made) == list(range(3 + COUNT if is_committed else 3))
        revisions = [rows[b"a/%d" % number] for number in made]
        assert revisions == [rows[b"b/%d" % number] for number in made]
        assert sorted(revisions) == list(range(min(revisions), min(revisions) + len(made)))
        assert {number: str(rows[b"a/%d" % int(number)]) for number in acknowledged} == acknowledged
        with closing(store.watch(0, "")) as watch:
            seen = [one.revision for one in eventually(lambda: watch.next(1.0))]
        assert seen == sorted(revisions)
