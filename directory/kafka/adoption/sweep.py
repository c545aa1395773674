"""Sweeps over all topics of Kafka, with checks for changes in between; commits the effects."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from sys import intern
from typing import Final

from directory.kafka.admin_contract import KafkaAdmin, KafkaMetadata, KafkaTopic, Rejected
from directory.kafka.adoption import adoption, pinned_kafka, recorded_topics
from directory.kafka.adoption.adoption import AdoptionBacklog
from directory.kafka.adoption.metadata_diff import (
    MetadataDiff,
    config_news,
    diff_metadata,
    is_other,
)
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.kafka.applying.desired_acls import start_of
from directory.kafka.applying.desired_configs import DesiredConfigs, RecordedTopic, is_under_way
from directory.kafka.applying.last_applied import armed_records
from directory.kafka.arming.releases import plans_of
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.kafka_context import KafkaContext
from directory.kafka.provisioning.acknowledged_changes import AcknowledgedChanges
from directory.namespace.adoption_mapping import (
    Adoption,
    AdoptionAction,
    is_deleted,
    plan_adoption,
)
from directory.namespace.entry import Provision
from directory.namespace.keys import (
    DETACHED,
    ENTRY,
    detached_key,
    is_awaited,
    large_change_key,
    parse_detached,
    retired_key,
    retired_until_ms,
    retired_value,
)
from directory.namespace.physical_names import RETIRED_FOR_MS
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import entry_path
from directory.namespace.updatable_fields import ASPECTS
from directory.store.base import Delete, Guard, KeyEquals, Put, Write
from directory.store.large_change_records import LARGE, SWEEP, LargeAdoption, adoptions
from resolver.path import Path
from resolver.units import plural

__all__ = ["KafkaSweep"]

_log = logging.getLogger(__name__)

_BATCHES: Final = 8
"""Most transactions of an adoption within a sweep; a larger one becomes the backlog."""
_SHARE: Final = 20
"""Shortest interval, as a multiple of a sweep's duration: 20 s for a sweep of 1 s."""
_LOOKS: Final = 15
"""Number of checks for changes between two sweeps: with a sweep every 30 s, one every 2 s."""
_LOOK_SECONDS: Final = 1.0
"""Shortest interval between two checks for changes."""
_LOOK_SHARE: Final = 8
"""Shortest interval, as a multiple of a check's duration: 8 s for a check of 1 s."""
_CONFIGS_LOOKS: Final = 2
"""Intervals of checks within which the configs of all topics are read once; more slowly if
``kafka.configs_per_second`` does not allow it."""


@dataclass(frozen=True, slots=True)
class _Detached:
    """A topic that was left alone in Kafka when its entry was removed."""

    name: str
    value: bytes
    """Value of its row below ``DETACHED``, with its topic id."""
    retired: bytes | None
    """Value of the row that retires its name for a day; None = no such row."""

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Guards that hold while both rows are unchanged."""
        retired = KeyEquals(retired_key(self.name), self.retired)
        return KeyEquals(detached_key(self.name), self.value), retired

    @property
    def is_counting(self) -> bool:
        """Whether the day since Kafka last showed it has begun."""
        return self.retired is not None and not is_awaited(self.retired)

    def is_over(self, now_ms: int) -> bool:
        """True if the day for which the name is retired is over."""
        until_ms = None if self.retired is None else retired_until_ms(self.retired)
        return until_ms is not None and until_ms <= now_ms

    def is_seen(self, seen: KafkaTopic | Rejected | None) -> bool:
        """True if Kafka's topic of this name is, or may be, this one."""
        if not isinstance(seen, KafkaTopic):
            return seen is not None
        topic_id, _ = parse_detached(self.value)
        return not (topic_id and seen.topic_id) or seen.topic_id == topic_id


class KafkaSweep:
    """Sweep of one leader, in its thread.

    Raises (all methods that call Kafka or commit):
        KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
    """

    def __init__(self, context: KafkaContext, acknowledged: AcknowledgedChanges) -> None:
        self._context = context
        self._cluster = context.cluster
        self._settings = context.settings
        self._latest = context.latest
        self._clock = context.clock
        self._acknowledged = acknowledged
        self._number = 0
        self._configs_read: dict[str, int] = {}  # name → number of the reading
        self._readings = 0
        self._shown: KafkaMetadata | None = None  # the last survey as brokers showed it
        self._gone: AbstractSet[str] = frozenset()  # recorded as gone since the last sweep
        every = self._settings.sweep_interval_seconds
        self._look_seconds = max(every / _LOOKS, min(every, _LOOK_SECONDS))
        self._look_pause = self._look_seconds
        self._look_due = 0.0
        self._configs_due = 0.0
        self.due = 0.0
        """Time of the next sweep, by the clock."""
        self.survey: KafkaMetadata | None = None
        """Topics of the last sweep, with the changes since."""
        self._committed: KafkaMetadata | None = None  # the last one from which all was committed
        self.backlog: AdoptionBacklog | None = None
        """Topics to adopt that are too many for one sweep."""
        self._unread: dict[str, str] = {}  # name → why its configs could not be read
        self._undescribed: dict[str, str] = {}  # name → why it could not be described

    @property
    def note(self) -> str:
        """What Kafka did not let kdir read, with Kafka's reason; empty = kdir can read all."""
        unread = _unread_text("configs of", self._unread, "read")
        return unread or _unread_text("topic", self._undescribed, "described")

    @property
    def look_due(self) -> float:
        """Time of the next sweep or check for changes, by the clock."""
        return min(self.due, self._look_due)

    @property
    def next_due(self) -> float:
        """Time of the next sweep, check or read of configs, by the clock."""
        return min(self.look_due, self._configs_due)

    def run_look(self, admin: KafkaAdmin, commits: TopicCommits) -> Sequence[RecordedTopic]:
        """Reads all topics of Kafka if a sweep is due; otherwise only which topics were created,
        deleted or grown since the last read. Commits the effects.

        Returns:
            The topics that wait to be made in Kafka.
        """
        # Before Kafka is read: a topic created after the snapshot is then not taken for gone.
        snapshot = self._latest()
        mount = self._context.mount_at(snapshot)
        number = self._number
        is_due = self._clock() >= self.due
        survey = self._read_metadata(admin) if is_due else self._read_changes(admin)
        if survey is None:
            return ()
        is_sweep = self._number != number
        held = PinnedKafka.load(self._latest())
        if held.stop is not None and not self._is_over(held, survey, commits):
            return ()
        comparison = self._compare(snapshot, mount, survey, held)
        unlisted = [name for name in comparison.gone if name not in survey.topics]
        if is_sweep and unlisted:
            survey = self._read_unlisted(unlisted, admin)
            comparison = self._compare(snapshot, mount, survey, held)
        if comparison.stop is not None:
            _log.error("%s: stopped: %s", self._cluster, comparison.stop.text)
            commits.put(pinned_kafka.stop(comparison.stop))
            return ()
        if comparison.pin:
            _log.info("%s: pinned to Kafka %s", self._cluster, comparison.pin)
            commits.put(pinned_kafka.pin(comparison.pin, int(self._context.now() * 1000)))
        is_settled = is_sweep or held.allowed  # acknowledged ones are not counted again
        self._gone = frozenset() if is_settled else frozenset(comparison.gone)
        self._adopt(comparison.adopt, held, commits)
        if is_sweep:
            self._end_detached(snapshot, survey, admin, commits)
            commits.put_each(_gone_armings(snapshot))
        commits.record(comparison.news)
        if held.allowed:
            commits.put(pinned_kafka.forget_acknowledgement())
        self._committed = survey
        return comparison.create

    def _compare(
        self, snapshot: Snapshot, mount: Path, survey: KafkaMetadata, held: PinnedKafka
    ) -> MetadataDiff:
        return diff_metadata(
            recorded_topics.recorded_topics(snapshot, mount),
            survey,
            pinned=held.pinned,
            acknowledged=held.allowed,
            under_way=lambda one: is_under_way(self._latest(), one.topic, one.desired_config),
            gone_before=self._gone,
        )

    def _read_metadata(self, admin: KafkaAdmin) -> KafkaMetadata:
        started = self._clock()
        # Set also for a failure, after which the caller decides when the sweep is repeated.
        self.due = started + self._settings.sweep_interval_seconds
        self._shown, self._undescribed = admin.describe_all(), {}
        self.survey = self._acknowledged.correct_metadata(self._shown)
        now = self._clock()
        self.due = now + max(self._settings.sweep_interval_seconds, (now - started) * _SHARE)
        self._look_due = now + self._look_pause
        self._number += 1
        return self.survey

    def _read_unlisted(self, names: Sequence[str], admin: KafkaAdmin) -> KafkaMetadata:
        """Returns the survey, with those of these topics that exist: another broker may show topics
        that the broker which listed the names does not show yet.
        """
        assert self._shown is not None  # noqa: S101 - it was just read
        described = admin.describe(names)
        self._shown = replace(
            self._shown,
            topics={**self._shown.topics, **_topics(described)},
            unsettled=self._shown.unsettled | self._note_refused(described),
        )
        self.survey = self._acknowledged.correct_metadata(self._shown)
        return self.survey

    def _read_changes(self, admin: KafkaAdmin) -> KafkaMetadata | None:
        """Returns the last survey with the changes since; None = there are none, and all effects of
        the last survey are committed. Only a sweep finds a topic that was deleted and created again
        with the same number of partitions.
        """
        started = self._clock()
        self._look_due = started + self._look_seconds
        listing, shown = admin.list_all(), self._shown
        now = self._clock()
        self._look_pause = max(self._look_seconds, (now - started) * _LOOK_SHARE)
        self._look_due = now + self._look_pause
        if shown is None or listing.cluster_id != shown.cluster_id:
            return self._read_metadata(admin)
        known = {name: seen.partitions for name, seen in shown.topics.items()}
        changed = {name for name, count in listing.partitions.items() if known.get(name) != count}
        # Another broker may show topics that the one which listed the names does not show yet.
        changed |= known.keys() - listing.partitions.keys()
        described = admin.describe(sorted(changed)) if changed else {}
        topics = {name: seen for name, seen in shown.topics.items() if name not in changed}
        topics |= _topics(described)
        if topics == shown.topics and self.survey is self._committed:
            return None
        self._undescribed = {
            name: why for name, why in self._undescribed.items() if name not in changed
        }
        unsettled = (shown.unsettled - changed) | self._note_refused(described)
        self._shown = replace(shown, topics=topics, unsettled=unsettled)
        self.survey = self._acknowledged.correct_metadata(self._shown)
        for name in changed:
            self._configs_read.pop(name, None)
        return self.survey

    def _note_refused(self, described: Mapping[str, KafkaTopic | Rejected]) -> AbstractSet[str]:
        """Keeps why Kafka did not describe topics; returns their names. Such topics may exist."""
        refused = {
            name: intern(seen.message)  # often the same for all topics
            for name, seen in described.items()
            if isinstance(seen, Rejected)
        }
        self._undescribed = {**self._undescribed, **refused}  # read by other threads
        return refused.keys()

    def _is_over(self, held: PinnedKafka, survey: KafkaMetadata, commits: TopicCommits) -> bool:
        """Ends a stop if the pinned Kafka is back at its address; returns whether it did."""
        if held.stop is None or not held.stop.kafka_id or survey.cluster_id != held.pinned:
            return False
        _log.warning("%s: Kafka %s is back", self._cluster, survey.cluster_id)
        commits.put(pinned_kafka.stop(None))
        return True

    def _detach(self, rows: Iterable[Adoption], snapshot: Snapshot, commits: TopicCommits) -> None:
        """Records topics that Kafka made for entries which were removed meanwhile: these topics are
        left alone for good; a later topic of such a name is not.
        """
        changes = []
        for row in rows:
            name, topic_id = row.observed.physical_name, row.observed.topic_id
            key, retired = detached_key(name), retired_key(name)
            if row.action is AdoptionAction.DETACHED and topic_id and snapshot.fact(key) is None:
                # The guards fail if the topic was adopted meanwhile.
                guards = KeyEquals(key, None), KeyEquals(retired, snapshot.fact(retired))
                changes.append((guards, (Put(key, topic_id),)))
        commits.put_each(changes)

    def _end_detached(
        self, snapshot: Snapshot, survey: KafkaMetadata, admin: KafkaAdmin, commits: TopicCommits
    ) -> None:
        """Removes the records of topics that were left alone and that Kafka has not had for a day,
        for which their names are retired. The day begins again if Kafka shows the topic. Each topic
        is described again, since the survey leaves out topics that kdir may not describe.
        """
        now_ms = int(self._context.now() * 1000)
        changes: list[tuple[Sequence[Guard], Sequence[Write]]] = []
        absent: list[_Detached] = []
        for key, value in snapshot.facts(DETACHED):
            name = key[len(DETACHED) :].decode(errors="replace")
            if detached_key(name) != key:
                continue  # no name that a topic can have
            one = _Detached(name, value, snapshot.fact(retired_key(name)))
            if one.is_seen(survey.topics.get(name)) or name in survey.unsettled:
                if one.retired is not None and (one.is_counting or one.is_over(now_ms)):
                    changes.append((one.guards, (Delete(retired_key(name)),)))
            elif one.retired is None or one.is_over(now_ms):
                absent.append(one)
        # In rotation: Kafka may refuse to describe some of them every time.
        first = self._number * commits.batch % len(absent) if absent else 0
        absent = (absent[first:] + absent[:first])[: commits.batch]
        shown = admin.describe([one.name for one in absent]) if absent else {}
        for one in absent:
            if one.name in shown and one.is_seen(shown[one.name]):
                continue
            retired = retired_key(one.name)
            if one.is_counting:
                _log.info("%s: the topic %s, left alone, is gone", self._cluster, one.name)
                changes.append((one.guards, (Delete(detached_key(one.name)), Delete(retired))))
            else:
                day = Put(retired, retired_value(now_ms + RETIRED_FOR_MS))
                changes.append((one.guards, (day,)))
        commits.put_each(changes)

    def _adopt(
        self, topics: Sequence[KafkaTopic], held: PinnedKafka, commits: TopicCommits
    ) -> None:
        """Adopts topics; too many for one sweep become the backlog."""
        snapshot = self._latest()
        mount = self._context.mount_at(snapshot)
        shown = (adoption.observed(one) for one in topics)
        found = [one for one in shown if not is_deleted(snapshot, one)]
        rows = plan_adoption(self._settings.placing(held.rules), found, snapshot, mount=mount)
        self._detach(rows, snapshot, commits)
        new = [(row.segments, row.observed) for row in rows if row.is_new]
        if len(new) > commits.batch * _BATCHES:
            steps = [adoption.taken_in(mount, *one) for one in new]
            self.backlog = AdoptionBacklog(
                steps,
                self._recorded(snapshot, len(new)),
                self._clock,
                mount,
                lambda: self._context.mount_at(self._latest()),
            )
            self.backlog.begin(commits)
            _log.info("%s: adopts %d topics of Kafka, in steps", self._cluster, len(new))
            return
        notes = commits.adopt(new)
        if new:
            _log.info("%s: adopted %d topics of Kafka", self._cluster, len(new))
        for note in notes:
            _log.warning("%s: %s", self._cluster, note)
        if snapshot.fact(large_change_key(SWEEP)) is not None:
            # An earlier large adoption was interrupted with few topics left.
            commits.put([Delete(large_change_key(SWEEP))])

    def _recorded(self, snapshot: Snapshot, count: int) -> LargeAdoption | None:
        """Returns the record of a large adoption of ``count`` topics; None = it is small."""
        before = next((one for one in adoptions(snapshot) if one.change_id == SWEEP), None)
        if before is not None or count < LARGE:
            return before  # an earlier leader's
        mount, now_ms = self._context.mount_at(snapshot), int(self._context.now() * 1000)
        return LargeAdoption(change_id=SWEEP, mount=mount, started_at_ms=now_ms, done=0, left=count)

    def read_configs(self, admin: KafkaAdmin, commits: TopicCommits) -> None:
        """Reads the configs of the topics longest unread, if a read is due; commits changes."""
        started = self._clock()
        if started < self._configs_due:
            return
        every = self._settings.sweep_interval_seconds
        round_seconds = min(_CONFIGS_LOOKS * self._look_seconds, every)
        self._configs_due = started + round_seconds
        if self.survey is None or PinnedKafka.load(self._latest()).stop is not None:
            return
        topics = self.survey.topics
        names = [name for name, seen in topics.items() if not seen.internal]
        if not names:
            return
        read = self._configs_read
        chosen = heapq.nsmallest(
            self._context.configs_per_read, names, key=lambda name: read.get(name, -1)
        )
        rate = min(self._settings.configs_per_second, len(names) / round_seconds)
        self._configs_due = started + len(chosen) / rate
        found = admin.configs(chosen)
        now = self._clock()
        # The thread does other work for at least as long as this read took.
        self._configs_due = max(self._configs_due, now + (now - started))
        self._readings += 1
        self._configs_read = {name: read[name] for name in names if name in read}
        self._configs_read |= dict.fromkeys(chosen, self._readings)
        snapshot = self._latest()
        mount = self._context.mount_at(snapshot)
        desired_configs = DesiredConfigs(snapshot)
        news = []
        unread = {name: why for name, why in self._unread.items() if name in topics}
        for name, configs in found.items():
            unread.pop(name, None)
            if isinstance(configs, Rejected):
                unread[name] = intern(configs.message)  # often the same for all topics
                continue
            located = snapshot.locate(name)
            if located is None or located.relative is None:
                continue
            topic = located.topic
            # Otherwise these are the configs of another topic of the same name.
            if topic.provision is Provision.ACTIVE and not is_other(topic, topics[name]):
                path = entry_path(mount, located.relative)
                desired_config = desired_configs.for_topic(located.parent_id, topic)
                known = self._acknowledged.correct_configs(topic.topic_id, configs)
                news.append(config_news(RecordedTopic(path, topic, desired_config), known))
        self._unread = unread
        commits.record([one for one in news if one is not None])


def _topics(described: Mapping[str, KafkaTopic | Rejected]) -> Mapping[str, KafkaTopic]:
    return {name: seen for name, seen in described.items() if isinstance(seen, KafkaTopic)}


def _unread_text(what: str, unread: Mapping[str, str], how: str) -> str:
    """Returns a sentence on what cannot be read; empty = nothing. Names one topic and the number
    of the others.
    """
    if not unread:
        return ""
    name, why = next(iter(unread.items()))
    others = f" and {plural(len(unread) - 1, 'other topic')}" if len(unread) > 1 else ""
    return f"{what} {name}{others} cannot be {how}: {why}"


def _gone_armings(snapshot: Snapshot) -> list[tuple[Sequence[Guard], Sequence[Write]]]:
    """Returns the changes that remove the armed records of entries that are gone. The records of
    their plans, which are found by the armed ones, come first.
    """
    gone = [
        mark
        for aspect in ASPECTS
        for mark in armed_records(snapshot, aspect)
        if start_of(snapshot, mark) is None
    ]
    if any(key.startswith(ENTRY) for key in snapshot.unreadable_values):
        return []  # an unreadable entry may be one of these
    if not all(mark.is_traceable for mark in gone):
        tree = (map(snapshot.codec.entry_id, one.topics.values()) for _, one in snapshot.contents())
        known = set().union(*tree)
        gone = [mark for mark in gone if mark.is_traceable or mark.entry_id not in known]
    rows = list(plans_of(snapshot, {mark.entry_id for mark in gone}))
    rows += [(one.key, value) for one in gone if (value := snapshot.fact(one.key)) is not None]
    return [((KeyEquals(key, value),), (Delete(key),)) for key, value in rows]
