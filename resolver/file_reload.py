"""Values read from files, and read again when one of the files changes.

For certificates, keys and tokens that are replaced while a process runs. If reading fails, the last
good value stays in use: files are replaced one after the other, so a certificate may briefly have
no key.
"""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

__all__ = ["ReloadingValue"]

T = TypeVar("T")
_Stamp = tuple[int, int, int] | None


class ReloadingValue(Generic[T]):
    """Value made from files. Thread-safe.

    Args:
        files: the files.
        read: makes the value; called by the constructor, which raises its errors, and after each
            change.
        failed: called with the error, once for each change that could not be read.
        every_seconds: shortest interval between checks of the files.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        files: Sequence[str | os.PathLike[str]],
        read: Callable[[], T],
        *,
        failed: Callable[[Exception], object] = bool,
        every_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files: Final = tuple(os.fspath(file) for file in files)
        self._read: Final = read
        self._failed: Final = failed
        self._every_seconds: Final = every_seconds
        self._clock: Final = clock
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._stamps = self._file_stamps()
        self._refused: tuple[_Stamp, ...] | None = None
        self._value = read()
        self._looked_at = clock()
        self.generation = 1
        """Number of the value; each new value adds 1."""

    def value(self, *, look: bool = False) -> T:
        """Returns the newest value; ``look``: check the files even if the last check was less than
        ``every_seconds`` ago.
        """
        if self._files and (look or self._clock() - self._looked_at >= self._every_seconds):
            if self._pid != os.getpid():
                # After a fork: a lock that a thread of the parent held is never released here.
                self._lock, self._pid = threading.Lock(), os.getpid()
            with self._lock:
                self._renew()
        return self._value

    def _renew(self) -> None:
        self._looked_at = self._clock()
        stamps = self._file_stamps()
        if stamps == self._stamps:
            return
        try:
            self._value = self._read()
        except Exception as error:  # noqa: BLE001 - after any error the last good value stays
            # Tried again at each check: the reason may end without a change of these files.
            if stamps != self._refused:
                self._refused = stamps
                self._failed(error)
            return
        # The stamps are from before the reading, so that the next check finds a change during it.
        self._stamps, self._refused = stamps, None
        self.generation += 1

    def _file_stamps(self) -> tuple[_Stamp, ...]:
        return tuple(map(_stamp, self._files))


def _stamp(file: str) -> _Stamp:
    try:
        found = pathlib.Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
