"""What the policies of a directory forbid below it: changes where it is read-only, too many topics.

What the ancestors above the mount set counts like one more directory above the root; a quota of
theirs binds each cluster by itself (DESIGN §6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from directory.namespace.draft import Draft
from directory.namespace.entry import ROOT_ID, Directory, Policies
from directory.namespace.keys import directory_range
from directory.namespace.policies import effective, levels_of
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import QuotaExceeded, ReadOnly
from resolver.path import Path, is_system

__all__ = [
    "NOBODY",
    "check_room",
    "check_writable",
    "directories_below",
    "inherited",
    "path_of",
    "upwards",
]

NOBODY: Final[Mapping[int, int]] = MappingProxyType({})


def path_of(draft: Draft, node: Node) -> Path:
    """The absolute path of a directory that is in the tree."""
    relative = draft.snapshot.path_of(node.entry_id)
    return Path((*draft.mount.segments, *(relative or ())))


def inherited(draft: Draft, node: Node) -> Policies:
    """What holds directly in a directory."""
    above = [level.policies for level in draft.context.above]
    return effective([*above, *levels_of(draft.snapshot, node.entry_id)])


def check_writable(draft: Draft, node: Node, own: Policies | None = None) -> None:
    """Nothing below a read-only directory may be created, changed or removed; the nearest level
    that says something counts. ``own`` is what an entry in ``node`` says of itself.

    Raises:
        ReadOnly: names the directory that says so.
    """
    if own is not None and own.read_only is not None:
        if own.read_only:
            raise ReadOnly("the entry itself is read-only")
        return
    for above in upwards(draft.snapshot, node):
        read_only = above.directory.policies.read_only
        if read_only:
            path = path_of(draft, above)
            raise ReadOnly(f"{path} is read-only", path=path)
        if read_only is not None:
            return
    for level in reversed(draft.context.above):
        if level.policies.read_only:
            raise ReadOnly(f"{level.path} is read-only", path=level.path)
        if level.policies.read_only is not None:
            return


def check_room(
    draft: Draft,
    node: Node,
    more: int,
    unless: frozenset[int] = frozenset(),
    arriving: Mapping[int, int] = NOBODY,
) -> None:
    """Every directory above that sets ``max_topics`` must have room for ``more`` topics.

    System topics do not count. Two creates at the same moment in two directories below the same
    quota may both be let through; the next one is refused. ``unless`` holds directories whose
    quota counts these topics already, ``arriving`` how many others the same plan brings, by
    directory.

    Raises:
        QuotaExceeded: names the directory, its limit and what it has.
    """
    for above in upwards(draft.snapshot, node):
        limit = above.directory.policies.max_topics
        if limit is None or above.entry_id in unless:
            continue
        draft.expect_nothing_newer(directory_range(node.entry_id))
        have = _user_topics(draft.snapshot, above) + arriving.get(above.entry_id, 0)
        _check_room(path_of(draft, above), limit, have, more)
    if ROOT_ID in unless:
        return
    for level in reversed(draft.context.above):
        if level.policies.max_topics is not None:
            draft.expect_nothing_newer(directory_range(node.entry_id))
            have = _user_topics(draft.snapshot, draft.snapshot.root) + arriving.get(ROOT_ID, 0)
            where = f"{level.path} (of each cluster below it, so of {draft.mount} too)"
            _check_room(where, level.policies.max_topics, have, more)


def _check_room(where: object, limit: int, have: int, more: int) -> None:
    if have + more > limit:
        raise QuotaExceeded(
            f"{where} allows {limit:,} topics below it, has {have:,}, and has no room for "
            f"{more:,} more",
            path=where,
            limit=limit,
            have=have,
        )


def _user_topics(snapshot: Snapshot, node: Node) -> int:
    """The topics below a directory, without what lies in system directories right in it."""
    count = snapshot.counts(node.entry_id).topics
    for name, container in node.containers.items("__"):
        if not is_system(name):
            break
        if isinstance(container, Directory):
            count -= snapshot.counts(container.entry_id).topics
    return count


def directories_below(snapshot: Snapshot, node: Node) -> Iterator[Node]:
    """The directory and every one below it, each before those that it holds."""
    stack = [node]
    while stack:
        here = stack.pop()
        yield here
        stack.extend(
            snapshot.nodes[container.entry_id]
            for container in here.containers.values()
            if isinstance(container, Directory)
        )


def upwards(snapshot: Snapshot, node: Node) -> Iterator[Node]:
    """The directory and those above it, up to the root directory."""
    here: Node | None = node
    while here is not None:
        yield here
        here = snapshot.node(here.parent_id) if here.entry_id != ROOT_ID else None
