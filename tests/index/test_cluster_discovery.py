"""Which clusters are found, from where, and what is said of those that do not answer."""

import itertools
import random
import socket
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import grpc
import pytest
from kdir.v1 import admin_pb2, federation_pb2

from resolver.errors import InvalidArgument, NotReady, Unreachable
from resolver.index import cluster_discovery
from resolver.index.cluster_discovery import (
    CrawlTarget,
    FederationClusters,
    ReachableCluster,
    ServerAnswer,
    choose_places,
    discover_clusters,
)
from resolver.index.row_schema import ClusterState
from resolver.path import Path
from tests.index.fakes import FakeCluster, abort, federation, topic
from tests.support.tcp import TcpServer

TREE = {
    "/": [],
    "/la": [],
    "/la/metrics": ["/la/metrics/cpu"],
    "/la/tracking": ["/la/tracking/clicks", "/la/tracking/search/views"],
    "/ny": [],
    "/ny/tracking": ["/ny/tracking/clicks"],
}


@pytest.fixture
def tree() -> Iterator[dict[str, FakeCluster]]:
    with federation(TREE) as clusters:
        yield clusters


def found(found_clusters: FederationClusters) -> tuple[set[str], set[str]]:
    answered = {one.state.mount for one in found_clusters.answered.values()}
    return answered, {str(one.mount) for one in found_clusters.silent.values()}


@pytest.mark.parametrize("start", sorted(TREE))
def test_every_cluster_is_found_from_anywhere(tree: dict[str, FakeCluster], start: str) -> None:
    found_clusters = discover_clusters([tree[start].endpoint])
    assert found(found_clusters) == (set(TREE), set())


def test_a_cluster_that_is_down_is_silent_and_the_others_are_not(
    tree: dict[str, FakeCluster],
) -> None:
    tree["/ny/tracking"].stop()
    found_clusters = discover_clusters([tree["/la"].endpoint])
    assert found(found_clusters) == (set(TREE) - {"/ny/tracking"}, {"/ny/tracking"})
    [silent] = found_clusters.silent.values()
    assert (silent.cluster_id, silent.cluster) == ("kc-ny-tracking", "ny-tracking")
    assert silent.reason


def test_what_hangs_below_a_cluster_that_is_down_is_still_found(
    tree: dict[str, FakeCluster],
) -> None:
    tree["/"].stop()
    tree["/la"].stop()
    found_clusters = discover_clusters([tree["/la/tracking"].endpoint])
    down = {"/la"}  # the root is known to nobody who answers, and so to nobody
    assert found(found_clusters)[0] == set(TREE) - {"/", "/la"}
    assert down <= found(found_clusters)[1]


def test_one_dead_server_among_those_given_does_no_harm(tree: dict[str, FakeCluster]) -> None:
    tree["/la"].stop()
    found_clusters = discover_clusters([tree["/la"].endpoint, tree["/ny"].endpoint])
    assert found(found_clusters) == (set(TREE) - {"/la"}, {"/la"})


def test_no_server_that_answers_is_an_error_naming_each() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(Unreachable, match=endpoint):
            discover_clusters([endpoint])


def test_a_server_that_accepts_and_never_answers_is_given_up() -> None:
    with TcpServer() as silent:
        late = f"{silent.address}: no answer within 0.3 s"
        with pytest.raises(Unreachable, match=late) as raised:
            discover_clusters([silent.address], ask_seconds=0.3)
    assert raised.value.message.count(silent.address) == 1


def test_no_servers_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidArgument, match="servers"):
        discover_clusters([])


def test_another_cluster_at_a_known_endpoint_is_not_taken_for_it(
    tree: dict[str, FakeCluster],
) -> None:
    tree["/ny/tracking"].cluster_id = "kc-other"
    for one in tree.values():
        one.known.pop("/ny/tracking", None)
        one.children.pop("/ny/tracking", None)
    wrong = FakeCluster("/ny/tracking", port=tree["/ny/tracking"].port)
    tree["/ny"].children["/ny/tracking"] = wrong
    found_clusters = discover_clusters([tree["/ny"].endpoint])
    silent = found_clusters.silent["kc-ny-tracking"]
    assert "kc-other" in silent.reason
    assert "kc-ny-tracking" in silent.reason


def test_a_cluster_that_disagrees_with_its_parent_about_its_mount_is_silent(
    tree: dict[str, FakeCluster],
) -> None:
    moved = tree["/ny/tracking"]
    for one in tree.values():
        one.known.pop("/ny/tracking", None)
    tree["/ny"].children = {"/ny/tracks": moved}
    found_clusters = discover_clusters([tree["/"].endpoint])
    silent = found_clusters.silent["kc-ny-tracking"]
    assert "/ny/tracking" in silent.reason
    assert "/ny/tracks" in silent.reason
    assert str(silent.mount) == "/ny/tracks"


@pytest.mark.parametrize("down", [True, False])
def test_what_is_mounted_below_a_moved_cluster_is_silent_with_it(down: bool) -> None:
    mounts = ("/", "/ny", "/ny/tracking", "/ny/tracking/ads", "/ny/tracking/ads/eu")
    with federation({mount: [] for mount in mounts}) as tree:
        for one in tree.values():
            for mount in mounts[2:]:
                one.known.pop(mount, None)
        tree["/ny"].children = {"/ny/tracks": tree["/ny/tracking"]}
        if down:
            tree["/ny/tracking/ads/eu"].stop()
        found_clusters = discover_clusters([tree["/"].endpoint])
    silent = {"/ny/tracks", "/ny/tracks/ads", "/ny/tracks/ads/eu"}
    assert found(found_clusters) == ({"/", "/ny"}, silent)


@pytest.mark.parametrize("down", [True, False])
def test_what_would_get_too_long_a_path_below_a_moved_cluster_is_silent_at_its_mount(
    down: bool,
) -> None:
    """The child of a moved cluster refuses the move: all other clusters are found still."""
    deep = f"/ny/tracking/{'a' * 240}/{'b' * 240}/{'c' * 200}"
    moved_to = f"/ny/{'x' * 249}/{'y' * 249}"
    with federation({mount: [] for mount in ("/", "/la", "/ny", "/ny/tracking", deep)}) as tree:
        for one in tree.values():
            for mount in ("/ny/tracking", deep):
                one.known.pop(mount, None)
        tree["/ny"].children = {moved_to: tree["/ny/tracking"]}
        tree["/ny/tracking"].children = {deep: tree[deep]}
        if down:
            tree[deep].stop()
        found_clusters = discover_clusters([tree["/"].endpoint])
        below = found_clusters.silent[tree[deep].cluster_id]
    assert found(found_clusters) == ({"/", "/la", "/ny"}, {moved_to})
    assert str(below.mount) == moved_to
    assert "where ny-tracking is mounted now: " in below.reason


def test_another_cluster_where_a_moved_one_was_is_read_with_those_below_it() -> None:
    mounts = ("/", "/ny", "/ny/ads", "/ny/ads/eu")
    with federation({mount: [] for mount in mounts}) as tree:
        moved = FakeCluster("/ny/ads", cluster="moved")
        moved.start()
        for one in tree.values():
            one.known["/ny/sold"] = moved
        tree["/ny"].children["/ny/sold"] = moved
        found_clusters = discover_clusters([tree["/"].endpoint])
        moved.stop()
    assert found(found_clusters) == (set(mounts), {"/ny/sold"})


def test_what_is_below_a_moved_cluster_is_silent_where_another_cluster_is_there_now() -> None:
    with federation({mount: [] for mount in ("/", "/ny", "/ny/ads", "/ny/ads/eu")}) as tree:
        moved, below = FakeCluster("/ny/ads", cluster="moved"), tree["/ny/ads/eu"]
        moved.start()
        moved.known["/ny/ads/eu"] = below
        for one in tree.values():
            one.known["/ny/sold"] = moved
            one.known.pop("/ny/ads/eu", None)
        tree["/ny"].children["/ny/sold"] = moved
        tree["/ny/ads"].children.pop("/ny/ads/eu", None)
        found_clusters = discover_clusters([tree["/"].endpoint, below.endpoint])
        moved.stop()
    assert found(found_clusters) == ({"/", "/ny", "/ny/ads"}, {"/ny/sold", "/ny/sold/eu"})


@pytest.mark.parametrize("down", [True, False])
def test_a_cluster_that_its_owner_does_not_list_is_not_of_the_tree(
    tree: dict[str, FakeCluster], down: bool
) -> None:
    del tree["/ny"].children["/ny/tracking"], tree["/ny"].known["/ny/tracking"]
    assert "/ny/tracking" in tree["/la"].known  # others still have it in the table handed down
    if down:
        tree["/ny/tracking"].stop()
    found_clusters = discover_clusters([tree["/"].endpoint])
    assert found(found_clusters) == (set(TREE) - {"/ny/tracking"}, set())
    tree["/ny"].stop()  # and nobody else's word counts
    assert "/ny/tracking" in set().union(*found(discover_clusters([tree["/"].endpoint])))


@pytest.mark.parametrize("down", [True, False])
def test_S21_a_cluster_whose_mount_its_owner_cannot_read_is_still_of_the_tree(
    tree: dict[str, FakeCluster], down: bool
) -> None:
    del tree["/ny"].children["/ny/tracking"], tree["/ny"].known["/ny/tracking"]
    tree["/ny"].has_all_mounts = False
    if down:
        tree["/ny/tracking"].stop()
    found_clusters = discover_clusters([tree["/"].endpoint])
    silent = {"/ny/tracking"} if down else set()
    assert found(found_clusters) == (set(TREE) - silent, silent)
    tree["/ny"].children["/ny/moved"] = tree["/ny/tracking"]
    if not down:  # what the owner lists, it decides about
        assert "/ny/moved" in found(discover_clusters([tree["/"].endpoint]))[1]
    del tree["/ny"].children["/ny/moved"]
    with federation({"/ny/tracking": []}) as others:
        other = others["/ny/tracking"]
        other.cluster_id = "kc-other"
        tree["/ny"].children["/ny/tracking"] = other
        found_clusters = discover_clusters([tree["/"].endpoint])
        assert "kc-ny-tracking" not in {*found_clusters.answered, *found_clusters.silent}
        assert "kc-other" in found_clusters.answered


def impostor(tree: dict[str, FakeCluster], claimed: str, mount: str = "") -> FakeCluster:
    """Starts a server below /evil that answers as another cluster; the server of /evil lists it."""
    evil = FakeCluster("/evil", parent=tree["/"])
    evil.start()
    other = FakeCluster(mount or claimed, cluster_id=tree[claimed].cluster_id)
    other.epoch = 9
    other.topics = [topic("/ny/x")] * 7
    other.start()
    tree["/"].children["/evil"] = evil
    evil.children[mount or claimed] = other
    return other


@pytest.mark.parametrize("start", ["/", "/la"])
@pytest.mark.parametrize("claimed", ["/ny", "/ny/tracking", "/"])
def test_R5_a_child_takes_no_place_of_another_cluster(
    tree: dict[str, FakeCluster], monkeypatch: pytest.MonkeyPatch, start: str, claimed: str
) -> None:
    answer = FakeCluster.GetStatus

    def get_status(
        one: FakeCluster, request: admin_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetStatusResponse:
        if one is tree[claimed]:
            time.sleep(0.3)
        return answer(one, request, context)

    monkeypatch.setattr(FakeCluster, "GetStatus", get_status)
    other = impostor(tree, claimed)
    found_clusters = discover_clusters([tree[start].endpoint])
    answered = found_clusters.answered[tree[claimed].cluster_id]
    assert (answered.endpoints, answered.topic_count) == (
        (tree[claimed].endpoint,),
        len(tree[claimed].topics),
    )
    assert found(found_clusters) == ({*TREE, "/evil"}, set())
    tree[claimed].stop()
    if claimed != start:
        silent = discover_clusters([tree[start].endpoint]).silent
        assert claimed == "/" or str(silent[tree[claimed].cluster_id].mount) == claimed
    other.stop()


def test_R5_a_child_moves_no_other_cluster_that_is_down(tree: dict[str, FakeCluster]) -> None:
    impostor(tree, "/ny", "/evil/ny").stop()
    impostor(tree, "/la", "/").stop()
    tree["/ny"].stop()
    tree["/la"].stop()
    found_clusters = discover_clusters([tree["/"].endpoint])
    assert found(found_clusters) == ({*TREE, "/evil"} - {"/ny", "/la"}, {"/ny", "/la"})


def test_R5_a_child_that_claims_the_root_is_silent_where_the_root_lists_it(
    tree: dict[str, FakeCluster],
) -> None:
    tree["/ny"].mount = "/"
    found_clusters = discover_clusters([tree["/la"].endpoint])
    assert found(found_clusters) == (set(TREE) - {"/ny"}, {"/ny"})
    assert "lists it at /ny" in found_clusters.silent["kc-ny"].reason


@pytest.mark.parametrize("start", ["/", "/la"])
@pytest.mark.parametrize("is_stale", [False, True])
def test_R5_a_child_that_leads_to_ever_more_clusters_ends_no_discovery(
    tree: dict[str, FakeCluster], monkeypatch: pytest.MonkeyPatch, start: str, is_stale: bool
) -> None:
    monkeypatch.setattr(cluster_discovery, "_MOST_BELOW", 20)
    evil = FakeCluster("/evil", parent=tree["/"], store_away_seconds=60 * is_stale)
    evil.start()
    tree["/"].children["/evil"] = evil
    count = itertools.count(1)

    def get_status(
        one: FakeCluster, request: admin_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetStatusResponse:
        found = answer(one, request, context)
        if one is evil and request.cluster:
            found.authority.cluster.cluster_id = request.cluster
            if request.cluster != one.cluster_id:
                found.authority.cluster.mount = f"/evil/{request.cluster}"
        return found

    def list_mounts(
        one: FakeCluster, request: federation_pb2.ListMountsRequest, context: grpc.ServicerContext
    ) -> federation_pb2.ListMountsResponse:
        number = next(count) if one is evil else 0
        if number > 500:
            abort(context, InvalidArgument("the discovery does not end"))
        found = listed(one, request, context)
        if number:
            name, ends = f"m{number}", [one.endpoint]
            found.rows.add(mount=f"/evil/{name}", cluster_id=name, cluster=name, endpoints=ends)
            ends = [one.endpoint, f"127.0.0.1:{10_000 + number}"]
            found.rows.add(mount="/ny", cluster_id="kc-ny", cluster="ny", endpoints=ends)
        return found

    answer, listed = FakeCluster.GetStatus, FakeCluster.ListMounts
    monkeypatch.setattr(FakeCluster, "GetStatus", get_status)
    monkeypatch.setattr(FakeCluster, "ListMounts", list_mounts)
    found_clusters = discover_clusters([tree[start].endpoint])
    evil.stop()
    assert next(count) < 30
    answered, silent = found(found_clusters)
    assert {*TREE, "/evil"} <= answered
    assert silent == set()


def test_of_too_many_clusters_below_a_child_those_that_are_not_asked_are_silent(
    tree: dict[str, FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_discovery, "_MOST_BELOW", 3)
    every = {f"/la/many/m{number}": FakeCluster(f"/la/many/m{number}") for number in range(9)}
    many = FakeCluster("/la/many", parent=tree["/la"], children=every)
    for one in (many, *every.values()):
        one.start()
    tree["/"].children["/la/many"] = tree["/la"].children["/la/many"] = many
    found_clusters = discover_clusters([tree["/"].endpoint])
    for one in (many, *every.values()):
        one.stop()
    asked = {"/la/many/m0", "/la/many/m1", "/la/many/m2"}
    assert found(found_clusters) == ({*TREE, "/la/many", *asked}, every.keys() - asked)
    left_out = {one.cluster: one.reason for one in found_clusters.silent.values()}
    assert left_out.keys() == {f"la-many-m{number}" for number in range(3, 9)}
    [reason] = set(left_out.values())
    assert reason == (
        "it and others were not asked: cluster kc-la-many and those below lead to too many "
        "clusters; expected at most 3 below a child, and 10000 in all"
    )


def server_answer(
    mount: str,
    rows: Mapping[str, str] | None = None,
    *,
    cluster: str = "",
    at: str = "",
    stale: bool = False,
    has_all_mounts: bool = True,
    epochs: Mapping[str, int] | None = None,
) -> ServerAnswer:
    """Returns the answer of a server that lists ``rows``: a cluster, or ``cluster@endpoint``, by
    mount; cluster and endpoint are those of the mount unless given.
    """
    listed = []
    for place, text in (rows or {}).items():
        name, _, endpoint = text.partition("@")
        ends, epoch = (endpoint or name,), (epochs or {}).get(place, 1)
        listed.append(CrawlTarget(ends, name, name, place, epoch))
    cluster = cluster or mount
    now = datetime(2026, 1, 1, tzinfo=UTC)
    state = ClusterState(
        cluster, cluster, mount, "", (), as_of=now, revision=1, incarnation="i", stale=stale
    )
    mounts = {row.mount: row.cluster_id for row in listed}
    found = ReachableCluster(state, (at or cluster,), 0, mounts, now, has_all_mounts=has_all_mounts)
    return ServerAnswer(found, listed, [])


def places_of(*answers: ServerAnswer, seed: str = "/") -> dict[str, tuple[str, bool]]:
    """Returns the mount of each cluster, and whether it is read there."""
    by_id: dict[str, list[ServerAnswer]] = {}
    for one in answers:
        by_id.setdefault(one.found.state.cluster_id, []).append(one)
    chosen = choose_places(by_id, by_id[seed])
    return {key: (str(one.mount), one.is_answered) for key, one in chosen.items()}


OLD_ROW = server_answer("/", {"/ny": "/ny", "/la": "/la", "/ny/x": "X@old"})
BOTH_ROWS = server_answer(
    "/", {"/ny": "/ny", "/la": "/la", "/ny/x": "X@old", "/la/x": "X"}, epochs={"/la/x": 2}
)
OLD_EPOCH_IS_HIGHER = server_answer(
    "/", {"/ny": "/ny", "/la": "/la", "/ny/x": "X", "/la/x": "X"}, epochs={"/ny/x": 9}
)
NEW_OWNER = server_answer("/la", {"/la/x": "X"})
X_MOVED = server_answer("/la/x", cluster="X")
X_UNMOVED = server_answer("/ny/x", {"/ny/x/eu": "EU"}, cluster="X")
EVIL = server_answer("/la/evil", {"/la/evil/x": "X@evil"}, epochs={"/la/evil/x": 99})
EVIL_X = server_answer("/la/evil/x", cluster="X", at="evil")
LISTS_EVIL = server_answer("/la", {"/la/x": "X", "/la/evil": "/la/evil"})


@pytest.mark.parametrize(
    ("answers", "place", "is_answered"),
    [
        ([OLD_ROW, server_answer("/ny"), NEW_OWNER, X_MOVED], "/la/x", True),
        ([OLD_ROW, server_answer("/ny"), NEW_OWNER], "/la/x", False),
        ([BOTH_ROWS, server_answer("/ny"), NEW_OWNER, X_MOVED], "/la/x", True),
        ([BOTH_ROWS, NEW_OWNER, X_MOVED], "/la/x", True),
        ([BOTH_ROWS, NEW_OWNER], "/la/x", False),
        # Its old owner does not answer, or is stale: the higher lister goes first.
        ([OLD_ROW, NEW_OWNER, X_MOVED], "/ny/x", False),
        ([OLD_ROW, server_answer("/ny", stale=True), NEW_OWNER], "/ny/x", False),
        ([OLD_ROW, server_answer("/ny", has_all_mounts=False), NEW_OWNER], "/ny/x", False),
        # The endpoint that the higher lister knows reports the move itself.
        ([OLD_ROW, NEW_OWNER, server_answer("/la/x", cluster="X", at="old")], "/la/x", True),
        # The owner is fresh: where the cluster itself believes to be does not count.
        ([OLD_ROW, server_answer("/ny"), NEW_OWNER, X_UNMOVED], "/la/x", False),
        ([OLD_ROW, server_answer("/ny", {"/ny/x": "X"}), X_MOVED], "/ny/x", False),
        # Epochs of two owners are not compared: the one that is fresh decides.
        ([OLD_EPOCH_IS_HIGHER, NEW_OWNER], "/la/x", False),
        # No epoch, and no answer, gives a child what a higher cluster lists.
        ([BOTH_ROWS, LISTS_EVIL, EVIL, EVIL_X, X_MOVED], "/la/x", True),
        ([BOTH_ROWS, LISTS_EVIL, EVIL, EVIL_X], "/la/x", False),
        ([OLD_ROW, server_answer("/ny"), LISTS_EVIL, EVIL, EVIL_X], "/la/x", False),
        ([OLD_ROW, LISTS_EVIL, EVIL, EVIL_X], "/ny/x", False),
        # Nothing lists it any more, but what may lead to others.
        ([OLD_ROW, server_answer("/ny"), server_answer("/la"), X_MOVED], "", False),
    ],
)
def test_the_row_that_counts(answers: list[ServerAnswer], place: str, is_answered: bool) -> None:
    found = places_of(*answers).get("X", ("", False))
    assert found == (place, is_answered)


def test_what_is_below_a_moved_cluster_moves_with_it_at_any_depth() -> None:
    below = [
        server_answer("/ny/x/eu", {"/ny/x/eu/deep": "DEEP"}, cluster="EU"),
        server_answer("/ny/x/eu/deep", cluster="DEEP"),
    ]
    found = places_of(BOTH_ROWS, server_answer("/ny"), NEW_OWNER, X_UNMOVED, *below)
    assert found["EU"] == ("/la/x/eu", False)
    assert found["DEEP"] == ("/la/x/eu/deep", False)


def test_what_is_below_a_moved_cluster_moves_with_it_where_an_old_row_has_it() -> None:
    rows = {"/ny": "/ny", "/la": "/la", "/la/x": "X", "/ny/x/eu": "EU"}
    below = server_answer("/ny/x/eu", cluster="EU")
    found = places_of(server_answer("/", rows), NEW_OWNER, X_UNMOVED, below)
    assert found["EU"] == ("/la/x/eu", False)


def test_old_rows_below_an_old_place_are_dropped_with_it() -> None:
    rows = {"/ny": "/ny", "/la": "/la", "/ny/x": "X", "/ny/x/eu": "EU"}
    found = places_of(server_answer("/", rows), server_answer("/ny"), NEW_OWNER)
    assert found == {"/": ("/", True), "/ny": ("/ny", True), "/la": ("/la", True)} | {
        "X": ("/la/x", False)
    }


@pytest.mark.parametrize(
    ("lister", "is_displaced"), [("/la", True), ("/la/evil", False), ("free", False)]
)
def test_a_server_of_the_caller_at_its_old_mount_gives_way_to_another_one_that_lists_it(
    lister: str, is_displaced: bool
) -> None:
    """The root and the former owner do not answer. Only a start server decides that it moved."""
    la_rows = {"/la/evil": "/la/evil"} | ({"/la/x": "X"} if lister == "/la" else {})
    evil_rows = {"/la/evil/x": "X"} if lister == "/la/evil" else {}
    seeds = [server_answer("/ny/x", cluster="X"), server_answer("/la", la_rows)]
    free = server_answer("/foo", {"/foo/x": "X"} if lister == "free" else {}, cluster="free")
    answers = [*seeds, server_answer("/la/evil", evil_rows), free]
    every = {one.found.state.cluster_id: [one] for one in answers}
    place = choose_places(every, [free], choose_places(every, seeds))["X"]
    expected = ("/la/x", False) if is_displaced else ("/ny/x", True)
    assert (str(place.mount), place.is_answered) == expected


@pytest.mark.parametrize("other", ["A", "Z"])
def test_where_two_clusters_answer_at_one_mount_neither_hides_what_is_below_it(other: str) -> None:
    """The parent of /la does not answer: only a child of it leads to the other cluster at /ny."""
    seed = server_answer("/la", {"/la/evil": "/la/evil"})
    every = {
        one.found.state.cluster_id: [one]
        for one in (
            seed,
            server_answer("/la/evil"),
            server_answer("/ny", {"/ny/t": "T"}, cluster="N"),
            server_answer("/ny/t", cluster="T"),
            server_answer("/ny", cluster=other),
        )
    }
    others = [every[key][0] for key in ("N", "T", other)]
    place = choose_places(every, others, choose_places(every, [seed]))["T"]
    assert (str(place.mount), place.is_answered) == ("/ny/t", True)


@pytest.mark.parametrize("other", ["A", "Z"])
def test_a_cluster_that_reports_the_mount_of_another_does_not_move_there(other: str) -> None:
    """Both owners are stale: only the root's rows tell where each is mounted."""
    rows = {"/ny": "/ny", "/la": "/la", "/ny/x": other, "/la/y": "Y", "/la/y/eu": "EU"}
    found = places_of(
        server_answer("/", rows),
        server_answer("/ny", {"/ny/x": other}, stale=True),
        server_answer("/la", {"/la/y": "Y"}, stale=True),
        server_answer("/la/y", {"/la/y/eu": "EU"}, cluster="Y"),
        server_answer("/la/y/eu", cluster="EU"),
        server_answer("/la/y", cluster=other),
    )
    assert found[other] == ("/ny/x", False)
    assert found["Y"] == ("/la/y", True)
    assert found["EU"] == ("/la/y/eu", True)


@pytest.mark.parametrize("seed", range(100))
def test_where_each_owner_is_fresh_the_places_are_those_that_it_lists(seed: int) -> None:
    """Whatever old rows the clusters above it have, and whatever a child reports of others."""
    rng = random.Random(seed)
    mounts = ["/"]
    for number in range(rng.randint(3, 12)):
        above = rng.choice(mounts).rstrip("/")
        mounts.append(f"{above}/d{number}/c" if rng.random() < 0.3 else f"{above}/c{number}")
    ids = {mount: f"id-{rng.random()}" if mount != "/" else "/" for mount in mounts}

    def owner_of(mount: str) -> str:
        above = (one for one in mounts if mount.startswith(one.rstrip("/") + "/") and one != mount)
        return max(above, key=len)

    answers = [server_answer("/evil", {}, cluster="evil")]
    for mount in mounts:
        rows = {one: ids[one] for one in mounts if one != "/" and owner_of(one) == mount}
        epochs = dict.fromkeys(rows, rng.randint(1, 9))
        prefix = mount.rstrip("/")
        for one in mounts:
            if not one.startswith(f"{prefix}/") or one == "/" or one in rows:
                continue
            if mount == "/" or rng.random() < 0.5:
                rows[one] = ids[one]
            # An old row of it, below another cluster; this one does not decide there.
            old = f"{rng.choice(mounts).rstrip('/')}/old{len(rows)}"
            if old.startswith(f"{prefix}/") and owner_of(old) != mount:
                rows[old] = f"{ids[one]}@{ids[one]}"
                epochs[old] = rng.randint(1, 99)
        if mount == "/":
            rows["/evil"] = "evil"
        pairs = list(rows.items())
        rng.shuffle(pairs)
        cluster = ids[mount]
        answers.append(server_answer(mount, dict(pairs), cluster=cluster, epochs=epochs))
    claims = {f"/evil/m{n}": f"{ids[one]}@evil" for n, one in enumerate(mounts) if one != "/"}
    answers[0] = server_answer("/evil", claims, cluster="evil", epochs=dict.fromkeys(claims, 999))
    for claim, text in claims.items():
        answers.append(server_answer(claim, cluster=text.partition("@")[0], at="evil"))
    rng.shuffle(answers)
    expected = {ids[mount]: (mount, True) for mount in mounts} | {"evil": ("/evil", True)}
    assert places_of(*answers) == expected


@pytest.mark.parametrize(("before", "after"), [("/ny", "/la"), ("/la", "/ny")])
@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("has_new_endpoint", [False, True])
@pytest.mark.parametrize(
    ("start", "has_both", "away_seconds"),
    [("/", True, 0), ("/", False, 0), ("/", False, 60), ("/la", True, 0), ("/la", False, 60)],
)
def test_a_cluster_that_moved_to_another_parent_is_found_there(
    before: str,
    after: str,
    is_down: bool,
    has_new_endpoint: bool,
    start: str,
    has_both: bool,
    away_seconds: float,
) -> None:
    """Also where the root still has the old row, alone or beside the new one."""
    with federation({mount: [] for mount in ("/", "/la", "/ny")}) as tree:
        new = FakeCluster(f"{after}/x", cluster="x", epoch=9, parent=tree[after])
        new.start()
        port = 10_009 if has_new_endpoint else new.port
        old = FakeCluster(f"{before}/x", cluster="x", port=port)
        tree[after].children[new.mount] = new
        tree["/"].known[old.mount] = old
        if has_both:
            tree["/"].known[new.mount] = new
        tree["/"].store_away_seconds = away_seconds
        if is_down:
            new.stop()
        found_clusters = discover_clusters([tree[start].endpoint])
        new.stop()
    every = {"/", "/la", "/ny"}
    expected = (every, {new.mount}) if is_down else ({*every, new.mount}, set())
    assert found(found_clusters) == expected


def test_a_cluster_that_its_stale_owner_lists_answers_at_the_endpoint_of_that(
    tree: dict[str, FakeCluster],
) -> None:
    tree["/"].known["/la/metrics"] = FakeCluster("/la/metrics", port=10_009)
    tree["/la"].store_away_seconds = 60
    assert found(discover_clusters([tree["/"].endpoint])) == (set(TREE), set())


def test_of_a_cluster_that_answers_elsewhere_only_the_reason_names_both_endpoints(
    tree: dict[str, FakeCluster],
) -> None:
    """The server of /la is behind an address translation, which its children do not need."""
    outside = FakeCluster("/la", port=10_009)
    for one in tree.values():
        if "/la" in one.known:
            one.known["/la"] = outside
    tree["/"].children["/la"] = outside
    silent = discover_clusters([tree["/"].endpoint]).silent["kc-la"]
    assert "127.0.0.1:10009: Connection refused; " in silent.reason
    assert f"{tree['/la'].endpoint} answers as la at /la; root lists it at /la" in silent.reason
    servers = [tree["/"].endpoint, tree["/la"].endpoint]
    assert found(discover_clusters(servers)) == (set(TREE), set())


@pytest.mark.parametrize("is_down", [False, True])
def test_what_is_below_a_cluster_that_moved_to_another_parent_is_silent_with_it(
    is_down: bool,
) -> None:
    with federation({mount: [] for mount in ("/", "/la", "/ny", "/ny/x", "/ny/x/eu")}) as tree:
        for one in tree.values():
            for mount in ("/ny/x", "/ny/x/eu"):
                one.known.pop(mount, None)
        tree["/ny"].children.clear()
        tree["/la"].children["/la/x"] = tree["/"].known["/la/x"] = tree["/ny/x"]
        if is_down:
            tree["/ny/x/eu"].stop()
        found_clusters = discover_clusters([tree["/"].endpoint])
    assert found(found_clusters) == ({"/", "/la", "/ny"}, {"/la/x", "/la/x/eu"})


def test_a_server_of_another_cluster_at_a_known_address_is_named_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = FakeCluster.GetStatus

    def get_status(
        one: FakeCluster, request: admin_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetStatusResponse:
        if one.mount == "/ny" and request.cluster:
            abort(context, InvalidArgument("cluster: found 'kc-ny'", field="cluster"))
        return answer(one, request, context)

    monkeypatch.setattr(FakeCluster, "GetStatus", get_status)
    with federation(TREE) as clusters:
        found_clusters = discover_clusters([clusters["/"].endpoint])
        endpoint = clusters["/ny"].endpoint
    assert found_clusters.silent["kc-ny"].reason == f"{endpoint} does not serve kc-ny"


def test_an_unmounted_and_a_loading_cluster_say_so(tree: dict[str, FakeCluster]) -> None:
    tree["/la/metrics"].unmounted = True
    tree["/ny"].state = admin_pb2.REPLICA_STATE_LOADING
    found_clusters = discover_clusters([tree["/"].endpoint])
    assert "unmounted" in found_clusters.silent["kc-la-metrics"].reason
    assert "loaded" in found_clusters.silent["kc-ny"].reason


def test_a_cluster_on_its_own_is_counted_alone() -> None:
    with federation({"/la/tracking": ["/la/tracking/clicks"]}) as clusters:
        found_clusters = discover_clusters([clusters["/la/tracking"].endpoint])
    assert found(found_clusters) == ({"/la/tracking"}, set())


def test_a_root_in_the_process_of_its_child_is_found(tree: dict[str, FakeCluster]) -> None:
    tree["/"].stop()
    tree["/la"].hosts_parent = True
    tree["/la"].known["/la"] = tree["/la"]  # one list of mounts for all that the process hosts
    found_clusters = discover_clusters([tree["/la"].endpoint])
    assert found(found_clusters) == (set(TREE), set())


def test_a_parent_that_never_answered_is_silent_without_an_id(
    tree: dict[str, FakeCluster],
) -> None:
    tree["/"].stop()
    tree["/"].cluster_id = ""
    found_clusters = discover_clusters([tree["/la"].endpoint])
    assert found(found_clusters) == (set(TREE) - {"/"}, {"/"})
    [silent] = found_clusters.silent.values()
    assert (silent.cluster_id, str(silent.mount)) == ("", "/")
    assert "refused" in silent.reason


def test_a_mount_that_a_child_only_guesses_hides_no_owner_that_answered() -> None:
    """A child that was never linked guesses that its parent is mounted right above it."""
    with federation({"/": [], "/ny/tracking": []}) as clusters:
        guess = FakeCluster("/ny", cluster="guess")
        guess.cluster_id = ""
        clusters["/ny/tracking"].parent = guess
        servers = [clusters["/"].endpoint, clusters["/ny/tracking"].endpoint]
        found_clusters = discover_clusters(servers)
        owner = found_clusters.owner_of(Path.parse("/ny/other"))
    assert found(found_clusters) == ({"/", "/ny/tracking"}, set())
    assert owner is not None
    assert str(owner.mount) == "/"


def test_a_server_that_does_not_return_its_parent_leaves_the_root_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: FakeCluster, __: object, context: grpc.ServicerContext) -> None:
        abort(context, NotReady("its tree is loading"))

    monkeypatch.setattr(FakeCluster, "Resolve", refuse)
    with federation(TREE) as clusters:
        found_clusters = discover_clusters([clusters["/la"].endpoint])
        assert found(found_clusters)[1] == {"/"}
        [silent] = found_clusters.silent.values()
        assert "loading" in silent.reason
        servers = [clusters["/la"].endpoint, clusters["/"].endpoint]
        assert found(discover_clusters(servers)) == (set(TREE), set())


def test_a_server_whose_store_is_away_answers_as_of_when_it_was_not(
    tree: dict[str, FakeCluster],
) -> None:
    tree["/la"].store_away_seconds = 600
    state = discover_clusters([tree["/"].endpoint]).answered["kc-la"].state
    assert state.stale
    assert state.as_of == state.stale_since
    assert "store" in state.stale_reason


@pytest.fixture
def healthy(tree: dict[str, FakeCluster]) -> Iterator[FakeCluster]:
    """Yields a second server of /la, where the first one cannot reach its store."""
    first = tree["/la"]
    second = FakeCluster("/la", parent=first.parent, children=first.children, known=first.known)
    second.start()
    first.other_servers = [second]
    first.store_away_seconds = 600
    yield second
    second.stop()


@pytest.mark.parametrize("start", ["/", "/la"])
def test_a_server_without_its_store_hides_no_healthy_server_of_its_cluster(
    tree: dict[str, FakeCluster], healthy: FakeCluster, start: str
) -> None:
    found_clusters = discover_clusters([tree[start].endpoint])
    assert found(found_clusters) == (set(TREE), set())
    answer = found_clusters.answered["kc-la"]
    assert not answer.state.stale
    assert answer.endpoints[0] == healthy.endpoint


def test_of_servers_named_by_the_caller_the_healthy_one_counts_in_any_order(
    tree: dict[str, FakeCluster], healthy: FakeCluster
) -> None:
    servers = [tree["/la"].endpoint, healthy.endpoint]
    for named in (servers, servers[::-1]):
        answer = discover_clusters(named).answered["kc-la"]
        assert (answer.state.stale, answer.endpoints[0]) == (False, healthy.endpoint)


def test_of_servers_without_their_store_the_freshest_counts(
    tree: dict[str, FakeCluster], healthy: FakeCluster
) -> None:
    healthy.store_away_seconds = 60
    answer = discover_clusters([tree["/"].endpoint]).answered["kc-la"]
    assert (answer.state.stale, answer.endpoints[0]) == (True, healthy.endpoint)
    healthy.stop()
    answer = discover_clusters([tree["/"].endpoint]).answered["kc-la"]
    assert (answer.state.stale, answer.endpoints[0]) == (True, tree["/la"].endpoint)


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, float("nan"), -float("inf")])
def test_an_age_that_no_clock_can_go_back_by_ends_no_discovery(
    tree: dict[str, FakeCluster], seconds: float
) -> None:
    tree["/la"].store_away_seconds = seconds
    assert found(discover_clusters([tree["/"].endpoint])) == (set(TREE), set())
