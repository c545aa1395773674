"""The threads of calls that may wait for the store or for Kafka; refuses more than it can end.

Such calls have a pool of their own, so that a store that hangs holds none of the threads that
answer reads. What waits for a thread is bounded, and nothing waits while the pool is *stuck*: every
thread is taken and for a while not one call has ended. Then one more is refused at once, instead of
spending its caller's deadline in a queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from directory.api.rpc.request_intake import CallCompletion, RequestIntake

__all__ = ["WritePool"]

_STUCK_SECONDS: Final = 1.0
"""A healthy store commits within milliseconds; the slowest of many calls that do is not this."""


class WritePool(ThreadPoolExecutor):
    """A pool that knows how it is doing. ``waiting``: most calls without a thread."""

    def __init__(
        self,
        threads: int,
        waiting: int,
        clock: Callable[[], float] = time.monotonic,
        intake: RequestIntake | None = None,
    ) -> None:
        super().__init__(threads, thread_name_prefix="write")
        self._intake: Final = intake
        self._threads_most: Final = threads
        self._waiting_most: Final = waiting
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._inside = 0
        """Calls that run or wait for a thread."""
        self._moved_at = clock()
        """When a call last ended, or the pool was last not full."""

    @property
    def waiting(self) -> int:
        """Calls without a thread."""
        return max(0, self._inside - self._threads_most)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs a call on a thread; one of gRPC's once its request is there."""
        if self._intake is not None:
            return self._intake.submit(self._begin, fn, args)
        return self._submit(fn, args, kwargs)

    def _begin(
        self, ended: CallCompletion, fn: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._submit(fn, args, {}).add_done_callback(lambda _: ended.end())

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        with self._lock:
            if self._inside < self._threads_most:
                self._moved_at = self._clock()
            self._inside += 1
        try:
            return super().submit(self._run, fn, args, kwargs)
        except BaseException:  # it is shut down
            self._ended()
            raise

    def _run(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._lock:
            self._inside -= 1
            self._moved_at = self._clock()

    @property
    def rejection_reason(self) -> str:
        """Why one more call would be of no use; empty = it is welcome."""
        with self._lock:
            waiting = self._inside - self._threads_most
            if waiting < 0:
                return ""
            still = self._clock() - self._moved_at
        if still > _STUCK_SECONDS:
            return (
                f"the store is slow: {self._threads_most} changes are under way and none has ended "
                f"for {still:.1f} s"
            )
        if waiting >= self._waiting_most:
            return f"{waiting} changes wait for their turn already (limits.waiting_writes)"
        return ""
