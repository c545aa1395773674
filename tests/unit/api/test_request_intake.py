"""What the intake of requests expects of grpcio; calls themselves are in tests/fault."""

import inspect

import pytest
from grpc import _server

from directory.api.rpc import request_intake
from directory.api.rpc.request_intake import RequestIntake, takes_request, unsupported


def test_this_grpcio_is_as_the_intake_expects_it() -> None:
    assert unsupported() == ""


def test_another_grpcio_is_named_before_a_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_intake, "_PARAMETERS", ("rpc_event",))
    assert "_unary_response_in_pool" in unsupported()


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
