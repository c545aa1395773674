"""Index of physical names: from a topic's name in Kafka to the places of the entries that may have
it.

It does not store the names, which are in the topics' records and cost more memory than places. So
it returns candidates, also outdated ones, and the caller compares the records.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, repeat
from typing import Final, NamedTuple

import immutables

from directory.namespace.entry import Codec
from directory.namespace.keys import unify
from directory.namespace.sorted_map import SortedMap

__all__ = ["PhysicalNameIndex", "TopicKey", "TopicsByDirectory"]

TopicsByDirectory = Iterable[tuple[int, SortedMap[str, bytes]]]
"""Ids of directories with their topics: names to records."""

_HASH: Final = 0x3FFF_FFFF
"""Thirty bits of a hash: a million integers of this size are sorted in a quarter of a second."""
_TABLE: Final = 65_536
"""Number of names in one table: if it fits the processor's cache, a sort takes half the time."""
_MOST_TABLES: Final = 16
_PIECE: Final = 1_000
"""Number of records read at a time: about a millisecond, during which other threads wait."""
_LOOSE: Final = 4096
"""Number of later names up to which no new base is built, however small the old one is."""


class TopicKey(NamedTuple):
    """Key of a topic: its directory's id and its name."""

    parent_id: int
    name: str


class PhysicalNameIndex:
    """Immutable multimap from unified physical names to places, in two parts.

    The *base* holds the topics of one tree in arrays sorted by hash: 20 bytes a topic. It is built
    on first use and shared by all later indexes. Later names are in a persistent map; when that has
    a quarter of the base's size, a new base is due.
    """

    __slots__ = ("_news", "base")

    def __init__(
        self, base: _Base, news: immutables.Map[str, tuple[TopicKey, ...]] | None = None
    ) -> None:
        self.base = base
        self._news: immutables.Map[str, tuple[TopicKey, ...]] = (
            immutables.Map() if news is None else news
        )

    @classmethod
    def for_tree(
        cls, codec: Codec, size: int, topics: Callable[[], TopicsByDirectory]
    ) -> PhysicalNameIndex:
        """Returns the index of a tree of ``size`` topics, whose records are read on first use."""
        return cls(_Base(codec, size, topics))

    def candidates(self, unified: str) -> Iterator[TopicKey]:
        """Yields the places where a topic with a name that unifies to this one may be."""
        yield from self._news.get(unified, ())
        for table in self.base.tables():
            yield from table.at(unified)

    def prepare(self, give_way: Callable[[], object] = lambda: None) -> None:
        """Builds the base now instead of on first use: some two seconds for a million topics.

        ``give_way`` is called every millisecond or so, until another thread waits for the index.
        """
        self.base.prepare(give_way)

    @property
    def unreadable(self) -> Mapping[TopicKey, str]:
        """Records found unreadable when the base was built, with the reason."""
        return self.base.unreadable

    def add(self, physical_name: str, place: TopicKey) -> PhysicalNameIndex:
        """Returns the index with one more place."""
        unified = unify(physical_name)
        places = self._news.get(unified, ())
        if place in places:
            return self
        return PhysicalNameIndex(self.base, self._news.set(unified, (*places, place)))

    def remove(self, physical_name: str, place: TopicKey) -> PhysicalNameIndex:
        """Returns the index without a place that was added later; the base never changes, so its
        places stay.
        """
        unified = unify(physical_name)
        places = self._news.get(unified, ())
        if place not in places:
            return self
        left = tuple(one for one in places if one != place)
        news = self._news.set(unified, left) if left else self._news.delete(unified)
        return PhysicalNameIndex(self.base, news)

    @property
    def due(self) -> bool:
        """True if a new base is due: there are more than ``_LOOSE`` later names beyond a quarter of
        the base.
        """
        return len(self._news) > _LOOSE + self.base.size // 4


class _Table(NamedTuple):
    """Places by hash: the i-th is (parents[i], names[i]), and hashes[i] is the hash of its unified
    name.
    """

    hashes: array[int]
    parents: array[int]
    names: tuple[str, ...]

    def at(self, unified: str) -> Iterator[TopicKey]:
        wanted = hash(unified) & _HASH
        index = bisect_left(self.hashes, wanted)
        while index < len(self.hashes) and self.hashes[index] == wanted:
            yield TopicKey(self.parents[index], self.names[index])
            index += 1


class _Growing:
    """Table that is being built, in steps of a millisecond or two."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.names: list[str] = []
        self._hashes: list[int] = []
        self._order: list[int] = []

    def add(self, parent_id: int, names: list[str], physical: list[str]) -> None:
        """Adds the topics of one directory."""
        begin = len(self.names)
        self.names += names
        self.parents += repeat(parent_id, len(names))
        # One text of all names, unified at once: a fifth of the cost of unifying each.
        unified = unify("\n".join(physical)).split("\n") if physical else ()
        self._hashes += [hash(one) & _HASH for one in unified]
        # The last sort blocks all threads; if the pieces are sorted, it takes a third of the time.
        self._order += sorted(range(begin, len(self.names)), key=self._hashes.__getitem__)

    def table(self, give_way: Callable[[], object]) -> _Table:
        """Returns the table of all added topics."""
        order = self._order
        order.sort(key=self._hashes.__getitem__)
        give_way()
        hashes = array("I", map(self._hashes.__getitem__, order))
        parents = array("Q", map(self.parents.__getitem__, order))
        give_way()
        return _Table(hashes, parents, tuple(map(self.names.__getitem__, order)))


class _Base:
    """Index of one tree, built on first use."""

    def __init__(self, codec: Codec, size: int, topics: Callable[[], TopicsByDirectory]) -> None:
        self.size: Final = size
        self.unreadable: dict[TopicKey, str] = {}
        self._codec: Final = codec
        # Dropped when built: it keeps a tree alive that may be outdated.
        self._topics: Callable[[], TopicsByDirectory] | None = topics
        self._made: tuple[_Table, ...] | None = None
        self.is_all_read = False
        self.is_awaited = False
        self._lock: Final = threading.Lock()

    def tables(self) -> tuple[_Table, ...]:
        made = self._made
        if made is None:
            self.is_awaited = True
            made = self._make_once(lambda: None)
        return made

    def prepare(self, give_way: Callable[[], object]) -> None:
        """Builds the tables, slowly until another thread waits for them."""
        self._make_once(lambda: None if self.is_awaited else give_way())

    def _make_once(self, give_way: Callable[[], object]) -> tuple[_Table, ...]:
        # Many threads may ask at once, right after a load; only one builds.
        with self._lock:
            made = self._made
            if made is None:
                made = self._made = tuple(self._make(give_way))
                self.is_all_read = not self.unreadable
                self._topics = None
        return made

    def _make(self, give_way: Callable[[], object]) -> Iterator[_Table]:
        enough = max(_TABLE, self.size // _MOST_TABLES)
        growing, since = _Growing(), 0
        for parent_id, topics in self._topics() if self._topics is not None else ():
            left = iter(topics.items())
            while piece := list(islice(left, _PIECE)):
                growing.add(parent_id, *self._readable(parent_id, piece))
                since += len(piece)
                # Not after every directory: with 10,000 small ones, giving way would take a minute.
                if since >= _PIECE:
                    give_way()
                    since = 0
                if len(growing.names) >= enough:
                    yield growing.table(give_way)
                    growing = _Growing()
        if growing.names:
            yield growing.table(give_way)

    def _readable(
        self, parent_id: int, piece: list[tuple[str, bytes]]
    ) -> tuple[list[str], list[str]]:
        """Returns the names and physical names of readable records."""
        names: list[str] = []
        physical: list[str] = []
        found = self._codec.physical_names([record for _, record in piece])
        for (name, record), one in zip(piece, found, strict=True):
            if one is None:
                self.unreadable[TopicKey(parent_id, name)] = why_no_topic(self._codec, record)
            else:
                names.append(name)
                physical.append(one)
        return names, physical


def why_no_topic(codec: Codec, record: bytes) -> str:
    """Returns why a record under a topic's key is no topic's, in one sentence."""
    try:
        codec.decode(record)
    except ValueError as error:
        return str(error)
    return "not a topic's record"
