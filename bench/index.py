"""The index: topics a second through the Spark source, against the same source without a server."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdir.v1 import entry_pb2, scan_pb2
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.ground import MOUNT, filled, free_core, path_of, pinned_directory
from bench.rows import Row, at_least, at_most
from resolver.index.job import SparkSettings, build
from resolver.index.rows import topic_batch, with_cluster
from resolver.index.scan import PAGE_ROWS, SHARD_ROWS
from resolver.index.schema import ClusterState, spark_schema
from resolver.index.search import find
from resolver.index.source import register

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

TOPICS: Final = int(os.environ.get("KDIR_BENCH_TOPICS", "1000000"))
DIRECTORIES: Final = max(1, TOPICS // 100)
_ROUNDS: Final = 3
_COUNT: Final = "SELECT count(*) FROM read_parquet(?) WHERE contains(path, ?)"


def run() -> list[Row]:
    """Rows a second of a whole read, of a build, and how long a search takes."""
    with tempfile.TemporaryDirectory(prefix="kdir-bench-index-") as name:
        folder = Path(name)
        with pinned_directory(folder / "server", filled(TOPICS, DIRECTORIES)) as server:
            free_core()
            with SparkSettings("local[1]").open() as spark:
                rows = _reads(spark, server.address)
                rows.append(_build(spark, server.address, str(folder / "index")))
            rows.append(_search(str(folder / "index")))
    return rows


def _reads(spark: SparkSession, address: str) -> list[Row]:
    """Both sources to nowhere in turn; of each the best of some rounds."""
    register(spark)
    spark.dataSource.register(RowsOfNowhere)
    served, bare = float("inf"), float("inf")
    for _ in range(_ROUNDS):
        served = min(served, _seconds(spark, "kdir", {"servers": address}))
        bare = min(bare, _seconds(spark, RowsOfNowhere.name(), {}))
    return [
        at_least(
            f"index read of {TOPICS:,} topics",
            TOPICS / served,
            "rows/s",
            "the same source, its batches made beforehand",
            TOPICS / bare,
            0.5,
        )
    ]


def _seconds(spark: SparkSession, source: str, options: Mapping[str, str]) -> float:
    began = time.perf_counter()
    spark.read.format(source).options(**options).load().write.format("noop").mode(
        "overwrite"
    ).save()
    return time.perf_counter() - began


def _build(spark: SparkSession, address: str, table: str) -> Row:
    """A first build, and one when nothing has changed: that costs by the change."""
    settings = SparkSettings(session=spark)
    first = build([address], table, spark=settings)
    if first.rows != TOPICS:
        raise AssertionError(f"the build has {first.rows} of {TOPICS} topics")
    again = build([address], table, spark=settings)
    return at_most(
        "index build when nothing has changed",
        again.seconds,
        "s",
        "first build",
        first.seconds,
        0.1,
    )


def _search(table: str) -> Row:
    """A search by text that one topic holds, against DuckDB on the bare files."""
    import duckdb

    wanted = path_of(TOPICS - 1, TOPICS // DIRECTORIES)
    text = wanted.removeprefix(MOUNT)
    files = [str(file) for file in Path(table).glob("cluster_id=*/*.parquet")]
    ours, bare = float("inf"), float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        found = find(table, text)
        ours = min(ours, time.perf_counter() - began)
        if [row.path for row in found.rows] != [wanted]:
            raise AssertionError(f"found {found.total} instead of {wanted}")
        began = time.perf_counter()
        duckdb.execute(
            "SELECT count(*) FROM read_parquet(?) WHERE contains(path, ?)", [files, text]
        )
        bare = min(bare, time.perf_counter() - began)
    name = f"find in {TOPICS:,} topics"
    return at_most(name, ours, "s", "DuckDB counting in the same files", bare, 5)


@dataclass(frozen=True)
class Part(InputPartition):
    """So many rows of one task."""

    rows: int


class RowsOfNowhere(DataSource):
    """What the index reads, without anything to ask: one page made once, given again and again."""

    @classmethod
    def name(cls) -> str:
        return "kdir.nowhere"

    def schema(self) -> str:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        count = -(-TOPICS // SHARD_ROWS)
        return [Part(TOPICS // count) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            raise TypeError(f"not a partition of this source: {partition!r}")
        batch = _page()
        for _ in range(partition.rows // PAGE_ROWS):
            yield batch
        if partition.rows % PAGE_ROWS:
            yield batch.slice(0, partition.rows % PAGE_ROWS)


def _page() -> pa.RecordBatch:
    page = scan_pb2.ScanTopicsResponse()
    for number in range(PAGE_ROWS):
        entry = page.entries.add(path=path_of(number, 100), entry_id=number + 1_000)
        entry.changed_at.FromMilliseconds(1_700_000_000_000)
        entry.topic.MergeFrom(
            entry_pb2.Topic(
                physical_name=entry.path.removeprefix(f"{MOUNT}/").replace("/", "."),
                topic_id=os.urandom(16),
                partitions=24,
                replication_factor=3,
                provision=entry_pb2.PROVISION_ACTIVE,
                adopted=True,
            )
        )
        page.owners.append("")
    return with_cluster(topic_batch(page), ClusterState("kc-nowhere", "la-tracking", MOUNT))
