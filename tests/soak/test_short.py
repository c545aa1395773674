"""Short soaks: one on sqlite, one on etcd with a broker; ``make soak`` runs them for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local import etcd, kafka
from deploy.local.cache import ServerUnavailable
from tests.conftest import missing
from tests.soak.run import run
from tests.soak.world import ClusterPlan, WorldPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("access", ["open", "enforce"])
def test_two_clusters_on_sqlite_keep_their_promises_under_faults(
    tmp_path: Path, access: str, soak_seconds: float
) -> None:
    plan = WorldPlan(
        (
            ClusterPlan("/", enforce=access == "enforce"),
            ClusterPlan("/la", "/", enforce=access == "enforce", links={"/near": "/la"}),
        ),
    )
    report = run(max(12, soak_seconds), f"short-{access}", folder=tmp_path, plan=plan, workers=3)
    assert not report.breaches, report
    assert sum(report.counts.checks.values()) > 100, report


def test_a_cluster_on_etcd_with_a_kafka_keeps_its_promises_under_faults(
    tmp_path: Path, soak_seconds: float
) -> None:
    try:
        kafka.installed()
        etcd.installed()
    except ServerUnavailable as reason:
        missing(reason)
    ceiling = ("create", "configs", "delete")
    plan = WorldPlan((ClusterPlan("/", store="etcd", ceiling=ceiling),))
    report = run(max(20, soak_seconds), "short-etcd", folder=tmp_path, plan=plan, workers=2)
    assert not report.breaches, report
    assert report.counts.checks["kafka look"] > 3, report
