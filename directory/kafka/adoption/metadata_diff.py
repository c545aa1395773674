"""Comparison of Kafka's topics with those of the tree: what to adopt, record and create, or why
everything stops; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic, show_id
from directory.kafka.adoption.vanish_guard import (
    StopReason,
    another_kafka_stop,
    exceeds_vanish_guard,
    vanished_stop,
)
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.kafka.arming.drift import drifted_settings
from directory.namespace.command import TopicObservation
from directory.namespace.entry import Provision, Topic

__all__ = [
    "MetadataDiff",
    "config_news",
    "diff_metadata",
    "is_other",
]


@dataclass(frozen=True, slots=True)
class MetadataDiff:
    """Diff of Kafka and the tree: changes to make. With ``stop`` set, all but ``gone`` is empty."""

    stop: StopReason | None = None
    pin: str = ""
    """Kafka's id to pin; empty = one is pinned already."""
    adopt: tuple[KafkaTopic, ...] = ()
    """Topics that Kafka shows and no entry has; the rules of adoption give their paths."""
    news: tuple[TopicObservation, ...] = ()
    create: tuple[RecordedTopic, ...] = ()
    gone: tuple[str, ...] = ()
    """Physical names of active topics that Kafka no longer shows or shows with another id; with
    those of ``gone_before`` that are still gone."""


def diff_metadata(
    recorded: Iterable[RecordedTopic],
    survey: KafkaMetadata,
    *,
    pinned: str = "",
    acknowledged: int = 0,
    under_way: Callable[[RecordedTopic], bool] = lambda _: False,
    gone_before: AbstractSet[str] = frozenset(),
) -> MetadataDiff:
    """Compares the topics of the tree with those of Kafka.

    Args:
        recorded: every topic at or below the mount point, in any order. It must have been read
            *before* the survey was made: a topic created meanwhile is then never taken for gone.
        survey: Kafka's topics.
        pinned: Kafka's own id that this directory belongs to; empty = none yet.
        acknowledged: number of topics that may be gone now without a stop.
        under_way: True for a topic that is being pushed to Kafka: its drift is not counted yet.
        gone_before: names of topics that were recorded as gone since the last sweep. The guard
            counts those that are still gone, so that more frequent reads stop no less.
    """
    if pinned and survey.cluster_id != pinned:
        known = [one.topic for one in recorded if one.topic.provision is Provision.ACTIVE]
        missing = sum(_is_gone(topic, survey.topics.get(topic.physical_name)) for topic in known)
        numbers = {"gone": missing, "recorded": len(known)}
        return MetadataDiff(another_kafka_stop(survey.cluster_id, pinned, **numbers))
    names: set[str] = set()
    news: list[TopicObservation] = []
    create: list[RecordedTopic] = []
    gone: list[str] = []
    present = 0
    for one in recorded:
        topic = one.topic
        names.add(topic.physical_name)
        match topic.provision:
            case Provision.PENDING:
                create.append(one)
            case Provision.ACTIVE | Provision.MISSING | Provision.REPLACED:
                if topic.physical_name in survey.unsettled:
                    continue  # not known to exist or to be gone: a later read of Kafka decides
                seen = survey.topics.get(topic.physical_name)
                if topic.provision is Provision.ACTIVE or topic.physical_name in gone_before:
                    present += 1
                    if _is_gone(topic, seen):
                        gone.append(topic.physical_name)
                if (learnt := _news(one, seen, under_way)) is not None:
                    news.append(learnt)
            case Provision.FAILED | Provision.DETACHED | Provision.DELETING:
                pass
    if exceeds_vanish_guard(len(gone), present) and len(gone) > acknowledged:
        return MetadataDiff(stop=vanished_stop(gone, present), gone=tuple(gone))
    adopt = tuple(
        seen
        for name, seen in survey.topics.items()
        # Without a partition, a topic is only half made: a later sweep adopts it.
        if name not in names and not seen.internal and seen.partitions
    )
    pin = "" if pinned else survey.cluster_id
    return MetadataDiff(None, pin, adopt, tuple(news), tuple(create), tuple(gone))


def config_news(one: RecordedTopic, observed: Mapping[str, str]) -> TopicObservation | None:
    """Returns the observation to record of a topic's configs; None = they are on record."""
    if dict(one.topic.observed_config) == dict(observed):
        return None
    after = replace(one.topic, observed_config=observed)
    drift = len(drifted_settings(after, desired_config=one.desired_config))
    return one.observation(observed_config=observed, drift_count=drift)


def is_other(topic: Topic, seen: KafkaTopic) -> bool:
    """True if Kafka's topic of this name is another one, by its id; False if an id is unknown."""
    return bool(topic.topic_id and seen.topic_id and topic.topic_id != seen.topic_id)


def _is_gone(topic: Topic, seen: KafkaTopic | None) -> bool:
    return seen is None or is_other(topic, seen)


def _news(
    one: RecordedTopic, seen: KafkaTopic | None, under_way: Callable[[RecordedTopic], bool]
) -> TopicObservation | None:
    """Returns the observation to record of a topic that Kafka has or had; None = no change."""
    topic = one.topic
    if seen is None:
        if topic.provision is Provision.MISSING:
            return None
        message = "Kafka no longer shows this topic"
        return one.observation(provision=Provision.MISSING, provision_message=message)
    if is_other(topic, seen):
        ids = f"{show_id(seen.topic_id)}, recorded is {show_id(topic.topic_id)}"
        message = f"Kafka shows this name with another topic id: {ids}"
        if topic.provision is Provision.REPLACED and topic.provision_message == message:
            return None
        return one.observation(provision=Provision.REPLACED, provision_message=message)
    changes: dict[str, object] = {}
    if topic.provision is not Provision.ACTIVE:
        if not seen.topic_id and (topic.topic_id or not seen.partitions):
            return None  # a leader is being elected: it may still be another topic
        changes |= {"provision": Provision.ACTIVE, "provision_message": ""}
    if seen.topic_id and not topic.topic_id:
        changes["topic_id"] = seen.topic_id
    if seen.partitions > topic.partitions:
        changes["partitions"] = seen.partitions
    if seen.partitions and seen.replication_factor != topic.replication_factor:
        changes["replication_factor"] = seen.replication_factor
    drift = len(drifted_settings(topic, seen, one.desired_config))
    if drift != topic.drift_count and not under_way(one):
        changes["drift_count"] = drift
    return one.observation(**changes) if changes else None
