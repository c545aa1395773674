"""A measured store answers as the store behind it does, and says how long that took."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from directory.server.metrics.instrumentation import MeasuredStore
from directory.store.base import (
    Committed,
    Conflict,
    KeyEquals,
    Put,
    Store,
    StoreFull,
    StoreIsSealed,
    StoreUnreachable,
    Transaction,
)

TRANSACTION = Transaction((), (Put(b"k", b"v"),))


class Scripted:
    """Store that answers as the test sets, and takes so long by the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 0.0
        self.does: Callable[[], Any] = lambda: Committed(1, "c")
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def clock(self) -> float:
        return self.now

    def commit(self, transaction: Transaction, timeout_seconds: float) -> Any:
        self.asked.append(("commit", (transaction, timeout_seconds)))
        self.now += self.seconds
        return self.does()

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            self.asked.append((name, arguments))
            return self.does()

        return ask


@pytest.fixture
def behind() -> Scripted:
    return Scripted()


@pytest.fixture
def store(behind: Scripted) -> MeasuredStore:
    return MeasuredStore(cast("Store", behind), behind.clock)


def failing(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def counted(store: MeasuredStore) -> dict[str, int]:
    return {name: count for name, one in store.commits.items() if (count := one.read().count)}


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [("committed", Committed(7, "c")), ("conflict", Conflict(KeyEquals(b"k", None), 7))],
)
def test_a_commit_is_timed_by_what_came_of_it(
    store: MeasuredStore, behind: Scripted, outcome: str, answer: object
) -> None:
    behind.does, behind.seconds = lambda: answer, 0.25
    assert store.last_commit_seconds is None
    assert store.commit(TRANSACTION, 3.0) is answer
    assert behind.asked == [("commit", (TRANSACTION, 3.0))]
    assert counted(store) == {outcome: 1}
    assert store.commits[outcome].read().seconds == 0.25
    assert store.last_commit_seconds == 0.25


@pytest.mark.parametrize(
    ("outcome", "error", "answered"),
    [
        ("unavailable", StoreUnreachable("gone"), False),
        ("full", StoreFull("no room"), True),
        ("sealed", StoreIsSealed("moved to etcd://x"), True),
        ("error", ValueError("over the limits"), False),
    ],
)
def test_a_commit_that_fails_is_timed_too(
    store: MeasuredStore, behind: Scripted, outcome: str, error: Exception, answered: bool
) -> None:
    behind.does, behind.seconds = failing(error), 5.0
    with pytest.raises(type(error)):
        store.commit(TRANSACTION)
    assert counted(store) == {outcome: 1}
    # A store that did not answer says nothing of how quick it is.
    assert store.last_commit_seconds == (5.0 if answered else None)


def test_a_store_is_full_until_a_commit_finds_space(store: MeasuredStore, behind: Scripted) -> None:
    seen = []
    for answer in (
        failing(StoreFull("no room")),
        failing(StoreUnreachable("gone")),
        lambda: Committed(7, "c"),
    ):
        behind.does = answer
        with suppress(StoreUnreachable):
            store.commit(TRANSACTION)
        behind.now += 40.0
        seen.append(store.full)
    assert seen == [("no room", 40.0), ("no room", 80.0), None]


def test_reads_are_counted_by_whether_the_store_answered(
    store: MeasuredStore, behind: Scripted
) -> None:
    behind.does = list
    assert store.read(b"p", 3, b"a") == []
    behind.does = failing(StoreUnreachable("gone"))
    with pytest.raises(StoreUnreachable):
        store.read(b"p")
    assert store.reads() == {"ok": 1, "error": 1}
    assert behind.asked == [("read", (b"p", 3, b"a")), ("read", (b"p", 1000, b""))]


def test_all_else_is_handed_on_as_it_is(store: MeasuredStore, behind: Scripted) -> None:
    answer = object()
    behind.does = lambda: answer
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        if name.startswith("_") or name in {"commit", "read"}:
            continue
        behind.asked.clear()
        given = [f"<{one}>" for one in inspect.signature(method).parameters if one != "self"]
        got = getattr(store, name)(*given)
        assert behind.asked == [(name, tuple(given))]
        if inspect.signature(method).return_annotation != "None":
            assert got is answer, name
