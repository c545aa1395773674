"""What a cluster inherits: its row in the store, how large it may be, and the event of a new one.

    f/inherited        time (8 bytes), then kdir.v1.Inherited

The row is written in one transaction with the mount that it belongs to, and etcd takes 1.5 MiB in
one. So a cluster inherits at most 1 MiB: a change that would make it more is refused where it is
written (``inherited_levels.py``), and what is larger for another reason is neither sent nor kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kdir.v1 import federation_pb2

from directory.access.grants import Grant
from directory.federation.link_records import decode_record, encode_record, try_decode_record
from directory.namespace.command import EntryChange
from directory.namespace.effective_policies import PolicyLevel, attach_effective_policies
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import INHERITED, PARENT, event_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from directory.store.event_rows import new_change_id, pack
from directory.wire.entry_messages import policies_of
from directory.wire.grant_messages import stored_grant
from resolver.errors import LimitExceeded
from resolver.path import Path

__all__ = [
    "MOST_BYTES",
    "InheritedRecord",
    "inherited_change_event",
    "inherited_record_write",
    "inherited_size",
    "oversized_error",
    "parent_of",
    "read_inherited",
    "refuse_oversized",
    "removed_grants_write",
    "whole_inherited",
]

MOST_BYTES: Final = 1024 * 1024
"""Most bytes of the levels that a cluster may inherit: some 10,000 grants."""
_LEVEL_BYTES: Final = 5
"""Bytes of a level in its message beside its contents: a tag and a length."""
_KEPT: Final = 8
"""Rows whose parsed message is cached: each request of a child reads its own."""


@dataclass(frozen=True, slots=True, eq=False)
class InheritedRecord:
    """Inherited record of a parent, with its time (unix ms). The message is shared: it must not be
    changed.
    """

    message: federation_pb2.Inherited
    at_ms: int


def inherited_record_write(inherited: federation_pb2.Inherited, now_ms: int) -> Put:
    """Returns the write that stores a record.

    Raises:
        LimitExceeded: it is too large.
    """
    refuse_oversized(inherited)
    return Put(INHERITED, encode_record(now_ms, inherited.SerializeToString(deterministic=True)))


def removed_grants_write(snapshot: Snapshot, source: Path, grants: Collection[Grant]) -> Put | None:
    """Returns the write that would store the inherited levels without these grants of the directory
    at ``source``; None: it has none of them.
    """
    known = read_inherited(snapshot)
    if known is None:
        return None
    inherited = federation_pb2.Inherited()
    inherited.CopyFrom(known.message)
    for level in inherited.levels:
        if level.path == str(source):
            kept = [one for one in level.grants if stored_grant(one) not in grants]
            if len(kept) < len(level.grants):
                del level.grants[:]
                level.grants.extend(kept)
                return inherited_record_write(inherited, known.at_ms)
    return None


def inherited_size(levels: Iterable[federation_pb2.InheritedLevel]) -> int:
    """Returns the bytes of levels that count for ``MOST_BYTES``."""
    return sum(level.ByteSize() + _LEVEL_BYTES for level in levels)


def refuse_oversized(inherited: federation_pb2.Inherited) -> None:
    """Checks the size before a record is sent and before it is stored.

    Raises:
        LimitExceeded: it is too large.
    """
    size = inherited_size(inherited.levels)
    if size > MOST_BYTES:
        raise oversized_error(f"at {inherited.mount}", size)


def oversized_error(where: str, size: int) -> LimitExceeded:
    """Returns the error for a cluster at a mount that would inherit too much."""
    return LimitExceeded(
        f"a cluster mounted {where} would inherit {size:,} bytes of policies and grants; at "
        f"most {MOST_BYTES:,}: grant to fewer principals or to prefixes of names (kdir grants "
        f"shows them), or further down, in that cluster",
        limit=MOST_BYTES,
        found=size,
    )


def read_inherited(snapshot: Snapshot) -> InheritedRecord | None:
    """Returns the last record of a parent; None: there is none, or it cannot be read. Always the
    same object for one row.
    """
    try:
        return whole_inherited(snapshot)
    except ValueError:
        return None


def whole_inherited(snapshot: Snapshot) -> InheritedRecord | None:
    """Returns the last record of a parent.

    Raises:
        ValueError: it cannot be read; in one sentence.
    """
    value = snapshot.fact(INHERITED)
    if value is None:
        return None
    record = _record(value)
    _refuse_other_mount(record.message, parent_of(snapshot))
    return record


@lru_cache(_KEPT)
def _record(value: bytes) -> InheritedRecord:
    return InheritedRecord(*decode_record(federation_pb2.Inherited, value))


def parent_of(snapshot: Snapshot) -> tuple[federation_pb2.Welcome, int] | None:
    """Returns the parent's record of this cluster's mount, with its time (unix ms); None: there is
    none, or it cannot be read. The message is shared: it must not be changed.
    """
    value = snapshot.fact(PARENT)
    return None if value is None else _welcome(value)


@lru_cache(_KEPT)
def _welcome(value: bytes) -> tuple[federation_pb2.Welcome, int] | None:
    return try_decode_record(federation_pb2.Welcome, value)


def _refuse_other_mount(
    inherited: federation_pb2.Inherited, parent: tuple[federation_pb2.Welcome, int] | None
) -> None:
    """Checks that mount and inherited record belong together: they are stored in one commit, so if
    they differ, one of the rows is damaged.
    """
    if parent is None or not inherited.mount:
        return
    at, epoch = parent[0].mount, parent[0].epoch
    if (inherited.mount, inherited.epoch) != (at, epoch):
        raise ValueError(
            f"it is of the mount at {inherited.mount}, epoch {inherited.epoch}, and the cluster "
            f"hangs at {at}, epoch {epoch}"
        )


def inherited_change_event(
    snapshot: Snapshot, mount: Path, inherited: federation_pb2.Inherited, now_ms: int
) -> Put:
    """Returns the event row for the last of the transactions that store what is inherited."""
    root = snapshot.root.directory
    change = EntryChange(
        kind=Kind.DIRECTORY,
        entry_id=ROOT_ID,
        parent_id=0,
        path=mount,
        before=root,
        after=root,
        of_inherited=True,
    )
    above = [
        PolicyLevel(one.path, policies_of(one.policies, stored=True)) for one in inherited.levels
    ]
    value = pack(
        attach_effective_policies([change], snapshot, above),
        time_ms=now_ms,
        principal="",
        request_id="",
    )
    return Put(event_key(new_change_id(now_ms, 1)), value)
