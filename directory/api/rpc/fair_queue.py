"""Queue of calls that wait for a thread: connections take turns, so that none waits for another's.

Behind a caller who sends a thousand calls at once, who sends one would wait for all of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

__all__ = ["FairQueue"]

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of one key in the order in which they came, keys in turn. Thread-safe.

    Args:
        key_of: whose turn an item is.
    """

    def __init__(self, key_of: Callable[[T], Hashable]) -> None:
        self._key_of: Final = key_of
        self._lock: Final = threading.Lock()
        self._items: Final[OrderedDict[Hashable, deque[T]]] = OrderedDict()
        # One for each item: what waits for one waits in C.
        self._tickets: Final[SimpleQueue[bool]] = SimpleQueue()

    def put(self, item: T) -> None:
        """Adds an item to the others of its key."""
        key = self._key_of(item)
        with self._lock:
            mine = self._items.get(key)
            if mine is None:
                mine = self._items[key] = deque()
            mine.append(item)
        self._tickets.put(True)

    def end(self) -> None:
        """Has one ``get`` return None, after the items that are there."""
        self._tickets.put(False)

    def get(self) -> T | None:
        """Waits for an item, and takes it; None: it is to end."""
        if not self._tickets.get():
            return None
        with self._lock:
            key, mine = next(iter(self._items.items()))
            item = mine.popleft()
            if mine:
                self._items.move_to_end(key)
            else:
                del self._items[key]
        return item

    def qsize(self) -> int:
        """Returns how many items wait; while some are put or taken, about so many."""
        return self._tickets.qsize()
