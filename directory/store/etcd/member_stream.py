"""Watch stream to one member of etcd, read ahead by a thread up to a bound; and the connections to
the members, which are probed.

If nothing is read, HTTP/2 blocks the sender, and etcd keeps the rest in its own history.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.key_layout import Layout, end_of
from directory.store.etcd.watch_state import META, Event, Head, Response

__all__ = [
    "REQUIRES_LEADER",
    "HeadProbe",
    "MemberConnection",
    "Members",
    "Metadata",
    "Stream",
    "WatchTimeouts",
    "head_of",
    "head_request",
    "response_of",
]


Metadata = tuple[tuple[str, str], ...]

REQUIRES_LEADER: Final = ("hasleader", "true")
"""With this a member without a leader fails at once instead of never answering (S6)."""
_WATCH: Final = "/etcdserverpb.Watch/Watch"
_READ_AHEAD_BYTES: Final = 16 * 1024 * 1024
_READ_AHEAD: Final = 2_000  # responses


def head_request(layout: Layout, revision: int = 0) -> Any:
    """Returns the request for the keys below ``meta/``, linearizably, or as of a revision."""
    return etcdrpc.RangeRequest(
        key=layout.root + META, range_end=end_of(layout.root + META), revision=revision, limit=16
    )


def head_of(layout: Layout, answer: Any, revision: int = 0) -> Head:
    """Parses the response to ``head_request``; ``revision`` as requested."""
    held = {kv.key: kv for kv in answer.kvs}
    commit, identity = held.get(layout.commit), held.get(layout.identity)
    return Head(
        etcd_cluster=answer.header.cluster_id,
        revision=revision or answer.header.revision,
        commit_id="" if commit is None else commit.value.decode("ascii", "replace"),
        commit_revision=0 if commit is None else commit.mod_revision,
        commit_version=0 if commit is None else commit.version,
        identity=None if identity is None else identity.value,
        born=0 if identity is None else identity.create_revision,
    )


def response_of(layout: Layout, message: Any) -> Response:
    """Returns etcd's ``WatchResponse`` as a ``Response``."""
    begin = len(layout.root)
    return Response(
        etcd_cluster=message.header.cluster_id,
        revision=message.header.revision,
        events=tuple(
            Event(
                event.kv.mod_revision,
                event.kv.key[begin:],
                event.kv.value if event.type == 0 else None,
                event.kv.version,
            )
            for event in message.events
        ),
        fragment=message.fragment,
        created=message.created,
        canceled=message.canceled,
        compacted=message.compact_revision,
        reason=message.cancel_reason,
    )


def watch_request(layout: Layout, start: int, *, fragment: bool) -> Any:
    """Returns the request for every revision of rows and ``meta/`` from ``start``.

    With fragments etcd can send changes larger than one message, but measures the rest again for
    each event: 40,000 small events took it 5 s, against 0.1 s without (etcd 3.6.6). So fragments
    are used only if one message is not enough.
    """
    create = etcdrpc.WatchCreateRequest(
        key=layout.rows,
        range_end=end_of(layout.root + META),
        start_revision=start,
        fragment=fragment,
    )
    return etcdrpc.WatchRequest(create_request=create)


class Stream:
    """Watch stream. ``wake`` is called, by another thread, when anything arrives."""

    def __init__(
        self,
        channel: grpc.Channel,
        request: Any,
        metadata: Metadata,
        wake: Callable[[], None],
    ) -> None:
        """``request``: a ``watch_request``. Errors are reported by ``failure`` later."""
        self._wake: Final = wake
        self._changed: Final = threading.Condition()
        self._arrived: deque[tuple[Any, int]] = deque()
        self.unread_bytes = 0
        """Size of the messages that arrived and were not taken yet."""
        self._failure: grpc.RpcError | None = None
        self._ended = False
        self._closed = False
        # Called with one request and a stream of responses: only the reader's thread is needed.
        # etcd continues a watch whose client sends no further requests.
        open_watch = channel.unary_stream(
            _WATCH, etcdrpc.WatchRequest.SerializeToString, etcdrpc.WatchResponse.FromString
        )
        self._call: Final[Any] = open_watch(request, metadata=metadata)
        self.thread: Final = threading.Thread(target=self._read, name="etcd-watch", daemon=True)
        self.thread.start()

    def next_message(self) -> Any | None:
        """Returns the next message; None: nothing more has arrived yet."""
        with self._changed:
            if not self._arrived:
                return None
            message, size = self._arrived.popleft()
            self.unread_bytes -= size
            self._changed.notify()  # the reader may go on
            return message

    @property
    def failure(self) -> grpc.RpcError | None:
        """Error that ended the stream, possibly before all messages were taken; None: no error."""
        return self._failure

    @property
    def ended(self) -> bool:
        """True if nothing more will arrive and everything was taken."""
        with self._changed:
            return self._ended and not self._arrived

    def close(self) -> None:
        """Ends the stream, and soon its thread."""
        with self._changed:
            self._closed = True
            self._arrived.clear()
            self._changed.notify()
        self._call.cancel()

    def _read(self) -> None:
        try:
            for message in self._call:
                if not self._keep(message):
                    return
        except grpc.RpcError as error:
            self._failure = error
        finally:
            with self._changed:
                self._ended = True
            self._wake()

    def _keep(self, message: Any) -> bool:
        size = message.ByteSize()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or (self.unread_bytes < _READ_AHEAD_BYTES and len(self._arrived) < _READ_AHEAD)
                )
            )
            if self._closed:
                return False
            self._arrived.append((message, size))
            self.unread_bytes += size
        self._wake()
        return True


class Members(Protocol):
    """Members of an etcd cluster, and the credentials for it (``connection.py``)."""

    @property
    def endpoints(self) -> Sequence[str]:
        """``host:port`` of each member."""

    def dial(self, number: int) -> grpc.Channel:
        """Opens a new connection to one member, which the caller closes.

        Raises:
            StoreUnreachable: everything is closed.
        """

    def metadata(self, number: int, timeout_seconds: float) -> Metadata:
        """Returns the metadata of every call: that a leader is required (else a member without a
        quorum never answers), and the token, which may need a login.

        Raises:
            StoreUnreachable: no login, temporarily or for good.
        """

    def forget_token(self, used: str | None = None) -> None:
        """Drops the token (with ``used``, only that one): the next metadata need a login."""


@dataclass(frozen=True, slots=True)
class WatchTimeouts:
    """Timeouts of a watch."""

    ask_seconds: float = 1.0
    """Time without messages after which the member is asked whether everything has arrived."""
    answer_seconds: float = 2.0
    """Time for its answer before another member is tried. The same for missing events that the
    answer shows, doubled each time, since a large backlog takes time.
    """
    longest_answer_seconds: float = 60.0
    silence_seconds: float = 4.0
    """Time without a sign of any member after which the store counts as unreachable. More than the
    two above, so that a failed member is replaced before that is reported.
    """
    first_retry_seconds: float = 0.05
    last_retry_seconds: float = 1.0
    """Longest interval between rounds over all members."""


@dataclass
class HeadProbe:
    """Linearizable read that is under way."""

    call: Any
    asked_at: float
    since: int
    """Revision that this process had reached when the read was sent."""
    past: int = 0
    """Revision that it reads; 0 = the newest."""


@dataclass
class MemberConnection:
    """Connection to one member: probed first, then followed."""

    endpoint: str
    channel: grpc.Channel
    metadata: Metadata
    question: HeadProbe | None = None
    ask_at: float = 0.0
    """Time of the next probe."""
    stream: Stream | None = None
    received_at: float = 0.0
    """Time of its last message, or of the last probe that showed nothing missing."""
    lags_since: float | None = None
    """Time at which committed changes began to be missing; set again by each message. None: none is
    missing.
    """
