"""Traversal: where a command's path leads in one cluster's tree.

Anything but plain directories on the way is an error that names the next step: a mount is another
cluster's, and writes do not follow links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import NoReturn, assert_never

from directory.namespace.entry import Directory, Entry, Kind, Link, Mount, Topic
from directory.namespace.keys import entry_key
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import (
    Absent,
    InvalidNamespace,
    InvalidPath,
    NotAuthoritative,
    UnreadableRecord,
)
from resolver.path import MAX_PATH_BYTES, MAX_SEGMENT_LENGTH, MAX_SEGMENTS, Path

__all__ = [
    "LocatedEntry",
    "Route",
    "describe_kind",
    "entry_path",
    "first_outgrown",
    "locate_entry",
    "raise_not_reachable",
    "relative_to_mount",
    "require_directory",
    "traverse",
]

_SEARCHED = 1000
"""Most names that are searched for a similar one to suggest."""


@dataclass(frozen=True, slots=True)
class Route:
    """Part of a path along which directories exist."""

    node: Node
    """Deepest directory on the path."""
    depth: int
    """Number of segments to that directory."""
    stopped_by: Link | Mount | None
    """Link or mount at the next segment; None = there is no container, or the path ends here."""
    unreadable: str = ""
    """Why the record of the container at the next segment cannot be read; empty = it can, or there
    is none.
    """


@dataclass(frozen=True, slots=True)
class LocatedEntry:
    """Entry of a command, with its place. ``parent`` is None for the root directory."""

    parent: Node | None
    name: str
    entry: Entry
    path: Path

    @property
    def parent_id(self) -> int:
        """Id of the parent directory; 0 for the root directory."""
        return 0 if self.parent is None else self.parent.entry_id


def describe_kind(entry: Entry) -> str:
    """Returns the kind of an entry, for people."""
    match entry:
        case Directory():
            return "a directory"
        case Topic():
            return "a topic"
        case Link(targets=targets):
            return f"a link to {', '.join(map(str, targets))}"
        case Mount(cluster_id=cluster_id, cluster=cluster):
            return f"the mount of cluster {cluster or cluster_id} ({cluster_id})"
        case _:
            assert_never(entry)


def relative_to_mount(mount: Path, path: Path) -> tuple[str, ...]:
    """Returns the segments of ``path`` below ``mount``.

    Raises:
        NotAuthoritative: the path is not at or below the mount.
    """
    if not mount.is_prefix_of(path):
        raise NotAuthoritative(
            f"{path} is not below {mount}, where this cluster is mounted: resolve it first",
            path=path,
            mount=mount,
        )
    return path.below(mount)


def entry_path(mount: Path, relative: Iterable[str]) -> Path:
    """Returns the path of an entry of the tree. It may be beyond the limits of a path, if the
    cluster came to a longer mount since the entry was made.
    """
    return Path((*mount.segments, *relative))


def first_outgrown(snapshot: Snapshot, top: Node, path: Path, new_path: Path) -> Path | None:
    """Returns the first path at or below a directory that is valid now, and beyond the limits of a
    path once the directory is at ``new_path``; None if there is none.

    Only if the new path is longer, it visits every directory below, and the names of those whose
    entries may be near a limit.
    """
    deeper, longer = len(new_path) - len(path), _size_of(new_path) - _size_of(path)
    if deeper <= 0 and longer <= 0:
        return None

    def is_outgrown(depth: int, size: int) -> bool:
        return _fits(depth, size) and not _fits(depth + deeper, size + longer)

    stack = [(top, path)]
    while stack:
        node, at = stack.pop()
        depth, size = len(at), _size_of(at)
        if is_outgrown(depth, size):
            return at
        if not _fits(depth + 1 + deeper, size + 1 + MAX_SEGMENT_LENGTH + longer):
            for name in chain(node.topics, node.containers):
                if is_outgrown(depth + 1, size + 1 + len(name)):
                    return Path((*at.segments, name))
        stack.extend(
            (snapshot.nodes[one.entry_id], Path((*at.segments, name)))
            for name, one in node.containers.items()
            if isinstance(one, Directory)
        )
    return None


def _size_of(path: Path) -> int:
    return sum(len(one) + 1 for one in path.segments)


def _fits(depth: int, size: int) -> bool:
    return depth <= MAX_SEGMENTS and size <= MAX_PATH_BYTES


def traverse(snapshot: Snapshot, relative: Sequence[str]) -> Route:
    """Returns the route along a path, up to the last directory that exists."""
    node = snapshot.root
    for depth, name in enumerate(relative):
        container = node.containers.get(name)
        match container:
            case None:
                key = entry_key(node.entry_id, Kind.DIRECTORY, name)
                return Route(node, depth, None, snapshot.unreadable(key))
            case Link() | Mount():
                return Route(node, depth, container)
            case Directory():
                node = snapshot.nodes[container.entry_id]
            case _:
                assert_never(container)
    return Route(node, len(relative), None)


def require_directory(
    snapshot: Snapshot, mount: Path, relative: Sequence[str], rest: Sequence[str] = ()
) -> Node:
    """Returns the directory at a path; ``rest`` is what the caller wants below it.

    Raises:
        InvalidNamespace: there is none (names the nearest), or the path leads through a link.
        NotAuthoritative: the path leads through a mount.
        UnreadableRecord: a record on the way cannot be read.
    """
    way = traverse(snapshot, relative)
    if way.depth < len(relative):
        raise_not_reachable(way, mount, relative, rest)
    return way.node


def raise_not_reachable(
    way: Route, mount: Path, relative: Sequence[str], rest: Sequence[str] = ()
) -> NoReturn:
    """Raises the error of a route that ends before the directory ``relative``; ``rest`` is what the
    caller wants below it.

    Raises:
        InvalidNamespace, NotAuthoritative, UnreadableRecord: as ``require_directory``.
    """
    nearest = mount.join(relative[: way.depth])
    stop = nearest.child(relative[way.depth])
    if way.unreadable:
        raise _unreadable(stop, way.unreadable)
    wanted = (*relative[way.depth + 1 :], *rest)
    match way.stopped_by:
        case None:
            similar = _similar(relative[way.depth], way.node, nearest)
            hint = f"; did you mean {similar}?" if similar else ""
            facts = {"similar": similar} if similar else {}
            raise InvalidNamespace(
                f"{stop} does not exist; the nearest directory that does is {nearest}{hint}",
                metadata=facts,
                missing=stop,
                nearest=nearest,
            )
        case Link(targets=targets):
            target = _rewritten(targets[0], wanted)
            raise InvalidNamespace(
                f"{stop} is a link: use {target}",
                link=stop,
                target=target,
                nearest=nearest,
            )
        case Mount(cluster_id=cluster_id) as child:
            raise NotAuthoritative(
                f"{stop} is {describe_kind(child)}: what lies there is that cluster's; resolve "
                "it first",
                mount=stop,
                cluster_id=cluster_id,
            )


def locate_entry(snapshot: Snapshot, mount: Path, path: Path, kind: Kind | None) -> LocatedEntry:
    """Returns the entry at ``path``; if a topic and a container share the name, the topic, unless
    ``kind`` is set.

    Raises:
        Absent: there is no entry of that kind.
        InvalidNamespace: the path leads through a link.
        NotAuthoritative: the entry is another cluster's.
        UnreadableRecord: its record, or one on the way, cannot be read (S21).
    """
    relative = relative_to_mount(mount, path)
    if not relative:
        if kind not in {None, Kind.DIRECTORY}:
            raise Absent(f"{path} is the root directory of this cluster, nothing else", path=path)
        return LocatedEntry(None, "", snapshot.root.directory, path)
    way = traverse(snapshot, relative[:-1])
    if way.depth < len(relative) - 1:
        if way.stopped_by is not None or way.unreadable:
            raise_not_reachable(way, mount, relative[:-1], relative[-1:])
        nearest = mount.join(relative[: way.depth])
        raise Absent(
            f"{path} does not exist; the nearest directory that does is {nearest}",
            path=path,
            nearest=nearest,
        )
    name = relative[-1]
    parent = way.node
    topic = snapshot.topic(parent.entry_id, name) if kind in {None, Kind.TOPIC} else None
    if topic is not None:
        return LocatedEntry(parent, name, topic, path)
    container = parent.containers.get(name)
    if container is not None and kind in {None, container.kind}:
        return LocatedEntry(parent, name, container, path)
    for wanted in (Kind.TOPIC, Kind.DIRECTORY) if kind is None else (kind,):
        reason = snapshot.unreadable(entry_key(parent.entry_id, wanted, name))
        if reason:
            raise _unreadable(path, reason)
    if container is not None and kind is not None:
        raise Absent(f"{path} is {describe_kind(container)}, not {_noun(kind)}", path=path)
    if kind is not None and name in parent.topics:
        raise Absent(f"{path} is a topic, not {_noun(kind)}", path=path)
    raise Absent(f"{path} does not exist", path=path, nearest=path.parent)


def _unreadable(path: Path, reason: str) -> UnreadableRecord:
    return UnreadableRecord(f"the record of {path} cannot be read: {reason}; see kdir doctor")


def _noun(kind: Kind) -> str:
    return f"a {kind.name.lower()}"


def _similar(name: str, node: Node, path: Path) -> str:
    if len(node.containers) > _SEARCHED:
        return ""
    found = get_close_matches(name, list(node.containers), n=1)
    return str(entry_path(path, found[:1])) if found else ""


def _rewritten(target: Path, rest: Sequence[str]) -> Path:
    try:
        return target.join(rest)
    # the whole path would be too long: the target still shows where to continue
    except InvalidPath:
        return target
