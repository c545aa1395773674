"""The resolver over directories in memory: what it remembers, for how long, and what it asks."""

import itertools
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message
from kdir.v1 import access_pb2, admin_pb2, directory_pb2, entry_pb2, resolve_pb2

from resolver import Resolver, TopicLocation, errors, user_config
from resolver.cached_lookup import Session, SessionToken
from resolver.error_status import to_outcome
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution_driver import RequestBatcher, Server
from resolver.revision_token import Token
from resolver.testing import MemoryDirectory, MemoryTransport
from resolver.transport import Method

CLICKS = "/la/tracking/search/clicks"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory() -> Iterator[MemoryDirectory]:
    with MemoryDirectory() as made:
        made.cluster("/", "root")
        made.cluster("/la", "la")
        made.cluster("/la/tracking", "la-tracking", bootstrap_servers="la-1:9092,la-2:9092")
        made.cluster("/ny", "ny")
        made.cluster("/ny/tracking", "ny-tracking", bootstrap_servers="ny-1:9092")
        made.topic(CLICKS, partitions=24)
        made.topic("/ny/tracking/search/clicks")
        made.topic("/ny/tracking/maps")
        yield made


def asked(directory: MemoryDirectory) -> int:
    """Calls since the last look."""
    count = len(directory.transport.calls)
    directory.transport.calls.clear()
    return count


# -- what a location says ---------------------------------------------------------------------


def test_a_location_has_what_a_program_needs(directory: MemoryDirectory) -> None:
    location = directory.resolver("/la").resolve(CLICKS)
    assert location.path == CLICKS
    assert location.kind == "topic"
    assert (location.cluster, location.cluster_id) == ("la-tracking", "kc-la-tracking")
    assert location.topic == "search.clicks"
    assert len(location.topic_id) == 22
    assert location.bootstrap_servers == "la-1:9092,la-2:9092"
    assert location.listeners[0].security_protocol == "PLAINTEXT"
    assert location.mount == "/la/tracking"
    assert (location.stale, location.age_seconds) == (False, 0.0)
    assert location.partitions == 24
    assert location.listener("memory") == location.listeners[0]
    assert location.listener("other") is None


def test_a_directory_is_found_too_and_is_no_topic(directory: MemoryDirectory) -> None:
    resolver = directory.resolver()
    directory.topic("/la/tracking/search")
    assert resolver.resolve("/la/tracking/search").kind == "topic"
    assert resolver.resolve("/la/tracking/search").has_container
    found = resolver.resolve("/la/tracking/search", prefer="directory")
    assert (found.kind, found.physical_name) == ("directory", "")
    for name in ("topic", "bootstrap_servers"):
        with pytest.raises(errors.InvalidArgument, match="search is a directory, not a topic"):
            getattr(found, name)
    assert resolver.resolve("/la/tracking").kind == "directory"


def test_every_start_gives_the_same_answer(directory: MemoryDirectory) -> None:
    starts = ["/", "/la", "/la/tracking", "/ny", "/ny/tracking"]
    found = [directory.resolver(start).resolve(CLICKS) for start in starts]
    assert len({location.path for location in found}) == 1
    assert all(location == found[0] for location in found)


def test_an_invalid_path_is_refused_before_any_call(directory: MemoryDirectory) -> None:
    resolver = directory.resolver()
    for bad in ("", "la", "//", "/la/", "/la/../ny", "/la/\0", "/" + "x" * 250, "/x" * 65):
        with pytest.raises(errors.InvalidPath):
            resolver.resolve(bad)
    assert asked(directory) == 0


def test_a_server_that_is_none_is_refused(directory: MemoryDirectory) -> None:
    for bad in ("", "la", "la:", ":1", "la:0", "la:65536", "http://la:1", "a@la:1"):
        with pytest.raises(errors.InvalidArgument):
            Resolver(bad)


@pytest.mark.parametrize("is_default", [False, True])
def test_a_timeout_may_be_infinite(directory: MemoryDirectory, *, is_default: bool) -> None:
    seconds: list[float] = []

    class Recording(MemoryTransport):
        def call(
            self,
            endpoint: str,
            method: Method,
            request: Message,
            timeout_seconds: float,
            *,
            cluster_id: str = "",
        ) -> Any:
            seconds.append(timeout_seconds)
            return directory.transport.call(endpoint, method, request, timeout_seconds)

    infinite = float("inf")
    options: dict[str, Any] = {"timeout_seconds": infinite} if is_default else {}
    resolver = Resolver([directory.at("/la").endpoint], transport=Recording(), **options)
    given = None if is_default else infinite
    assert resolver.resolve(CLICKS, timeout_seconds=given).path == CLICKS
    assert resolver.resolve_many(["/la"], timeout_seconds=given)
    assert len(seconds) > 2
    assert max(seconds) < threading.TIMEOUT_MAX


def test_a_kind_that_is_none_is_refused(directory: MemoryDirectory) -> None:
    with pytest.raises(errors.InvalidArgument, match="topic"):
        directory.resolver().resolve("/la", prefer="folder")


# -- memory --------------------------------------------------------------------------------


def test_a_warm_resolve_makes_no_call_until_its_lifetime_ends(
    directory: MemoryDirectory, clock: Clock
) -> None:
    resolver = directory.resolver(clock=clock)
    first = resolver.resolve(CLICKS)
    asked(directory)
    clock.now += 59
    assert resolver.resolve(CLICKS) is first
    assert resolver.resolve(Path.parse(CLICKS)) is first
    assert asked(directory) == 0
    clock.now += 2
    assert resolver.resolve(CLICKS) == first
    assert asked(directory) > 0


def test_an_absence_is_remembered_for_a_short_time(
    directory: MemoryDirectory, clock: Clock
) -> None:
    resolver = directory.resolver(clock=clock)
    for _ in range(2):
        with pytest.raises(errors.Absent) as caught:
            resolver.resolve("/la/tracking/search/views")
        assert caught.value.metadata["nearest_directory"] == "/la/tracking/search"
    calls = asked(directory)
    directory.topic("/la/tracking/search/views")
    with pytest.raises(errors.Absent):
        resolver.resolve("/la/tracking/search/views")
    assert asked(directory) == 0
    clock.now += 6
    assert resolver.resolve("/la/tracking/search/views").kind == "topic"
    assert calls > 0


def test_a_sibling_is_asked_of_the_owner_at_once(directory: MemoryDirectory) -> None:
    resolver = directory.resolver("/la")
    resolver.resolve("/ny/tracking/maps")
    asked(directory)
    resolver.resolve("/ny/tracking/search/clicks")
    assert asked(directory) == 1


def test_a_hint_goes_no_way_round(directory: MemoryDirectory) -> None:
    """From /la/tracking, a known way to /la must not be taken for what is /la/tracking's own."""
    resolver = directory.resolver("/la/tracking")
    directory.mkdir("/la/other")
    resolver.resolve("/la/other")
    asked(directory)
    resolver.resolve(CLICKS)
    assert asked(directory) == 1
    assert resolver.trace(CLICKS, use_cache=True).steps[0].ask.way.value == "start"


def test_memory_is_bounded(directory: MemoryDirectory) -> None:
    resolver = directory.resolver("/la/tracking", max_entries=10)
    for number in range(40):
        directory.topic(f"/la/tracking/t{number}")
        resolver.resolve(f"/la/tracking/t{number}")
    assert len(resolver.cache.answers) == 10
    asked(directory)
    resolver.resolve("/la/tracking/t39")
    assert asked(directory) == 0
    resolver.resolve("/la/tracking/t0")
    assert asked(directory) == 1


def test_without_a_cache_each_resolve_queries_the_last_owner_once(
    directory: MemoryDirectory,
) -> None:
    resolver = directory.resolver("/la/tracking", max_entries=0)
    assert resolver.resolve(CLICKS).path == CLICKS
    asked(directory)
    assert resolver.resolve(CLICKS).path == CLICKS
    assert asked(directory) == 1
    directory.remove(CLICKS)
    with pytest.raises(errors.Absent):
        resolver.resolve(CLICKS)
    assert not resolver.cache.answers


def test_forget(directory: MemoryDirectory) -> None:
    resolver = directory.resolver("/la/tracking")
    resolver.resolve(CLICKS)
    resolver.forget("/la")
    asked(directory)
    resolver.resolve(CLICKS)
    assert asked(directory) == 1


def test_while_the_owner_is_away_its_last_answer_is_given_marked(
    directory: MemoryDirectory, clock: Clock
) -> None:
    resolver = directory.resolver("/la", clock=clock, max_stale_seconds=3600)
    fresh = resolver.resolve(CLICKS)
    directory.stop("/la/tracking")
    clock.now += 100
    old = resolver.resolve(CLICKS)
    assert (old.stale, old.age_seconds, old.topic) == (True, 100.0, fresh.topic)
    asked(directory)
    resolver.resolve(CLICKS)
    assert asked(directory) == 0, "an outage must not cost every caller a walk"
    clock.now += 100
    assert resolver.resolve(CLICKS).age_seconds == 200.0
    directory.start("/la/tracking")
    clock.now += 3
    assert not resolver.resolve(CLICKS).stale
    directory.stop("/la/tracking")
    clock.now += 4000
    with pytest.raises(errors.Unreachable):
        resolver.resolve(CLICKS)


def test_an_absence_is_never_given_stale(directory: MemoryDirectory, clock: Clock) -> None:
    resolver = directory.resolver("/la", clock=clock)
    with pytest.raises(errors.Absent):
        resolver.resolve("/la/tracking/nope")
    directory.stop("/la/tracking")
    clock.now += 60
    with pytest.raises(errors.Unreachable):
        resolver.resolve("/la/tracking/nope")


def test_what_is_gone_is_gone_however_old_the_answer(
    directory: MemoryDirectory, clock: Clock
) -> None:
    resolver = directory.resolver("/la", clock=clock)
    resolver.resolve(CLICKS)
    directory.remove(CLICKS)
    clock.now += 61
    with pytest.raises(errors.Absent):
        resolver.resolve(CLICKS)
    directory.stop("/la/tracking")
    clock.now += 61
    with pytest.raises(errors.Unreachable):
        resolver.resolve(CLICKS)


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (errors.LimitExceeded("too many calls"), True),
        (errors.Internal("internal error"), True),
        (errors.UnreadableRecord("the record cannot be read"), True),
        (errors.TokenFromFuture("not reached in time"), True),
        (errors.PermissionDenied("no"), False),
        (errors.NotAuthoritative("the path belongs to another cluster"), False),
    ],
    ids=lambda value: value.reason if isinstance(value, KdirError) else "",
)
def test_only_an_error_about_the_path_ends_its_last_answer(
    directory: MemoryDirectory, clock: Clock, error: KdirError, *, is_kept: bool
) -> None:
    resolver = directory.resolver("/la/tracking", clock=clock)
    resolver.resolve(CLICKS)
    endpoint = directory.at("/la/tracking").endpoint

    def fail(_: str, __: Any) -> Any:
        raise error

    directory.transport.serve(endpoint, fail)
    clock.now += 61
    with pytest.raises(KdirError):
        resolver.resolve(CLICKS)
    directory.stop("/la/tracking")
    clock.now += 61
    if is_kept:
        assert resolver.resolve(CLICKS).stale
    else:
        with pytest.raises(errors.Unreachable):
            resolver.resolve(CLICKS)


# -- many at once ----------------------------------------------------------------------------


def test_without_servers_they_are_those_of_the_environment_and_of_the_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KDIR_AT", "la-1:7420,la-2:7420")
    with Resolver() as resolver:
        assert resolver.servers == ("la-1:7420", "la-2:7420")
    monkeypatch.delenv("KDIR_AT")
    with Resolver() as resolver:
        assert resolver.servers == (user_config.DEFAULT_SERVER,)
    user_config.write_context(user_config.Context("prod", ("ny-1:7420",)))
    user_config.write_current("prod")
    with Resolver() as resolver:
        assert resolver.servers == ("ny-1:7420",)
    with Resolver("la-1:7420") as resolver:
        assert resolver.servers == ("la-1:7420",)


@pytest.mark.parametrize("paths", ["/la/x", Path.parse("/la/x")])
def test_resolve_many_takes_no_single_path(directory: MemoryDirectory, paths: Any) -> None:
    with pytest.raises(TypeError, match="found one path, '/la/x'; expected several"):
        directory.resolver("/la").resolve_many(paths)


@pytest.mark.parametrize("path", [None, 7, b"/la"])
def test_what_is_no_path_is_named(directory: MemoryDirectory, path: Any) -> None:
    with pytest.raises(TypeError, match=r"path: found .*; expected text such as '/la/x'"):
        directory.resolver("/la").resolve(path)


def test_resolve_many_gives_each_its_own_outcome_in_order(directory: MemoryDirectory) -> None:
    directory.stop("/ny")
    paths = [CLICKS, "//", "/la/none", "/ny/x", "/", CLICKS]
    found = directory.resolver("/la").resolve_many(paths)
    assert [type(one).__name__ for one in found] == [
        "TopicLocation",
        "InvalidPath",
        "Absent",
        "Unreachable",
        "TopicLocation",
        "TopicLocation",
    ]
    assert isinstance(found[3], KdirError)
    assert found[3].metadata["mount"] == "/ny"


def test_many_paths_travel_in_few_calls(directory: MemoryDirectory) -> None:
    paths = [f"/ny/tracking/t{number}" for number in range(2500)]
    for path in paths:
        directory.topic(path)
    resolver = directory.resolver("/la", timeout_seconds=60)
    found = resolver.resolve_many(paths)
    assert all(isinstance(one, TopicLocation) for one in found)
    # Four hops, 1,000 paths a call.
    assert asked(directory) <= 4 * 3
    assert resolver.resolve_many(paths) == found
    assert asked(directory) == 0


class Gate(MemoryTransport):
    """Transport that holds calls back until the test releases them."""

    def __init__(self, inner: MemoryTransport) -> None:
        super().__init__()
        self.inner = inner
        self.open = threading.Event()
        self.arrived = threading.Semaphore(0)

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        self.calls.append((endpoint, method.name))
        self.arrived.release()
        assert self.open.wait(20)
        return self.inner.call(endpoint, method, request, timeout_seconds)


def together(count: int, work: Callable[[int], object]) -> list[object]:
    """Returns what ``count`` threads come to."""
    results: list[object] = [None] * count

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    together.threads = threads  # type: ignore[attr-defined]
    return results


def join() -> None:
    for thread in together.threads:  # type: ignore[attr-defined]
        thread.join(30)
        assert not thread.is_alive()


def test_cold_paths_asked_at_the_same_time_share_calls(directory: MemoryDirectory) -> None:
    for number in range(64):
        directory.topic(f"/la/tracking/t{number}")
    gate = Gate(directory.transport)
    resolver = directory.resolver("/la/tracking", transport=gate, timeout_seconds=30)
    results = together(64, lambda n: resolver.resolve(f"/la/tracking/t{n}").topic)
    assert gate.arrived.acquire(timeout=20)
    combiner = next(iter(resolver._lookups.walker._combiners.values()))
    while len(combiner._waiting) < 62:
        pass
    gate.open.set()
    join()
    assert results == [f"t{n}" for n in range(64)]
    assert len(gate.calls) == 3, "two that found the way free, and all others together"


def test_a_waiting_question_keeps_its_own_deadline(directory: MemoryDirectory) -> None:
    gate = Gate(directory.transport)
    resolver = directory.resolver("/la/tracking", transport=gate, timeout_seconds=30)
    results = together(2, lambda n: resolver.resolve(f"/la/tracking/a{n}"))
    for _ in range(2):
        assert gate.arrived.acquire(timeout=20)
    with pytest.raises(errors.Unreachable):
        resolver.resolve("/la/tracking/b", timeout_seconds=0.05)
    gate.open.set()
    join()
    assert all(isinstance(result, errors.Absent) for result in results)


class Slow(MemoryTransport):
    """Two calls wait until ``freed``; those after them are not answered. Notes their times."""

    def __init__(self) -> None:
        super().__init__()
        self.freed = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.timeouts: list[float] = []

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        self.timeouts.append(timeout_seconds)
        self.arrived.release()
        if len(self.timeouts) <= 2:
            assert self.freed.wait(20)
        raise errors.DeadlineExceeded("no answer")


def test_no_query_outlives_its_deadline_for_another_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked = 0.0, threading.Semaphore(0)

    def monotonic() -> float:
        read = now
        asked.release()
        return read

    monkeypatch.setattr("resolver.resolution_driver.time", SimpleNamespace(monotonic=monotonic))
    transport = Slow()
    batcher = RequestBatcher(transport, Server("127.0.0.1:1"), (0, "", False, False, False))

    def ask(timeout_seconds: float) -> threading.Thread:
        def run() -> None:
            with pytest.raises(errors.DeadlineExceeded):
                batcher.ask(Path.parse("/x"), timeout_seconds)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [ask(60), ask(60)]
    for _ in threads:
        assert transport.arrived.acquire(timeout=20)
    while asked.acquire(blocking=False):
        pass
    for timeout_seconds in (20, 30):
        threads.append(ask(timeout_seconds))
        assert asked.acquire(timeout=20)
        time.sleep(0.1)  # it has its deadline, and waits
    now = 10.0
    transport.freed.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert max(transport.timeouts[2:]) == 20.0, "until the latest deadline, not for a time anew"


class GivenUp(Exception):
    """Error that a program's handler of SIGALRM raises."""


def test_a_caller_that_a_signal_ends_keeps_no_place_among_the_calls() -> None:
    def give_up(*_: object) -> None:
        raise GivenUp

    transport = Slow()
    batcher = RequestBatcher(transport, Server("127.0.0.1:1"), (0, "", False, False, False))

    def ask(timeout_seconds: float) -> None:
        with pytest.raises(errors.DeadlineExceeded):
            batcher.ask(Path.parse("/x"), timeout_seconds)

    previous = signal.signal(signal.SIGALRM, give_up)
    try:
        for _ in range(2):
            transport.timeouts.clear()
            transport.freed.clear()
            threads = [threading.Thread(target=ask, args=(60,)) for _ in range(2)]
            for thread in threads:
                thread.start()
                assert transport.arrived.acquire(timeout=20)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(GivenUp):
                batcher.ask(Path.parse("/x"), 60)
            transport.freed.set()
            for thread in threads:
                thread.join(20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    transport.timeouts.clear()
    ask(1)
    assert transport.timeouts, "a later query is sent"


# -- writing and reading one's writes ----------------------------------------------------------


class Scribe:
    """A server that notes what it is asked to write, and answers what it is told to."""

    def __init__(self, directory: MemoryDirectory, mount: str) -> None:
        self.cluster = directory.at(mount)
        self.requests: list[tuple[str, Any]] = []
        self.fails: list[KdirError] = []
        directory.transport.serve(self.cluster.endpoint, self.answer)

    def answer(self, method: str, request: Any) -> Any:
        self.requests.append((method, request))
        if method.startswith("DirectoryService.") and self.fails:
            raise self.fails.pop(0)
        if method != "DirectoryService.CreateEntry":
            return self.cluster.answer(method, request)
        self.cluster.put(Path.parse(request.path), request.entry)
        token = str(Token.from_position(self.cluster.cluster_id, "memory", self.cluster.revision))
        return directory_pb2.CreateEntryResponse(token=token, entry=request.entry)


def create() -> directory_pb2.CreateEntryRequest:
    entry = entry_pb2.Entry(topic=entry_pb2.Topic(physical_name="new"))
    return directory_pb2.CreateEntryRequest(entry=entry)


def test_a_write_goes_to_the_owner_under_the_canonical_path(directory: MemoryDirectory) -> None:
    directory.link("/short", "/ny/tracking")
    scribe = Scribe(directory, "/ny/tracking")
    resolver = directory.resolver("/la")
    request = create()
    resolver.call("/short/new", "DirectoryService.CreateEntry", request)
    method, sent = scribe.requests[-1]
    assert (method, sent.path) == ("DirectoryService.CreateEntry", "/ny/tracking/new")
    assert len(sent.request_id) == 32
    assert request.path == "", "the caller's message is its own"


def test_what_was_written_is_read(directory: MemoryDirectory) -> None:
    scribe = Scribe(directory, "/ny/tracking")
    resolver = directory.resolver("/la")
    with pytest.raises(errors.Absent):
        resolver.resolve("/ny/tracking/new")
    resolver.call("/ny/tracking/new", "DirectoryService.CreateEntry", create())
    assert resolver.resolve("/ny/tracking/new").topic == "new"
    sent = scribe.requests[-1][1]
    place = Token.parse(sent.token).positions["kc-ny-tracking"]
    assert place.revision == scribe.cluster.revision


def test_what_was_written_is_read_while_another_thread_reads_what_was_before(
    directory: MemoryDirectory,
) -> None:
    scribe = Scribe(directory, "/ny/tracking")
    resolver = directory.resolver("/ny/tracking", timeout_seconds=5)
    has_read, may_answer = threading.Event(), threading.Event()

    def answer(method: str, request: Any) -> Any:
        response = scribe.answer(method, request)
        if method == "ResolveService.Resolve" and not has_read.is_set():
            has_read.set()
            assert may_answer.wait(20)
        return response

    directory.transport.serve(scribe.cluster.endpoint, answer)
    results = together(1, lambda _: resolver.resolve("/ny/tracking/new"))
    assert has_read.wait(20)
    resolver.call("/ny/tracking/new", "DirectoryService.CreateEntry", create())
    try:
        assert resolver.resolve("/ny/tracking/new").topic == "new"
    finally:
        may_answer.set()
        join()
    assert isinstance(results[0], errors.Absent)
    assert resolver.resolve("/ny/tracking/new").topic == "new"


def test_the_parents_that_a_write_made_are_read(directory: MemoryDirectory) -> None:
    Scribe(directory, "/ny/tracking")
    resolver = directory.resolver("/la")
    parents = ["/ny/tracking/a", "/ny/tracking/a/b"]
    for path in parents:
        for no_follow in (False, True):
            with pytest.raises(errors.Absent):
                resolver.resolve(path, no_follow=no_follow)
    request = create()
    request.make_parents = True
    resolver.call("/ny/tracking/a/b/new", "DirectoryService.CreateEntry", request)
    for path in parents:
        for no_follow in (False, True):
            assert resolver.resolve(path, no_follow=no_follow).kind == "directory"


def test_the_counts_above_a_write_are_read(directory: MemoryDirectory) -> None:
    Scribe(directory, "/ny/tracking")
    resolver = directory.resolver("/la")
    for path in ("/ny/tracking", "/ny/tracking/search"):
        assert resolver.resolve(path).kind == "directory"
    request = create()
    request.entry.topic.physical_name = "search.new"
    resolver.call("/ny/tracking/search/new", "DirectoryService.CreateEntry", request)
    for path, count in (("/ny/tracking", 3), ("/ny/tracking/search", 2)):
        entry = resolver.resolve(path).entry
        assert isinstance(entry, entry_pb2.Entry)
        assert entry.directory.total_topic_count == count


def test_a_write_is_decided_on_what_was_written_before(directory: MemoryDirectory) -> None:
    """Also where another server of the cluster answers it."""
    scribe = Scribe(directory, "/ny/tracking")
    resolver = directory.resolver("/la")
    for name in ("one", "two"):
        resolver.call(f"/ny/tracking/{name}", "DirectoryService.CreateEntry", create())
    first, second = (sent for method, sent in scribe.requests if "Create" in method)
    assert not first.token
    assert "kc-ny-tracking" in Token.parse(second.token).positions


def test_a_write_is_made_though_the_store_that_was_written_to_is_gone(
    directory: MemoryDirectory,
) -> None:
    scribe = Scribe(directory, "/ny/tracking")
    resolver = directory.resolver("/la")
    resolver.call("/ny/tracking/one", "DirectoryService.CreateEntry", create())
    scribe.fails = [errors.TokenExpired("restored since")]
    resolver.call("/ny/tracking/two", "DirectoryService.CreateEntry", create())
    assert not scribe.requests[-1][1].token
    scribe.fails = [errors.TokenExpired("restored since")]
    request = create()
    request.token = str(Token.from_position("kc-ny-tracking", "before", 9))
    with pytest.raises(errors.TokenExpired):
        resolver.call("/ny/tracking/three", "DirectoryService.CreateEntry", request)


def test_a_write_is_tried_again_with_the_same_request_id(directory: MemoryDirectory) -> None:
    scribe = Scribe(directory, "/ny/tracking")
    scribe.fails = [errors.NotAuthoritative("moved a moment ago")]
    resolver = directory.resolver("/la")
    resolver.call("/ny/tracking/new", "DirectoryService.CreateEntry", create())
    ids = [sent.request_id for method, sent in scribe.requests if "Create" in method]
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_a_write_that_is_refused_is_not_tried_again(directory: MemoryDirectory) -> None:
    scribe = Scribe(directory, "/ny/tracking")
    scribe.fails = [errors.AlreadyExists("it does")] * 5
    with pytest.raises(errors.AlreadyExists):
        directory.resolver().call("/ny/tracking/new", "DirectoryService.CreateEntry", create())
    assert sum("Create" in method for method, _ in scribe.requests) == 1


def test_an_answer_that_a_write_has_overtaken_is_not_kept(directory: MemoryDirectory) -> None:
    """The walk read before the write and ended after it: its answer must not come back later."""
    resolver = directory.resolver("/ny/tracking")
    real = directory.at("/ny/tracking")
    with pytest.raises(errors.Absent):
        resolver.resolve("/ny/tracking/late")
    resolver.forget()

    def answer(method: str, request: Any) -> Any:
        response = real.answer(method, request)
        if method == "ResolveService.Resolve":  # while its answer is under way
            token = Token.from_position("kc-ny-tracking", "memory", real.revision + 1)
            resolver.session.wrote(str(token))
        return response

    directory.transport.serve(real.endpoint, answer)
    with pytest.raises(errors.Absent):
        resolver.resolve("/ny/tracking/late")
    assert "/ny/tracking/late" not in resolver.cache.answers


def test_an_own_token_of_a_store_that_is_gone_is_dropped(directory: MemoryDirectory) -> None:
    real = directory.at("/ny/tracking")

    def answer(method: str, request: Any) -> Any:
        if request.token:
            raise errors.TokenExpired("restored since")
        return real.answer(method, request)

    directory.transport.serve(real.endpoint, answer)
    resolver = directory.resolver("/ny/tracking")
    resolver.session.wrote(str(Token.from_position("kc-ny-tracking", "before", 9)))
    assert resolver.resolve("/ny/tracking/maps").kind == "topic"
    with pytest.raises(errors.TokenExpired):
        resolver.resolve(
            "/ny/tracking/maps", token=str(Token.from_position("kc-ny-tracking", "x", 1))
        )


@pytest.mark.parametrize("own", ["", "memory"])
@pytest.mark.parametrize("verb", ["resolve", "resolve_many", "which", "list", "call"])
def test_an_own_token_of_a_store_that_is_gone_fails_no_call(
    directory: MemoryDirectory, verb: str, own: str
) -> None:
    """Whether or not the caller gives a token, if that is a good one."""
    real = directory.at("/ny/tracking")

    def answer(method: str, request: Any) -> Any:
        places = Token.parse(request.token).positions
        if "kc-restored" in places:
            raise errors.TokenExpired("restored since")
        assert bool(places) == bool(own)
        return real.answer(method, request)

    directory.transport.serve(real.endpoint, answer)
    resolver = directory.resolver("/ny/tracking")
    resolver.session.wrote(str(Token.from_position("kc-restored", "before", 9)))
    path, token = "/ny/tracking/maps", ""
    if own:
        token = str(Token.from_position("kc-ny-tracking", own, 1))
    match verb:
        case "resolve":
            assert resolver.resolve(path, token=token).topic == "maps"
        case "resolve_many":
            (found,) = resolver.resolve_many([path], token=token)
            assert isinstance(found, TopicLocation)
        case "which":
            assert resolver.which("", "maps", token=token).path == path
        case "list":
            assert "/ny/tracking/maps" in names(resolver.list("/ny/tracking", token=token))
        case _:
            request = directory_pb2.ListEntriesRequest(token=token)
            rpc = "DirectoryService.ListEntries"
            assert resolver.call("/ny/tracking", rpc, request).entries


@pytest.mark.parametrize("verb", ["resolve", "resolve_many", "which", "list", "call", "any"])
def test_after_a_restore_of_one_cluster_the_own_writes_to_others_are_still_read(
    directory: MemoryDirectory, verb: str
) -> None:
    real = directory.at("/ny/tracking")
    sent: list[Token] = []

    def answer(method: str, request: Any) -> Any:
        if method == "FederationService.ListMounts":
            return real.answer(method, request)
        sent.append(Token.parse(request.token))
        for cluster_id in ("kc-ny-tracking", "kc-ny"):
            place = sent[-1].positions.get(cluster_id)
            if place is not None and place.incarnation == "before":
                raise errors.TokenExpired("restored since", cluster_id=cluster_id)
        if method == "AccessService.AuthorizeAny":
            return access_pb2.AuthorizeAnyResponse(allowed=True)
        return real.answer(method, request)

    directory.transport.serve(real.endpoint, answer)
    resolver = directory.resolver("/ny/tracking")
    for cluster_id in ("kc-ny-tracking", "kc-ny"):
        resolver.session.wrote(str(Token.from_position(cluster_id, "before", 9)))
    kept = Token.from_position("kc-la", "memory", 7)
    resolver.session.wrote(str(kept))
    path = "/ny/tracking/maps"
    match verb:
        case "resolve":
            resolver.resolve(path)
        case "resolve_many":
            assert isinstance(resolver.resolve_many([path])[0], TopicLocation)
        case "which":
            resolver.which("", "maps")
        case "list":
            resolver.list("/ny/tracking")
        case "any":
            resolver.authorize_any("User:alice", "read")
        case _:
            request = directory_pb2.ListEntriesRequest()
            resolver.call("/ny/tracking", "DirectoryService.ListEntries", request)
    assert sent[-1] == kept
    assert resolver.session.text == str(kept)


@pytest.mark.parametrize("many", [False, True])
def test_where_nothing_answers_without_the_own_token_it_is_kept(
    directory: MemoryDirectory, many: bool
) -> None:
    asked = 0

    def answer(_: str, __: Any) -> Any:
        nonlocal asked
        asked += 1
        raise errors.TokenExpired("restored since") if asked == 1 else errors.Unreachable("gone")

    directory.transport.serve(directory.at("/ny/tracking").endpoint, answer)
    resolver = directory.resolver("/ny/tracking")
    written = str(Token.from_position("kc-ny-tracking", "memory", 1))
    resolver.session.wrote(written)
    path = "/ny/tracking/maps"
    if many:
        assert isinstance(resolver.resolve_many([path])[0], errors.Unreachable)
    else:
        with pytest.raises(errors.Unreachable):
            resolver.resolve(path)
    assert asked > 1
    assert resolver.session.text == written


@pytest.mark.parametrize("verb", ["resolve", "resolve_many", "which", "call"])
def test_for_an_expired_token_of_the_callers_the_own_writes_stay_known(
    directory: MemoryDirectory, verb: str
) -> None:
    real = directory.at("/ny/tracking")

    def answer(method: str, request: Any) -> Any:
        if "kc-restored" in Token.parse(request.token).positions:
            raise errors.TokenExpired("restored since")
        return real.answer(method, request)

    directory.transport.serve(real.endpoint, answer)
    resolver = directory.resolver("/ny/tracking")
    written = str(Token.from_position("kc-ny-tracking", "memory", 1))
    resolver.session.wrote(written)
    path, token = "/ny/tracking/maps", str(Token.from_position("kc-restored", "before", 9))

    def ask() -> object:
        match verb:
            case "resolve":
                return resolver.resolve(path, token=token)
            case "resolve_many":
                (found,) = resolver.resolve_many([path], token=token)
                assert isinstance(found, KdirError)
                raise found
            case "which":
                return resolver.which("", "maps", token=token)
            case _:
                request = directory_pb2.ListEntriesRequest(token=token)
                return resolver.call("/ny/tracking", "DirectoryService.ListEntries", request)

    with pytest.raises(errors.TokenExpired):
        ask()
    assert resolver.session.text == written


def test_an_own_token_of_a_store_that_is_gone_fails_no_check_of_the_start_servers(
    directory: MemoryDirectory,
) -> None:
    def answer(method: str, request: Any) -> Any:
        if request.token:
            raise errors.TokenExpired("restored since")
        return access_pb2.AuthorizeAnyResponse(allowed=True)

    directory.transport.serve(directory.at("/la").endpoint, answer)
    resolver = directory.resolver("/la")
    resolver.session.wrote(str(Token.from_position("kc-la", "before", 9)))
    assert resolver.authorize_any("User:alice", "read")


def test_a_callers_token_is_not_answered_from_older_memory(directory: MemoryDirectory) -> None:
    resolver = directory.resolver("/ny/tracking")
    location = resolver.resolve("/ny/tracking/maps")
    directory.topic("/ny/tracking/more")
    newer = Token.from_position("kc-ny-tracking", "memory", location.authority.revision + 1)
    asked(directory)
    resolver.resolve("/ny/tracking/maps", token=str(newer))
    assert asked(directory) == 1
    resolver.resolve("/ny/tracking/maps", token=str(newer))
    assert asked(directory) == 0


def test_owner_of_what_is_not_there_yet(directory: MemoryDirectory) -> None:
    owner = directory.resolver("/la").owner_of("/ny/tracking/a/b")
    assert (owner.cluster, owner.exists, str(owner.path)) == (
        "ny-tracking",
        False,
        "/ny/tracking/a/b",
    )
    mount = directory.resolver("/la").owner_of("/ny/tracking")
    assert (mount.cluster, mount.kind) == ("ny-tracking", "directory")


# -- links ---------------------------------------------------------------------------------


def test_a_fallback_is_remembered_for_a_moment_only(
    directory: MemoryDirectory, clock: Clock
) -> None:
    directory.link("/tracking", "/la/tracking", "/ny/tracking")
    directory.stop("/la/tracking")
    resolver = directory.resolver(clock=clock)
    found = resolver.resolve("/tracking/search/clicks")
    assert found.path == "/ny/tracking/search/clicks"
    assert found.is_fallback
    directory.start("/la/tracking")
    clock.now += 6
    assert resolver.resolve("/tracking/search/clicks").path == CLICKS


def test_writers_stay_where_the_data_is(directory: MemoryDirectory) -> None:
    directory.link("/tracking", "/la/tracking", "/ny/tracking")
    directory.stop("/la/tracking")
    resolver = directory.resolver()
    assert resolver.resolve("/tracking/search/clicks").is_fallback
    with pytest.raises(errors.Unreachable):
        resolver.resolve("/tracking/search/clicks", for_writes=True)


# -- listing ---------------------------------------------------------------------------------


def names(listing: Any) -> list[str]:
    return [str(listed.path) for listed in listing]


def test_list_a_directory(directory: MemoryDirectory) -> None:
    listing = directory.resolver("/la").list("/ny/tracking")
    assert names(listing) == ["/ny/tracking/maps", "/ny/tracking/search"]
    assert listing.directory is not None
    assert listing.authority is not None
    assert listing.directory.path == "/ny/tracking"
    assert listing.authority.cluster.cluster == "ny-tracking"
    assert not listing.is_partial


def test_list_all_below_across_mounts(directory: MemoryDirectory) -> None:
    assert names(directory.resolver("/la").list("/", recursive=True)) == [
        "/la",
        "/la/tracking",
        "/la/tracking/search",
        "/la/tracking/search/clicks",
        "/ny",
        "/ny/tracking",
        "/ny/tracking/maps",
        "/ny/tracking/search",
        "/ny/tracking/search/clicks",
    ]
    own = directory.resolver("/la").list("/", recursive=True, across=False)
    assert names(own) == ["/la", "/la/tracking", "/ny", "/ny/tracking"][::2]


def test_list_some_kinds_and_names_across_mounts(directory: MemoryDirectory) -> None:
    resolver = directory.resolver()
    assert names(resolver.list("/", recursive=True, kinds=["topic"], name_glob="c*s")) == [
        "/la/tracking/search/clicks",
        "/ny/tracking/search/clicks",
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["maps", "maps", "maps/new", "other", "search", "search/clicks"]),
        ({"kinds": ["topic"]}, ["maps", "maps/new", "search/clicks"]),
        ({"kinds": ["link", "directory"]}, ["maps", "other", "search"]),
        ({"name_glob": "?a*"}, ["maps", "maps"]),
        ({"name_glob": "[mn]*", "kinds": ["topic"]}, ["maps", "maps/new"]),
        (
            {"include_system": True, "kinds": ["topic"]},
            ["__offsets", "__own/x", "maps", "maps/new", "search/clicks"],
        ),
    ],
)
@pytest.mark.parametrize("recursive", [True, False])
def test_a_server_in_memory_filters_a_listing(
    directory: MemoryDirectory, filters: dict[str, Any], expected: list[str], recursive: bool
) -> None:
    directory.topic("/ny/tracking/__offsets")
    directory.topic("/ny/tracking/__own/x")
    directory.topic("/ny/tracking/maps/new")
    directory.link("/ny/tracking/other", "/la/tracking")
    found = directory.resolver("/ny/tracking").list(
        "/ny/tracking", recursive=recursive, across=False, **filters
    )
    wanted = [one for one in expected if recursive or "/" not in one]
    assert names(found) == [f"/ny/tracking/{one}" for one in wanted]


def test_a_part_that_does_not_answer_is_named(directory: MemoryDirectory) -> None:
    directory.stop("/la")
    listing = directory.resolver("/").list("/", recursive=True)
    assert names(listing) == [
        "/la",
        "/ny",
        "/ny/tracking",
        "/ny/tracking/maps",
        "/ny/tracking/search",
        "/ny/tracking/search/clicks",
    ]
    (gap,) = listing.not_listed
    assert (str(gap.path), type(gap.error)) == ("/la", errors.Unreachable)


def test_a_union_is_merged_and_each_entry_says_where_it_came_from(
    directory: MemoryDirectory,
) -> None:
    directory.link("/tracking", "/la/tracking", "/ny/tracking", union=True)
    listing = directory.resolver("/la").list("/tracking")
    assert [(str(one.path), one.entry.path, str(one.source)) for one in listing] == [
        ("/tracking/maps", "/ny/tracking/maps", "/ny/tracking"),
        ("/tracking/search", "/la/tracking/search", "/la/tracking"),
    ]
    below = directory.resolver("/la").list("/tracking", recursive=True)
    assert sorted(names(below)) == [
        "/tracking/maps",
        "/tracking/search",
        "/tracking/search/clicks",
    ]


def test_a_union_whose_target_is_away_is_partial(directory: MemoryDirectory) -> None:
    directory.link("/tracking", "/la/tracking", "/ny/tracking", union=True)
    directory.stop("/la/tracking")
    listing = directory.resolver("/la").list("/tracking")
    assert names(listing) == ["/tracking/maps", "/tracking/search"]
    assert [str(gap.path) for gap in listing.not_listed] == ["/la/tracking"]
    directory.stop("/ny/tracking")
    with pytest.raises(errors.Unreachable):
        directory.resolver("/la").list("/tracking")
    with pytest.raises(errors.Unreachable):
        directory.resolver("/la").list("/tracking/none")


def test_list_what_is_not_there_and_what_is_no_directory(directory: MemoryDirectory) -> None:
    with pytest.raises(errors.Absent):
        directory.resolver().list("/la/none")
    assert names(directory.resolver().list(CLICKS)) == [CLICKS]


# -- the way back, and the way itself -------------------------------------------------------------


def test_which(directory: MemoryDirectory) -> None:
    for start in ("/", "/la/tracking", "/ny/tracking"):
        resolver = directory.resolver(start)
        assert resolver.which("la-tracking", "search.clicks").path == CLICKS
        assert resolver.which("kc-la-tracking", "search.clicks").path == CLICKS
        with pytest.raises(errors.Absent):
            resolver.which("la-tracking", "nope")
        with pytest.raises(errors.Absent, match="no cluster 'la-traking' is mounted; did you mean"):
            resolver.which("la-traking", "search.clicks")
    assert directory.resolver("/la/tracking").which("", "search.clicks").path == CLICKS
    directory.stop("/la/tracking")
    with pytest.raises(errors.Unreachable):
        directory.resolver().which("la-tracking", "search.clicks")


@pytest.mark.parametrize(
    "error",
    [
        errors.LimitExceeded("too many calls"),
        errors.Internal("internal error"),
        errors.UnreadableRecord("damaged"),
        errors.Cancelled("stops"),
    ],
    ids=lambda error: error.reason,
)
def test_which_asks_the_next_server_where_one_cannot_answer(
    directory: MemoryDirectory, error: KdirError
) -> None:
    asked_first = "127.0.0.1:19999"

    def fail(_: str, __: Any) -> Any:
        raise error

    directory.transport.serve(asked_first, fail)
    servers = [asked_first, directory.at("/la/tracking").endpoint]
    calls = directory.transport.calls
    while (asked_first, "ResolveService.Locate") not in calls:  # their order is random
        resolver = Resolver(servers, transport=directory.transport)
        assert resolver.which("", "search.clicks").path == CLICKS


class Lagging:
    """A server of ``la-tracking`` with an old, empty copy, unless a token makes it wait."""

    def __init__(self, directory: MemoryDirectory) -> None:
        self.real = directory.at("/la/tracking")
        self.revision = self.real.revision - 1
        self.catches_up = True
        self.tokens: list[str] = []
        directory.transport.serve(self.real.endpoint, self.answer)

    def answer(self, method: str, request: Any) -> Any:
        response = self.real.answer(method, request)
        self.tokens.append(request.token)
        if not request.token or not self.catches_up:
            response.authority.revision = self.revision
            response.outcome.absent.lifetime_seconds = 5
        return response


def test_R17_which_asks_a_server_that_lags_again_with_what_to_wait_for(
    directory: MemoryDirectory,
) -> None:
    resolver = directory.resolver()
    directory.topic("/la/tracking/new")
    real = directory.at("/la/tracking")
    resolver.resolve("/la/tracking/new")
    lagging = Lagging(directory)
    assert resolver.which("la-tracking", "new").path == "/la/tracking/new"
    assert Token.parse(lagging.tokens[-1]).positions["kc-la-tracking"].revision == real.revision
    lagging.catches_up = False
    with pytest.raises(errors.NotReady, match=f"still behind revision {real.revision}"):
        resolver.which("la-tracking", "new")


def test_R17_nothing_older_is_read_than_what_which_has_found(directory: MemoryDirectory) -> None:
    resolver = directory.resolver()
    assert resolver.which("la-tracking", "search.clicks").path == CLICKS
    lagging = Lagging(directory)
    assert resolver.resolve(CLICKS).kind == "topic"
    assert lagging.tokens[0] == ""
    assert lagging.tokens[1] != ""


def test_which_does_not_deny_a_cluster_that_the_root_may_only_not_know(
    directory: MemoryDirectory,
) -> None:
    directory.stop("/ny/tracking")
    for start in ("/", "/la/tracking"):
        with pytest.raises(errors.NoRoute, match="may be at or below /ny/tracking"):
            directory.resolver(start).which("nowhere", "search.clicks")
    directory.stop("/")
    with pytest.raises(errors.NoRoute, match="no cluster 'nowhere' is known"):
        directory.resolver("/la/tracking").which("nowhere", "search.clicks")


def test_trace_shows_every_hop(directory: MemoryDirectory) -> None:
    trace = directory.resolver("/la/tracking").trace("/ny/tracking/maps")
    assert [step.ask.way.value for step in trace.steps] == ["start", "up", "up", "down", "down"]
    assert [step.reply.sender.server for step in trace.steps if step.reply is not None] == [
        "la-tracking-1",
        "la-1",
        "root-1",
        "ny-1",
        "ny-tracking-1",
    ]
    assert trace.steps[-1].verdict == "authoritative"
    assert trace.location is not None
    assert trace.location.topic == "maps"
    assert trace.lifetime_seconds == 60
    gone = directory.resolver("/la").trace("/ny/none")
    assert isinstance(gone.error, errors.Absent)


def test_errors_carry_every_attempt(directory: MemoryDirectory) -> None:
    directory.stop("/ny")
    with pytest.raises(errors.Unreachable) as caught:
        directory.resolver("/la").resolve("/ny/tracking/maps")
    assert len(caught.value.attempts) == 3
    assert "down → /ny" in caught.value.attempts[-1]
    with pytest.raises(errors.Absent) as gone:
        directory.resolver("/la").resolve("/la/none")
    assert len(gone.value.attempts) == 1


@pytest.mark.parametrize(
    ("shown", "why"),
    [(0, "page after page without rows"), (1, "rows again"), (9, "rows again, or out of order")],
)
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("recursive", [False, True])
def test_a_server_whose_pages_do_not_end_is_left(
    directory: MemoryDirectory, shown: int, why: str, *, fresh: bool, recursive: bool
) -> None:
    real = directory.at("/ny/tracking")
    tokens = map(str, itertools.count()) if fresh else itertools.repeat("again")

    def answer(method: str, request: Any) -> Any:
        response = real.answer(method, request)
        if method == "DirectoryService.ListEntries":
            response.next_page_token = next(tokens)
            del response.entries[shown:]
        return response

    directory.transport.serve(real.endpoint, answer)
    with pytest.raises(errors.Lame, match=f"/ny/tracking: its server sends {why}"):
        names(directory.resolver().list("/ny/tracking", recursive=recursive))


def test_a_server_that_lists_what_is_not_its_own_is_not_believed(
    directory: MemoryDirectory,
) -> None:
    def answer(method: str, request: Any) -> Any:
        response = real.answer(method, request)
        if method == "DirectoryService.ListEntries":
            response.entries.add(path="/etc/passwd").directory.SetInParent()
        return response

    real = directory.at("/ny/tracking")
    directory.transport.serve(real.endpoint, answer)
    with pytest.raises(errors.Lame):
        names(directory.resolver().list("/ny/tracking"))


OUTGROWN = Path(("ny", "tracking", *["d"] * 63))
"""65 segments, as of a cluster that came to a longer mount."""


def test_an_entry_beyond_the_limits_of_a_path_is_listed(directory: MemoryDirectory) -> None:
    deep = entry_pb2.Entry(directory=entry_pb2.Directory())
    directory.at("/ny/tracking").put(OUTGROWN, deep)
    directory.link("/ny/far", "/ny/tracking/d")
    resolver = directory.resolver()
    assert str(OUTGROWN) in names(resolver.list("/", recursive=True))
    assert names(resolver.list(str(OUTGROWN.parent))) == [str(OUTGROWN)]
    through = resolver.list("/ny/far", recursive=True)
    assert names(through)[-1] == f"/ny/far{str(OUTGROWN).removeprefix('/ny/tracking/d')}"
    assert not through.is_partial
    with pytest.raises(errors.InvalidPath, match="65 segments"):
        resolver.list(str(OUTGROWN))


def test_a_mount_beyond_the_limits_of_a_path_is_listed_without_what_is_below(
    directory: MemoryDirectory,
) -> None:
    mount = entry_pb2.Mount(cluster_id="kc-far", cluster="far")
    directory.at("/ny/tracking").put(OUTGROWN, entry_pb2.Entry(mount=mount))
    listing = directory.resolver().list("/ny/tracking", recursive=True)
    assert {str(OUTGROWN), "/ny/tracking/search/clicks"} <= set(names(listing))
    (missing,) = listing.not_listed
    assert missing.path == OUTGROWN
    assert isinstance(missing.error, errors.InvalidPath)


def test_which_finds_a_topic_beyond_the_limits_of_a_path(directory: MemoryDirectory) -> None:
    topic = entry_pb2.Topic(physical_name="far")
    directory.at("/ny/tracking").put(OUTGROWN, entry_pb2.Entry(topic=topic))
    found = directory.resolver().which("ny-tracking", "far")
    assert (found.path, found.topic) == (str(OUTGROWN), "far")


@pytest.mark.parametrize(
    "wrong", ["/ny/tracking/../etc", "/ny/tracking//x", "/ny/tracking/x/", "/ny/tracking/x" * 3_000]
)
def test_an_entry_whose_path_is_none_is_not_believed(
    directory: MemoryDirectory, wrong: str
) -> None:
    def answer(method: str, request: Any) -> Any:
        response = real.answer(method, request)
        if method == "DirectoryService.ListEntries":
            response.entries.add(path=wrong).directory.SetInParent()
        if method == "ResolveService.Locate":
            response.outcome.resolution.entry.path = wrong
        return response

    real = directory.at("/ny/tracking")
    directory.transport.serve(real.endpoint, answer)
    with pytest.raises(errors.Lame):
        names(directory.resolver().list("/ny/tracking", recursive=True))
    with pytest.raises(errors.Lame):
        directory.resolver("/ny/tracking").which("", "maps")


def test_a_recursive_server_walks_for_us(directory: MemoryDirectory) -> None:
    real = directory.at("/la")
    owner = directory.at("/ny/tracking")
    seen: list[bool] = []

    def answer(method: str, request: resolve_pb2.ResolveRequest) -> Any:
        seen.append(request.recursive)
        return (owner if request.recursive else real).answer(method, request)

    directory.transport.serve(real.endpoint, answer)
    found = directory.resolver("/la", recursive=True).resolve("/ny/tracking/maps")
    assert (found.cluster, seen) == ("ny-tracking", [True])


def test_a_location_travels_to_another_process(directory: MemoryDirectory) -> None:
    location = directory.resolver().resolve(CLICKS)
    again = pickle.loads(pickle.dumps(location))  # noqa: S301 - our own
    assert again == location
    assert again.entry == location.entry


def test_a_server_that_takes_fewer_paths_a_call_gets_fewer(directory: MemoryDirectory) -> None:
    real = directory.at("/ny/tracking")
    sizes: list[int] = []

    def answer(method: str, request: Any) -> Any:
        if method == "ResolveService.BatchResolve":
            sizes.append(len(request.paths))
            if len(request.paths) > 10:
                raise errors.LimitExceeded("10 paths at most", field="paths")
        return real.answer(method, request)

    directory.transport.serve(real.endpoint, answer)
    paths = [f"/ny/tracking/t{number}" for number in range(35)]
    for path in paths:
        directory.topic(path)
    found = directory.resolver("/ny/tracking", timeout_seconds=60).resolve_many(paths)
    assert [one.path for one in found if isinstance(one, TopicLocation)] == paths
    assert sizes[0] == 35


def test_paths_whose_answers_do_not_fit_are_asked_for_again_in_smaller_calls(
    directory: MemoryDirectory,
) -> None:
    real = directory.at("/ny/tracking")
    sizes: list[int] = []

    def answer(method: str, request: Any) -> Any:
        response = real.answer(method, request)
        if method == "ResolveService.BatchResolve":
            sizes.append(len(request.paths))
            full = to_outcome(errors.LimitExceeded("so many bytes", field="paths"))
            for outcome in response.outcomes[10:]:
                outcome.Clear()
                outcome.error.CopyFrom(full)
        return response

    directory.transport.serve(real.endpoint, answer)
    paths = [f"/ny/tracking/t{number}" for number in range(35)]
    for path in paths:
        directory.topic(path)
    found = directory.resolver("/ny/tracking", timeout_seconds=60).resolve_many(paths)
    assert [one.path for one in found if isinstance(one, TopicLocation)] == paths
    assert sizes == [35, 12, 2, 13, 3]


@pytest.mark.parametrize(
    "error",
    [
        errors.UnreadableRecord("damaged"),
        errors.PermissionDenied("no"),
        errors.NotReady("loads"),
        errors.DeadlineExceeded("late"),
    ],
    ids=lambda error: error.reason,
)
@pytest.mark.parametrize("is_too_large", [False, True])
def test_R22_the_error_of_a_further_call_is_that_of_its_paths(
    directory: MemoryDirectory, error: KdirError, *, is_too_large: bool
) -> None:
    """Where the answers are too large for one call, or a call has too many paths."""
    real = directory.at("/ny/tracking")

    def answer(method: str, request: Any) -> Any:
        if method != "ResolveService.BatchResolve":
            raise error
        if not is_too_large and len(request.paths) > 2:
            raise errors.LimitExceeded("2 at most", field="paths")
        response = real.answer(method, request)
        if is_too_large:
            full = to_outcome(errors.LimitExceeded("so many bytes", field="paths"))
            response.outcomes[-1].error.CopyFrom(full)
        return response

    paths = [f"/ny/tracking/t{number}" for number in range(5)]
    for path in paths:
        directory.topic(path)
    directory.transport.serve(real.endpoint, answer)
    found = directory.resolver("/ny/tracking").resolve_many(paths)
    failed = [one for one in found if isinstance(one, KdirError)]
    of_server = isinstance(error, errors.NotReady | errors.DeadlineExceeded)
    assert len(failed) == (3 if of_server and not is_too_large else 1)


def test_R22_a_server_may_answer_one_path_a_call(directory: MemoryDirectory) -> None:
    real = directory.at("/ny/tracking")

    def answer(method: str, request: Any) -> Any:
        response = real.answer(method, request)
        if method == "ResolveService.BatchResolve":
            full = to_outcome(errors.LimitExceeded("so many bytes", field="paths"))
            for outcome in response.outcomes[1:]:
                outcome.error.CopyFrom(full)
        return response

    directory.transport.serve(real.endpoint, answer)
    paths = [f"/ny/tracking/t{number}" for number in range(1000)]
    found = directory.resolver("/ny/tracking", timeout_seconds=60).resolve_many(paths)
    assert all(isinstance(one, errors.Absent) for one in found)


def test_a_server_that_has_too_many_calls_is_not_sent_more(directory: MemoryDirectory) -> None:
    calls: list[str] = []

    def refuse(method: str, request: Any) -> Any:
        calls.append(method)
        raise errors.LimitExceeded("Concurrent RPC limit exceeded!")

    directory.transport.serve(directory.at("/ny/tracking").endpoint, refuse)
    found = directory.resolver("/ny/tracking").resolve_many(
        [f"/ny/tracking/t{n}" for n in range(9)]
    )
    assert all(isinstance(one, errors.LimitExceeded) for one in found)
    assert len(calls) < 4, "each half of the paths was asked for by itself"


def test_a_session_remembers_a_bounded_number_of_writes(directory: MemoryDirectory) -> None:
    session = directory.resolver().session
    for number in range(200):
        session.wrote(str(Token.from_position(f"kc-{number}", "i", 1)))
    positions = Token.parse(session.text).positions
    assert len(positions) == 32
    assert "kc-199" in positions


def test_a_cluster_in_memory_has_an_endpoint_of_its_own_after_an_unmount() -> None:
    with MemoryDirectory() as directory:
        first = [directory.cluster(mount) for mount in ("/", "/a", "/b")]
        directory.unmount("/a")
        assert directory.cluster("/c") not in first
        with pytest.raises(ValueError, match="no cluster is mounted above"):
            directory.unmount("/")
        assert directory.mounts == {"/", "/b", "/c"}


@pytest.mark.parametrize(
    ("name", "request_type", "confirms"),
    [
        ("AdminService.SkipChangeLog", admin_pb2.SkipChangeLogRequest, True),
        ("AdminService.DetachParent", admin_pb2.DetachParentRequest, True),
        ("DirectoryService.DeleteEntry", directory_pb2.DeleteEntryRequest, True),
        ("DirectoryService.GetEntry", directory_pb2.GetEntryRequest, False),
    ],
)
def test_what_changes_the_directory_passes_confirmed_links_only(
    directory: MemoryDirectory, name: str, request_type: Any, confirms: bool
) -> None:
    scribe = Scribe(directory, "/la")
    with directory.resolver("/la") as client, pytest.raises(KdirError):
        client.call("/la/nothing/here", name, request_type(), timeout_seconds=5)
    asked = [one.confirm_links for method, one in scribe.requests if method.endswith(".Resolve")]
    assert set(asked) == {confirms}


def test_a_write_after_a_restore_is_kept_where_an_earlier_request_is_rejected_later() -> None:
    def written(incarnation: str, revision: int) -> str:
        return str(Token.from_position("kc-x", incarnation, revision))

    session = Session()
    session.wrote(written("old00000", 900))
    sent = SessionToken(session, "")
    session.wrote(written("new00000", 5))  # by another thread, while the request is under way
    assert sent.drop_expired(errors.TokenExpired("expired", metadata={"cluster_id": "kc-x"}))
    sent.forget_expired()
    assert sent.text == session.text == written("new00000", 5)
    assert not sent.drop_expired()
