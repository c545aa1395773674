"""Which rows make up a cluster, wherever it is stored; refuses to know a store.

What belongs to processes that live now stays behind: registered servers, and who holds a role. What
was answered and what changed goes with the cluster: a request that is asked again after a restore
has no second effect, and its history is still there. Only the mark up to which events are
no longer kept is made anew: it is a revision, and those begin anew in another store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from directory.namespace.keys import MEMBER, ROLE
from directory.store.base import Loading, Store
from directory.store.events import FLOOR_KEY

__all__ = ["Row", "digest_of", "fill_whole", "holds_cluster", "merged", "rows_of"]

_OF_PROCESSES: Final = (MEMBER, ROLE)

Row = tuple[bytes, bytes]


def rows_of(loading: Loading) -> Iterator[Sequence[Row]]:
    """What goes with the cluster, in key order, in pages.

    Raises:
        StoreAway
    """
    for page in loading.pages():
        kept = [row for row in page if not row[0].startswith(_OF_PROCESSES)]
        if kept:
            yield kept


def digest_of(rows: Iterable[Row]) -> bytes:
    """The same for the same rows in the same order, but for what another store makes anew."""
    digest = hashlib.sha256()
    for key, value in rows:
        if key != FLOOR_KEY:
            digest.update(b"%d %d " % (len(key), len(value)))
            digest.update(key)
            digest.update(value)
    return digest.digest()


def holds_cluster(store: Store) -> bool:
    """Whether there is anything in it that would be lost.

    Raises:
        StoreAway
    """
    pages = rows_of(store.load())
    found = next(pages, None) is not None
    if found:
        pages.close()  # type: ignore[attr-defined]
    return found


def fill_whole(store: Store, rows: Iterable[Row]) -> int:
    """Puts these rows, in key order, and nothing else into a store that is sealed to be filled.

    Raises:
        StoreAway, ValueError: see ``Store.fill``.
    """
    store.clear()
    filled = store.fill(row for row in rows if row[0] != FLOOR_KEY)
    # What came is read back page by page, but no watch can resume before this.
    floor = store.load((FLOOR_KEY,)).revision
    return filled + store.fill([(FLOOR_KEY, b"%d" % floor)])


def merged(
    left: Iterator[Row], right: Iterator[Row]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Each key of two sets of rows in key order, with its value in both; None = not there."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None  # noqa: S101 - for the type checker
            yield one[0], one[1], None
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(right, None)
        else:
            yield one[0], one[1], other[1]
            one, other = next(left, None), next(right, None)
