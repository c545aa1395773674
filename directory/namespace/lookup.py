"""From a path below the mount to what is there, in one snapshot; refuses to follow anything.

A link or a mount on the way ends the walk: what is answered names it and the rest of the path, and
whoever asked goes on. What comes out is a value among outcomes, never an exception.
"""

from __future__ import annotations

from typing import NamedTuple

from directory.namespace.entry import Directory, Kind, Link, Mount
from directory.namespace.keys import entry_key
from directory.namespace.snapshot import Node, Snapshot

__all__ = [
    "DirectoryAt",
    "Found",
    "LinkAt",
    "Missing",
    "MountAt",
    "TopicAt",
    "Unreadable",
    "lookup",
]

Segments = tuple[str, ...]

# Named tuples, not frozen dataclasses: making one is a third of the cost, on the hottest path.


class TopicAt(NamedTuple):
    """A topic is there."""

    relative: Segments
    parent_id: int
    record: bytes
    """As stored: ``record_to_proto`` answers with it, ``Snapshot.topic`` decodes it."""
    has_container: bool
    """Whether a directory, link or mount of the same name is there too."""


class DirectoryAt(NamedTuple):
    """A directory is there."""

    relative: Segments
    node: Node


class LinkAt(NamedTuple):
    """A link is on the way, or there (``rest`` is empty)."""

    relative: Segments
    """Of the link."""
    link: Link
    rest: Segments
    """What is left of the path below it."""


class MountAt(NamedTuple):
    """Another cluster is mounted on the way, or there (``rest`` is empty)."""

    relative: Segments
    """Of the mount."""
    mount: Mount
    rest: Segments
    """What is left of the path below it."""


class Missing(NamedTuple):
    """Result that nothing exists at the path."""

    nearest: Segments
    """The deepest directory on the way."""


class Unreadable(NamedTuple):
    """Result that a record at the path, or on the way, cannot be read: it is not absent."""

    relative: Segments
    reason: str


Found = TopicAt | DirectoryAt | LinkAt | MountAt | Missing | Unreadable


def lookup(snapshot: Snapshot, relative: Segments, prefer: Kind | None = None) -> Found:
    """Returns what is at a path below the mount.

    Where a topic and a container share the name, the topic is found, unless ``prefer`` is a
    container's kind.
    """
    node = snapshot.root
    if not relative:
        return DirectoryAt(relative, node)
    for depth, name in enumerate(relative[:-1], start=1):
        container = node.containers.get(name)
        if isinstance(container, Directory):
            node = snapshot.nodes[container.entry_id]
        elif container is None:
            return _missing(snapshot, node, relative, depth)
        else:
            return _leaving(container, relative, depth)
    name = relative[-1]
    record = node.topics.get(name)
    container = node.containers.get(name)
    if record is not None and (container is None or prefer is None or prefer is Kind.TOPIC):
        return TopicAt(relative, node.entry_id, record, container is not None)
    if isinstance(container, Directory):
        return DirectoryAt(relative, snapshot.nodes[container.entry_id])
    if container is None:
        return _missing(snapshot, node, relative, len(relative))
    return _leaving(container, relative, len(relative))


def _leaving(container: Link | Mount, relative: Segments, depth: int) -> LinkAt | MountAt:
    if isinstance(container, Link):
        return LinkAt(relative[:depth], container, relative[depth:])
    return MountAt(relative[:depth], container, relative[depth:])


def _missing(snapshot: Snapshot, node: Node, relative: Segments, depth: int) -> Found:
    # `depth` segments lead to what is not there.
    kinds = (Kind.TOPIC, Kind.DIRECTORY) if depth == len(relative) else (Kind.DIRECTORY,)
    for kind in kinds:
        reason = snapshot.unreadable(entry_key(node.entry_id, kind, relative[depth - 1]))
        if reason:
            return Unreadable(relative[:depth], reason)
    return Missing(relative[: depth - 1])
