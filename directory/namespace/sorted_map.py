"""SortedMap: an immutable map in key order, whose versions share all but the changed path.

``set`` and ``delete`` return a new map. ``immutables.Map`` shares structure too, but has no order,
and a sorted copy for each listing is too slow for large directories
(docs/decisions/0010-an-ordered-map-of-our-own.md).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar, overload

__all__ = ["SortedMap"]

K = TypeVar("K", str, bytes)
V = TypeVar("V")
D = TypeVar("D")

# A B+ tree of plain tuples. A branch is (separators, children), where child i holds the keys k with
# separators[i-1] <= k < separators[i]. A leaf is (keys, values, tags), the tags being one byte of
# each key's hash: `get` finds a key by its tag and so reads the memory of one key; a bisection of a
# hundred keys reads seven, which is most of the cost of a lookup in a million (1.7 → 1.0 µs).
#
# Tuples, because they are the smallest containers of Python, and because its garbage collector
# stops tracking a tuple without tracked items: a map of a million names to bytes costs a
# collection nothing.
_Node = tuple[Any, ...]

MOST: Final = 128
"""Most keys of a leaf and most children of a branch: a million keys are two branches deep."""
LEAST: Final = MOST // 4
"""With fewer keys, a node is joined with its neighbour."""
_BULK: Final = 112
"""Keys of a leaf made by ``from_sorted``: nearly full, with room for the first inserts."""

_LOWEST: Final = 0 if array("H", [1]).tobytes()[0] else 7
"""Position of the lowest byte of a 64-bit integer: `_leaf` takes it from many hashes at once."""

_EMPTY: Final[_Node] = ((), (), b"")


class SortedMap(Generic[K, V]):
    """Map from ``str`` or ``bytes`` keys to values, iterated in key order.

    Lookups and changes cost O(log n) comparisons; a change copies at most one leaf and the branches
    above it (some 128 pointers each). Safe to read from any thread.
    """

    __slots__ = ("_root", "_size", "height")

    def __init__(self, root: _Node = _EMPTY, height: int = 0, size: int = 0) -> None:
        # Without arguments: the empty map. Only this module passes any.
        self._root = root
        self.height = height
        self._size = size

    @classmethod
    def from_sorted(cls, keys: Sequence[K], values: Sequence[V]) -> SortedMap[K, V]:
        """Returns the map of ``keys[i]`` to ``values[i]``; the keys must strictly rise (not
        checked).

        Costs O(n) without comparisons.
        """
        size = len(keys)
        if size <= MOST:
            return cls(_leaf(tuple(keys), tuple(values)), 0, size)
        cuts = _cuts(size)
        pairs = list(pairwise(cuts))
        level: list[_Node] = [_leaf(tuple(keys[a:b]), tuple(values[a:b])) for a, b in pairs]
        firsts: list[Any] = [keys[a] for a, _ in pairs]
        height = 0
        while len(level) > 1:
            height += 1
            cuts = _cuts(len(level))
            pairs = list(pairwise(cuts))
            level = [(tuple(firsts[a + 1 : b]), tuple(level[a:b])) for a, b in pairs]
            firsts = [firsts[a] for a, _ in pairs]
        return cls(level[0], height, size)

    @classmethod
    def from_items(cls, items: Iterable[tuple[K, V]]) -> SortedMap[K, V]:
        """Returns the map of these items, in any order; the last of equal keys counts."""
        in_order = sorted(dict(items).items())
        return cls.from_sorted([key for key, _ in in_order], [value for _, value in in_order])

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Returns the value at a key, or the default."""
        node = self._root
        if self.height:
            for _ in range(self.height):
                node = node[1][bisect_right(node[0], key)]
        keys, values, tags = node
        tag = hash(key) & 0xFF
        index = tags.find(tag)
        while index >= 0:
            if keys[index] == key:
                return values[index]
            index = tags.find(tag, index + 1)
        return default

    def __contains__(self, key: K) -> bool:
        return self.get(key, _EMPTY) is not _EMPTY

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for keys, _, _ in self._leaves(None):
            yield from keys

    def values(self) -> Iterator[V]:
        """Yields all values, in key order."""
        for _, values, _ in self._leaves(None):
            yield from values

    def items(self, start: K | None = None, *, inclusive: bool = True) -> Iterator[tuple[K, V]]:
        """Yields (key, value) in key order, from ``start``, or (not ``inclusive``) from right after
        it. The first one costs as much as ``get``.
        """
        leaves = self._leaves(start)
        if start is not None:
            keys, values, _ = next(leaves)
            index = bisect_left(keys, start) if inclusive else bisect_right(keys, start)
            yield from zip(keys[index:], values[index:], strict=True)
        for keys, values, _ in leaves:
            yield from zip(keys, values, strict=True)

    def set(self, key: K, value: V) -> SortedMap[K, V]:
        """Returns the map with this value at this key."""
        old, path = self._descend(key)
        keys: tuple[K, ...] = old[0]
        values: tuple[V, ...] = old[1]
        tags: bytes = old[2]
        index: int = bisect_left(keys, key)
        if index < len(keys) and keys[index] == key:
            if values[index] is value:
                return self
            leaf: _Node = (keys, (*values[:index], value, *values[index + 1 :]), tags)
            return SortedMap(_replace(path, leaf), self.height, self._size)
        leaf = (
            (*keys[:index], key, *keys[index:]),
            (*values[:index], value, *values[index:]),
            b"%b%c%b" % (tags[:index], hash(key) & 0xFF, tags[index:]),
        )
        if len(leaf[0]) <= MOST:
            return SortedMap(_replace(path, leaf), self.height, self._size + 1)
        (left, right), (middle,) = _halve(leaf, is_leaf=True)
        root, risen = _split(path, left, middle, right)
        return SortedMap(root, self.height + risen, self._size + 1)

    def delete(self, key: K) -> SortedMap[K, V]:
        """Returns the map without this key; the map itself if it does not have the key."""
        old, path = self._descend(key)
        keys = old[0]
        index: int = bisect_left(keys, key)
        if index == len(keys) or keys[index] != key:
            return self
        leaf = tuple(part[:index] + part[index + 1 :] for part in old)
        root, fallen = _shrink(path, leaf)
        return SortedMap(root, self.height - fallen, self._size - 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SortedMap):
            return NotImplemented
        if self._root is other._root:
            return True
        return self._size == other._size and all(
            mine == theirs for mine, theirs in zip(self.items(), other.items(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # its values may be unhashable

    def __reduce__(self) -> tuple[Any, ...]:
        # The tags are of this process's hashes: another process must make its own.
        return SortedMap.from_items, (tuple(self.items()),)

    def __repr__(self) -> str:
        return f"SortedMap({dict(self.items())!r})"

    def _descend(self, key: K) -> tuple[_Node, list[tuple[_Node, int]]]:
        node = self._root
        path: list[tuple[_Node, int]] = []
        for _ in range(self.height):
            index = bisect_right(node[0], key)
            path.append((node, index))
            node = node[1][index]
        return node, path

    def _leaves(self, start: K | None) -> Iterator[_Node]:
        # A stack of iterators over the children that are left, the innermost last.
        node = self._root
        stack: list[Iterator[_Node]] = []
        for _ in range(self.height):
            index = 0 if start is None else bisect_right(node[0], start)
            stack.append(iter(node[1][index + 1 :]))
            node = node[1][index]
        yield node
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
            elif len(stack) < self.height:
                stack.append(iter(following[1]))
            else:
                yield following


def _leaf(keys: tuple[Any, ...], values: tuple[Any, ...]) -> _Node:
    return keys, values, array("q", map(hash, keys)).tobytes()[_LOWEST::8]


def _cuts(count: int) -> list[int]:
    # Where to cut `count` things into even parts of at most _BULK (one part if they fit a node).
    parts = 1 if count <= MOST else -(-count // _BULK)
    return [count * part // parts for part in range(parts + 1)]


def _replace(path: list[tuple[_Node, int]], node: _Node) -> _Node:
    for (separators, children), index in reversed(path):
        node = (separators, (*children[:index], node, *children[index + 1 :]))
    return node


def _split(path: list[tuple[_Node, int]], left: _Node, key: Any, right: _Node) -> tuple[_Node, int]:
    # Replaces a node by two and splits branches that become too wide; returns the new root, and by
    # how much the height has grown.
    while path:
        (separators, children), index = path.pop()
        node = (
            (*separators[:index], key, *separators[index:]),
            (*children[:index], left, right, *children[index + 1 :]),
        )
        if len(node[1]) <= MOST:
            return _replace(path, node), 0
        (left, right), (key,) = _halve(node, is_leaf=False)
    return ((key,), (left, right)), 1


def _shrink(path: list[tuple[_Node, int]], node: _Node) -> tuple[_Node, int]:
    # Replaces a node by a smaller one and joins it with a neighbour if it is too small; returns the
    # new root, and by how much the height has shrunk.
    is_leaf = True
    while path:
        if len(node[1]) >= LEAST:
            return _replace(path, node), 0
        (separators, children), index = path.pop()
        first = index - 1 if index else 0
        left, right = (children[first], node) if index else (node, children[1])
        joined = _join(left, separators[first], right, is_leaf=is_leaf)
        nodes, keys = _halve(joined, is_leaf=is_leaf)
        node = (
            separators[:first] + keys + separators[first + 1 :],
            children[:first] + nodes + children[first + 2 :],
        )
        is_leaf = False
    if not is_leaf and len(node[1]) == 1:
        return node[1][0], 1
    return node, 0


def _join(left: _Node, key: Any, right: _Node, *, is_leaf: bool) -> _Node:
    if is_leaf:
        return tuple(one + other for one, other in zip(left, right, strict=True))
    return (*left[0], key, *right[0]), left[1] + right[1]


def _halve(node: _Node, *, is_leaf: bool) -> tuple[tuple[_Node, ...], tuple[Any, ...]]:
    # Returns the node unchanged, or, if it is too large, two nodes and the key between them.
    if len(node[1]) <= MOST:
        return (node,), ()
    half = len(node[1]) // 2
    if is_leaf:
        left = tuple(part[:half] for part in node)
        right = tuple(part[half:] for part in node)
        return (left, right), (right[0][0],)
    separators, children = node
    left = (separators[: half - 1], children[:half])
    return (left, (separators[half:], children[half:])), (separators[half - 1],)
