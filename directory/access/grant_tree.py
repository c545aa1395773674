"""GrantTree: the grants of one cluster by path, as an immutable value; refuses to decide anything.

What hangs where is the store's to say; this is kept beside a snapshot, version by version, so that
a path's levels, and the answer to ``authorize_any``, need not be searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from directory.access.compiled_grants import NO_RULES, CompiledGrants
from directory.access.grant import Grant
from directory.access.grant_node import NO_BRANCH, GrantNode, build_children, update_node

__all__ = ["NO_GRANTS", "EntryPlace", "GrantTree", "GrantedEntry"]


class EntryPlace(NamedTuple):
    """Where an entry is: its segments below the mount, and whether it is the topic or the container
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
        """Of all entries that have grants or are closed, each once, in any order. Entries with the
        same grants do well to have the same rules: the tree keeps what it is given.
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
        """With these as the grants of an entry; all others that it had are gone."""
        return self.with_compiled(place, CompiledGrants.compile(grants))

    def with_compiled(self, place: EntryPlace, rules: CompiledGrants) -> GrantTree:
        """Returns the same, of rules that are made already."""
        before = self.node_at(place)
        keys = {*rules.by_key, *(before.rules.by_key if before is not None else ())}
        return self._with(
            place, lambda old: GrantNode.build(rules, old.fan, closed=old.closed), tuple(keys)
        )

    def with_closed(self, relative: tuple[str, ...], *, closed: bool) -> GrantTree:
        """With a directory closed, or open again."""
        return self._with(
            EntryPlace(relative), lambda old: GrantNode.build(old.rules, old.fan, closed=closed), ()
        )

    def detach_subtree(self, place: EntryPlace) -> tuple[GrantTree, GrantNode]:
        """Without an entry and all below it; and what that was, for ``attach_subtree``. Costs by
        the keys that occur in it, not by its size.
        """
        before = self.node_at(place)
        if before is None:
            return self, NO_BRANCH
        return self._with(place, lambda _: NO_BRANCH, tuple(before.live)), before

    def attach_subtree(self, place: EntryPlace, branch: GrantNode) -> GrantTree:
        """With a branch that was cut elsewhere; there must be nothing at the place."""
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
