"""Checkpoints of a watch to which no change is shown, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from kdir.v1 import watch_pb2

from directory.api import watch_service
from directory.api.rpc.call_context import Call
from resolver.revision_token import Token
from tests.unit.access.conftest import ADMIN, House

Make = Callable[..., House]


class Clock:
    """Clock that goes on only when a test sets it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watch_service, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def watching(house: House, **request: Any) -> Any:
    call = Call(inf, principal=ADMIN, is_active=lambda: True)
    return closing(house.handlers["Watch"](watch_pb2.WatchRequest(**request), call))


def test_checkpoints_come_while_a_watch_reads_what_is_past(house: Make, clock: Clock) -> None:
    la = house()
    la.mkdir("/la/quiet")
    snapshot = la.cluster.replica.snapshot
    token = Token.from_position(la.cluster.cluster_id, snapshot.incarnation, snapshot.revision)
    for number in range(450):
        la.mkdir(f"/la/{number}")
    with watching(la, path="/la/quiet", after_token=str(token), checkpoint_seconds=5) as source:
        reached = [revision(la, source.poll())]
        while source.has_more:
            clock.now += 5
            response = source.poll()
            assert response is not None
            assert not response.events
            reached.append(revision(la, response))
    assert len(reached) >= 3
    assert reached == sorted(set(reached)), "each begins where the last one ended"


@pytest.mark.parametrize(
    ("asked", "expected"), [(0, 10), (1, 1), (5, 5), (6, 6), (7, 7), (9, 9), (11, 11)]
)
def test_an_idle_watch_is_due_when_its_next_checkpoint_is(
    house: Make, clock: Clock, asked: int, expected: int
) -> None:
    with watching(house(), path="/la", checkpoint_seconds=asked) as source:
        sent = []
        for _ in range(20):
            if source.poll() is not None:
                sent.append(clock.now)
            clock.now = source.due_at
    gaps = {later - earlier for earlier, later in pairwise(sent)}
    assert gaps == {expected}


def revision(house: House, response: watch_pb2.WatchResponse) -> int:
    return Token.parse(response.token).positions[house.cluster.cluster_id].revision
