"""FederationService: the parent's side of the link, and the mounts that this server knows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from kdir.v1 import federation_pb2

from directory.access.grants import Operation, ResourceType
from directory.api.cluster_router import ClusterRouter
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.rpc.interceptors.malformed_request import MalformedRequest
from directory.federation.federation_state import unix_ms
from directory.federation.table_bounds import check_kafka_claim
from directory.namespace.bounds import Bounds, check_count, check_endpoint, check_text
from directory.server.config_security import TlsConfig
from resolver.errors import InvalidArgument, PermissionDenied
from resolver.path import Path

__all__ = ["FederationService"]


class FederationService(Service):
    """Admits children and shows the mount table."""

    descriptor = federation_pb2.DESCRIPTOR.services_by_name["FederationService"]
    long = frozenset({"ListMounts"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def method_handlers(self) -> Mapping[str, Handler]:
        return {"Link": self.link, "ListMounts": self.list_mounts}

    def link(
        self, requests: Iterator[federation_pb2.LinkRequest | MalformedRequest], call: Call
    ) -> Iterator[federation_pb2.LinkResponse]:
        """Serves the link of one elected server of each child, as long as it is open."""
        bounds = self._router.limits.bounds
        hello = _read_hello(requests, call, bounds)
        cluster = self._router.mounting_cluster(hello)
        _check_peer(hello, call, cluster.config.tls)
        cluster.check_mounted()
        self._router.access_control.require_link_right(cluster, hello.cluster_id, call)
        return cluster.children.serve(hello, _readable(requests, bounds))

    def list_mounts(
        self, request: federation_pb2.ListMountsRequest, call: Call
    ) -> federation_pb2.ListMountsResponse:
        """Returns every mount known here, and the clusters that wait to be mounted."""
        del request
        call.check()
        response = federation_pb2.ListMountsResponse()
        now = unix_ms()
        seen: set[str] = set()
        for cluster in self._router.clusters:
            tree = self._router.tree(cluster, cluster.replica.snapshot, call)
            for row in cluster.federation.rows_everywhere():
                if not tree.can_refer_to(row.mount):
                    continue
                if row.row.mount not in seen:
                    seen.add(row.row.mount)
                    response.rows.append(row.aged(now))
            if tree.can_do_on_cluster(Operation.DESCRIBE, ResourceType.CLUSTER):
                response.pending_children.extend(cluster.children.waiting())
        response.rows.sort(key=lambda row: row.mount)
        return response


def _check_peer(hello: federation_pb2.Hello, call: Call, tls: TlsConfig | None) -> None:
    """With TLS a cluster is what its certificate says, and nothing that it says itself (G7).

    Raises:
        PermissionDenied: both are in the message.
    """
    if tls is None or hello.cluster_id in call.cluster_ids:
        return
    reported = f"link: the hello says cluster {hello.cluster_id} ({hello.cluster}), "
    if tls.client_auth != "require":
        why = "and this server asks for no certificates that could say so: [tls] client = require"
    elif call.cluster_ids:
        why = f"the certificate says {', '.join(call.cluster_ids)}"
    else:
        why = f"the certificate says no cluster; expected its URI kdir://cluster/{hello.cluster_id}"
    certified = " ".join(call.cluster_ids)
    raise PermissionDenied(reported + why, child=hello.cluster_id, certificate=certified)


def _read_hello(
    requests: Iterator[federation_pb2.LinkRequest | MalformedRequest], call: Call, bounds: Bounds
) -> federation_pb2.Hello:
    # A caller that connects and says nothing must not hold a thread.
    impatience = threading.Timer(_HELLO_SECONDS, call.cancel)
    impatience.daemon = True
    impatience.start()
    try:
        first = next(requests, None)
    finally:
        impatience.cancel()
    if not isinstance(first, federation_pb2.LinkRequest) or not first.hello.cluster_id:
        raise InvalidArgument("link: the first request must be a hello with a cluster_id")
    _check_hello(first.hello, bounds)
    return first.hello


def _readable(
    requests: Iterator[federation_pb2.LinkRequest | MalformedRequest], bounds: Bounds
) -> Iterator[federation_pb2.LinkRequest]:
    for request in requests:
        if isinstance(request, MalformedRequest):
            raise request.error
        if request.HasField("hello"):
            _check_hello(request.hello, bounds)
        elif request.HasField("heartbeat"):
            _check_endpoints("heartbeat.endpoints", request.heartbeat.endpoints, bounds)
        yield request


def _check_hello(hello: federation_pb2.Hello, bounds: Bounds) -> None:
    """Checks what a cluster says of itself, before any of it is kept or shown to an operator.

    Raises:
        InvalidPath, InvalidArgument, LimitExceeded
    """
    Path.parse(hello.mount)
    for field in ("cluster_id", "cluster", "incarnation", "link_group"):
        check_text(f"hello.{field}", getattr(hello, field), _NAME_BYTES, "")
    check_kafka_claim("hello.kafka", hello.kafka)
    _check_endpoints("hello.endpoints", hello.endpoints, bounds)


def _check_endpoints(field: str, endpoints: Sequence[str], bounds: Bounds) -> None:
    """Checks where a cluster says that its servers are: clients and others are sent there.

    Raises:
        InvalidArgument, LimitExceeded
    """
    check_count(field, len(endpoints), bounds.mount_endpoints, "endpoints", "mount_endpoints")
    for endpoint in endpoints:
        check_endpoint(field, endpoint)


_NAME_BYTES = 256


_HELLO_SECONDS = 5.0
