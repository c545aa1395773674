"""gRPC's own services, health and reflection, each within bounds of its own.

As grpcio has them they would answer from the pool of calls, of which one stream of reflection holds
a thread for as long as it lasts, and nothing would bound the watchers of health.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from directory.api.rpc.interceptors.errors import abort_with
from directory.api.rpc.request_intake import Received, RequestIntake, takes_request
from directory.api.rpc.stream_slots import StreamPool
from resolver.errors import LimitExceeded

__all__ = ["Health", "Reflection"]

_REFLECTION_SECONDS: Final = 30.0
_SPARE: Final = 2
"""Threads beyond those of the streams allowed: they refuse the others."""


class _Bounded:
    """Streams of one service: at most so many at a time, on threads of their own."""

    def __init__(self, what: str, most: int, setting: str, intake: RequestIntake) -> None:
        self.threads: Final = StreamPool(most + _SPARE, what.partition(" ")[0], intake)
        self._what: Final = what
        self._most: Final = most
        self._setting: Final = setting
        self._lock: Final = threading.Lock()
        self._open = 0

    @contextmanager
    def hold(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Counts a stream while it is open; ends it with LIMIT_EXCEEDED where there are enough."""
        with self._lock:
            is_free = self._open < self._most
            self._open += is_free
        if not is_free:
            message = (
                f"this server has {self._most} {self._what} already, as many as "
                f"limits.{self._setting} allows"
            )
            abort_with(LimitExceeded(message, limit=str(self._most)), context, "")
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1


class Health:
    """``grpc.health.v1.Health``: one status, of the server as a whole and of each of its services.

    A watcher that reads nothing delays neither a change of the status nor who asks for it.
    (``grpc_health``'s servicer sends to its watchers under the lock that each ``Check`` takes, and
    keeps every name that was ever watched.)
    """

    def __init__(self, names: Sequence[str], watchers: int, intake: RequestIntake) -> None:
        self._names: Final = frozenset({"", *names})
        self._bound: Final = _Bounded("health watchers", watchers, "health_watchers", intake)
        self._changed: Final = threading.Condition()
        self._status: int = health_pb2.HealthCheckResponse.NOT_SERVING
        self._is_ending = False

    def set(self, status: int) -> None:
        """Sets the status; watchers are sent it."""
        with self._changed:
            if not self._is_ending:
                self._status = status
                self._changed.notify_all()

    def end(self) -> None:
        """Answers NOT_SERVING from now on, whatever is set."""
        self.set(health_pb2.HealthCheckResponse.NOT_SERVING)
        with self._changed:
            self._is_ending = True

    def shutdown(self) -> None:
        """Takes no more watchers."""
        self._bound.threads.shutdown(wait=False, cancel_futures=True)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC face."""
        every: Any = health_pb2  # its types lag behind it: they know no List

        def check(first: Received, context: grpc.ServicerContext) -> Any:
            if (first.request or _EVERY).service not in self._names:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
            return every.HealthCheckResponse(status=self._status)

        def list_all(_: Received, __: grpc.ServicerContext) -> Any:
            one = every.HealthCheckResponse(status=self._status)
            return every.HealthListResponse(statuses=dict.fromkeys(self._names, one))

        def watch(first: Received, context: grpc.ServicerContext) -> Iterator[Any]:
            is_known = (first.request or _EVERY).service in self._names
            with self._bound.hold(context):
                for status in self._statuses(context):
                    unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
                    yield every.HealthCheckResponse(status=status if is_known else unknown)

        watch.experimental_thread_pool = self._bound.threads  # type: ignore[attr-defined]
        read, write = every.HealthCheckRequest.FromString, _write
        read_list = every.HealthListRequest.FromString
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(takes_request(check), read, write),
            "List": grpc.stream_unary_rpc_method_handler(takes_request(list_all), read_list, write),
            "Watch": grpc.stream_stream_rpc_method_handler(takes_request(watch), read, write),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    def _statuses(self, context: grpc.ServicerContext) -> Iterator[int]:
        """Yields the status as it is, then each change of it, until the call is over."""
        sent = -1
        context.add_callback(self._wake)
        while context.is_active():
            with self._changed:
                if self._status == sent:
                    self._changed.wait()
                status = self._status
            if status != sent:
                sent = status
                yield status

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Reflection:
    """``grpc.reflection.v1alpha.ServerReflection`` for services of these names: so many streams at
    a time, each for at most 30 s.
    """

    def __init__(
        self,
        names: Sequence[str],
        most: int,
        intake: RequestIntake,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bound: Final = _Bounded("reflection streams", most, "reflection_streams", intake)
        self._clock: Final = clock
        self._since: Final[dict[grpc.ServicerContext, float]] = {}
        self._servicer: Final = reflection.ReflectionServicer(names)

    def end_late(self) -> None:
        """Ends streams that are open for too long. To be called every now and then."""
        now = self._clock()
        for context, since in list(self._since.items()):
            if now - since > _REFLECTION_SECONDS:
                context.cancel()

    def shutdown(self) -> None:
        """Takes no more streams."""
        self._bound.threads.shutdown(wait=False, cancel_futures=True)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC face."""

        def info(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._bound.hold(context):
                self._since[context] = self._clock()
                try:
                    yield from self._servicer.ServerReflectionInfo(requests, context)
                finally:
                    self._since.pop(context, None)

        info.experimental_thread_pool = self._bound.threads  # type: ignore[attr-defined]
        read = reflection_pb2.ServerReflectionRequest.FromString
        method = grpc.stream_stream_rpc_method_handler(info, read, _write)
        return grpc.method_handlers_generic_handler(
            reflection.SERVICE_NAME, {"ServerReflectionInfo": method}
        )


def _write(response: Any) -> bytes:
    data: bytes = response.SerializeToString()
    return data


_EVERY = health_pb2.HealthCheckRequest()
"""What a caller asks for who ends its side without a request: the server as a whole."""
