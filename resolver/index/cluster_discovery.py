"""Finds every cluster of the federation from a few servers, without reading topics.

Each server returns the mounts that it knows. Each of these clusters is then asked for its identity,
mount and revision, at its known endpoints. The discovery goes down by the mounts and up by the
referral for ``/``, so it can start at any server. A cluster that does not answer is a result, not
an error.

A server may list any clusters, ids and epochs, so ``choose_places`` decides which rows count. A row
counts only for a path below the mount of the cluster that lists it (R5). Where the cluster mounted
deepest above a path answers, is fresh and lists all its mounts, it decides: rows that it does not
list are dropped, and its endpoints count. Of the rows that are left, those of the highest lister go
first, down from the caller's servers and their parents: a child takes no place that a cluster
above it gives. Epochs order only rows of one lister, since each owner counts its own. Clusters that
none of these list are added last, where no other is mounted.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
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
    "ClusterPlace",
    "CrawlTarget",
    "FederationClusters",
    "ReachableCluster",
    "ServerAnswer",
    "UnreachableCluster",
    "channel_to",
    "choose_places",
    "cluster_state_from_authority",
    "discover_clusters",
]

ASK_SECONDS: Final = 2.0
"""Timeout of one call to an endpoint."""
_MOST_ASKED_AT_ONCE: Final = 32
_MOST_CLUSTERS: Final = 10_000
"""Most clusters of a federation: the default of ``limits.table_mounts``."""
_MOST_BELOW: Final = 2_000
"""Most clusters that one child, and the clusters that it leads to, may add: the default of
``limits.child_mounts``.
"""
_MOST_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of a response: enough for a page of 10,000 topics with long observed configs; gRPC's
own limit is 4 MiB.
"""
_MOST_AGE_SECONDS: Final = 10.0**9
"""Longest age of a state: a server may send any number, also infinity."""


@dataclass(frozen=True, slots=True)
class ReachableCluster:
    """Cluster that answered, with its state and its mount table."""

    state: ClusterState
    endpoints: tuple[str, ...]
    """Endpoints of its servers (``host:port``); the first is the one that answered."""
    topic_count: int
    mounts: Mapping[str, str]
    """Cluster ids by mount point, from the server's mount table; authoritative for mounts that the
    cluster owns.
    """
    asked_at: datetime
    named: tuple[str, ...] = ()
    """Those of ``endpoints`` that the caller named itself."""
    has_all_mounts: bool = True
    """False if ``mounts`` may lack a mounted child, since a record cannot be read (S21)."""

    @property
    def mount(self) -> Path:
        """Path at which the cluster is mounted."""
        return Path.parse(self.state.mount)

    def decides(self, mount: Path, cluster_id: str) -> bool:
        """True if it is fresh, and its list has all mounts, or this mount, or this cluster: what it
        then does not list at ``mount`` is not mounted there.
        """
        if self.state.stale:
            return False
        is_listed = str(mount) in self.mounts or cluster_id in self.mounts.values()
        return self.has_all_mounts or is_listed


@dataclass(frozen=True, slots=True)
class UnreachableCluster:
    """Mounted cluster that cannot be read, with the reason."""

    cluster_id: str
    """Id of the cluster; empty for a parent that has never answered its child."""
    cluster: str
    mount: Path
    reason: str


@dataclass(frozen=True, slots=True)
class FederationClusters:
    """Set of the clusters of a federation at about one moment."""

    started_at: datetime
    answered: Mapping[str, ReachableCluster] = field(default_factory=dict)
    silent: Mapping[str, UnreachableCluster] = field(default_factory=dict)
    """Clusters that cannot be read, by cluster id; a parent without a known id, by its mount."""
    unplaced: frozenset[str] = frozenset()
    """Ids of the clusters that answered, but that the owners of their mounts do not list."""

    def owner_of(
        self, mount: Path, also: Iterable[Path] = (), cluster_id: str = ""
    ) -> ReachableCluster | None:
        """Returns the owner of ``mount``, whose list of mounts is the truth: the known cluster that
        is mounted deepest above it. None if the owner did not answer or is stale, or if its list
        may lack mounts and has neither ``mount`` nor ``cluster_id``.

        ``also`` has the mount points of further known clusters that did not answer.
        """
        quiet = [one.mount for one in self.silent.values()] + list(also)
        above = max((len(path) for path in quiet if _above(path, mount)), default=-1)
        owners = [one for one in self.answered.values() if _above(one.mount, mount)]
        owner = max(owners, key=lambda one: len(one.mount), default=None)
        if owner is None or len(owner.mount) <= above or not owner.decides(mount, cluster_id):
            return None
        return owner

    def is_listed(
        self, cluster_id: str, lister: ReachableCluster, also: Iterable[Path] = ()
    ) -> bool:
        """True if ``lister`` has a row of the cluster that the owner of its mount also has, or for
        which there is no ``owner_of``. A lister may have old rows of paths that others own.
        """
        paths = (_path(mount) for mount, listed in lister.mounts.items() if listed == cluster_id)
        for path in filter(None, paths):
            owner = self.owner_of(path, also, cluster_id)
            if owner is None or owner.mounts.get(str(path)) == cluster_id:
                return True
        return False

    def is_maybe_mounted(self, cluster_id: str) -> bool:
        """True if the cluster answered, and its owner may be one that is silent or stale, or whose
        list may lack mounts.
        """
        answered = self.answered.values()
        decide = all(one.has_all_mounts and not one.state.stale for one in answered)
        return cluster_id in self.unplaced and (bool(self.silent) or not decide)

    def mounts_at(self, below: Path) -> set[Path]:
        """Returns the mounts of the cluster that owns a path and of the clusters mounted at or
        below it.

        Raises:
            NoRoute: no cluster that was found owns this path.
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
    """Returns all clusters that can be found from ``servers`` (``host:port``), with their states.

    Raises:
        InvalidArgument: ``servers`` is empty, or has a malformed address.
        Unreachable: no server answered; the message names each with its reason.
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
    (``KDIR_CA``, ``KDIR_CERT``, …) name the credentials; Spark's executors need the same variables.

    ``cluster_id``: id of the server's cluster, from another server's answer; ``named``: the servers
    that the caller named itself.

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
    """Returns the state, at ``now``, of the cluster that sent an answer.

    A server that cannot reach its store answers from its replica: the state is stale since the
    replica's last update.

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
class CrawlTarget:
    """Endpoints of a cluster to ask. Without a cluster id, any cluster's answer is right."""

    endpoints: tuple[str, ...]
    cluster_id: str = ""
    cluster: str = ""
    mount: str = ""
    epoch: int = 0
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """Answer of one server for one cluster, with the clusters that it leads to."""

    found: ReachableCluster
    listed: list[CrawlTarget]
    """The rows of its mount table, which has clusters that are not below it, too."""
    above: list[CrawlTarget]
    """Its referral for ``/``."""

    @property
    def endpoint(self) -> str:
        """Endpoint of the server that answered."""
        return self.found.endpoints[0]


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """Path at which a cluster is mounted, by a row of the cluster that lists it."""

    row: CrawlTarget
    """Where the place is chosen, with all endpoints that count."""
    mount: Path
    lister: ReachableCluster | None = None
    """None: no other cluster that counts lists it; the place is the mount that it reports."""
    answer: ServerAnswer | None = None
    """The answer that counts, from one of the endpoints of ``row``."""
    why_not: str = ""
    """Why a cluster that is listed by a moved one cannot be read."""
    is_too_long: bool = False
    """True if it would have no valid path where the moved one is mounted now."""

    @property
    def is_answered(self) -> bool:
        """True if the cluster answered, and has the mount that others list."""
        return self.answer is not None and not self.why_not and not self.is_moved

    @property
    def is_moved(self) -> bool:
        """True if the cluster answered with another mount than others list."""
        return self.answer is not None and self.answer.found.mount != self.mount

    @property
    def why_moved(self) -> str:
        """Returns why a cluster that moved cannot be read."""
        if self.answer is None or self.lister is None:
            return ""
        return (
            f"{self.answer.endpoint} answers with the mount {self.answer.found.mount}; "
            f"{self.lister.state.cluster} lists it at {self.mount}"
        )


def choose_places(
    answers: Mapping[str, Sequence[ServerAnswer]],
    seeds: Iterable[ServerAnswer],
    settled: Mapping[str, ClusterPlace] | None = None,
) -> dict[str, ClusterPlace]:
    """Returns the place of each cluster that is found from the seeds downwards, by cluster id.

    ``answers``: all answers by cluster id, each with the rows below its own mount. ``seeds``: the
    answers that count without a row. ``settled``: places that are chosen, and stay; without these,
    the seeds are the answers of the caller's servers and their parents.
    """
    choice = _PlaceChoice(answers)
    for cluster_id, place in (settled or {}).items():
        choice.settle(cluster_id, place)
    for seed in seeds:
        state = seed.found.state
        row = CrawlTarget((seed.endpoint,), state.cluster_id, state.cluster, state.mount)
        choice.add(ClusterPlace(row, seed.found.mount))
        if settled is None:
            choice.start_ids.add(state.cluster_id)
    choice.settle_all()
    choice.move_children()
    return choice.chosen


@dataclass(slots=True)
class _PlaceChoice:
    """Choice of places from the highest mount downwards: what is mounted above a path is settled
    before the path, except where it has a row of a higher lister further down.
    """

    answers: Mapping[str, Sequence[ServerAnswer]]
    chosen: dict[str, ClusterPlace] = field(default_factory=dict)
    owners: dict[Path, ReachableCluster | None] = field(default_factory=dict)
    """By the mount of each chosen place. None: nobody decides what is mounted below it, since no
    cluster answers there, or several do.
    """
    candidates: defaultdict[str, list[ClusterPlace]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By the id of a cluster without a place."""
    pending: defaultdict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Cluster ids by the mount of each of their candidates."""
    heap: list[tuple[int, str]] = field(default_factory=list)
    start_ids: set[str] = field(default_factory=set)
    """Ids of the clusters of the caller's servers and their parents: what one of these lists and
    owns goes before the mount that another of these reports itself.
    """

    def add(self, place: ClusterPlace) -> None:
        """Adds a candidate of a cluster that has no place yet."""
        cluster_id = place.row.cluster_id
        if cluster_id not in self.chosen:
            self.candidates[cluster_id].append(place)
            self.pending[place.mount].add(cluster_id)
            heappush(self.heap, (len(place.mount), cluster_id))

    def settle(self, cluster_id: str, place: ClusterPlace) -> None:
        """Gives a cluster its place, and adds the clusters that it lists, if it answers there."""
        self.chosen[cluster_id] = place
        for one in self.candidates.pop(cluster_id, ()):
            self.pending[one.mount].discard(cluster_id)
        if place.answer is None or not place.is_answered:
            self.owners[place.mount] = None
            return
        found = place.answer.found
        self.owners[place.mount] = None if place.mount in self.owners else found
        for row in place.answer.listed:
            self.add(ClusterPlace(row, Path.parse(row.mount), found))

    def settle_all(self) -> None:
        """Gives each cluster with a candidate that counts its place."""
        while self.heap:
            length, cluster_id = heappop(self.heap)
            if cluster_id in self.chosen:
                continue
            place = self._best_place(cluster_id, length)
            if place is not None and len(place.mount) > length:
                heappush(self.heap, (len(place.mount), cluster_id))
            elif place is not None:
                self.settle(cluster_id, place)

    def move_children(self) -> None:
        """Gives each cluster that only a moved one lists a place below the new mount of that."""
        waiting = deque(cluster_id for cluster_id, one in self.chosen.items() if one.is_moved)
        while waiting:
            above = self.chosen[waiting.popleft()]
            if above.answer is None:
                continue
            before = above.answer.found.mount
            for row in above.answer.listed:
                mount = Path.parse(row.mount)
                known = self.chosen.get(row.cluster_id)
                if known is None or (
                    not known.why_not
                    and known.mount == mount
                    and len(self._mounted_above(mount)) < len(before)
                ):
                    self.owners.pop(mount, None)
                    self.chosen[row.cluster_id] = _moved_with(
                        row, mount, above, self._answer_at(row.cluster_id, row.endpoints)
                    )
                    waiting.append(row.cluster_id)

    def _best_place(self, cluster_id: str, length: int) -> ClusterPlace | None:
        """Returns the candidate that counts, with its answer; None if there is none. Drops those of
        at most ``length`` segments that their owner does not list.
        """
        left: list[ClusterPlace] = []
        counting: list[tuple[ClusterPlace, ReachableCluster | None]] = []
        for one in self.candidates[cluster_id]:
            owner = self._owner_of(one.mount, cluster_id)
            if owner is None or owner.mounts.get(str(one.mount)) == cluster_id:
                counting.append((one, owner))
                left.append(one)
            elif len(one.mount) > length:
                left.append(one)
            else:
                self.pending[one.mount].discard(cluster_id)
        self.candidates[cluster_id] = left
        if not counting:
            return None
        if any(owner and owner.state.cluster_id in self.start_ids for _, owner in counting):
            counting = [(one, owner) for one, owner in counting if one.lister or owner]
        best, owner = min(counting, key=_order)
        endpoints = self._endpoints(best.mount, owner, counting)
        answer = self._answer_at(cluster_id, endpoints, best.mount)
        row = replace(best.row, endpoints=endpoints)
        mount = best.mount if answer is None else answer.found.mount
        if mount != best.mount and owner is None and best.lister is not None:
            # The row may be older than the move that the cluster itself reports.
            there = self._owner_of(mount, cluster_id)
            if self._is_free(mount, cluster_id, there) and _above(best.lister.mount, mount):
                row = replace(
                    row,
                    mount=str(mount),
                    endpoints=(*endpoints, *self._endpoints(mount, there, counting)),
                )
                return replace(best, row=row, mount=mount, answer=answer)
        return replace(best, row=row, answer=answer, lister=owner or best.lister)

    def _is_free(self, mount: Path, cluster_id: str, owner: ReachableCluster | None) -> bool:
        """True if the owner lists the cluster at ``mount``; without an owner, if no other cluster
        has a place or a candidate there.
        """
        if owner is not None:
            return owner.mounts.get(str(mount)) == cluster_id
        return mount not in self.owners and not self.pending[mount] - {cluster_id}

    @staticmethod
    def _endpoints(
        mount: Path,
        owner: ReachableCluster | None,
        counting: Iterable[tuple[ClusterPlace, ReachableCluster | None]],
    ) -> tuple[str, ...]:
        """Returns the endpoints of the owner's row for this mount; of all rows, if none decides."""
        found = (
            one.row.endpoints
            for one, _ in counting
            if one.mount == mount and (owner is None or one.lister is None or one.lister is owner)
        )
        return tuple(dict.fromkeys(endpoint for endpoints in found for endpoint in endpoints))

    def _answer_at(
        self, cluster_id: str, endpoints: Iterable[str], mount: Path | None = None
    ) -> ServerAnswer | None:
        """Returns the answer of one of these endpoints, if one has this mount, that one."""
        found = [one for one in self.answers.get(cluster_id, ()) if one.endpoint in endpoints]
        found = [one for one in found if one.found.mount == mount] or found
        return _freshest(found) if found else None

    def _owner_of(self, mount: Path, cluster_id: str) -> ReachableCluster | None:
        """Returns the cluster that decides what is mounted at a path; None: nobody does."""
        owner = self.owners.get(self._mounted_above(mount))
        return owner if owner is not None and owner.decides(mount, cluster_id) else None

    def _mounted_above(self, mount: Path) -> Path:
        """Returns the deepest mount above a path, also one that is not settled; else the root."""
        while not mount.is_root:
            mount = mount.parent
            if mount in self.owners or self.pending.get(mount):
                break
        return mount


def _order(pair: tuple[ClusterPlace, ReachableCluster | None]) -> tuple[object, ...]:
    """Returns the sort key of a candidate with the owner that lists it: the best comes first."""
    place, owner = pair
    height, lister = -1, ""
    if place.lister is not None:
        height, lister = len(place.lister.mount), place.lister.state.mount
    row = place.row
    return height, owner is None, lister, -row.epoch, row.age_seconds, row.mount


def _moved_with(
    row: CrawlTarget, mount: Path, above: ClusterPlace, answer: ServerAnswer | None
) -> ClusterPlace:
    """Returns the place of a cluster that a moved one lists. If it would be no valid path there, it
    is the place of the moved one itself.
    """
    lister = above.answer.found if above.answer is not None else None
    name, before = above.row.cluster, above.mount if lister is None else lister.mount
    try:
        mount = mount.rebase(before, above.mount)
    except InvalidPath as error:
        why_not = (
            f"can have no path below {above.mount}, where {name} is mounted now: {error.message}"
        )
        return ClusterPlace(row, above.mount, lister, answer, why_not, is_too_long=True)
    why_not = f"is mounted below {name}, which has not received its new mount yet"
    return ClusterPlace(row, mount, lister, answer, why_not)


@dataclass(slots=True)
class _ClusterCrawl:
    """State of a running discovery."""

    ask_seconds: float
    clock: Callable[[], datetime]
    named: tuple[str, ...]
    """Servers at which the discovery begins."""
    allow: AllowList
    """Rule for which endpoints besides ``named`` may be called."""
    started_at: datetime = field(init=False)
    places: dict[str, ClusterPlace] = field(default_factory=dict)
    """By cluster id; chosen when all answers are there."""
    answers: dict[str, list[ServerAnswer]] = field(default_factory=dict)
    trusted: set[tuple[str, str]] = field(default_factory=set)
    """Endpoints that the caller named, without a cluster id, and those of the clusters above them,
    as each returned its parent."""
    targets: dict[str, CrawlTarget] = field(default_factory=dict)
    failed: dict[str, KdirError] = field(default_factory=dict)
    added: Counter[str] = field(default_factory=Counter)
    """Clusters that a child, by its id, led to: itself, or by those that it led to."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Clusters that were not asked, by id: the child, by its id, that led to too many."""
    full: set[str] = field(default_factory=set)
    """Ids of children that lead to more clusters than allowed."""
    nameless: dict[str, UnreachableCluster] = field(default_factory=dict)
    """Parents without a known id that did not answer, by mount."""
    asked: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.started_at = self.clock()
        self.trusted |= {("", server) for server in self.named}

    def crawl(self, servers: Sequence[str]) -> None:
        """Asks the servers, then all clusters that an answer names, until none is new."""
        seeds = [CrawlTarget((server,)) for server in dict.fromkeys(servers)]
        refused: list[str] = []
        with ThreadPoolExecutor(_MOST_ASKED_AT_ONCE, "kdir-discovery") as pool:
            pending: dict[Future[ServerAnswer], tuple[CrawlTarget, str]] = {}

            def submit(targets: Iterable[CrawlTarget], child: str = "") -> None:
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
        self._choose_places()

    def _keep_answer(self, answer: ServerAnswer) -> None:
        """Records an answer, of its mount table only what is below its own mount."""
        mount = answer.found.mount
        below = [
            row
            for row in answer.listed
            if (row.cluster_id in self.targets or row.cluster_id in self.left_out)
            and (place := _path(row.mount)) is not None
            and _above(mount, place)
        ]
        answer = replace(answer, listed=below)
        self.answers.setdefault(answer.found.state.cluster_id, []).append(answer)
        if self._is_trusted(answer):
            self._trust(answer.above)

    def _trust(self, targets: Iterable[CrawlTarget]) -> None:
        """Trusts clusters at these endpoints, and the clusters that they return as parents."""
        for target in targets:
            for endpoint in target.endpoints:
                if (target.cluster_id, endpoint) not in self.trusted:
                    self.trusted.add((target.cluster_id, endpoint))
                    for answer in self.answers.get(target.cluster_id, ()):
                        if answer.endpoint == endpoint:
                            self._trust(answer.above)

    def _is_trusted(self, answer: ServerAnswer) -> bool:
        found = answer.found.state.cluster_id
        return not self.trusted.isdisjoint({("", answer.endpoint), (found, answer.endpoint)})

    def _choose_places(self) -> None:
        """Chooses the places of the clusters that are found from the trusted servers downwards,
        then of the others; a cluster whose answer is refused has no place.
        """
        every = [one for answers in self.answers.values() for one in answers]
        listed = choose_places(self.answers, filter(self._is_trusted, every))
        taken = {place.mount for place in listed.values() if place.is_answered}
        others = (
            _freshest(answers)
            for cluster_id, answers in self.answers.items()
            if cluster_id not in listed
        )
        free = [one for one in others if one.found.mount not in taken]
        self.places = choose_places(self.answers, free, listed)

    def _without_others(self, found: ReachableCluster, row: CrawlTarget) -> ReachableCluster:
        """Returns the answer without endpoints that only others report."""
        kept = tuple(
            one
            for one in found.endpoints
            if one == found.endpoints[0]
            or one in (*self.named, *row.endpoints)
            or (found.state.cluster_id, one) in self.trusted
        )
        return replace(found, endpoints=kept)

    def _keep_nameless(self, target: CrawlTarget, error: KdirError) -> None:
        mount = _path(target.mount) if target.mount else None
        if mount is not None and not target.cluster_id:
            self.nameless[target.mount] = UnreachableCluster(
                "", target.cluster, mount, error.message
            )

    def _has_room(self, target: CrawlTarget, child: str) -> bool:
        """Returns whether a target that ``child`` led to may be asked. Of those that may not, each
        that the cluster above it lists is a result, with the reason, and the child's first one.
        """
        if (target.cluster_id, target.endpoints) in self.asked:
            return True
        if len(self.asked) < 2 * _MOST_CLUSTERS and (
            not child or (self.added[child] < _MOST_BELOW and self.added.total() < _MOST_CLUSTERS)
        ):
            return True
        if target.cluster_id not in self.targets and len(self.left_out) < _MOST_CLUSTERS:
            self.left_out.setdefault(target.cluster_id, child)
            if child not in self.full:
                self.full.add(child)
                self.targets[target.cluster_id] = target
        return False

    def _is_new(self, target: CrawlTarget) -> bool:
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

    def _send_request(self, target: CrawlTarget) -> ServerAnswer:
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
        best: ServerAnswer | None = None
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

    def _ask_at(self, endpoint: str, target: CrawlTarget) -> ServerAnswer:
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
            above: list[CrawlTarget] = []
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
        return ServerAnswer(answer, [_target(row) for row in listed.rows], above)

    def _upwards(self, channel: grpc.Channel, endpoint: str, cluster_id: str) -> list[CrawlTarget]:
        """Returns the target of the server's referral for ``/``: its parent, which its mount
        table does not have. Where the same process hosts the root, the root itself answers.
        """
        try:
            answer = resolve_pb2_grpc.ResolveServiceStub(channel).Resolve(
                resolve_pb2.ResolveRequest(path=str(ROOT)), timeout=self.ask_seconds
            )
        except grpc.RpcError as failure:
            self._keep_nameless(CrawlTarget((), mount=str(ROOT)), from_rpc_error(failure))
            return []
        found = answer.authority.cluster
        referral = answer.outcome.referral
        if not referral.mount and found.cluster_id not in {"", cluster_id}:
            return [CrawlTarget((endpoint,), found.cluster_id, found.cluster, found.mount)]
        return [
            CrawlTarget(
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

        If the owner of a mount answered, its list decides: a cluster that it does not list is not
        in the tree, whatever the cluster itself answers. A cluster that the owner lists at another
        path would be read under wrong paths, and so would the clusters below it: these count as
        unreachable, at the path that the owner lists.
        """
        answered: dict[str, ReachableCluster] = {}
        silent: dict[str, UnreachableCluster] = {}
        for cluster_id, place in self.places.items():
            if place.answer is not None and place.is_answered:
                answered[cluster_id] = self._without_others(place.answer.found, place.row)
            else:
                silent[cluster_id] = UnreachableCluster(
                    cluster_id, place.row.cluster, place.mount, self._why_silent(cluster_id, place)
                )
        taken = {one.mount for one in answered.values()}
        for cluster_id, mount in self._unanswered():
            owner = FederationClusters(self.started_at, answered, silent).owner_of(
                mount, cluster_id=cluster_id
            )
            if mount not in taken and owner is None:
                name, why = self.targets[cluster_id].cluster, self._why(cluster_id)
                silent[cluster_id] = UnreachableCluster(cluster_id, name, mount, why)
        # Without a cluster id it is the parent of a child that was never linked, which only guesses
        # its mount. It is left out if a cluster that is known owns the path.
        found = FederationClusters(self.started_at, answered, dict(silent))
        mounts = taken | {one.mount for one in silent.values()}
        silent |= {
            key: one
            for key, one in self.nameless.items()
            if one.mount not in mounts and found.owner_of(one.mount) is None
        }
        unplaced = frozenset(self.answers.keys() - self.places.keys())
        return FederationClusters(self.started_at, answered, silent, unplaced)

    def _unanswered(self) -> list[tuple[str, Path]]:
        """Returns the clusters that have no place and did not answer, with their mounts; highest
        mounts first.
        """
        known = [
            (cluster_id, mount)
            for cluster_id, target in self.targets.items()
            if cluster_id not in self.places
            and cluster_id not in self.answers
            and (mount := _path(target.mount)) is not None
        ]
        return sorted(known, key=lambda pair: len(pair[1]))

    def _why_silent(self, cluster_id: str, place: ClusterPlace) -> str:
        if place.answer is not None:
            return place.why_not or place.why_moved
        reasons = [self._why(cluster_id)]
        if (elsewhere := self.answers.get(cluster_id)) and place.lister is not None:
            reasons = [reasons[0]] if cluster_id in self.failed else []
            reasons.append(_why_not_listed(elsewhere[0], place.row, place.lister))
        why = "; ".join(reasons)
        return f"{why}; it {place.why_not}" if place.is_too_long else why

    def _why(self, cluster_id: str) -> str:
        if (error := self.failed.get(cluster_id)) is not None:
            return error.message
        child = self.left_out.get(cluster_id)
        if child is None:
            return "it was not asked"
        by = f"cluster {child}" if child else "the servers"
        return (
            f"it and others were not asked: {by} and those below lead to too many clusters; "
            f"expected at most {_MOST_BELOW} below a child, and {_MOST_CLUSTERS} in all"
        )


@lru_cache(2 * _MOST_CLUSTERS)  # each answer has the mounts of all clusters
def _path(text: str) -> Path | None:
    """Returns the path in a server's text; None if the text is no path."""
    try:
        return Path.parse(text)
    except InvalidPath:
        return None


def _above(upper: Path, lower: Path) -> bool:
    return len(upper) < len(lower) and upper.is_prefix_of(lower)


def _newer(one: CrawlTarget, other: CrawlTarget) -> bool:
    return (one.epoch, -one.age_seconds) > (other.epoch, -other.age_seconds)


def _freshest(answers: Sequence[ServerAnswer]) -> ServerAnswer:
    best = answers[0]
    for one in answers[1:]:
        if _is_fresher(one.found, best.found):
            best = one
    return best


def _why_not_listed(answer: ServerAnswer, row: CrawlTarget, lister: ReachableCluster) -> str:
    return (
        f"{answer.endpoint} answers as {row.cluster or row.cluster_id} at {answer.found.mount}; "
        f"{lister.state.cluster} lists it at {row.mount}, with {', '.join(row.endpoints) or 'none'}"
    )


def _is_fresher(one: ReachableCluster, other: ReachableCluster) -> bool:
    """True if ``other`` is stale, and ``one`` is not, or has a newer state."""
    if not other.state.stale or one.state.as_of is None or other.state.as_of is None:
        return False
    return not one.state.stale or one.state.as_of > other.state.as_of


def _check(status: admin_pb2.GetStatusResponse, target: CrawlTarget) -> None:
    """Checks that the target's cluster answers, is mounted and has loaded its tree.

    Raises:
        Lame, InvalidPath, Unmounted, NotReady: the check fails.
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


def _target(row: federation_pb2.MountRow) -> CrawlTarget:
    return CrawlTarget(
        tuple(row.endpoints), row.cluster_id, row.cluster, row.mount, row.epoch, row.age_seconds
    )


def _listener(listener: entry_pb2.Listener) -> Listener:
    return Listener(
        name=listener.name,
        bootstrap_servers=tuple(listener.bootstrap_servers),
        security_protocol=listener.security_protocol,
        sasl_mechanism=listener.sasl_mechanism,
    )
