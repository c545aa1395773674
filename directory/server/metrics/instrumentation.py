"""Counts and times the calls of one server and the operations of its stores.

Calls that gRPC itself refuses (a request or a number of calls over a limit) are not counted.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from directory.store.base import (
    Committed,
    Conflict,
    EphemeralKey,
    Guard,
    Identity,
    Leadership,
    Loading,
    Row,
    Store,
    StoreFull,
    StoreIsSealed,
    StoreUnreachable,
    Transaction,
    Watch,
)
from directory.store.transaction_limits import Limits

__all__ = [
    "CALL_SECONDS",
    "COMMIT_SECONDS",
    "CallMetrics",
    "CallOutcome",
    "Histogram",
    "HistogramSnapshot",
    "MeasuredStore",
]


CALL_SECONDS: Final = (
    0.000_025,
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.005,
    0.01,
    0.025,
    0.1,
    0.5,
    2.5,
    10.0,
)
"""Upper ends of the buckets: a cached resolve takes microseconds, a write milliseconds, a call that
waits for Kafka seconds."""
COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper ends of the buckets: a commit takes as long as the disk's fsync; over a network, until a
majority of the members has made it."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """State of a histogram at one time."""

    buckets: tuple[int, ...]
    """Numbers of durations up to each bound, in order; the last is the total number."""
    seconds: float
    """Sum of the durations."""

    @property
    def count(self) -> int:
        """Total number of durations."""
        return self.buckets[-1]


class _Cell:
    """Counters of one thread."""

    __slots__ = ("counts", "seconds")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.seconds = 0.0


class _Cells(threading.local):
    """Counters by thread; created by each thread on first use."""

    def __init__(self, size: int, all_cells: list[_Cell]) -> None:
        self.cell = _Cell(size)
        all_cells.append(self.cell)


class Histogram:
    """Histogram of durations in seconds. Only for threads of pools: the cells of ended threads are
    never freed.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: upper ends of the buckets in seconds, rising; one more bucket has no end."""
        self.bounds: Final = tuple(bounds)
        self._all: Final[list[_Cell]] = []
        self._cells: Final = _Cells(len(self.bounds) + 1, self._all)

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        cell = self._cells.cell
        cell.counts[bisect_left(self.bounds, seconds)] += 1
        cell.seconds += seconds

    def read(self) -> HistogramSnapshot:
        """Returns the sum of all threads' counters. A duration may be counted before its seconds
        are added.
        """
        size = len(self.bounds) + 1
        cells = list(self._all)
        counts = [sum(cell.counts[index] for cell in cells) for index in range(size)]
        for index in range(1, size):
            counts[index] += counts[index - 1]
        return HistogramSnapshot(tuple(counts), sum(cell.seconds for cell in cells))


class CallOutcome(NamedTuple):
    """Method, such as ``ResolveService/Resolve``, and the gRPC code of a call."""

    method: str
    code: str


class CallMetrics:
    """The calls of one server since it began. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._unary: Final[dict[CallOutcome, Histogram]] = {}
        self._streams: Final[Counter[CallOutcome]] = Counter()
        self._open: Final[Counter[str]] = Counter()

    def unary(self, method: str, code: str) -> Histogram:
        """Returns the histogram of unary calls with this outcome; always the same object."""
        key = CallOutcome(method, code)
        found = self._unary.get(key)
        if found is None:
            with self._lock:
                found = self._unary.setdefault(key, Histogram(CALL_SECONDS))
        return found

    def declare(self, method: str, *, streams: bool) -> None:
        """Reports failures of a method by a bug (INTERNAL) from the start, as 0: Prometheus detects
        no increase in a counter whose first value is 1.
        """
        if not streams:
            self.unary(method, "INTERNAL")
            return
        with self._lock:
            self._streams.setdefault(CallOutcome(method, "INTERNAL"), 0)

    def stream_began(self, method: str) -> None:
        """Counts an opened stream."""
        with self._lock:
            self._open[method] += 1

    def stream_ended(self, method: str, code: str) -> None:
        """Counts the end of a stream."""
        with self._lock:
            self._open[method] -= 1
            self._streams[CallOutcome(method, code)] += 1

    def calls(self) -> Mapping[CallOutcome, Histogram]:
        """Returns the unary calls by outcome."""
        return dict(self._unary)

    def streams(self) -> tuple[Mapping[str, int], Mapping[CallOutcome, int]]:
        """Returns the number of open streams by method, and of ended ones by outcome."""
        with self._lock:
            return dict(self._open), dict(self._streams)


class MeasuredStore:
    """Store that counts and times the operations of another one; the contract is ``Store``'s."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store: Final = store
        self._clock: Final = clock
        self.commits: Final = {
            outcome: Histogram(COMMIT_SECONDS)
            for outcome in ("committed", "conflict", "unavailable", "full", "sealed", "error")
        }
        """Durations of commits by outcome; ``error``: refused as a bug of the caller."""
        self.last_commit_seconds: float | None = None
        """Duration of the newest commit that the store answered; None = none yet."""
        self._full: tuple[str, float] | None = None  # reason and time, if it had no space
        self._lock: Final = threading.Lock()
        self._reads = {"ok": 0, "error": 0}

    # -- results ---------------------------------------------------------------------------------

    def reads(self) -> dict[str, int]:
        """Returns the numbers of reads, without the replica's loads, by outcome: ok, error."""
        with self._lock:
            return dict(self._reads)

    @property
    def full(self) -> tuple[str, float] | None:
        """Why the last commit found no space, and the seconds since then; None = it found space.
        Only a later commit shows that there is space again.
        """
        full = self._full
        return None if full is None else (full[0], self._clock() - full[1])

    # -- timed -----------------------------------------------------------------------------------

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        started, outcome = self._clock(), "error"
        try:
            done = self._store.commit(transaction, timeout_seconds)
            outcome = "committed" if isinstance(done, Committed) else "conflict"
            self._full = None
            return done
        except StoreIsSealed:
            outcome = "sealed"
            raise
        except StoreFull as reason:
            outcome = "full"
            self._full = str(reason), self._clock()
            raise
        except StoreUnreachable:
            outcome = "unavailable"
            raise
        finally:
            seconds = self._clock() - started
            self.commits[outcome].observe(seconds)
            if outcome not in {"unavailable", "error"}:
                self.last_commit_seconds = seconds

    def read(self, prefix: bytes, limit: int = 1000, after: bytes = b"") -> Sequence[Row]:
        outcome = "error"
        try:
            rows = self._store.read(prefix, limit, after)
            outcome = "ok"
            return rows
        finally:
            with self._lock:
                self._reads[outcome] += 1

    # -- passed on -------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        return self._store.identity

    @property
    def limits(self) -> Limits:
        return self._store.limits

    def refresh_identity(self) -> Identity:
        return self._store.refresh_identity()

    def load(self, prefixes: Sequence[bytes] = (b"",)) -> Loading:
        return self._store.load(prefixes)

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        return self._store.newest_revision(timeout_seconds)

    def watch(self, after: int, commit_id: str) -> Watch:
        return self._store.watch(after, commit_id)

    def elect(self, role: str, candidate: str) -> Leadership | None:
        return self._store.elect(role, candidate)

    def create_ephemeral(
        self, key: bytes, value: bytes, guards: Sequence[Guard] = ()
    ) -> EphemeralKey | Conflict:
        return self._store.create_ephemeral(key, value, guards)

    def remove_expired(self, prefix: bytes = b"") -> int:
        return self._store.remove_expired(prefix)

    def seal(self, why: str, expected: str | None = None) -> None:
        self._store.seal(why, expected)

    def clear(self) -> int:
        return self._store.clear()

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        return self._store.fill(rows)

    def unseal(self, expected: str | None = None, at: int | None = None) -> Identity:
        return self._store.unseal(expected, at)

    def describe(self) -> str:
        return self._store.describe()

    def close(self) -> None:
        self._store.close()
