"""Decisions about random Kafkas and trees, against an oracle that looks at one name at a time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic
from directory.kafka.adoption.metadata_diff import diff_metadata
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.namespace.command import TopicObservation
from directory.namespace.entry import Provision, Topic
from resolver.path import Path

NAMES = st.sampled_from([f"t{number}" for number in range(40)])
IDS = st.sampled_from([b"", b"A" * 16, b"B" * 16])

TREES = st.dictionaries(NAMES, st.tuples(st.sampled_from(list(Provision)), IDS, st.integers(0, 3)))
KAFKAS = st.dictionaries(NAMES, st.tuples(IDS, st.integers(0, 3), st.booleans()))


def apply(topic: Topic, news: TopicObservation) -> Topic:
    """Returns what the store holds once the news is committed."""
    changes = {
        field: value
        for field in (
            "provision",
            "provision_message",
            "topic_id",
            "partitions",
            "replication_factor",
            "drift_count",
        )
        if (value := getattr(news, field)) is not None
    }
    return replace(topic, **changes)


def world(
    tree: dict[str, tuple[Provision, bytes, int]], kafka: dict[str, tuple[bytes, int, bool]]
) -> tuple[dict[str, RecordedTopic], KafkaMetadata]:
    recorded = {
        name: RecordedTopic(
            Path(("m", name)),
            Topic(
                entry_id=number + 3,
                physical_name=name,
                provision=provision,
                topic_id=topic_id,
                partitions=partitions,
                replication_factor=1,
            ),
        )
        for number, (name, (provision, topic_id, partitions)) in enumerate(tree.items())
    }
    topics = {
        name: KafkaTopic(name, topic_id, partitions, 1, internal)
        for name, (topic_id, partitions, internal) in kafka.items()
    }
    return recorded, KafkaMetadata("K", topics)


def expected_state(topic: Topic, seen: KafkaTopic | None) -> Provision:
    """Returns the oracle: where one topic stands after a sweep."""
    if topic.provision not in {Provision.ACTIVE, Provision.MISSING, Provision.REPLACED}:
        return topic.provision
    if seen is None:
        return Provision.MISSING
    if topic.topic_id and seen.topic_id and topic.topic_id != seen.topic_id:
        return Provision.REPLACED
    is_known = bool(seen.topic_id) or (not topic.topic_id and seen.partitions > 0)
    return Provision.ACTIVE if is_known else topic.provision


@given(TREES, KAFKAS, st.integers(0, 40))
def test_decisions_are_those_of_the_oracle(
    tree: dict[str, tuple[Provision, bytes, int]],
    kafka: dict[str, tuple[bytes, int, bool]],
    acknowledged: int,
) -> None:
    recorded, survey = world(tree, kafka)
    result = diff_metadata(recorded.values(), survey, pinned="K", acknowledged=acknowledged)

    active = [one for one in recorded.values() if one.topic.provision is Provision.ACTIVE]
    gone = [
        one
        for one in active
        if expected_state(one.topic, survey.topics.get(one.topic.physical_name))
        is not Provision.ACTIVE
    ]
    too_many = len(gone) >= 3 and len(gone) / len(active) > 0.05 and len(gone) > acknowledged
    assert (result.stop is not None) == too_many
    if too_many:
        assert (result.adopt, result.news, result.create) == ((), (), ())
        return

    after = {name: one.topic for name, one in recorded.items()}
    for news in result.news:
        assert after[news.path.name].entry_id == news.entry_id
        after[news.path.name] = apply(after[news.path.name], news)
    for name, one in recorded.items():
        assert after[name].provision is expected_state(one.topic, survey.topics.get(name))
        # An id, once recorded, is never overwritten by another one.
        assert not one.topic.topic_id or after[name].topic_id == one.topic.topic_id
    assert {one.topic.physical_name for one in result.create} == {
        name for name, one in recorded.items() if one.topic.provision is Provision.PENDING
    }
    assert {seen.name for seen in result.adopt} == {
        name
        for name, (_, partitions, internal) in kafka.items()
        if name not in recorded and partitions and not internal
    }


@given(TREES, KAFKAS)
def test_once_committed_there_is_no_more_news(
    tree: dict[str, tuple[Provision, bytes, int]], kafka: dict[str, tuple[bytes, int, bool]]
) -> None:
    recorded, survey = world(tree, kafka)
    result = diff_metadata(recorded.values(), survey, pinned="K", acknowledged=len(tree))
    for news in result.news:
        one = recorded[news.path.name]
        recorded[news.path.name] = RecordedTopic(one.path, apply(one.topic, news))
    again = diff_metadata(recorded.values(), survey, pinned="K")
    assert again.stop is None
    assert again.news == ()
    assert again.gone == ()
