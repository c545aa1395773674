"""Progress of a cluster's change log, as stored, and the limit of commits that wait for the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kdir.v1 import watch_pb2

from directory.maintenance.event_index import EventIndex
from directory.namespace.keys import (
    CHANGE_LOG,
    CHANGE_LOG_RESYNC,
    CHANGE_LOG_SKIP,
    member_key,
    role_key,
)
from directory.namespace.snapshot import Snapshot
from directory.store.event_rows import noted_in, published_in, skip_in
from resolver.errors import OutboxFull

__all__ = [
    "ROLE",
    "is_resync_confirmed",
    "noted_state",
    "published_revision",
    "publisher_of",
    "refuse_full_outbox",
    "resync_confirmation",
    "skip_of",
    "skipped_commits",
    "unpublished_reason",
]

ROLE: Final = "change-log"
"""Role of the server that publishes."""
_URGENT_FACTOR: Final = 2
"""Factor of the limit for urgent changes, which cannot wait for Kafka."""


def noted_state(snapshot: Snapshot) -> watch_pb2.ChangeLogState | None:
    """Returns the stored progress of the change log; None: the cluster keeps no change log."""
    return noted_in(snapshot.fact(CHANGE_LOG))


def skip_of(snapshot: Snapshot) -> watch_pb2.ChangeLogSkip | None:
    """Returns the record of changes that an operator gave up, until the log has it; None: none."""
    return skip_in(snapshot.fact(CHANGE_LOG_SKIP), snapshot.incarnation)


def resync_confirmation(snapshot: Snapshot, text: str) -> bytes:
    """Returns the value of ``CHANGE_LOG_RESYNC`` by which an operator confirms a resync. ``text``:
    the operator and the time. It is valid in this incarnation of the store only, since a restore
    may bring it back.
    """
    return f"{snapshot.incarnation}\n{text}".encode()


def is_resync_confirmed(snapshot: Snapshot) -> bool:
    """True if an operator confirmed a resync that is not done yet."""
    value = snapshot.fact(CHANGE_LOG_RESYNC) or b""
    return value.partition(b"\n")[0] == snapshot.incarnation.encode()


def skipped_commits(skip: watch_pb2.ChangeLogSkip, published: int) -> int:
    """Returns the number of given-up commits after the published revision; the log's history has
    the earlier ones already.
    """
    on_record = [one.commits for one in skip.earlier if one.revision <= published]
    return skip.commits - max(on_record, default=0)


def published_revision(snapshot: Snapshot) -> int | None:
    """Returns the revision up to which no change of this incarnation waits for the change log: each
    is published or was given up. None: the cluster keeps no change log.
    """
    return published_in(
        snapshot.fact(CHANGE_LOG), snapshot.fact(CHANGE_LOG_SKIP), snapshot.incarnation
    )


def publisher_of(snapshot: Snapshot) -> str:
    """Returns the id of the live server that holds the role; empty = none does."""
    holder = snapshot.fact(role_key(ROLE)) or b""
    server = holder.partition(b"\n")[0].decode(errors="replace")
    return server if snapshot.fact(member_key(server)) is not None else ""


def unpublished_reason(snapshot: Snapshot, *, is_configured: bool) -> str:
    """Returns why no server publishes the cluster's change log; empty: one does or will, or the
    cluster keeps none. ``is_configured``: this server's config has a change log.
    """
    if is_configured or snapshot.fact(CHANGE_LOG) is None or publisher_of(snapshot):
        return ""
    return (
        "no server publishes it, and the config of this one has no [change_log]: commits wait in "
        "the store; add the table again, or end the log: kdir log off"
    )


def refuse_full_outbox(
    snapshot: Snapshot, index: EventIndex, most: int, *, is_urgent: bool
) -> None:
    """Checks that fewer than ``most`` commits wait for the change log; if ``is_urgent``, fewer than
    twice ``most``. Its cost does not depend on their number.

    Raises:
        OutboxFull
    """
    published = published_revision(snapshot)
    if published is None:
        return
    limit = most * _URGENT_FACTOR if is_urgent else most
    if snapshot.revision - published < limit:
        return  # each commit has a revision of its own
    count, since_ms = index.count_after(published)
    if count < limit:
        return
    since = datetime.fromtimestamp(since_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    noted = noted_state(snapshot)
    why = "" if noted is None or not noted.message else f", because of this: {noted.message}"
    raise OutboxFull(
        f"{count:,} changes wait for the change log, the oldest since {since} "
        f"(limits.outbox_changes = {most:,}); nothing was written{why}",
        waiting=count,
        limit=most,
        since=since,
    )
