"""Writes beyond those that may wait are refused, also of many admitted before their requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import pytest

from directory.api.rpc.interceptors.malformed_request import MalformedRequest
from directory.api.rpc.request_intake import CallCompletion, Received, RequestIntake
from directory.api.rpc.thread_pools import CallPool, WritePool
from tests.support.waiting import eventually

EVENT = SimpleNamespace(call=SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:9"))


class Calls:
    """A pool of two threads for writes, beside which two may wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gate = threading.Event()
        self.ended: Final = list[str]()
        """What calls that are over were answered; empty = they ran."""
        intake = RequestIntake(1, 1.0, 99)
        self._refusals: Final = CallPool(1, 1, intake)
        self.pool: Final = WritePool(2, 2, intake, self._refusals, lambda: self.now)

    def begin(self, count: int) -> None:
        """Gives the pool calls whose requests are there; they run until the gate opens."""
        for _ in range(count):
            answer: list[str] = []

            def run(*about: Any, answer: list[str] = answer) -> None:
                request = about[4]().request
                if isinstance(request, MalformedRequest):
                    answer.append(str(request.error))
                else:
                    self.gate.wait()
                    answer.append("")

            completion = CallCompletion()
            completion.add_done_callback(lambda _, answer=answer: self.ended.extend(answer))  # type: ignore[misc]
            about = ("run", EVENT, "state", "behave", lambda: Received("a"), "read", "write")
            self.pool.begin(completion, run, about)

    def open(self, count: int) -> None:
        """Has the calls that run end, until so many are over; closes the gate again."""
        self.gate.set()
        eventually(lambda: len(self.ended) == count)
        self.gate.clear()

    def close(self) -> None:
        self.gate.set()
        self.pool.shutdown()
        self._refusals.shutdown()


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    yield made
    made.close()


def test_writes_beyond_those_that_may_wait_are_refused(calls: Calls) -> None:
    calls.begin(20)
    eventually(lambda: len(calls.ended) == 16)
    assert calls.pool.waiting == 2
    why = "2 changes are queued already (limits.max_queued_writes); nothing was written"
    assert set(calls.ended) == {f"{why} (STORE_UNAVAILABLE)"}
    calls.open(20)
    assert calls.ended[16:] == [""] * 4
    calls.begin(4)
    calls.open(24)
    assert calls.ended[20:] == [""] * 4


def test_a_write_is_refused_where_all_threads_are_taken_and_nothing_ends(calls: Calls) -> None:
    calls.begin(2)
    calls.now = 0.9
    calls.begin(1)
    assert calls.ended == [], "they are still within what is usual"
    calls.now = 5.0
    calls.begin(1)
    eventually(lambda: len(calls.ended) == 1)
    assert "2 changes are under way and none has ended for 5.0 s" in calls.ended[0]
    calls.open(4)
    calls.begin(1)
    calls.open(5)
    assert calls.ended[1:] == [""] * 4


def test_a_pool_that_is_shut_down_takes_no_write(calls: Calls) -> None:
    calls.pool.shutdown()
    with pytest.raises(RuntimeError):
        calls.begin(1)
    assert calls.pool.waiting == 0
