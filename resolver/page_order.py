"""Checks the order of the rows of a listing: no row comes twice, so a server that repeats its pages
is noticed.

A server that invents rows in order is not (docs/security.md#calls-streams-and-answers). Page tokens
do not show repetition: each may be new and lead to the same rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from resolver.errors import Lame

__all__ = ["MOST_EMPTY_PAGES", "PageOrder"]

Row = TypeVar("Row")

MOST_EMPTY_PAGES: Final = 1_000
"""Most empty pages in a row. A server sends an empty page after half of a call's time, if the
changes that it read until then are all hidden from the caller.
"""


class PageOrder(Generic[Row]):
    """Check that each page of one listing begins after the end of the one before.

    Args:
        what: name of the listing in errors.
        key: returns the place of a row in the order of the listing.
    """

    def __init__(self, what: str, key: Callable[[Row], Any]) -> None:
        self._what: Final = what
        self._key: Final = key
        self._end: Any = None
        """Place of the last row of the last page with rows."""
        self._empty_count = 0

    def add_page(self, rows: Sequence[Row]) -> None:
        """Records the rows of the next page.

        Raises:
            Lame: rows are repeated or out of order, or too many pages in a row are empty.
        """
        if not rows:
            self._empty_count += 1
            if self._empty_count > MOST_EMPTY_PAGES:
                raise Lame(
                    f"{self._what}: its server sends page after page without rows: "
                    f"{self._empty_count} in a row"
                )
            return
        first, last = self._key(rows[0]), self._key(rows[-1])
        if last < first or (self._end is not None and first <= self._end):
            raise Lame(f"{self._what}: its server sends rows again, or out of order")
        self._end = last
        self._empty_count = 0
