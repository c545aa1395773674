"""Makes a backup of a store at one revision, as a stream of messages; fills a store with its
rows.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError
from kdir.v1 import admin_pb2, watch_pb2

from directory.maintenance.registered_servers import stored_level
from directory.namespace.keys import EVENT, MEMBER, ROLE
from directory.server.feature_levels import LEVELS
from directory.store.base import Identity, Loading, Store
from directory.store.event_rows import FLOOR_KEY, part_key
from directory.store.transaction_limits import Limits, batches_to_fill
from resolver.backup_file import FORMAT, Checksum
from resolver.errors import StoreSealed, StoreUnavailable

__all__ = [
    "NotAsFilled",
    "Row",
    "backup_messages",
    "backup_of",
    "digest_of",
    "excess_of_rows",
    "fill_store",
    "has_cluster_rows",
    "header_of",
    "merge_by_key",
    "rows_of",
]


_OF_PROCESSES: Final = (MEMBER, ROLE)

Row = tuple[bytes, bytes]


def rows_of(loading: Loading) -> Iterator[Sequence[Row]]:
    """Yields the rows of a backup, in key order, in pages.

    Raises:
        StoreUnreachable: the store cannot be reached.
    """
    for page in loading.pages():
        kept = [row for row in page if not row[0].startswith(_OF_PROCESSES)]
        if kept:
            yield kept


class _Digest:
    """Digest of rows in a stream."""

    def __init__(self) -> None:
        self._sha256: Final = hashlib.sha256()

    def wrap(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows unchanged and adds them to the digest."""
        for key, value in rows:
            if key != FLOOR_KEY:
                self._sha256.update(b"%d %d " % (len(key), len(value)))
                self._sha256.update(key)
                self._sha256.update(value)
            yield key, value

    def digest(self) -> bytes:
        """Digest of all rows so far."""
        return self._sha256.digest()


def digest_of(rows: Iterable[Row]) -> bytes:
    """Returns a digest that is equal for equal rows in the same order. The row ``FLOOR_KEY``
    does not count: each store has its own.
    """
    digest = _Digest()
    for _ in digest.wrap(rows):
        pass
    return digest.digest()


def has_cluster_rows(store: Store) -> bool:
    """True if the store has rows of a cluster, which a restore would lose.

    Raises:
        StoreUnreachable: the store cannot be reached.
    """
    pages = rows_of(store.load())
    found = next(pages, None) is not None
    if found:
        pages.close()  # type: ignore[attr-defined]
    return found


def excess_of_rows(rows: Iterable[Row], limits: Limits) -> str:
    """Returns why a store with these limits cannot hold these rows, for people; empty = it can hold
    all of them.
    """
    try:
        for _ in batches_to_fill(_fitting(rows, limits.max_bytes), limits, 1, limits.max_bytes):
            pass
    except ValueError as error:
        return str(error)
    return ""


def fill_store(
    store: Store, rows: Iterable[Row], report: Callable[[str], None] = lambda _: None
) -> int:
    """Replaces all rows of a store that is sealed for filling by these, which are in key order, and
    reads them back. Returns the revision at which the store has them; reports each row that is left
    out.

    Raises:
        NotAsFilled: the store has other rows, cannot hold these, or was opened meanwhile.
        StoreUnreachable: the store cannot be reached.
    """
    put = _Digest()
    try:
        store.clear()
    except ValueError as error:
        raise NotAsFilled(f"another process opened the store: {error}") from error
    try:
        store.fill(put.wrap(_fitting(rows, store.limits.max_bytes, report)))
        # History can read the copied events, but no watch can resume before this revision.
        floor = store.load((FLOOR_KEY,)).revision
        store.fill([(FLOOR_KEY, b"%d" % floor)])
    except ValueError as error:
        raise NotAsFilled(f"{store.describe()} cannot hold it: {error}") from error
    loading = store.load()
    if digest_of(row for page in rows_of(loading) for row in page) != put.digest():
        raise NotAsFilled(f"{store.describe()} does not hold what was put in")
    return loading.revision


class NotAsFilled(Exception):
    """Error: a store that was filled has other rows; with the reason for people."""


def _fitting(
    rows: Iterable[Row], max_bytes: int, report: Callable[[str], None] = lambda _: None
) -> Iterator[Row]:
    """Yields the rows for a store with other limits: the events of one large commit may need more
    than one row there. Reports each such row that cannot be read, and leaves it out.
    """
    for key, value in rows:
        if key == FLOOR_KEY:
            continue
        if not key.startswith(EVENT) or len(key) + len(value) <= max_bytes:
            yield key, value
            continue
        try:
            row = watch_pb2.OutboxRow.FromString(value)
        except DecodeError:
            report(
                f"left out of the history: {key.decode(errors='backslashreplace')}, whose "
                f"{len(value)} bytes cannot be read, and which is too large for one row there"
            )
            continue
        for number, part in enumerate(_parted(row, max_bytes // 2)):
            yield part_key(key, number, len(part.events)), part.SerializeToString()


def _parted(row: watch_pb2.OutboxRow, most: int) -> Iterator[watch_pb2.OutboxRow]:
    """Yields the contents of an ``o/`` row in parts of about ``most`` bytes, the facts in the first
    one.
    """
    part = watch_pb2.OutboxRow(logged_facts=row.logged_facts)
    size = part.ByteSize()
    for event in row.events:
        length = event.ByteSize()
        if part.events and size + length > most:
            yield part
            part, size = watch_pb2.OutboxRow(), 0
        part.events.append(event)
        size += length + 8
    yield part


def merge_by_key(
    left: Iterator[Row], right: Iterator[Row]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Yields each key of two sets of rows, in key order, with both values; None = not there."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None  # noqa: S101 - for the type checker
            yield one[0], one[1], None
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(right, None)
        else:
            yield one[0], one[1], other[1]
            one, other = next(left, None), next(right, None)


_ROWS: Final = 500
_BYTES: Final = 512 * 1024


def backup_of(
    store: Store, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
) -> Iterator[admin_pb2.BackupResponse]:
    """Yields header, rows and trailer of a backup.

    Raises:
        StoreUnreachable: possibly after some rows; start the backup again.
        StoreSealed: the contents of the store are incomplete, or not the newest.
        StoreUnavailable: the store was restored meanwhile; start the backup again.
    """
    identity = store.refresh_identity()
    _refuse_unsound(identity)
    loading = store.load()
    # Read last: a level only rises, so the rows need none above this one. An unreadable level may
    # be any that this version knows.
    header = header_of(identity, loading.revision, stored_level(store) or max(LEVELS), now_ms())

    def pages() -> Iterator[Sequence[Row]]:
        yield from rows_of(loading)
        if store.refresh_identity().incarnation != identity.incarnation:
            raise StoreUnavailable("the store got a new incarnation during the backup: start again")

    yield from backup_messages(header, pages())


def backup_messages(
    header: admin_pb2.BackupHeader, pages: Iterable[Sequence[Row]]
) -> Iterator[admin_pb2.BackupResponse]:
    """Yields header, rows and trailer. The pages are in key order."""
    checksum = Checksum(header)
    yield admin_pb2.BackupResponse(header=header)
    for page in pages:
        for part in _parts(page):
            checksum.add(part)
            rows = [admin_pb2.BackupRow(key=key, value=value) for key, value in part]
            yield admin_pb2.BackupResponse(rows=admin_pb2.BackupRows(rows=rows))
    yield admin_pb2.BackupResponse(trailer=checksum.trailer())


def header_of(identity: Identity, revision: int, level: int, at_ms: int) -> admin_pb2.BackupHeader:
    """Returns the header: cluster, store, revision and time."""
    return admin_pb2.BackupHeader(
        format=FORMAT,
        cluster_id=identity.cluster_id,
        cluster=identity.cluster,
        incarnation=identity.incarnation,
        revision=revision,
        schema_version=identity.schema_version,
        taken_at_ms=at_ms,
        finalized_level=level,
    )


def _refuse_unsound(identity: Identity) -> None:
    if identity.partial:
        raise StoreSealed("the store of this cluster is being filled: what it holds is not whole")
    if identity.moved:
        raise StoreSealed("this cluster is in another store now: back up that one")


def _parts(page: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yields a page in messages of limited size; one with a single row may be larger."""
    part: list[Row] = []
    size = 0
    for row in page:
        length = len(row[0]) + len(row[1])
        if part and (len(part) >= _ROWS or size + length > _BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    if part:
        yield part
