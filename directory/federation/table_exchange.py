"""Mount table on a link: made once for all receivers, sent as changes, received within bounds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from kdir.v1 import federation_pb2

from directory.federation.parent_state import TableRow
from directory.federation.table_sizes import check_row
from directory.namespace.bounds import TableBounds
from resolver.errors import KdirError
from resolver.path import Path

__all__ = ["AGES_OFF_MS", "ReceivedTable", "SentTable", "messages_of"]

Message = TypeVar("Message")

_MESSAGE_ROWS: Final = 500
_MESSAGE_BYTES: Final = 256 * 1024
_REFRESH_SECONDS: Final = 30
"""Interval at which rows are sent again if only their counts and the like changed. Age is no reason
to send a row: each message on a link confirms the ``confirmed`` rows, and the others only age.
"""
_REST_SECONDS_A_ROW: Final = 0.01
_MOST_REST_SECONDS: Final = 2.5
"""Longest pause between two versions of a changing table, if it is large: if a hundred clusters
connect at once, their rows are sent together.
"""
_SHARED_MS: Final = 1_000
"""Time for which a message is shared by several links; ages count as of its end. By the monotonic
clock (docs/guarantees.md#g12).
"""
AGES_OFF_MS: Final = 2 * _SHARED_MS
"""Largest time by which a row seems older than it is, besides the time of transport."""
_KEPT_CHANGES: Final = 64


@dataclass(frozen=True, slots=True)
class _Version:
    """Version of the table, with its differences from the previous one."""

    number: int
    mounts: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Sent:
    row: TableRow
    made_ms: int
    """Time when the row was made. Each message on a link confirms a confirmed row, so its age is
    sent as of this time.
    """
    news: tuple[bytes, bool]
    """Fields whose change is sent at once."""
    vital: tuple[int, int, bool, bool]
    """Fields whose change is sent at the next refresh: the time of the owner's update (0 if
    confirmed), the topic count, whether the mount is linked, and whether that is unknown.
    """

    def aged(self, now_ms: int) -> federation_pb2.MountRow:
        """Returns the row with its age: at ``made_ms`` if it is confirmed, else at ``now_ms``."""
        return self.row.aged(self.made_ms if self.row.row.confirmed else now_ms)


class SentTable(Generic[Message]):
    """Mount table as one cluster sends it, the same on all links. Thread-safe.

    Args:
        rows: returns the current table.
        news_of: returns the part of a row whose change is sent at once; other changes are sent
            every 30 s.
        wrap: makes a message from a part of the table, once for all links.
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[TableRow]],
        news_of: Callable[[federation_pb2.MountRow], bytes],
        wrap: Callable[[federation_pb2.MountTable], Message],
        clock_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows: Final = rows
        self._news_of: Final = news_of
        self._wrap: Final = wrap
        self._clock_ms: Final = clock_ms
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._changed = True
        self._counts_changed = False
        self.marked = 0
        """Number of times that the table was marked as changed."""
        self._made_at = -_MOST_REST_SECONDS
        self._refreshed_at = clock()
        self._sent: dict[str, _Sent] = {}
        self._version = 0
        self._versions: Final[deque[_Version]] = deque(maxlen=_KEPT_CHANGES)
        self._shared: dict[int, Sequence[Message]] = {}
        self._shared_until = 0.0
        self._shared_as_of_ms = 0
        """Unix ms of the end of sharing."""

    def mark_changed(self) -> bool:
        """Marks the table as changed. Returns True if links should check it now; False if it was
        marked already, or a new version was just made.
        """
        self.marked += 1
        self._counts_changed = True
        is_awaited, self._changed = self._changed, True
        return not is_awaited and self._clock() >= self._made_at + self._rest_seconds()

    def mark_counts(self) -> None:
        """Marks counts as changed: a new version is made within 30 s."""
        self._counts_changed = True

    def _rest_seconds(self) -> float:
        return min(_MOST_REST_SECONDS, _REST_SECONDS_A_ROW * len(self._sent))

    def messages_since(self, version: int) -> tuple[int, Sequence[Message]]:
        """Returns the newest version, and the messages for a link that has ``version``
        (0: none).
        """
        with self._lock:
            self._make()
            if version == self._version:
                return version, ()
            now = self._clock()
            if not self._shared or now >= self._shared_until:
                self._shared.clear()
                self._shared_until = now + _SHARED_MS / 1000
                self._shared_as_of_ms = self._clock_ms() + _SHARED_MS
            if version not in self._shared:
                self._shared[version] = [self._wrap(one) for one in self._messages(version)]
            return self._version, self._shared[version]

    def _make(self) -> None:
        now = self._clock()
        rest = self._rest_seconds()
        refreshes = self._counts_changed and now >= self._refreshed_at + _REFRESH_SECONDS
        if not refreshes and not (self._changed and now >= self._made_at + rest):
            return
        was_changed, self._changed = (
            self._changed,
            False,
        )  # first: what changes meanwhile marks it again
        self._counts_changed &= not refreshes
        try:
            rows = self._rows()
        except BaseException:
            self._changed = self._counts_changed = True
            raise
        if was_changed:
            self._made_at = now
        if refreshes:
            self._refreshed_at = now
        made: dict[str, _Sent] = {}
        other: list[str] = []
        for one in rows:
            mount, before = one.row.mount, self._sent.get(one.row.mount)
            fresh = before if before is not None and before.row is one else self._sent_of(one)
            if before is not None and fresh is not before:
                is_same = fresh.news == before.news
                if is_same and not (refreshes and fresh.vital != before.vital):
                    fresh = before
            if fresh is not before:
                other.append(mount)
            made[mount] = fresh
        other.extend(mount for mount in self._sent if mount not in made)
        self._sent = made
        if other or not self._version:
            self._version += 1
            self._versions.append(_Version(self._version, frozenset(other)))
            self._shared.clear()

    def _sent_of(self, one: TableRow) -> _Sent:
        row = one.row
        updated_ms = 0 if row.confirmed else one.owner_time_ms
        vital = (updated_ms, row.topic_count, row.linked, row.link_unknown)
        return _Sent(one, self._clock_ms(), (self._news_of(row), row.confirmed), vital)

    def _messages(self, version: int) -> Iterator[federation_pb2.MountTable]:
        # As of the end of sharing: no link gets a row that seems younger than it is.
        at_ms = self._shared_as_of_ms
        if not version or version < self._versions[0].number - 1:
            yield from messages_of((one.aged(at_ms) for one in self._all()), ())
            return
        mounts: set[str] = set()
        for one in self._versions:
            if one.number > version:
                mounts |= one.mounts
        rows = [self._sent[mount].aged(at_ms) for mount in sorted(mounts & self._sent.keys())]
        yield from messages_of(rows, sorted(mounts - self._sent.keys()), is_change=True)

    def _all(self) -> Iterator[_Sent]:
        return iter(self._sent.values())


def messages_of(
    rows: Iterable[federation_pb2.MountRow], removed: Iterable[str], *, is_change: bool = False
) -> Iterator[federation_pb2.MountTable]:
    """Yields a table, or a change of one, in messages of limited size."""
    message = federation_pb2.MountTable(is_change=is_change)
    size = 0
    both: tuple[str | federation_pb2.MountRow, ...] = (*removed, *rows)
    for one in both:
        length = len(one) if isinstance(one, str) else one.ByteSize()
        is_full = len(message.rows) + len(message.removed) >= _MESSAGE_ROWS
        if size and (is_full or size + length > _MESSAGE_BYTES):
            message.has_more = True
            yield message
            message, size = federation_pb2.MountTable(is_change=is_change), 0
        if isinstance(one, str):
            message.removed.append(one)
        else:
            message.rows.append(one)
        size += length
    yield message


class ReceivedTable:
    """Mount table as the other side of one link has sent it so far. For one thread.

    Args:
        accepts: returns whether the other side may report a mount at a path.
        most_rows: most rows of the table, and of one message.
        most_bytes: most bytes of the table.
    """

    def __init__(
        self,
        accepts: Callable[[Path], bool],
        *,
        most_rows: int,
        most_bytes: int,
        most_endpoints: int,
    ) -> None:
        self._accepts: Final = accepts
        self._most_rows: Final = most_rows
        self._most_bytes: Final = most_bytes
        self._most_endpoints: Final = most_endpoints
        self._whole: dict[str, TableRow] = {}
        self._whole_bytes = 0
        self._coming: dict[str, TableRow] | None = None
        """Incomplete table, from the messages received so far; None: there is none."""
        self._bytes = 0
        self.has_come = False
        """True once a whole table was received."""
        self.left_out = 0
        """Number of rows that were left out of the last table or change."""
        self.why_left_out = ""
        """Reason why the first of these rows was left out."""

    @classmethod
    def of_child(cls, mount: Callable[[], Path | None], bounds: TableBounds) -> Self:
        """Returns the table of a child's reports. ``mount``: returns the child's mount now; None:
        it has none.

        A child may report only mounts below its own: its row for any other would be sent to all
        links as this cluster's (R5).
        """

        def is_below(path: Path) -> bool:
            own = mount()
            return own is not None and own.is_prefix_of(path) and path != own

        return cls(
            is_below,
            most_rows=bounds.child_mounts,
            most_bytes=bounds.child_mount_bytes,
            most_endpoints=bounds.mount_endpoints,
        )

    @property
    def rows(self) -> list[TableRow]:
        """Last complete table, in the order in which its rows arrived."""
        return list(self._whole.values())

    def receive(self, message: federation_pb2.MountTable, now_ms: int) -> bool:
        """Takes the rows of one message; returns True if it completes a table or change. Invalid
        and excess rows are counted and left out.
        """
        if self._coming is None:
            self.left_out, self.why_left_out = 0, ""
            self._coming = dict(self._whole) if message.is_change else {}
            self._bytes = self._whole_bytes if message.is_change else 0
        for mount in message.removed[: self._most_rows]:
            self._remove(mount)
        for row in message.rows[: self._most_rows]:
            self._add(row, now_ms)
        over = len(message.rows) - self._most_rows
        if over > 0:
            self._leave_out(f"at most {self._most_rows} rows are taken", over)
        if message.has_more:
            return False
        self._whole, self._whole_bytes, self._coming = self._coming, self._bytes, None
        self.has_come = True
        return True

    def _remove(self, mount: str) -> None:
        assert self._coming is not None  # noqa: S101 - receive began one
        before = self._coming.pop(mount, None)
        if before is not None:
            self._bytes -= before.row.ByteSize()

    def _add(self, row: federation_pb2.MountRow, now_ms: int) -> None:
        assert self._coming is not None  # noqa: S101 - receive began one
        # The mount's previous row is outdated, whether the new one is taken or not.
        self._remove(row.mount)
        # A copy: a row of a message keeps all of that message in memory.
        copy = federation_pb2.MountRow()
        copy.CopyFrom(row)
        received = TableRow.received(copy, now_ms)
        size = received.row.ByteSize()
        if len(self._coming) >= self._most_rows:
            self._leave_out(f"at most {self._most_rows} rows are taken")
        elif self._bytes + size > self._most_bytes:
            self._leave_out(f"at most {self._most_bytes} bytes of rows are taken")
        else:
            try:
                accepted = self._accepts(check_row(row, self._most_endpoints))
            except KdirError as error:
                self._leave_out(error.message)
                return
            if not accepted:
                self._leave_out(f"{row.mount} is not below the mount of the child")
                return
            self._coming[row.mount] = received
            self._bytes += size

    def _leave_out(self, why: str, count: int = 1) -> None:
        self.left_out += count
        self.why_left_out = self.why_left_out or why
