"""One term of an elected reconciler: what it holds and has learnt; refuses to outlive it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.applying.acl_applier import AclApplier
from directory.kafka.applying.config_applier import ConfigApplier
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.recent_changes import RecentChanges
from directory.kafka.retry_queue import Backoff, RetryQueue
from directory.kafka.sweep import KafkaSweep

__all__ = ["KafkaHealth", "LeaderTerm"]


@dataclass(frozen=True, slots=True)
class KafkaHealth:
    """State of Kafka when it was last asked."""

    reachable: bool
    message: str
    since: float
    """Unix seconds since when it has been so."""
    seen_id: str = ""
    swept_at: float | None = None
    """By the monotonic clock."""


class LeaderTerm:
    """One time in office: what a leader learns and the next one finds out anew."""

    def __init__(
        self,
        commits: TopicCommits,
        sweeper: KafkaSweep,
        recent: RecentChanges,
        pusher: ConfigApplier,
        acl_pusher: AclApplier,
        chance: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self.commits = commits
        self.sweeper = sweeper
        self.recent = recent
        self.pusher = pusher
        self.acl_pusher = acl_pusher
        self.worklist = RetryQueue(clock, chance)
        self.retry = Backoff(chance)
        self.kafka_due = 0.0
        """Not before: it was away."""
        self.admin: KafkaAdmin | None = None

    @property
    def pushers(self) -> tuple[ConfigApplier, AclApplier]:
        """Those who change in Kafka what is armed."""
        return self.pusher, self.acl_pusher

    def close_admin(self) -> None:
        """Begins with new connections the next time."""
        admin, self.admin = self.admin, None
        if admin is not None:
            admin.close()
