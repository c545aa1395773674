"""Compares store and replica row by row at one revision, and the store's rows with each other.

Both are read side by side in key order, without holding either whole; the memory is eight bytes for
each claim and each topic.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from google.protobuf.message import DecodeError
from kdir.v1 import admin_pb2, federation_pb2

from directory.federation.link_records import READERS, decode_record
from directory.maintenance.backup_stream import Row
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory, Entry, Kind, Mount
from directory.namespace.keys import (
    CLAIM,
    ENTRY,
    EVENT,
    GRANTS,
    INHERITED,
    LARGE_CHANGE,
    LEVEL,
    MEMBER,
    MOUNTED,
    REMOVAL,
    REQUEST,
    RETIRED,
    directory_range,
    entry_key,
    mounted_key,
    parse_entry_key,
    parse_grants_key,
    retired_until_ms,
    unify,
)
from directory.namespace.mounted import claim_start, is_claimed_by
from directory.namespace.removal_progress import Removal
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY, is_fact
from directory.store.event_rows import FLOOR_KEY, floor_in, unpack
from directory.store.idempotency import RequestRecord
from directory.store.large_change_records import LargeAdoption
from resolver.errors import KdirError
from resolver.path import Path
from resolver.printable import printable

__all__ = ["Between", "Difference", "StoreComparison", "field_differences", "shortened"]

_LONGEST: Final = 120


class Between(StrEnum):
    """Pair of sources that differ (``kdir.v1.Difference.compared``)."""

    STORE_REPLICA = "store-replica"
    STORE = "store"
    """Rows of the store with each other."""
    KAFKA = "kafka"
    """The tree and Kafka."""
    LOG = "store-log"
    """The store and its change log."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference (``kdir.v1.Difference``)."""

    compared: Between
    path_or_key: str
    """The path or, if there is none, the key."""
    field: str
    expected: str
    actual: str
    advice: str = ""


def field_differences(wanted: Entry, found: Entry) -> tuple[str, str]:
    """Returns the differing fields of two entries, for people: ``partitions=24`` and
    ``partitions=12``.
    """
    if type(wanted) is not type(found):
        return wanted.kind.name.lower(), found.kind.name.lower()
    pairs = [
        (one.name, getattr(wanted, one.name), getattr(found, one.name))
        for one in fields(wanted)
        if getattr(wanted, one.name) != getattr(found, one.name)
    ]
    return (
        shortened(", ".join(f"{name}={value}" for name, value, _ in pairs)),
        shortened(", ".join(f"{name}={value}" for name, _, value in pairs)),
    )


def shortened(text: str) -> str:
    """Returns a text cut to the length of a line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_RESTART: Final = (
    "restart this server: it loads the store again; if it differs again later, changes get lost on "
    "the way to it"
)
_UNREADABLE: Final = (
    "a newer kdir may have written it: upgrade this server; else restore a backup, or remove the "
    "key from the store"
)
_SHARED: Final = "one of the two entries must go: kdir rm, then kdir adopt"
_STRAY_CLAIM: Final = (
    "while an entry cannot be read, the name can be given to no new topic: restore a backup from "
    "before; else the next topic of that name replaces the claim"
)
_CLAIM: Final = (
    "two topics could get one name in Kafka: restore a backup from before, or write the claim as "
    "the entries say"
)
_ORPHANS: Final = "their directory was lost: restore a backup; nothing resolves below it"
_STRAY_GRANTS: Final = (
    "a new entry of this name would not get them, and nobody sees them: restore a backup from "
    "before, or remove the key from the store"
)
_STRAY_MOUNTED: Final = (
    "the child can be mounted once all entries can be read, which replaces the claim: kdir mount"
)
_MOUNT: Final = "unmount the child and mount it again: kdir umount, kdir mount"


class StoreComparison:
    """Comparison of a store's rows with a snapshot of the same revision. Used once, in one thread.

    Args:
        snapshot: snapshot of the replica.
        rows: all rows of the store at that revision, in key order.
        mount: the cluster's mount point, for paths.
        check: called periodically; raises to end the comparison.
    """

    def __init__(
        self, snapshot: Snapshot, rows: Iterator[Row], mount: Path, check: Callable[[], None]
    ) -> None:
        self._snapshot: Final = snapshot
        self._rows: Final = rows
        self._mount: Final = mount
        self._check: Final = check
        self._claims: Final = array("q")
        self._names = _Hashes(())
        self.row_count = 0

    def differences(self) -> Iterator[Difference]:
        """Yields all differences. A difference within one row is yielded when the row is read.

        Raises:
            StoreUnreachable: possibly after some differences; compare again.
        """
        self._snapshot.index_physical_names()  # which also reads every record
        unreadable_values = self._snapshot.unreadable_values
        yield from self._unreadable(unreadable_values)
        self._names = _Hashes(hash(name) for _, _, name in self._physical_names())
        yield from self._side_by_side(unreadable_values)
        yield from self._claimless()
        yield from self._mounts()
        yield from self._stray_grants()

    def _side_by_side(self, unreadable_values: Mapping[bytes, str]) -> Iterator[Difference]:
        held = _held(self._snapshot)
        next_held = next(held, None)
        for key, value in self._counted():
            if not (key.startswith(ENTRY) or is_fact(key)):
                yield from self._wrong(key, value)
                continue
            while next_held is not None and next_held[0] < key:
                yield from self._unequal(next_held[0], None, next_held[1])
                next_held = next(held, None)
            if next_held is not None and next_held[0] == key:
                yield from self._unequal(key, value, next_held[1])
                next_held = next(held, None)
            elif key not in unreadable_values and not self._is_plain_root(key, value):
                yield from self._unequal(key, value, None)
            if not key.startswith(ENTRY):
                yield from self._wrong(key, value)
        while next_held is not None:
            yield from self._unequal(next_held[0], None, next_held[1])
            next_held = next(held, None)

    def _counted(self) -> Iterator[Row]:
        for row in self._rows:
            self.row_count += 1
            if self.row_count % 2_000 == 0:
                self._check()
            yield row

    # -- one row -------------------------------------------------------------------------------

    def _wrong(self, key: bytes, value: bytes) -> Iterator[Difference]:
        """Yields the errors of a row that is no entry's; errors of entries are found when a
        snapshot is made.
        """
        if key.startswith(CLAIM):
            yield from self._claim(key, value)
            return
        read = next((read for prefix, read in _READERS.items() if key.startswith(prefix)), None)
        if read is None:
            return
        try:
            read(value)
        except (ValueError, DecodeError, KdirError) as error:
            yield _unread(_format_value(key), str(error))
            return
        if key == FLOOR_KEY and (floor_in(value) or 0) > self._snapshot.revision:
            yield Difference(
                Between.STORE,
                _format_value(key),
                "floor",
                f"at most {self._snapshot.revision}",
                value.decode(),
                "watchers must list again until that revision comes: restore a backup",
            )

    def _claim(self, key: bytes, value: bytes) -> Iterator[Difference]:
        unified = key.removeprefix(CLAIM).decode("utf-8", "replace")
        claimed = value.decode("utf-8", "replace").split("\n")
        if all(unify(one) == unified and self._names.holds(one) for one in claimed):
            self._claims.extend(map(hash, claimed))
            return
        standing = list(self._snapshot.same_unified(unified))
        self._claims.extend(map(hash, (one for one in claimed if one in standing)))
        if claimed == standing:
            return  # two names have the same hash
        yield Difference(
            Between.STORE,
            _format_value(key),
            "claim",
            shortened(", ".join(standing)) or "no claim: no entry has the name",
            shortened(", ".join(claimed)),
            _CLAIM if standing else _STRAY_CLAIM,
        )

    def _unequal(
        self, key: bytes, stored: bytes | None, held: bytes | None
    ) -> Iterator[Difference]:
        if stored == held:
            return
        where = self._path(key)
        if stored is None or held is None:
            message = ("missing", "there") if stored is None else ("there", "missing")
            yield Difference(Between.STORE_REPLICA, where, "row", *message, _RESTART)
            return
        wanted, found = f"{len(stored)} bytes", f"{len(held)} other bytes"
        if key.startswith(ENTRY):
            try:
                decode = self._snapshot.codec.decode
                wanted, found = field_differences(decode(stored), decode(held))
            except ValueError:
                pass
        elif is_fact(key):
            wanted, found = shortened(repr(stored)), shortened(repr(held))
        yield Difference(Between.STORE_REPLICA, where, "value", wanted, found, _RESTART)

    def _is_plain_root(self, key: bytes, stored: bytes) -> bool:
        # A root directory without settings may or may not have a record.
        plain = Directory(entry_id=ROOT_ID)
        return key == ROOT_KEY and stored == self._snapshot.codec.encode(plain)

    # -- the whole tree ------------------------------------------------------------------------

    def _unreadable(self, unreadable_values: Mapping[bytes, str]) -> Iterator[Difference]:
        for key, why in sorted(unreadable_values.items()):
            if len(key) == len(directory_range(0)) and key.startswith(ENTRY):
                where = f"directory {int.from_bytes(key[len(ENTRY) :], 'big'):x}"
                yield Difference(
                    Between.STORE, where, "parent", "a record of it", "none", f"{why}: {_ORPHANS}"
                )
            else:
                yield _unread(self._path(key), why)

    def _claimless(self) -> Iterator[Difference]:
        """Yields topics whose physical names have no claim, and topics that share one."""
        claims = _Hashes(self._claims)
        if claims == self._names and not self._names.repeated:
            return
        seen: dict[str, str] = {}
        for directory_id, name, physical_name in self._physical_names():
            where = self._path(entry_key(directory_id, Kind.TOPIC, name))
            if not claims.holds(physical_name):
                yield Difference(Between.STORE, where, "claim", physical_name, "none", _CLAIM)
            if hash(physical_name) in self._names.repeated:
                other = seen.setdefault(physical_name, where)
                if other != where:
                    yield Difference(
                        Between.STORE, where, "physical_name", physical_name, other, _SHARED
                    )

    def _physical_names(self) -> Iterator[tuple[int, str, str]]:
        """Yields directory, name and physical name of each readable topic."""
        codec = self._snapshot.codec
        for number, (directory_id, contents) in enumerate(self._snapshot.contents()):
            if number % 100 == 0:
                self._check()
            found = codec.physical_names(list(contents.topics.values()))
            for name, physical_name in zip(contents.topics, found, strict=True):
                if physical_name is not None:
                    yield directory_id, name, physical_name

    def _mounts(self) -> Iterator[Difference]:
        """Yields mounts without a matching claim, and claims without a mount."""
        claimed = dict(self._snapshot.facts(MOUNTED))
        for directory_id, contents in self._snapshot.contents():
            for name, mount in contents.containers.items():
                if not isinstance(mount, Mount):
                    continue
                found = claimed.pop(mounted_key(mount.cluster_id), None)
                if found is None or not is_claimed_by(found, mount):
                    where = self._path(entry_key(directory_id, Kind.MOUNT, name))
                    shown = "none" if found is None else found.decode("utf-8", "replace")
                    yield Difference(
                        Between.STORE, where, "mounted", claim_start(mount).decode(), shown, _MOUNT
                    )
        for key, value in claimed.items():
            yield Difference(
                Between.STORE,
                _format_value(key),
                "mounted",
                "no claim: nothing is mounted so",
                value.decode("utf-8", "replace"),
                _STRAY_MOUNTED,
            )

    def _stray_grants(self) -> Iterator[Difference]:
        """Yields grants without an entry."""
        for key, _ in self._snapshot.facts(GRANTS):
            try:
                parent_id, is_topic, name = parse_grants_key(key)
            except ValueError:
                continue  # reported as unreadable already
            if parent_id == 0 and not name:
                continue  # the root directory is always there
            node = self._snapshot.nodes.get(parent_id)
            there = node is not None and name in (node.topics if is_topic else node.containers)
            if not there and ENTRY + key[len(GRANTS) :] not in self._snapshot.unreadable_values:
                where = self._path(key)
                yield Difference(Between.STORE, where, "grants", "an entry", "none", _STRAY_GRANTS)

    def _path(self, key: bytes) -> str:
        """Returns the path for the key of an entry or its grants, for people; for another key, the
        key.
        """
        if not key.startswith((ENTRY, GRANTS)):
            return _format_value(key)
        try:
            place = (parse_entry_key if key.startswith(ENTRY) else parse_grants_key)(key)
        except ValueError:
            return _format_value(key)
        above = self._snapshot.path_of(place.parent_id)
        if above is not None:
            return str(Path((*self._mount.segments, *above, *filter(None, [place.name]))))
        if place.parent_id == 0:
            return str(self._mount)
        if place.parent_id == DELETED_ID:
            return f"__deleted/{place.name}"
        return f"(lost directory {place.parent_id:x})/{place.name}"


class _Hashes:
    """Set of texts by their hashes, eight bytes each; texts with equal hashes count as equal."""

    def __init__(self, hashes: Iterable[int]) -> None:
        self._sorted: Final = array("q", sorted(hashes))
        pairs = zip(self._sorted, self._sorted[1:], strict=False)
        self.repeated: Final = frozenset(one for one, other in pairs if one == other)
        """Hashes of more than one text."""

    def holds(self, text: str) -> bool:
        """True if the text is in the set."""
        wanted = hash(text)
        at = bisect_left(self._sorted, wanted)
        return at < len(self._sorted) and self._sorted[at] == wanted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashes) and self._sorted == other._sorted

    __hash__ = None  # type: ignore[assignment]


def _held(snapshot: Snapshot) -> Iterator[Row]:
    """Yields the rows that a snapshot was made from, in key order."""
    root = snapshot.root.directory
    if root != Directory(entry_id=ROOT_ID):
        yield ROOT_KEY, snapshot.codec.encode(root)
    for directory_id, contents in snapshot.contents():
        for name, container in contents.containers.items():
            key = entry_key(directory_id, container.kind, name)
            yield key, snapshot.codec.encode(container)
        for name, record in contents.topics.items():
            yield entry_key(directory_id, Kind.TOPIC, name), record
    yield from snapshot.facts(b"")


def _unread(where: str, why: str) -> Difference:
    return Difference(Between.STORE, where, "value", "readable", shortened(why), _UNREADABLE)


def _format_value(key: bytes) -> str:
    """Returns a key as printable text."""
    text = key.decode("utf-8", "backslashreplace")
    return printable(text)


def _floor(value: bytes) -> None:
    if floor_in(value) is None:
        raise ValueError("not a revision")


def _decimal(value: bytes) -> None:
    if not value.isdigit():
        raise ValueError("not a decimal number")


def _retired(value: bytes) -> None:
    if retired_until_ms(value) is None:
        raise ValueError("not a decimal number, or one and 'awaited'")


# The first match counts: a prefix comes before shorter prefixes that it begins with.
_READERS: Final[Mapping[bytes, Callable[[bytes], object]]] = {
    FLOOR_KEY: _floor,
    EVENT: lambda value: unpack(value, 0, ""),
    REQUEST: RequestRecord.from_bytes,
    RETIRED: _retired,
    LEVEL: _decimal,
    MEMBER: admin_pb2.Member.FromString,
    **READERS,
    INHERITED: lambda value: decode_record(federation_pb2.Inherited, value),
    LARGE_CHANGE: LargeAdoption.from_bytes,
    REMOVAL: Removal.from_bytes,
}
