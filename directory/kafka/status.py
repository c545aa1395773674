"""How Kafka and a cluster's reconciler are doing, for the services; refuses to ask Kafka."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from directory.kafka.applying.last_applied_acls import acl_counts
from directory.kafka.applying.pushed import topics_attended
from directory.kafka.leader_term import Health, Term
from directory.kafka.pin_and_stop import KafkaFacts
from directory.kafka.reconciler_settings import KafkaStatus
from directory.kafka.recorded_topics import Census
from directory.namespace.snapshot import Snapshot

__all__ = ["counted_in", "told_by_leader"]


def counted_in(snapshot: Snapshot, census: Census, ceiling: tuple[str, ...]) -> KafkaStatus:
    """What any server of the cluster can say."""
    held = KafkaFacts.of(snapshot)
    waiting, contested = topics_attended(snapshot)
    acls = acl_counts(snapshot)
    return KafkaStatus(
        pinned_cluster_id=held.pinned,
        message="this server is not the elected reconciler: another one knows",
        ceiling=ceiling,
        stopped=held.stop.text if held.stop is not None else "",
        pending_count=census.pending,
        missing_count=census.missing,
        drift_count=census.drifting,
        replaced_count=census.replaced,
        waiting_count=waiting,
        contested_count=contested,
        acl_count=acls.pushed,
        acl_waiting_count=acls.waiting,
        acl_refused_count=acls.refused,
        acl_lost_count=acls.lost,
    )


def told_by_leader(counted: KafkaStatus, term: Term, health: Health, now: float) -> KafkaStatus:
    """The same, and what the elected one knows; ``now`` by the monotonic clock."""
    since = datetime.fromtimestamp(health.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return replace(
        counted,
        leader=True,
        reachable=health.reachable,
        seen_cluster_id=health.seen_id,
        message=(
            term.sweeper.note or term.pusher.note or term.acl_pusher.note
            if health.reachable
            else f"since {since}: {health.words}"
        ),
        last_sweep_seconds=None if health.swept_at is None else now - health.swept_at,
    )
