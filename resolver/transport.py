"""Transport: sends requests to servers and returns their responses.

The interface has one method for unary calls and one for streams, with messages of the contract.
``GrpcTransport`` implements it; ``resolver.testing`` has an implementation in memory.

A gRPC channel does not survive a fork: its threads stay in the parent. So each process opens its
own channels, on first use (G11). Only some stay open (``ChannelPool``): a server that resolves for
its callers may be referred to any number of servers, and each channel costs a connection and
memory.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import grpc
from google.protobuf.message import Message

from resolver.deadline_shares import LEAST_SECONDS
from resolver.error_status import from_rpc_error
from resolver.errors import (
    Closed,
    DeadlineExceeded,
    HandshakeFailed,
    InvalidArgument,
    KdirError,
    Unreachable,
)
from resolver.host_port import parse_endpoint
from resolver.keyed_slots import KeyedSlots

if TYPE_CHECKING:
    from resolver.peer_certificates import PeerCertificates, TlsMaterial

__all__ = [
    "BEARER",
    "MAX_MESSAGE_BYTES",
    "Credentials",
    "GrpcTransport",
    "Metadata",
    "Method",
    "Stream",
    "Transport",
    "method",
]

BEARER: Final = "authorization"
"""Metadata with the caller's token: ``Bearer …`` (RFC 6750)."""
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of one request or response; kdir's pages and batches are far smaller."""

_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A server is back at once after a restart; gRPC's own back-off would wait for up to 2 minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name this bounds a connection attempt: with 100 ms, a server that is busy, or
    # across an ocean (two TLS round trips), is never reached (grpc/grpc#33423).
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Less often than the shortest interval that gRPC servers accept by default (5 minutes), and
    # never while idle: otherwise GOAWAY "too_many_pings" (gRPC's doc/keepalive.md). Streams notice
    # a silent server by its missing checkpoints, calls by their deadlines.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # Otherwise a channel made after a fork may share the parent's connection, closed on the fork.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


_MOST_CHANNELS: Final = 256
"""Most open channels; beyond it, unused ones are closed, the least recently used first."""
_MOST_READINGS: Final = 4
"""Most times that a call reads its server's certificate: behind a load balancer each server may
have another one.
"""
_ADDRESS: Final = ("ipv4:", "ipv6:")
"""Prefixes of gRPC's text about an address to which it has no connection."""
_STREAM_SECONDS: Final = 10.0
"""Time limit to read a server's certificate before a stream, which has no deadline."""


class Method:
    """RPC of the contract: its full name and the classes of its messages."""

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
    """Returns the RPC of this name, such as ``DirectoryService.CreateEntry``.

    Raises:
        KeyError: the contract has no RPC of this name.
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
    """Stream of responses. Iteration raises ``KdirError`` when it breaks."""

    def __iter__(self) -> Iterator[Any]: ...

    def cancel(self) -> None:
        """Cancels the stream, from any thread; its iteration then ends with ``Cancelled``."""


class Transport(Protocol):
    """Transport of calls, each to one server. Thread-safe. Every failure is a ``KdirError``.

    ``cluster_id``: id of the server's cluster, from the referral; empty = no referral.
    """

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        """Returns the response of a unary call, within ``timeout_seconds``.

        Raises:
            KdirError: the error of the server, or Unreachable, DeadlineExceeded, Unimplemented.
        """

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        """Returns the stream of responses to a request, without waiting for the first response."""

    def close(self) -> None:
        """Releases all resources; calls under way end with ``Cancelled``."""


Metadata = Sequence[tuple[str, str | bytes]]
"""Metadata of a call."""


class Credentials(Protocol):
    """Credentials of the caller. Thread-safe; their files may change."""

    def tls(self) -> tuple[int, TlsMaterial | None]:
        """Returns a generation number and the material for TLS (None = no TLS). If the generation
        changes, new connections are needed.

        Raises:
            KdirError: the material cannot be used.
        """

    def metadata(self) -> Metadata:
        """Returns the metadata of each call, such as a bearer token."""


class PooledChannel:
    """Channel in a pool, with the number of calls that use it now."""

    __slots__ = ("channel", "methods", "use_count")

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel: Final = channel
        self.methods: Final[dict[str, Any]] = {}
        """Callables of the channel's RPCs, by name of the RPC."""
        self.use_count = 0


class ChannelPool:
    """Channels by key; beyond ``most``, unused ones are closed. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._lock: Final = threading.Lock()
        self._channels: OrderedDict[Hashable, PooledChannel] = OrderedDict()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def keys(self) -> frozenset[Hashable]:
        """Keys of the channels that are kept."""
        with self._lock:
            return frozenset(self._channels)

    def take(self, key: Hashable, connect: Callable[[], grpc.Channel]) -> PooledChannel:
        """Returns the channel of a key; the caller ends its use with ``give_back``.

        Raises:
            Closed: the pool is closed.
        """
        with self._lock:
            if self._is_closed:
                raise Closed("closed: nothing can be asked any more")
            found = self._channels.get(key)
            if found is None:
                # Connecting begins with the first call: this does not wait.
                found = self._channels[key] = PooledChannel(connect())
            self._channels.move_to_end(key)
            found.use_count += 1
        # Not in ``give_back``, which may run in a thread of gRPC for which ``close`` waits.
        self._keep(self._most)
        return found

    def close_unused(self) -> None:
        """Closes the channels that are not in use."""
        self._keep(0)

    def _keep(self, most: int) -> None:
        """Closes unused channels, the least recently used first, until ``most`` are left."""
        if len(self._channels) <= most:
            return
        with self._lock:
            over = max(0, len(self._channels) - most)
            keys = [key for key, one in self._channels.items() if not one.use_count][:over]
            unused = [self._channels.pop(key) for key in keys]
        for one in unused:
            one.channel.close()

    def give_back(self, taken: PooledChannel) -> None:
        """Ends the use of a channel."""
        with self._lock:
            taken.use_count -= 1

    def close(self) -> None:
        """Closes all channels, also those in use: their calls end."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, OrderedDict()
        for one in channels.values():
            one.channel.close()


class GrpcTransport:
    """Transport over gRPC, with one channel for each server, opened on first use; unused ones are
    closed when there are many (``ChannelPool``).

    Without TLS, a bearer token is sent only to servers of this machine. With TLS, it is sent only
    to servers that the caller named itself, and to those whose certificate names the cluster of the
    referral (``resolver/peer_certificates.py``).

    Args:
        credentials: credentials of the caller.
        metadata: returns further metadata for every call.
        named: servers that the caller named itself, for which a certificate of the CA is
            sufficient.
        slots: limit of concurrent reads of certificates, if calls are made for several callers.
    """

    def __init__(
        self,
        credentials: Credentials | None = None,
        metadata: Callable[[], Metadata] | None = None,
        named: Collection[str] = (),
        slots: KeyedSlots | None = None,
    ) -> None:
        self._credentials = credentials
        self._slots = slots
        self._metadata = metadata
        self._named = frozenset({*named, *(str(parse_endpoint(server)) for server in named)})
        self._tls: tuple[int, TlsMaterial | None] = (0, None)
        self._peers: PeerCertificates | None = None
        self._handshakes: PeerCertificates | None = None
        """Handshakes that find out why a server cannot be reached; None = no TLS."""
        self._pid = os.getpid()
        self._channels = ChannelPool(_MOST_CHANNELS)
        self._is_closed = False

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
        more: Metadata = (),
        caller: str = "",
    ) -> Any:
        """Calls one server. ``more`` is further metadata, for a server that calls for a caller;
        ``caller`` is that caller, whose slots count.
        """
        self._renew()
        metadata = self._with(endpoint, more)
        deadline = time.monotonic() + timeout_seconds
        readings = 0
        while True:
            left = max(deadline - time.monotonic(), LEAST_SECONDS)
            is_again = readings > 0
            peer = self._peer(endpoint, cluster_id, metadata, left, again=is_again, caller=caller)
            pool, channel = self._take(peer)
            left = max(deadline - time.monotonic(), LEAST_SECONDS)
            try:
                ask = _callable(channel, method)
                return ask(request, timeout=left, metadata=metadata)
            except grpc.RpcError as error:
                failure = self._other_address(endpoint, self._failure(error), deadline, caller)
            except ValueError as error:  # the channel was closed by another thread
                raise Closed(f"{endpoint}: the connection was closed during the call") from error
            finally:
                pool.give_back(channel)
            if isinstance(failure, DeadlineExceeded) and "code" in failure.metadata:
                # gRPC's own error has neither the server nor the time.
                late = f"{endpoint}: no answer within {timeout_seconds:.3g} s"
                failure = DeadlineExceeded(late, metadata=failure.metadata)
            readings += 1
            # True if the server's certificate is another than before; then nothing was sent.
            is_other = bool(peer.trusted) and isinstance(failure, HandshakeFailed)
            if not is_other or readings == _MOST_READINGS or time.monotonic() > deadline:
                raise failure

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        self._renew()
        metadata = self._with(endpoint, ())
        # The certificate is always read: if it was replaced, the stream would break at once.
        peer = self._peer(endpoint, cluster_id, metadata, _STREAM_SECONDS, again=True)
        pool, channel = self._take(peer)
        try:
            made = _callable(channel, method)(request, metadata=metadata)
        except ValueError as error:  # the channel was closed by another thread
            pool.give_back(channel)
            raise Closed(f"{endpoint}: the connection was closed during the call") from error
        except BaseException:
            pool.give_back(channel)
            raise
        if not made.add_callback(functools.partial(pool.give_back, channel)):
            pool.give_back(channel)  # it has ended
        return _GrpcStream(made, self._failure)

    def open_channel(
        self, endpoint: str, cluster_id: str, options: Sequence[tuple[str, int]] = ()
    ) -> tuple[grpc.Channel, Metadata]:
        """Opens a channel, which the caller closes, and returns it with the metadata for its calls.

        Raises:
            KdirError: a token may not be sent there.
        """
        self._renew()
        metadata = self._with(endpoint, ())
        peer = self._peer(endpoint, cluster_id, metadata, _STREAM_SECONDS, again=True)
        return self._connection(peer, options or _OPTIONS), metadata or ()

    def _failure(self, error: grpc.RpcError) -> KdirError:
        return from_rpc_error(error, secure=self._tls[1] is not None)

    def _other_address(
        self, endpoint: str, failure: KdirError, deadline: float, caller: str
    ) -> KdirError:
        """Returns the error of a handshake that failed at one address of a server's name, if gRPC
        reports only that the last address refused a connection; else ``failure``.
        """
        is_other = failure.message.startswith(_ADDRESS) and endpoint not in failure.message
        if self._handshakes is None or type(failure) is not Unreachable or not is_other:
            return failure
        left = max(deadline - time.monotonic(), LEAST_SECONDS)
        try:
            self._handshakes.read(endpoint, "", left, caller=caller)
        except HandshakeFailed as found:
            return HandshakeFailed(found.message, metadata=failure.metadata)
        except KdirError:
            pass  # gRPC's text has more details
        return failure

    @property
    def open_endpoints(self) -> frozenset[str]:
        """Endpoints with an open channel."""
        return frozenset(one.endpoint for one in self._channels.keys if isinstance(one, _Peer))

    def close(self) -> None:
        self._is_closed = True
        if self._pid == os.getpid():
            self._channels.close()

    def _with(self, endpoint: str, more: Metadata) -> Any:
        """Returns the metadata of a call.

        Raises:
            InvalidArgument: a token would be sent without TLS.
        """
        if self._credentials is None and self._metadata is None and not more:
            return None
        own = self._credentials.metadata() if self._credentials is not None else ()
        whole = (*own, *(self._metadata() if self._metadata is not None else ()), *more)
        if self._tls[1] is None and _has_token(whole) and not parse_endpoint(endpoint).is_loopback:
            raise InvalidArgument(
                f"{endpoint}: a token is sent over TLS only: expected a ca", field="ca"
            )
        return whole

    def _peer(
        self,
        endpoint: str,
        cluster_id: str,
        metadata: Any,
        seconds: float,
        *,
        again: bool,
        caller: str = "",
    ) -> _Peer:
        """Returns the peer to connect to. If a token is sent to a server of a referral, only
        certificates that name the cluster are trusted. ``again``: read the certificate even if one
        is known.

        Raises:
            HandshakeFailed: the server's certificate does not name the cluster.
            Unreachable, DeadlineExceeded: the certificate could not be read.
        """
        peers, generation = self._peers, self._tls[0]
        if peers is None or endpoint in self._named or not _has_token(metadata):
            return _Peer(endpoint, generation)
        trusted = b"" if again else peers.known(endpoint, cluster_id)
        if not trusted:
            trusted = peers.read(endpoint, cluster_id, seconds, caller=caller)
        return _Peer(endpoint, generation, trusted)

    def _renew(self) -> None:
        """Prepares a call: after a fork, or if certificates were replaced, new calls use new
        connections. Running calls and streams keep theirs.

        Raises:
            Closed: the transport is closed.
            KdirError: the credentials cannot be used.
        """
        if self._is_closed:
            raise Closed("closed: nothing can be asked any more")
        if self._pid != os.getpid():
            # After a fork. The parent's channels are left open: closing them here would write to
            # the parent's sockets. No lock is taken: one that was held at the fork is never
            # released.
            self._channels, self._pid = ChannelPool(_MOST_CHANNELS), os.getpid()
            self._set_tls(self._tls)
        if self._credentials is None:
            return
        tls = self._credentials.tls()
        if tls[0] != self._tls[0]:
            self._set_tls(tls)
            self._channels.close_unused()

    def _set_tls(self, tls: tuple[int, TlsMaterial | None]) -> None:
        self._tls = tls
        if tls[1] is None:
            self._peers = self._handshakes = None
            return
        from resolver.peer_certificates import PeerCertificates, try_handshake

        self._peers = PeerCertificates(tls[1], slots=self._slots)
        self._handshakes = PeerCertificates(tls[1], try_handshake, self._slots)

    def _take(self, peer: _Peer) -> tuple[ChannelPool, PooledChannel]:
        pool = self._channels
        return pool, pool.take(peer, functools.partial(self._connection, peer, _OPTIONS))

    def _connection(self, peer: _Peer, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        target = parse_endpoint(peer.endpoint).target
        tls = self._tls[1]
        if tls is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, tls.channel_credentials(peer.trusted), options)


class _Peer(NamedTuple):
    """Server, with the certificates that it may present, in PEM; empty = any certificate of the
    CA.
    """

    endpoint: str
    generation: int
    """Generation of the caller's own certificates, from ``Credentials.tls``."""
    trusted: bytes = b""


def _callable(pooled: PooledChannel, method: Method) -> Any:
    known = pooled.methods.get(method.name)
    if known is None:
        channel = pooled.channel
        make = channel.unary_stream if method.streams else channel.unary_unary
        known = pooled.methods[method.name] = make(
            method.name,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
    return known


def _has_token(metadata: Metadata | None) -> bool:
    return any(key == BEARER for key, _ in metadata or ())


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
