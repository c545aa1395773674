"""Plans of moving entries within one cluster's mount.

A move is one small transaction, whatever the size of the subtree, since entries are stored by their
parent's id. It changes no id, no physical name and no data, and never leaves the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from directory.namespace.command import MoveEntry, Plan
from directory.namespace.entry import (
    Directory,
    Entry,
    Kind,
    Link,
    Mount,
    Topic,
)
from directory.namespace.keys import MOUNTED, READ_ONLY, mounted_key
from directory.namespace.mounted import mounts_with_paths, path_text_below, raised_claim
from directory.namespace.plan_builder import PlanBuilder, read_only_place
from directory.namespace.plan_create import check_name_free, check_names
from directory.namespace.plan_delete import delete_record
from directory.namespace.plan_update import check_etag, own_policies
from directory.namespace.quotas import (
    Amount,
    check_quota,
    counting_directories,
    outermost_quota_directory,
    require_subtree_unchanged,
    topic_amount,
)
from directory.namespace.snapshot import Node
from directory.namespace.traversal import (
    LocatedEntry,
    Route,
    describe_kind,
    first_outgrown,
    raise_not_reachable,
    traverse,
)
from resolver.errors import AlreadyExists, CrossMount, InvalidMove, InvalidPath, MountShadows
from resolver.path import MAX_PATH_BYTES, MAX_SEGMENTS, Path

__all__ = ["move_entry"]


def move_entry(draft: PlanBuilder, command: MoveEntry) -> Plan:
    """Plans the move of an entry to another path."""
    found = draft.find_entry(command.path, command.kind)
    check_etag(found, command.etag)
    if found.parent is None:
        raise InvalidMove(
            f"{command.path} is the root directory of this cluster: move its mount in the parent",
            path=command.path,
        )
    if command.new_path == command.path:
        raise InvalidMove(f"{command.path} is there already", path=command.path)
    target, relative = _target(draft, found, command)
    name = relative[-1]
    check_names(command.new_path, relative)
    _check_vacant(draft, found.entry, target, name, command)
    draft.require_writable(found.parent, own_policies(found.entry))
    draft.require_writable(target)
    _check_fits(draft, found, command.new_path)
    _check_quota(draft, found, target)
    moved = _move(draft, found, target, name, command.new_path)
    if command.leave_link:
        _leave_link(draft, found, command.new_path)
    return draft.finish(moved, command.new_path)


def _target(
    draft: PlanBuilder, found: LocatedEntry, command: MoveEntry
) -> tuple[Node, tuple[str, ...]]:
    if found.entry.kind.is_container and command.path.is_prefix_of(command.new_path):
        raise InvalidMove(
            f"{command.path} cannot be moved to {command.new_path}: that is below itself",
            path=command.path,
            new_path=command.new_path,
        )
    if not draft.mount.is_prefix_of(command.new_path):
        raise CrossMount(
            f"{command.new_path} is not below {draft.mount}, where this cluster is mounted: an "
            f"entry cannot move to another cluster",
            path=command.path,
            new_path=command.new_path,
            mount=draft.mount,
        )
    relative = command.new_path.below(draft.mount)
    if not relative:
        raise AlreadyExists(
            f"{command.new_path} is the root directory of this cluster", path=command.new_path
        )
    way = traverse(draft.snapshot, relative[:-1])
    if way.depth < len(relative) - 1:
        _refuse_crossing(draft, way, relative, command)
        raise_not_reachable(way, draft.mount, relative[:-1], relative[-1:])
    return way.node, relative


def _refuse_crossing(
    draft: PlanBuilder, way: Route, relative: Sequence[str], command: MoveEntry
) -> None:
    if isinstance(way.stopped_by, Mount):
        mount = draft.mount.join(relative[: way.depth + 1])
        raise CrossMount(
            f"{command.new_path} lies in {describe_kind(way.stopped_by)}, mounted at {mount}: "
            "an entry "
            f"cannot move to another cluster",
            path=command.path,
            new_path=command.new_path,
            mount=mount,
        )


def _check_vacant(
    draft: PlanBuilder, entry: Entry, target: Node, name: str, command: MoveEntry
) -> None:
    check_name_free(draft, target, name, entry.kind, command.new_path)
    if isinstance(entry, Mount):
        topic = draft.snapshot.topic(target.entry_id, name)
        if topic is not None:
            raise MountShadows(
                f"a mount at {command.new_path} would shadow {describe_kind(topic)} that exists "
                "there",
                path=command.new_path,
                standing="topic",
            )
        draft.require_free(target.entry_id, Kind.TOPIC, name, command.new_path)
    if isinstance(entry, Link):
        for at in entry.targets:
            if command.new_path.is_prefix_of(at):
                raise InvalidMove(
                    f"{command.path} leads to {at}: at {command.new_path} it would lead to itself",
                    path=command.path,
                    new_path=command.new_path,
                )


def _check_fits(draft: PlanBuilder, found: LocatedEntry, new_path: Path) -> None:
    """Checks that every path below remains valid. Only a longer path can exceed the limits, so only
    then is the subtree visited: the one cost here that depends on its size.
    """
    node = draft.snapshot.nodes.get(found.entry.entry_id)
    if not isinstance(found.entry, Directory) or node is None:
        return
    outgrown = first_outgrown(draft.snapshot, node, found.path, new_path)
    if outgrown is not None:
        raise InvalidPath(
            f"entries in {outgrown.parent} would get paths of more than {MAX_SEGMENTS} segments "
            f"or {MAX_PATH_BYTES} bytes below {new_path}",
            path=outgrown.parent,
            rule="length",
        )


def _check_quota(draft: PlanBuilder, found: LocatedEntry, target: Node) -> None:
    snapshot, entry = draft.snapshot, found.entry
    assert found.parent is not None  # noqa: S101 - the root is never moved
    if outermost_quota_directory(snapshot, draft.context.above, target) is None:
        return
    source = snapshot.nodes[entry.entry_id] if isinstance(entry, Directory) else found.parent
    counted = frozenset(node.entry_id for node in counting_directories(snapshot, source))
    if isinstance(entry, Topic):
        check_quota(draft, target, topic_amount(entry), unless=counted)
    elif isinstance(entry, Directory):
        comes = Amount(snapshot.counts(entry.entry_id).topics, snapshot.partitions(entry.entry_id))
        if check_quota(draft, target, comes, unless=counted):
            require_subtree_unchanged(draft, snapshot.nodes[entry.entry_id])


def _move(
    draft: PlanBuilder, found: LocatedEntry, target: Node, name: str, new_path: Path
) -> Entry:
    delete_record(draft, found.parent_id, found.name, found.entry)
    moved: Entry
    match found.entry:
        case Mount() as mount:
            raised = replace(draft.stamped(mount), epoch=mount.epoch + 1)
            claim = raised_claim(draft.snapshot, mount, raised, found.path)
            draft.write_fact(mounted_key(raised.cluster_id), claim)
            moved = raised
        case Directory() as directory:
            _raise_mounts_below(draft, found.path, new_path)
            _mark_read_only_below(draft, found.path)
            moved = draft.stamped(directory)
        case Topic() as topic:
            moved = draft.stamped(topic)
        case Link() as link:
            moved = draft.stamped(link)
        case _:
            assert_never(found.entry)
    draft.require_free(target.entry_id, moved.kind, name, new_path)
    draft.write_record(target.entry_id, name, moved)
    draft.carry_grants(found.parent_id, found.name, found.entry, target.entry_id, name)
    draft.record_new_state(
        moved, target.entry_id, new_path, before=found.entry, path_before=found.path
    )
    return moved


def _raise_mounts_below(draft: PlanBuilder, path: Path, new_path: Path) -> None:
    """Raises the epoch of each mount whose path changes, also by the move of a
    directory above it.
    """
    # A mount created below meanwhile would move with its old epoch: it must conflict.
    draft.expect_nothing_newer(MOUNTED)
    prefix = path.below(draft.mount)
    for relative, before, mount in mounts_with_paths(draft.snapshot, draft.mount):
        if relative[: len(prefix)] != prefix:
            continue
        parent = traverse(draft.snapshot, relative[:-1]).node
        raised = replace(draft.stamped(mount), epoch=mount.epoch + 1)
        moved = _moved_mount_path(relative, len(prefix), new_path)
        draft.expect_entry(parent.entry_id, relative[-1], mount)
        draft.write_record(parent.entry_id, relative[-1], raised)
        claim = raised_claim(draft.snapshot, mount, raised, moved if before is None else before)
        draft.write_fact(mounted_key(raised.cluster_id), claim)
        draft.record_new_state(raised, parent.entry_id, moved, before=mount, path_before=before)


def _moved_mount_path(relative: Sequence[str], depth: int, new_path: Path) -> Path:
    try:
        return new_path.join(relative[depth:])
    except InvalidPath as error:
        # Only for a mount that is too deep already: all other entries below were checked.
        mount = path_text_below(relative)
        raise InvalidPath(
            f"the mount {mount} of this cluster would still have no valid path below {new_path} "
            f"({error}); move it to a shorter path",
            path=new_path,
            mount=mount,
            rule="length",
        ) from None


def _mark_read_only_below(draft: PlanBuilder, path: Path) -> None:
    # A concurrent removal of the target directory guards all read-only marks. Writing one mark of
    # a read-only entry that is moved there again makes the removal conflict with this move.
    prefix = path.below(draft.mount)
    for key, value in draft.snapshot.facts(READ_ONLY):
        at = read_only_place(draft.snapshot, key, value)
        if at is not None and at[: len(prefix)] == prefix and at != prefix:
            draft.write_fact(key, value)
            return


def _leave_link(draft: PlanBuilder, found: LocatedEntry, new_path: Path) -> None:
    parent = found.parent
    assert parent is not None  # noqa: S101 - the root is never moved
    if not found.entry.kind.is_container:
        check_name_free(draft, parent, found.name, Kind.LINK, found.path)
        draft.require_free(parent.entry_id, Kind.LINK, found.name, found.path)
    link = Link(
        entry_id=draft.fresh_id(),
        changed_at_ms=draft.context.now_ms,
        changed_by=draft.context.principal,
        targets=(new_path,),
    )
    draft.put_grants(parent.entry_id, Kind.LINK, found.name, None)  # P6
    draft.write_record(parent.entry_id, found.name, link)
    draft.record_new_state(link, parent.entry_id, found.path)
