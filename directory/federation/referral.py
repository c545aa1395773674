"""Makes referrals for paths outside this cluster's mount; the client follows and checks them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from kdir.v1 import federation_pb2

from directory.federation.parent_state import TableRow
from resolver.path import Path

__all__ = ["Direction", "NoReferral", "Referral", "refer_outside_mount", "referral_to_mount"]


class Direction(enum.IntEnum):
    """Direction of a referral; the numbers are those of ``kdir.v1.ReferralKind``."""

    DOWN = 1
    UP = 2
    DIRECT = 3


@dataclass(frozen=True, slots=True)
class Referral:
    """Answer that another mount owns the path."""

    direction: Direction
    mount: Path
    cluster_id: str
    cluster: str
    epoch: int
    endpoints: tuple[str, ...]
    owner_time_ms: int
    """Unix ms of the owner's update."""


@dataclass(frozen=True, slots=True)
class NoReferral:
    """Answer that no known route leads to the path."""

    message: str


def referral_to_mount(hint: TableRow, direction: Direction) -> Referral:
    """Returns the referral to a mount of the table."""
    row = hint.row
    return Referral(
        direction,
        hint.mount,
        row.cluster_id,
        row.cluster,
        row.epoch,
        tuple(row.endpoints),
        hint.owner_time_ms,
    )


def refer_outside_mount(
    path: Path,
    mount: Path,
    parent: federation_pb2.Welcome | None,
    deepest: Callable[[Path], TableRow | None],
    parent_endpoints: tuple[str, ...],
    now_ms: int,
) -> Referral | NoReferral:
    """Returns the answer for a path that is not below this cluster's mount: *direct* if the mount
    table has a mount that is a prefix of it, else *up*, else no route.

    Args:
        mount: mount of this cluster.
        parent: last welcome of the parent at ``parent_endpoints``; None = unknown: the referral
            names no cluster, and guesses the parent's mount.
        deepest: returns the mount table's row with the longest prefix of a path.
    """
    hint = deepest(path)
    if hint is not None and hint.row.endpoints:
        return referral_to_mount(hint, Direction.DIRECT)
    if parent_endpoints and not mount.is_root:
        return Referral(
            Direction.UP,
            Path.parse(parent.parent_mount) if parent else mount.parent,
            parent.parent_cluster_id if parent else "",
            parent.parent_cluster if parent else "",
            0,
            parent_endpoints,
            now_ms,
        )
    return NoReferral(
        f"nothing leads to {path} from the cluster mounted at {mount}: "
        + ("it has no parent" if not parent_endpoints else "it is the root, and it is not below it")
    )
