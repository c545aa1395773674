"""Counts and times the calls of one server, and the operations of its stores.

What a server refuses before its handlers see it (a request over the size limit, one call too many)
is gRPC's own answer and is not counted here.
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
    Limits,
    Loading,
    Row,
    Store,
    StoreFull,
    StoreIsSealed,
    StoreUnreachable,
    Transaction,
    Watch,
)

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
"""A warm resolve takes microseconds, a write milliseconds, one that waits for Kafka seconds."""
COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""A commit is as slow as the disk's fsync, and over a network as the slower half of the members."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """State of a histogram at a time."""

    buckets: tuple[int, ...]
    """How many lasted at most each of the bounds, in their order; the last: how many in all."""
    seconds: float
    """All durations together."""

    @property
    def count(self) -> int:
        """How many in all."""
        return self.buckets[-1]


class _Cell:
    """One thread's counts."""

    __slots__ = ("counts", "seconds")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.seconds = 0.0


class _Cells(threading.local):
    """Gives each thread its cell; made in each thread that first looks."""

    def __init__(self, size: int, all_cells: list[_Cell]) -> None:
        self.cell = _Cell(size)
        all_cells.append(self.cell)


class Histogram:
    """Durations in seconds. Cells stay when their threads end: for threads of pools, not for
    threads that are made by the thousand.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: the buckets' upper ends, in seconds, rising; one more is without an end."""
        self.bounds: Final = tuple(bounds)
        self._all: Final[list[_Cell]] = []
        self._cells: Final = _Cells(len(self.bounds) + 1, self._all)

    def observe(self, seconds: float) -> None:
        """Counts one."""
        cell = self._cells.cell
        cell.counts[bisect_left(self.bounds, seconds)] += 1
        cell.seconds += seconds

    def read(self) -> HistogramSnapshot:
        """Returns all threads' counts. A count in progress may be included while its seconds are
        not yet.
        """
        size = len(self.bounds) + 1
        cells = list(self._all)
        counts = [sum(cell.counts[index] for cell in cells) for index in range(size)]
        for index in range(1, size):
            counts[index] += counts[index - 1]
        return HistogramSnapshot(tuple(counts), sum(cell.seconds for cell in cells))


class CallOutcome(NamedTuple):
    """Method, such as ``ResolveService/Resolve``, and the gRPC code that a call ended with."""

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
        """Returns where calls with one answer are to be observed; always the same for
        the same two.
        """
        key = CallOutcome(method, code)
        found = self._unary.get(key)
        if found is None:
            with self._lock:
                found = self._unary.setdefault(key, Histogram(CALL_SECONDS))
        return found

    def stream_began(self, method: str) -> None:
        """Counts a stream that is open from now on."""
        with self._lock:
            self._open[method] += 1

    def stream_ended(self, method: str, code: str) -> None:
        """Counts a stream as ended that ``stream_began`` counted."""
        with self._lock:
            self._open[method] -= 1
            self._streams[CallOutcome(method, code)] += 1

    def calls(self) -> Mapping[CallOutcome, Histogram]:
        """Calls with one answer."""
        return dict(self._unary)

    def streams(self) -> tuple[Mapping[str, int], Mapping[CallOutcome, int]]:
        """Returns the streams that are open now, by method, and how many ended how."""
        with self._lock:
            return dict(self._open), dict(self._streams)


class MeasuredStore:
    """Store that counts and times another one; the contract is ``Store``'s."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store: Final = store
        self._clock: Final = clock
        self.commits: Final = {
            outcome: Histogram(COMMIT_SECONDS)
            for outcome in ("committed", "conflict", "unavailable", "full", "sealed", "error")
        }
        """How long commits took, by what came of them; *failed*: refused as a bug of the caller's.
        """
        self.last_commit_seconds: float | None = None
        """What the last one took that the store answered."""
        self._lock: Final = threading.Lock()
        self._reads = {"ok": 0, "error": 0}

    # -- what was seen ---------------------------------------------------------------------------

    def reads(self) -> dict[str, int]:
        """Returns how often rows were read beside the replica's load, by whether the store
        answered.
        """
        with self._lock:
            return dict(self._reads)

    # -- timed -----------------------------------------------------------------------------------

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        started, outcome = self._clock(), "error"
        try:
            done = self._store.commit(transaction, timeout_seconds)
            outcome = "committed" if isinstance(done, Committed) else "conflict"
            return done
        except StoreIsSealed:
            outcome = "sealed"
            raise
        except StoreFull:
            outcome = "full"
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

    # -- handed on -------------------------------------------------------------------------------

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

    def seal(self, why: str) -> None:
        self._store.seal(why)

    def clear(self) -> int:
        return self._store.clear()

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        return self._store.fill(rows)

    def unseal(self) -> Identity:
        return self._store.unseal()

    def describe(self) -> str:
        return self._store.describe()

    def close(self) -> None:
        self._store.close()
