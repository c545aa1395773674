"""Reads the stored records of a cluster's parent, and makes the writes for them.

Everything that the parent link receives is committed to the child's own store, so that a restart
continues from it, however old it is. Ages are stored as the unix time of the owner's update. An
unreadable record counts as not received (S21): its sender sends it on the next link, and it is
stored again. But unreadable inherited records do not count as nothing inherited.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from kdir.v1 import federation_pb2, policies_pb2

from directory.federation.inheritance import (
    is_inherited_corrupt,
    is_inherited_received,
    parent_of,
    read_inherited,
    whole_inherited,
)
from directory.federation.link_records import (
    READERS,
    encode_record,
    split_record,
    try_decode_record,
)
from directory.namespace import keys
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write
from resolver.host_port import plain_endpoints
from resolver.path import Path

__all__ = [
    "ATTACHED_KEY",
    "DETACHED_KEY",
    "FIRST_RECEIPT_KEY",
    "INHERITED_KEY",
    "PARENT_CONFIG_KEY",
    "UNMOUNTED_KEY",
    "ParentContact",
    "Position",
    "TableRow",
    "ancestors",
    "attachment_basis",
    "corrupt_keys",
    "detached_of",
    "first_receipt_writes",
    "is_kept",
    "is_of_parent_config",
    "parent_config_writes",
    "parent_contact",
    "parent_contact_write",
    "position_of",
    "table_row",
    "table_rows",
    "table_steps",
    "table_writes",
    "unreadable_rows",
    "welcome_writes",
    "without_volatile_fields",
]

DETACHED_KEY: Final = b"f/detached"
ATTACHED_KEY: Final = b"f/attached"
FIRST_RECEIPT_KEY: Final = b"f/first_receipt"
UNMOUNTED_KEY: Final = b"f/unmounted"
PARENT_CONFIG_KEY: Final = b"f/configured_parent"
_LINKED: Final = b"linked"
INHERITED_KEY: Final = keys.INHERITED
_STEP_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Position:
    """Mount of a cluster, by its own store."""

    mount: Path
    epoch: int = 0
    """0: no parent ever confirmed the mount."""
    parent: federation_pb2.Welcome | None = None
    unmounted: str = ""
    """Why the cluster must not serve, as the parent reported it; empty = it may."""


@dataclass(frozen=True, slots=True)
class ParentContact:
    """Time when the parent last confirmed the mount and its inherited records, as the holder of the
    link periodically stores it.
    """

    at_ms: int
    linked: bool
    """True if, when this was stored, the link was open and the parent's own state confirmed: later
    confirmations are possible.
    """


@dataclass(frozen=True, slots=True)
class TableRow:
    """One mount, with the time of its owner's update."""

    row: federation_pb2.MountRow
    owner_time_ms: int

    @property
    def mount(self) -> Path:
        """Mount point."""
        return Path.parse(self.row.mount)

    def aged(self, now_ms: int) -> federation_pb2.MountRow:
        """Returns the row with its current age, for sending."""
        row = federation_pb2.MountRow()
        row.CopyFrom(self.row)
        row.age_seconds = max(0.0, (now_ms - self.owner_time_ms) / 1000)
        return row

    def confirmed_at(self, at_ms: int) -> TableRow:
        """Returns the row with the time of its owner's update moved forward, since a message of
        its link confirmed it at ``at_ms``; the same row if it is unconfirmed or newer.
        """
        if not self.row.confirmed:
            return self
        owner_time_ms = at_ms - _age_ms(self.row)
        return self if owner_time_ms <= self.owner_time_ms else TableRow(self.row, owner_time_ms)

    def unconfirmed(self) -> TableRow:
        """Returns the row as no longer confirmed by any link. A linked mount stays linked as of
        then; for any other, the state of its link becomes unknown.
        """
        if not self.row.linked:
            return self.unlinked()
        if not self.row.confirmed:
            return self
        row = federation_pb2.MountRow()
        row.CopyFrom(self.row)
        row.confirmed = False
        return TableRow(row, self.owner_time_ms)

    def unlinked(self) -> TableRow:
        """Returns the row as of a mount for which it is unknown whether its link is open."""
        if self.row.link_unknown:
            return self
        row = federation_pb2.MountRow()
        row.CopyFrom(self.row)
        row.linked = row.confirmed = False
        row.link_unknown = True
        return TableRow(row, self.owner_time_ms)

    @classmethod
    def received(cls, row: federation_pb2.MountRow, now_ms: int) -> TableRow:
        """Returns a received row: its age counts from the owner's message; invalid and excess
        endpoints are dropped.
        """
        plain = plain_endpoints(row.endpoints)
        if len(plain) < len(row.endpoints):
            row.endpoints[:] = plain
        return cls(row, now_ms - _age_ms(row))


def _age_ms(row: federation_pb2.MountRow) -> int:
    return int(max(0.0, min(row.age_seconds, 10.0**9)) * 1000)


def position_of(snapshot: Snapshot, configured: Path) -> Position:
    """Returns the cluster's position: by the parent's last confirmation, else by its config."""
    gone = (snapshot.fact(UNMOUNTED_KEY) or b"").decode(errors="replace")
    reported = parent_of(snapshot)
    if reported is None:
        return Position(configured, unmounted=gone)
    welcome, _ = reported
    return Position(
        mount=Path.parse(welcome.mount),
        epoch=welcome.epoch,
        parent=welcome,
        unmounted=gone,
    )


def is_kept(snapshot: Snapshot, welcome: federation_pb2.Welcome) -> bool:
    """True if the parent's record of this mount and the inherited policies and grants are stored
    already. If False, the caller stores both in one commit.
    """
    known = parent_of(snapshot)
    if (
        known is None
        or snapshot.fact(UNMOUNTED_KEY) is not None
        or not is_inherited_received(snapshot)
    ):
        return False
    return _mounted(known[0]) == _mounted(welcome)


def _mounted(welcome: federation_pb2.Welcome) -> tuple[str, int, str, str]:
    return (welcome.mount, welcome.epoch, welcome.parent_cluster_id, welcome.incarnation)


def welcome_writes(
    snapshot: Snapshot, welcome: federation_pb2.Welcome, now_ms: int
) -> tuple[Write, ...]:
    """Returns the writes that store the parent's record of this mount; empty if it is stored. The
    first record, and one in place of an unreadable record, count as a move.
    """
    known = parent_of(snapshot)
    writes: list[Write] = []
    if known is None or _lasting(known[0]) != _lasting(welcome):
        body = welcome.SerializeToString(deterministic=True)
        writes.append(Put(keys.PARENT, encode_record(now_ms, body)))
    # Without a readable record it is not known whether the mount is where it was before.
    if known is None or _place(known[0]) != _place(welcome):
        moves = snapshot.fact(keys.MOVED) or b""
        more = int(moves) + 1 if moves.isdigit() else 1
        writes.append(Put(keys.MOVED, str(more).encode()))
    if snapshot.fact(UNMOUNTED_KEY) is not None:
        writes.append(Delete(UNMOUNTED_KEY))
    return tuple(writes)


def _lasting(welcome: federation_pb2.Welcome) -> federation_pb2.Welcome:
    # The revision grows with every commit of the parent: alone it is no change of the mount.
    copy = federation_pb2.Welcome()
    copy.CopyFrom(welcome)
    copy.revision = 0
    return copy


def _place(welcome: federation_pb2.Welcome) -> tuple[str, str]:
    return welcome.mount, welcome.parent_cluster_id


def parent_config_writes(snapshot: Snapshot, configured: Iterable[str]) -> tuple[Write, ...]:
    """Returns the writes that store the ``parent`` of the config by which the parent was found;
    empty if it is stored.
    """
    value = json.dumps(sorted(set(configured))).encode()
    return () if snapshot.fact(PARENT_CONFIG_KEY) == value else (Put(PARENT_CONFIG_KEY, value),)


def is_of_parent_config(snapshot: Snapshot, configured: Iterable[str]) -> bool:
    """True if the parent of the last update was found by this ``parent`` of the config."""
    return not parent_config_writes(snapshot, configured)


def parent_contact(snapshot: Snapshot) -> ParentContact | None:
    """Returns when the parent last confirmed everything; None: no link was ever open."""
    value = snapshot.fact(keys.CONTACT)
    if value is None:
        return None
    at_ms, body = split_record(value)
    return ParentContact(at_ms, body == _LINKED)


def parent_contact_write(at_ms: int, *, linked: bool) -> Write:
    """Returns the write that stores when the parent last confirmed everything, for restarts."""
    return Put(keys.CONTACT, encode_record(at_ms, _LINKED if linked else b""))


def table_rows(snapshot: Snapshot) -> Iterator[TableRow]:
    """Yields the parent's last mount table, as committed."""
    for _, value in snapshot.facts(keys.MOUNT_ROW):
        row = table_row(value)
        if row is not None:
            yield row


def table_row(value: bytes) -> TableRow | None:
    """Returns a stored row of the mount table, with an unknown state of its link; None if it cannot
    be read.
    """
    reported = try_decode_record(federation_pb2.MountRow, value)
    return None if reported is None else TableRow(*reported).unlinked()


def table_writes(snapshot: Snapshot, rows: Iterable[TableRow]) -> tuple[Write, ...]:
    """Returns the writes that store a new mount table: rows that differ in more than age and
    counts, and removals of rows that it lacks.
    """
    known = dict(snapshot.facts(keys.MOUNT_ROW))
    writes: list[Write] = []
    for one in rows:
        key = keys.mount_row_key(one.row.mount)
        before = known.pop(key, None)
        if before is None or split_record(before)[1] != without_volatile_fields(one.row):
            writes.append(
                Put(key, encode_record(one.owner_time_ms, without_volatile_fields(one.row)))
            )
    writes.extend(Delete(key) for key in known)
    return tuple(writes)


def table_steps(writes: Sequence[Write], most_writes: int) -> Iterator[tuple[Write, ...]]:
    """Yields these writes in small transactions, for records that may be partly outdated for a
    moment, such as the mount table, which is a hint.
    """
    step: list[Write] = []
    size = 0
    for write in writes:
        length = len(write.key) + len(write.value if isinstance(write, Put) else b"")
        if step and (len(step) >= most_writes or size + length > _STEP_BYTES):
            yield tuple(step)
            step, size = [], 0
        step.append(write)
        size += length
    if step:
        yield tuple(step)


def without_volatile_fields(row: federation_pb2.MountRow) -> bytes:
    """Returns the bytes of a row without the fields that change all the time; if they differ, the
    row counts as changed.
    """
    copy = federation_pb2.MountRow()
    copy.CopyFrom(row)
    copy.age_seconds = 0
    copy.topic_count = 0
    copy.linked = copy.confirmed = copy.link_unknown = False
    return copy.SerializeToString(deterministic=True)


def detached_of(snapshot: Snapshot) -> str:
    """Returns who detached the cluster from its parent, and when; empty = it is not detached."""
    return (snapshot.fact(DETACHED_KEY) or b"").decode(errors="replace")


def first_receipt_writes(snapshot: Snapshot) -> tuple[Write, ...]:
    """Returns the writes that record the first update of a parent since the last attach and in this
    incarnation of the store, to be committed with that update; empty if it is recorded already.

    Until then the stored update is an older one. The record changes the basis on which Kafka is
    changed (``directory.kafka.arming.releases``).
    """
    attached = snapshot.fact(ATTACHED_KEY) or b""
    now = b":".join((snapshot.incarnation.encode(), attached))
    return () if snapshot.fact(FIRST_RECEIPT_KEY) == now else (Put(FIRST_RECEIPT_KEY, now),)


def attachment_basis(snapshot: Snapshot) -> str:
    """Returns a digest of the detaches, attaches, first receipts and moves, of this cluster and of
    those above it, on which its inherited records are based; "" if there were none. Moves as
    ``welcome_writes`` counts them.
    """
    reported = read_inherited(snapshot)
    above = "" if reported is None else reported.message.basis
    own = [
        (snapshot.fact(key) or b"").decode(errors="replace")
        for key in (DETACHED_KEY, ATTACHED_KEY, FIRST_RECEIPT_KEY)
    ]
    if (moved := snapshot.fact(keys.MOVED)) is not None:
        own.append(moved.decode(errors="replace"))  # so a move back gives another digest
    if not (above or any(own)):
        return ""
    return blake2b(json.dumps([above, *own]).encode(), digest_size=8).hexdigest()


def corrupt_keys(snapshot: Snapshot) -> set[bytes]:
    """Returns the keys of unreadable rows of the parent about this cluster itself."""
    lost = {keys.INHERITED} if is_inherited_corrupt(snapshot) else set()
    if snapshot.fact(keys.PARENT) is not None and parent_of(snapshot) is None:
        lost.add(keys.PARENT)
    return lost


def unreadable_rows(snapshot: Snapshot) -> Iterator[tuple[bytes, str]]:
    """Yields the unreadable rows of parent and children, each with the reason."""
    try:
        whole_inherited(snapshot)
    except ValueError as error:
        yield keys.INHERITED, str(error)
    for prefix, reader in READERS.items():
        for key, value in snapshot.facts(prefix):
            try:
                reader(value)
            except ValueError as error:
                yield key, str(error)


def ancestors(snapshot: Snapshot, now_ms: int) -> list[policies_pb2.AncestorPosition]:
    """Returns the ancestors' positions behind the inherited records, nearest first, with ages."""
    reported = read_inherited(snapshot)
    parent = parent_of(snapshot)
    if reported is None or parent is None:
        return []
    inherited, welcome = reported.message, parent[0]
    received = parent_contact(snapshot)
    confirmed_ms = max(reported.at_ms, received.at_ms) if received is not None else reported.at_ms
    age_seconds = max(0, now_ms - confirmed_ms) / 1000
    nearest = policies_pb2.AncestorPosition(
        cluster_id=welcome.parent_cluster_id,
        incarnation=inherited.incarnation,
        revision=inherited.revision,
        age_seconds=age_seconds,
    )
    further = []
    for one in inherited.ancestors:
        position = policies_pb2.AncestorPosition()
        position.CopyFrom(one)
        position.age_seconds += age_seconds
        further.append(position)
    return [nearest, *further]
