"""The replica: what it serves while loading, following, cut off, and after a restore."""

import gc
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from directory.api.rpc.call_context import Call
from directory.api.token_waits import choose_snapshot
from directory.namespace.entry import ROOT_ID, Directory, Kind
from directory.namespace.keys import entry_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import (
    Committed,
    Delete,
    Identity,
    Put,
    StoreUnreachable,
    Transaction,
    Watch,
    Write,
)
from directory.store.replica import AppliedCommit, Replica, ReplicaState
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import NotReady, StoreUnavailable, TokenExpired, TokenFromFuture, Unreachable
from resolver.revision_token import Token
from tests.support.waiting import eventually
from tests.unit.store.scripted_store import ScriptedStore

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

CODEC = ProtoCodec()


class Clock:
    """Stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def directory(name: str, entry_id: int) -> Put:
    """Returns the write that makes a directory at the root."""
    return Put(entry_key(ROOT_ID, Kind.DIRECTORY, name), CODEC.encode(Directory(entry_id=entry_id)))


def commit(store: ScriptedStore, *writes: Write) -> int:
    done = store.commit(Transaction((), writes))
    assert isinstance(done, Committed)
    return done.revision


def names(snapshot: Snapshot) -> set[str]:
    return set(snapshot.root.containers)


def state_of(replica: Replica) -> ReplicaState:
    return replica.state


def reaching(replica: Replica, revision: int) -> Snapshot:
    eventually(lambda: replica.snapshot.revision >= revision)
    return replica.snapshot


@contextmanager
def replica_of(store: ScriptedStore, **options: object) -> Iterator[Replica]:
    replica = Replica(store, CODEC, **options)  # type: ignore[arg-type]
    replica.start()
    try:
        yield replica
    finally:
        replica.stop()


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


def test_what_was_there_is_loaded_and_what_comes_is_followed(store: ScriptedStore) -> None:
    commit(store, directory("a", 10))
    with replica_of(store) as replica:
        assert names(replica.wait_for(1, 30)) == {"a"}
        revision = commit(store, directory("b", 11), Delete(directory("a", 10).key))
        assert names(replica.wait_for(revision, 30)) == {"b"}
        assert state_of(replica) is ReplicaState.SERVING
        assert replica.age_seconds == 0.0
        assert replica.trouble == ""


def test_S5_while_nothing_was_ever_loaded_it_is_not_ready_and_no_empty_tree(
    store: ScriptedStore,
) -> None:
    commit(store, directory("a", 10))
    store.away = True
    with replica_of(store) as replica:
        eventually(lambda: replica.trouble != "")
        assert state_of(replica) is ReplicaState.LOADING
        with pytest.raises(NotReady, match="not loaded yet"):
            _ = replica.snapshot
        with pytest.raises(NotReady):
            replica.wait_for(0, 0.01)
        store.return_soon()
        assert names(replica.wait_for(1, 30)) == {"a"}
        assert state_of(replica) is ReplicaState.SERVING


def test_S5_it_serves_only_when_all_who_follow_it_have_the_first_tree(
    store: ScriptedStore,
) -> None:
    """What they derive, such as the mount table, would lack what the tree has."""
    states: list[ReplicaState] = []
    replica = Replica(store, CODEC)
    replica.subscribe(lambda _: states.append(replica.state))
    replica.start()
    try:
        eventually(lambda: replica.state is ReplicaState.SERVING)
        assert replica.reported_revision == 0
    finally:
        replica.stop()
    assert states == [ReplicaState.LOADING]


def test_S4_while_the_store_is_away_the_tree_is_served_stale_with_its_age(
    store: ScriptedStore,
) -> None:
    clock = Clock()
    commit(store, directory("a", 10))
    with replica_of(store, clock=clock) as replica:
        replica.wait_for(1, 30)
        store.away = True
        eventually(lambda: state_of(replica) is ReplicaState.STALE)
        clock.now += 77
        assert replica.age_seconds == 77
        assert names(replica.snapshot) == {"a"}
        with pytest.raises(StoreUnavailable):
            replica.wait_for(2, 30)
        store.return_soon()
        eventually(lambda: state_of(replica) is ReplicaState.SERVING)
        assert replica.age_seconds == 0.0
        commit(store, directory("b", 11))
        eventually(lambda: names(replica.snapshot) == {"a", "b"})


def test_S4_who_waits_for_a_revision_gets_an_error_when_the_store_goes_away(
    store: ScriptedStore,
) -> None:
    with replica_of(store) as replica:
        replica.wait_for(0, 30)
        reported: list[Exception] = []

        def wait() -> None:
            try:
                replica.wait_for(5, 600)
            except StoreUnavailable as error:
                reported.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        store.away = True
        thread.join(30)
        assert len(reported) == 1


def test_S3_a_store_that_neither_answers_nor_fails_makes_it_stale(store: ScriptedStore) -> None:
    clock = Clock()
    with replica_of(store, clock=clock, stale_after_seconds=5.0) as replica:
        replica.wait_for(0, 30)
        store.silent.set()
        commit(store, directory("a", 10))
        time.sleep(0.05)  # it may have been in the middle of an answer
        clock.now += 4.9
        assert state_of(replica) is ReplicaState.SERVING
        clock.now += 0.2
        assert state_of(replica) is ReplicaState.STALE
        assert replica.age_seconds == pytest.approx(5.1)
        store.silent.clear()
        eventually(lambda: state_of(replica) is ReplicaState.SERVING)
        assert names(replica.wait_for(1, 30)) == {"a"}


def test_from_when_it_reports_a_seal_it_is_stale(store: ScriptedStore) -> None:
    clock = Clock()
    with replica_of(store, clock=clock) as replica:
        replica.wait_for(0, 30)
        store.silent.set()
        time.sleep(0.05)  # it may have been in the middle of an answer
        store.identity = replace(store.identity, sealed="being migrated to etcd://x")
        assert (replica.sealed, state_of(replica)) == ("", ReplicaState.SERVING)
        store.silent.clear()
        eventually(lambda: replica.sealed)
        assert (state_of(replica), replica.is_away) == (ReplicaState.STALE, False)
        assert replica.trouble == "being migrated to etcd://x"
        clock.now += 40
        assert replica.age_seconds == 40
        with pytest.raises(StoreUnavailable, match="not known here, and the store is sealed"):
            replica.wait_for(7, 30)
        with pytest.raises(Unreachable, match="the store has been sealed for 40 s"):
            replica.refuse_too_stale(39)
        store.identity = replace(store.identity, sealed="")
        eventually(lambda: state_of(replica) is ReplicaState.SERVING)
        assert (replica.sealed, replica.trouble, replica.age_seconds) == ("", "", 0.0)


def test_a_revision_that_does_not_come_is_from_the_future(store: ScriptedStore) -> None:
    with replica_of(store) as replica:
        replica.wait_for(0, 30)
        with pytest.raises(TokenFromFuture, match="7"):
            replica.wait_for(7, 0.01)


def test_of_many_who_wait_each_gets_its_own_revision(store: ScriptedStore) -> None:
    with replica_of(store) as replica:
        replica.wait_for(0, 30)
        reported: dict[int, int] = {}
        waiting = threading.Barrier(5)

        def wait(revision: int) -> None:
            waiting.wait(30)
            reported[revision] = replica.wait_for(revision, 30).revision

        threads = {one: threading.Thread(target=wait, args=(one,)) for one in (1, 2, 3, 4)}
        for thread in threads.values():
            thread.start()
        waiting.wait(30)
        for revision in (1, 2, 3, 4):
            assert commit(store, directory(f"d{revision}", 10 + revision)) == revision
            threads[revision].join(30)
            assert reported[revision] >= revision
        with pytest.raises(TokenFromFuture):
            replica.wait_for(9, 0.01)  # nobody who gave up is in the way of the next
        commit(store, directory("d5", 15))
        assert replica.wait_for(5, 30).revision == 5


def test_S2_when_history_is_gone_it_loads_again_and_swaps_whole(store: ScriptedStore) -> None:
    commit(store, directory("a", 10), directory("b", 11))
    steps: list[AppliedCommit] = []
    with replica_of(store) as replica:
        replica.subscribe(steps.append)
        before = replica.wait_for(1, 30)
        with store.in_one_breath():
            commit(store, Delete(directory("a", 10).key), directory("c", 12))
            commit(store, directory("d", 13))
            store.forget_history()
        after = replica.wait_for(3, 30)
        assert names(after) == {"b", "c", "d"}
        assert names(before) == {"a", "b"}  # who holds the old one sees it as it was
        reloads = [step for step in steps if step.reloaded and step.revision == 3]
        assert len(reloads) == 1
        assert (reloads[0].before, reloads[0].after) == (before, after)
        assert (reloads[0].writes, reloads[0].events) == ((), ())


def test_a_reload_that_fails_half_way_leaves_the_old_tree(store: ScriptedStore) -> None:
    for number in range(40):
        commit(store, directory(f"d{number}", 10 + number))
    with replica_of(store) as replica:
        replica.wait_for(40, 30)
        failures = 0

        def fail() -> None:
            nonlocal failures
            failures += 1
            if failures % 3 == 0 and failures < 9:
                raise StoreUnreachable("in the middle of a load")

        store.between_pages = fail
        seen = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen.append(len(names(replica.snapshot)))

        reader = threading.Thread(target=read)
        reader.start()
        with store.in_one_breath():
            commit(store, Delete(directory("d0", 10).key))
            store.forget_history()
        assert len(names(reaching(replica, 41))) == 39
        stop.set()
        reader.join()
        assert failures >= 9
        assert set(seen) <= {40, 39}


def eventually_watching(replica: Replica) -> Watch:
    eventually(lambda: replica.watch is not None)
    assert replica.watch is not None
    return replica.watch


def test_S2_reloads_and_restarts_of_the_watch_are_counted(store: ScriptedStore) -> None:
    with replica_of(store) as replica:
        replica.wait_for(0, 30)
        assert (replica.reloads, replica.watch_restarts) == (0, 0)
        watch = eventually_watching(replica)
        setattr(watch, "restarts", 3)  # noqa: B010 - read-only to all but itself
        assert replica.watch_restarts == 3
        for number in range(2):
            with store.in_one_breath():
                commit(store, directory(f"d{number}", 10 + number))
                store.forget_history()
            eventually(lambda n=number: replica.reloads == n + 1)  # type: ignore[misc]
        assert replica.watch_restarts == 3


def test_S2_a_history_compacted_again_and_again_does_not_keep_it_busy(store: ScriptedStore) -> None:
    loads = 0

    def forget() -> None:
        nonlocal loads
        loads += 1

    store.before_load = forget
    with replica_of(store) as replica:
        replica.wait_for(0, 30)
        began, time_began = loads, time.monotonic()
        while time.monotonic() < time_began + 1.5:
            with store.in_one_breath():
                commit(store, directory("d", 10))
                store.forget_history()
            time.sleep(0.001)
        assert loads - began < 30


def test_S11_a_restore_begins_a_new_incarnation(store: ScriptedStore) -> None:
    commit(store, directory("kept", 10))
    store.backup()
    commit(store, directory("lost", 11))
    with replica_of(store) as replica:
        old = replica.wait_for(2, 30)
        store.restore()
        eventually(lambda: replica.snapshot.incarnation != old.incarnation)
        assert names(replica.snapshot) == {"kept"}
        assert replica.snapshot.revision > old.revision


@pytest.mark.parametrize("moment", ["before_load", "between_pages"])
def test_S11_a_restore_in_the_middle_of_a_load_does_not_mix_two_incarnations(
    store: ScriptedStore, moment: str
) -> None:
    for number in range(15):
        commit(store, directory(f"d{number}", 10 + number))
    store.backup()
    commit(store, directory("lost", 99))
    restored = threading.Event()

    def restore() -> None:
        if not restored.is_set():
            restored.set()
            store.restore()

    setattr(store, moment, restore)
    with replica_of(store) as replica:
        eventually(lambda: state_of(replica) is ReplicaState.SERVING)
        eventually(lambda: replica.snapshot.incarnation == "life2")
        assert "lost" not in names(replica.snapshot)


def test_a_load_that_fails_at_its_very_end_leaves_no_watch_open(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches: list[Any] = []
    watch, refresh = store.watch, store.refresh_identity
    refused: set[int] = set()

    def watched(after: int, commit_id: str) -> Watch:
        watches.append(watch(after, commit_id))
        return cast("Watch", watches[-1])

    def failing() -> Identity:
        count = len(watches)
        if count in {1, 2} - refused:
            refused.add(count)
            raise StoreUnreachable("scripted")
        return refresh()

    monkeypatch.setattr(store, "watch", watched)
    monkeypatch.setattr(store, "refresh_identity", failing)
    commit(store, directory("a", 10))
    with replica_of(store) as replica:
        assert names(replica.wait_for(1, 30)) == {"a"}
        assert [one.closed for one in watches] == [True, True, False]


def test_S21_a_value_that_cannot_be_read_is_put_aside_and_the_rest_is_served(
    store: ScriptedStore,
) -> None:
    bad = entry_key(ROOT_ID, Kind.DIRECTORY, "bad")
    commit(store, directory("good", 10), Put(bad, b"\xff\xff\xff"))
    with replica_of(store) as replica:
        snapshot = replica.wait_for(1, 30)
        assert names(snapshot) == {"good"}
        assert bad in snapshot.unreadable_values
        later = entry_key(ROOT_ID, Kind.TOPIC, "later")
        commit(store, Put(later, b"\x00garbage"), directory("more", 11))
        snapshot = replica.wait_for(2, 30)
        assert names(snapshot) == {"good", "more"}
        assert later in snapshot.unreadable_values
        commit(store, directory("bad", 12))
        snapshot = replica.wait_for(3, 30)
        assert names(snapshot) == {"bad", "good", "more"}
        assert bad not in snapshot.unreadable_values


def test_readers_never_see_half_a_commit(store: ScriptedStore) -> None:
    stop = threading.Event()
    seen: set[frozenset[str]] = set()
    with replica_of(store) as replica:
        replica.wait_for(0, 30)

        def read() -> None:
            while not stop.is_set():
                seen.add(frozenset(names(replica.snapshot)))

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        revision = 0
        for number in range(200):
            if number % 2:
                revision = commit(store, *(Delete(directory(n, 0).key) for n in ("x", "y")))
            else:
                revision = commit(store, directory("x", 10 + number), directory("y", 500 + number))
        replica.wait_for(revision, 30)
        stop.set()
        for reader in readers:
            reader.join()
    assert seen <= {frozenset(), frozenset({"x", "y"})}


def test_subscribers_see_every_revision_once_in_order_and_before_who_waits(
    store: ScriptedStore,
) -> None:
    steps: list[AppliedCommit] = []
    current: list[bool] = []
    with replica_of(store) as replica:

        def step(applied: AppliedCommit) -> None:
            current.append(replica.snapshot is applied.after)
            steps.append(applied)

        replica.subscribe(step)
        replica.wait_for(0, 30)
        for number in range(50):
            revision = commit(store, directory(f"d{number}", 10 + number))
            replica.wait_for(revision, 30)
            assert steps[-1].revision >= revision
    following = [one for one in steps if not one.reloaded]
    assert [one.revision for one in following] == list(range(1, 51))
    assert all(one.after is two.before for one, two in itertools.pairwise(steps))
    assert all(current)
    assert following[4].writes == (directory("d4", 14),)


def test_a_read_at_a_token_waits_for_those_who_follow_the_tree(store: ScriptedStore) -> None:
    """What lies outside the mount is answered from a mount table that follows the tree."""
    swapped, go_on, known = threading.Event(), threading.Event(), []
    with replica_of(store) as replica:
        replica.wait_for(0, 30)

        def follow(applied: AppliedCommit) -> None:
            swapped.set()
            assert go_on.wait(30)
            known.append(applied.revision)

        replica.subscribe(follow)
        revision = commit(store, directory("d", 10))
        assert swapped.wait(30)
        assert replica.snapshot.revision == revision
        token = str(Token.from_position("la", replica.snapshot.incarnation, revision))
        call = Call(time.monotonic() + 30)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(
                lambda: (choose_snapshot(replica, "la", 3600, token, call), list(known))
            )
            assert choose_snapshot(replica, "la", 3600, "", call).revision == revision
            go_on.set()
            snapshot, seen = reading.result(30)
        assert (snapshot.revision, seen) == (revision, [revision])


def test_a_token_of_another_incarnation_is_rejected_with_the_clusters_id(
    store: ScriptedStore,
) -> None:
    with replica_of(store) as replica:
        replica.wait_for(0, 30)
        token = str(Token.from_position("la", "before", 1))
        with pytest.raises(TokenExpired) as caught:
            choose_snapshot(replica, "la", 3600, token, Call(time.monotonic() + 30))
    assert caught.value.metadata["cluster_id"] == "la"


def test_a_subscriber_that_fails_or_leaves_disturbs_nobody(store: ScriptedStore) -> None:
    seen: list[int] = []
    left: list[int] = []

    def fail(applied: AppliedCommit) -> None:
        raise RuntimeError("a bug")

    with replica_of(store) as replica:
        replica.subscribe(fail)
        unsubscribe = replica.subscribe(lambda applied: left.append(applied.revision))
        replica.subscribe(lambda applied: seen.append(applied.revision))
        commit(store, directory("a", 10))
        replica.wait_for(1, 30)
        unsubscribe()
        commit(store, directory("b", 11))
        replica.wait_for(2, 30)
    assert seen[-1] == 2
    assert left[-1] == 1


def test_a_bug_in_following_leads_to_a_reload_not_to_silence(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica_of(store) as replica:
        replica.wait_for(0, 30)
        apply, calls = Snapshot.apply, []

        def broken(self: Snapshot, *arguments: object) -> Snapshot:
            calls.append(1)
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(Snapshot, "apply", broken)
        commit(store, directory("a", 10))
        assert names(reaching(replica, 1)) == {"a"}
        assert calls
        monkeypatch.setattr(Snapshot, "apply", apply)
        commit(store, directory("b", 11))
        assert names(reaching(replica, 2)) == {"a", "b"}


def test_stopping_ends_its_thread_and_keeps_what_it_knows(store: ScriptedStore) -> None:
    commit(store, directory("a", 10))
    replica = Replica(store, CODEC)
    replica.start()
    replica.wait_for(1, 30)
    replica.stop()
    eventually(lambda: not any(one.name == "replica" for one in threading.enumerate()))
    assert names(replica.snapshot) == {"a"}


def test_stopping_in_the_middle_of_a_load_does_not_wait_for_its_end(store: ScriptedStore) -> None:
    for number in range(100):
        commit(store, directory(f"d{number}", 10 + number))
    pages = 0
    replica = Replica(store, CODEC)

    def stop_soon() -> None:
        nonlocal pages
        pages += 1
        replica._stop.set()

    store.between_pages = stop_soon
    replica.start()
    replica.stop()
    assert pages <= 2
    with pytest.raises(NotReady):
        _ = replica.snapshot


def test_stopping_while_the_store_is_away(store: ScriptedStore) -> None:
    store.away = True
    replica = Replica(store, CODEC)
    replica.start()
    eventually(lambda: replica.trouble != "")
    replica.stop()
    eventually(lambda: not any(one.name == "replica" for one in threading.enumerate()))


def test_the_collector_is_paused_for_a_load_and_what_a_big_one_built_is_frozen() -> None:
    store = ScriptedStore()
    store.limits = type(store.limits)(max_writes=20_000, max_bytes=10**8)
    commit(store, *(directory(f"d{n}", 10 + n) for n in range(10_000)))
    enabled: list[bool] = []
    store.between_pages = lambda: enabled.append(gc.isenabled())
    frozen = gc.get_freeze_count()
    try:
        with replica_of(store) as replica:
            replica.wait_for(1, 60)
            assert not any(enabled)
            assert gc.isenabled()
            assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
