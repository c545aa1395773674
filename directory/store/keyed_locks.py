"""Locks by key: of the threads of one process that would conflict on a key, one continues at a
time.

Other processes are not excluded: the guards of their transactions detect the conflict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from resolver.errors import DeadlineExceeded

__all__ = ["KeyedLock", "KeyedLocks"]


@dataclass(slots=True)
class _Queue:
    lock: threading.Lock = field(default_factory=threading.Lock)
    people: int = 0


class KeyedLocks:
    """Set of locks by key, for any number of threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.queues: dict[bytes, _Queue] = {}

    def lock_for(self) -> KeyedLock:
        """Returns a context manager for one thread's lock, which is released at its end."""
        return KeyedLock(self)


class KeyedLock:
    """Lock of one thread, on at most one key."""

    def __init__(self, locks: KeyedLocks) -> None:
        self._locks = locks
        self._held: tuple[bytes, _Queue] | None = None

    def acquire(self, key: bytes, deadline: float) -> bool:
        """Waits for the lock of a key, unless one is held already; returns True if it had to wait.

        Raises:
            DeadlineExceeded: it was not free in time.
        """
        if self._held is not None:
            return False
        locks = self._locks
        with locks.lock:
            queue = locks.queues.setdefault(key, _Queue())
            queue.people += 1
        self._held = key, queue
        if queue.lock.acquire(blocking=False):
            return False
        if not queue.lock.acquire(timeout=max(0.0, deadline - locks.clock())):
            self._leave()
            raise DeadlineExceeded(
                "write contention: gave up waiting for other writers of the same entry"
            )
        return True

    def _leave(self) -> None:
        assert self._held is not None  # noqa: S101 - it was taken
        key, queue = self._held
        self._held = None
        with self._locks.lock:
            queue.people -= 1
            if not queue.people:
                del self._locks.queues[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held[1].lock.release()
            self._leave()
