"""Who might do what at each revision: what is kept grows with changes of rights alone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from directory.access.authorizer import Authorizer, InheritedGrantLevel
from directory.access.compiled_grants import CompiledGrants
from directory.access.grant_tree import NO_GRANTS, GrantTree
from directory.access.grants import Grant, Operation, Permission
from directory.namespace.keys import GRANTS_MARK, INHERITED, MOVED
from directory.namespace.snapshot import Snapshot
from directory.server import access_history
from directory.server.access_history import AccessHistory
from directory.store.base import Row, Store, StoreUnreachable
from directory.store.replica import AppliedCommit, Replica
from resolver.errors import StoreUnavailable
from resolver.path import Path

GRANTS = cast("GrantTree", object())
ALLOW = Grant("User:a", "*", Operation.READ, Permission.ALLOW)
ABOVE = InheritedGrantLevel(Path(()), CompiledGrants.compile([ALLOW]))


class _Tree:
    """A tree in which something is inherited, and where the mount is."""

    def __init__(self, inherited: bytes, mount: str) -> None:
        self.grants = GRANTS
        self.mount = Path.parse(mount)
        self.facts = {INHERITED: inherited}

    def fact(self, key: bytes) -> bytes | None:
        return self.facts.get(key)


class _Replica:
    is_away = False
    trouble = ""

    def subscribe(self, listener: Any) -> None:
        self.applied = listener


def test_the_same_rights_are_kept_once_whatever_else_is_inherited() -> None:
    replica = _Replica()

    def access_at(tree: Snapshot) -> Authorizer:
        return Authorizer(cast("_Tree", tree).mount, GRANTS, ())

    history = AccessHistory(cast("Replica", replica), cast("Store", None), access_at)
    mounts = {1: "/la", 2: "/la", 3: "/la", 4: "/ny"}
    for revision, mount in mounts.items():
        tree = cast("Snapshot", _Tree(b"%d" % revision, mount))
        replica.applied(
            AppliedCommit(
                revision=revision,
                before=tree,
                after=tree,
                writes=(),
                events=(),
                reloaded=revision == 1,
            )
        )
    assert history.at(3) is history.at(1)
    now = history.at(4)
    assert now is not None
    assert str(now.mount) == "/ny"


def test_what_is_inherited_is_shared_and_what_is_not_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access_history, "_MOST_INHERITED", 50)
    replica = _Replica()
    kept = [Grant(f"User:u{one}", "*", Operation.READ, Permission.ALLOW) for one in range(10)]

    def access_at(tree: Snapshot) -> Authorizer:
        number = int(tree.fact(INHERITED) or b"0")
        changing = [*kept[: number % 9 + 1], ALLOW]
        return Authorizer(
            Path.parse("/la/x"),
            GRANTS,
            (
                InheritedGrantLevel(Path(()), CompiledGrants.compile(kept)),
                InheritedGrantLevel(Path.parse("/la"), CompiledGrants.compile(changing)),
            ),
        )

    history = AccessHistory(cast("Replica", replica), cast("Store", None), access_at)
    for revision in range(1, 101):
        tree = cast("Snapshot", _Tree(b"%d" % revision, "/la/x"))
        replica.applied(
            AppliedCommit(
                revision=revision,
                before=tree,
                after=tree,
                writes=(),
                events=(),
                reloaded=revision == 1,
            )
        )
    newest, before = history.at(100), history.at(99)
    assert newest is not None
    assert before is not None
    assert newest.inherited is not None
    assert before.inherited is not None
    assert newest.inherited[0] is before.inherited[0]
    assert newest.inherited[1] != before.inherited[1]
    assert 4 <= len(history.changed(0, 100)) <= 30
    assert history.known_since() > 1


class _Store:
    """A store that is away, or in which rights changed last at a revision."""

    def __init__(self, marked: int | None = None) -> None:
        self.marked = marked
        self.asked: list[bytes] = []

    def read(self, key: bytes, limit: int) -> list[Row]:
        self.asked.append(key)
        if self.marked is None:
            raise StoreUnreachable("no answer")
        return [Row(key, b"x", self.marked)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def started_at(revision: int, store: _Store, clock: Clock) -> AccessHistory:
    """Returns the history of a server that loads this revision."""
    replica = _Replica()
    tree = cast("Snapshot", _Tree(b"1", "/la"))
    history = AccessHistory(
        cast("Replica", replica),
        cast("Store", store),
        lambda _: Authorizer(Path.parse("/la"), NO_GRANTS, (ABOVE,)),
        clock,
    )
    replica.applied(loaded(revision, tree))
    return history


def loaded(revision: int, tree: Snapshot) -> AppliedCommit:
    return AppliedCommit(
        revision=revision, before=tree, after=tree, writes=(), events=(), reloaded=True
    )


def test_only_changes_of_rights_bound_how_far_it_reaches() -> None:
    store = _Store(marked=7)
    history = started_at(20, store, Clock())
    assert history.at(6) is None
    assert history.at(7) is history.at(20) is not None
    assert store.asked == [GRANTS_MARK]  # and not when anything else was inherited


def test_a_store_that_is_away_is_asked_once_and_is_no_answer() -> None:
    store, clock = _Store(), Clock()
    history = started_at(20, store, clock)
    for _ in range(10_000):
        with pytest.raises(StoreUnavailable):
            history.at(7)
    assert len(store.asked) == 1
    assert not history.is_constant
    assert history.at(20) is not None
    clock.now += 10
    store.marked = 3
    assert history.at(7) is not None


def test_a_store_that_is_away_is_not_asked_for_a_move_where_there_was_none() -> None:
    store = _Store()
    history = started_at(20, store, Clock())
    assert not history.has_moved_unseen(cast("Snapshot", _Tree(b"1", "/la")), 7)
    assert not store.asked


def test_the_last_move_is_read_once_and_only_for_revisions_before_the_start() -> None:
    store, clock = _Store(), Clock()
    history = started_at(20, store, clock)
    tree = _Tree(b"1", "/la")
    tree.facts[MOVED] = b"x"
    moved = cast("Snapshot", tree)
    assert not history.has_moved_unseen(moved, 20)
    assert not store.asked
    with pytest.raises(StoreUnavailable):
        history.has_moved_unseen(moved, 7)
    clock.now += 10
    store.marked = 7
    assert history.has_moved_unseen(moved, 6)
    assert not history.has_moved_unseen(moved, 7)
    assert store.asked == [MOVED, MOVED]
