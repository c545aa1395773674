"""One batch of config pushes: what Kafka has, what follows, the calls, and what came of them.

What is asked is on record before it is asked, so that every step may be the last one of a process
(as in ``provisioning.py``). Refuses to decide what is asked (``config_diff.py``), which topics'
turn it is (``config_applier.py``), and to touch a topic whose id is not the one on record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from directory.federation import parent_state
from directory.kafka.admin_contract import (
    AlreadyDone,
    ConfigChange,
    KafkaAdmin,
    KafkaTopic,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Succeeded,
)
from directory.kafka.applying import config_diff
from directory.kafka.applying.config_diff import (
    ArmedTopic,
    ConfigDiff,
    ConfigDiffOptions,
    ObservedConfig,
)
from directory.kafka.applying.desired_configs import DesiredTopicConfig
from directory.kafka.applying.last_applied_configs import AppliedTopic, load_applied_topic
from directory.kafka.applying.partition_growth import PartitionReservation
from directory.kafka.applying.recent_changes import AcknowledgedChange, RecentConfigChanges
from directory.kafka.applying.releases import Releases, inherited_basis
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.metadata_diff import RecordedTopic, config_news, differences
from directory.namespace.command import TopicObservation
from directory.namespace.snapshot import Snapshot
from directory.store.base import Write
from resolver.path import Path

__all__ = ["ConfigBatch", "ConfigBatchResult", "subjects_at"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 2.0
"""Kafka changes by name: no longer after its id was compared may a topic be changed."""


@dataclass(slots=True)
class ConfigBatchResult:
    """What came of the calls so far."""

    made: int = 0
    unsure: dict[tuple[int, str], None] = field(default_factory=dict)
    """Places of which nothing could be said: they have to be looked at again."""
    refused: str = ""
    """Kafka's words to one of them."""
    no_room: dict[tuple[int, str], None] = field(default_factory=dict)
    """Places of what did not grow, for a quota leaves no room."""


def subjects_at(
    snapshot: Snapshot, mount: Path, places: Sequence[tuple[int, str]]
) -> Iterator[ArmedTopic]:
    """Yields those of the topics at these places that are armed."""
    above, releases = parent_state.inherited_policies(snapshot), Releases(snapshot, mount)
    for place in places:
        one = config_diff.subject_at(snapshot, mount, above, place, releases=releases)
        if one is not None:
            yield one


class ConfigBatch:
    """For one leader, in its thread. The arguments are those of ``ConfigApplier``.

    Args:
        altered: what was changed a short while ago, and what it notes what it changes in.
    """

    def __init__(
        self,
        cluster: str,
        commits: TopicCommits,
        latest: Callable[[], Snapshot],
        mount_at: Callable[[Snapshot], Path],
        altered: RecentConfigChanges,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._altered = altered
        self._cluster = cluster
        self._commits = commits
        self._latest = latest
        self._mount_at = mount_at
        self._clock = clock

    def carry_out(
        self,
        snapshot: Snapshot,
        rules: ConfigDiffOptions,
        tally: ConfigBatchResult,
        places: Sequence[tuple[int, str]],
        admin: KafkaAdmin,
    ) -> int:
        """Judges the topics at these places by what Kafka has, and asks for what follows; how many
        were changed. The snapshot is one on which these rules hold.

        Raises:
            KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
        """
        # As they are by now: the walk may be old.
        now = list(subjects_at(snapshot, self._mount_at(snapshot), places))
        names = [subject.topic.physical_name for subject in now]
        shown, configs = admin.describe(names), admin.configs(names)
        judged: list[tuple[ArmedTopic, ConfigDiff]] = []
        records: list[AppliedTopic] = []
        writes: list[Write] = []
        for subject in now:
            pushed = load_applied_topic(snapshot, subject.topic.entry_id)
            seen = shown.get(subject.topic.physical_name)
            found = configs.get(subject.topic.physical_name)
            if not _is_same(subject, seen) or found is None or isinstance(found, Rejected):
                if isinstance(found, Rejected):
                    tally.refused = f"configs of {subject.topic.physical_name}: {found.message}"
                elif _may_come(seen):
                    tally.unsure[subject.place] = None
                continue
            assert isinstance(seen, KafkaTopic)  # noqa: S101 - it is the same
            known = self._altered.configs(seen.topic_id, found)
            have = ObservedConfig(known, self._altered.seen(seen).partitions)
            verdict = config_diff.diff_configs(subject, have, pushed, rules)
            judged.append((subject, verdict))
            records.append(pushed)
        granting = PartitionReservation(self._commits, self._latest, self._mount_at, judged)
        for (subject, verdict), pushed in zip(granting.with_growth_pending(), records, strict=True):
            if verdict.asked != pushed:
                writes.append(verdict.asked.to_write(subject.topic.entry_id))
        self._commits.put_all(writes)
        desired_config, judged = judged, granting.reserve_growth()
        for (subject, before), (_, verdict) in zip(desired_config, judged, strict=True):
            if before.grows_to and not verdict.grows_to:
                tally.no_room[subject.place] = None
        asks = [pair for pair in judged if pair[1].calls]
        outcomes = self._make_calls(snapshot, asks, admin) if asks else {}
        self._record(tally, judged, outcomes)
        return len(asks)

    def _make_calls(
        self, snapshot: Snapshot, asks: Sequence[tuple[ArmedTopic, ConfigDiff]], admin: KafkaAdmin
    ) -> dict[str, Outcome]:
        """Makes the calls; the outcome of each topic. One whose id is not the one that was compared
        any more is left out.
        """
        basis = inherited_basis(snapshot, self._mount_at(snapshot))
        names = [subject.topic.physical_name for subject, _ in asks]
        # What was committed since may have taken long: the ids are compared right before.
        shown = admin.describe(names)
        looked_at = self._clock()

        def still() -> None:
            self._commits.check()
            latest = self._latest()
            changed = inherited_basis(latest, self._mount_at(latest)) != basis
            if changed or self._clock() - looked_at > _LOOK_SECONDS:
                raise _StaleObservation

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
        except _StaleObservation:
            _log.warning("%s: %d topics are looked at again", self._cluster, len(same))
            # Whichever were changed, it is found out by looking.
            return dict.fromkeys(names, OutcomeUnknown("looked at too long ago"))
        return outcomes

    def _record(
        self,
        tally: ConfigBatchResult,
        judged: Sequence[tuple[ArmedTopic, ConfigDiff]],
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
                    tally.made += len(verdict.calls)
                    changes.append(_change(subject, verdict))
                    news += _news(subject, verdict)
                    if verdict.done != verdict.asked:
                        writes.append(verdict.done.to_write(entry_id))
                    _log.info("%s: %s", self._cluster, _diff_text(verdict))
                case Rejected(message):
                    tally.refused = f"{name}: {message}"
                    _log.warning("%s: %s refused: %s", self._cluster, name, message)
                    kept = replace(
                        verdict.asked,
                        refused=message,
                        refused_calls=config_diff.calls_hash(verdict.calls),
                    )
                    writes.append(kept.to_write(entry_id))
                case OutcomeUnknown(message):
                    tally.unsure[subject.place] = None
                    _log.warning("%s: %s: %s; it is tried again", self._cluster, name, message)
                case other:
                    assert_never(other)
        # Before what may raise: Kafka was changed, whatever becomes of our records.
        self._altered.note(changes)
        self._commits.record(news)
        self._commits.put_all(writes)


class _StaleObservation(Exception):
    """The ids that were compared may not be those of now, or nothing is released any more."""


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
        if call.operation == config_diff.ALTER and call.before is not None
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
    after = "(default)" if first.after is None else first.after
    return f"{first.operation} {first.resource} {first.key} → {after}{more}"
