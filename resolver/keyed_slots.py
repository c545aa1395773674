"""Slots for what may be done a few at a time, in all and for each key, such as a caller."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Final

__all__ = ["KeyedSlots"]


class KeyedSlots:
    """Slots at a time: ``most`` in all, of which one key gets ``per_key``. Thread-safe.

    Units are calls where nothing else is stated; they may be bytes.
    """

    def __init__(self, most: int, per_key: int) -> None:
        self._most: Final = most
        self._per_key: Final = per_key
        self._freed: Final = threading.Condition()
        self._taken: Final[Counter[str]] = Counter()
        self._sum = 0
        self.refused = 0
        """How often there was none left."""

    def take(self, key: str, count: int = 1, *, wait_seconds: float = 0.0) -> bool:
        """Takes so many for a key, if there are, or are within ``wait_seconds``."""
        deadline = time.monotonic() + wait_seconds if wait_seconds > 0 else 0.0
        with self._freed:
            while not self._has(key, count):
                left = deadline - time.monotonic() if deadline else 0.0
                if left <= 0:
                    self.refused += 1
                    return False
                self._freed.wait(left)
            self._taken[key] += count
            self._sum += count
            return True

    @property
    def taken_count(self) -> int:
        """How many are taken now, by all keys."""
        return self._sum

    @property
    def keys(self) -> frozenset[str]:
        """Those that have some now."""
        with self._freed:
            return frozenset(self._taken)

    def _has(self, key: str, count: int) -> bool:
        taken = self._taken.get(key, 0)
        return self._sum + count <= self._most and taken + count <= self._per_key

    def give_back(self, key: str, count: int = 1) -> None:
        """Gives back what ``take`` took."""
        with self._freed:
            self._sum -= count
            self._taken[key] -= count
            if not self._taken[key]:
                del self._taken[key]
            self._freed.notify_all()
