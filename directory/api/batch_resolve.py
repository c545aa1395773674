"""Answers BatchResolve for paths of this process's clusters, in a response of limited size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kdir.v1 import resolve_pb2

from directory.api.cluster_router import ClusterRouter, leads_through_link, syntax_error
from directory.api.resolve_answers import encode_error, kind_from_number, with_authority_index
from directory.api.rpc.call_context import Call
from directory.server.cluster import Cluster
from resolver.errors import InvalidPath, KdirError, LimitExceeded, Unmounted
from resolver.path import Path

__all__ = ["BatchResolve", "answers_full"]

_LOOK: Final = 256
"""Number of paths that are answered between two checks of the deadline and the size."""


class BatchResolve:
    """BatchResolve without recursion. A response has ``limits.answer_bytes`` at most: the outcome
    of each path that does not fit is LIMIT_EXCEEDED.
    """

    def __init__(self, router: ClusterRouter) -> None:
        self._router: Final = router

    def answer(self, request: resolve_pb2.BatchResolveRequest, call: Call) -> bytes:
        """Resolves many paths, those of one cluster on one snapshot; returns the bytes of the
        BatchResolveResponse.
        """
        paths = list(request.paths)
        if self._router.only is not None:
            left = self._router.limits.answer_bytes
            authority, outcomes = self._confirmed_outcomes(
                self._router.only, paths, request, call, left
            )
            return b"".join([authority, *outcomes])
        outcomes = [b""] * len(paths)
        left = self._router.limits.answer_bytes
        places: dict[Cluster, list[int]] = {}
        for place, text in enumerate(paths):
            if place % _LOOK == 0:
                call.check()
            try:
                owner = self._router.cluster_for_path(Path.parse(text), call)
                places.setdefault(owner, []).append(place)
            except (InvalidPath, Unmounted) as refusal:
                error: KdirError = refusal
                if left < 0:
                    error = answers_full(self._router.limits.answer_bytes)
                outcomes[place] = encode_error(error)
                left -= len(outcomes[place])
        authorities: list[bytes] = []
        for cluster, asked in places.items():
            texts = [paths[place] for place in asked]
            authority, answers = self._confirmed_outcomes(cluster, texts, request, call, left)
            left -= sum(map(len, answers))
            index = len(authorities)
            if authority:
                authorities.append(authority)
            for place, answer in zip(asked, answers, strict=True):
                outcomes[place] = with_authority_index(answer, index) if index else answer
        return b"".join([*authorities, *outcomes])

    def _confirmed_outcomes(
        self,
        cluster: Cluster,
        paths: Sequence[str],
        request: resolve_pb2.BatchResolveRequest,
        call: Call,
        most_bytes: int,
    ) -> tuple[bytes, list[bytes]]:
        """Returns the result of ``_outcomes``; with ``confirm_links``, by the links that are in the
        store now. If the store cannot be asked, each path that leads through a link has that error
        as its outcome.
        """

        def answer() -> tuple[bytes, list[bytes]]:
            return self._outcomes(cluster, paths, request, call, most_bytes)

        authority, outcomes = answer()
        if not request.confirm_links or not any(map(leads_through_link, outcomes)):
            return authority, outcomes
        try:
            return self._router.confirmed(cluster, call, answer)
        except KdirError as error:
            refused = encode_error(error)
            return authority, [refused if leads_through_link(one) else one for one in outcomes]

    def _outcomes(
        self,
        cluster: Cluster,
        paths: Sequence[str],
        request: resolve_pb2.BatchResolveRequest,
        call: Call,
        most_bytes: int,
    ) -> tuple[bytes, list[bytes]]:
        """Returns one cluster's outcomes of a batch; the authority is empty if the cluster cannot
        answer at all.

        Paths left when the outcomes reach ``most_bytes`` get LIMIT_EXCEEDED.
        """
        try:
            cluster.check_mounted()
            snapshot = self._router.read_snapshot(cluster, request.token, call)
            tree = self._router.access_control.tree(cluster, snapshot, call)
        except KdirError as error:
            parts = []
            for place, text in enumerate(paths):
                if place % _LOOK == 0:
                    call.check()
                parts.append(encode_error(syntax_error(text) or error))
            return b"", self._cut(parts, len(parts), most_bytes - sum(map(len, parts)))
        authority = cluster.encoded_authority(snapshot)
        ready = self._router.response_cache(cluster, tree)
        prefer = kind_from_number(request.prefer, "prefer")
        no_follow = request.no_follow
        outcomes: list[bytes] = []
        for start in range(0, len(paths), _LOOK):
            call.check()
            texts = paths[start : start + _LOOK]
            parts = ready.outcomes(tree, texts, prefer, no_follow=no_follow)
            most_bytes -= sum(map(len, parts))
            outcomes += parts
            if most_bytes < 0:
                return authority, self._cut(outcomes, len(paths), most_bytes)
        return authority, outcomes

    def _cut(self, outcomes: list[bytes], count: int, over_bytes: int) -> list[bytes]:
        """Returns as many outcomes as fit; the others are LIMIT_EXCEEDED. The first is kept in any
        case, so that a caller that asks for the rest again gets further.
        """
        kept = len(outcomes)
        while kept > 1 and over_bytes < 0:
            kept -= 1
            over_bytes += len(outcomes[kept])
        if kept == count:
            return outcomes
        return [
            *outcomes[:kept],
            *[encode_error(answers_full(self._router.limits.answer_bytes))] * (count - kept),
        ]


def answers_full(most_bytes: int) -> LimitExceeded:
    """Returns the error of a path for which the response has no room."""
    return LimitExceeded(
        f"the answers before this one fill the {most_bytes} bytes of a response "
        f"(limits.answer_bytes); send the path in another call",
        field="paths",
        limit=most_bytes,
    )
