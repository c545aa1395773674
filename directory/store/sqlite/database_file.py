"""One sqlite file of one cluster: connections to it, and the lock and note of its writers.

``schema.py`` has the tables, ``store.py`` keys and guards. The database file is never opened except
through sqlite: POSIX drops all locks of a process on a file when the process closes any descriptor
of it. So writers lock a file beside it, ``<database>-life``, which holds a note of the newest
commit. The note is written after the commit and not synced: after a crash it may be of an earlier
commit, never of a later one. So a database that lacks the noted commit is older than the note: a
backup was put there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from directory.store.base import (
    Identity,
    IncompatibleStore,
    StoreDamaged,
    StoreFull,
    StoreRefused,
    StoreUnreachable,
)
from directory.store.identity import refuse_foreign
from directory.store.schema import (
    Head,
    begin_incarnation,
    complete,
    create,
    damage_of,
    head_of,
    holds_commit,
    identity_of,
    is_empty,
    refuse_unknown,
)

__all__ = [
    "BUSY_SECONDS",
    "CommitNote",
    "DatabaseFile",
    "FileStamp",
    "WriterLockFile",
    "away_on_error",
    "check_writable",
    "find_identity",
    "is_directory",
    "status_of",
]

BUSY_SECONDS: Final = 5.0
_WRITER_CACHE_KIB: Final = 16_384
_LOG_BYTES: Final = 64 * 1024 * 1024
_INCARNATION_SUFFIX: Final = "-life"
_NOTE_BYTES: Final = 256
_POLL_SECONDS: Final = 0.002
_READ_ONLY: Final = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_READONLY_DIRECTORY)
"""sqlite's codes for a write that failed without effect; others of the kind are for files that were
replaced.
"""
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
"""sqlite's codes for errors that may pass without a change of the file or the config."""
_FULL_DISK: Final = (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE)
"""sqlite's other codes for a full disk or quota, besides ``SQLITE_FULL``."""
_FULL_DISK_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
_PASSING_ERRNOS: Final = (*_FULL_DISK_ERRNOS, errno.EIO)
"""The system's error numbers for ``_FULL_DISK`` and ``_PASSING``, for files that are made without
sqlite.
"""
_BUSY_STEP_MS: Final = 100
"""Most by which a connection may wait longer for others than requested: setting the wait takes a
statement.
"""


@contextmanager
def away_on_error(path: Path) -> Iterator[None]:
    """Raises errors of sqlite and the system as ``StoreUnreachable`` or a subclass of it."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if type(error) is sqlite3.DatabaseError:  # its subclasses are other troubles
            raise StoreDamaged(_damaged(path, str(error))) from error
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL:
            raise StoreFull(
                f"{path}: its disk is full, so it takes no writes: make space"
            ) from error
        if code in _READ_ONLY:
            raise StoreRefused(
                f"{path}: the file or its folder may only be read: let this user write it"
            ) from error
        full = code in _FULL_DISK or getattr(error, "errno", None) in _FULL_DISK_ERRNOS
        hint = ": is its disk full?" if full else ""
        raise StoreUnreachable(f"{path}: {error}{hint}") from error


def _damaged(path: Path, found: str) -> str:
    return f"{path}: damaged ({found}); {_ways_out(path)}"


def _ways_out(path: Path) -> str:
    beside = f"{path.name}-wal and {path.name}-shm"
    return (
        f"if a backup was put there, stop every server of this store, put it there again and remove"
        f" {beside}; otherwise remove {path.name}, {beside}, then kdir restore"
    )


def _kind_of(error: sqlite3.Error) -> int:
    """Returns sqlite's primary error code; 0: Python's module raised the error itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> IncompatibleStore:
    """Returns the error for a file whose contents sqlite cannot read."""
    if _kind_of(error) == sqlite3.SQLITE_CORRUPT:
        return IncompatibleStore(_damaged(path, str(error)))
    return IncompatibleStore(f"{path}: is no sqlite database ({error}); {_ways_out(path)}")


def status_of(path: Path) -> os.stat_result | None:
    """Returns the status of the file or directory at a path; None: there is none.

    Unlike ``Path.exists`` since Python 3.14, does not report an unreadable path as absent.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_directory(path: Path) -> bool:
    """True if a directory is at the path.

    Raises:
        OSError: as ``status_of``.
    """
    status = status_of(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def find_identity(path: Path) -> Identity | None:
    """Returns the identity of the store in the file, read now; None: there is no file, or it is
    empty.

    Raises:
        IncompatibleStore: the file is no store, or cannot be read.
        StoreUnreachable
    """
    try:
        status = status_of(path)
        if status is None:
            return None
        if stat.S_ISDIR(status.st_mode):
            raise IncompatibleStore("is a directory; name a file in it")
        if not status.st_size:
            return None
        # Not read-only: without its log, the file of a killed writer is incomplete.
        uri = f"{path.as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            if is_empty(connection):
                return None
            refuse_unknown(connection)
            return identity_of(connection)
    except IncompatibleStore as reason:
        raise IncompatibleStore(f"{path}: {reason}") from None
    except sqlite3.OperationalError as error:
        raise StoreUnreachable(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    except OSError as error:
        raise IncompatibleStore(f"{path}: cannot be read ({error.strerror})") from error


def check_writable(path: Path) -> None:
    """Checks that the file at a path, and the writers' lock file beside it, can be written or
    created. Changes nothing.

    Raises:
        IncompatibleStore: one of them cannot.
    """
    beside = path.with_name(f"{path.name}{_INCARNATION_SUFFIX}")
    try:
        _refuse_no_place(path)
        for file in (path.parent, path, beside):
            if status_of(file) is not None and not os.access(file, os.R_OK | os.W_OK):
                raise IncompatibleStore(f"{file}: cannot be written (Permission denied)")
        if is_directory(beside):
            raise IncompatibleStore(f"{beside}: cannot be written (Is a directory)")
    except OSError as error:
        raise IncompatibleStore(f"{path}: cannot be read ({error.strerror})") from error


def _refuse_no_place(path: Path) -> None:
    """Checks that a file is at a path, or could be made there.

    Raises:
        IncompatibleStore: its parent directory is missing, or a directory is at the path.
        OSError: it cannot be read.
    """
    if not is_directory(path.parent):
        raise IncompatibleStore(f"{path}: there is no directory {path.parent}; make it first")
    if is_directory(path):
        raise IncompatibleStore(f"{path}: is a directory; name a file in it")


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Identity, size and times of a database file, as the file system shows them."""

    inode: int
    modified_ns: int
    size: int
    changed_ns: int
    """Time of the last change of the inode; unlike ``modified_ns`` it cannot be set back, so it
    shows ``cp -a``, and also renames.
    """

    def same_content(self, other: FileStamp) -> bool:
        """True if both stamps are of the same file, not written in between."""
        return (self.inode, self.modified_ns, self.size) == (
            other.inode,
            other.modified_ns,
            other.size,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the file's stamp as it is now.

        Raises:
            OSError: there is no file.
        """
        status = path.stat()
        return cls(status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class CommitNote:
    """Newest commit when the note was written, and the database file's stamp right after the
    commit.
    """

    incarnation: str
    revision: int
    commit_id: str
    stamp: FileStamp

    def __str__(self) -> str:
        at = self.stamp
        return (
            f"kdir {self.incarnation} {self.revision} {self.commit_id or '-'}"
            f" {at.inode} {at.modified_ns} {at.size} {at.changed_ns}\n"
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parses a note; None: the text is not a complete note."""
        match text.split():
            case ["kdir", incarnation, revision, commit_id, *stamp_fields]:
                try:
                    inode, modified_ns, size, changed_ns = map(int, stamp_fields)
                    stamp = FileStamp(inode, modified_ns, size, changed_ns)
                    return cls(incarnation, int(revision), commit_id.strip("-"), stamp)
                except ValueError:
                    return None
            case _:
                return None


class WriterLockFile:
    """File ``<database>-life``, with the writers' lock and the note; open as long as the store
    is.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        """Opens the file; creates it if missing.

        Raises:
            OSError
        """
        self._path: Final = path
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._descriptor = self._open()
        self._written = b""
        """Bytes of the note that this object wrote last."""
        self._note: CommitNote | None = None
        """Note that ``_written`` holds: the file is parsed only if it has other bytes."""

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def lock(self, timeout_seconds: float) -> None:
        """Waits for the lock; while it is held, no other open store has it, in this process or
        another.

        Raises:
            StoreUnreachable: not free in time, the file is closed, or its folder is gone.
        """
        if self._descriptor < 0:
            raise StoreUnreachable(f"{self._path}: closed")
        deadline = self._clock() + timeout_seconds
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_path():
                    return
                self._reopen()
                why = "another file was put there again and again"
            except BlockingIOError:
                why = "another process wrote"
            except OSError as error:
                self.unlock()
                raise StoreUnreachable(f"{self._path}: {error.strerror}") from error
            if self._clock() >= deadline:
                raise StoreUnreachable(f"{self._path}: {why} for {timeout_seconds:g} s")
            self._sleep(_POLL_SECONDS)

    def _is_at_path(self) -> bool:
        """True if the locked file is still the one at the path, which other processes lock."""
        found = status_of(self._path)
        return found is not None and os.path.samestat(found, os.fstat(self._descriptor))

    def _reopen(self) -> None:
        """Opens the file that is at the path now, creates it if missing, and closes the other
        one.
        """
        replaced, self._descriptor = self._descriptor, self._open()
        self._written, self._note = b"", None
        os.close(replaced)

    def unlock(self) -> None:
        """Releases the lock for the next writer."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def read(self) -> CommitNote | None:
        """Returns the note in the file; None: there is none that can be read."""
        found = os.pread(self._descriptor, _NOTE_BYTES, 0)
        if found != self._written:
            return CommitNote.parse(found.decode("ascii", "replace"))
        return self._note

    def write(self, note: CommitNote) -> None:
        """Writes the note; the caller holds the lock."""
        self._written, self._note = b"", note
        written = str(note).ljust(_NOTE_BYTES).encode("ascii")
        os.pwrite(self._descriptor, written, 0)
        self._written = written

    def close(self) -> None:
        """Closes the file, which also releases the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DatabaseFile:
    """Database file of one cluster at ``path``; created if missing."""

    def __init__(
        self,
        path: Path,
        cluster: str,
        cluster_id: str | None = None,
        sealed: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Opens the file. ``sealed``: why a new store takes no changes; empty = it takes them.

        Raises:
            IncompatibleStore: the file is no store of this cluster that this version can use;
                nothing was changed.
            StoreUnreachable: others write for too long, or the disk is full.
            StoreDamaged: the file is damaged.
        """
        self.path: Final = path
        self._cluster: Final = cluster
        self._cluster_id = cluster_id
        self._sealed_at_first: Final = sealed
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: tuple[sqlite3.Connection, int] | None = None
        self._reader_lock: Final = threading.Lock()
        self._identity_lock: Final = threading.Lock()
        self._inode = 0  # of the file that _writer opened last
        self._busy_ms = 0  # time that _writer waits for others
        self._is_opening = True  # an empty file that is found later is no new store
        self._refuse_unusable()
        try:
            self._incarnation: Final = WriterLockFile(
                path.with_name(f"{path.name}{_INCARNATION_SUFFIX}"), clock, sleep
            )
            try:
                self._refuse_lost()
                self._create_privately()
            except BaseException:
                self._incarnation.close()
                raise
        except OSError as error:
            if error.errno in _PASSING_ERRNOS:
                with away_on_error(path):
                    raise
            raise IncompatibleStore(
                f"{error.filename or path}: cannot be written ({error.strerror})"
            ) from error
        try:
            self.identity = self.refresh_identity()
        except BaseException:
            self.close()
            raise
        self._is_opening = False
        self._cluster_id = self.identity.cluster_id  # other clusters may have the same name

    @property
    def written_names(self) -> tuple[str, ...]:
        """File names, in one directory, that commits, checkpoints and restores write."""
        name = self.path.name
        return name, f"{name}-wal", f"{name}{_INCARNATION_SUFFIX}"

    # -- connections -------------------------------------------------------------------------

    def connect(self, cache_kib: int = 2_048) -> tuple[sqlite3.Connection, int]:
        """Opens a new connection; returns it with the inode of its file.

        Raises:
            StoreUnreachable: the file is gone, or cannot be read.
        """
        with away_on_error(self.path):
            while True:
                inode = self.path.stat().st_ino
                connection = self._connect("rw")
                try:
                    connection.execute("PRAGMA synchronous = FULL")
                    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
                    if self.path.stat().st_ino == inode:
                        return connection, inode
                except BaseException:
                    connection.close()
                    raise
                connection.close()

    @contextmanager
    def reading(self, timeout_seconds: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Yields a connection for short reads, which is kept for later ones.

        Raises:
            StoreUnreachable: also if other threads read all the time, or another store was put
                there.
        """
        inode = self.stamp().inode
        if not self._reader_lock.acquire(timeout=max(0.0, timeout_seconds)):
            raise StoreUnreachable(f"{self.path}: other readers held it for {timeout_seconds:g} s")
        try:
            if self._reader is not None and self._reader[1] != inode:
                self._drop_reader()
            try:
                with away_on_error(self.path):
                    if self._reader is None:
                        self._reader = self.connect()
                        self._refuse_foreign(self._reader[0])
                    yield self._reader[0]
            except IncompatibleStore as reason:
                self._drop_reader()
                raise StoreUnreachable(str(reason)) from reason
            except BaseException:
                self._drop_reader()
                raise
        finally:
            self._reader_lock.release()

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader[0].close()
            self._reader = None

    def stamp(self) -> FileStamp:
        """Returns the stamp of the file that is at the path now.

        Raises:
            StoreUnreachable: there is no file.
        """
        with away_on_error(self.path):
            return FileStamp.read(self.path)

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=BUSY_SECONDS,
            check_same_thread=False,
        )

    @contextmanager
    def writing(self, timeout_seconds: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Yields the one connection that writes, while no other process or thread writes.

        The lock makes sqlite's own polling for its write lock needless, and keeps two processes
        from writing and checkpointing at the same instant, which sqlite before 3.51.3 does not
        survive in every case (its "WAL-reset bug").

        Raises:
            StoreUnreachable: others wrote all the time, or the file is gone or damaged.
            IncompatibleStore: another store was put there.
        """
        deadline = self._clock() + timeout_seconds
        if not self._lock.acquire(timeout=max(0.0, timeout_seconds)):
            raise StoreUnreachable(f"{self.path}: other writers held it for {timeout_seconds:g} s")
        try:
            self._incarnation.lock(deadline - self._clock())
            try:
                connection = self._current_writer()
                # Other programs may write too, such as sqlite's tool: wait no longer for them.
                left_ms = max(0, round(1000 * (deadline - self._clock())))
                if not 0 <= self._busy_ms - left_ms <= _BUSY_STEP_MS:
                    connection.execute(f"PRAGMA busy_timeout = {left_ms}")
                    self._busy_ms = left_ms
                yield connection
            except BaseException:
                self._drop_writer()  # its state is unknown
                raise
            finally:
                self._incarnation.unlock()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Closes writer and reader, and releases the lock; other connections are closed by their
        owners.
        """
        with self._reader_lock:
            self._drop_reader()
        try:
            with self.writing(1.0) as connection:
                # Now, and not by the connection that closes last, so that the note is right.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self._note(head_of(connection))
        except (StoreUnreachable, IncompatibleStore, sqlite3.Error):
            pass  # nothing is lost: the write-ahead log is read at the next start
        with self._lock:
            self._drop_writer()
            self._incarnation.close()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _current_writer(self) -> sqlite3.Connection:
        """Returns the connection that writes, after checking each time that the file is as the last
        writer left it. After a restore under a running server, begins a new incarnation first.
        """
        with away_on_error(self.path):
            note = self._incarnation.read()
            found = FileStamp.read(self.path)
            noted = note.stamp if note is not None else None
            untouched = noted is not None and noted.same_content(found)
            # Only when the store is opened: a rename or hard link in use changes the stamp too.
            put_back = untouched and not self._inode and noted != found
            if not untouched or found.inode != self._inode:
                self._drop_writer()  # it may hold pages of the file as it was
            if self._writer is None:
                self._writer = self._open_writer()
                note = self._incarnation.read()
            head = head_of(self._writer)
            if note is None or put_back or not self._continues(self._writer, note, head):
                self._refuse_damaged(self._writer)
                self._note(
                    begin_incarnation(self._writer, note.revision if note is not None else 0)
                )
            elif not untouched:
                self._refuse_damaged(self._writer)
                self._note(head)
            return self._writer

    def _open_writer(self) -> sqlite3.Connection:
        connection, inode = self.connect(_WRITER_CACHE_KIB)
        self._busy_ms = round(1000 * BUSY_SECONDS)
        try:
            # Many writes during a long read make the log long; it need not stay so.
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
            self._refuse_foreign(connection)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise IncompatibleStore(
                    f"{self.path}: its file system cannot hold a store ({mode})"
                )
            self._inode = inode
            if is_empty(connection):
                create(connection, self._cluster, self._cluster_id, self._sealed_at_first)
                self._note(head_of(connection))
            complete(connection)
            return connection
        except BaseException:
            connection.close()
            raise

    # -- identity ----------------------------------------------------------------------------

    def refresh_identity(self) -> Identity:
        """Reads the identity of the store again.

        Raises:
            StoreUnreachable, IncompatibleStore
        """
        with self.writing() as connection, away_on_error(self.path):
            found = identity_of(connection)
        with self._identity_lock:
            self.identity = found
        return found

    def notice_sealed(self, sealed: str) -> None:
        """Records the seal that another reader found: why the store takes no changes; empty = it
        takes them.
        """
        with self._identity_lock:
            if self.identity.sealed != sealed:
                self.identity = replace(self.identity, sealed=sealed)

    def _refuse_unusable(self) -> None:
        """Checks the file before anything is written; an empty or missing one becomes a new store,
        unless ``_refuse_lost`` raises.

        Raises:
            IncompatibleStore: it cannot be used.
            StoreUnreachable: it cannot be used now.
        """
        try:
            _refuse_no_place(self.path)
            if self._is_empty_or_gone():
                return
            with closing(self._connect("ro")) as connection:
                self._refuse_foreign(connection)
        except sqlite3.OperationalError as error:
            if _kind_of(error) in _PASSING:
                with away_on_error(self.path):
                    raise
            raise IncompatibleStore(f"{self.path}: cannot be read ({error})") from error
        except sqlite3.DatabaseError as error:
            raise _unreadable(self.path, error) from error
        except OSError as error:
            raise IncompatibleStore(f"{self.path}: cannot be read ({error.strerror})") from error

    def _refuse_foreign(self, connection: sqlite3.Connection) -> None:
        if is_empty(connection):
            if not self._is_opening:
                raise StoreUnreachable(
                    f"{self.path}: is empty; put the file or a backup there (kdir restore)"
                )
            return
        try:
            refuse_unknown(connection)
            refuse_foreign(identity_of(connection), self._cluster, self._cluster_id)
        except IncompatibleStore as reason:
            raise IncompatibleStore(f"{self.path}: {reason}") from None

    def _refuse_lost(self) -> None:
        """Raises IncompatibleStore if the database file is missing and its incarnation file is not:
        a new cluster would report the entries of the lost store as absent. A restore, which names
        the cluster, may fill it.
        """
        # The note is read before the file is checked: it is written after the file.
        note = self._incarnation.read()
        if note is None or self._cluster_id is not None:
            return
        if self._is_empty_or_gone():
            beside = f"{self.path.name}{_INCARNATION_SUFFIX}"
            raise IncompatibleStore(
                f"{self.path}: is empty or gone, but {beside} is the note of a store at revision "
                f"{note.revision}; put the file or a backup there (kdir restore), or remove "
                f"{beside} to begin a new cluster"
            )

    def _is_empty_or_gone(self) -> bool:
        status = status_of(self.path)
        return status is None or not status.st_size

    def _create_privately(self) -> None:
        """Creates the file so that only its owner can read it and the files that sqlite puts beside
        it. The file is closed again before sqlite opens it.
        """
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if not os.access(self.path, os.R_OK | os.W_OK):
                raise PermissionError(13, "Permission denied") from None

    # -- its incarnation ---------------------------------------------------------------------

    def committed(self, head: Head) -> None:
        """Records a commit, while still ``writing``.

        Raises:
            StoreUnreachable: the file was replaced meanwhile, and the commit is lost with it.
        """
        stamp = self.stamp()
        if stamp.inode != self._inode:
            raise StoreUnreachable(f"{self.path}: another file was put there during the commit")
        self._note(head, stamp)

    def _note(self, head: Head, stamp: FileStamp | None = None) -> None:
        stamp = stamp or FileStamp.read(self.path)
        self._incarnation.write(CommitNote(head.incarnation, head.revision, head.commit_id, stamp))

    def _continues(self, connection: sqlite3.Connection, note: CommitNote, head: Head) -> bool:
        """True if the file is the one in the note, and holds the commit in the note."""
        return (
            note.incarnation == head.incarnation
            and note.stamp.inode == self._inode
            and (
                (note.revision, note.commit_id) == (head.revision, head.commit_id)
                or holds_commit(connection, note.revision, note.commit_id)
            )
        )

    def _refuse_damaged(self, connection: sqlite3.Connection) -> None:
        found = damage_of(connection)
        if found:
            raise StoreDamaged(_damaged(self.path, found))
