"""A remembered answer is good for a token only if every cluster on its way is at or beyond it."""

from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any

import pytest
from kdir.v1 import directory_pb2, entry_pb2, resolve_pb2

from resolver import Resolver, TopicLocation, errors
from resolver.errors import KdirError
from resolver.path import Path
from resolver.revision_token import NOTHING_READ, Position, ReadPositions, Token
from resolver.testing import MemoryDirectory


def at(**revisions: int) -> ReadPositions:
    return ReadPositions({name: Position("i", place) for name, place in revisions.items()})


def wanted(**revisions: int) -> dict[str, Position]:
    return dict(at(**revisions).positions)


def test_each_position_of_a_token_is_compared() -> None:
    read = at(a=3, b=5)
    assert read.reaches({})
    assert read.reaches(wanted(a=3, b=4, c=9))
    assert not read.reaches(wanted(a=3, b=6))
    assert not read.reaches({"a": Position("another life", 1)})
    assert not read.incomplete().reaches(wanted(c=1))
    assert read.incomplete().reaches(wanted(a=3))


def test_of_two_positions_of_a_cluster_the_earlier_counts() -> None:
    assert at(a=3, b=5).joined(at(b=4, c=1)) == at(a=3, b=4, c=1)
    assert not at(a=3).joined(NOTHING_READ.incomplete()).is_complete
    two_incarnations = at(a=3).joined(ReadPositions({"a": Position("later", 1)}))
    assert two_incarnations == at(a=3)


def test_what_is_followed_may_be_advanced_within_its_incarnation() -> None:
    assert at(a=3, b=1).advanced("a", Position("i", 7)) == at(a=7, b=1)
    assert at(a=3).advanced("a", Position("other", 7)) == at(a=3)
    assert at(a=3).advanced("b", Position("i", 7)) == at(a=3)


# -- over a federation ------------------------------------------------------------------------


class World:
    def __init__(self, directory: MemoryDirectory) -> None:
        self.directory = directory

    def token(self, mount: str = "/") -> str:
        """Returns a token of the cluster's current revision."""
        cluster = self.directory.at(mount)
        return str(Token.from_position(cluster.cluster_id, "memory", cluster.revision))

    def umount(self, mount: str) -> None:
        """Removes the mount from its parent; the child's server is not notified."""
        self.directory.unmount(mount)


@pytest.fixture
def world() -> Iterator[World]:
    with MemoryDirectory() as directory:
        directory.cluster("/", "root")
        directory.cluster("/m1", "m1")
        directory.cluster("/m2", "m2")
        directory.topic("/m2/target")
        yield World(directory)


Find = Callable[[Resolver, str, str], TopicLocation]


def one(resolver: Resolver, path: str, token: str) -> TopicLocation:
    return resolver.resolve(path, token=token)


def many(resolver: Resolver, path: str, token: str) -> TopicLocation:
    (found,) = resolver.resolve_many([path], token=token)
    if isinstance(found, KdirError):
        raise found
    return found


@pytest.mark.parametrize("find", [one, many])
@pytest.mark.parametrize("start", ["/", "/m1", "/m2"])
def test_a_removed_link_does_not_answer_for_a_later_token(
    world: World, start: str, find: Find
) -> None:
    world.directory.link("/x", "/m2/target")
    resolver = world.directory.resolver(start)
    before = world.token()
    assert find(resolver, "/x", "").path == "/m2/target"
    world.directory.remove("/x")
    world.directory.mkdir("/x")
    assert find(resolver, "/x", before).path == "/m2/target"
    assert find(resolver, "/x", world.token()).path == "/x"


@pytest.mark.parametrize("find", [one, many])
@pytest.mark.parametrize("start", ["/", "/m1", "/m2"])
def test_an_absence_behind_a_removed_link_does_not(world: World, start: str, find: Find) -> None:
    world.directory.link("/x", "/m2/none")
    resolver = world.directory.resolver(start)
    with pytest.raises(errors.Absent):
        find(resolver, "/x", "")
    before = world.token()
    world.directory.transport.calls.clear()
    with pytest.raises(errors.Absent):
        find(resolver, "/x", before)
    assert not world.directory.transport.calls, "an absence is as good for a token as an answer"
    world.directory.remove("/x")
    world.directory.mkdir("/x")
    assert find(resolver, "/x", world.token()).path == "/x"


@pytest.mark.parametrize("find", [one, many])
def test_an_earlier_target_of_a_union_that_has_the_name_by_now(world: World, find: Find) -> None:
    world.directory.link("/u", "/m1", "/m2", union=True)
    resolver = world.directory.resolver()
    assert find(resolver, "/u/target", "").path == "/m2/target"
    world.directory.topic("/m1/target")
    assert find(resolver, "/u/target", world.token("/m1")).path == "/m1/target"


@pytest.mark.parametrize("find", [one, many])
@pytest.mark.parametrize("path", ["/m2/target", "/m2/other"])
def test_a_mount_that_is_gone_does_not_answer_for_a_later_token(
    world: World, path: str, find: Find
) -> None:
    """Neither what was remembered of it nor the way there, which was remembered too."""
    resolver = world.directory.resolver()
    assert find(resolver, "/m2/target", "").cluster == "m2"
    world.umount("/m2")
    world.directory.mkdir(path)
    found = find(resolver, path, world.token())
    assert (found.cluster, found.kind) == ("root", "directory")


def test_what_a_cluster_on_the_way_has_to_do_with_it_is_not_forgotten_on_disk(
    world: World, tmp_path: File
) -> None:
    file = tmp_path / "cache"
    with world.directory.resolver(cache_file=file) as resolver:
        resolver.resolve("/m2/target")
    before = world.token()
    world.umount("/m2")
    world.directory.mkdir("/m2/target")
    with world.directory.resolver(cache_file=file) as resolver:
        assert resolver.resolve("/m2/target", token=before).cluster == "m2"
        assert resolver.resolve("/m2/target", token=world.token()).cluster == "root"


def test_while_the_owner_is_away_no_older_answer_is_given_for_a_token(world: World) -> None:
    world.directory.link("/x", "/m2/target")
    now = [1000.0]
    resolver = world.directory.resolver(clock=lambda: now[0])
    resolver.resolve("/x")
    before = world.token()
    world.directory.mkdir("/other")
    for mount in ("/", "/m2"):
        world.directory.stop(mount)
    now[0] += 100
    assert resolver.resolve("/x", token=before).stale
    with pytest.raises(errors.Unreachable):
        resolver.resolve("/x", token=world.token())


# -- what one wrote oneself -------------------------------------------------------------------


class Writable:
    """The root of a federation in memory, with the calls that change it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._real = world.directory.at("/").answer
        world.directory.transport.serve(world.directory.at("/").endpoint, self.answer)

    def answer(self, method: str, request: Any) -> Any:
        if method == "ResolveService.Resolve" and request.recursive:
            return self.walk(request)
        if method == "DirectoryService.DeleteEntry":
            if request.path in self._world.directory.mounts:
                self._world.umount(request.path)
            else:
                self._world.directory.remove(request.path)
            return directory_pb2.DeleteEntryResponse(token=self._world.token())
        if method == "DirectoryService.CreateEntry":
            self._world.directory.mkdir(request.path)
            return directory_pb2.CreateEntryResponse(token=self._world.token())
        return self._real(method, request)

    def walk(self, request: Any) -> resolve_pb2.ResolveResponse:
        """Resolves to the end for the caller, who learns no link on the way."""
        request.recursive = False
        response: resolve_pb2.ResolveResponse = self._real("ResolveService.Resolve", request)
        try:
            found = self._world.directory.resolver().resolve(request.path)
        except errors.Absent:
            response.outcome.absent.lifetime_seconds = 5
        else:
            response.authority.CopyFrom(found.authority)
            response.outcome.resolution.CopyFrom(found.resolution)
        return response


def remove(resolver: Resolver, path: str) -> None:
    request = directory_pb2.DeleteEntryRequest()
    resolver.call(path, "DirectoryService.DeleteEntry", request, at_parent=True)


def mkdir(resolver: Resolver, path: str) -> None:
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(entry=entry)
    resolver.call(path, "DirectoryService.CreateEntry", request, at_parent=True)


def test_own_changes_of_a_link_in_the_middle_of_the_way_are_read(world: World) -> None:
    world.directory.link("/a", "/x")
    world.directory.link("/x", "/m2/target")
    Writable(world)
    resolver = world.directory.resolver()
    assert resolver.resolve("/a").path == "/m2/target"
    remove(resolver, "/x")
    mkdir(resolver, "/x")
    assert resolver.resolve("/a").path == "/x"


@pytest.mark.parametrize("restarts", [False, True])
def test_own_changes_are_read_behind_links_that_a_server_followed(
    world: World, tmp_path: File, restarts: bool
) -> None:
    world.directory.mkdir("/a")
    world.directory.topic("/b/x")
    world.directory.link("/l", "/a", "/b", union=True)
    Writable(world)
    file = tmp_path / "cache"
    resolver = world.directory.resolver(recursive=True, cache_file=file)
    assert resolver.resolve("/l/x").path == "/b/x"
    with pytest.raises(errors.Absent):
        resolver.resolve("/l/y")
    if restarts:
        resolver.close()
        resolver = world.directory.resolver(recursive=True, cache_file=file)
        assert resolver.cache.answers["/l/x"].canonical == Path.parse("/b/x")
    mkdir(resolver, "/a/x")
    mkdir(resolver, "/a/y")
    assert resolver.resolve("/l/x").path == "/a/x"
    assert resolver.resolve("/l/y").path == "/a/y"


def test_what_a_server_found_without_links_stays_remembered_after_a_change(world: World) -> None:
    Writable(world)
    resolver = world.directory.resolver(recursive=True)
    first = resolver.resolve("/m2/target")
    mkdir(resolver, "/new")
    assert resolver.resolve("/m2/target") is first


def test_own_changes_of_a_mount_are_read(world: World) -> None:
    Writable(world)
    resolver = world.directory.resolver()
    assert resolver.resolve("/m2/target").cluster == "m2"
    remove(resolver, "/m2")
    mkdir(resolver, "/m2")
    assert resolver.resolve("/m2").cluster == "root"
    with pytest.raises(errors.Absent) as caught:
        resolver.resolve("/m2/target")
    assert caught.value.metadata["cluster_id"] == "kc-root"


def test_what_lies_elsewhere_stays_remembered_after_a_change(world: World) -> None:
    Writable(world)
    resolver = world.directory.resolver()
    first = resolver.resolve("/m2/target")
    mkdir(resolver, "/new")
    assert resolver.resolve("/m2/target") is first


def test_a_change_elsewhere_in_a_cluster_on_the_way_does_not_keep_answers_from_being_kept(
    world: World,
) -> None:
    """The way there was learned before the change, and is still followed."""
    world.directory.topic("/m2/another")
    Writable(world)
    resolver = world.directory.resolver()
    resolver.resolve("/m2/target")
    mkdir(resolver, "/new")
    first = resolver.resolve("/m2/another")
    world.directory.transport.calls.clear()
    assert resolver.resolve("/m2/another") is first
    assert not world.directory.transport.calls
