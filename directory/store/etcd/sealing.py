"""Sealing, emptying, filling and opening a store in etcd; refuses to know why it is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from directory.store.base import Committed, Identity, StoreUnreachable
from directory.store.etcd.connection import EtcdConnection
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.key_layout import end_of
from directory.store.etcd.keyspace import Keyspace, TransactionDraft
from directory.store.etcd.transaction import LIMITS, delete, put

__all__ = ["EtcdSealing"]

_CLEARED_ROWS: Final = 5_000
_SECONDS: Final = 30.0

Row = tuple[bytes, bytes]


class EtcdSealing:
    """Seal of one store; see ``directory.store.base.Store``."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace: Final = keyspace

    @property
    def _connection(self) -> EtcdConnection:
        return self._keyspace.connection

    def seal(self, why: str) -> None:
        while True:
            _, incarnation = self._keyspace.current()
            if incarnation.identity.sealed == why or self._keyspace.replace(
                incarnation, incarnation.sealed(why)
            ):
                break
        self._keyspace.refresh()

    def unseal(self) -> Identity:
        while True:
            head, incarnation = self._keyspace.current()
            if not incarnation.identity.sealed:
                break
            revision = incarnation.revision(head.revision)
            new = incarnation.next(head.etcd_cluster, head.revision, revision, unseal=True)
            if self._keyspace.replace(incarnation, new):
                break
        return self._keyspace.refresh().identity

    def clear(self) -> int:
        layout = self._keyspace.layout
        self._change([delete(layout.announced, end_of(layout.announced))])
        begin, end = layout.row_range(b"")
        cleared = 0
        while True:
            answer = self._connection.range(
                etcdrpc.RangeRequest(key=begin, range_end=end, limit=_CLEARED_ROWS, keys_only=True),
                _SECONDS,
            )
            if not answer.kvs:
                return cleared
            self._change([delete(begin, answer.kvs[-1].key + b"\0")])
            cleared += len(answer.kvs)

    def fill(self, rows: Iterable[Row]) -> int:
        layout = self._keyspace.layout
        self._change([])  # one that may not be filled is refused even if there is nothing to put
        filled = 0
        # One after the other: rows that are change events are read by revision, in their order.
        for chunk in _chunks(rows):
            self._change([put(layout.row(key), value) for key, value in chunk])
            filled += len(chunk)
        return filled

    def _change(self, operations: list[Any]) -> None:
        done = self._keyspace.write(
            lambda _: TransactionDraft((), operations), _SECONDS, filling=True
        )
        if not isinstance(done, Committed):
            raise StoreUnreachable(f"{self._connection}: was changed in this moment")


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    size = 0
    for key, value in rows:
        length = len(key) + len(value)
        if length > LIMITS.max_bytes:
            raise ValueError(
                f"key {key!r} has {length} bytes with its value; one transaction holds"
                f" {LIMITS.max_bytes}"
            )
        if chunk and (len(chunk) >= LIMITS.max_writes or size + length > LIMITS.max_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append((key, value))
        size += length
    if chunk:
        yield chunk
