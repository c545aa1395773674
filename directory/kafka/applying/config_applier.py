"""Configs and partitions below armed entries: which topics are looked at next, of those that may
need changes.

Walks over the topics part by part. Refuses to decide what is asked (``config_diff.py``), and to ask
it (``config_batch.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.adoption import recorded_topics as walk
from directory.kafka.adoption.metadata_diff import RecordedTopic
from directory.kafka.applying.applier import AGAIN_SECONDS, BATCH, Applier, DirtyBatch, first_of
from directory.kafka.applying.config_batch import (
    ConfigBatch,
    ConfigBatchResult,
    PartitionQuota,
    armed_now,
    subjects_at,
)
from directory.kafka.applying.config_diff import ConfigDiffOptions, needs_check
from directory.kafka.applying.desired_configs import ArmedTopic
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    ArmedRecord,
    armed_records,
    configs_to_write,
    load_applied_configs,
)
from directory.kafka.arming.releases import (
    Released,
    forget_release,
    inherited_basis,
    releases_of,
)
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.provisioning.recent_changes import RecentChanges
from directory.kafka.reconciler_settings import CONFIGS, KafkaContext
from directory.namespace.entry import ROOT_ID
from directory.namespace.snapshot import Snapshot
from directory.store.replica import AppliedCommit

__all__ = ["ConfigApplier"]

_log = logging.getLogger(__name__)

_SCANNED: Final = 5_000
"""Topics that one step looks at in memory: operators' requests come in between."""
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
    made: int = 0
    """Calls that Kafka acknowledged."""
    undone: dict[tuple[int, str], str] = field(default_factory=dict)
    """Where not all was done, and why."""
    unsure: dict[tuple[int, str], None] = field(default_factory=dict)
    """What has to be looked at again."""
    through: bool = False
    """All was asked; Kafka may not show all of it yet."""
    not_before: float = 0.0
    """By the clock: some of it is tried again."""


class ConfigApplier(Applier):
    """``Applier`` of configs and partitions."""

    aspect = CONFIGS

    def __init__(self, context: KafkaContext, commits: TopicCommits, recent: RecentChanges) -> None:
        super().__init__(context, commits, recent)
        self._rules = ConfigDiffOptions(
            revert_external_changes=self._settings.revert_external_changes
        )
        self._batch = ConfigBatch(
            self._cluster, commits, self._latest, self._mount_at, recent, self._clock
        )
        self._passes: list[_ConfigPass] = []
        self._no_room: dict[tuple[int, str], None] = {}
        """Places of topics that quotas keep from growing."""
        self._room_due = 0.0

    # -- what may want pushing -----------------------------------------------------------------

    def _note_commit(self, applied: AppliedCommit) -> bool:
        return self._noted.note(applied)

    def _next_look(self) -> float | None:
        starts = [one.not_before for one in self._passes]
        starts += [self._room_due] if self._no_room else []
        return min(starts, default=None)

    def _forget(self, noted: DirtyBatch, snapshot: Snapshot) -> None:
        forgotten = (
            write
            for entry_id in sorted(noted.gone)
            for write in (configs_to_write(entry_id, AppliedRecord()), forget_release(entry_id))
        )
        self._commits.put_all([one for one in forgotten if snapshot.fact(one.key) is not None])

    def _drop_work(self) -> None:
        self._passes = []

    def _plan(self, noted: DirtyBatch, snapshot: Snapshot) -> None:
        if noted.marks:
            self._carry_out_marks(snapshot)
        directories = [ROOT_ID] if ROOT_ID in noted.directories else noted.directories
        self._passes += [self._below(one, self._rules) for one in directories]
        if noted.topics:
            self._passes.append(self._at(noted.topics, self._rules))
        if noted.gone or self._clock() >= self._room_due:
            self._room_due = self._clock() + _ROOM_SECONDS
            self._look_for_room(snapshot)

    def _look_for_room(self, snapshot: Snapshot) -> None:
        """What may grow by now: a quota was raised, or something below it was removed or moved
        away. In memory; some at a time, each again after the others.
        """
        places = list(islice(self._no_room, BATCH))
        if not places:
            return
        for place in places:
            del self._no_room[place]
        mount = self._mount_at(snapshot)
        quota, found = PartitionQuota(snapshot, mount), []
        for subject in subjects_at(snapshot, mount, places):
            if subject.partitions <= subject.topic.partitions:
                continue
            if quota.try_reserve(subject.place, subject.topic, subject.partitions):
                found.append(subject.place)
            else:
                self._no_room[subject.place] = None
        if found:
            self._passes.append(self._at(found, self._rules))

    def _carry_out_marks(self, snapshot: Snapshot) -> None:
        """Armings that are not through yet. What each plan showed, its reader agreed to."""
        basis = inherited_basis(snapshot, self._mount_at(snapshot))
        under_way = {one.mark.key for one in self._passes if one.mark is not None}
        for mark in armed_records(snapshot, CONFIGS):
            if not mark.pending or mark.key in under_way:
                continue
            rules = replace(self._rules, repeated=mark.basis == basis)
            if mark.place is None:
                one = self._below(mark.entry_id, rules)
            else:
                one = self._at([mark.place], rules)
            one.mark = mark
            self._passes.append(one)

    def _below(self, directory_id: int, rules: ConfigDiffOptions) -> _ConfigPass:
        def walk(snapshot: Snapshot) -> Iterator[ArmedTopic]:
            return armed_now(snapshot, self._mount_at(snapshot)).below(directory_id)

        return _ConfigPass(walk, rules)

    def _at(self, places: Sequence[tuple[int, str]], rules: ConfigDiffOptions) -> _ConfigPass:
        return _ConfigPass(partial(self._subjects_at, places=places), rules)

    def _subjects_at(
        self, snapshot: Snapshot, places: Sequence[tuple[int, str]]
    ) -> Iterator[ArmedTopic]:
        return subjects_at(snapshot, self._mount_at(snapshot), places)

    # -- one part ------------------------------------------------------------------------------

    def _ready(self) -> list[_ConfigPass]:
        return [one for one in self._passes if one.not_before <= self._clock()]

    def _is_ready(self) -> bool:
        return bool(self._ready())

    def _do_part(self, admin: KafkaAdmin) -> None:
        behind = self._recent.count_behind(admin)
        ready = self._ready()
        one = next((one for one in ready if behind <= (0 if one.through else _AHEAD)), None)
        if one is None:
            self._due = self._clock() + _SHOWN_SECONDS
        elif one.through:
            self._end(one)
        else:
            self._go_on(one, self._latest(), admin)

    def _go_on(self, one: _ConfigPass, snapshot: Snapshot, admin: KafkaAdmin) -> None:
        """The next part of a pass."""
        began, result = self._clock(), ConfigBatchResult()
        try:
            subjects, one.through = self._gather(one, snapshot)
            if subjects:
                places = [subject.place for subject in subjects]
                self._batch.carry_out(snapshot, one.rules, places, admin, result)
        except BaseException:
            # Kafka went away, or the store: what was taken from the walk is not lost.
            one.walk, one.through = None, False
            raise
        finally:
            one.made += sum(result.made.values())
        one.undone |= result.undone
        one.unsure |= result.unsure
        self._no_room |= result.no_room
        changed = len(result.made) + len(result.undone) + len(result.unsure)
        self._due = began + changed / self._settings.changes_per_second
        if one.through and not self._recent.count_behind(admin):
            self._end(one)

    def _end(self, one: _ConfigPass) -> None:
        if one.unsure:
            # Others do not wait for it.
            one.topics = partial(self._subjects_at, places=list(one.unsure))
            one.walk, one.through = None, False
            one.unsure = {}
            one.not_before = self._clock() + AGAIN_SECONDS
            return
        # Forgotten once its end is on record: a store that is away for a moment is asked again.
        if one.mark is not None:
            message = first_of(list(one.undone.values()))
            done = replace(one.mark, pending=False, made=one.made, message=message)
            self._commits.put((done.to_put(),))
        self._passes.remove(one)

    def _gather(self, one: _ConfigPass, snapshot: Snapshot) -> tuple[list[ArmedTopic], bool]:
        """Returns the next topics of a pass that Kafka has to be asked about; whether it is
        through.
        """
        if one.walk is None:
            one.walk = one.topics(snapshot)
        found: list[ArmedTopic] = []
        for _ in range(_SCANNED):
            subject = next(one.walk, None)
            if subject is None:
                return found, True
            try:
                recorded = load_applied_configs(snapshot, subject.topic.entry_id)
            except ValueError as reason:
                _log.error("%s is left alone: %s", subject.path, reason)
                continue
            if needs_check(subject, recorded, one.rules):
                found.append(subject)
                if len(found) >= self._most:
                    return found, False
        return found, False

    # -- what is released ----------------------------------------------------------------------

    def release_made(self, made: Iterable[tuple[RecordedTopic, bytes]]) -> None:
        """Releases, without a plan, what is below an armed entry and kdir has just made there with
        these ids in Kafka.

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
