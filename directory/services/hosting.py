"""Which of the clusters that a process hosts a call is about; refuses to answer it itself."""

from __future__ import annotations

from collections.abc import Sequence

from kdir.v1 import federation_pb2, resolve_pb2

from directory.cluster import Cluster
from directory.config import Limits
from directory.namespace.snapshot import Snapshot
from directory.services.answers import Answers, kind_of
from directory.services.call import Call
from directory.services.consistency import read_at
from resolver.errors import KdirError
from resolver.path import Path
from resolver.status import to_outcome

__all__ = ["Hosting"]


class Hosting:
    """The clusters behind one listening address; usually one."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self.clusters = tuple(clusters)
        self.limits: Limits = self.clusters[0].config.limits
        self._only = self.clusters[0] if len(self.clusters) == 1 else None

    def pick(self, path: Path) -> Cluster:
        """The cluster whose mount is the longest prefix of the path; else the first: it refers."""
        if self._only is not None:
            return self._only
        owners = [one for one in self.clusters if one.mount.is_prefix_of(path)]
        return max(owners, key=lambda one: len(one.mount), default=self.clusters[0])

    def pick_holder(self, path: Path) -> Cluster:
        """The cluster whose tree holds the entry at a path, as its parent directory does: for a
        mount that is the one above, also where this process hosts the child too.
        """
        holders = [
            one for one in self.clusters if one.mount.is_prefix_of(path) and one.mount != path
        ]
        return max(holders, key=lambda one: len(one.mount), default=self.pick(path))

    def named(self, cluster: str) -> Cluster:
        """The cluster of this id or name; else the first."""
        for one in self.clusters:
            if cluster in (one.cluster_id, one.config.cluster):
                return one
        return self.clusters[0]

    def parent_of(self, hello: federation_pb2.Hello) -> Cluster:
        """The cluster that mounts this child; else the one that would, by the child's own word."""
        for one in self.clusters:
            if hello.cluster_id in one.federation.view().mounts:
                return one
        above = Path.parse(hello.mount).parent
        return self.pick(above)

    def read(self, cluster: Cluster, token: str, call: Call) -> Snapshot:
        """The snapshot that a call reads; see ``consistency``."""
        limits = cluster.config.limits
        return read_at(cluster.replica, cluster.cluster_id, limits.max_stale_seconds, token, call)

    def batch(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse:
        """Many paths, each answered from its cluster's snapshot, which is read once."""
        response = resolve_pb2.BatchResolveResponse()
        prefer = kind_of(request.prefer)
        ready: dict[int, Answers | KdirError] = {}
        indexes: dict[int, int] = {}
        for text in request.paths:
            outcome = response.outcomes.add()
            try:
                path = Path.parse(text)
                cluster = self.pick(path)
                key = id(cluster)
                answers = ready.get(key)
                if answers is None:
                    answers = ready[key] = self._answers(cluster, request.token, call, response)
                    indexes[key] = len(response.authorities) - 1
                if isinstance(answers, KdirError):
                    raise answers
                answers.resolve(path, outcome, prefer, no_follow=request.no_follow)
                if indexes[key] > 0 and outcome.HasField("resolution"):
                    outcome.resolution.authority_index = indexes[key]
            except KdirError as error:
                outcome.error.CopyFrom(to_outcome(error))
        return response

    def _answers(
        self,
        cluster: Cluster,
        token: str,
        call: Call,
        response: resolve_pb2.BatchResolveResponse,
    ) -> Answers | KdirError:
        try:
            cluster.check_mounted()
            snapshot = self.read(cluster, token, call)
        except KdirError as error:
            return error
        response.authorities.append(cluster.authority(snapshot))
        return Answers(cluster, snapshot)
