"""``kdir index report``: what the index shows of the whole at once; refuses to ask any server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from resolver.index.row_schema import ClusterState
from resolver.index.search import Snapshot, open_index
from resolver.path import Path

__all__ = ["ClusterCounts", "Report", "Shadowed", "SharedName", "report"]


@dataclass(frozen=True, slots=True)
class ClusterCounts:
    """One cluster, in numbers."""

    state: ClusterState
    topics: int = 0
    partitions: int = 0
    ownerless: int = 0
    """Topics without an effective owner."""
    drifting: int = 0
    """Topics of which Kafka has another setting than is wished."""
    unsettled: int = 0
    """Topics whose Kafka side is not ``active``."""


@dataclass(frozen=True, slots=True)
class SharedName:
    """A physical name that stands at several paths, in one cluster or in several."""

    physical_name: str
    count: int
    paths: tuple[str, ...]
    clusters: int


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A topic whose path lies below the mount of another cluster: no resolve leads to it."""

    path: str
    cluster_id: str
    mounted_cluster_id: str


@dataclass(frozen=True, slots=True)
class Report:
    """The index in numbers; the lists hold the first ``limit`` of each kind."""

    version: int
    clusters: tuple[ClusterCounts, ...]
    shared_names: tuple[SharedName, ...] = field(default=())
    shared_name_count: int = 0
    shadowed: tuple[Shadowed, ...] = field(default=())


def report(table: str, *, as_of: str | date | datetime | None = None, limit: int = 100) -> Report:
    """Counts by cluster, physical names in several places, topics that a mount hides.

    Raises:
        InvalidArgument: as ``search.find``.
    """
    index = open_index(table, as_of)
    shared, shared_count = _shared_names(index, limit)
    return Report(
        index.version, tuple(_counts(index)), shared, shared_count, _shadowed(index, limit)
    )


_COUNTS = """
SELECT cluster_id, count(*) AS topics, coalesce(sum(partitions), 0)::BIGINT AS partitions,
       count(*) FILTER (owner IS NULL) AS ownerless, count(*) FILTER (drift_count > 0) AS drifting,
       count(*) FILTER (provision <> 'active') AS unsettled
FROM topics GROUP BY cluster_id
"""


def _counts(index: Snapshot) -> list[ClusterCounts]:
    clusters = list(index.clusters.values())
    found = {row.pop("cluster_id"): row for row in index.select(_COUNTS, (), clusters)}
    return sorted(
        (ClusterCounts(one.state, **found.get(one.state.cluster_id, {})) for one in clusters),
        key=lambda counts: counts.state.mount,
    )


_SHARED = """
SELECT physical_name, count(*) AS count, count(DISTINCT cluster_id) AS clusters,
       list(path ORDER BY path)[1:20] AS paths, count(*) OVER () AS total
FROM topics WHERE NOT starts_with(physical_name, '__')
GROUP BY physical_name HAVING count(*) > 1 ORDER BY count DESC, physical_name LIMIT ?
"""


def _shared_names(index: Snapshot, limit: int) -> tuple[tuple[SharedName, ...], int]:
    rows = index.select(_SHARED, [limit], list(index.clusters.values()))
    names = tuple(
        SharedName(row["physical_name"], row["count"], tuple(row["paths"]), row["clusters"])
        for row in rows
    )
    return names, rows[0]["total"] if rows else 0


_SHADOWED = """
SELECT path, cluster_id FROM topics WHERE starts_with(path, ?) ORDER BY path LIMIT ?
"""


def _shadowed(index: Snapshot, limit: int) -> tuple[Shadowed, ...]:
    """A mount hides what the nearest cluster above it has there; what is further up, that one's."""
    found: list[Shadowed] = []
    clusters = {Path.parse(one.state.mount): one for one in index.clusters.values()}
    for mount, below in clusters.items():
        above = [path for path in clusters if path != mount and path.is_prefix_of(mount)]
        if not above or len(found) >= limit:
            continue
        hidden: Sequence[dict[str, object]] = index.select(
            _SHADOWED,
            [f"{mount}/", limit - len(found)],
            [clusters[path] for path in above],
        )
        found += [
            Shadowed(str(row["path"]), str(row["cluster_id"]), below.state.cluster_id)
            for row in hidden
        ]
    return tuple(found)
