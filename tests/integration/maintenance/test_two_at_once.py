"""Two restores or migrations of one store at once: the second refuses, or the first; no store is
opened that another process fills, and never both stores of a migration.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import closing
from unittest import mock

import pytest

from directory.maintenance import migrate as migrating
from directory.maintenance import restore as restoring
from directory.maintenance.backup_stream import fill_store, has_cluster_rows
from directory.maintenance.migrate import Stage, abort, migrate, plan_abort, plan_migration
from directory.maintenance.restore import (
    Backup,
    RestoreRefused,
    begin_new_incarnation,
    plan_restore,
    restore,
)
from directory.store.addresses import describe_address, find_identity, open_store
from directory.store.base import FILLED_FROM, Put, Store, StoreIsSealed, Transaction
from tests.integration.maintenance.conftest import Addresses
from tests.integration.maintenance.cutting import CutOff, Row, cutting, fill, held, some_rows
from tests.support.backups import back_up

ROWS = some_rows(300)
BACKUP = f"{FILLED_FROM}a backup"


def sealed(address: str) -> str:
    found = find_identity(address)
    assert found is not None
    return found.sealed


def seal(address: str, why: str) -> None:
    with closing(open_store(address, "la")) as store:
        store.seal(why)


def clear_as_others_do(address: str) -> None:
    """Does what the same command does that is given again in another terminal."""
    with closing(open_store(address, "la")) as store:
        store.seal(store.identity.sealed)
        store.clear()


def put(address: str, key: bytes) -> None:
    with closing(open_store(address, "la")) as store:
        store.commit(Transaction((), (Put(key, b""),)))


def backup_of_rows(address: str) -> Backup:
    """Fills a store; returns its backup."""
    fill(address, ROWS)
    with closing(open_store(address, "la")) as store:
        return Backup.read(io.BytesIO(back_up(store)))


def after_filling(
    monkeypatch: pytest.MonkeyPatch, module: object, run: Callable[[], object]
) -> None:
    """Runs something once a store was filled and read back, and is not unsealed yet."""

    def filled(store: Store, rows: Iterable[Row], report: Callable[[str], None]) -> int:
        revision = fill_store(store, rows, report)
        run()
        return revision

    monkeypatch.setattr(module, "fill_store", filled)


def test_a_restore_that_another_one_clears_does_not_open_the_store(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, target = backup_of_rows(new_address()), new_address()
    with monkeypatch.context() as first:
        after_filling(first, restoring, lambda: clear_as_others_do(target))
        with pytest.raises(RestoreRefused, match=r"another process fills it.*stays sealed"):
            restore(plan_restore(backup, target))
    assert sealed(target).startswith(BACKUP)
    restore(plan_restore(backup, target))
    assert held(target) == dict(ROWS)


def test_a_restore_into_a_new_store_never_shows_an_empty_one(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, target = backup_of_rows(new_address()), new_address()
    monkeypatch.setattr(restoring, "open_store", cutting(0))
    with pytest.raises(CutOff):
        restore(plan_restore(backup, target))
    assert sealed(target).startswith(BACKUP)


def test_a_restore_looks_for_rows_where_no_other_one_clears_them(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, target = backup_of_rows(new_address()), new_address()
    with closing(open_store(target, "la", backup.header.cluster_id)):
        plan = plan_restore(backup, target)
    put(target, b"e/acknowledged")

    def late(store: Store) -> bool:
        monkeypatch.undo()
        with pytest.raises(RestoreRefused, match="rows were written to the store"):
            restore(plan)
        return has_cluster_rows(store)

    monkeypatch.setattr(restoring, "has_cluster_rows", late)
    with pytest.raises(RestoreRefused):
        restore(plan)
    assert not sealed(target)
    assert set(held(target)) == {b"e/acknowledged"}


def test_a_restore_that_ended_while_it_looked_is_continued(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, target = backup_of_rows(new_address()), new_address()
    with closing(open_store(target, "la", backup.header.cluster_id)):
        plan = plan_restore(backup, target)
    with monkeypatch.context() as first:
        first.setattr(restoring, "has_cluster_rows", mock.Mock(side_effect=CutOff))
        with pytest.raises(CutOff):
            restore(plan)
    assert sealed(target)
    restore(plan_restore(backup, target))
    assert held(target) == dict(ROWS)


def test_a_restore_whose_store_another_one_opened_says_so(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, target = backup_of_rows(new_address()), new_address()

    def late(store: Store, rows: Iterable[Row], report: Callable[[str], None]) -> int:
        with closing(open_store(target, "la")) as other:
            other.unseal(other.identity.sealed, fill_store(other, backup.rows()))
        return fill_store(store, rows, report)

    monkeypatch.setattr(restoring, "fill_store", late)
    with pytest.raises(RestoreRefused, match="another process opened the store") as refused:
        restore(plan_restore(backup, target))
    assert "stays sealed" not in str(refused.value)
    assert held(target) == dict(ROWS)


def test_a_migration_whose_target_another_one_clears_opens_neither_store(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    fill(source, ROWS)
    with monkeypatch.context() as first:
        after_filling(first, migrating, lambda: clear_as_others_do(target))
        with pytest.raises(RestoreRefused, match="another process fills it"):
            migrate(plan_migration(source, target))
    assert sealed(source)
    assert sealed(target)
    migrate(plan_migration(source, target))
    assert held(target) == dict(ROWS)


def test_a_migration_that_ended_while_its_abort_asked_is_not_undone(
    new_address: Addresses,
) -> None:
    source, target = new_address(), new_address()
    fill(source, ROWS)
    seal(source, plan_migration(source, target).migrating)
    asking = plan_abort(source, target)
    assert asking.stage is Stage.BEGUN
    migrate(plan_migration(source, target))
    put(target, b"f/later")
    with pytest.raises(RestoreRefused, match="takes changes by now"):
        abort(asking)
    assert sealed(source).startswith("moved to")
    assert b"f/later" in held(target)


def filled(source: str, target: str) -> None:
    """Makes a migration that ends before the target takes changes."""
    fill(source, ROWS)
    plan = plan_migration(source, target)
    seal(source, plan.migrating)
    with closing(plan.open_target()) as store:
        store.seal(plan.filled)
    seal(source, plan.moved)
    assert plan_migration(source, target).stage is Stage.FILLED


def test_a_migration_that_was_undone_while_it_asked_begins_again_and_loses_nothing(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    filled(source, target)
    asking = plan_migration(source, target)
    abort(plan_abort(source, target))
    put(source, b"f/acknowledged")

    def write() -> None:
        with pytest.raises(StoreIsSealed):
            put(source, b"f/refused")

    after_filling(monkeypatch, migrating, write)
    migrate(asking)
    assert held(target) == {**dict(ROWS), b"f/acknowledged": b""}


@pytest.mark.parametrize("is_filled", [False, True])
def test_a_migration_that_is_undone_during_its_copy_opens_the_source_only(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch, *, is_filled: bool
) -> None:
    source, target = new_address(), new_address()
    if is_filled:
        filled(source, target)
    else:
        fill(source, ROWS)

    def undo() -> None:
        abort(plan_abort(source, target))
        put(source, b"f/acknowledged")

    after_filling(monkeypatch, migrating, undo)
    with pytest.raises(RestoreRefused, match="another process"):
        migrate(plan_migration(source, target))
    assert sealed(target)
    assert sealed(source) == ""
    assert b"f/acknowledged" in held(source)


def test_a_copy_of_what_the_source_held_before_it_was_opened_is_not_used(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    fill(source, ROWS)

    def open_and_seal() -> None:
        with closing(open_store(source, "la")) as store:
            why = store.identity.sealed
            store.unseal()
            put(source, b"f/acknowledged")
            store.seal(why)

    with monkeypatch.context() as first:
        after_filling(first, migrating, open_and_seal)
        with pytest.raises(RestoreRefused, match="another process opened it"):
            migrate(plan_migration(source, target))
    assert sealed(target)
    migrate(plan_migration(source, target))
    assert b"f/acknowledged" in held(target)


def test_an_abort_leaves_the_source_closed_if_the_target_is_opened_meanwhile(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    filled(source, target)
    found = migrating.plan_abort

    def late(one: str, other: str) -> object:
        plan = found(one, other)
        with closing(open_store(target, "la")) as store:
            store.fill(ROWS)
            store.unseal()
        return plan

    asking = plan_abort(source, target)
    monkeypatch.setattr(migrating, "plan_abort", late)
    with pytest.raises(RestoreRefused, match="takes changes by now"):
        abort(asking)
    assert sealed(source).startswith("moved to")
    assert held(target) == dict(ROWS)


def opened_under_an_abort(source: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an abort that is cut off after a migration that still runs opened the target."""
    filled(source, target)

    class Cleared:
        """The target, which is opened before it is cleared."""

        def __init__(self, store: Store) -> None:
            self.close = store.close

        def clear(self) -> None:
            with closing(open_store(target, "la")) as store:
                store.fill(ROWS)
                store.unseal()
            raise CutOff

    with monkeypatch.context() as aborting:
        aborting.setattr(
            migrating.Migration, "open_target", lambda one: Cleared(open_store(one.target, "la"))
        )
        with pytest.raises(CutOff):
            abort(plan_abort(source, target))
    put(target, b"f/acknowledged")
    assert sealed(source)


def test_an_abort_that_was_cut_off_when_the_target_was_opened_is_ended_by_migrating(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    opened_under_an_abort(source, target, monkeypatch)
    with pytest.raises(RestoreRefused, match=r"takes changes by now.*the same without --abort"):
        plan_abort(source, target)
    plan = plan_migration(source, target)
    assert plan.stage is Stage.OPENED
    migrate(plan)
    assert plan_migration(source, target).stage is Stage.DONE
    assert sealed(source).startswith("moved to")
    assert held(target) == {**dict(ROWS), b"f/acknowledged": b""}


def test_an_abort_that_was_cut_off_when_the_target_was_opened_is_undone_by_migrating_back(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    opened_under_an_abort(source, target, monkeypatch)
    migrate(plan_migration(target, source))
    assert sealed(source) == ""
    assert sealed(target).startswith("moved to")
    assert held(source) == {**dict(ROWS), b"f/acknowledged": b""}


def test_a_migration_that_continues_a_cut_off_abort_leaves_a_state_that_another_may_end(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    filled(source, target)
    with monkeypatch.context() as aborting:
        aborting.setattr(migrating, "open_store", cutting(2))
        with pytest.raises(CutOff):
            abort(plan_abort(source, target))
    assert sealed(source).startswith("being taken back from")

    def end_first(one: migrating.Migration) -> Store:
        with closing(open_store(target, "la")) as store:
            store.fill(ROWS)
            store.unseal()
        return open_store(one.target, "la")

    with monkeypatch.context() as late:
        late.setattr(migrating.Migration, "open_target", end_first)
        with pytest.raises(RestoreRefused, match="rows were written to"):
            migrate(plan_migration(source, target))
    migrate(plan_migration(source, target))
    assert plan_migration(source, target).stage is Stage.DONE


def test_a_migration_that_copies_cannot_end_once_an_abort_began(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_address(), new_address()
    fill(source, ROWS)

    def begin_abort() -> None:
        with monkeypatch.context() as aborting:
            aborting.setattr(migrating, "open_store", cutting(2))
            with pytest.raises(CutOff):
                abort(plan_abort(source, target))

    with monkeypatch.context() as first:
        after_filling(first, migrating, begin_abort)
        with pytest.raises(RestoreRefused, match="another process sealed"):
            migrate(plan_migration(source, target))
    assert sealed(target)
    abort(plan_abort(source, target))
    assert sealed(source) == ""


def test_a_restore_does_not_open_a_store_that_moved_while_it_asked(
    new_address: Addresses,
) -> None:
    source, target = new_address(), new_address()
    backup = backup_of_rows(source)
    put(source, b"f/later")
    asking = plan_restore(backup, source, replace=True)
    migrate(plan_migration(source, target))
    with pytest.raises(RestoreRefused, match="is sealed: it is moved to"):
        restore(asking)
    assert sealed(source) == f"moved to {describe_address(target)}"
    assert b"f/later" in held(source)
    assert sealed(target) == ""


def test_a_migration_does_not_copy_a_store_that_a_restore_fills(new_address: Addresses) -> None:
    source, target = new_address(), new_address()
    fill(source, ROWS)
    asking = plan_migration(source, target)
    seal(source, BACKUP)
    clear_as_others_do(source)
    with pytest.raises(RestoreRefused, match="is sealed: it is being filled from a backup"):
        migrate(asking)
    assert sealed(source) == BACKUP
    assert find_identity(target) is None


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_store_that_a_restore_only_looked_at_is_opened_with_its_contents(
    new_address: Addresses, by_hand: bool
) -> None:
    """The restore was killed before it cleared anything, and the store has what the backup has."""
    address = new_address()
    backup = backup_of_rows(address)
    seal(address, "being looked at before a restore")
    if by_hand:
        begin_new_incarnation(address)
    else:
        plan = plan_restore(backup, address)
        assert not plan.done
        assert plan.refusals == ()
        assert any("takes no changes" in line for line in plan.lines())
        restore(plan)
    assert sealed(address) == ""
    assert held(address) == dict(ROWS)
    assert plan_restore(backup, address).done


def test_a_new_incarnation_does_not_open_a_store_that_a_restore_fills(
    new_address: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = new_address()
    fill(address, ROWS)
    check = restoring.check_new_incarnation

    def late(at: str) -> object:
        found = check(at)
        seal(address, BACKUP)
        return found

    monkeypatch.setattr(restoring, "check_new_incarnation", late)
    with pytest.raises(RestoreRefused, match=r"another process sealed .*; run it again"):
        begin_new_incarnation(address)
    assert sealed(address) == BACKUP
