"""Listener of a gRPC server, with TLS if there are certificates; and the server that answers
NOT_READY there until the stores are open.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2

from directory.server.authentication import Authenticator
from directory.server.toml_table import ConfigError
from resolver.error_status import to_status
from resolver.errors import NotReady

__all__ = ["NotReadyServer", "bind_listener"]


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
