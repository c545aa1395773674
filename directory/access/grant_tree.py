"""GrantTree: the grants of one cluster by path, as an immutable trie.

A snapshot holds one version of it, updated with each commit, so that neither the levels of a path
nor the answer to ``authorize_any`` must be searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import immutables

from directory.access.compiled_grants import NO_RULES, CompiledGrants
from directory.access.grants import Grant

__all__ = [
    "EMPTY_NODE",
    "NO_CHILDREN",
    "NO_GRANTS",
    "EntryPlace",
    "GrantChildren",
    "GrantNode",
    "GrantTree",
    "GrantedEntry",
    "build_children",
    "update_node",
]


Live = immutables.Map[str, int]

_MOST: Final = 64
"""Most nodes in one ``GrantChildren``; with more it is split into parts."""
_LEAST: Final = 16
"""With this few nodes, the parts are joined again."""
_BITS: Final = 3
_PARTS: Final = 1 << _BITS
_DEEPEST: Final = 60 // _BITS
"""Depth at which the bits of a hash are used up: names whose hashes are equal stay together."""


class GrantChildren:
    """Child nodes of one node, by name: all in ``items``; if there are many, in ``parts``, split by
    bits of the names' hashes.

    Immutable except for ``memo``, which caches results of ``authorize_any``.
    """

    __slots__ = ("count", "has_closed", "items", "live", "memo", "parts", "size")

    def __init__(
        self,
        items: dict[str, GrantNode],
        parts: tuple[GrantChildren, ...],
        live: Live,
        *,
        has_closed: bool,
    ) -> None:
        below: Iterable[GrantNode | GrantChildren] = parts or items.values()
        self.items: Final = items
        self.parts: Final = parts
        self.live: Final = live
        self.has_closed: Final = has_closed
        """Whether a closed directory is among the nodes or below them."""
        self.size: Final[int] = sum(part.size for part in parts) if parts else len(items)
        self.count: Final[int] = sum(one.count for one in below)
        """Number of entries with grants of their own, at any depth."""
        self.memo: dict[object, bool] | None = None
        """Results of ``authorize_any`` for these nodes. Derived, so threads may race to write it.
        """

    def get(self, step: str) -> GrantNode | None:
        """Returns the child of this name."""
        if not self.parts:
            return self.items.get(step)
        children, bits = self, hash(step)
        while children.parts:
            children = children.parts[bits % _PARTS]
            bits >>= _BITS
        return children.items.get(step)

    def nodes(self) -> Iterator[tuple[str, GrantNode]]:
        """Yields all children with their names, unordered."""
        if not self.parts:
            yield from self.items.items()
        for part in self.parts:
            yield from part.nodes()

    def has_grants_for(self, keys: Iterable[str]) -> bool:
        """True if there is a closed directory, or a grant with one of these keys, at or below a
        child.
        """
        return self.has_closed or any(key in self.live for key in keys)

    def nodes_for(self, keys: Sequence[str]) -> Iterator[tuple[str, GrantNode]]:
        """Yields the children at or below which there is a closed directory or a grant with one of
        these keys, with their names, unordered.
        """
        for part in self.parts:
            if part.has_grants_for(keys):
                yield from part.nodes_for(keys)
        for step, node in self.items.items():
            if node.has_closed or any(key in node.live for key in keys):
                yield step, node


@dataclass(frozen=True, slots=True, eq=False)
class GrantNode:
    """Node of an entry: its grants, and those of everything below it."""

    rules: CompiledGrants
    closed: bool
    children: GrantChildren
    live: Live
    has_closed: bool
    """True if the entry or one below it is a closed directory."""
    count: int
    """Number of entries with grants of their own, this one included."""

    @classmethod
    def build(cls, rules: CompiledGrants, children: GrantChildren, *, closed: bool) -> GrantNode:
        """Builds the node of an entry from its own grants and its children."""
        if not children.size:
            live = rules.live
        elif not rules:
            live = children.live
        else:
            live = children.live.update(
                {
                    key: (own.allow | children.live.get(key, 0)) & own.kept
                    for key, own in rules.by_key.items()
                }
            )
        return cls(
            rules,
            closed,
            children,
            live,
            closed or children.has_closed,
            children.count + bool(rules),
        )

    @property
    def is_empty(self) -> bool:
        """True if the node can be removed: no grants and no closed directory at or below it."""
        return not self.rules and not self.closed and not self.children.size


NO_CHILDREN: Final = GrantChildren({}, (), immutables.Map(), has_closed=False)
EMPTY_NODE: Final = GrantNode.build(NO_RULES, NO_CHILDREN, closed=False)


def build_children(nodes: Mapping[str, GrantNode], depth: int = 0) -> GrantChildren:
    """Builds the children of a node. Costs O(n)."""
    items = dict(nodes)
    if not items:
        return NO_CHILDREN
    parts: tuple[GrantChildren, ...] = ()
    if len(items) > _MOST and depth < _DEEPEST:
        sorted_out: list[dict[str, GrantNode]] = [{} for _ in range(_PARTS)]
        for step, node in items.items():
            sorted_out[(hash(step) >> (_BITS * depth)) % _PARTS][step] = node
        parts = tuple(build_children(some, depth + 1) for some in sorted_out)
        items = {}
    live: dict[str, int] = {}
    below: Iterable[GrantNode | GrantChildren] = parts or items.values()
    for one in below:
        for key, bits in one.live.items():
            live[key] = live.get(key, 0) | bits
    return GrantChildren(
        items, parts, immutables.Map(live), has_closed=any(one.has_closed for one in below)
    )


def update_node(
    node: GrantNode,
    steps: tuple[str, ...],
    change: Callable[[GrantNode], GrantNode],
    keys: Iterable[str],
) -> GrantNode:
    """Returns a node with the descendant at ``steps`` changed; ``keys`` are those of the
    descendant's grants before and after: ``live`` can differ only in them.
    """
    if not steps:
        return change(node)
    step, *rest = steps
    below = update_node(node.children.get(step) or EMPTY_NODE, tuple(rest), change, keys)
    children = _put(node.children, step, None if below.is_empty else below, keys, 0)
    return GrantNode.build(node.rules, children, closed=node.closed)


def _put(
    children: GrantChildren, step: str, node: GrantNode | None, keys: Iterable[str], depth: int
) -> GrantChildren:
    if not children.parts:
        items = {name: one for name, one in children.items.items() if name != step}
        if node is not None:
            items[step] = node
        if len(items) > _MOST or not items:
            return build_children(items, depth)
        return _rebuild_children(children, items, (), keys)
    place = (hash(step) >> (_BITS * depth)) % _PARTS
    part = _put(children.parts[place], step, node, keys, depth + 1)
    parts = (*children.parts[:place], part, *children.parts[place + 1 :])
    after = _rebuild_children(children, {}, parts, keys)
    return build_children(dict(after.nodes()), depth) if after.size <= _LEAST else after


def _rebuild_children(
    before: GrantChildren,
    items: dict[str, GrantNode],
    parts: tuple[GrantChildren, ...],
    keys: Iterable[str],
) -> GrantChildren:
    """Returns the children after a change of grants with these keys only."""
    below: tuple[GrantNode | GrantChildren, ...] = parts or tuple(items.values())
    live = before.live.mutate()
    for key in keys:
        found = [bits for one in below if (bits := one.live.get(key)) is not None]
        if not found:
            live.pop(key, None)
            continue
        together = 0
        for bits in found:
            together |= bits
        live[key] = together
    return GrantChildren(
        items, parts, live.finish(), has_closed=any(one.has_closed for one in below)
    )


class EntryPlace(NamedTuple):
    """Place of an entry: its segments below the mount, and whether it is the topic or the container
    of that name.

    The root directory has no segments.
    """

    relative: tuple[str, ...]
    is_topic: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the nodes from the root to the entry; a container's name ends with a slash,
        since a topic may have the same name.
        """
        steps = [f"{name}/" for name in self.relative]
        if self.is_topic:
            steps[-1] = self.relative[-1]
        return tuple(steps)


class GrantedEntry(NamedTuple):
    """An entry that has grants of its own or is a closed directory."""

    place: EntryPlace
    rules: CompiledGrants = NO_RULES
    closed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GrantTree:
    """One version of all grants and closed directories of a cluster; equal only to itself.

    Safe to read from any thread.
    """

    root: GrantNode

    @classmethod
    def build(cls, granted: Iterable[GrantedEntry]) -> GrantTree:
        """Builds a tree of all entries that have grants or are closed, each once, in any order.

        Entries with equal grants should share one ``CompiledGrants``: the tree does not look for
        duplicates.
        """
        builders = _NodeBuilder()
        for place, rules, closed in granted:
            builder = builders.at(place)
            builder.rules, builder.closed = rules, closed
        return cls(builders.build())

    # Reads of this version.

    @property
    def count(self) -> int:
        """Number of entries with grants of their own."""
        return self.root.count

    def node_at(self, place: EntryPlace) -> GrantNode | None:
        """Returns the node of an entry; None if there is no grant and no closed directory at or
        below it.
        """
        found: GrantNode | None = self.root
        for step in place.steps:
            if found is None:
                return None
            found = found.children.get(step)
        return found

    def branches_to(self, place: EntryPlace) -> list[GrantNode]:
        """Returns the nodes that exist from the root to an entry, outermost first. The last one
        is the entry's own if there are more of them than its place has segments.
        """
        relative, last = place.relative, len(place.relative) if place.is_topic else 0
        node = self.root
        found = [node]
        for depth, name in enumerate(relative, start=1):
            below = node.children.get(name if depth == last else name + "/")
            if below is None:
                break
            found.append(below)
            node = below
        return found

    def grants_at(self, place: EntryPlace) -> tuple[Grant, ...]:
        """Returns the entry's own grants, in order."""
        found = self.node_at(place)
        return () if found is None else found.rules.grants

    def levels_to(self, place: EntryPlace) -> Iterator[tuple[int, GrantNode]]:
        """Yields the nodes with grants, or of closed directories, from the root to an entry, each
        with its depth.
        """
        node: GrantNode | None = self.root
        steps = iter(place.steps)
        depth = 0
        while node is not None:
            if node.rules or node.closed:
                yield depth, node
            step = next(steps, None)
            if step is None:
                return
            node = node.children.get(step)
            depth += 1

    def granted_below(self, place: EntryPlace) -> Iterator[GrantedEntry]:
        """Yields the entries below this one, at any depth, that have grants or are closed;
        unordered.
        """
        found = self.node_at(place)
        if found is not None:
            yield from _node_below(found, place.relative)

    # The next version.

    def with_grants(self, place: EntryPlace, grants: Iterable[Grant]) -> GrantTree:
        """Returns the tree with these grants on an entry, instead of its previous ones."""
        return self.with_compiled(place, CompiledGrants.compile(grants))

    def with_compiled(self, place: EntryPlace, rules: CompiledGrants) -> GrantTree:
        """Returns the tree with compiled grants on an entry, instead of its previous ones."""
        before = self.node_at(place)
        keys = {*rules.by_key, *(before.rules.by_key if before is not None else ())}
        return self._with(
            place, lambda old: GrantNode.build(rules, old.children, closed=old.closed), tuple(keys)
        )

    def with_closed(self, relative: tuple[str, ...], *, closed: bool) -> GrantTree:
        """Returns the tree with a directory closed, or opened again."""
        return self._with(
            EntryPlace(relative),
            lambda old: GrantNode.build(old.rules, old.children, closed=closed),
            (),
        )

    def detach_subtree(self, place: EntryPlace) -> tuple[GrantTree, GrantNode]:
        """Returns the tree without an entry and all below it; and that subtree, for
        ``attach_subtree``.

        The cost grows with the grant keys that occur in the subtree, not with its entries.
        """
        before = self.node_at(place)
        if before is None:
            return self, EMPTY_NODE
        return self._with(place, lambda _: EMPTY_NODE, tuple(before.live)), before

    def attach_subtree(self, place: EntryPlace, node: GrantNode) -> GrantTree:
        """Returns the tree with a detached subtree at a place where there is none."""
        return self._with(place, lambda _: node, tuple(node.live))

    def _with(
        self, place: EntryPlace, change: Callable[[GrantNode], GrantNode], keys: tuple[str, ...]
    ) -> GrantTree:
        return GrantTree(update_node(self.root, place.steps, change, keys))


NO_GRANTS: Final = GrantTree(EMPTY_NODE)


@dataclass(slots=True)
class _NodeBuilder:
    """Mutable node of a tree that is being built."""

    rules: CompiledGrants = NO_RULES
    closed: bool = False
    below: dict[str, _NodeBuilder] = field(default_factory=dict)

    def at(self, place: EntryPlace) -> _NodeBuilder:
        """Returns the builder at a place; creates it, and those above it, if missing."""
        builder = self
        for step in place.steps:
            found = builder.below.get(step)
            if found is None:
                found = builder.below[step] = _NodeBuilder()
            builder = found
        return builder

    def build(self) -> GrantNode:
        """Returns the immutable node."""
        below = {
            step: node
            for step, builder in self.below.items()
            if not (node := builder.build()).is_empty
        }
        return GrantNode.build(self.rules, build_children(below), closed=self.closed)


def _node_below(node: GrantNode, relative: tuple[str, ...]) -> Iterator[GrantedEntry]:
    for step, one in node.children.nodes():
        is_topic = not step.endswith("/")
        at = EntryPlace((*relative, step.removesuffix("/")), is_topic)
        if one.rules or one.closed:
            yield GrantedEntry(at, one.rules, one.closed)
        yield from _node_below(one, at.relative)
