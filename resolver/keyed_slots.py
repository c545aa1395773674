"""Slots that limit concurrent use: in total, and for each key, such as a caller."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Final

__all__ = ["KeyedSlots"]


class KeyedSlots:
    """Slots: ``most`` in total, ``per_key`` for one key. Thread-safe. A slot is for one call or,
    where stated, for one byte.
    """

    def __init__(self, most: int, per_key: int) -> None:
        self._most: Final = most
        self._per_key: Final = per_key
        self._freed: Final = threading.Condition()
        self._taken: Final[Counter[str]] = Counter()
        self._sum = 0
        self.refused = 0
        """Number of times that slots were refused, since too few were free."""

    def take(self, key: str, count: int = 1, *, wait_seconds: float = 0.0) -> bool:
        """Takes ``count`` slots for a key, and returns True, if enough are free now or within
        ``wait_seconds``.
        """
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
        """Number of slots in use, by all keys."""
        return self._sum

    @property
    def keys(self) -> frozenset[str]:
        """Keys with slots in use."""
        with self._freed:
            return frozenset(self._taken)

    def _has(self, key: str, count: int) -> bool:
        taken = self._taken.get(key, 0)
        return self._sum + count <= self._most and taken + count <= self._per_key

    def give_back(self, key: str, count: int = 1) -> None:
        """Frees slots that ``take`` took."""
        with self._freed:
            self._sum -= count
            self._taken[key] -= count
            if not self._taken[key]:
                del self._taken[key]
            self._freed.notify_all()
