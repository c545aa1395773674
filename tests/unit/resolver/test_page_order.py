"""Pages of a listing end: rows come in order, and not too many pages without rows."""

from __future__ import annotations

import pytest

from resolver.errors import Lame
from resolver.page_order import MOST_EMPTY_PAGES, PageOrder


def order(*pages: list[int]) -> None:
    made: PageOrder[int] = PageOrder("/la", lambda row: row)
    for page in pages:
        made.add_page(page)


def test_pages_in_order_are_taken() -> None:
    order([], [1, 3], [4], [], [5, 5], [])


@pytest.mark.parametrize(
    "pages", [([1, 2], [1, 2]), ([1, 2], [], [2, 3]), ([1], [1]), ([3], [2]), ([2, 1], [3])]
)
def test_rows_again_or_out_of_order_are_refused(pages: tuple[list[int], ...]) -> None:
    with pytest.raises(Lame, match="/la: its server sends rows again, or out of order"):
        order(*pages)


def test_some_pages_without_rows_are_taken() -> None:
    empty: list[list[int]] = [[]] * MOST_EMPTY_PAGES
    order(*empty, [1], *empty, [2])
    with pytest.raises(Lame, match="/la: its server sends page after page without rows"):
        order(*empty, [])
