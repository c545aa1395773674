"""One term of an elected reconciler: what it holds and has learnt; refuses to outlive it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from directory.kafka.applying.acl_applier import AclPusher
from directory.kafka.applying.config_applier import Pusher
from directory.kafka.contract import KafkaAdmin
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.provision import Settling
from directory.kafka.retry_queue import Backoff, Worklist
from directory.kafka.sweep import Sweeper
from directory.store.base import Leadership

__all__ = ["Health", "Term"]


@dataclass(frozen=True, slots=True)
class Health:
    """How Kafka was doing when it was last asked."""

    reachable: bool
    words: str
    since: float
    """Unix seconds since when it has been so."""
    seen_id: str = ""
    swept_at: float | None = None
    """By the monotonic clock."""


class Term:
    """One time in office: what a leader learns and the next one finds out anew."""

    def __init__(
        self,
        leadership: Leadership,
        commits: TopicCommits,
        sweeper: Sweeper,
        settling: Settling,
        pusher: Pusher,
        acl_pusher: AclPusher,
        chance: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self.leadership = leadership
        self.commits = commits
        self.sweeper = sweeper
        self.settling = settling
        self.pusher = pusher
        self.acl_pusher = acl_pusher
        self.worklist = Worklist(clock, chance)
        self.retry = Backoff(chance)
        self.seen = False
        """Whether the replica has come to the election."""
        self.kafka_due = 0.0
        """Not before: it was away."""
        self.admin: KafkaAdmin | None = None

    @property
    def pushers(self) -> tuple[Pusher, AclPusher]:
        """Those who change in Kafka what is armed."""
        return self.pusher, self.acl_pusher

    def close_admin(self) -> None:
        """Begin with new connections the next time."""
        admin, self.admin = self.admin, None
        if admin is not None:
            admin.close()

    def end(self) -> None:
        """Give up the role."""
        self.close_admin()
        self.leadership.release()
