"""FederationService: the parent's side of the link, and the list of known mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kdir.v1 import federation_pb2

from directory.access.grants import Operation, ResourceType
from directory.api.cluster_router import ClusterRouter
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.rpc.interceptors.malformed_request import MalformedRequest
from directory.api.rpc.polled_streams import PolledExchange, StreamEnded
from directory.api.visible_tree import OpenTree
from directory.federation.child_links import ChildLink
from directory.federation.federation_state import unix_ms
from directory.federation.kafka_claims import check_kafka_claim
from directory.federation.parent_state import TableRow
from directory.namespace.bounds import Bounds, check_count, check_endpoint, check_text
from directory.server.cluster import Cluster
from directory.server.config_security import TlsConfig
from resolver.errors import InvalidArgument, KdirError, NotReady, PermissionDenied, Unreachable
from resolver.path import Path

__all__ = ["FederationService"]


class FederationService(Service):
    """Service that admits children and lists mounts."""

    descriptor = federation_pb2.DESCRIPTOR.services_by_name["FederationService"]
    long = frozenset({"ListMounts"})
    polled = frozenset({"Link"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def method_handlers(self) -> Mapping[str, Handler]:
        return {"Link": self.link, "ListMounts": self.list_mounts}

    def link(self, hello: federation_pb2.LinkRequest, call: Call) -> PolledExchange:
        """Serves the link of a child's elected server while it is open."""
        bounds = self._router.limits.bounds
        first = hello.hello
        if not first.cluster_id:
            raise InvalidArgument("link: the first request must be a hello with a cluster_id")
        _check_hello(first, bounds)
        cluster = self._router.mounting_cluster(first)
        _check_peer(first, call, cluster.config.tls)
        cluster.check_mounted()
        self._router.access_control.require_link_right(cluster, first.cluster_id, call)
        with self._router.waiting():  # a refusal is confirmed by the store (0040)
            link = cluster.children.serve(first)
        return _Linking(link, bounds)

    def list_mounts(
        self, request: federation_pb2.ListMountsRequest, call: Call
    ) -> federation_pb2.ListMountsResponse:
        """Returns the mounts known here that the caller may see; with DESCRIBE on the cluster, also
        the clusters that wait to be mounted. Those of a cluster that is not loaded, whose inherited
        grants are not, or whose store was unreachable for too long, are left out; it is named, as
        one with an unreadable mount is. Of several clusters' rows of a mount, that of the cluster
        deepest above it counts: the others receive theirs later. An unmounted one of several owns
        no mounts: it is left out, and named unless its own mount is hidden from the caller.

        Raises:
            NotReady, Unreachable: that is so of all clusters.
        """
        del request
        call.check()
        response = federation_pb2.ListMountsResponse()
        now = unix_ms()
        found: dict[Path, tuple[int, TableRow]] = {}
        trees = self._trees_for_mounts(call, response)
        for cluster, tree in trees:
            # Resolve names a cluster to everybody, but only at a path: a hidden one of several not.
            if self._router.only is not None or tree.can_refer_to(cluster.mount):
                response.authorities.append(cluster.authority(tree.snapshot))
            if not cluster.federation.view().has_all_mounts():
                response.incomplete_cluster_ids.append(cluster.cluster_id)
            for row in cluster.federation.rows_everywhere():
                mount = row.mount
                if not tree.can_refer_to(mount):
                    continue
                is_above = cluster.mount != mount and cluster.mount.is_prefix_of(mount)
                depth = len(cluster.mount) if is_above else -1
                if mount not in found or found[mount][0] < depth:
                    found[mount] = depth, row
            if tree.can_do_on_cluster(Operation.DESCRIBE, ResourceType.CLUSTER):
                response.pending_children.extend(cluster.children.waiting())
        rows = [row.aged(now) for _, row in found.values()]
        response.rows.extend(sorted(rows, key=lambda row: row.mount))
        return response

    def _trees_for_mounts(
        self, call: Call, response: federation_pb2.ListMountsResponse
    ) -> list[tuple[Cluster, OpenTree]]:
        """Returns the clusters whose mounts are listed, each with the tree that the caller sees;
        names the others in the response.

        Raises:
            NotReady, Unreachable: there are none, and one of them has this error.
        """
        trees: list[tuple[Cluster, OpenTree]] = []
        refused: NotReady | Unreachable | None = None
        for cluster in self._router.clusters:
            if not self._router.may_answer(cluster):
                if self._router.shows_unmounted(cluster, call):
                    # With its last mount, so that callers know which paths may lack clusters.
                    response.authorities.append(cluster.authority(cluster.replica.snapshot))
                    response.incomplete_cluster_ids.append(cluster.cluster_id)
                continue
            try:
                snapshot = self._router.read_snapshot(cluster, "", call)
                trees.append((cluster, self._router.tree(cluster, snapshot, call)))
            except (NotReady, Unreachable) as error:
                refused = refused or error
                response.incomplete_cluster_ids.append(cluster.cluster_id)
        if refused is not None and not trees:
            raise refused
        return trees


class _Linking(PolledExchange):
    """Stream of one child's link."""

    def __init__(self, link: ChildLink, bounds: Bounds) -> None:
        self._link: Final = link
        self._bounds: Final = bounds
        link.on_ready = lambda: self.on_ready()  # noqa: PLW0108 - it is set later
        link.ask = lambda: self.ask()  # noqa: PLW0108 - it is set later

    def poll(self) -> bytes | None:
        response = self._link.poll()
        self.due_at = self._link.due_at
        if self._link.is_over:
            raise StreamEnded
        return response

    def receive(self, request: federation_pb2.LinkRequest | MalformedRequest | None) -> None:
        self._link.receive(self._checked(request))

    def _checked(
        self, request: federation_pb2.LinkRequest | MalformedRequest | None
    ) -> federation_pb2.LinkRequest | KdirError | None:
        if isinstance(request, MalformedRequest):
            return request.error
        try:
            if request is not None and request.HasField("hello"):
                _check_hello(request.hello, self._bounds)
            elif request is not None and request.HasField("heartbeat"):
                endpoints = request.heartbeat.endpoints
                _check_endpoints("heartbeat.endpoints", endpoints, self._bounds)
        except KdirError as error:
            return error
        return request

    @property
    def has_more(self) -> bool:
        return self._link.has_more

    @property
    def may_wait(self) -> bool:
        return False

    def is_given_up(self) -> bool:
        is_over = self._link.has_ended()
        self.due_at = self._link.due_at
        return is_over

    def close(self) -> None:
        self._link.close()


def _check_peer(hello: federation_pb2.Hello, call: Call, tls: TlsConfig | None) -> None:
    """Checks that the certificate of a link names the cluster that its hello names (G7).

    Raises:
        PermissionDenied: they differ; the message has both.
    """
    if tls is None or hello.cluster_id in call.cluster_ids:
        return
    reported = f"link: the hello says cluster {hello.cluster_id} ({hello.cluster}), "
    if tls.client_auth != "require":
        why = (
            "and this server asks for no certificates that could say so; expected [tls] "
            'client_auth = "require" in its config'
        )
    elif call.cluster_ids:
        why = f"the certificate says {', '.join(call.cluster_ids)}"
    else:
        why = f"the certificate says no cluster; expected its URI kdir://cluster/{hello.cluster_id}"
    certified = " ".join(call.cluster_ids)
    raise PermissionDenied(reported + why, child=hello.cluster_id, certificate=certified)


def _check_hello(hello: federation_pb2.Hello, bounds: Bounds) -> None:
    """Checks a child's hello, before any of it is stored or shown to an operator.

    Raises:
        InvalidPath, InvalidArgument, LimitExceeded: names the field.
    """
    Path.parse(hello.mount)
    for field in ("cluster_id", "cluster", "incarnation", "link_group"):
        check_text(f"hello.{field}", getattr(hello, field), _NAME_BYTES, "")
    check_kafka_claim("hello.kafka", hello.kafka)
    _check_endpoints("hello.endpoints", hello.endpoints, bounds)


def _check_endpoints(field: str, endpoints: Sequence[str], bounds: Bounds) -> None:
    """Checks endpoints in a child's hello or heartbeat: clients and other servers are sent there.

    Raises:
        InvalidArgument, LimitExceeded: names the endpoint.
    """
    check_count(field, len(endpoints), bounds.mount_endpoints, "endpoints", "mount_endpoints")
    for endpoint in endpoints:
        check_endpoint(field, endpoint)


_NAME_BYTES = 256
