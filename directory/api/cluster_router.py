"""Cluster router: which of the clusters of this process a call is for, and which snapshot of it the
call reads (which revision that must have is in ``token_waits.py``).

A path belongs to the mounted cluster whose mount is its longest prefix; without one, and for a name
that no cluster here has, the topmost mounted cluster is asked. If that one would refer the caller
to another cluster of this process, the referral would lead back to this very address: the other one
is asked instead, and so on. If that other one is unmounted, or has another mount than the referral,
the path is *unmounted* until it has received its mount; no referral is followed to a mount that is
hidden from the caller (A12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from kdir.v1 import federation_pb2, resolve_pb2

from directory.api.access_control import AccessControl, check_owned
from directory.api.resolve_answers import (
    ResponseCache,
    find_mounts_of_cluster,
    kind_from_number,
)
from directory.api.rpc.call_context import CURRENT, Call
from directory.api.rpc.caller_slots import CallerSlots, TooManyWaiting
from directory.api.token_waits import LONGEST_WAIT_SECONDS, choose_snapshot
from directory.api.visible_tree import OpenTree
from directory.federation.federation_state import FederationView
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.config import Limits
from directory.store.replica import ReplicaState
from resolver.errors import (
    InvalidArgument,
    InvalidPath,
    KdirError,
    NotReady,
    Unmounted,
)
from resolver.path import Path

__all__ = [
    "ClusterRouter",
    "leads_through_link",
    "syntax_error",
]

T = TypeVar("T")


class ClusterRouter:
    """Clusters behind one listening address, usually one.

    ``waiting`` is a context manager for every wait of a call, so that the wait holds up no other
    call.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.waiting = waiting
        self.clusters = tuple(clusters)
        self.limits: Limits = self.clusters[0].config.limits
        self.only = self.clusters[0] if len(self.clusters) == 1 else None
        """The cluster, if there is one only."""
        self.access_control = AccessControl()
        self._kept: dict[Cluster, ResponseCache] = {}
        self.places = CallerSlots(
            self.limits.max_blocked_reads,
            self.limits.principal_blocked_reads,
            "limits.max_blocked_reads, limits.principal_blocked_reads",
        )
        threads = self.limits.write_threads
        # Half of these threads may wait for Kafka: from 3 on, the two kinds of waits leave some.
        self.write_places = CallerSlots(
            max(1, threads * 3 // 8), max(1, threads // 4), "limits.write_threads"
        )

    def cluster_for_path(self, path: Path, call: Call | None = None) -> Cluster:
        """Returns the cluster that a path is for, by the rule of this module.

        ``call``: mounts that are hidden from its caller do not count; None = all count.

        Raises:
            Unmounted: another cluster of this process is to own the path and has another mount.
        """
        if self.only is not None:
            return self.only
        return _meant(self._choose(path, call, self._owners(path)))

    def cluster_holding_entry(self, path: Path, call: Call | None = None) -> Cluster:
        """Returns the cluster whose tree has the entry at a path. For a mount that is the cluster
        above it, even if this process hosts the child, too. If this process hosts no such cluster,
        returns ``cluster_for_path``, which also explains ``call``.
        """
        if self.only is not None:
            return self.only
        holders = [one for one in self._owners(path) if one.mount != path]
        if not holders:
            return self.cluster_for_path(path, call)
        return _meant(self._choose(path, call, holders, is_holder=True))

    def _owners(self, path: Path) -> list[Cluster]:
        return [one for one in self.clusters if one.mount.is_prefix_of(path)]

    def _topmost(self) -> Cluster:
        """Returns the topmost cluster; mounted ones come first, and of those the loaded ones."""
        return min(
            self.clusters,
            key=lambda one: (
                not one.is_mounted,
                one.replica.state is ReplicaState.LOADING,
                len(one.mount),
            ),
        )

    def _choose(
        self, path: Path, call: Call | None, owners: Sequence[Cluster], *, is_holder: bool = False
    ) -> Cluster:
        """Returns the cluster for a path, where the mounts of ``owners`` are prefixes of it.

        Raises:
            Unmounted: see ``cluster_for_path``.
        """
        mounted = [one for one in owners if one.is_mounted]
        if not mounted:
            topmost = self._topmost()
            mounted = [topmost] if topmost.is_mounted or not owners else list(owners)
        chosen = max(mounted, key=lambda one: len(one.mount))
        for _ in self.clusters:  # two that refer to each other are no endless loop
            referral = self._referral_here(chosen, path, call)
            if referral is None or (is_holder and referral[1] == path):
                break
            found, mount = referral
            # One that is loading is not known to be mounted elsewhere: it answers that it loads.
            is_known = found.is_mounted and found.federation.newest_view is not None
            if mount is not None and is_known and found.mount != mount:
                raise self._mounted_elsewhere(chosen, found, mount, call)
            chosen = found
        return chosen

    def _referral_here(
        self, chosen: Cluster, path: Path, call: Call | None
    ) -> tuple[Cluster, Path | None] | None:
        """Returns the cluster of this process to which another one refers a path, with the mount in
        that referral, None = it refers *up*. Returns None if it answers itself, refers to another
        process, or the mount is hidden from the caller.
        """
        view = chosen.federation.newest_view if chosen.is_mounted else None
        if view is None:
            return None
        others = [one for one in self.clusters if one is not chosen]
        if chosen.mount.is_prefix_of(path):
            for one in others:
                mount, _ = view.mounts.get(one.cluster_id, (None, None))
                if mount is not None and mount.is_prefix_of(path):
                    is_shown = call is None or self._may_refer(chosen, mount, call)
                    return (one, mount) if is_shown else None
            return self._reported_here(chosen, view, path, call)
        hint = view.deepest(path)
        if hint is not None and hint.row.endpoints:
            by_id = (one for one in others if one.cluster_id == hint.row.cluster_id)
            return next(((one, hint.mount) for one in by_id), None)
        parent = self._parent_here(chosen)
        return None if parent is None else (parent, None)

    def _reported_here(
        self, chosen: Cluster, view: FederationView, path: Path, call: Call | None
    ) -> tuple[Cluster, Path] | None:
        """Returns the cluster of this process, and its mount, to which a child of another process
        would refer a path, by its report; None if there is none, the mount is hidden from the
        caller, or the report is older than what that cluster has received.
        """
        for depth in range(len(chosen.mount) + 1, len(path) + 1):
            mount = Path(path.segments[:depth])
            row = view.below.get(mount)
            if row is None:
                continue
            for one in self.clusters:
                if one.cluster_id != row.row.cluster_id:
                    continue
                own = one.federation.newest_view
                is_newer = own is None or row.row.epoch > own.position.epoch
                is_shown = call is None or self._may_refer(chosen, mount, call)
                return (one, mount) if is_newer and is_shown else None
        return None

    def _parent_here(self, cluster: Cluster) -> Cluster | None:
        """Returns the cluster of this process to which another one refers *up*; None if it refers
        to another process, or not at all.
        """
        view, mount = cluster.federation.newest_view, cluster.mount
        if view is None or mount.is_root or not cluster.federation.configured_parent:
            return None
        if view.parent is not None:
            parent_id = view.parent.parent_cluster_id
            return next((one for one in self.clusters if one.cluster_id == parent_id), None)
        # It has not linked to this parent yet.
        above = [
            one for one in self._owners(mount) if one.is_mounted and len(one.mount) < len(mount)
        ]
        return max(above, key=lambda one: len(one.mount), default=None)

    def _mounted_elsewhere(
        self, above: Cluster, found: Cluster, mount: Path, call: Call | None
    ) -> Unmounted:
        is_shown = call is None or self._may_refer(above, found.mount, call)
        name = found.config.cluster
        if above.mount.is_prefix_of(mount):
            still = f"; its mount is still {found.mount}" if is_shown else ""
            message = f"cluster {name} has not received yet that it is mounted at {mount}{still}"
        else:
            own = f"at {found.mount}" if is_shown else "elsewhere"
            message = (
                f"cluster {name} is mounted at {mount} in the mount table of cluster "
                f"{above.config.cluster}, and {own} in its own store; one of them is not up to date"
            )
        return Unmounted(message, mount=mount)

    def may_answer(self, cluster: Cluster) -> bool:
        """True if a cluster is mounted, or no other one of this process is."""
        return cluster.is_mounted or not any(one.is_mounted for one in self.clusters)

    def shows_unmounted(self, cluster: Cluster, call: Call) -> bool:
        """True if the mount of a cluster that is unmounted, and the one at which a cluster of this
        process mounts it again, are hidden from the caller by no cluster above it.
        """
        for one in self.clusters:
            if not one.is_mounted:
                continue
            try:
                view = one.federation.view()
            except NotReady:  # it may hide the mount
                return False
            placed = view.mounts.get(cluster.cluster_id)
            mounts = [cluster.mount] if placed is None else [cluster.mount, placed[0]]
            if not all(self._may_refer(one, mount, call) for mount in mounts):
                return False
        return True

    def _may_refer(self, above: Cluster, mount: Path, call: Call) -> bool:
        try:
            return self.tree(above, above.replica.snapshot, call).can_refer_to(mount)
        except NotReady:  # which the cluster above answers for every path
            return False

    def require_owner(
        self,
        path: Path,
        call: Call | None = None,
        *,
        holder: bool = False,
        or_above: bool = False,
    ) -> Cluster:
        """Returns the cluster that owns a path.

        Args:
            call: see ``cluster_for_path``.
            holder: for a mount, the cluster above it; see ``cluster_holding_entry``.
            or_above: a path above the cluster's mount means the whole mount.

        Raises:
            NotAuthoritative: no cluster of this process owns it.
            Unmounted, NotReady: see ``cluster_for_path`` and ``check_mounted``.
        """
        choose = self.cluster_holding_entry if holder else self.cluster_for_path
        cluster = choose(path, call)
        cluster.check_mounted()
        check_owned(cluster, cluster.mount, path, or_above=or_above)
        return cluster

    def cluster_by_name(self, cluster: str, call: Call) -> Cluster:
        """Returns the cluster of this id or name, of several one that is mounted; the first one, if
        none is named. For another name, or if the named one is unmounted and its mount is hidden
        from the caller: the one that refers the caller, by the rule of this module.

        Raises:
            NotReady: the grants that a cluster inherits are not loaded.
        """
        if not cluster or self.only is not None:
            return self.clusters[0]
        named = [one for one in self.clusters if cluster in (one.cluster_id, one.config.cluster)]
        found = min(named, key=lambda one: not one.is_mounted, default=None)
        if found is not None and (found.is_mounted or self.shows_unmounted(found, call)):
            return found
        chosen = self._topmost()
        for _ in self.clusters:
            parent = self._parent_here(chosen)
            if parent is None or parent in named:
                break
            tree = self.tree(chosen, chosen.replica.snapshot, call)
            if find_mounts_of_cluster(chosen, tree, cluster):
                break
            chosen = parent
        return chosen

    def require_cluster_by_name(self, cluster: str) -> Cluster:
        """Returns the cluster of this id or name; empty = the only one.

        Raises:
            InvalidArgument: there is none, or none is named and there are several.
        """
        if not cluster and self.only is not None:
            return self.only
        for one in self.clusters:
            if cluster in (one.cluster_id, one.config.cluster):
                return one
        names = ", ".join(one.config.cluster for one in self.clusters)
        raise InvalidArgument(
            f"cluster: found {cluster!r}; expected one of {names}", field="cluster"
        )

    def loaded(self) -> list[Cluster]:
        """Returns the clusters whose trees are loaded."""
        return [one for one in self.clusters if one.replica.state is not ReplicaState.LOADING]

    def mounting_cluster(self, hello: federation_pb2.Hello) -> Cluster:
        """Returns the cluster that mounts this child, of several one that is mounted itself; if
        none does, the one that would, by the mount in the child's hello.

        Raises:
            NotReady: no loaded cluster mounts it, and another is not loaded.
        """
        loaded = self.loaded()
        for one in sorted(loaded, key=lambda one: not one.is_mounted):
            if hello.cluster_id in one.federation.view().mounts:
                return one
        if len(loaded) < len(self.clusters):
            raise NotReady("not all clusters of this server are loaded; one may mount the child")
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
        """Returns the cluster that owns a path and the tree for the call, as its caller may see it;
        ``past``: see ``AccessControl.tree``.

        The mount may move between the choice of the cluster and that of the snapshot: the mount in
        the snapshot counts. Records inherited at one mount never decide about a path below another.

        Raises:
            as ``require_owner`` and ``read_snapshot``.
        """
        cluster = self.require_owner(path, call, holder=holder, or_above=or_above)
        snapshot = self.read_snapshot(cluster, token, call, streams=streams)
        check_owned(cluster, cluster.mount_at(snapshot), path, or_above=or_above)
        return cluster, self.tree(cluster, snapshot, call, past=past)

    def read_snapshot(
        self,
        cluster: Cluster,
        token: str,
        call: Call,
        *,
        streams: bool = False,
        writes: bool = False,
    ) -> Snapshot:
        """Returns the snapshot that a call reads; see ``choose_snapshot``.

        ``streams``: the call holds none of the threads that answer calls, so any number of them may
        wait. ``writes``: it holds one of those for writes.
        """
        replica = cluster.replica
        if not token and replica.state is ReplicaState.SERVING:
            return replica.snapshot  # most calls have no token
        return choose_snapshot(
            replica,
            cluster.cluster_id,
            cluster.config.limits.max_stale_seconds,
            token,
            call,
            None if streams else self.write_places if writes else self.places,
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
        """Returns the result of ``attempt``, the part of a call that reads the tree and may write,
        run on a tree at least as new as the call's token.

        If ``attempt`` ends without a commit, its result was true in the store, whether or not this
        server's replica was behind; see ``Writer.decide``.

        Raises:
            InvalidToken, TokenExpired, TokenFromFuture, NotReady: see ``choose_snapshot``.
            StoreUnavailable, NotReady, DeadlineExceeded: see ``Writer.decide``.
            whatever ``attempt`` raises.
        """
        if token and cluster.replica.state is not ReplicaState.STALE:
            self.read_snapshot(cluster, token, call, writes=True)
        return cluster.writer.decide(attempt, call.seconds_left(), ask_first=ask_first)

    def tree(
        self, cluster: Cluster, snapshot: Snapshot, call: Call, *, past: bool = False
    ) -> OpenTree:
        """Returns the tree as the caller may see it; see ``AccessControl.tree``.

        Raises:
            NotReady: the inherited grants are not loaded.
        """
        return self.access_control.tree(cluster, snapshot, call, past=past)

    def resolve(self, request: resolve_pb2.ResolveRequest, call: Call) -> bytes:
        """Resolves one path; returns the bytes of the ResolveResponse."""
        cluster = self.only or self.cluster_for_path(Path.parse(request.path), call)
        answer = self._resolve(cluster, request, call)
        if request.confirm_links and leads_through_link(answer):
            return self.confirmed(cluster, call, lambda: self._resolve(cluster, request, call))
        return answer

    def _resolve(self, cluster: Cluster, request: resolve_pb2.ResolveRequest, call: Call) -> bytes:
        text = request.path
        try:
            cluster.check_mounted()
            snapshot = self.read_snapshot(cluster, request.token, call)
        except KdirError as error:
            raise syntax_error(text) or error from None
        tree = self.access_control.tree(cluster, snapshot, call)
        is_shown = tree.shows_any_at(text)
        authority = cluster.encoded_authority(snapshot)
        ready = self.response_cache(cluster, tree)
        number, no_follow = request.prefer, request.no_follow
        prefer = kind_from_number(number) if number else None
        if is_shown:
            return authority + ready.outcome_bytes(text, prefer, no_follow=no_follow)
        return authority + ready.outcome_for(tree, text, prefer, no_follow=no_follow)

    def confirmed(self, cluster: Cluster, call: Call, answer: Callable[[], T]) -> T:
        """Returns ``answer()``, of a tree as new as the store was when this was called.

        Raises:
            NotReady: too many calls wait already.
            StoreUnavailable, NotReady, DeadlineExceeded: see ``Writer.decide``.
        """
        refusal = TooManyWaiting(
            f"too many calls wait for the store already ({self.places.settings})"
        )
        with self.places.hold(call, refusal), self.waiting():
            seconds = call.seconds_left(LONGEST_WAIT_SECONDS)
            return cluster.writer.decide(answer, seconds, ask_first=True)

    def response_cache(self, cluster: Cluster, tree: OpenTree) -> ResponseCache:
        """Returns the response cache of this snapshot; replaces that of another one."""
        ready = self._kept.get(cluster)
        if ready is None or ready.snapshot is not tree.snapshot:
            ready = self._kept[cluster] = ResponseCache(cluster, tree.whole, ready)
        return ready


def _meant(cluster: Cluster) -> Cluster:
    """Notes for the log which of several clusters a call is for."""
    call = CURRENT.call
    if call is not None:
        call.cluster = cluster.config.cluster
    return cluster


def leads_through_link(part: bytes) -> bool:
    """True if an encoded outcome is a rewrite by a link of the tree; a site link is the
    server's configuration.
    """
    outcome = resolve_pb2.ResolveResponse.FromString(part).outcome
    return outcome.HasField("rewrite") and not outcome.rewrite.site_link


def syntax_error(text: str) -> KdirError | None:
    """Returns the syntax error of a path, which is reported first."""
    try:
        Path.parse(text)
    except InvalidPath as error:
        return error
    return None
