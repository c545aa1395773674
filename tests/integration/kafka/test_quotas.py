"""Quotas on partitions against a real broker: topics grow as far as there is room."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import TopicToCreate
from directory.namespace.command import UpdateEntry
from directory.namespace.entry import Kind
from resolver.errors import QuotaExceeded
from tests.integration.kafka.test_pushing import arm, armed, calls
from tests.support.crash_points import Crash, Mortal, Passages
from tests.support.reconciler import MOUNT, World, admin_of, eventually, make, partitions, world

ASKED = frozenset({"alter_configs", "create_partitions", "describe", "configs", "cluster_id"})
WRITTEN = frozenset({"commit_command", "put_facts"})


@pytest.fixture
def here(broker: KafkaBroker, tmp_path: FilePath) -> Iterator[World]:
    with world(tmp_path / "store.db", admin_of(broker.bootstrap), **armed()) as made:
        yield made


def put(here: World, path: str, kind: Kind = Kind.DIRECTORY, **policies: int | None) -> None:
    changes = {f"policies.{field}": value for field, value in policies.items()}
    here.execute(UpdateEntry(path=MOUNT.join(path.split("/")), kind=kind, changes=changes))


def shows(kafka: ConfluentAdmin, expected: dict[str, int]) -> None:
    """Waits until the broker shows these partitions: a moment after it has acknowledged them."""

    def look() -> bool:
        assert partitions(kafka) == expected
        return True

    eventually(look)


def grow(here: World, count: int, *names: str) -> None:
    for name in names:
        put(here, name, Kind.TOPIC, partitions=count)


def test_growth_comes_as_far_as_there_is_room(here: World, kafka: ConfluentAdmin) -> None:
    make(
        kafka,
        TopicToCreate("d.a", partitions=1),
        TopicToCreate("d.b", partitions=1),
        TopicToCreate("d.c", partitions=1),
    )
    here.sweep()
    grow(here, 3, "d/a", "d/b", "d/c")
    put(here, "d", max_partitions=6)
    assert calls(here, "d") == [("d.a", "partitions", "1", "3")], "the plan says what would be made"
    arm(here, "d")
    eventually(lambda: sorted(partitions(kafka).values()) == [1, 1, 3])
    assert sum(topic.partitions for topic in here.topics().values()) == 5
    here.sweep()
    # What is wished and has no room is shown as drift, and comes once there is some.
    assert sorted(topic.drift_count for topic in here.topics().values()) == [0, 1, 1]
    with pytest.raises(QuotaExceeded, match="5 used, 2 requested"):
        here.create("d/e", partitions=2)
    put(here, "d", max_partitions=9)
    here.settle()
    shows(kafka, dict.fromkeys(("d.a", "d.b", "d.c"), 3))
    put(here, "d/a", Kind.TOPIC, max_partitions=4)
    put(here, "d", max_partitions=None)
    grow(here, 5, "d/b", "d/c")
    here.settle()
    shows(kafka, {"d.a": 3, "d.b": 5, "d.c": 5})  # a topic binds itself


def test_growth_that_had_no_room_comes_once_something_else_is_gone(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, TopicToCreate("d.a", partitions=3), TopicToCreate("d.b", partitions=3))
    here.sweep()
    grow(here, 4, "d/a", "d/b")
    put(here, "d", max_partitions=6)
    arm(here, "d")
    assert partitions(kafka) == {"d.a": 3, "d.b": 3}
    # It goes out of kdir's sight and stays in Kafka: no topic that is armed has changed.
    here.remove("d/a", Kind.TOPIC)

    def grown() -> bool:
        here.sweep()
        here.settle()
        return partitions(kafka)["d.b"] == 4

    eventually(grown)


def test_killed_at_any_step_of_growing_the_next_one_finishes(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, TopicToCreate("d.a", partitions=1), TopicToCreate("d.b", partitions=1))
    file = tmp_path / "store.db"
    with world(file, admin_of(broker.bootstrap), **armed()) as here:
        here.sweep()
        put(here, "d", max_partitions=1_000)
        arm(here, "d")
    for step in itertools.count(1):
        want = step + 1
        with world(file, admin_of(broker.bootstrap), **armed()) as here:
            grow(here, want, "d/a", "d/b")
        passages = Passages(last=step)
        died = dies(file, broker.bootstrap, passages)
        with world(file, admin_of(broker.bootstrap), **armed()) as here:
            here.settle()
            shows(kafka, {"d.a": want, "d.b": want})
            assert {topic.partitions for topic in here.topics().values()} == {want}
        if not died:
            assert {"before create_partitions", "after create_partitions"} <= set(passages.log)
            return


def dies(file: FilePath, bootstrap: str, passages: Passages) -> bool:
    """True if a reconciler that works until all is done comes to its last passage."""
    dying = World(
        file,
        lambda: Mortal(ConfluentAdmin([bootstrap]), passages, ASKED),
        writer=lambda real: Mortal(real, passages, WRITTEN),
        **armed(),
    )
    try:
        dying.settle()
    except Crash:
        return True
    else:
        return False
    finally:
        dying.close()
