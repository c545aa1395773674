"""ResolveService: Resolve, BatchResolve, Locate."""

from __future__ import annotations

from collections.abc import Mapping

from kdir.v1 import resolve_pb2

from directory.services.answers import Answers, kind_of
from directory.services.call import Call
from directory.services.hosting import Hosting
from directory.services.recursion import Recursion
from directory.services.rpc import Handler, Service
from resolver.errors import Absent, InvalidArgument, LimitExceeded
from resolver.path import Path
from resolver.status import from_outcome

__all__ = ["ResolveService"]


class ResolveService(Service):
    """Answers for the paths of its own mount, and refers the rest."""

    descriptor = resolve_pb2.DESCRIPTOR.services_by_name["ResolveService"]

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._recursion = Recursion(
            hosting.clusters[0].endpoints,
            {
                "/kdir.v1.ResolveService/Resolve": self.resolve,
                "/kdir.v1.ResolveService/BatchResolve": self.batch_resolve,
            },
            max(1, hosting.limits.workers // 2),
        )

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "Resolve": self.resolve,
            "BatchResolve": self.batch_resolve,
            "Locate": self.locate,
        }

    def resolve(
        self, request: resolve_pb2.ResolveRequest, call: Call
    ) -> resolve_pb2.ResolveResponse:
        """One path."""
        path = Path.parse(request.path)
        if request.recursive:
            return self._recursion.resolve(request, call)
        cluster = self._hosting.pick(path)
        cluster.check_mounted()
        snapshot = self._hosting.read(cluster, request.token, call)
        response = resolve_pb2.ResolveResponse(authority=cluster.authority(snapshot))
        Answers(cluster, snapshot).resolve(
            path, response.outcome, kind_of(request.prefer), no_follow=request.no_follow
        )
        if response.outcome.WhichOneof("kind") == "error":
            raise from_outcome(response.outcome.error)
        return response

    def batch_resolve(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse:
        """Many paths; each has its own outcome, and a bad one spoils no other."""
        limit = self._hosting.limits.batch_paths
        if len(request.paths) > limit:
            raise LimitExceeded(
                f"paths: found {len(request.paths)}; at most {limit} in one call would be right",
                limit=limit,
            )
        if request.recursive:
            return self._recursion.batch_resolve(request, call)
        return self._hosting.batch(request, call)

    def locate(self, request: resolve_pb2.LocateRequest, call: Call) -> resolve_pb2.LocateResponse:
        """The way back from a physical topic to its path."""
        if not request.physical_name:
            raise InvalidArgument("physical_name: empty; the topic's name in Kafka would be right")
        cluster = self._hosting.named(request.cluster)
        snapshot = self._hosting.read(cluster, request.token, call)
        response = resolve_pb2.LocateResponse(authority=cluster.authority(snapshot))
        answers = Answers(cluster, snapshot)
        if request.cluster not in {"", cluster.cluster_id, cluster.config.cluster}:
            answers.refer_to_cluster(request.cluster, response.outcome)
            return response
        cluster.check_mounted()
        found = snapshot.locate(request.physical_name)
        if found is None or found.relative is None:
            raise Absent(
                f"cluster {cluster.config.cluster} has no topic with the physical name "
                f"{request.physical_name!r}",
                cluster_id=cluster.cluster_id,
            )
        answers.resolve(cluster.mount.join(found.relative), response.outcome)
        return response
