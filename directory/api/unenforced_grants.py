"""Whether the clusters below can enforce what is handed down to them; refuses to hand it down.

A cluster whose servers do not know of grants lets everybody in, whatever its parent denies. So no
grant comes above such a one; and where one comes below grants, it is told of until it is upgraded:
not to link it would take its topics from everybody.
"""

from __future__ import annotations

from kdir.v1 import federation_pb2

from directory.access.grant_tree import EntryPlace
from directory.api.caller_view import CallerView
from directory.federation import parent_state
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.feature_levels import GRANTS
from resolver.errors import LevelNotFinalised
from resolver.path import Path

__all__ = ["check_children_enforce_grants", "list_unenforced_mounts"]


def check_children_enforce_grants(cluster: Cluster, view: CallerView, path: Path) -> None:
    """Before a grant comes to the entry at a path.

    Raises:
        LevelNotFinalised: naming the clusters below that would not enforce it, as far as the caller
            may know of them.
    """
    lacking = cluster.federation.mounts_below_level(path, GRANTS)
    if not lacking:
        return
    needs = f"grants on {path} need feature level {GRANTS} in every cluster below"
    shown = [one for one in lacking if view.can_refer_to(Path.parse(one.mount))]
    if not shown:
        raise LevelNotFinalised(
            f"{needs}, and not every one has it; ask an operator of cluster "
            f"{cluster.config.cluster}",
            needed=GRANTS,
        )
    raise LevelNotFinalised(
        f"{needs}: {', '.join(map(_mount_text, shown))}; upgrade it, then kdir features finalize "
        f"{shown[0].mount}",
        needed=GRANTS,
        lacking=" ".join(one.mount for one in shown),
    )


def list_unenforced_mounts(cluster: Cluster, snapshot: Snapshot) -> list[tuple[Path, str]]:
    """Returns the clusters below that do not enforce what is handed down to them: the mount of
    each, and a sentence.
    """
    mount = cluster.mount_at(snapshot)
    found = []
    for one in cluster.federation.mounts_below_level(mount, GRANTS):
        child = Path.parse(one.mount)
        if _is_granted(snapshot, child.below(mount)):
            message = (
                f"{_mount_text(one)}, and does not enforce the grants that hold there: upgrade "
                "it, then "
                f"kdir features finalize {one.mount}"
            )
            found.append((child, message))
    return found


def _is_granted(snapshot: Snapshot, relative: tuple[str, ...]) -> bool:
    """True if a grant or a closed directory is at or above a place."""
    if parent_state.is_inherited_readable(snapshot) and parent_state.inherited_access(snapshot):
        return True
    return any(True for _ in snapshot.grants.levels_to(EntryPlace(relative)))


def _mount_text(row: federation_pb2.MountRow) -> str:
    return f"{row.mount} (cluster {row.cluster}) has {row.feature_level}"
