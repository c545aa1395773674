"""GrantTree: the grants of one cluster by path, as an immutable value; refuses to decide anything.

What hangs where is the store's to say; this is kept beside a snapshot, version by version, so that
a path's levels, and the answer to ``authorize_any``, need not be searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import immutables

from directory.access.decision import NO_RULES, CompiledGrants
from directory.access.grants import Grant

__all__ = [
    "EMPTY_FAN",
    "NO_BRANCH",
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
"""Branches that stand in one fan without being parted."""
_LEAST: Final = 16
"""Of so few, a parted fan becomes one without parts again."""
_BITS: Final = 3
_PARTS: Final = 1 << _BITS
_DEEPEST: Final = 60 // _BITS
"""Where the bits of a hash are used up: names that agree in all of them stay together."""


class GrantChildren:
    """The branches right below one, by name: all in ``items``, or by bits of the names' hashes in
    ``parts``. Immutable but for ``memo``.
    """

    __slots__ = ("count", "items", "live", "memo", "parts", "shut", "size")

    def __init__(
        self,
        items: dict[str, GrantNode],
        parts: tuple[GrantChildren, ...],
        live: Live,
        *,
        shut: bool,
    ) -> None:
        below: Iterable[GrantNode | GrantChildren] = parts or items.values()
        self.items: Final = items
        self.parts: Final = parts
        self.live: Final = live
        self.shut: Final = shut
        """Whether there is a closed directory in it."""
        self.size: Final[int] = sum(part.size for part in parts) if parts else len(items)
        self.count: Final[int] = sum(one.count for one in below)
        """Entries with grants of their own, at any depth."""
        self.memo: dict[object, bool] | None = None
        """What ``authorize_any`` found out about it: derived, so that threads may race for it.
        """

    def get(self, step: str) -> GrantNode | None:
        """Returns the branch of this name."""
        if not self.parts:
            return self.items.get(step)
        fan, bits = self, hash(step)
        while fan.parts:
            fan = fan.parts[bits % _PARTS]
            bits >>= _BITS
        return fan.items.get(step)

    def branches(self) -> Iterator[tuple[str, GrantNode]]:
        """Yields all branches with their names, in no order."""
        if not self.parts:
            yield from self.items.items()
        for part in self.parts:
            yield from part.branches()

    def has_grants_for(self, keys: Iterable[str]) -> bool:
        """True if there is a grant of one of these keys in it, or a closed directory."""
        return self.shut or any(key in self.live for key in keys)

    def nodes_for(self, keys: Sequence[str]) -> Iterator[tuple[str, GrantNode]]:
        """Yields the branches of which that is so, with their names, in no order."""
        for part in self.parts:
            if part.has_grants_for(keys):
                yield from part.nodes_for(keys)
        for step, branch in self.items.items():
            if branch.shut or any(key in branch.live for key in keys):
                yield step, branch


@dataclass(frozen=True, slots=True, eq=False)
class GrantNode:
    """One entry, and all below it."""

    rules: CompiledGrants
    closed: bool
    fan: GrantChildren
    live: Live
    shut: bool
    """Whether there is a closed directory in it, itself included."""
    count: int
    """Entries with grants of their own, itself included."""

    @classmethod
    def build(cls, rules: CompiledGrants, fan: GrantChildren, *, closed: bool) -> GrantNode:
        """Builds a node of what is set on the entry, and of what is below it."""
        if not fan.size:
            live = rules.live
        elif not rules:
            live = fan.live
        else:
            live = fan.live.update(
                {
                    key: (own.allow | fan.live.get(key, 0)) & own.kept
                    for key, own in rules.by_key.items()
                }
            )
        return cls(rules, closed, fan, live, closed or fan.shut, fan.count + bool(rules))

    @property
    def is_empty(self) -> bool:
        """Whether it could as well not be there."""
        return not self.rules and not self.closed and not self.fan.size


EMPTY_FAN: Final = GrantChildren({}, (), immutables.Map(), shut=False)
NO_BRANCH: Final = GrantNode.build(NO_RULES, EMPTY_FAN, closed=False)


def build_children(branches: Mapping[str, GrantNode], depth: int = 0) -> GrantChildren:
    """Returns the fan of these branches. Costs O(n)."""
    items = dict(branches)
    if not items:
        return EMPTY_FAN
    parts: tuple[GrantChildren, ...] = ()
    if len(items) > _MOST and depth < _DEEPEST:
        sorted_out: list[dict[str, GrantNode]] = [{} for _ in range(_PARTS)]
        for step, branch in items.items():
            sorted_out[(hash(step) >> (_BITS * depth)) % _PARTS][step] = branch
        parts = tuple(build_children(some, depth + 1) for some in sorted_out)
        items = {}
    live: dict[str, int] = {}
    below: Iterable[GrantNode | GrantChildren] = parts or items.values()
    for one in below:
        for key, bits in one.live.items():
            live[key] = live.get(key, 0) | bits
    return GrantChildren(items, parts, immutables.Map(live), shut=any(one.shut for one in below))


def update_node(
    branch: GrantNode,
    steps: tuple[str, ...],
    change: Callable[[GrantNode], GrantNode],
    keys: Iterable[str],
) -> GrantNode:
    """Returns a node with the one that the steps lead to changed; ``keys`` are those of the grants
    that it had before and has afterwards: only they can differ.
    """
    if not steps:
        return change(branch)
    step, *rest = steps
    below = update_node(branch.fan.get(step) or NO_BRANCH, tuple(rest), change, keys)
    fan = _put(branch.fan, step, None if below.is_empty else below, keys, 0)
    return GrantNode.build(branch.rules, fan, closed=branch.closed)


def _put(
    fan: GrantChildren, step: str, branch: GrantNode | None, keys: Iterable[str], depth: int
) -> GrantChildren:
    if not fan.parts:
        items = {name: one for name, one in fan.items.items() if name != step}
        if branch is not None:
            items[step] = branch
        if len(items) > _MOST or not items:
            return build_children(items, depth)
        return _rebuild_children(fan, items, (), keys)
    place = (hash(step) >> (_BITS * depth)) % _PARTS
    part = _put(fan.parts[place], step, branch, keys, depth + 1)
    parts = (*fan.parts[:place], part, *fan.parts[place + 1 :])
    after = _rebuild_children(fan, {}, parts, keys)
    return build_children(dict(after.branches()), depth) if after.size <= _LEAST else after


def _rebuild_children(
    before: GrantChildren,
    items: dict[str, GrantNode],
    parts: tuple[GrantChildren, ...],
    keys: Iterable[str],
) -> GrantChildren:
    """Returns the fan after a change that is about these keys only."""
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
    return GrantChildren(items, parts, live.finish(), shut=any(one.shut for one in below))


class EntryPlace(NamedTuple):
    """Place of an entry: its segments below the mount, and whether it is the topic or the container
    of that name. The root directory has no segments.
    """

    relative: tuple[str, ...]
    is_topic: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the branches that lead to it: a container's ends with a slash, since a topic
        may stand beside it.
        """
        steps = [f"{name}/" for name in self.relative]
        if self.is_topic:
            steps[-1] = self.relative[-1]
        return tuple(steps)


class GrantedEntry(NamedTuple):
    """An entry that has grants of its own, or is a closed directory."""

    place: EntryPlace
    rules: CompiledGrants = NO_RULES
    closed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GrantTree:
    """All grants of one cluster, and which of its directories are closed; a version, equal only to
    itself. Safe to read from any thread.
    """

    root: GrantNode

    @classmethod
    def build(cls, granted: Iterable[GrantedEntry]) -> GrantTree:
        """Builds a tree of all entries that have grants or are closed, each once, in any order.
        Entries with equal grants should share one ``CompiledGrants``: the tree keeps what it is
        given.
        """
        seeds = _NodeBuilder()
        for place, rules, closed in granted:
            seed = seeds.at(place)
            seed.rules, seed.closed = rules, closed
        return cls(seeds.grown())

    # What there is.

    @property
    def count(self) -> int:
        """Entries with grants of their own."""
        return self.root.count

    def node_at(self, place: EntryPlace) -> GrantNode | None:
        """Returns the branch of an entry; None when no grant and no closed directory is at or below
        it.
        """
        found: GrantNode | None = self.root
        for step in place.steps:
            if found is None:
                return None
            found = found.fan.get(step)
        return found

    def branches_to(self, place: EntryPlace) -> list[GrantNode]:
        """Returns the branches on the way to an entry, outermost first: the root's, and so on as
        far as there are any. The entry's own is among them if there are more than its place has
        segments.
        """
        relative, last = place.relative, len(place.relative) if place.is_topic else 0
        branch = self.root
        found = [branch]
        for depth, name in enumerate(relative, start=1):
            below = branch.fan.get(name if depth == last else name + "/")
            if below is None:
                break
            found.append(below)
            branch = below
        return found

    def grants_at(self, place: EntryPlace) -> tuple[Grant, ...]:
        """Returns the grants set on this very entry, in order."""
        found = self.node_at(place)
        return () if found is None else found.rules.grants

    def levels_to(self, place: EntryPlace) -> Iterator[tuple[int, GrantNode]]:
        """Yields what encloses an entry, and the entry, outermost first, each with its depth: those
        that have grants or are closed.
        """
        branch: GrantNode | None = self.root
        steps = iter(place.steps)
        depth = 0
        while branch is not None:
            if branch.rules or branch.closed:
                yield depth, branch
            step = next(steps, None)
            if step is None:
                return
            branch = branch.fan.get(step)
            depth += 1

    def granted_below(self, place: EntryPlace) -> Iterator[GrantedEntry]:
        """Yields the entries in this one, at any depth, that have grants or are closed; in no
        order.
        """
        found = self.node_at(place)
        if found is not None:
            yield from _node_below(found, place.relative)

    # The next version.

    def with_grants(self, place: EntryPlace, grants: Iterable[Grant]) -> GrantTree:
        """Returns the tree with these as the grants of an entry; all others that it had are
        gone.
        """
        return self.with_compiled(place, CompiledGrants.compile(grants))

    def with_compiled(self, place: EntryPlace, rules: CompiledGrants) -> GrantTree:
        """Returns the same, of rules that are made already."""
        before = self.node_at(place)
        keys = {*rules.by_key, *(before.rules.by_key if before is not None else ())}
        return self._with(
            place, lambda old: GrantNode.build(rules, old.fan, closed=old.closed), tuple(keys)
        )

    def with_closed(self, relative: tuple[str, ...], *, closed: bool) -> GrantTree:
        """Returns the tree with a directory closed, or open again."""
        return self._with(
            EntryPlace(relative), lambda old: GrantNode.build(old.rules, old.fan, closed=closed), ()
        )

    def detach_subtree(self, place: EntryPlace) -> tuple[GrantTree, GrantNode]:
        """Returns the tree without an entry and all below it; and that subtree, for
        ``attach_subtree``. Costs by the keys that occur in it, not by its size.
        """
        before = self.node_at(place)
        if before is None:
            return self, NO_BRANCH
        return self._with(place, lambda _: NO_BRANCH, tuple(before.live)), before

    def attach_subtree(self, place: EntryPlace, branch: GrantNode) -> GrantTree:
        """Returns the tree with a detached subtree at a place, which must be free."""
        return self._with(place, lambda _: branch, tuple(branch.live))

    def _with(
        self, place: EntryPlace, change: Callable[[GrantNode], GrantNode], keys: tuple[str, ...]
    ) -> GrantTree:
        return GrantTree(update_node(self.root, place.steps, change, keys))


NO_GRANTS: Final = GrantTree(NO_BRANCH)


@dataclass(slots=True)
class _NodeBuilder:
    """A branch that is being put together."""

    rules: CompiledGrants = NO_RULES
    closed: bool = False
    below: dict[str, _NodeBuilder] = field(default_factory=dict)

    def at(self, place: EntryPlace) -> _NodeBuilder:
        """Returns the seed at a place; made, with all that lead to it, if it is not there."""
        seed = self
        for step in place.steps:
            found = seed.below.get(step)
            if found is None:
                found = seed.below[step] = _NodeBuilder()
            seed = found
        return seed

    def grown(self) -> GrantNode:
        """Returns the branch of it."""
        below = {
            step: branch
            for step, seed in self.below.items()
            if not (branch := seed.grown()).is_empty
        }
        return GrantNode.build(self.rules, build_children(below), closed=self.closed)


def _node_below(branch: GrantNode, relative: tuple[str, ...]) -> Iterator[GrantedEntry]:
    for step, one in branch.fan.branches():
        is_topic = not step.endswith("/")
        at = EntryPlace((*relative, step.removesuffix("/")), is_topic)
        if one.rules or one.closed:
            yield GrantedEntry(at, one.rules, one.closed)
        yield from _node_below(one, at.relative)
