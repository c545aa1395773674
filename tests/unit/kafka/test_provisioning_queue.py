"""What waits for Kafka, and when each is tried again."""

from __future__ import annotations

import random

from directory.kafka.adoption.recorded_topics import pending_deletions
from directory.kafka.provisioning.provisioning_queue import Backoff, DueWork, RetryQueue
from directory.namespace.command import (
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    RecordObservations,
    TopicObservation,
)
from directory.namespace.entry import Provision
from directory.store.base import Write
from tests.support.trees import Cluster, path


class Bench:
    """A tree whose commits are told to a worklist, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cluster = Cluster("/la")
        self.worklist = RetryQueue(lambda: self.now, random.Random(1))

    def do(self, command: object, **context: object) -> bool:
        writes: tuple[Write, ...] = self.cluster.do(command, **context).writes  # type: ignore[arg-type]
        return self.worklist.hint(writes)

    def create(self, *paths: str) -> None:
        for text in paths:
            assert self.do(CreateTopic(path=path(text)))

    def settle(self, text: str, provision: Provision) -> None:
        news = TopicObservation(
            path=path(text),
            entry_id=self.cluster.topic(text).entry_id,
            provision=provision,
            topic_id=b"i" * 16,
        )
        self.do(RecordObservations(news=(news,)))

    def due(self) -> DueWork:
        return self.worklist.due(self.cluster.snapshot, self.cluster.mount)

    def creates(self) -> list[str]:
        return sorted(str(one.path) for one in self.due().create)

    def done(self, later: DueWork) -> None:
        self.worklist.done(self.cluster.snapshot, self.cluster.mount, later)


NOTHING = DueWork([], [])


def test_a_new_topic_is_due_at_once_until_it_is_made() -> None:
    bench = Bench()
    bench.create("/la/a", "/la/b")
    assert bench.worklist.next_due() == 0.0
    assert bench.creates() == ["/la/a", "/la/b"]
    bench.settle("/la/a", Provision.ACTIVE)
    bench.settle("/la/b", Provision.FAILED)
    bench.done(NOTHING)
    assert bench.creates() == []
    assert bench.worklist.next_due() is None


def test_what_is_put_off_is_due_later_and_its_own_commits_do_not_hurry_it() -> None:
    bench = Bench()
    bench.create("/la/a", "/la/b")
    work = bench.due()
    bench.settle("/la/b", Provision.ACTIVE)
    (late,) = [one for one in work.create if str(one.path) == "/la/a"]
    attempt = TopicObservation(path=late.path, entry_id=late.topic.entry_id, provision_attempt="x")
    bench.do(RecordObservations(news=(attempt,)))
    bench.done(DueWork([late], []))
    assert bench.creates() == []
    due = bench.worklist.next_due()
    assert due is not None
    assert 100.25 <= due <= 100.5
    bench.now = due
    assert bench.creates() == ["/la/a"]


def test_a_moved_topic_is_still_due() -> None:
    from directory.namespace.command import MoveEntry

    bench = Bench()
    bench.create("/la/a")
    bench.do(MoveEntry(path=path("/la/a"), new_path=path("/la/c")))
    assert bench.creates() == ["/la/c"]


def test_directories_want_nothing_and_removals_do() -> None:
    bench = Bench()
    assert bench.due() == NOTHING
    assert not bench.do(CreateDirectory(path=path("/la/d")))
    bench.create("/la/d/a")
    bench.settle("/la/d/a", Provision.ACTIVE)
    assert bench.do(DeleteEntry(path=path("/la/d/a")), deletes_in_kafka=True)
    (one,) = bench.due().delete
    assert one.topic.physical_name == "d.a"
    assert bench.do(DeleteEntry(path=path("/la/d"), recursive=True)) is False


def test_removals_that_stay_do_not_hold_up_those_behind_them() -> None:
    bench = Bench()
    names = [f"/la/t{number}" for number in range(1_200)]
    bench.create(*names)
    for name in names:
        bench.settle(name, Provision.ACTIVE)
        bench.do(DeleteEntry(path=path(name)), deletes_in_kafka=True)
    seen: set[str] = set()
    for _ in range(3):
        work = bench.due()
        assert len(work.delete) <= 500
        seen |= {one.path.name for one in work.delete}
        bench.done(DueWork([], work.delete))  # none of them can be deleted
        bench.now += 60
    assert seen == {
        one.path.name for one in pending_deletions(bench.cluster.snapshot, bench.cluster.mount)
    }
    assert len(bench.due().delete) == 500, "and then from the first one again"


def test_backoff_doubles_with_jitter_up_to_ten_seconds() -> None:
    backoff = Backoff(random.Random(3))
    delays = [backoff.next() for _ in range(8)]
    for number, delay in enumerate(delays):
        most = min(10.0, 0.5 * 2**number)
        assert most / 2 <= delay <= most
    backoff.reset()
    assert backoff.next() <= 0.5
