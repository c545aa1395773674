"""Metrics are documented, and dashboards and alerts use only such as there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from directory.server.health import State
from directory.server.metrics.prometheus import METRICS, Metric

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy" / "dashboards"
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds to whatever it scrapes."""
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
SAMPLES = {one.name + suffix: one for one in METRICS for suffix in SUFFIXES[one.kind]}


def expressions() -> Iterator[tuple[str, str]]:
    """Yields every PromQL expression with where it stands."""
    rules = yaml.safe_load((DASHBOARDS / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    board = json.loads((DASHBOARDS / "kdir.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]


def rows() -> dict[str, tuple[str, str, str]]:
    """Returns kind, labels and meaning by metric, from the table in docs/reference/metrics.md."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    row = re.compile(r"^\| `(kdir_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)
    return {name: (kind, labels, text) for name, kind, labels, text in row.findall(text)}


def test_every_metric_is_documented_as_it_is() -> None:
    expected = {
        one.name: (one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help)
        for one in METRICS
    }
    assert rows() == expected


@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
def test_names_follow_prometheus_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"kdir(_[a-z]+)+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.kind != "histogram" or metric.name.endswith("_seconds")
    assert metric.help.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels) > 0


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_that_is_used_exists_with_its_labels(where: str, expression: str) -> None:
    names = set(re.findall(r"\b(?:kdir|process)_\w+", expression))
    assert names or expression == 'up{job="kdir"} == 0', where
    assert names - PROCESS <= set(SAMPLES), where
    # Labels in braces belong to the metric before them; grouping is by labels of any of them.
    for name, braces in re.findall(r"\b(kdir_\w+)\{([^}]*)\}", expression):
        used = set(re.findall(r"(\w+)\s*[=!]", braces))
        assert used <= {*SAMPLES[name].labels, *SCRAPED}, where
    grouped = {
        label.strip()
        for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
        for label in group.split(",")
    }
    known = {label for name in names & set(SAMPLES) for label in SAMPLES[name].labels}
    assert grouped <= {*known, *SCRAPED, "le"}, where


def test_every_metric_is_drawn_or_watched_or_marked_as_for_looking_things_up() -> None:
    used = {
        SAMPLES[name].name
        for _, expression in expressions()
        for name in re.findall(r"\bkdir_\w+", expression)
    }
    unused = {one.name for one in METRICS} - used
    assert unused == {
        "kdir_change_log_published_revision",
        "kdir_children_pending",  # kdir mounts shows them
        "kdir_directories",
        "kdir_kafka_managed_acls",
        "kdir_parent_last_contact_age_seconds",
        "kdir_rpc_excess_calls_total",
        "kdir_rpc_request_timeouts_total",
        "kdir_store_direct_reads_total",
    }


def test_the_states_of_health_are_those_of_the_docs() -> None:
    text = (ROOT / "docs" / "reference" / "states.md").read_text()
    section = text.partition("## Health and readiness endpoints")[2].partition("\n## ")[0]
    arguments = {code.split()[0] for code in re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)}
    assert arguments == {state.value for state in State}
    reported = next(one for one in METRICS if one.name == "kdir_state").help
    assert set(re.findall(r"\b[a-z-]+\b", reported.partition(": ")[2])) == arguments


def test_commits_that_fail_are_noticed_where_writes_are_rare() -> None:
    """A full or read-only store is followed as ever: only a write shows it, and the next one may
    come much later. Of a store that does not answer, the replica's age shows it without one.
    """
    hours = {
        outcome
        for where, expression in expressions()
        if where.startswith("alert ")
        for outcomes in re.findall(
            r'kdir_store_commit_duration_seconds_count\{outcome=~?"([^"]*)"\}\[1h\]', expression
        )
        for outcome in outcomes.split("|")
    }
    assert hours == {"unavailable", "full", "error", "committed"}
    [away] = [one for where, one in expressions() if where == "alert KdirStoreAway"]
    assert away.startswith("kdir_replica_age_seconds >")


def test_alerts_say_how_bad_it_is_and_what_to_do() -> None:
    rules: list[dict[str, Any]] = [
        rule
        for group in yaml.safe_load((DASHBOARDS / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    names = [rule["alert"] for rule in rules]
    assert sorted(set(names)) == sorted(names)
    for rule in rules:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert len(rule["annotations"]["summary"]) > 20
