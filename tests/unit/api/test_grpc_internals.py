"""What is expected of the private parts of grpcio; streams and calls are in tests/fault."""

import inspect
import re
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from grpc import _common, _server

from deploy.tools.import_graph import PACKAGES, ROOT
from directory.api.rpc import grpc_internals
from directory.api.rpc.grpc_internals import RequestReader, set_longest_wait, unsupported


def source(name: str) -> str:
    return inspect.getsource(vars(_server)[name])


def test_this_grpcio_is_as_expected() -> None:
    assert unsupported() == ""


def test_another_grpcio_is_named_before_a_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_internals, "_USED", ("_no_such_function",))
    assert "_no_such_function" in unsupported()
    monkeypatch.undo()
    monkeypatch.setattr(grpc_internals, "_PARAMETERS", ("rpc_event",))
    assert "_unary_response_in_pool" in unsupported()


def test_the_writer_can_be_dropped_once_grpcio_sends_without_waiting() -> None:
    """Today what grpcio gives a handler that is not to block waits until its response was taken."""
    given = source("_stream_response_in_pool")
    assert "_send_response(" in given
    assert "experimental_non_blocking" in given
    assert "condition.wait()" in source("_send_response")


def test_the_end_of_a_call_does_not_wait() -> None:
    assert "wait()" not in source("_status")


def test_the_reader_can_be_dropped_once_grpcio_receives_without_waiting() -> None:
    """Today a message that is not the first is received by who iterates, and waits for it."""
    assert "condition.wait()" in source("_RequestIterator")


class Condition:
    """Lock of a call that ends as soon as the lock is free and nothing of it is due."""

    def __init__(self, state: SimpleNamespace) -> None:
        self._state = state

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._state.client = vars(_server)["_CANCELLED"]
        self._state.is_finished |= not self._state.due


@pytest.mark.parametrize("is_there", [True, False])
def test_of_a_call_that_ends_nothing_more_is_received(*, is_there: bool) -> None:
    """Else gRPC's one thread would note the end twice, which ends that thread."""
    state = SimpleNamespace(client="open", statused=not is_there, due=set(), is_finished=False)
    state.condition = Condition(state)
    asked: list[object] = []
    call = SimpleNamespace(start_server_batch=lambda *batch: asked.append(batch))
    event = SimpleNamespace(call=call)
    context = SimpleNamespace(_state=state, _rpc_event=event, _request_deserializer=None)
    RequestReader(cast("grpc.ServicerContext", context), print).ask()
    assert bool(asked) is is_there
    assert state.is_finished is not is_there


def test_the_longest_wait_can_be_dropped_once_grpcio_does_not_look_ten_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _common.MAXIMUM_WAIT_TIMEOUT < 1
    monkeypatch.setattr(_common, "MAXIMUM_WAIT_TIMEOUT", _common.MAXIMUM_WAIT_TIMEOUT)
    set_longest_wait(10.0)
    assert _common.MAXIMUM_WAIT_TIMEOUT == 10.0


def test_no_other_module_uses_private_parts_of_grpcio() -> None:
    private = re.compile(r"from grpc import _|from grpc\._|import grpc\._|\bgrpc\._|cygrpc")
    using = {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if private.search(file.read_text())
    }
    assert using == {"directory/api/rpc/grpc_internals.py"}
