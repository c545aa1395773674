"""What a scrape says of a tree, without a server around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml

from deploy.local.ports import LOOPBACK
from directory.api.grpc_server import DirectoryServer
from directory.federation import parent_state
from directory.namespace.command import CreateDirectory, CreateMount, CreateTopic, DeleteEntry
from directory.namespace.entry import Kind
from directory.server.cluster import Cluster as ServedCluster
from directory.server.config import ServerConfig
from directory.server.metrics.instrumentation import COMMIT_SECONDS, Histogram
from directory.server.metrics.prometheus import METRICS, ServerCollector, _MetricFamilies, _tree
from directory.store.base import Put
from directory.store.large_change_records import LARGE
from directory.store.replica import ReplicaState
from tests.support.trees import Cluster, path
from tests.support.waiting import eventually

ALERTS = Path(__file__).resolve().parents[4] / "deploy" / "dashboards" / "alerts.yaml"
LINK_UP = "kdir_parent_link_up"


def output(cluster: Cluster) -> dict[str, float]:
    sheet = _MetricFamilies()
    _tree(sheet, cluster.snapshot, "la")
    return {one.name: one.value for family in sheet.families() for one in family.samples}


def test_a_tree_is_counted() -> None:
    cluster = Cluster("/la")
    cluster.do(CreateDirectory(path=path("/la/d")))
    cluster.do(CreateTopic(path=path("/la/d/t")))
    cluster.do(CreateMount(path=path("/la/m"), cluster_id="kc-child"))
    reported = output(cluster)
    assert reported["kdir_topics"] == 1
    assert reported["kdir_directories"] == 1
    assert reported["kdir_child_mounts"] == 1
    assert reported["kdir_store_unreadable_values"] == 0
    assert reported["kdir_large_changes"] == reported["kdir_large_change_remaining_entries"] == 0
    assert reported["kdir_replica_revision"] == cluster.snapshot.revision


def test_a_large_removal_is_reported_until_nothing_is_left_of_it() -> None:
    cluster = Cluster("/la")
    cluster.do(CreateDirectory(path=path("/la/d")))
    for number in range(LARGE + 1):
        cluster.do(CreateTopic(path=path(f"/la/d/t{number}")))
    cluster.do(DeleteEntry(path=path("/la/d"), kind=Kind.DIRECTORY, recursive=True))
    reported = output(cluster)
    assert reported["kdir_large_changes"] == 1
    assert reported["kdir_large_change_remaining_entries"] >= LARGE


def test_a_sheet_knows_its_metrics_and_keeps_their_kinds() -> None:
    sheet = _MetricFamilies()
    with pytest.raises(KeyError):
        sheet.put("kdir_no_such_thing", 1)
    histogram = next(one.name for one in METRICS if one.kind == "histogram")
    with pytest.raises(TypeError):
        sheet.put(histogram, 1)
    assert list(sheet.families()) == []


def test_the_first_duration_adds_no_series() -> None:
    """A bucket that appears with its first duration has no increase; the one above it has, and a
    quantile is far too high.
    """
    histogram = Histogram(COMMIT_SECONDS)

    def buckets() -> dict[str, float]:
        sheet = _MetricFamilies()
        sheet.spread("kdir_store_commit_duration_seconds", histogram, "la", "committed")
        samples = next(sheet.families()).samples
        return {one.labels["le"]: one.value for one in samples if "le" in one.labels}

    before = buckets()
    assert [*before.values()] == [0] * (len(COMMIT_SECONDS) + 1)
    histogram.observe(0.001)
    assert [*buckets()] == [*before]


def test_a_cluster_that_is_detached_reports_no_link_that_is_down(tmp_path: Path) -> None:
    """Nobody is to be called for it: an operator detached it."""
    store = f"sqlite:///{tmp_path / 'la.sqlite'}"
    config = ServerConfig.quick(path("/la"), cluster="la", store=store, parent=(f"{LOOPBACK}:1",))
    cluster = ServedCluster.open(config)
    cluster.start()

    def link_up() -> list[float]:
        families = ServerCollector(["la"], [cluster], []).collect()
        return [family.samples[0].value for family in families if family.name == LINK_UP]

    try:
        eventually(lambda: cluster.link_status().holder and link_up() == [0])
        detached = Put(parent_state.DETACHED_KEY, b"detached by User:ana")
        assert eventually(lambda: cluster.writer.put_facts([detached]))
        assert eventually(lambda: link_up() == [])
    finally:
        cluster.stop()


def increases() -> Iterator[tuple[str, dict[str, str]]]:
    """Yields each series that an alert takes an increase, a rate or a delta of: its name and
    labels.
    """
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            for name, braces in re.findall(
                r"(?:increase|rate|delta)\((\w+)(?:\{([^}]*)\})?\[", rule["expr"]
            ):
                found = re.findall(r'(\w+)=~?"([^"]*)"', braces)
                for values in product(*(value.split("|") for _, value in found)):
                    yield name, dict(zip((label for label, _ in found), values, strict=True))


def test_a_fresh_server_reports_each_series_that_an_alert_takes_an_increase_of(
    tmp_path: Path,
) -> None:
    """Prometheus sees no increase in a series that begins with its first event."""
    store = f"sqlite:///{tmp_path / 'la.sqlite'}"
    cluster = ServedCluster.open(ServerConfig.quick(path("/la"), cluster="la", store=store))
    server = DirectoryServer([cluster], f"{LOOPBACK}:0")
    cluster.start()
    try:
        eventually(lambda: cluster.replica.state is ReplicaState.SERVING)
        collected = ServerCollector(["la"], [cluster], [server]).collect()
        samples = [one for family in collected for one in family.samples]
    finally:
        server.drain()
        cluster.stop()
    wanted = list(increases())
    assert len(wanted) > 5
    for name, labels in wanted:
        assert any(one.name == name and labels.items() <= one.labels.items() for one in samples), (
            f"{name} {labels}"
        )
    bugs = [one.labels["method"] for one in samples if one.labels.get("code") == "INTERNAL"]
    assert {"ResolveService/Resolve", "WatchService/Watch", "FederationService/Link"} <= {*bugs}
