"""Topics that were left alone when their entries were removed: how long that is on record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path as FilePath
from typing import Any

import pytest

from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic, Rejected
from directory.namespace.command import CreateTopic, ObservedTopic
from directory.namespace.keys import (
    detached_key,
    is_awaited,
    parse_detached,
    retired_key,
    retired_until_ms,
    retired_value,
)
from directory.store.base import Guard, Put, Write
from tests.support.kafka_ledger import Ledger
from tests.support.reconciler import MOUNT, World


class Kafka(Ledger):
    """One that can hide topics: they are there, and it does not say so."""

    hidden: frozenset[str] = frozenset()

    def describe_all(self) -> KafkaMetadata:
        shown = super().describe_all()
        topics = {name: seen for name, seen in shown.topics.items() if name not in self.hidden}
        return KafkaMetadata(shown.cluster_id, topics)

    def describe(self, names: Sequence[str]) -> Mapping[str, Any]:
        found: dict[str, KafkaTopic | Rejected] = dict(super().describe(names))
        return found | {name: Rejected("not authorized") for name in self.hidden & set(names)}


@pytest.fixture
def kafka() -> Kafka:
    return Kafka("a", "b")


@pytest.fixture
def here(tmp_path: FilePath, kafka: Kafka) -> Iterator[World]:
    """Yields a directory that adopted ``a`` and ``b``, and whose entry ``a`` was removed."""
    made = World(tmp_path / "store.db", lambda: kafka, ceiling=frozenset({"create"}))
    made.sweep()
    made.remove("a")
    made.sweep()
    assert kept(made) == kafka.topics["a"].topic_id
    yield made
    made.close()


def kept(here: World) -> bytes | None:
    value = here.replica.snapshot.fact(detached_key("a"))
    return None if value is None else parse_detached(value)[0]


def retired(here: World) -> bytes | None:
    return here.replica.snapshot.fact(retired_key("a"))


def end_the_day(here: World) -> None:
    here.writer.put_facts([Put(retired_key("a"), retired_value(1))])


def test_a_topic_left_alone_is_forgotten_a_day_after_kafka_had_it_last(
    here: World, kafka: Kafka
) -> None:
    for _ in range(3):
        here.sweep()
        assert (kept(here), retired(here)) == (kafka.topics["a"].topic_id, None)
    gone = kafka.topics.pop("a")
    for _ in range(3):
        here.sweep()
        assert kept(here) == gone.topic_id
        assert (value := retired(here)) is not None
        assert not is_awaited(value)
        assert (retired_until_ms(value) or 0) > 1_000_000
    end_the_day(here)
    here.sweep()
    assert (kept(here), retired(here)) == (None, None)
    here.create("a")  # its name is free
    here.settle()
    assert here.states() == {"a": "ACTIVE", "b": "ACTIVE"}


def test_one_that_is_seen_again_within_the_day_is_left_alone_as_before(
    here: World, kafka: Kafka
) -> None:
    gone = kafka.topics.pop("a")
    here.sweep()
    assert retired(here) is not None
    kafka.topics["a"] = gone
    here.sweep()
    assert (kept(here), retired(here)) == (gone.topic_id, None)
    assert here.states() == {"b": "ACTIVE"}
    # Nor does a day that was over bring it back.
    end_the_day(here)
    for _ in range(2):
        here.sweep()
        assert (kept(here), retired(here)) == (gone.topic_id, None)
        assert here.states() == {"b": "ACTIVE"}


def test_one_of_which_kafka_does_not_say_that_it_is_gone_is_left_alone_for_ever(
    here: World, kafka: Kafka
) -> None:
    kafka.hidden = frozenset({"a"})
    here.sweep()
    assert (kept(here), retired(here)) == (kafka.topics["a"].topic_id, None)
    end_the_day(here)
    here.sweep()
    assert kept(here) == kafka.topics["a"].topic_id
    kafka.hidden = frozenset()
    here.sweep()
    assert here.states() == {"b": "ACTIVE"}


def test_one_that_came_late_is_left_alone_beyond_its_day(here: World, kafka: Kafka) -> None:
    """Kafka was asked for it, and its entry removed before it came."""
    name = retired_key("late")
    here.writer.put_facts([Put(name, retired_value(1 << 50, awaited=True))])
    kafka.add("late")
    here.sweep()
    row = detached_key("late")
    assert here.replica.snapshot.fact(row) == kafka.topics["late"].topic_id
    here.writer.put_facts([Put(name, retired_value(1, awaited=True))])
    for _ in range(2):
        here.sweep()
        assert here.replica.snapshot.fact(row) == kafka.topics["late"].topic_id
        assert here.replica.snapshot.fact(name) is None
    assert here.states() == {"b": "ACTIVE"}
    del kafka.topics["late"]
    here.sweep()
    assert not is_awaited(here.replica.snapshot.fact(name)), "a whole day from then on"
    assert here.replica.snapshot.fact(row) is not None


class Interfering:
    """A writer before which somebody adopts a topic, right before it is recorded as left alone."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.before: list[CreateTopic] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_facts(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> int:
        if any(write.key == detached_key("late") for write in writes):
            while self.before:
                self._inner.commit_command(self.before.pop())
        return int(self._inner.put_facts(writes, guards))


def test_one_that_is_adopted_meanwhile_is_not_recorded_as_left_alone(tmp_path: FilePath) -> None:
    kafka = Kafka("b")
    made: list[Interfering] = []

    def interfering(inner: Any) -> Interfering:
        made.append(Interfering(inner))
        return made[0]

    with closing(World(tmp_path / "store.db", lambda: kafka, writer=interfering)) as here:
        here.sweep()
        until = retired_value(1 << 50, awaited=True)
        here.writer.put_facts([Put(retired_key("late"), until)])
        kafka.add("late")
        seen = ObservedTopic(
            physical_name="late",
            topic_id=kafka.topics["late"].topic_id,
            partitions=1,
            replication_factor=1,
        )
        made[0].before.append(CreateTopic(path=MOUNT.join(["mine"]), adopt_existing=seen))
        here.sweep()
        assert not made[0].before
        assert here.replica.snapshot.fact(detached_key("late")) is None
        here.sweep()
        assert here.states() == {"b": "ACTIVE", "mine": "ACTIVE"}
