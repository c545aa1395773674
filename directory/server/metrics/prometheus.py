"""Prometheus metrics: name, kind and labels of each, the collector that reads them at a scrape, and
the HTTP endpoint.

Names and units follow Prometheus's conventions: base units, counters end in ``_total``. A test
compares the metrics with ``docs/reference/metrics.md``, the dashboard and the alerts. The HTTP
server answers GET on ``/metrics``, ``/healthz`` (503 = restart the process) and ``/readyz`` (503 =
send callers elsewhere), on loopback only; connections of slow callers are closed.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from directory.api.grpc_server import DirectoryServer
from directory.change_log.log_state import noted_state, published_revision, unpublished_reason
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.config import ConfigError
from directory.server.health import ClusterHealth, State, healths_of
from directory.server.membership import VERSION
from directory.server.metrics.instrumentation import Histogram
from directory.server.toml_table import split_address
from directory.store.large_change_records import progress_of
from resolver.errors import NotReady
from resolver.limited_connections import LimitedConnections

if TYPE_CHECKING:
    from directory.api.grpc_server import DirectoryServer
    from directory.server.watchdog import Watchdog

__all__ = ["METRICS", "Metric", "MetricsEndpoint", "ServerCollector"]

_log = logging.getLogger(__name__)
_DAWDLE_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_PLAIN: Final = "text/plain; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric family."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("cluster",)


_RPC: Final = ("listen", "method", "code")

METRICS: Final = (
    # -- the cluster as this server has it ----------------------------------------------------
    Metric(
        "kdir_server_info",
        "gauge",
        "Always 1; which server of which cluster this is.",
        ("cluster", "cluster_id", "server", "mount", "version"),
    ),
    Metric("kdir_ready", "gauge", "1 if callers should be routed here (/readyz)."),
    Metric(
        "kdir_state",
        "gauge",
        "1 for the current state: draining, loading, sealed, stale, unmounted, awaiting-parent, "
        "serving.",
        ("cluster", "state"),
    ),
    Metric("kdir_replica_revision", "gauge", "The revision of the tree that is served."),
    Metric(
        "kdir_replica_age_seconds",
        "gauge",
        "Seconds since the replica last followed the store; 0 while it does.",
    ),
    Metric("kdir_topics", "gauge", "Topics of the cluster."),
    Metric("kdir_directories", "gauge", "Directories of the cluster."),
    Metric("kdir_store_unreadable_values", "gauge", "Unreadable values in the store."),
    Metric(
        "kdir_store_watch_restarts_total", "counter", "Store watch reconnects without a reload."
    ),
    Metric("kdir_replica_reloads_total", "counter", "Full reloads of the replica."),
    # -- the store ----------------------------------------------------------------------------
    Metric(
        "kdir_store_commit_duration_seconds",
        "histogram",
        "Commits by outcome: committed, conflict, unavailable, full, sealed, error (a bug).",
        ("cluster", "outcome"),
    ),
    Metric(
        "kdir_store_refused_writes_total",
        "counter",
        "Writes refused without a commit, because the store was known to be away.",
    ),
    Metric(
        "kdir_store_direct_reads_total",
        "counter",
        "Store reads that bypass the replica, by outcome: ok, error.",
        ("cluster", "outcome"),
    ),
    # -- roles and neighbours -----------------------------------------------------------------
    Metric("kdir_leader", "gauge", "1 if this server holds the role.", ("cluster", "role")),
    Metric("kdir_live_servers", "gauge", "Live servers of the cluster."),
    Metric("kdir_feature_level", "gauge", "The feature level that this server supports."),
    Metric("kdir_feature_level_finalized", "gauge", "The finalized feature level."),
    Metric(
        "kdir_parent_link_up",
        "gauge",
        "1 while linked; only on the elected server, and not while detached.",
    ),
    Metric(
        "kdir_parent_last_contact_age_seconds",
        "gauge",
        "Seconds since the last message from the parent.",
    ),
    Metric("kdir_child_mounts", "gauge", "Child clusters mounted by this one."),
    Metric("kdir_children_linked", "gauge", "Children linked to this very server."),
    Metric("kdir_children_pending", "gauge", "Clusters that tried to link and have no mount."),
    # -- the change log -----------------------------------------------------------------------
    Metric(
        "kdir_change_log_waiting_commits",
        "gauge",
        "Commits that wait to be published to the change log.",
    ),
    Metric("kdir_change_log_waiting_age_seconds", "gauge", "Age of the oldest of them."),
    Metric(
        "kdir_change_log_published_revision",
        "gauge",
        "The revision up to which the change log has everything.",
    ),
    Metric(
        "kdir_change_log_held_up",
        "gauge",
        "1 while something holds the change log up (kdir log status).",
    ),
    # -- queues -------------------------------------------------------------------------------
    Metric("kdir_watchers", "gauge", "Open watches."),
    Metric("kdir_watcher_max_lag_events", "gauge", "Events queued for the slowest watcher."),
    Metric("kdir_large_changes", "gauge", "Large removals and adoptions in progress."),
    Metric(
        "kdir_large_change_remaining_entries", "gauge", "Entries that they have still to process."
    ),
    # -- Kafka --------------------------------------------------------------------------------
    Metric("kdir_reconciler_queue_length", "gauge", "Work queued by the elected reconciler."),
    Metric("kdir_kafka_reachable", "gauge", "1 while Kafka answers; only on the elected server."),
    Metric(
        "kdir_kafka_sweep_age_seconds",
        "gauge",
        "Seconds since Kafka's topics were last read, by a sweep or a check between two.",
    ),
    Metric(
        "kdir_kafka_stopped",
        "gauge",
        "1 while the vanish guard or a changed Kafka cluster id stops all changes (kdir ack).",
    ),
    Metric("kdir_kafka_pending_topics", "gauge", "Topics not yet created in Kafka."),
    Metric("kdir_kafka_missing_topics", "gauge", "Topics missing in Kafka."),
    Metric("kdir_kafka_drifting_topics", "gauge", "Topics whose values differ in Kafka."),
    Metric("kdir_kafka_managed_acls", "gauge", "ACLs in Kafka created by kdir."),
    Metric(
        "kdir_kafka_acl_resources_needing_approval",
        "gauge",
        "Kafka resources whose ACLs need approval.",
    ),
    Metric(
        "kdir_kafka_acl_resources_rejected", "gauge", "Kafka resources whose ACLs Kafka rejected."
    ),
    Metric(
        "kdir_kafka_acls_removed_externally", "gauge", "ACLs of kdir removed by another client."
    ),
    # -- calls --------------------------------------------------------------------------------
    Metric(
        "kdir_rpc_duration_seconds", "histogram", "Duration of unary calls in the handler.", _RPC
    ),
    Metric("kdir_rpc_streams_total", "counter", "Finished streams.", _RPC),
    Metric("kdir_rpc_open_streams", "gauge", "Open streams.", ("listen", "method")),
    Metric("kdir_rpc_open_streams_limit", "gauge", "Maximum number of open streams.", ("listen",)),
    Metric(
        "kdir_rpc_request_timeouts_total",
        "counter",
        "Calls refused because their request did not arrive in time.",
        ("listen",),
    ),
    Metric(
        "kdir_rpc_excess_calls_total",
        "counter",
        "Calls refused because limits.max_concurrent_calls were under way.",
        ("listen",),
    ),
    Metric(
        "kdir_rpc_queued_calls",
        "gauge",
        "Calls queued for a thread, by pool: reads, writes.",
        ("listen", "pool"),
    ),
)


_Families = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_KINDS: Final = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class _MetricFamilies:
    """Families of one scrape, in the order of their table."""

    def __init__(self) -> None:
        self._families: dict[str, _Families] = {
            one.name: _KINDS[one.kind](one.name, one.help, labels=one.labels) for one in METRICS
        }

    def put(self, name: str, value: float, *labels: str) -> None:
        """Adds one value."""
        family = self._families[name]
        if isinstance(family, HistogramMetricFamily):
            raise TypeError(f"{name} is a histogram")
        family.add_metric(labels, float(value))

    def spread(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Adds one histogram, even an empty one with all its buckets: Prometheus detects no
        increase in a counter whose first value is 1.
        """
        family, reading = self._families[name], histogram.read()
        if not isinstance(family, HistogramMetricFamily):
            raise TypeError(f"{name} is no histogram")
        ends = [*map(repr, histogram.bounds), "+Inf"]
        family.add_metric(labels, list(zip(ends, reading.buckets, strict=True)), reading.seconds)

    def families(self) -> Iterator[Family]:
        """Returns the families that have values."""
        return (one for one in self._families.values() if one.samples)


class ServerCollector(Collector):
    """Collector of the clusters and servers of one process; ``names``: all clusters that the
    process is to serve.
    """

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
    sheet.put("kdir_store_refused_writes_total", cluster.writer.refused_writes, name)
    for outcome, count in cluster.store.reads().items():
        sheet.put("kdir_store_direct_reads_total", count, name, outcome)
    sheet.put("kdir_leader", cluster.reaper.leader.leads, name, "reaper")
    sheet.put("kdir_live_servers", len(cluster.members.live()), name)
    sheet.put("kdir_feature_level", cluster.members.level, name)
    sheet.put("kdir_feature_level_finalized", cluster.members.finalized, name)
    _neighbours(sheet, cluster, name)
    lags = cluster.history.lags()
    sheet.put("kdir_watchers", len(lags), name)
    sheet.put("kdir_watcher_max_lag_events", max(lags, default=0), name)
    try:
        snapshot = replica.snapshot
    except NotReady:
        return  # unknown values are not reported: a tree that is not loaded does not have 0 topics
    _tree(sheet, snapshot, name)
    _kafka(sheet, cluster, name)
    _change_log(sheet, cluster, snapshot, name)


def _tree(sheet: _MetricFamilies, snapshot: Snapshot, name: str) -> None:
    sheet.put("kdir_replica_revision", snapshot.revision, name)
    sheet.put("kdir_topics", snapshot.topic_count, name)
    sheet.put("kdir_directories", snapshot.directory_count, name)
    sheet.put("kdir_store_unreadable_values", len(snapshot.unreadable_values), name)
    sheet.put("kdir_child_mounts", len(snapshot.mounts()), name)
    changes = progress_of(snapshot)
    sheet.put("kdir_large_changes", len(changes), name)
    sheet.put("kdir_large_change_remaining_entries", sum(one.remaining for one in changes), name)


def _neighbours(sheet: _MetricFamilies, cluster: Cluster, name: str) -> None:
    link = cluster.link_status()
    if link.configured:
        sheet.put("kdir_leader", link.holder, name, "parent-link")
        if not link.standby:  # of a standby's cluster, another server reports it
            if not cluster.is_detached:  # a detached cluster has no link
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
    sheet.put("kdir_kafka_stopped", bool(status.stop_reason), name)
    if status.leader:  # without the role, another server reports it
        sheet.put("kdir_kafka_reachable", status.reachable, name)
        if status.last_sweep_seconds is not None:
            sheet.put("kdir_kafka_sweep_age_seconds", status.last_sweep_seconds, name)
    sheet.put("kdir_kafka_pending_topics", status.pending_count, name)
    sheet.put("kdir_kafka_missing_topics", status.missing_count, name)
    sheet.put("kdir_kafka_drifting_topics", status.drift_count, name)
    sheet.put("kdir_kafka_managed_acls", status.acl_count, name)
    sheet.put(
        "kdir_kafka_acl_resources_needing_approval",
        status.acl_resources_needing_approval_count,
        name,
    )
    sheet.put("kdir_kafka_acl_resources_rejected", status.acl_resources_rejected_count, name)
    sheet.put("kdir_kafka_acls_removed_externally", status.acls_removed_externally_count, name)


def _change_log(sheet: _MetricFamilies, cluster: Cluster, snapshot: Snapshot, name: str) -> None:
    if cluster.change_log is not None:
        sheet.put("kdir_leader", cluster.change_log.leader.leads, name, "change-log")
    noted, published = noted_state(snapshot), published_revision(snapshot)
    if noted is None or published is None:
        return
    count, since_ms = cluster.history.index.count_after(published)
    age = max(0.0, time.time() - since_ms / 1000) if count else 0.0
    why = noted.message or unpublished_reason(snapshot, is_configured=bool(cluster.change_log))
    sheet.put("kdir_change_log_waiting_commits", count, name)
    sheet.put("kdir_change_log_waiting_age_seconds", age, name)
    sheet.put("kdir_change_log_published_revision", published, name)
    sheet.put("kdir_change_log_held_up", bool(why), name)


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
    sheet.put("kdir_rpc_excess_calls_total", server.excess_calls, at)
    sheet.put("kdir_rpc_open_streams_limit", server.limits.max_streams, at)
    sheet.put("kdir_rpc_queued_calls", server.waiting_reads, at, "reads")
    sheet.put("kdir_rpc_queued_calls", server.waiting_writes, at, "writes")


class MetricsEndpoint:
    """HTTP server of one process; answers as soon as it is made.

    Args:
        address: ``host:port``; port 0 = any free port.
        names: the clusters that the process is to serve.
        clusters, servers: the open ones; the sequences may still grow.
        watchdog: reports whether the process works.
    """

    def __init__(
        self,
        address: str,
        names: Sequence[str],
        clusters: Sequence[Cluster],
        servers: Sequence[DirectoryServer],
        watchdog: Watchdog,
    ) -> None:
        """Binds the address.

        Raises:
            ConfigError: the address cannot be bound.
        """
        registry = CollectorRegistry()
        registry.register(ServerCollector(names, clusters, servers))
        ProcessCollector(registry=registry)
        host, port = split_address(address) or ("", 0)
        try:
            healths = partial(healths_of, names, clusters)
            self._server = _Server((host, port), registry, healths, watchdog)
        except OSError as error:
            raise ConfigError(f"metrics: cannot bind {address}: {error.strerror}") from error
        self.address: Final = f"{address.rpartition(':')[0]}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(LimitedConnections, TCPServer):
    """HTTP server that, unlike that of ``http.server``, does not resolve the host's name in DNS."""

    allow_reuse_address = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        place: tuple[str, int],
        registry: CollectorRegistry,
        healths: Callable[[], Sequence[ClusterHealth]],
        watchdog: Watchdog,
    ) -> None:
        self.registry = registry
        self.healths = healths
        self.watchdog = watchdog
        self.connections = threading.BoundedSemaphore(_AT_ONCE)
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, _Request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request for metrics broke off", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _DAWDLE_SECONDS
    server_version = "kdir"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            status, body, kind = self._respond()
        except Exception:  # noqa: BLE001 - logged, and answered with 500
            _log.exception("metrics cannot be reported")
            status, body, kind = 500, b"failed by a bug; the log says which\n", _PLAIN
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _respond(self) -> tuple[int, bytes, str]:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                return 200, encode(self.server.registry), kind
            case "/healthz":
                if self.server.watchdog.is_stuck:
                    return 503, b"reads are stuck: no call ends, and others wait\n", _PLAIN
                return 200, b"ok\n", _PLAIN
            case "/readyz":
                healths = self.server.healths()
                message = "".join(f"{one.cluster}: {one}\n" for one in healths)
                ready = all(one.ready for one in healths)
                return 200 if ready else 503, message.encode(), _PLAIN
            case _:
                return 404, b"/metrics, /healthz and /readyz are here\n", _PLAIN

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: scrapes arrive every few seconds."""
