"""Large changes on their way, as people read them; asks for nothing that a verb did not ask for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from resolver.cli import units

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2

    from resolver.cli.session import Session
    from resolver.path import Path

__all__ = ["large_changes_at", "progress_text"]


def progress_text(one: admin_pb2.Progress, now: float | None = None) -> str:
    """``delete /la/x: 412,000 of 1,000,000 done, 3m left``. How long it will take is only said
    where it went on for long enough to tell.

    Args:
        now: Unix seconds.
    """
    what = f"{one.kind} {one.path}: "
    if not one.HasField("left"):
        what += f"{units.count(one.done)} done"
    elif one.started_at_ms:
        what += f"{units.count(one.done)} of {units.count(one.done + one.left)} done"
    else:  # it began when that was not written down
        what += f"{units.count(one.left)} left"
    seconds = (time.time() if now is None else now) - one.started_at_ms / 1000
    if one.started_at_ms and one.done and one.left and seconds >= 1:
        what += f", {units.age(seconds * one.left / one.done)} left"
    by = f", requested by {one.principal}" if one.principal else ""
    return f"{what}{by}{f'; blocked: {one.message}' if one.message else ''}"


def large_changes_at(session: Session, path: Path) -> list[admin_pb2.Progress]:
    """Returns the large changes of the cluster that a path is in; none where it may not be asked.

    Raises:
        KdirError: the cluster cannot be found or asked.
    """
    from kdir.v1 import admin_pb2

    from resolver.errors import Denied

    resolver = session.resolver
    try:
        owner = resolver.owner_of(path)
        status: admin_pb2.GetStatusResponse = resolver.call(
            path, "AdminService.GetStatus", admin_pb2.GetStatusRequest(cluster=owner.cluster_id)
        )
    except Denied:
        return []
    return list(status.progress)
