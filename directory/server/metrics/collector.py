"""Reads every metric when Prometheus asks, from what is in memory; refuses to wait for anything.

Neither the store nor Kafka nor another server is asked: a scrape is quick, most of all while they
are away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from directory.api.grpc_server import DirectoryServer
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.health import State, healths_of
from directory.server.membership import VERSION
from directory.server.metrics.histogram import Histogram
from directory.server.metrics.metric_names import METRICS
from directory.store.large_changes import progress_of
from resolver.errors import NotReady

__all__ = ["ServerCollector"]

_Families = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_KINDS: Final = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class _MetricFamilies:
    """The families of one scrape, in the order of their table, as they are filled in."""

    def __init__(self) -> None:
        self._families: dict[str, _Families] = {
            one.name: _KINDS[one.kind](one.name, one.help, labels=one.labels) for one in METRICS
        }

    def put(self, name: str, value: float, *labels: str) -> None:
        """One value."""
        family = self._families[name]
        if isinstance(family, HistogramMetricFamily):
            raise TypeError(f"{name} is a histogram")
        family.add_metric(labels, float(value))

    def spread(self, name: str, histogram: Histogram, *labels: str) -> None:
        """One histogram; nothing of one that never counted."""
        family, reading = self._families[name], histogram.read()
        if not isinstance(family, HistogramMetricFamily):
            raise TypeError(f"{name} is no histogram")
        if reading.count:
            ends = [*map(repr, histogram.bounds), "+Inf"]
            family.add_metric(
                labels, list(zip(ends, reading.buckets, strict=True)), reading.seconds
            )

    def families(self) -> Iterator[Family]:
        """Returns those that have something to say."""
        return (one for one in self._families.values() if one.samples)


class ServerCollector(Collector):
    """The clusters and servers of one process; ``names``: all clusters that it is to serve."""

    def __init__(
        self,
        names: Sequence[str],
        clusters: Sequence[Cluster],
        servers: Sequence[DirectoryServer],
    ) -> None:
        self._names: Final = names
        self._clusters: Final = clusters
        self._servers: Final = servers

    def collect(self) -> Iterator[Family]:
        sheet = _MetricFamilies()
        for health in healths_of(self._names, self._clusters):
            sheet.put("kdir_ready", health.ready, health.cluster)
            for state in State:
                sheet.put("kdir_state", state is health.state, health.cluster, state)
        for cluster in list(self._clusters):
            _cluster(sheet, cluster)
        for server in list(self._servers):
            _server(sheet, server)
        return sheet.families()


def _cluster(sheet: _MetricFamilies, cluster: Cluster) -> None:
    name = cluster.config.cluster
    replica = cluster.replica
    mount = str(cluster.mount)
    sheet.put("kdir_server_info", 1, name, cluster.cluster_id, cluster.server_id, mount, VERSION)
    sheet.put("kdir_replica_age_seconds", replica.age_seconds, name)
    sheet.put("kdir_store_watch_restarts_total", replica.watch_restarts, name)
    sheet.put("kdir_replica_reloads_total", replica.reloads, name)
    for outcome, commits in cluster.store.commits.items():
        sheet.spread("kdir_store_commit_duration_seconds", commits, name, outcome)
    for outcome, count in cluster.store.reads().items():
        sheet.put("kdir_store_direct_reads_total", count, name, outcome)
    sheet.put("kdir_leader", cluster.reaper.leads, name, "reaper")
    sheet.put("kdir_live_servers", len(cluster.members.live()), name)
    sheet.put("kdir_feature_level", cluster.members.level, name)
    sheet.put("kdir_feature_level_finalized", cluster.members.finalised, name)
    _neighbours(sheet, cluster, name)
    lags = cluster.history.lags()
    sheet.put("kdir_watchers", len(lags), name)
    sheet.put("kdir_watcher_max_lag_events", max(lags, default=0), name)
    try:
        snapshot = replica.snapshot
    except NotReady:
        return  # what is not known is not said: a tree that is not loaded has not 0 topics
    _tree(sheet, snapshot, name)
    _kafka(sheet, cluster, name)


def _tree(sheet: _MetricFamilies, snapshot: Snapshot, name: str) -> None:
    sheet.put("kdir_replica_revision", snapshot.revision, name)
    sheet.put("kdir_topics", snapshot.topic_count, name)
    sheet.put("kdir_directories", snapshot.directory_count, name)
    sheet.put("kdir_store_unreadable_values", len(snapshot.quarantined), name)
    sheet.put("kdir_child_mounts", len(snapshot.mounts()), name)
    changes = progress_of(snapshot)
    sheet.put("kdir_large_changes", len(changes), name)
    sheet.put("kdir_large_change_remaining_entries", sum(one.left for one in changes), name)


def _neighbours(sheet: _MetricFamilies, cluster: Cluster, name: str) -> None:
    link = cluster.link_status()
    if link.configured:
        sheet.put("kdir_leader", link.holder, name, "parent-link")
        if not link.standby:  # else another server knows
            sheet.put("kdir_parent_link_up", link.linked, name)
            if link.contact_age_seconds is not None:
                sheet.put("kdir_parent_last_contact_age_seconds", link.contact_age_seconds, name)
    sheet.put("kdir_children_linked", cluster.children.linked_count(), name)
    sheet.put("kdir_children_pending", len(cluster.children.waiting()), name)


def _kafka(sheet: _MetricFamilies, cluster: Cluster, name: str) -> None:
    if cluster.reconciler is None:
        return
    status = cluster.reconciler.status()
    sheet.put("kdir_leader", status.leader, name, "reconciler")
    sheet.put("kdir_reconciler_queue_length", cluster.reconciler.waiting_count(), name)
    sheet.put("kdir_kafka_stopped", bool(status.stopped), name)
    if status.leader:  # else another server knows
        sheet.put("kdir_kafka_reachable", status.reachable, name)
        if status.last_sweep_seconds is not None:
            sheet.put("kdir_kafka_sweep_age_seconds", status.last_sweep_seconds, name)
    sheet.put("kdir_kafka_pending_topics", status.pending_count, name)
    sheet.put("kdir_kafka_missing_topics", status.missing_count, name)
    sheet.put("kdir_kafka_drifting_topics", status.drift_count, name)
    sheet.put("kdir_kafka_managed_acls", status.acl_count, name)
    sheet.put("kdir_kafka_acl_resources_needing_approval", status.acl_waiting_count, name)
    sheet.put("kdir_kafka_acl_resources_rejected", status.acl_refused_count, name)
    sheet.put("kdir_kafka_acls_removed_externally", status.acl_lost_count, name)


def _server(sheet: _MetricFamilies, server: DirectoryServer) -> None:
    at = server.address
    for (method, code), histogram in server.metrics.calls().items():
        sheet.spread("kdir_rpc_duration_seconds", histogram, at, method, code)
    open_now, ended = server.metrics.streams()
    for method, count in open_now.items():
        sheet.put("kdir_rpc_open_streams", count, at, method)
    for (method, code), count in ended.items():
        sheet.put("kdir_rpc_streams_total", count, at, method, code)
    sheet.put("kdir_rpc_request_timeouts_total", server.late_requests, at)
    sheet.put("kdir_rpc_open_streams_limit", server.limits.streams, at)
    sheet.put("kdir_rpc_queued_calls", server.waiting_reads, at, "reads")
    sheet.put("kdir_rpc_queued_calls", server.waiting_writes, at, "writes")
