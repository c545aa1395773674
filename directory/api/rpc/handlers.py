"""Binds handlers to gRPC methods; the one place that orders the layers of each call.

From the outside in: a malformed request is refused by name (``malformed``), the server's cap
applies to the deadline, the call is counted and timed (``metrics``) and logged (``access``), errors
become statuses (``errors``), the caller is authenticated (only here, by
``directory.server.authentication``), and the handler runs. Streams run on a thread pool of their
own, or hold no thread at all (``polled_streams``): a watch must not hold a thread that answers
calls (G3).
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from directory.api.rpc.call_context import CURRENT, Call, UnfinishedWrites
from directory.api.rpc.caller_slots import TooManyWaiting
from directory.api.rpc.grpc_internals import (
    Finish,
    RequestReader,
    ResponseWriter,
    sends_without_thread,
)
from directory.api.rpc.interceptors.abort_status import abort_with, status_of
from directory.api.rpc.interceptors.malformed_request import (
    MalformedRequest,
    lenient_deserializer,
    missing_request,
)
from directory.api.rpc.interceptors.request_bounds import RequestBounds
from directory.api.rpc.long_calls import LongCalls
from directory.api.rpc.method_rights import Check, Threads, check_of
from directory.api.rpc.polled_streams import (
    PolledExchange,
    PolledSource,
    PolledStream,
    PolledStreams,
    StreamEnded,
)
from directory.api.rpc.request_intake import DelayedRefusal, Received, takes_request
from directory.api.rpc.stream_slots import StreamSlots
from directory.api.rpc.switch_interval import long_read
from directory.api.rpc.thread_pools import WritePool
from directory.api.rpc.unsent_answers import LARGE_BYTES, UnsentAnswers
from directory.server.authentication import Authenticator
from directory.server.metrics.instrumentation import CallMetrics
from resolver.errors import KdirError

__all__ = ["CallBounds", "Pools", "Service", "bind_service"]

Request = TypeVar("Request", bound=Message)
Handler = Callable[[Any, Call], Any]
_SHARE: Final = 0.95
"""Part of the caller's time: a server-side timeout is reported before the caller's deadline."""


class Service(ABC):
    """A service's handlers by method name: ``unary(request, call) -> response or its bytes``, or
    for streams ``stream(request or iterator of requests, call) -> iterator of responses``, or
    ``-> PolledSource`` for those of ``polled``.
    """

    descriptor: ServiceDescriptor
    writes: frozenset[str] = frozenset()
    """Methods that may wait for the store or for Kafka: they run on threads of their own."""

    long: frozenset[str] = frozenset()
    """Methods that may compute for long: they run on threads of their own, too."""

    polled: frozenset[str] = frozenset()
    """Streams that hold no thread while they are open."""

    @abstractmethod
    def method_handlers(self) -> Mapping[str, Handler]:
        """Returns handlers by method name, as in the contract. A method without one is
        UNIMPLEMENTED.
        """


@dataclass(frozen=True, slots=True)
class Pools:
    """Thread pools of a server, except that of short reads."""

    streams: ThreadPoolExecutor
    writes: WritePool
    long: LongCalls
    polled: PolledStreams


@dataclass(frozen=True, slots=True)
class CallBounds:
    """Bounds of the calls of one server."""

    streams: StreamSlots
    """Limit of open streams."""
    requests: RequestBounds
    """Limits of the contents of a request."""
    answers: UnsentAnswers
    """Limit of responses that wait to be read."""


def bind_service(
    service: Service,
    max_call_seconds: float,
    pools: Pools,
    calls: CallMetrics,
    bounds: CallBounds,
    identities: Authenticator | None = None,
) -> grpc.GenericRpcHandler:
    """Returns the gRPC handler of a service. ``calls`` counts calls; ``identities`` authenticates
    callers; None: callers are not identified.

    Every method is declared to gRPC with a stream of requests: on the wire a single request looks
    the same, and so it is received before the call takes a thread (``request_intake``).
    """
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    unfinished = pools.writes.unfinished
    for name, handler in service.method_handlers().items():
        method = service.descriptor.methods_by_name[name]
        known_as = f"{service.descriptor.name}/{name}"
        check = check_of(known_as)
        kind = GetMessageClass(method.input_type)
        read = lenient_deserializer(kind, bounds.requests, check.request)
        _refuse_other_threads(service, name, check, streams=method.server_streaming)
        calls.declare(known_as, streams=method.server_streaming)
        if name in service.polled:
            open_stream = takes_request(
                _polled(
                    handler, known_as, calls, bounds.streams, unfinished, identities, pools.polled
                )
            )
            sends_without_thread(open_stream)
            _run_on(open_stream, pools.polled)
            methods[name] = grpc.stream_stream_rpc_method_handler(open_stream, read, _write)
        elif method.server_streaming:
            behave = _stream(handler, known_as, calls, bounds.streams, unfinished, identities)
            if not method.client_streaming:
                behave = takes_request(_with_first(behave))
            _run_on(behave, pools.streams)
            methods[name] = grpc.stream_stream_rpc_method_handler(behave, read, _write)
        else:
            unsent = bounds.answers
            answer = takes_request(
                _unary(handler, known_as, calls, max_call_seconds, unfinished, identities, unsent)
            )
            if name in service.writes:
                _run_on(answer, pools.writes)
            elif name in service.long:
                _run_on(answer, pools.long)
            methods[name] = grpc.stream_unary_rpc_method_handler(answer, read)
    return grpc.method_handlers_generic_handler(service.descriptor.full_name, methods)


def _run_on(behave: Callable[..., object], pool: ThreadPoolExecutor) -> None:
    """Has gRPC run the calls of a handler on a pool, which must have the type that gRPC accepts."""
    behave.experimental_thread_pool = pool  # type: ignore[attr-defined]


def _refuse_other_threads(service: Service, name: str, check: Check, *, streams: bool) -> None:
    """Checks that a method runs on the threads that its row of ``method_rights.py`` names;
    otherwise the server does not start.
    """
    found = Threads.WRITES if name in service.writes else Threads.CALLS
    if streams:
        found = Threads.STREAMS
    if found is not check.threads:
        expected = check.threads.value
        raise ValueError(
            f"{name} runs on {found.value}; its row in method_rights.py has {expected}"
        )


def _write(response: Message | bytes) -> bytes:
    # A handler may give the bytes of its response where it has them already.
    return response if isinstance(response, bytes) else response.SerializeToString()


def _with_first(
    behave: Callable[[Any, grpc.ServicerContext], Iterator[Any]],
) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def with_first(first: Received, context: grpc.ServicerContext) -> Iterator[Any]:
        request = first.request
        return behave(missing_request() if request is None else request, context)

    return with_first


def _unary(
    handler: Handler,
    method: str,
    calls: CallMetrics,
    max_call_seconds: float,
    unfinished: UnfinishedWrites,
    identities: Authenticator | None = None,
    unsent: UnsentAnswers | None = None,
) -> Callable[[Any, grpc.ServicerContext], Any]:
    # Every call runs here, a million a minute: lookups are done once.
    clock, observe = time.monotonic, calls.unary(method, "OK").observe
    current, is_wanted = CURRENT, partial(_calls_log.isEnabledFor, logging.DEBUG)

    def behave(first: Received, context: grpc.ServicerContext) -> Any:
        request = first.request
        if request is None:
            request = missing_request()
        started = clock()
        call = Call(
            started + min(context.time_remaining() * _SHARE, max_call_seconds),
            is_active=context.is_active,
            find_peer=context.peer,
            metadata=context.invocation_metadata,
            after_answer=unfinished.add,
        )
        current.call = call
        try:
            _admit(call, request, method, context, unfinished, identities)
            answer = _write(handler(request, call))
            if unsent is not None and len(answer) > LARGE_BYTES:
                unsent.hold(context, call, len(answer))
            seconds = clock() - started
            observe(seconds)
            if is_wanted():
                _log_success(method, request, "OK", seconds)
            return answer
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            if isinstance(error, TooManyWaiting) and type(request) is not MalformedRequest:
                raise DelayedRefusal(error) from None
            seconds = clock() - started
            calls.unary(method, _code_of(error)).observe(seconds)
            _log_failure(method, request, error, seconds)
            abort_with(error, context, call.request_id)
        finally:
            current.call = None

    return behave


def _admit(
    call: Call,
    request: Any,
    method: str,
    context: grpc.ServicerContext,
    unfinished: UnfinishedWrites,
    identities: Authenticator | None,
) -> None:
    """Finishes the writes that were answered, so that the call sees them. Records the caller's
    identity, and only then refuses a request that could not be parsed.

    Raises:
        Unauthenticated: the caller is not authenticated.
        KdirError: that of a request that could not be parsed, or exceeds a bound.
    """
    if unfinished.left:
        unfinished.finish()
    if identities is not None:
        call.principal, call.cluster_ids, call.bearer = identities.authenticate(context, method)
    if type(request) is MalformedRequest:
        raise request.error


def _stream(
    handler: Handler,
    method: str,
    calls: CallMetrics,
    slots: StreamSlots,
    unfinished: UnfinishedWrites,
    identities: Authenticator | None = None,
) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def behave(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        # Streams have no deadline of the server's: they stay open as long as both sides want.
        call = Call(
            deadline=float("inf"),
            is_active=context.is_active,
            cancel=context.cancel,
            find_peer=context.peer,
            metadata=context.invocation_metadata,
        )
        started, code = time.monotonic(), "CANCELLED"
        calls.stream_began(method)
        CURRENT.call = call
        try:
            _admit(call, request, method, context, unfinished, identities)
            with slots.hold(method, call.peer, call.principal), long_read():
                yield from handler(request, call)
            code = "OK" if context.is_active() else "CANCELLED"
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            if context.is_active():
                code = _code_of(error)
                _log_failure(method, request, error, time.monotonic() - started)
                abort_with(error, context, call.request_id)
        finally:
            calls.stream_ended(method, code)
            if code in {"OK", "CANCELLED"} and _is_success_logged():
                _log_success(method, request, code, time.monotonic() - started)
            # A stream may be dropped before its end in another thread, during another call.
            if CURRENT.call is call:
                CURRENT.call = None

    return behave


def _polled(
    handler: Handler,
    method: str,
    calls: CallMetrics,
    slots: StreamSlots,
    unfinished: UnfinishedWrites,
    identities: Authenticator | None,
    streams: PolledStreams,
) -> Callable[[Received, grpc.ServicerContext, Finish], None]:
    def behave(first: Received, context: grpc.ServicerContext, finish: Finish) -> None:
        request = missing_request() if first.request is None else first.request
        call = Call(
            deadline=float("inf"),
            is_active=context.is_active,
            cancel=context.cancel,
            find_peer=context.peer,
            metadata=context.invocation_metadata,
        )
        if identities is not None:
            call.identify = partial(identities.authenticate, context, method)
        writer = ResponseWriter(context, finish, streams.sending)
        ending = _Ending(method, request, calls)

        def fail(error: Exception) -> None:
            if not context.is_active():
                ending.end_by_caller()
            elif ending.end(error):
                is_well = isinstance(error, StreamEnded)
                writer.end(None if is_well else status_of(error, call.request_id))

        if not context.add_callback(ending.end_by_caller):
            ending.end_by_caller()
            return
        CURRENT.call = call
        try:
            _admit(call, request, method, context, unfinished, identities)
            with ExitStack() as held:
                held.enter_context(slots.hold(method, call.peer, call.principal))
                source: PolledSource = handler(request, call)
                held.callback(source.close)
                if isinstance(source, PolledExchange):
                    source.ask = RequestReader(context, partial(_receive, source, call)).ask
                stream = PolledStream(source, writer, call, fail)
                held.callback(streams.discard, stream)
                if ending.hold(held.pop_all()):
                    streams.add(stream)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            fail(error)
        finally:
            CURRENT.call = None

    return behave


def _receive(source: PolledExchange, call: Call, request: Any) -> None:
    try:
        source.receive(request)
    except Exception:  # noqa: BLE001 - gRPC's thread is needed
        _log.exception("request %s failed by a bug", call.request_id)
        call.cancel()


class _Ending:
    """End of a stream that no thread waits for. It is counted and logged, and its resources are
    released, once, even where several threads end it. Thread-safe.
    """

    def __init__(self, method: str, request: Any, calls: CallMetrics) -> None:
        self._method: Final = method
        self._request: Final = request
        self._calls: Final = calls
        self._began: Final = time.monotonic()
        self._lock: Final = threading.Lock()
        self._held: ExitStack | None = None
        self._is_over = False
        calls.stream_began(method)

    def hold(self, held: ExitStack) -> bool:
        """Closes the stack when the stream ends; immediately, and returns False, if it
        has ended.
        """
        with self._lock:
            if not self._is_over:
                self._held = held
                return True
        held.close()
        return False

    def end_by_caller(self) -> None:
        """Ends the stream on the caller's side, if it has not ended."""
        self.end(None)

    def end(self, error: Exception | None) -> bool:
        """Ends the stream, with an error or by its caller; returns False if it had ended."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = True
            held, self._held = self._held, None
        if held is not None:
            held.close()
        seconds = time.monotonic() - self._began
        code = "CANCELLED" if error is None else _code_of(error)
        if error is not None and code != "OK":
            _log_failure(self._method, self._request, error, seconds)
        elif _is_success_logged():
            _log_success(self._method, self._request, code, seconds)
        self._calls.stream_ended(self._method, code)
        return True


_log = logging.getLogger(__name__)
_calls_log = logging.getLogger("directory.calls")
_LONGEST: Final = 500
"""Most characters of an error's message in the log: it may quote a megabyte of path."""


def _is_success_logged() -> bool:
    """True if successful calls are logged."""
    return _calls_log.isEnabledFor(logging.DEBUG)


def _log_success(method: str, request: Any, code: str, seconds: float) -> None:
    """Logs a call that succeeded or that its caller ended."""
    _calls_log.debug(
        "%s %s in %.3f ms",
        method,
        code,
        seconds * 1000,
        extra={"facts": _facts(method, request, code, seconds)},
    )


def _log_failure(method: str, request: Any, error: BaseException, seconds: float) -> None:
    """Logs a call that failed."""
    code = _code_of(error)
    reason = error.reason if isinstance(error, KdirError) else "INTERNAL"
    # Everything else about an error is in its own log line, with the stack.
    message = error.message if isinstance(error, KdirError) else "by a bug"
    _calls_log.info(
        "%s %s %s in %.3f ms: %s",
        method,
        code,
        reason,
        seconds * 1000,
        message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…",
        extra={"facts": {**_facts(method, request, code, seconds), "reason": reason}},
    )


def _code_of(error: BaseException) -> str:
    """Returns the name of the gRPC code that an error becomes."""
    if isinstance(error, StreamEnded):
        return "OK"
    return error.code if isinstance(error, KdirError) else "INTERNAL"


def _facts(method: str, request: Any, code: str, seconds: float) -> dict[str, str | float]:
    facts: dict[str, str | float] = {
        "method": method, "code": code, "seconds": round(seconds, 6),
    }  # fmt: skip
    path = getattr(request, "path", "")
    if isinstance(path, str) and path:
        facts["path"] = path if len(path) <= _LONGEST else f"{path[:_LONGEST]}…"
    return facts
