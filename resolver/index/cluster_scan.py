"""Reads the topics of one cluster, or of one shard of it, page by page.

A ``Shard`` is a plain value that can be sent to another process. That process opens and closes its
own channel, since gRPC does not survive a fork (docs/guarantees.md#g11).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import grpc
from kdir.v1 import scan_pb2, scan_pb2_grpc

from resolver.error_status import from_rpc_error
from resolver.errors import DeadlineExceeded, Internal, KdirError, Lame, Unavailable
from resolver.index.arrow_rows import topic_batch
from resolver.index.cluster_discovery import (
    ReachableCluster,
    channel_to,
    cluster_state_from_authority,
)
from resolver.index.row_schema import ClusterState
from resolver.page_order import PageOrder
from resolver.path import DOTS_PATTERN, ENTRY_PATTERN, ROOT, Path

if TYPE_CHECKING:
    import pyarrow as pa
    from kdir.v1 import entry_pb2

__all__ = ["PAGE_ROWS", "SHARD_ROWS", "Page", "Shard", "read_pages", "shards_of"]

PAGE_ROWS: Final = 5_000
"""Number of topics on a page: enough to make the fixed cost of a call small."""
SHARD_ROWS: Final = 250_000
"""Approximate number of topics that one task reads; a smaller cluster is read by one task."""
_MOST_SHARDS: Final = 64
_PAGE_SECONDS: Final = 30.0
_MOST_SHOWN: Final = 200
"""Most characters of a server's text in a message."""
_ROUNDS: Final = 3
"""Number of times that all endpoints are tried for one page before the shard is given up."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part of one cluster's topics, and the endpoints that serve it."""

    state: ClusterState
    """State of the cluster at its discovery."""
    endpoints: tuple[str, ...]
    path: str
    """Path below which topics are read; the mount point = all topics."""
    number: int = 0
    count: int = 1
    page_rows: int = PAGE_ROWS
    page_seconds: float = _PAGE_SECONDS
    named: tuple[str, ...] = ()
    """Those of ``endpoints`` that the caller named itself."""


@dataclass(frozen=True, slots=True)
class Page:
    """Page of topics, with the columns ``TOPIC_COLUMNS``, and the state of their cluster."""

    batch: pa.RecordBatch
    state: ClusterState
    unreadable_count: int
    """Number of entries that the page lacks, since their records cannot be read."""


def shards_of(
    one: ReachableCluster,
    *,
    below: Path = ROOT,
    shard_rows: int = SHARD_ROWS,
    page_rows: int = PAGE_ROWS,
) -> list[Shard]:
    """Returns the shards of a cluster's topics below a path; none if the cluster has no such
    paths.
    """
    if below.is_prefix_of(one.mount):
        path = one.mount
    elif one.mount.is_prefix_of(below):
        path = below
    else:
        return []
    count = min(_MOST_SHARDS, max(1, -(-one.topic_count // shard_rows)))
    return [
        Shard(one.state, one.endpoints, str(path), number, count, page_rows, named=one.named)
        for number in range(count)
    ]


def read_pages(
    shard: Shard,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Page]:
    """Yields the shard's pages in order; requests the next page while the caller processes one.

    Pages are of one revision as long as the server stores it; each page's state has its revision.
    If a server fails, another server of the cluster continues at the same page.

    Raises:
        KdirError: no endpoint returned the next page; pages repeat; the store began another
            incarnation; inherited grants have expired, so that other topics would be visible; or a
            page has topics outside the shard's path, or a value that the index cannot hold.
    """
    with ExitStack() as stack:
        reading = _Reading(shard, sleep, stack)
        token = ""
        order = PageOrder(shard.state.cluster, _place)
        pending: _Call | None = None
        while True:
            response = reading.answer(pending, token)
            token = response.next_page_token
            order.add_page(response.entries)
            pending = reading.ask(token) if token else None
            state = cluster_state_from_authority(response.authority, clock())
            if state.incarnation != shard.state.incarnation:
                raise Unavailable("its store was restored or migrated while it was read")
            if response.inherited_grants_expired:
                # Once the grants count again, the same revision has other rows.
                raise Unavailable("its parent has not confirmed for too long what it inherits")
            # ``as_of`` stays the time of the discovery: topics that are read later are at least as
            # new.
            batch = _batch(response)
            _refuse_others(batch, shard)
            whole = replace(shard.state, revision=state.revision)
            yield Page(batch, whole, response.unreadable_count)
            if not token:
                return


def _place(entry: entry_pb2.Entry) -> tuple[list[str], str]:
    """Returns the place of a topic in the order of a scan: by directory, then by name."""
    directory, _, name = entry.path.rpartition("/")
    return directory.split("/"), name


def _batch(response: scan_pb2.ScanTopicsResponse) -> pa.RecordBatch:
    """Returns the topics of a page as an Arrow batch.

    Raises:
        Internal: the page has a value that the index cannot hold.
    """
    import pyarrow as pa

    try:
        return topic_batch(response)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise Internal(f"its scan has a value that the index cannot hold: {error}") from error


def _refuse_others(batch: pa.RecordBatch, shard: Shard) -> None:
    """Raises ``Lame`` if a topic is not below the shard's path: a cluster may not report paths of
    others (docs/guarantees.md#r5).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = batch.column("path")
    above = re.escape(shard.path.rstrip("/"))
    is_below = pc.and_not(
        pc.match_substring_regex(paths, f"^{above}{ENTRY_PATTERN}$"),
        pc.match_substring_regex(paths, DOTS_PATTERN),
    )
    other = pc.index(is_below, pa.scalar(False)).as_py()
    if other >= 0:
        found = paths[other].as_py()[:_MOST_SHOWN]
        raise Lame(f"{shard.state.cluster}: its scan has {found!r}, not below {shard.path}")


class _Call(Protocol):
    """Running call."""

    def result(self) -> scan_pb2.ScanTopicsResponse: ...


@dataclass(slots=True)
class _Reading:
    """State of reading one shard: the endpoint in use, and its channel."""

    shard: Shard
    sleep: Callable[[float], None]
    stack: ExitStack
    position: int = 0
    stub: scan_pb2_grpc.ScanServiceStub | None = None
    channels: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.stack.enter_context(self.channels)

    def ask(self, token: str) -> _Call:
        if self.stub is None:
            endpoint = self.shard.endpoints[self.position % len(self.shard.endpoints)]
            self.stub = scan_pb2_grpc.ScanServiceStub(
                self.channels.enter_context(
                    channel_to(endpoint, self.shard.state.cluster_id, self.shard.named)
                )
            )
        request = scan_pb2.ScanTopicsRequest(
            path=self.shard.path,
            shard=self.shard.number,
            shard_count=self.shard.count,
            page_size=self.shard.page_rows,
            page_token=token,
        )
        return self.stub.ScanTopics.future(request, timeout=self.shard.page_seconds)

    def answer(self, pending: _Call | None, token: str) -> scan_pb2.ScanTopicsResponse:
        """Returns the page of ``token`` from the running call ``pending``, if there is one; after
        an error, from the next endpoints.
        """
        endpoints = len(self.shard.endpoints)
        for attempt in range(1, _ROUNDS * endpoints + 1):
            try:
                return self._checked(pending or self.ask(token))
            except (Unavailable, DeadlineExceeded):
                if attempt == _ROUNDS * endpoints:
                    raise
            if attempt % endpoints == 0:
                self.sleep(0.2 * attempt)  # all endpoints failed: one may be starting
            self.channels.close()
            self.stub = None
            self.position += 1
            pending = None
        raise AssertionError("the last attempt returns or raises")

    def _checked(self, pending: _Call) -> scan_pb2.ScanTopicsResponse:
        try:
            response = pending.result()
        except grpc.RpcError as failure:
            raise from_rpc_error(failure) from failure
        except grpc.FutureCancelledError as cancelled:
            raise KdirError("the call was cancelled") from cancelled
        found = response.authority.cluster
        if found.cluster_id != self.shard.state.cluster_id:
            raise Lame(
                f"{found.cluster} ({found.cluster_id}) answers for {self.shard.state.cluster} "
                f"({self.shard.state.cluster_id})"
            )
        return response
