"""Directory servers whose answers a test scripts, over real gRPC on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
from kdir.v1 import entry_pb2, resolve_pb2

from resolver.error_status import to_outcome, to_status
from resolver.errors import KdirError
from tests.support.tcp import TcpServer

__all__ = ["FakeServer", "Trickle", "absent", "direct", "down", "here", "link", "up"]

Answered = resolve_pb2.Outcome | KdirError
Script = Callable[[str], Answered]


class FakeServer:
    """A gRPC server with a ResolveService whose every answer is scripted.

    ``says`` gives the outcome for a path, or the error to fail with. ``calls`` holds each path
    that was asked, one by one also where they came in a batch; ``rpcs`` counts the calls.
    """

    def __init__(self, mount: str = "/", cluster_id: str = "", **authority: Any) -> None:
        self.mount = mount
        self.cluster_id = cluster_id or f"kc-{mount}"
        self.epoch = 1
        self.revision = 1
        self.incarnation = "i1"
        self.authority_fields = authority
        self.says: Script = lambda _: KdirError("not told what to say")
        self.calls: list[str] = []
        self.rpcs = 0
        self.timeouts: list[float] = []
        self.tokens: list[str] = []
        self.hold: threading.Event | None = None
        self._server = grpc.server(
            ThreadPoolExecutor(64), options=(("grpc.max_send_message_length", -1),)
        )
        handlers = {
            "Resolve": self._handler(resolve_pb2.ResolveRequest, self._resolve),
            "BatchResolve": self._handler(resolve_pb2.BatchResolveRequest, self._batch),
        }
        service = grpc.method_handlers_generic_handler("kdir.v1.ResolveService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the server: nothing answers any more."""
        if self.hold is not None:
            self.hold.set()
        self._server.stop(0)

    def _handler(
        self, request: Any, answer: Callable[[Any], Any]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        def handle(raw: bytes, context: grpc.ServicerContext) -> bytes:
            self.rpcs += 1
            self.timeouts.append(context.time_remaining())
            if self.hold is not None:
                self.hold.wait(30)
            asked = request.FromString(raw)
            self.tokens.append(asked.token)
            try:
                response: bytes = answer(asked).SerializeToString()
            except KdirError as error:
                code, message, trailing = to_status(error)
                context.set_trailing_metadata(trailing)
                context.abort(code, message)
            return response

        return grpc.unary_unary_rpc_method_handler(handle)

    def authority(self) -> resolve_pb2.Authority:
        """Returns the authority of its answers."""
        return resolve_pb2.Authority(
            cluster=entry_pb2.Cluster(
                cluster_id=self.cluster_id,
                cluster=self.cluster_id,
                mount=self.mount,
                epoch=self.epoch,
            ),
            server=f"fake-{self.port}",
            revision=self.revision,
            incarnation=self.incarnation,
            **self.authority_fields,
        )

    def _resolve(self, request: resolve_pb2.ResolveRequest) -> resolve_pb2.ResolveResponse:
        self.calls.append(request.path)
        output = self.says(request.path)
        if isinstance(output, KdirError):
            raise output
        return resolve_pb2.ResolveResponse(authority=self.authority(), outcome=output)

    def _batch(self, request: resolve_pb2.BatchResolveRequest) -> resolve_pb2.BatchResolveResponse:
        response = resolve_pb2.BatchResolveResponse(authorities=[self.authority()])
        for path in request.paths:
            self.calls.append(path)
            output = self.says(path)
            if isinstance(output, KdirError):
                output = resolve_pb2.Outcome(error=to_outcome(output))
            response.outcomes.append(output)
        return response


class Trickle(TcpServer):
    """Server that accepts connections and sends ``byte`` each second, or nothing at all."""

    def __init__(self, byte: bytes = b"") -> None:
        self._byte = byte
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Sends the byte until the end of the block."""
        while self._byte and not self.ended.wait(1):
            connection.sendall(self._byte)


def here(path: str, lifetime: int = 60) -> resolve_pb2.Outcome:
    """Returns the outcome that a topic exists at the path."""
    topic = entry_pb2.Topic(physical_name=path.strip("/").replace("/", "."))
    entry = entry_pb2.Entry(path=path, topic=topic)
    return resolve_pb2.Outcome(
        resolution=resolve_pb2.Resolution(entry=entry, lifetime_seconds=lifetime)
    )


def absent(lifetime: int = 5) -> resolve_pb2.Outcome:
    """Returns the outcome that nothing exists at the path."""
    return resolve_pb2.Outcome(absent=resolve_pb2.Absent(lifetime_seconds=lifetime))


def _referral(kind: int, mount: str, servers: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    fields.setdefault("lifetime_seconds", 60)
    if servers and isinstance(servers[0], FakeServer):
        fields.setdefault("cluster_id", servers[0].cluster_id)
    endpoints = [one if isinstance(one, str) else one.endpoint for one in servers]
    return resolve_pb2.Outcome(
        referral=resolve_pb2.Referral(
            kind=kind,  # type: ignore[arg-type] # enums travel as numbers
            mount=mount,
            endpoints=endpoints,
            **fields,
        )
    )


def down(mount: str, *servers: Any, **fields: Any) -> resolve_pb2.Outcome:
    """Returns a referral to a child that is mounted there."""
    outcome: resolve_pb2.Outcome = _referral(1, mount, servers, fields)
    return outcome


def up(mount: str, *servers: Any, **fields: Any) -> resolve_pb2.Outcome:
    """Returns a referral to the parent."""
    outcome: resolve_pb2.Outcome = _referral(2, mount, servers, fields)
    return outcome


def direct(mount: str, *servers: Any, **fields: Any) -> resolve_pb2.Outcome:
    """Returns a referral from a hint of the mount table."""
    outcome: resolve_pb2.Outcome = _referral(3, mount, servers, fields)
    return outcome


def link(where: str, *paths: str, **fields: Any) -> resolve_pb2.Outcome:
    """Returns a rewrite by the link at ``where`` to these paths."""
    fields.setdefault("lifetime_seconds", 60)
    return resolve_pb2.Outcome(rewrite=resolve_pb2.Rewrite(link=where, paths=paths, **fields))
