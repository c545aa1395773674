"""Moving a cluster from one store to another; refuses a step after which both would take writes.

The steps, each of which survives ``kill -9``:

1. FROM is sealed: *being migrated to TO*. Its servers keep answering reads, marked stale.
2. TO is sealed, from its first moment if it is made: *being filled from FROM*. No server reads it.
3. TO is emptied and filled from FROM, read back and compared.
4. FROM is sealed again: *moved to TO*. No server starts on it any more.
5. TO is unsealed, as a new incarnation.

The two stores alone show the progress: the same command continues from there, and until step 5 the
migration can be undone: FROM is sealed *being taken back from TO*, TO is emptied, and FROM is
unsealed. The cluster keeps its id, so that its parent's mount stays valid.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from directory.maintenance.backup_stream import (
    NotAsFilled,
    Row,
    excess_of_rows,
    fill_store,
    has_cluster_rows,
    rows_of,
)
from directory.maintenance.restore import RestoreRefused
from directory.namespace.keys import CHANGE_LOG, CHANGE_LOG_SKIP, EVENT
from directory.store.addresses import (
    check_writable,
    describe_address,
    find_identity,
    is_same_place,
    limits_at,
    open_store,
)
from directory.store.base import (
    FILLED_FROM,
    MOVED_TO,
    Identity,
    IncompatibleStore,
    KeyEquals,
    Put,
    Store,
    StoreChanged,
    StoreUnreachable,
    Transaction,
)
from directory.store.base import (
    Row as StoredRow,
)
from directory.store.event_rows import FLOOR_KEY, floor_in, noted_in, published_in
from resolver.units import plural

__all__ = ["Migration", "Stage", "abort", "migrate", "plan_abort", "plan_migration"]

_PAGE: Final = 500
_MIGRATED_TO: Final = "being migrated to "
_TAKEN_BACK_FROM: Final = "being taken back from "


class Stage(enum.Enum):
    """Stage of a migration, as the two stores show."""

    NEW = "nothing is done yet"
    BEGUN = "the source takes no changes, the target is not whole"
    FILLED = "the target is filled, and does not take changes yet"
    OPENED = "the cluster is in the target, and the source is not sealed for good"
    DONE = "the cluster is in the target"


@dataclass(frozen=True, slots=True)
class Migration:
    """Migration of one cluster from one store to another."""

    source: str
    """Address of the source."""
    target: str
    identity: Identity
    """Identity of the source, as found."""
    stage: Stage
    target_sealed: str | None = None
    """Seal of the target, as found; empty = none; None = no store."""
    force: bool = False
    """True if it begins even while changes wait for the change log."""

    @property
    def migrating(self) -> str:
        """Reason of the source's seal during the migration."""
        return f"{_MIGRATED_TO}{describe_address(self.target)}"

    @property
    def taken_back(self) -> str:
        """Reason of the source's seal while the migration is undone."""
        return f"{_TAKEN_BACK_FROM}{describe_address(self.target)}"

    @property
    def moved(self) -> str:
        """Reason of the source's seal at the end."""
        return f"{MOVED_TO}{describe_address(self.target)}"

    @property
    def filled(self) -> str:
        """Reason of the target's seal during the migration."""
        return f"{FILLED_FROM}{describe_address(self.source)}"

    @property
    def is_filling(self) -> bool:
        """True if the target was found sealed to be filled from the source."""
        return (self.target_sealed or "").startswith(FILLED_FROM)

    def open_source(self) -> Store:
        """Returns the store that the cluster uses now."""
        return open_store(self.source, self.identity.cluster, self.identity.cluster_id)

    def open_target(self) -> Store:
        """Returns the store that the cluster moves to; creates it if missing, sealed."""
        cluster, cluster_id = self.identity.cluster, self.identity.cluster_id
        return open_store(self.target, cluster, cluster_id, self.filled)

    def describe(self) -> str:
        """Describes the migration for people."""
        whose = f"cluster {self.identity.cluster} ({self.identity.cluster_id})"
        where = f"{describe_address(self.source)} → {describe_address(self.target)}"
        return f"{whose}: {where}: {self.stage.value}"


def plan_migration(source: str, target: str, *, force: bool = False) -> Migration:
    """Checks that a migration may begin or continue; returns its progress and changes nothing.
    ``force``: it may begin even while changes wait for the change log.

    Raises:
        RestoreRefused: it may not; has the reason.
        StoreUnreachable, IncompatibleStore: as ``open_store``.
    """
    found = _find_stage(source, target)
    if found.stage is Stage.NEW and not force:
        _refuse_unpublished(found)
    if found.stage is Stage.NEW:
        _refuse_oversized(found)
        check_writable(target)
    return replace(found, force=force)


def _refuse_unpublished(one: Migration) -> None:
    """Checks that no changes wait for the change log: the new store begins a new generation of the
    log, in which they would be differences of the state instead of changes.
    """
    with ExitStack() as opened:
        store = one.open_source()
        opened.callback(store.close)
        waiting = _waiting_commits(store)
    if waiting:
        raise RestoreRefused(
            f"{plural(waiting, 'commit waits', 'commits wait')} for the change log: stop changing "
            f"the cluster until nothing waits (kdir log status; --force: its history never gets "
            f"them)"
        )


def _refuse_oversized(one: Migration) -> None:
    """Checks that the target can hold each row of the source, before the source is sealed."""
    limits = limits_at(one.target)
    if limits.max_bytes >= limits_at(one.source).max_bytes:
        return  # the source could not hold a larger row either
    with ExitStack() as opened:
        store = one.open_source()
        opened.callback(store.close)
        excess = excess_of_rows(_all_rows(store), limits)
    if excess:
        raise RestoreRefused(f"{describe_address(one.target)} cannot hold the cluster: {excess}")


def _waiting_commits(store: Store) -> int:
    """Returns the number of commits that wait for the change log; 0 if there is no log."""
    _, published = _published(store)
    if published is None:
        return 0
    # Rows up to the floor came from the store that this one was filled from.
    floor = store.read(FLOOR_KEY, limit=1)
    published = max(published, (floor_in(floor[0].value) if floor else None) or 0)
    count, after = 0, FLOOR_KEY
    while page := store.read(EVENT, limit=_PAGE, after=after):
        count += sum(row.revision > published for row in page)
        after = page[-1].key
    return count


def _published(store: Store) -> tuple[StoredRow | None, int | None]:
    """Returns the row with the change log's progress, and the revision up to which no commit waits
    for the log.
    """
    rows = {row.key: row for row in store.read(CHANGE_LOG)}
    values = {key: row.value for key, row in rows.items()}
    incarnation = store.identity.incarnation
    published = published_in(values.get(CHANGE_LOG), values.get(CHANGE_LOG_SKIP), incarnation)
    return rows.get(CHANGE_LOG), published


def plan_abort(source: str, target: str) -> Migration:
    """Checks that a migration can be undone.

    Raises:
        RestoreRefused: it cannot; has the reason.
        StoreUnreachable, IncompatibleStore: as ``open_store``.
    """
    found = _find_stage(source, target)
    if found.stage is Stage.OPENED:
        raise RestoreRefused(f"{_takes_changes(target)}; to end it, give the same without --abort")
    if found.stage is Stage.DONE:
        raise RestoreRefused(_takes_changes(target))
    return found


def _find_stage(source: str, target: str) -> Migration:
    here, there = describe_address(source), describe_address(target)
    if is_same_place(source, target):
        raise RestoreRefused(f"{here} is both")
    identity = find_identity(source)
    if identity is None:
        raise IncompatibleStore(f"{here}: there is no store")
    found = find_identity(target)
    if found is not None and (found.cluster_id, found.cluster) != (
        identity.cluster_id,
        identity.cluster,
    ):
        raise RestoreRefused(
            f"{there} is the store of cluster {found.cluster} ({found.cluster_id}), {here} that of "
            f"{identity.cluster} ({identity.cluster_id})"
        )
    begin = Migration(source, target, identity, Stage.NEW, found.sealed if found else None)
    return replace(begin, stage=_stage(begin, identity, found))


def _stage(one: Migration, source: Identity, target: Identity | None) -> Stage:
    here, there = describe_address(one.source), describe_address(one.target)
    filling = target is not None and _names(target.sealed, FILLED_FROM, one.source)
    if _names(source.sealed, MOVED_TO, one.target):
        if target is None:
            raise RestoreRefused(f"{here} is {source.sealed}, and there is no store")
        return Stage.FILLED if filling else Stage.DONE
    is_taken_back = _names(source.sealed, _TAKEN_BACK_FROM, one.target)
    if is_taken_back and target is not None and not target.sealed:
        return Stage.OPENED  # by a migration that was past its step 4 when the abort began
    if source.sealed and not is_taken_back and not _names(source.sealed, _MIGRATED_TO, one.target):
        raise RestoreRefused(f"{here} is sealed: it is {source.sealed}")
    if target is not None and target.sealed and not filling:
        if not _names(target.sealed, MOVED_TO, one.source) and not _names(
            target.sealed, _TAKEN_BACK_FROM, one.source
        ):
            raise RestoreRefused(f"{there} is sealed: it is {target.sealed}")
    elif target is not None and not target.sealed:
        _refuse_full(one)
    return Stage.BEGUN if source.sealed else Stage.NEW


def _names(sealed: str, why: str, address: str) -> bool:
    """True if a store is sealed for this reason, which contains this address, possibly in another
    form.
    """
    return sealed.startswith(why) and is_same_place(sealed.removeprefix(why), address)


def _refuse_full(one: Migration) -> None:
    with ExitStack() as opened:
        store = one.open_target()
        opened.callback(store.close)
        if has_cluster_rows(store):
            raise RestoreRefused(
                f"{store.describe()} holds something already, and it is not known that it came "
                f"from there: name an empty store"
            )


def migrate(one: Migration, report: Callable[[str], None] = lambda _: None) -> Identity:
    """Executes the remaining steps; returns the target's identity in its new incarnation.

    Raises:
        RestoreRefused: as ``plan_migration``; another process changed one of the stores meanwhile,
            or the target has other rows than those put in.
        StoreUnreachable, IncompatibleStore: repeat the command to continue.
    """
    # Again: others may have continued, or made changes, while a prompt was open.
    one = plan_migration(one.source, one.target, force=one.force)
    with ExitStack() as opened:
        source = one.open_source()
        opened.callback(source.close)
        sealed = _seal_of_source(one)
        with _refusing_changed(), ExitStack() as begun:
            if one.stage is not Stage.DONE:
                source.seal(sealed, expected=one.identity.sealed)
                report(f"{source.describe()} takes no changes now")
                begun.enter_context(_reporting_sealed(one, report))
            # Not refused any more: unsealing the source would begin a new generation of the log,
            # too.
            if one.stage is Stage.NEW and not one.force and (late := _waiting_commits(source)):
                report(
                    f"{plural(late, 'commit')} came while this began: the change log has the "
                    f"changes only as differences of the state"
                )
            target = one.open_target()
            opened.callback(target.close)
            if one.stage in (Stage.OPENED, Stage.DONE):
                return target.identity
            if not target.identity.sealed and has_cluster_rows(target):
                raise RestoreRefused(
                    f"rows were written to {target.describe()} meanwhile; run it again"
                )
            made = one.target_sealed is None
            target.seal(one.filled, expected=one.filled if made else one.target_sealed)
            copied = _state_of(source)
            filled_at = _copy(source, target, report)
            source.seal(one.moved, expected=sealed)
            if _state_of(source) != copied:
                raise StoreChanged(f"{source.describe()}: another process opened it meanwhile")
            identity = target.unseal(one.filled, filled_at)
        report(f"{target.describe()} takes changes now")
        return identity


def _seal_of_source(one: Migration) -> str:
    """Returns the reason of the source's seal while a migration continues."""
    if one.stage not in (Stage.NEW, Stage.BEGUN):
        return one.moved  # also at FILLED, at which another process may be opening it again
    is_taken_back = one.identity.sealed.startswith(_TAKEN_BACK_FROM)
    # Kept, because a migration that runs may still open the target, as in ``abort``.
    return one.taken_back if is_taken_back and one.is_filling else one.migrating


@contextmanager
def _reporting_sealed(one: Migration, report: Callable[[str], None]) -> Iterator[None]:
    """Context manager: if a migration ends early, reports the commands that continue and undo it,
    unless it can no longer be undone or another process changed a store.
    """
    try:
        yield
    except StoreChanged:
        raise
    except BaseException:
        if one.stage is not Stage.OPENED:
            report(
                f"{describe_address(one.source)} is sealed: the same command goes on, --abort "
                f"opens it again"
            )
        raise


@contextmanager
def _refusing_changed() -> Iterator[None]:
    try:
        yield
    except StoreChanged as reason:
        raise RestoreRefused(f"{reason}; --plan shows how far the migration is") from None


def _state_of(source: Store) -> tuple[str, int]:
    return source.refresh_identity().incarnation, source.newest_revision()


def _copy(source: Store, target: Store, report: Callable[[str], None]) -> int:
    """Fills the target; returns the revision at which it has all rows of the source."""
    report(f"filling {target.describe()}")
    try:
        return fill_store(target, _all_rows(source), report)
    except NotAsFilled as reason:
        raise RestoreRefused(str(reason)) from None


def abort(one: Migration, report: Callable[[str], None] = lambda _: None) -> Identity:
    """Undoes a migration: the target is emptied and stays sealed, then the source takes changes
    again, as a new incarnation.

    Raises:
        RestoreRefused: the target already takes changes, or another process changed one of the
            stores meanwhile.
        StoreUnreachable, IncompatibleStore: repeat the command to continue.
    """
    one = plan_abort(one.source, one.target)  # others may have continued while a prompt was open
    with ExitStack() as opened:
        source = one.open_source()
        opened.callback(source.close)
        # First, so that a migration that still runs fails: it expects its own seal on the source.
        # Only a migration past its step 4 can still end. Then, and only then, the target is open
        # while the source has the seal ``taken_back``.
        sealed = one.taken_back if one.is_filling else one.migrating
        with _refusing_changed():
            if one.stage is not Stage.NEW:
                source.seal(sealed, expected=one.identity.sealed)
            if one.is_filling:
                target = one.open_target()
                opened.callback(target.close)
                _clear(one, source, target)
                report(f"{target.describe()} is empty")
            identity = source.identity
            if one.stage is not Stage.NEW:
                note, published = _published(source)
                identity = source.unseal(expected=sealed)
                _note_published(source, note, published or 0)
        report(f"{source.describe()} takes changes")
        return identity


def _note_published(source: Store, before: StoredRow | None, published: int) -> None:
    """Stores the change log's progress in the new incarnation, unless a publisher has: so published
    commits do not count as waiting. If that fails, the publisher stores it once it begins.
    """
    with suppress(StoreUnreachable):
        note, _ = _published(source)
        state = noted_in(note.value) if note is not None else None
        if before is None or note is None or state is None or not published:
            return
        state.incarnation = source.refresh_identity().incarnation
        # A new incarnation may give all rows higher revisions.
        state.revision = published + note.revision - before.revision
        again = Put(CHANGE_LOG, state.SerializeToString(deterministic=True))
        source.commit(Transaction((KeyEquals(CHANGE_LOG, before.value),), (again,)))


def _clear(one: Migration, source: Store, target: Store) -> None:
    try:
        target.clear()
    except ValueError:
        if one.stage is not Stage.NEW:
            source.seal(one.moved, expected=one.taken_back)
        raise RestoreRefused(_takes_changes(one.target)) from None


def _takes_changes(target: str) -> str:
    where = describe_address(target)
    return f"{where} takes changes by now; to go back, migrate it the other way"


def _all_rows(store: Store) -> Iterator[Row]:
    for page in rows_of(store.load()):
        yield from page
