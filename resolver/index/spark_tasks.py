"""Reads clusters into files of the table, a Spark task a shard; refuses to decide what is read."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resolver.errors import KdirError
from resolver.index.cluster_discovery import ReachableCluster
from resolver.index.cluster_scan import SHARD_ROWS, Shard, read_pages, shards_of
from resolver.index.delta_table import DataFile, IndexTable
from resolver.index.table_merge import Finding, NoAnswer, RereadCluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["ShardResult", "crawl", "read_shard"]


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a task read: one file, and the lowest and highest revision of its pages; or why not."""

    cluster_id: str
    file: DataFile | None
    low: int = 0
    high: int = 0
    error: str = ""


def crawl(
    spark: SparkSession,
    index: IndexTable,
    clusters: Sequence[ReachableCluster],
    shard_rows: int = SHARD_ROWS,
) -> list[Finding]:
    """Reads the clusters; the files that the findings name are for the caller to commit."""
    shards = [shard for one in clusters for shard in shards_of(one, shard_rows=shard_rows)]
    results = _run(spark, index, shards)
    torn = [one for one in clusters if _is_torn(results[one.state.cluster_id])]
    if torn:
        # Its shards were read at different revisions: a topic that moved from one to the other may
        # be there twice, or not at all. One shard alone is read at one revision, or in name order.
        for one in torn:
            _discard(index, results.pop(one.state.cluster_id))
        whole = [replace(shards_of(one)[0], number=0, count=1) for one in torn]
        results |= _run(spark, index, whole)
    return [_finding(index, one, results[one.state.cluster_id]) for one in clusters]


def read_shard(index: IndexTable, shard: Shard) -> ShardResult:
    """Reads a shard into a new file of the table; runs in an executor."""
    cluster_id = shard.state.cluster_id
    revisions: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for page in read_pages(shard):
            revisions.append(page.state.revision or 0)
            yield page.batch

    try:
        file = index.write(cluster_id, batches())
    except KdirError as error:
        return ShardResult(cluster_id, None, error=error.message)
    return ShardResult(cluster_id, file, min(revisions), max(revisions))


def _run(
    spark: SparkSession, index: IndexTable, shards: Sequence[Shard]
) -> dict[str, list[ShardResult]]:
    task = functools.partial(read_shard, index)
    # A slice a shard: they differ in size, and a worker that is done takes the next one.
    read = spark.sparkContext.parallelize(shards, len(shards)).map(task).collect()
    results: dict[str, list[ShardResult]] = defaultdict(list)
    for result in read:
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
        # Not later than the answer that it gave before, else a word of the same moment wins.
        return NoAnswer(state.cluster_id, state.cluster, state.mount, error, one.asked_at)
    files = [result.file for result in results if result.file is not None]
    kept = [file for file in files if file.rows] or files[:1]
    index.discard(file for file in files if file not in kept)
    # What holds for all of it is the lowest revision: the next build reads what came after.
    low = min(result.low for result in results)
    return RereadCluster(replace(state, revision=low), tuple(kept))


def _discard(index: IndexTable, results: Iterable[ShardResult]) -> None:
    index.discard(result.file for result in results if result.file is not None)
