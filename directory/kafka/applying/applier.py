"""The loop by which every kind of resource below armed entries goes to Kafka.

Desired, observed, diff, recorded, calls, outcome: a kind says what its part of each is
(``config_applier.py``, ``acl_applier.py``); when it has its turn, and what stops all
kinds, is here.
Refuses to act while what is inherited is not known, and on another Kafka than the pinned one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Generic, TypeVar

from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.applying.dirty_set import DirtyBatch, DirtySet
from directory.kafka.applying.last_applied import armed_anywhere
from directory.kafka.applying.releases import why_inherited_missing
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.pin_and_stop import PinAndStop
from directory.kafka.recent_changes import RecentChanges
from directory.kafka.reconciler_settings import KafkaContext
from directory.namespace.snapshot import Snapshot
from directory.store.replica import AppliedCommit

__all__ = ["AGAIN_SECONDS", "BATCH", "Applier", "BatchResult", "first_of"]

BATCH: Final = 250
"""Resources of Kafka that one step changes."""
AGAIN_SECONDS: Final = 2.0
"""Until what could not be finished is tried again."""

_K = TypeVar("_K")


@dataclass(slots=True)
class BatchResult(Generic[_K]):
    """What came of calls, by resource."""

    made: dict[_K, int] = field(default_factory=dict)
    """Calls made."""
    undone: dict[_K, str] = field(default_factory=dict)
    """Where not all was done, and why."""
    unsure: dict[_K, None] = field(default_factory=dict)
    """Those of which nothing could be said: they have to be looked at again."""

    def add(self, more: BatchResult[_K]) -> None:
        """Adds what came of others."""
        self.made |= more.made
        self.undone |= more.undone
        self.unsure |= more.unsure


def first_of(words: Sequence[str]) -> str:
    """Returns the first of some sentences, and how many more there are."""
    more = f", and {len(words) - 1} more" if len(words) > 1 else ""
    return words[0] + more if words else ""


class Applier(ABC):
    """One kind of resource, for one leader. ``hint`` and ``next_due`` may be called from any
    thread, the rest by one.

    Args:
        context: of the reconciler; its clock is that of tests, too.
        recent: what was changed in Kafka a short while ago; others have to know it too.
    """

    aspect: ClassVar[str]
    """What arms it."""

    def __init__(self, context: KafkaContext, commits: TopicCommits, recent: RecentChanges) -> None:
        self._cluster = context.cluster
        self._settings = context.settings
        self._latest = context.latest
        self._mount_at = context.mount_at
        self._unconfirmed = context.unconfirmed_seconds
        self._clock = context.clock
        self._commits = commits
        self._recent = recent
        self._noted = DirtySet()
        self._due = 0.0
        """Not before, by the clock."""
        self.note = ""
        """Why nothing is pushed; empty = nothing is in the way."""

    def hint(self, applied: AppliedCommit) -> bool:
        """Notes what a commit changed; whether that may want pushing."""
        if self.aspect not in self._settings.ceiling:
            return False
        if applied.reloaded:
            self._noted.note_all()
            return True
        return armed_anywhere(applied.after, self.aspect) and self._note_commit(applied)

    def next_due(self) -> float | None:
        """When there is something to do, by the clock; None = nothing waits, or all of it does."""
        if self.aspect not in self._settings.ceiling:
            return None
        if self._noted:
            return self._due
        later = self._next_look()
        return None if later is None else max(self._due, later)

    def apply_due(self, admin: KafkaAdmin) -> None:
        """Does a part of what is due: at most so much as the rate allows.

        Raises:
            KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
        """
        with self._noted.take_all() as noted:
            # Not before: a tree that is older than what was noted would say that nothing is due.
            snapshot = self._latest()
            self._forget(noted, snapshot)
            if not armed_anywhere(snapshot, self.aspect):
                self._drop_work()
                return
            self.note = why_inherited_missing(snapshot, has_parent=self._settings.has_parent)
            if self.note:
                # Woken when it is known. All is looked at then.
                self._drop_work()
                self._noted.note_all()
                self._due = self._clock() + AGAIN_SECONDS
                return
            self._plan(noted, snapshot)
        if not self._is_ready():
            return
        # The last sweep is up to half a minute old, and now something may be changed.
        if admin.cluster_id() != PinAndStop.load(snapshot).pinned:
            self._due = self._clock() + AGAIN_SECONDS
            return
        self._do_part(admin)

    @property
    def _most(self) -> int:
        """So many resources at most does one part change."""
        return max(1, min(BATCH, int(self._settings.changes_per_second)))

    # -- what each kind says -----------------------------------------------------------------------

    @abstractmethod
    def _note_commit(self, applied: AppliedCommit) -> bool:
        """Notes what of a commit concerns this kind; whether any of it does."""

    @abstractmethod
    def _next_look(self) -> float | None:
        """When what is planned already goes on, by the clock; None = nothing is."""

    def _forget(self, noted: DirtyBatch, snapshot: Snapshot) -> None:  # noqa: B027 - ACLs keep none
        """Removes the records of what is no more."""

    @abstractmethod
    def _drop_work(self) -> None:
        """Forgets what was planned."""

    @abstractmethod
    def _plan(self, noted: DirtyBatch, snapshot: Snapshot) -> None:
        """Adds what was noted to what is to be done."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """True if some of what is planned may be done now."""

    @abstractmethod
    def _do_part(self, admin: KafkaAdmin) -> None:
        """Looks, records what is asked, asks, and records what came of it, for one part."""
