"""A cluster moves from one store to another: whole, once, and whatever happens on the way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kdir.v1 import watch_pb2

from directory.maintenance import migrate as migrating
from directory.maintenance.migrate import Stage, abort, plan_abort, plan_migration
from directory.maintenance.restore import RestoreRefused
from directory.namespace.keys import CHANGE_LOG, CHANGE_LOG_SKIP, EVENT, LEVEL, event_key
from directory.server.membership import check_level_at_startup
from directory.store.addresses import find_identity, open_store
from directory.store.base import (
    Committed,
    IncompatibleStore,
    Put,
    Store,
    StoreIsSealed,
    Transaction,
)
from resolver.errors import TokenExpired
from tests.integration.maintenance.conftest import Kdir, addresses_of
from tests.integration.maintenance.cutting import CutOff, cutting, fill, held, some_rows
from tests.support.federation import Federation, eventually

WAYS = [("sqlite", "etcd"), ("etcd", "sqlite"), ("sqlite", "sqlite"), ("etcd", "etcd")]
ROWS = [(LEVEL, b"1"), *some_rows(400)]


@pytest.fixture(params=WAYS, ids="-to-".join)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Returns a store's address, and one at which nothing exists yet."""
    source, target = request.param
    folders = [tmp_path / name for name in ("source", "target")]
    for folder in folders:
        folder.mkdir()
    return (
        addresses_of(source, request, folders[0])(),
        addresses_of(target, request, folders[1])(),
    )


def takes_writes(store: Store) -> bool:
    try:
        done = store.commit(Transaction((), (Put(b"probe", b""),)))
    except StoreIsSealed:
        return False
    assert isinstance(done, Committed)
    return True


def test_a_cluster_moves_with_all_it_has(way: tuple[str, str]) -> None:
    source, target = way
    fill(source, ROWS)
    before = find_identity(source)
    assert before is not None
    plan = plan_migration(source, target)
    assert plan.stage is Stage.NEW
    assert find_identity(target) is None
    identity = migrating.migrate(plan)
    assert (identity.cluster_id, identity.cluster) == (before.cluster_id, "la")
    assert identity.incarnation != before.incarnation
    assert held(target) == dict(ROWS)
    # Its old store is out of use for good, and keeps what it had.
    left = find_identity(source)
    assert left is not None
    assert left.moved
    assert held(source) == dict(ROWS)
    # Saying it again does nothing.
    again = plan_migration(source, target)
    assert again.stage is Stage.DONE
    assert migrating.migrate(again) == identity
    with pytest.raises(RestoreRefused, match="takes changes by now; to go back"):
        plan_abort(source, target)


def test_a_cluster_moves_back(way: tuple[str, str]) -> None:
    source, target = way
    fill(source, ROWS)
    migrating.migrate(plan_migration(source, target))
    with closing(open_store(target, "la")) as store:
        store.commit(Transaction((), (Put(b"f/later", b""),)))
    migrating.migrate(plan_migration(target, source))
    assert held(source) == {**dict(ROWS), b"f/later": b""}
    with closing(open_store(source, "la")) as one, closing(open_store(target, "la")) as other:
        assert takes_writes(one)
        assert not takes_writes(other)


def test_a_migration_that_is_cut_off_at_any_step_is_finished_by_saying_it_again(
    way: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = way
    fill(source, ROWS)
    steps, identity = 0, None
    while identity is None:
        monkeypatch.setattr(migrating, "open_store", cutting(steps))
        try:
            identity = migrating.migrate(plan_migration(source, target))
        except CutOff:
            steps += 1
            monkeypatch.undo()
            assert not both_take_writes(source, target)
    assert steps > 8
    assert find_identity(target) == identity
    assert without_probe(held(target)) == dict(ROWS)
    with closing(open_store(source, "la")) as one, closing(open_store(target, "la")) as other:
        assert not takes_writes(one)
        assert takes_writes(other)


def otherwise(address: str, number: int) -> str:
    """Returns an etcd's address as somebody else would write it."""
    if not address.startswith("etcd://"):
        return address
    members, prefix = address.removeprefix("etcd://").split("/", 1)
    endpoints = members.split(",")
    ways = [endpoints, endpoints[::-1], endpoints[1:] or endpoints]
    return f"etcd://{','.join(ways[number % len(ways)])}/{prefix}"


@pytest.mark.parametrize("way", WAYS[:2], indirect=True, ids="-to-".join)
def test_an_address_may_be_written_otherwise_when_it_is_reported_again(
    way: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = way
    fill(source, ROWS)
    written: set[tuple[str, str]] = set()
    for steps in range(100):
        output = (otherwise(source, steps), otherwise(target, steps))
        written.add(output)
        if steps == 5:
            abort(plan_abort(*output))
        monkeypatch.setattr(migrating, "open_store", cutting(steps))
        try:
            migrating.migrate(plan_migration(*output))
        except CutOff:
            monkeypatch.undo()
        else:
            break
    assert len(written) > 1
    assert held(target) == dict(ROWS)
    again = (otherwise(source, 1), otherwise(target, 1))
    assert plan_migration(*again).stage is Stage.DONE
    with pytest.raises(RestoreRefused, match="is both"):
        plan_migration(again[1], target)


def without_probe(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    rows.pop(b"probe", None)
    return rows


def both_take_writes(source: str, target: str) -> bool:
    with closing(open_store(source, "la")) as one:
        first = takes_writes(one)
    if find_identity(target) is None:
        return False
    with closing(open_store(target, "la")) as other:
        check_level_at_startup(other)  # as a server does that is started there
        return takes_writes(other) and first


@pytest.mark.parametrize("way", WAYS[:2], indirect=True, ids="-to-".join)
def test_a_migration_that_is_cut_off_at_any_step_can_be_undone(
    way: tuple[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = way
    fill(source, ROWS)
    for steps in range(200):
        with monkeypatch.context() as cut:
            cut.setattr(migrating, "open_store", cutting(steps))
            with contextlib.suppress(CutOff):
                migrating.migrate(plan_migration(source, target))
        if takes_no_way_back(source, target):
            break
        # The undoing is cut off too, at its every step.
        cut_off_and_again(monkeypatch, lambda: abort(plan_abort(source, target)))
        assert without_probe(held(source)) == dict(ROWS)
        assert not both_take_writes(source, target)
        with closing(open_store(source, "la")) as store:
            assert takes_writes(store)
    else:
        raise AssertionError("it never ended")
    assert steps > 8
    assert without_probe(held(target)) == dict(ROWS)


def takes_no_way_back(source: str, target: str) -> bool:
    """True if the target takes changes by now."""
    found = find_identity(target)
    if found is None or found.sealed or not held(target):
        return False
    with pytest.raises(RestoreRefused, match="takes changes by now"):
        plan_abort(source, target)
    return True


def cut_off_and_again(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    for steps in range(20):
        with monkeypatch.context() as cut:
            cut.setattr(migrating, "open_store", cutting(steps))
            with contextlib.suppress(CutOff):
                run()
                return
    raise AssertionError("it never ended")


def test_writers_lose_nothing_and_never_write_to_both(way: tuple[str, str]) -> None:
    """Writers at both stores at once: what was acknowledged is in the target, all of it."""
    source, target = way
    fill(source, [(LEVEL, b"1")])
    acknowledged: set[bytes] = set()
    at_target: list[bytes] = []
    is_migrated = threading.Event()
    stop = threading.Event()

    def write(address: str) -> None:
        number = 0
        store: Store | None = None
        while not stop.is_set():
            if store is None:
                identity = find_identity(address)
                is_made = address == source or is_migrated.is_set()
                if identity is None or not (identity.sealed or is_made):
                    stop.wait(0.005)  # a server would not start on a store that is not made
                    continue
                store = open_store(address, "la")
            key = b"f/%d/%05d" % (address == target, number)
            try:
                done = store.commit(Transaction((), (Put(key, b""),)))
            except StoreIsSealed:
                stop.wait(0.001)
                continue
            assert isinstance(done, Committed)
            acknowledged.add(key)
            if address == target:
                at_target.append(key)
            number += 1
        if store is not None:
            store.close()

    threads = [threading.Thread(target=write, args=(address,)) for address in way]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(acknowledged) > 20)
        migrating.migrate(plan_migration(source, target))
        is_migrated.set()  # it may have been sealed for less than a writer's look
        eventually(lambda: len(at_target) > 5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert acknowledged <= held(target).keys()


def test_what_could_lose_something_is_refused(way: tuple[str, str], tmp_path: Path) -> None:
    source, target = way
    other = f"sqlite:///{tmp_path / 'other.db'}"
    fill(source, ROWS)
    with pytest.raises(RestoreRefused, match="is both"):
        plan_migration(source, source)
    with pytest.raises(IncompatibleStore, match="there is no store"):
        plan_migration(other, target)
    identity = find_identity(source)
    assert identity is not None
    with closing(open_store(other, "la", identity.cluster_id)) as store:
        store.commit(Transaction((), (Put(b"f/x", b""),)))
    with pytest.raises(RestoreRefused, match="holds something already"):
        plan_migration(source, other)
    with closing(open_store(target, "ny")):
        pass
    with pytest.raises(RestoreRefused, match="is the store of cluster ny"):
        plan_migration(source, target)
    # A second migration of what is on its way, and one away from where it does not live any more.
    third, fourth = (f"sqlite:///{tmp_path / name}.db" for name in ("third", "fourth"))
    with closing(open_store(source, "la")) as store:
        store.seal(f"being migrated to {third}")
        with pytest.raises(RestoreRefused, match="is sealed: it is being migrated to"):
            plan_migration(source, fourth)
        store.unseal()
    migrating.migrate(plan_migration(source, third))
    with pytest.raises(RestoreRefused, match="is sealed: it is moved to"):
        plan_migration(source, fourth)


def test_what_waits_for_the_change_log_is_published_first(tmp_path: Path) -> None:
    addresses = addresses_of("sqlite", None, tmp_path)  # type: ignore[arg-type]
    source, target = addresses(), addresses()
    fill(source, ROWS)
    with closing(open_store(source, "la")) as store:
        first = store.commit(Transaction((), (Put(event_key("1"), b""),)))
        store.commit(Transaction((), (Put(event_key("2"), b""),)))
        assert plan_migration(source, target).stage is Stage.NEW, "no change log is kept"
        assert isinstance(first, Committed)
        noted = watch_pb2.ChangeLogState(incarnation=store.identity.incarnation)
        for published, waiting in ((0, "2 commits wait"), (first.revision, "1 commit waits")):
            noted.revision = published
            store.commit(Transaction((), (Put(CHANGE_LOG, noted.SerializeToString()),)))
            with pytest.raises(RestoreRefused, match=f"{waiting} for the change log"):
                plan_migration(source, target)
        assert plan_migration(source, target, force=True).stage is Stage.NEW
        skip = watch_pb2.ChangeLogSkip(incarnation=noted.incarnation, revision=first.revision + 1)
        store.commit(Transaction((), (Put(CHANGE_LOG_SKIP, skip.SerializeToString()),)))
        assert plan_migration(source, target).stage is Stage.NEW, "what waited was given up"
        store.commit(Transaction((), tuple(Put(k, b"\xff") for k in (CHANGE_LOG, CHANGE_LOG_SKIP))))
        with pytest.raises(RestoreRefused, match="2 commits wait"):
            plan_migration(source, target)


def test_the_history_that_came_with_a_migration_does_not_wait_for_the_change_log(
    tmp_path: Path,
) -> None:
    addresses = addresses_of("sqlite", None, tmp_path)  # type: ignore[arg-type]
    source, target, next_target = addresses(), addresses(), addresses()
    fill(source, ROWS)
    with closing(open_store(source, "la")) as store:
        history = tuple(Put(event_key(str(number)), b"") for number in range(3))
        noted = watch_pb2.ChangeLogState(incarnation=store.identity.incarnation)
        noted.revision = store.newest_revision() + 1
        store.commit(Transaction((), (*history, Put(CHANGE_LOG, noted.SerializeToString()))))
    migrating.migrate(plan_migration(source, target))
    assert plan_migration(target, next_target).stage is Stage.NEW
    with closing(open_store(target, "la")) as store:
        store.commit(Transaction((), (Put(event_key("4"), b""),)))
    with pytest.raises(RestoreRefused, match="1 commit waits for the change log"):
        plan_migration(target, next_target)


@pytest.mark.parametrize("way", WAYS[:2], indirect=True, ids="-to-".join)
def test_the_history_does_not_wait_for_the_change_log_after_a_migration_was_aborted(
    way: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = way
    fill(source, ROWS)
    with closing(open_store(source, "la")) as store:
        history = tuple(Put(event_key(str(number)), b"") for number in range(3))
        done = store.commit(Transaction((), history))
        assert isinstance(done, Committed)
        noted = watch_pb2.ChangeLogState(
            incarnation=store.identity.incarnation, generation=7, revision=done.revision
        )
        store.commit(Transaction((), (Put(CHANGE_LOG, noted.SerializeToString()),)))
    with monkeypatch.context() as cut:
        cut.setattr(migrating, "open_store", cutting(6))
        with pytest.raises(CutOff):
            migrating.migrate(plan_migration(source, target))
    identity = abort(plan_abort(source, target))
    assert identity.incarnation != noted.incarnation
    assert plan_migration(source, target).stage is Stage.NEW
    carried = watch_pb2.ChangeLogState.FromString(held(source)[CHANGE_LOG])
    assert (carried.incarnation, carried.generation) == (identity.incarnation, 7)
    with closing(open_store(source, "la")) as store:
        store.commit(Transaction((), (Put(event_key("4"), b""),)))
    with pytest.raises(RestoreRefused, match="1 commit waits for the change log"):
        plan_migration(source, target)


def logged(folder: Path) -> tuple[str, str]:
    """Returns the addresses of a filled store that keeps a change log, and of one not made yet."""
    addresses = addresses_of("sqlite", None, folder)  # type: ignore[arg-type]
    source, target = addresses(), addresses()
    fill(source, ROWS)
    with closing(open_store(source, "la")) as store:
        state = watch_pb2.ChangeLogState(incarnation=store.identity.incarnation)
        store.commit(Transaction((), (Put(CHANGE_LOG, state.SerializeToString()),)))
    return source, target


def test_what_came_to_wait_for_the_change_log_while_it_asked_is_published_first(
    tmp_path: Path,
) -> None:
    source, target = logged(tmp_path)
    with closing(open_store(source, "la")) as store:
        asking, forced = (plan_migration(source, target, force=force) for force in (False, True))
        store.commit(Transaction((), (Put(event_key("1"), b""),)))
        with pytest.raises(RestoreRefused, match="1 commit waits for the change log"):
            migrating.migrate(asking)
        assert takes_writes(store)
    migrating.migrate(forced)
    assert event_key("1") in held(target)


def test_what_comes_to_wait_for_the_change_log_right_before_the_seal_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = logged(tmp_path)

    def late(*stores: str, force: bool) -> migrating.Migration:
        plan = plan_migration(*stores, force=force)
        with closing(open_store(source, "la")) as store:
            store.commit(Transaction((), (Put(event_key("1"), b""),)))
        return plan

    reported: list[str] = []
    asking = plan_migration(source, target)
    monkeypatch.setattr(migrating, "plan_migration", late)
    migrating.migrate(asking, reported.append)
    assert "1 commit came while this began" in "\n".join(reported)
    assert event_key("1") in held(target)


@pytest.mark.parametrize("way", WAYS[:1], indirect=True, ids="-to-".join)
def test_a_change_too_large_for_one_row_of_the_target_comes_as_several(
    way: tuple[str, str],
) -> None:
    source, target = way
    events = [watch_pb2.ChangeEvent(path=f"/la/{n:06}", principal="x" * 200) for n in range(12_000)]
    large = watch_pb2.WatchResponse(events=events).SerializeToString()
    assert len(large) > 2_000_000
    fill(source, [*ROWS, (EVENT + b"01-2ee0-aa", large), (EVENT + b"02-1-aa", b"")])
    migrating.migrate(plan_migration(source, target))
    rows = held(target)
    parts = [rows[key] for key in sorted(rows) if key.startswith(EVENT + b"01-")]
    assert len(parts) > 1
    came = [event for part in parts for event in watch_pb2.WatchResponse.FromString(part).events]
    assert came == events
    assert rows[EVENT + b"02-1-aa"] == b""


@pytest.mark.parametrize("way", WAYS[:1], indirect=True, ids="-to-".join)
def test_a_row_that_the_target_cannot_hold_leaves_the_cluster_where_it_is(
    way: tuple[str, str],
) -> None:
    source, target = way
    fill(source, [*ROWS, (b"f/z", b"x" * 2_000_000)])
    before = find_identity(source)
    with pytest.raises(RestoreRefused, match=r"cannot hold the cluster: key b'f/z' has 2000003 b"):
        plan_migration(source, target)
    assert find_identity(source) == before
    assert find_identity(target) is None


@pytest.mark.parametrize("way", WAYS[:1], indirect=True, ids="-to-".join)
def test_a_row_that_the_target_cannot_hold_and_that_came_late_is_undone(
    way: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = way
    fill(source, [*ROWS, (b"f/z", b"x" * 2_000_000)])
    monkeypatch.setattr(migrating, "excess_of_rows", lambda *_: "")  # it was not there yet
    reports: list[str] = []
    with pytest.raises(RestoreRefused, match=r"cannot hold it: key b'f/z' has 2000003 bytes"):
        migrating.migrate(plan_migration(source, target), reports.append)
    assert "--abort" in reports[-1]
    abort(plan_abort(source, target))
    with closing(open_store(source, "la")) as store:
        assert takes_writes(store)


@pytest.mark.parametrize("way", WAYS[:2], indirect=True, ids="-to-".join)
def test_a_mounted_child_moves_and_its_parent_goes_on(
    way: tuple[str, str], federation: Federation, kdir: Kdir
) -> None:
    source, target = way
    federation.start("/")
    child = federation.join("/la", "/", store=source)
    child.mkdir("/la/a", request_id="one")
    token = child.status().authority.token
    eventually(lambda: federation["/"].outcome("/la") == "referral")

    planned = kdir("migrate", source, target, "--plan").stdout
    assert f"cluster la ({child.cluster_id})" in planned
    assert "nothing is done yet\nthe rest would be done" in planned
    unapproved = kdir("migrate", source, target, code=2).stderr
    assert "to move cluster la to" in unapproved
    assert "needs --yes" in unapproved
    assert not child.status().store_status.sealed
    reported = kdir("migrate", "--yes", source, target)
    assert "start its servers with it" in reported.stdout
    # The servers of the old store go on reading, say so, and write nothing.
    eventually(lambda: child.status().store_status.sealed.startswith("moved to "))
    assert child.resolve("/la/a").authority.stale
    assert child.names("/la") == ["a"]
    with pytest.raises(Exception, match="takes no changes"):
        child.mkdir("/la/b")
    kdir("backup", "--at", child.address, code=5)
    assert child.cluster_id in kdir("migrate", source, target).stdout  # and again: nothing to do
    refused = kdir("migrate", "--abort", "-y", source, target, code=5)
    assert "takes changes by now" in refused.stderr

    # Started anew, they are told where it lives; with the new store all goes on.
    child.stop()
    refused = kdir("server", "--mount", "/la", "--store", source, "--listen", "127.0.0.1:0", code=2)
    assert "cluster la was moved to" in refused.stderr
    cluster_id = find_identity(target)
    assert cluster_id is not None
    child.settings["store"] = target
    child.start()
    assert child.cluster_id == cluster_id.cluster_id
    eventually(lambda: child.status().parent.linked)
    assert child.names("/la") == ["a"]
    with pytest.raises(TokenExpired):
        child.resolve("/la/a", token=token)
    child.mkdir("/la/a", request_id="one")  # was done before: it has no second effect
    child.mkdir("/la/b")
    assert federation["/"].outcome("/la/b") == "referral"


def _useless_target(way: tuple[str, str], trouble: str) -> str:
    """Returns an address at which no store can be created."""
    _, target = way
    match trouble:
        case "missing directory":
            return target.replace("/target/", "/tarrget/")
        case "directory":
            Path(target.removeprefix("sqlite:///")).mkdir()
            return target
        case "nested":
            with closing(open_store(target, "ny")):
                return f"{target}/la"
        case _:
            with closing(open_store(f"{target}/la", "ny")):
                return target


@pytest.mark.parametrize(
    ("way", "trouble", "expected"),
    [
        (("sqlite", "sqlite"), "missing directory", "there is no directory"),
        (("sqlite", "sqlite"), "directory", "is a directory"),
        (("sqlite", "etcd"), "nested", "is another cluster's store"),
        (("sqlite", "etcd"), "in use", "the prefix is in use"),
    ],
    indirect=["way"],
)
def test_a_target_that_cannot_be_opened_is_refused_before_the_source_is_sealed(
    way: tuple[str, str], trouble: str, expected: str
) -> None:
    source = way[0]
    fill(source, ROWS)
    target = _useless_target(way, trouble)
    with pytest.raises(IncompatibleStore, match=expected):
        plan_migration(source, target)
    with closing(open_store(source, "la")) as store:
        assert takes_writes(store)


@pytest.mark.parametrize("way", WAYS[2:3], indirect=True, ids="-to-".join)
def test_a_migration_that_ends_after_it_sealed_the_source_names_the_way_back(
    way: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = way
    fill(source, ROWS)
    plan = plan_migration(source, target)
    monkeypatch.setattr(migrating, "check_writable", lambda _: None)
    Path(target.removeprefix("sqlite:///")).parent.rmdir()
    reports: list[str] = []
    with pytest.raises(IncompatibleStore, match="there is no directory"):
        migrating.migrate(plan, reports.append)
    assert reports[-1] == f"{source} is sealed: the same command goes on, --abort opens it again"
    abort(plan_abort(source, target))
    with closing(open_store(source, "la")) as store:
        assert takes_writes(store)
