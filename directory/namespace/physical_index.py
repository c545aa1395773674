"""Where each physical name is: from a name in Kafka to the places of the topics that have it.

It refuses to hold the names: they are in the topics' records, and a name costs more than a place.
So it gives candidates, and who asks looks at their records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import immutables

from directory.namespace.keys import unify

__all__ = ["PhysicalIndex", "Place"]


class Place(NamedTuple):
    """Where a topic stands."""

    parent_id: int
    name: str


class PhysicalIndex:
    """An immutable multimap from unified physical names to places."""

    __slots__ = ("_places",)

    def __init__(self, places: immutables.Map[str, tuple[Place, ...]] | None = None) -> None:
        self._places = immutables.Map() if places is None else places

    def candidates(self, physical_name: str) -> Sequence[Place]:
        return self._places.get(unify(physical_name), ())

    def add(self, physical_name: str, place: Place) -> PhysicalIndex:
        key = unify(physical_name)
        return PhysicalIndex(self._places.set(key, (*self._places.get(key, ()), place)))

    def remove(self, physical_name: str, place: Place) -> PhysicalIndex:
        key = unify(physical_name)
        left = tuple(one for one in self._places.get(key, ()) if one != place)
        return PhysicalIndex(self._places.set(key, left) if left else self._places.delete(key))
