"""Nodes of a tree: the persistent parts that snapshots share.

``snapshot_load.py`` makes a tree from a store's rows, ``snapshot_update.py`` the next one from a
commit's writes; ``snapshot.py`` is the interface to read one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Final, NamedTuple

import immutables

from directory.access.grant_tree import NO_GRANTS, GrantTree
from directory.namespace.entry import DELETED_ID, Codec, Directory, Kind, Link, Mount
from directory.namespace.keys import EntryKey, entry_key, parse_entry_key
from directory.namespace.physical_name_index import PhysicalNameIndex, TopicKey, TopicsByDirectory
from directory.namespace.sorted_map import SortedMap

__all__ = [
    "LEGAL",
    "NOTHING",
    "ROOT_KEY",
    "Container",
    "Containers",
    "Contents",
    "Counts",
    "Node",
    "PartitionCounts",
    "Sums",
    "Topics",
    "Tree",
    "entry_place",
    "is_fact",
    "partitions_of",
    "path_in",
    "physical_index_of",
]


Sums = immutables.Map[int, int]
"""Partitions at any depth below each directory with a topic below it."""


class _Asked:
    """Flag, shared by the partition counts of one tree and of all later ones: True once any was
    used.
    """

    __slots__ = ("ever", "lock")

    def __init__(self) -> None:
        self.ever = False
        self.lock = threading.Lock()


class PartitionCounts:
    """Partition counts of one tree. Thread-safe; a read never changes a result.

    ``make`` counts them, in a third of a second for a million topics. From the first use on, each
    commit's counts are derived from the previous ones, so that nothing is counted twice.
    """

    __slots__ = ("_asked", "_make", "_sums")

    def __init__(self, make: Callable[[], Sums]) -> None:
        self._make = make
        self._sums: Sums | None = None
        self._asked = _Asked()

    def below(self, directory_id: int) -> int:
        """Returns the partitions of the topics below a directory, at any depth."""
        self._asked.ever = True
        return self._all().get(directory_id, 0)

    @property
    def kept(self) -> Sums | None:
        """The counts, if any version of the tree was ever asked for its own; else None, and none
        are made.
        """
        return self._all() if self._asked.ever else None

    def after(self, make: Callable[[], Sums], sums: Sums | None) -> PartitionCounts:
        """Returns the counts of the next tree: ``sums``, derived from ``kept``, or made on first
        use.
        """
        counts = PartitionCounts(make)
        counts._sums, counts._asked = sums, self._asked
        return counts

    def _all(self) -> Sums:
        sums = self._sums
        if sums is None:
            with self._asked.lock:
                sums = self._sums
                if sums is None:
                    sums = self._sums = self._make()
                    # Frees what `make` holds of the tree.
                    self._make = immutables.Map
        return sums


ROOT_KEY: Final = entry_key(0, Kind.DIRECTORY, "")
"""Key of the root directory's own record, if it has one: no other entry has an empty name."""

LEGAL: Final = f"{ascii_letters}{digits}._-".encode()
"""Bytes of legal names."""

_FACTS: Final = (b"f/", b"g/", b"k/", b"l/", b"m/", b"r/", b"x/")

Container = Directory | Link | Mount
Topics = SortedMap[str, bytes]
Containers = SortedMap[str, Container]


def entry_place(key: bytes) -> EntryKey:
    """Parses an entry's key and checks the name.

    Raises:
        ValueError: no path can name an entry with this key; the message is one sentence.
    """
    found = parse_entry_key(key)
    if found.name.encode().translate(None, LEGAL):
        raise ValueError(f"not a name: {found.name!r}")
    return found


def is_fact(key: bytes) -> bool:
    """True if a row that is no entry is kept in memory: all but claims, requests and events."""
    return key.startswith(_FACTS)


class Contents(NamedTuple):
    """Entries directly in a directory."""

    topics: Topics
    containers: Containers


NOTHING: Final = Contents(SortedMap(), SortedMap())


@dataclass(frozen=True, slots=True)
class Node:
    """Directory and the entries directly in it. ``parent_id`` is 0 for the root directory and for
    the directory of removed entries (``DELETED_ID``).
    """

    entry_id: int
    parent_id: int
    name: str
    directory: Directory
    topics: Topics
    """Names to stored records; ``Snapshot.topic`` decodes one."""
    containers: Containers
    """Names to directories, links and mounts."""


class Counts(NamedTuple):
    """Number of entries below a directory, at any depth, itself not counted."""

    topics: int = 0
    directories: int = 0
    mounts: int = 0

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """Returns the sum; the difference with ``sign`` -1."""
        return Counts(
            self.topics + sign * other.topics,
            self.directories + sign * other.directories,
            self.mounts + sign * other.mounts,
        )


@dataclass(frozen=True, slots=True)
class Tree:
    """Entries and facts of one cluster that are kept in memory, at one revision."""

    nodes: immutables.Map[int, Node]
    """Every directory with a record, the root and the directory of removed entries, by id."""
    loose: immutables.Map[int, Contents]
    """Entries in directories without a readable record."""
    counts: immutables.Map[int, Counts]
    """Counts of each directory with entries below; updated along the path, so that the size of a
    subtree is known, and a subtree is moved, without visiting each entry.
    """
    mounts: immutables.Map[TopicKey, Mount]
    """Mounts, which are few and often needed together."""
    physical: PhysicalNameIndex
    facts: SortedMap[bytes, bytes]
    unreadable: immutables.Map[bytes, str]
    """Keys of records that cannot be read, with the reason."""
    partitions: PartitionCounts
    grants: GrantTree = NO_GRANTS
    """Grants of entries with a path; their rows are among the facts."""


def path_in(nodes: Mapping[int, Node], directory_id: int) -> tuple[str, ...] | None:
    """Returns the path of a directory below the mount; None if there is none: it is removed, below
    a removed one, or unknown.
    """
    names: list[str] = []
    node = nodes.get(directory_id)
    while node is not None and node.parent_id:
        names.append(node.name)
        node = nodes.get(node.parent_id)
    if node is None or node.entry_id == DELETED_ID:
        return None
    return tuple(reversed(names))


def _upwards(nodes: Mapping[int, Node], node: Node) -> Iterator[Node]:
    """Yields the directory and those above it, up to the root directory."""
    here: Node | None = node
    while here is not None:
        yield here
        here = nodes.get(here.parent_id) if here.parent_id else None


def partitions_of(
    codec: Codec, nodes: Mapping[int, Node], loose: Mapping[int, Contents]
) -> Callable[[], Sums]:
    """Returns the counter of the partitions below each of these directories."""

    def sums() -> Sums:
        found: dict[int, int] = {}
        for some in (nodes, loose):
            for directory_id, one in some.items():
                count = codec.partitions(one.topics.values())
                node = nodes.get(directory_id)
                if node is None:
                    found[directory_id] = count
                    continue
                for here in _upwards(nodes, node) if count else ():
                    found[here.entry_id] = found.get(here.entry_id, 0) + count
        return Sums(found)

    return sums


def physical_index_of(
    codec: Codec, nodes: Mapping[int, Node], loose: Mapping[int, Contents]
) -> PhysicalNameIndex:
    """Returns the index of all topics in these directories, built on first use."""
    sizes = (len(one.topics) for some in (nodes, loose) for one in some.values())

    def topics() -> TopicsByDirectory:
        for some in (nodes, loose):
            yield from ((directory_id, one.topics) for directory_id, one in some.items())

    return PhysicalNameIndex.for_tree(codec, sum(sizes), topics)
