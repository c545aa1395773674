"""Calls that wait for a thread: connections take turns, and long ones hold up no short ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kdir.v1 import directory_pb2, resolve_pb2

from directory.api.rpc.interceptors.malformed_request import missing_request
from directory.api.rpc.long_calls import SHORT_PATHS, LongCalls
from directory.api.rpc.request_intake import CallCompletion, Received, RequestIntake
from directory.api.rpc.thread_pools import CallPool, FairQueue, waiting_call
from tests.support.federation import eventually


@pytest.mark.parametrize("times", [1, 2, 10])
def test_one_of_a_caller_waits_for_one_of_another_however_many_that_has(times: int) -> None:
    queue: FairQueue[str] = FairQueue(lambda item: item[0])
    for number in range(10 * times):
        queue.put(f"a{number}")
    queue.put("b0")
    queue.put("b1")
    queue.put("c0")
    assert queue.qsize() == 10 * times + 3
    assert [queue.get() for _ in range(6)] == ["a0", "b0", "c0", "a1", "b1", "a2"]
    rest = [queue.get() for _ in range(10 * times - 3)]
    assert rest == [f"a{number}" for number in range(3, 10 * times)]
    assert queue.qsize() == 0
    queue.end()
    assert queue.get() is None
    assert not queue._items


def test_a_queue_is_cleared_without_waiting_for_what_others_take() -> None:
    for _ in range(200):
        queue: FairQueue[int] = FairQueue(lambda item: item % 3)
        for number in range(50):
            queue.put(number)
        taker = threading.Thread(target=lambda queue=queue: [*iter(queue.get, None)])
        taker.start()
        cleaner = threading.Thread(target=queue.clear)
        cleaner.start()
        cleaner.join(10)
        assert not cleaner.is_alive()
        assert queue.qsize() == 0
        queue.end()
        taker.join(10)
        assert not taker.is_alive()


def test_nothing_is_lost_between_many_threads() -> None:
    queue: FairQueue[int] = FairQueue(lambda item: str(item % 7))
    taken: list[int] = []

    def take() -> None:
        while (item := queue.get()) is not None:
            taken.append(item)

    takers = [threading.Thread(target=take) for _ in range(4)]

    def put(part: int) -> None:
        for number in range(part, 4_000, 4):
            queue.put(number)

    putters = [threading.Thread(target=put, args=(part,)) for part in range(4)]
    for thread in (*takers, *putters):
        thread.start()
    for thread in putters:
        thread.join()
    eventually(lambda: queue.qsize() == 0)
    for _ in takers:
        queue.end()
    for thread in takers:
        thread.join()
    assert sorted(taken) == list(range(4_000))


# -- long calls ----------------------------------------------------------------------------------


def about(request: Any, peer: str = "ipv4:127.0.0.1:1") -> tuple[Any, ...]:
    event = SimpleNamespace(call=SimpleNamespace(peer=lambda: peer))
    return ("run", event, "state", "behave", lambda: Received(request), "read", "write")


def batch(paths: int) -> resolve_pb2.BatchResolveRequest:
    return resolve_pb2.BatchResolveRequest(paths=["/la"] * paths)


@pytest.mark.parametrize(
    ("request_of", "is_long"),
    [
        (lambda: batch(SHORT_PATHS), False),
        (lambda: batch(SHORT_PATHS + 1), True),
        (lambda: batch(10 * SHORT_PATHS), True),
        (directory_pb2.ListEntriesRequest, True),
        (missing_request, False),
        (lambda: None, False),
    ],
)
def test_what_may_work_long_has_threads_of_its_own(
    request_of: Callable[[], Any], is_long: bool
) -> None:
    short, long = (
        CallPool(1, 2, RequestIntake(1, 1.0, 99)),
        CallPool(1, 2, RequestIntake(1, 1.0, 99)),
    )
    seen: list[str] = []
    try:
        for pool, name in ((short, "short"), (long, "long")):
            pool.submit(lambda name=name: setattr(threading.current_thread(), "pool", name))
        calls = LongCalls(short, long, RequestIntake(10, 10.0, 10))
        ended = CallCompletion()
        done = threading.Event()
        ended.add_done_callback(lambda _: done.set())

        def answer(*_: object) -> None:
            seen.append(getattr(threading.current_thread(), "pool", ""))

        calls._begin(ended, answer, about(request_of()))
        assert done.wait(30)
    finally:
        short.shutdown()
        long.shutdown()
    assert seen == ["long" if is_long else "short"]


def test_a_long_call_that_waits_gives_its_thread_to_another_long_one() -> None:
    pool = CallPool(1, 3, RequestIntake(1, 1.0, 99))
    gate = threading.Event()
    ran: list[int] = []

    def wait() -> None:
        with waiting_call():
            gate.wait(30)

    try:
        pool.submit(wait)
        pool.submit(lambda: ran.append(1))
        eventually(lambda: ran == [1])
    finally:
        gate.set()
        pool.shutdown()


def test_who_has_no_thread_of_a_pool_waits_as_well() -> None:
    with waiting_call():
        pass
