"""Slots for what calls may do a few at a time, in all and each caller; refuses to wait for one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from directory.api.rpc.call_context import Call
from resolver.errors import KdirError

__all__ = ["CallerSlots", "caller_key"]


def caller_key(call: Call) -> str:
    """Returns whom a call counts for: its principal; its connection where callers are not
    identified, and its host where it is made in another one's name.
    """
    return call.principal or call.peer or call.host


class CallerSlots:
    """Slots at a time: ``most`` in all, of which one caller gets ``per_caller``. Thread-safe.

    Units are calls where nothing else is said; they may be bytes.
    """

    def __init__(self, most: int, per_caller: int) -> None:
        self._most: Final = most
        self._per_caller: Final = per_caller
        self._lock: Final = threading.Lock()
        self._taken: Final[Counter[str]] = Counter()
        self._sum = 0
        self.refused = 0
        """How often there was none left."""

    def take(self, key: str, count: int = 1) -> bool:
        """Takes so many for a caller, if there are."""
        with self._lock:
            taken = self._taken[key]
            if self._sum + count > self._most or taken + count > self._per_caller:
                self.refused += 1
                if not taken:
                    del self._taken[key]
                return False
            self._taken[key] = taken + count
            self._sum += count
            return True

    def give_back(self, key: str, count: int = 1) -> None:
        """Gives back what ``take`` took."""
        with self._lock:
            self._sum -= count
            self._taken[key] -= count
            if not self._taken[key]:
                del self._taken[key]

    @contextmanager
    def hold(self, call: Call, refusal: KdirError) -> Iterator[None]:
        """Holds one slot for the caller of a call.

        Raises:
            KdirError: ``refusal``, where there is none left.
        """
        key = caller_key(call)
        if not self.take(key):
            raise refusal
        try:
            yield
        finally:
            self.give_back(key)
