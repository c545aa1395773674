"""The tree and its Kafka, as they are now; refuses to change either, and to record what it saw.

What people wish (policies) and what is recorded of each topic is compared with what Kafka says
itself. A tree and a Kafka that change meanwhile are no difference: what seems to be missing or
unknown is looked at once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from directory.kafka import adoption, recorded_topics
from directory.kafka.admin_contract import KafkaAdmin, KafkaMetadata, KafkaTopic, Rejected
from directory.kafka.metadata_diff import RecordedTopic, differences, show_id
from directory.kafka.pin_and_stop import PinAndStop
from directory.maintenance.field_differences import Between, Difference
from directory.namespace.adoption_mapping import MappingRule, plan_adoption
from directory.namespace.command import ObservedTopic
from directory.namespace.entry import Provision
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["KafkaCheck"]

_BATCH: Final = 500
_MISSING: Final = (
    "remove the entry: kdir rm {path}; many at once may be another Kafka, or rights that are gone"
)
_REPLACED: Final = (
    "another topic has this name by now: take it as it is: kdir adopt {path} --topic {name}; or "
    "remove the entry, which leaves that topic alone: kdir rm {path}"
)
_UNKNOWN: Final = "it is adopted at the next look at Kafka; kdir doctor says whether that works"
_DESIRED: Final = "change it in Kafka, or wish for what Kafka has: kdir set"
_OTHER_KAFKA: Final = "point the server at the Kafka that it belongs to, or take this one: kdir ack"


@dataclass(slots=True)
class KafkaCheck:
    """One comparison.

    ``topics`` and ``troubles`` say what was looked at and what could not be, once it has ended.
    """

    latest: Callable[[], Snapshot]
    mount: Path
    placing: Callable[[tuple[MappingRule, ...]], tuple[MappingRule, ...]]
    """The rules in force, given those that an operator adopted with."""
    check: Callable[[], None]
    """Called now and then; ends the work by raising."""
    topics: int | None = None
    troubles: list[str] = field(default_factory=list)

    def differences(self, admin: KafkaAdmin) -> Iterator[Difference]:
        """Yields where they differ, topic by topic.

        Raises:
            KafkaUnavailable, KafkaRefused
        """
        # In this order: what is made after the snapshot was taken is not missed in the survey.
        snapshot = self.latest()
        survey = admin.describe_all()
        pinned = PinAndStop.load(snapshot).pinned
        if pinned and survey.cluster_id != pinned:
            self.troubles.append("another Kafka answers: its topics were not compared")
            yield Difference(
                Between.KAFKA,
                str(self.mount),
                "cluster_id",
                pinned,
                survey.cluster_id,
                _OTHER_KAFKA,
            )
            return
        self.topics = sum(1 for seen in survey.topics.values() if not seen.internal)
        active: list[RecordedTopic] = []
        for one in recorded_topics.recorded_topics(snapshot, self.mount):
            seen = survey.topics.get(one.topic.physical_name)
            match one.topic.provision:
                case Provision.ACTIVE | Provision.MISSING | Provision.REPLACED:
                    if seen is None:
                        yield from self._missing(one, admin)
                    elif _is_other(one, seen):
                        yield _other(one, seen)
                    else:
                        active.append(one)
                case _:
                    pass  # not in Kafka yet, or on its way out
            if len(active) >= _BATCH:
                yield from self._desired_set(active, survey, admin)
                active = []
        yield from self._desired_set(active, survey, admin)
        yield from self._unknown(survey, snapshot)

    def _missing(self, one: RecordedTopic, admin: KafkaAdmin) -> Iterator[Difference]:
        name = one.topic.physical_name
        if name in admin.describe([name]):
            return  # made, or shown, a moment later
        located = self.latest().locate(name)
        if located is None or located.topic.entry_id != one.topic.entry_id:
            return
        if located.topic.provision is Provision.DELETING:
            return
        yield _difference(one, "topic", f"{name} ({show_id(one.topic.topic_id)})", "none", _MISSING)

    def _desired_set(
        self, topics: Sequence[RecordedTopic], survey: KafkaMetadata, admin: KafkaAdmin
    ) -> Iterator[Difference]:
        """Yields partitions, replicas and configs against what is wished for."""
        self.check()
        found = admin.configs([one.topic.physical_name for one in topics]) if topics else {}
        for one in topics:
            name = one.topic.physical_name
            configs = found.get(name)
            if isinstance(configs, Rejected):
                self.troubles.append(f"the configs of {name} cannot be read: {configs.message}")
            if configs is None or isinstance(configs, Rejected):
                continue
            now = replace(one.topic, observed_config=configs)
            for each in differences(now, survey.topics[name], one.desired_config):
                yield _difference(one, each.field, each.wanted, each.found, _DESIRED)

    def _unknown(self, survey: KafkaMetadata, before: Snapshot) -> Iterator[Difference]:
        """Yields topics of Kafka that no entry has, unless they are left out on purpose."""
        new = [
            seen
            for seen in survey.topics.values()
            if not seen.internal and seen.partitions and before.locate(seen.name) is None
        ]
        snapshot = self.latest()
        new = [seen for seen in new if snapshot.locate(seen.name) is None]
        if not new:
            return
        rules = self.placing(PinAndStop.load(snapshot).rules)
        rows = plan_adoption(rules, _observed(new), snapshot, mount=self.mount)
        for row in rows:
            if row.is_new:
                yield Difference(
                    Between.KAFKA,
                    str(Path((*self.mount.segments, *row.segments))),
                    "entry",
                    "none",
                    row.observed.physical_name,
                    _UNKNOWN,
                )


def _observed(topics: Iterable[KafkaTopic]) -> list[ObservedTopic]:
    return [adoption.observed(seen) for seen in topics]


def _is_other(one: RecordedTopic, seen: KafkaTopic) -> bool:
    return bool(one.topic.topic_id and seen.topic_id and one.topic.topic_id != seen.topic_id)


def _other(one: RecordedTopic, seen: KafkaTopic) -> Difference:
    wanted, found = show_id(one.topic.topic_id), show_id(seen.topic_id)
    return _difference(one, "topic_id", wanted, found, _REPLACED)


def _difference(one: RecordedTopic, what: str, wanted: str, found: str, advice: str) -> Difference:
    message = advice.format(path=one.path, name=one.topic.physical_name)
    return Difference(Between.KAFKA, str(one.path), what, wanted, found, message)
