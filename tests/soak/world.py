"""The servers of a run: clusters of several directory servers each, that faults can be done to."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kdir.v1 import admin_pb2

from deploy.local.etcd import EtcdCluster
from deploy.local.kafka import KafkaBroker
from deploy.local.ports import LOOPBACK, free_port
from deploy.local.process import StartFailed
from resolver.errors import KdirError
from tests.soak.journal import Journal
from tests.soak.lies import Lies
from tests.support.federation import Server, eventually
from tests.support.identities import Authority, Issued

__all__ = [
    "Cluster",
    "ClusterPlan",
    "Lingering",
    "SoakServer",
    "World",
    "WorldPlan",
    "await_serving",
    "is_linked",
]

KDIR = str(Path(sys.executable).with_name("kdir"))
CALL_SECONDS = 8.0
"""No call works longer than this at a server."""
_LIMITS: Mapping[str, Any] = {
    "link_heartbeat_seconds": 1,
    "drain_seconds": 1,
    "max_call_seconds": CALL_SECONDS,
    "negative_ttl_seconds": 2,
}
_PATIENCE_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster as the seed wants it."""

    mount: str
    parent: str = ""
    servers: int = 2
    store: str = "sqlite"
    ceiling: tuple[str, ...] = ()
    """What kdir may change in the Kafka behind it; empty: there is none."""
    enforce: bool = False
    links: Mapping[str, str] = field(default_factory=dict)
    """Site links."""


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """All clusters of a run, parents first."""

    clusters: tuple[ClusterPlan, ...]
    tls: bool = False
    hop: str = ""
    """The mount of a cluster that is the operator's alone."""
    doors: tuple[str, ...] = ("grpc",) * 7 + ("plain",) * 2 + ("recursive", "watch")
    """By which workers come in, each as often as it is named."""


class SoakServer(Server):
    """A directory server that can be moved to another port."""

    renewed_at = 0.0
    """When its process last began or ended."""
    steady_since: float | None = None
    """Since when it has run without a pause; None while it stands still."""

    def kill(self) -> None:
        """Sends SIGKILL."""
        super().kill()
        self.renewed_at = time.monotonic()

    def stop(self) -> None:
        """Sends SIGTERM, and waits."""
        super().stop()
        self.renewed_at = time.monotonic()

    def pause(self) -> None:
        """Sends SIGSTOP."""
        self.steady_since = None
        super().pause()

    def resume(self) -> None:
        """Sends SIGCONT."""
        super().resume()
        self.steady_since = time.monotonic()

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

    def start(self, *, loads: bool = True) -> Self:
        """Starts it; what it wrote before stays in another file."""
        log = self.process.log
        if log.exists():
            with (log.parent / "earlier.log").open("ab") as earlier:
                earlier.write(log.read_bytes())
        super().start(loads=loads)
        self.renewed_at = self.steady_since = time.monotonic()
        return self


class Cluster:
    """The servers of one store."""

    def __init__(self, plan: ClusterPlan, servers: list[SoakServer], store: str) -> None:
        self.plan = plan
        self.mount = plan.mount
        self.servers = servers
        self.store = store
        self.cluster_id = ""
        self.broker: KafkaBroker | None = None
        self.lies = Lies()
        self.incarnations = 1
        """How many incarnations of its store there were."""
        self.on_restore: list[Callable[[float], None]] = []
        """Told of each restore: of when the backup was, by the monotonic clock."""
        self.acknowledged: list[Any] = []
        """Changes that were acknowledged, for those who watch."""
        self._lock = threading.Condition()
        self._faults = 0
        self._calm_since = time.monotonic()
        self.store_calm_since: float | None = 0.0
        """Since when nothing was done to its etcd; None while something is."""
        self._users = 0
        self._closed = False

    @property
    def top(self) -> str:
        """What its paths begin with: empty for the root."""
        return "" if self.mount == "/" else self.mount

    @property
    def name(self) -> str:
        """For files and stores."""
        return self.mount.strip("/").replace("/", "-") or "root"

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Records that a fault touches the cluster for the time of the block."""
        with self._lock:
            self._faults += 1
        try:
            yield
        finally:
            with self._lock:
                self._faults -= 1
                self._calm_since = time.monotonic()

    def calm_seconds(self) -> float:
        """Returns for how long no fault has touched it."""
        with self._lock:
            return 0.0 if self._faults else time.monotonic() - self._calm_since

    @contextmanager
    def using(self) -> Iterator[None]:
        """Prevents a restore of its store for the time of the block."""
        with self._lock:
            self._lock.wait_for(lambda: not self._closed)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._lock.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps every user of the cluster out for the time of the block."""
        with self._lock:
            self._lock.wait_for(lambda: not self._closed)
            self._closed = True
            self._lock.wait_for(lambda: not self._users)
        try:
            yield
        finally:
            with self._lock:
                self._closed = False
                self._lock.notify_all()

    @property
    def addresses(self) -> list[str]:
        """Where its servers are now."""
        return [server.address for server in self.servers]


class Lingering:
    """Possible late effect of a request whose answer was lost: a paused server executes it when it
    resumes, and etcd what it received. It is over once each server of the cluster was ended, or has
    run for longer than any call takes.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._since = time.monotonic()
        self._servers = set(cluster.servers)
        self._store = cluster.store.startswith("etcd:")

    def is_over(self) -> bool:
        """True if no late effect is possible any more; it must be called often."""
        now = time.monotonic()
        for server in list(self._servers):
            steady = server.steady_since
            ran = steady is not None and now - max(steady, self._since) > CALL_SECONDS + 1
            if ran or server.renewed_at > self._since:
                self._servers.discard(server)
        calm = self._cluster.store_calm_since
        if not self._servers and calm is not None and now - max(calm, self._since) > 3:
            self._store = False
        return not self._servers and not self._store


class World:
    """All clusters of a run; a context manager. ``start`` starts and joins them."""

    def __init__(self, folder: Path, journal: Journal, plan: WorldPlan, lie: str = "") -> None:
        self.lies = Lies(lie)
        self.folder = folder
        self.journal = journal
        self.plan = plan
        self.clusters: dict[str, Cluster] = {}
        self.etcd: EtcdCluster | None = None
        self.store_count = 0
        self.user: Issued | None = None
        """The certificate of all clients, with TLS."""
        self._authority: Authority | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Starts every cluster, parents first, and mounts the children."""
        if self.plan.tls:
            self._authority = Authority(self.folder / "ca")
            self.user = self._authority.issue("admin")
        if any(one.store == "etcd" for one in self.plan.clusters):
            self.etcd = self._stack.enter_context(EtcdCluster())
        for plan in self.plan.clusters:
            self._start(plan)

    def new_store(self, name: str, kind: str) -> str:
        """Returns the address of a store that nobody has used."""
        self.store_count += 1
        if kind == "etcd":
            assert self.etcd is not None
            return f"etcd://{','.join(self.etcd.endpoints)}/{name}-{self.store_count}"
        return f"sqlite:///{self.folder / name}-{self.store_count}.sqlite"

    def _settings(self, plan: ClusterPlan, cluster: Cluster) -> dict[str, Any]:
        settings: dict[str, Any] = {"limits": dict(_LIMITS), "store": cluster.store}
        if plan.parent:
            settings["parent"] = self.clusters[plan.parent].addresses
        # Workers ask about the rights of others; they themselves may do everything.
        settings["auth"] = {"super_users": ["User:ANONYMOUS", "User:admin"]}
        if self.user is None:
            settings["auth"]["allow_anonymous"] = True
        if plan.enforce:
            settings["access"] = "enforce"
        if plan.links:
            settings["links"] = dict(plan.links)
        if cluster.broker is not None:
            settings["kafka"] = {
                "bootstrap": [cluster.broker.bootstrap],
                "ceiling": list(plan.ceiling),
                "split_on": ".",
                "sweep_interval_seconds": 2,
            }
        return settings

    def _start(self, plan: ClusterPlan) -> None:
        name = plan.mount.strip("/").replace("/", "-") or "root"
        cluster = Cluster(plan, [], self.new_store(name, plan.store))
        cluster.lies = self.lies
        if plan.ceiling:
            # What is too old goes at once, so that a wrong setting shows within a run.
            properties = {
                "log.retention.check.interval.ms": "1000",
                "log.segment.delete.delay.ms": "0",
            }
            cluster.broker = self._stack.enter_context(KafkaBroker(properties=properties))
        settings = self._settings(plan, cluster)
        issued: list[Issued] = []
        for number in range(plan.servers):
            folder = self.folder / f"{name}-{number}"
            if self._authority is not None:
                issued.append(self._authority.server(cluster.cluster_id))
                settings["tls"] = issued[-1].tls()
            server = SoakServer(folder, plan.mount, dict(settings))
            if self.user is not None:
                server.credentials = self.user.credentials()
            cluster.servers.append(server)
            self._stack.callback(server.process.kill)
            self._stack.callback(server.close)
            server.start_again()
            await_serving(server)
            if not cluster.cluster_id:
                cluster.cluster_id = server.cluster_id
                if self._authority is not None:
                    issued[0].take(self._authority.server(cluster.cluster_id))
        self.clusters[plan.mount] = cluster
        if plan.parent:
            self._join(plan, cluster)
        self.journal.write(
            "cluster",
            plan.mount,
            id=cluster.cluster_id,
            store=cluster.store,
            servers=cluster.addresses,
        )

    def _join(self, plan: ClusterPlan, cluster: Cluster) -> None:
        parent = self.clusters[plan.parent].servers[0]
        above = plan.mount.rsplit("/", 1)[0] or "/"
        if above != plan.parent:
            parent.mkdir(above)
        parent.mount_child(plan.mount, cluster.cluster_id)
        eventually(lambda: is_linked(cluster), _PATIENCE_SECONDS)

    @property
    def used(self) -> list[Cluster]:
        """The clusters in which workers have their plots."""
        return [one for one in self.clusters.values() if one.mount != self.plan.hop]

    def await_healed(self) -> None:
        """Waits until every server follows its store and every child is linked."""
        for cluster in self.clusters.values():
            for server in cluster.servers:
                await_serving(server)
            if cluster.plan.parent:
                eventually(lambda one=cluster: is_linked(one), _PATIENCE_SECONDS)  # type: ignore[misc]

    # -- the command line ------------------------------------------------------------------------

    def kdir(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs the command line as a process, as a user of this world."""
        home = self.folder / "home"
        environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_STATE_HOME": str(home / "state"),
            "NO_COLOR": "1",
        }
        if self.user is not None:
            for part in ("ca", "cert", "key"):
                environment[f"KDIR_{part.upper()}"] = str(self.user.files[part])
        return subprocess.run(
            [KDIR, *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def login(self) -> dict[str, Any]:
        """Returns what a resolver of this world needs besides servers."""
        return {} if self.user is None else {k: str(v) for k, v in self.user.files.items()}


def await_serving(server: Server) -> None:
    """Waits until a server follows its store."""

    def serving() -> bool:
        return server.status().replica_state == admin_pb2.REPLICA_STATE_SERVING

    eventually(serving, _PATIENCE_SECONDS)


def is_linked(cluster: Cluster) -> bool:
    """True if one of its servers holds the link to the parent."""
    for server in cluster.servers:
        with contextlib.suppress(KdirError):
            if server.status().parent.linked:
                return True
    return False
