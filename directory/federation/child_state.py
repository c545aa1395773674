"""Reads the stored records of a cluster's children, and makes the writes for them; pending
children.

An unreadable record counts as not received (S21): its sender sends it again when it links.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kdir.v1 import federation_pb2

from directory.federation.link_records import (
    encode_record,
    is_path,
    split_record,
    try_decode_record,
)
from directory.federation.parent_state import TableRow, without_volatile_fields
from directory.namespace import keys
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write
from resolver.errors import InvalidArgument, KdirError

__all__ = [
    "LinkedChild",
    "WaitingChildren",
    "below_rows",
    "below_writes",
    "child_hello",
    "child_writes",
    "find_waiting_child",
    "forget_writes",
    "link_of",
    "link_write",
]


def child_hello(snapshot: Snapshot, cluster_id: str) -> tuple[federation_pb2.Hello, int] | None:
    """Returns a child's last hello and its time (unix ms); None if it never linked."""
    return try_decode_record(federation_pb2.Hello, snapshot.fact(keys.child_key(cluster_id)))


def child_writes(snapshot: Snapshot, hello: federation_pb2.Hello, now_ms: int) -> tuple[Write, ...]:
    """Returns the writes that store a child's report of itself, if it changed."""
    lasting = federation_pb2.Hello()
    lasting.CopyFrom(hello)
    lasting.topic_count = 0
    known = child_hello(snapshot, hello.cluster_id)
    if known is not None and known[0] == lasting:
        return ()
    body = lasting.SerializeToString(deterministic=True)
    return (Put(keys.child_key(hello.cluster_id), encode_record(now_ms, body)),)


@dataclass(frozen=True, slots=True)
class LinkedChild:
    """Record that a server of this cluster holds the link to a child; valid while that server is
    alive.
    """

    server_id: str
    topic_count: int
    """Number of topics when the link began."""


def link_of(snapshot: Snapshot, cluster_id: str) -> LinkedChild | None:
    """Returns the record of the link to a child, as stored; None: there is none."""
    value = snapshot.fact(keys.LINKED + cluster_id.encode())
    if value is None:
        return None
    count, body = split_record(value)
    return LinkedChild(body.decode(errors="replace"), count)


def link_write(cluster_id: str, server_id: str, topic_count: int) -> Put:
    """Returns the write that stores the link to a child, for the cluster's other servers."""
    return Put(keys.LINKED + cluster_id.encode(), encode_record(topic_count, server_id.encode()))


def below_rows(snapshot: Snapshot, cluster_id: str) -> list[TableRow]:
    """Returns the mounts below a child, as it last reported them, marked as unconfirmed."""
    reported = try_decode_record(
        federation_pb2.MountTable, snapshot.fact(keys.BELOW + cluster_id.encode())
    )
    if reported is None:
        return []
    table, at_ms = reported
    received = (TableRow.received(row, at_ms) for row in table.rows if is_path(row.mount))
    return [row.unconfirmed() for row in received]


def below_writes(
    snapshot: Snapshot, cluster_id: str, rows: Iterable[TableRow], now_ms: int
) -> tuple[Write, ...]:
    """Returns the writes that store the mounts below a child, if they differ from the stored ones
    in more than ages and counts.
    """
    key = keys.BELOW + cluster_id.encode()
    fresh = list(rows)
    value = snapshot.fact(key)
    known = try_decode_record(federation_pb2.MountTable, value)
    if known is not None:
        if [without_volatile_fields(row) for row in known[0].rows] == [
            without_volatile_fields(one.row) for one in fresh
        ]:
            return ()
    elif value is None and not fresh:
        return ()
    table = federation_pb2.MountTable(rows=[one.aged(now_ms) for one in fresh])
    return (Put(key, encode_record(now_ms, table.SerializeToString(deterministic=True))),)


def forget_writes(snapshot: Snapshot, mounted: Collection[str]) -> tuple[Write, ...]:
    """Returns the writes that remove the reports of clusters that are not ``mounted`` any more."""
    return tuple(
        Delete(key)
        for prefix in (keys.CHILD, keys.BELOW, keys.LINKED)
        for key, _ in snapshot.facts(prefix)
        if key.removeprefix(prefix).decode(errors="replace") not in mounted
    )


_MOST: Final = 1000
_RECENT_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class _Candidate:
    hello: federation_pb2.Hello
    message: str
    """Reason why the link was refused."""
    at: float


class WaitingChildren:
    """Pending children: clusters whose links this server refused. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._waiting: Final[dict[str, _Candidate]] = {}

    def remember(self, hello: federation_pb2.Hello, error: KdirError) -> None:
        """Records that a child was refused. At more than ``_MOST`` children, drops those with the
        oldest tries.
        """
        with self._lock:
            self._waiting.pop(hello.cluster_id, None)
            self._waiting[hello.cluster_id] = _Candidate(hello, error.message, self._clock())
            while len(self._waiting) > _MOST:
                del self._waiting[next(iter(self._waiting))]

    def forget(self, cluster_id: str) -> None:
        """Removes a child that is linked now."""
        with self._lock:
            self._waiting.pop(cluster_id, None)

    def hello(self, cluster_id: str) -> federation_pb2.Hello | None:
        """Returns the hello of a child that tried in the last minute; None: it did not. Since an
        older one, its config may have been corrected.
        """
        with self._lock:
            found = self._waiting.get(cluster_id)
        if found is None or self._clock() - found.at >= _RECENT_SECONDS:
            return None
        return found.hello

    def hellos(self) -> list[federation_pb2.Hello]:
        """Returns the last hello of each pending child."""
        with self._lock:
            return [one.hello for one in self._waiting.values()]

    def recent(self) -> list[federation_pb2.PendingChild]:
        """Returns the pending children that tried in the last minute."""
        now = self._clock()
        with self._lock:
            recent = [one for one in self._waiting.values() if now - one.at < _RECENT_SECONDS]
        return [
            federation_pb2.PendingChild(
                cluster_id=one.hello.cluster_id,
                cluster=one.hello.cluster,
                mount=one.hello.mount,
                endpoints=one.hello.endpoints,
                age_seconds=now - one.at,
                message=one.message,
            )
            for one in recent
        ]


def find_waiting_child(
    child: str, known: Iterable[federation_pb2.Hello]
) -> tuple[str, str, tuple[str, ...]]:
    """Returns the child that an operator names, by cluster id or by the name of a known one, as
    (cluster id, name, endpoints).

    Raises:
        InvalidArgument: no known child has the name, or several have.
    """
    named = []
    for hello in known:
        if hello.cluster_id == child:
            return child, hello.cluster, tuple(hello.endpoints)
        if hello.cluster == child:
            named.append(hello)
    if len(named) == 1:
        return named[0].cluster_id, child, tuple(named[0].endpoints)
    if child.startswith("kc-"):
        return child, "", ()
    ids = ", ".join(hello.cluster_id for hello in named)
    raise InvalidArgument(
        f"mount.cluster_id: found {child!r}; "
        + (f"several clusters are called so: {ids}" if ids else "no cluster of that name waits")
        + "; expected a cluster id (see: kdir mounts)"
    )
