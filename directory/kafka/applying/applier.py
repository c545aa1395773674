"""The loop that applies every kind of resource below armed entries to Kafka.

A kind (``config_applier.py``, ``acl_applier.py``) has its own desired and observed state, diff,
record, calls and outcome. This module decides when a kind runs, and stops all kinds while inherited
policies are not known, and on another Kafka than the pinned one.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final, Generic, TypeVar

from directory.federation.unloaded_policies import why_inherited_missing
from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.kafka.applying.last_applied import (
    ARMED,
    ArmedRecord,
    armed_anywhere,
    load_armed_record,
)
from directory.kafka.arming.releases import INHERITED_KEYS
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.kafka_context import KafkaContext
from directory.kafka.provisioning.acknowledged_changes import AcknowledgedChanges
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory
from directory.namespace.keys import ENTRY, parse_entry_key
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import KeyEquals, Put, Write
from directory.store.replica import AppliedCommit

__all__ = ["AGAIN_SECONDS", "BATCH", "Applier", "BatchResult", "DirtyBatch", "DirtySet", "first_of"]


@dataclass(slots=True)
class DirtyBatch:
    """Entries to be compared with Kafka."""

    directories: dict[int, None] = field(default_factory=dict)
    """Ids of directories, each with all entries below it."""
    topics: dict[tuple[int, str], None] = field(default_factory=dict)
    """Parent ids and names of topics."""
    gone: set[int] = field(default_factory=set)
    """Entry ids of topics that were removed."""
    marks: bool = False
    """True: armed records changed."""
    is_all: bool = False
    """True: commits may have been missed, so that more topics may have been removed."""

    def __bool__(self) -> bool:
        return bool(self.directories or self.topics or self.gone or self.marks)

    def add(self, more: DirtyBatch) -> None:
        """Adds the entries of another batch."""
        self.directories |= more.directories
        self.topics |= more.topics
        self.gone |= more.gone
        self.marks |= more.marks
        self.is_all |= more.is_all


class DirtySet:
    """Entries that commits changed and that may need pushing, until a leader takes them; for any
    thread. A new set holds all entries: the previous leader may have left some undone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted = DirtyBatch({ROOT_ID: None}, marks=True, is_all=True)

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note_all(self, *, is_all: bool = False) -> None:
        """Marks all entries as dirty, since it is not known which ones changed."""
        self._add(DirtyBatch({ROOT_ID: None}, marks=True, is_all=is_all))

    def note(self, applied: AppliedCommit) -> bool:
        """Adds the entries that a commit changed; returns whether any may need pushing."""
        found, kept = DirtyBatch(), set[int]()
        try:
            for write in applied.writes:
                if write.key == ROOT_KEY or write.key in INHERITED_KEYS:
                    found.directories[ROOT_ID] = None
                elif write.key.startswith(ENTRY):
                    _note_entry(found, kept, applied, write)
                elif write.key.startswith(ARMED):
                    found.marks = True
        finally:
            found.gone -= kept
            self._add(found)
        return bool(found)

    @contextmanager
    def take_all(self) -> Iterator[DirtyBatch]:
        """Yields all dirty entries, and removes them from the set unless the caller raises.

        A snapshot that is read inside the context has all their changes; an earlier one may lack
        some.
        """
        with self._lock:
            found, self._noted = self._noted, DirtyBatch()
        try:
            yield found
        except BaseException:
            self._add(found)
            raise

    def _add(self, found: DirtyBatch) -> None:
        with self._lock:
            self._noted.add(found)


def _note_entry(found: DirtyBatch, kept: set[int], applied: AppliedCommit, write: Write) -> None:
    parent_id, is_topic, name = parse_entry_key(write.key)
    if not is_topic:
        entry = applied.after.container(parent_id, name) if isinstance(write, Put) else None
        if isinstance(entry, Directory) and parent_id != DELETED_ID:
            known = applied.before.nodes.get(entry.entry_id)
            if (
                known is None
                or known.parent_id != parent_id
                or known.directory.policies != entry.policies
            ):
                found.directories[entry.entry_id] = None
    elif isinstance(write, Put):
        topic = applied.after.readable_topic(parent_id, name)
        if topic is not None:
            kept.add(topic.entry_id)
            if parent_id != DELETED_ID:
                found.topics[parent_id, name] = None
    elif (topic := applied.before.readable_topic(parent_id, name)) is not None:
        found.gone.add(topic.entry_id)


BATCH: Final = 250
"""Most resources of Kafka that one step changes."""
AGAIN_SECONDS: Final = 2.0
"""Pause before unfinished work is retried."""

_K = TypeVar("_K")


@dataclass(slots=True)
class BatchResult(Generic[_K]):
    """Outcome of calls, by resource."""

    made: dict[_K, int] = field(default_factory=dict)
    """Number of acknowledged calls."""
    undone: dict[_K, str] = field(default_factory=dict)
    """Why not all calls were made."""
    unsure: dict[_K, None] = field(default_factory=dict)
    """Resources whose outcome is unknown: Kafka has to be read again."""

    def add(self, more: BatchResult[_K]) -> None:
        """Adds the outcomes of other calls."""
        self.made |= more.made
        self.undone |= more.undone
        self.unsure |= more.unsure


def first_of(sentences: Sequence[str], most: int = 1) -> str:
    """Joins the first ``most`` sentences and the number of the others; empty = no sentence."""
    more = f", and {len(sentences) - most} more" if len(sentences) > most else ""
    return "; ".join(sentences[:most]) + more


class Applier(ABC):
    """Applier of one kind of resource, for one leader. Any thread may call ``hint`` and
    ``next_due``; one thread calls the rest.

    Raises (all methods that call Kafka or commit):
        KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
    """

    aspect: ClassVar[str]
    """Aspect that arms this kind."""

    def __init__(
        self,
        context: KafkaContext,
        commits: TopicCommits,
        acknowledged: AcknowledgedChanges,
    ) -> None:
        self._context = context
        self._cluster = context.cluster
        self._settings = context.settings
        self._latest = context.latest
        self._mount_at = context.mount_at
        self._clock = context.clock
        self._commits = commits
        self._acknowledged = acknowledged
        self._noted = DirtySet()
        self._due = 0.0
        """Earliest time of the next work, by the clock."""
        self.note = ""
        """Why nothing is pushed; empty = pushing is possible."""

    def hint(self, applied: AppliedCommit) -> bool:
        """Marks what a commit changed as dirty; returns whether any of it may need pushing."""
        if self.aspect not in self._settings.ceiling:
            return False
        if applied.reloaded:
            self._noted.note_all(is_all=True)
            return True
        return armed_anywhere(applied.after, self.aspect) and self._note_commit(applied)

    def next_due(self) -> float | None:
        """Returns the time of the next work, by the clock; None = there is none."""
        if self.aspect not in self._settings.ceiling:
            return None
        if self._noted:
            return self._due
        later = self._next_look()
        return None if later is None else max(self._due, later)

    def apply_due(self, admin: KafkaAdmin) -> None:
        """Does a part of the due work, at most as much as the rate allows."""
        with self._noted.take_all() as noted:
            # Read inside ``take_all``: an older snapshot may lack changes of the dirty entries.
            snapshot = self._latest()
            self._forget(noted, snapshot)
            if not armed_anywhere(snapshot, self.aspect):
                self._drop_work()
                return
            self.note = why_inherited_missing(snapshot, has_parent=self._context.has_parent)
            if self.note:
                # The thread is woken when it is known, and then checks all entries.
                self._drop_work()
                self._noted.note_all()
                self._due = self._clock() + AGAIN_SECONDS
                return
            self._plan(noted, snapshot)
        if not self._is_ready():
            return
        # Compared again before a change: the last sweep is up to half a minute old.
        if admin.cluster_id() != PinnedKafka.load(snapshot).pinned:
            self._due = self._clock() + AGAIN_SECONDS
            return
        self._do_part(admin)

    def _put_marks(self, marks: Iterable[ArmedRecord]) -> None:
        """Commits armed records, except of entries that another plan has armed since."""
        known, changes = self._latest(), []
        for mark in marks:
            before, put = known.fact(mark.key), mark.to_put()
            now = load_armed_record(known, mark.aspect, mark.entry_id)
            if now is not None and now.plan == mark.plan and before != put.value:
                changes.append(((KeyEquals(mark.key, before),), (put,)))
        self._commits.put_each(changes)

    @property
    def _most(self) -> int:
        """Most resources that one part changes."""
        return max(1, min(BATCH, int(self._settings.changes_per_second)))

    # -- defined by each kind ----------------------------------------------------------------------

    @abstractmethod
    def _note_commit(self, applied: AppliedCommit) -> bool:
        """Marks what a commit changed for this kind as dirty; returns whether it did."""

    @abstractmethod
    def _next_look(self) -> float | None:
        """Returns when planned work continues, by the clock; None = none is planned."""

    def _forget(self, noted: DirtyBatch, snapshot: Snapshot) -> None:  # noqa: B027 - ACLs keep none
        """Removes the records of entries that no longer exist."""

    @abstractmethod
    def _drop_work(self) -> None:
        """Drops the planned work."""

    @abstractmethod
    def _plan(self, noted: DirtyBatch, snapshot: Snapshot) -> None:
        """Adds the dirty entries to the planned work."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """True if some of the planned work may be done now."""

    @abstractmethod
    def _do_part(self, admin: KafkaAdmin) -> None:
        """Does one part: reads Kafka, records the calls, makes them and records their outcomes."""
