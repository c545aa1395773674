"""The reconciler dies anywhere, and the next one finishes: every call to Kafka and every commit is
a place to die before and after (docs/architecture.md#create-write-path).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path as FilePath
from typing import Any

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import TopicToCreate
from directory.namespace.command import TopicObservation
from tests.support.crash_points import ASKED, WRITTEN, Crash, Mortal, Passages
from tests.support.lost_locks import forget_lock, lose_lock
from tests.support.reconciler import (
    MOUNT,
    World,
    admin_of,
    drop,
    eventually,
    in_kafka,
    make,
    world,
)

ROOT = FilePath(__file__).resolve().parents[3]


def mortal_world(file: FilePath, bootstrap: str, passages: Passages) -> World:
    return World(
        file,
        lambda: Mortal(ConfluentAdmin([bootstrap]), passages, ASKED),
        writer=lambda real: Mortal(real, passages, WRITTEN),
    )


def prepare(file: FilePath, broker: KafkaBroker, kafka: ConfluentAdmin) -> None:
    """Prepares two topics to create, one that Kafka will refuse, one of another owner, two to
    delete.
    """
    make(kafka, "old", "older", "kept")
    with world(file, admin_of(broker.bootstrap)) as here:
        here.sweep()
        make(kafka, TopicToCreate("theirs", partitions=2))
        here.mkdir("d")
        here.create("d/a", partitions=2)
        here.create("b")
        here.create("refused", replication_factor=3)
        here.create("theirs", partitions=5)
        here.remove("old")
        here.remove("older")


def check_finished(here: World, kafka: ConfluentAdmin) -> None:
    assert here.states() == {
        "b": "ACTIVE",
        "d/a": "ACTIVE",
        "kept": "ACTIVE",
        "refused": "FAILED",
        "theirs": "FAILED",
    }
    assert in_kafka(kafka) == {"d.a", "b", "kept", "theirs"}
    topics, shown = here.topics(), kafka.describe_all().topics
    assert topics["d/a"].topic_id == shown["d.a"].topic_id
    assert (topics["d/a"].partitions, topics["b"].partitions) == (2, 1)
    assert "exists in Kafka" in topics["theirs"].provision_message
    assert "replication factor" in topics["refused"].provision_message
    assert here.nothing_left_to_reap()
    assert here.stopped == ""


def run_until_it_ends(here: World) -> None:
    """Rounds, as its thread would make them, until nothing is left to do, or a crash."""
    here.settle()
    here.sweep()


def passages_of_a_whole_run(
    tmp_path: FilePath, broker: KafkaBroker, kafka: ConfluentAdmin
) -> list[str]:
    prepare(tmp_path / "whole.db", broker, kafka)
    passages = Passages(last=-1)
    with closing(mortal_world(tmp_path / "whole.db", broker.bootstrap, passages)) as here:
        run_until_it_ends(here)
        check_finished(here, kafka)
    return passages.log


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_crash_at_any_passage_is_finished_by_the_next_reconciler(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    log = passages_of_a_whole_run(tmp_path, broker, kafka)
    assert {"before create", "after create", "before delete", "after delete"} <= set(log)
    for last in range(1, len(log) + 1):
        drop(kafka, *in_kafka(kafka))
        file = tmp_path / f"{last}.db"
        prepare(file, broker, kafka)
        passages = Passages(last)
        dying = mortal_world(file, broker.bootstrap, passages)
        try:
            run_until_it_ends(dying)
            # How often Kafka is asked whether it shows a topic by now is not the same each time:
            # this run came to its end by fewer passages.
            assert len(passages.log) < last
        except Crash:
            pass
        finally:
            dying.close()
        with world(file, admin_of(broker.bootstrap)) as here:
            run_until_it_ends(here)
            try:
                check_finished(here, kafka)
            except AssertionError as unfinished:
                raise AssertionError(f"passage {last}, {passages.log[-1]}") from unfinished


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.integration.kafka.test_crashes import mortal_world, run_until_it_ends
from tests.support.crash_points import Passages
file, bootstrap, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
passages = Passages(last, lambda: os.kill(os.getpid(), signal.SIGKILL))
run_until_it_ends(mortal_world(file, bootstrap, passages))
"""


@pytest.mark.parametrize(
    "where", ["before create", "after create", "before delete", "after delete"]
)
def test_a_reconciler_killed_around_a_request_to_kafka_is_finished_by_the_next_process(
    where: str, broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    last = passages_of_a_whole_run(tmp_path, broker, kafka).index(where) + 1
    drop(kafka, *in_kafka(kafka))
    file = tmp_path / "store.db"
    prepare(file, broker, kafka)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(file), broker.bootstrap, str(last)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    if where == "after create":
        assert {"d.a", "b"} <= in_kafka(kafka), "Kafka has them, and nobody has recorded that"
    with world(file, admin_of(broker.bootstrap)) as here:
        run_until_it_ends(here)
        check_finished(here, kafka)


def test_an_attempt_on_record_does_not_outlive_a_refusal(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    with world(tmp_path / "store.db", admin_of(broker.bootstrap)) as here:
        here.sweep()
        here.create("x", replication_factor=3)
        here.settle()
        assert here.topics()["x"].provision_attempt == ""


def test_a_topic_that_appears_between_look_and_create_is_not_ours(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    class Slow(ConfluentAdmin):
        """Somebody else is quicker, right before the request."""

        def create(self, desired_set: Any, still: Any = None) -> Any:
            make(kafka, *(TopicToCreate(desired.name, partitions=7) for desired in desired_set))
            return super().create(desired_set)

    with world(tmp_path / "store.db", lambda: Slow([broker.bootstrap])) as here:
        here.sweep()
        here.create("x")
        here.settle()
        assert here.states() == {"x": "FAILED"}
        assert here.topics()["x"].provision_attempt == ""
        here.remove("x")
        here.sweep()
        assert in_kafka(kafka) == {"x"}


def test_a_create_whose_answer_was_lost_is_ours(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    from directory.kafka.admin_contract import OutcomeUnknown

    class Deaf(ConfluentAdmin):
        """The request arrives, its answer does not."""

        def create(self, desired_set: Any, still: Any = None) -> Any:
            super().create(desired_set)
            return {desired.name: OutcomeUnknown("timed out") for desired in desired_set}

    with world(tmp_path / "store.db", lambda: Deaf([broker.bootstrap])) as here:
        here.sweep()
        here.create("x")
        here.settle()
        assert here.states() == {"x": "ACTIVE"}
        assert here.topics()["x"].topic_id == kafka.describe_all().topics["x"].topic_id


# -- two servers ---------------------------------------------------------------------------------


@pytest.fixture
def two(broker: KafkaBroker, tmp_path: FilePath) -> Iterator[tuple[World, World]]:
    file = tmp_path / "store.db"
    with (
        world(file, admin_of(broker.bootstrap)) as one,
        world(file, admin_of(broker.bootstrap)) as other,
    ):
        yield one, other


def test_only_one_of_two_servers_reconciles_and_the_other_takes_over(
    two: tuple[World, World], kafka: ConfluentAdmin
) -> None:
    one, other = two
    one.reconciler.start()
    eventually(lambda: one.reconciler.status().reachable)
    other.reconciler.start()
    other.create("a")
    eventually(lambda: other.states() == {"a": "ACTIVE"})
    status = other.reconciler.status()
    assert (status.leader, status.reachable) == (False, False)
    assert "not the elected reconciler" in status.message
    assert status.pinned_cluster_id == one.reconciler.status().pinned_cluster_id
    one.reconciler.stop()
    eventually(lambda: other.reconciler.status().leader)
    other.create("b")
    eventually(lambda: other.states() == {"a": "ACTIVE", "b": "ACTIVE"})
    assert in_kafka(kafka) == {"a", "b"}


def test_S19_a_reconciler_that_lost_its_role_commits_nothing_more(
    two: tuple[World, World], kafka: ConfluentAdmin
) -> None:
    from directory.store.leader import LeadershipLost
    from resolver.errors import WriteConflict

    one, other = two
    one.sweep()
    one.create("a")
    old, held = one.reconciler.term, one.reconciler.leader.leadership
    assert old is not None
    assert held is not None
    # The lock goes without the process knowing, as after a long pause; another one is elected.
    lose_lock(held)
    other.sweep()
    assert other.reconciler.status().leader
    assert held.held(), "it believes that it leads"
    topic = one.topics()["a"]
    news = TopicObservation(
        path=MOUNT.child("a"), entry_id=topic.entry_id, provision_message="stale"
    )
    with pytest.raises((LeadershipLost, WriteConflict)):
        old.commits.record([news])
    with pytest.raises(LeadershipLost):
        old.commits.put(())
    other.settle()
    assert other.states() == {"a": "ACTIVE"}
    assert other.topics()["a"].provision_message == ""
    forget_lock(held)
