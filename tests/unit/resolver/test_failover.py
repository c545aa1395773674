"""Servers that are all alike, one of which takes its time: who is asked when, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from resolver import Resolver, errors
from resolver.deadline_shares import FIRST_TRY_SECONDS, per_server_timeout
from resolver.endpoints import GOOD_SECONDS, SLOW_SECONDS, ServerHealth
from resolver.path import Path
from resolver.resolution.state_machine import ResolutionOptions, ResolutionStateMachine
from resolver.resolution.values import FailedResult, Query
from resolver.testing import MemoryDirectory, MemoryTransport
from resolver.transport import Method


class Slow(MemoryTransport):
    """Some servers take so many seconds, by a clock of its own."""

    def __init__(self, inner: MemoryTransport, seconds: dict[str, float]) -> None:
        super().__init__()
        self.now = 0.0
        self.inner = inner
        self.seconds = seconds
        self.asked: list[tuple[str, float]] = []

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Any,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        self.asked.append((endpoint, timeout_seconds))
        took = self.seconds.get(endpoint, 0.001)
        self.now += min(took, timeout_seconds)
        if took > timeout_seconds:
            raise errors.DeadlineExceeded("slow")
        return self.inner.call("127.0.0.1:20000", method, request, timeout_seconds)


def client(seconds: dict[str, float], names: str, timeout_seconds: float) -> tuple[Resolver, Slow]:
    directory = MemoryDirectory()
    directory.cluster("/")
    directory.topic("/x")
    transport = Slow(directory.transport, seconds)
    made = Resolver(
        [f"{name}:1" for name in names],
        transport=transport,
        timeout_seconds=timeout_seconds,
        clock=lambda: transport.now,
        health=ServerHealth(lambda: transport.now, shuffle=lambda _: None),
    )
    return made, transport


def test_one_that_hangs_costs_half_a_second_however_long_the_deadline() -> None:
    resolver, transport = client({"a:1": 1e9}, "ab", 10)
    assert resolver.resolve("/x").kind == "topic"
    assert [endpoint for endpoint, _ in transport.asked] == ["a:1", "b:1"]
    assert transport.now == pytest.approx(FIRST_TRY_SECONDS, abs=0.01)
    resolver.forget()
    resolver.resolve("/x")
    assert [endpoint for endpoint, _ in transport.asked] == ["a:1", "b:1", "b:1"]


def test_many_paths_at_once_give_more_time_and_then_go_on_elsewhere() -> None:
    resolver, transport = client({"a:1": 1e9}, "ab", 10)
    found = resolver.resolve_many(["/x", *(f"/n{n}" for n in range(500))])
    assert [getattr(one, "kind", "") for one in found].count("topic") == 1
    assert [endpoint for endpoint, _ in transport.asked][:2] == ["a:1", "b:1"]
    assert transport.now == pytest.approx(FIRST_TRY_SECONDS + 500 / 2000, abs=0.05)


def test_where_all_are_slow_each_has_a_second_longer_try() -> None:
    resolver, transport = client({"a:1": 1.5, "b:1": 1e9}, "ab", 10)
    assert resolver.resolve("/x").kind == "topic"
    assert [endpoint for endpoint, _ in transport.asked] == ["a:1", "b:1", "a:1"]
    assert transport.now <= 10


def test_where_none_answers_it_ends_within_the_deadline() -> None:
    for names in ("a", "ab", "abcdefghij"):
        resolver, transport = client(dict.fromkeys([f"{name}:1" for name in names], 1e9), names, 3)
        with pytest.raises(errors.KdirError) as caught:
            resolver.resolve("/x")
        assert isinstance(caught.value, errors.Unreachable | errors.DeadlineExceeded)
        assert transport.now <= 3.02
        assert {endpoint for endpoint, _ in transport.asked} == {f"{name}:1" for name in names}


def test_a_walk_sets_a_server_aside_once() -> None:
    walk = ResolutionStateMachine(Path.parse("/x"), ResolutionOptions(("a:1", "b:1")))
    asked: list[tuple[str, bool]] = []
    while isinstance(step := walk.next_query(), Query):
        asked.append((step.endpoint, step.hurried))
        if step.hurried:
            walk.on_slow(0.5)
        else:
            walk.on_error(errors.DeadlineExceeded("slow"))
    assert asked == [("a:1", True), ("b:1", False), ("a:1", False)]
    assert isinstance(step, FailedResult)
    assert len(step.error.attempts) == 3
    assert "no answer within 0.50 s yet" in step.error.attempts[0]


def test_the_only_server_is_given_its_whole_share() -> None:
    assert per_server_timeout(10, 1) == 10
    assert per_server_timeout(10, 1 / 2, hurried=True) == FIRST_TRY_SECONDS
    assert per_server_timeout(1, 1 / 2, hurried=True) == 0.25
    assert per_server_timeout(0.001, 1 / 2) == 0.01
    assert per_server_timeout(60, 1 / 2, hurried=True, paths=1001) == FIRST_TRY_SECONDS + 0.5


def test_what_is_remembered_of_a_server_ends() -> None:
    now = [0.0]
    health = ServerHealth(lambda: now[0], shuffle=lambda _: None)
    health.note_slow("a:1")
    health.note_success("b:1")
    assert health.troubles() == {"a:1": SLOW_SECONDS}
    assert list(health.order(["a:1", "b:1", "c:1"])) == ["b:1", "c:1", "a:1"]
    now[0] = SLOW_SECONDS + 1
    assert health.troubles() == {}
    assert list(health.order(["a:1", "b:1", "c:1"])) == ["b:1", "a:1", "c:1"]
    now[0] = GOOD_SECONDS + 1  # those who fled to b come back to a
    assert list(health.order(["a:1", "b:1", "c:1"])) == ["a:1", "b:1", "c:1"]
