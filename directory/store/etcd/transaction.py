"""Encodes transactions as requests of etcd, and finds the guard that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

from directory.store.base import Delete, Guard, KeyEquals, Put, UnchangedSince, Write
from directory.store.etcd.etcd3_stubs import etcdrpc, transactions
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import Layout
from directory.store.transaction_limits import Limits

__all__ = [
    "LIMITS",
    "compares_of",
    "delete",
    "has_value",
    "is_absent",
    "operations_of",
    "put",
    "read",
    "reads_of",
    "request_of",
    "unfulfilled",
]

_MAX_OPERATIONS: Final = 128
"""etcd's ``--max-txn-ops``, for comparisons, and for operations in each outcome."""
_MAX_REQUEST_BYTES: Final = 1_572_864 - 8_192
"""etcd's ``--max-request-bytes``, less what it adds itself."""
_VALUE: Final = etcdrpc.Compare.VALUE
_CREATE: Final = etcdrpc.Compare.CREATE
LIMITS: Final = Limits(
    max_writes=_MAX_OPERATIONS - 1,  # and the commit id
    # Leaves room for the keys' prefixes, and for guards, whose keys are sent twice.
    max_bytes=1_400_000,
    max_guards=_MAX_OPERATIONS - 2,  # and the identity, and the revision that was reached
)


# Every write makes some 15 of these messages. Their fields are set one by one: made by keyword, or
# by etcd3's classes, they take half as long again.


def has_value(key: bytes, value: bytes) -> Any:
    """Returns the comparison that holds while a key has this value."""
    compare = etcdrpc.Compare()
    compare.target = _VALUE
    compare.key = key
    compare.value = value
    return compare


def is_absent(key: bytes) -> Any:
    """Returns the comparison that holds while there is no such key."""
    compare = etcdrpc.Compare()
    compare.target = _CREATE
    compare.key = key
    compare.create_revision = 0
    return compare


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    """Returns the operation that sets a key."""
    operation = etcdrpc.RequestOp()
    request = operation.request_put
    request.key = key
    request.value = value
    if lease:
        request.lease = lease
    return operation


def delete(key: bytes, end: bytes = b"") -> Any:
    """Returns the operation that removes a key, or a range of keys."""
    request = etcdrpc.DeleteRangeRequest(key=key, range_end=end)
    return etcdrpc.RequestOp(request_delete_range=request)


def read(key: bytes, end: bytes = b"", **options: Any) -> Any:
    """Returns the operation that reads a key, or a range of keys."""
    operation = etcdrpc.RequestOp()
    request = operation.request_range
    request.key = key
    if end:
        request.range_end = end
    for name, value in options.items():
        setattr(request, name, value)
    return operation


def compares_of(layout: Layout, incarnation: Incarnation, guards: Iterable[Guard]) -> list[Any]:
    """Returns the comparisons for guards."""
    compares: list[Any] = []
    newest = 0
    for guard in guards:
        match guard:
            case KeyEquals(key, value):
                row = layout.row(key)
                compare = is_absent(row) if value is None else has_value(row, value)
            case UnchangedSince(prefix, revision):
                known = incarnation.etcd_revision(revision)
                if known is None:  # of another incarnation: it cannot hold
                    compare = is_absent(layout.identity)
                else:
                    newest = max(newest, known)
                    below = transactions.Mod(*layout.row_range(prefix)) < known + 1
                    compare = below.build_message()
            case _:
                assert_never(guard)
        compares.append(compare)
    if newest:  # a revision that was not reached never holds
        compares.append((transactions.Mod(layout.commit) > newest - 1).build_message())
    return compares


def operations_of(layout: Layout, writes: Iterable[Write]) -> list[Any]:
    """Returns the operations for writes."""
    operations: list[Any] = []
    for write in writes:
        match write:
            case Put(key, value):
                operations.append(put(layout.row(key), value))
            case Delete(key):
                operations.append(delete(layout.row(key)))
            case _:
                assert_never(write)
    return operations


def reads_of(layout: Layout, incarnation: Incarnation, guards: Iterable[Guard]) -> list[Any]:
    """Returns the reads that find out which guard failed."""
    reads: list[Any] = []
    for guard in guards:
        match guard:
            case KeyEquals(key, _):
                reads.append(read(layout.row(key)))
            case UnchangedSince(prefix, revision):
                newer = (incarnation.etcd_revision(revision) or 0) + 1
                reads.append(
                    read(
                        *layout.row_range(prefix),
                        min_mod_revision=newer,
                        limit=1,
                        keys_only=True,
                    )
                )
            case _:
                assert_never(guard)
    return reads


def unfulfilled(
    incarnation: Incarnation, guards: Sequence[Guard], answers: Sequence[Any], committed: int
) -> Guard | None:
    """Returns the first guard that fails by the results of ``reads_of``. ``committed`` is etcd's
    revision of the newest commit.
    """
    for guard, answer in zip(guards, answers, strict=True):
        rows = answer.response_range.kvs
        match guard:
            case KeyEquals(_, value):
                if (rows[0].value if rows else None) != value:
                    return guard
            case UnchangedSince(_, revision):
                known = incarnation.etcd_revision(revision)
                if rows or known is None or committed < known:
                    return guard
            case _:
                assert_never(guard)
    return None


def request_of(compares: Sequence[Any], success: Sequence[Any], failure: Sequence[Any]) -> Any:
    """Returns the request of a whole transaction.

    Raises:
        ValueError: the request is larger than etcd accepts; only too many guards can cause that.
    """
    request = etcdrpc.TxnRequest(compare=compares, success=success, failure=failure)
    size = request.ByteSize()
    if size > _MAX_REQUEST_BYTES:
        raise ValueError(f"{size} bytes with its guards; etcd takes {_MAX_REQUEST_BYTES} at once")
    return request
