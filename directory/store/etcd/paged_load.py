"""All rows of a cluster at one revision, page by page; refuses to keep them.

The next page is asked for before the one before is given out, so that etcd and who builds from
the rows work at the same time. Pages hold a few megabytes, of small rows or of large: with each
page etcd counts all rows that are left (measured: a million rows in pages of 1,000 take 15 times as
long as in pages of 10,000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from directory.store.base import StoreUnreachable
from directory.store.etcd.connection import (
    Compacted,
    EtcdConnection,
    FutureRevision,
    TooLarge,
)
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.watch_state import Head

__all__ = ["EtcdLoading"]

_PAGE_SECONDS: Final = 20.0
_FIRST_ROWS: Final = 1_000
_MOST_ROWS: Final = 100_000
_PAGE_BYTES: Final = 8 * 1024 * 1024
_GROWTH: Final = 16


class EtcdLoading:
    """See ``directory.store.base.Loading``."""

    def __init__(
        self,
        connection: EtcdConnection,
        layout: Layout,
        head: Head,
        incarnation: Incarnation,
        prefixes: Sequence[bytes],
    ) -> None:
        """All rows as of ``head``."""
        self._connection: Final = connection
        self._layout: Final = layout
        self._head: Final = head
        self._incarnation: Final = incarnation
        self._prefixes: Final = sorted(prefixes)
        self._limit = _FIRST_ROWS

    @property
    def revision(self) -> int:
        return self._incarnation.revision(self._head.commit_revision)

    @property
    def commit_id(self) -> str:
        return self._head.commit_id

    def pages(self) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        for prefix in self._prefixes:
            begin, end = self._layout.row_range(prefix)
            try:
                yield from self._range(begin, end)
            except Compacted as error:
                raise StoreUnreachable(
                    f"{self._connection}: revision {self._head.revision} was compacted while it was"
                    " loaded; begin again"
                ) from error
            except FutureRevision as error:
                raise StoreUnreachable(
                    f"{self._connection}: restored while it was loaded"
                ) from error

    def _range(self, begin: bytes, end: bytes) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        skip = len(self._layout.rows)
        coming: Callable[[], Any] | None = self._send_request(begin, end)
        while coming is not None:
            try:
                answer = coming()
            except TooLarge:
                if self._limit == 1:
                    raise StoreUnreachable(
                        f"{self._connection}: a row is too large to be read"
                    ) from None
                self._limit = max(1, self._limit // 4)
                coming = self._send_request(begin, end)
                continue
            coming = None
            if answer.more:
                begin = answer.kvs[-1].key + b"\0"
                self._adapt(answer)
                coming = self._send_request(begin, end)
            if answer.kvs:
                yield [(kv.key[skip:], kv.value) for kv in answer.kvs]

    def _send_request(self, begin: bytes, end: bytes) -> Callable[[], Any]:
        request = etcdrpc.RangeRequest(
            key=begin, range_end=end, limit=self._limit, revision=self._head.revision
        )
        return self._connection.range_ahead(request, _PAGE_SECONDS)

    def _adapt(self, answer: Any) -> None:
        row_bytes = max(1, answer.ByteSize() // len(answer.kvs))
        most = max(1, _PAGE_BYTES // row_bytes)
        self._limit = min(_MOST_ROWS, _GROWTH * self._limit, most)
