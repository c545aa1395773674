"""How Kafka and a cluster's reconciler are doing, for the services; refuses to ask Kafka."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from directory.kafka.applying.last_applied_acls import acl_counts
from directory.kafka.applying.last_applied_configs import count_topics_with_issues
from directory.kafka.leader_term import KafkaHealth, LeaderTerm
from directory.kafka.pin_and_stop import PinAndStop
from directory.kafka.reconciler_settings import KafkaStatus
from directory.kafka.recorded_topics import TopicCounts
from directory.namespace.snapshot import Snapshot

__all__ = ["counted_status", "leader_status"]


def counted_status(
    snapshot: Snapshot, topic_counts: TopicCounts, ceiling: tuple[str, ...]
) -> KafkaStatus:
    """Returns what any server of the cluster can say."""
    held = PinAndStop.load(snapshot)
    waiting, contested = count_topics_with_issues(snapshot)
    acls = acl_counts(snapshot)
    return KafkaStatus(
        pinned_cluster_id=held.pinned,
        message="this server is not the elected reconciler: another one knows",
        ceiling=ceiling,
        stop_reason=held.stop.text if held.stop is not None else "",
        pending_count=topic_counts.pending,
        missing_count=topic_counts.missing,
        drift_count=topic_counts.drifting,
        replaced_count=topic_counts.replaced,
        needs_approval_count=waiting,
        contested_count=contested,
        acl_count=acls.pushed,
        acl_resources_needing_approval_count=acls.waiting,
        acl_resources_rejected_count=acls.refused,
        acls_removed_externally_count=acls.lost,
    )


def leader_status(
    counted: KafkaStatus, term: LeaderTerm, health: KafkaHealth, now: float
) -> KafkaStatus:
    """Returns the same, and what the elected one knows; ``now`` by the monotonic clock."""
    since = datetime.fromtimestamp(health.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return replace(
        counted,
        leader=True,
        reachable=health.reachable,
        seen_cluster_id=health.seen_id,
        message=(
            term.sweeper.note or term.pusher.note or term.acl_pusher.note
            if health.reachable
            else f"since {since}: {health.message}"
        ),
        last_sweep_seconds=None if health.swept_at is None else now - health.swept_at,
    )
