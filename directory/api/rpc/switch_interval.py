"""Switch interval of Python's interpreter, which is shorter while long reads compute."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["SWITCH_SECONDS", "long_read"]

SWITCH_SECONDS: Final = 0.002
"""Interval while no long read computes. Each thread that waits for the interpreter wakes up once in
an interval: at 0.5 ms that costs a tenth of a write while 16 writes are under way.
"""
_LONG_READ_SECONDS: Final = 0.0005
"""Interval while a long read computes: a short call takes the interpreter some four times, and
waits for one interval each time.
"""


class _LongReads:
    """Number of long reads under way."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._count = 0
        self._before_seconds = 0.0

    def begin(self) -> None:
        """Counts one more; the first one shortens the interval."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._before_seconds = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before_seconds, _LONG_READ_SECONDS))

    def end(self) -> None:
        """Counts one less; after the last one the interval is as before."""
        with self._lock:
            self._count -= 1
            if not self._count:
                sys.setswitchinterval(self._before_seconds)


_READS: Final = _LongReads()


@contextmanager
def long_read() -> Iterator[None]:
    """Context manager of a read that may compute for long, such as a scan or a large batch."""
    _READS.begin()
    try:
        yield
    finally:
        _READS.end()
