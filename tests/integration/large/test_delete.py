"""Removing much: marked at once, finished in steps that are killed anywhere, by one at a time.

On sqlite held to etcd's limits, and on a real etcd. Kafka's part is in ``test_delete_in_kafka.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest

from directory.namespace.command import (
    CreateDirectory,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    UpdateEntry,
)
from directory.namespace.entry import DELETED_ID
from directory.namespace.removal_progress import removals
from directory.store.addresses import open_store
from directory.store.base import Store
from directory.store.large_change_records import progress_of
from directory.store.sqlite.store import SqliteStore
from resolver.errors import HasMounts, InvalidNamespace, KdirError, ReadOnly, WriteConflict
from tests.support.crash_points import Crash, DyingStore
from tests.support.large_trees import (
    ETCD_LIMITS,
    MOUNT,
    Server,
    TightSqlite,
    check_no_orphans,
    commit,
    forest,
    server,
)
from tests.support.lost_locks import forget_lock, lose_lock
from tests.support.reconciler import eventually

ROOT = FilePath(__file__).resolve().parents[3]
X = MOUNT.child("x")
Opening = Callable[[], Store]


@pytest.fixture(params=["tight", "etcd"])
def opening(request: pytest.FixtureRequest, tmp_path: FilePath) -> Opening:
    """Opens the same store, as often as one likes."""
    if request.param == "tight":
        return lambda: TightSqlite(tmp_path / "store.db", "la")
    address = request.getfixturevalue("etcd_cluster").address()
    return lambda: open_store(address, "la")


@pytest.fixture
def one(opening: Opening) -> Iterator[Server]:
    with server(opening()) as here:
        yield here


def remove(here: Server, path: Any = X, **options: Any) -> Any:
    return here.execute(DeleteEntry(path=path, recursive=True), **options)


def commits_from_now(here: Server) -> list[int]:
    """Returns a list that gets the revision of each commit. They are not counted by the revisions:
    those of etcd rise with all that its other prefixes get.
    """
    found: list[int] = []
    here.replica.subscribe(lambda applied: found.append(applied.revision))
    return found


def names(here: Server) -> set[str]:
    """Returns what stands at the mount."""
    root = here.replica.snapshot.root
    return {*root.topics, *root.containers}


# -- the mark, the steps -------------------------------------------------------------------------


def test_S9_a_removal_of_20000_is_marked_at_once_and_finished_in_steps(one: Server) -> None:
    count = 4_000 if isinstance(one.store, TightSqlite) else 20_000
    entries = count + count // 100 + 1
    commit(one.store, forest(count))
    eventually(lambda: one.replica.snapshot.topic_count == count)
    commits = commits_from_now(one)
    written = remove(one, principal="User:ana")
    assert written.plan.topic_count + written.plan.directory_count == entries
    assert len(written.plan.guards) + len(written.plan.writes) < 20
    assert commits == [written.revision]
    assert names(one) == set()
    (progress,) = progress_of(one.replica.snapshot)
    assert (progress.kind, progress.path, progress.principal) == ("delete", "/la/x", "User:ana")
    assert (progress.done, progress.remaining) == (0, entries)

    one.reap_once()
    (progress,) = progress_of(one.replica.snapshot)
    assert progress.done + progress.remaining == entries
    assert progress.done > 0
    one.reap()
    assert progress_of(one.replica.snapshot) == []
    assert check_no_orphans(one.store) == {
        "directories": 0, "topics": 0, "removed": 0, "retired": 0, "detached": count, "changes": 0,
    }  # fmt: skip


def test_as_much_as_a_transaction_holds_goes_in_a_step(one: Server) -> None:
    commit(one.store, forest(600))
    eventually(lambda: one.replica.snapshot.topic_count == 600)
    remove(one)
    commits = commits_from_now(one)
    one.reap()
    most = 607 * 3 // (ETCD_LIMITS.max_writes - 8) + 3
    assert 0 < len(commits) <= most, "three writes for each topic"


def test_moving_a_directory_of_100000_is_one_small_transaction(tmp_path: FilePath) -> None:
    with server(SqliteStore(tmp_path / "s.db", "la")) as here:
        commit(here.store, forest(100_000, topics_each=1_000))
        eventually(lambda: here.replica.snapshot.topic_count == 100_000)
        move = MoveEntry(path=X, new_path=MOUNT.child("y"))
        plan = here.execute(move).plan
        assert len(plan.guards) + len(plan.writes) < 20
        assert here.replica.snapshot.counts(1).topics == 100_000
        assert here.replica.snapshot.find_directory(("y", "d0")) is not None


# -- what is refused -----------------------------------------------------------------------------


def test_mounts_and_read_only_directories_below_save_a_subtree(one: Server) -> None:
    commit(one.store, forest(300))
    eventually(lambda: one.replica.snapshot.topic_count == 300)
    one.execute(CreateMount(path=X.child("m"), cluster_id="kc-1"))
    with pytest.raises(HasMounts, match="/la/x/m"):
        remove(one)
    one.execute(DeleteEntry(path=X.child("m")))
    deep = X.child("d100")
    one.execute(UpdateEntry(path=deep, changes={"policies.read_only": True}))
    with pytest.raises(ReadOnly, match="/la/x/d100 is read-only"):
        remove(one)
    one.execute(UpdateEntry(path=deep, changes={"policies.read_only": None}))
    remove(one)
    one.reap()
    check_no_orphans(one.store)


# -- P12: killed at each step --------------------------------------------------------------------

CHILD = """
import os, signal, sys
from directory.store.addresses import open_store
from tests.integration.large.test_delete import MOUNT, remove
from tests.support.large_trees import Server, TightSqlite
from directory.store.sqlite.store import database_path
address, last = sys.argv[1], int(sys.argv[2])

def mortal(store):
    real, count = store.commit, 0
    def commit(transaction, timeout_seconds=5.0):
        nonlocal count
        count += 1
        before = count * 2 - 1
        if before == last:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(transaction, timeout_seconds)
        if before + 1 == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    store.commit = commit
    return store

tight = address.startswith("sqlite:")
store = TightSqlite(database_path(address), "la") if tight else open_store(address, "la")
here = Server(mortal(store), "dying")
remove(here)
here.reap()
here.close()
print("whole")
"""


def run_until_killed(address: str, last: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, address, str(last)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


# On etcd the role of a killed server goes with its lease, some ten seconds later: once is enough.
@pytest.mark.parametrize(
    ("kind", "last"), [*(("sqlite", last) for last in (1, 2, 5, 6, 9)), ("etcd", 1), ("etcd", 6)]
)
def test_P12_a_server_killed_at_a_step_of_a_delete_is_finished_by_the_next(
    kind: str, last: int, request: pytest.FixtureRequest, tmp_path: FilePath
) -> None:
    address = (
        f"sqlite:///{tmp_path / 'store.db'}"
        if kind == "sqlite"
        else request.getfixturevalue("etcd_cluster").address()
    )
    with server(open_store(address, "la")) as here:
        commit(here.store, forest(300))
        eventually(lambda: here.replica.snapshot.topic_count == 300)
    died = run_until_killed(address, last)
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    with server(open_store(address, "la"), "next") as here:
        if X.name in names(here):
            remove(here)  # it died before the mark: the call is repeated
        # The dead one's role goes with its lock, or with its lease.
        here.reap_once()
        here.reap()
        assert check_no_orphans(here.store)["detached"] == 300
        assert names(here) == set()


def test_P12_every_step_of_a_delete_can_be_the_last_and_repeating_the_call_finishes_it(
    tmp_path: FilePath,
) -> None:
    for last in range(1, 60):
        store = DyingStore(tmp_path / f"{last}.db", "la")
        commit(store, forest(200, topics_each=20))
        here = Server(store)
        store.passed, store.last = 0, last
        try:
            remove(here, request_id="once")
            here.reap()
        except Crash:
            died = True
        else:
            died = False
        store.last = 0
        here.close()
        with server(TightSqlite(tmp_path / f"{last}.db", "la")) as other:
            again = remove(other, request_id="once")
            assert (again.plan.topic_count, again.plan.directory_count) == (200, 11)
            other.reap()
            assert check_no_orphans(other.store)["detached"] == 200, last
        if not died:
            assert last > 10
            return
    raise AssertionError("it has more steps than were tried")


# -- P13: a create races a delete ----------------------------------------------------------------


def test_P13_what_is_created_during_a_delete_is_of_the_new_directory_or_not_at_all(
    opening: Opening,
) -> None:
    with server(opening(), "one") as one, server(opening(), "other") as other:
        commit(one.store, forest(2_000))
        eventually(lambda: other.replica.snapshot.topic_count == 2_000)
        ended = threading.Event()
        made: list[str] = []
        refused = 0

        def create() -> None:
            nonlocal refused
            number = 0
            while not ended.is_set():
                number += 1
                path = X.child("d100").child(f"late{number}")
                try:
                    other.execute(CreateTopic(path=path))
                except (InvalidNamespace, WriteConflict):
                    refused += 1
                    ended.wait(0.002)
                else:
                    made.append(path.name)

        creating = threading.Thread(target=create)
        creating.start()
        eventually(lambda: len(made) > 3)
        marked = remove(one)
        count = eventually(lambda: refused and len(made))
        # What it tells is what it saw: that another server made more meanwhile does not stop it.
        assert 2_000 <= marked.plan.topic_count <= 2_000 + count
        one.reap_once()
        # The path is free: a new directory of the same name, while the old one is taken apart.
        new = one.execute(CreateDirectory(path=X.child("d100"), make_parents=True))
        eventually(lambda: len(made) > count + 5)
        one.reap()
        ended.set()
        creating.join()
        eventually(lambda: other.replica.snapshot.revision >= one.replica.snapshot.revision)
        found = check_no_orphans(one.store)
        assert (found["directories"], found["removed"]) == (2, 0)
        assert found["retired"] == count, "all that was made before the mark went with it"
        assert found["topics"] == len(made) - count, "nothing of the new was reaped"
        assert new.plan.entry is not None
        node = other.replica.snapshot.nodes.get(new.plan.entry.entry_id)
        assert node is not None
        assert set(node.topics) == set(made[count:]), "nothing of the old is in it"


# -- several servers -----------------------------------------------------------------------------


def test_one_of_several_servers_reaps_at_a_time_and_the_next_goes_on(opening: Opening) -> None:
    with server(opening(), "one", slice_seconds=0) as one, server(opening(), "other") as other:
        commit(one.store, forest(1_000))
        eventually(lambda: other.replica.snapshot.topic_count == 1_000)
        remove(one)
        eventually(lambda: not other.nothing_waits())
        one.reap_once()
        left = one.replica.snapshot.counts(DELETED_ID).topics
        assert 0 < left < 1_000
        for _ in range(3):
            assert other.reaper.step() > 0.1, "it is not elected"
        one.reaper.stop(30)
        other.reap_once()
        other.reap()
        assert check_no_orphans(one.store)["detached"] == 1_000


def test_S19_a_reaper_that_lost_its_role_writes_nothing_more(tmp_path: FilePath) -> None:
    file = tmp_path / "store.db"
    with (
        server(TightSqlite(file, "la"), "one", slice_seconds=0) as one,
        server(TightSqlite(file, "la"), "other", slice_seconds=0) as other,
    ):
        commit(one.store, forest(1_000))
        eventually(lambda: other.replica.snapshot.topic_count == 1_000)
        remove(one)
        eventually(lambda: not other.nothing_waits())
        one.reap_once()
        old = one.reaper.leader.leadership
        assert old is not None
        # The lock goes without the process knowing, as after a long pause; another is elected.
        lose_lock(old)
        other.reap_once()
        assert old.held(), "it believes that it leads"
        eventually(lambda: one.replica.snapshot.revision >= other.replica.snapshot.revision)
        forget_lock(old)
        left = other.replica.snapshot.counts(DELETED_ID).topics
        with pytest.raises(WriteConflict):
            one.reaper._work()
        assert one.reaper.step() > 0.1
        assert one.reaper.leader.leadership is None, "it knows by now"
        assert other.replica.snapshot.counts(DELETED_ID).topics == left
        other.reap()
        check_no_orphans(other.store)


def test_servers_that_run_share_the_work_of_many_removals(opening: Opening) -> None:
    with server(opening(), "one") as one, server(opening(), "other") as other:
        for top in ("a", "b", "c"):
            commit(one.store, forest_of(top))
        eventually(lambda: other.replica.snapshot.topic_count == 900)
        one.reaper.start()
        other.reaper.start()
        for top, here in (("a", one), ("b", other), ("c", one)):
            eventually(lambda top=top, here=here: top in names(here))  # type: ignore[misc]
            remove(here, MOUNT.child(top))
        eventually(lambda: one.nothing_waits() and other.nothing_waits(), 60)
        assert check_no_orphans(one.store)["detached"] == 900


def forest_of(top: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields 300 topics below a directory, with ids of their own."""
    return forest(300, top=top, first_id=1_000 * ord(top))


def test_others_writes_go_between_the_steps(tmp_path: FilePath) -> None:
    """While the reaper runs, a create waits for one step at most, not for the removal."""
    with server(SqliteStore(tmp_path / "s.db", "la")) as here:
        commit(here.store, forest(6_000))
        eventually(lambda: here.replica.snapshot.topic_count == 6_000)
        remove(here)
        here.reaper.start()
        made = 0
        while not here.nothing_waits():
            here.execute(CreateDirectory(path=MOUNT.child(f"n{made}")))
            made += 1
        assert made > 10
        check_no_orphans(here.store)


def test_a_removed_directory_with_a_record_that_cannot_be_read_is_finished(
    tmp_path: FilePath,
) -> None:
    from directory.namespace.entry import Kind
    from directory.namespace.keys import entry_key

    with server(TightSqlite(tmp_path / "s.db", "la")) as here:
        commit(here.store, forest(10))
        eventually(lambda: here.replica.snapshot.topic_count == 10)
        inner = here.replica.snapshot.find_directory(("x", "d0"))
        assert inner is not None
        bad = [
            (entry_key(inner, Kind.TOPIC, "bad"), b"\xff\xff"),
            (entry_key(inner, Kind.DIRECTORY, "worse"), b"\xff\xff"),
        ]
        commit(here.store, bad)
        eventually(lambda: here.replica.snapshot.unreadable_values)
        remove(here)
        here.reap()
        assert here.nothing_waits()
        assert not here.replica.snapshot.unreadable_values
        assert check_no_orphans(here.store)["topics"] == 0
        assert [*removals(here.replica.snapshot)] == []


def test_S21_retired_names_that_cannot_be_read_do_not_stop_the_reaper(tmp_path: FilePath) -> None:
    from directory.namespace.keys import RETIRED, retired_key

    with server(TightSqlite(tmp_path / "s.db", "la")) as here:
        commit(here.store, forest(10))
        odd = [(retired_key("x"), b"\xffnonsense"), (retired_key("y"), b"1"), (RETIRED, b"")]
        commit(here.store, [*odd, (RETIRED + b"\xff", b"1")])
        eventually(lambda: here.replica.snapshot.fact(RETIRED + b"\xff"))
        remove(here)
        here.reap()
        assert here.nothing_waits()
        assert here.replica.snapshot.fact(retired_key("y")) is None


def test_a_store_that_is_away_is_waited_for(tmp_path: FilePath) -> None:
    from directory.store.base import StoreUnreachable

    class Failing(TightSqlite):
        away = False

        def commit(self, transaction: Any, timeout_seconds: float = 5.0) -> Any:
            if self.away:
                raise StoreUnreachable("gone fishing")
            return super().commit(transaction, timeout_seconds)

    with server(Failing(tmp_path / "s.db", "la"), slice_seconds=0) as here:
        commit(here.store, forest(300))
        eventually(lambda: here.replica.snapshot.topic_count == 300)
        remove(here)
        here.reap_once()
        here.store.away = True  # type: ignore[attr-defined]
        assert here.reaper.step() >= 1.0
        assert here.reaper.trouble
        here.store.away = False  # type: ignore[attr-defined]
        here.reap_once()
        here.reap()
        with pytest.raises(KdirError):
            remove(here)
        check_no_orphans(here.store)
