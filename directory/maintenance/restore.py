"""Restore of a store from a backup: planned first, then executed in steps that can be interrupted.

A restore is refused into a store of another cluster, and, unless an option allows it, into a store
that is not empty or has running servers. The steps: the store is sealed to be filled (no server
reads it from then on, and none writes), emptied, filled, read back and compared, and unsealed as a
new incarnation. An interrupted restore leaves it sealed, and the same command finishes it. Entries
that would be lost are counted and named by path; unreadable entries of a backup are counted
separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Final, Self

from kdir.v1 import admin_pb2

from directory.maintenance.backup_stream import (
    NotAsFilled,
    Row,
    digest_of,
    excess_of_rows,
    fill_store,
    has_cluster_rows,
    merge_by_key,
    rows_of,
)
from directory.maintenance.registered_servers import live_servers
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory
from directory.namespace.keys import (
    ENTRY,
    EVENT,
    GRANTS,
    REQUEST,
    EntryKey,
    parse_entry_key,
    parse_grants_key,
)
from directory.namespace.tree_nodes import ROOT_KEY
from directory.server.feature_levels import LEVELS
from directory.store.addresses import (
    check_writable,
    describe_address,
    find_identity,
    limits_at,
    open_store,
)
from directory.store.base import FILLED_FROM, Identity, IncompatibleStore, Store, StoreChanged
from directory.store.schema import SCHEMA_VERSION
from directory.wire.entry_codec import ProtoCodec
from resolver import units
from resolver.backup_file import BackupReader

__all__ = [
    "Backup",
    "DirectoryPaths",
    "EntryCounts",
    "Losses",
    "RestorePlan",
    "RestoreRefused",
    "begin_new_incarnation",
    "check_new_incarnation",
    "losses",
    "plan_restore",
    "restore",
]

_CODEC: Final = ProtoCodec()
_NAMED: Final = 20


@dataclass(slots=True)
class EntryCounts:
    """Number of rows and entries, by kind."""

    counts: dict[str, int] = field(default_factory=dict)
    rows: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Counts one more row."""
        self.rows += 1
        kind = _kind(key, value)
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def __str__(self) -> str:
        counts = self.counts.items()
        by_kind = {kind: units.plural(number, kind, _KINDS[kind]) for kind, number in counts}
        return ", ".join(by_kind[kind] for kind in _KINDS if kind in by_kind) or "nothing"


_KINDS: Final = {
    "topic": "topics", "directory": "directories", "link": "links", "mount": "mounts",
    "unreadable entry": "unreadable entries", "entry's grants": "entries' grants",
    "change of history": "changes of history", "answered request": "answered requests",
    "other fact": "other facts",
}  # fmt: skip


def _kind(key: bytes, value: bytes) -> str:
    if key.startswith(EVENT):
        return "change of history"
    if key.startswith(REQUEST):
        return "answered request"
    if key.startswith(GRANTS):
        return "entry's grants"
    place = _place(key)
    if place is None:
        return "other fact"
    if place.is_topic:
        return "topic"
    try:
        return _CODEC.decode(value).kind.name.lower()
    except ValueError:
        return "unreadable entry"


def _place(key: bytes) -> EntryKey | None:
    if not key.startswith(ENTRY):
        return None
    try:
        return parse_entry_key(key)
    except ValueError:
        return None


def _place_of_grants(key: bytes) -> EntryKey | None:
    try:
        return parse_grants_key(key)
    except ValueError:
        return None


class DirectoryPaths:
    """Paths of directories below the mount, for people; by id, from the directories' rows."""

    def __init__(self) -> None:
        self._above: dict[int, tuple[int, str]] = {}

    def learn(self, key: bytes, value: bytes) -> None:
        """Adds the row if it is a directory's."""
        place = _place(key)
        if place is None or place.is_topic:
            return
        try:
            entry = _CODEC.decode(value)
        except ValueError:
            return
        if isinstance(entry, Directory):
            self._above[entry.entry_id] = (place.parent_id, place.name)

    def path_of_key(self, key: bytes) -> str:
        """Returns the path of the row of an entry or of its grants; for another row, its key."""
        place = _place(key) or _place_of_grants(key)
        if key == ROOT_KEY or (place is not None and not place.name):
            return "the root directory"
        if place is None:
            return key.decode("utf-8", "backslashreplace")
        names = [place.name]
        at: int = place.parent_id
        while at in self._above and at != ROOT_ID and len(names) < 100:
            at, name = self._above[at]
            names.append(name)
        start = {ROOT_ID: "", DELETED_ID: "__deleted/", 0: ""}.get(at, f"(orphan of {at:x})/")
        return start + "/".join(reversed(names))


@dataclass(slots=True)
class RowCount:
    """Number of entries, and of entries' grants."""

    entries: int = 0
    grants: int = 0

    def add(self, key: bytes) -> None:
        """Counts one more row."""
        if key.startswith(GRANTS):
            self.grants += 1
        else:
            self.entries += 1

    @property
    def total(self) -> int:
        """Number of entries and of grants together."""
        return self.entries + self.grants

    def __str__(self) -> str:
        kind = "entry's grants"
        grants = units.plural(self.grants, kind, _KINDS[kind])
        if self.grants and not self.entries:
            return grants
        entries = units.plural(self.entries, "entry", "entries")
        return f"{entries} and {grants}" if self.grants else entries


@dataclass(slots=True)
class Losses:
    """Entries and grants of a store that are absent, or different, in its replacement."""

    gone: RowCount = field(default_factory=RowCount)
    """Entries and grants that the replacement lacks."""
    changed: RowCount = field(default_factory=RowCount)
    """Entries and grants that differ."""
    come_back: RowCount = field(default_factory=RowCount)
    """Entries and grants that only the replacement has."""
    examples: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of entries and grants that are lost or reverted."""
        return self.gone.total + self.changed.total


def losses(now: Iterable[Row], then: Iterable[Row], paths: DirectoryPaths) -> Losses:
    """Compares the entries and grants of two sets of rows, both in key order, in bounded memory."""
    found = Losses()
    for key, value, other in merge_by_key(_entries(now), _entries(then)):
        if value is None:
            found.come_back.add(key)
        elif other is None:
            found.gone.add(key)
        elif other != value:
            found.changed.add(key)
        if value in (None, other) or len(found.examples) >= _NAMED:
            continue
        what = _part_of_entry(key)
        reverted = f"as {'they were' if what else 'it was'} then"
        outcome = f"{what}{'lost' if other is None else reverted}"
        found.examples.append(f"{paths.path_of_key(key)}: {outcome}")
    return found


def _part_of_entry(key: bytes) -> str:
    """Returns which part of an entry the row holds, followed by a blank; empty: the entry
    itself.
    """
    if key.startswith(GRANTS):
        return "grants "
    return "its policies " if key == ROOT_KEY else ""


def _entries(rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if row[0].startswith((ENTRY, GRANTS)))


_REASON: Final = f"{FILLED_FROM}a backup"
_LOOKED_AT: Final = "being looked at before a restore"
"""Reason of the seal under which a restore checks for rows that came after its plan: with it, a
store can be neither filled nor cleared.
"""
_NEW_INCARNATION: Final = "beginning a new incarnation, as after a restore by other means"
_BEGUN: Final = (_NEW_INCARNATION, "beginning a new life, as one that was put back by other means")
"""Reasons of a seal that was set by ``begin_new_incarnation``, of this and of an earlier kdir."""


class RestoreRefused(Exception):
    """Error: a restore would lose or break something; with the reason for people."""


class Backup:
    """Header and rows to restore. The rows are counted when they are read for the first time.

    Args:
        rows: reads the rows, in key order, from the first one.
        source: origin of the rows, for people.

    Raises:
        IncompatibleStore: a newer kdir made it.
    """

    def __init__(
        self,
        header: admin_pb2.BackupHeader,
        rows: Callable[[], Iterator[Row]],
        source: str = "backup",
    ) -> None:
        if header.schema_version > SCHEMA_VERSION:
            raise IncompatibleStore(
                f"the backup has schema version {header.schema_version}, made by a newer kdir; "
                f"this one knows up to {SCHEMA_VERSION}"
            )
        if header.finalized_level > max(LEVELS):
            raise IncompatibleStore(
                f"feature level {header.finalized_level} is finalized in the backup; this kdir "
                f"supports {max(LEVELS)}"
            )
        self.header: Final = header
        self.source: Final = source
        self._read_rows: Final = rows
        self._counts: EntryCounts | None = None
        self._digest: bytes | None = None

    @classmethod
    def read(cls, file: IO[bytes]) -> Self:
        """Reads a whole backup, which is read again when it is restored.

        Raises:
            DamagedBackup, OSError: it cannot be read.
            IncompatibleStore: a newer kdir made it.
        """

        def rows() -> Iterator[Row]:
            file.seek(0)
            return BackupReader(file).rows()

        file.seek(0)
        backup = cls(BackupReader(file).header, rows)
        backup.digest  # noqa: B018 - reads it to its end, once
        return backup

    def rows(self) -> Iterator[Row]:
        """Yields the rows, in key order, from the first one."""
        if self._counts is not None:
            yield from self._read_rows()
            return
        counts = EntryCounts()
        for key, value in self._read_rows():
            counts.add(key, value)
            yield key, value
        self._counts = counts

    @property
    def topic_counts(self) -> EntryCounts:
        """Counts of the rows, which are read if they were not read yet."""
        while self._counts is None:
            for _ in self.rows():
                pass
        return self._counts

    @property
    def digest(self) -> bytes:
        """Digest of the rows; they are read for it once."""
        if self._digest is None:
            self._digest = digest_of(self.rows())
        return self._digest

    @property
    def taken(self) -> str:
        """Time of the backup, for people."""
        at = self.header.taken_at_ms / 1000
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))

    def describe(self) -> str:
        """Describes the backup for people."""
        header = self.header
        return (
            f"{self.source} of cluster {header.cluster} ({header.cluster_id}), revision "
            f"{header.revision}, taken {self.taken}: {self.topic_counts}"
        )


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Effect of a restore, determined without executing it."""

    backup: Backup
    address: str
    found: str
    """Current contents of the store, for people."""
    refusals: tuple[str, ...] = ()
    losses: Losses | None = None
    done: bool = False
    """True: the store has exactly the backup's contents and takes changes, so there is nothing to
    do.
    """
    replaces: bool = False
    unseals: bool = False
    """True: the store has exactly the backup's contents, and is sealed by a restore that was cut
    off before it changed anything.
    """

    def lines(self) -> Iterator[str]:
        """Yields the plan as lines of text."""
        yield self.backup.describe()
        yield f"store {describe_address(self.address)}: {self.found}"
        if self.done:
            yield "nothing would be done"
            return
        if self.losses is not None:
            lost = self.losses
            yield (
                f"would be lost: {lost.gone}; would be again what they were: {lost.changed}; "
                f"would come back: {lost.come_back}"
            )
            yield from (f"  {example}" for example in lost.examples)
            more = lost.total - len(lost.examples)
            if more > 0:
                yield f"  and {more:,} more"
        yield (
            "would start a new incarnation: servers reload, older tokens are answered with "
            "TOKEN_EXPIRED"
        )
        yield from (f"refused: {refusal}" for refusal in self.refusals)


def plan_restore(
    backup: Backup, address: str, *, replace: bool = False, force: bool = False
) -> RestorePlan:
    """Returns the plan of a restore; changes nothing.

    Raises:
        IncompatibleStore: this version cannot use the store, or it cannot be created there.
        StoreUnreachable, DamagedBackup, OSError: the store or the backup cannot be read, or the
            store cannot be written now.
    """
    plan = _plan_restore(backup, address, replace=replace, force=force)
    if not plan.refusals and not plan.done:
        check_writable(address)
    return plan


def _plan_restore(backup: Backup, address: str, *, replace: bool, force: bool) -> RestorePlan:
    identity = find_identity(address)
    refusals = list(_unsuitable(backup, identity)) if identity is not None else []
    if excess := excess_of_rows(backup.rows(), limits_at(address)):
        refusals.append(f"the store cannot hold the backup: {excess}")
    if identity is None:
        found = "is not there yet, and would be made"
        return RestorePlan(backup, address, found, tuple(refusals))
    if refusals:
        return RestorePlan(backup, address, _whose(identity), tuple(refusals))
    if identity.partial:
        return RestorePlan(backup, address, "is there from a restore that was cut off")
    with closing(_open(backup, address)) as store:
        return _plan_over(backup, address, store, replace=replace, force=force)


def _unsuitable(backup: Backup, identity: Identity) -> Iterator[str]:
    """Yields the reasons why nothing can be restored into such a store, whatever the options."""
    header = backup.header
    if identity.cluster_id != header.cluster_id or identity.cluster != header.cluster:
        yield (
            f"the store is of cluster {identity.cluster} ({identity.cluster_id}), the backup of "
            f"{header.cluster} ({header.cluster_id}): name a store of its own"
        )
    if _is_others(identity.sealed):
        yield f"the store is sealed: it is {identity.sealed}"


def _is_others(sealed: str) -> bool:
    """True if a store is sealed for another reason than a restore."""
    return bool(sealed) and sealed != _LOOKED_AT and not sealed.startswith(_REASON)


def _plan_over(
    backup: Backup, address: str, store: Store, *, replace: bool, force: bool
) -> RestorePlan:
    refusals = []
    servers = live_servers(store)
    if servers and not force:
        refusals.append(
            f"servers of this store are running: {', '.join(servers)}; stop them first "
            f"(--force: they serve what they have until the store is whole again)"
        )
    if not has_cluster_rows(store):
        return RestorePlan(backup, address, "is empty", tuple(refusals))
    if digest_of(_all_rows(store)) == backup.digest:
        equal = "holds just what the backup does"
        if not store.identity.sealed:
            return RestorePlan(backup, address, equal, done=True)
        found = f"{equal}, and takes no changes: it is {store.identity.sealed}"
        return RestorePlan(backup, address, found, unseals=True)
    lost = _losses(backup, store)
    if not replace:
        refusals.append("the store holds something; --replace puts the backup in its place")
    return RestorePlan(
        backup, address, _whose(store.identity), tuple(refusals), lost, replaces=True
    )


def _losses(backup: Backup, store: Store) -> Losses:
    paths = DirectoryPaths()
    for rows in (backup.rows(), _all_rows(store)):  # the store last: its paths count
        for key, value in rows:
            paths.learn(key, value)
    return losses(_all_rows(store), backup.rows(), paths)


def restore(plan: RestorePlan, report: Callable[[str], None] = lambda _: None) -> Identity:
    """Executes a restore; returns the store's identity in its new incarnation.

    Raises:
        RestoreRefused: for the plan's reasons, or another process changed the store meanwhile.
        StoreUnreachable, IncompatibleStore, DamagedBackup, OSError: if it sealed the store, that
            stays sealed; repeat the command to finish.
    """
    if plan.refusals:
        raise RestoreRefused("; ".join(plan.refusals))
    backup = plan.backup
    why = f"{_REASON} taken {backup.taken}"
    # A new store is sealed from the start: servers that run would take it for an empty tree.
    with closing(_open(backup, plan.address, why)) as store:
        if plan.done:
            return store.identity
        found = store.identity.sealed
        if _is_others(found):
            raise RestoreRefused(f"the store is sealed: it is {found}")
        try:
            if plan.unseals and digest_of(_all_rows(store)) == backup.digest:
                return store.unseal(_LOOKED_AT)
            if not found.startswith(_REASON):
                store.seal(_LOOKED_AT, expected=found)
                found = _LOOKED_AT
                if not plan.replaces and has_cluster_rows(store):
                    store.unseal(_LOOKED_AT)
                    raise RestoreRefused("rows were written to the store meanwhile; run it again")
            store.seal(why, expected=found)
            report(f"filling {store.describe()}")
            return store.unseal(why, fill_store(store, backup.rows(), report))
        except (NotAsFilled, StoreChanged) as reason:
            partial = store.refresh_identity().partial
            stays = "; the store stays sealed until it is filled" if partial else ""
            raise RestoreRefused(f"{reason}{stays}") from None


def check_new_incarnation(address: str) -> Identity:
    """Checks that a new incarnation of a store may begin; returns the store's identity now.

    Raises:
        as ``begin_new_incarnation``.
    """
    found = find_identity(address)
    if found is None:
        raise IncompatibleStore(f"{describe_address(address)}: there is no store")
    # With ``_LOOKED_AT``, a restore has cleared nothing yet.
    if found.sealed and found.sealed not in (_LOOKED_AT, *_BEGUN):
        raise RestoreRefused(f"the store is sealed: it is {found.sealed}")
    return found


def begin_new_incarnation(address: str) -> Identity:
    """Begins a new incarnation of a store that was restored by other means: earlier tokens and
    watches expire. Nothing in such a store shows that it was restored.

    Its servers may run; they load again. The contents stay. If interrupted, the same call finishes
    it.

    Raises:
        RestoreRefused: the store is sealed, or another process sealed it meanwhile.
        StoreUnreachable, IncompatibleStore: as ``open_store``.
    """
    found = check_new_incarnation(address)
    with closing(open_store(address, found.cluster, found.cluster_id)) as store:
        try:
            store.seal(_NEW_INCARNATION, expected=found.sealed)
            return store.unseal(expected=_NEW_INCARNATION)
        except StoreChanged as reason:
            raise RestoreRefused(f"{reason}; run it again") from None


def _open(backup: Backup, address: str, sealed: str = "") -> Store:
    return open_store(address, backup.header.cluster, backup.header.cluster_id, sealed)


def _all_rows(store: Store) -> Iterator[Row]:
    for page in rows_of(store.load()):
        yield from page


def _whose(identity: Identity) -> str:
    sealed = f", {identity.sealed}" if identity.sealed else ""
    return f"of cluster {identity.cluster} ({identity.cluster_id}){sealed}"
