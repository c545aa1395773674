"""A writer over a store that breaks down when told to."""

from collections.abc import Iterator

import pytest

from tests.unit.store.scripted_store import ScriptedStore
from tests.unit.writing.bench import Bench


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def bench(store: ScriptedStore) -> Iterator[Bench]:
    """Yields replica, history and writer of one server, started."""
    with Bench(store) as bench:
        yield bench
