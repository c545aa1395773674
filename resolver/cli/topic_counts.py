"""Number of topics below a directory or a mount, at any depth and in all clusters there.

A cluster counts its own topics; the counts of the clusters mounted below are in its mount table. A
cluster that is not linked is not counted, so the number is then a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from resolver import units
from resolver.cli.entry_rows import kind_of
from resolver.errors import KdirError

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2, federation_pb2

    from resolver.cli.session import Session

__all__ = ["TopicCount", "TopicCounts", "count_in_rows"]


class TopicCount(NamedTuple):
    """Number of topics at any depth."""

    number: int
    is_whole: bool = True
    """False if the number is a lower bound, since a cluster is not linked or its count is not
    known.
    """

    def plus(self, other: TopicCount) -> TopicCount:
        """Returns the sum of two counts."""
        return TopicCount(self.number + other.number, self.is_whole and other.is_whole)

    def cell(self, *, human: bool) -> str:
        """Returns the number as a cell: ``at least 9``, or ``9+`` in exact output; ``-`` if none is
        known.
        """
        if not self.is_whole and not self.number:
            return "-"
        if not human:
            return f"{self.number}{'' if self.is_whole else '+'}"
        return f"{'' if self.is_whole else 'at least '}{units.count(self.number)}"

    def phrase(self) -> str:
        """Returns the number with its noun: ``at least 9 topics``."""
        if not self.is_whole and not self.number:
            return "topics not known"
        return f"{'' if self.is_whole else 'at least '}{units.plural(self.number, 'topic')}"


_NOT_KNOWN = TopicCount(0, is_whole=False)


def count_in_rows(
    rows: Iterable[federation_pb2.MountRow], path: str, *, below_only: bool = False
) -> TopicCount:
    """Returns the number of topics in the clusters mounted at or below a path."""
    prefix = f"{path.rstrip('/')}/"
    found = TopicCount(0)
    for row in rows:
        if row.mount.startswith(prefix) or (row.mount == path and not below_only):
            found = found.plus(TopicCount(row.topic_count) if row.linked else _NOT_KNOWN)
    return found


class TopicCounts:
    """Reader of topic counts for the entries that one command shows. A mount table is read once,
    and only if a cluster may be mounted below.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tables: dict[str, list[federation_pb2.MountRow] | None] = {}

    def at(self, entry: entry_pb2.Entry, mount: str) -> TopicCount | None:
        """Returns the number of topics below an entry; None for topics and links.

        Args:
            mount: mount of the entry's cluster.
        """
        from kdir.v1 import entry_pb2

        match kind_of(entry):
            case "directory":
                own = TopicCount(entry.directory.total_topic_count)
                return own.plus(self._below(entry.path, mount)) if _has_containers(entry) else own
            case "mount":
                is_linked = entry.mount.state == entry_pb2.MOUNT_STATE_LINKED
                own = TopicCount(entry.mount.topic_count) if is_linked else _NOT_KNOWN
                return own.plus(self._below(entry.path, mount))
            case _:
                return None

    def _below(self, path: str, mount: str) -> TopicCount:
        """Returns the number of topics in the clusters mounted strictly below a path."""
        rows = self._table(mount)
        return _NOT_KNOWN if rows is None else count_in_rows(rows, path, below_only=True)

    def _table(self, mount: str) -> list[federation_pb2.MountRow] | None:
        """Returns the mount table of a cluster, or of one above it; None if it is not known."""
        for above, rows in self._tables.items():
            if rows is not None and f"{mount}/".startswith(f"{above.rstrip('/')}/"):
                return rows  # it has all mounts below
        if mount not in self._tables:
            self._tables[mount] = self._read_table(mount)
        return self._tables[mount]

    def _read_table(self, mount: str) -> list[federation_pb2.MountRow] | None:
        from kdir.v1 import federation_pb2

        try:
            answer = self._session.resolver.call(
                mount, "FederationService.ListMounts", federation_pb2.ListMountsRequest()
            )
        except KdirError:
            return None
        return list(answer.rows)


def _has_containers(entry: entry_pb2.Entry) -> bool:
    return bool(entry.directory.container_count)
