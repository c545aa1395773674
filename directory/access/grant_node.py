"""Branch and Fan: the parts that the tree of grants is made of, and how the next version of one is
made; refuses to know paths (a step is a name) and to decide anything.

A branch stands for one entry that has grants, or that leads to one that has; its fan holds the
branches below it. Both know, for each key (``principals.key_of``) of the grants in them, which
operations are *live*: an allow of this key gives them, and they are taken away neither by a deny of
the same entry nor by one of the same key on the way down. A key with denies only has nothing live.

A change makes anew what lies on its path, and looks there only at the keys that changed; all else
is shared. So what is remembered on a fan (``memo``) holds as long as the fan does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import immutables

from directory.access.compiled_grants import NO_RULES, CompiledGrants

__all__ = ["EMPTY_FAN", "NO_BRANCH", "GrantChildren", "GrantNode", "build_children", "update_node"]

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
        """What ``authorize_any.py`` found out about it: derived, so that threads may race for it.
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
        """Of what is set on the entry, and what is below it."""
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
    """A branch with the one that the steps lead to changed; ``keys`` are those of the grants that
    it had before and has afterwards, and for which alone anything can be different.
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
