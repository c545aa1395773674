"""The index: topics a second through the Spark source, against the same source without a server.

The server runs on one core, Spark and its Python on the other. The source without a server decodes
the same kind of pages from its own memory. A second baseline has ready-made Arrow batches: it shows
what Spark alone takes.
"""

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

from bench.ground import CLUSTER, MOUNT, TOPICS, filled, free_core, path_of, pinned_directory
from bench.rows import Row, at_least, at_most
from resolver.index.arrow_rows import topic_batch, with_cluster
from resolver.index.build import SparkSettings, build
from resolver.index.cluster_scan import PAGE_ROWS, SHARD_ROWS
from resolver.index.row_schema import ClusterState, spark_schema
from resolver.index.search import find
from resolver.index.spark_source import register

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

DIRECTORIES: Final = max(1, TOPICS // 100)
_ROUNDS: Final = 3
_SEARCH: Final = """
SELECT * FROM read_parquet(?) WHERE contains(lower(path), ?) OR contains(lower(physical_name), ?)
"""


def run() -> list[Row]:
    """Measures a read of all topics, a build of the index, and a search."""
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
    """Measures reads of all sources in alternating rounds; the best round of each counts."""
    register(spark)
    spark.dataSource.register(WithoutServer)
    options = {
        "kdir": {"servers": address},
        "pages": {"ready_made": "false"},
        "batches": {"ready_made": "true"},
    }
    best = dict.fromkeys(options, float("inf"))
    for _ in range(_ROUNDS):
        for name, given in options.items():
            source = "kdir" if name == "kdir" else WithoutServer.name()
            best[name] = min(best[name], _seconds(spark, source, given))
    rate = {name: TOPICS / seconds for name, seconds in best.items()}
    what = f"index read of {TOPICS:,} topics"
    alone = "the same source without a server"
    ready = "Spark given ready-made batches"
    return [
        at_least(what, rate["kdir"], "rows/s", alone, rate["pages"], 0.5),
        at_least(what, rate["kdir"], "rows/s", ready, rate["batches"], 0.25),
    ]


def _seconds(spark: SparkSession, source: str, options: Mapping[str, str]) -> float:
    began = time.perf_counter()
    spark.read.format(source).options(**options).load().write.format("noop").mode(
        "overwrite"
    ).save()
    return time.perf_counter() - began


def _build(spark: SparkSession, address: str, table: str) -> Row:
    """Measures a build when nothing has changed against the first build."""
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
    """Measures a search that finds one topic against a bare DuckDB query on the files."""
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
        with duckdb.connect() as database:
            database.sql(_SEARCH, params=[files, text, text]).to_arrow_table()
        bare = min(bare, time.perf_counter() - began)
    name = f"find in {TOPICS:,} topics"
    return at_most(name, ours, "s", "the bare DuckDB query on the files", bare, 1.5)


@dataclass(frozen=True)
class Part(InputPartition):
    """Partition of one task: a number of rows."""

    rows: int


class WithoutServer(DataSource):
    """Source of the index's rows without a server: one page, made once and read again and again."""

    @classmethod
    def name(cls) -> str:
        return "kdir.without.server"

    def schema(self) -> str:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(ready_made=self.options["ready_made"] == "true")


class _Reader(DataSourceReader):
    def __init__(self, *, ready_made: bool) -> None:
        self._ready_made = ready_made

    def partitions(self) -> list[InputPartition]:
        count = -(-TOPICS // SHARD_ROWS)
        return [Part(TOPICS // count) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            raise TypeError(f"not a partition of this source: {partition!r}")
        page = _page().SerializeToString()
        batch = _batch(page)
        for _ in range(partition.rows // PAGE_ROWS):
            yield batch if self._ready_made else _batch(page)
        if partition.rows % PAGE_ROWS:
            yield batch.slice(0, partition.rows % PAGE_ROWS)


def _batch(page: bytes) -> pa.RecordBatch:
    state = ClusterState("kc-without", CLUSTER, MOUNT)
    return with_cluster(topic_batch(scan_pb2.ScanTopicsResponse.FromString(page)), state)


def _page() -> scan_pb2.ScanTopicsResponse:
    page = scan_pb2.ScanTopicsResponse()
    for number in range(PAGE_ROWS):
        entry = page.entries.add(
            path=path_of(number, 100), entry_id=number + 1_000, etag=f"{number:x}-1", change_count=1
        )
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
    return page
