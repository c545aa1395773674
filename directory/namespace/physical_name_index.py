"""Where each physical name is: from a name in Kafka to the places of the topics that have it.

It refuses to hold the names: they are in the topics' records, and a name costs more than a place.
So it gives candidates, also such as stand there no longer, and who asks looks at what does.
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
"""Directories' ids with their topics: names to records."""

_HASH: Final = 0x3FFF_FFFF
"""Thirty bits of a hash: of so small integers a million are sorted in a quarter of a second."""
_TABLE: Final = 65_536
"""So many names a table: one that fits the processor's cache is sorted in half the time."""
_MOST_TABLES: Final = 16
_PIECE: Final = 1_000
"""So many records are read in about a millisecond, and others can do nothing meanwhile."""
_LOOSE: Final = 4096
"""So many new names are no reason for a new base, however small the old one is."""


class TopicKey(NamedTuple):
    """Key of a topic: its directory's id and its name."""

    parent_id: int
    name: str


class PhysicalNameIndex:
    """An immutable multimap from unified physical names to places, in two parts.

    The *base* is of all topics of some tree, in arrays sorted by hash: 20 bytes a topic. It is made
    when it is first asked for and shared by all indexes after it. What came since is in a
    persistent map on top; when that is a quarter of the base, a new base is due.
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
        """Returns the index of a tree of ``size`` topics, which are read when it is first asked."""
        return cls(_Base(codec, size, topics))

    def candidates(self, physical_name: str) -> Iterator[TopicKey]:
        """Yields where a topic with this name, or one that unifies to the same, may stand."""
        unified = unify(physical_name)
        yield from self._news.get(unified, ())
        for table in self.base.tables():
            yield from table.at(unified)

    def prepare(self, give_way: Callable[[], object] = lambda: None) -> None:
        """Makes now what the first question would have to wait for: some two seconds a million.

        ``give_way`` is called every millisecond or so, until somebody has asked and waits.
        """
        self.base.prepare(give_way)

    @property
    def all_read(self) -> bool:
        """Whether every record was read, and could be."""
        return self.base.is_all_read

    @property
    def unreadable(self) -> Mapping[TopicKey, str]:
        """Records that were found unreadable when the base was made, with the reason."""
        return self.base.unreadable

    def add(self, physical_name: str, place: TopicKey) -> PhysicalNameIndex:
        """Returns the index with one more place."""
        unified = unify(physical_name)
        places = self._news.get(unified, ())
        if place in places:
            return self
        return PhysicalNameIndex(self.base, self._news.set(unified, (*places, place)))

    def remove(self, physical_name: str, place: TopicKey) -> PhysicalNameIndex:
        """Returns the index without a place, if it is a new one; the base keeps what it has."""
        unified = unify(physical_name)
        places = self._news.get(unified, ())
        if place not in places:
            return self
        left = tuple(one for one in places if one != place)
        news = self._news.set(unified, left) if left else self._news.delete(unified)
        return PhysicalNameIndex(self.base, news)

    @property
    def due(self) -> bool:
        """Whether a new base would be smaller than what is on top of this one."""
        return len(self._news) > _LOOSE + self.base.size // 4


class _Table(NamedTuple):
    """Places by hash: the i-th is (parents[i], names[i]), and hashes[i] its unified name's."""

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
    """A table that is being made, in steps of a millisecond or two."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.names: list[str] = []
        self._hashes: list[int] = []
        self._order: list[int] = []

    def add(self, parent_id: int, names: list[str], physical: list[str]) -> None:
        """Topics of one directory."""
        begin = len(self.names)
        self.names += names
        self.parents += repeat(parent_id, len(names))
        # One text of all names, unified at once: a fifth of the cost of one by one.
        unified = unify("\n".join(physical)).split("\n") if physical else ()
        self._hashes += [hash(one) & _HASH for one in unified]
        # Sorted pieces are merged in a third of the time, when the interpreter can do nothing else.
        self._order += sorted(range(begin, len(self.names)), key=self._hashes.__getitem__)

    def table(self, give_way: Callable[[], object]) -> _Table:
        """Returns the table of all that was added."""
        order = self._order
        order.sort(key=self._hashes.__getitem__)
        give_way()
        hashes = array("I", map(self._hashes.__getitem__, order))
        parents = array("Q", map(self.parents.__getitem__, order))
        give_way()
        return _Table(hashes, parents, tuple(map(self.names.__getitem__, order)))


class _Base:
    """The index of one tree, made when first asked."""

    def __init__(self, codec: Codec, size: int, topics: Callable[[], TopicsByDirectory]) -> None:
        self.size: Final = size
        self.unreadable: dict[TopicKey, str] = {}
        self._codec: Final = codec
        # Dropped when read: it holds on to a tree that the world may have left behind.
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
        """Makes the tables, slowly while nobody waits for them."""
        self._make_once(lambda: None if self.is_awaited else give_way())

    def _make_once(self, give_way: Callable[[], object]) -> tuple[_Table, ...]:
        # Many may ask at once, right after a load; the work is for one.
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
                # Not for every directory: 10,000 small ones would take a minute of giving way.
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
        """Returns names and physical names."""
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
    """Returns why a record under a topic's key is not one, in one sentence."""
    try:
        codec.decode(record)
    except ValueError as error:
        return str(error)
    return "not a topic's record"
