"""Mount table: the mount that owns a path, by the longest prefix of whole segments.

An immutable trie with any values: a change copies the nodes on its path and shares the rest. (A
sorted map of strings, as in HDFS, treats everything from ``/foo`` to ``/foo`` and the last
character as one subtree, which includes ``/foobar``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import immutables

from resolver.path import ROOT, Path

__all__ = ["MountTable"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Node(Generic[T]):
    children: immutables.Map[str, _Node[T]]
    count: int
    """Number of mounts at or below the node."""
    value: tuple[T] | None = None
    """Value of the mount at the node, in a tuple since it may itself be None; None: no mount."""


@dataclass(slots=True)
class _Growing(Generic[T]):
    """Mutable node while a whole table is built: adding mounts one by one would copy each path
    again.
    """

    children: dict[str, _Growing[T]] = field(default_factory=dict)
    value: tuple[T] | None = None


@dataclass(frozen=True, slots=True)
class MountTable(Generic[T]):
    """Mount points with a value each. The cost of a lookup depends on the depth of the path, not on
    the number of mounts.
    """

    _root: _Node[T]

    @classmethod
    def from_rows(cls, mounts: Iterable[tuple[Path, T]] = ()) -> MountTable[T]:
        """Returns a table of these rows; the later of two at the same path counts."""
        root: _Growing[T] = _Growing()
        for path, value in mounts:
            here = root
            for segment in path.segments:
                below = here.children.get(segment)
                if below is None:
                    below = here.children[segment] = _Growing()
                here = below
            here.value = (value,)
        return cls(_settled(root))

    def __len__(self) -> int:
        return self._root.count

    def __bool__(self) -> bool:
        return self._root.count > 0

    def __contains__(self, path: Path) -> bool:
        node = self._node(path)
        return node is not None and node.value is not None

    def __iter__(self) -> Iterator[tuple[Path, T]]:
        return self.at_or_below(ROOT)

    def get(self, path: Path) -> T | None:
        """Returns the value of the mount at exactly this path."""
        node = self._node(path)
        return node.value[0] if node is not None and node.value is not None else None

    def add(self, path: Path, value: T) -> MountTable[T]:
        """Returns the table with a mount at ``path``, replacing any other there."""
        return MountTable(_put(self._root, path.segments, (value,)))

    def remove(self, path: Path) -> MountTable[T]:
        """Returns the table without the mount at ``path``; the mounts below it stay.

        Raises:
            KeyError: nothing is mounted there.
        """
        if path not in self:
            raise KeyError(str(path))
        return MountTable(_put(self._root, path.segments, None))

    def deepest(self, path: Path) -> tuple[Path, T] | None:
        """Returns the mount that owns ``path``: the longest prefix of it; None if there is none."""
        node, best, depth = self._root, self._root.value, 0
        for position, segment in enumerate(path.segments, start=1):
            child = node.children.get(segment)
            if child is None:
                break
            node = child
            if node.value is not None:
                best, depth = node.value, position
        return None if best is None else (Path(path.segments[:depth]), best[0])

    def children(self, path: Path) -> tuple[str, ...] | None:
        """Returns the sorted names of the children of ``path`` with mounts at or below them; None =
        there are no mounts at or below ``path``.
        """
        node = self._node(path)
        if node is None or node.count == 0:
            return None
        return tuple(sorted(node.children))

    def at_or_below(self, path: Path) -> Iterator[tuple[Path, T]]:
        """Yields every mount at or below ``path``, in path order."""
        node = self._node(path)
        if node is not None:
            yield from _walk(node, path.segments)

    def count(self, path: Path = ROOT) -> int:
        """Returns the number of mounts at or below ``path``."""
        node = self._node(path)
        return 0 if node is None else node.count

    def _node(self, path: Path) -> _Node[T] | None:
        node = self._root
        for segment in path.segments:
            child = node.children.get(segment)
            if child is None:
                return None
            node = child
        return node


def _settled(root: _Growing[T]) -> _Node[T]:
    # Without recursion; each node is made after its children.
    order: list[tuple[_Growing[T], list[tuple[str, int]]]] = []
    stack: list[tuple[_Growing[T], str, int]] = [(root, "", -1)]
    while stack:
        node, name, above = stack.pop()
        place = len(order)
        order.append((node, []))
        if above >= 0:
            order[above][1].append((name, place))
        stack.extend((below, segment, place) for segment, below in node.children.items())
    made: dict[int, _Node[T]] = {}
    for place in range(len(order) - 1, -1, -1):
        node, names = order[place]
        children = {name: made.pop(below) for name, below in names}
        count = sum(child.count for child in children.values()) + (node.value is not None)
        made[place] = _Node(immutables.Map(children), count, node.value)
    return made[0]


def _put(root: _Node[T], segments: tuple[str, ...], value: tuple[T] | None) -> _Node[T]:
    way: list[_Node[T]] = [root]
    for segment in segments:
        way.append(way[-1].children.get(segment) or _Node(immutables.Map(), 0))
    last = way.pop()
    grown = (value is not None) - (last.value is not None)
    fresh = _Node(last.children, last.count + grown, value)
    for node, segment in zip(reversed(way), reversed(segments), strict=True):
        # A branch without mounts is dropped: `children` names only segments that lead to a mount.
        if fresh.count:
            children = node.children.set(segment, fresh)
        else:
            children = node.children.delete(segment)
        fresh = _Node(children, node.count + grown, node.value)
    return fresh


def _walk(node: _Node[T], segments: tuple[str, ...]) -> Iterator[tuple[Path, T]]:
    # A stack, not recursion: it yields each mount once, however deep it lies.
    stack = [(segments, node)]
    while stack:
        here, current = stack.pop()
        if current.value is not None:
            yield Path(here), current.value[0]
        stack.extend(
            ((*here, name), current.children[name])
            for name in sorted(current.children, reverse=True)
        )
