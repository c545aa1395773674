"""ResolveService: Resolve, BatchResolve, Locate."""

from __future__ import annotations

from collections.abc import Mapping

from kdir.v1 import resolve_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.recursive_resolve import RecursiveResolver
from directory.api.resolve_answers import ResolveAnswers, refer_to_cluster
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.namespace.entry import Kind
from resolver.errors import Absent, InvalidArgument, LimitExceeded

__all__ = ["ResolveService"]


class ResolveService(Service):
    """Answers for the paths of its own mount, and refers the rest."""

    descriptor = resolve_pb2.DESCRIPTOR.services_by_name["ResolveService"]
    long = frozenset({"BatchResolve"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router
        self._recursion = RecursiveResolver(
            router.clusters[0].endpoints,
            {
                "/kdir.v1.ResolveService/Resolve": self._resolve_in_place,
                "/kdir.v1.ResolveService/BatchResolve": self._batch_resolve_in_place,
            },
            router.limits.read_threads,
            router.clusters[0].dialling,
            router.waiting,
            router.limits.answer_bytes,
            router.clusters[0].config.dial_allow,
        )

    def method_handlers(self) -> Mapping[str, Handler]:
        return {
            "Resolve": self.resolve,
            "BatchResolve": self.batch_resolve,
            "Locate": self.locate,
        }

    def resolve(
        self, request: resolve_pb2.ResolveRequest, call: Call
    ) -> resolve_pb2.ResolveResponse | bytes:
        """Returns one path."""
        if request.recursive and self._recursion.can_forward_identity(call):
            return self._recursion.resolve(request, call)
        return self._router.resolve(request, call)

    def batch_resolve(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse | bytes:
        """Many paths; each has its own outcome, and a bad one spoils no other."""
        limit = self._router.limits.max_batch_paths
        if len(request.paths) > limit:
            raise LimitExceeded(
                f"paths: found {len(request.paths)}; expected at most {limit} in one call "
                f"(limits.max_batch_paths)",
                field="paths",
                limit=limit,
            )
        if request.recursive and self._recursion.can_forward_identity(call):
            return self._recursion.batch_resolve(request, call)
        return self._router.batch(request, call)

    def _resolve_in_place(
        self, request: resolve_pb2.ResolveRequest, call: Call
    ) -> resolve_pb2.ResolveResponse:
        return resolve_pb2.ResolveResponse.FromString(self._router.resolve(request, call))

    def _batch_resolve_in_place(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse:
        return resolve_pb2.BatchResolveResponse.FromString(self._router.batch(request, call))

    def locate(self, request: resolve_pb2.LocateRequest, call: Call) -> resolve_pb2.LocateResponse:
        """Returns the way back from a physical topic to its path."""
        if not request.physical_name:
            raise InvalidArgument("physical_name: empty; expected the topic's name in Kafka")
        cluster = self._router.cluster_by_name(request.cluster)
        snapshot = self._router.read_snapshot(cluster, request.token, call)
        response = resolve_pb2.LocateResponse(authority=cluster.authority(snapshot))
        if request.cluster not in {"", cluster.cluster_id, cluster.config.cluster}:
            refer_to_cluster(cluster, request.cluster, response.outcome)
            return response
        cluster.check_mounted()
        tree = self._router.tree(cluster, snapshot, call)
        path = tree.locate(request.physical_name)
        if path is None:
            raise Absent(
                f"cluster {cluster.config.cluster} has no topic with the physical name "
                f"{request.physical_name!r}",
                cluster_id=cluster.cluster_id,
            )
        ResolveAnswers(cluster, tree).resolve(path, response.outcome, Kind.TOPIC)
        return response
