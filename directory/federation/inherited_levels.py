"""Levels that clusters mounted in a tree inherit, and the check of their size before a change."""

from __future__ import annotations

from kdir.v1 import federation_pb2

from directory.access.decision import NO_RULES
from directory.access.grant_tree import EntryPlace
from directory.federation import parent_state
from directory.federation.inherited_records import MOST_BYTES, inherited_size, oversized_error
from directory.namespace.command import EntryChange, Plan
from directory.namespace.entry import NO_POLICIES, Directory, Kind
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["levels_at_mount", "refuse_oversized_inheritance"]


def levels_at_mount(
    snapshot: Snapshot, cluster_mount: Path, relative: tuple[str, ...]
) -> list[federation_pb2.InheritedLevel]:
    """Returns the levels that a cluster mounted at a place inherits, from the root down.

    Raises:
        NotReady: this cluster's own inherited records cannot be read.
    """
    levels = list(parent_state.inherited_levels(snapshot))
    for length in range(len(relative)):
        directory_id = snapshot.find_directory(relative[:length])
        node = snapshot.node(directory_id) if directory_id is not None else None
        if node is None:
            continue
        grant_node = snapshot.grants.node_at(EntryPlace(relative[:length]))
        rules = NO_RULES if grant_node is None else grant_node.rules
        if node.directory.policies == NO_POLICIES and not (rules or node.directory.closed):
            continue
        path = cluster_mount.join(relative[:length])
        levels.append(parent_state.level_of(path, node.directory, rules))
    grant_node = snapshot.grants.node_at(EntryPlace(relative))
    if grant_node is not None and grant_node.rules:
        levels.append(parent_state.grants_level(cluster_mount.join(relative), grant_node.rules))
    return levels


def refuse_oversized_inheritance(snapshot: Snapshot, mount: Path, planned: Plan) -> None:
    """Checks that no cluster mounted in this tree would inherit more than the limit by a plan. One
    that is over the limit already may get less, not more.

    Raises:
        LimitExceeded: names the place, the size and the limit.
    """
    places = [change.path for change in planned.changes if _is_handed_down(change)]
    if not places:
        return
    after = snapshot.apply(snapshot.revision, planned.writes)
    for relative, entry in after.mounts():
        path = mount.join(relative)
        if not any(place.is_prefix_of(path) for place in places):
            continue
        size = inherited_size(levels_at_mount(after, mount, relative))
        if size > MOST_BYTES and size > _size_before(snapshot, mount, entry.entry_id):
            # The mount may be hidden from the caller; the place of the change is not.
            place = next(place for place in places if place.is_prefix_of(path))
            raise oversized_error(f"at or below {place}", size)


def _is_handed_down(change: EntryChange) -> bool:
    """True if a change may affect what clusters inherit that are mounted at or below it."""
    before, after = change.before, change.after
    if change.kind not in {Kind.DIRECTORY, Kind.MOUNT} or after is None:
        return False
    if before is None:
        return change.kind is Kind.MOUNT  # nothing is mounted yet below a new directory
    if change.of_grants or change.path_before is not None:
        return True
    return (
        isinstance(before, Directory)
        and isinstance(after, Directory)
        and (before.policies, before.closed) != (after.policies, after.closed)
    )


def _size_before(snapshot: Snapshot, mount: Path, entry_id: int) -> int:
    for relative, entry in snapshot.mounts():
        if entry.entry_id == entry_id:
            return inherited_size(levels_at_mount(snapshot, mount, relative))
    return 0
