"""Watching: nothing lost, nothing twice, resumed where it broke; and the memory that it feeds."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
from kdir.v1 import entry_pb2, resolve_pb2, watch_pb2

from resolver import Resolver, errors, watch_streams
from resolver.answer_cache import FreshnessMark
from resolver.errors import KdirError
from resolver.owner_calls import Owner
from resolver.path import Path
from resolver.revision_token import Position, Token
from resolver.testing import MemoryDirectory, MemoryTransport
from resolver.watch_streams import CHECKPOINT_SECONDS, FollowedCluster, Watching
from tests.support.federation import eventually

ID = "kc-root"


def token(revision: int, incarnation: str = "memory") -> str:
    return str(Token.from_position(ID, incarnation, revision))


def event(
    path: str,
    revision: int,
    kind: int = entry_pb2.ENTRY_KIND_TOPIC,
    action: int = watch_pb2.CHANGE_ACTION_UPDATE,
    before: str = "",
) -> watch_pb2.ChangeEvent:
    made = watch_pb2.ChangeEvent(path=path, path_before=before, revision=revision)
    made.kind = kind  # type: ignore[assignment] # enums travel as numbers
    made.action = action  # type: ignore[assignment] # the same
    return made


class Log:
    """A server with a log of changes, whose stream breaks where the test says."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.breaks: list[int | KdirError] = []
        self.refusals: list[KdirError | None] = []
        """Of each stream, before its first answer."""
        self.after: list[int] = []
        self.checkpoint_seconds: list[int] = []
        self.held = threading.Event()
        self.cluster_id = ID

    def watch(self, request: watch_pb2.WatchRequest) -> Iterator[watch_pb2.WatchResponse]:
        place = Token.parse(request.after_token).positions.get(ID)
        start = place.revision if place is not None else 0
        self.after.append(start)
        self.checkpoint_seconds.append(request.checkpoint_seconds)
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal
        authority = resolve_pb2.Authority(cluster=entry_pb2.Cluster(cluster_id=self.cluster_id))
        yield watch_pb2.WatchResponse(token=token(start), authority=authority)
        stop = self.breaks.pop(0) if self.breaks else None
        if isinstance(stop, KdirError):
            raise stop
        for revision in range(start + 1, self.count + 1):
            if stop is not None and revision > stop:
                raise errors.Unreachable("the connection broke")
            yield watch_pb2.WatchResponse(
                events=[event(f"/t{revision}", revision)], token=token(revision)
            )
        self.held.wait(20)


def watching(log: Log, servers: int = 1, **options: Any) -> Watching:
    transport = MemoryTransport()
    endpoints = tuple(f"127.0.0.1:{20_000 + n}" for n in range(servers))
    for endpoint in endpoints:
        transport.serve(endpoint, lambda _, request: log.watch(request))
    owner = Owner(Path(), True, "root", ID, Path(), endpoints, "directory")
    return Watching(Path(), options.pop("after", ""), lambda _: owner, transport, **options)


def revisions(watch: Watching, upto: int) -> list[int]:
    seen: list[int] = []
    for changes in watch:
        seen += [one.revision for one in changes.events]
        if seen and seen[-1] == upto:
            watch.close()
    return seen


def test_a_stream_that_breaks_is_resumed_without_loss_or_repetition() -> None:
    log = Log(10)
    log.breaks = [3, 3, 7]
    assert revisions(watching(log, servers=2), 10) == list(range(1, 11))
    assert log.after == [0, 3, 3, 7]


def test_a_watch_goes_on_after_the_token_it_is_given() -> None:
    assert revisions(watching(Log(10), after=token(8)), 10) == [9, 10]


def test_a_watch_from_now_on_begins_when_it_is_made() -> None:
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/")
        directory.topic("/orders")
        answer, asked = directory.transport.handler(endpoint), []

        def handle(method: str, request: Any) -> Any:
            if method != "WatchService.Watch":
                return answer(method, request)
            asked.append(Token.parse(request.after_token).positions)
            return iter([watch_pb2.WatchResponse(token=token(9))])

        directory.transport.serve(endpoint, handle)
        resolver = directory.resolver()
        cluster = directory.at("/")
        made = resolver.watch("/orders")
        expected = {cluster.cluster_id: Position("memory", cluster.revision)}
        directory.topic("/orders/new")  # before the first iteration
        cluster.revision += 1
        next(iter(made))
        made.close()
        assert asked == [expected]


def test_without_seconds_between_checkpoints_a_watch_has_the_default_ones() -> None:
    log = Log(3)
    assert revisions(watching(log, checkpoint_seconds=0), 3) == [1, 2, 3]
    assert log.checkpoint_seconds == [CHECKPOINT_SECONDS]


@pytest.mark.parametrize("seconds", [-1, 2**32])
def test_seconds_between_checkpoints_that_no_request_can_hold_are_refused(seconds: int) -> None:
    with MemoryDirectory() as directory:
        directory.cluster("/")
        with pytest.raises(errors.InvalidArgument, match=f"checkpoint_seconds: found {seconds}; "):
            directory.resolver().watch("/", checkpoint_seconds=seconds)


def test_a_server_that_stays_behind_the_token_is_left_for_another() -> None:
    log = Log(10)
    log.breaks = [errors.TokenFromFuture("revision 8 did not arrive in time")]
    assert revisions(watching(log, servers=2, after=token(8)), 10) == [9, 10]
    assert log.after == [8, 8]


def test_a_watch_that_reconnects_waits_for_a_free_stream() -> None:
    log = Log(10)
    log.breaks = [3]
    log.refusals = [None, errors.LimitExceeded("limits.max_streams: 2000 are open")]
    assert revisions(watching(log, servers=2), 10) == list(range(1, 11))
    assert log.after == [0, 3, 3]


@pytest.mark.parametrize(
    "kind",
    [
        errors.LimitExceeded,
        errors.Resync,
        errors.PermissionDenied,
        errors.TokenExpired,
        errors.InvalidToken,
        errors.Closed,
    ],
)
def test_what_trying_again_does_not_mend_ends_it(kind: type[KdirError]) -> None:
    log = Log(3)
    log.refusals = [kind("no")]
    with pytest.raises(kind):
        list(watching(log))


def test_a_watch_of_a_closed_resolver_ends() -> None:
    client = Resolver(["127.0.0.1:1"])
    owner = Owner(Path(), True, "root", ID, Path(), ("127.0.0.1:1",), "directory")
    watch = Watching(Path(), "", lambda _: owner, client.transport)
    client.close()
    with pytest.raises(errors.Closed):
        list(watch)


def test_another_cluster_at_the_address_is_not_believed() -> None:
    log = Log(3)
    log.cluster_id = "kc-other"
    watch = watching(log)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(watch))
    thread.start()
    eventually(lambda: len(log.after) > 1)
    watch.close()
    thread.join(20)
    assert not thread.is_alive()
    assert seen == []


@pytest.mark.parametrize("second", [("kc-other", "/"), (ID, "/other")])
def test_a_path_that_comes_to_lead_elsewhere_resyncs(second: tuple[str, str]) -> None:
    """A token is no place in the changes of another cluster, nor in those of another directory."""
    log, transport = Log(3), MemoryTransport()
    log.breaks = [2]
    transport.serve("127.0.0.1:20000", lambda _, request: log.watch(request))
    owners = iter(
        Owner(Path.parse(at), True, one, one, Path(), ("127.0.0.1:20000",), "directory")
        for one, at in ((ID, "/"), second)
    )
    watch = Watching(Path(), "", lambda _: next(owners), transport)
    seen: list[int] = []

    def look() -> None:
        for changes in watch:
            log.cluster_id = second[0]
            seen.extend(one.revision for one in changes.events)

    with pytest.raises(
        errors.Resync, match=f"{second[1]} of cluster {second[0]} now, before / of {ID}"
    ):
        look()
    assert seen == [1, 2]
    assert log.after == [0]


def watching_la(*events: watch_pb2.ChangeEvent) -> tuple[Watching, list[str]]:
    """Returns a watch of /la/x, whose cluster is mounted at /la and reports these changes; and the
    tokens of its requests.
    """
    transport, asked = MemoryTransport(), []

    def answer(_: str, request: watch_pb2.WatchRequest) -> Iterator[watch_pb2.WatchResponse]:
        asked.append(request.after_token)
        yield watch_pb2.WatchResponse(token=token(1))
        yield watch_pb2.WatchResponse(events=events, token=token(2))

    transport.serve("127.0.0.1:20000", answer)
    path, mount = Path.parse("/la/x"), Path.parse("/la")
    owner = Owner(path, True, "la", ID, mount, ("127.0.0.1:20000",), "directory")
    return Watching(path, "", lambda _: owner, transport), asked


@pytest.mark.parametrize(
    ("path", "before"),
    [("/ny/t", ""), ("/", ""), ("/lax/t", ""), ("/ny/t", "/la/x/t"), ("/la/x/t", "/ny/t"),
     ("/la/x/../../ny", ""), ("", ""), ("", "/la/x/t")],
)  # fmt: skip
def test_R5_a_watch_ends_where_a_cluster_reports_changes_of_others(path: str, before: str) -> None:
    watch, asked = watching_la(event("/la/x/a", 2), event(path, 2, before=before))
    changes = iter(watch)
    assert next(changes).token == token(1)
    with pytest.raises(errors.Lame, match=f"la: reports a change at {path!r}"):
        next(changes)
    assert (asked, watch.token) == ([""], token(1))


def test_a_watch_has_what_came_from_or_went_elsewhere_below_the_mount() -> None:
    """Also where a directory above the path is removed, or what was removed is collected."""
    moved = [("/la/x/t", "/la/y/t"), ("/la/y/t", "/la/x/t"), ("/la/__deleted/1", "/la/x")]
    events = [event(path, 2, before=before) for path, before in moved] + [event("/la", 2)]
    watch, _ = watching_la(*events)
    changes = iter(watch)
    next(changes)
    assert list(next(changes).events) == events
    watch.close()


def test_R5_what_was_removed_before_a_mount_was_moved_is_reported_without_its_former_path() -> None:
    changes = iter(watching_la(event("/la/__deleted/1", 2, before="/old/x"))[0])
    next(changes)
    assert list(next(changes).events) == [event("/la/__deleted/1", 2)]
    refused = event("/la/__deleted/1", 2, before="/old/x")
    refused.after.etag = "1"  # what is removed has no state afterwards
    changes = iter(watching_la(refused)[0])
    next(changes)
    with pytest.raises(errors.Lame, match="before at '/old/x'"):
        next(changes)


def test_a_server_that_falls_silent_is_left() -> None:
    now = [0.0]
    silent = threading.Event()
    calls: list[int] = []

    class Silent(MemoryTransport):
        def stream(self, endpoint: str, method: Any, request: Any, *, cluster_id: str = "") -> Any:
            return SilentStream()

    class SilentStream:
        def __init__(self) -> None:
            self.ended = threading.Event()
            calls.append(1)

        def __iter__(self) -> Iterator[Any]:
            silent.set()
            if self.ended.wait(20):
                raise errors.Cancelled("ended")
            yield

        def cancel(self) -> None:
            self.ended.set()

    owner = Owner(Path(), True, "root", ID, Path(), ("127.0.0.1:20000",), "directory")
    watch = Watching(
        Path(), "", lambda _: owner, Silent(), checkpoint_seconds=1, clock=lambda: now[0]
    )
    thread = threading.Thread(target=lambda: list(watch))
    thread.start()
    assert silent.wait(20)
    now[0] = 100.0
    eventually(lambda: len(calls) > 1)
    watch.close()
    thread.join(20)
    assert not thread.is_alive()


def test_one_that_is_closed_while_it_connects_ends() -> None:
    """Between the look whether it is closed and there being a stream that could be cancelled."""

    class Connecting(MemoryTransport):
        def __init__(self) -> None:
            super().__init__()
            self.cancelled = threading.Event()

        def stream(self, endpoint: str, method: Any, request: Any, *, cluster_id: str = "") -> Any:
            watch.close()
            return self

        def __iter__(self) -> Iterator[Any]:
            assert self.cancelled.wait(20), "nobody ends it"
            yield from ()
            raise errors.Cancelled("ended")

        def cancel(self) -> None:
            self.cancelled.set()

    transport = Connecting()
    owner = Owner(Path(), True, "root", ID, Path(), ("127.0.0.1:20000",), "directory")
    watch = Watching(Path(), "", lambda _: owner, transport)
    assert list(watch) == []
    assert transport.cancelled.is_set()


# -- the memory that it feeds ------------------------------------------------------------------


class Live:
    """A directory in memory whose root streams the changes that the test makes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.directory = MemoryDirectory()
        self.directory.cluster("/")
        self.cluster = self.directory.at("/")
        self.streams: list[list[watch_pb2.WatchResponse | KdirError]] = []
        self.after: list[str] = []
        self.refusal: KdirError | None = None
        """What all but the streams is answered with."""
        self.stream_refusal: KdirError | None = None
        """What each stream is answered with."""
        self.bootstrap = "old:9092"
        self.stale = False
        self.directory.transport.serve(self.cluster.endpoint, self.answer)
        self._news = threading.Condition()
        self._ended = False

    def answer(self, method: str, request: Any) -> Any:
        if method != "WatchService.Watch":
            if self.refusal is not None:
                raise self.refusal
            response = self.cluster.answer(method, request)
            if method == "ResolveService.Resolve":
                response.authority.cluster.CopyFrom(self.config(response.authority.cluster))
                response.authority.stale = self.stale
            return response
        self.after.append(request.after_token)
        if self.stream_refusal is not None:
            raise self.stream_refusal
        return self.stream(request.after_token)

    def config(self, cluster: entry_pb2.Cluster) -> entry_pb2.Cluster:
        """Returns the cluster with the brokers of the server's config."""
        listener = entry_pb2.Listener(
            name="memory",
            bootstrap_servers=[self.bootstrap],
            security_protocol="PLAINTEXT",
        )
        copy = entry_pb2.Cluster()
        copy.CopyFrom(cluster)
        del copy.listeners[:]
        copy.listeners.append(listener)
        return copy

    def stream(self, after: str) -> Iterator[watch_pb2.WatchResponse]:
        queue: list[watch_pb2.WatchResponse | KdirError] = []
        self.streams.append(queue)
        yield watch_pb2.WatchResponse(
            token=after or token(self.cluster.revision),
            authority=resolve_pb2.Authority(cluster=self.config(entry_pb2.Cluster(cluster_id=ID))),
        )
        while True:
            with self._news:
                if not self._news.wait_for(lambda: bool(queue) or self._ended, 20):
                    return
                if self._ended:
                    return
            output = queue.pop(0)
            if isinstance(output, KdirError):
                raise output
            yield output

    def report(self, *events: watch_pb2.ChangeEvent, incarnation: str = "memory") -> None:
        output = watch_pb2.WatchResponse(
            events=events, token=token(self.cluster.revision, incarnation)
        )
        with self._news:
            self.streams[-1].append(output)
            self._news.notify_all()

    def fail(self, error: KdirError) -> None:
        with self._news:
            self.streams[-1].append(error)
            self._news.notify_all()

    def end(self) -> None:
        """Ends all streams, so that no caller that closes has to wait for one."""
        with self._news:
            self._ended = True
            self._news.notify_all()

    def resolver(self, **options: Any) -> Resolver:
        return self.directory.resolver(clock=lambda: self.now, **options)

    def calls(self) -> int:
        made = [one for one in self.directory.transport.calls if "Watch" not in one[1]]
        self.directory.transport.calls.clear()
        return len(made)


@pytest.fixture
def live() -> Iterator[Live]:
    made = Live()
    made.directory.topic("/a/b")
    made.directory.topic("/a/c")
    made.directory.mkdir("/d")
    with made.directory:
        yield made
        made.end()


def followed(live: Live, client: Resolver) -> FollowedCluster:
    """Returns the cluster once its changes come."""
    following = client.following
    assert following is not None
    eventually(lambda: following.is_following(ID))
    cluster = following.followed(ID)
    assert cluster is not None
    return cluster


def test_what_is_followed_is_warm_for_longer_than_its_lifetime(live: Live) -> None:
    client = live.resolver(watch=True)
    first = client.resolve("/a/b")
    cluster = followed(live, client)
    live.calls()
    for _ in range(20):
        live.now += 10
        live.report()
        eventually(lambda: cluster.followed.until > live.now)
        assert client.resolve("/a/b") is first
    assert live.calls() == 0


def test_a_change_is_seen_and_only_that(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    other = client.resolve("/a/c")
    live.directory.topic("/a/b", partitions=7)
    live.report(event("/a/b", live.cluster.revision))
    eventually(lambda: client.resolve("/a/b").partitions == 7)
    live.calls()
    assert client.resolve("/a/c") is other
    assert live.calls() == 0


@pytest.mark.parametrize("kind", [entry_pb2.ENTRY_KIND_DIRECTORY, entry_pb2.ENTRY_KIND_MOUNT])
def test_a_change_of_a_directory_concerns_all_below_it(live: Live, kind: int) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    client.resolve("/a/c")
    client.resolve("/d")
    live.cluster.revision += 1
    live.report(event("/moved", live.cluster.revision, kind=kind, before="/a"))
    eventually(lambda: "/a/b" not in client.cache.answers)
    assert "/a/c" not in client.cache.answers
    assert "/d" in client.cache.answers


@pytest.mark.parametrize("is_moved", [False, True])
def test_R21_after_the_report_of_an_unmount_the_former_child_is_not_asked(
    live: Live, is_moved: bool
) -> None:
    """The child is cut off: it still answers for its former mount."""
    live.directory.cluster("/m")
    live.directory.topic("/m/x")
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    assert client.resolve("/m/x").cluster == "m"
    live.directory.unmount("/m")
    mount, action = entry_pb2.ENTRY_KIND_MOUNT, watch_pb2.CHANGE_ACTION_DELETE
    path, before = ("/n", "/m") if is_moved else ("/m", "")
    live.report(event(path, live.cluster.revision, kind=mount, action=action, before=before))
    eventually(lambda: "/m/x" not in client.cache.answers)
    with pytest.raises(errors.Absent):
        client.resolve("/m/x")


def topic_count(client: Resolver, path: str) -> int:
    entry = client.resolve(path).entry
    assert isinstance(entry, entry_pb2.Entry)
    return entry.directory.total_topic_count


@pytest.mark.parametrize("path", ["/", "/a", "/a/s"])
def test_the_counts_of_a_directory_follow_the_changes_below_it(live: Live, path: str) -> None:
    live.directory.topic("/a/s/one")
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    before = topic_count(client, path)
    other = client.resolve("/d")
    live.directory.topic("/a/s/two")
    insert = watch_pb2.CHANGE_ACTION_INSERT
    live.report(event("/a/s/two", live.cluster.revision, action=insert))
    eventually(lambda: topic_count(client, path) == before + 1)
    live.directory.remove("/a/s")
    removed = watch_pb2.CHANGE_ACTION_DELETE
    directory = entry_pb2.ENTRY_KIND_DIRECTORY
    live.report(event("/a/s", live.cluster.revision, kind=directory, action=removed))
    if path != "/a/s":
        eventually(lambda: topic_count(client, path) == before - 1)
    live.calls()
    assert client.resolve("/d") is other
    assert live.calls() == 0


def test_an_event_of_a_path_beyond_the_limits_ends_no_following(live: Live) -> None:
    """The cluster came to a longer mount since the entry was made."""
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    cluster = followed(live, client)
    live.report(
        event(
            "/a" + 80 * "/long",
            live.cluster.revision,
            kind=entry_pb2.ENTRY_KIND_DIRECTORY,
            action=watch_pb2.CHANGE_ACTION_DELETE,
        )
    )
    live.directory.topic("/a/s/two")
    before = topic_count(client, "/a")
    live.directory.topic("/a/s/three")
    insert = watch_pb2.CHANGE_ACTION_INSERT
    live.report(event("/a/s/three", live.cluster.revision, action=insert))
    eventually(lambda: topic_count(client, "/a") == before + 1)
    assert followed(live, client) is cluster


def test_an_event_of_what_is_no_path_ends_the_following(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    live.report(event("/a/../b", live.cluster.revision))
    following = client.following
    assert following is not None
    eventually(lambda: following.followed(ID) is None)


def test_an_absence_ends_when_the_topic_is_made(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    with pytest.raises(errors.Absent):
        client.resolve("/a/new")
    live.directory.topic("/a/new")
    insert = watch_pb2.CHANGE_ACTION_INSERT
    live.report(event("/a/new", live.cluster.revision, action=insert))
    eventually(lambda: client.resolve("/a/new").kind == "topic")


def test_an_answer_that_a_change_has_overtaken_is_not_kept(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    cluster = followed(live, client)
    old = live.cluster.revision
    live.cluster.revision = old + 1
    live.report(event("/a/c", old + 1))
    eventually(lambda: cluster.followed.revision == old + 1)
    live.cluster.revision = old  # another server of the cluster, which lags
    client.resolve("/a/c")
    assert "/a/c" not in client.cache.answers


def test_for_a_token_no_answer_is_given_that_a_change_is_about_to_drop(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream's thread has the change, and the answer is asked for before it was dropped."""
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    old = client.resolve("/a/b").authority.revision
    given: list[int] = []
    drop = client.cache.drop_at

    def asked_before_it_is_dropped(path: str) -> None:
        if path == "/a/b" and not given:
            given.append(0)
            found = client.resolve("/a/b", token=token(live.cluster.revision))
            given.append(found.authority.revision)
        drop(path)

    monkeypatch.setattr(client.cache, "drop_at", asked_before_it_is_dropped)
    live.directory.topic("/a/b", physical_name="other")
    live.report(event("/a/b", live.cluster.revision))
    eventually(lambda: len(given) == 2)
    assert given[1] == old + 1


def test_for_a_token_no_answer_is_given_that_was_dropped_while_it_was_compared(
    live: Live,
) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    cluster = followed(live, client)
    client.resolve("/a/b")
    kept = client.cache.answers["/a/b"]

    class DroppedMeanwhile(FreshnessMark):
        """Its changes are applied between the look and the comparison."""

        def __getattribute__(self, name: str) -> Any:
            if name == "applied":
                client.cache.drop_at("/a/b")
                return cluster.followed.revision + 1
            return getattr(cluster.followed, name)

    client.cache.put("/a/b", kept._replace(followed=DroppedMeanwhile("memory", 0)))
    wanted = {ID: Position("memory", cluster.followed.revision + 1)}
    assert client.cache.good("/a/b", wanted, live.now) is None


@pytest.mark.parametrize("how", ["resync", "another life"])
def test_after_a_gap_nothing_is_taken_for_fresh(live: Live, how: str) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    if how == "resync":
        live.fail(errors.Resync("too far behind"))
    else:
        live.report(incarnation="restored")
    eventually(lambda: client.cache.answers == {})
    live.calls()
    client.resolve("/a/b")
    assert live.calls() > 0
    followed(live, client)  # it begins anew


def test_after_a_restart_with_other_brokers_no_answer_names_the_old_ones(live: Live) -> None:
    """The brokers are in the server's config: no change reports them."""
    client = live.resolver(watch=True)
    assert client.resolve("/a/b").bootstrap_servers == "old:9092"
    followed(live, client)
    client.resolve("/a/b")
    live.bootstrap = "new:9092"
    live.fail(errors.Unreachable("restarts"))
    eventually(lambda: len(live.streams) > 1)
    eventually(lambda: client.resolve("/a/b").bootstrap_servers == "new:9092")
    cluster = followed(live, client)
    first = client.resolve("/a/b")
    live.now += 10
    live.report()
    eventually(lambda: cluster.followed.until > live.now + 10)
    assert client.resolve("/a/b") is first


def test_an_answer_with_other_brokers_than_the_stream_has_only_its_lifetime(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    live.bootstrap = "new:9092"  # of another server of the cluster, which has restarted
    client.resolve("/a/c")
    assert client.cache.answers["/a/c"].followed is None


def test_an_answer_of_a_server_without_its_store_is_not_kept_fresh(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    live.stale = True
    assert client.resolve("/a/c").stale
    assert client.cache.answers["/a/c"].followed is None


@pytest.mark.parametrize(
    "kind",
    [errors.LimitExceeded, errors.PermissionDenied, errors.Unimplemented, errors.Absent],
)
def test_where_the_stream_is_refused_answers_have_their_lifetimes(
    live: Live, kind: type[KdirError]
) -> None:
    live.stream_refusal = kind("no")
    client = live.resolver(watch=True)
    following = client.following
    assert following is not None
    first = client.resolve("/a/b")
    eventually(lambda: len(live.after) == 1 and following.followed(ID) is None)
    held = client.resolve("/a/b")
    # Where the stream is absent, answers that came before may have missed changes.
    assert held is first or kind is errors.Absent
    live.calls()
    for _ in range(20):
        assert client.resolve("/a/b") is held
    client.resolve("/a/c")
    assert live.calls() == 1
    assert len(live.after) == 1, "no other stream"
    live.stream_refusal = None
    live.now += 61
    client.resolve("/a/b")
    followed(live, client)


def test_who_asks_to_follow_after_a_refusal_is_not_kept_waiting(live: Live) -> None:
    live.stream_refusal = errors.LimitExceeded("no")
    client = live.resolver(watch=True)
    following = client.following
    assert following is not None
    client.resolve("/a/b")
    eventually(lambda: len(live.after) == 1 and following.followed(ID) is None)
    live.stream_refusal = None
    client.follow("/a/b")
    assert following.followed(ID) is not None
    followed(live, client)


def test_in_an_outage_the_age_of_a_followed_answer_counts_from_the_last_report(
    live: Live, tmp_path: FilePath
) -> None:
    file = tmp_path / "cache"
    client = live.resolver(watch=True, cache_file=file)
    first = client.resolve("/a/b")
    cluster = followed(live, client)
    for _ in range(7):  # a day and four hours
        cluster.grounds_until = live.now + 4 * 3600 + 60
        live.now += 4 * 3600
        live.report()
        eventually(lambda: cluster.followed.until > live.now)
        client.resolve("/a/b")
    assert client.resolve("/a/b") is first
    away = errors.Unreachable("away")
    live.refusal = live.stream_refusal = away
    live.fail(away)
    live.now += 61
    for waited in (0, 10):
        live.now += waited
        found = client.resolve("/a/b")
        assert (found.stale, found.age_seconds) == (True, 61.0 + waited)
    live.end()
    client.close()
    again = live.resolver(cache_file=file)
    assert again.resolve("/a/b").stale


def test_a_client_whose_answers_stay_warm_saves_them_too(live: Live, tmp_path: FilePath) -> None:
    client = live.resolver(watch=True, cache_file=tmp_path / "cache")
    client.resolve("/a/b")
    followed(live, client)
    live.now += 61
    live.report()
    eventually((tmp_path / "cache").exists)


def test_when_the_stream_falls_silent_lifetimes_count_again(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    live.calls()
    live.now += 61  # no checkpoint came
    client.resolve("/a/b")
    assert live.calls() == 1


def test_R11_following_a_child_does_not_outlive_the_parents_update(live: Live) -> None:
    """The child goes on talking; its parent answers for it no more."""
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    cluster = followed(live, client)
    live.calls()
    live.refusal = errors.PermissionDenied("not yours")
    live.now = cluster.grounds_until - 14
    live.report()
    eventually(lambda: client.cache.answers == {})
    assert live.calls() == 1
    eventually(lambda: cluster.followed.until == 0.0)


@pytest.mark.parametrize(
    "kind",
    [
        errors.Unreachable,
        errors.LimitExceeded,
        errors.Internal,
        errors.UnreadableRecord,
        errors.TokenFromFuture,
    ],
)
def test_R11_while_the_parent_is_away_its_update_still_ends(
    live: Live, kind: type[KdirError]
) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    cluster = followed(live, client)
    end = cluster.grounds_until
    live.refusal = kind("no")
    for left in (14, 10, 5, 1):
        live.now = end - left
        live.report()
        eventually(lambda: cluster.followed.until > live.now)
    eventually(lambda: not live.streams[-1])
    assert cluster.followed.until <= end
    live.refusal = None
    live.now += 5
    live.report()
    eventually(lambda: cluster.grounds_until > end, 10)
    assert "/a/b" in client.cache.answers


def test_while_the_parent_is_away_it_is_not_asked_at_each_change(live: Live) -> None:
    """A question takes time, in which no change is applied."""
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    cluster = followed(live, client)
    end = cluster.grounds_until
    live.refusal = errors.Unreachable("away")
    live.calls()
    asked = []
    for left in (14, 13.5, 12.9, 11.5, 10.5, 2, 1.5, 0.5, -1, -2, -7):
        live.now = end - left
        for _ in range(5):
            live.report()
            eventually(lambda: not live.streams[-1])
        asked.append(live.calls() > 0)
    assert asked == [True, False, True, False, True, True, False, True, True, False, True]
    live.refusal = None
    live.now += 5
    live.report()
    eventually(lambda: cluster.grounds_until > end)


def test_follow_one_cluster_on_request(live: Live) -> None:
    client = live.resolver()
    client.follow("/a")
    cluster = followed(live, client)
    client.resolve("/a/b")
    live.now += 200
    live.report()
    eventually(lambda: cluster.followed.until > live.now)
    live.calls()
    client.resolve("/a/b")
    assert live.calls() == 0


@pytest.mark.parametrize("error", [errors.Resync("fell behind"), errors.PermissionDenied("no")])
def test_a_cluster_that_is_followed_on_request_is_followed_again(
    live: Live, error: KdirError
) -> None:
    client = live.resolver()
    client.follow("/a")
    followed(live, client)
    live.fail(error)
    following = client.following
    assert following is not None
    eventually(lambda: following.followed(ID) is None)
    live.now += 61
    client.resolve("/a/b")
    followed(live, client)


def test_one_cluster_more_than_can_be_followed_is_refused(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.directory.cluster("/m")
    client = live.resolver()
    client.follow("/a")
    followed(live, client)
    monkeypatch.setattr(watch_streams, "MOST_CLUSTERS", 1)
    with pytest.raises(errors.LimitExceeded, match="1 clusters are followed already"):
        client.follow("/m")
    live.end()
    client.close()
    with pytest.raises(errors.Closed):
        client.follow("/m")


@pytest.mark.parametrize("name", ["follow-root", "watch-guard"])
def test_where_no_thread_can_be_started_answers_have_their_lifetimes(
    live: Live, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = threading.Thread.start
    refused: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    client = live.resolver(watch=True)
    first = client.resolve("/a/b")
    eventually(lambda: bool(refused))
    assert client.resolve("/a/b") is first
    if name == "follow-root":
        with pytest.raises(errors.Unreachable, match="no thread can be started"):
            client.follow("/a")
    monkeypatch.undo()
    live.now += 61
    client.resolve("/a/b")
    followed(live, client)
    live.end()
    client.close()


def test_a_client_that_is_closed_follows_no_more(live: Live) -> None:
    client = live.resolver(watch=True)
    client.resolve("/a/b")
    followed(live, client)
    live.end()
    client.close()
    live.report()
    following = client.following
    assert following is not None
    eventually(lambda: following.followed(ID) is None)


# -- forks -------------------------------------------------------------------------------------

FORKED_WHILE_MAKING = """
import os, signal, sys, threading
from resolver import watch_streams
from resolver.testing import MemoryDirectory
name, parent = sys.argv[1], os.getpid()
is_making, may_end = threading.Event(), threading.Event()
real = getattr(watch_streams, name)

def make(*args, **options):
    if os.getpid() == parent:
        is_making.set()
        may_end.wait()
    return real(*args, **options)

setattr(watch_streams, name, make)
directory = MemoryDirectory()
directory.cluster("/")
client = directory.resolver()
maker = threading.Thread(target=client.follow, args=["/"])
maker.start()
is_making.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    client.follow("/")
    os._exit(0 if client.following is not None else 2)
_, status = os.waitpid(child, 0)
may_end.set()
maker.join()
client.close()
print(os.waitstatus_to_exitcode(status))
"""

FORKED_WHILE_FOLLOWING = """
import os, signal
from tests.support.federation import eventually
from tests.unit.resolver.test_watch_streams import ID, Live, followed
live = Live()
live.directory.topic("/a/b")
client = live.resolver(watch=True)
client.resolve("/a/b")
followed(live, client)
live.now += 61
live.report()
eventually(lambda: client.following.is_following(ID))
live.calls()
client.resolve("/a/b")
assert live.calls() == 0
child = os.fork()
if child == 0:
    signal.alarm(10)
    live.directory.topic("/a/b", partitions=7)
    os._exit(0 if client.resolve("/a/b").partitions == 7 else 2)
_, status = os.waitpid(child, 0)
assert client.resolve("/a/b").partitions != 7
assert live.calls() == 0, "the parent follows"
live.end()
client.close()
print(os.waitstatus_to_exitcode(status))
"""


def run_forking(script: str, *args: str) -> str:
    """Returns the output of a script that forks, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("made", ["WatchStreams", "CacheRefresher"])
def test_G11_a_process_that_was_forked_while_a_thread_began_to_follow_follows_too(
    made: str,
) -> None:
    assert run_forking(FORKED_WHILE_MAKING, made) == "0"


def test_G11_a_process_that_was_forked_takes_nothing_for_fresh_that_its_parent_follows() -> None:
    assert run_forking(FORKED_WHILE_FOLLOWING) == "0"
