"""``kdir find`` and ``kdir index`` on a small table that no Spark made: output and exit codes."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from resolver.index import build as job
from resolver.index.arrow_rows import topic_batch
from resolver.index.build import BuildReport, ClusterLine, Outcome, SparkSettings
from resolver.index.delta_table import FilePlacement, IndexTable, TableState
from resolver.index.row_schema import ClusterState, Listener
from tests.index.fakes import page, topic
from tests.support.command_line import run

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)

STALE = (
    "/ny (ny): stale since 2026-11-01 13:00:00 UTC, its rows are as of 2026-11-01 12:00:00 UTC: "
    "connection refused\n"
)
"""It was read at NOW, and did not answer an hour later."""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns two clusters, one of which did not answer when the index was built last."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    index = IndexTable(str(tmp_path / "index"))
    monkeypatch.setenv("KDIR_INDEX", index.location)
    listeners = (Listener("internal", ("a:9092",), "PLAINTEXT"),)
    la = ClusterState("kc-la", "la", "/la", listeners=listeners, as_of=NOW, revision=7)
    ny = ClusterState("kc-ny", "ny", "/ny", listeners=listeners, as_of=NOW, revision=9)
    ny = ny.silent(NOW + timedelta(hours=1), "connection refused")
    placed = [
        FilePlacement(index.write(state.cluster_id, [topic_batch(page(*topics))]), state)
        for state, topics in (
            (la, [topic("/la/clicks", owner="search"), topic("/la/orders", drift_count=2)]),
            (ny, [topic("/ny/clicks")]),
        )
    ]
    index.commit(TableState(), placed, [], "test")
    return index.location


def test_find_prints_where_whose_and_how(table: str) -> None:
    ran = run(["find", "clicks"])
    assert ran.code == 0
    rows = [line.split("\t") for line in ran.lines]
    assert [(row[0], row[2]) for row in rows] == [("/la/clicks", "search"), ("/ny/clicks", "-")]
    assert rows[0][4].startswith("la:")
    assert rows[0][5] == "2026-11-01T12:00:00+00:00"


def test_find_says_on_stderr_what_may_be_old(table: str) -> None:
    assert run(["find", "clicks"]).err == STALE
    assert run(["find", "clicks", "--cluster", "la"]).err == ""


def test_S21_find_says_on_stderr_what_may_be_missing(table: str) -> None:
    index = IndexTable(table)
    state = ClusterState("kc-eu", "eu", "/eu", as_of=NOW).incomplete("1 entry that …")
    placed = FilePlacement(index.write("kc-eu", [topic_batch(page(topic("/eu/clicks")))]), state)
    index.commit(index.load(), [placed], [], "test")
    for line in (["find", "clicks", "--cluster", "eu"], ["index", "report", "--cluster", "eu"]):
        assert run(line).err == "/eu (eu): incomplete: 1 entry that …\n"


def test_find_of_nothing_is_1(table: str) -> None:
    ran = run(["find", "nothing", "--cluster", "la"])
    assert (ran.code, ran.out) == (1, "")
    assert "nothing in the topics of la matches 'nothing'" in ran.err


def test_find_in_other_formats(table: str) -> None:
    assert run(["find", "orders", "-o", "name"]).lines == ["/la/orders"]
    (one,) = run(["find", "orders", "-o", "json"]).objects
    assert one["path"] == "/la/orders"
    assert one["drift_count"] == 2
    assert isinstance(one["entry_id"], str)
    assert one["as_of"] == "2026-11-01T12:00:00+00:00"
    assert one["listeners"] == [
        {
            "name": "internal",
            "bootstrap_servers": ["a:9092"],
            "security_protocol": "PLAINTEXT",
            "sasl_mechanism": "",
        }
    ]
    assert run(["find", "orders", "-o", "yaml"]).out.startswith("path: /la/orders\n")


def test_find_says_what_a_limit_cut_off(table: str) -> None:
    ran = run(["find", "", "--limit", "1", "-o", "name"])
    assert ran.lines == ["/la/clicks"]
    assert "2 more" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["find", "x", "--table", "/nowhere/at/all"],
        ["find", "x", "--cluster", "nosuch"],
        ["find", "x", "--as-of", "yesterday"],
        ["find", "x", "--as-of", "2020-01-01"],
        ["find", "[", "--table", "."],
        ["index", "report", "--table", "/nowhere/at/all"],
        ["index", "build", "--conf", "nothing"],
        ["index", "tidy"],
    ],
)
def test_wrong_arguments_end_with_2(table: str, arguments: list[str]) -> None:
    ran = run(arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ")


def test_report_sums_up_each_cluster(table: str) -> None:
    rows = [line.split("\t") for line in run(["index", "report"]).lines]
    assert [(row[0], row[2], row[4], row[5]) for row in rows] == [
        ("/la", "2", "1", "1"),
        ("/ny", "1", "1", "0"),
    ]
    (one,) = run(["index", "report", "--cluster", "ny", "-o", "json"]).objects
    assert (one["mount"], one["topics"]) == ("/ny", 1)
    assert run(["index", "report", "--cluster", "nope"]).code == 2
    objects = run(["index", "report", "-o", "json"]).objects
    assert [(one["mount"], one["topics"], one["stale"]) for one in objects] == [
        ("/la", 2, False),
        ("/ny", 1, True),
    ]


def test_report_names_the_clusters_whose_rows_are_stale(table: str) -> None:
    assert run(["index", "report"]).err == STALE
    assert run(["index", "report", "--cluster", "la"]).err == ""
    ran = run(["index", "report", "-o", "json"])
    assert ran.err == STALE
    times = ("as_of", "stale_since", "stale_reason")
    assert [[one[key] for key in times] for one in ran.objects] == [
        ["2026-11-01T12:00:00+00:00", None, None],
        ["2026-11-01T12:00:00+00:00", "2026-11-01T13:00:00+00:00", "connection refused"],
    ]


def test_build_says_what_became_of_each_cluster(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def build(
        servers: Sequence[str], table: str, *, spark: SparkSettings, full: bool, cluster: str
    ) -> BuildReport:
        asked.append((servers, table, spark, full, cluster))
        lines = (
            ClusterLine("kc-la", "la", "/la", Outcome.READ, 2),
            ClusterLine("kc-ny", "ny", "/ny", Outcome.STALE, 1, reason="no answer"),
        )
        return BuildReport(table, 3, lines, 1.5)

    monkeypatch.setattr(job, "build", build)
    arguments = ["--at", "h:1", "index", "build", "--full", "--master", "local[1]", "--conf", "a=b"]
    ran = run(arguments)
    assert ran.code == 3
    assert ran.lines == ["/la\tla\t2\tread\t", "/ny\tny\t1\tstale\tno answer"]
    assert ran.err == (
        f"3 topics in {table}, version 3, after 1.5s\nnot read: /ny (ny): no answer\n"
    )
    assert asked == [(("h:1",), table, SparkSettings("local[1]", {"a": "b"}), True, "")]
    assert f"3 topics of la in {table}, version 3" in run([*arguments, "--cluster", "la"]).err
    assert asked[-1][-1] == "la"
    assert [one["outcome"] for one in run([*arguments, "-o", "json"]).objects] == ["read", "stale"]


def test_build_warns_of_rows_that_a_server_without_its_store_gave(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "its server cannot reach its store"
    lines = tuple(
        ClusterLine("kc-la", "la", "/la", outcome, 2, stale=True, reason=why)
        for outcome in (Outcome.READ, Outcome.UNCHANGED, Outcome.NEWER_KEPT, Outcome.REMOVED)
    )
    monkeypatch.setattr(job, "build", lambda *_, **__: BuildReport(table, 3, lines, 1.5))
    ran = run(["--at", "h:1", "index", "build"])
    assert ran.code == 3
    assert ran.err.splitlines()[1:] == [f"stale: /la (la): {why}"] * 3
    shown = run(["--at", "h:1", "index", "build"], terminal=True).lines[1:]
    assert all("\x1b[" in line for line in shown[:3])


def test_build_as_json_has_the_time_and_the_staleness_of_rows(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = NOW + timedelta(hours=1)
    lines = (
        ClusterLine("kc-la", "la", "/la", Outcome.READ, 2, as_of=NOW),
        ClusterLine("kc-ny", "ny", "/ny", Outcome.STALE, 1, 4, NOW, True, since, "refused"),
        ClusterLine("kc-sf", "sf", "/sf", Outcome.NEVER_READ, 0, stale=True, stale_since=since),
    )
    monkeypatch.setattr(job, "build", lambda *_, **__: BuildReport(table, 3, lines, 1.5))
    objects = run(["--at", "h:1", "index", "build", "-o", "json"]).objects
    at, later = "2026-11-01T12:00:00+00:00", "2026-11-01T13:00:00+00:00"
    assert [(one["as_of"], one["stale"], one["stale_since"]) for one in objects] == [
        (at, False, None),
        (at, True, later),
        (None, True, later),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_build_that_a_signal_ends_ends_in_order(
    table: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def end(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            ended.append(number)

    ended: list[int] = []
    monkeypatch.setattr(job, "build", end)
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores one
    try:
        with pytest.raises(SystemExit) as raised:
            run(["index", "build", "--at", "127.0.0.1:1"])
    finally:
        signal.signal(number, before)
    assert (raised.value.code, ended) == (128 + number, [number])
