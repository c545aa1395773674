"""The topics of a change log: which are made, waited for, and refused, by what brokers show."""

from __future__ import annotations

import gc
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from directory.change_log import log_topics
from directory.change_log.log_topics import LogTopics
from directory.change_log.topic_writer import LogRefused, TopicWriter
from directory.kafka.admin_contract import (
    KafkaTopic,
    Outcome,
    Rejected,
    Still,
    TopicToCreate,
    always,
)
from resolver.errors import KafkaUnavailable
from tests.support.large_trees import FakeKafka
from tests.support.waiting import eventually

STATE, HISTORY = "__change_events", "__change_history"
RIGHT = {
    STATE: {"cleanup.policy": "compact", "max.message.bytes": "8388608"},
    HISTORY: {"max.message.bytes": "8388608"},
}


class Brokers(FakeKafka):
    """A Kafka whose brokers show a topic that was made only when they are asked again."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.settings: dict[str, Mapping[str, str]] = dict(RIGHT)
        self.unseen_for = 0

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        if self.unseen_for and self.made:
            self.unseen_for -= 1
            return {}
        return super().describe(names)

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        if self.unseen_for and self.made:
            return {}
        return {name: self.settings[name] for name in names if name in self.topics}

    def create(
        self, desired_set: Sequence[TopicToCreate], still: Still = always
    ) -> Mapping[str, Outcome]:
        self.settings |= {one.name: one.config for one in desired_set}
        return super().create(desired_set, still)


def check(admin: Any, *, were_there: bool = False) -> None:
    topics = LogTopics("kc-a", STATE, HISTORY, ["127.0.0.1:1"], dict)
    topics.make_and_check(admin, were_there=were_there)


def test_K7_topics_that_brokers_do_not_show_yet_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_topics, "_SHOWN_SECONDS", 0.0)
    admin = Brokers()
    admin.unseen_for = 3
    check(admin)
    assert admin.made == [STATE, HISTORY]
    check(admin, were_there=True)


def test_K7_topics_that_brokers_do_not_show_in_time_are_not_taken_for_wrong_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_topics, "_SHOWN_SECONDS", 0.0)
    admin = Brokers()
    admin.unseen_for = 1_000
    with pytest.raises(KafkaUnavailable, match="do not show it yet"):
        check(admin)
    admin.unseen_for = 0
    check(admin)


@pytest.mark.parametrize(
    ("topic", "setting", "value", "expected"),
    [
        (STATE, "cleanup.policy", "delete", "compact"),
        (STATE, "cleanup.policy", "compact,delete", "compact"),
        (STATE, "max.message.bytes", "8388607", "8388608"),
        (HISTORY, "cleanup.policy", "compact", "delete"),
        (HISTORY, "max.message.bytes", "", "8388608"),
    ],
)
def test_P19_a_wrong_setting_is_named_with_the_command(
    topic: str, setting: str, value: str, expected: str
) -> None:
    admin = Brokers(STATE, HISTORY)
    admin.settings[topic] = {**RIGHT[topic], setting: value}
    with pytest.raises(LogRefused) as refused:
        check(admin)
    message = str(refused.value)
    found = value or "the broker's default"
    assert message.startswith(
        f"topic {topic} has {setting} = {found}; a change log needs {expected}"
    )
    command = f"kafka-configs.sh --alter --topic {topic} --add-config {setting}={expected}"
    assert message.endswith(command)


@pytest.mark.parametrize("topic", [STATE, HISTORY])
def test_P19_more_partitions_than_one_are_named_with_the_command(topic: str) -> None:
    admin = Brokers(STATE, HISTORY)
    admin.topics[topic] = replace(admin.topics[topic], partitions=3)
    with pytest.raises(LogRefused) as refused:
        check(admin)
    assert f"topic {topic} has 3 partitions; a change log has one" in str(refused.value)
    assert f"kafka-topics.sh --delete --topic {topic}" in str(refused.value)


@pytest.mark.parametrize("topic", [STATE, HISTORY])
def test_P14_one_that_was_there_is_not_made_again_by_itself(topic: str) -> None:
    admin = Brokers(STATE, HISTORY)
    del admin.topics[topic]
    with pytest.raises(
        LogRefused, match=f"topic {topic} is not in Kafka any more; kdir log resync"
    ):
        check(admin, were_there=True)
    assert admin.made == []


def test_P23_no_property_of_the_config_takes_idempotence_away() -> None:
    for name, value in (("acks", "1"), ("enable.idempotence", "false")):
        properties = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, name: value}
        with pytest.raises(LogRefused, match=r"change_log\.properties: .*(acks|idempotence)"):
            TopicWriter(properties, "kdir-kc-a", 1.0)


def test_a_producer_that_cannot_begin_leaves_no_threads() -> None:
    tasks = pathlib.Path("/proc/self/task")
    properties = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    before = len(list(tasks.iterdir()))
    gc.disable()  # a server's collector may not come for hours
    try:
        with pytest.raises(KafkaUnavailable):
            TopicWriter(properties, "kdir-kc-a", 1.0)
        eventually(lambda: len(list(tasks.iterdir())) <= before)
    finally:
        gc.enable()
