"""Random numbers for ids, from the system's source, many at a time.

Each call of the system lets other threads of the process go first, which costs a write more than
the numbers do.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Final

__all__ = ["random_bits"]

_BYTES: Final = 4_096
_NUMBERS: Final[deque[int]] = deque()
os.register_at_fork(after_in_child=_NUMBERS.clear)  # two processes must not use the same


def random_bits() -> int:
    """Returns a random number of 64 bits."""
    while True:
        try:
            return _NUMBERS.pop()
        except IndexError:
            _NUMBERS.extend(memoryview(os.urandom(_BYTES)).cast("Q"))
