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
    Metric("kdir_parent_link_up", "gauge", "1 while linked; only on the elected server."),
    Metric(
        "kdir_parent_last_contact_age_seconds",
        "gauge",
        "Seconds since the last message from the parent.",
    ),
    Metric("kdir_child_mounts", "gauge", "Child clusters mounted by this one."),
    Metric("kdir_children_linked", "gauge", "Children linked to this very server."),
    Metric("kdir_children_pending", "gauge", "Clusters that tried to link and have no mount."),
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
        "kdir_kafka_sweep_age_seconds", "gauge", "Seconds since the last sweep over all of Kafka."
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
        "kdir_rpc_queued_calls",
        "gauge",
        "Calls queued for a thread, by pool: reads, writes.",
        ("listen", "pool"),
    ),
)
