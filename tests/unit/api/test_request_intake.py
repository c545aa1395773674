"""What the intake of requests expects of grpcio; calls themselves are in tests/fault."""

import inspect
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import _server

from directory.api.rpc import request_intake
from directory.api.rpc.interceptors.malformed_request import MalformedRequest
from directory.api.rpc.request_intake import (
    CallCompletion,
    DelayedRefusal,
    Received,
    RequestIntake,
    begin_call,
    takes_request,
)
from directory.api.rpc.stream_slots import StreamPool, StreamSlots
from resolver.errors import NotReady
from tests.support.waiting import eventually


def state(*, is_there: bool = True) -> SimpleNamespace:
    """Returns what gRPC knows of a call: whether it has told the caller its status."""
    return SimpleNamespace(condition=threading.Condition(), client="", statused=not is_there)


def test_it_can_be_dropped_once_grpcio_receives_requests_before_it_takes_a_thread() -> None:
    """Today the function that waits for the request runs in the pool: it is its first step."""
    source = inspect.getsource(_server._unary_response_in_pool)
    assert "argument_thunk()" in source
    assert "condition.wait()" in inspect.getsource(_server._unary_request)


def test_calls_that_take_their_messages_themselves_begin_at_once() -> None:
    begun: list[tuple[object, ...]] = []
    intake = RequestIntake(1, 1.0, 9)

    def own(*_: object) -> None: ...

    def marked(*_: object) -> None: ...

    takes_request(marked)
    for about in ((), (print,), ("body", "event", "state", own)):
        ended = intake.submit(lambda *call: begun.append(call), print, about)
        assert begun[-1] == (ended, print, about)
    assert intake.unfinished == 0


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_call_that_will_be_refused_begins_a_second_later() -> None:
    clock, begun = Clock(), list[int]()
    intake = RequestIntake(1, 1.0, 9, clock)
    intake.delay(lambda: begun.append(1), CallCompletion())
    clock.now = 0.9
    intake.delay(lambda: begun.append(2), CallCompletion())
    intake.begin_delayed()
    assert begun == []
    clock.now = 1.0
    intake.begin_delayed()
    assert begun == [1]


def test_calls_refused_before_they_have_a_thread_are_counted_and_logged_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("abort_call", "receive_message"):
        monkeypatch.setattr(request_intake, name, lambda *_: None)
    caplog.set_level(logging.INFO, "directory.calls")
    clock = Clock()
    intake = RequestIntake(9, 5.0, 2, clock)

    def ask(calls: int) -> None:
        for _ in range(calls):
            about = ("run", SimpleNamespace(call=None), state(), takes_request(lambda: None))
            intake.submit(lambda *_: None, print, (*about, "", "", ""))

    ask(5)
    assert (intake.calls, intake.excess) == (2, 3)
    assert caplog.messages == [], "gRPC's thread does not wait for the log"
    intake.report_refused()
    ask(7)
    clock.now = 0.9
    intake.report_refused()

    def excess(count: int) -> str:
        return line(count, "2 calls are under way (limits.max_concurrent_calls); ask again")

    def line(count: int, why: str) -> str:
        return f"calls refused: {count} (RESOURCE_EXHAUSTED LIMIT_EXCEEDED): {why}"

    assert caplog.messages == [excess(3)]
    clock.now = 5.1
    intake.refuse_late()
    assert (intake.refused, intake.excess) == (2, 10)
    intake.report_refused()
    late = "no request came within 5 s (limits.request_seconds)"
    assert caplog.messages[1:] == [excess(7), line(2, late)]
    intake.report_refused()
    assert len(caplog.messages) == 3
    ask(1)
    intake.close()
    assert caplog.messages[3:] == [excess(1)]


def test_a_burst_of_them_begins_bit_by_bit_and_each_does() -> None:
    clock, begun = Clock(), list[int]()
    intake = RequestIntake(1, 1.0, 9, clock)
    for number in range(100):
        intake.delay(lambda number=number: begun.append(number), CallCompletion())  # type: ignore[misc]
    clock.now = 1.0
    intake.begin_delayed()
    assert begun == list(range(10))
    for _ in range(99):
        intake.begin_delayed()
    assert begun == list(range(100))


def test_where_many_wait_one_more_is_refused_at_once() -> None:
    begun = list[int]()
    intake = RequestIntake(1, 1.0, 9, Clock())
    for number in range(10_000):
        intake.delay(lambda number=number: begun.append(number), CallCompletion())  # type: ignore[misc]
    assert begun == list(range(1_024, 10_000))


def test_a_server_that_stops_delays_none() -> None:
    begun = list[int]()
    intake = RequestIntake(1, 1.0, 9, Clock())
    intake.delay(lambda: begun.append(1), CallCompletion())
    intake.close()
    intake.delay(lambda: begun.append(2), CallCompletion())
    assert begun == [1, 2]


def test_what_a_handler_refuses_late_gives_its_thread_back_and_is_refused_a_second_later() -> None:
    clock, answered, ends = Clock(), list[str](), list[str]()
    intake = RequestIntake(1, 1.0, 9, clock)

    def answer(*about: Any) -> None:
        request = about[4]().request
        if not isinstance(request, MalformedRequest):
            raise DelayedRefusal(NotReady("too many wait"))
        answered.append(request.error.message)

    under_way = set[CallCompletion]()
    ended = CallCompletion(under_way)
    ended.add_done_callback(lambda _: ends.append("end"))

    def begin(ended: CallCompletion, answer: Callable[..., object], about: tuple[Any, ...]) -> None:
        intake.run(begin, ended, answer, about)

    first = Received("request")
    event = SimpleNamespace(call=None)
    begin(ended, answer, ("run", event, state(), "behave", lambda: first, "read", "write"))
    clock.now = 0.9
    intake.begin_delayed()
    assert (answered, under_way, ends) == ([], set(), [])
    clock.now = 1.0
    intake.begin_delayed()
    assert (answered, ends) == (["too many wait"], ["end"])


def test_the_end_of_a_call_is_reported_once_and_frees_its_place_once() -> None:
    under_way, ends = set[CallCompletion](), list[str]()
    ended, other = CallCompletion(under_way), CallCompletion(under_way)
    ended.add_done_callback(lambda _: ends.append("before"))
    for _ in range(2):
        ended.end()
    assert (under_way, ends) == ({other}, ["before"])
    ended.add_done_callback(lambda _: ends.append("after"))
    assert ends == ["before", "after"]


def test_a_call_whose_caller_is_gone_does_not_begin() -> None:
    begun, ended = list[object](), list[str]()
    for is_there, expected in ((True, []), (False, ["over"])):
        about = ("run", SimpleNamespace(call=None), state(is_there=is_there))
        completion = CallCompletion()
        completion.add_done_callback(lambda _: ended.append("over"))
        begin_call(lambda *call: begun.append(call[2]), completion, print, about)
        assert len(begun) == 1
        assert ended == expected


@pytest.mark.parametrize("streams", [1, 2])
def test_a_stream_beyond_those_of_its_connection_waits_before_it_takes_a_thread(
    streams: int,
) -> None:
    clock, begun = Clock(), list[int]()
    intake = RequestIntake(1, 1.0, 9, clock)
    slots = StreamSlots(8, streams, 8)
    pool = StreamPool(1, "stream", intake, slots)
    event = SimpleNamespace(call=SimpleNamespace(peer=lambda: b"ipv4:127.0.0.1:9"))

    def answer(*_: object) -> None:
        begun.append(1)

    with slots.hold("WatchService/Watch", "ipv4:127.0.0.1:9", ""):
        pool.submit(answer, "run", event, state())
        if streams == 1:
            assert begun == []
            clock.now = 1.0
            intake.begin_delayed()
        eventually(lambda: begun == [1])
    pool.shutdown()
