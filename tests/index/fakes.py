"""Small directory servers in this process, over real gRPC, that a test can bend and break.

They know what the index asks for and nothing else: who they are, the mounts, the referral upwards,
and the scan. What a real server answers is tested with real servers (`test_real_servers.py`).
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from kdir.v1 import (
    admin_pb2,
    entry_pb2,
    federation_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from resolver.error_status import to_status
from resolver.errors import Absent, NoRoute, NotAuthoritative
from resolver.revision_token import Token


def topic(path: str, *, owner: str = "", **facts: object) -> tuple[entry_pb2.Entry, str]:
    """Returns an entry and its effective owner; the physical name is made of the path
    unless given.
    """
    entry = entry_pb2.Entry(path=path, entry_id=zlib.crc32(path.encode()) + 10, change_count=1)
    facts.setdefault("physical_name", path.strip("/").replace("/", "."))
    facts.setdefault("provision", entry_pb2.PROVISION_ACTIVE)
    entry.topic.MergeFrom(entry_pb2.Topic(**facts))  # type: ignore[arg-type]
    entry.changed_at.FromMilliseconds(1_790_000_000_000)
    return entry, owner


def page(*topics: tuple[entry_pb2.Entry, str]) -> scan_pb2.ScanTopicsResponse:
    """Returns a page of a scan with these topics."""
    return scan_pb2.ScanTopicsResponse(
        entries=[entry for entry, _ in topics], owners=[owner for _, owner in topics]
    )


@dataclass
class FakeCluster:
    """One cluster's directory: change its fields as you like, then ``touch`` it."""

    mount: str
    cluster: str = ""
    cluster_id: str = ""
    site: str = ""
    listeners: Sequence[entry_pb2.Listener] = ()
    topics: list[tuple[entry_pb2.Entry, str]] = field(default_factory=list)
    children: dict[str, "FakeCluster"] = field(default_factory=dict)
    """By mount point: what this cluster mounts."""
    known: dict[str, "FakeCluster"] = field(default_factory=dict)
    """By mount point: what its parent handed down."""
    parent: "FakeCluster | None" = None
    hosts_parent: bool = False
    """Whether its process hosts its parent, too; the parent must not be started then."""
    epoch: int = 1
    revision: int = 1
    unchanged_since: int = 0
    """Revision since which its topics are the same; 0: it does not say."""
    grants_expired: bool = False
    """Whether a scan says that inherited grants would show other topics."""
    incarnation: str = "life-1"
    state: admin_pb2.ReplicaState = admin_pb2.REPLICA_STATE_SERVING
    unmounted: bool = False
    has_all_mounts: bool = True
    """Whether ``ListMounts`` says that it lists all that this cluster mounts."""
    store_away_seconds: float = 0.0
    before_page: Callable[["FakeCluster", scan_pb2.ScanTopicsRequest], None] | None = None
    change_page: Callable[[scan_pb2.ScanTopicsResponse], object] = bool
    """Changes each page of a scan before it is sent."""
    change_log: watch_pb2.GetChangeLogResponse = field(
        default_factory=watch_pb2.GetChangeLogResponse
    )
    """Where its change log is; by default it keeps none."""
    scans: int = 0
    """Pages that were asked for."""
    other_servers: list["FakeCluster"] = field(default_factory=list)
    """Further servers of the same cluster, which parents list after this one."""
    port: int = 0
    _server: grpc.Server | None = None

    def __post_init__(self) -> None:
        self.cluster = self.cluster or self.mount.strip("/").replace("/", "-") or "root"
        self.cluster_id = self.cluster_id or f"kc-{self.cluster}"

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def touch(self) -> None:
        self.revision += 1

    def add(self, *paths: str, **facts: object) -> None:
        self.topics += [topic(path, **facts) for path in paths]  # type: ignore[arg-type]
        self.topics.sort(key=lambda pair: pair[0].path.rpartition("/")[::2])
        self.touch()

    def start(self) -> None:
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers(
            (
                _service("AdminService", GetStatus=(self.GetStatus, admin_pb2)),
                _service("FederationService", ListMounts=(self.ListMounts, federation_pb2)),
                _service("ResolveService", Resolve=(self.Resolve, resolve_pb2)),
                _service("ScanService", ScanTopics=(self.ScanTopics, scan_pb2)),
                _service("WatchService", GetChangeLog=(self.GetChangeLog, watch_pb2)),
            )
        )
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def authority(self) -> resolve_pb2.Authority:
        return resolve_pb2.Authority(
            cluster=entry_pb2.Cluster(
                cluster_id=self.cluster_id,
                cluster=self.cluster,
                mount=self.mount,
                site=self.site,
                listeners=self.listeners,
            ),
            token=str(Token.from_position(self.cluster_id, self.incarnation, self.revision)),
            revision=self.revision,
            incarnation=self.incarnation,
            stale=self.store_away_seconds > 0,
            age_seconds=self.store_away_seconds,
        )

    def GetStatus(
        self, request: admin_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetStatusResponse:
        above = self.parent
        if above is not None and self.hosts_parent and request.cluster == above.cluster_id:
            return above.GetStatus(request, context)
        return admin_pb2.GetStatusResponse(
            authority=self.authority(),
            replica_state=self.state,
            topic_count=len(self.topics),
            topics_unchanged_since=self.unchanged_since,
            parent=admin_pb2.ParentStatus(
                configured=self.parent is not None,
                cluster_id=self.parent.cluster_id if self.parent else "",
                unmounted=self.unmounted,
            ),
        )

    def ListMounts(
        self, request: federation_pb2.ListMountsRequest, context: grpc.ServicerContext
    ) -> federation_pb2.ListMountsResponse:
        rows = [
            federation_pb2.MountRow(
                mount=mount,
                cluster_id=one.cluster_id,
                cluster=one.cluster,
                epoch=one.epoch,
                endpoints=[each.endpoint for each in (one, *one.other_servers) if each.port],
            )
            for mount, one in sorted({**self.known, **self.children}.items())
        ]
        incomplete = [] if self.has_all_mounts else [self.cluster_id]
        return federation_pb2.ListMountsResponse(rows=rows, incomplete_cluster_ids=incomplete)

    def GetChangeLog(
        self, request: watch_pb2.GetChangeLogRequest, context: grpc.ServicerContext
    ) -> watch_pb2.GetChangeLogResponse:
        answer = watch_pb2.GetChangeLogResponse(authority=self.authority())
        answer.MergeFrom(self.change_log)
        return answer

    def log_in(self, bootstrap: str) -> None:
        """Names the topics of its change log, as in a Kafka that several clusters share."""
        self.change_log.configured = True
        self.change_log.history_topic = f"__change_history.{self.cluster_id}"
        self.change_log.state_topic = f"__change_events.{self.cluster_id}"
        self.change_log.bootstrap_servers[:] = [bootstrap]

    def Resolve(
        self, request: resolve_pb2.ResolveRequest, context: grpc.ServicerContext
    ) -> resolve_pb2.ResolveResponse:
        if self.parent is None:
            abort(context, NoRoute("nothing leads there"))
        above = self.parent
        assert above is not None
        if self.hosts_parent:
            return resolve_pb2.ResolveResponse(authority=above.authority())
        referral = resolve_pb2.Referral(
            kind=resolve_pb2.REFERRAL_KIND_UP,
            mount=above.mount,
            cluster_id=above.cluster_id,
            cluster=above.cluster,
            endpoints=[above.endpoint],
        )
        return resolve_pb2.ResolveResponse(outcome=resolve_pb2.Outcome(referral=referral))

    def ScanTopics(
        self, request: scan_pb2.ScanTopicsRequest, context: grpc.ServicerContext
    ) -> scan_pb2.ScanTopicsResponse:
        self.scans += 1
        if self.before_page is not None:
            self.before_page(self, request)
        if not f"{request.path}/".startswith(f"{self.mount.rstrip('/')}/"):
            abort(context, NotAuthoritative(f"{request.path} is not below {self.mount}"))
        below = request.path.rstrip("/") + "/"
        known = (entry.path.startswith(below) for entry, _ in self.topics)
        if request.path != self.mount and not any(known):
            abort(context, Absent(f"{request.path} is no directory of cluster {self.cluster}"))
        mine = [
            (entry, owner)
            for entry, owner in self.topics
            if entry.path.startswith(below) and _shard(entry.path, request) == request.shard
        ]
        start = int(request.page_token or 0)
        end = start + (request.page_size or 5_000)
        response = scan_pb2.ScanTopicsResponse(
            inherited_grants_expired=self.grants_expired,
            authority=self.authority(),
            entries=[entry for entry, _ in mine[start:end]],
            owners=[owner for _, owner in mine[start:end]],
            next_page_token=str(end) if end < len(mine) else "",
        )
        self.change_page(response)
        return response


def _service(name: str, **methods: tuple[Callable[..., Any], Any]) -> grpc.GenericRpcHandler:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method: grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=getattr(module, f"{method}Request").FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )
        for method, (answer, module) in methods.items()
    }
    return grpc.method_handlers_generic_handler(f"kdir.v1.{name}", handlers)


def abort(context: grpc.ServicerContext, error: Exception) -> None:
    code, message, trailing = to_status(error)
    context.set_trailing_metadata(trailing)
    context.abort(code, message)


def _shard(path: str, request: scan_pb2.ScanTopicsRequest) -> int:
    directory = path.rpartition("/")[0]
    return zlib.crc32(directory.encode()) % max(1, request.shard_count)


@contextmanager
def federation(topics: Mapping[str, Sequence[str]]) -> Iterator[dict[str, FakeCluster]]:
    """Runs clusters, by mount point, with topics at these paths; linked as their mounts say."""
    clusters = {mount: FakeCluster(mount) for mount in sorted(topics)}
    with ExitStack() as running:
        for one in clusters.values():
            one.start()
            running.callback(one.stop)
        for mount, one in clusters.items():
            one.add(*topics[mount])
            _link(one, clusters)
        yield clusters


def _link(one: FakeCluster, clusters: Mapping[str, FakeCluster]) -> None:
    """As a real one: a parent hands down all that it knows, but neither itself nor the child."""
    prefixes = [mount for mount in clusters if mount != one.mount and _below(one.mount, mount)]
    if prefixes:
        one.parent = clusters[max(prefixes, key=len)]
        one.parent.children[one.mount] = one
    for mount, other in clusters.items():
        if mount not in {"/", one.mount} and not (one.parent and mount == one.parent.mount):
            one.known[mount] = other


def _below(mount: str, above: str) -> bool:
    return above == "/" or mount.startswith(f"{above}/")
