"""Transactions of a sqlite store, from the guards to the log, and their group commit.

Group commit: transactions that are queued while one thread commits are committed by the next, in
one transaction of sqlite and with one wait for the disk. Each has a revision of its own, and its
guards are checked as if one came after the other. If the transaction of sqlite fails, all of them
fail.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, assert_never

from directory.store.base import (
    Committed,
    CommittedWrites,
    Conflict,
    Delete,
    Guard,
    KeyEquals,
    Put,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
    Write,
)
from directory.store.event_rows import random_bits
from directory.store.schema import Head

__all__ = ["GroupCommit", "SqliteTransaction", "key_range"]

_KEYS_AT_ONCE: Final = 100
"""Guarded keys that are read by one statement; any further ones are read one by one."""
_ROWS_AT_ONCE: Final = 1_000
"""Rows from which a batch takes no further transaction: each of its callers waits for all of it."""
_PRUNE_WRITES: Final = 4_000  # about this many a commit, so that none is slow


def key_range(prefix: bytes, column: str = "key") -> tuple[str, tuple[bytes, ...]]:
    """Returns the condition, with its parameters, for keys that begin with the prefix."""
    stem = prefix.rstrip(b"\xff")
    if not stem:  # no key is above all of these
        return f"{column} >= ?", (prefix,)
    return f"{column} >= ? AND {column} < ?", (prefix, stem[:-1] + bytes([stem[-1] + 1]))


class SqliteTransaction:
    """Transaction under way. ``history_writes``: number of writes that are kept for watches."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        head: Head,
        history_writes: int,
    ) -> None:
        self.connection: Final = connection
        self.head = head
        """Commit that the transaction builds on; once it has written, its own newest commit."""
        self.made: Final[list[CommittedWrites]] = []
        """Commits that the transaction has written, one per revision."""
        self._history_writes: Final = history_writes

    def commit(self, transaction: Transaction) -> Committed | Conflict:
        """Writes the next revision, if the guards hold after the revisions before it."""
        broken = self.first_broken(transaction.guards)
        if broken is not None:
            return Conflict(broken, self.head.revision)
        self.write(transaction.writes)
        return Committed(self.head.revision, self.head.commit_id)

    def first_broken(self, guards: Sequence[Guard]) -> Guard | None:
        """Returns the first guard that does not hold."""
        wanted = [one.key for one in guards if isinstance(one, KeyEquals)][:_KEYS_AT_ONCE]
        found: dict[bytes, bytes | None] = dict.fromkeys(wanted)
        found.update(self.connection.execute(_select_values(len(wanted)), wanted))
        return next((one for one in guards if not self._holds(one, found)), None)

    def _holds(self, guard: Guard, found: Mapping[bytes, bytes | None]) -> bool:
        """True if a guard holds. ``found``: values that were read, by key; None: there is no such
        key.
        """
        match guard:
            case KeyEquals(key, value):
                if key in found:
                    return found[key] == value
                row = self.connection.execute(_select_values(1), (key,)).fetchone()
                return (None if row is None else row[1]) == value
            case UnchangedSince(prefix, revision):
                return not _written_after(self.connection, prefix, revision, self.head)
            case _:
                assert_never(guard)

    def write(self, writes: tuple[Write, ...]) -> None:
        """Writes the next revision."""
        connection, head = self.connection, self.head
        revision, commit_id = head.revision + 1, f"{random_bits():016x}"
        puts: list[tuple[bytes, bytes, int]] = []
        removes: list[tuple[bytes]] = []
        log: list[tuple[int, int, bytes, bytes | None]] = []
        for position, write in enumerate(writes):
            match write:
                case Put(key, value):
                    puts.append((key, value, revision))
                    log.append((revision, position, key, value))
                case Delete(key):
                    removes.append((key,))
                    log.append((revision, position, key, None))
                case _:
                    assert_never(write)
        connection.executemany("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", puts)
        if removes:
            connection.executemany("DELETE FROM kv WHERE key = ?", removes)
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", log)
        after = Head(revision, commit_id, head.writes_total + len(writes), head.incarnation)
        connection.execute(
            "INSERT INTO commits VALUES (?, ?, ?)", (revision, commit_id, after.writes_total)
        )
        self._prune(after)
        self.head = after
        self.made.append(CommittedWrites(revision, commit_id, writes))

    def _prune(self, head: Head) -> None:
        """Removes the oldest commits, but none whose writes are within the bound. Removes some
        ``_PRUNE_WRITES`` writes at a time, more than most commits add, so that a backlog shrinks.
        """
        connection = self.connection
        (begin,) = connection.execute(
            "SELECT writes_total FROM commits ORDER BY revision LIMIT 1"
        ).fetchone()
        spare = head.writes_total - self._history_writes - begin
        if spare <= 0:
            return
        floor = None
        for revision, total in connection.execute(
            "SELECT revision, writes_total FROM commits ORDER BY revision LIMIT -1 OFFSET 1"
        ):
            if total - begin > spare:
                break
            floor = revision
            if total - begin >= _PRUNE_WRITES:
                break
        if floor is not None:
            connection.execute("DELETE FROM log WHERE revision <= ?", (floor,))
            connection.execute("DELETE FROM commits WHERE revision < ?", (floor,))

    def announced_as(self, key: bytes, token: str) -> bool:
        """True if an announced key belongs to this token."""
        query = "SELECT 1 FROM announced WHERE key = ? AND token = ?"
        return self.connection.execute(query, (key, token)).fetchone() is not None

    def forget_announced(self, keys: Sequence[bytes]) -> None:
        """Removes announced keys, with their tokens."""
        self.connection.executemany("DELETE FROM announced WHERE key = ?", [(key,) for key in keys])
        self.write(tuple(Delete(key) for key in keys))


@cache
def _select_values(count: int) -> str:
    return f"SELECT key, value FROM kv WHERE key IN ({', '.join('?' * count)})"  # noqa: S608 - our own text


def _written_after(
    connection: sqlite3.Connection, prefix: bytes, revision: int, head: Head
) -> bool:
    """True if a key with the prefix was put after the revision. The log is read: a directory may
    hold a million keys, while the changes since a snapshot are few. A key that was removed since
    does not count. A revision of another incarnation, or pruned from the log, counts as changed:
    then plan on a newer snapshot.
    """
    (oldest,) = connection.execute("SELECT min(revision) FROM commits").fetchone()
    if not oldest <= revision <= head.revision:
        return True
    where, bounds = key_range(prefix, "kv.key")
    query = f"""SELECT 1 FROM log CROSS JOIN kv ON kv.key = log.key
        WHERE log.revision > ? AND {where} LIMIT 1"""  # noqa: S608 - our own text
    return connection.execute(query, (revision, *bounds)).fetchone() is not None


@dataclass(slots=True, eq=False)
class _Queued:
    """Transaction that waits to be committed, and its outcome."""

    transaction: Transaction
    outcome: Committed | Conflict | None = None
    trouble: BaseException | None = None
    is_over: bool = False


class GroupCommit:
    """Group commit of the transactions of one process to one file. Thread-safe."""

    def __init__(
        self,
        changing: Callable[[float], AbstractContextManager[SqliteTransaction]],
        path: Path,
        clock: Callable[[], float],
    ) -> None:
        """``changing`` begins a transaction of sqlite, in at most the given seconds, and commits it
        at the end of its block.
        """
        self._changing: Final = changing
        self._path: Final = path
        self._clock: Final = clock
        self._queue: Final[deque[_Queued]] = deque()
        """Transactions that no thread commits yet, in the order in which they came."""
        self._write_lock: Final = threading.Lock()
        """Held by the thread that commits the queue: its own transaction and those of others."""

    @property
    def queued(self) -> int:
        """Number of transactions that no thread commits yet."""
        return len(self._queue)

    def commit(self, transaction: Transaction, timeout_seconds: float) -> Committed | Conflict:
        """Commits a transaction, together with others or in the batch of another thread.

        Raises:
            StoreUnreachable: effect unknown, or others wrote for all of the time.
        """
        deadline = self._clock() + timeout_seconds
        mine = _Queued(transaction)
        self._queue.append(mine)
        if self._write_lock.acquire(timeout=max(0.0, timeout_seconds)):
            try:
                while not mine.is_over:
                    self._commit_batch(mine, deadline - self._clock())
            finally:
                self._write_lock.release()
        elif not mine.is_over:
            with suppress(ValueError):
                self._queue.remove(mine)  # if absent, it is being committed: effect unknown
            raise StoreUnreachable(f"{self._path}: others wrote for {timeout_seconds:g} s")
        if (trouble := mine.trouble) is not None:
            kind = type(trouble) if isinstance(trouble, StoreUnreachable) else StoreUnreachable
            raise kind(str(trouble)) from trouble
        assert mine.outcome is not None  # noqa: S101 - it is over
        return mine.outcome

    def _commit_batch(self, mine: _Queued, seconds: float) -> None:
        """Commits the queued transactions, up to a bound, in one transaction of sqlite: each at a
        revision of its own, under its guards, as if one after the other. ``mine`` may be beyond the
        bound.

        Raises:
            StoreUnreachable: ``mine`` failed, with all others of its batch.
        """
        taken: list[_Queued] = []
        try:
            with self._changing(seconds) as change:
                rows = 0
                while rows < _ROWS_AT_ONCE:
                    try:
                        one = self._queue.popleft()
                    except IndexError:
                        break  # a thread that waited too long removed its own
                    taken.append(one)
                    rows += len(one.transaction.writes)
                    one.outcome = change.commit(one.transaction)
        except BaseException as trouble:
            for one in taken:
                one.trouble = trouble
            if taken and mine not in taken and isinstance(trouble, Exception):
                return  # theirs failed: mine is in the next batch
            with suppress(ValueError):
                self._queue.remove(mine)
            raise
        finally:
            for one in taken:
                one.is_over = True
