"""Builds the ``GrantTree`` of a snapshot from all stored rows of grants, or updates it by the
writes of a commit.

A row applies at its entry's path; a row without a path (its entry is removed, or the directory's
record is unreadable) applies nowhere. A row that cannot be read denies everything to everybody at
its path: unreadable grants never count as "no grants".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from directory.access.compiled_grants import NO_RULES, CompiledGrants
from directory.access.grant_tree import EntryPlace, GrantedEntry, GrantTree
from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.access.principals import ANY_HOST, EVERYBODY
from directory.namespace.entry import Codec, Directory, Kind
from directory.namespace.keys import GRANTS, grants_key, parse_grants_key
from directory.namespace.sorted_map import SortedMap
from directory.namespace.tree_nodes import Node, path_in

__all__ = ["SHUT", "grant_tree_of", "grants_in", "update_grant_tree"]

Nodes = Mapping[int, Node]
Facts = SortedMap[bytes, bytes]


SHUT: Final = CompiledGrants.compile(
    Grant(EVERYBODY, ANY_HOST, Operation.ALL, Permission.DENY, kind, "*" if kind.has_names else "")
    for kind in ResourceType
)
"""Grants that deny everything, in place of unreadable ones."""


class _Reader:
    """Decoder of rows; equal grants share their ``CompiledGrants``."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._known: dict[tuple[Grant, ...], CompiledGrants] = {}
        self.unreadable: dict[bytes, str] = {}

    def rules(self, key: bytes, record: bytes) -> CompiledGrants:
        try:
            grants = self._codec.decode_grants(record).grants
        except ValueError as error:
            self.unreadable[key] = str(error)
            return SHUT
        rules = self._known.get(grants)
        if rules is None:
            rules = self._known[grants] = CompiledGrants.compile(grants)
        return rules


def grants_in(facts: Facts, directory_id: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows of grants, in key order; with a directory, only those of the entries directly
    in it.
    """
    prefix = GRANTS if directory_id is None else GRANTS + directory_id.to_bytes(8, "big")
    for key, record in facts.items(prefix):
        if not key.startswith(prefix):
            return
        yield key, record


def grant_tree_of(
    codec: Codec, nodes: Nodes, facts: Facts, unreadable: dict[bytes, str]
) -> GrantTree:
    """Returns the tree of all rows and closed directories; adds unreadable rows to
    ``unreadable``.
    """
    reader = _Reader(codec)
    found: dict[EntryPlace, tuple[CompiledGrants, bool]] = {}
    above_id, above = 0, None
    for key, record in grants_in(facts):
        try:
            parent_id, is_topic, name = parse_grants_key(key)
        except ValueError as error:
            unreadable[key] = str(error)
            continue
        rules = reader.rules(key, record)
        if parent_id != above_id or above is None:
            above_id, above = parent_id, path_in(nodes, parent_id)
        place = _place(parent_id, above, name, is_topic=is_topic)
        if place is not None:
            found[place] = (rules, False)
    for directory_id, node in nodes.items():
        if node.directory.closed and (path := path_in(nodes, directory_id)) is not None:
            place = EntryPlace(path)
            found[place] = (found[place][0] if place in found else NO_RULES, True)
    unreadable.update(reader.unreadable)
    return GrantTree.build(
        GrantedEntry(place, rules, closed) for place, (rules, closed) in found.items()
    )


def update_grant_tree(
    tree: GrantTree,
    codec: Codec,
    before: Nodes,
    after: Nodes,
    facts: Facts,
    directories: Collection[int],
    rows: Collection[bytes],
) -> tuple[GrantTree, Mapping[bytes, str]]:
    """Returns the tree after a commit, and the written rows that cannot be read, with the reason.

    Args:
        tree: the tree of ``before``.
        facts: all rows after the commit.
        directories: those whose records were written or removed.
        rows: keys of the grants that were written or removed.
    """
    if not rows and _nothing_granted(tree, before, after, facts, directories):
        return tree, {}
    reader = _Reader(codec)
    moved = [one for one in directories if _standing(before, one) != _standing(after, one)]
    # The grants of a directory belong to its place and do not move with its id.
    keys = dict.fromkeys(rows)
    for one in moved:
        for nodes in (before, after):
            node = nodes.get(one)
            if node is not None:
                keys[grants_key(node.parent_id, Kind.DIRECTORY, node.name)] = None
    tree = _with_moved(_without_rows(tree, before, keys), reader, before, after, facts, moved)
    for key in keys:
        record = facts.get(key)
        if record is None:
            continue
        try:
            parse_grants_key(key)
        except ValueError as error:
            reader.unreadable[key] = str(error)
            continue
        place, rules = _place_of(after, key), reader.rules(key, record)
        if place is not None:
            tree = tree.with_compiled(place, rules)
    for one, path in _paths(after, directories):
        tree = _closed_as_reported(tree, after[one], path)
    return tree, reader.unreadable


def _nothing_granted(
    tree: GrantTree, before: Nodes, after: Nodes, facts: Facts, directories: Collection[int]
) -> bool:
    """True if there was no grant and no closed directory, and certainly is none now. Most stores
    have none: without this check each new directory there would cost a search.
    """
    return (
        tree.root.is_empty
        and next(grants_in(facts), None) is None
        and not any(_may_be_closed(before.get(one), after.get(one)) for one in directories)
    )


def _may_be_closed(before: Node | None, after: Node | None) -> bool:
    """True if a directory is closed, or may hold a closed one."""
    if after is None:
        return False
    stayed = before is not None and (before.parent_id, before.name) == (after.parent_id, after.name)
    return after.directory.closed or (not stayed and bool(after.containers))


def _without_rows(tree: GrantTree, nodes: Nodes, rows: Iterable[bytes]) -> GrantTree:
    """Returns the tree without these rows."""
    for key in rows:
        place = _place_of(nodes, key)
        if place is not None and tree.grants_at(place):
            tree = tree.with_compiled(place, NO_RULES)
    return tree


def _with_moved(
    tree: GrantTree,
    reader: _Reader,
    before: Nodes,
    after: Nodes,
    facts: Facts,
    moved: Collection[int],
) -> GrantTree:
    """Returns the tree with the grants of moved directories at their new places. The deepest are
    detached first and attached last, so that a directory that moved out of, or into, another is
    moved separately.
    """
    subtrees = {}
    for one, path in sorted(_paths(before, moved), key=lambda found: -len(found[1])):
        tree, subtrees[one] = tree.detach_subtree(EntryPlace(path))
    for one, path in sorted(_paths(after, moved), key=lambda found: len(found[1])):
        if one not in subtrees:
            tree = _with_restored(tree, reader, after, facts, one, path, frozenset(moved))
        elif not subtrees[one].is_empty:
            tree = tree.attach_subtree(EntryPlace(path), subtrees[one])
    return tree


def _with_restored(
    tree: GrantTree,
    reader: _Reader,
    nodes: Nodes,
    facts: Facts,
    directory_id: int,
    path: tuple[str, ...],
    others: frozenset[int],
) -> GrantTree:
    """Returns the tree with the grants of a directory that had no path before; the directories
    ``others`` are handled separately.
    """
    left = [(directory_id, path)]
    while left:
        one, above = left.pop()
        for key, record in grants_in(facts, one):
            place = _place_of(nodes, key)
            if place is not None:
                tree = tree.with_compiled(place, reader.rules(key, record))
        for name, container in nodes[one].containers.items():
            if isinstance(container, Directory) and container.entry_id not in others:
                here = (*above, name)
                tree = _closed_as_reported(tree, nodes[container.entry_id], here)
                left.append((container.entry_id, here))
    return tree


def _closed_as_reported(tree: GrantTree, node: Node, path: tuple[str, ...]) -> GrantTree:
    closed = node.directory.closed
    grant_node = tree.node_at(EntryPlace(path))
    if closed == (grant_node is not None and grant_node.closed):
        return tree
    return tree.with_closed(path, closed=closed)


def _standing(nodes: Nodes, directory_id: int) -> tuple[int, str] | None:
    node = nodes.get(directory_id)
    return None if node is None else (node.parent_id, node.name)


def _paths(nodes: Nodes, directories: Collection[int]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for one in directories:
        path = path_in(nodes, one)
        if path is not None:
            yield one, path


def _place_of(nodes: Nodes, key: bytes) -> EntryPlace | None:
    try:
        parent_id, is_topic, name = parse_grants_key(key)
    except ValueError:
        return None
    return _place(parent_id, path_in(nodes, parent_id), name, is_topic=is_topic)


def _place(
    parent_id: int, above: tuple[str, ...] | None, name: str, *, is_topic: bool
) -> EntryPlace | None:
    if parent_id == 0:
        return None if name or is_topic else EntryPlace(())
    return None if above is None or not name else EntryPlace((*above, name), is_topic)
