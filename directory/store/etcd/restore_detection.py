"""Decides whether a store in etcd was restored: then a process knows a newer commit than etcd has.

A restore is proven only by two reads in order: a commit was seen, and a linearizable read that
*began afterwards* finds an older revision, or another commit at that one. A commit that was seen
during the read proves nothing, nor does an answer from a member's local state. So
``Newest.before_reading`` is called before the read is sent, and ``why_restored`` compares with
that. A restore of etcd under the same cluster id while no server of the cluster runs cannot be
noticed (see ``docs/how-to/run-on-etcd.md``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.watch_state import Head

__all__ = ["Newest", "Seen", "why_restored"]


@dataclass(frozen=True, slots=True)
class Seen:
    """Commit of one incarnation that this process knows: the newest at a revision."""

    incarnation: str
    revision: int = 0
    commit_id: str = ""


class Newest:
    """Newest commit that this process knows. Thread-safe."""

    def __init__(self, incarnation: str) -> None:
        self._lock: Final = threading.Lock()
        self._seen = Seen(incarnation)

    def before_reading(self) -> Seen:
        """Returns the newest commit so far; a linearizable read that begins now cannot find an
        older one.
        """
        return self._seen

    def note(self, seen: Seen) -> None:
        """Records a commit if it is newer, or of another incarnation."""
        with self._lock:
            known = self._seen
            if known.incarnation != seen.incarnation or known.revision < seen.revision:
                self._seen = seen


def why_restored(
    before: Seen, incarnation: Incarnation, head: Head, commit_id_at: Callable[[int], str | None]
) -> str:
    """Returns why etcd must have been restored since a commit was seen; empty = nothing proves it.

    Args:
        before: the newest known commit before the read of ``head`` was sent.
        incarnation: the identity in ``head``.
        head: the result of a linearizable read.
        commit_id_at: returns the newest commit as of a revision of etcd; None: no longer known.
    """
    if head.etcd_cluster != incarnation.etcd_cluster:
        return (
            f"etcd cluster {head.etcd_cluster:x} answers, and it was {incarnation.etcd_cluster:x}"
        )
    at = incarnation.etcd_revision(before.revision)
    if before.incarnation != incarnation.identity.incarnation or not at:
        return ""
    if head.revision < at:
        return f"etcd is at revision {head.revision}, and was at {at}"
    found = head.commit_id if head.commit_revision <= at else commit_id_at(at)
    if found is not None and found != before.commit_id:
        return f"another commit is at etcd's revision {at}"
    return ""
