"""Sends the responses of a stream without a thread that waits for each.

grpcio's synchronous server has a thread for each open stream, since its own way to send a response
returns only when gRPC has taken it: one caller that does not read would hold up whoever sends. Here
a response is handed to gRPC, and gRPC's thread calls back when it has taken it.

Beside ``request_intake.py`` this is the only module that uses private parts of ``grpc._server``;
``tests/unit/api/test_response_writer.py`` says when it can be dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, cast

import grpc
from grpc import _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]

__all__ = ["ResponseWriter", "sends_without_thread", "unsupported"]

_USED: Final = (
    "_get_initial_metadata_operation",
    "_is_rpc_state_active",
    "_possibly_finish_call",
)
_OF_STATE: Final = ("condition", "due", "initial_metadata_allowed")
_FIRST: Final = _server._SEND_INITIAL_METADATA_AND_SEND_MESSAGE_TOKEN  # noqa: SLF001
_NEXT: Final = _server._SEND_MESSAGE_TOKEN  # noqa: SLF001
_NO_FLAGS: Final = 0

Finish = Callable[[None], object]
"""What gRPC gives a handler that ``sends_without_thread``: ends the call with the context's status,
and does not wait for that to be sent."""


class ResponseWriter:
    """Writer of the responses of one call, one at a time. For one thread at a time.

    Args:
        context: of the call.
        finish: see ``Finish``.
        sending: held by whoever sends many responses, of other calls too: gRPC's thread then notes
            what it has taken after them, instead of changing places with the sender at each. It
            waits meanwhile, so that nothing else may be done with it.
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
        """gRPC has taken what was sent last."""
        self.on_taken: Callable[[], object] = bool
        """Is called in gRPC's thread once it has: it must not wait, nor raise."""

    def send(self, message: bytes) -> None:
        """Hands a response to gRPC; nothing, where the call is over. Only while it is free."""
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
        # Not under the condition: gRPC's thread often takes it before this returns, and would have
        # to wait for this thread.
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

    def end(self, status: grpc.Status) -> None:
        """Ends the call. Only while it is free."""
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
    """Returns what of this version of grpcio is not as this module expects it; empty = nothing."""
    missing = [name for name in _USED if not hasattr(_server, name)]
    state = _server._RPCState()  # type: ignore[no-untyped-call]  # noqa: SLF001
    missing += [f"_RPCState.{name}" for name in _OF_STATE if not hasattr(state, name)]
    if missing:
        return f"grpcio {grpc.__version__}: grpc._server has no {', '.join(missing)}"
    return ""
