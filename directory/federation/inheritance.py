"""Inherited policies and grants: the row that stores this cluster's, the row's readers, the levels
that clusters mounted in its tree inherit, and the limit of their size.

    f/inherited        time (8 bytes), then kdir.v1.Inherited

The row is written in one transaction with the mount that it belongs to, and etcd takes 1.5 MiB in
one. So a cluster inherits at most 1 MiB: a change that would exceed it is refused where it is
written, and a record that is larger for another reason is neither sent nor stored. An unreadable
row counts as not received (S21), not as nothing inherited.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from kdir.v1 import federation_pb2

from directory.access.authorizer import InheritedGrantLevel as EvaluatedLevel
from directory.access.compiled_grants import NO_RULES, CompiledGrants
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant
from directory.federation.link_records import (
    check_plausible,
    decode_record,
    encode_record,
    try_decode_record,
)
from directory.namespace.command import EntryChange, Plan
from directory.namespace.effective_policies import PolicyLevel, attach_effective_policies
from directory.namespace.entry import NO_POLICIES, ROOT_ID, Directory, Kind, Policies
from directory.namespace.grant_rows import SHUT
from directory.namespace.keys import GRANTS_MARK, INHERITED, PARENT
from directory.namespace.mounted import mounts_with_paths
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Write
from directory.store.event_rows import EventKeys, pack
from directory.wire.entry_codec import policies_of, policies_to_proto
from directory.wire.grant_messages import grant_to_proto, stored_grant
from resolver.errors import InvalidArgument, LimitExceeded, NotReady
from resolver.path import Path

__all__ = [
    "MOST_BYTES",
    "InheritedRecord",
    "grants_level",
    "inherited_access",
    "inherited_change_event",
    "inherited_levels",
    "inherited_origins",
    "inherited_policies",
    "inherited_record_write",
    "inherited_size",
    "inherited_writes",
    "is_inherited_corrupt",
    "is_inherited_readable",
    "is_inherited_received",
    "is_other",
    "level_of",
    "levels_at_mount",
    "nothing_inherited",
    "oversized_error",
    "parent_of",
    "read_inherited",
    "refuse_oversized",
    "refuse_oversized_inheritance",
    "removed_grants_write",
    "rights_mark",
    "whole_inherited",
    "why_inherited_unknown",
]

MOST_BYTES: Final = 1024 * 1024
"""Most bytes of the levels that a cluster may inherit: some 10,000 grants."""
_LEVEL_BYTES: Final = 5
"""Bytes of a level in its message beside its contents: a tag and a length."""
_KEPT: Final = 8
"""Number of rows whose parsed message is cached: each request reads its cluster's row."""


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
    at ``source``; None: the levels have none of them.
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
    """Returns the last record of a parent; None: there is none, or it cannot be read. For the same
    row, returns the same object.
    """
    try:
        return whole_inherited(snapshot)
    except ValueError:
        return None


def whole_inherited(snapshot: Snapshot) -> InheritedRecord | None:
    """Returns the last record of a parent; None: there is none.

    Raises:
        ValueError: it cannot be read; the message is one sentence.
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
            f"is mounted at {at}, epoch {epoch}"
        )


def inherited_change_event(
    snapshot: Snapshot,
    mount: Path,
    inherited: federation_pb2.Inherited,
    keys: EventKeys,
    now_ms: int,
) -> Put:
    """Returns the event row of the transaction that stores changed inherited records."""
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
    return Put(keys.new_key(now_ms, 1), value)


def is_inherited_received(snapshot: Snapshot) -> bool:
    """True if inherited records were ever received; until then a cluster with a parent has unknown
    ones, not empty ones.
    """
    return snapshot.fact(INHERITED) is not None


def is_inherited_readable(snapshot: Snapshot) -> bool:
    """True if inherited records were received and can be read."""
    return read_inherited(snapshot) is not None


def is_inherited_corrupt(snapshot: Snapshot) -> bool:
    """True if inherited records were received and cannot be read."""
    return is_inherited_received(snapshot) and not is_inherited_readable(snapshot)


def why_inherited_unknown(snapshot: Snapshot) -> str:
    """Returns why the inherited records are unknown, as a sentence."""
    if not is_inherited_received(snapshot):
        return "inherited policies have not been received from the parent yet"
    return (
        f"inherited policies are unreadable ({INHERITED.decode()} in the store); the parent "
        f"sends them again on the next link; without a parent: kdir parent detach"
    )


def inherited_levels(snapshot: Snapshot) -> list[federation_pb2.InheritedLevel]:
    """Returns the levels above the mount, from the root down, as last received.

    Raises:
        NotReady: they cannot be read.
    """
    record = _known_record(snapshot)
    return [] if record is None else list(record.message.levels)


def _known_record(snapshot: Snapshot) -> InheritedRecord | None:
    try:
        return whole_inherited(snapshot)
    except ValueError:
        raise NotReady(why_inherited_unknown(snapshot)) from None


def inherited_policies(snapshot: Snapshot) -> list[Policies]:
    """Returns the policies of the inherited levels, outermost first.

    Raises:
        NotReady: they cannot be read.
    """
    record = _known_record(snapshot)
    return [] if record is None else list(_policies_of(record))


@lru_cache(_KEPT)
def _policies_of(record: InheritedRecord) -> tuple[Policies, ...]:
    # As a stored record: fields that only a newer parent knows have no effect here, and are kept.
    return tuple(
        replace(level.policies, stamps=MappingProxyType({})) for level in _origins_of(record)
    )


def inherited_origins(snapshot: Snapshot) -> list[PolicyLevel]:
    """Returns the policies of the inherited levels, with their paths and the stamps of the values.

    Raises:
        NotReady: they cannot be read.
    """
    record = _known_record(snapshot)
    return [] if record is None else list(_origins_of(record))


@lru_cache(_KEPT)
def _origins_of(record: InheritedRecord) -> tuple[PolicyLevel, ...]:
    return tuple(
        PolicyLevel(level.path, policies_of(level.policies, stored=True))
        for level in record.message.levels
    )


def inherited_writes(
    snapshot: Snapshot, inherited: federation_pb2.Inherited, now_ms: int
) -> tuple[Write, ...]:
    """Returns the writes that store the inherited records, with the parent's incarnation and
    revision, if they changed. A change of rights is marked, too.

    Raises:
        InvalidArgument: no parent could send such a record; it could not be read afterwards.
        LimitExceeded: it is too large to store.
    """
    try:
        check_plausible(inherited)
    except ValueError as error:
        raise InvalidArgument(
            f"inherited: the parent sent a record that cannot be stored: {error}"
        ) from None
    known = read_inherited(snapshot)
    same_mount = known is not None and (known.message.mount, known.message.epoch) == (
        inherited.mount,
        inherited.epoch,
    )
    if same_mount and not is_other(snapshot, inherited):
        return ()
    writes: tuple[Write, ...] = (inherited_record_write(inherited, now_ms),)
    if known is None or (known.message.mount, _granted(known.message)) != (
        inherited.mount,
        _granted(inherited),
    ):
        writes += (rights_mark(),)
    return writes


def rights_mark() -> Write:
    """Returns the write that marks a change of rights by inherited records, as a change of grants
    does.
    """
    return Put(GRANTS_MARK, b"%016x" % secrets.randbits(64))


def _granted(inherited: federation_pb2.Inherited) -> list[federation_pb2.InheritedLevel]:
    """Returns the levels with only what decides access: grants and closed directories."""
    return [
        federation_pb2.InheritedLevel(path=one.path, grants=one.grants, closed=one.closed)
        for one in inherited.levels
        if one.grants or one.closed
    ]


def is_other(snapshot: Snapshot, inherited: federation_pb2.Inherited) -> bool:
    """True if levels, incarnation or basis differ from the stored record; the mount may differ."""
    known = read_inherited(snapshot)
    if known is None:
        return True
    before = known.message
    return before.levels != inherited.levels or (before.incarnation, before.basis) != (
        inherited.incarnation,
        inherited.basis,
    )


def nothing_inherited(snapshot: Snapshot, now_ms: int) -> Write:
    """Returns the write that replaces unreadable inherited records by an empty record."""
    known = parent_of(snapshot)
    incarnation = (known[0].incarnation if known is not None else "") or "lost"
    body = federation_pb2.Inherited(incarnation=incarnation).SerializeToString()
    return Put(INHERITED, encode_record(now_ms, body))


def inherited_access(snapshot: Snapshot) -> tuple[EvaluatedLevel, ...] | None:
    """Returns the inherited levels with grants or closed directories; None if a parent never sent
    any. A grant that this version does not understand denies everything there.

    Raises:
        NotReady: they cannot be read.
    """
    record = _known_record(snapshot)
    return None if record is None else _access_of(record)


@lru_cache(_KEPT)
def _access_of(record: InheritedRecord) -> tuple[EvaluatedLevel, ...]:
    # Called again for each change of the tree, mostly with the same record.
    return tuple(
        EvaluatedLevel(Path.parse(level.path), _rules(level), level.closed)
        for level in record.message.levels
        if level.grants or level.closed
    )


def _rules(level: federation_pb2.InheritedLevel) -> CompiledGrants:
    try:
        return CompiledGrants.compile(map(stored_grant, level.grants))
    except ValueError:
        return SHUT


def grants_level(path: Path, rules: CompiledGrants) -> federation_pb2.InheritedLevel:
    """Returns the level of a mount with its grants, as it is sent; it has no policies."""
    return federation_pb2.InheritedLevel(path=str(path), grants=map(grant_to_proto, rules.grants))


def level_of(
    path: Path, directory: Directory, rules: CompiledGrants = NO_RULES
) -> federation_pb2.InheritedLevel:
    """Returns the level of one directory, as it is sent."""
    return federation_pb2.InheritedLevel(
        path=str(path),
        policies=policies_to_proto(directory.policies),
        changed_by=directory.changed_by,
        grants=map(grant_to_proto, rules.grants),
        closed=directory.closed,
    )


# Inheritance of the clusters that are mounted in this cluster's tree.


def levels_at_mount(
    snapshot: Snapshot, cluster_mount: Path, relative: tuple[str, ...]
) -> list[federation_pb2.InheritedLevel]:
    """Returns the levels that a cluster mounted at a place inherits, from the root down.

    Raises:
        NotReady: this cluster's own inherited records cannot be read.
    """
    levels = list(inherited_levels(snapshot))
    for length in range(len(relative)):
        directory_id = snapshot.find_directory(relative[:length])
        node = snapshot.nodes.get(directory_id) if directory_id is not None else None
        if node is None:
            continue
        grant_node = snapshot.grants.node_at(EntryPlace(relative[:length]))
        rules = NO_RULES if grant_node is None else grant_node.rules
        if node.directory.policies == NO_POLICIES and not (rules or node.directory.closed):
            continue
        path = cluster_mount.join(relative[:length])
        levels.append(level_of(path, node.directory, rules))
    grant_node = snapshot.grants.node_at(EntryPlace(relative))
    if grant_node is not None and grant_node.rules:
        levels.append(grants_level(cluster_mount.join(relative), grant_node.rules))
    return levels


def refuse_oversized_inheritance(snapshot: Snapshot, mount: Path, planned: Plan) -> None:
    """Checks that a plan lets no cluster mounted in this tree inherit more than the limit, or, if
    the cluster is over the limit already, more than now.

    Raises:
        LimitExceeded: names the place, the size and the limit.
    """
    places = [change.path for change in planned.changes if _is_handed_down(change)]
    if not places:
        return
    after = snapshot.apply(snapshot.revision, planned.writes)
    for relative, path, entry in mounts_with_paths(after, mount):
        if path is None or not any(place.is_prefix_of(path) for place in places):
            continue
        size = inherited_size(levels_at_mount(after, mount, relative))
        if size > MOST_BYTES and size > _size_before(snapshot, mount, entry.entry_id):
            # The mount may be hidden from the caller; the place of the change is not.
            place = next(place for place in places if place.is_prefix_of(path))
            raise oversized_error(f"at or below {place}", size)


def _is_handed_down(change: EntryChange) -> bool:
    """True if a change may affect the inheritance of clusters mounted at or below it."""
    before, after = change.before, change.after
    if change.kind not in {Kind.DIRECTORY, Kind.MOUNT} or after is None:
        return False
    if before is None:
        return change.kind is Kind.MOUNT  # nothing is mounted yet below a new directory
    if change.of_grants or change.path_before is not None:
        return True
    return (
        isinstance(before, Directory)
        and isinstance(after, Directory)
        and (before.policies, before.closed) != (after.policies, after.closed)
    )


def _size_before(snapshot: Snapshot, mount: Path, entry_id: int) -> int:
    for relative, entry in snapshot.mounts():
        if entry.entry_id == entry_id:
            return inherited_size(levels_at_mount(snapshot, mount, relative))
    return 0
