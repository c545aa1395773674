"""Pushes to Kafka what holds below armed directories, for one elected reconciler, in its thread.

Walks over the topics that may want it, part by part, at a rate that is a setting. Refuses to decide
what is asked (``config_diff.py``), to ask it (``config_batch.py``), and to act while what is
inherited is not known.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from directory.federation import parent_state
from directory.kafka import recorded_topics as walk
from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.applying import config_diff
from directory.kafka.applying.config_batch import ConfigBatch, ConfigBatchResult, subjects_at
from directory.kafka.applying.config_diff import ArmedTopic, ConfigDiffOptions
from directory.kafka.applying.dirty_set import DirtyBatch, DirtySet
from directory.kafka.applying.last_applied_configs import (
    AppliedTopic,
    ArmedRecord,
    armed_anywhere,
    armed_records,
    load_applied_topic,
)
from directory.kafka.applying.partition_growth import PartitionQuota
from directory.kafka.applying.recent_changes import RecentConfigChanges
from directory.kafka.applying.releases import (
    Released,
    forget_release,
    inherited_basis,
    releases_of,
    why_inherited_missing,
)
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.metadata_diff import RecordedTopic
from directory.kafka.pin_and_stop import PinAndStop
from directory.kafka.reconciler_settings import CONFIGS, KafkaSettings
from directory.namespace.entry import ROOT_ID
from directory.namespace.snapshot import Snapshot
from directory.store.replica import AppliedCommit
from resolver.path import Path

__all__ = ["ConfigApplier"]

_log = logging.getLogger(__name__)

_BATCH: Final = 250
"""Topics of one request to Kafka, and of one step."""
_SCANNED: Final = 5_000
"""Topics that one step looks at in memory: people's wishes come in between."""
_AGAIN_SECONDS: Final = 2.0
"""Until what could not be finished is tried again."""
_ROOM_SECONDS: Final = 15.0
"""From one look whether there is room for what quotas held back to the next, whatever made it."""
_SHOWN_SECONDS: Final = 0.1
"""From one look whether Kafka shows what it acknowledged to the next."""
_AHEAD: Final = 1
"""So many batches that Kafka does not show yet may be under way when the next one is asked for: a
broker that has its hands full with one is not given a queue of them (``recent_changes.py``)."""


@dataclass(slots=True)
class _ConfigPass:
    """A walk over topics that may want pushing."""

    topics: Callable[[Snapshot], Iterator[ArmedTopic]]
    rules: ConfigDiffOptions
    mark: ArmedRecord | None = None
    """The arming that it carries out."""
    walk: Iterator[ArmedTopic] | None = None
    tally: ConfigBatchResult = field(default_factory=ConfigBatchResult)
    through: bool = False
    """All was asked; Kafka may not show all of it yet."""
    not_before: float = 0.0
    """By the clock: some of it is tried again."""


class ConfigApplier:
    """For one leader. ``hint`` and ``next_due`` may be called from any thread, ``apply_due`` by
    one.

    Args:
        latest: the newest snapshot, which holds what was committed before.
        altered: what was changed in Kafka a short while ago; others have to know it too.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: str,
        settings: KafkaSettings,
        commits: TopicCommits,
        latest: Callable[[], Snapshot],
        mount_at: Callable[[Snapshot], Path],
        altered: RecentConfigChanges,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._commits = commits
        self._latest = latest
        self._mount_at = mount_at
        self._clock = clock
        self._rules = ConfigDiffOptions(revert_external_changes=settings.revert_external_changes)
        self._altered = altered
        self._pushing = ConfigBatch(cluster, commits, latest, mount_at, self._altered, clock)
        self._hints = DirtySet()
        self._passes: list[_ConfigPass] = []
        self._no_room: dict[tuple[int, str], None] = {}
        """Places of topics that quotas keep from growing."""
        self._room_due = 0.0
        self._due = 0.0
        self.note = ""
        """Why nothing is pushed; empty = nothing is in the way."""

    # -- what may want pushing -----------------------------------------------------------------

    def hint(self, applied: AppliedCommit) -> bool:
        """Notes what a commit changed; whether that may want pushing."""
        if applied.reloaded:
            self._hints.note_all()
            return True
        if CONFIGS not in self._settings.ceiling or not armed_anywhere(applied.after, CONFIGS):
            return False
        return self._hints.note(applied)

    def next_due(self) -> float | None:
        """When there is something to do, by the clock; None = nothing waits, or all of it does."""
        if CONFIGS not in self._settings.ceiling:
            return None
        if self._hints:
            return self._due
        starts = [one.not_before for one in self._passes]
        starts += [self._room_due] if self._no_room else []
        return max(self._due, min(starts)) if starts else None

    # -- one step ------------------------------------------------------------------------------

    def apply_due(self, admin: KafkaAdmin) -> None:
        """Does a part of what is due: at most so much as the rate allows.

        Raises:
            KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
        """
        with self._hints.take_all() as noted:
            # Not before: a tree that is older than what was noted would say that nothing is due.
            snapshot = self._latest()
            mount = self._mount_at(snapshot)
            self._forget(noted, snapshot)
            look_for_room = bool(noted.gone) or self._clock() >= self._room_due
            if look_for_room:
                self._room_due = self._clock() + _ROOM_SECONDS
            if not self._may_push(snapshot):
                return
            self._plan_passes(noted, snapshot, mount)
            if look_for_room:
                self._look_for_room(snapshot, mount)
        ready = [one for one in self._passes if one.not_before <= self._clock()]
        if not ready:
            return
        # The last sweep is up to half a minute old, and now something will be changed.
        if admin.cluster_id() != PinAndStop.load(snapshot).pinned:
            self._due = self._clock() + _AGAIN_SECONDS
            return
        behind = self._altered.behind(admin)
        one = next((one for one in ready if behind <= (0 if one.through else _AHEAD)), None)
        if one is None:
            self._due = self._clock() + _SHOWN_SECONDS
        elif one.through:
            self._end(one)
        else:
            self._go_on(one, self._latest(), admin)

    def _may_push(self, snapshot: Snapshot) -> bool:
        """True if anything is armed, and all that it depends on is known."""
        if not armed_anywhere(snapshot, CONFIGS):
            return False
        self.note = why_inherited_missing(snapshot, has_parent=self._settings.has_parent)
        if self.note:
            # Woken when it is known. All is looked at then.
            self._passes = []
            self._hints.note_all()
            self._due = self._clock() + _AGAIN_SECONDS
        return not self.note

    def _go_on(self, one: _ConfigPass, snapshot: Snapshot, admin: KafkaAdmin) -> None:
        """The next part of a pass."""
        changed, began = 0, self._clock()
        try:
            subjects, one.through = self._gather(one, snapshot)
            if subjects:
                places = [subject.place for subject in subjects]
                changed = self._pushing.carry_out(snapshot, one.rules, one.tally, places, admin)
        except BaseException:
            # Kafka went away, or the store: what was taken from the walk is not lost.
            one.walk, one.through = None, False
            raise
        self._no_room |= one.tally.no_room
        one.tally.no_room = {}
        self._due = began + changed / self._settings.changes_per_second
        if one.through and not self._altered.behind(admin):
            self._end(one)

    def _end(self, one: _ConfigPass) -> None:
        if one.tally.unsure:
            # Others do not wait for it.
            one.topics = partial(self._at, places=list(one.tally.unsure))
            one.walk, one.through = None, False
            one.tally.unsure = {}
            one.not_before = self._clock() + _AGAIN_SECONDS
            return
        # Forgotten once its end is on record: a store that is away for a moment is asked again.
        if one.mark is not None:
            done = replace(one.mark, pending=False, made=one.tally.made, message=one.tally.refused)
            self._commits.put((done.to_put(),))
        self._passes.remove(one)

    def _forget(self, noted: DirtyBatch, snapshot: Snapshot) -> None:
        """What was pushed of topics that are no more."""
        forgotten = (
            write
            for entry_id in sorted(noted.gone)
            for write in (AppliedTopic().to_write(entry_id), forget_release(entry_id))
        )
        self._commits.put_all([one for one in forgotten if snapshot.fact(one.key) is not None])

    def _plan_passes(self, noted: DirtyBatch, snapshot: Snapshot, mount: Path) -> None:
        directories, topics, _, look_at_marks = noted
        if look_at_marks:
            self._carry_out_marks(snapshot, inherited_basis(snapshot, mount))
        if ROOT_ID in directories:
            directories = [ROOT_ID]
        self._passes += [self._below(one, self._rules) for one in directories]
        if topics:
            self._passes.append(_ConfigPass(partial(self._at, places=topics), self._rules))

    def _look_for_room(self, snapshot: Snapshot, mount: Path) -> None:
        """What may grow by now: a quota was raised, or something below it was removed or moved
        away. In memory; some at a time, each again after the others.
        """
        places = list(islice(self._no_room, _BATCH))
        if not places:
            return
        for place in places:
            del self._no_room[place]
        room, found = PartitionQuota(snapshot, mount), []
        for subject in self._at(snapshot, places):
            if subject.partitions <= subject.topic.partitions:
                continue
            if room.try_reserve(subject.place, subject.topic, subject.partitions):
                found.append(subject.place)
            else:
                self._no_room[subject.place] = None
        if found:
            self._passes.append(_ConfigPass(partial(self._at, places=found), self._rules))

    # -- what is released ----------------------------------------------------------------------

    def release_made(self, made: Iterable[tuple[RecordedTopic, bytes]]) -> None:
        """What is below an armed entry and kdir has just made there, with these ids in Kafka, is
        released without a plan.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        snapshot = self._latest()
        mount = self._mount_at(snapshot)
        released = (
            Released(place, one.topic.entry_id, topic_id)
            for one, topic_id in made
            if (place := walk.place_of(snapshot, mount, one)) is not None
        )
        self._commits.put_all(list(releases_of(snapshot, mount, released, "made")))

    def _carry_out_marks(self, snapshot: Snapshot, basis: str) -> None:
        """Armings that are not through yet. What each plan showed, its reader agreed to."""
        under_way = {one.mark.key for one in self._passes if one.mark is not None}
        for mark in armed_records(snapshot, CONFIGS):
            if not mark.pending or mark.key in under_way:
                continue
            rules = replace(self._rules, repeated=mark.basis == basis)
            one = self._below(mark.entry_id, rules)
            if mark.place is not None:
                one = _ConfigPass(partial(self._at, places=[mark.place]), rules)
            one.mark = mark
            self._passes.append(one)

    def _below(self, directory_id: int, rules: ConfigDiffOptions) -> _ConfigPass:
        def walk(snapshot: Snapshot) -> Iterator[ArmedTopic]:
            return config_diff.armed_topics(
                snapshot,
                self._mount_at(snapshot),
                parent_state.inherited_policies(snapshot),
                directory_id,
            )

        return _ConfigPass(walk, rules)

    def _at(self, snapshot: Snapshot, places: Sequence[tuple[int, str]]) -> Iterator[ArmedTopic]:
        return subjects_at(snapshot, self._mount_at(snapshot), places)

    def _gather(self, one: _ConfigPass, snapshot: Snapshot) -> tuple[list[ArmedTopic], bool]:
        """Returns the next topics of a pass that Kafka has to be asked about; whether it is
        through.
        """
        if one.walk is None:
            one.walk = one.topics(snapshot)
        most = max(1, min(_BATCH, int(self._settings.changes_per_second)))
        found: list[ArmedTopic] = []
        for _ in range(_SCANNED):
            subject = next(one.walk, None)
            if subject is None:
                return found, True
            try:
                pushed = load_applied_topic(snapshot, subject.topic.entry_id)
            except ValueError as reason:
                _log.error("%s is left alone: %s", subject.path, reason)
                continue
            if config_diff.needs_check(subject, pushed, one.rules):
                found.append(subject)
                if len(found) >= most:
                    return found, False
        return found, False
