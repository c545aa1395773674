"""Which of the clusters of one process a path or a name is for: a table of cases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kdir.v1 import federation_pb2, resolve_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.resolve_service import ResolveService
from directory.api.rpc.call_context import Call
from directory.federation.child_state import below_writes
from directory.federation.federation_state import unix_ms
from directory.federation.parent_state import (
    UNMOUNTED_KEY,
    TableRow,
    parent_config_writes,
    table_writes,
    welcome_writes,
)
from directory.namespace.command import CreateMount
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from directory.store.base import Put
from directory.store.replica import ReplicaState
from resolver.errors import NotReady, Unmounted
from tests.support.federation import eventually
from tests.support.trees import path

ELSEWHERE = "kc-elsewhere"
UNMOUNTED, NOT_READY = "UNMOUNTED", "NOT_READY"


@dataclass(frozen=True)
class Hosted:
    """A cluster of the process, with the state that its store has."""

    name: str
    mount: str
    parent: str = ""
    """Cluster that its *up* referrals name; empty: it has no parent; "?": it has never linked."""
    unmounted: bool = False
    loaded: bool = True
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Its mounts, by path: the clusters."""
    table: Mapping[str, str] = field(default_factory=dict)
    """The mount table that its parent sent."""
    reported: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """What its first child reported, by path: the clusters, and the epochs of their mounts."""


ROOT = Hosted("root", "/")
LA = Hosted("la", "/la", parent=ELSEWHERE)
LA_GONE = Hosted("la", "/la", parent=ELSEWHERE, unmounted=True)
LAX = Hosted("lax", "/la/x", parent="la")
LOADING = Hosted("root", "/", loaded=False)

CASES: list[tuple[str, list[Hosted], dict[str, str]]] = [
    (
        "the longest prefix",
        [Hosted("root", "/", mounts={"/la": "la"}), LA],
        {"/": "root", "/la": "la", "/la/y": "la", "/ny": "root"},
    ),
    (
        "without a prefix, the topmost",
        [LA, LAX],
        {"/ny": "la", "/la/x/1": "lax", "/la/y": "la", "kc-unknown": "la"},
    ),
    (
        "the topmost that is loaded",
        [Hosted("a", "/a", loaded=False), Hosted("ny", "/ny/b")],
        {"/a/1": "a", "/q": "ny", "kc-unknown": "ny"},
    ),
    (
        "one that loads is not known to be mounted elsewhere",
        [
            Hosted("la", "/la", parent=ELSEWHERE, table={"/ny": "ny"}),
            Hosted("ny", "/old/n", parent=ELSEWHERE, loaded=False),
        ],
        {"/ny/1": "ny"},
    ),
    (
        "one mounted in the place of an unmounted one",
        [LA_GONE, Hosted("new", "/la", parent=ELSEWHERE)],
        {"/la/y": "new", "/q": "new", "kc-unknown": "new", "la": "la"},
    ),
    (
        "the parent is unmounted, its child is not",
        [LA_GONE, LAX],
        {"/la/y": UNMOUNTED, "/q": UNMOUNTED, "/la/x/1": "lax", "kc-unknown": "la"},
    ),
    (
        "the same, and the child has a row of the parent and of the cluster",
        [LA_GONE, Hosted("lax", "/la/x", "la", table={"/la": "la", "/ny": "kc-unknown"})],
        {"/la/y": UNMOUNTED, "/la/x/1": "lax", "/ny/1": "lax", "kc-unknown": "lax"},
    ),
    (
        "a parent of another process",
        [LA_GONE, Hosted("lax", "/la/x", parent=ELSEWHERE)],
        {"/la/y": "lax", "kc-unknown": "lax"},
    ),
    (
        "another cluster is mounted in the place of the parent, elsewhere",
        [LA_GONE, Hosted("lax", "/la/x", "la", table={"/la": ELSEWHERE})],
        {"/la/y": "lax", ELSEWHERE: "lax"},
    ),
    (
        "a mount that the child has not received",
        [Hosted("root", "/", mounts={"/ny": "la"}), LA],
        {"/ny": UNMOUNTED, "/ny/1": UNMOUNTED, "/la/y": "la"},
    ),
    (
        "a mount whose cluster is unmounted yet",
        [Hosted("root", "/", mounts={"/la": "la"}), LA_GONE],
        {"/la/y": UNMOUNTED, "/q": "root"},
    ),
    (
        "an unmounted cluster that nobody mounts",
        [ROOT, LA_GONE],
        {"/la/y": "root", "kc-unknown": "root"},
    ),
    (
        "a row of a mount table that is not that of the cluster",
        [Hosted("la", "/la", ELSEWHERE, table={"/ny": "ny"}), Hosted("ny", "/old/n", ELSEWHERE)],
        {"/ny/1": UNMOUNTED, "/old/n": "ny"},
    ),
    (
        "the parent is loading, and its child has never linked",
        [LOADING, Hosted("la", "/la", parent="?")],
        {"/q": "root", "/la/1": "la", "kc-unknown": NOT_READY},
    ),
    (
        "the parent is loading, and its child has a row of the cluster",
        [LOADING, Hosted("la", "/la", "root", table={"/ny": "kc-unknown"})],
        {"kc-unknown": "la", "kc-other": NOT_READY},
    ),
    (
        "a mount in a cluster of another process that its child has not received",
        [
            Hosted("root", "/", mounts={"/m": ELSEWHERE}, reported={"/m/new": ("low", 2)}),
            Hosted("low", "/m/old", ELSEWHERE),
        ],
        {"/m/new/1": UNMOUNTED, "/m/new": UNMOUNTED, "/m/old/1": "low", "/m/other": "root"},
    ),
    (
        "a report of such a cluster that is older than what its child has received",
        [
            Hosted("root", "/", mounts={"/m": ELSEWHERE}, reported={"/m/new": ("low", 1)}),
            Hosted("low", "/m/old", ELSEWHERE),
        ],
        {"/m/new/1": "root", "/m/old/1": "low"},
    ),
    (
        "all are unmounted",
        [LA_GONE, Hosted("lax", "/la/x", "la", unmounted=True)],
        {"/la/y": UNMOUNTED, "/la/x/1": UNMOUNTED, "kc-unknown": "la"},
    ),
]


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def process(hosted: list[Hosted], folder: Path, cleanup: ExitStack) -> list[Cluster]:
    """Returns the clusters of a process."""
    made: dict[str, Cluster] = {}
    for one in hosted:
        store, parent = f"sqlite:///{folder / one.name}", ("127.0.0.1:1",) if one.parent else ()
        config = ServerConfig.quick(path(one.mount), cluster=one.name, store=store, parent=parent)
        cluster = made[one.name] = Cluster.open(config)
        if one.loaded:
            cleanup.callback(cluster.stop)
            cluster.start()
        else:
            cleanup.callback(cluster.store.close)
    for one in hosted:
        if one.loaded:
            store_state(one, made)
    return list(made.values())


def store_state(one: Hosted, made: Mapping[str, Cluster]) -> None:
    cluster = made[one.name]
    eventually(lambda: cluster.replica.state is ReplicaState.SERVING)
    ids = {name: other.cluster_id for name, other in made.items()}
    snapshot, now = cluster.replica.snapshot, unix_ms()
    rows = [
        federation_pb2.MountRow(
            mount=at, cluster_id=ids.get(name, name), cluster=name, epoch=1, endpoints=["h:1"]
        )
        for at, name in one.table.items()
    ]
    writes = [*table_writes(snapshot, [TableRow(row, now) for row in rows])]
    if one.parent not in {"", "?"}:
        welcome = federation_pb2.Welcome(
            mount=one.mount,
            epoch=1,
            parent_cluster_id=ids.get(one.parent, one.parent),
            parent_mount=str(path(one.mount).parent),
        )
        writes += welcome_writes(snapshot, welcome, now)
        writes += parent_config_writes(snapshot, cluster.config.parent)
    if one.unmounted:
        writes.append(Put(UNMOUNTED_KEY, b"no mount names it"))
    if writes:
        eventually(lambda: cluster.writer.put_facts(writes) or True)
    for at, name in one.mounts.items():
        mount = CreateMount(path=path(at), cluster_id=ids.get(name, name))
        eventually(lambda mount=mount: cluster.writer.commit_command(mount))  # type: ignore[misc]
    if one.reported:
        child = ids.get(name, name)
        reports = [
            TableRow(federation_pb2.MountRow(mount=at, cluster_id=ids[of], epoch=epoch), now)
            for at, (of, epoch) in one.reported.items()
        ]
        cluster.writer.put_facts(below_writes(cluster.replica.snapshot, child, reports, now))
    eventually(lambda: cluster.is_mounted is not one.unmounted)
    cluster.federation.view()


def caller() -> Call:
    return Call(time.monotonic() + 10, is_active=lambda: True)


def chosen(router: ClusterRouter, asked: str) -> str:
    try:
        if asked.startswith("/"):
            cluster = router.cluster_for_path(path(asked), caller())
            return cluster.config.cluster if cluster.is_mounted else UNMOUNTED
        cluster = router.cluster_by_name(asked, caller())
        if cluster.replica.state is ReplicaState.LOADING:
            return NOT_READY
    except Unmounted:
        return UNMOUNTED
    return cluster.config.cluster


@pytest.mark.parametrize(
    ("hosted", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_which_cluster_of_a_process_a_path_or_a_name_is_for(
    hosted: list[Hosted], expected: dict[str, str], tmp_path: Path, cleanup: ExitStack
) -> None:
    clusters = process(hosted, tmp_path, cleanup)
    for order in (clusters, clusters[::-1]):
        router = ClusterRouter(order)
        assert {asked: chosen(router, asked) for asked in expected} == expected


def located(clusters: list[Cluster], name: str) -> resolve_pb2.Referral:
    request = resolve_pb2.LocateRequest(cluster=name, physical_name="x")
    return ResolveService(ClusterRouter(clusters)).locate(request, caller()).outcome.referral


def test_a_cluster_is_searched_at_the_parent_of_an_unmounted_one(
    tmp_path: Path, cleanup: ExitStack
) -> None:
    """Its child would refer to this very address."""
    clusters = process([LA_GONE, LAX], tmp_path, cleanup)
    for order in (clusters, clusters[::-1]):
        assert located(order, "kc-unknown").cluster_id == ELSEWHERE


def test_while_the_upper_cluster_loads_a_search_is_not_ready(
    tmp_path: Path, cleanup: ExitStack
) -> None:
    clusters = process([LOADING, Hosted("la", "/la", parent="?")], tmp_path, cleanup)
    for order in (clusters, clusters[::-1]):
        with pytest.raises(NotReady):
            located(order, "kc-unknown")


def test_an_older_mount_table_is_not_taken_for_the_newer_state(
    tmp_path: Path, cleanup: ExitStack
) -> None:
    hosted = [
        Hosted("la", "/la", ELSEWHERE, table={"/ny": "ny"}),
        Hosted("ny", "/old/n", ELSEWHERE),
    ]
    router = ClusterRouter(process(hosted, tmp_path, cleanup))
    with pytest.raises(Unmounted, match=r"at /ny in the mount table of cluster la, and at /old/n"):
        router.cluster_for_path(path("/ny/1"))
