"""What the layer around handlers counts, tells the log and answers, whatever a handler does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from kdir.v1 import resolve_pb2

from directory.api.rpc.call_context import CURRENT, Call, UnfinishedWrites
from directory.api.rpc.handlers import _stream, _unary
from directory.api.rpc.interceptors.malformed_request import MalformedRequest
from directory.api.rpc.request_intake import Received
from directory.api.rpc.stream_slots import StreamSlots
from directory.server.metrics.instrumentation import CallMetrics
from resolver.error_status import from_rpc_error
from resolver.errors import Absent, Cancelled, InvalidArgument, KdirError

REQUEST = resolve_pb2.ResolveRequest(path="/la/x")
METHOD = "ResolveService/Resolve"


class Aborted(Exception):
    pass


class Context:
    """gRPC's, as far as it is used here."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self.metadata = metadata
        self.active = True
        self.status: Any = None

    def time_remaining(self) -> float:
        return 5.0

    def is_active(self) -> bool:
        return self.active

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4711"

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return True

    def cancel(self) -> None:
        self.active = False

    def abort_with_status(self, status: Any) -> None:
        self.status = status
        raise Aborted

    @property
    def error(self) -> KdirError:
        """What the caller would see."""
        status = self.status

        class Seen(grpc.RpcError):
            def code(self) -> Any:
                return status.code

            def details(self) -> Any:
                return status.details

            def trailing_metadata(self) -> Any:
                return status.trailing_metadata

        return from_rpc_error(Seen())


@pytest.fixture
def calls() -> CallMetrics:
    return CallMetrics()


def counted(calls: CallMetrics) -> dict[str, int]:
    return {
        ended.code: count for ended, one in calls.calls().items() if (count := one.read().count)
    }


def ask(
    calls: CallMetrics,
    handler: Callable[[Any, Call], Any],
    context: Context,
    request: Any = REQUEST,
) -> Any:
    behave = _unary(handler, METHOD, calls, 30.0, UnfinishedWrites())
    return behave(Received(request), context)  # type: ignore[arg-type]


def raising(error: BaseException) -> Callable[[Any, Call], Any]:
    def handler(request: Any, call: Call) -> Any:
        raise error

    return handler


def test_a_call_that_ends_well_is_counted_and_logged_at_debug_only(
    calls: CallMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "directory.calls"):
        assert ask(calls, lambda *_: b"answer", Context()) == b"answer"
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG, "directory.calls"):
        ask(calls, lambda *_: b"answer", Context())
    (line,) = caplog.records
    assert line.levelname == "DEBUG"
    assert line.facts["path"] == "/la/x"  # type: ignore[attr-defined]
    assert counted(calls) == {"OK": 2}


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (Absent("no such path"), "NOT_FOUND", "ABSENT"),
        (InvalidArgument("field: wrong"), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        (Cancelled("the caller went away"), "CANCELLED", "CANCELLED"),
    ],
)
def test_a_call_that_fails_is_counted_by_its_code_and_logged_with_its_reason(
    calls: CallMetrics,
    caplog: pytest.LogCaptureFixture,
    error: KdirError,
    code: str,
    reason: str,
) -> None:
    context = Context(("x-request-id", "mine-1"))
    with caplog.at_level(logging.INFO, "directory.calls"), pytest.raises(Aborted):
        ask(calls, raising(error), context)
    assert counted(calls) == {code: 1}
    (line,) = caplog.records
    assert (line.levelname, line.facts["code"], line.facts["reason"]) == ("INFO", code, reason)  # type: ignore[attr-defined]
    assert context.error.reason == reason
    assert context.error.metadata["request_id"] == "mine-1"


def test_a_bug_leaves_its_stack_in_the_log_and_only_the_request_id_with_the_caller(
    calls: CallMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    context = Context()
    with caplog.at_level(logging.INFO, "directory.calls"), pytest.raises(Aborted):
        ask(calls, raising(RuntimeError("secret of the store")), context)
    assert counted(calls) == {"INTERNAL": 1}
    stack = next(one for one in caplog.records if one.exc_info)
    request_id = context.error.metadata["request_id"]
    assert request_id in stack.getMessage()
    assert stack.levelname == "ERROR"
    output = f"{context.status.details} {context.status.trailing_metadata}"
    assert "secret of the store" not in output
    assert any(getattr(one, "facts", {}).get("code") == "INTERNAL" for one in caplog.records)


def test_a_request_that_cannot_be_read_is_counted(calls: CallMetrics) -> None:
    context = Context()
    with pytest.raises(Aborted):
        ask(calls, lambda *_: b"", context, MalformedRequest(InvalidArgument("no UTF-8")))
    assert counted(calls) == {"INVALID_ARGUMENT": 1}


@pytest.mark.parametrize(
    "sent",
    [
        "a b",
        "",
        "x" * 65,
        "line\r\nlevel=ERROR",
        'quote"',
        "ünicode",
        "$(id)",
        "../../etc",
        b"bytes-1",
    ],
)
def test_a_request_id_that_is_not_sane_is_replaced(calls: CallMetrics, sent: str | bytes) -> None:
    context = Context(("x-request-id", sent))
    with pytest.raises(Aborted):
        ask(calls, raising(Absent("no")), context)
    made = context.error.metadata["request_id"]
    assert made != sent
    assert len(made) == 16
    int(made, 16)


def test_a_request_id_holds_all_call_long_and_the_call_is_known_while_it_lasts(
    calls: CallMetrics,
) -> None:
    seen: list[Call | None] = []

    def handler(request: Any, call: Call) -> bytes:
        seen.append(CURRENT.call)
        assert call.request_id == call.request_id
        assert call.peer == "ipv4:127.0.0.1:4711"
        return b""

    ask(calls, handler, Context())
    assert seen[0] is not None
    assert CURRENT.call is None
    with pytest.raises(Aborted):
        ask(calls, raising(ValueError()), Context())
    assert CURRENT.call is None


def test_two_threads_each_know_their_own_call(calls: CallMetrics) -> None:
    def handler(request: Any, call: Call) -> bytes:
        assert CURRENT.call is call
        return call.request_id.encode()

    def one(number: int) -> Any:
        return ask(calls, handler, Context(("x-request-id", f"r-{number}")))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(200))) == [b"r-%d" % number for number in range(200)]
    assert counted(calls) == {"OK": 200}


def stream(calls: CallMetrics, handler: Any, context: Context) -> Iterator[Any]:
    behave = _stream(handler, METHOD, calls, StreamSlots(8, 8, 8), UnfinishedWrites())
    return behave(REQUEST, context)  # type: ignore[arg-type]


def test_a_stream_is_open_until_it_ended_however_it_did(calls: CallMetrics) -> None:
    def three(request: Any, call: Call) -> Iterator[int]:
        yield from (1, 2, 3)

    def fails(request: Any, call: Call) -> Iterator[int]:
        yield 1
        raise Absent("gone")

    assert list(stream(calls, three, Context())) == [1, 2, 3]
    left = Context()
    running = stream(calls, three, left)
    next(running)
    assert calls.streams()[0] == {METHOD: 1}
    left.active = False
    list(running)
    failing = stream(calls, fails, Context())
    with pytest.raises(Aborted):
        list(failing)
    dropped = stream(calls, three, Context())
    next(dropped)
    del dropped  # as gRPC does with one whose caller went away
    open_now, ended = calls.streams()
    assert open_now == {METHOD: 0}
    assert {key.code: count for key, count in ended.items()} == {
        "OK": 1,
        "CANCELLED": 2,
        "NOT_FOUND": 1,
    }
    assert CURRENT.call is None


def test_a_stream_dropped_in_another_call_does_not_take_that_ones_name(
    calls: CallMetrics,
) -> None:
    def endless(request: Any, call: Call) -> Iterator[int]:
        while True:
            yield 1

    dropped = [stream(calls, endless, Context())]
    next(dropped[0])

    def handler(request: Any, call: Call) -> bytes:
        dropped.clear()
        assert CURRENT.call is call
        return b""

    ask(calls, handler, Context())
    assert calls.streams()[0] == {METHOD: 0}
