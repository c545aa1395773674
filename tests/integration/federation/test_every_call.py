"""Every call of the library from every start, with and without ``recursive``: one expectation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message
from kdir.v1 import access_pb2, directory_pb2, entry_pb2, policies_pb2, scan_pb2, watch_pb2

from deploy.local.ports import free_port
from resolver import Resolver, TopicLocation, errors
from resolver.access_requests import grants_of
from resolver.errors import KdirError
from resolver.path import Path as KdirPath
from tests.support.federation import Federation, Server, eventually

STARTS = ["/", "/la", "/la/deep", "/ny"]
Outcome = str | type[KdirError]


class Expected(NamedTuple):
    """Expected outcome of a path, wherever it is asked for."""

    path: str
    is_: Outcome
    """The canonical path, or the error."""
    owner: str = ""
    """Of which mount; for what is absent, where it would stand."""
    children: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        return isinstance(self.is_, str)


PATHS = [
    Expected("/here", "/here", "/", ("a",)),
    Expected("/here/a", "/here/a", "/"),
    Expected("/la/d", "/la/d", "/la", ("t", "x")),
    Expected("/la/d/x", "/la/d/x", "/la"),
    Expected("/la/deep", "/la/deep", "/la/deep", ("s",)),
    Expected("/la/deep/s/w", "/la/deep/s/w", "/la/deep"),
    Expected("/ny/e", "/ny/e", "/ny", ("x", "y")),
    Expected("/ny/e/y", "/ny/e/y", "/ny"),
    # Links of the root and of a sibling, to one target, to several, to links.
    Expected("/first", "/la/d", "/la", ("t", "x")),
    Expected("/first/x", "/la/d/x", "/la"),
    Expected("/union", "/la/d", "/la", ("t", "x", "y")),
    Expected("/union/x", "/la/d/x", "/la"),
    Expected("/union/y", "/ny/e/y", "/ny"),
    Expected("/la/side", "/ny/e", "/ny", ("x", "y")),
    Expected("/la/side/y", "/ny/e/y", "/ny"),
    Expected("/back/y", "/ny/e/y", "/ny"),
    Expected("/nested/a", "/here/a", "/"),
    # What is not there: in each cluster, and behind links.
    Expected("/none", errors.Absent, "/"),
    Expected("/la/none/x", errors.Absent, "/la"),
    Expected("/la/deep/none", errors.Absent, "/la/deep"),
    Expected("/ny/none", errors.Absent, "/ny"),
    Expected("/gone", errors.Absent, "/la"),
    Expected("/gone/x", errors.Absent, "/la"),
    Expected("/union/none", errors.Absent, "/la"),
    Expected("/la/side/none", errors.Absent, "/ny"),
    # And what nobody can be asked about.
    Expected("/dead", errors.Unreachable),
    Expected("/dead/x", errors.Unreachable),
]
NAMES = itertools.count()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("federation")) as made:
        root = made.start("/")
        # No broker is there: its topics wait to be made, and are found.
        kafka = {"bootstrap": f"127.0.0.1:{free_port()}", "ceiling": ["create"]}
        la, ny = made.join("/la", "/", kafka=kafka), made.join("/ny", "/")
        deep = made.join("/la/deep", "/la")
        root.mkdir("/here/a")
        la.mkdir("/la/d/x")
        topic = entry_pb2.Entry(topic=entry_pb2.Topic(physical_name="known-as"))
        la.entries("CreateEntry", path="/la/d/t", entry=topic)
        deep.mkdir("/la/deep/s/w")
        ny.mkdir("/ny/e/x")
        ny.mkdir("/ny/e/y")
        root.link("/first", "/la/d")
        root.link("/union", "/la/d", "/ny/e", mode=entry_pb2.LINK_MODE_UNION)
        root.link("/back", "/la/none", "/ny/e", fall_back_on_absent=True)
        root.link("/nested", "/union", "/here", fall_back_on_absent=True)
        root.link("/gone", "/la/none")
        la.link("/la/side", "/ny/e")
        made.join("/dead", "/").kill()
        for one, other in (("/ny", "/la/deep"), ("/la/deep", "/ny")):
            eventually(lambda one=one, other=other: other in made[one].mounted())  # type: ignore[misc]
        yield made


@pytest.fixture(params=itertools.product(STARTS, [False, True]), ids=lambda it: f"{it[0]}-{it[1]}")
def client(federation: Federation, request: pytest.FixtureRequest) -> Iterator[Resolver]:
    start, recursive = request.param
    server: Server = federation[start]
    with Resolver(server.address, recursive=recursive, timeout_seconds=20) as made:
        yield made


def output(call: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
    """Returns what it gives, or the kind of error that it raises."""
    try:
        return call(*arguments, **fields)
    except KdirError as error:
        return type(error)


def found(one: Any) -> Outcome:
    """Returns where it was found, or the kind of error."""
    if isinstance(one, TopicLocation):
        return one.path
    return one if isinstance(one, type) else type(one)


# -- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefer", ["", "directory"])
def test_resolve(client: Resolver, prefer: str) -> None:
    for one in PATHS:
        for _ in range(2):  # from memory, too
            assert found(output(client.resolve, one.path, prefer=prefer)) == one.is_, one


def test_resolve_for_writes(client: Resolver) -> None:
    for one in PATHS:
        assert found(output(client.resolve, one.path, for_writes=True)) == one.is_, one


def test_resolve_says_whose_it_is(client: Resolver) -> None:
    for one in PATHS:
        if one.exists:
            assert client.resolve(one.path).mount == one.owner
        elif one.is_ is errors.Absent:
            with pytest.raises(errors.Absent) as caught:
                client.resolve(one.path)
            assert caught.value.metadata["mount"] == one.owner, one


def test_resolve_many(client: Resolver) -> None:
    outcomes = client.resolve_many([one.path for one in PATHS])
    assert [found(outcome) for outcome in outcomes] == [one.is_ for one in PATHS]
    client.forget()
    for one in PATHS:
        assert [found(outcome) for outcome in client.resolve_many([one.path])] == [one.is_], one


def test_trace(client: Resolver) -> None:
    for one in PATHS:
        trace = client.trace(one.path)
        assert trace.steps
        if trace.error is not None:
            assert type(trace.error) is one.is_, one
        else:
            assert trace.location is not None
            assert trace.location.path == one.is_, one


def test_no_follow(client: Resolver) -> None:
    for path, kind in (("/first", "link"), ("/la/side", "link"), ("/here", "directory")):
        there = client.resolve(path, no_follow=True)
        assert (there.path, there.kind) == (path, kind)


def test_owner_of(client: Resolver) -> None:
    for one in PATHS:
        owner = output(client.owner_of, one.path)
        if not one.owner:
            assert owner is one.is_, one
            continue
        assert (str(owner.mount), owner.exists) == (one.owner, one.exists), one
        assert not one.exists or str(owner.path) == one.is_


def names(client: Resolver, path: str, **fields: Any) -> tuple[str, ...]:
    return tuple(entry.path.name for entry in client.list(path, **fields))


def test_list(client: Resolver) -> None:
    for one in PATHS:
        assert output(names, client, one.path) == (one.children if one.exists else one.is_), one


def test_list_all_below(client: Resolver) -> None:
    listing = client.list("/la", recursive=True)
    below = {str(entry.path) for entry in listing}
    assert {"/la/d/x", "/la/d/t", "/la/deep", "/la/deep/s/w", "/la/side"} <= below
    assert not listing.is_partial
    above = client.list("/", recursive=True)
    assert {"/ny/e/y", "/la/deep/s/w"} <= {str(entry.path) for entry in above}
    assert {str(gap.path) for gap in above.not_listed} == {"/dead"}


def test_which_returns_the_path_of_a_topic(client: Resolver, federation: Federation) -> None:
    for cluster in ("la", federation["/la"].cluster_id):
        assert client.which(cluster, "known-as").path == "/la/d/t"
        with pytest.raises(errors.Absent):
            client.which(cluster, "nothing")
    with pytest.raises(errors.NoRoute):
        client.which("no-such-cluster", "known-as")


def test_check(client: Resolver) -> None:
    for one in PATHS:
        # Of what is not there, too, it can be asked what one might do.
        checked = output(client.check, one.path, "User:alice", "read")
        if one.is_ is errors.Unreachable:
            assert checked is one.is_, one
        else:
            assert checked.allowed, one
    assert client.authorize_any("User:alice", "read")
    for path in ("/la/d", "/ny/e", "/first", "/la/side", "/"):
        assert client.authorize_any("User:alice", "read", path=path)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("DirectoryService.GetEntry", directory_pb2.GetEntryRequest()),
        ("PolicyService.GetEffectivePolicies", policies_pb2.GetEffectivePoliciesRequest()),
        ("AccessService.ListGrants", access_pb2.ListGrantsRequest()),
    ],
)
def test_calls_that_read_an_entry(client: Resolver, name: str, request_: Message) -> None:
    for one in PATHS:
        answer = output(client.call, one.path, name, request_)
        if one.exists:
            assert not isinstance(answer, type), (one, answer)
            if name == "DirectoryService.GetEntry":
                assert answer.entry.path == one.is_
        else:
            assert answer is one.is_, one


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("ScanService.ScanTopics", scan_pb2.ScanTopicsRequest()),
        ("WatchService.ListChanges", watch_pb2.ListChangesRequest()),
        ("DirectoryService.ListEntries", directory_pb2.ListEntriesRequest()),
    ],
)
def test_calls_that_read_below(client: Resolver, name: str, request_: Message) -> None:
    for path in ("/here", "/la/d", "/la/deep", "/ny/e", "/first", "/la/side"):
        client.call(path, name, request_)
    with pytest.raises(errors.Unreachable):
        client.call("/dead/x", name, request_)


# -- changing ---------------------------------------------------------------------------------


def new_name() -> str:
    return f"new-{next(NAMES)}"


def mkdir(client: Resolver, path: str, **fields: Any) -> Any:
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(entry=entry, **fields)
    return client.call(path, "DirectoryService.CreateEntry", request)


def set_owner(client: Resolver, path: str, owner: str) -> Any:
    request = directory_pb2.UpdateEntryRequest(
        entry=entry_pb2.Entry(policies={"owner": owner}),
        update_mask={"paths": ["policies.owner"]},
    )
    return client.call(path, "DirectoryService.UpdateEntry", request)


def remove(client: Resolver, path: str) -> Any:
    return client.call(path, "DirectoryService.DeleteEntry", directory_pb2.DeleteEntryRequest())


PLACES = [("/here", "/here"), ("/la/d", "/la/d"), ("/la/deep/s", "/la/deep/s"), ("/ny/e", "/ny/e")]
PLACES += [("/first", "/la/d"), ("/la/side", "/ny/e"), ("/union", "/la/d")]


@pytest.mark.parametrize(("place", "canonical"), PLACES)
def test_a_directory_from_creation_to_removal(client: Resolver, place: str, canonical: str) -> None:
    """Made, seen, set, granted on, moved, linked to and removed, all at once by what was read."""
    name, moved = new_name(), new_name()
    path, there = f"{place}/{name}", f"{canonical}/{name}"
    with pytest.raises(errors.Absent):
        client.resolve(path)
    assert mkdir(client, path).entry.path == there
    with pytest.raises(errors.AlreadyExists):
        mkdir(client, path)
    assert client.resolve(path).path == there
    assert name in [entry.path.name for entry in client.list(place)]

    set_owner(client, path, "somebody")
    effective = client.resolve(path).effective
    assert effective is not None
    assert effective.owner == "somebody"

    grants = grants_of("alice", ["read"])
    add = access_pb2.AddGrantsRequest(grants=grants)
    assert len(client.call(path, "AccessService.AddGrants", add).added) == 1
    assert client.check(path, "alice", "read", prefer="directory").deciding_path == there
    less = access_pb2.RemoveGrantsRequest(grants=grants)
    assert len(client.call(path, "AccessService.RemoveGrants", less).removed) == 1

    link = entry_pb2.Entry(link=entry_pb2.Link(targets=[there]))
    request = directory_pb2.CreateEntryRequest(entry=link)
    client.call(f"{place}/{name}-link", "DirectoryService.CreateEntry", request)
    assert client.resolve(f"{place}/{name}-link").path == there
    remove(client, f"{place}/{name}-link")
    with pytest.raises(errors.Absent):
        client.resolve(f"{place}/{name}-link")

    move = directory_pb2.MoveEntryRequest(new_path=f"{place}/{moved}")
    client.call(path, "DirectoryService.MoveEntry", move)
    with pytest.raises(errors.Absent):
        client.resolve(path)
    assert client.resolve(f"{place}/{moved}").path == f"{canonical}/{moved}"
    remove(client, f"{place}/{moved}")
    with pytest.raises(errors.Absent):
        client.resolve(f"{place}/{moved}")
    assert client.resolve(place).kind == "directory"


def test_what_cannot_be_changed_is_refused_alike(client: Resolver) -> None:
    for one in PATHS:
        if one.is_ is errors.Absent:
            assert output(set_owner, client, one.path, "x") is errors.Absent, one
            assert output(mkdir, client, f"{one.path}/x/y") is errors.InvalidNamespace, one
        elif one.is_ is errors.Unreachable:
            assert output(set_owner, client, one.path, "x") is errors.Unreachable, one
            assert output(mkdir, client, f"{one.path}/x/y") is errors.Unreachable, one
    across = directory_pb2.MoveEntryRequest(new_path="/ny/e/z")
    with pytest.raises(errors.CrossMount):
        client.call("/la/d/x", "DirectoryService.MoveEntry", across)


# -- following --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/here", "/la/d", "/la/deep/s", "/ny/e"])
def test_watch(client: Resolver, federation: Federation, place: str) -> None:
    path = f"{place}/{new_name()}"
    watch = client.watch(place, checkpoint_seconds=1)
    try:
        changes = iter(watch)
        next(changes)  # it stands
        mkdir(client, path)
        events = (event.path for some in changes for event in some.events)
        assert path in events
    finally:
        watch.close()
        remove(client, path)


@pytest.mark.parametrize("place", ["/here", "/la/d", "/la/deep/s", "/ny/e"])
def test_follow(client: Resolver, federation: Federation, place: str) -> None:
    client.follow(place)
    following = client.following
    assert following is not None
    owner = client.owner_of(place)
    eventually(lambda: following.is_following(owner.cluster_id))
    path = KdirPath.parse(place).child(new_name())
    assert output(client.resolve, path) is errors.Absent
    mount = str(owner.mount)
    federation[mount].mkdir(str(path))  # by somebody else
    eventually(lambda: client.resolve(path).path == str(path))
    federation[mount].entries("DeleteEntry", path=str(path))
    eventually(lambda: output(client.resolve, path) is errors.Absent)


# -- reading at a token -----------------------------------------------------------------------


def test_a_token_of_the_cluster_that_has_the_link(
    client: Resolver, federation: Federation, tmp_path: Path
) -> None:
    """Links and what stands in their place, changed by somebody else: seen with the token."""
    root, path = federation["/"], f"/{new_name()}"
    for _ in range(3):
        token = root.link(path, "/la/d/x").token
        assert client.resolve(path, token=token).path == "/la/d/x"
        assert [found(one) for one in client.resolve_many([path], token=token)] == ["/la/d/x"]
        root.entries("DeleteEntry", path=path)
        token = root.mkdir(path).token
        assert client.resolve(path, token=token).path == path
        assert [found(one) for one in client.resolve_many([path], token=token)] == [path]
        assert client.check(path, "alice", "read", token=token).allowed
        assert names(client, path, token=token) == ()
        token = root.entries("DeleteEntry", path=path).token
        assert output(client.resolve, path, token=token) is errors.Absent


def test_a_token_of_the_cluster_that_had_the_mount(federation: Federation) -> None:
    """What stands where a cluster was mounted is seen with the token of who made it there, whatever
    was remembered of the mount, and whatever mount tables still say.
    """
    root = federation["/"]
    federation.join("/brief", "/").mkdir("/brief/b")
    for mount in STARTS:
        eventually(partial(lambda at: "/brief" in federation[at].mounted(), mount))
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                Resolver(federation[mount].address, recursive=recursive, timeout_seconds=20)
            )
            for mount, recursive in itertools.product(STARTS, [False, True])
        ]
        for client in clients:
            assert client.resolve("/brief/b").mount == "/brief"
        root.entries("DeleteEntry", path="/brief", kind=entry_pb2.ENTRY_KIND_MOUNT)
        token = root.mkdir("/brief/b").token
        for client in clients:
            there = client.resolve("/brief/b", token=token)
            assert there.mount == "/"
            (there,) = client.resolve_many(["/brief/b"], token=token)  # type: ignore[assignment]
            assert there.mount == "/"
            assert client.owner_of("/brief/b").path == KdirPath.parse("/brief/b")
            assert names(client, "/brief", token=token) == ("b",)
