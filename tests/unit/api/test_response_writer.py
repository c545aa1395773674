"""What the writer of responses expects of grpcio; streams themselves are in tests/fault."""

import inspect

import pytest
from grpc import _server

from directory.api.rpc import response_writer
from directory.api.rpc.response_writer import unsupported


def source(name: str) -> str:
    return inspect.getsource(vars(_server)[name])


def test_this_grpcio_is_as_the_writer_expects_it() -> None:
    assert unsupported() == ""


def test_another_grpcio_is_named_before_a_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_writer, "_USED", ("_no_such_function",))
    assert "_no_such_function" in unsupported()


def test_it_can_be_dropped_once_grpcio_sends_without_waiting() -> None:
    """Today what grpcio gives a handler that is not to block waits until its response was taken."""
    given = source("_stream_response_in_pool")
    assert "_send_response(" in given
    assert "experimental_non_blocking" in given
    assert "condition.wait()" in source("_send_response")


def test_the_end_of_a_call_does_not_wait() -> None:
    assert "wait()" not in source("_status")
