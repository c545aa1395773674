"""The resolver against real directory servers: every start, outages, writes, changes, links."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kdir.v1 import directory_pb2, entry_pb2

from resolver import Resolver, TopicLocation, errors
from resolver.revision_token import Token
from resolver.watch_streams import WatchedChanges
from tests.support.federation import Federation, Server, eventually

STARTS = ["/", "/la", "/ny", "/la/tracking", "/ny/tracking"]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Yields a federation of which no test of the module stops a server."""
    with Federation(tmp_path_factory.mktemp("federation")) as made:
        build(made)
        yield made


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """Yields one of a test's own."""
    with Federation(tmp_path) as made:
        build(made)
        yield made


def build(made: Federation) -> None:
    made.start("/")
    made.join("/la", "/")
    made.join("/ny", "/")
    links = {"links": {"/tracking": {"targets": ["/la/tracking"]}}}
    made.join("/la/tracking", "/la", **links)
    made.join("/ny/tracking", "/ny")
    made["/la/tracking"].mkdir("/la/tracking/search/web")
    made["/ny/tracking"].mkdir("/ny/tracking/search")
    made["/ny/tracking"].mkdir("/ny/tracking/maps")
    made["/"].link("/all", "/la/tracking", "/ny/tracking", mode=2)
    made["/"].link("/either", "/la/tracking", "/ny/tracking")
    eventually(lambda: made["/la/tracking"].address in endpoints(made["/ny/tracking"]))
    eventually(lambda: made["/ny/tracking"].address in endpoints(made["/la/tracking"]))


def endpoints(server: Server) -> set[str]:
    """Returns where a server knows that others are: a mount may be known before its servers are."""
    return {one for row in server.mounts().rows for one in row.endpoints}


def begin_at(federation: Federation, mount: str, **options: object) -> Resolver:
    options.setdefault("timeout_seconds", 10)
    return Resolver(federation[mount].address, **options)  # type: ignore[arg-type]


def test_every_start_gives_the_same_answer(standing: Federation) -> None:
    for path in ("/la/tracking/search/web", "/ny/tracking", "/la", "/"):
        found = set()
        for start in STARTS:
            with begin_at(standing, start) as client:
                location = client.resolve(path)
                found.add((location.path, location.cluster_id, location.mount, location.kind))
        assert len(found) == 1


def test_every_start_says_absent_alike(standing: Federation) -> None:
    for start in STARTS:
        with begin_at(standing, start) as client:
            with pytest.raises(errors.Absent) as caught:
                client.resolve("/la/tracking/search/none/x")
            assert caught.value.metadata["nearest_directory"] == "/la/tracking/search"
            with pytest.raises(errors.Absent) as caught:
                client.resolve("/nowhere")
            assert caught.value.metadata["mount"] == "/"


def test_many_at_once_are_as_one_by_one(standing: Federation) -> None:
    paths = [
        "/la/tracking/search/web",
        "/ny/tracking/maps",
        "/ny/none",
        "/all/maps",
        "/either/search",
        "/",
        "//",
        "/x" * 65,
    ]
    for start in STARTS:
        with begin_at(standing, start) as one, begin_at(standing, start) as other:
            together = one.resolve_many(paths)
            for path, outcome in zip(paths, together, strict=True):
                if isinstance(outcome, TopicLocation):
                    # The mount table may come meanwhile, which is a revision, and so a token.
                    assert replace(other.resolve(path), token="") == replace(outcome, token="")
                else:
                    with pytest.raises(type(outcome)):
                        other.resolve(path)


def test_a_site_link_is_ones_own_sites_view(standing: Federation) -> None:
    with begin_at(standing, "/la/tracking") as client:
        found = client.resolve("/tracking/search")
        assert found.path == "/la/tracking/search"
        assert [str(step.link) for step in found.links] == ["/tracking"]
    with begin_at(standing, "/ny/tracking") as client, pytest.raises(errors.Absent):
        client.resolve("/tracking/search")


def test_links_first_and_union(standing: Federation) -> None:
    with begin_at(standing, "/ny") as client:
        assert client.resolve("/all/search").path == "/la/tracking/search"
        assert client.resolve("/all/maps").path == "/ny/tracking/maps"
        assert client.resolve("/either/search").path == "/la/tracking/search"
        with pytest.raises(errors.Absent):
            client.resolve("/either/maps")
        itself = client.resolve("/all", no_follow=True)
        assert (itself.kind, list(itself.entry.link.targets)) == (
            "link",
            ["/la/tracking", "/ny/tracking"],
        )
        names = [(listed.path.name, str(listed.source)) for listed in client.list("/all")]
        assert names == [("maps", "/ny/tracking"), ("search", "/la/tracking")]


def test_all_below_the_root_across_mounts(standing: Federation) -> None:
    with begin_at(standing, "/la/tracking") as client:
        listing = client.list("/", recursive=True, page_size=2)
        paths = [str(listed.path) for listed in listing]
        assert "/la/tracking/search/web" in paths
        assert "/ny/tracking/maps" in paths
        assert len(paths) == len(set(paths))
        assert paths == sorted(paths, key=lambda path: path.split("/"))
        assert not listing.is_partial


def test_trace_names_servers_and_ways(standing: Federation) -> None:
    with begin_at(standing, "/la/tracking") as client:
        trace = client.trace("/ny/tracking/maps")
        assert [step.ask.way.value for step in trace.steps] == ["start", "direct"]
        assert trace.location is not None
        assert trace.location.cluster == "ny-tracking"
        assert trace.elapsed_seconds > 0


def mkdir(client: Resolver, path: str) -> directory_pb2.CreateEntryResponse:
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(entry=entry, make_parents=True)
    answer: directory_pb2.CreateEntryResponse = client.call(
        path, "DirectoryService.CreateEntry", request
    )
    return answer


def test_writes_go_to_the_owner_and_are_read_at_once(standing: Federation) -> None:
    with begin_at(standing, "/la") as client:
        with pytest.raises(errors.Absent):
            client.resolve("/ny/tracking/made/here")
        answer = mkdir(client, "/ny/tracking/made/here")
        assert answer.authority.cluster.cluster == "ny-tracking"
        assert client.resolve("/ny/tracking/made/here").kind == "directory"
        entry = entry_pb2.Entry(directory=entry_pb2.Directory())
        again = directory_pb2.CreateEntryRequest(entry=entry)
        with pytest.raises(errors.AlreadyExists):
            client.call("/ny/tracking/made/here", "DirectoryService.CreateEntry", again)
        move = directory_pb2.MoveEntryRequest(new_path="/ny/tracking/moved")
        client.call("/ny/tracking/made/here", "DirectoryService.MoveEntry", move)
        assert client.resolve("/ny/tracking/moved").kind == "directory"
        with pytest.raises(errors.Absent):
            client.resolve("/ny/tracking/made/here")
        for path in ("/ny/tracking/moved", "/ny/tracking/made"):
            client.call(path, "DirectoryService.DeleteEntry", directory_pb2.DeleteEntryRequest())
            with pytest.raises(errors.Absent):
                client.resolve(path)


def test_a_write_through_a_link_lands_behind_it(standing: Federation) -> None:
    with begin_at(standing, "/ny") as client:
        answer = mkdir(client, "/either/by-link")
        assert answer.entry.path == "/la/tracking/by-link"
        # The link itself is what is removed, not what is behind it.
        link = entry_pb2.Entry(link=entry_pb2.Link(targets=["/la/tracking/search"]))
        made = directory_pb2.CreateEntryRequest(entry=link)
        client.call("/la/tracking/l", "DirectoryService.CreateEntry", made)
        assert client.resolve("/la/tracking/l").path == "/la/tracking/search"
        remove = directory_pb2.DeleteEntryRequest()
        client.call("/la/tracking/l", "DirectoryService.DeleteEntry", remove)
        with pytest.raises(errors.Absent):
            client.resolve("/la/tracking/l")
        assert client.resolve("/la/tracking/search").kind == "directory"


def test_a_mount_belongs_to_its_parent(standing: Federation) -> None:
    with begin_at(standing, "/ny") as client:
        get = directory_pb2.GetEntryRequest(kind=entry_pb2.ENTRY_KIND_MOUNT)
        entry = client.call("/la/tracking", "DirectoryService.GetEntry", get, at_parent=True).entry
        assert entry.mount.cluster_id == standing["/la/tracking"].cluster_id
        assert client.owner_of("/la/tracking").cluster == "la-tracking"


def test_a_token_of_the_future_is_waited_for_and_then_refused(standing: Federation) -> None:
    with begin_at(standing, "/la/tracking", timeout_seconds=2) as client:
        now = client.resolve("/la/tracking/search").authority
        later = Token.from_position(now.cluster.cluster_id, now.incarnation, now.revision + 1000)
        with pytest.raises((errors.TokenFromFuture, errors.Unreachable, errors.DeadlineExceeded)):
            client.resolve("/la/tracking/search", token=str(later))
        other_incarnation = Token.from_position(now.cluster.cluster_id, "another", 1)
        with pytest.raises(errors.TokenExpired):
            client.resolve("/la/tracking/search", token=str(other_incarnation))


def test_a_sites_own_paths_work_while_the_world_is_down(federation: Federation) -> None:
    federation["/"].kill()
    federation["/la"].kill()
    with begin_at(federation, "/la/tracking", timeout_seconds=3) as client:
        assert client.resolve("/la/tracking/search/web").kind == "directory"
        assert client.resolve("/ny/tracking/maps").cluster == "ny-tracking"
        federation["/ny"].kill()
        federation["/ny/tracking"].kill()
        with pytest.raises(errors.Unreachable) as caught:
            client.resolve("/ny/tracking/search")
        assert caught.value.metadata["mount"] == "/ny/tracking"
        assert client.resolve("/ny/tracking/maps").kind == "directory"  # still in memory
        listing = client.list("/la/tracking")
        assert [listed.path.name for listed in listing] == ["search"]
        with pytest.raises(errors.Unreachable):
            client.list("/ny/tracking")


def test_what_comes_back_is_found_again(federation: Federation) -> None:
    with begin_at(federation, "/la/tracking", timeout_seconds=3) as client:
        federation["/ny/tracking"].kill()
        with pytest.raises(errors.Unreachable):
            client.resolve("/ny/tracking/maps")
        federation["/ny/tracking"].start()
        assert eventually(lambda: client.resolve("/ny/tracking/maps")).kind == "directory"


def test_a_watch_survives_a_restart_of_its_server(federation: Federation) -> None:
    server = federation["/la/tracking"]
    with begin_at(federation, "/la", timeout_seconds=5) as client:
        watch = client.watch("/la/tracking", checkpoint_seconds=1)
        seen: list[WatchedChanges] = []
        thread = threading.Thread(target=lambda: seen.extend(watch))
        thread.start()
        eventually(lambda: seen)
        server.mkdir("/la/tracking/one")

        def paths() -> list[str]:
            return [event.path for changes in list(seen) for event in changes.events]

        eventually(lambda: "/la/tracking/one" in paths())
        server.kill()
        server.start()
        eventually(lambda: server.mkdir("/la/tracking/two"))
        eventually(lambda: "/la/tracking/two" in paths())
        watch.close()
        thread.join(20)
        assert not thread.is_alive()
        assert paths().count("/la/tracking/one") == 1
        assert paths().count("/la/tracking/two") == 1


def test_a_followed_memory_needs_no_call_and_sees_changes(federation: Federation) -> None:
    with begin_at(federation, "/la", watch=True) as client:
        first = client.resolve("/ny/tracking/maps")
        following = client.following
        assert following is not None
        eventually(lambda: following.is_following(first.cluster_id))
        assert client.resolve("/ny/tracking/maps") is first
        federation["/ny/tracking"].entries("DeleteEntry", path="/ny/tracking/maps")

        def is_gone() -> bool:
            try:
                client.resolve("/ny/tracking/maps")
            except errors.Absent:
                return True
            return False

        eventually(is_gone)
        federation["/ny/tracking"].mkdir("/ny/tracking/maps")
        again = eventually(lambda: client.resolve("/ny/tracking/maps"))
        assert again.entry.entry_id != first.entry.entry_id


@pytest.mark.parametrize("recursive", [False, True])
def test_closed_right_after_a_resolve_it_leaves_no_thread_and_no_error(
    standing: Federation, monkeypatch: pytest.MonkeyPatch, *, recursive: bool
) -> None:
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = set(threading.enumerate())

    def left() -> list[str]:
        names = (thread.name for thread in set(threading.enumerate()) - before)
        return [name for name in names if name.startswith(("follow-", "watch-"))]

    for number in range(30):
        with begin_at(standing, STARTS[number % 5], watch=True, recursive=recursive) as client:
            for path in ("/la", "/ny/tracking", "/la/tracking/search")[: number % 3 + 1]:
                client.resolve(path)
        eventually(lambda: not left())
    assert failed == []
