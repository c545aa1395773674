"""`spark.read.format("kdir")` over small federations, by Spark itself."""

from collections.abc import Iterator, Mapping

import pytest
from kdir.v1 import scan_pb2
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from resolver.errors import Absent, InvalidArgument, InvalidPath, Unavailable, UnreadableRecord
from resolver.index.row_schema import arrow_schema, spark_schema
from resolver.index.spark_source import KdirReader, Options, ShardPartition, register
from resolver.path import Path
from tests.index.fakes import FakeCluster, federation

TREE = {
    "/": [],
    "/la": ["/la/jobs"],
    "/la/tracking": [f"/la/tracking/d{number % 5}/t{number}" for number in range(300)],
    "/ny": ["/ny/jobs", "/ny/search/clicks"],
}
ALL = sorted(path for paths in TREE.values() for path in paths)


@pytest.fixture
def tree() -> Iterator[dict[str, FakeCluster]]:
    with federation(TREE) as clusters:
        yield clusters


def read(
    spark: SparkSession, tree: Mapping[str, FakeCluster], path: str = "", **options: str
) -> list[Row]:
    register(spark)
    reader = spark.read.format("kdir").option("servers", tree["/la"].endpoint)
    for name, value in options.items():
        reader = reader.option(name, value)
    rows = (reader.load(path) if path else reader.load()).orderBy("path")
    return rows.collect()


def paths(rows: list[Row]) -> list[str]:
    return [row.path for row in rows]


def test_every_topic_of_every_cluster_is_a_row(
    spark: SparkSession, tree: dict[str, FakeCluster]
) -> None:
    rows = read(spark, tree)
    assert paths(rows) == ALL
    clicks = next(row for row in rows if row.path == "/ny/search/clicks")
    assert (clicks.cluster, clicks.mount, clicks.physical_name) == ("ny", "/ny", "ny.search.clicks")
    assert (clicks.kind, clicks.stale, clicks.revision) == ("topic", False, tree["/ny"].revision)
    assert clicks.as_of is not None


def test_it_is_read_by_several_tasks(spark: SparkSession, tree: dict[str, FakeCluster]) -> None:
    rows = read(spark, tree, shard_rows="100", page_rows="7")
    assert paths(rows) == ALL
    options = Options((tree["/"].endpoint,), shard_rows=100)
    parts = KdirReader(options).partitions()
    shards = [part.shard for part in parts if isinstance(part, ShardPartition)]
    assert len(shards) == len(TREE) + 2  # la-tracking in three


@pytest.mark.parametrize("below", ["/la", "/la/tracking/d3", "/ny/search"])
def test_below_a_path(spark: SparkSession, tree: dict[str, FakeCluster], below: str) -> None:
    wanted = [path for path in ALL if path.startswith(f"{below}/")]
    assert paths(read(spark, tree, below)) == wanted


@pytest.mark.parametrize("path", ["/ny/none", "/none", "/la/tracking/d3/none"])
@pytest.mark.parametrize("failures", ["row", "skip"])
def test_a_path_that_does_not_exist_is_an_error_and_no_empty_result(
    spark: SparkSession, tree: dict[str, FakeCluster], path: str, failures: str
) -> None:
    with pytest.raises(PySparkException, match=f"Absent: {path}: "):
        read(spark, tree, path, failures=failures)


def test_a_path_of_a_cluster_that_is_down_is_not_absent(
    spark: SparkSession, tree: dict[str, FakeCluster]
) -> None:
    tree["/ny"].stop()
    rows = read(spark, tree, "/ny/none")
    assert [(row.kind, row.path) for row in rows] == [("unread", "/ny")]


def test_a_cluster_that_is_down_is_one_row_that_says_so(
    spark: SparkSession, tree: dict[str, FakeCluster]
) -> None:
    tree["/ny"].stop()
    rows = read(spark, tree)
    assert paths([row for row in rows if row.kind == "topic"]) == [
        path for path in ALL if not path.startswith("/ny")
    ]
    [unread] = [row for row in rows if row.kind == "unread"]
    assert (unread.path, unread.cluster, unread.stale) == ("/ny", "ny", True)
    assert "refused" in unread.stale_reason


def test_a_cluster_that_fails_while_it_is_read_is_marked_too(
    spark: SparkSession, tree: dict[str, FakeCluster]
) -> None:
    def restore(one: FakeCluster, request: scan_pb2.ScanTopicsRequest) -> None:
        if request.page_token:
            one.incarnation = "life-2"

    tree["/la/tracking"].before_page = restore
    rows = read(spark, tree, page_rows="100")
    [unread] = [row for row in rows if row.kind == "unread"]
    assert (unread.path, unread.stale) == ("/la/tracking", True)
    assert "restored" in unread.stale_reason
    assert len([row for row in rows if row.cluster == "la-tracking"]) == 100 + 1


@pytest.mark.parametrize("failures", ["row", "skip", "raise"])
def test_S21_a_cluster_with_entries_that_cannot_be_read_is_marked_behind_its_rows(
    tree: dict[str, FakeCluster], failures: str
) -> None:
    def lacks_two(page: scan_pb2.ScanTopicsResponse) -> None:
        page.unreadable_count = 2

    tree["/ny"].change_page = lacks_two
    reader = KdirReader(Options((tree["/"].endpoint,), Path.parse("/ny"), failures=failures))
    [part] = reader.partitions()
    batches = reader.read(part)
    rows = next(batches).to_pylist()
    assert {row["kind"] for row in rows} == {"topic"}
    if failures == "raise":
        with pytest.raises(UnreadableRecord, match="2 entries that cannot be read"):
            list(batches)
        return
    marks = [row["path"] for batch in batches for row in batch.to_pylist()]
    assert marks == (["/ny"] if failures == "row" else [])


@pytest.mark.parametrize("failures", ["row", "skip", "raise"])
def test_a_cluster_whose_inherited_grants_do_not_count_is_unread(
    tree: dict[str, FakeCluster], failures: str
) -> None:
    """Its scan may lack topics that the caller may see."""
    tree["/ny"].grants_expired = True
    reader = KdirReader(Options((tree["/"].endpoint,), Path.parse("/ny"), failures=failures))
    [part] = reader.partitions()
    if failures == "raise":
        with pytest.raises(Unavailable, match="its parent has not confirmed"):
            list(reader.read(part))
        return
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    unread = [("unread", "/ny", True)] if failures == "row" else []
    assert [(row["kind"], row["path"], row["stale"]) for row in rows] == unread


def test_failures_can_be_left_out_or_fail_the_read(
    spark: SparkSession, tree: dict[str, FakeCluster]
) -> None:
    tree["/ny"].stop()
    rows = read(spark, tree, failures="skip")
    assert paths(rows) == [path for path in ALL if not path.startswith("/ny")]
    with pytest.raises(PySparkException, match="ny"):
        read(spark, tree, failures="raise")


def test_what_lies_beside_the_wanted_path_need_not_answer(
    spark: SparkSession, tree: dict[str, FakeCluster]
) -> None:
    tree["/ny"].stop()
    assert {row.kind for row in read(spark, tree, "/la", failures="raise")} == {"topic"}


def test_a_cluster_above_the_owner_is_not_scanned_for_its_path(
    tree: dict[str, FakeCluster],
) -> None:
    """Where one process hosts both, the owner would answer for the cluster above."""
    options = Options((tree["/"].endpoint,), Path.parse("/la/tracking/d3"), failures="raise")
    [part] = KdirReader(options).partitions()
    assert isinstance(part, ShardPartition)
    assert (part.shard.state.mount, part.owns_path) == ("/la/tracking", True)
    tree["/la"].stop()
    assert len(KdirReader(options).partitions()) == 1


@pytest.mark.parametrize("failures", ["row", "raise"])
def test_a_cluster_that_moved_after_the_plan_is_unread_and_not_without_topics(
    tree: dict[str, FakeCluster], failures: str
) -> None:
    reader = KdirReader(Options((tree["/"].endpoint,), Path.parse("/la"), failures=failures))
    [part] = [
        part
        for part in reader.partitions()
        if isinstance(part, ShardPartition) and part.shard.state.mount == "/la/tracking"
    ]
    moved = tree["/la/tracking"]
    moved.mount, moved.topics = "/la", []
    if failures == "raise":
        with pytest.raises(Absent, match="/la/tracking"):
            list(reader.read(part))
        return
    [batch] = reader.read(part)
    [row] = batch.to_pylist()
    assert (row["kind"], row["path"], row["stale"]) == ("unread", "/la/tracking", True)
    assert "no directory" in row["stale_reason"]


def test_a_cluster_above_without_the_directory_is_no_failure(tree: dict[str, FakeCluster]) -> None:
    tree["/ny"].children["/ny/ads/eu"] = tree["/la/tracking"]
    options = Options((tree["/"].endpoint,), Path.parse("/ny/ads"), failures="raise")
    shard = next(
        part.shard for part in KdirReader(options).partitions() if isinstance(part, ShardPartition)
    )
    assert (shard.state.mount, shard.path) == ("/ny", "/ny/ads")
    assert list(KdirReader(options).read(ShardPartition(shard, owns_path=False))) == []


def test_spark_and_arrow_have_the_same_columns_in_the_same_order(spark: SparkSession) -> None:
    declared = StructType.fromDDL(spark_schema())
    assert isinstance(declared, StructType)
    derived = from_arrow_schema(arrow_schema())
    assert [(one.name, one.dataType) for one in declared] == [
        (one.name, one.dataType) for one in derived
    ]


class TestOptions:
    def test_defaults(self) -> None:
        options = Options.parse({"servers": "a:1, b:2,"})
        assert options.servers == ("a:1", "b:2")
        assert (options.below, options.failures) == (Path(), "row")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({}, "servers"),
            ({"servers": " , "}, "servers"),
            ({"servers": "a:1", "failures": "ignore"}, "row, skip, raise"),
            ({"servers": "a:1", "page_rows": "many"}, "page_rows"),
            ({"servers": "a:1", "shard_rows": "-3"}, "positive"),
            ({"servers": "a:1", "shard_rows": "0.5"}, "'0.5'; expected a whole number"),
            ({"servers": "a:1", "ask_seconds": "inf"}, "positive"),
            ({"servers": "a:1", "page_rowz": "3"}, "page_rowz"),
        ],
    )
    def test_mistakes_are_named(self, options: dict[str, str], says: str) -> None:
        with pytest.raises(InvalidArgument, match=says):
            Options.parse(options)

    def test_a_path_must_be_canonical(self) -> None:
        with pytest.raises(InvalidPath):
            Options.parse({"servers": "a:1", "path": "/la/"})
