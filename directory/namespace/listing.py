"""Listings: a page of the entries of a directory, or of everything below it, without following
links and mounts.

Entries are ordered by name, a topic before a container of the same name. Recursively, the entries
of a directory follow it directly, so that paths are ordered segment by segment. The cost of a page
depends on its length, not on the directory's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple, TypeVar

from directory.namespace.entry import Directory, Kind
from directory.namespace.snapshot import Container, Node, Snapshot
from directory.namespace.sorted_map import SortedMap
from resolver.glob import Glob
from resolver.path import is_system

__all__ = ["Cursor", "Listed", "ListedContainer", "ListedTopic", "Page", "list_page"]

V = TypeVar("V")
Segments = tuple[str, ...]

LOOKED_AT_MOST: Final = 20_000
"""Most entries visited for one page: if a glob matches few, the page is short but in time."""


class ListedTopic(NamedTuple):
    """A topic in a listing."""

    relative: tuple[str, ...]
    """Path below the listed directory."""
    record: bytes
    """As stored."""


class ListedContainer(NamedTuple):
    """A directory, link or mount in a listing."""

    relative: tuple[str, ...]
    """Path below the listed directory."""
    entry: Container


Listed = ListedTopic | ListedContainer


class Cursor(NamedTuple):
    """Position in a listing: right after this entry, whether or not it still exists."""

    relative: tuple[str, ...]
    """The entry's path below the listed directory; not empty."""
    container: bool
    """True for the directory, link or mount of that name, False for the topic."""


class Page(NamedTuple):
    """Part of a listing."""

    entries: tuple[Listed, ...]
    after: Cursor | None
    """Where the next page begins; None = this is the last. A page may be short or empty without
    being the last.
    """


def list_page(  # noqa: PLR0913 - one argument for each option of a listing
    snapshot: Snapshot,
    directory_id: int,
    after: Cursor | None = None,
    limit: int = 1000,
    glob: Glob | None = None,
    kinds: Collection[Kind] = (),
    *,
    include_system: bool = False,
    recursive: bool = False,
    looked_at_most: int = LOOKED_AT_MOST,
) -> Page:
    """Returns the entries after a cursor, at most ``limit``, whose name matches the glob and whose
    kind is one of ``kinds`` (empty = all).

    System entries, and everything below them, are only listed with ``include_system``. An unknown
    directory id gives an empty last page.
    """
    node = snapshot.nodes.get(directory_id)
    if node is None:
        return Page((), None)
    walk = _PageTraversal(snapshot, glob, kinds, include_system=include_system, recursive=recursive)
    entries: list[Listed] = []
    last: Listed | None = None
    for looked_at, one in enumerate(walk.below(node, (), after)):
        if last is not None and (len(entries) >= limit or looked_at >= looked_at_most):
            return Page(tuple(entries), Cursor(last.relative, isinstance(last, ListedContainer)))
        last = one
        if walk.fits(one):
            entries.append(one)
    return Page(tuple(entries), None)


class _PageTraversal:
    """Traversal of the entries of a listing, in order."""

    def __init__(
        self,
        snapshot: Snapshot,
        glob: Glob | None,
        kinds: Collection[Kind],
        *,
        include_system: bool,
        recursive: bool,
    ) -> None:
        self._snapshot = snapshot
        self._glob = glob
        self._kinds = frozenset(kinds) or frozenset(Kind)
        self._system = include_system
        self._recursive = recursive
        # Not recursive: only names with the glob's literal prefix can match.
        self._prefix = "" if glob is None or recursive else glob.prefix

    def fits(self, one: Listed) -> bool:
        kind = Kind.TOPIC if isinstance(one, ListedTopic) else one.entry.kind
        if kind not in self._kinds:
            return False
        return self._glob is None or self._glob.matches_segment(one.relative[-1])

    def below(self, node: Node, above: Segments, after: Cursor | None) -> Iterator[Listed]:
        if after is None or after.relative[0] < self._prefix:
            yield from self._from(node, above, self._prefix, topics_too=True, inclusive=True)
            return
        name, *rest = after.relative
        if rest or after.container:
            if self._recursive:
                inside = Cursor(tuple(rest), after.container) if rest else None
                yield from self._into(node.containers.get(name), (*above, name), inside)
            yield from self._from(node, above, name, topics_too=False, inclusive=False)
        else:
            yield from self._from(node, above, name, topics_too=False, inclusive=True)

    def _from(
        self, node: Node, above: Segments, name: str, *, topics_too: bool, inclusive: bool
    ) -> Iterator[Listed]:
        # Containers from `name` on (not inclusive: after it), and topics from `name` on (without
        # topics_too: after it).
        containers = self._containers(node, above, name, inclusive=inclusive)
        if Kind.TOPIC not in self._kinds:
            for one in containers:
                yield from self._with_inside(one)
            return
        container: ListedContainer | None = next(containers, None)
        for topic, record in self._topics(node.topics, name, inclusive=topics_too):
            while container is not None and container.relative[-1] < topic:
                yield from self._with_inside(container)
                container = next(containers, None)
            yield ListedTopic((*above, topic), record)
        while container is not None:
            yield from self._with_inside(container)
            container = next(containers, None)

    def _containers(
        self, node: Node, above: Segments, name: str, *, inclusive: bool
    ) -> Iterator[ListedContainer]:
        if self._kinds == {Kind.TOPIC} and not self._recursive:
            return
        for found, entry in self._visible(node.containers, name, inclusive=inclusive):
            yield ListedContainer((*above, found), entry)

    def _topics(
        self, entries: SortedMap[str, V], name: str, *, inclusive: bool
    ) -> Iterator[tuple[str, V]]:
        # Topics whose name begins with `__` are not system entries.
        for found, value in entries.items(name, inclusive=inclusive):
            if not found.startswith(self._prefix):
                return
            yield found, value

    def _visible(
        self, entries: SortedMap[str, V], name: str, *, inclusive: bool
    ) -> Iterator[tuple[str, V]]:
        for found, value in self._topics(entries, name, inclusive=inclusive):
            if not self._system and is_system(found):
                # Names with the prefix `__` are adjacent: continue with the next name after them.
                if is_system(self._prefix):
                    return
                yield from self._visible(entries, "_`", inclusive=True)
                return
            yield found, value

    def _with_inside(self, container: ListedContainer) -> Iterator[Listed]:
        yield container
        if self._recursive:
            yield from self._into(container.entry, container.relative, None)

    def _into(
        self, entry: Container | None, relative: Segments, after: Cursor | None
    ) -> Iterator[Listed]:
        if not isinstance(entry, Directory) or (not self._system and is_system(relative[-1])):
            return
        node = self._snapshot.nodes.get(entry.entry_id)
        if node is not None:
            yield from self.below(node, relative, after)
