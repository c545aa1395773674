"""Whether etcd was restored: the one rule by which a new life of a store begins.

An etcd that was put back holds less than was seen of it. That is proven only by two reads in
order: a commit was seen, and a linearizable read that *began afterwards* finds an older revision,
or another commit at that one. A commit that was seen while the read was under way proves nothing,
nor does what a member answers from its local state. So ``Newest.before_reading`` is asked for
before the read is sent, and ``why_restored`` compares with that. Refuses to do I/O.
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
    """A commit of one life that this process knows of: the last one as of a revision."""

    incarnation: str
    revision: int = 0
    commit_id: str = ""


class Newest:
    """The newest commit that this process knows of. Thread-safe."""

    def __init__(self, incarnation: str) -> None:
        self._lock: Final = threading.Lock()
        self._seen = Seen(incarnation)

    def before_reading(self) -> Seen:
        """Returns the newest commit so far; a linearizable read that begins now cannot
        find less.
        """
        return self._seen

    def note(self, seen: Seen) -> None:
        """Remembers a commit where it is newer, or of another life."""
        with self._lock:
            known = self._seen
            if known.incarnation != seen.incarnation or known.revision < seen.revision:
                self._seen = seen


def why_restored(
    before: Seen, incarnation: Incarnation, head: Head, commit_id_at: Callable[[int], str | None]
) -> str:
    """Returns why etcd must have been restored since a commit was seen; empty = it need not have.

    Args:
        before: what was known before the read of ``head`` was sent.
        incarnation: what ``head`` has as the identity.
        head: of a linearizable read.
        commit_id_at: the last commit as of a revision of etcd's; None: not known any more.
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
