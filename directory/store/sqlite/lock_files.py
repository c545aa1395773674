"""The file beside a database that its writers lock, and that says what the newest commit was.

Refuses to open the database. What it says is written after the commit and not synced: after a
crash it may be behind, which is as good; it is never ahead. So a database that lacks the commit it
names went back in time: a backup was put there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from directory.store.base import StoreUnreachable

__all__ = ["CommitNote", "FileStamp", "WriterLockFile"]

_BYTES: Final = 256
_POLL_SECONDS: Final = 0.002


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A database file as the file system shows it."""

    inode: int
    modified_ns: int
    size: int
    changed_ns: int
    """Unlike ``modified_ns`` it cannot be set back, so that ``cp -a`` shows. Renames show too."""

    def same_content(self, other: FileStamp) -> bool:
        """Nobody wrote the file between the two."""
        return (self.inode, self.modified_ns, self.size) == (
            other.inode,
            other.modified_ns,
            other.size,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """As it is now.

        Raises:
            OSError: there is none.
        """
        status = path.stat()
        return cls(status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class CommitNote:
    """The newest commit when it was written, and the database file right after it."""

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
        """None for anything that is not a whole note."""
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
    """``<database>-life``, open as long as the store is."""

    def __init__(
        self, path: Path, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        """Opens it, made if it is not there.

        Raises:
            OSError
        """
        self._path: Final = path
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def lock(self, timeout_seconds: float) -> None:
        """Waits for the lock, which no other open store has then, in this process or another.

        Raises:
            StoreUnreachable: not in time, or closed.
        """
        if self._descriptor < 0:
            raise StoreUnreachable(f"{self._path}: closed")
        deadline = self._clock() + timeout_seconds
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._clock() >= deadline:
                    raise StoreUnreachable(
                        f"{self._path}: another process wrote for {timeout_seconds:g} s"
                    ) from None
                self._sleep(_POLL_SECONDS)

    def unlock(self) -> None:
        """Lets the next writer in."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def read(self) -> CommitNote | None:
        """Returns what was noted last; None: nothing that can be read."""
        return CommitNote.parse(os.pread(self._descriptor, _BYTES, 0).decode("ascii", "replace"))

    def write(self, note: CommitNote) -> None:
        """Only while locked."""
        os.pwrite(self._descriptor, str(note).ljust(_BYTES).encode("ascii"), 0)

    def close(self) -> None:
        """Frees the lock too."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
