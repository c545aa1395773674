"""The persistent parts that a snapshot is made of; refuses to know how they are made or changed.

``loading.py`` makes a tree of a store's rows, ``applying.py`` makes the next one of a commit's
writes, ``snapshot.py`` is how everybody else reads one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import immutables

from directory.namespace.entry import Directory, Kind, Link, Mount
from directory.namespace.keys import entry_key
from directory.namespace.physical_index import PhysicalIndex, Place
from directory.namespace.sorted_map import SortedMap

__all__ = [
    "NOTHING",
    "ROOT_KEY",
    "Container",
    "Containers",
    "Contents",
    "Counts",
    "Node",
    "Topics",
    "Tree",
    "is_fact",
]

ROOT_KEY: Final = entry_key(0, Kind.DIRECTORY, "")
"""Where the root directory's own record is, if it has one: no other entry has an empty name."""

_FACTS: Final = (b"f/", b"k/", b"l/", b"r/", b"x/")

Container = Directory | Link | Mount
Topics = SortedMap[str, bytes]
Containers = SortedMap[str, Container]


def is_fact(key: bytes) -> bool:
    """Whether a row that is no entry is kept in memory: all but claims, requests and events."""
    return key.startswith(_FACTS)


class Contents(NamedTuple):
    """What stands directly in a directory."""

    topics: Topics
    containers: Containers


NOTHING: Final = Contents(SortedMap(), SortedMap())


@dataclass(frozen=True, slots=True)
class Node:
    """A directory and what stands directly in it. ``parent_id`` is 0 for the root directory and
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
    """How many there are below a directory, at any depth, itself not counted."""

    topics: int = 0
    directories: int = 0
    mounts: int = 0

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """The sum; the difference with ``sign`` -1."""
        return Counts(
            self.topics + sign * other.topics,
            self.directories + sign * other.directories,
            self.mounts + sign * other.mounts,
        )


@dataclass(frozen=True, slots=True)
class Tree:
    """Everything of one cluster that is kept in memory, at one revision."""

    nodes: immutables.Map[int, Node]
    """Every directory that has a record, the root and the place of removed entries, by id."""
    loose: immutables.Map[int, Contents]
    """What lies in directories that have no record, or none that can be read."""
    counts: immutables.Map[int, Counts]
    """For each directory with anything below; kept along the path, so that the topics of a subtree
    are known, and a subtree is moved, without looking at each.
    """
    mounts: immutables.Map[Place, Mount]
    """Mounts are few, and asked for all at once."""
    physical: PhysicalIndex
    facts: SortedMap[bytes, bytes]
    unreadable: immutables.Map[bytes, str]
    """Keys whose records cannot be read, with the reason."""
