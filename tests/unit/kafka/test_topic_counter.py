"""Counting what is not well keeps nobody waiting: not who asks, and not who else is answered."""

from __future__ import annotations

import threading
import time

from directory.kafka.adoption.recorded_topics import TopicCounter, TopicCounts
from directory.namespace.command import CreateTopic
from resolver.path import Path
from tests.support.federation import eventually
from tests.support.trees import Cluster, path


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tree(topics: int) -> Cluster:
    made = Cluster("/la")
    for number in range(topics):
        made.do(CreateTopic(path=path(f"/la/t{number}")))
    return made


def test_a_small_tree_is_counted_when_asked_and_once_a_revision() -> None:
    cluster = tree(3)
    clock = Clock()
    taker = TopicCounter(lambda _: cluster.mount, clock)
    assert taker.latest(cluster.snapshot) == TopicCounts(cluster.snapshot.revision, 3, 0, 0)
    again = taker.latest(cluster.snapshot)
    assert taker.latest(cluster.snapshot) is again


def test_a_large_tree_is_counted_by_a_thread_and_the_last_count_is_shown_meanwhile() -> None:
    cluster = tree(500)
    taker = TopicCounter(lambda _: cluster.mount, at_once=10)
    assert taker.latest(cluster.snapshot) == TopicCounts()  # nobody waits for the first either
    eventually(lambda: taker.latest(cluster.snapshot).revision > 0)
    first = taker.latest(cluster.snapshot)
    assert (first.revision, first.pending) == (cluster.snapshot.revision, 500)
    cluster.do(CreateTopic(path=path("/la/more")))
    assert taker.latest(cluster.snapshot) is first
    eventually(lambda: taker.latest(cluster.snapshot).pending == 501)


def test_counting_rests_most_of_the_time() -> None:
    cluster, clock = tree(3), Clock()

    def mount_at(_: object) -> Path:
        clock.now += 2.0  # a walk that takes two seconds
        return cluster.mount

    taker = TopicCounter(mount_at, clock)
    first = taker.latest(cluster.snapshot)
    cluster.do(CreateTopic(path=path("/la/more")))
    clock.now += 19.0
    assert taker.latest(cluster.snapshot) is first
    clock.now += 2.0
    assert taker.latest(cluster.snapshot).pending == 4


def test_a_count_that_is_stopped_ends_and_says_nothing_half() -> None:
    cluster = tree(1_000)
    taker = TopicCounter(lambda _: cluster.mount, at_once=10)
    taker._rest = lambda _: taker._stop.wait(30)  # type: ignore[method-assign,assignment]
    taker.latest(cluster.snapshot)
    begun = time.monotonic()
    taker.stop()
    for thread in threading.enumerate():
        if thread.name == "topic counts":
            thread.join(20)
    assert time.monotonic() - begun < 20
    assert taker.latest(cluster.snapshot) == TopicCounts()
