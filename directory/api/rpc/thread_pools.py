"""Thread pools for reads and writes: few calls run at a time, and those that wait delay no others.

Python runs one thread at a time, so more threads answer no more calls: they only add switches, a
large part of the cost of a call if each has its own thread. But a call may wait, for a revision
that its token names or for another server: it marks that (``waiting_call``), and another thread
runs meanwhile. Calls that wait unmarked are detected by ``unblock_stalled``; a call that computes
does not count as waiting, however long it takes.

The standard library's pool costs some 10 µs more for each call: it makes a future that others may
wait for, and looks for idle threads. gRPC only needs the callback at the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from directory.api.rpc.call_context import UnfinishedWrites
from directory.api.rpc.request_intake import CallCompletion, RequestIntake, refused
from resolver.errors import StoreUnavailable

__all__ = ["CallCompletion", "CallPool", "FairQueue", "WritePool", "waiting_call"]

_log = logging.getLogger(__name__)


_LOOKS_TO_BEGIN: Final = 3
_COMPUTING_SECONDS: Final = 0.005
"""Processor time between two checks (0.1 s) that only computing threads use."""
_LOOKS_TO_END: Final = 50
"""Number of checks in a row, with calls that ended before each, after which fewer threads are
tried.
"""


_Task = tuple[Callable[..., object], tuple[Any, ...], CallCompletion]


class CallPool:
    """Thread pool of reads. ``at_once``: number of threads that run calls; ``most``: number of
    threads, including those whose calls wait. ``intake`` receives the requests of calls before they
    take a thread.
    """

    def __init__(self, at_once: int, most: int, intake: RequestIntake) -> None:
        self._intake: Final = intake
        self._at_once: Final = at_once
        self._most: Final = max(at_once, most)
        self._tasks: Final[FairQueue[_Task]] = FairQueue(_connection_of)
        self._spare: Final = threading.Semaphore(0)
        """Released once for each idle thread that is to continue."""
        self._lock: Final = threading.Lock()
        self._threads = 0
        self._resting = 0
        self._excused = 0
        """Number of calls marked as waiting, or counted as waiting by ``unblock_stalled``."""
        self._relieved = 0
        """The part of ``_excused`` that ``unblock_stalled`` counts as waiting."""
        self._ended = 0
        """Approximate number of ended calls: threads may count two as one. Only its changes matter.
        """
        self._ended_before = 0
        self._processor_clocks: Final[list[int]] = []
        """Processor-time clock of each thread."""
        self._processor_seconds = 0.0
        """Processor time of all threads at the last check."""
        self._existing = True
        """True if at the last check no call had ended and no thread computed. The last ``_alike``
        checks in a row had the same result.
        """
        self._alike = 0
        self._is_shut = False
        with self._lock:
            for _ in range(at_once):
                self._one_more()

    @property
    def waiting_calls(self) -> int:
        """Number of calls that no thread has taken yet."""
        return self._tasks.qsize()

    def submit(self, answer: Callable[..., object], /, *about: Any) -> CallCompletion:
        """Runs a call, which must not raise, on a thread.

        Raises:
            RuntimeError: the pool is shut down.
        """
        return self._intake.submit(self.begin, answer, about)

    def begin(
        self, ended: CallCompletion, answer: Callable[..., object], about: tuple[Any, ...]
    ) -> None:
        """Runs a call whose request has arrived on a thread.

        Raises:
            RuntimeError: the pool is shut down.
        """
        if self._is_shut:
            raise RuntimeError("the server is shut down")
        self._tasks.put((answer, about, ended))

    @contextmanager
    def while_blocked(self) -> Iterator[None]:
        """Context manager that marks this thread's call as waiting: another thread runs meanwhile,
        if the limit allows one more.
        """
        with self._lock:
            self._excused += 1
            self._one_more()
        try:
            yield
        finally:
            with self._lock:
                self._excused -= 1  # the thread whose call ends first finds one too many

    def unblock_stalled(self) -> None:
        """Starts more threads if calls are stalled. Called periodically.

        Calls are stalled if some are queued, none has ended for some rounds and no thread computes.
        The running ones then count as waiting, and as many more threads run. One round is too
        short: on a busy machine calls also end late. While threads compute, more of them would
        answer nothing sooner and delay every call.
        """
        with self._lock:
            used = sum(map(time.clock_gettime, self._processor_clocks))
            is_computing = used - self._processor_seconds >= _COMPUTING_SECONDS
            self._processor_seconds = used
            existing = self._ended == self._ended_before and not is_computing
            self._ended_before = self._ended
            self._alike = self._alike + 1 if existing is self._existing else 1
            self._existing = existing
            if not self._tasks.qsize() or (not existing and self._alike >= _LOOKS_TO_END):
                self._excused -= self._relieved
                self._relieved = 0
            elif existing and self._alike >= _LOOKS_TO_BEGIN:
                self._alike = 0
                for _ in range(self._at_once):
                    self._relieved += 1
                    self._excused += 1
                    self._one_more()

    def shutdown(self) -> None:
        """Refuses further calls. Queued calls are dropped, running ones end by themselves."""
        with self._lock:
            self._is_shut = True
            self._tasks.clear()
            for _ in range(self._threads):
                self._spare.release()
                self._tasks.end()

    def _one_more(self) -> None:
        """Starts one more thread if the limit allows it; the lock is held."""
        running = self._threads - self._resting
        if self._is_shut or running >= min(self._at_once + self._excused, self._most):
            return
        if self._resting:
            self._resting -= 1
            self._spare.release()
            return
        self._threads += 1
        name = f"call_{self._threads}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        take = self._tasks.get
        _OWN.pool = self
        self._processor_clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        while (task := take()) is not None:
            answer, about, ended = task
            self._intake.run(self.begin, ended, answer, about)
            self._ended += 1
            # The arguments of a call are not kept until the next one comes.
            del task, answer, about, ended
            if self._threads - self._resting > self._at_once + self._excused:
                self._rest()

    def _rest(self) -> None:
        """Waits until one more thread may run; returns at once if one may."""
        with self._lock:
            if self._is_shut or self._threads - self._resting <= self._at_once + self._excused:
                return
            self._resting += 1
        self._spare.acquire()


def _connection_of(task: _Task) -> Hashable:
    """Returns the connection of a call of gRPC; empty for any other function."""
    about = task[1]
    peer: Hashable = about[1].call.peer() if len(about) > 4 else ""
    return peer


class _Own(threading.local):
    pool: CallPool | None = None


_OWN: Final = _Own()
"""Pool of the current thread."""


@contextmanager
def waiting_call() -> Iterator[None]:
    """Context manager that marks this thread's call as waiting; see ``CallPool.while_blocked``."""
    pool = _OWN.pool
    if pool is None:
        yield
        return
    with pool.while_blocked():
        yield


_WriteTask = tuple[CallCompletion, Callable[..., object], tuple[Any, ...]]

_STUCK_SECONDS: Final = 1.0
"""Time without a commit after which the store counts as stuck: a healthy one commits within
milliseconds, also under load.
"""


class WritePool(ThreadPoolExecutor):
    """Thread pool of writes. A write that would wait in vain, or beside too many others, is refused
    once its request has arrived.

    Args:
        waiting: most calls without a thread.
        intake: receives the requests of calls.
        refusals: runs the calls that are refused.
    """

    def __init__(
        self,
        threads: int,
        waiting: int,
        intake: RequestIntake,
        refusals: CallPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(threads)  # gRPC takes no other type; no thread of it is ever started
        self._intake: Final = intake
        self._refusals: Final = refusals
        self._threads_most: Final = threads
        self._waiting_most: Final = waiting
        self._clock: Final = clock
        self._tasks: Final[SimpleQueue[_WriteTask | None]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._workers: Final[list[threading.Thread]] = []
        self._is_shut = False
        self._inside = 0
        """Number of calls that run or wait for a thread."""
        self._moved_at = clock()
        """When a call last ended, or the pool was last not full."""
        self.unfinished: Final = UnfinishedWrites()
        """Work that the calls of this pool leave: their threads do it after each call."""

    @property
    def waiting(self) -> int:
        """Number of calls without a thread."""
        return max(0, self._inside - self._threads_most)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
        """Runs a call of gRPC on a thread, once its request has arrived."""
        return self._intake.submit(self.begin, fn, args)

    def begin(
        self, ended: CallCompletion, fn: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        """Runs a call whose request has arrived, or refuses it with STORE_UNAVAILABLE.

        Raises:
            RuntimeError: the pool is shut down.
        """
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the server is shut down")
            why = self._rejection_reason()
            if not why:
                self._inside += 1
                if len(self._workers) < min(self._inside, self._threads_most):
                    self._start_thread()
        if why:
            error = StoreUnavailable(f"{why}; nothing was written", effect="none")
            self._refusals.begin(ended, fn, refused(args, error))
            return
        self._tasks.put((ended, fn, args))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as the base class has it
        """Refuses further calls. Queued calls are run, or dropped (``cancel_futures``)."""
        with self._lock:
            self._is_shut = True
            with suppress(Empty):
                while cancel_futures:
                    self._tasks.get_nowait()
            for _ in self._workers:
                self._tasks.put(None)
        super().shutdown(wait)
        if wait:
            for worker in self._workers:
                worker.join()

    def _start_thread(self) -> None:
        name = f"write_{len(self._workers)}"
        worker = threading.Thread(target=self._work, name=name, daemon=True)
        self._workers.append(worker)
        worker.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                self._intake.run(self.begin, *task)
            except Exception:  # noqa: BLE001 - a bug must not end the thread
                _log.exception("a call failed by a bug")
            finally:
                self.unfinished.finish()
                self._count_ended()
                del task  # a call's arguments are not kept until the next one comes

    def _count_ended(self) -> None:
        with self._lock:
            self._inside -= 1
            self._moved_at = self._clock()

    def _rejection_reason(self) -> str:
        """Returns why one more call would be of no use; empty = it is accepted."""
        waiting = self._inside - self._threads_most
        if waiting < 0:
            self._moved_at = self._clock()
            return ""
        still = self._clock() - self._moved_at
        if still > _STUCK_SECONDS:
            return (
                f"the store is slow: {self._threads_most} changes are under way and none has ended "
                f"for {still:.1f} s"
            )
        if waiting >= self._waiting_most:
            return f"{waiting} changes are queued already (limits.max_queued_writes)"
        return ""


T = TypeVar("T")


class FairQueue(Generic[T]):
    """Queue that serves its keys round robin, and the items of one key in order. Thread-safe.

    Args:
        key_of: returns the key of an item.
    """

    def __init__(self, key_of: Callable[[T], Hashable]) -> None:
        self._key_of: Final = key_of
        self._lock: Final = threading.Lock()
        self._items: Final[OrderedDict[Hashable, deque[T]]] = OrderedDict()
        # One for each item: a thread that waits for a ticket does so in C.
        self._tickets: Final[SimpleQueue[bool]] = SimpleQueue()

    def put(self, item: T) -> None:
        """Adds an item."""
        key = self._key_of(item)
        with self._lock:
            mine = self._items.get(key)
            if mine is None:
                self._items[key] = deque((item,))
            else:
                mine.append(item)
        self._tickets.put(True)

    def end(self) -> None:
        """Makes one ``get`` return None, after the items in the queue."""
        self._tickets.put(False)

    def get(self) -> T | None:
        """Waits for an item and removes it; None: the queue was ended."""
        return self._pop() if self._tickets.get() else None

    def clear(self) -> None:
        """Drops the items that no ``get`` takes meanwhile; does not wait."""
        with suppress(Empty):
            while True:
                if self._tickets.get_nowait():
                    self._pop()

    def _pop(self) -> T:
        with self._lock:
            key, mine = self._items.popitem(last=False)
            item = mine.popleft()
            if mine:
                self._items[key] = mine
        return item

    def qsize(self) -> int:
        """Returns the approximate number of items."""
        return self._tickets.qsize()
