"""Finds every cluster of the federation from a few servers, without reading topics.

Each server returns the mounts that it knows. Each of these clusters is then asked for its identity,
mount and revision, at its known endpoints. The discovery goes down by the mounts and up by the
referral for ``/``, so it can start at any server. A cluster that does not answer is a result, not
an error.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Any, Final

import grpc
from kdir.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    entry_pb2,
    federation_pb2,
    federation_pb2_grpc,
    resolve_pb2,
    resolve_pb2_grpc,
)

from resolver.credentials import UserCredentials
from resolver.endpoints import AllowList
from resolver.error_status import from_rpc_error
from resolver.errors import (
    BadReferral,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    InvalidPath,
    KdirError,
    Lame,
    NoRoute,
    NotReady,
    Unmounted,
    Unreachable,
)
from resolver.host_port import MAX_ENDPOINTS, parse_servers
from resolver.index.row_schema import MOST_LONG, ClusterState, Listener
from resolver.path import ROOT, Path
from resolver.transport import GrpcTransport, Metadata
from resolver.user_config import environment_allow, environment_login

__all__ = [
    "FederationClusters",
    "ReachableCluster",
    "UnreachableCluster",
    "channel_to",
    "cluster_state_from_authority",
    "discover_clusters",
]

ASK_SECONDS: Final = 2.0
"""How long one endpoint may take for one answer about itself."""
_MOST_ASKED_AT_ONCE: Final = 32
_MOST_CLUSTERS: Final = 10_000
"""Clusters of a federation: the default of ``limits.table_mounts``."""
_MOST_BELOW: Final = 2_000
"""Clusters that one child, and those that it leads to, may add: the default of
``limits.child_mounts``.
"""
_MOST_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""A page of 10,000 topics with long observed configs; gRPC's own limit is 4 MiB."""
_MOST_AGE_SECONDS: Final = 10.0**9
"""Longest age of a state: a server may send any number, also infinity."""


@dataclass(frozen=True, slots=True)
class ReachableCluster:
    """Cluster that answered, with its state and the mounts that it knows."""

    state: ClusterState
    endpoints: tuple[str, ...]
    """``host:port`` of its servers; the one that answered comes first."""
    topic_count: int
    mounts: Mapping[str, str]
    """Cluster ids by mount point, as its server knows them; authoritative where it is the owner."""
    asked_at: datetime
    named: tuple[str, ...] = ()
    """Endpoints that the caller named itself; a part of ``endpoints``."""
    has_all_mounts: bool = True
    """False: a child that ``mounts`` does not have may still be mounted (S21)."""

    @property
    def mount(self) -> Path:
        """The path at which the cluster is mounted."""
        return Path.parse(self.state.mount)


@dataclass(frozen=True, slots=True)
class UnreachableCluster:
    """Cluster that is known to be mounted but cannot be read, with the reason."""

    cluster_id: str
    """Empty for a parent that has never answered its child."""
    cluster: str
    mount: Path
    reason: str


@dataclass(frozen=True, slots=True)
class FederationClusters:
    """The clusters of a federation, by cluster id, at about one moment."""

    started_at: datetime
    answered: Mapping[str, ReachableCluster] = field(default_factory=dict)
    silent: Mapping[str, UnreachableCluster] = field(default_factory=dict)
    """A parent whose id is not known has its mount as key."""

    def owner_of(
        self, mount: Path, also: Iterable[Path] = (), cluster_id: str = ""
    ) -> ReachableCluster | None:
        """Returns the cluster whose answer decides what is mounted at ``mount``: the known cluster
        that is mounted deepest above. None if it did not answer, or is stale; or if its list may
        lack mounts, and has neither ``mount`` nor ``cluster_id``.

        ``also`` has the mount points of further known clusters that did not answer.
        """
        quiet = [one.mount for one in self.silent.values()] + list(also)
        above = max((len(path) for path in quiet if _above(path, mount)), default=-1)
        owners = [one for one in self.answered.values() if _above(one.mount, mount)]
        owner = max(owners, key=lambda one: len(one.mount), default=None)
        if owner is None or len(owner.mount) <= above or owner.state.stale:
            return None
        is_listed = str(mount) in owner.mounts or cluster_id in owner.mounts.values()
        return owner if owner.has_all_mounts or is_listed else None

    def mounts_at(self, below: Path) -> set[Path]:
        """Returns the mounts of the cluster that owns a path and of those at or below it.

        Raises:
            NoRoute: no cluster that was found has this path.
        """
        mounts = {one.mount for one in self.answered.values()}
        mounts |= {one.mount for one in self.silent.values()}
        owner = max((one for one in mounts if one.is_prefix_of(below)), key=len, default=None)
        concerned = {one for one in mounts if below.is_prefix_of(one) or one == owner}
        if not concerned:
            raise NoRoute(f"{below}: no cluster that the servers lead to has this path")
        return concerned


def discover_clusters(
    servers: Sequence[str],
    *,
    ask_seconds: float = ASK_SECONDS,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> FederationClusters:
    """Returns the state of all clusters that can be found from ``servers`` (``host:port``).

    Raises:
        InvalidArgument: ``servers`` is empty, or has a malformed address.
        Unreachable: no server answered; names each with its reason.
    """
    if not servers:
        raise InvalidArgument("servers: found none; expected host:port,… of any directory")
    allow = AllowList.of(environment_allow(os.environ), parse_servers(servers))
    found_clusters = _ClusterCrawl(ask_seconds, clock, tuple(servers), allow)
    found_clusters.crawl(servers)
    return found_clusters.result()


@contextmanager
def channel_to(
    endpoint: str, cluster_id: str = "", named: Sequence[str] = ()
) -> Iterator[grpc.Channel]:
    """Opens a channel while the block runs, in the process that uses it. Environment variables
    (``KDIR_CA``, ``KDIR_CERT``, …) name the credentials; Spark's executors need them, too.

    ``cluster_id``: the cluster of the server, by the answers of others; ``named``: the servers that
    the caller named itself.

    Raises:
        KdirError: a token may not be sent to this server (``resolver.transport.GrpcTransport``).
    """
    login = environment_login(os.environ)
    transport = GrpcTransport(UserCredentials(login) if any(login) else None, named=named)
    options = (("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES),)
    made, metadata = transport.open_channel(endpoint, cluster_id, options)
    with made as channel:
        yield (
            grpc.intercept_channel(channel, _BearerTokenInterceptor(metadata))
            if metadata
            else channel
        )


class _BearerTokenInterceptor(grpc.UnaryUnaryClientInterceptor):
    """Interceptor that adds a bearer token to each call; a crawl has no streaming calls."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), *self._metadata]
        return continuation(details._replace(metadata=metadata), request)


def cluster_state_from_authority(authority: resolve_pb2.Authority, now: datetime) -> ClusterState:
    """Returns the state of the cluster that gave an answer, at ``now``.

    A server that cannot reach its store answers from its replica: the state is stale since the
    replica last followed the store.

    Raises:
        Internal: the answer has no cluster id, or a revision that the index cannot hold.
    """
    cluster = authority.cluster
    if not cluster.cluster_id:
        raise Internal(f"{cluster.cluster or 'the server'} answers without a cluster id")
    if authority.revision > MOST_LONG:
        raise Internal(
            f"{cluster.cluster}: revision {authority.revision} of its store is out of range; "
            f"expected at most {MOST_LONG}"
        )
    as_of = now - timedelta(seconds=max(0.0, min(authority.age_seconds, _MOST_AGE_SECONDS)))
    return ClusterState(
        cluster_id=cluster.cluster_id,
        cluster=cluster.cluster,
        mount=cluster.mount,
        site=cluster.site,
        listeners=tuple(_listener(listener) for listener in cluster.listeners),
        as_of=as_of,
        revision=authority.revision,
        incarnation=authority.incarnation,
        stale=authority.stale,
        stale_since=as_of if authority.stale else None,
        stale_reason="its server cannot reach its store" if authority.stale else "",
    )


@dataclass(frozen=True, slots=True)
class _CrawlTarget:
    """Endpoints of a cluster to ask. Without a cluster id, any cluster's answer is right."""

    endpoints: tuple[str, ...]
    cluster_id: str = ""
    cluster: str = ""
    mount: str = ""
    epoch: int = 0
    age_seconds: float = 0.0


_NO_TARGET: Final = _CrawlTarget(())


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer of one server for one cluster, with the clusters that it leads to."""

    found: ReachableCluster
    listed: list[_CrawlTarget]
    """The rows of its mount table, which has clusters that are not below it, too."""
    above: list[_CrawlTarget]
    """Its referral for ``/``."""

    @property
    def endpoint(self) -> str:
        """The server that answered."""
        return self.found.endpoints[0]


@dataclass(slots=True)
class _ClusterCrawl:
    """State of a running discovery.

    A server may report any clusters, ids and epochs. So a cluster's place and endpoints are those
    that the cluster mounted above it lists, from the caller's servers and their parents downwards
    (R5). What others report counts for clusters that none of these lists: a child has the whole
    mount table from its parent, and leads to its siblings where the parent does not answer.
    """

    ask_seconds: float
    clock: Callable[[], datetime]
    named: tuple[str, ...]
    """The servers to begin with."""
    allow: AllowList
    """Decides which endpoints besides ``named`` may be asked."""
    started_at: datetime = field(init=False)
    answered: dict[str, ReachableCluster] = field(default_factory=dict)
    """By cluster id: the answer that counts; chosen when all are there."""
    answers: dict[str, list[_Answer]] = field(default_factory=dict)
    trusted: set[tuple[str, str]] = field(default_factory=set)
    """Endpoints that the caller named, without a cluster id, and those of the clusters above them,
    as each returned its parent."""
    targets: dict[str, _CrawlTarget] = field(default_factory=dict)
    failed: dict[str, KdirError] = field(default_factory=dict)
    added: Counter[str] = field(default_factory=Counter)
    """Clusters that a child, by its id, led to: itself, or by those that it led to."""
    full: set[str] = field(default_factory=set)
    """Children that lead to more clusters than they may."""
    nameless: dict[str, UnreachableCluster] = field(default_factory=dict)
    """By mount: parents without a known id that did not answer."""
    asked: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.started_at = self.clock()
        self.trusted |= {("", server) for server in self.named}

    def crawl(self, servers: Sequence[str]) -> None:
        """Asks the servers, then all clusters that an answer names, until none is new."""
        seeds = [_CrawlTarget((server,)) for server in dict.fromkeys(servers)]
        refused: list[str] = []
        with ThreadPoolExecutor(_MOST_ASKED_AT_ONCE, "kdir-discovery") as pool:
            pending: dict[Future[_Answer], tuple[_CrawlTarget, str]] = {}

            def submit(targets: Iterable[_CrawlTarget], child: str = "") -> None:
                for target in targets:
                    if self._has_room(target, child) and self._is_new(target):
                        self.added[child] += bool(child)
                        asked = pool.submit(self._send_request, target)
                        pending[asked] = target, child or target.cluster_id

            submit(seeds)
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    target, child = pending.pop(future)
                    try:
                        answer = future.result()
                    except KdirError as error:
                        asked = f"{','.join(target.endpoints)}: "
                        refused.append(asked + error.message.removeprefix(asked))
                        self.failed[target.cluster_id] = error
                        self._keep_nameless(target, error)
                        continue
                    is_trusted = self._is_trusted(answer)
                    submit([*answer.above, *answer.listed], "" if is_trusted else child)
                    self._keep_answer(answer)
        if not self.answers:
            raise Unreachable(f"no directory answered: {'; '.join(refused)}")
        self._choose_answers()

    def _keep_answer(self, answer: _Answer) -> None:
        """Records an answer, of its mount table only what is below its own mount."""
        mount = answer.found.mount
        below = [
            row
            for row in answer.listed
            if row.cluster_id in self.targets
            and (place := _path(row.mount)) is not None
            and _above(mount, place)
        ]
        answer = replace(answer, listed=below)
        self.answers.setdefault(answer.found.state.cluster_id, []).append(answer)
        if self._is_trusted(answer):
            self._trust(answer.above)

    def _trust(self, targets: Iterable[_CrawlTarget]) -> None:
        """Trusts clusters at these endpoints, and the clusters that they return as parents."""
        for target in targets:
            for endpoint in target.endpoints:
                if (target.cluster_id, endpoint) not in self.trusted:
                    self.trusted.add((target.cluster_id, endpoint))
                    for answer in self.answers.get(target.cluster_id, ()):
                        if answer.endpoint == endpoint:
                            self._trust(answer.above)

    def _is_trusted(self, answer: _Answer) -> bool:
        found = answer.found.state.cluster_id
        return not self.trusted.isdisjoint({("", answer.endpoint), (found, answer.endpoint)})

    def _choose_answers(self) -> None:
        """Chooses the answer and the place that count of each cluster, from the highest mount
        downwards.
        """
        places: dict[str, tuple[_CrawlTarget, ReachableCluster]] = {}
        waiting = [
            (len(one.found.mount), cluster_id)
            for cluster_id, answers in self.answers.items()
            for one in answers
            if self._is_trusted(one)
        ]
        heapify(waiting)
        while waiting:
            _, cluster_id = heappop(waiting)
            if cluster_id in self.answered:
                continue
            row, lister = places.get(cluster_id, (_NO_TARGET, None))
            valid = [
                one
                for one in self.answers.get(cluster_id, ())
                if self._is_trusted(one)
                or (
                    one.endpoint in row.endpoints
                    and lister is not None
                    and _above(lister.mount, one.found.mount)
                )
            ]
            if not valid:
                continue
            answer = _freshest(valid)
            self.answered[cluster_id] = found = self._without_others(answer.found, row)
            for listed in answer.listed:
                place, known = Path.parse(listed.mount), places.get(listed.cluster_id)
                if known is None or (
                    _above(found.mount, Path.parse(known[0].mount)) and not found.state.stale
                ):
                    places[listed.cluster_id] = listed, found
                    heappush(waiting, (len(place), listed.cluster_id))
        for cluster_id, (row, lister) in places.items():
            self.targets[cluster_id] = row
            if cluster_id not in self.answered:
                for one in self.answers.get(cluster_id, ())[:1]:
                    self.failed.setdefault(cluster_id, _not_listed(one, row, lister))
        self._add_unlisted(places)

    def _without_others(self, found: ReachableCluster, row: _CrawlTarget) -> ReachableCluster:
        """Returns the answer without endpoints that only others report."""
        kept = tuple(
            one
            for one in found.endpoints
            if one == found.endpoints[0]
            or one in (*self.named, *row.endpoints)
            or (found.state.cluster_id, one) in self.trusted
        )
        return replace(found, endpoints=kept)

    def _add_unlisted(self, places: Container[str]) -> None:
        """Adds the clusters that no cluster above them lists, unless they take the place of one
        that was chosen.
        """
        taken = {one.mount for one in self.answered.values()}
        for cluster_id, answers in self.answers.items():
            if cluster_id not in self.answered and cluster_id not in places:
                found = _freshest(answers).found
                if found.mount not in taken:
                    self.answered[cluster_id] = found
                self.targets.pop(cluster_id, None)
        for cluster_id, target in list(self.targets.items()):
            is_chosen = cluster_id in self.answered or cluster_id in places
            if not is_chosen and _path(target.mount) in taken:
                del self.targets[cluster_id]

    def _keep_nameless(self, target: _CrawlTarget, error: KdirError) -> None:
        mount = _path(target.mount) if target.mount else None
        if mount is not None and not target.cluster_id:
            self.nameless[target.mount] = UnreachableCluster(
                "", target.cluster, mount, error.message
            )

    def _has_room(self, target: _CrawlTarget, child: str) -> bool:
        """Returns whether a target that ``child`` led to may be asked. Of those that may not, the
        child's first is a result, with the reason, and the others are left out.
        """
        if (target.cluster_id, target.endpoints) in self.asked:
            return True
        if len(self.asked) < 2 * _MOST_CLUSTERS and (
            not child or (self.added[child] < _MOST_BELOW and self.added.total() < _MOST_CLUSTERS)
        ):
            return True
        if child not in self.full and target.cluster_id not in self.targets:
            self.full.add(child)
            self.targets[target.cluster_id] = target
            by = f"cluster {child}" if child else "the servers"
            self.failed[target.cluster_id] = BadReferral(
                f"it and others were not asked: {by} and those below lead to too many clusters; "
                f"expected at most {_MOST_BELOW} below a child, and {_MOST_CLUSTERS} in all"
            )
        return False

    def _is_new(self, target: _CrawlTarget) -> bool:
        """Records a target unless a newer one is known; returns whether it is still to be asked."""
        if target.cluster_id:
            known = self.targets.get(target.cluster_id)
            if known is None or _newer(target, known):
                self.targets[target.cluster_id] = target
            for answer in self.answers.get(target.cluster_id, ()):
                if answer.endpoint in target.endpoints and not answer.found.state.stale:
                    return False
        key = (target.cluster_id, target.endpoints)
        fresh = key not in self.asked
        self.asked.add(key)
        return fresh

    def _send_request(self, target: _CrawlTarget) -> _Answer:
        """Returns the answer of the first endpoint that gives one. A stale answer counts only if no
        other endpoint gives a fresher one.

        Raises:
            KdirError: no endpoint answers; the error of the last one.
        """
        error: KdirError = Unreachable("no endpoint of it is known")
        allowed = []
        for endpoint in target.endpoints[:MAX_ENDPOINTS]:
            if endpoint not in self.named and (why := self.allow.why_not_allowed(endpoint)):
                error = BadReferral(why)
            else:
                allowed.append(endpoint)
        target = replace(target, endpoints=tuple(allowed))
        best: _Answer | None = None
        for endpoint in allowed:
            try:
                found = self._ask_at(endpoint, target)
            except grpc.RpcError as failure:
                error = self._with_endpoint(from_rpc_error(failure), endpoint)
            except KdirError as refusal:
                error = self._with_endpoint(refusal, endpoint)
            else:
                if best is None or _is_fresher(found.found, best.found):
                    best = found
                if not best.found.state.stale:
                    break
        if best is None:
            raise error
        return best

    def _with_endpoint(self, error: KdirError, endpoint: str) -> KdirError:
        """Returns an error of a call; gRPC's own of a deadline names neither server nor time."""
        if isinstance(error, DeadlineExceeded) and "code" in error.metadata:
            return DeadlineExceeded(f"{endpoint}: no answer within {self.ask_seconds:.3g} s")
        return error

    def _ask_at(self, endpoint: str, target: _CrawlTarget) -> _Answer:
        with channel_to(endpoint, target.cluster_id, self.named) as channel:
            try:
                status = admin_pb2_grpc.AdminServiceStub(channel).GetStatus(
                    admin_pb2.GetStatusRequest(cluster=target.cluster_id), timeout=self.ask_seconds
                )
            except grpc.RpcError as failure:
                error = from_rpc_error(failure)
                if isinstance(error, InvalidArgument) and error.metadata.get("field") == "cluster":
                    raise Lame(f"{endpoint} does not serve {target.cluster_id}") from None
                raise error from None
            _check(status, target)
            listed = federation_pb2_grpc.FederationServiceStub(channel).ListMounts(
                federation_pb2.ListMountsRequest(), timeout=self.ask_seconds
            )
            above: list[_CrawlTarget] = []
            if status.parent.configured and not any(
                map(self._is_trusted, self.answers.get(status.parent.cluster_id, ()))
            ):
                above = self._upwards(channel, endpoint, status.authority.cluster.cluster_id)
        now = self.clock()
        answer = ReachableCluster(
            state=replace(
                cluster_state_from_authority(status.authority, now),
                unchanged_since=status.topics_unchanged_since or None,
            ),
            endpoints=tuple(dict.fromkeys((endpoint, *target.endpoints))),
            topic_count=status.topic_count,
            mounts={row.mount: row.cluster_id for row in listed.rows},
            asked_at=now,
            named=tuple(one for one in (endpoint, *target.endpoints) if one in self.named),
            has_all_mounts=status.authority.cluster.cluster_id not in listed.incomplete_cluster_ids,
        )
        return _Answer(answer, [_target(row) for row in listed.rows], above)

    def _upwards(self, channel: grpc.Channel, endpoint: str, cluster_id: str) -> list[_CrawlTarget]:
        """Returns the target of the server's referral for ``/``: its parent, which its mount
        table does not have. Where the same process hosts the root, the root itself answers.
        """
        try:
            answer = resolve_pb2_grpc.ResolveServiceStub(channel).Resolve(
                resolve_pb2.ResolveRequest(path=str(ROOT)), timeout=self.ask_seconds
            )
        except grpc.RpcError as failure:
            self._keep_nameless(_CrawlTarget((), mount=str(ROOT)), from_rpc_error(failure))
            return []
        found = answer.authority.cluster
        referral = answer.outcome.referral
        if not referral.mount and found.cluster_id not in {"", cluster_id}:
            return [_CrawlTarget((endpoint,), found.cluster_id, found.cluster, found.mount)]
        return [
            _CrawlTarget(
                tuple(referral.endpoints),
                referral.cluster_id,
                referral.cluster,
                referral.mount,
                referral.epoch,
                referral.age_seconds,
            )
        ]

    def result(self) -> FederationClusters:
        """Returns the clusters that were found.

        Where the owner of a mount answered, its list decides: a cluster that it does not list is
        not in the tree, whatever an older table or the cluster itself answers. A cluster that it
        lists at another path would be read under wrong paths, as would those mounted below it: they
        count as unreachable, at the path that the owner lists.
        """
        silent: dict[str, UnreachableCluster] = {}
        for cluster_id, mount in self._unanswered():
            owner = FederationClusters(self.started_at, self.answered, silent).owner_of(
                mount, cluster_id=cluster_id
            )
            if owner is None or cluster_id in owner.mounts.values():
                name = self.targets[cluster_id].cluster
                silent[cluster_id] = UnreachableCluster(
                    cluster_id, name, mount, self._why(cluster_id)
                )
        unanswered = dict(silent)
        kept: dict[str, ReachableCluster] = {}
        moved: dict[str, ReachableCluster] = {}
        for one in sorted(self.answered.values(), key=lambda one: len(one.mount)):
            cluster_id = one.state.cluster_id
            # At one mount, a cluster that its owner lists there goes before a moved one.
            owner = FederationClusters(
                self.started_at, {**kept, **self.answered}, unanswered
            ).owner_of(one.mount, cluster_id=cluster_id)
            if owner is None or (
                owner.state.cluster_id not in moved
                and owner.mounts.get(one.state.mount) == cluster_id
            ):
                kept[cluster_id] = one
                continue
            for place, listed in owner.mounts.items():
                if listed == cluster_id:
                    moved[cluster_id] = one
                    silent[cluster_id] = _displaced(one, place, owner, silent)
            if cluster_id not in moved:
                # It may be below a cluster that moved away from here.
                silent |= _below_moved(one, moved, silent)
        for cluster_id, away in unanswered.items():
            owner = FederationClusters(
                self.started_at, {**kept, **self.answered}, unanswered
            ).owner_of(away.mount, cluster_id=cluster_id)
            if owner is not None and owner.state.cluster_id in moved:
                mount, why_not = _rebased(away.mount, owner, silent)
                reason = f"{away.reason}; it {why_not}" if why_not else away.reason
                silent[cluster_id] = replace(away, mount=mount, reason=reason)
        # Without a cluster id it is the parent of a child that was never linked, which only guesses
        # its mount. It is left out if a cluster that is known owns the path.
        found = FederationClusters(self.started_at, self.answered, dict(silent))
        mounts = {one.mount for one in self.answered.values()}
        mounts |= {one.mount for one in silent.values()}
        silent |= {
            key: one
            for key, one in self.nameless.items()
            if one.mount not in mounts and found.owner_of(one.mount) is None
        }
        return FederationClusters(self.started_at, kept, silent)

    def _unanswered(self) -> list[tuple[str, Path]]:
        """Returns the clusters that did not answer, with their mounts; highest mounts first."""
        known = [
            (cluster_id, mount)
            for cluster_id, target in self.targets.items()
            if cluster_id not in self.answered and (mount := _path(target.mount)) is not None
        ]
        return sorted(known, key=lambda pair: len(pair[1]))

    def _why(self, cluster_id: str) -> str:
        error = self.failed.get(cluster_id)
        return error.message if error is not None else "it was not asked"


def _below_moved(
    one: ReachableCluster,
    moved: Mapping[str, ReachableCluster],
    silent: Mapping[str, UnreachableCluster],
) -> dict[str, UnreachableCluster]:
    """Returns a cluster that answered as unreachable, by its id, if a moved one lists it."""
    for above in moved.values():
        for place, listed in above.mounts.items():
            if listed == one.state.cluster_id:
                return {listed: _displaced(one, place, above, silent)}
    return {}


def _displaced(
    one: ReachableCluster,
    place: str,
    owner: ReachableCluster,
    silent: Mapping[str, UnreachableCluster],
) -> UnreachableCluster:
    """Returns a cluster that answered as unreachable, at the mount that its owner lists."""
    listed = _path(place)
    mount, why_not = _rebased(one.mount if listed is None else listed, owner, silent)
    reason = why_not or (
        f"believes to be mounted at {one.mount}; {owner.state.cluster} says that it is mounted at "
        f"{mount}"
    )
    if owner.state.cluster_id in silent and not why_not:
        reason = f"is mounted below {owner.state.cluster}, which does not know its mount yet"
    return UnreachableCluster(one.state.cluster_id, one.state.cluster, mount, reason)


def _rebased(
    path: Path, owner: ReachableCluster, silent: Mapping[str, UnreachableCluster]
) -> tuple[Path, str]:
    """Returns a path that the owner of it knows, at the mount where its own owner lists it. If that
    would be no valid path, returns that mount itself, and why.
    """
    moved = silent.get(owner.state.cluster_id)
    if moved is None or not owner.mount.is_prefix_of(path):
        return path, ""
    try:
        return moved.mount.join(path.below(owner.mount)), ""
    except InvalidPath as error:
        at = f"below {moved.mount}, where {owner.state.cluster} is mounted now"
        return moved.mount, f"can have no path {at}: {error.message}"


def _path(text: str) -> Path | None:
    """Returns the path, unless the text from a server is none."""
    try:
        return Path.parse(text)
    except InvalidPath:
        return None


def _above(upper: Path, lower: Path) -> bool:
    return len(upper) < len(lower) and upper.is_prefix_of(lower)


def _newer(one: _CrawlTarget, other: _CrawlTarget) -> bool:
    return (one.epoch, -one.age_seconds) > (other.epoch, -other.age_seconds)


def _freshest(answers: Sequence[_Answer]) -> _Answer:
    best = answers[0]
    for one in answers[1:]:
        if _is_fresher(one.found, best.found):
            best = one
    return best


def _not_listed(answer: _Answer, row: _CrawlTarget, lister: ReachableCluster) -> Lame:
    return Lame(
        f"{answer.endpoint} answers as {row.cluster or row.cluster_id} at {answer.found.mount}; "
        f"{lister.state.cluster} lists it at {row.mount}, with {', '.join(row.endpoints) or 'none'}"
    )


def _is_fresher(one: ReachableCluster, other: ReachableCluster) -> bool:
    """True if the other answer is stale, and this one is not, or has a newer state."""
    if not other.state.stale or one.state.as_of is None or other.state.as_of is None:
        return False
    return not one.state.stale or one.state.as_of > other.state.as_of


def _check(status: admin_pb2.GetStatusResponse, target: _CrawlTarget) -> None:
    """Checks that the target's cluster answers, is mounted and has loaded its tree.

    Raises:
        Lame, InvalidPath, Unmounted, NotReady: it does not.
    """
    found = status.authority.cluster
    if target.cluster_id and found.cluster_id != target.cluster_id:
        raise Lame(
            f"{found.cluster} ({found.cluster_id}) answers where {target.cluster or 'the cluster'} "
            f"({target.cluster_id}) should"
        )
    Path.parse(found.mount)
    if status.parent.unmounted:
        raise Unmounted("its parent has unmounted it")
    if status.replica_state == admin_pb2.REPLICA_STATE_LOADING:
        raise NotReady("it has not loaded its tree yet")


def _target(row: federation_pb2.MountRow) -> _CrawlTarget:
    return _CrawlTarget(
        tuple(row.endpoints), row.cluster_id, row.cluster, row.mount, row.epoch, row.age_seconds
    )


def _listener(listener: entry_pb2.Listener) -> Listener:
    return Listener(
        name=listener.name,
        bootstrap_servers=tuple(listener.bootstrap_servers),
        security_protocol=listener.security_protocol,
        sasl_mechanism=listener.sasl_mechanism,
    )
