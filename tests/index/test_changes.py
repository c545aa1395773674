"""Change logs in a real Kafka as rows: of ``kdir audit``, and of Spark as a table and a stream.

The directories are fakes that know where the logs are, and the tests write the logs.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from resolver.changes import audit as history
from resolver.changes import record
from resolver.changes.audit import (
    ChangeFilter,
    HistoryReading,
    LogLocation,
    LogRange,
    find_ranges,
)
from resolver.changes.record import Change
from resolver.changes.registry import RegistryUnavailable
from resolver.changes.topic_reader import TopicReader, TopicRecord
from resolver.errors import InvalidArgument, NoRoute, Unavailable
from resolver.index.changes import (
    ChangesOptions,
    ChangesReader,
    ChangesStreamReader,
    RangePartition,
)
from resolver.index.spark_source import register
from resolver.path import Path as TreePath
from tests.conftest import SharedBroker
from tests.index.fakes import FakeCluster, federation
from tests.support.change_logs import WrittenLog
from tests.support.command_line import run
from tests.support.waiting import eventually

NOBODY = "127.0.0.1:1"
"""An address at which no broker listens."""


class Logged:
    """Clusters /, /la and /ny, and the change logs of the last two."""

    def __init__(self, clusters: dict[str, FakeCluster], bootstrap: str) -> None:
        self.clusters = clusters
        self.logs: dict[str, WrittenLog] = {}
        self._bootstrap = bootstrap
        for one in clusters.values():
            one.cluster_id = f"kc-{uuid.uuid4().hex[:10]}"
        for mount in ("/la", "/ny"):
            self.keep_log(mount)

    @property
    def servers(self) -> str:
        return self.clusters["/la"].endpoint

    def keep_log(self, mount: str) -> None:
        one = self.clusters[mount]
        one.log_in(self._bootstrap)
        self.logs[mount] = WrittenLog(self._bootstrap, one.cluster_id)

    def paths_in(self, below: str = "/", **wanted: datetime) -> list[str]:
        """Returns the paths of the changes that an audit finds."""
        filtered = ChangeFilter(TreePath.parse(below), **wanted)
        ranges, _ = find_ranges([self.servers], filtered, {})
        return [
            path
            for part in ranges
            for batch in HistoryReading(part, {}, filtered).batches()
            for path in batch["path"].to_pylist()
        ]


@pytest.fixture
def logged(kafka_broker: SharedBroker) -> Iterator[Logged]:
    with federation({"/": [], "/la": [], "/ny": []}) as clusters:
        yield Logged(clusters, kafka_broker.bootstrap)


def audit(logged: Logged, sql: str, *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    ran = run(["audit", sql, *arguments, "-o", "json", "--at", logged.servers])
    return ran.code, [json.loads(line) for line in ran.lines], ran.err


def test_audit_reads_all_logs_and_reports_who_has_none(logged: Logged) -> None:
    logged.logs["/la"].add("/la/a", "/la/b", principal="User:ana", after={"owner": "x", "y": None})
    logged.logs["/ny"].add("/ny/a")
    sql = "SELECT path, principal, after['owner'] AS owner FROM changes ORDER BY path"
    code, rows, err = audit(logged, sql)
    assert code == 3
    assert rows == [
        {"path": "/la/a", "principal": "User:ana", "owner": "x"},
        {"path": "/la/b", "principal": "User:ana", "owner": "x"},
        {"path": "/ny/a", "principal": None, "owner": None},
    ]
    assert "unread: / (root): it keeps no change log" in err
    assert audit(logged, "SELECT count(*) AS n FROM changes", "/la")[:2] == (0, [{"n": 2}])
    code, rows, _ = audit(logged, "SELECT mount, reason FROM unread")
    assert [row["mount"] for row in rows] == ["/"]


def test_a_cluster_whose_brokers_are_away_is_unread_and_the_others_are_read(
    logged: Logged,
) -> None:
    logged.logs["/la"].add("/la/a")
    logged.clusters["/ny"].log_in(NOBODY)
    logged.clusters["/"].stop()
    sql = "SELECT (SELECT list(path) FROM changes) AS paths, list(mount) AS away FROM unread"
    code, rows, err = audit(logged, sql, "--timeout", "5")
    assert (code, rows) == (3, [{"paths": ["/la/a"], "away": ["/", "/ny"]}])
    assert err.count("unread: ") == 2


def test_what_waits_to_be_published_is_unread(logged: Logged) -> None:
    log = logged.clusters["/la"].change_log
    log.waiting_commits, log.state.message = 3, "no broker answered"
    code, rows, err = audit(logged, "FROM unread", "/la")
    assert (code, len(rows)) == (3, 1)
    assert "its change log waits, with 3 commits to be published: no broker answered" in err


def test_a_wrong_query_is_refused_before_anything_is_read(logged: Logged, tmp_path: Path) -> None:
    for server in logged.clusters.values():
        server.stop()
    file = tmp_path / "out.csv"
    for sql, message in (
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM changes", 'column "nope" not found'),
        (f"COPY changes TO '{file}'", "file system operations are disabled"),
        ("FROM read_csv('/etc/passwd')", "file system operations are disabled"),
        ("SELECT 1; SELECT 2", "found 2 statements; expected one query"),
    ):
        code, rows, err = audit(logged, sql)
        assert (code, rows) == (2, [])
        assert message in err
    assert not file.exists()


def test_changes_are_chosen_by_path_and_time(logged: Logged) -> None:
    log = logged.logs["/la"]
    hour = 3_600_000
    for day in range(3):
        log.add(f"/la/web/t{day}", time=(day + 1) * 24 * hour)
    log.add("/la/other", path_before="/la/web/t2", time=4 * 24 * hour)
    log.add("", action="delete", cause="resync", time=4 * 24 * hour)
    log.add("/la/webs", time=4 * 24 * hour)
    web = ["/la/web/t0", "/la/web/t1", "/la/web/t2", "/la/other", None]
    assert logged.paths_in("/la/web") == web
    since = datetime.fromtimestamp(2 * 24 * 3600, UTC)
    assert logged.paths_in("/la/web", since=since) == web[1:]
    assert logged.paths_in("/la/web", since=since, until=since) == web[1:2]
    logged.clusters["/la"].parent = None
    logged.clusters["/la"].known.clear()
    with pytest.raises(NoRoute):
        find_ranges([logged.servers], ChangeFilter(TreePath.parse("/ny/x")), {})


def test_since_reads_no_more_than_an_hour_before_by_kafkas_time(logged: Logged) -> None:
    logged.logs["/la"].add("/la/a")
    now, la = datetime.now(UTC), TreePath.parse("/la")
    hours = timedelta(hours=2)
    ((all_of_it,), _) = find_ranges([logged.servers], ChangeFilter(la, since=now), {})
    ((later,), _) = find_ranges([logged.servers], ChangeFilter(la, since=now + hours), {})
    assert all_of_it.begin == 0 < all_of_it.end
    assert later.begin == later.end == all_of_it.end


def test_records_that_cannot_be_decoded_are_counted(logged: Logged) -> None:
    log = logged.logs["/la"]
    log.add("/la/a")
    log.write(("/la/b", b"damaged"), ("/la/c", None), ("/la/d", b"\xc3\x01" + b"8" * 9))
    other = Change(cluster_id="kc-other", generation=1, revision=1, time=0, path="/la/e")
    log.write(("/la/e", record.encode(other)))
    log.add("/la/f")
    code, rows, err = audit(logged, "SELECT path FROM changes ORDER BY revision", "/la")
    assert (code, [row["path"] for row in rows]) == (3, ["/la/a", "/la/f"])
    assert "3 records could not be decoded, the first at offset 3: not framed" in err
    assert "1 record left out: of other clusters" in err


def test_records_of_another_schema_are_read_by_it(logged: Logged) -> None:
    """A newer kdir's: its schema is in the state topic, what it has more is left out."""
    import io

    from fastavro import parse_schema, schemaless_writer

    schema = json.loads(record.schema_text())
    schema["fields"].append({"name": "mood", "type": "string", "default": ""})
    text = json.dumps(schema)
    log = logged.logs["/la"]
    log.add("/la/a")
    fingerprint = record.Schemas().add(text)
    log.add_schema(text, fingerprint)
    body = io.BytesIO()
    value = {"cluster_id": log.cluster_id, "generation": 1, "revision": 9, "time": 0,
             "path": "/la/new", "mood": "good"}  # fmt: skip
    schemaless_writer(body, parse_schema(schema), value)
    log.write(("/la/new", b"\xc3\x01" + fingerprint + body.getvalue()))
    assert logged.paths_in("/la") == ["/la/a", "/la/new"]


def test_what_retention_removed_is_reported(logged: Logged) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    log = logged.logs["/la"]
    log.add(*(f"/la/t{number}" for number in range(10)))
    ((part,), _) = find_ranges([logged.servers], ChangeFilter(TreePath.parse("/la")), {})
    found = part.log
    admin = AdminClient({"bootstrap.servers": found.brokers[0], "log_level": 0})
    where = TopicPartition(found.history, 0, 4)
    admin.delete_records([where])[where].result(30)
    reading = HistoryReading(replace(part, end=10), {}, ChangeFilter())
    (batch,) = reading.batches()
    assert batch["path"].to_pylist() == [f"/la/t{number}" for number in range(4, 10)]
    (problem,) = reading.problems()
    assert "4 offsets not kept any more" in problem.reason


def read(spark: SparkSession, logged: Logged, path: str = "/", **options: str) -> list[Row]:
    register(spark)
    reader = spark.read.format("kdir.changes").option("servers", logged.servers)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(path).orderBy("path", "revision").collect()


def test_a_long_history_is_read_in_tasks_of_50_000_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, as docs/audit.md says it, of a table and of a stream."""
    log = LogLocation("kc-1", "la", "/la", (NOBODY,), "history", "state")
    whole = LogRange(log, 7, 120_000)
    monkeypatch.setattr("resolver.index.changes.find_ranges", lambda *_, **__: ([whole], []))
    options = ChangesOptions.parse({"servers": NOBODY})
    stream = ChangesStreamReader(options)
    table = ChangesReader(options).partitions()
    assert table == stream.partitions({}, stream.latestOffset())
    bounds = [(one.part.begin, one.part.end) for one in table if isinstance(one, RangePartition)]
    assert bounds == [(7, 50_007), (50_007, 100_007), (100_007, 120_000)]


@pytest.mark.slow
def test_spark_reads_the_same_rows_in_several_tasks(spark: SparkSession, logged: Logged) -> None:
    changes = logged.logs["/la"].add(
        *(f"/la/t{number}" for number in range(9)), after={"owner": "x"}, grants_after=("ALLOW",)
    )
    logged.logs["/ny"].add("/ny/a")
    unread, *rows = read(spark, logged, shard_offsets="4")
    assert (unread.scope, unread.path, unread.cluster) == ("unread", "/", "root")
    assert "keeps no change log" in unread.unread_reason
    assert [row.path for row in rows] == [*(one.path for one in changes), "/ny/a"]
    assert rows[0].after == {"owner": "x"}
    assert rows[0].grants_after == ["ALLOW"]
    assert rows[0].time.timestamp() == 1_790_000_000
    assert [row.path for row in read(spark, logged, "/ny", failures="raise")] == ["/ny/a"]
    with pytest.raises(PySparkException, match="keeps no change log"):
        read(spark, logged, failures="raise")
    options = ChangesOptions.parse({"servers": logged.servers, "shard_offsets": "4"})
    assert len(ChangesReader(options).partitions()) == 3 + 1 + 1  # la in three, ny, the root


@pytest.mark.slow
def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, logged: Logged, tmp_path: Path
) -> None:
    register(spark)
    reader = spark.readStream.format("kdir.changes").option("servers", logged.servers)
    reader = reader.option("kafka_seconds", "8")

    def new_paths() -> list[str]:
        """Runs the stream up to the ends, restarted; returns what came."""
        before = {file.name for file in (tmp_path / "rows").glob("*.parquet")}
        writer = reader.load("/").select("path").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        query.awaitTermination()
        after = [
            str(file) for file in (tmp_path / "rows").glob("*.parquet") if file.name not in before
        ]
        return sorted(row.path for row in spark.read.parquet(*after).collect()) if after else []

    logged.logs["/la"].add("/la/a", "/la/b")
    assert new_paths() == ["/la/a", "/la/b"]
    logged.logs["/la"].add("/la/c")
    logged.logs["/ny"].add("/ny/a")
    logged.clusters["/ny"].stop()
    logged.keep_log("/")
    logged.logs["/"].add("/x")
    assert new_paths() == ["/la/c", "/x"]
    logged.clusters["/la"].log_in(NOBODY)
    logged.clusters["/ny"].start()
    logged.logs["/la"].add("/la/d")
    assert new_paths() == ["/ny/a"]
    logged.keep_log("/la")
    assert new_paths() == ["/la/d"]


def test_the_same_batch_of_a_stream_has_the_same_rows(logged: Logged) -> None:
    options = ChangesOptions.parse({"servers": logged.servers, "failures": "raise", "path": "/la"})
    logged.logs["/la"].add("/la/a")
    reader = ChangesStreamReader(options)
    first = reader.latestOffset()
    logged.logs["/la"].add("/la/b")
    assert reader.latestOffset() == first, "the clusters are not asked all the time"

    def paths(one: ChangesStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        parts = one.partitions(start, end)
        return [path for p in parts for b in one.read(p) for path in b["path"].to_pylist()]

    again = ChangesStreamReader(options)
    assert paths(again, {}, first) == paths(reader, {}, first) == ["/la/a"]
    second = again.latestOffset()
    assert paths(again, first, second) == ["/la/b"]
    beyond = {key: one["offset"] + 1 for key, one in second.items()}
    shrunk = ChangesStreamReader(options)
    assert shrunk.partitions(beyond, beyond) == []
    with pytest.raises(InvalidArgument, match="the topic was made again"):
        shrunk.latestOffset()
    gone = ChangesStreamReader(options)
    with pytest.raises(Unavailable, match="failures=skip"):
        gone.partitions({}, {"kc-gone": 4})


def test_a_stream_whose_topic_was_made_again_and_is_longer_now_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogLocation("kc-la", "la", "/la", ("a:1",), "h", "s")
    found = [LogRange(log, 0, 1000, "id-1")]
    monkeypatch.setattr("resolver.index.changes.find_ranges", lambda *_, **__: (found, []))
    options = ChangesOptions.parse({"servers": NOBODY, "poll_seconds": "0.001"})
    first = ChangesStreamReader(options)
    position = first.latestOffset()
    assert json.loads(json.dumps(position)) == {"kc-la": {"offset": 1000, "topic_id": "id-1"}}
    found[:] = [LogRange(log, 0, 1500, "id-2")]
    time.sleep(0.002)
    message = "h has the topic id id-2, and the stream has read it up to 1000 of the topic id id-1"
    with pytest.raises(InvalidArgument, match=message):
        first.latestOffset()
    planned_again, after_commit = (ChangesStreamReader(options) for _ in range(2))
    with pytest.raises(InvalidArgument, match=message):
        planned_again.partitions({}, position)
    end = after_commit.latestOffset()
    with pytest.raises(InvalidArgument, match=message):
        after_commit.partitions(position, end)
    for offset in (400, 1000):
        found[:] = [LogRange(log, 0, offset, "id-2")]
        restarted = ChangesStreamReader(options)
        with pytest.raises(InvalidArgument, match=message):
            restarted.partitions(position, restarted.latestOffset())
        planned = {"kc-la": {"offset": offset, "topic_id": "id-2"}}
        with pytest.raises(InvalidArgument, match=message):
            ChangesStreamReader(options).partitions(position, planned)
    found[:] = [LogRange(log, 0, 400)]
    restarted = ChangesStreamReader(options)
    with pytest.raises(InvalidArgument, match="h ends at offset 400, and the stream has read"):
        restarted.partitions({"kc-la": 1000}, restarted.latestOffset())
    found[:] = [LogRange(log, 0, 1500, "id-2")]
    no_id = {"kc-la": {"offset": 1000, "topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}}
    [part] = ChangesStreamReader(options).partitions(no_id, end)
    [part] = ChangesStreamReader(options).partitions({"kc-la": 1000}, end)  # from before
    assert isinstance(part, RangePartition)
    assert (part.part.begin, part.part.end) == (1000, 1500)


@pytest.mark.parametrize(("bits", "expected"), [((0, 0), ""), ((0, 7), None), ((7, 0), None)])
def test_brokers_without_topic_ids_give_no_topic_id(
    monkeypatch: pytest.MonkeyPatch, bits: tuple[int, int], expected: str | None
) -> None:
    from confluent_kafka import Uuid

    topic_id = Uuid(*bits)

    class Admin:
        def __init__(self, _: dict[str, Any]) -> None: ...

        def describe_topics(self, _: object, **__: object) -> dict[str, Future[SimpleNamespace]]:
            found: Future[SimpleNamespace] = Future()
            found.set_result(SimpleNamespace(topic_id=topic_id))
            return {"t": found}

    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Admin)
    with closing(TopicReader({"bootstrap.servers": NOBODY}, "t")) as reader:
        assert reader.topic_id() == (str(topic_id) if expected is None else expected)


def test_the_topic_id_of_a_history_is_kafkas(logged: Logged) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    wanted = ChangeFilter(TreePath.parse("/la"))

    def find_range() -> LogRange | None:
        ranges, _ = find_ranges([logged.servers], wanted, {}, with_topic_ids=True)
        return ranges[0] if ranges else None

    def is_made() -> bool:
        with suppress(KafkaException):
            admin.create_topics([NewTopic(history_topic, 1, 1)])[history_topic].result(30)
            return True
        return False

    part = eventually(find_range)
    assert part is not None
    history_topic = part.log.history
    admin = AdminClient({"bootstrap.servers": part.log.brokers[0], "log_level": 0})
    admin.delete_topics([history_topic])[history_topic].result(30)
    eventually(is_made)
    again = eventually(find_range)
    assert again is not None
    assert len({part.topic_id, again.topic_id, ""}) == 3


class FramedReader:
    """Reader of a topic of one record, framed by the id of a registry's schema."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def bounds(self) -> tuple[int, int]:
        return 0, 1

    def read(self, begin: int, _: int) -> Iterator[TopicRecord]:
        yield TopicRecord(begin, b"/la/a", b"\0\0\0\0\1 and fields")

    def close(self) -> None:
        pass


def test_a_stream_fails_while_the_registry_is_away_and_a_table_has_a_row_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The position of the stream would move on, and the changes be lost."""
    monkeypatch.setattr(history, "TopicReader", FramedReader)
    log = LogLocation("kc-la", "la", "/la", ("a:1",), "h", "s", registry="http://127.0.0.1:1")
    options = ChangesOptions.parse({"servers": "la-1:7420", "failures": "skip"})
    planned = RangePartition(LogRange(log, 0, 1))
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        list(ChangesStreamReader(options).read(planned))
    (batch,) = ChangesReader(replace(options, failures="row")).read(planned)
    assert "1 record could not be decoded" in batch["unread_reason"][0].as_py()
