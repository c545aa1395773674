"""Time budget of long traversals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

__all__ = ["TimeBudget", "checked"]

T = TypeVar("T")

_SLICE: Final = 1_000
"""Entries between two checks of the time."""
_CHECKED_EVERY: Final = 256


class TimeBudget:
    """Budget of one traversal, for one thread. Once spent it stays so."""

    __slots__ = ("_go_on", "_left", "is_over")

    def __init__(self, go_on: Callable[[], bool] = lambda: True) -> None:
        self._go_on: Final = go_on
        self._left = _SLICE
        self.is_over = False
        """True if the budget is spent: entries were left out, and counts are lower bounds."""

    def spend(self, entries: int = 1) -> bool:
        """True if this many more entries may be visited."""
        self._left -= entries
        if self._left <= 0 and not self.is_over:
            self._left = _SLICE
            self.is_over = not self._go_on()
        return not self.is_over


def checked(items: Iterable[T], check: Callable[[], object]) -> Iterator[T]:
    """Yields the items; calls ``check``, which raises if no caller waits for them any more, every
    few hundred.
    """
    for number, item in enumerate(items):
        if number % _CHECKED_EVERY == 0:
            check()
        yield item
