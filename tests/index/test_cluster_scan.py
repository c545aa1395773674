"""One cluster is read in pages: order, failing over, torn reads, lives of the store."""

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kdir.v1 import scan_pb2

from resolver.errors import KdirError, Lame, NotAuthoritative, Unavailable, Unreachable
from resolver.index import cluster_scan
from resolver.index.cluster_discovery import channel_to, discover_clusters
from resolver.index.cluster_scan import PAGE_ROWS, SHARD_ROWS, Page, Shard, read_pages, shards_of
from resolver.path import Path
from tests.index.fakes import FakeCluster

PATHS = [f"/la/d{number % 7}/t{number:03}" for number in range(100)]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    one = FakeCluster("/la")
    one.add(*PATHS)
    one.start()
    yield one
    one.stop()


def shards(
    cluster: FakeCluster, shard_rows: int = SHARD_ROWS, page_rows: int = PAGE_ROWS
) -> list[Shard]:
    one = discover_clusters([cluster.endpoint]).answered[cluster.cluster_id]
    return shards_of(one, shard_rows=shard_rows, page_rows=page_rows)


def paths(pages: Iterator[Page]) -> list[str]:
    return [path for page in pages for path in page.batch.column("path").to_pylist()]


def quickly(shard: Shard) -> Iterator[Page]:
    return read_pages(shard, sleep=lambda _: None)


def test_every_topic_comes_once_whatever_the_page_size(cluster: FakeCluster) -> None:
    for page_rows in (1, 7, 100, 5_000):
        [shard] = shards(cluster, page_rows=page_rows)
        assert sorted(paths(read_pages(shard))) == sorted(PATHS)


def test_shards_together_are_the_whole(cluster: FakeCluster) -> None:
    parts = shards(cluster, shard_rows=30)
    assert len(parts) == 4
    assert sorted(path for part in parts for path in paths(read_pages(part))) == sorted(PATHS)


@pytest.mark.parametrize(
    ("below", "count"), [("/", 1), ("/la", 1), ("/la/d3", 1), ("/ny", 0), ("/lax", 0)]
)
def test_only_clusters_that_have_something_below_a_path_are_read(
    cluster: FakeCluster, below: str, count: int
) -> None:
    one = discover_clusters([cluster.endpoint]).answered[cluster.cluster_id]
    assert len(shards_of(one, below=Path.parse(below))) == count


def test_below_a_path_only_its_topics_are_read(cluster: FakeCluster) -> None:
    one = discover_clusters([cluster.endpoint]).answered[cluster.cluster_id]
    [shard] = shards_of(one, below=Path.parse("/la/d3"))
    wanted = [path for path in PATHS if path.startswith("/la/d3/")]
    assert sorted(paths(read_pages(shard))) == sorted(wanted)


def test_G11_what_travels_to_an_executor_is_plain_values(cluster: FakeCluster) -> None:
    [shard] = shards(cluster)
    assert pickle.loads(pickle.dumps(shard)) == shard  # noqa: S301 - our own, of this moment
    assert b"grpc" not in pickle.dumps(shard)


def test_a_server_that_dies_in_the_middle_is_replaced_at_the_same_place(
    cluster: FakeCluster,
) -> None:
    twin = FakeCluster("/la", topics=cluster.topics, revision=cluster.revision)
    twin.start()
    try:
        [shard] = shards(cluster, page_rows=30)
        both = Shard(
            shard.state, (cluster.endpoint, twin.endpoint), shard.path, page_rows=shard.page_rows
        )
        seen: list[str] = []
        for page in quickly(both):
            seen += page.batch.column("path").to_pylist()
            cluster.stop()
        assert sorted(seen) == sorted(PATHS)
        assert twin.scans > 0
    finally:
        twin.stop()


def test_a_server_to_which_no_channel_is_opened_is_left_for_another(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bearer token the server's certificate is read before the first call."""

    def channel(endpoint: str, *options: Any) -> Any:
        if endpoint == "127.0.0.1:9":
            raise Unreachable("127.0.0.1:9: no connection: refused")
        return channel_to(endpoint, *options)

    [shard] = shards(cluster)
    monkeypatch.setattr(cluster_scan, "channel_to", channel)
    both = replace(shard, endpoints=("127.0.0.1:9", cluster.endpoint))
    assert sorted(paths(quickly(both))) == sorted(PATHS)
    with pytest.raises(Unreachable, match="refused"):
        list(quickly(replace(shard, endpoints=("127.0.0.1:9",))))


def test_a_server_that_is_gone_for_good_is_an_error_and_not_an_end(cluster: FakeCluster) -> None:
    [shard] = shards(cluster, page_rows=30)
    pages = quickly(shard)
    next(pages)
    cluster.stop()
    with pytest.raises(Unavailable):
        list(pages)


def test_another_cluster_at_the_endpoint_is_not_read(cluster: FakeCluster) -> None:
    [shard] = shards(cluster)
    cluster.cluster_id = "kc-other"
    with pytest.raises(Lame, match="kc-other"):
        list(quickly(shard))


@pytest.mark.parametrize(
    "path", ["/ny/search/clicks", "/lax/t", "/la", "/", "", "/la/../ny/t", "/la//t", "/la/t\n"]
)
def test_R5_a_cluster_that_lists_what_is_not_below_its_mount_is_not_read(
    cluster: FakeCluster, path: str
) -> None:
    [shard] = shards(cluster, page_rows=10)

    def lie(response: scan_pb2.ScanTopicsResponse) -> None:
        if response.next_page_token == "20":
            response.entries[5].path = path

    cluster.change_page = lie
    pages = quickly(shard)
    assert next(pages).batch.num_rows == 10
    with pytest.raises(Lame, match=re.escape(f"la: its scan has {path!r}, not below /la")):
        next(pages)


def test_below_the_root_any_path_may_be(cluster: FakeCluster) -> None:
    root = FakeCluster("/")
    root.add("/t", "/a.b/t", "/a/b/t", f"/deep{'/x' * 100}/t")
    root.start()
    try:
        [shard] = shards(root)
        assert len(paths(quickly(shard))) == 4
    finally:
        root.stop()


def test_a_cluster_that_was_moved_meanwhile_is_not_read_under_its_old_paths(
    cluster: FakeCluster,
) -> None:
    [shard] = shards(cluster)
    cluster.mount = "/los-angeles"
    with pytest.raises(NotAuthoritative):
        list(quickly(shard))


def test_a_change_between_pages_is_seen_in_the_revisions(cluster: FakeCluster) -> None:
    [shard] = shards(cluster, page_rows=50)
    cluster.before_page = lambda one, _: one.touch()
    revisions = [page.state.revision for page in read_pages(shard)]
    assert len(set(revisions)) == len(revisions) == 2


def test_another_incarnation_of_the_store_ends_the_read(cluster: FakeCluster) -> None:
    [shard] = shards(cluster, page_rows=50)

    def restore(one: FakeCluster, request: scan_pb2.ScanTopicsRequest) -> None:
        if request.page_token:
            one.incarnation = "life-2"

    cluster.before_page = restore
    with pytest.raises(KdirError, match="restored"):
        list(read_pages(shard))


@pytest.mark.parametrize(
    ("shown", "why"), [(0, "page after page without rows"), (1, "rows again"), (50, "rows again")]
)
def test_a_scan_that_never_ends_is_ended(cluster: FakeCluster, shown: int, why: str) -> None:
    [shard] = shards(cluster, page_rows=50)

    def again(_: FakeCluster, request: scan_pb2.ScanTopicsRequest) -> None:
        request.page_token = ""

    def as_if_new(response: scan_pb2.ScanTopicsResponse) -> None:
        del response.entries[shown:]
        response.next_page_token = f"fresh {cluster.scans}"

    cluster.before_page, cluster.change_page = again, as_if_new
    with pytest.raises(Lame, match=f"la: its server sends {why}"):
        list(read_pages(shard))
