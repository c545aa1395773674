"""Spark's data source ``kdir``: every topic of every cluster as a row.

    register(spark)
    spark.read.format("kdir").option("servers", "la-1:7420,ny-1:7420").load("/la")

The driver finds the clusters (``cluster_discovery.py``) and makes one partition for each, or
several for a large one. Executors receive plain values, and each opens its own channel to the
cluster that it reads. A cluster that does not answer has one row of kind ``unread`` with the reason
(``failures=row``), so that nothing is missing silently. ``failures=skip`` leaves that row out;
``failures=raise`` makes the read fail. There is no ``readStream``; ``kdir.changes``
(``changes.py``) has a stream of changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from resolver.errors import Absent, KdirError, Unreachable, UnreadableRecord
from resolver.extras import missing_extra
from resolver.index.arrow_rows import unread_batch, with_cluster
from resolver.index.changes import ChangesSource
from resolver.index.cluster_discovery import ASK_SECONDS, UnreachableCluster, discover_clusters
from resolver.index.cluster_scan import PAGE_ROWS, SHARD_ROWS, Shard, read_pages, shards_of
from resolver.index.row_schema import ClusterState, spark_schema
from resolver.index.spark_options import (
    check_names,
    failures_option,
    positive_option,
    servers_option,
    whole_option,
)
from resolver.path import ROOT, Path

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ModuleNotFoundError as error:
    missing = missing_extra("Spark's data source kdir", "index", "pyspark")
    raise ImportError(missing or str(error)) from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KdirReader", "KdirSource", "Options", "register"]


def register(spark: SparkSession) -> None:
    """Registers the formats ``kdir`` and ``kdir.changes`` with a Spark session."""
    spark.dataSource.register(KdirSource)
    spark.dataSource.register(ChangesSource)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a read."""

    servers: tuple[str, ...]
    below: Path = ROOT
    failures: str = "row"
    ask_seconds: float = ASK_SECONDS
    page_rows: int = PAGE_ROWS
    shard_rows: int = SHARD_ROWS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Reads ``servers``, ``path``, ``failures``, ``ask_seconds``, ``page_rows``,
        ``shard_rows``.

        Raises:
            InvalidArgument: an option is unknown or wrong; the message names it and the expected
                value.
            InvalidPath: ``path`` is no canonical path.
        """
        known = {"servers", "path", "failures", "ask_seconds", "page_rows", "shard_rows"}
        check_names(options, known)
        return cls(
            servers=servers_option(options),
            below=Path.parse(options.get("path") or "/"),
            failures=failures_option(options),
            ask_seconds=positive_option(options, "ask_seconds", ASK_SECONDS),
            page_rows=whole_option(options, "page_rows", PAGE_ROWS),
            shard_rows=whole_option(options, "shard_rows", SHARD_ROWS),
        )


class KdirSource(DataSource):
    """Spark data source of ``spark.read.format("kdir")``."""

    @classmethod
    def name(cls) -> str:
        return "kdir"

    def schema(self) -> str:
        return spark_schema()

    def reader(self, schema: StructType) -> KdirReader:
        return KdirReader(Options.parse(self.options))


@dataclass(frozen=True)
class ShardPartition(InputPartition):
    """Partition that one task reads: topics of one cluster."""

    shard: Shard
    owns_path: bool = False
    """True if this cluster owns the path and no cluster is mounted at or below it: if it lacks the
    directory, the path does not exist.
    """


@dataclass(frozen=True)
class UnreadPartition(InputPartition):
    """Cluster that did not answer when the read was planned."""

    state: ClusterState


class KdirReader(DataSourceReader):
    """Reader that plans partitions in the driver, and reads them in the executors."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        options = self.options
        found_clusters = discover_clusters(options.servers, ask_seconds=options.ask_seconds)
        mounts = found_clusters.mounts_at(options.below)
        owns_path = not any(options.below.is_prefix_of(mount) for mount in mounts)
        shards = [
            ShardPartition(shard, owns_path)
            for one in found_clusters.answered.values()
            if one.mount in mounts
            for shard in shards_of(
                one,
                below=options.below,
                shard_rows=options.shard_rows,
                page_rows=options.page_rows,
            )
        ]
        silent = [one for one in found_clusters.silent.values() if one.mount in mounts]
        return [*shards, *self._unread(silent, found_clusters.started_at)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        match partition:
            case ShardPartition(shard=shard, owns_path=owns_path):
                yield from self._read(shard, owns_path=owns_path)
            case UnreadPartition(state=state):
                yield unread_batch(state)
            case _:
                raise TypeError(f"not a partition of this source: {partition!r}")

    def _read(self, shard: Shard, *, owns_path: bool) -> Iterator[pa.RecordBatch]:
        unreadable = 0
        try:
            for page in read_pages(shard):
                unreadable += page.unreadable_count
                yield with_cluster(page.batch, page.state)
            if unreadable:
                raise UnreadableRecord.of_entries(shard.path, unreadable)
        except KdirError as error:
            # A mount always exists in its own cluster: if it is absent, the cluster was moved.
            if isinstance(error, Absent) and shard.path != shard.state.mount:
                # Otherwise another cluster may have the directory, so no topics here is no failure.
                if owns_path:
                    raise Absent(f"{self.options.below}: {error.message}") from None
                return
            match self.options.failures:
                case "raise":
                    raise
                case "row":
                    # Rows that were read before stay in the result: this row marks them as
                    # incomplete.
                    since = shard.state.as_of
                    yield unread_batch(
                        replace(
                            shard.state, stale=True, stale_since=since, stale_reason=error.message
                        )
                    )
                case _:
                    pass

    def _unread(
        self, silent: Sequence[UnreachableCluster], since: datetime
    ) -> list[InputPartition]:
        if silent and self.options.failures == "raise":
            one = silent[0]
            raise Unreachable(f"{one.cluster or one.cluster_id or one.mount}: {one.reason}")
        if self.options.failures == "skip":
            return []
        return [
            UnreadPartition(
                ClusterState(
                    one.cluster_id,
                    one.cluster,
                    str(one.mount),
                    stale=True,
                    stale_since=since,
                    stale_reason=one.reason,
                )
            )
            for one in silent
        ]
