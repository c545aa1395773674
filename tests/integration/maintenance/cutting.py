"""Stores that are cut off after so many steps, as ``kill -9`` would do it; and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from directory.maintenance.backup_stream import rows_of
from directory.store.addresses import open_store
from directory.store.base import FILLED_FROM, Store
from directory.store.event_rows import FLOOR_KEY

Row = tuple[bytes, bytes]


class CutOff(BaseException):
    """The process would be gone by now."""


class _Steps:
    """So many are left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> None:
        if self.left == 0:
            raise CutOff
        self.left -= 1


class _CutStore:
    """A store whose steps are counted: each change of it, and a few moments while it is filled."""

    def __init__(self, store: Store, steps: _Steps) -> None:
        self._store = store
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._stepwise(found) if name in {"seal", "clear", "unseal"} else found

    def _stepwise(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **named: Any) -> Any:
            self._steps.take()
            done = change(*arguments, **named)
            self._steps.take()
            return done

        return changed

    def fill(self, rows: Iterable[Row]) -> int:
        def counted() -> Iterator[Row]:
            for number, row in enumerate(rows):
                if number % 150 == 0:
                    self._steps.take()
                yield row

        return self._store.fill(counted())


def cutting(steps: int) -> Callable[..., Any]:
    """Returns an ``open_store`` whose stores are cut off after so many steps together."""
    left = _Steps(steps)
    return lambda *arguments: _CutStore(open_store(*arguments), left)


def everything(store: Store) -> dict[bytes, bytes]:
    """Returns what goes with the cluster; what a store makes anew aside."""
    rows = dict(row for page in rows_of(store.load()) for row in page)
    rows.pop(FLOOR_KEY, None)
    return rows


def held(address: str) -> dict[bytes, bytes]:
    """Returns what the store of cluster ``la`` at an address holds."""
    with closing(open_store(address, "la")) as store:
        return everything(store)


def fill(address: str, rows: Iterable[Row]) -> None:
    """Fills a store of cluster ``la`` with these rows."""
    with closing(open_store(address, "la")) as store:
        store.seal(f"{FILLED_FROM}a test")
        store.fill(rows)
        store.unseal()


def some_rows(count: int) -> list[Row]:
    """Returns facts that nobody reads."""
    return [(b"f/row/%05d" % number, b"v%d" % number * 10) for number in range(count)]
