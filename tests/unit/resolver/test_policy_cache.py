"""Policies from a change log that cannot be read whole, and waits that end in no answer."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kdir.v1 import entry_pb2, policies_pb2, resolve_pb2, watch_pb2

from resolver.changes import policy_cache, state_reader
from resolver.changes.policy_cache import PolicyCache
from resolver.changes.record import Change, encode, entry_key, fact_key, grants_key
from resolver.changes.state_fold import place_of
from resolver.errors import (
    Absent,
    Closed,
    InvalidArgument,
    KafkaUnavailable,
    KdirError,
    NotReady,
    PermissionDenied,
    StoreUnavailable,
    Unimplemented,
    Unreachable,
)
from resolver.revision_token import Token
from resolver.testing import MemoryDirectory
from tests.support.memory_topic import MemoryTopic
from tests.support.waiting import eventually

CLUSTER = "kc-root"
DAMAGED = b"\xff no record"


def an_entry(parent_id: int, name: str, *, is_topic: bool) -> tuple[entry_pb2.Entry, bytes]:
    """Returns a topic, or a directory, and the key of its row in the store."""
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    if is_topic:
        entry = entry_pb2.Entry(topic=entry_pb2.Topic())
    return entry, place_of(parent_id, is_topic=is_topic, name=name)


def change_log_answer(cluster_id: str, mount: str, revision: int) -> watch_pb2.GetChangeLogResponse:
    """Returns a server's answer that the state topic of the cluster is called as its mount."""
    cluster = entry_pb2.Cluster(cluster_id=cluster_id, cluster="a", mount=mount, epoch=1)
    authority = resolve_pb2.Authority(
        cluster=cluster, server="a-1", revision=revision, incarnation="i"
    )
    return watch_pb2.GetChangeLogResponse(
        authority=authority, configured=True, state_topic=mount, bootstrap_servers=["b:1"]
    )


class Logged:
    """A root cluster with the topic /a/t, its change log, and a cache of its policies."""

    def __init__(self) -> None:
        self.topic = MemoryTopic()
        self.directory = MemoryDirectory()
        self.endpoint = self.directory.cluster("/")
        for path in ("/a/t", "/a/other", "/none"):
            self.directory.topic(path)
        self._answer = self.directory.transport.handler(self.endpoint)
        self.log_answer: watch_pb2.GetChangeLogResponse | None = None
        """Answer of ``GetChangeLog``; None = the log is where it was."""
        self.log_failure: BaseException | None = None
        """Error of ``GetChangeLog``."""
        self.directory.transport.serve(self.endpoint, self._answer_with_log)
        self.put(1, 0, "")
        self.put(2, 1, "a")
        self.put(3, 2, "t", is_topic=True)
        self.revision = 0
        self.end_page()
        self.cache = PolicyCache(
            self.endpoint, transport=self.directory.transport, timeout_seconds=10.0
        )

    def put(self, entry_id: int, parent_id: int, name: str, *, is_topic: bool = False) -> None:
        entry, key = an_entry(parent_id, name, is_topic=is_topic)
        self.topic.put(CLUSTER, 1, entry_id, key, entry.SerializeToString())

    def end_page(self) -> str:
        """Adds a checkpoint; returns the token of its revision."""
        self.revision += 1
        self.topic.end_page(CLUSTER, self.revision)
        return self.token(self.revision)

    def token(self, revision: int) -> str:
        return str(Token.from_position(CLUSTER, "i", revision))

    def damage(self, key: str) -> None:
        """Publishes a record that cannot be read, and waits until the cache has it."""
        self.cache.effective("/a/t")
        self.topic.add(key, DAMAGED)
        self.cache.wait_for(self.end_page())

    def _answer_with_log(self, method: str, request: Any) -> Any:
        if method != "WatchService.GetChangeLog":
            return self._answer(method, request)
        if self.log_failure is not None:
            raise self.log_failure
        return self.log_answer or change_log_answer(CLUSTER, "/", self.revision)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logged]:
    made = Logged()
    monkeypatch.setattr(state_reader, "TopicReader", made.topic.reader)
    monkeypatch.setattr(policy_cache, "_SLICE_SECONDS", 0.02)
    with closing(made.cache), made.directory:
        yield made


def test_an_entry_whose_record_cannot_be_read_is_not_absent(logged: Logged) -> None:
    with pytest.raises(Absent):
        logged.cache.effective("/a/other")
    logged.damage(entry_key(CLUSTER, 4))
    with pytest.raises(NotReady, match="/a/other, or of another entry, in the change log cannot"):
        logged.cache.effective("/a/other")
    found = logged.cache.effective("/a/t")
    assert "1 record of the change log cannot be read" in found.trouble


@pytest.mark.parametrize("entry_id", [1, 2, 3])
def test_old_policies_are_not_given_for_a_newer_record_that_cannot_be_read(
    logged: Logged, entry_id: int
) -> None:
    logged.damage(entry_key(CLUSTER, entry_id))
    with pytest.raises(NotReady, match="cannot be read"):
        logged.cache.effective("/a/t")


@pytest.mark.parametrize(
    ("key", "is_trouble"),
    [(fact_key(CLUSTER, b"f/parent"), True), (grants_key(CLUSTER, 2), False)],
)
def test_another_record_that_cannot_be_read_is_trouble_if_it_may_matter(
    logged: Logged, key: str, *, is_trouble: bool
) -> None:
    logged.damage(key)
    assert ("cannot be read" in logged.cache.effective("/a/t").trouble) is is_trouble


def test_a_row_that_is_no_entry_is_an_error_of_kdir(logged: Logged) -> None:
    logged.cache.effective("/a/t")
    key = place_of(2, is_topic=True, name="t")
    logged.topic.put(CLUSTER, 1, 3, key, DAMAGED)
    logged.cache.wait_for(logged.end_page())
    with pytest.raises(NotReady, match="the row of /a/t in the change log cannot be read"):
        logged.cache.effective("/a/t")


def test_a_token_that_is_never_reached_does_not_hold_up_later_answers(logged: Logged) -> None:
    logged.cache.effective("/a/t")
    with pytest.raises(NotReady):
        logged.cache.wait_for(logged.token(99), timeout_seconds=0.1)
    assert logged.cache.effective("/a/t", timeout_seconds=0.5).revision == 1


def test_a_log_that_is_off_by_now_answers_no_more(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    logged.cache.effective("/a/t")
    logged.log_answer = watch_pb2.GetChangeLogResponse(
        authority=change_log_answer(CLUSTER, "/", 1).authority
    )
    for _ in range(2):
        with pytest.raises(Unimplemented, match="keeps no change log"):
            logged.cache.effective("/a/t")
    assert not logged.cache.cluster_ids


@pytest.fixture
def mixed(logged: Logged) -> Iterator[PolicyCache]:
    """Yields a cache with two servers: the one that is asked first has no change log in its config,
    the other one has.
    """
    transport, without = logged.directory.transport, "127.0.0.1:19999"
    answer = transport.handler(logged.endpoint)

    def answer_without_log(method: str, request: Any) -> Any:
        found = answer(method, request)
        if method == "WatchService.GetChangeLog":
            return watch_pb2.GetChangeLogResponse(authority=found.authority, publisher="a-1")
        return found

    def answer_later(method: str, request: Any) -> Any:
        if method != "WatchService.GetChangeLog":
            raise StoreUnavailable("not now")
        return answer(method, request)

    transport.serve(without, answer_without_log)
    transport.serve(logged.endpoint, answer_later)
    servers = [without, logged.endpoint]
    with PolicyCache(servers, transport=transport, timeout_seconds=5.0) as cache:
        yield cache


def test_a_server_whose_config_has_no_change_log_does_not_hide_that_of_the_others(
    logged: Logged, mixed: PolicyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during a restart of a cluster's servers, one by one."""
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    assert mixed.effective("/a/t").revision == 1
    assert mixed.effective("/a/t").revision == 1, "where its log is was asked again"
    logged.directory.stop("/")
    assert mixed.effective("/a/t").revision == 1, "the only server with the log is away"


def test_while_the_servers_with_a_change_log_are_away_it_is_not_known_that_there_is_none(
    logged: Logged, mixed: PolicyCache
) -> None:
    logged.directory.stop("/")
    with pytest.raises(Unreachable):
        mixed.effective("/a/t")


@pytest.mark.parametrize(
    ("brokers", "registry", "is_same"),
    [(["c:1"], "", False), (["c:1", "b:1"], "", True), (["b:1"], "http://r:1", False)],
)
def test_a_log_that_is_elsewhere_by_now_is_loaded_from_there(
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
    brokers: list[str],
    registry: str,
    *,
    is_same: bool,
) -> None:
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    opened: list[Any] = []
    reader = state_reader.StateReader

    def open_log(properties: dict[str, Any], *args: Any, **options: Any) -> Any:
        opened.append(properties["bootstrap.servers"])
        return reader(properties, *args, **options)

    monkeypatch.setattr(policy_cache, "StateReader", open_log)
    logged.cache.effective("/a/t")
    logged.log_answer = change_log_answer(CLUSTER, "/", logged.revision)
    logged.log_answer.bootstrap_servers[:] = brokers
    logged.log_answer.schema_registry = registry
    until = time.monotonic() + 10
    while logged.cache.effective("/a/t").trouble and time.monotonic() < until:
        time.sleep(0.01)
    found = logged.cache.effective("/a/t")
    assert (found.revision, found.trouble) == (1, "")
    assert opened == (["b:1"] if is_same else ["b:1", ",".join(brokers)])


def test_a_log_goes_on_until_it_is_loaded_from_a_list_of_other_brokers(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers may have disjoint lists of one Kafka."""
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    logged.cache.effective("/a/t")
    logged.topic.is_away = True
    answers = [change_log_answer(CLUSTER, "/", logged.revision) for _ in range(2)]
    answers[1].bootstrap_servers[:] = ["c:1"]
    for answer in (answers[1], answers[1], answers[0], answers[1]):
        logged.log_answer = answer
        found = logged.cache.effective("/a/t", timeout_seconds=0.5)
        assert found.revision == 1
        assert ("other brokers" in found.trouble) is (answer is answers[1])


def test_a_log_that_is_loaded_from_other_brokers_answers_while_no_directory_does(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []

    class Reader(state_reader.StateReader):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            loaded.append(self)

    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    monkeypatch.setattr(policy_cache, "StateReader", Reader)
    logged.cache.effective("/a/t")
    logged.log_answer = change_log_answer(CLUSTER, "/", logged.revision)
    logged.log_answer.bootstrap_servers[:] = ["c:1"]
    assert "other brokers" in logged.cache.effective("/a/t").trouble
    _, successor = loaded
    successor.loaded(10)
    logged.directory.stop("/")
    found = logged.cache.effective("/a/t", timeout_seconds=0.5)
    assert (found.revision, found.trouble) == (1, "")
    assert logged.cache.cluster_ids == {CLUSTER}


def test_a_log_that_its_publisher_does_not_go_on_with_is_trouble(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    logged.cache.effective("/a/t")
    logged.log_answer = change_log_answer(CLUSTER, "/", logged.revision)
    logged.log_answer.state.message = "the topic is too small"
    logged.log_answer.waiting_commits = 3
    trouble = "the change log waits, with 3 commits to be published: the topic is too small"
    assert logged.cache.effective("/a/t").trouble == trouble
    logged.log_answer = None
    assert logged.cache.effective("/a/t").trouble == ""


def test_a_log_is_followed_while_no_directory_answers_where_it_is(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    logged.cache.effective("/a/t")
    logged.directory.stop("/")
    assert logged.cache.effective("/a/t").revision == 1


def test_a_wait_goes_on_while_no_directory_answers(logged: Logged) -> None:
    logged.cache.effective("/a/t")
    logged.directory.stop("/")
    ended = in_thread(lambda: logged.cache.wait_for(logged.token(2)))
    time.sleep(0.2)
    logged.end_page()
    assert ended() is None
    assert logged.cache.effective("/a/t").revision == 2


@pytest.mark.parametrize("failure", [InvalidArgument("no"), PermissionDenied("no"), NotReady("no")])
def test_a_wait_goes_on_while_a_server_refuses_to_answer(
    logged: Logged, failure: KdirError
) -> None:
    """The log may come to have the revision."""
    logged.cache.effective("/a/t")
    logged.log_failure = failure
    ended = in_thread(lambda: logged.cache.wait_for(logged.token(2), timeout_seconds=2.0))
    time.sleep(0.2)
    logged.end_page()
    assert ended() is None


def test_a_question_that_is_interrupted_does_not_keep_a_log_open(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    transport = logged.directory.transport
    with PolicyCache(logged.endpoint, transport=transport, idle_seconds=0.1) as cache:
        cache.effective("/a/t")
        logged.log_failure = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            cache.effective("/a/t")
        eventually(lambda: not cache.cluster_ids, 5)


def test_a_wait_ends_when_the_cache_is_closed(logged: Logged) -> None:
    logged.cache.effective("/a/t")
    ended = in_thread(lambda: logged.cache.wait_for(logged.token(2)))
    time.sleep(0.1)
    started = time.monotonic()
    logged.cache.close()
    assert isinstance(ended(), NotReady | Closed)
    assert time.monotonic() - started < 5


class TwoLogs:
    """A root cluster with /rt and one at /la with /la/t, each with a change log."""

    def __init__(self) -> None:
        self.directory = MemoryDirectory()
        self.topics: dict[str, MemoryTopic] = {}
        self.away: set[str] = set()
        self.no_parent: KdirError | None = None
        """Error of a server that is asked whether it awaits anything from a parent."""
        self.revision = 1
        """Revision of each tree, as its server answers it."""
        self.ids: dict[str, str] = {}
        first = self.add_cluster("/", "/rt")
        self.add_cluster("/la", "/la/t")
        self.cache = PolicyCache(first, transport=self.directory.transport, timeout_seconds=1.0)

    def add_cluster(self, mount: str, path: str, name: str = "") -> str:
        """Mounts a cluster with a topic and a change log; returns its server's endpoint."""
        endpoint = self.directory.cluster(mount, name)
        self.directory.topic(path)
        cluster_id = self.ids[mount] = self.directory.at(mount).cluster_id
        log = self.topics[mount] = MemoryTopic()
        for entry_id, parent_id, label in ((1, 0, ""), (2, 1, path.rpartition("/")[2])):
            entry, key = an_entry(parent_id, label, is_topic=entry_id > 1)
            log.put(cluster_id, 1, entry_id, key, entry.SerializeToString())
        log.end_page(cluster_id, 1, mount)
        answer = self.directory.transport.handler(endpoint)
        self.directory.transport.serve(endpoint, partial(self._answer, answer, mount))
        return endpoint

    def reader(self, properties: Any, topic: str, **options: Any) -> Any:
        if topic in self.away:
            raise KafkaUnavailable("no broker answered")
        return self.topics[topic].reader(properties, topic, **options)

    def _answer(self, others: Any, mount: str, method: str, request: Any) -> Any:
        if method == "PolicyService.GetEffectivePolicies":
            if self.no_parent is not None:
                raise self.no_parent
            return policies_pb2.GetEffectivePoliciesResponse()
        if method != "WatchService.GetChangeLog":
            return others(method, request)
        if request.cluster != self.ids[mount]:
            raise InvalidArgument(f"cluster: found {request.cluster!r}; expected another")
        answer = change_log_answer(self.ids[mount], mount, self.revision)
        answer.state.incarnation, answer.state.revision = "i", 1
        return answer


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoLogs]:
    made = TwoLogs()
    monkeypatch.setattr(state_reader, "TopicReader", made.reader)
    with closing(made.cache), made.directory:
        yield made


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("failure", ["away", "damaged"])
def test_a_log_that_cannot_answer_refuses_no_path_of_another_cluster(
    two: TwoLogs, failure: str, *, is_first: bool
) -> None:
    if failure == "away":
        two.away.add("/")
    else:
        two.topics["/"].add(entry_key(two.ids["/"], 9), DAMAGED)
        two.topics["/"].end_page(two.ids["/"], 2)
    if not is_first:
        assert two.cache.effective("/la/t").cluster_id == two.ids["/la"]
    refused = "/rt" if failure == "away" else "/none"
    with pytest.raises(NotReady):
        two.cache.effective(refused)
    assert two.cache.effective("/la/t").cluster_id == two.ids["/la"]


def test_a_path_of_a_cluster_below_does_not_wait_for_a_token_of_the_nearest_log(
    two: TwoLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = two.ids["/"]
    mount = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=two.ids["/la"]))
    key = place_of(1, is_topic=False, name="la")
    two.topics["/"].put(root, 1, 3, key, mount.SerializeToString())
    two.topics["/"].end_page(root, 1)
    two.cache.effective("/rt")
    looked = threading.Event()
    ask = state_reader.StateReader.wait

    def wait(self: Any, reached: Any, timeout_seconds: float) -> Any:
        looked.set()
        return ask(self, reached, timeout_seconds)

    monkeypatch.setattr(state_reader.StateReader, "wait", wait)
    token = str(Token.from_position(root, "i", 99))
    ended = in_thread(lambda: two.cache.wait_for(token, timeout_seconds=20.0))
    assert looked.wait(20)
    assert two.cache.effective("/la/t", timeout_seconds=1.5).cluster_id == two.ids["/la"]
    two.topics["/"].end_page(root, 99)
    assert ended() is None


def test_a_token_of_the_nearest_log_is_awaited_within_the_time_of_the_question(
    two: TwoLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has no row of the mount yet: the newer state that the token is of may have one."""
    monkeypatch.setattr(policy_cache, "_SLICE_SECONDS", 0.02)
    two.cache.effective("/rt")
    token = str(Token.from_position(two.ids["/"], "i", 99))
    ended = in_thread(lambda: two.cache.wait_for(token, timeout_seconds=2.0))
    is_awaited, is_answered = threading.Event(), threading.Event()
    ask = state_reader.StateReader.wait

    def wait(self: Any, reached: Any, timeout_seconds: float) -> Any:
        is_awaited.set()
        if threading.current_thread() is not threading.main_thread():
            assert is_answered.wait(60), "an answer waits no longer than its own time"
        return ask(self, reached, timeout_seconds)

    monkeypatch.setattr(state_reader.StateReader, "wait", wait)
    assert is_awaited.wait(20)
    with pytest.raises(NotReady):
        two.cache.effective("/la/t", timeout_seconds=0.3)
    is_answered.set()
    assert isinstance(ended(), NotReady)
    assert two.cache.effective("/la/t").cluster_id == two.ids["/la"], "the token was given up"


@pytest.mark.parametrize("is_mounted_again", [True, False])
def test_a_cluster_that_is_no_longer_mounted_there_answers_no_more(
    two: TwoLogs, monkeypatch: pytest.MonkeyPatch, *, is_mounted_again: bool
) -> None:
    """Its servers are gone, so that its log never shows that it was unmounted."""
    monkeypatch.setattr(policy_cache, "_LOG_SECONDS", 0.0)
    former = two.ids["/la"]
    assert two.cache.effective("/la/t").cluster_id == former
    two.directory.stop("/la")
    assert two.cache.effective("/la/t").cluster_id == former, "it may only be away"
    two.directory.unmount("/la")
    if is_mounted_again:
        two.add_cluster("/la", "/la/t", "new")
        assert two.cache.effective("/la/t").cluster_id == two.ids["/la"] != former
    else:
        with pytest.raises(Absent):
            two.cache.effective("/la/t")
    assert former not in two.cache.cluster_ids


def test_a_token_is_awaited_from_the_cluster_where_it_is_mounted_by_now(
    two: TwoLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record shows the revision: a server is asked."""
    monkeypatch.setattr(policy_cache, "_SLICE_SECONDS", 0.02)
    former = two.ids["/la"]
    assert two.cache.effective("/la/t").cluster_id == former
    log = two.topics["/la"]
    two.directory.unmount("/la")
    two.add_cluster("/la", "/la/t", "new")
    two.add_cluster("/ny", "/ny/t", "la")
    assert two.ids["/ny"] == former
    log.end_page(former, 1, "/ny")
    eventually(lambda: two.cache.effective("/ny/t").cluster_id == former, 5)
    two.revision = 2
    two.cache.wait_for(str(Token.from_position(former, "i", 2)))


def test_while_no_directory_answers_the_reason_of_the_nearest_log_is_given(two: TwoLogs) -> None:
    two.topics["/"].add(entry_key(two.ids["/"], 9), DAMAGED)
    two.topics["/"].end_page(two.ids["/"], 2)
    two.cache.effective("/rt")
    two.directory.stop("/")
    with pytest.raises(NotReady, match="the record of /none, or of another entry,"):
        two.cache.effective("/none")


@pytest.mark.parametrize("how", ["a server restarted with a parent", "the log has a parent"])
def test_a_cluster_that_gets_a_parent_later_awaits_what_it_inherits(
    two: TwoLogs, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assert two.cache.effective("/la/t").cluster_id == two.ids["/la"]
    if how == "the log has a parent":
        row = Change(
            cluster_id=two.ids["/la"],
            generation=1,
            revision=2,
            time=0,
            scope="fact",
            key=b"f/parent",
            record=b"12345678",
        )
        two.topics["/la"].add(fact_key(two.ids["/la"], b"f/parent"), encode(row))
        two.topics["/la"].end_page(two.ids["/la"], 2, "/la")
        two.cache.wait_for(str(Token.from_position(two.ids["/la"], "i", 2)))
    else:
        two.no_parent = NotReady("the parent has not answered yet")
        assert two.cache.effective("/la/t").cluster_id == two.ids["/la"], "known for a minute"
        monkeypatch.setattr(policy_cache, "time", SimpleNamespace(monotonic=in_a_minute))
    with pytest.raises(NotReady, match="parent has"):
        two.cache.effective("/la/t")


def test_a_cluster_without_a_parent_answers_also_while_its_servers_are_away(
    two: TwoLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = two.cache.effective("/la/t")
    two.directory.stop("/")
    two.directory.stop("/la")
    monkeypatch.setattr(policy_cache, "time", SimpleNamespace(monotonic=in_a_minute))
    assert two.cache.effective("/la/t") == before


def in_a_minute() -> float:
    return time.monotonic() + 61


def test_a_log_is_not_opened_while_the_cache_is_closed(logged: Logged) -> None:
    answer = logged.directory.transport.handler(logged.endpoint)

    def close_before_the_answer(method: str, request: Any) -> Any:
        if method == "WatchService.GetChangeLog":
            logged.cache.close()
        return answer(method, request)

    logged.directory.transport.serve(logged.endpoint, close_before_the_answer)
    with pytest.raises(Closed, match="this policy cache was closed"):
        logged.cache.effective("/a/t")
    assert logged.cache.cluster_ids == frozenset()


FORKED = """
import os, signal
from resolver.changes import state_reader
from resolver.errors import InvalidArgument
from tests.unit.resolver.test_policy_cache import CLUSTER, Logged
logged = Logged()
state_reader.TopicReader = logged.topic.reader
logged.cache.effective("/a/t")
reader = state_reader.StateReader({}, "t", CLUSTER)
reader.loaded(10)
child = os.fork()
if child == 0:
    signal.alarm(10)
    calls = [
        lambda: logged.cache.effective("/a/t"),
        lambda: logged.cache.wait_for(logged.token(1)),
        lambda: logged.cache.cluster_ids,
        lambda: reader.loaded(1),
    ]
    refused_count = 0
    for call in calls:
        try:
            call()
        except InvalidArgument as error:
            refused_count += "made by another process" in error.message
    logged.cache.close()
    reader.close()
    is_refused = refused_count == len(calls) and "another process" in reader.trouble
    os._exit(0 if is_refused else 2)
_, status = os.waitpid(child, 0)
assert logged.cache.effective("/a/t").trouble == reader.trouble == ""
logged.cache.close()
reader.close()
print(os.waitstatus_to_exitcode(status))
"""


def test_G11_a_policy_cache_and_a_state_reader_of_another_process_are_refused() -> None:
    """What they follow is followed by threads of that process."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "0", done.stderr


def in_thread(call: Callable[[], object]) -> Callable[[], KdirError | None]:
    """Calls a function in a thread; returns one that waits for it and returns its error."""
    errors: list[KdirError] = []

    def run() -> None:
        try:
            call()
        except KdirError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def ended() -> KdirError | None:
        thread.join(30)
        return errors[0] if errors else None

    return ended
