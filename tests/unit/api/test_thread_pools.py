"""Few threads answer; those that wait let others run; all of them stuck, more come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from directory.api.rpc.request_intake import RequestIntake
from directory.api.rpc.thread_pools import CallCompletion, CallPool, FairQueue
from tests.support.federation import eventually


class Gate:
    """Barrier that holds calls, and counts those in it."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self._open.wait(20)
        with self._lock:
            self.inside -= 1


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def pool() -> Iterator[CallPool]:
    pool = CallPool(2, 8, RequestIntake(1, 1.0, 99))
    yield pool
    pool.shutdown()


def have_run(pool: CallPool, count: int) -> Callable[[], bool]:
    """Puts so many quick calls in; whether they have ended."""
    ended = [pool.submit(int) for _ in range(count)]
    seen: list[object] = []
    for one in ended:
        one.add_done_callback(seen.append)
    return lambda: len(seen) == count


def test_so_many_run_at_a_time_and_the_others_wait_their_time(pool: CallPool, gate: Gate) -> None:
    for _ in range(5):
        pool.submit(gate.pass_through)
    eventually(lambda: gate.inside == 2)
    assert pool.waiting_calls == 3
    gate.open()
    eventually(lambda: gate.inside == 0 and not pool.waiting_calls)
    assert gate.most == 2


def test_a_call_that_says_that_it_waits_holds_up_no_other(pool: CallPool, gate: Gate) -> None:
    def wait() -> None:
        with pool.while_blocked():
            gate.pass_through()

    for _ in range(6):
        pool.submit(wait)
    eventually(lambda: gate.inside == 6)
    eventually(have_run(pool, 100))
    gate.open()
    eventually(lambda: gate.inside == 0)
    # Those that ran meanwhile rest again, once each has ended a call.

    def no_more_than_before() -> bool:
        second = Gate()
        for _ in range(8):
            pool.submit(second.pass_through)
        eventually(lambda: second.inside >= 2 and second.inside + pool.waiting_calls == 8)
        second.open()
        eventually(lambda: second.inside == 0 and not pool.waiting_calls)
        return second.most == 2

    eventually(no_more_than_before)


def test_there_is_an_end_to_those_that_wait(pool: CallPool, gate: Gate) -> None:
    def wait() -> None:
        with pool.while_blocked():
            gate.pass_through()

    for _ in range(20):
        pool.submit(wait)
    eventually(lambda: gate.inside == 8)
    assert pool.waiting_calls == 12
    gate.open()
    eventually(have_run(pool, 5))
    assert gate.most == 8


def test_calls_that_are_stuck_in_silence_are_found_out(pool: CallPool, gate: Gate) -> None:
    for _ in range(2):
        pool.submit(gate.pass_through)
    eventually(lambda: gate.inside == 2)
    done = have_run(pool, 50)
    pool.unblock_stalled()
    pool.unblock_stalled()
    assert not done()
    pool.unblock_stalled()
    eventually(done)
    pool.unblock_stalled()  # nothing waits any more
    gate.open()
    eventually(lambda: gate.inside == 0)


def test_calls_that_compute_are_not_taken_to_wait(pool: CallPool) -> None:
    """More threads beside them would only take turns with everybody else's."""
    lock, ended = threading.Lock(), threading.Event()
    inside = 0

    def compute() -> None:
        nonlocal inside
        with lock:
            inside += 1
        while not ended.is_set():
            sum(range(1_000))

    try:
        for _ in range(6):
            pool.submit(compute)
        eventually(lambda: inside == 2)
        began = time.process_time()
        for look in range(1, 21):
            until = began + look * 0.05
            eventually(lambda: time.process_time() > until)  # noqa: B023 - it is done at once
            pool.unblock_stalled()
            assert inside == 2
    finally:
        ended.set()
    eventually(lambda: inside == 6)


def test_a_call_that_fails_costs_no_thread(
    pool: CallPool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    failed: list[CallCompletion] = []
    for _ in range(4):
        pool.submit(fail).add_done_callback(failed.append)
    eventually(have_run(pool, 10))
    eventually(lambda: len(failed) == 4)
    assert "outside of its handler" in caplog.text


def test_who_asks_after_the_end_gets_an_error_at_once() -> None:
    seen: list[object] = []
    ended = CallCompletion()
    ended.end()
    ended.add_done_callback(seen.append)
    assert seen == [ended]


def test_a_pool_that_is_shut_down_drops_what_waits_and_takes_no_more(gate: Gate) -> None:
    pool = CallPool(1, 1, RequestIntake(1, 1.0, 99))
    pool.submit(gate.pass_through)
    eventually(lambda: gate.inside == 1)
    ran: list[int] = []
    pool.submit(ran.append, 1)
    threads = [one for one in threading.enumerate() if one.name.startswith("call_")]
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(ran.append, 2)
    gate.open()
    for one in threads:
        if one is not threading.current_thread():
            one.join(0.2)
    eventually(lambda: gate.inside == 0)
    assert ran == []


def test_G10_a_pool_ends_though_a_thread_takes_what_it_is_about_to_drop(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = CallPool(1, 1, RequestIntake(1, 1.0, 99))
    pool.submit(gate.pass_through)
    eventually(lambda: gate.inside == 1)
    pool.submit(int)
    clear = FairQueue.clear

    def clear_late(queue: FairQueue[object]) -> None:
        gate.open()
        eventually(lambda: queue.qsize() == 0)  # the pool's thread takes it first
        clear(queue)

    monkeypatch.setattr(FairQueue, "clear", clear_late)
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
