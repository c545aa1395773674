"""Publishes a cluster's changes to its change log, on one server of the cluster.

The holder of the role works in this order: the topics are checked; the transactional producer is
made, which fences the previous publisher; only then the newest checkpoint is read, which is the
position. So only the newest publisher can write, whether or not it still holds the role, and after
a crash anywhere nothing is published twice or left out. A page of the outbox is one transaction of
Kafka: the state, the history, and a checkpoint in each topic.

If the log does not continue the store's history (first use, another incarnation of the store, a
trimmed outbox), the state topic is read to its end and compared with the tree, and the differences
are published (``_resync``). Until an operator confirms it, the publisher does not publish into a
log of another cluster, with a later incarnation than the store's, or from which many entries would
vanish.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice, takewhile
from typing import Final

from kdir.v1 import watch_pb2

from directory.change_log.log_state import (
    ROLE,
    is_resync_confirmed,
    noted_state,
    skip_of,
    skipped_commits,
)
from directory.change_log.log_topics import LogTopics, WaitsForOperator
from directory.change_log.state_records import (
    OversizedRecord,
    StateRecords,
    checkpoint_of,
    encode_within,
    page_records,
    row_digest,
    snapshot_records,
    snapshot_rows,
)
from directory.change_log.topic_writer import LogRecord, LogRefused, TopicWriter
from directory.kafka.admin_contract import KafkaAdmin
from directory.maintenance.event_index import EventIndex
from directory.namespace.entry import ROOT_ID
from directory.namespace.keys import CHANGE_LOG, CHANGE_LOG_RESYNC, CHANGE_LOG_SKIP, LEVEL
from directory.namespace.snapshot import Snapshot
from directory.server.feature_levels import CHANGE_LOG_LEVEL, finalized_level
from directory.store.base import Delete, KeyEquals, Put, Store, StoreUnreachable
from directory.store.leader import Leader, LeadershipLost, RoleThread
from directory.store.replica import AppliedCommit, Replica, ReplicaState
from directory.store.writer import Writer
from resolver.changes import record
from resolver.changes.record import Change, Checkpoint
from resolver.errors import KafkaRejected, KafkaUnavailable, KdirError, NotReady, WriteConflict
from resolver.path import Path
from resolver.units import plural

__all__ = ["ChangeLogPublisher"]

_log = logging.getLogger(__name__)

_PAGE_EVENTS: Final = 500
_PAUSE_SECONDS: Final = 0.01
"""Shortest pause between two transactions, in which the brokers end the first one."""
_GATHERING_SECONDS: Final = 0.0005
"""Pause after a page, times the square of its number of events: the rarer changes are, the sooner
each is published.
"""
_MOST_GATHERING_SECONDS: Final = 0.25
_RESYNC_RECORDS: Final = 1_000
_ELECT_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 1.0
_MOST_AWAY_SECONDS: Final = 30.0
_REFUSED_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 30.0
"""Interval at which the publisher checks for changes if no change wakes it."""
_STOP_SECONDS: Final = 3.0
_NOTE_SECONDS: Final = 1.0
"""Shortest interval at which it stores its progress, a hint for trimming the outbox."""
_MOST_VANISHING: Final = 20
_PART_VANISHING: Final = 0.05


@dataclass(slots=True)
class _Session:
    """State of one producer, from its creation to its first error."""

    writer: TopicWriter
    framings: Mapping[str, bytes]
    """Bytes that precede each record, by topic (``LogTopics.framings``)."""
    generation: int
    incarnations: tuple[str, ...]
    revision: int = 0
    """Revision up to which the log has all changes."""
    checkpoint: int = 0
    """Revision of the log's newest checkpoint; between it and ``revision`` there is no change to
    publish.
    """
    last_order: tuple[int, int, int] = (0, 0, 0)
    """Order of the newest change that the history had when the session began."""
    has_schema: bool = False
    """True if this session has written this kdir's schema; the log may have an older one only."""


class ChangeLogPublisher:
    """Publisher of one directory server.

    Args:
        server: id of the directory server, which identifies it in the election.
        cluster: name of the cluster.
        mount: returns the path of the cluster's mount at a snapshot.
        topics: topics of the log.
        admin: makes an admin client, which the publisher closes.
        clock: monotonic seconds.
        now_ms: Unix milliseconds.
    """

    def __init__(  # noqa: PLR0913 - what one cluster has, each once
        self,
        server: str,
        cluster: str,
        store: Store,
        replica: Replica,
        writer: Writer,
        index: EventIndex,
        *,
        mount: Callable[[Snapshot], Path],
        topics: LogTopics,
        admin: Callable[[], KafkaAdmin],
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.leader: Final = Leader(store, replica, ROLE, server)
        self.topics: Final = topics
        self._cluster: Final = cluster
        self._store: Final = store
        self._cluster_id: Final = store.identity.cluster_id
        self._replica: Final = replica
        self._writer: Final = writer
        self._index: Final = index
        self._mount: Final = mount
        self._admin: Final = admin
        self._clock: Final = clock
        self._now_ms: Final = now_ms
        self._thread: Final = RoleThread(
            "change-log",
            replica,
            self.step,
            on_applied=self._on_applied,
            on_bug=self._on_bug,
            on_end=self._end_session,
        )
        self._stopping: Final = self._thread.stopping
        self._session: _Session | None = None
        self._noted = (0, 0)  # last stored generation and revision
        self._noted_at = 0.0
        self._away = _AWAY_SECONDS
        self.trouble = ""
        """Reason why this server's publishing is held up; empty = it is not, or another server
        publishes.
        """

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to publish, in a thread, once elected."""
        self._thread.start()

    def stop(self, timeout_seconds: float = _STOP_SECONDS) -> None:
        """Ends the thread with its open transaction, and resigns the role. A thread that still
        waits for brokers after ``timeout_seconds`` is left: the next publisher fences it off.
        """
        self._thread.stop(timeout_seconds)
        self.leader.resign()

    def _on_bug(self, error: Exception) -> float:
        _log.exception("the change log is held up by a bug; it is tried again")
        self._end_session()
        self._report(f"{type(error).__name__}: {error}")
        return _REFUSED_SECONDS

    def _on_applied(self, applied: AppliedCommit) -> None:
        """Wakes the thread; called by the replica. While the thread has no session, since it waits
        for brokers or an operator, only operators' acts wake it, not every change.
        """
        acts = (CHANGE_LOG_RESYNC, CHANGE_LOG_SKIP, LEVEL)
        if self._session is not None or any(write.key in acts for write in applied.writes):
            self._thread.wake()

    # -- one round -------------------------------------------------------------------------------

    def step(self) -> float:
        """Publishes a page, or prepares for it. Returns the seconds after which to call it again,
        unless a change comes first.
        """
        if self._replica.state is not ReplicaState.SERVING:
            return _AWAY_SECONDS
        try:
            if (finalized_level(self._replica.snapshot) or 0) < CHANGE_LOG_LEVEL:
                self._report(
                    f"feature level {CHANGE_LOG_LEVEL} is not finalized: kdir features finalize"
                )
                return _IDLE_SECONDS
            if self.leader.campaign() is None:
                self._end_session()
                self.trouble = ""
                return _ELECT_SECONDS * random.uniform(0.5, 1.0)
            if not self.leader.wait_for_election(self._stopping.wait):
                return 0.0
            delay = self._publish()
            self._away = _AWAY_SECONDS
        except (LeadershipLost, WriteConflict):
            _log.warning("another server publishes the change log now")
            self._end_session()
            self.leader.resign()
            return _ELECT_SECONDS
        except NotReady as reason:
            _log.info("the change log begins again: %s", reason)
            self._end_session()
            return _AWAY_SECONDS
        except LogRefused as reason:
            self._end_session()
            self._report(str(reason), waits=isinstance(reason, WaitsForOperator))
            return _REFUSED_SECONDS
        except (KafkaUnavailable, KafkaRejected, KdirError, StoreUnreachable) as reason:
            self._end_session()
            self._report(str(reason))
            self._away = min(2 * self._away, _MOST_AWAY_SECONDS)
            return self._away * random.uniform(0.5, 1.0)
        else:
            self._report("")
            return delay

    def _publish(self) -> float:
        session = self._session
        if session is None:
            session = self._session = self._begin()
        snapshot = self._snapshot_for(session)
        if snapshot.fact(CHANGE_LOG_SKIP) is not None:
            raise NotReady("an operator gave up what waits")
        confirmed, is_confirmed = snapshot.fact(CHANGE_LOG_RESYNC), is_resync_confirmed(snapshot)
        if session.revision < snapshot.revision:
            self._publish_page(session, snapshot, is_confirmed=is_confirmed)
        elif confirmed is None:
            return _IDLE_SECONDS if self._note(session) else _NOTE_SECONDS
        if confirmed is not None and session.revision >= snapshot.revision:
            # Only once the log has all changes: until then a difference may be an unpublished
            # change.
            if is_confirmed:
                self._resync(session, snapshot, is_confirmed=True)
            else:
                _log.warning("a resync was confirmed in another incarnation of the store: not done")
            self._settle(session, CHANGE_LOG_RESYNC, confirmed)
        self._note(session)
        return 0.0

    def _publish_page(self, session: _Session, snapshot: Snapshot, *, is_confirmed: bool) -> None:
        """Publishes the next changes, of revisions up to that of the tree."""
        commits, reached = self._index.commits(session.revision, snapshot.revision, _PAGE_EVENTS)
        # The replica replaces the tree before the index: so the commits are of this incarnation,
        # too.
        self._snapshot_for(session)
        if self._index.floor() > session.revision:
            # Outbox rows were trimmed: only a comparison of the state shows their changes.
            self._resync(session, snapshot, is_confirmed=is_confirmed)
        elif commits and not commits[0].is_readable:
            # Only a comparison of the state shows the changes of unreadable rows, too (S21).
            *_, last = takewhile(lambda one: not one.is_readable, commits)
            self._resync(session, snapshot, is_confirmed=is_confirmed, until=last.revision)
        elif commits:
            readable = list(takewhile(lambda one: one.is_readable, commits))
            if len(readable) < len(commits):
                reached = readable[-1].revision
            now_ms = self._now_ms()
            state, history = page_records(
                readable, snapshot, self._cluster_id, session.generation, now_ms
            )
            newest_ms = max((one.time for one in history), default=now_ms)
            session.writer.write(
                self._schema(session),
                self._state(session, state.items()),
                self._history(session, history),
                self._checkpoint(session, reached, newest_ms, snapshot),
            )
            session.revision = session.checkpoint = reached
            self._gather(len(history))
        else:
            session.revision = reached

    def _snapshot_for(self, session: _Session) -> Snapshot:
        """Returns the newest tree.

        Raises:
            NotReady: the store began another incarnation since this session began.
        """
        snapshot = self._replica.snapshot
        if snapshot.incarnation != session.incarnations[-1]:
            raise NotReady("the store began another incarnation")
        return snapshot

    def _gather(self, events: int) -> None:
        """Waits for more changes after a page that was not full: a transaction costs server and
        brokers as much as tens of events. If the brokers still end the previous transaction when
        one begins, it is retried after 20 ms.
        """
        if events < _PAGE_EVENTS:
            seconds = _PAUSE_SECONDS + _GATHERING_SECONDS * events**2
            self._stopping.wait(min(seconds, _MOST_GATHERING_SECONDS))

    # -- beginning -------------------------------------------------------------------------------

    def _begin(self) -> _Session:
        """Begins a session: from now on every other producer of this log is fenced off."""
        snapshot = self._replica.snapshot
        noted = noted_state(snapshot)
        confirmed, skipped = snapshot.fact(CHANGE_LOG_RESYNC), snapshot.fact(CHANGE_LOG_SKIP)
        is_confirmed = is_resync_confirmed(snapshot)
        with closing(self._admin()) as admin:
            were_there = _is_begun(noted) and not is_confirmed
            self.topics.make_and_check(admin, were_there=were_there)
        framings = self.topics.framings()
        writer = self.topics.writer(f"kdir-{self._cluster_id}")
        try:
            begin = partial(_Session, writer, framings)
            session = self._meet(begin, snapshot.incarnation, is_confirmed=is_confirmed)
            if _is_cut(session, noted):
                # Before progress is stored: after a crash the next session must detect the loss,
                # too.
                self._resync_facts(session, self._snapshot_for(session))
            # From this commit on every server's writer names facts for the log. The tree that is
            # compared with the log is at least as new.
            self._note_first(session, noted, snapshot)
            snapshot = self._snapshot_for(session)
            skip = skip_of(snapshot)
            # Of a log that was not kept for a while the outbox does not name all facts.
            if not _is_begun(noted) or not session.revision:
                self._resync(session, snapshot, is_confirmed=is_confirmed)
                if confirmed is not None:
                    self._settle(session, CHANGE_LOG_RESYNC, confirmed)
            elif skip is not None and skip.revision > session.revision:
                self._resync(
                    session, snapshot, is_confirmed=is_confirmed, skip=skip, until=skip.revision
                )
            if skipped is not None:
                self._settle(session, CHANGE_LOG_SKIP, skipped)
        except BaseException:
            writer.close()
            raise
        return session

    def _settle(self, session: _Session, key: bytes, value: bytes) -> None:
        """Removes an operator's request once it is done, but not a later request at the same key.
        The same commit stores the progress of the log, so that skipped changes never count as
        waiting again.
        """
        done = KeyEquals(key, value)
        self._put_note(session, session.generation, session.checkpoint, done)

    def _meet(
        self, begin: Callable[..., _Session], incarnation: str, *, is_confirmed: bool
    ) -> _Session:
        """Returns a session whose generation and position follow from the log's newest checkpoint
        and the store's ``incarnation``.
        """
        found, order = self.topics.end(self.topics.history, self._goes_on)
        state, _ = self.topics.end(self.topics.state, self._goes_on)
        point = None if found is None else found.checkpoint
        if found is None or point is None:
            if state is None or state.checkpoint is None:
                return begin(1, (incarnation,))
            # The history topic was created again. To readers of the state, new records must not
            # seem older than the present ones.
            before = (one for one in state.checkpoint.incarnations if one != incarnation)
            return begin(state.generation + 1, (*before, incarnation))
        if point.incarnations[-1] == incarnation:
            if found.revision > self._store.newest_revision():
                if not is_confirmed:
                    raise WaitsForOperator(
                        f"the log is at revision {found.revision}, which the store has not "
                        f"reached: an older state of its disk was put back; kdir log resync makes "
                        f"the log follow this store"
                    )
                # The next changes have revisions that the log already has: so they get another
                # generation.
                return begin(found.generation + 1, point.incarnations)
            if state is None:
                # The state topic was created again: the next generation shows it to readers.
                return begin(found.generation + 1, point.incarnations)
            # One transaction writes both checkpoints. If they differ, a topic lost its end.
            at = found.revision if state.order == found.order else 0
            return begin(found.generation, point.incarnations, at, at, last_order=order)
        if incarnation in point.incarnations and not is_confirmed:
            raise WaitsForOperator(
                f"the log has a later incarnation of this store, of generation "
                f"{found.generation}: a copy of the store publishes too, or an older state of its "
                f"disk was put back; kdir log resync makes the log follow this store"
            )
        incarnations = (*(one for one in point.incarnations if one != incarnation), incarnation)
        return begin(found.generation + 1, incarnations)

    def _goes_on(self) -> bool:
        return not self._stopping.is_set() and self.leader.leads

    # -- resync ----------------------------------------------------------------------------------

    def _resync(
        self,
        session: _Session,
        snapshot: Snapshot,
        *,
        is_confirmed: bool = False,
        skip: watch_pb2.ChangeLogSkip | None = None,
        until: int | None = None,
    ) -> None:
        """Brings the log in line with a tree, and goes on after its revision or after an earlier
        one, ``until``. With ``skip`` the history gets a record of what was given up up to there.
        ``is_confirmed``: by an operator, whatever vanishes from the log.
        """
        revision = snapshot.revision if until is None else until
        now_ms = self._now_ms()
        cluster_id = self._cluster_id
        held = self.topics.state_digests(self._goes_on)
        others = {key.partition("/")[0] for key in held} - {cluster_id}
        if others and not is_confirmed:
            raise WaitsForOperator(
                f"topic {self.topics.state} holds the log of cluster {', '.join(sorted(others))}: "
                f"name another Kafka in change_log.bootstrap, where the topics have the cluster id "
                f"in their names; where that cluster is gone, kdir log resync removes its state "
                f"from the log"
            )
        is_first = not any(key.startswith(f"{cluster_id}/") for key in held)
        entries = sum(key.startswith(f"{cluster_id}/e/") for key in held)
        changed, gone = self._difference(held, snapshot)
        vanished = sum(key.startswith(f"{cluster_id}/e/") for key in gone)
        most = max(_MOST_VANISHING, int(entries * _PART_VANISHING))
        if vanished > most and not is_confirmed:
            raise WaitsForOperator(
                f"{vanished:,} of {entries:,} entries of the log are not in the store: kdir log "
                f"resync removes them from the log"
            )
        positions = count(self._next_position(session, revision))
        found = (
            (key, replace(change, position=next(positions)) if _is_in_history(change) else change)
            for key, change in self._records_of(session, snapshot, changed, revision, now_ms)
        )
        items = chain[tuple[str, Change | None]](found, gone.items())
        while page := dict(islice(items, _RESYNC_RECORDS)):
            resynced = self._resynced(page, now_ms, session, revision, positions)
            history = self._history(session, () if is_first else resynced)
            session.writer.write(self._state(session, page.items()), history)
        mount = self._mount(snapshot)
        given_up = [] if skip is None else [self._given_up(session, skip, mount, next(positions))]
        session.writer.write(
            self._schema(session),
            self._history(session, given_up),
            self._checkpoint(session, revision, now_ms, snapshot),
        )
        session.revision = session.checkpoint = revision
        _log.info("change log in line with the store: %d records", len(changed) + len(gone))

    def _resync_facts(self, session: _Session, snapshot: Snapshot) -> None:
        """Publishes the differences in facts between a tree and a log that lost its end: outbox
        rows that list only facts are deleted once published. Entries and grants are published again
        from their events, after the unchanged position.
        """
        entries = (f"{self._cluster_id}/e/", f"{self._cluster_id}/g/")
        at, now_ms = session.revision, self._now_ms()
        changed, gone = self._difference(self.topics.state_digests(self._goes_on), snapshot)
        changed = {key for key in changed if not key.startswith(entries)}
        gone = {key: None for key in gone if not key.startswith(entries)}
        records = {**dict(self._records_of(session, snapshot, changed, at, now_ms)), **gone}
        session.writer.write(
            self._state(session, records.items()),
            self._checkpoint(session, at, now_ms, snapshot),
        )
        _log.warning(
            "the end of the change log was lost: it goes on after revision %d, with %d facts",
            at,
            len(records),
        )

    def _difference(
        self, held: Mapping[str, bytes], snapshot: Snapshot
    ) -> tuple[set[str], dict[str, None]]:
        """Returns the keys of the rows that the state topic lacks or has with another value, and
        the keys that only the topic has.
        """
        changed, gone = set[str](), dict.fromkeys(held)
        for row in snapshot_rows(snapshot, self._cluster_id):
            gone.pop(row.state_key, None)
            if held.get(row.state_key) != row_digest(row.key, row.value):
                changed.add(row.state_key)
        return changed, gone

    def _records_of(
        self,
        session: _Session,
        snapshot: Snapshot,
        keys: AbstractSet[str],
        revision: int,
        now_ms: int,
    ) -> Iterator[tuple[str, Change]]:
        return snapshot_records(
            snapshot,
            self._mount(snapshot),
            self._cluster_id,
            session.generation,
            revision=revision,
            now_ms=now_ms,
            keys=keys,
        )

    def _next_position(self, session: _Session, revision: int) -> int:
        """Returns the first free position in a revision: after the store's changes, and after the
        changes of an interrupted resync of this revision.
        """
        commits, _ = self._index.commits(revision - 1, revision, 1)
        taken = sum(len(one.events) for one in commits)
        *at, position = session.last_order
        return max(taken, position + 1) if at == [session.generation, revision] else taken

    def _resynced(
        self,
        page: StateRecords,
        now_ms: int,
        session: _Session,
        revision: int,
        positions: Iterator[int],
    ) -> Iterator[Change]:
        """Yields the history's records of entries and grants in which a resync found a
        difference.
        """
        for key, change in page.items():
            if change is not None and _is_in_history(change):
                yield replace(change, key=None, record=None, action="update")
            elif change is None and key.startswith(f"{self._cluster_id}/e/"):
                yield Change(
                    cluster_id=self._cluster_id,
                    generation=session.generation,
                    revision=revision,
                    position=next(positions),
                    time=now_ms,
                    cause="resync",
                    action="delete",
                    entry_id=int(key.rpartition("/")[2], 16),
                )

    def _given_up(
        self, session: _Session, skip: watch_pb2.ChangeLogSkip, mount: Path, position: int
    ) -> Change:
        """Returns the history's record in place of the changes that an operator gave up."""
        commits = skipped_commits(skip, session.revision)
        return Change(
            cluster_id=self._cluster_id,
            generation=session.generation,
            revision=skip.revision,
            position=position,
            time=skip.time_ms,
            cause="skip",
            scope="operated",
            action="update",
            kind="dir",
            entry_id=ROOT_ID,
            path=str(mount),
            principal=skip.principal,
            request_id=skip.request_id,
            operation=(
                f"gave up the changes of revisions {session.revision + 1} to {skip.revision}, in "
                f"{plural(commits, 'commit')}"
            ),
        )

    # -- records ---------------------------------------------------------------------------------

    def _state(
        self, session: _Session, items: Iterable[tuple[str, Change | None]]
    ) -> Iterator[LogRecord]:
        topic = self.topics.state
        for key, change in items:
            value = None if change is None else _encode(change, session.framings[topic])
            yield LogRecord(topic, key, value)

    def _history(self, session: _Session, changes: Iterable[Change]) -> Iterator[LogRecord]:
        topic = self.topics.history
        for change in changes:
            yield LogRecord(topic, change.path, _encode(change, session.framings[topic]))

    def _schema(self, session: _Session) -> Iterator[LogRecord]:
        """Yields the record of the schema, once a session and only without a registry: programs
        that decode with a registry expect its framing on every value in the topic.
        """
        if session.framings[self.topics.state] or session.has_schema:
            return
        session.has_schema = True  # a write that fails ends the session
        key = record.schema_key(self._cluster_id, record.fingerprint())
        yield LogRecord(self.topics.state, key, record.schema_text().encode())

    def _checkpoint(
        self, session: _Session, revision: int, time_ms: int, snapshot: Snapshot
    ) -> Iterator[LogRecord]:
        point = Checkpoint(
            incarnation=session.incarnations[-1],
            incarnations=session.incarnations,
            cluster=self._cluster,
            mount=str(self._mount(snapshot)),
            schema_version=self._store.identity.schema_version,
            feature_level=finalized_level(snapshot) or 0,
        )
        change = checkpoint_of(
            point, self._cluster_id, session.generation, revision=revision, time=time_ms
        )
        keys = {
            self.topics.state: record.checkpoint_key(self._cluster_id),
            self.topics.history: "",
        }
        for topic, key in keys.items():
            yield LogRecord(topic, key, record.encode(change, session.framings[topic]))

    # -- stored progress -------------------------------------------------------------------------

    def _note_first(
        self,
        session: _Session,
        noted: watch_pb2.ChangeLogState | None,
        snapshot: Snapshot,
    ) -> None:
        """Notes that a session begins. If a resync follows, it publishes the differences, and no
        changes from before the log was begun: those do not wait.
        """
        is_begun, revision = _is_begun(noted), session.checkpoint
        if not is_begun or not revision:
            is_known = noted is not None and noted.incarnation == snapshot.incarnation
            revision = (noted.revision if noted and is_known else 0) or snapshot.revision
        # Generation 0 until the resync that begins the log is done: it is repeated after a crash.
        self._put_note(session, session.generation if is_begun else 0, revision)

    def _note(self, session: _Session) -> bool:
        """Stores the log's progress, once a second at most; True if the newest progress is
        stored.
        """
        reached = session.generation, session.checkpoint
        if self._noted != reached and self._clock() - self._noted_at >= _NOTE_SECONDS:
            self._put_note(session, *reached)
        return self._noted == reached

    def _put_note(
        self, session: _Session, generation: int, revision: int, done: KeyEquals | None = None
    ) -> None:
        self._put(
            watch_pb2.ChangeLogState(
                generation=generation,
                incarnation=session.incarnations[-1],
                revision=revision,
                message=self.trouble,
            ),
            done,
        )
        self._noted, self._noted_at = (generation, revision), self._clock()

    def _report(self, trouble: str, *, waits: bool = False) -> None:
        """Logs why publishing is held up and, if this server leads, stores it; empty = it is
        not.
        """
        if trouble == self.trouble:
            return
        if trouble:
            _log.warning("the change log waits: %s", trouble)
        self.trouble = trouble
        if not self.leader.leads:
            return
        snapshot = self._replica.snapshot
        # Changes from before the log was first begun do not wait for it.
        state = noted_state(snapshot) or watch_pb2.ChangeLogState(
            incarnation=snapshot.incarnation, revision=snapshot.revision
        )
        state.message, state.waits_for_operator = trouble, waits
        with suppress(KdirError, StoreUnreachable):
            self._put(state)

    def _put(self, state: watch_pb2.ChangeLogState, done: KeyEquals | None = None) -> None:
        note = Put(CHANGE_LOG, state.SerializeToString(deterministic=True))
        if done is None:
            self._writer.put_facts((note,), (self.leader.guard,))
        else:
            self._writer.put_facts((note, Delete(done.key)), (self.leader.guard, done))

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.writer.close()


def _is_in_history(change: Change) -> bool:
    """True if a change of the state topic is in the history topic, too; facts are not."""
    return change.scope in {"entry", "grants"}


def _is_cut(session: _Session, noted: watch_pb2.ChangeLogState | None) -> bool:
    """True if the log ends before the stored revision: the brokers lost its end."""
    if noted is None or not session.revision:
        return False
    is_same = noted.incarnation == session.incarnations[-1]
    is_same &= noted.generation == session.generation
    return is_same and session.revision < noted.revision


def _is_begun(noted: watch_pb2.ChangeLogState | None) -> bool:
    """True if the outbox lists all facts that were written since the log's newest checkpoint."""
    return noted is not None and noted.generation > 0


def _encode(change: Change, framing: bytes) -> bytes:
    try:
        return encode_within(change, framing=framing)
    except OversizedRecord as error:
        raise LogRefused(f"{error}: make the entry smaller") from None
