"""The reconciler: keeps a cluster's tree and its Kafka in step, in one thread, while it is elected.

Everything it commits is fenced by its leadership. A Kafka that does not answer slows only this
thread. It changes nothing in Kafka beyond the ceiling, nothing in another Kafka than the pinned
one, and nothing during a stop.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Final

from directory.federation.unloaded_policies import why_inherited_missing
from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.adoption import pinned_kafka, recorded_topics
from directory.kafka.adoption.adoption import AdoptionBacklog
from directory.kafka.adoption.operator_requests import OperatorRequests
from directory.kafka.adoption.pinned_kafka import NOT_ON_RECORD, STOPPED, PinnedKafka
from directory.kafka.adoption.recorded_topics import TopicCounter
from directory.kafka.adoption.sweep import KafkaSweep
from directory.kafka.applying.acl_applier import AclApplier
from directory.kafka.applying.applier import Applier
from directory.kafka.applying.config_applier import ConfigApplier
from directory.kafka.applying.last_applied import acl_counts, count_topics_with_issues
from directory.kafka.arming.arming import ArmingService
from directory.kafka.arming.drift import Drift, acl_drift, topic_drift
from directory.kafka.arming.releases import inherited_basis, unchanged_basis
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.guarded_admin import GuardedAdmin
from directory.kafka.kafka_context import KafkaContext, KafkaStatus
from directory.kafka.provisioning.acknowledged_changes import AcknowledgedChanges
from directory.kafka.provisioning.provisioning import Provisioner
from directory.kafka.provisioning.provisioning_queue import Backoff, DueWork, RetryQueue
from directory.namespace.keys import LARGE_CHANGE
from directory.namespace.time_budget import checked
from directory.store.base import Delete, Store, StoreUnreachable
from directory.store.leader import Leader, LeadershipLost, RoleThread
from directory.store.replica import AppliedCommit, Replica
from resolver.errors import KafkaRejected, KafkaUnavailable, KdirError, NotAuthoritative, NotReady
from resolver.path import Path

__all__ = ["KafkaHealth", "LeaderTerm", "Reconciler"]


@dataclass(frozen=True, slots=True)
class KafkaHealth:
    """State of Kafka at the last request to it."""

    reachable: bool
    message: str
    since: float
    """Start of this state, in Unix seconds."""
    seen_id: str = ""
    swept_at: float | None = None
    """Time of the last read of Kafka, in monotonic seconds; None = none yet."""


class LeaderTerm:
    """Term of an elected reconciler: its state in memory, which the next leader rebuilds."""

    def __init__(self, context: KafkaContext, commits: TopicCommits, chance: random.Random) -> None:
        self.commits = commits
        self.acknowledged = AcknowledgedChanges(context.clock)
        self.sweeper = KafkaSweep(context, self.acknowledged)
        self.config_applier = ConfigApplier(context, commits, self.acknowledged)
        self.acl_applier = AclApplier(context, commits, self.acknowledged)
        self.appliers: tuple[Applier, ...] = (self.config_applier, self.acl_applier)
        """Appliers of armed aspects, in the order in which they run."""
        self.worklist = RetryQueue(context.clock, chance)
        self.retry = Backoff(chance)
        self.kafka_due = 0.0
        """Time of the next request to Kafka, which was unavailable, by the clock."""
        self.admin: KafkaAdmin | None = None

    def close_admin(self) -> None:
        """Closes the connections; the next round opens new ones."""
        admin, self.admin = self.admin, None
        if admin is not None:
            admin.close()


_log = logging.getLogger(__name__)

_ROLE: Final = "reconciler"
_ELECT_SECONDS: Final = 1.0
"""Longest pause between two tries to be elected."""
_STORE_SECONDS: Final = 1.0
"""Pause after the store did not answer."""
_STUMBLED_SECONDS: Final = 5.0
"""Pause after an unexpected error."""


class Reconciler:
    """The Kafka side of one directory server.

    Args:
        context: for its thread; operators' requests use real clocks, whatever this has.
        store, replica: the cluster's.
        sleep: waits for these seconds, or less if the reconciler is to stop.
        candidate: its name in the election: the server's id, so that others can report the leader.
        chance: source of jitter.
    """

    def __init__(
        self,
        context: KafkaContext,
        store: Store,
        replica: Replica,
        *,
        sleep: Callable[[float], object] | None = None,
        chance: random.Random | None = None,
        candidate: str = "",
    ) -> None:
        self._context = context = replace(context, admin=partial(_guarded, context.admin))
        self._cluster = context.cluster
        self._replica = replica
        self._latest = context.latest
        self._mount_at = context.mount_at
        self._settings = context.settings
        self._unmanaged = context.unmanaged
        self._clock = context.clock
        operators = replace(context, clock=time.monotonic, now=time.time)
        self.requests = OperatorRequests(operators)
        self.arming_service = ArmingService(operators)
        """For the services, in any thread, like ``requests``."""
        self._thread = RoleThread(
            f"reconciler {self._cluster}",
            replica,
            self.run_once,
            on_applied=self._on_applied,
            on_bug=self._on_bug,
            on_end=self.resign,
        )
        self._sleep = sleep or self._thread.stopping.wait
        self._chance = chance or random.Random()
        candidate = candidate or f"{self._cluster}-{secrets.token_hex(4)}"
        self.leader = Leader(store, replica, _ROLE, candidate)
        self.term: LeaderTerm | None = None
        """The term while this server leads; else None."""
        self.health = KafkaHealth(False, "Kafka was not asked yet", since=context.now())
        self._topic_counts = TopicCounter(self._mount_at, self._clock)

    # -- start and stop ----------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread, which campaigns and, once elected, works."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ends the thread and gives up the role. The next reconciler finds out the outcome of a
        request to Kafka that outlasts the timeout.
        """
        self._topic_counts.stop()
        self._thread.stop(timeout_seconds)

    def wake(self) -> None:
        """Wakes the thread to create and delete topics; sweeps keep their pace."""
        self._thread.wake()

    def _on_bug(self, _: Exception) -> float:
        _log.exception("%s: the reconciler stumbled", self._cluster)
        return _STUMBLED_SECONDS

    def _on_applied(self, applied: AppliedCommit) -> None:
        """Queues, as a callback of the replica, work that a commit requires; wakes the thread."""
        term = self.term
        if term is None:
            if applied.reloaded:  # it may have waited for the tree
                self._thread.wake()
            return
        hints = [one.hint(applied) for one in term.appliers]  # each needs the call: no any()
        if applied.reloaded:
            term.sweeper.due = 0.0
        else:
            hints.append(term.worklist.hint(applied.writes))
            hints += [write.key.startswith(LARGE_CHANGE) for write in applied.writes]
            if Delete(STOPPED) in applied.writes:
                # Acknowledged, at this server or another one.
                term.kafka_due = term.sweeper.due = 0.0
                hints.append(True)
        if applied.reloaded or any(hints):
            self._thread.wake()

    # -- one round -------------------------------------------------------------------------------

    def run_once(self) -> float:
        """Does the due work; returns the seconds until more is due, unless woken."""
        try:
            term = self.term = self._current_term()
            if term is None:
                return _ELECT_SECONDS * self._chance.uniform(0.5, 1.0)
            if not self.leader.wait_for_election(self._sleep):
                return 0.0
            self._note_manager(term)
            if self._clock() >= term.kafka_due:
                self._run_operator_work(term)
            return self._seconds_until_due(term)
        except (KafkaUnavailable, KafkaRejected) as reason:
            return self._went_away(reason)
        except LeadershipLost:
            _log.warning("%s: another server is the reconciler now", self._cluster)
            self.resign()
            return _ELECT_SECONDS
        except NotReady:
            return _STORE_SECONDS  # woken when it is loaded
        except (StoreUnreachable, KdirError) as reason:
            _log.warning("%s: the reconciler waits: %s", self._cluster, reason)
            return _STORE_SECONDS

    def _current_term(self) -> LeaderTerm | None:
        """Returns the term, or a new one if this server is elected; None = another one is."""
        if self.term is not None and self.leader.leads:
            return self.term
        self.resign()
        leadership = self.leader.campaign()
        if leadership is None:
            return None
        _log.info("%s: this server is the reconciler", self._cluster)
        commits = TopicCommits(self._context.writer, self._context.limits, leadership)
        return LeaderTerm(self._context, commits, self._chance)

    def _note_manager(self, term: LeaderTerm) -> None:
        """Records, before anything is pushed, that another cluster manages this Kafka or that this
        one does again. Either ends the releases of earlier plans.
        """
        unmanaged = bool(self._unmanaged())
        writes, guard = pinned_kafka.note_manager(self._latest(), unmanaged=unmanaged)
        if writes:
            term.commits.put(writes, (guard,))
            which = "another cluster manages" if unmanaged else "this cluster manages"
            _log.warning("%s: %s its Kafka from now on", self._cluster, which)

    def resign(self) -> None:
        """Gives up the role; the next round takes it again if no other server has."""
        term, self.term = self.term, None
        if term is not None:
            term.close_admin()
        self.leader.resign()

    def _run_operator_work(self, term: LeaderTerm) -> None:
        """Does the work that is due with Kafka: creations and deletions first."""
        if term.admin is None:
            term.admin = self._context.admin(inf)
        failed: Exception | None = None
        try:
            self._work(term, term.admin)
        except (KafkaUnavailable, KafkaRejected, LeadershipLost):
            raise
        except Exception as reason:  # noqa: BLE001 - raised below
            failed = reason
        adopts = self._adopt_on(term, term.admin)
        looks = not adopts and self._clock() >= term.sweeper.look_due
        # Before pushing and the failure above: sweeps continue if either always fails.
        if looks:
            self._look(term, term.admin)
        if failed is not None:
            raise failed
        self._push(term, term.admin)
        if looks:
            self._answered(term)
        if not adopts:
            term.sweeper.read_configs(term.admin, term.commits)

    def _look(self, term: LeaderTerm, admin: KafkaAdmin) -> None:
        """Reads Kafka's topics; creates those that are pending."""
        try:
            waiting = term.sweeper.run_look(admin, term.commits)
        except (KafkaUnavailable, KafkaRejected):
            term.sweeper.due = 0.0  # the sweep is still due
            raise
        self.health = replace(self.health, swept_at=self._clock())
        snapshot = self._latest()
        mount = self._mount_at(snapshot)
        places = (recorded_topics.place_of(snapshot, mount, one) for one in waiting)
        term.worklist.add(place for place in places if place is not None)
        self._work(term, admin)

    def _adopt_on(self, term: LeaderTerm, admin: KafkaAdmin) -> bool:
        """Does a slice of an adoption that is under way; returns False if there is none."""
        sweeper = term.sweeper
        held = PinnedKafka.load(self._latest())
        if not held.is_working:
            return False  # sweeps continue: they find out whether the stop is over
        if sweeper.backlog is None:
            change = next(iter(self.requests.under_way()), None)
            if change is None:
                return False
            survey = term.acknowledged.correct_metadata(admin.describe_all())
            if survey.cluster_id != held.pinned:
                sweeper.due = 0.0
                return False
            mount = self._mount_now()
            rows = self.requests.plan_rows(change.rules, survey, remap=change.remap)
            sweeper.backlog = AdoptionBacklog(rows, change, self._clock, mount, self._mount_now)
            left = sweeper.backlog.left
            _log.info(
                "%s: adoption %s continues: %d topics left", self._cluster, change.change_id, left
            )
        if not sweeper.backlog.carry_on(term.commits):
            sweeper.backlog = None
        return True

    def _mount_now(self) -> Path:
        return self._mount_at(self._latest())

    def _work(self, term: LeaderTerm, admin: KafkaAdmin) -> None:
        """Creates and deletes the topics that are due."""
        snapshot = self._latest()
        mount = self._mount_at(snapshot)
        held = PinnedKafka.load(snapshot)
        work = term.worklist.due(snapshot, mount) if held.is_working else DueWork((), ())
        if not work.create and not work.delete:
            return
        # Compared again before a change: the last sweep is up to half a minute old.
        if admin.cluster_id() != held.pinned:
            term.worklist.done(snapshot, mount, work)
            term.sweeper.due = 0.0
            return
        provisioner = Provisioner(
            self._context,
            admin,
            term.commits,
            mount,
            term.acknowledged,
            held.pinned,
            sleep=self._sleep,
            prepare=lambda topics: term.acl_applier.prepare(topics, admin),
            is_same=unchanged_basis(inherited_basis(snapshot, mount), self._latest, self._mount_at),
            release=term.config_applier.release_made,
        )
        # A new topic's configs are partly inherited: those not known yet are not absent.
        missing = why_inherited_missing(snapshot, has_parent=self._context.has_parent)
        unmanaged = pinned_kafka.without_manager(self._unmanaged())
        message = unmanaged or (NOT_ON_RECORD if held.unmanaged else "")
        later = DueWork(
            provisioner.create(work.create, message or missing),
            provisioner.delete(work.delete, message),
        )
        term.worklist.done(self._latest(), mount, later)

    def _push(self, term: LeaderTerm, admin: KafkaAdmin) -> None:
        """Pushes a part of the changes that are due at or below armed entries."""
        held = PinnedKafka.load(self._latest())
        if not held.is_working or held.unmanaged or self._unmanaged():
            return
        for one in term.appliers:
            due = one.next_due()
            if due is not None and due <= self._clock():
                one.apply_due(admin)

    def _seconds_until_due(self, term: LeaderTerm) -> float:
        due = [term.sweeper.next_due]
        if PinnedKafka.load(self._latest()).is_working:
            adopts = term.sweeper.backlog is not None or self.requests.under_way()
            appliers = () if self._unmanaged() else term.appliers
            waiting = (term.worklist.next_due(), *(one.next_due() for one in appliers))
            due += [0.0] if adopts else [one for one in waiting if one is not None]
        return max(0.0, max(min(due), term.kafka_due) - self._clock())

    # -- health of Kafka ---------------------------------------------------------------------------

    def _answered(self, term: LeaderTerm) -> None:
        before, survey = self.health, term.sweeper.survey
        term.retry.reset()
        seen_id = survey.cluster_id if survey is not None else ""
        if not before.reachable:
            _log.info("%s: Kafka %s answers", self._cluster, seen_id)
        since = before.since if before.reachable else self._context.now()
        self.health = KafkaHealth(True, "", since, seen_id, before.swept_at)

    def _went_away(self, reason: KafkaUnavailable | KafkaRejected) -> float:
        health, term = self.health, self.term
        if health.reachable or health.message != reason.message:
            _log.warning("%s: %s", self._cluster, reason.message)
        since = self._context.now() if health.reachable else health.since
        self.health = replace(health, reachable=False, message=reason.message, since=since)
        if term is None:
            return _ELECT_SECONDS
        term.close_admin()
        delay = term.retry.next()
        term.kafka_due = self._clock() + delay
        if health.reachable:
            # A sweep checks whether Kafka is available; after a second failure it keeps its pace.
            term.sweeper.due = 0.0
        return delay

    # -- for the services, in any thread -----------------------------------------------------------

    def status(self) -> KafkaStatus:
        """Returns the state of Kafka and of the reconciler, as this server has it.

        Counts are of the whole cluster; ``reachable`` is set only on the elected server.
        """
        ceiling = tuple(sorted(self._settings.ceiling))
        try:
            snapshot = self._replica.snapshot
        except NotReady as reason:
            return KafkaStatus(message=reason.message, ceiling=ceiling)
        term, health = self.term, self.health
        held, counts = PinnedKafka.load(snapshot), self._topic_counts.latest(snapshot)
        waiting, contested = count_topics_with_issues(snapshot)
        acls = acl_counts(snapshot)
        status = KafkaStatus(
            pinned_cluster_id=held.pinned,
            message="this server is not the elected reconciler: another one reports this",
            ceiling=ceiling,
            stop_reason=held.stop.text if held.stop is not None else "",
            pending_count=counts.pending,
            missing_count=counts.missing,
            drift_count=counts.drifting,
            replaced_count=counts.replaced,
            needs_approval_count=waiting,
            contested_count=contested,
            acl_count=acls.pushed,
            acl_resources_needing_approval_count=acls.waiting,
            acl_resources_rejected_count=acls.refused,
            acls_removed_externally_count=acls.lost,
            unmanaged=self._unmanaged(),
        )
        if term is None:
            return status
        since = datetime.fromtimestamp(health.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        notes = [held.note, term.sweeper.note, *(one.note for one in term.appliers)]
        note = next(filter(None, notes), "")
        names_topics = health.reachable and bool(note) and note == term.sweeper.note
        swept = health.swept_at
        return replace(
            status,
            leader=True,
            reachable=health.reachable,
            seen_cluster_id=health.seen_id,
            message=note if health.reachable else f"since {since}: {health.message}",
            message_names_topics=names_topics,
            last_sweep_seconds=None if swept is None else self._clock() - swept,
        )

    def waiting_count(self) -> int:
        """Returns the number of topics that wait for Kafka; 0 where another server is elected."""
        return 0 if (term := self.term) is None else term.worklist.waiting_count()

    def acknowledge(self, text: str, *, principal: str = "", request_id: str = "") -> int:
        """Calls ``OperatorRequests.acknowledge``; the elected server then makes a sweep at once."""
        return self.requests.acknowledge(text, principal=principal, request_id=request_id)

    def drift(self, path: Path, check: Callable[[], object] = lambda: None) -> list[Drift]:
        """Returns the drift at and below a path, by path. ``check`` is called periodically, and
        raises when nobody waits for it.

        Raises:
            NotAuthoritative: the path is not below this cluster's mount.
            NotReady
        """
        snapshot, term = self._replica.snapshot, self.term
        mount = self._mount_at(snapshot)
        if not mount.is_prefix_of(path):
            raise NotAuthoritative(f"{path} is not below {mount}, where this cluster is mounted")
        survey = term.sweeper.survey if term is not None else None
        foreign = term.acl_applier.foreign if term is not None else {}
        found = recorded_topics.recorded_at(snapshot, mount, path)
        rows = [row for one in checked(found, check) for row in topic_drift(one, survey)]
        rows += acl_drift(snapshot, mount, path, foreign, check)
        return sorted(rows, key=lambda row: (row.path, row.field))


def _guarded(open_admin: Callable[[float], KafkaAdmin], budget_seconds: float) -> KafkaAdmin:
    return GuardedAdmin(open_admin(budget_seconds))
