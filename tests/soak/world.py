"""The servers of a run: clusters of several directory servers each, that faults can be done to."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kdir.v1 import admin_pb2

from deploy.local.ports import LOOPBACK, free_port
from deploy.local.process import StartFailed
from resolver.errors import KdirError
from tests.federation import Server, eventually
from tests.soak.journal import Journal

__all__ = ["Cluster", "ClusterPlan", "SoakServer", "World"]

CALL_SECONDS = 8.0
"""No call works longer than this at a server."""
_LIMITS: Mapping[str, Any] = {
    "heartbeat_seconds": 1,
    "drain_seconds": 1,
    "call_seconds": CALL_SECONDS,
    "absent_seconds": 2,
}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster as the seed wants it."""

    mount: str
    parent: str = ""
    servers: int = 2
    store: str = "sqlite"
    kafka: bool = False
    enforce: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


class SoakServer(Server):
    """A directory server that can be moved to another port."""

    def move(self) -> None:
        """Gives it another port from its next start on."""
        self.port = free_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self.settings["listen"] = self.address
        old, self._channel = self._channel, None
        if old is not None:
            old.close()

    def start_again(self) -> None:
        """Starts it; at another port where its own was taken meanwhile."""
        for _ in range(5):
            try:
                self.start()
            except StartFailed:
                if "in use" not in self.process.tail(30):
                    raise
                self.process.kill()
                self.move()
            else:
                return
        self.start()

    def start(self) -> Self:
        """Starts it; what it wrote before stays in another file."""
        log = self.process.log
        if log.exists():
            with (log.parent / "earlier.log").open("ab") as earlier:
                earlier.write(log.read_bytes())
        return super().start()


class Cluster:
    """The servers of one store."""

    def __init__(self, plan: ClusterPlan, servers: list[SoakServer], store: str) -> None:
        self.plan = plan
        self.mount = plan.mount
        self.servers = servers
        self.store = store
        self.cluster_id = ""
        self._lock = threading.Lock()
        self._faults = 0
        self._calm_since = time.monotonic()

    @property
    def top(self) -> str:
        """What its paths begin with: empty for the root."""
        return "" if self.mount == "/" else self.mount

    def disturb(self) -> None:
        """A fault begins that touches it."""
        with self._lock:
            self._faults += 1

    def calm(self) -> None:
        """The fault has healed."""
        with self._lock:
            self._faults -= 1
            self._calm_since = time.monotonic()

    def calm_seconds(self) -> float:
        """For how long no fault has touched it."""
        with self._lock:
            return 0.0 if self._faults else time.monotonic() - self._calm_since

    @property
    def addresses(self) -> list[str]:
        """Where its servers are now."""
        return [server.address for server in self.servers]


class World:
    """All clusters of a run; a context manager. ``start`` starts and joins them."""

    def __init__(self, folder: Path, journal: Journal, plans: list[ClusterPlan]) -> None:
        self.folder = folder
        self.journal = journal
        self.plans = plans
        self.clusters: dict[str, Cluster] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start(self) -> None:
        """Starts every cluster, parents first, and mounts the children."""
        for plan in self.plans:
            self._start(plan)

    def _start(self, plan: ClusterPlan) -> None:
        name = plan.mount.strip("/").replace("/", "-") or "root"
        store = f"sqlite:///{self.folder / name}.sqlite"
        settings: dict[str, Any] = {"limits": dict(_LIMITS), "store": store, **plan.settings}
        if plan.parent:
            settings["parent"] = self.clusters[plan.parent].addresses
        # Workers ask about the rights of others; they themselves may do everything.
        settings["auth"] = {"super_users": ["User:ANONYMOUS"], "anonymous": True}
        if plan.enforce:
            settings["access"] = "enforce"
        servers = [
            SoakServer(self.folder / f"{name}-{number}", plan.mount, settings)
            for number in range(plan.servers)
        ]
        cluster = Cluster(plan, servers, store)
        for server in servers:
            self._stack.callback(server.process.kill)
            self._stack.callback(server.close)
            server.start_again()
            eventually(lambda at=server: is_serving(at), 60)  # type: ignore[misc]
        cluster.cluster_id = servers[0].cluster_id
        self.clusters[plan.mount] = cluster
        if plan.parent:
            parent = self.clusters[plan.parent]
            above = plan.mount.rsplit("/", 1)[0]
            if above and above != plan.parent:
                parent.servers[0].mkdir(above)
            parent.servers[0].mount_child(plan.mount, cluster.cluster_id)
            eventually(lambda: any(is_linked(one) for one in servers), 60)
        self.journal.write(
            "cluster",
            plan.mount,
            id=cluster.cluster_id,
            store=store,
            servers=cluster.addresses,
        )

    def await_healed(self, timeout_seconds: float = 120) -> None:
        """Waits until every server follows its store and every child is linked."""
        for cluster in self.clusters.values():
            for server in cluster.servers:
                eventually(lambda at=server: is_serving(at), timeout_seconds)  # type: ignore[misc]
            if cluster.plan.parent:
                eventually(
                    lambda at=cluster: any(is_linked(one) for one in at.servers),  # type: ignore[misc]
                    timeout_seconds,
                )

    def pick_server(self, random_source: random.Random, cluster: Cluster) -> SoakServer:
        """Any server of a cluster, also one that is away now."""
        return random_source.choice(cluster.servers)


def is_serving(server: Server) -> bool:
    """True if it follows its store."""
    try:
        return server.status().replica_state == admin_pb2.REPLICA_STATE_SERVING
    except KdirError:
        return False


def is_linked(server: Server) -> bool:
    """True if it holds the link to the parent."""
    return bool(server.status().parent.linked)
