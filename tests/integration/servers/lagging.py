"""A server in this process whose replica can be made to lag behind its store."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kdir.v1 import directory_pb2, directory_pb2_grpc, entry_pb2, resolve_pb2, resolve_pb2_grpc

from directory.api.grpc_server import DirectoryServer
from directory.namespace.keys import ENTRY
from directory.server.cluster import Cluster
from directory.server.config import Limits, ServerConfig
from directory.store.replica import AppliedCommit
from resolver.error_status import from_rpc_error
from resolver.errors import KdirError
from resolver.path import Path as TreePath
from tests.support.federation import eventually

__all__ = ["One"]


class One:
    """A server in this process, whose replica can be made to lag."""

    def __init__(self, store: str, cleanup: ExitStack, *, load: bool = True, **limits: Any) -> None:
        config = ServerConfig.quick(
            TreePath.parse("/la"),
            cluster="la",
            store=store,
            listen="127.0.0.1:0",
            limits=Limits(drain_seconds=0.1, **limits),
        )
        self.cluster = Cluster.open(config)
        cleanup.callback(self.cluster.stop)
        self._gate = threading.Event()
        self._gate.set()
        self.cluster.replica.subscribe(self._hold)
        self.server = server = DirectoryServer([self.cluster], config.listen)
        cleanup.callback(server.drain)
        cleanup.callback(self._gate.set)
        server.start()
        self.channel = cleanup.enter_context(grpc.insecure_channel(server.address))
        if load:
            self.load()

    def load(self) -> None:
        self.cluster.start()
        eventually(lambda: self.cluster.replica.reported_revision >= 0)

    def _hold(self, applied: AppliedCommit) -> None:
        if any(write.key.startswith(ENTRY) for write in applied.writes):  # servers register too
            self._gate.wait(60)

    def lag(self) -> None:
        """Blocks the changes of the tree after the next one."""
        self._gate.clear()

    def catch_up(self) -> None:
        self._gate.set()

    def mkdir(self, path: str) -> str:
        stub = directory_pb2_grpc.DirectoryServiceStub(self.channel)
        entry = entry_pb2.Entry(directory=entry_pb2.Directory())
        request = directory_pb2.CreateEntryRequest(path=path, entry=entry)
        return str(stub.CreateEntry(request, timeout=20).token)

    def resolve(
        self, path: str, token: str = "", timeout: float = 20
    ) -> resolve_pb2.ResolveResponse:
        stub = resolve_pb2_grpc.ResolveServiceStub(self.channel)
        request = resolve_pb2.ResolveRequest(path=path, token=token)
        try:
            answer: resolve_pb2.ResolveResponse = stub.Resolve(request, timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        return answer

    def outcome(self, path: str, token: str = "", timeout: float = 20) -> str:
        try:
            answer = self.resolve(path, token, timeout)
        except KdirError as error:
            return error.reason
        return str(answer.outcome.WhichOneof("kind"))

    @property
    def health(self) -> str:
        """As gRPC's own health service says it of the server as a whole."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
