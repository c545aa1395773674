"""Durations counted by how long they were, cheaply and from any thread; refuses to know names.

Each thread counts in a cell of its own, and reading adds the cells up: no lock is taken where calls
are answered, and no count is lost, since ``n += 1`` of two threads on one number may lose one.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["CALL_SECONDS", "COMMIT_SECONDS", "Histogram", "HistogramSnapshot"]

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
    """What was counted until now."""

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
    """Gives each thread its cell; made anew in each thread that first looks."""

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
        """All threads' counts. One that is being made right now may be in the count and not yet in
        the seconds.
        """
        size = len(self.bounds) + 1
        cells = list(self._all)
        counts = [sum(cell.counts[index] for cell in cells) for index in range(size)]
        for index in range(1, size):
            counts[index] += counts[index - 1]
        return HistogramSnapshot(tuple(counts), sum(cell.seconds for cell in cells))
