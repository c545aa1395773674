"""What the policies of a directory forbid below it, and hand down; quotas are ``quotas.py``'s.

What the ancestors above the mount set counts like one more directory above the root.
"""

from __future__ import annotations

from collections.abc import Iterator

from directory.namespace.effective_policies import effective, levels_of
from directory.namespace.entry import Directory, Policies
from directory.namespace.keys import read_only_id
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.tree_nodes import upwards
from resolver.errors import ReadOnly
from resolver.path import Path

__all__ = [
    "check_not_read_only",
    "directories_below",
    "directory_path",
    "inherited_levels",
    "read_only_place",
]


def directory_path(draft: PlanBuilder, node: Node) -> Path:
    """Returns the absolute path of a directory that is in the tree."""
    relative = draft.snapshot.path_of(node.entry_id)
    return Path((*draft.mount.segments, *(relative or ())))


def inherited_levels(draft: PlanBuilder, node: Node) -> Policies:
    """Returns what holds directly in a directory."""
    above = [level.policies for level in draft.context.above]
    return effective([*above, *levels_of(draft.snapshot, node.entry_id)])


def check_not_read_only(draft: PlanBuilder, node: Node, own: Policies | None = None) -> None:
    """Checks that an entry is not below a read-only directory, where nothing may be created,
    changed or removed; the nearest level that sets it counts. ``own`` is what an entry in ``node``
    sets itself.

    Raises:
        ReadOnly: names the directory that says so.
    """
    if own is not None and own.read_only is not None:
        if own.read_only:
            raise ReadOnly("the entry itself is read-only")
        return
    for above in upwards(draft.snapshot.nodes, node):
        read_only = above.directory.policies.read_only
        if read_only:
            path = directory_path(draft, above)
            raise ReadOnly(f"{path} is read-only", path=path)
        if read_only is not None:
            return
    for level in reversed(draft.context.above):
        if level.policies.read_only:
            raise ReadOnly(f"{level.path} is read-only", path=level.path)
        if level.policies.read_only is not None:
            return


def read_only_place(snapshot: Snapshot, key: bytes, value: bytes) -> tuple[str, ...] | None:
    """Returns where the entry is that a ``f/read_only/`` row is about, below the mount; None =
    nowhere.
    """
    entry_id = read_only_id(key)
    at = snapshot.path_of(entry_id)
    if at is not None:
        return at
    located = snapshot.locate(value.decode(errors="replace"))
    return None if located is None or located.topic.entry_id != entry_id else located.relative


def directories_below(snapshot: Snapshot, node: Node) -> Iterator[Node]:
    """Yields the directory and every one below it, each before those that it holds."""
    stack = [node]
    while stack:
        here = stack.pop()
        yield here
        stack.extend(
            snapshot.nodes[container.entry_id]
            for container in here.containers.values()
            if isinstance(container, Directory)
        )
