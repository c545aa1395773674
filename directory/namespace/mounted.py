"""Claim of a child's cluster id by its one mount: entry id, epoch, and the path at which it was
mounted.

Value of f/mounted/<cluster id>: entry id in 16 hex digits, epoch, path at which an operator mounted
the child; claims of older versions end after the epoch.

A mount may be moved, alone or with its cluster, before its child has linked. The child then still
names the path in its config: the one at which it was mounted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from directory.namespace.entry import Mount
from directory.namespace.keys import ENTRY, MOUNTED, mounted_key
from directory.namespace.snapshot import Snapshot
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = [
    "claim_of",
    "claim_start",
    "claimed_cluster_ids",
    "is_claimed_by",
    "is_mount_unreadable",
    "may_have_unreadable_mount_below",
    "mounted_at",
    "mounts_with_paths",
    "path_text_below",
    "raised_claim",
]


def claim_of(mount: Mount, path: Path) -> bytes:
    """Returns the claim of a mount that is created at ``path``."""
    return b"%s %s" % (claim_start(mount), str(path).encode())


def claim_start(mount: Mount) -> bytes:
    """Returns the claim without its path, with which every claim of this mount and epoch begins."""
    return b"%016x %d" % (mount.entry_id, mount.epoch)


def is_claimed_by(value: bytes, mount: Mount) -> bool:
    """True if a value is the claim of this mount at this epoch."""
    return value.split(b" ")[:2] == claim_start(mount).split(b" ")


def is_mount_unreadable(snapshot: Snapshot, cluster_id: str) -> bool:
    """True if a child has a claim while entries are unreadable. If no mount names the child, the
    record of its mount, or of a directory above that mount, may be one of them: the child was not
    unmounted (S21). If all entries can be read, the claim is left over.
    """
    if snapshot.fact(mounted_key(cluster_id)) is None:
        return False
    return any(key.startswith(ENTRY) for key in snapshot.unreadable_values)


def may_have_unreadable_mount_below(snapshot: Snapshot, directory_id: int) -> bool:
    """True if a child that no mount names has a claim while the record of a container below the
    directory is unreadable: it may be the child's mount, or a directory above it (S21).
    """
    if not snapshot.has_unreadable_containers_below(directory_id):
        return False
    readable = {mount.cluster_id for _, mount in snapshot.mounts()}
    return bool(claimed_cluster_ids(snapshot) - readable)


def claimed_cluster_ids(snapshot: Snapshot) -> set[str]:
    """Returns the cluster ids of all children that have a claim."""
    claims = snapshot.facts(MOUNTED)
    return {key.removeprefix(MOUNTED).decode(errors="replace") for key, _ in claims}


def raised_claim(snapshot: Snapshot, mount: Mount, raised: Mount, path_before: Path) -> bytes:
    """Returns the claim of ``raised``, a changed mount with a higher epoch. It keeps the path of
    the previous claim; if that has none, the path is ``path_before``.
    """
    at = mounted_at(snapshot, mount)
    return claim_of(raised, Path.parse(at) if at else path_before)


def mounts_with_paths(
    snapshot: Snapshot, own_mount: Path
) -> Iterator[tuple[tuple[str, ...], Path | None, Mount]]:
    """Yields the mounts: path below this cluster's mount, absolute path, mount. The absolute path
    is None if it is not valid, which happens if the cluster was moved to a longer mount.
    """
    for relative, mount in snapshot.mounts():
        try:
            path = own_mount.join(relative)
        except InvalidPath:
            yield relative, None, mount
        else:
            yield relative, path, mount


def path_text_below(relative: Sequence[str]) -> str:
    """Returns the path below this cluster's mount as text, for a mount that has no valid path."""
    return f"/{'/'.join(relative)}"


def mounted_at(snapshot: Snapshot, mount: Mount) -> str:
    """Returns the path at which an operator mounted the child; empty if the claim has none."""
    value = snapshot.fact(mounted_key(mount.cluster_id)) or b""
    parts = value.split(b" ")
    if not is_claimed_by(value, mount) or len(parts) < 3:
        return ""
    return parts[2].decode(errors="replace")
