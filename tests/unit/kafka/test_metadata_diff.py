"""What is decided when Kafka and the tree differ, case by case, as text a person can read."""

from __future__ import annotations

import pytest

from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic, show_id
from directory.kafka.adoption.metadata_diff import (
    MetadataDiff,
    config_news,
    diff_metadata,
)
from directory.kafka.adoption.vanish_guard import exceeds_vanish_guard
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.kafka.arming.drift import DriftedSetting, drifted_settings
from directory.namespace.command import TopicObservation
from directory.namespace.entry import Policies, Provision, Topic
from resolver.path import Path

PATH = Path.parse("/la/t")


def topic_id(letter: str) -> bytes:
    return letter.encode() * 16


def recorded(text: str) -> RecordedTopic:
    """Reads ``name STATE [id] [partitions]``."""
    name, state, *rest = text.split()
    return RecordedTopic(
        Path.parse(f"/la/{name}"),
        Topic(
            entry_id=sum(name.encode()),
            physical_name=name,
            provision=Provision[state.upper()],
            topic_id=topic_id(rest[0]) if rest and rest[0] != "-" else b"",
            partitions=int(rest[1]) if len(rest) > 1 else 1,
            replication_factor=1,
        ),
    )


def seen(text: str) -> KafkaTopic:
    """Reads ``name id [partitions] [internal]``; id ``-`` = not known."""
    name, letter, *rest = text.split()
    internal = "internal" in rest
    count = int(rest[0]) if rest and rest[0] != "internal" else 1
    return KafkaTopic(name, b"" if letter == "-" else topic_id(letter), count, 1, internal)


def decide(
    tree: list[str],
    kafka: list[str],
    *,
    cluster: str = "K",
    pinned: str = "K",
    acknowledged: int = 0,
) -> MetadataDiff:
    topics = {one.name: one for one in map(seen, kafka)}
    return diff_metadata(
        [recorded(text) for text in tree],
        KafkaMetadata(cluster, topics),
        pinned=pinned,
        acknowledged=acknowledged,
    )


def news_of(comparison: MetadataDiff) -> dict[str, str]:
    return {str(one.path): one.provision.name if one.provision else "-" for one in comparison.news}


def test_topics_that_no_entry_has_are_adopted_but_not_kafkas_own() -> None:
    result = decide(["a active A"], ["a A", "b B", "__consumer_offsets C internal"])
    assert [one.name for one in result.adopt] == ["b"]
    assert result.news == ()


def test_a_topic_that_is_only_half_made_waits_for_the_next_sweep() -> None:
    assert decide([], ["b - 0"]).adopt == ()


def test_the_first_kafka_is_pinned_and_the_pinned_one_is_not_pinned_again() -> None:
    assert decide([], [], pinned="").pin == "K"
    assert decide([], []).pin == ""


def test_a_pending_topic_is_to_be_created_and_is_not_adopted() -> None:
    result = decide(["a pending"], ["a A"])
    assert [one.topic.physical_name for one in result.create] == ["a"]
    assert result.adopt == ()
    assert result.news == ()


@pytest.mark.parametrize(
    ("entry", "kafka", "expected"),
    [
        ("a active A", [], "MISSING"),
        ("a missing A", [], None),
        ("a replaced A", [], "MISSING"),
        ("a active A", ["a B"], "REPLACED"),
        ("a missing A", ["a B"], "REPLACED"),
        ("a missing A", ["a A"], "ACTIVE"),
        ("a replaced A", ["a A"], "ACTIVE"),
        ("a missing A", ["a - 0"], None),  # which topic it is shows later
        ("a replaced A", ["a - 0"], None),
        ("a replaced A", ["a -"], None),
        ("a missing -", ["a - 0"], None),
        ("a missing -", ["a -"], "ACTIVE"),  # of a Kafka without ids
        ("a active A", ["a A"], None),
        ("a active -", ["a -"], None),
        ("a active A", ["a -"], None),  # a leader is being elected: there, and nothing more known
        ("a failed", ["a A"], None),
        ("a detached", ["a A"], None),
        ("a deleting A", ["a A"], None),
    ],
)
def test_what_becomes_of_a_recorded_topic(
    entry: str, kafka: list[str], expected: str | None
) -> None:
    result = decide([entry], kafka)
    assert news_of(result) == ({} if expected is None else {"/la/a": expected})
    assert result.adopt == ()


def test_what_was_not_known_is_recorded() -> None:
    (news,) = decide(["a active - 1"], ["a A 6"]).news
    assert (news.topic_id, news.partitions, news.provision) == (topic_id("A"), 6, None)


def test_a_replaced_topic_keeps_its_recorded_id_and_says_both() -> None:
    (news,) = decide(["a active A"], ["a B"]).news
    assert news.topic_id is None
    assert news.provision_message is not None
    assert show_id(topic_id("A")) in news.provision_message
    assert show_id(topic_id("B")) in news.provision_message


@pytest.mark.parametrize(
    ("gone", "present", "trips"),
    [
        (1, 1, False),
        (1, 10, False),
        (2, 2, False),
        (3, 3, True),
        (10, 10, True),
        (3, 59, True),
        (3, 60, False),
        (5, 100, False),
        (6, 100, True),
        (50, 1_000, False),
        (51, 1_000, True),
    ],
)
def test_the_vanish_guard(gone: int, present: int, trips: bool) -> None:
    assert exceeds_vanish_guard(gone, present) is trips
    tree = [f"t{number} active A" for number in range(present)]
    result = decide(tree, [f"t{number} A" for number in range(gone, present)])
    assert (result.stop is not None) is trips
    assert len(result.news) == (0 if trips else gone)


def test_topics_with_another_id_count_as_gone() -> None:
    tree = [f"t{number} active A" for number in range(10)]
    result = decide(tree, [f"t{number} B" for number in range(10)] + ["new N"])
    assert result.stop is not None
    assert result.stop.text.startswith("10 of 10 topics vanished")
    assert "t0, t1, t2, t3, t4, …" in result.stop.text
    assert (result.adopt, result.news, result.create) == ((), (), ())


def test_topics_that_were_gone_before_do_not_trip_the_guard_again() -> None:
    tree = [f"t{number} missing A" for number in range(90)]
    tree += [f"t{number} active A" for number in range(90, 100)]
    result = decide(tree, [f"t{number} A" for number in range(91, 100)])
    assert result.stop is None
    assert news_of(result) == {"/la/t90": "MISSING"}


def test_an_acknowledgement_covers_so_many_topics_and_no_more() -> None:
    tree = [f"t{number} active A" for number in range(10)]
    shown = [f"t{number} A" for number in range(5, 10)]
    assert decide(tree, shown, acknowledged=4).stop is not None
    result = decide(tree, shown, acknowledged=5)
    assert result.stop is None
    assert len(result.news) == 5


def test_another_kafka_stops_everything_and_names_both() -> None:
    result = decide(["a active A", "b pending"], ["x X"], cluster="OTHER")
    assert result.stop is not None
    assert result.stop.kafka_id == "OTHER"
    assert result.stop.gone == 1
    assert "OTHER" in result.stop.text
    assert "belongs to K" in result.stop.text
    assert (result.adopt, result.news, result.create, result.pin) == ((), (), (), "")


def make(**fields: object) -> Topic:
    values: dict[str, object] = {
        "entry_id": 7,
        "physical_name": "t",
        "provision": Provision.ACTIVE,
        "topic_id": topic_id("A"),
        "partitions": 3,
        "replication_factor": 2,
    }
    return Topic(**(values | fields))  # type: ignore[arg-type]


def test_differences_are_those_of_the_topics_own_policies() -> None:
    policies = Policies(
        topic_config={
            "retention.ms": "1000",
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": None,
        },
        partitions=6,
        replication_factor=3,
    )
    topic = make(
        policies=policies,
        observed_config={"cleanup.policy": "compact", "min.compaction.lag.ms": "5", "x": "y"},
    )
    assert drifted_settings(topic) == (
        DriftedSetting("config[min.compaction.lag.ms]", "(default)", "5"),
        DriftedSetting("config[retention.ms]", "1000", "(default)"),
        DriftedSetting("partitions", "6", "3"),
        DriftedSetting("replication_factor", "3", "2"),
    )


def test_more_partitions_in_kafka_are_recorded_and_more_on_record_are_desired() -> None:
    grown = diff_metadata(
        [RecordedTopic(PATH, make())],
        KafkaMetadata("K", {"t": KafkaTopic("t", topic_id("A"), 5, 2)}),
        pinned="K",
    )
    assert grown.news == (TopicObservation(path=PATH, entry_id=7, partitions=5),)
    assert drifted_settings(make(), KafkaTopic("t", topic_id("A"), 5, 2)) == ()
    desired_config = diff_metadata(
        [RecordedTopic(PATH, make(partitions=8))],
        KafkaMetadata("K", {"t": KafkaTopic("t", topic_id("A"), 5, 2)}),
        pinned="K",
    )
    assert desired_config.news == (TopicObservation(path=PATH, entry_id=7, drift_count=1),)


def test_configs_that_were_read_are_recorded_with_the_drift_they_make() -> None:
    topic = make(policies=Policies(topic_config={"retention.ms": "1000"}))
    assert config_news(RecordedTopic(PATH, topic), {}) is None
    news = config_news(RecordedTopic(PATH, topic), {"retention.ms": "1", "segment.ms": "2"})
    assert news == TopicObservation(
        path=PATH,
        entry_id=7,
        observed_config={"retention.ms": "1", "segment.ms": "2"},
        drift_count=1,
    )
    same = config_news(RecordedTopic(PATH, topic), {"retention.ms": "1000"})
    assert same is not None
    assert same.drift_count == 0
