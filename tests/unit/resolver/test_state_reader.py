"""The reader of a state topic where no broker is needed: what it loads, and what it reports."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from resolver.changes import state_reader
from resolver.changes.record import Change, checkpoint_key, entry_key
from resolver.changes.state_reader import StateReader, newest_checkpoint
from resolver.errors import NotReady
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


def test_a_state_is_not_current_until_what_came_while_the_brokers_were_away_is_read(
    topic: MemoryTopic,
) -> None:
    now = [0.0]
    topic.end_page("kc-la", 1)
    with closing(StateReader({}, "t", "kc-la", clock=lambda: now[0])) as reader:
        reader.loaded(30)
        topic.is_away = True
        now[0] += 11
        eventually(lambda: "no broker answered" in reader.trouble, 5)
        topic.is_away, topic.withheld_count = False, 1
        now[0] += 11
        time.sleep(0.1)
        assert "no broker answered" in reader.trouble
        topic.withheld_count = 0
        now[0] += 11
        eventually(lambda: reader.trouble == "", 5)


def test_brokers_that_do_not_answer_are_trouble_as_soon(topic: MemoryTopic) -> None:
    """Not after the timeout of a request."""
    now, waits = [0.0], list[float]()
    topic.end_page("kc-la", 1)
    topic.on_wait = waits.append
    with closing(StateReader({}, "t", "kc-la", clock=lambda: now[0])) as reader:
        reader.loaded(30)
        topic.is_away = True
        now[0] += 5
        eventually(lambda: "no broker answered" in reader.trouble, 5)
        assert now[0] + waits[0] <= 10


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


def taken_over(topic: MemoryTopic, *, until_checkpoint: bool = False) -> None:
    """Adds the records of another cluster that removes the first one's state and adds its own."""
    topic.put("kc-la", 1, 5, b"k", b"new")
    topic.add(entry_key("kc-old", 4), None)
    topic.add(checkpoint_key("kc-old"), None)
    if not until_checkpoint:
        topic.end_page("kc-la", 1)


@pytest.fixture
def of_old(topic: MemoryTopic) -> MemoryTopic:
    topic.put("kc-old", 7, 4, b"k", b"old")
    topic.end_page("kc-old", 7)
    return topic


def test_without_a_cluster_id_a_log_that_is_taken_over_is_followed_to_the_present_cluster(
    of_old: MemoryTopic,
) -> None:
    with closing(StateReader({}, "t")) as reader:
        assert reader.loaded(5).cluster_id == "kc-old"
        taken_over(of_old, until_checkpoint=True)
        eventually(lambda: "its checkpoint was removed" in reader.trouble, 5)
        assert reader.loaded(0).cluster_id == "kc-old"
        of_old.end_page("kc-la", 1)
        state = reader.wait(lambda state: state.cluster_id == "kc-la", 10)
        assert [row.record for row in state.rows.values()] == [b"new"]
        assert reader.trouble == ""


@pytest.mark.parametrize("has_old_checkpoint", [True, False])
def test_without_a_cluster_id_a_load_during_a_takeover_ends_with_the_present_cluster(
    topic: MemoryTopic, *, has_old_checkpoint: bool
) -> None:
    """Whether or not Kafka has compacted the former cluster's checkpoint away."""
    topic.put("kc-old", 7, 4, b"k", b"old")
    if has_old_checkpoint:
        topic.end_page("kc-old", 7)
    taken_over(topic, until_checkpoint=True)
    with closing(StateReader({}, "t")) as reader:
        eventually(lambda: "checkpoint" in reader.trouble, 5)
        assert reader.state is None
        topic.end_page("kc-la", 1)
        assert reader.loaded(10).cluster_id == "kc-la"
        assert reader.trouble == ""


def test_with_its_cluster_id_a_log_that_is_taken_over_is_trouble(of_old: MemoryTopic) -> None:
    with closing(StateReader({}, "t", "kc-old")) as reader:
        reader.loaded(5)
        taken_over(of_old)
        eventually(lambda: "its checkpoint was removed" in reader.trouble, 5)
        assert reader.loaded(0).cluster_id == "kc-old"


def test_a_takeover_that_ends_during_a_load_is_seen(
    of_old: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest checkpoint is looked for before the load, which then reads another one."""
    found = newest_checkpoint

    def overtaken(*arguments: Any) -> Change | None:
        point = found(*arguments)
        if len(of_old.records) == 2:
            taken_over(of_old)
        return point

    monkeypatch.setattr(state_reader, "newest_checkpoint", overtaken)
    with closing(StateReader({}, "t")) as reader:
        assert reader.loaded(10).cluster_id == "kc-la"


def test_a_first_load_shows_why_no_broker_can_be_used(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(StateReader({"bootstrap.servers": "127.0.0.1:1"}, "t")) as reader:
        eventually(lambda: "refused" in reader.trouble, 20)
        with pytest.raises(NotReady, match=r"it is being loaded: .*Connection refused \(NOT_READY"):
            reader.loaded(0.1)
    assert capfd.readouterr().err == "", "Kafka's client logs each attempt"
