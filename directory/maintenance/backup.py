"""A backup as messages, from the store itself at one revision; refuses to know where they go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kdir.v1 import admin_pb2

from directory.maintenance.backup_rows import Row, rows_of
from directory.maintenance.registered_servers import stored_level
from directory.server.feature_levels import FEATURE_LEVEL
from directory.store.base import Identity, Store
from resolver.backup_file import FORMAT, Checksum
from resolver.errors import StoreSealed, StoreUnavailable

__all__ = ["backup_of", "header_of"]

_ROWS: Final = 500
_BYTES: Final = 512 * 1024


def backup_of(
    store: Store, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
) -> Iterator[admin_pb2.BackupResponse]:
    """Header, rows, trailer.

    Raises:
        StoreUnreachable: also in the middle; begin again.
        StoreSealed: what the store holds is not whole, or not the newest.
        StoreUnavailable: it was restored meanwhile; begin again.
    """
    identity = store.refresh_identity()
    _refuse_unsound(identity)
    loading = store.load()
    # Read last: a level only rises, and the rows need none above this. One that cannot be read may
    # have been any that this version knows.
    header = header_of(identity, loading.revision, stored_level(store) or FEATURE_LEVEL, now_ms())
    checksum = Checksum(header)
    yield admin_pb2.BackupResponse(header=header)
    for page in rows_of(loading):
        for part in _parts(page):
            checksum.add(part)
            rows = [admin_pb2.BackupRow(key=key, value=value) for key, value in part]
            yield admin_pb2.BackupResponse(rows=admin_pb2.BackupRows(rows=rows))
    if store.refresh_identity().incarnation != identity.incarnation:
        raise StoreUnavailable("the store got a new incarnation during the backup: start again")
    yield admin_pb2.BackupResponse(trailer=checksum.trailer())


def header_of(identity: Identity, revision: int, level: int, at_ms: int) -> admin_pb2.BackupHeader:
    """Returns whose backup it is, and of when."""
    return admin_pb2.BackupHeader(
        format=FORMAT,
        cluster_id=identity.cluster_id,
        cluster=identity.cluster,
        incarnation=identity.incarnation,
        revision=revision,
        schema_version=identity.schema_version,
        taken_at_ms=at_ms,
        finalised_level=level,
    )


def _refuse_unsound(identity: Identity) -> None:
    if identity.partial:
        raise StoreSealed("the store of this cluster is being filled: what it holds is not whole")
    if identity.moved:
        raise StoreSealed("this cluster lives in another store by now: back that one up")


def _parts(page: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """A page in messages of a bounded size; one of a single row may be larger."""
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
