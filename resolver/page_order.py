"""Order of the rows of a listing, page by page: no row comes twice, so pages that a server repeats
come to an end. Rows that it invents in order do not (docs/security.md#calls-streams-and-answers).

A page token does not show that: each may be new, and lead to the same rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from resolver.errors import Lame

__all__ = ["MOST_EMPTY_PAGES", "PageOrder"]

Row = TypeVar("Row")

MOST_EMPTY_PAGES: Final = 1_000
"""Most empty pages in a row. A server sends some where most of many past changes are hidden from
the caller, each after half of the time of a call.
"""


class PageOrder(Generic[Row]):
    """Check that each page of one listing begins after the end of the one before.

    Args:
        what: the listing, as errors name it.
        key: returns the place of a row in the order of the listing.
    """

    def __init__(self, what: str, key: Callable[[Row], Any]) -> None:
        self._what: Final = what
        self._key: Final = key
        self._end: Any = None
        """Place of the last row of the last page that had rows."""
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
