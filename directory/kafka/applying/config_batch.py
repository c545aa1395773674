"""One batch of configs and partitions: what Kafka has, what follows, the calls, what came of them.

What is asked is on record before it is asked, so that every step may be the last one of a process
(as in ``provisioning.py``). Partitions that a quota binds are written down in the tree first, so
that of two that grow or create below one quota at the same time only so much comes as there is room
for (decision 0033). Refuses to decide what is asked (``config_diff.py``), which topics are next
(``config_applier.py``), and to touch a topic whose id is not the one on record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, assert_never

from directory.federation import parent_state
from directory.kafka.admin_contract import (
    ALTER,
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
)
from directory.kafka.adoption.metadata_diff import (
    RecordedTopic,
    config_news,
    differences,
    format_value,
)
from directory.kafka.applying.applier import BatchResult
from directory.kafka.applying.config_diff import (
    PARTITIONS,
    ConfigDiff,
    ConfigDiffOptions,
    ObservedConfig,
    calls_hash,
    diff_configs,
)
from directory.kafka.applying.desired_configs import ArmedTopic, ArmedTopics, DesiredTopicConfig
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
    configs_to_write,
    load_applied_configs,
)
from directory.kafka.arming.releases import inherited_basis, unchanged_basis
from directory.kafka.fenced_commits import StaleObservation, TopicCommits
from directory.kafka.provisioning.recent_changes import AcknowledgedChange, RecentChanges
from directory.namespace.command import TopicObservation
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import Topic
from directory.namespace.quotas import Quota, quotas_at
from directory.namespace.snapshot import Snapshot
from directory.store.base import Write
from resolver.path import Path

__all__ = [
    "NO_ROOM",
    "ConfigBatch",
    "ConfigBatchResult",
    "PartitionQuota",
    "armed_now",
    "subjects_at",
]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 2.0
"""Kafka changes by name: no longer after its id was compared may a topic be changed."""
_QUOTA: Final = "max_partitions"
NO_ROOM: Final = "quota-exceeded"
"""What is reported of partitions that a quota leaves no room for."""

_Place = tuple[int, str]
_Judged = tuple[ArmedTopic, ConfigDiff]


@dataclass(slots=True)
class ConfigBatchResult(BatchResult[_Place]):
    """Outcome of the calls, by the topic's place (parent id, name)."""

    no_room: dict[_Place, None] = field(default_factory=dict)
    """Places of what did not grow, for a quota leaves no room."""


def armed_now(snapshot: Snapshot, mount: Path) -> ArmedTopics:
    """Returns the topics of a snapshot that are armed.

    Raises:
        NotReady: what is inherited is not known.
    """
    return ArmedTopics(snapshot, mount, parent_state.inherited_policies(snapshot))


def subjects_at(snapshot: Snapshot, mount: Path, places: Sequence[_Place]) -> Iterator[ArmedTopic]:
    """Yields those of the topics at these places that are armed."""
    found = map(armed_now(snapshot, mount).at_place, places)
    return (one for one in found if one is not None)


class ConfigBatch:
    """Batches of one leader, in its thread. The arguments are those of ``ConfigApplier``."""

    def __init__(
        self,
        cluster: str,
        commits: TopicCommits,
        latest: Callable[[], Snapshot],
        mount_at: Callable[[Snapshot], Path],
        recent: RecentChanges,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._commits = commits
        self._latest = latest
        self._mount_at = mount_at
        self._recent = recent
        self._clock = clock

    def carry_out(
        self,
        snapshot: Snapshot,
        rules: ConfigDiffOptions,
        places: Sequence[_Place],
        admin: KafkaAdmin,
        result: ConfigBatchResult,
    ) -> None:
        """Judges the topics at these places by what Kafka has, asks for what follows and records
        what came of it. The snapshot is one on which these rules hold. ``result`` gets the outcome;
        also where this raises, the calls that Kafka acknowledged are in it.

        Raises:
            KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
        """
        judged = self._judge(snapshot, rules, places, admin, result)
        bound = self._bound_by_quotas(judged)
        writes: list[Write] = []
        for subject, verdict, recorded in judged:
            # Until Kafka was asked to grow, a leader that comes next looks at the topic again.
            asked = _growing(verdict).asked if subject.place in bound else verdict.asked
            if asked != recorded:
                writes.append(configs_to_write(subject.topic.entry_id, asked))
        self._commits.put_all(writes)
        allowed = self._reserve_growth([one[:2] for one in judged], bound, result)
        asks = [pair for pair in allowed if pair[1].calls]
        outcomes = self._make_calls(snapshot, asks, admin) if asks else {}
        self._record(result, allowed, outcomes)

    def _judge(
        self,
        snapshot: Snapshot,
        rules: ConfigDiffOptions,
        places: Sequence[_Place],
        admin: KafkaAdmin,
        result: ConfigBatchResult,
    ) -> list[tuple[ArmedTopic, ConfigDiff, AppliedRecord[str]]]:
        # As they are by now: the walk may be old.
        now = list(subjects_at(snapshot, self._mount_at(snapshot), places))
        names = [subject.topic.physical_name for subject in now]
        shown, configs = admin.describe(names), admin.configs(names)
        judged = []
        for subject in now:
            name = subject.topic.physical_name
            recorded = load_applied_configs(snapshot, subject.topic.entry_id)
            seen, found = shown.get(name), configs.get(name)
            if isinstance(found, Rejected):
                result.undone[subject.place] = f"configs of {name}: {found.message}"
            elif not isinstance(seen, KafkaTopic) or not _is_same(subject, seen) or found is None:
                if _may_come(seen):
                    result.unsure[subject.place] = None
            else:
                known = self._recent.correct_configs(seen.topic_id, found)
                have = ObservedConfig(known, self._recent.correct_topic(seen).partitions)
                verdict = diff_configs(subject, have, recorded, rules)
                judged.append((subject, verdict, recorded))
        return judged

    # -- quotas ----------------------------------------------------------------------------------

    def _bound_by_quotas(
        self, judged: Sequence[tuple[ArmedTopic, ConfigDiff, object]]
    ) -> set[_Place]:
        """Returns the places of what is to grow and a quota binds."""
        growing = [subject for subject, verdict, _ in judged if verdict.grows_to]
        if not growing:
            return set()
        newest = self._latest()
        quota = PartitionQuota(newest, self._mount_at(newest))
        return {subject.place for subject in growing if quota.binds(subject)}

    def _reserve_growth(
        self, judged: list[_Judged], bound: set[_Place], result: ConfigBatchResult
    ) -> list[_Judged]:
        """Writes the growth down, and leaves out what there is no room for.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        if not bound:
            return judged
        news = [
            TopicObservation(
                path=subject.path, entry_id=subject.topic.entry_id, partitions=verdict.grows_to
            )
            for subject, verdict in judged
            if subject.place in bound
        ]
        for note in self._commits.reserve(news):
            _log.warning("not grown: %s", note)
        snapshot = self._latest()
        found: list[_Judged] = []
        writes: list[Write] = []
        for subject, verdict in judged:
            now = snapshot.topic(*subject.place)
            if subject.place not in bound:
                found.append((subject, verdict))
            elif now is not None and now.partitions >= verdict.grows_to:
                found.append((subject, _growing(verdict)))
            else:
                writes.append(configs_to_write(subject.topic.entry_id, verdict.asked))
                found.append((subject, _without_growth(verdict)))
                result.no_room[subject.place] = None
        self._commits.put_all(writes)
        return found

    # -- the calls -------------------------------------------------------------------------------

    def _make_calls(
        self, snapshot: Snapshot, asks: Sequence[_Judged], admin: KafkaAdmin
    ) -> dict[str, Outcome]:
        """Makes the calls; the outcome of each topic. One whose id is not the one that was compared
        any more is left out.
        """
        basis = inherited_basis(snapshot, self._mount_at(snapshot))
        is_released = unchanged_basis(basis, self._latest, self._mount_at)
        names = [subject.topic.physical_name for subject, _ in asks]
        # What was committed since may have taken long: the ids are compared right before.
        shown = admin.describe(names)
        still = self._commits.check_fresh(self._clock, _LOOK_SECONDS, is_released)
        same = [pair for pair in asks if _is_same(pair[0], shown.get(pair[0].topic.physical_name))]
        changes = [
            ConfigChange(subject.topic.physical_name, verdict.alterations)
            for subject, verdict in same
            if verdict.alterations
        ]
        grown = {
            subject.topic.physical_name: verdict.grows_to
            for subject, verdict in same
            if verdict.grows_to
        }
        outcomes: dict[str, Outcome] = {}
        try:
            if changes:
                outcomes.update(admin.alter_configs(changes, still))
            if grown:
                for name, outcome in admin.create_partitions(grown, still).items():
                    if isinstance(outcomes.get(name, Succeeded()), Succeeded):
                        outcomes[name] = outcome
        except StaleObservation:
            _log.warning("%s: %d topics are looked at again", self._cluster, len(same))
            # Whichever were changed, it is found out by looking.
            return dict.fromkeys(names, OutcomeUnknown("looked at too long ago"))
        return outcomes

    def _record(
        self,
        result: ConfigBatchResult,
        judged: Sequence[_Judged],
        outcomes: dict[str, Outcome],
    ) -> None:
        writes: list[Write] = []
        news: list[TopicObservation] = []
        changes: list[AcknowledgedChange] = []
        for subject, verdict in judged:
            name, entry_id = subject.topic.physical_name, subject.topic.entry_id
            if not verdict.calls:
                news += _news(subject, verdict)
                continue
            match outcomes.get(name, OutcomeUnknown("no outcome")):
                case Succeeded() | AlreadyDone():
                    result.made[subject.place] = len(verdict.calls)
                    changes.append(_change(subject, verdict))
                    news += _news(subject, verdict)
                    if verdict.done != verdict.asked:
                        writes.append(configs_to_write(entry_id, verdict.done))
                    _log.info("%s: %s", self._cluster, _diff_text(verdict))
                case Rejected(message):
                    result.undone[subject.place] = f"{name}: {message}"
                    _log.warning("%s: %s refused: %s", self._cluster, name, message)
                    calls = calls_hash(verdict.calls)
                    kept = replace(verdict.asked, refused=message, refused_calls=calls)
                    writes.append(configs_to_write(entry_id, kept))
                case OutcomeUnknown(message):
                    result.unsure[subject.place] = None
                    _log.warning("%s: %s: %s; it is tried again", self._cluster, name, message)
                case other:
                    assert_never(other)
        # Before what may raise: Kafka was changed, whatever becomes of our records.
        self._recent.note_changes(changes)
        self._commits.record(news)
        self._commits.put_all(writes)


def _is_same(subject: ArmedTopic, seen: KafkaTopic | Rejected | None) -> bool:
    topic_id = subject.topic.topic_id
    return isinstance(seen, KafkaTopic) and bool(seen.partitions and topic_id) and (
        seen.topic_id == topic_id
    )  # fmt: skip


def _may_come(seen: KafkaTopic | Rejected | None) -> bool:
    """True if a broker that does not show a topic, or shows it half, may show it whole later: right
    after it was made. One that is gone for good is found missing by the next sweep.
    """
    return seen is None or (
        isinstance(seen, KafkaTopic) and not (seen.partitions and seen.topic_id)
    )


def _change(subject: ArmedTopic, verdict: ConfigDiff) -> AcknowledgedChange:
    before = {
        call.key: call.before
        for call in verdict.calls
        if call.operation == ALTER and call.before is not None
    }
    topic = subject.topic
    return AcknowledgedChange(
        topic.physical_name, topic.topic_id, before, verdict.alterations, verdict.grows_to
    )


def _news(subject: ArmedTopic, verdict: ConfigDiff) -> list[TopicObservation]:
    topic, desired_config = subject.topic, DesiredTopicConfig(subject.configs, subject.partitions)
    after = replace(topic, observed_config=verdict.configs)
    if verdict.partitions > topic.partitions:
        after = replace(after, partitions=verdict.partitions)
    news = config_news(RecordedTopic(subject.path, topic, desired_config), verdict.configs)
    if after.partitions == topic.partitions:
        return [] if news is None else [news]
    known = news or TopicObservation(path=subject.path, entry_id=topic.entry_id)
    drift = len(differences(after, desired_config=desired_config))
    return [replace(known, partitions=after.partitions, drift_count=drift)]


def _diff_text(verdict: ConfigDiff) -> str:
    first = verdict.calls[0]
    more = f" and {len(verdict.calls) - 1} more" if len(verdict.calls) > 1 else ""
    return f"{first.operation} {first.resource} {first.key} → {format_value(first.after)}{more}"


def _growing(verdict: ConfigDiff) -> ConfigDiff:
    """Returns the same with growth on record that is not known to be done."""
    setting = AppliedSetting(str(verdict.grows_to), done=False)
    settings = MappingProxyType({**verdict.asked.settings, PARTITIONS: setting})
    return replace(verdict, asked=replace(verdict.asked, settings=settings))


def _without_growth(verdict: ConfigDiff) -> ConfigDiff:
    growth = next(call for call in verdict.calls if call.operation == GROW)
    calls = tuple(call for call in verdict.calls if call is not growth)
    return replace(verdict, calls=calls, partitions=int(growth.before or 0))


class PartitionQuota:
    """Room that quotas leave for partitions on one snapshot; counts what it let come.

    Raises (all of it):
        NotReady: what is set above the mount cannot be read.
    """

    def __init__(self, snapshot: Snapshot, mount: Path) -> None:
        self._snapshot = snapshot
        self._mount = mount
        self._above: Sequence[PolicyLevel] = parent_state.inherited_origins(snapshot)
        self._quotas: dict[int, tuple[Quota, ...]] = {}
        self._came: dict[int, int] = {}

    def binds(self, subject: ArmedTopic) -> bool:
        """True if any quota does."""
        own = subject.topic.policies.max_partitions
        return own is not None or bool(self._at(subject.place[0]))

    def try_reserve(self, place: tuple[int, str], topic: Topic, desired: int) -> bool:
        """Lets a topic, which is at a place, have so many partitions; not without room."""
        own = topic.policies.max_partitions
        if own is not None and desired > own:
            return False
        more = desired - (topic.partitions or 1)
        quotas = self._at(place[0])
        for quota in quotas:
            used = quota.used(self._snapshot) + self._came.get(quota.directory_id, 0)
            if more > 0 and used + more > quota.limit:
                return False
        for directory_id in {quota.directory_id for quota in quotas}:
            self._came[directory_id] = self._came.get(directory_id, 0) + max(0, more)
        return True

    def allowed_calls(self, subject: ArmedTopic, calls: Iterable[KafkaCall]) -> list[KafkaCall]:
        """Returns those of the calls about a topic that quotas let be made."""
        return [
            call
            for call in calls
            if call.operation != GROW
            or self.try_reserve(subject.place, subject.topic, int(call.after or 0))
        ]

    def _at(self, parent_id: int) -> tuple[Quota, ...]:
        if parent_id not in self._quotas:
            node = self._snapshot.node(parent_id)
            found = (
                () if node is None else quotas_at(self._snapshot, self._mount, self._above, node)
            )
            self._quotas[parent_id] = tuple(one for one in found if one.field == _QUOTA)
        return self._quotas[parent_id]
