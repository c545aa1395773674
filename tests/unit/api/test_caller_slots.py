"""Slots of callers, and large answers that are not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest

from directory.api.rpc.call_context import Call
from directory.api.rpc.caller_slots import CallerSlots, caller_key
from directory.api.rpc.unsent_answers import UnsentAnswers
from resolver.errors import LimitExceeded


class Context:
    """A call that ends when the test says."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.is_over = False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self.is_over:
            return False
        self.callbacks.append(callback)
        return True

    def cancel(self) -> None:
        self.end()

    def end(self) -> None:
        self.is_over = True
        for callback in self.callbacks:
            callback()
        self.callbacks = []


def of(who: str = "", peer: str = "", host: str = "") -> Call:
    return Call(1e9, principal=who, find_peer=lambda: peer, caller_host=host)


def test_a_caller_is_a_principal_or_a_connection() -> None:
    assert caller_key(of("User:a", "ipv4:1.2.3.4:5")) == "User:a"
    assert caller_key(of("", "ipv4:1.2.3.4:5")) == "ipv4:1.2.3.4:5"
    assert caller_key(of("", "", "1.2.3.4")) == "1.2.3.4"


def test_a_caller_gets_its_share_and_all_together_no_more_than_there_are() -> None:
    slots = CallerSlots(10, 4)
    assert [slots.take("a") for _ in range(5)] == [True] * 4 + [False]
    assert slots.take("b", 4)
    assert not slots.take("c", 3)
    assert slots.take("c", 2)
    assert slots.refused == 2
    slots.give_back("a")
    assert slots.take("a")
    for who, count in (("a", 4), ("b", 4), ("c", 2)):
        slots.give_back(who, count)
    assert not slots.keys
    assert slots.taken_count == 0


def test_a_slot_is_given_back_whatever_happens() -> None:
    slots = CallerSlots(1, 1)
    error = LimitExceeded("enough")

    def work() -> None:
        with slots.hold(of("a"), error):
            with pytest.raises(LimitExceeded):
                slots.hold(of("b"), error).__enter__()
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert slots.take("b")


@pytest.mark.parametrize("times", [1, 2, 10])
def test_answers_that_are_not_read_are_bounded_for_each_caller_and_for_all(times: int) -> None:
    unsent = UnsentAnswers(100, 40, 30.0)
    mine: list[Any] = []
    refused = 0
    for _ in range(4 * times):
        context = Context()
        try:
            unsent.hold(cast("grpc.ServicerContext", context), of("mallory"), 10)
            mine.append(context)
        except LimitExceeded:
            refused += 1
    assert (len(mine), refused) == (4, 4 * (times - 1))
    unsent.hold(cast("grpc.ServicerContext", Context()), of("bob"), 30)
    for context in mine:
        context.end()
    large = Context()
    unsent.hold(cast("grpc.ServicerContext", large), of("mallory"), 10**9)  # alone: any size
    with pytest.raises(LimitExceeded):
        unsent.hold(cast("grpc.ServicerContext", Context()), of("mallory"), 10)
    large.end()
    over = Context()
    over.end()
    unsent.hold(cast("grpc.ServicerContext", over), of("mallory"), 40)
    unsent.hold(cast("grpc.ServicerContext", Context()), of("mallory"), 40)


def test_a_call_whose_answer_is_not_read_in_time_is_ended() -> None:
    now = [0.0]
    unsent = UnsentAnswers(100, 40, 30.0, clock=lambda: now[0])
    context = Context()
    unsent.hold(cast("grpc.ServicerContext", context), of("mallory"), 40)
    now[0] = 29.0
    unsent.end_late()
    ended = [context.is_over]
    now[0] = 31.0
    unsent.end_late()
    ended.append(context.is_over)
    assert ended == [False, True]
    unsent.hold(cast("grpc.ServicerContext", Context()), of("mallory"), 40)
