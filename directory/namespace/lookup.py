"""Lookup: what is at a path below the mount, in one snapshot.

A link or a mount on the way ends the lookup: the result names it and the rest of the path, for the
caller to continue. Every outcome is a value, never an exception.
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
    """Result that there is a topic at the path."""

    relative: Segments
    parent_id: int
    record: bytes
    """Stored form: ``record_to_proto`` encodes it for an answer, ``Snapshot.topic`` decodes it."""
    has_container: bool
    """True if a directory, link or mount of the same name exists, too."""


class DirectoryAt(NamedTuple):
    """Result that there is a directory at the path."""

    relative: Segments
    node: Node


class LinkAt(NamedTuple):
    """Result that there is a link at the path (``rest`` is empty) or on the way to it."""

    relative: Segments
    """Path of the link."""
    link: Link
    rest: Segments
    """Rest of the path below the link."""


class MountAt(NamedTuple):
    """Result that another cluster is mounted at the path (``rest`` is empty) or on the
    way to it.
    """

    relative: Segments
    """Path of the mount."""
    mount: Mount
    rest: Segments
    """Rest of the path below the mount."""


class Missing(NamedTuple):
    """Result that nothing exists at the path."""

    nearest: Segments
    """Deepest directory on the way that exists."""


class Unreadable(NamedTuple):
    """Result that a record at the path, or on the way, cannot be read; not the same as absent."""

    relative: Segments
    reason: str


Found = TopicAt | DirectoryAt | LinkAt | MountAt | Missing | Unreadable


def lookup(snapshot: Snapshot, relative: Segments, prefer: Kind | None = None) -> Found:
    """Returns what is at a path below the mount. If a topic and a container share the name, the
    topic, unless ``prefer`` is a container's kind.
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
    # The first `depth - 1` segments of the path exist, the next one does not or is unreadable.
    kinds = (Kind.TOPIC, Kind.DIRECTORY) if depth == len(relative) else (Kind.DIRECTORY,)
    for kind in kinds:
        reason = snapshot.unreadable(entry_key(node.entry_id, kind, relative[depth - 1]))
        if reason:
            return Unreadable(relative[:depth], reason)
    return Missing(relative[: depth - 1])
