"""Applies configs and partitions of topics below armed entries: chooses the next batch, compares it
with Kafka, makes the calls and records their outcomes.

Each call is on record before it is made, so that a process may end after any step. Partitions that
a quota binds are first recorded in the tree: two changes that grow or create topics below one quota
at the same time never exceed it (decision 0033). A topic whose id is not the one on record is not
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Final, assert_never

from directory.kafka.admin_contract import (
    GROW,
    AlreadyDone,
    ConfigChange,
    KafkaAdmin,
    KafkaCall,
    KafkaTopic,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Succeeded,
    format_value,
)
from directory.kafka.adoption import recorded_topics as walk
from directory.kafka.adoption.metadata_diff import config_news
from directory.kafka.applying.applier import (
    AGAIN_SECONDS,
    BATCH,
    Applier,
    BatchResult,
    DirtyBatch,
    first_of,
)
from directory.kafka.applying.config_diff import (
    PARTITIONS,
    ConfigDiff,
    ConfigDiffOptions,
    ObservedConfig,
    calls_hash,
    diff_configs,
    needs_check,
)
from directory.kafka.applying.desired_acls import start_of
from directory.kafka.applying.desired_configs import (
    ArmedTopic,
    ArmedTopics,
    PartitionQuota,
    RecordedTopic,
)
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
    ArmedRecord,
    armed_records,
    configs_to_write,
    load_applied_configs,
)
from directory.kafka.arming.drift import drifted_settings
from directory.kafka.arming.releases import (
    NAMED,
    Released,
    forget_release,
    inherited_basis,
    releases_of,
    unchanged_basis,
)
from directory.kafka.fenced_commits import StaleObservation, TopicCommits
from directory.kafka.kafka_context import CONFIGS, KafkaContext
from directory.kafka.provisioning.acknowledged_changes import AcknowledgedChanges
from directory.namespace.command import TopicObservation
from directory.namespace.entry import ROOT_ID
from directory.namespace.keys import ENTRY, PUSHED, entry_id_in
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import entry_path
from directory.store.base import Write
from directory.store.replica import AppliedCommit
from resolver.errors import UnreadableRecord
from resolver.path import Path

__all__ = ["ConfigApplier"]

_log = logging.getLogger(__name__)

_SCANNED: Final = 5_000
"""Topics that one step checks in memory; operators' requests are served between two steps."""
_ROOM_SECONDS: Final = 15.0
"""Interval between checks whether quotas allow what they refused before."""
_SHOWN_SECONDS: Final = 0.1
"""Interval between checks whether Kafka shows the changes that it acknowledged."""
_AHEAD: Final = 1
"""Most earlier batches that Kafka does not show yet when the next one is sent: a busy broker does
not get a queue of batches (``acknowledged_changes.py``)."""
_LOOK_SECONDS: Final = 2.0
"""Longest time from comparing a topic's id to changing it: requests have the name only."""

_Place = tuple[int, str]
"""Place of a topic: parent id and name."""


@dataclass(slots=True)
class _ConfigPass:
    """A pass over topics that may need pushing."""

    topics: Callable[[Snapshot], Iterator[ArmedTopic]]
    rules: ConfigDiffOptions
    mark: ArmedRecord | None = None
    walk: Iterator[ArmedTopic] | None = None
    made: int = 0
    """Calls that Kafka acknowledged."""
    undone: dict[_Place, str] = field(default_factory=dict)
    """Why not all calls for a topic were made."""
    unsure: dict[_Place, None] = field(default_factory=dict)
    """Topics whose outcome is unknown: Kafka has to be read again."""
    through: bool = False
    """True: all calls were made; Kafka may not show all changes yet."""
    not_before: float = 0.0
    """Time of the retry of unsure topics, by the clock."""


@dataclass(frozen=True, slots=True)
class _CallOutcomes:
    """Outcomes of the calls of one batch, by topic."""

    altered: dict[str, Outcome] = field(default_factory=dict)
    """Outcome of changing all configs of a topic together."""
    grown: dict[str, Outcome] = field(default_factory=dict)
    """Outcome of growing a topic."""

    def _of_call(self, name: str, operation: str) -> Outcome:
        of_kind = self.grown if operation == GROW else self.altered
        return of_kind.get(name, _NO_OUTCOME)

    def acknowledged_calls(self, diff: ConfigDiff) -> tuple[KafkaCall, ...]:
        """Returns the calls of a diff that Kafka acknowledged."""
        found = ((call, self._of_call(diff.subject.name, call.operation)) for call in diff.calls)
        return tuple(call for call, one in found if isinstance(one, Succeeded | AlreadyDone))

    def of_topic(self, diff: ConfigDiff) -> Outcome:
        """Returns the outcome of all calls of a diff: an unknown one if any is, else a rejection if
        any is, else a success. So a rejected config is retried until the outcome of the growth is
        known.
        """
        operations = sorted({call.operation for call in diff.calls})
        found = [self._of_call(diff.subject.name, one) for one in operations]
        for kind in (OutcomeUnknown, Rejected):
            for one in found:
                if isinstance(one, kind):
                    return one
        return found[0]


_NO_OUTCOME: Final = OutcomeUnknown("no outcome")


class ConfigApplier(Applier):
    """``Applier`` of configs and partitions."""

    aspect = CONFIGS

    def __init__(
        self,
        context: KafkaContext,
        commits: TopicCommits,
        acknowledged: AcknowledgedChanges,
    ) -> None:
        super().__init__(context, commits, acknowledged)
        self._rules = ConfigDiffOptions(
            revert_external_changes=self._settings.revert_external_changes
        )
        self._passes: list[_ConfigPass] = []
        self._no_room: dict[_Place, None] = {}
        """Places of topics that quotas keep from growing."""
        self._room_due = 0.0

    # -- planning ------------------------------------------------------------------------------

    def _note_commit(self, applied: AppliedCommit) -> bool:
        return self._noted.note(applied)

    def _next_look(self) -> float | None:
        starts = [one.not_before for one in self._passes]
        starts += [self._room_due] if self._no_room else []
        return min(starts, default=None)

    def _forget(self, noted: DirtyBatch, snapshot: Snapshot) -> None:
        forgotten = (
            write
            for entry_id in sorted(noted.gone | (_left_over(snapshot) if noted.is_all else set()))
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
            self._passes.append(self._at(list(noted.topics), self._rules))
        if noted.gone or self._clock() >= self._room_due:
            self._room_due = self._clock() + _ROOM_SECONDS
            self._look_for_room(snapshot)

    def _look_for_room(self, snapshot: Snapshot) -> None:
        """Adds a pass over topics that quotas let grow now; checks the next batch of them only."""
        places = list(islice(self._no_room, BATCH))
        if not places:
            return
        for place in places:
            del self._no_room[place]
        quota, found = PartitionQuota(snapshot, self._mount_at(snapshot)), []
        for subject in self._armed(snapshot).at_places(places):
            if subject.partitions <= subject.topic.partitions:
                continue
            if quota.try_reserve(subject.place, subject.topic, subject.partitions):
                found.append(subject.place)
            else:
                self._no_room[subject.place] = None
        if found:
            self._passes.append(self._at(found, self._rules))

    def _carry_out_marks(self, snapshot: Snapshot) -> None:
        """Adds a pass for each unfinished arming, whose plan an operator approved."""
        basis = inherited_basis(snapshot, self._mount_at(snapshot))
        pending = [mark for mark in armed_records(snapshot, CONFIGS) if mark.pending]
        plans = {mark.key: mark.plan for mark in pending}
        # The pass of an entry that another plan armed again ends: the new pass finds the rest.
        self._passes = [
            one
            for one in self._passes
            if one.mark is None or plans.get(one.mark.key, one.mark.plan) == one.mark.plan
        ]
        under_way = {one.mark.key for one in self._passes if one.mark is not None}
        for mark in pending:
            if mark.key in under_way:
                continue
            rules = replace(self._rules, repeated=mark.basis == basis)
            one = self._below(mark.entry_id, rules)
            if mark.place is not None:
                one = self._at_start(mark, mark.place, rules)
            one.mark = mark
            self._passes.append(one)

    def _below(self, directory_id: int, rules: ConfigDiffOptions) -> _ConfigPass:
        return _ConfigPass(lambda now: self._armed(now).below(directory_id), rules)

    def _at(self, places: Sequence[_Place], rules: ConfigDiffOptions) -> _ConfigPass:
        return _ConfigPass(lambda now: self._armed(now).at_places(places), rules)

    def _at_start(self, mark: ArmedRecord, place: _Place, rules: ConfigDiffOptions) -> _ConfigPass:
        """Returns a pass over one armed topic, even if it was moved."""
        return _ConfigPass(
            lambda now: self._armed(now).at_places([start_of(now, mark) or place]), rules
        )

    def _armed(self, snapshot: Snapshot) -> ArmedTopics:
        return ArmedTopics(snapshot, self._mount_at(snapshot))

    # -- one part ------------------------------------------------------------------------------

    def _ready(self) -> list[_ConfigPass]:
        return [one for one in self._passes if one.not_before <= self._clock()]

    def _is_ready(self) -> bool:
        return bool(self._ready())

    def _do_part(self, admin: KafkaAdmin) -> None:
        behind = self._acknowledged.count_behind(admin)
        ready = self._ready()
        one = next((one for one in ready if behind <= (0 if one.through else _AHEAD)), None)
        if one is None:
            self._due = self._clock() + _SHOWN_SECONDS
        elif one.through:
            self._end(one)
        else:
            self._go_on(one, self._latest(), admin)

    def _go_on(self, one: _ConfigPass, snapshot: Snapshot, admin: KafkaAdmin) -> None:
        """Does the next part of a pass."""
        began, result = self._clock(), BatchResult[_Place]()
        try:
            subjects, one.through = self._gather(one, snapshot)
            if subjects:
                places = [subject.place for subject in subjects]
                self._carry_out(snapshot, one.rules, places, admin, result)
        except BaseException:
            # Kafka or the store is unreachable. The pass starts again, so it skips no topic.
            one.walk, one.through = None, False
            raise
        finally:
            one.made += sum(result.made.values())
        one.undone |= result.undone
        one.unsure |= result.unsure
        changed = len(result.made) + len(result.undone) + len(result.unsure)
        self._due = began + changed / self._settings.changes_per_second
        if one.through and not self._acknowledged.count_behind(admin):
            self._end(one)

    def _end(self, one: _ConfigPass) -> None:
        if one.unsure:
            # Retried later, so that other passes do not wait for these topics.
            again = self._at(list(one.unsure), one.rules)
            one.topics, one.walk, one.through, one.unsure = again.topics, None, False, {}
            one.not_before = self._clock() + AGAIN_SECONDS
            return
        # Removed only once its end is on record: a commit that fails is repeated.
        if one.mark is not None:
            message = first_of(list(one.undone.values()))
            self._put_marks([replace(one.mark, pending=False, made=one.made, message=message)])
        self._passes.remove(one)

    def _gather(self, one: _ConfigPass, snapshot: Snapshot) -> tuple[list[ArmedTopic], bool]:
        """Returns the next topics to compare with Kafka, and whether the pass is through."""
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

    # -- one batch -----------------------------------------------------------------------------

    def _carry_out(
        self,
        snapshot: Snapshot,
        rules: ConfigDiffOptions,
        places: Sequence[_Place],
        admin: KafkaAdmin,
        result: BatchResult[_Place],
    ) -> None:
        """Compares the topics at these places with Kafka, makes the calls that follow and records
        their outcomes. ``rules`` must be those of the snapshot. ``result`` gets the outcomes; if
        this raises, those of the calls that Kafka acknowledged before.
        """
        diffs = self._diff(snapshot, rules, places, admin, result)
        # Growth that waits for approval and was not made must not count for a quota.
        self._commits.record([news for one in diffs if (news := _held_growth(one)) is not None])
        bound = self._bound_by_quotas(diffs)
        # Recorded as not done: the next leader then checks the topic again.
        diffs = [_growing(one) if one.subject.place in bound else one for one in diffs]
        self._commits.put_all([one.to_write(one.asked) for one in diffs if one.asked != one.before])
        allowed = self._reserve_growth(diffs, bound)
        asks = [one for one in allowed if one.calls]
        outcomes = _CallOutcomes()
        try:
            if asks:
                self._make_calls(snapshot, asks, admin, outcomes)
        finally:
            self._record(result, allowed, outcomes)

    def _diff(
        self,
        snapshot: Snapshot,
        rules: ConfigDiffOptions,
        places: Sequence[_Place],
        admin: KafkaAdmin,
        result: BatchResult[_Place],
    ) -> list[ConfigDiff]:
        # Read again: the topics may have changed since the pass began.
        now = list(self._armed(snapshot).at_places(places))
        names = [subject.name for subject in now]
        shown, configs = admin.describe(names), admin.configs(names)
        diffs = []
        for subject in now:
            name = subject.name
            recorded = load_applied_configs(snapshot, subject.topic.entry_id)
            seen, found = shown.get(name), configs.get(name)
            if isinstance(found, Rejected):
                result.undone[subject.place] = f"configs of {name}: {found.message}"
            elif not isinstance(seen, KafkaTopic) or not _is_same(subject, seen) or found is None:
                # The broker that returned the configs may not have the topic yet, either.
                if _may_come(seen) or _is_same(subject, seen):
                    result.unsure[subject.place] = None
            else:
                known = self._acknowledged.correct_configs(seen.topic_id, found)
                have = ObservedConfig(known, self._acknowledged.correct_topic(seen).partitions)
                diffs.append(diff_configs(subject, have, recorded, rules))
        return diffs

    def _bound_by_quotas(self, diffs: Sequence[ConfigDiff]) -> set[_Place]:
        """Returns the places of the topics that are to grow and whose partitions a quota limits."""
        growing = [one.subject for one in diffs if one.grows_to]
        if not growing:
            return set()
        newest = self._latest()
        quota = PartitionQuota(newest, self._mount_at(newest))
        return {subject.place for subject in growing if quota.binds(subject)}

    def _reserve_growth(
        self, diffs: Sequence[ConfigDiff], bound: set[_Place]
    ) -> Sequence[ConfigDiff]:
        """Records the growth in the tree; returns the diffs without growth that a quota refused."""
        if not bound:
            return diffs
        growing = [one for one in diffs if one.subject.place in bound]
        news = [one.subject.observation(partitions=one.grows_to) for one in growing]
        self._commits.record(news, within_quotas=True)
        snapshot, kept = self._latest(), dict[_Place, ConfigDiff]()
        for one in growing:
            place = one.subject.place
            now = snapshot.topic(*place)
            if now is None or now.partitions < one.grows_to:
                kept[place] = _without_growth(one)
                self._no_room[place] = None
        self._commits.put_all([one.to_write(one.asked) for one in kept.values()])
        return [kept.get(one.subject.place, one) for one in diffs]

    def _make_calls(
        self,
        snapshot: Snapshot,
        asks: Sequence[ConfigDiff],
        admin: KafkaAdmin,
        outcomes: _CallOutcomes,
    ) -> None:
        """Makes the calls; ``outcomes`` gets what is known of them even if this raises, but nothing
        for topics with another id by now.
        """
        basis = inherited_basis(snapshot, self._mount_at(snapshot))
        is_released = unchanged_basis(basis, self._latest, self._mount_at)
        names = [one.subject.name for one in asks]
        # The commits before may have taken long: the ids are compared right before the calls.
        shown = admin.describe(names)
        still = self._commits.check_fresh(self._clock, _LOOK_SECONDS, is_released)
        same = [one for one in asks if _is_same(one.subject, shown.get(one.subject.name))]
        changes = [ConfigChange(one.subject.name, a) for one in same if (a := one.alterations)]
        grown = {one.subject.name: one.grows_to for one in same if one.grows_to}
        try:
            if changes:
                outcomes.altered.update(admin.alter_configs(changes, still))
            if grown:
                outcomes.grown.update(admin.create_partitions(grown, still))
        except StaleObservation:
            # The next read of Kafka finds out what is left to do.
            _log.warning("%s: %d topics are looked at again", self._cluster, len(same))

    def _record(
        self,
        result: BatchResult[_Place],
        diffs: Sequence[ConfigDiff],
        outcomes: _CallOutcomes,
    ) -> None:
        writes: list[Write] = []
        news: list[TopicObservation] = []
        changed: list[ConfigDiff] = []
        snapshot = self._latest()
        mount = self._mount_at(snapshot)
        for one in diffs:
            name, place = one.subject.name, one.subject.place
            diff = _relocated(one, snapshot, mount)  # it may have been moved during the calls
            if not diff.calls:
                news += _news(diff)
                continue
            if made := outcomes.acknowledged_calls(diff):
                result.made[place] = len(made)
                changed.append(replace(diff, calls=made))
            match outcomes.of_topic(diff):
                case Succeeded() | AlreadyDone():
                    news += _news(diff)
                    if diff.done != diff.asked:
                        writes.append(diff.to_write(diff.done))
                    _log.info("%s: %s", self._cluster, _diff_text(diff))
                case Rejected(message):
                    result.undone[place] = f"{name}: {message}"
                    _log.warning("%s: %s refused: %s", self._cluster, name, message)
                    left = calls_hash(one for one in diff.calls if one not in made)
                    kept = replace(diff.asked, refused=message, refused_calls=left)
                    writes.append(diff.to_write(kept))
                    growth = diff.asked.settings.get(PARTITIONS)
                    refused = isinstance(outcomes.grown.get(name), Rejected)
                    if refused and growth is not None:
                        news.append(_without_reserved(diff, growth))
                    elif diff.grows_to and not refused:  # only a config was refused
                        news += _news(replace(diff, configs=diff.subject.topic.observed_config))
                case OutcomeUnknown(message):
                    result.unsure[place] = None
                    _log.warning("%s: %s: %s; it is tried again", self._cluster, name, message)
                case other:
                    assert_never(other)
        # Before the commits, which may raise: Kafka was changed in any case.
        self._acknowledged.note_changes(changed)
        self._commits.record(news)
        self._commits.put_all(writes)

    def release_made(self, made: Iterable[tuple[RecordedTopic, bytes]]) -> None:
        """Releases topics that kdir has just made below armed entries, with these topic ids."""
        snapshot = self._latest()
        mount = self._mount_at(snapshot)
        released = (
            Released(place, one.topic.entry_id, topic_id)
            for one, topic_id in made
            if (place := walk.place_of(snapshot, mount, one)) is not None
        )
        self._commits.put_all(list(releases_of(snapshot, mount, released, "made")))


def _left_over(snapshot: Snapshot) -> set[int]:
    """Returns the entry ids with stored records and without a topic; none while an entry cannot be
    read (S21).
    """
    rows = ((key, prefix) for prefix in (PUSHED, NAMED) for key, _ in snapshot.facts(prefix))
    kept = {entry_id_in(key, prefix) for key, prefix in rows}
    if not kept or any(key.startswith(ENTRY) for key in snapshot.unreadable_values):
        return set()
    for _, contents in snapshot.contents():
        kept.difference_update(map(snapshot.codec.entry_id, contents.topics.values()))
    return kept


def _is_same(subject: ArmedTopic, seen: KafkaTopic | Rejected | None) -> bool:
    topic_id = subject.topic.topic_id
    return isinstance(seen, KafkaTopic) and bool(seen.partitions and topic_id) and (
        seen.topic_id == topic_id
    )  # fmt: skip


def _may_come(seen: KafkaTopic | Rejected | None) -> bool:
    """True if a broker may show the whole topic later, as right after it was made. The next sweep
    finds a topic that is really gone.
    """
    return seen is None or (
        isinstance(seen, KafkaTopic) and not (seen.partitions and seen.topic_id)
    )


def _news(diff: ConfigDiff) -> list[TopicObservation]:
    subject, topic = diff.subject, diff.subject.topic
    news = config_news(subject, diff.configs)
    if diff.partitions <= topic.partitions:
        return [] if news is None else [news]
    after = replace(topic, observed_config=diff.configs, partitions=diff.partitions)
    drift = len(drifted_settings(after, desired_config=subject.desired_config))
    known = news or subject.observation()
    return [replace(known, partitions=after.partitions, drift_count=drift)]


def _held_growth(diff: ConfigDiff) -> TopicObservation | None:
    """Returns the observation to record for growth that is on record, that Kafka did not make and
    that now needs approval; None = there is no such growth.
    """
    growth = diff.before.settings.get(PARTITIONS)
    if growth is None or growth.was is None or PARTITIONS not in diff.asked.held:
        return None
    if diff.partitions_before >= int(growth.value):
        return None  # Kafka made it, but its answer was lost
    return _without_reserved(diff, growth)


def _without_reserved(diff: ConfigDiff, growth: AppliedSetting) -> TopicObservation:
    """Returns the observation that takes back recorded growth which is not made: the partitions
    before it, or those that Kafka has now if more, since an earlier call's answer may be lost.
    """
    was, refused = max(int(growth.was or 0), diff.partitions_before), int(growth.value)
    return diff.subject.observation(partitions=was, refused_partitions=refused)


def _relocated(diff: ConfigDiff, snapshot: Snapshot, mount: Path) -> ConfigDiff:
    """Returns the diff with the topic's current path."""
    subject = diff.subject
    try:
        located = snapshot.locate(subject.name)
    except UnreadableRecord:
        return diff
    if located is None or located.relative is None:
        return diff
    if located.topic.entry_id != subject.topic.entry_id:
        return diff
    path = entry_path(mount, located.relative)
    return diff if path == subject.path else replace(diff, subject=replace(subject, path=path))


def _diff_text(diff: ConfigDiff) -> str:
    first = diff.calls[0]
    more = f" and {len(diff.calls) - 1} more" if len(diff.calls) > 1 else ""
    return f"{first.operation} {first.resource} {first.key} → {format_value(first.after)}{more}"


def _growing(diff: ConfigDiff) -> ConfigDiff:
    """Returns the diff with a record of its growth as not done, and of the partitions that the tree
    had before it.
    """
    were, last = str(diff.subject.topic.partitions), diff.before.settings.get(PARTITIONS)
    was = last.was if last is not None and last.value == were else were
    setting = AppliedSetting(str(diff.grows_to), done=False, was=was)
    settings = MappingProxyType({**diff.asked.settings, PARTITIONS: setting})
    return replace(diff, asked=replace(diff.asked, settings=settings))


def _without_growth(diff: ConfigDiff) -> ConfigDiff:
    calls = tuple(call for call in diff.calls if call.operation != GROW)
    settings = {key: one for key, one in diff.asked.settings.items() if key != PARTITIONS}
    asked = replace(diff.asked, settings=MappingProxyType(settings))
    return replace(diff, asked=asked, calls=calls, partitions=diff.partitions_before)
