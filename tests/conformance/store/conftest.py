"""The store contract, run against every store there is."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from directory.store.base import Store
from tests.conformance.store.places import PLACES, Place


@pytest.fixture(params=PLACES, ids=lambda kind: kind.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yields an empty place for a store, of each kind."""
    with ExitStack() as cleanup:
        yield request.param.make(request, tmp_path, cleanup, alone=False)


@pytest.fixture(params=PLACES, ids=lambda kind: kind.__name__)
def restorable_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yields one whose backup can be put back: nobody else has anything there."""
    with ExitStack() as cleanup:
        yield request.param.make(request, tmp_path, cleanup, alone=True)


@pytest.fixture
def store(place: Place) -> Store:
    """Returns a new store of cluster ``la``."""
    return place.open()
