"""Listener of a gRPC server, with TLS if there are certificates; and the server that answers
NOT_READY there until the stores are open.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2

from directory.server.authentication import Authenticator
from directory.server.config import Limits
from directory.server.toml_table import ConfigError
from resolver.error_status import to_status
from resolver.errors import NotReady

__all__ = ["NotReadyServer", "bind_listener", "connection_limit", "grpc_options"]


def bind_listener(server: grpc.Server, listen: str, identities: Authenticator | None) -> int:
    """Binds a server to ``host:port``; returns the port, which differs for port 0.

    Raises:
        ConfigError: the address cannot be bound.
    """
    certificates = identities.certificates if identities is not None else None
    try:
        if certificates is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, certificates.server_credentials())
    except RuntimeError:
        port = 0
    if not port:
        raise ConfigError(f"listen: cannot bind {listen}; is the port in use by another server?")
    return int(port)


_HANDSHAKE_MS: Final = 10_000
_IDLE_MS: Final = 30 * 60_000
_OTHER_FILES: Final = 256
"""File descriptors for everything but connections: the store, Kafka, other servers, logs."""


def connection_limit(most: int) -> int:
    """Returns how many connections to accept: ``most``, or fewer if the limit on open files leaves
    fewer, after it was raised as far as allowed.

    Without a spare descriptor no call could be answered.
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


def grpc_options(limits: Limits, most_calls: int, *, shared: bool) -> tuple[tuple[str, int], ...]:
    """Returns the channel arguments of a server with this many concurrent calls at most."""
    return (
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        # Between the two limits gRPC refuses at random, above the second always.
        ("grpc.max_metadata_size", limits.metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes),
        ("grpc.so_reuseport", int(shared)),
        # Clients may ping every 10 s, also while idle: less often is no abuse.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Otherwise the answer to a ping is awaited for a minute, whatever the line above sets.
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        # Limits for: sockets without a handshake; idle connections; all connections.
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.max_allowed_incoming_connections", connection_limit(limits.max_connections)),
        ("grpc.max_concurrent_streams", limits.connection_calls),
        # Off: otherwise an ended stream counts until Python has released its call, and streams of
        # clients that are within the limit are reset at random.
        ("grpc.http.overload_protection", 0),
        # Calls that gRPC has received and its Python thread has not taken: by default, if there
        # are more than 1,000, some are cancelled at random, also those of other callers.
        ("grpc.server.max_pending_requests", most_calls),
        ("grpc.server.max_pending_requests_hard_limit", 2 * most_calls),
    )


_THREADS: Final = 4  # each answer is made in no time
_HEALTH: Final = f"/{health.SERVICE_NAME}/"


class NotReadyServer:
    """Server that answers NOT_READY to every call, and NOT_SERVING to health checks, until it is
    stopped.
    """

    def __init__(
        self, listen: str, *, shared: bool = False, identities: Authenticator | None = None
    ) -> None:
        """Binds the address and starts.

        Raises:
            ConfigError: the address is in use.
        """
        self._server: Final = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="waiting"),
            handlers=[_Answers()],
            options=(("grpc.so_reuseport", int(shared)),),
        )
        port = bind_listener(self._server, listen, identities)
        self.address: Final = f"{listen.rpartition(':')[0]}:{port}"
        self._server.start()

    def stop(self) -> None:
        """Releases the address."""
        self._server.stop(None).wait()


class _Answers(grpc.GenericRpcHandler):
    """Handler of every method, unary or streaming: on the wire all of them begin alike."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        method = str(handler_call_details.method)
        answer = _not_serving if method.startswith(_HEALTH) else _refuse
        return grpc.stream_stream_rpc_method_handler(answer)


def _refuse(_: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    code, message, details = to_status(NotReady("this server has not reached its store yet"))
    context.set_trailing_metadata(details)
    context.abort(code, message)


def _not_serving(_: Iterator[bytes], __: grpc.ServicerContext) -> Iterator[bytes]:
    answer = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
    yield answer.SerializeToString()
