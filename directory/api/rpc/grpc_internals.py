"""Private parts of grpcio that the server uses; no other module uses any.

grpcio's synchronous server has a thread for each open stream: to send a response, the thread waits
until gRPC has taken it; to receive a message, it waits for the message. Here gRPC is only asked to
send or receive, and gRPC's thread calls back when a response was taken or a message was received.
``tests/unit/api/test_grpc_internals.py`` shows when each part can be dropped.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, Final, cast

import grpc
from grpc import _common, _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]

__all__ = [
    "RequestReader",
    "ResponseWriter",
    "abort_call",
    "is_call_active",
    "receive_message",
    "sends_without_thread",
    "set_longest_wait",
    "unsupported",
]

_USED: Final = (
    "_RECEIVE_MESSAGE_TOKEN",
    "_abort",
    "_get_initial_metadata_operation",
    "_is_rpc_state_active",
    "_possibly_finish_call",
    "_receive_message",
)
_OF_STATE: Final = ("condition", "due", "initial_metadata_allowed", "request")
_BODIES: Final = ("_unary_response_in_pool", "_stream_response_in_pool")
"""Functions that grpcio submits to a pool, with these parameters."""
_PARAMETERS: Final = (
    "rpc_event",
    "state",
    "behavior",
    "argument_thunk",
    "request_deserializer",
    "response_serializer",
)
_FIRST: Final = _server._SEND_INITIAL_METADATA_AND_SEND_MESSAGE_TOKEN  # noqa: SLF001
_NEXT: Final = _server._SEND_MESSAGE_TOKEN  # noqa: SLF001
_RECEIVE: Final = _server._RECEIVE_MESSAGE_TOKEN  # noqa: SLF001
_NO_FLAGS: Final = 0

Finish = Callable[[None], object]
"""Function that gRPC passes to a handler marked by ``sends_without_thread``: it ends the call with
the context's status, and does not wait until that is sent."""


def set_longest_wait(seconds: float) -> None:
    """Sets the longest time for which a thread that waits for gRPC sleeps. By default it wakes up
    ten times a second, for signals, which only the main thread receives.
    """
    _common.MAXIMUM_WAIT_TIMEOUT = seconds


def is_call_active(state: Any) -> bool:
    """True if a call has neither ended nor been cancelled. Takes no lock: the result may be
    outdated as soon as it is returned.
    """
    return bool(_server._is_rpc_state_active(state))  # noqa: SLF001


def abort_call(event: Any, state: Any, status: grpc.Status) -> None:
    """Ends a call that no handler has begun; does nothing if it is over."""
    with state.condition:
        if not _server._is_rpc_state_active(state):  # noqa: SLF001
            return
        state.trailing_metadata = status.trailing_metadata
        state.code = status.code
        state.details = _common.encode(status.details)
        _server._abort(state, event.call, cygrpc.StatusCode.unknown, b"")  # noqa: SLF001


def receive_message(
    call: Any, state: Any, deserialize: Any, on_received: Callable[[Any], object]
) -> None:
    """Has gRPC receive the next message of a call; does nothing if the call is over.

    gRPC's thread calls ``on_received`` with the message, or with None if the caller sent no more:
    the function must neither wait nor raise.
    """
    receive = _server._receive_message(state, call, deserialize)  # noqa: SLF001

    def received(happened: Any) -> Any:
        finished = receive(happened)
        # The state's request is set and taken only here, in gRPC's thread.
        request, state.request = state.request, None
        on_received(request)
        return finished

    with state.condition:
        # The check and the addition are one step: if the call ended in between, gRPC's thread,
        # which serves all calls, would record the end twice, and fail by that.
        if not _server._is_rpc_state_active(state):  # noqa: SLF001
            return
        state.due.add(_RECEIVE)
    call.start_server_batch((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), received)


class RequestReader:
    """Reader of the messages of one call after the first, one at a time.

    Args:
        context: of the call.
        on_received: see ``receive_message``.
    """

    __slots__ = ("_context", "_on_received")

    def __init__(self, context: grpc.ServicerContext, on_received: Callable[[Any], object]) -> None:
        self._context: Final = cast("Any", context)
        self._on_received: Final = on_received

    def ask(self) -> None:
        """Has gRPC receive the next message; does nothing if the call is over. To be called only
        after the previous message, and not after None.
        """
        private = self._context
        state, call = private._state, private._rpc_event.call  # noqa: SLF001
        deserialize = private._request_deserializer  # noqa: SLF001
        receive_message(call, state, deserialize, self._on_received)


class ResponseWriter:
    """Writer of the responses of one call, one response at a time. Used by one thread at a time.

    Args:
        context: context of the call.
        finish: see ``Finish``.
        sending: lock that a thread holds while it sends many responses, also those of other
            calls. gRPC's thread waits for this lock before it records that a response was taken:
            otherwise the two threads would alternate at each response. The holder may only send.
    """

    __slots__ = ("_call", "_context", "_finish", "_sending", "_state", "is_free", "on_taken")

    def __init__(
        self, context: grpc.ServicerContext, finish: Finish, sending: threading.Lock
    ) -> None:
        private = cast("Any", context)
        self._context: Final = context
        self._call: Final = private._rpc_event.call  # noqa: SLF001
        self._state: Final = private._state  # noqa: SLF001
        self._finish: Final = finish
        self._sending: Final = sending
        self.is_free = True
        """True if gRPC has taken the response that was sent last, or none was sent."""
        self.on_taken: Callable[[], object] = bool
        """Called in gRPC's thread once gRPC has taken a response: it must not wait, nor raise."""

    def send(self, message: bytes) -> None:
        """Hands a response to gRPC; does nothing if the call is over. To be called only while the
        writer is free.
        """
        state = self._state
        operations: tuple[Any, ...] = (cygrpc.SendMessageOperation(message, _NO_FLAGS),)
        with state.condition:
            if not _server._is_rpc_state_active(state):  # noqa: SLF001
                return
            if state.initial_metadata_allowed:
                first = _server._get_initial_metadata_operation(state, None)  # noqa: SLF001
                state.initial_metadata_allowed = False
                operations, taken = (first, *operations), self._first_taken
                state.due.add(_FIRST)
            else:
                taken = self._next_taken
                state.due.add(_NEXT)
        self.is_free = False
        # The condition is not held here: gRPC's thread often takes the response before this call
        # returns, and would have to wait for this thread.
        self._call.start_server_batch(operations, taken)

    def _first_taken(self, _: object) -> Any:
        return self._taken(_FIRST)

    def _next_taken(self, _: object) -> Any:
        return self._taken(_NEXT)

    def _taken(self, token: str) -> Any:
        with self._sending:
            pass
        with self._state.condition:
            finished = _server._possibly_finish_call(self._state, token)  # noqa: SLF001
        self.is_free = True
        self.on_taken()
        return finished

    def end(self, status: grpc.Status | None) -> None:
        """Ends the call; None: with OK. To be called only while the writer is free."""
        if status is not None:
            self._context.set_code(status.code)
            self._context.set_details(status.details)
            self._context.set_trailing_metadata(status.trailing_metadata or ())
        self._finish(None)


def sends_without_thread(behave: Callable[[Any, grpc.ServicerContext, Finish], None]) -> None:
    """Marks a handler of ``stream_stream`` that returns while its call goes on; it gets ``Finish``
    as one more argument.
    """
    behave.experimental_non_blocking = True  # type: ignore[attr-defined]


def unsupported() -> str:
    """Returns the names of grpcio's parts that are not as this module expects them;
    empty = none.
    """
    missing = [f"_server.{name}" for name in (*_USED, *_BODIES) if not hasattr(_server, name)]
    state = _server._RPCState()  # type: ignore[no-untyped-call]  # noqa: SLF001
    missing += [f"_server._RPCState.{name}" for name in _OF_STATE if not hasattr(state, name)]
    if not isinstance(getattr(_common, "MAXIMUM_WAIT_TIMEOUT", None), float):
        missing.append("_common.MAXIMUM_WAIT_TIMEOUT")
    if missing:
        return f"grpcio {grpc.__version__}: grpc has no {', '.join(missing)}"
    for name in _BODIES:
        found = tuple(inspect.signature(getattr(_server, name)).parameters)
        if found != _PARAMETERS:
            return f"grpcio {grpc.__version__}: {name}{found}; expected {_PARAMETERS}"
    return ""
