"""Assembles the gRPC server of one listening address, in one visible order; drains it."""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection

from directory.api.access_service import AccessService
from directory.api.admin_service import AdminService
from directory.api.cluster_router import ClusterRouter
from directory.api.directory_service import DirectoryService
from directory.api.federation_service import FederationService
from directory.api.policy_service import PolicyService
from directory.api.resolve_service import ResolveService
from directory.api.rpc.call_pool import CallPool, waiting_call
from directory.api.rpc.handlers import CallBounds, Pools, bind_service
from directory.api.rpc.health_and_reflection import Health, Reflection
from directory.api.rpc.interceptors.request_bounds import RequestBounds
from directory.api.rpc.listener import bind_listener
from directory.api.rpc.long_calls import LongCalls
from directory.api.rpc.request_intake import RequestIntake, unsupported
from directory.api.rpc.stream_slots import StreamPool, StreamSlots
from directory.api.rpc.unsent_answers import UnsentAnswers
from directory.api.rpc.write_pool import WritePool
from directory.api.scan_service import ScanService
from directory.api.watch_service import WatchService
from directory.server.authentication import Authenticator
from directory.server.cluster import Cluster
from directory.server.config import Limits
from directory.server.health import is_ready
from directory.server.metrics.call_metrics import CallMetrics

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["DirectoryServer", "connection_limit"]

_log = logging.getLogger(__name__)
_HEALTH_SECONDS = 0.1
_HANDSHAKE_MS = 10_000
_IDLE_MS = 30 * 60_000
_SPARE_STREAMS = 4
"""Threads beyond those of the streams allowed: they refuse the others."""
_REFUSED_AT_ONCE = 256
"""Streams that wait to be refused; one more gets gRPC's own error, without a reason."""
_OTHER_FILES = 256
"""Descriptors for what is no connection: the store, Kafka, other servers, logs."""


def connection_limit(most: int) -> int:
    """Returns how many connections to take: ``most``, or what the system's limit on open files
    leaves, which is raised as far as it may be. Without a descriptor to spare nothing could be
    answered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY:
        return most
    return max(16, min(most, soft - _OTHER_FILES))


class DirectoryServer:
    """The gRPC server of one address and the clusters behind it.

    ``shared``: other processes of the same supervisor listen at the same address. ``identities``:
    who may come in, and how that is found out; None: who comes is nobody in particular.
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
        if message := unsupported():
            raise RuntimeError(message)
        self._intake = RequestIntake(
            limits.unfinished_requests, limits.request_seconds, limits.concurrent_calls
        )
        # Half of the most are for calls that say that they wait, half for those found to.
        self._calls = CallPool(
            limits.workers, 2 * (limits.workers + limits.waiting_reads), self._intake
        )
        self._long = CallPool(limits.long_workers, 2 * (limits.long_workers + limits.waiting_reads))
        self._router = ClusterRouter(clusters, waiting_call)
        self._listen = listen
        self._limits = limits
        self.metrics = CallMetrics()
        self._writes = WritePool(limits.writers, limits.waiting_writes, intake=self._intake)
        self._streams = StreamPool(limits.streams + _SPARE_STREAMS, "stream", self._intake)
        self._slots = StreamSlots(
            limits.streams, limits.connection_streams, limits.principal_streams
        )
        self._unsent = UnsentAnswers(
            limits.unsent_bytes, limits.principal_unsent_bytes, limits.call_seconds
        )
        self._server = grpc.server(
            cast("ThreadPoolExecutor", self._calls),  # of which gRPC wants ``submit``
            options=(
                ("grpc.max_receive_message_length", limits.message_bytes),
                ("grpc.max_send_message_length", -1),
                # Up to the one it would be refused at random, from the other on always.
                ("grpc.max_metadata_size", limits.metadata_bytes),
                ("grpc.absolute_max_metadata_size", limits.metadata_bytes),
                ("grpc.so_reuseport", int(shared)),
                # Our own clients ping every 20 s at most, also while idle: do not call that abuse.
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                # Sockets that never say who they are; connections that nobody uses; all of them.
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.max_allowed_incoming_connections", connection_limit(limits.connections)),
                ("grpc.max_concurrent_streams", limits.connection_calls),
            ),
            # Beyond all that is refused with a reason, by the intake and by slots of streams.
            maximum_concurrent_rpcs=limits.concurrent_calls
            + limits.unfinished_requests
            + limits.streams
            + limits.health_watchers
            + limits.reflection_streams
            + _REFUSED_AT_ONCE,
        )
        self._add_services()
        self.port = bind_listener(self._server, listen, identities)
        self._stopped = threading.Event()

    def _add_services(self) -> None:
        services = (
            ResolveService(self._router),
            DirectoryService(self._router),
            WatchService(self._router),
            FederationService(self._router),
            ScanService(self._router),
            PolicyService(self._router),
            AccessService(self._router),
            AdminService(self._router),
        )
        seconds = self._limits.call_seconds
        long = LongCalls(self._calls, self._long, self._intake)
        pools = Pools(self._streams, self._writes, long)
        bounds = CallBounds(
            self._slots,
            RequestBounds(self._limits.list_items, self._limits.text_bytes),
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
        """Reads that no thread has taken yet."""
        return self._calls.waiting_calls + self._long.waiting_calls

    @property
    def waiting_writes(self) -> int:
        """Writes that no thread has taken yet."""
        return self._writes.waiting

    @property
    def ended_calls(self) -> int:
        """Calls with one answer that have ended since it began."""
        return sum(one.read().count for one in self.metrics.calls().values())

    @property
    def late_requests(self) -> int:
        """Calls that were refused because their request did not arrive."""
        return self._intake.refused

    @property
    def limits(self) -> Limits:
        """The bounds of this server."""
        return self._limits

    def start(self) -> None:
        """Begins to answer; health says NOT_SERVING until every cluster behind it can answer."""
        self._server.start()
        threading.Thread(target=self._maintenance_loop, name="health", daemon=True).start()

    def _maintenance_loop(self) -> None:
        reported: int | None = None
        while not self._stopped.wait(_HEALTH_SECONDS):
            try:
                self._calls.unblock_stalled()
                self._long.unblock_stalled()
                self._intake.refuse_late()
                self._reflection.end_late()
                self._unsent.end_late()
                reported = self._publish_health(reported)
            except Exception:  # noqa: BLE001 - a bug must not end it in silence
                _log.exception("looking after the calls of %s stumbled", self._listen)
                self._stopped.wait(1.0)

    def _publish_health(self, reported: int | None) -> int:
        """Tells who asks for health, where it is another than told before; what it is."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if is_ready(self._router.clusters)
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        if status != reported:
            self._health.set(int(status))
        return int(status)

    def drain(self) -> None:
        """Takes no new calls, lets those under way end within the limit, then stops."""
        self._stopped.set()
        self._health.end()
        for cluster in self._router.clusters:
            cluster.drain()
        self._server.stop(self._limits.drain_seconds).wait()
        self._calls.shutdown()
        self._long.shutdown()
        self._writes.shutdown(wait=False, cancel_futures=True)
        self._streams.shutdown(wait=False, cancel_futures=True)
        self._health.shutdown()
        self._reflection.shutdown()
