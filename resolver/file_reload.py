"""What was read from files, read again once one of them changes; refuses to know what it is.

For certificates, keys and tokens that others replace while a process runs. What cannot be read
again leaves the last good value in force: files are replaced one after the other, and a
certificate whose key is not there yet is no reason to stop.
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
    """A value made of files. Thread-safe.

    Args:
        files: what it is made of.
        read: makes it; called now, where its errors are the caller's, and after each change.
        failed: receives, once for each change, why it could not be read again.
        every_seconds: files are looked at no more often than this.
        clock: seconds that never go back.
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
        self._lock: Final = threading.Lock()
        self._stamps = self._file_stamps()
        self._refused: tuple[_Stamp, ...] | None = None
        self._value = read()
        self._looked_at = clock()
        self.generation = 1
        """Rises with each new value."""

    def value(self, *, look: bool = False) -> T:
        """Returns the newest one; ``look``: look at the files however lately that was done."""
        if self._files and (look or self._clock() - self._looked_at >= self._every_seconds):
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the last good value stays
            # Tried again at each look: what is missing may come without a change of these files.
            if stamps != self._refused:
                self._refused = stamps
                self._failed(error)
            return
        # Of before the reading: a change during it is a change yet to be read.
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
