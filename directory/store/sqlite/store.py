"""The embedded store: one sqlite file a cluster, shared by any number of processes of one host.

Not for network file systems, although this is not checked: sqlite's write-ahead log needs shared
memory. Refuses databases in memory, since a store must outlive its process.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from directory.namespace.keys import role_key
from directory.store.base import (
    FILLED_FROM,
    Committed,
    Conflict,
    Guard,
    Identity,
    IncompatibleStore,
    KeyEquals,
    Put,
    Row,
    StoreIsSealed,
    StoreUnreachable,
    Transaction,
)
from directory.store.identity import refuse_other_revision, refuse_other_seal
from directory.store.schema import (
    Head,
    begin_incarnation,
    head_and_seal_of,
    head_of,
    sealed_of,
    trim_log,
)
from directory.store.sqlite.database_file import (
    BUSY_SECONDS,
    DatabaseFile,
    away_on_error,
    is_directory,
)
from directory.store.sqlite.ephemeral_keys import (
    LivenessFile,
    SqliteAnnouncement,
    announced,
    note,
    remove_strays,
    unannounced,
)
from directory.store.sqlite.transaction import GroupCommit, SqliteTransaction, key_range
from directory.store.sqlite.watch import CommitSignal, SqliteWatch
from directory.store.transaction_limits import Limits, batches_to_fill

__all__ = ["HISTORY_WRITES", "LIMITS", "SqliteStore", "database_path"]

LIMITS: Final = Limits(max_writes=20_000, max_bytes=16 * 1024 * 1024)
HISTORY_WRITES: Final = 100_000
"""Number of writes that a watch may be behind before it has to load again."""
_PAGE_ROWS: Final = 2_000
_CLEARED_ROWS: Final = 20_000
_FILLED_ROWS: Final = 5_000
_FILLED_BYTES: Final = 8 * 1024 * 1024
_SEALED_SECONDS: Final = 30.0
_REVISION_ROWS: Final = 100
"""Number of rows of one revision in a store that is filled: change events are read in pages by
revision.
"""
_ROLE: Final = re.compile(r"[a-z0-9-]{1,64}")
_SCHEME: Final = "sqlite:///"


def database_path(address: str) -> Path:
    """Returns the file that an address means: ``sqlite:///store.db`` is relative to the working
    directory, ``sqlite:////var/lib/kdir/store.db`` absolute (four slashes, as SQLAlchemy has it).

    Raises:
        IncompatibleStore: no file, one in memory, or one in a directory that cannot be entered.
    """
    text = address.removeprefix(_SCHEME)
    if text == ":memory:":
        raise IncompatibleStore(
            f"store {address}: a store must outlive its process; name a file, sqlite:///file"
        )
    if text == address or not text or text.endswith("/") or set(text) & set("?#%\0\n"):
        raise IncompatibleStore(
            f"store {address}: not of the form sqlite:///relative/file or sqlite:////absolute/file"
        )
    path = Path(text).resolve()  # two names of one file must not have two locks
    rooted = Path(f"/{text}")
    try:
        slash_is_missing = (
            not is_directory(path.parent)
            and is_directory(rooted.parent)
            and not text.startswith("/")
        )
    except OSError as error:
        raise IncompatibleStore(f"{path}: cannot be read ({error.strerror})") from error
    if slash_is_missing:
        raise IncompatibleStore(
            f"store {address}: there is no directory {path.parent}; an absolute path has four"
            f" slashes, {_SCHEME}{rooted}"
        )
    return path


class SqliteStore:
    """Store in one sqlite file (``directory.store.base.Store``)."""

    def __init__(
        self,
        path: Path,
        cluster: str,
        cluster_id: str | None = None,
        sealed: str = "",
        *,
        history_writes: int = HISTORY_WRITES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the file; creates it if missing.

        Raises:
            IncompatibleStore, StoreUnreachable
        """
        self._file: Final = DatabaseFile(path, cluster, cluster_id, sealed, clock=clock)
        self._clock: Final = clock
        self._history_writes: Final = history_writes
        self._news: Final = CommitSignal(clock)
        self._commits: Final = GroupCommit(self._changing, path, clock)

    @classmethod
    def open(
        cls, address: str, cluster: str, cluster_id: str | None = None, sealed: str = ""
    ) -> Self:
        """Returns the store at ``sqlite:///…``.

        Raises:
            IncompatibleStore, StoreUnreachable
        """
        return cls(database_path(address), cluster, cluster_id, sealed)

    @property
    def identity(self) -> Identity:
        return self._file.identity

    @property
    def limits(self) -> Limits:
        return LIMITS

    def refresh_identity(self) -> Identity:
        return self._file.refresh_identity()

    def describe(self) -> str:
        return f"{_SCHEME}{self._file.path}"

    @property
    def queued(self) -> int:
        """Number of transactions that no thread commits yet."""
        return self._commits.queued

    def close(self) -> None:
        self._file.close()
        self._news.notify()

    # -- reading -----------------------------------------------------------------------------

    def load(self, prefixes: Sequence[bytes] = (b"",)) -> SqliteLoading:
        connection, _ = self._file.connect()
        return SqliteLoading(self._file.path, connection, sorted(prefixes))

    def read(self, prefix: bytes, limit: int = 1000, after: bytes = b"") -> Sequence[Row]:
        where, bounds = key_range(prefix)
        with self._file.reading() as connection:
            rows = connection.execute(
                f"SELECT key, value, revision FROM kv WHERE {where} AND key > ?"  # noqa: S608 - our own text
                " ORDER BY key LIMIT ?",
                (*bounds, after, limit),
            ).fetchall()
        return [Row(*row) for row in rows]

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        # Readers of a write-ahead log wait for no writer, and see all that was committed before.
        with self._file.reading(timeout_seconds) as connection:
            return head_of(connection).revision

    def watch(self, after: int, commit_id: str) -> SqliteWatch:
        return SqliteWatch(self._file, self._news, self._clock, after, commit_id)

    # -- writing -----------------------------------------------------------------------------

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        transaction.refuse_invalid(LIMITS)
        return self._commits.commit(transaction, timeout_seconds)

    @contextmanager
    def _changing(self, timeout_seconds: float = BUSY_SECONDS) -> Iterator[SqliteTransaction]:
        """Yields one transaction, committed at its end if something was written in it.

        Raises:
            StoreUnreachable: also when another store was put there.
        """
        file = self._file
        try:
            with file.writing(timeout_seconds) as connection, away_on_error(file.path):
                connection.execute("BEGIN IMMEDIATE")
                before, sealed = head_and_seal_of(connection)
                if sealed:
                    file.notice_sealed(sealed)
                    raise StoreIsSealed(f"{file.path}: {sealed}")
                change = SqliteTransaction(connection, before, self._history_writes)
                yield change
                if change.head is before:
                    connection.execute("ROLLBACK")
                    return
                connection.execute("COMMIT")
                file.committed(change.head)
                # Before the next commit: watches take commits in the order of these calls.
                self._news.notify(before.commit_id, change.made)
        except IncompatibleStore as reason:
            raise StoreUnreachable(str(reason)) from reason

    # -- sealing -----------------------------------------------------------------------------
    # Rows that fill a store are not logged, since they are no changes of a tree. Instead, each
    # batch replaces the log by one commit, so that no watch can resume before the end of the
    # filling.

    def seal(self, why: str, expected: str | None = None) -> None:
        with self._sealing() as connection:
            self._refuse_changed(connection, expected)
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('sealed', ?)", (why,))
            if why.startswith(FILLED_FROM):
                trim_log(connection)
        self._file.refresh_identity()
        self._news.notify()

    def clear(self) -> int:
        cleared = 0
        while True:
            with self._filling() as connection:
                gone = connection.execute(
                    "DELETE FROM kv WHERE key IN (SELECT key FROM kv LIMIT ?)", (_CLEARED_ROWS,)
                ).rowcount
                connection.execute("DELETE FROM announced")
                trim_log(connection)
            cleared += gone
            if gone < _CLEARED_ROWS:
                return cleared

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        filled = 0
        with self._filling():
            pass  # a store that may not be filled is refused even if there is nothing to put in
        for chunk in batches_to_fill(rows, LIMITS, _FILLED_ROWS, _FILLED_BYTES):
            with self._filling() as connection:
                begin = head_of(connection).revision + 1
                connection.executemany(
                    "INSERT OR REPLACE INTO kv VALUES (?, ?, ?)",
                    (
                        (key, value, begin + number // _REVISION_ROWS)
                        for number, (key, value) in enumerate(chunk)
                    ),
                )
                trim_log(connection, begin + (len(chunk) - 1) // _REVISION_ROWS)
            filled += len(chunk)
        return filled

    def unseal(self, expected: str | None = None, at: int | None = None) -> Identity:
        with self._file.writing(_SEALED_SECONDS) as connection, away_on_error(self._file.path):
            self._refuse_changed(connection, expected, at)
            if sealed_of(connection):
                self._file.committed(begin_incarnation(connection, 0, unseal=True))
        identity = self._file.refresh_identity()
        self._news.notify()
        return identity

    def _refuse_changed(
        self, connection: sqlite3.Connection, expected: str | None, at: int | None = None
    ) -> None:
        refuse_other_seal(self.describe(), sealed_of(connection), expected)
        refuse_other_revision(self.describe(), head_of(connection).revision, at)

    @contextmanager
    def _sealing(self) -> Iterator[sqlite3.Connection]:
        with self._file.writing(_SEALED_SECONDS) as connection, away_on_error(self._file.path):
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            head: Head = head_of(connection)
            connection.execute("COMMIT")
            self._file.committed(head)

    @contextmanager
    def _filling(self) -> Iterator[sqlite3.Connection]:
        with self._sealing() as connection:
            sealed = sealed_of(connection)
            if not sealed.startswith(FILLED_FROM):
                raise ValueError(f"{self._file.path}: not sealed to be filled, but {sealed!r}")
            yield connection

    # -- election ----------------------------------------------------------------------------

    def elect(self, role: str, candidate: str) -> SqliteLeadership | None:
        if not _ROLE.fullmatch(role):
            raise ValueError(f"role {role!r}: not of [a-z0-9-]")
        path = self._file.path.with_name(f"{self._file.path.name}-role-{role}")
        with away_on_error(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
        # Fencing: with the lock alone, a holder whose store was replaced could continue to write.
        value = f"{candidate}\n{secrets.token_hex(8)}".encode()
        try:
            self.commit(Transaction((), (Put(role_key(role), value),)))
        except BaseException:
            os.close(descriptor)
            raise
        return SqliteLeadership(self, descriptor, KeyEquals(role_key(role), value))

    # -- announcing --------------------------------------------------------------------------

    def create_ephemeral(
        self, key: bytes, value: bytes, guards: Sequence[Guard] = ()
    ) -> SqliteAnnouncement | Conflict:
        alive: LivenessFile | None = None
        try:
            with self._changing() as change:
                broken = change.first_broken(guards)
                if broken is not None:
                    return Conflict(broken, change.head.revision)
                alive = LivenessFile.create(self._file.path)
                note(change.connection, key, alive.token)
                change.write((Put(key, value),))
        except BaseException:
            if alive is not None:
                alive.remove()
            raise
        return SqliteAnnouncement(self, key, alive)

    @property
    def incarnation(self) -> str:
        """Incarnation of ``identity``."""
        return self.identity.incarnation

    def update_announced(self, key: bytes, token: str, value: bytes) -> bool:
        """Puts an announced key's value, if the key still belongs to this token."""
        with self._changing() as change:
            if not change.announced_as(key, token):
                return False
            change.write((Put(key, value),))
        return True

    def withdraw_announced(self, key: bytes, token: str) -> None:
        """Removes an announced key, if it still belongs to this token."""
        with self._changing() as change:
            if change.announced_as(key, token):
                change.forget_announced([key])

    def remove_expired(self, prefix: bytes = b"") -> int:
        try:
            with self._changing() as change:
                living, dead = announced(change.connection, self._file.path)
                remove_strays(self._file.path, living)
                gone = [*dead, *unannounced(change.connection, prefix)]
                if gone:
                    change.forget_announced(gone)
        except StoreIsSealed:
            return 0  # once it is unsealed they are still dead
        return len(gone)


class SqliteLeadership:
    """Role held by a lock that the kernel frees when the process ends, however it ends."""

    def __init__(self, store: SqliteStore, descriptor: int, guard: KeyEquals) -> None:
        self._store: Final = store
        self._incarnation: Final = store.identity.incarnation
        self._descriptor = descriptor
        self._guard: Final = guard
        self._lock: Final = threading.Lock()

    @property
    def guard(self) -> KeyEquals:
        return self._guard

    def held(self) -> bool:
        """True if the role is held; not after a restore: its fencing key is of another
        incarnation.
        """
        return self._descriptor >= 0 and self._store.identity.incarnation == self._incarnation

    def release(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


class SqliteLoading:
    """Rows of a read transaction: writers continue, and it does not see their commits."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, prefixes: Sequence[bytes]
    ) -> None:
        self._path: Final = path
        self._connection: Final = connection
        self._prefixes: Final = prefixes
        try:
            with away_on_error(path):
                connection.execute("BEGIN")
                self._head: Final = head_of(connection)
        except BaseException:
            connection.close()
            raise

    @property
    def revision(self) -> int:
        return self._head.revision

    @property
    def commit_id(self) -> str:
        return self._head.commit_id

    def pages(self) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Yields the pages, once; the transaction ends when the generator ends or is dropped."""
        try:
            for prefix in self._prefixes:
                where, bounds = key_range(prefix)
                with away_on_error(self._path):
                    cursor = self._connection.execute(
                        f"SELECT key, value FROM kv WHERE {where} ORDER BY key",  # noqa: S608 - our own text
                        bounds,
                    )
                    page = cursor.fetchmany(_PAGE_ROWS)
                while page:
                    yield page
                    with away_on_error(self._path):
                        page = cursor.fetchmany(_PAGE_ROWS)
        finally:
            self._connection.close()
