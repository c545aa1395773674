"""How many partitions there are below each directory, kept as the counts of topics are once asked.

A load does not count them: it looks at first bytes only, and most clusters never ask. Refuses to
know where a directory is: that is the tree's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import immutables

__all__ = ["PartitionCounts", "Sums"]

Sums = immutables.Map[int, int]
"""Of each directory with a topic below it: partitions at any depth."""


class _Asked:
    """Shared by the counts of one tree and of all that come from it: whether anybody asked."""

    __slots__ = ("ever", "lock")

    def __init__(self) -> None:
        self.ever = False
        self.lock = threading.Lock()


class PartitionCounts:
    """The counts of one tree. Safe to ask from any thread; a question never changes an answer.

    ``make`` counts them, in a third of a second a million topics. From the first question on each
    commit's are made of those before it, so that nobody counts a second time.
    """

    __slots__ = ("_asked", "_make", "_sums")

    def __init__(self, make: Callable[[], Sums]) -> None:
        self._make = make
        self._sums: Sums | None = None
        self._asked = _Asked()

    def below(self, directory_id: int) -> int:
        """Returns partitions of the topics below a directory, at any depth."""
        self._asked.ever = True
        return self._all().get(directory_id, 0)

    @property
    def kept(self) -> Sums | None:
        """The counts, if anybody ever asked for some; else they are not made."""
        return self._all() if self._asked.ever else None

    def after(self, make: Callable[[], Sums], sums: Sums | None) -> PartitionCounts:
        """Returns those of the next tree: ``sums``, made of what is ``kept`` here, or
        to be made.
        """
        counts = PartitionCounts(make)
        counts._sums, counts._asked = sums, self._asked
        return counts

    def _all(self) -> Sums:
        sums = self._sums
        if sums is None:
            with self._asked.lock:
                sums = self._sums
                if sums is None:
                    sums = self._sums = self._make()
                    # What it holds of the tree is of no more use.
                    self._make = immutables.Map
        return sums
