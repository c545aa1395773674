"""Rows of an audit: every field of a change is a column, and a query reaches nothing else."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from resolver.changes import audit, record
from resolver.changes.audit import (
    CHANGE_COLUMNS,
    ChangeFilter,
    HistoryReading,
    LogLocation,
    LogRange,
    UnreadLog,
    change_batch,
)
from resolver.changes.record import Change
from resolver.changes.topic_reader import TopicRecord
from resolver.errors import InvalidArgument, KafkaUnavailable
from resolver.index import audit_query
from resolver.index.audit_query import AuditDatabase, check_query
from resolver.path import Path as TreePath
from tests.support.command_line import run

LOG = LogLocation("kc-la", "la", "/la", ("a:9092",), "history", "state")


def change(**fields_of: object) -> Change:
    made = {"cluster_id": "kc-la", "generation": 1, "revision": 7, "time": 1_790_000_000_123}
    return Change(**{**made, **fields_of})  # type: ignore[arg-type]


def decoded(**fields_of: object) -> Mapping[str, Any]:
    return record.Schemas().decode_fields(record.encode(change(**fields_of)))


def test_every_field_of_a_change_is_a_column() -> None:
    left_out = {"key", "record", "checkpoint"}
    names = {one.name for one in fields(Change)} - left_out
    assert {one.name for one in CHANGE_COLUMNS} == names | {"cluster"}


def test_a_row_has_unset_cleared_and_empty_apart() -> None:
    one = decoded(path="/la/a", after={"owner": None, "contact": ""}, grants_after=("ALLOW x",))
    (row,) = change_batch([one], "la").to_pylist(maps_as_pydicts="strict")
    assert row["after"] == {"owner": None, "contact": ""}
    assert row["before"] is None
    assert row["grants_after"] == ["ALLOW x"]
    assert row["principal"] is None
    assert row["time"] == datetime(2026, 9, 21, 14, 13, 20, 123000, UTC)
    assert (row["cluster"], row["revision"], row["cut"]) == ("la", 7, [])


@pytest.mark.parametrize(
    ("below", "path", "path_before", "expected"),
    [
        ("/", "/la/a", None, True),
        ("/la/a", "/la/a", None, True),
        ("/la/a", "/la/a/b", None, True),
        ("/la/a", "/la/ab", None, False),
        ("/la/a", "/la/x", "/la/a/b", True),
        ("/la/a", "", None, True),
    ],
)
def test_changes_at_and_below_a_path(
    below: str, path: str, path_before: str | None, *, expected: bool
) -> None:
    matches = ChangeFilter(TreePath.parse(below)).matcher()
    assert matches(decoded(path=path, path_before=path_before)) is expected


def test_a_range_is_split_without_gap_or_overlap() -> None:
    parts = [(one.begin, one.end) for one in LogRange(LOG, 3, 13).split(4)]
    assert parts == [(3, 7), (7, 11), (11, 13)]
    assert LogRange(LOG, 5, 5).split(4) == []


def test_the_callers_settings_lead_to_the_brokers_of_the_log() -> None:
    own = {"security.protocol": "SSL", "bootstrap.servers": "elsewhere:1"}
    found = LOG.consumer_properties(own)
    assert (found["security.protocol"], found["bootstrap.servers"]) == ("SSL", "a:9092")


def test_a_query_reads_the_tables_more_than_once_and_numbers_columns() -> None:
    with AuditDatabase() as database:
        for _ in range(3):
            database.add_changes(change_batch([decoded(path="/la/a")] * 400, "la"))
        database.add_unread([UnreadLog("kc-ny", "ny", "/ny", "away")])
        sql = (
            "SELECT count(*) n, (SELECT count(*) FROM changes) n, (FROM unread).reason FROM changes"
        )
        pages = list(
            database.query(sql.replace("(FROM unread).reason", "(SELECT reason FROM unread)"))
        )
        assert pages[1][1][0] == {"n": 1200, "n_2": 1200, pages[0][0][2]: "away"}
        assert sum(len(rows) for _, rows in database.query("FROM changes")) == 1200


def test_changes_that_were_added_are_on_disk_and_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = [decoded(revision=number, request_id=f"{number:016x}") for number in range(5_000)]
    batch = change_batch(rows, "la")
    with AuditDatabase() as database:
        (stored,) = tmp_path.glob("*/changes.duckdb")
        empty_bytes, kept_bytes = stored.stat().st_size, pa.total_allocated_bytes()
        for _ in range(7):  # more than two row groups
            database.add_changes(batch.take(pa.array(range(len(rows)))))
        assert pa.total_allocated_bytes() - kept_bytes < 2 * batch.nbytes
        assert stored.stat().st_size > empty_bytes


def test_what_was_written_is_dropped_from_memory_and_a_query_has_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "an audit's").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(audit_query, "_ROW_GROUP", 2_048)
    monkeypatch.setattr(audit_query, "_DROP_ROWS", 4_000)
    monkeypatch.setattr(audit_query, "_KEPT", "1MB")
    asked = "SELECT sum(memory_usage_bytes)::BIGINT held, current_setting('memory_limit') most "
    with AuditDatabase() as database:
        (stored,) = folder.glob("*/changes.duckdb")
        for _ in range(12):  # so many that the newest, which may be in use, are few
            rows = [decoded(path=f"/la/{os.urandom(400).hex()}") for _ in range(2_000)]
            database.add_changes(change_batch(rows, "la"))
        pages = database.query(asked + "FROM duckdb_memory() WHERE tag = 'BASE_TABLE'")
        (found,) = itertools.chain.from_iterable(page for _, page in pages)
        assert found["held"] < stored.stat().st_size / 2
    assert found["most"] == "488.2 MiB"


@pytest.mark.parametrize(
    ("sql", "because"),
    [
        ("COPY changes TO '{folder}/out'", "file system operations are disabled"),
        ("EXPORT DATABASE '{folder}/out'", "file system operations are disabled"),
        ("ATTACH '{folder}/out'", "file system operations are disabled"),
        ("SELECT * FROM read_csv('/etc/passwd')", "file system operations are disabled"),
        ("SELECT * FROM glob('/etc/*')", "file system operations are disabled"),
        ("FROM '/etc/passwd'", "does not exist"),
        ("FROM LOG", "does not exist"),
        ("INSTALL httpfs", "disabled"),
        ("LOAD httpfs", "disabled"),
        ("SET enable_external_access = true", "the configuration has been locked"),
        ("FROM read_parquet('http://127.0.0.1:1/x')", "disabled"),
        ("SELECT nope FROM changes", 'Referenced column "nope" not found'),
        ("SELEC", "syntax error"),
        ("", "found 0 statements"),
        ("SELECT 1; SELECT 2", "found 2 statements"),
        ("SELECT 'infinity'::TIMESTAMP", "::VARCHAR"),
        ("SELECT '2026-01-01 00:00:00.000000001'::TIMESTAMP_NS", "::VARCHAR"),
        ("SELECT MAP {{[1]: 1}}", "::VARCHAR"),
    ],
)
def test_a_query_reaches_no_file_no_net_and_no_setting(
    sql: str, because: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=because):
        check_query(sql.format(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("time", [2**62, -(2**62), 9 * 10**15, 253_402_300_800_000])
def test_P18_a_record_with_a_time_outside_the_years_1_to_9999_is_counted(
    monkeypatch: pytest.MonkeyPatch, time: int
) -> None:
    """It ended the audit of all clusters."""
    times = [1_790_000_000_123, time, 253_402_300_799_999, -62_135_596_800_000]
    values = [record.encode(change(time=one)) for one in times]
    monkeypatch.setattr(BreakingReader, "most", 10)
    monkeypatch.setattr(record, "encode", lambda one: values[one.revision])
    monkeypatch.setattr(audit, "TopicReader", BreakingReader)
    reading = HistoryReading(LogRange(LOG, 0, 4), {}, ChangeFilter())
    with AuditDatabase() as database:
        for batch in reading.batches():
            database.add_changes(batch)
        pages = database.query("SELECT time FROM changes ORDER BY time")
        assert sum(len(rows) for _, rows in pages) == 3
    [problem] = reading.problems()
    assert "1 record could not be decoded, the first at offset 1: " in problem.reason
    assert f"a time outside the years 1 to 9999: {time} ms" in problem.reason


class BreakingReader:
    """Reader of a topic of ten records that breaks off after some of them, each time."""

    most = 3

    def __init__(self, properties: Mapping[str, Any], topic: str, **_: object) -> None:
        pass

    def bounds(self) -> tuple[int, int]:
        return 0, 10

    def read(self, begin: int, end: int) -> Iterator[TopicRecord]:
        for offset in range(begin, end):
            if offset == begin + self.most:
                raise KafkaUnavailable("a broker went away")
            value = record.encode(change(revision=offset, path=f"/la/{offset}"))
            yield TopicRecord(offset, b"", value)

    def close(self) -> None:
        pass


def paths_read(monkeypatch: pytest.MonkeyPatch, found: list[str]) -> None:
    monkeypatch.setattr(audit, "TopicReader", BreakingReader)
    for batch in HistoryReading(LogRange(LOG, 0, 10), {}, ChangeFilter()).batches():
        found += batch["path"].to_pylist()


def test_a_read_that_breaks_off_goes_on_and_gives_each_change_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []
    paths_read(monkeypatch, found)
    assert found == [f"/la/{offset}" for offset in range(10)]


def test_a_read_without_any_record_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BreakingReader, "most", 0)
    with pytest.raises(KafkaUnavailable, match="a broker went away"):
        paths_read(monkeypatch, [])


def test_an_extra_that_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resolver.extras.is_installed", lambda module: module != "duckdb")
    ran = run(["audit", "FROM changes"])
    assert ran.code == 2
    assert "kdir audit needs the package duckdb" in ran.err
    assert "pip install 'kdir[index]'" in ran.err


@pytest.mark.parametrize(
    "arguments", [["--since", "yesterday"], ["--until", "2026-13-01"], ["web"]]
)
def test_a_time_or_path_that_is_none_is_refused(arguments: list[str]) -> None:
    ran = run(["audit", "FROM changes", *arguments])
    assert ran.code == 2
    assert arguments[-1] in ran.err
