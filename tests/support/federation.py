"""A small federation of real directory servers for tests, called by bare gRPC stubs.

The servers are processes of their own (``deploy.local.directory``) and end with the test.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
from kdir.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
    entry_pb2,
    federation_pb2,
    federation_pb2_grpc,
    resolve_pb2,
    resolve_pb2_grpc,
    scan_pb2_grpc,
    watch_pb2_grpc,
)

from deploy.local.directory import DirectoryProcess
from resolver.error_status import from_rpc_error
from resolver.errors import KdirError
from tests.support.waiting import eventually

__all__ = ["Federation", "Server", "eventually"]

FAST: Mapping[str, Any] = {"limits": {"link_heartbeat_seconds": 0.3, "drain_seconds": 1}}
"""A link that is cut is noticed within a second, so that tests need not wait."""


class Server(DirectoryProcess):
    """A directory server process, with stubs."""

    def __init__(
        self, directory: Path, mount: str, settings: Mapping[str, Any], **options: Any
    ) -> None:
        super().__init__(directory, mount, settings, **options)
        self.credentials: grpc.ChannelCredentials | None = None
        """TLS credentials of the stubs; None: without TLS."""
        self._channel: grpc.Channel | None = None

    def start(self, *, loads: bool = True) -> Self:
        """Starts it and waits until its tree is loaded, a moment after it is bound: at most 20 s,
        since in some tests it cannot load. ``loads=False`` does not wait for that.
        """
        super().start()
        if str(self.settings["listen"]).endswith(":0"):
            self.address = self.listens_at
        if loads:
            with suppress(AssertionError):
                eventually(lambda: not self._is_loading(), 20)
        return self

    def _is_loading(self) -> bool:
        if "tls" in self.settings and self.credentials is None:
            return False  # there are no credentials to ask with
        try:
            return self.status().replica_state == admin_pb2.REPLICA_STATE_LOADING
        except KdirError:
            return False

    @property
    def channel(self) -> grpc.Channel:
        """One channel, made when first needed; it reconnects after a restart."""
        if self._channel is None:
            options = (
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.initial_reconnect_backoff_ms", 100),
                # With TLS a connection takes a moment, and this bounds it.
                ("grpc.min_reconnect_backoff_ms", 100 if self.credentials is None else 2000),
            )
            self._channel = (
                grpc.insecure_channel(self.address, options)
                if self.credentials is None
                else grpc.secure_channel(self.address, self.credentials, options)
            )
        return self._channel

    def ask(self, stub: Any, method: str, request: Any, timeout: float = 10.0) -> Any:
        """Returns the answer to one call; raises a failure as the KdirError of its status."""
        try:
            return getattr(stub(self.channel), method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def resolve(self, path: str, **fields: Any) -> resolve_pb2.ResolveResponse:
        request = resolve_pb2.ResolveRequest(path=path, **fields)
        answer: resolve_pb2.ResolveResponse = self.ask(
            resolve_pb2_grpc.ResolveServiceStub, "Resolve", request
        )
        return answer

    def outcome(self, path: str, **fields: Any) -> str:
        """Returns the kind of a Resolve's outcome, or the reason of its error."""
        try:
            return str(self.resolve(path, **fields).outcome.WhichOneof("kind"))
        except KdirError as error:
            return error.reason

    def entries(self, method: str, **fields: Any) -> Any:
        """Calls a method of DirectoryService, such as ``entries("GetEntry", path="/la")``."""
        request = getattr(directory_pb2, f"{method}Request")(**fields)
        return self.ask(directory_pb2_grpc.DirectoryServiceStub, method, request)

    def mkdir(self, path: str, **fields: Any) -> Any:
        entry = entry_pb2.Entry(directory=entry_pb2.Directory())
        return self.entries("CreateEntry", path=path, entry=entry, make_parents=True, **fields)

    def link(self, path: str, *targets: str, **fields: Any) -> Any:
        entry = entry_pb2.Entry(link=entry_pb2.Link(targets=targets, **fields))
        return self.entries("CreateEntry", path=path, entry=entry)

    def mount_child(self, path: str, child: str, **fields: Any) -> Any:
        entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=child))
        return self.entries("CreateEntry", path=path, entry=entry, **fields)

    def names(self, path: str, **fields: Any) -> list[str]:
        listed = self.entries("ListEntries", path=path, **fields)
        return [entry.path.rsplit("/", 1)[1] for entry in listed.entries]

    def status(self) -> admin_pb2.GetStatusResponse:
        answer: admin_pb2.GetStatusResponse = self.ask(
            admin_pb2_grpc.AdminServiceStub, "GetStatus", admin_pb2.GetStatusRequest()
        )
        return answer

    def mounts(self) -> federation_pb2.ListMountsResponse:
        answer: federation_pb2.ListMountsResponse = self.ask(
            federation_pb2_grpc.FederationServiceStub,
            "ListMounts",
            federation_pb2.ListMountsRequest(),
        )
        return answer

    def mounted(self) -> list[str]:
        return [row.mount for row in self.mounts().rows]

    def watch_stub(self) -> watch_pb2_grpc.WatchServiceStub:
        return watch_pb2_grpc.WatchServiceStub(self.channel)

    def scan_stub(self) -> scan_pb2_grpc.ScanServiceStub:
        return scan_pb2_grpc.ScanServiceStub(self.channel)

    def close(self) -> None:
        """Closes the channel; the next call makes another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Federation:
    """Servers by mount; each child is started with its parent's address, and mounted there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self.servers: dict[str, Server] = {}
        self._parents: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, mount: str) -> Server:
        return self.servers[mount]

    def start(self, mount: str, parent: str | None = None, **settings: Any) -> Server:
        """Starts a server that no parent has mounted yet."""
        name = mount.strip("/").replace("/", "-") or "root"
        folder = self._directory / f"{name}-{len(self.servers)}"
        merged = {**FAST, **settings}
        merged["limits"] = {**FAST["limits"], **settings.get("limits", {})}
        if parent is not None:
            merged["parent"] = [self.servers[parent].address]
        server = self.make(folder, mount, merged)
        self.end_with(server)
        self.servers[mount] = server
        server.start()
        eventually(lambda: server.status().replica_state == admin_pb2.REPLICA_STATE_SERVING)
        return server

    def end_with(self, server: Server) -> None:
        """Ends a server with the federation."""
        self._stack.callback(server.process.kill)
        self._stack.callback(server.close)

    def make(self, folder: Path, mount: str, settings: Mapping[str, Any]) -> Server:
        """Returns a server that has not started."""
        return Server(folder, mount, settings)

    def join(self, mount: str, parent: str, **settings: Any) -> Server:
        """Starts a server and mounts it at its parent; returns once it is linked and every server
        above lists the mount, which the links report one after the other.
        """
        server = self.start(mount, parent, **settings)
        self.servers[parent].mount_child(mount, server.cluster_id)
        self._parents[mount] = parent
        eventually(lambda: server.status().parent.linked)
        above: str | None = parent
        while above is not None:
            eventually(partial(lambda at: mount in self.servers[at].mounted(), above))
            above = self._parents.get(above)
        return server
