"""The transport over gRPC: a call that meets its end is answered by a typed error, and of channels
those used last are kept.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from kdir.v1 import resolve_pb2, watch_pb2

from deploy.local.ports import LOOPBACK
from resolver import Resolver
from resolver.errors import (
    Cancelled,
    Closed,
    DeadlineExceeded,
    HandshakeFailed,
    KdirError,
    Unreachable,
)
from resolver.peer_certificates import TlsMaterial
from resolver.transport import GrpcTransport, Metadata, method
from tests.support.federation import eventually
from tests.support.identities import Authority, Issued

RESOLVE = method("ResolveService.Resolve")
WATCH = method("WatchService.Watch")
REQUEST = resolve_pb2.ResolveRequest(path="/a")
DESCRIPTORS = Path("/proc/self/fd")
KEPT = 256
MANY = 300


class Answering(grpc.GenericRpcHandler):
    """A server that answers nothing of use at once, and holds its watches until it is stopped."""

    def __init__(self, ports: int = 1) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked = threading.Event()
        self._stopping = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        self.addresses = [
            f"{LOOPBACK}:{self._server.add_insecure_port(f'{LOOPBACK}:0')}" for _ in range(ports)
        ]
        self.address = self.addresses[0]
        self._server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        if str(details.method) == WATCH.name:
            return grpc.unary_stream_rpc_method_handler(self._watch)
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, _: bytes, __: grpc.ServicerContext) -> bytes:
        self.asked.set()
        self.go_on.wait(60)
        return resolve_pb2.ResolveResponse().SerializeToString()

    def _watch(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active() and not self._stopping.is_set():
            yield watch_pb2.WatchResponse().SerializeToString()
            self._stopping.wait(0.05)

    def stop(self) -> None:
        self.go_on.set()
        self._stopping.set()
        self._server.stop(0).wait()


@pytest.fixture
def server() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.stop()


def test_who_asks_while_or_after_the_transport_is_closed_gets_a_typed_error(
    server: Answering,
) -> None:
    transport = GrpcTransport()
    server.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(transport.call, server.address, RESOLVE, REQUEST, 60)
        assert server.asked.wait(60)
        transport.close()
        assert isinstance(asked.exception(60), Cancelled)
    for _ in range(2):
        with pytest.raises(Closed):
            transport.call(server.address, RESOLVE, REQUEST, 1)
        with pytest.raises(Closed):
            transport.stream(server.address, WATCH, watch_pb2.WatchRequest(path="/"))
        with pytest.raises(Closed):
            transport.open_channel(server.address, "")
        transport.close()


def test_a_server_that_does_not_answer_is_named_with_the_time(server: Answering) -> None:
    server.go_on.clear()
    transport = GrpcTransport()
    try:
        with pytest.raises(DeadlineExceeded) as failed:
            transport.call(server.address, RESOLVE, REQUEST, 0.2)
        assert failed.value.message == f"{server.address}: no answer within 0.2 s"
    finally:
        server.go_on.set()
        transport.close()


def test_a_channel_that_another_thread_closes_before_its_call_is_closed(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = GrpcTransport()
    take = transport._take

    def closed_meanwhile(*arguments: Any) -> Any:
        found = take(*arguments)
        transport.close()
        return found

    monkeypatch.setattr(transport, "_take", closed_meanwhile)
    with pytest.raises(Closed):
        transport.call(server.address, RESOLVE, REQUEST, 1)


def test_a_resolver_that_is_used_after_its_close_is_closed(server: Answering) -> None:
    resolver = Resolver(server.address)
    resolver.close()
    with pytest.raises(Closed):
        resolver.resolve("/a")
    with pytest.raises(Closed):
        resolver.list("/a")
    resolver.close()


def sockets() -> int:
    """Returns how many descriptors this process has."""
    return len(list(DESCRIPTORS.iterdir()))


class Secured(Answering):
    """The same over TLS, at one of the two addresses of its name."""

    def __init__(self, issued: Issued, trusted: bytes = b"") -> None:
        super().__init__()
        self._secured = grpc.server(ThreadPoolExecutor(2), handlers=[self])
        pair = (issued.key, issued.cert)
        wanted = grpc.ssl_server_credentials([pair], trusted or None, bool(trusted))
        self.port = self._secured.add_secure_port(f"{LOOPBACK}:0", wanted)
        self.address = f"two.example:{self.port}"
        self._secured.start()

    def stop(self) -> None:
        self._secured.stop(0).wait()
        super().stop()


class Material:
    """Credentials that are certificates only."""

    def __init__(self, ca: bytes) -> None:
        self._material = TlsMaterial(ca)

    def tls(self) -> tuple[int, TlsMaterial]:
        return 1, self._material

    def metadata(self) -> Metadata:
        return ()


@pytest.mark.parametrize("last", ["127.0.0.2", LOOPBACK], ids=["refused last", "refused first"])
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("other CA", "its certificate is of no CA that is trusted here"),
        ("other name", "its certificate is not for the name that was dialled"),
        ("wants one", "does it not take the certificate of this side, or want one?"),
        ("taken", ""),
    ],
)
def test_a_handshake_that_failed_at_one_address_of_a_name_is_reported_although_another_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, why: str, last: str
) -> None:
    ca, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    issued = ca.issue("server", dns=["other.example" if case == "other name" else "two.example"])
    server = Secured(issued, ca.pem if case == "wants one" else b"")
    credentials = Material(other.pem if case == "other CA" else ca.pem)
    transport, later = GrpcTransport(credentials), GrpcTransport(credentials)
    hosts = sorted([LOOPBACK, "127.0.0.2"], key=lambda host: host == last)
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, server.port)) for host in hosts]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    secure_channel = grpc.secure_channel

    def resolved(_: str, credentials: Any, options: Any) -> grpc.Channel:
        target = ",".join(f"{host}:{server.port}" for host in hosts)
        named = (*options, ("grpc.ssl_target_name_override", "two.example"))
        return secure_channel(f"ipv4:{target}", credentials, named)

    monkeypatch.setattr("grpc.secure_channel", resolved)
    try:
        if not why:
            transport.call(server.address, RESOLVE, REQUEST, 20)
            return
        with pytest.raises(HandshakeFailed) as failed:
            transport.call(server.address, RESOLVE, REQUEST, 20)
        assert why in failed.value.message
        server.stop()
        with pytest.raises(Unreachable, match="Connection refused") as gone:
            later.call(server.address, RESOLVE, REQUEST, 20)
        assert type(gone.value) is Unreachable
    finally:
        transport.close()
        later.close()
        server.stop()


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="counts descriptors in /proc")
def test_channels_that_were_used_last_are_kept_and_those_in_use_always() -> None:
    server = Answering(MANY)
    transport = GrpcTransport()
    before = sockets()
    first, *others = server.addresses
    stream = transport.stream(first, WATCH, watch_pb2.WatchRequest(path="/"))
    messages = iter(stream)
    next(messages)
    try:
        for address in others:
            transport.call(address, RESOLVE, REQUEST, 60)
        # Of each connection both ends are of this process.
        assert eventually(lambda: sockets() - before <= 2 * KEPT + 20)
        for _ in range(3):
            next(messages)
        assert transport.open_endpoints == {first, *others[1 - KEPT :]}
        stream.cancel()
        with pytest.raises(KdirError):
            list(messages)

        def goes() -> bool:
            for address in others[:KEPT]:
                transport.call(address, RESOLVE, REQUEST, 60)
            return transport.open_endpoints == set(others[:KEPT])

        assert eventually(goes)
    finally:
        transport.close()
        server.stop()
