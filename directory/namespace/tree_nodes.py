"""The persistent parts that a snapshot is made of; refuses to know how they are made or changed.

``snapshot_load.py`` makes a tree of a store's rows, ``snapshot_update.py`` makes the next one of a
commit's writes, ``snapshot.py`` is how everybody else reads one.
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
    "upwards",
]


Sums = immutables.Map[int, int]
"""Of each directory with a topic below it: partitions at any depth."""


class _Asked:
    """Shared by the counts of one tree and of all that come from it: whether anybody asked."""

    __slots__ = ("ever", "lock")

    def __init__(self) -> None:
        self.ever = False
        self.lock = threading.Lock()


class PartitionCounts:
    """The counts of one tree. Safe to ask from any thread; a question never changes an answer.

    ``make`` counts them, in a third of a second a million topics. From the first question on each
    commit's are made of those before it, so that nobody counts a second time.
    """

    __slots__ = ("_asked", "_make", "_sums")

    def __init__(self, make: Callable[[], Sums]) -> None:
        self._make = make
        self._sums: Sums | None = None
        self._asked = _Asked()

    def below(self, directory_id: int) -> int:
        """Returns partitions of the topics below a directory, at any depth."""
        self._asked.ever = True
        return self._all().get(directory_id, 0)

    @property
    def kept(self) -> Sums | None:
        """The counts, if anybody ever asked for some; else they are not made."""
        return self._all() if self._asked.ever else None

    def after(self, make: Callable[[], Sums], sums: Sums | None) -> PartitionCounts:
        """Returns those of the next tree: ``sums``, made of what is ``kept`` here, or
        to be made.
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
                    # What it holds of the tree is of no more use.
                    self._make = immutables.Map
        return sums


ROOT_KEY: Final = entry_key(0, Kind.DIRECTORY, "")
"""Where the root directory's own record is, if it has one: no other entry has an empty name."""

LEGAL: Final = f"{ascii_letters}{digits}._-".encode()
"""The bytes that names are made of."""

_FACTS: Final = (b"f/", b"g/", b"k/", b"l/", b"m/", b"r/", b"x/")

Container = Directory | Link | Mount
Topics = SortedMap[str, bytes]
Containers = SortedMap[str, Container]


def entry_place(key: bytes) -> EntryKey:
    """Returns an entry's key taken apart, its name checked.

    Raises:
        ValueError: not the key of an entry that a path could name, in one sentence.
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
    """A directory and the entries directly in it. ``parent_id`` is 0 for the root directory and
    for the place of removed entries (``DELETED_ID``).
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
    """Every directory that has a record, the root and the place of removed entries, by id."""
    loose: immutables.Map[int, Contents]
    """What lies in directories that have no record, or none that can be read."""
    counts: immutables.Map[int, Counts]
    """For each directory with anything below; kept along the path, so that the topics of a subtree
    are known, and a subtree is moved, without looking at each.
    """
    mounts: immutables.Map[TopicKey, Mount]
    """Mounts are few, and asked for all at once."""
    physical: PhysicalNameIndex
    facts: SortedMap[bytes, bytes]
    unreadable: immutables.Map[bytes, str]
    """Keys whose records cannot be read, with the reason."""
    partitions: PartitionCounts
    grants: GrantTree = NO_GRANTS
    """The grants of what has a path; their rows are among the facts."""


def path_in(nodes: Mapping[int, Node], directory_id: int) -> tuple[str, ...] | None:
    """Returns the path of a directory below the mount; None when there is none: it is removed,
    below a removed one, or unknown.
    """
    names: list[str] = []
    node = nodes.get(directory_id)
    while node is not None and node.parent_id:
        names.append(node.name)
        node = nodes.get(node.parent_id)
    if node is None or node.entry_id == DELETED_ID:
        return None
    return tuple(reversed(names))


def upwards(nodes: Mapping[int, Node], node: Node) -> Iterator[Node]:
    """Yields the directory and those above it, up to the root directory."""
    here: Node | None = node
    while here is not None:
        yield here
        here = nodes.get(here.parent_id) if here.parent_id else None


def partitions_of(
    codec: Codec, nodes: Mapping[int, Node], loose: Mapping[int, Contents]
) -> Callable[[], Sums]:
    """Returns what counts the partitions below each of these directories."""

    def sums() -> Sums:
        found: dict[int, int] = {}
        for some in (nodes, loose):
            for directory_id, one in some.items():
                count = codec.partitions(one.topics.values())
                node = nodes.get(directory_id)
                if node is None:
                    found[directory_id] = count
                    continue
                for here in upwards(nodes, node) if count else ():
                    found[here.entry_id] = found.get(here.entry_id, 0) + count
        return Sums(found)

    return sums


def physical_index_of(
    codec: Codec, nodes: Mapping[int, Node], loose: Mapping[int, Contents]
) -> PhysicalNameIndex:
    """Returns the index of all topics in these directories, made when it is first asked."""
    sizes = (len(one.topics) for some in (nodes, loose) for one in some.values())

    def topics() -> TopicsByDirectory:
        for some in (nodes, loose):
            yield from ((directory_id, one.topics) for directory_id, one in some.items())

    return PhysicalNameIndex.for_tree(codec, sum(sizes), topics)
