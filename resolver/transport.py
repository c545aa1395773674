"""Transport: how a question reaches a server and its answer comes back; refuses to choose servers.

The seam is one method for calls with one answer and one for streams, over messages of the
contract; ``GrpcTransport`` is the real one and ``resolver.testing`` has one in memory.

A gRPC channel does not survive a fork: its threads stay behind in the parent. Channels are
therefore made by the process that uses them, when it first does, and a child process makes its own
(G11).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import Message

from resolver.endpoints import parse_endpoint
from resolver.errors import KdirError
from resolver.status import from_rpc_error

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Credentials",
    "GrpcTransport",
    "Metadata",
    "Method",
    "Stream",
    "Transport",
    "method",
]

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Of one answer; a page or a batch of ours is far smaller."""

_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A server is back at once after a restart; gRPC's own back-off would wait for up to 2 minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name this bounds a connection attempt: with 100 ms, nothing that is two TLS
    # round trips over an ocean away, or busy, is ever reached (grpc/grpc#33423).
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # More rarely than the least interval that any gRPC server takes by default (5 minutes), and
    # never while idle: else GOAWAY "too_many_pings" (gRPC's doc/keepalive.md). Streams notice a
    # silent server by its missing checkpoints, calls by their deadlines.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # Else a channel made after a fork may be given the parent's connection, closed on the fork.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


_REPLACED: Final = 16
"""So many times may certificates be replaced before a stream ends that began with the first."""


class Method:
    """One rpc of the contract: its full name and the classes of its messages."""

    __slots__ = ("name", "request", "response", "streams")

    def __init__(
        self, name: str, request: type[Any], response: type[Any], *, streams: bool
    ) -> None:
        self.name = name
        self.request = request
        self.response = response
        self.streams = streams

    def __repr__(self) -> str:
        return f"Method({self.name})"


_MODULES: Final = {
    "AccessService": "access_pb2",
    "AdminService": "admin_pb2",
    "DirectoryService": "directory_pb2",
    "FederationService": "federation_pb2",
    "PolicyService": "policies_pb2",
    "ResolveService": "resolve_pb2",
    "ScanService": "scan_pb2",
    "WatchService": "watch_pb2",
}


@functools.cache
def method(name: str) -> Method:
    """The rpc of this name, such as ``DirectoryService.CreateEntry``.

    Raises:
        KeyError: the contract has none of this name.
    """
    from importlib import import_module

    from google.protobuf.message_factory import GetMessageClass

    service, _, rpc = name.partition(".")
    module = import_module(f"kdir.v1.{_MODULES[service]}")
    described = module.DESCRIPTOR.services_by_name[service].methods_by_name[rpc]
    return Method(
        f"/kdir.v1.{service}/{rpc}",
        GetMessageClass(described.input_type),
        GetMessageClass(described.output_type),
        streams=described.server_streaming,
    )


class Stream(Protocol):
    """Answers as they come. Iterating raises ``KdirError`` when it breaks."""

    def __iter__(self) -> Iterator[Any]: ...

    def cancel(self) -> None:
        """End it, from any thread; its iteration then ends with ``Cancelled``."""


class Transport(Protocol):
    """Asks one server. Thread-safe. Every failure is a ``KdirError``."""

    def call(self, endpoint: str, method: Method, request: Message, timeout_seconds: float) -> Any:
        """One question, one answer, within ``timeout_seconds``.

        Raises:
            KdirError: what the server said, or Unreachable, DeadlineExceeded, Unimplemented.
        """

    def stream(self, endpoint: str, method: Method, request: Message) -> Stream:
        """One question, answers until either side ends it. Does not wait for the first."""

    def close(self) -> None:
        """Give back what was opened; calls under way end with ``Cancelled``."""


Metadata = Sequence[tuple[str, str | bytes]]
"""What goes with a call beside the request."""


class Credentials(Protocol):
    """Who one is to servers. Thread-safe; files behind it may change."""

    def tls(self) -> tuple[int, grpc.ChannelCredentials | None]:
        """What connections are made with, None: without TLS; and which one of all so far it is.
        With another one new connections are made.

        Raises:
            KdirError: it cannot be used.
        """

    def metadata(self, endpoint: str) -> Metadata:
        """What goes with each call to a server, such as a bearer token.

        Raises:
            KdirError: it may not be sent there.
        """


class GrpcTransport:
    """Over gRPC, one channel a server, made when first needed.

    ``credentials`` say who one is; ``metadata`` goes with every call besides.
    """

    def __init__(
        self,
        credentials: Credentials | None = None,
        metadata: Callable[[], Metadata] | None = None,
    ) -> None:
        self._credentials = credentials
        self._metadata = metadata
        self._tls: tuple[int, grpc.ChannelCredentials | None] = (0, None)
        self._replaced: list[dict[str, grpc.Channel]] = []
        self._pid = os.getpid()
        self._channels: dict[str, grpc.Channel] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self._closed = False

    def call(self, endpoint: str, method: Method, request: Message, timeout_seconds: float) -> Any:
        return self.call_with((), endpoint, method, request, timeout_seconds)

    def call_with(
        self,
        more: Metadata,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
    ) -> Any:
        """``call``, with more metadata: for a server that asks in a caller's name."""
        ask = self._callable(endpoint, method)
        try:
            return ask(request, timeout=timeout_seconds, metadata=self._with(endpoint, more))
        except grpc.RpcError as error:
            raise self._failure(error) from None
        except ValueError as error:  # the channel was closed by another thread
            raise RuntimeError("this transport is closed") from error

    def stream(self, endpoint: str, method: Method, request: Message) -> Stream:
        made = self._callable(endpoint, method)(request, metadata=self._with(endpoint, ()))
        return _GrpcStream(made, self._failure)

    def _failure(self, error: grpc.RpcError) -> KdirError:
        return from_rpc_error(error, secure=self._tls[1] is not None)

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            for channels in [self._channels, *self._replaced]:
                for channel in list(channels.values()):
                    channel.close()
        self._channels, self._replaced, self._calls = {}, [], {}

    def _with(self, endpoint: str, more: Metadata) -> Any:
        if self._credentials is None and self._metadata is None:
            return more or None
        own = self._credentials.metadata(endpoint) if self._credentials is not None else ()
        return (*own, *(self._metadata() if self._metadata is not None else ()), *more)

    def _renew(self, credentials: Credentials) -> None:
        """After certificates were replaced: new calls go over new connections; those under way, and
        streams for a long time, go on over theirs.
        """
        tls = credentials.tls()
        if tls[0] == self._tls[0]:
            return
        self._replaced.append(self._channels)
        self._channels, self._calls, self._tls = {}, {}, tls
        if len(self._replaced) > _REPLACED:
            for channel in self._replaced.pop(0).values():
                channel.close()

    def _callable(self, endpoint: str, method: Method) -> Any:
        if self._pid != os.getpid():
            # After a fork. The parent's channels are left as they are: closing them here would
            # speak on the parent's sockets. No lock: one held at the fork would never be let go.
            self._channels, self._replaced, self._calls, self._pid = {}, [], {}, os.getpid()
        if self._credentials is not None:
            self._renew(self._credentials)
        key = (endpoint, method.name)
        known = self._calls.get(key)
        if known is None:
            if self._closed:
                raise RuntimeError("this transport is closed")
            channel = self._channel(endpoint)
            make = channel.unary_stream if method.streams else channel.unary_unary
            known = self._calls[key] = make(
                method.name,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return known

    def _channel(self, endpoint: str) -> grpc.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            target = parse_endpoint(endpoint).target
            made = (
                grpc.insecure_channel(target, _OPTIONS)
                if self._tls[1] is None
                else grpc.secure_channel(target, self._tls[1], _OPTIONS)
            )
            # Two threads may get here at once: the first one's channel stays.
            channel = self._channels.setdefault(endpoint, made)
            if channel is not made:
                made.close()
        return channel


class _GrpcStream:
    def __init__(self, call: Any, failure: Callable[[grpc.RpcError], KdirError]) -> None:
        self._call = call
        self._failure = failure

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def cancel(self) -> None:
        self._call.cancel()
