"""Sqlite stores on one file, opened as often as a test likes; each module may say on which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from directory.store.sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def reopen(path: Path) -> Iterator[Callable[[], SqliteStore]]:
    stores: list[SqliteStore] = []

    def reopen() -> SqliteStore:
        stores.append(SqliteStore(path, "la"))
        return stores[-1]

    yield reopen
    for store in stores:
        store.close()
