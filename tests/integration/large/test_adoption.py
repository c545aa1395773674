"""Adopting much: in steps, killed at any, finished by the next server; nothing twice, nothing lost.

A Kafka in memory gives the numbers; a real one is adopted from in ``tests/integration/kafka``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path as FilePath
from typing import Any

import pytest

from directory.namespace.adoption_mapping import MappingRule
from directory.namespace.command import DeleteEntry, FinishDelete, UpdateEntry
from directory.namespace.entry import Kind
from directory.store.base import Store
from directory.store.large_change_records import SWEEP, LargeAdoption, adoptions, progress_of
from directory.store.sqlite.store import SqliteStore
from tests.support.crash_points import ASKED, WRITTEN, Crash, DyingStore, Mortal, Passages
from tests.support.large_trees import FakeKafka, TightSqlite, check_no_orphans
from tests.support.reconciler import MOUNT, World, eventually

RULES = (MappingRule.from_fields("*", split_on="."),)


def kafka_of(count: int) -> FakeKafka:
    """Returns topics by tens, so that a rule makes directories of them."""
    return FakeKafka(*(f"s{number // 10}.t{number}" for number in range(count)))


def world_of(file: FilePath, kafka: Any, **settings: Any) -> World:
    return World(file, kafka, open_store=lambda: TightSqlite(file, "la-t"), **settings)


def everything_is_there(here: World, kafka: FakeKafka, place: Callable[[str], str]) -> None:
    topics = here.topics()
    assert {path: topic.physical_name for path, topic in topics.items()} == {
        place(name): name for name in kafka.topics
    }
    assert all(topics[place(name)].topic_id == seen.topic_id for name, seen in kafka.topics.items())
    assert here.facts.stop is None
    assert adoptions(here.replica.snapshot) == []
    check_no_orphans(here.store)


def split(name: str) -> str:
    return name.replace(".", "/")


# -- the first sweep -----------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_the_first_sweep_of_a_big_kafka_goes_in_slices_that_let_others_in(
    tmp_path: FilePath,
) -> None:
    kafka = kafka_of(6_000)
    with closing(world_of(tmp_path / "s.db", kafka, split_on=".")) as here:
        here.sweep()
        seen = []
        for _ in range(1_000):
            (progress,) = progress_of(here.replica.snapshot) or (None,)
            if progress is None:
                break
            assert (progress.kind, progress.path) == ("adopt", str(MOUNT))
            assert progress.done + progress.remaining == 6_000
            seen.append(progress.done)
            if len(seen) == 1:
                here.create("wished")  # is made before the rest is adopted
            here.now += 3
            assert here.reconciler.run_once() < 30
        assert len(seen) > 1
        assert seen == sorted(seen)
        assert kafka.made == ["wished"]
        everything_is_there(here, kafka, split)


def test_a_sweep_killed_at_any_commit_is_finished_by_the_next_server(tmp_path: FilePath) -> None:
    count = 1_200
    for last in [*range(1, 7), 30, 10_000]:
        kafka, file = kafka_of(count), tmp_path / f"{last}.db"
        store = DyingStore(file, "la-t")
        dying = World(file, kafka, open_store=lambda store=store: store, split_on=".")
        store.passed, store.last = 0, last
        try:
            dying.sweep()
            dying.settle(1_000)
        except Crash:
            died = True
        else:
            died = False
        store.last = 0
        dying.close()
        with closing(world_of(file, kafka, split_on=".")) as here:
            here.sweep()
            here.settle(1_000)
            everything_is_there(here, kafka, split)
        if not died:
            assert last == 10_000
            return
    raise AssertionError("it has more commits than were tried")


# -- kdir adopt --map ----------------------------------------------------------------------------


def adopted_flat(file: FilePath, kafka: FakeKafka, opened: Callable[[], Store]) -> World:
    """Returns a server whose Kafka's topics are in the tree under their own names."""
    here = World(file, kafka, open_store=opened)
    here.sweep()
    here.settle(1_000)
    assert here.replica.snapshot.topic_count == len(kafka.topics)
    return here


def test_a_large_remap_is_recorded_and_made_by_the_elected_server(tmp_path: FilePath) -> None:
    kafka, file = kafka_of(1_500), tmp_path / "s.db"
    one = adopted_flat(file, kafka, lambda: TightSqlite(file, "la-t"))
    other = world_of(file, kafka)
    try:
        # Asked of the one that is not elected.
        asked = other.reconciler.requests.adopt(RULES, False, True, "User:ana", 0.0)
        assert asked.under_way is not None
        assert (asked.under_way.done, asked.under_way.left) == (0, 1_500)
        assert {row.action for row in asked.rows} == {"move"}
        (progress,) = progress_of(other.replica.snapshot)
        assert (progress.kind, progress.principal) == ("adopt", "User:ana")
        assert other.reconciler.run_once() > 0
        # Asked again it is the same change.
        again = other.reconciler.requests.adopt(RULES, False, True, "User:ana", 0.0)
        assert again.under_way is not None
        assert again.under_way.change_id == asked.under_way.change_id

        answer: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answer.append(
                other.reconciler.requests.adopt(RULES, False, True, "", 60.0)
            )
        )
        waiting.start()
        eventually(lambda: one.replica.snapshot.revision >= other.replica.snapshot.revision)
        one.settle(1_000)
        waiting.join(60)
        assert answer[0].under_way is None
        assert {row.action for row in answer[0].rows} <= {"move", "keep"}
        everything_is_there(one, kafka, split)
    finally:
        one.close()
        other.close()


def test_P12_a_remap_killed_at_any_commit_is_finished_by_the_next_server(
    tmp_path: FilePath,
) -> None:
    template = tmp_path / "template.db"
    kafka = kafka_of(1_000)
    adopted_flat(template, kafka, lambda: TightSqlite(template, "la-t")).close()
    for last in [*range(1, 7), 30, 10_000]:
        file = tmp_path / f"{last}.db"
        for part in ("", "-wal", "-shm"):
            old = template.with_name(template.name + part)
            if old.exists():
                file.with_name(file.name + part).write_bytes(old.read_bytes())
        store = DyingStore(file, "la-t")
        dying = World(file, kafka, open_store=lambda store=store: store)
        died = False
        store.passed, store.last = 0, last
        try:
            dying.reconciler.requests.adopt(RULES, False, True, "", 0.0)
            dying.settle(1_000)
        except Crash:
            died = True
        store.last = 0
        dying.close()
        with closing(world_of(file, kafka)) as here:
            if last == 1:  # it died before anything was recorded: the call is repeated
                here.reconciler.requests.adopt(RULES, False, True, "", 0.0)
            here.settle(1_000)
            everything_is_there(here, kafka, split)
        if not died:
            assert last == 10_000
            return
    raise AssertionError("it has more commits than were tried")


def test_a_topic_that_cannot_move_is_reported_and_the_others_move(tmp_path: FilePath) -> None:
    kafka, file = kafka_of(1_200), tmp_path / "s.db"
    with closing(adopted_flat(file, kafka, lambda: TightSqlite(file, "la-t"))) as here:
        here.mkdir("s7")
        here.execute(_read_only("s7"))
        asked = here.reconciler.requests.adopt(RULES, False, True, "", 0.0)
        assert asked.under_way is not None
        here.settle(1_000)
        topics = here.topics()
        assert sum("/" in path for path in topics) == 1_190
        assert {path for path in topics if path.startswith("s7.")} == {
            f"s7.t{number}" for number in range(70, 80)
        }
        assert adoptions(here.replica.snapshot) == [], "it ends all the same"


def _read_only(name: str) -> Any:
    return UpdateEntry(
        path=MOUNT.child(name), kind=Kind.DIRECTORY, changes={"policies.read_only": True}
    )


def test_a_stop_holds_up_an_adoption_and_an_acknowledgement_lets_it_go_on(
    tmp_path: FilePath,
) -> None:
    kafka, file = kafka_of(1_200), tmp_path / "s.db"
    with closing(adopted_flat(file, kafka, lambda: TightSqlite(file, "la-t"))) as here:
        gone = {name: kafka.topics.pop(name) for name in list(kafka.topics)[:100]}
        here.sweep()
        assert here.stopped
        kafka.topics.update(gone)
        change = here.reconciler.requests._recorded(RULES, remap=True, principal="", count=1_200)
        here.writer.put_facts([change.to_put()])
        before = here.replica.snapshot.revision
        assert here.reconciler.run_once() > 0, "nothing is due before the next sweep"
        assert here.replica.snapshot.revision == before
        here.reconciler.acknowledge(here.stopped)
        here.sweep()
        here.settle(1_000)
        everything_is_there(here, kafka, split)


# -- removing what Kafka has ---------------------------------------------------------------------


def test_P12_a_removal_with_its_kafka_topics_killed_at_each_step_is_finished_by_the_next(
    tmp_path: FilePath,
) -> None:
    """Each commit of the tree and each request to Kafka is a place to die before and after."""
    for last in range(1, 200):
        kafka, file = kafka_of(50), tmp_path / f"{last}.db"
        here = world_of(file, kafka, split_on=".")
        here.sweep()
        here.settle(1_000)
        here.mkdir("keep")
        here.close()
        passages = Passages(last)
        dying = world_of(
            file,
            lambda kafka=kafka, passages=passages: Mortal(kafka, passages, ASKED),
            writer=lambda real, passages=passages: Mortal(real, passages, WRITTEN),
            split_on=".",
        )
        died = False
        try:
            passages.passed("before the mark")
            for name in ("s0", "s1"):
                dying.remove(name)
            passages.passed("after the mark")
            dying.settle(1_000)
            dying.sweep()
        except Crash:
            died = True
        dying.close()
        with closing(world_of(file, kafka, split_on=".")) as here:
            if passages.log == ["before the mark"]:
                for name in ("s0", "s1"):
                    here.remove(name)
            here.settle(1_000)
            here.sweep()
            assert len(here.topics()) == 30, (last, passages.log[-1])
            assert here.nothing_left_to_reap(), (last, passages.log[-1])
            assert sorted(kafka.deleted) == sorted(
                f"s{number // 10}.t{number}" for number in range(20)
            )
            left = check_no_orphans(here.store)
            assert (left["topics"], left["removed"], left["retired"]) == (30, 0, 20)
        if not died:
            assert {"before delete", "after delete", "before commit_command"} <= set(passages.log)
            return
    raise AssertionError("it has more steps than were tried")


def test_topics_that_are_gone_from_kafka_are_finished_in_few_commits(tmp_path: FilePath) -> None:
    kafka = kafka_of(400)
    file = tmp_path / "s.db"
    with closing(
        World(file, kafka, open_store=lambda: SqliteStore(file, "la-t"), split_on=".")
    ) as here:
        here.sweep()
        for number in range(40):
            here.execute(DeleteEntry(path=MOUNT.child(f"s{number}"), recursive=True))
        here.reap()
        commands: list[Any] = []
        real = here.writer.commit_command

        def execute(command: Any, **options: Any) -> Any:
            commands.append(command)
            return real(command, **options)

        here.writer.commit_command = execute  # type: ignore[method-assign]
        here.settle(1_000)
        assert here.nothing_left_to_reap()
        finished = [one for one in commands if isinstance(one, FinishDelete)]
        assert sum(len(one.topics) for one in finished) == 400
        assert len(finished) <= 3


def test_the_record_of_a_sweep_that_ended_unseen_goes_with_the_next(tmp_path: FilePath) -> None:
    """Killed between the last batch and the end of its record."""
    kafka, file = kafka_of(10), tmp_path / "s.db"
    with closing(world_of(file, kafka, split_on=".")) as here:
        change = LargeAdoption(change_id=SWEEP, mount=MOUNT, started_at_ms=1, done=1_990, left=10)
        here.writer.put_facts([change.to_put()])
        here.sweep()
        everything_is_there(here, kafka, split)
