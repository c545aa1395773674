"""gRPC server of one listening address: assembled in one place, with health and reflection, and
drained.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from directory.api.access_service import AccessService
from directory.api.admin_service import AdminService
from directory.api.cluster_router import ClusterRouter
from directory.api.directory_service import DirectoryService
from directory.api.federation_service import FederationService
from directory.api.policy_service import PolicyService
from directory.api.resolve_service import ResolveService
from directory.api.rpc import grpc_internals
from directory.api.rpc.handlers import CallBounds, Pools, bind_service
from directory.api.rpc.interceptors.abort_status import abort_with
from directory.api.rpc.interceptors.request_bounds import RequestBounds
from directory.api.rpc.listener import bind_listener, grpc_options
from directory.api.rpc.long_calls import LongCalls
from directory.api.rpc.polled_streams import PolledStreams
from directory.api.rpc.request_intake import Received, RequestIntake, takes_request
from directory.api.rpc.stream_slots import StreamPool, StreamSlots
from directory.api.rpc.thread_pools import CallPool, WritePool, waiting_call
from directory.api.rpc.unsent_answers import UnsentAnswers
from directory.api.scan_service import ScanService
from directory.api.watch_service import WatchService
from directory.server.authentication import Authenticator
from directory.server.cluster import Cluster
from directory.server.concurrent_stop import run_together
from directory.server.config import Limits
from directory.server.health import is_ready
from directory.server.metrics.instrumentation import CallMetrics
from resolver.errors import LimitExceeded

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["DirectoryServer", "Health", "Reflection"]


_REFLECTION_SECONDS: Final = 30.0
_SPARE: Final = 2
"""Threads beyond the allowed streams: they refuse further ones."""


class _Bounded:
    """Limit of the open streams of one service, on threads of their own."""

    def __init__(self, what: str, most: int, setting: str, intake: RequestIntake) -> None:
        self.threads: Final = StreamPool(most + _SPARE, what.partition(" ")[0], intake)
        self._what: Final = what
        self._most: Final = most
        self._setting: Final = setting
        self._lock: Final = threading.Lock()
        self._open = 0

    @contextmanager
    def hold(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Counts a stream while it is open; ends it with LIMIT_EXCEEDED if there are too many."""
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
    """``grpc.health.v1.Health``: one status for the whole server and each of its services.

    A watcher that reads nothing delays neither a change of the status nor a ``Check``.
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
        """Sets the status and sends it to the watchers."""
        with self._changed:
            if not self._is_ending:
                self._status = status
                self._changed.notify_all()

    def end(self) -> None:
        """Sets NOT_SERVING for good."""
        self.set(health_pb2.HealthCheckResponse.NOT_SERVING)
        with self._changed:
            self._is_ending = True

    def shutdown(self) -> None:
        """Refuses further watchers."""
        self._bound.threads.shutdown(wait=False, cancel_futures=True)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler for gRPC."""
        every: Any = health_pb2  # its type stubs lack List

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
        """Yields the status, then each change of it until the call ends."""
        sent = -1
        context.add_callback(self._wake)
        while True:
            with self._changed:
                # Checked under the lock: the end of a call wakes no thread that does not wait yet.
                while self._status == sent and context.is_active():
                    self._changed.wait()
                status = self._status
            if status == sent:
                return
            sent = status
            yield status

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Reflection:
    """``grpc.reflection.v1alpha.ServerReflection`` for services of these names: a limited number of
    streams, each for at most 30 s.
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
        """Ends streams that are open for too long. Called periodically."""
        now = self._clock()
        for context, since in list(self._since.items()):
            if now - since > _REFLECTION_SECONDS:
                context.cancel()

    def shutdown(self) -> None:
        """Refuses further streams."""
        self._bound.threads.shutdown(wait=False, cancel_futures=True)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler for gRPC."""

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
"""Request of a caller that sends none: the health of the whole server."""


_log = logging.getLogger(__name__)
_HEALTH_SECONDS = 0.1
_QUIET_SECONDS = 0.5
"""Maintenance interval while every cluster can answer and no call is under way."""
_READY_SECONDS = 1.0
"""Interval between checks whether clusters that can answer still can."""
_BEGINS_AT_ONCE = 4
"""Number of watches that may begin at the same time."""
_GIVE_WAY_SECONDS = 0.0005
_SPARE_STREAMS = 4
"""Threads beyond the allowed streams: they refuse further ones."""
_REFUSED_AT_ONCE = 256
"""Number of streams that may wait to be refused; others get gRPC's own error, without a reason."""


class DirectoryServer:
    """gRPC server of one address, for the clusters behind it.

    ``shared``: other processes of the same supervisor listen at the same address. ``identities``:
    the authenticator; None: callers are not identified.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        listen: str,
        *,
        shared: bool = False,
        identities: Authenticator | None = None,
    ) -> None:
        self._identities = identities
        limits = clusters[0].config.limits
        if message := grpc_internals.unsupported():
            raise RuntimeError(message)
        self._intake = RequestIntake(
            limits.unfinished_requests, limits.request_seconds, limits.max_concurrent_calls
        )
        # Half of the threads are for calls that are marked as waiting, half for calls that
        # ``unblock_stalled`` finds waiting.
        self._calls = CallPool(
            limits.read_threads, 2 * (limits.read_threads + limits.max_blocked_reads), self._intake
        )
        self._long = CallPool(
            limits.long_read_threads,
            2 * (limits.long_read_threads + limits.max_blocked_reads),
            self._intake,
        )
        self._router = ClusterRouter(clusters, waiting_call)
        self._listen = listen
        self._limits = limits
        self.metrics = CallMetrics()
        self._writes = WritePool(
            limits.write_threads, limits.max_queued_writes, self._intake, self._calls
        )
        self._slots = StreamSlots(
            limits.max_streams, limits.connection_streams, limits.principal_streams
        )
        self._streams = StreamPool(
            limits.max_streams + _SPARE_STREAMS, "stream", self._intake, self._slots
        )
        # Threads beyond the first few are for streams that wait for a revision of their token.
        self._begins = CallPool(_BEGINS_AT_ONCE, limits.max_streams, self._intake)
        self._polled = PolledStreams(self._begins, self._intake, self._slots, self._give_way)
        self._unsent = UnsentAnswers(
            limits.unsent_bytes, limits.principal_unsent_bytes, limits.max_call_seconds
        )
        # More than the intake and the slots of streams accept: so they refuse with a reason.
        most_calls = (
            limits.max_concurrent_calls
            + limits.unfinished_requests
            + limits.max_streams
            + limits.health_watchers
            + limits.reflection_streams
            + _REFUSED_AT_ONCE
        )
        self._server = grpc.server(
            cast("ThreadPoolExecutor", self._calls),  # of which gRPC wants ``submit``
            options=grpc_options(limits, most_calls, shared=shared),
            maximum_concurrent_rpcs=most_calls,
        )
        self._add_services()
        self.port = bind_listener(self._server, listen, identities)
        self._stopped = threading.Event()

    def _add_services(self) -> None:
        self._scans = ScanService(self._router)
        services = (
            ResolveService(self._router),
            DirectoryService(self._router),
            WatchService(self._router),
            FederationService(self._router),
            self._scans,
            PolicyService(self._router),
            AccessService(self._router),
            AdminService(self._router),
        )
        seconds = self._limits.max_call_seconds
        long = LongCalls(self._calls, self._long, self._intake)
        pools = Pools(self._streams, self._writes, long, self._polled)
        bounds = CallBounds(
            self._slots,
            RequestBounds(
                self._limits.list_items,
                self._limits.text_bytes,
                self._limits.policies_bytes,
                self._limits.max_request_bytes,
            ),
            self._unsent,
        )
        self._server.add_generic_rpc_handlers(
            [
                bind_service(
                    service,
                    seconds,
                    pools,
                    self.metrics,
                    bounds,
                    self._identities,
                )
                for service in services
            ]
        )
        names = [service.descriptor.full_name for service in services]
        shown = [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._health = Health(names, self._limits.health_watchers, self._intake)
        self._reflection = Reflection(shown, self._limits.reflection_streams, self._intake)
        self._server.add_generic_rpc_handlers([self._health.handler(), self._reflection.handler()])

    @property
    def address(self) -> str:
        """``host:port`` as bound."""
        return f"{self._listen.rpartition(':')[0]}:{self.port}"

    @property
    def waiting_reads(self) -> int:
        """Number of reads that no thread has taken yet."""
        return self._calls.waiting_calls + self._long.waiting_calls

    @property
    def waiting_writes(self) -> int:
        """Number of writes that no thread has taken yet."""
        return self._writes.waiting

    @property
    def ended_calls(self) -> int:
        """Number of unary calls that have ended since the server started."""
        return sum(one.read().count for one in self.metrics.calls().values())

    @property
    def late_requests(self) -> int:
        """Number of calls that were refused before their request arrived."""
        return self._intake.refused

    @property
    def excess_calls(self) -> int:
        """Number of calls that were refused because too many were under way."""
        return self._intake.excess

    @property
    def limits(self) -> Limits:
        """Configured bounds of this server."""
        return self._limits

    def start(self) -> None:
        """Begins to answer; health is NOT_SERVING until every cluster behind it can answer."""
        self._server.start()
        threading.Thread(target=self._maintenance_loop, name="health", daemon=True).start()

    def _maintenance_loop(self) -> None:
        reported: int | None = None
        published_at = 0.0
        while not self._stopped.wait(self._look_seconds(reported)):
            try:
                self._calls.unblock_stalled()
                self._long.unblock_stalled()
                self._begins.unblock_stalled()
                self._intake.refuse_late()
                self._intake.begin_delayed()
                self._intake.report_refused()
                self._reflection.end_late()
                self._scans.end_late()
                self._unsent.end_late()
                now = time.monotonic()
                was_ready = reported == health_pb2.HealthCheckResponse.SERVING
                if not was_ready or now - published_at >= _READY_SECONDS:
                    published_at, reported = now, self._publish_health(reported)
            except Exception:  # noqa: BLE001 - a bug must not end it in silence
                _log.exception("maintenance of the calls of %s failed", self._listen)
                self._stopped.wait(1.0)

    def _look_seconds(self, reported: int | None) -> float:
        is_quiet = not self._intake.calls and reported == health_pb2.HealthCheckResponse.SERVING
        return _QUIET_SECONDS if is_quiet else _HEALTH_SECONDS

    def _give_way(self, most_seconds: float) -> None:
        """Waits until the calls under way have ended, for at most this time."""
        until = time.monotonic() + most_seconds
        while self._intake.calls and time.monotonic() < until:
            time.sleep(_GIVE_WAY_SECONDS)

    def _publish_health(self, reported: int | None) -> int:
        """Sets gRPC's health status if it changed; returns it."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if is_ready(self._router.clusters)
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        if status != reported:
            self._health.set(int(status))
        return int(status)

    def drain(self) -> None:
        """Refuses new calls, waits for those under way within the limit, then stops."""
        self._stopped.set()
        self._intake.close()
        self._health.end()
        seconds = self._limits.drain_seconds
        stopped = self._server.stop(seconds)
        # A cluster whose store hangs delays neither the others nor the end of calls.
        run_together([cluster.drain for cluster in self._router.clusters], seconds)
        stopped.wait()
        self._calls.shutdown()
        self._long.shutdown()
        self._polled.end()
        self._begins.shutdown()
        self._writes.shutdown(wait=False, cancel_futures=True)
        self._streams.shutdown(wait=False, cancel_futures=True)
        self._health.shutdown()
        self._reflection.shutdown()
