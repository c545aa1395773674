"""Every metric by name, kind and labels; refuses to know values.

Names and units follow Prometheus's conventions: base units, counters end in ``_total``. What is
here is what ``docs/operating.md`` documents and what the dashboard and the alerts may use; a test
holds all four together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["METRICS", "Metric"]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family."""

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
    Metric("kdir_ready", "gauge", "1 where callers should be sent here, as /readyz says."),
    Metric(
        "kdir_state",
        "gauge",
        "1 for the current state: draining, loading, sealed, stale, unmounted, awaiting-parent, "
        "serving.",
        ("cluster", "state"),
    ),
    Metric("kdir_replica_revision", "gauge", "The revision of the tree that is served."),
    Metric("kdir_replica_age_seconds", "gauge", "Since when the store was not heard; 0: it is."),
    Metric("kdir_topics", "gauge", "Topics of the cluster."),
    Metric("kdir_directories", "gauge", "Directories of the cluster."),
    Metric("kdir_quarantined", "gauge", "Values in the store that cannot be read."),
    Metric("kdir_watch_restarts_total", "counter", "The watch began anew, nothing was reloaded."),
    Metric("kdir_replica_reloads_total", "counter", "The whole tree was loaded anew."),
    # -- the store ----------------------------------------------------------------------------
    Metric(
        "kdir_store_commit_duration_seconds",
        "histogram",
        "Commits by outcome: committed, conflict, away, full, sealed, failed (a bug).",
        ("cluster", "outcome"),
    ),
    Metric(
        "kdir_store_reads_total",
        "counter",
        "Reads beside the replica's: ok, failed.",
        ("cluster", "outcome"),
    ),
    # -- roles and neighbours -----------------------------------------------------------------
    Metric("kdir_leader", "gauge", "1 where this server holds the role.", ("cluster", "role")),
    Metric("kdir_servers", "gauge", "Live servers of the cluster."),
    Metric("kdir_feature_level", "gauge", "The level that this server supports."),
    Metric("kdir_feature_level_finalised", "gauge", "The level that changes may use."),
    Metric("kdir_parent_link_up", "gauge", "1 while linked; only the elected server says."),
    Metric("kdir_parent_heard_seconds", "gauge", "Since the parent's last word."),
    Metric("kdir_mounts", "gauge", "Clusters that this one mounts."),
    Metric("kdir_children_linked", "gauge", "Children linked to this very server."),
    Metric("kdir_children_waiting", "gauge", "Clusters that asked to be linked and may not."),
    # -- queues -------------------------------------------------------------------------------
    Metric("kdir_watchers", "gauge", "Open watches."),
    Metric("kdir_watcher_lag_events", "gauge", "Events that the slowest watcher has to take."),
    Metric("kdir_large_changes", "gauge", "Changes on their way that are made in steps."),
    Metric("kdir_large_change_left_entries", "gauge", "Entries that they have left."),
    # -- Kafka --------------------------------------------------------------------------------
    Metric("kdir_reconciler_waiting", "gauge", "What the elected reconciler has noted to do."),
    Metric("kdir_kafka_reachable", "gauge", "1 while Kafka answers; only the elected one says."),
    Metric("kdir_kafka_sweep_age_seconds", "gauge", "Since the last look at all of Kafka."),
    Metric("kdir_kafka_stopped", "gauge", "1 while everything waits for kdir ack."),
    Metric("kdir_kafka_pending_topics", "gauge", "Topics that wait for Kafka."),
    Metric("kdir_kafka_missing_topics", "gauge", "Topics that Kafka does not show."),
    Metric("kdir_kafka_drifting_topics", "gauge", "Topics that differ in Kafka."),
    Metric("kdir_kafka_acls", "gauge", "ACLs in Kafka that kdir made."),
    Metric("kdir_kafka_acls_waiting", "gauge", "Resources of Kafka whose ACLs wait."),
    Metric("kdir_kafka_acls_refused", "gauge", "Resources whose ACLs Kafka refused."),
    Metric("kdir_kafka_acls_lost", "gauge", "ACLs of kdir's that somebody removed."),
    # -- calls --------------------------------------------------------------------------------
    Metric("kdir_rpc_duration_seconds", "histogram", "Calls with one answer, inside.", _RPC),
    Metric("kdir_rpc_streams_total", "counter", "Streams that ended.", _RPC),
    Metric("kdir_rpc_open_streams", "gauge", "Open streams.", ("listen", "method")),
    Metric("kdir_rpc_open_streams_limit", "gauge", "Streams at a time, at most.", ("listen",)),
    Metric(
        "kdir_rpc_late_requests_total",
        "counter",
        "Calls that were refused because their request did not arrive.",
        ("listen",),
    ),
    Metric(
        "kdir_rpc_waiting_calls",
        "gauge",
        "Calls that no thread took yet, of reads and of writes.",
        ("listen", "pool"),
    ),
)
