"""Which of the clusters that a process hosts a call is about, and which snapshot of it the call
reads; has them answer it.

*Not ready*, *stale within the limit* and *too stale* are distinguished in ``choose_snapshot`` and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

from kdir.v1 import federation_pb2, resolve_pb2

from directory.api.access_control import AccessControl, check_owned
from directory.api.resolve_answers import (
    ResponseCache,
    encode_error,
    kind_from_number,
    with_authority_index,
)
from directory.api.rpc.call_context import CURRENT, Call
from directory.api.rpc.caller_slots import CallerSlots, TooManyWaiting
from directory.api.visible_tree import OpenTree
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.config import Limits
from directory.store.replica import Replica, ReplicaState
from resolver.errors import (
    InvalidArgument,
    InvalidPath,
    KdirError,
    LimitExceeded,
    TokenExpired,
    Unreachable,
)
from resolver.path import Path
from resolver.revision_token import Position, Token

__all__ = ["LONGEST_WAIT_SECONDS", "ClusterRouter", "answers_full", "choose_snapshot"]

_LOOK: Final = 256
"""So many paths of a batch are answered between two looks at the deadline and the bytes."""

T = TypeVar("T")


class ClusterRouter:
    """The clusters behind one listening address; usually one. ``waiting`` is put around what a call
    waits for, so that it holds up no others.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.waiting = waiting
        self.clusters = tuple(clusters)
        self.limits: Limits = self.clusters[0].config.limits
        self._only = self.clusters[0] if len(self.clusters) == 1 else None
        self.access_control = AccessControl()
        self._kept: dict[Cluster, ResponseCache] = {}
        self.places = CallerSlots(
            self.limits.max_blocked_reads, self.limits.principal_blocked_reads
        )

    def cluster_for_path(self, path: Path) -> Cluster:
        """Returns the cluster whose mount is the longest prefix of the path; else the topmost: it
        refers; from one further down, *up* could lead back to this very address.
        """
        if self._only is not None:
            return self._only
        owners = [one for one in self.clusters if one.mount.is_prefix_of(path)]
        if owners:
            return _meant(max(owners, key=lambda one: len(one.mount)))
        return _meant(min(self.clusters, key=lambda one: len(one.mount)))

    def cluster_holding_entry(self, path: Path) -> Cluster:
        """Returns the cluster whose tree holds the entry at a path, as its parent directory does:
        for a mount that is the one above, also where this process hosts the child too.
        """
        if self._only is not None:
            return self._only
        holders = [
            one for one in self.clusters if one.mount.is_prefix_of(path) and one.mount != path
        ]
        return max(holders, key=lambda one: len(one.mount), default=self.cluster_for_path(path))

    def require_owner(self, path: Path, *, holder: bool = False, or_above: bool = False) -> Cluster:
        """Returns the cluster that owns a path.

        Args:
            holder: for a mount the cluster above it; see ``cluster_holding_entry``.
            or_above: a path above its mount is meant as all that it has.

        Raises:
            NotAuthoritative: none of this process.
            Unmounted, NotReady: see ``check_mounted``.
        """
        cluster = self.cluster_holding_entry(path) if holder else self.cluster_for_path(path)
        cluster.check_mounted()
        check_owned(cluster, cluster.mount, path, or_above=or_above)
        return cluster

    def cluster_by_name(self, cluster: str) -> Cluster:
        """Returns the cluster of this id or name; else the first."""
        for one in self.clusters:
            if cluster in (one.cluster_id, one.config.cluster):
                return one
        return self.clusters[0]

    def require_cluster_by_name(self, cluster: str) -> Cluster:
        """Returns the one cluster of this id or name; empty = the only one.

        Raises:
            InvalidArgument: there is none of this name, or none is named and there are several.
        """
        if not cluster and self._only is not None:
            return self._only
        for one in self.clusters:
            if cluster in (one.cluster_id, one.config.cluster):
                return one
        names = ", ".join(one.config.cluster for one in self.clusters)
        raise InvalidArgument(
            f"cluster: found {cluster!r}; expected one of {names}", field="cluster"
        )

    def mounting_cluster(self, hello: federation_pb2.Hello) -> Cluster:
        """Returns the cluster that mounts this child; else the one that would, by the child's
        own record.
        """
        for one in self.clusters:
            if hello.cluster_id in one.federation.view().mounts:
                return one
        above = Path.parse(hello.mount).parent
        return self.cluster_for_path(above)

    def read_owned(
        self,
        path: Path,
        token: str,
        call: Call,
        *,
        holder: bool = False,
        or_above: bool = False,
        streams: bool = False,
        past: bool = False,
    ) -> tuple[Cluster, OpenTree]:
        """Returns the cluster that owns a path, and the tree that a call reads there,
        as its caller may see it; ``past``: see ``AccessControl.tree``.

        The mount may move between the choice and the snapshot: the snapshot's own counts. What is
        inherited below one mount never decides about a path below another.

        Raises:
            as ``require_owner`` and ``read_snapshot``.
        """
        cluster = self.require_owner(path, holder=holder, or_above=or_above)
        snapshot = self.read_snapshot(cluster, token, call, streams=streams)
        check_owned(cluster, cluster.mount_at(snapshot), path, or_above=or_above)
        return cluster, self.tree(cluster, snapshot, call, past=past)

    def read_snapshot(
        self, cluster: Cluster, token: str, call: Call, *, streams: bool = False
    ) -> Snapshot:
        """Returns the snapshot that a call reads; see ``choose_snapshot``. ``streams``: it holds no
        thread that answers others, so it may wait however many do.
        """
        return choose_snapshot(
            cluster.replica,
            cluster.cluster_id,
            cluster.config.limits.max_stale_seconds,
            token,
            call,
            None if streams else self.places,
            self.waiting,
        )

    def decide(
        self,
        cluster: Cluster,
        token: str,
        call: Call,
        attempt: Callable[[], T],
        *,
        ask_first: bool = False,
    ) -> T:
        """Returns what a call that may write comes to: ``attempt`` is all of it that looks at the
        tree, on one at least as new as the token. See ``Writer.decide``: what it refuses or leaves
        as it is was so in the store, whatever this server had not seen yet.

        Raises:
            InvalidToken, TokenExpired, TokenFromFuture
            StoreUnavailable, NotReady, DeadlineExceeded
            whatever ``attempt`` raises
        """
        if token and cluster.replica.state is not ReplicaState.STALE:  # else it is refused at once
            # A thread that writes answers no others, so it may wait.
            self.read_snapshot(cluster, token, call, streams=True)
        return cluster.writer.decide(attempt, call.seconds_left(), ask_first=ask_first)

    def tree(
        self, cluster: Cluster, snapshot: Snapshot, call: Call, *, past: bool = False
    ) -> OpenTree:
        """Returns what the caller may see; see ``AccessControl.tree``.

        Raises:
            NotReady
        """
        return self.access_control.tree(cluster, snapshot, call, past=past)

    def resolve(self, request: resolve_pb2.ResolveRequest, call: Call) -> bytes:
        """Returns one path: the bytes of the ResolveResponse."""
        text = request.path
        cluster = self._only or self.cluster_for_path(Path.parse(text))
        try:
            cluster.check_mounted()
            snapshot = self.read_snapshot(cluster, request.token, call)
        except KdirError as error:
            raise _error_of(text) or error from None
        tree = self.access_control.tree(cluster, snapshot, call)
        is_shown = tree.shows_any_at(text)
        authority = cluster.encoded_authority(snapshot)
        ready = self._ready(cluster, tree)
        prefer = kind_from_number(request.prefer)
        no_follow = request.no_follow
        if is_shown:
            return authority + ready.outcome_bytes(text, prefer, no_follow=no_follow)
        return authority + ready.outcome_for(tree, text, prefer, no_follow=no_follow)

    def batch(self, request: resolve_pb2.BatchResolveRequest, call: Call) -> bytes:
        """Answers many paths, each from its cluster's snapshot, which is read once: the bytes of
        the BatchResolveResponse.
        """
        paths = list(request.paths)
        if self._only is not None:
            left = self.limits.answer_bytes
            authority, outcomes = self._outcomes(self._only, paths, request, call, left)
            return b"".join([authority, *outcomes])
        outcomes = [b""] * len(paths)
        left = self.limits.answer_bytes
        places: dict[Cluster, list[int]] = {}
        for place, text in enumerate(paths):
            if place % _LOOK == 0:
                call.check()
            try:
                places.setdefault(self.cluster_for_path(Path.parse(text)), []).append(place)
            except InvalidPath as invalid:
                error: KdirError = invalid
                if left < 0:
                    error = answers_full(self.limits.answer_bytes)
                outcomes[place] = encode_error(error)
                left -= len(outcomes[place])
        authorities: list[bytes] = []
        for cluster, asked in places.items():
            texts = [paths[place] for place in asked]
            authority, answers = self._outcomes(cluster, texts, request, call, left)
            left -= sum(map(len, answers))
            index = len(authorities)
            if authority:
                authorities.append(authority)
            for place, answer in zip(asked, answers, strict=True):
                outcomes[place] = with_authority_index(answer, index) if index else answer
        return b"".join([*authorities, *outcomes])

    def _outcomes(
        self,
        cluster: Cluster,
        paths: Sequence[str],
        request: resolve_pb2.BatchResolveRequest,
        call: Call,
        most_bytes: int,
    ) -> tuple[bytes, list[bytes]]:
        """Returns one cluster's parts of a batch; no authority where the cluster cannot answer at
        all. Once they are ``most_bytes``, the paths that are left get LIMIT_EXCEEDED.
        """
        try:
            cluster.check_mounted()
            snapshot = self.read_snapshot(cluster, request.token, call)
        except KdirError as error:
            parts = []
            for place, text in enumerate(paths):
                if place % _LOOK == 0:
                    call.check()
                parts.append(encode_error(_error_of(text) or error))
            return b"", self._cut(parts, len(parts), most_bytes - sum(map(len, parts)))
        tree = self.access_control.tree(cluster, snapshot, call)
        authority = cluster.encoded_authority(snapshot)
        ready = self._ready(cluster, tree)
        prefer = kind_from_number(request.prefer)
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
        """Returns the outcomes of so many paths, of which those that do not fit are refused. The
        first is never: who asks again for the others gets on.
        """
        kept = len(outcomes)
        while kept > 1 and over_bytes < 0:
            kept -= 1
            over_bytes += len(outcomes[kept])
        if kept == count:
            return outcomes
        return [
            *outcomes[:kept],
            *[encode_error(answers_full(self.limits.answer_bytes))] * (count - kept),
        ]

    def _ready(self, cluster: Cluster, tree: OpenTree) -> ResponseCache:
        """Returns what is remembered of the tree's very snapshot; if that is of another one, it is
        forgotten.
        """
        ready = self._kept.get(cluster)
        if ready is None or ready.snapshot is not tree.snapshot:
            ready = self._kept[cluster] = ResponseCache(cluster, tree.whole, ready)
        return ready


def answers_full(most_bytes: int) -> LimitExceeded:
    """Returns what a path of a batch gets for which there is no room in the answer."""
    return LimitExceeded(
        f"the answers before it have {most_bytes} bytes, as many as one call gets "
        f"(limits.answer_bytes); ask for it in another",
        field="paths",
        limit=most_bytes,
    )


def _meant(cluster: Cluster) -> Cluster:
    """Notes for the log which of several clusters a call is about."""
    call = CURRENT.call
    if call is not None:
        call.cluster = cluster.config.cluster
    return cluster


def _error_of(text: str) -> KdirError | None:
    """Returns what is wrong with the path itself: that is reported first."""
    try:
        Path.parse(text)
    except InvalidPath as error:
        return error
    return None


LONGEST_WAIT_SECONDS: Final = 5.0
"""A token from the future (or a forged one) does not hold a thread for longer."""


def choose_snapshot(
    replica: Replica,
    cluster_id: str,
    max_stale_seconds: float,
    token: str,
    call: Call,
    places: CallerSlots | None = None,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Snapshot:
    """Returns the snapshot to answer from, at least as new as the token's position of this cluster.
    Positions of other clusters are ignored. ``places``: for those that wait at a time, in all and
    of one caller; None: as many as come; ``waiting`` is put around the wait of each of them.

    Raises:
        NotReady: nothing is loaded yet, or too many wait already.
        Unreachable: the store has been away for longer than the limit.
        InvalidToken: not one of ours.
        TokenExpired: of another incarnation of the store.
        TokenFromFuture: that revision did not come in time.
        DeadlineExceeded
    """
    snapshot = replica.snapshot
    if replica.state is ReplicaState.STALE and replica.age_seconds > max_stale_seconds:
        raise Unreachable(
            f"the store has been away for {replica.age_seconds:.0f} s; "
            f"answers are given for {max_stale_seconds:.0f} s at most",
            age_seconds=f"{replica.age_seconds:.1f}",
        )
    if not token:
        return snapshot
    position = Token.parse(token).positions.get(cluster_id)
    if position is None:
        return snapshot
    _refuse_expired(position, snapshot)
    # The tree alone is not enough: the mount table that outside paths are answered from follows it.
    if position.revision <= snapshot.revision and replica.is_known(position.revision):
        return snapshot
    seconds = call.seconds_left(LONGEST_WAIT_SECONDS)
    if places is None:
        with waiting():
            waited = replica.wait_for(position.revision, seconds)
    else:
        refusal = TooManyWaiting(
            f"revision {position.revision} is not known here yet, and too many calls wait for "
            f"theirs already (limits.max_blocked_reads, limits.principal_blocked_reads)",
            revision=position.revision,
        )
        with places.hold(call, refusal), waiting():
            waited = replica.wait_for(position.revision, seconds)
    _refuse_expired(position, waited)  # a restore in the meantime satisfies any revision
    return waited


def _refuse_expired(position: Position, snapshot: Snapshot) -> None:
    if position.incarnation != snapshot.incarnation:
        raise TokenExpired(
            "token: from an earlier incarnation of the store, which was restored, migrated or "
            "created again since; read again without it",
            incarnation=snapshot.incarnation,
        )
