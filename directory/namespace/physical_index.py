"""Where each physical name is: from a name in Kafka to the places of the topics that have it.

It refuses to hold the names: they are in the topics' records, and a name costs more than a place.
So it gives candidates, also such as stand there no longer, and who asks looks at what does.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Final, NamedTuple

import immutables

from directory.namespace.entry import Codec
from directory.namespace.keys import unify
from directory.namespace.sorted_map import SortedMap

__all__ = ["PhysicalIndex", "Place", "TopicsByDirectory"]

TopicsByDirectory = Iterable[tuple[int, SortedMap[str, bytes]]]
"""Directories' ids with their topics: names to records."""

_HASH: Final = 0x3FFF_FFFF
"""Thirty bits of a hash: of so small integers a million are sorted in a quarter of a second."""
_TABLE: Final = 65_536
"""So many names a table: one that fits the processor's cache is sorted in half the time."""
_MOST_TABLES: Final = 16
_LOOSE: Final = 4096
"""So many new names are no reason for a new base, however small the old one is."""


class Place(NamedTuple):
    """Where a topic stands."""

    parent_id: int
    name: str


class PhysicalIndex:
    """An immutable multimap from unified physical names to places, in two parts.

    The *base* is of all topics of some tree, in arrays sorted by hash: 20 bytes a topic. It is made
    when it is first asked for and shared by all indexes after it. What came since is in a
    persistent map on top; when that is a quarter of the base, a new base is due.
    """

    __slots__ = ("_base", "_news")

    def __init__(
        self, base: _Base, news: immutables.Map[str, tuple[Place, ...]] | None = None
    ) -> None:
        self._base = base
        self._news: immutables.Map[str, tuple[Place, ...]] = (
            immutables.Map() if news is None else news
        )

    @classmethod
    def of(cls, codec: Codec, size: int, topics: Callable[[], TopicsByDirectory]) -> PhysicalIndex:
        """The index of a tree of ``size`` topics, which are read when it is first asked."""
        return cls(_Base(codec, size, topics))

    def candidates(self, physical_name: str) -> Iterator[Place]:
        """Where a topic with this name, or one that unifies to the same, may stand."""
        unified = unify(physical_name)
        yield from self._news.get(unified, ())
        for table in self._base.tables():
            yield from table.at(unified)

    def prepare(self) -> None:
        """Makes now what the first question would have to wait for: some two seconds a million."""
        self._base.tables()

    @property
    def all_read(self) -> bool:
        """Whether every record was read, and could be."""
        return self._base.made and not self._base.unreadable

    @property
    def unreadable(self) -> Mapping[Place, str]:
        """Records that were found unreadable when the base was made, with the reason."""
        return self._base.unreadable

    def add(self, physical_name: str, place: Place) -> PhysicalIndex:
        """The index with one more place."""
        unified = unify(physical_name)
        places = self._news.get(unified, ())
        if place in places:
            return self
        return PhysicalIndex(self._base, self._news.set(unified, (*places, place)))

    def remove(self, physical_name: str, place: Place) -> PhysicalIndex:
        """The index without a place, if it is a new one; the base keeps what it has."""
        unified = unify(physical_name)
        places = self._news.get(unified, ())
        if place not in places:
            return self
        left = tuple(one for one in places if one != place)
        news = self._news.set(unified, left) if left else self._news.delete(unified)
        return PhysicalIndex(self._base, news)

    @property
    def due(self) -> bool:
        """Whether a new base would be smaller than what is on top of this one."""
        return len(self._news) > _LOOSE + self._base.size // 4


class _Table(NamedTuple):
    """Places by hash: the i-th is (parents[i], names[i]), and hashes[i] its unified name's."""

    hashes: array[int]
    parents: array[int]
    names: tuple[str, ...]

    @classmethod
    def of(cls, physical: list[str], parents: list[int], names: list[str]) -> _Table:
        # One text of all names, unified at once: a fifth of the cost of one by one.
        unified = unify("\n".join(physical)).split("\n")
        hashes = [hash(one) & _HASH for one in unified]
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        return cls(
            array("I", map(hashes.__getitem__, order)),
            array("Q", map(parents.__getitem__, order)),
            tuple(map(names.__getitem__, order)),
        )

    def at(self, unified: str) -> Iterator[Place]:
        wanted = hash(unified) & _HASH
        index = bisect_left(self.hashes, wanted)
        while index < len(self.hashes) and self.hashes[index] == wanted:
            yield Place(self.parents[index], self.names[index])
            index += 1


class _Base:
    """The index of one tree, made when first asked."""

    def __init__(self, codec: Codec, size: int, topics: Callable[[], TopicsByDirectory]) -> None:
        self.size: Final = size
        self.unreadable: dict[Place, str] = {}
        self._codec: Final = codec
        # Dropped when read: it holds on to a tree that the world may have left behind.
        self._topics: Callable[[], TopicsByDirectory] | None = topics
        self._made: tuple[_Table, ...] | None = None
        self._lock: Final = threading.Lock()

    @property
    def made(self) -> bool:
        """Whether anybody has asked."""
        return self._made is not None

    def tables(self) -> tuple[_Table, ...]:
        made = self._made
        if made is None:
            # Many may ask at once, right after a load; the work is for one.
            with self._lock:
                made = self._made
                if made is None:
                    made = self._made = tuple(self._make())
                    self._topics = None
        return made

    def _make(self) -> Iterator[_Table]:
        enough = max(_TABLE, self.size // _MOST_TABLES)
        physical: list[str] = []
        parents: list[int] = []
        names: list[str] = []
        for parent_id, topics in self._topics() if self._topics is not None else ():
            for name, found in self._readable(parent_id, topics):
                names.append(name)
                physical.append(found)
            parents += repeat(parent_id, len(names) - len(parents))
            if len(names) >= enough:
                yield _Table.of(physical, parents, names)
                physical, parents, names = [], [], []
        if names:
            yield _Table.of(physical, parents, names)

    def _readable(self, parent_id: int, topics: SortedMap[str, bytes]) -> Iterator[tuple[str, str]]:
        records = list(topics.values())
        for name, found, record in zip(
            topics, self._codec.physical_names(records), records, strict=True
        ):
            if found is None:
                self.unreadable[Place(parent_id, name)] = why_no_topic(self._codec, record)
            else:
                yield name, found


def why_no_topic(codec: Codec, record: bytes) -> str:
    """Why a record under a topic's key is not one, in one sentence."""
    try:
        codec.decode(record)
    except ValueError as error:
        return str(error)
    return "not a topic's record"
