"""Policies from a change log that cannot be read whole, and waits that end in no answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kdir.v1 import entry_pb2, resolve_pb2, watch_pb2

from resolver.changes import policy_cache, state_reader
from resolver.changes.policy_cache import PolicyCache
from resolver.changes.record import entry_key, fact_key, grants_key
from resolver.changes.state import place_of
from resolver.errors import Absent, KdirError, NotReady
from resolver.revision_token import Token
from resolver.testing import MemoryDirectory
from tests.support.memory_topic import MemoryTopic

CLUSTER = "kc-root"
DAMAGED = b"\xff no record"


class Logged:
    """A root cluster with the topic /a/t, its change log, and a cache of its policies."""

    def __init__(self) -> None:
        self.topic = MemoryTopic()
        self.directory = MemoryDirectory()
        self.endpoint = self.directory.cluster("/")
        for path in ("/a/t", "/a/other", "/none"):
            self.directory.topic(path)
        self._answer = self.directory.transport.handler(self.endpoint)
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
        entry = entry_pb2.Entry(directory=entry_pb2.Directory())
        if is_topic:
            entry = entry_pb2.Entry(topic=entry_pb2.Topic())
        key = place_of(parent_id, is_topic=is_topic, name=name)
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
        cluster = entry_pb2.Cluster(cluster_id=CLUSTER, cluster="root", mount="/", epoch=1)
        authority = resolve_pb2.Authority(
            cluster=cluster, server="root-1", revision=self.revision, incarnation="i"
        )
        return watch_pb2.GetChangeLogResponse(
            authority=authority, configured=True, state_topic="t", bootstrap_servers=["b:1"]
        )


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


def test_a_wait_goes_on_while_no_directory_answers(logged: Logged) -> None:
    logged.cache.effective("/a/t")
    logged.directory.stop("/")
    ended = in_thread(lambda: logged.cache.wait_for(logged.token(2)))
    time.sleep(0.2)
    logged.end_page()
    assert ended() is None
    assert logged.cache.effective("/a/t").revision == 2


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
