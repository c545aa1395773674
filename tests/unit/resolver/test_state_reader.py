"""The reader of a state topic where no broker is needed: what it loads, and what it reports."""

from __future__ import annotations

from contextlib import closing

import pytest

from resolver.changes import state_reader
from resolver.changes.state_reader import StateReader
from tests.support.memory_topic import MemoryTopic
from tests.support.waiting import eventually


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    made = MemoryTopic()
    monkeypatch.setattr(state_reader, "TopicReader", made.reader)
    return made


def test_brokers_that_are_away_are_trouble_within_seconds(topic: MemoryTopic) -> None:
    """Whatever the topic's ``delete.retention.ms`` is: half a day has 7 minutes of 100 checks."""
    now = [0.0]
    topic.end_page("kc-la", 1)
    with closing(StateReader({}, "t", "kc-la", clock=lambda: now[0])) as reader:
        reader.loaded(30)
        assert reader.trouble == ""
        topic.is_away = True
        now[0] += 11
        eventually(lambda: "no broker answered" in reader.trouble, 5)
        topic.is_away = False
        now[0] += 11
        eventually(lambda: reader.trouble == "", 5)


def test_without_a_cluster_id_a_log_that_was_taken_over_is_that_of_the_present_cluster(
    topic: MemoryTopic,
) -> None:
    topic.put("kc-old", 1, 5, b"k", b"old")
    topic.end_page("kc-la", 1)
    topic.put("kc-la", 2, 5, b"k", b"new")
    topic.end_page("kc-la", 2)
    with closing(StateReader({}, "t")) as reader:
        state = reader.loaded(5)
    assert state.cluster_id == "kc-la"
    assert [row.record for row in state.rows.values()] == [b"new"]
