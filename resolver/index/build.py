"""``kdir index build``: updates the Delta table to the current state of all clusters, by one
commit.

A build queries the revision of every cluster, reads the changed clusters with Spark, and publishes
all results at once. If nothing has changed, Spark is not started. The table is in a folder that the
driver and all workers can access: on a shared file system, or at a URL such as ``s3://…``.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from resolver import units
from resolver.errors import (
    InvalidArgument,
    KdirError,
    Unreachable,
    UnreadableRecord,
    WriteConflict,
)
from resolver.index.cluster_discovery import (
    ASK_SECONDS,
    FederationClusters,
    ReachableCluster,
    discover_clusters,
)
from resolver.index.cluster_scan import SHARD_ROWS, Shard, read_pages, shards_of
from resolver.index.delta_table import CommitConflict, DataFile, IndexTable, TableState
from resolver.index.spark_session import SparkSettings, require, spark_errors
from resolver.index.table_merge import (
    ClusterLine,
    Finding,
    NoAnswer,
    Outcome,
    RemovedCluster,
    RereadCluster,
    TableCommit,
    Unchanged,
    cluster_id_of,
    is_later,
    merge,
)
from resolver.path import Path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = [
    "BuildReport",
    "ClusterLine",
    "Outcome",
    "ShardResult",
    "SparkSettings",
    "build",
    "crawl",
    "read_shard",
]


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Result of a task for one shard: a file, with the lowest and highest revision of its pages, or
    an error.
    """

    cluster_id: str
    file: DataFile | None
    low: int = 0
    high: int = 0
    error: str = ""
    table_error: str = ""
    """Reason why the table's storage refused the file; empty = it did not."""
    unreadable_count: int = 0
    """Number of entries that the file lacks, since their records cannot be read."""


def crawl(
    spark: SparkSession,
    index: IndexTable,
    clusters: Sequence[ReachableCluster],
    shard_rows: int = SHARD_ROWS,
) -> list[Finding]:
    """Reads the clusters into files; returns a finding for each. The caller commits the files."""
    shards = [shard for one in clusters for shard in shards_of(one, shard_rows=shard_rows)]
    results = _run(spark, index, shards)
    torn = [one for one in clusters if _is_torn(results[one.state.cluster_id])]
    if torn:
        # Shards of one cluster were read at different revisions: a topic that moved from one shard
        # to another may be in both files, or in none. A single shard is read at one revision, or in
        # name order.
        for one in torn:
            _discard(index, results.pop(one.state.cluster_id))
        whole = [replace(shards_of(one)[0], number=0, count=1) for one in torn]
        results |= _run(spark, index, whole)
    return [_finding(index, one, results[one.state.cluster_id]) for one in clusters]


def read_shard(index: IndexTable, shard: Shard) -> ShardResult:
    """Reads a shard into a new file of the table; runs in an executor. An error is returned in the
    result: if it were raised, Spark's job would fail with an error of another type.
    """
    cluster_id = shard.state.cluster_id
    revisions: list[int] = []
    unreadable: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for page in read_pages(shard):
            revisions.append(page.state.revision or 0)
            unreadable.append(page.unreadable_count)
            yield page.batch

    try:
        with index.reachable():
            file = index.write(cluster_id, batches())
    except KdirError as error:
        if "index" in error.metadata:
            return ShardResult(cluster_id, None, table_error=error.message)
        return ShardResult(cluster_id, None, error=error.message)
    low, high = min(revisions), max(revisions)
    return ShardResult(cluster_id, file, low, high, unreadable_count=sum(unreadable))


def _run(
    spark: SparkSession, index: IndexTable, shards: Sequence[Shard]
) -> dict[str, list[ShardResult]]:
    """Reads the shards with Spark; returns the results by cluster id.

    Raises:
        Unreachable: the table's storage refused a file.
    """
    task = functools.partial(read_shard, index)
    # One slice per shard: shards differ in size, and an idle worker takes the next one.
    read = spark.sparkContext.parallelize(shards, len(shards)).map(task).collect()
    results: dict[str, list[ShardResult]] = defaultdict(list)
    for result in read:
        if result.table_error:
            raise Unreachable(result.table_error, index=index.location)
        results[result.cluster_id].append(result)
    return results


def _is_torn(results: Sequence[ShardResult]) -> bool:
    if len(results) == 1 or any(result.error for result in results):
        return False
    return min(result.low for result in results) != max(result.high for result in results)


def _finding(index: IndexTable, one: ReachableCluster, results: Sequence[ShardResult]) -> Finding:
    state = one.state
    error = next((result.error for result in results if result.error), "")
    if error:
        _discard(index, results)
        # At the time of the cluster's answer: a later read by another build counts instead.
        return NoAnswer(state.cluster_id, state.cluster, state.mount, error, one.asked_at)
    files = [result.file for result in results if result.file is not None]
    kept = [file for file in files if file.rows] or files[:1]
    index.discard(file for file in files if file not in kept)
    # All files include the changes up to the lowest revision; the next build compares with it.
    low = min(result.low for result in results)
    if unreadable := sum(result.unreadable_count for result in results):
        why = UnreadableRecord.of_entries(state.mount, unreadable).message
        return RereadCluster(state.incomplete(why), tuple(kept))
    return RereadCluster(replace(state, revision=low), tuple(kept))


def _discard(index: IndexTable, results: Iterable[ShardResult]) -> None:
    index.discard(result.file for result in results if result.file is not None)


_MOST_COMMITS = 20


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Result of a build, for its report."""

    table: str
    version: int
    """First version of the table that has the build's result."""
    lines: tuple[ClusterLine, ...]
    """One line for each cluster that the build covered, in order of mount points."""
    seconds: float

    @property
    def rows(self) -> int:
        """Number of topics in the table now, of the clusters in ``lines``."""
        return sum(line.rows for line in self.lines if line.outcome is not Outcome.REMOVED)

    @property
    def unread(self) -> tuple[ClusterLine, ...]:
        """Clusters that this build could not read, or only in part, or only from a server that
        cannot reach its store: their rows are stale, incomplete or missing.
        """
        return tuple(
            line
            for line in self.lines
            if (line.stale or line.reason) and line.outcome is not Outcome.REMOVED
        )


def build(
    servers: Sequence[str],
    table: str,
    *,
    spark: SparkSettings | None = None,
    full: bool = False,
    cluster: str = "",
    ask_seconds: float = ASK_SECONDS,
    shard_rows: int = SHARD_ROWS,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> BuildReport:
    """Updates the index in ``table`` to the current state of the clusters.

    ``servers`` (``host:port``) are any directory servers of the federation; the others are found
    from them. With ``cluster``, a name or id, the rows of other clusters stay as they are. ``full``
    also reads clusters that have not changed. A cluster of more than ``shard_rows`` topics is read
    by several tasks. Each endpoint has ``ask_seconds`` to return its cluster's identity.

    Raises:
        InvalidArgument: ``servers`` is empty; there is no such cluster; ``table`` is no index;
            pyspark, pyarrow, deltalake or Java is missing.
        Unreachable: no server answered, Spark did not start, or the table cannot be reached or
            written.
        Internal: the job on Spark failed. After this and any other error the table is unchanged.
        WriteConflict: other builds committed first at every attempt; nothing was written.
    """
    require("pyarrow", "deltalake")
    began = time.monotonic()
    index = replace(IndexTable.at(table), build_id=uuid.uuid4().hex)
    before = index.load()
    index.refuse_unwritable()
    found_clusters = discover_clusters(servers, ask_seconds=ask_seconds, clock=clock)
    known, changed = _sorted_out(found_clusters, before, full=full)
    findings: list[Finding] = [
        *known,
        *_unanswered(found_clusters),
        *_missing(found_clusters, before),
    ]
    if cluster:
        findings, changed = _only(cluster, findings, changed, before)
    try:
        if changed:
            with (spark or SparkSettings()).open() as session, spark_errors():
                findings += crawl(session, index, changed, shard_rows)
        version, changes = _commit(index, before, findings)
    except BaseException:
        index.discard_build()
        raise
    return BuildReport(table, version, tuple(changes.lines), time.monotonic() - began)


def _sorted_out(
    found_clusters: FederationClusters, before: TableState, *, full: bool
) -> tuple[list[Finding], list[ReachableCluster]]:
    """Returns findings of the clusters whose rows in the table are at least as new as their answer,
    and the clusters to read.
    """
    known: list[Finding] = []
    changed: list[ReachableCluster] = []
    for cluster_id, one in found_clusters.answered.items():
        held = before.clusters.get(cluster_id)
        if held is not None and one.state.stale and is_later(held.state, one.state.as_of):
            # The table has newer rows, from another server of the cluster, than this stale answer.
            reason = one.state.stale_reason
            known.append(
                NoAnswer(cluster_id, one.state.cluster, one.state.mount, reason, one.asked_at)
            )
        elif held is not None and held.state.same_rows(one.state) and not full:
            known.append(Unchanged(one.state))
        else:
            changed.append(one)
    return known, changed


def _only(
    cluster: str,
    findings: Sequence[Finding],
    changed: Sequence[ReachableCluster],
    before: TableState,
) -> tuple[list[Finding], list[ReachableCluster]]:
    """Returns those of the findings, and of the clusters to read, that are for one cluster, by name
    or id.

    Raises:
        InvalidArgument: no cluster has this name or id.
    """
    names = {one.state.cluster_id: one.state.cluster for one in changed}
    for one in findings:
        match one:
            case RereadCluster(state=state) | Unchanged(state=state):
                names[state.cluster_id] = state.cluster
            case NoAnswer():
                names[one.cluster_id] = one.cluster
            case RemovedCluster():
                names[one.cluster_id] = before.clusters[one.cluster_id].state.cluster
    meant = {cluster_id for cluster_id, name in names.items() if cluster in {name, cluster_id}}
    if not meant:
        known = ", ".join(sorted(name or cluster_id for cluster_id, name in names.items()))
        raise InvalidArgument(f"no cluster {cluster!r} was found; known: {known}", field="cluster")
    return (
        [one for one in findings if cluster_id_of(one) in meant],
        [one for one in changed if one.state.cluster_id in meant],
    )


def _unanswered(found_clusters: FederationClusters) -> Iterator[Finding]:
    """Yields a finding for each mounted cluster that did not answer."""
    for one in found_clusters.silent.values():
        yield NoAnswer(
            one.cluster_id, one.cluster, str(one.mount), one.reason, found_clusters.started_at
        )


def _missing(found_clusters: FederationClusters, before: TableState) -> Iterator[Finding]:
    """Yields a finding for each cluster of the table that was not found: *removed* if the owner of
    its mount answered, and no other cluster may have it now, else *no answer*.

    The order is from the top of the tree down, since a cluster that is kept may own the mounts
    below it.
    """
    kept: list[Path] = []
    missing = [
        (Path.parse(held.state.mount), held.state)
        for cluster_id, held in before.clusters.items()
        if cluster_id not in found_clusters.answered and cluster_id not in found_clusters.silent
    ]
    for mount, state in sorted(missing, key=lambda pair: len(pair[0])):
        reason = _why_gone(found_clusters, mount, state.cluster_id, kept)
        if reason:
            yield RemovedCluster(state.cluster_id, reason, found_clusters.started_at)
            continue
        kept.append(mount)
        unsaid = "no server that answered lists its mount, or shows that it was removed"
        yield NoAnswer(
            state.cluster_id, state.cluster, str(mount), unsaid, found_clusters.started_at
        )


def _why_gone(
    found_clusters: FederationClusters, mount: Path, cluster_id: str, kept: Iterable[Path]
) -> str:
    """Returns why the cluster is no longer mounted at ``mount``; empty = no answer shows it."""
    owner = found_clusters.owner_of(mount, also=kept)
    if owner is not None and found_clusters.is_listed(cluster_id, owner, kept):
        return ""  # the discovery left it out
    if owner is not None:
        if str(mount) not in owner.mounts and found_clusters.is_maybe_mounted(cluster_id):
            return ""
        return f"{owner.state.cluster} has no such mount at {mount} any more"
    for other in found_clusters.answered.values():
        if mount.is_root and other.mount.is_root and not other.state.stale:
            return f"{other.state.cluster} ({other.state.cluster_id}) is the root now"
    return ""


def _commit(
    index: IndexTable, before: TableState, findings: Sequence[Finding]
) -> tuple[int, TableCommit]:
    """Merges the findings into the table and commits; after a conflict, again on top of the other
    build's commit. Returns the version and the commit.

    Raises:
        WriteConflict: there were too many conflicts.
        Unreachable: the table cannot be reached.
    """

    @functools.cache
    def empty(cluster_id: str) -> DataFile:
        with index.reachable():
            return index.write(cluster_id, ())

    state = before
    for _ in range(_MOST_COMMITS):
        changes = merge(before, state, findings, empty)
        try:
            version = _commit_once(index, state, changes, units.plural(len(findings), "cluster"))
        except CommitConflict:
            state = index.load()
            continue
        index.discard(changes.unused)
        return version, changes
    raise WriteConflict(
        f"{index.location}: other builds were quicker {_MOST_COMMITS} times in a row"
    )


def _commit_once(index: IndexTable, state: TableState, changes: TableCommit, note: str) -> int:
    if state.version is not None and not changes.adds and not changes.removes:
        return state.version
    return index.commit(state, changes.adds, changes.removes, note)
