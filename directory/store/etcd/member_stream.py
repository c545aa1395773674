"""One watch stream to one member of etcd, read ahead by a thread up to a bound; and the connections
to the members, which are probed.

etcd holds back what is not read: then HTTP/2 makes its sender wait, and it keeps the rest in its
own history.
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

_WATCH: Final = "/etcdserverpb.Watch/Watch"
_READ_AHEAD_BYTES: Final = 16 * 1024 * 1024
_READ_AHEAD: Final = 2_000  # responses


def head_request(layout: Layout, revision: int = 0) -> Any:
    """Asks what ``meta/`` holds, linearizably, or held at a revision."""
    return etcdrpc.RangeRequest(
        key=layout.root + META, range_end=end_of(layout.root + META), revision=revision, limit=16
    )


def head_of(layout: Layout, answer: Any, revision: int = 0) -> Head:
    """Returns what was answered to ``head_request``; ``revision`` as it was asked for."""
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
    """Asks for every revision of rows and ``meta/`` from ``start`` on.

    Fragments let etcd send what is larger than one message may be. It cuts them by measuring all of
    one again with each event: 40,000 small events took it 5 s, against 0.1 s uncut (etcd 3.6.6). So
    they are for where one message is not enough.
    """
    create = etcdrpc.WatchCreateRequest(
        key=layout.rows,
        range_end=end_of(layout.root + META),
        start_revision=start,
        fragment=fragment,
    )
    return etcdrpc.WatchRequest(create_request=create)


class Stream:
    """One watch. ``wake`` is called, by another thread, when anything comes."""

    def __init__(
        self,
        channel: grpc.Channel,
        request: Any,
        metadata: Metadata,
        wake: Callable[[], None],
    ) -> None:
        """``request``: ``watch_request``. Fails later, if it fails."""
        self._wake: Final = wake
        self._changed: Final = threading.Condition()
        self._arrived: deque[tuple[Any, int]] = deque()
        self.unread_bytes = 0
        """Of what arrived and was not taken yet."""
        self._failure: grpc.RpcError | None = None
        self._ended = False
        self._closed = False
        # One request and a stream of answers, which no thread but the reader's has to serve. etcd
        # goes on with a watch that sends no more.
        open_watch = channel.unary_stream(
            _WATCH, etcdrpc.WatchRequest.SerializeToString, etcdrpc.WatchResponse.FromString
        )
        self._call: Final[Any] = open_watch(request, metadata=metadata)
        self.thread: Final = threading.Thread(target=self._read, name="etcd-watch", daemon=True)
        self.thread.start()

    def next_message(self) -> Any | None:
        """Returns the next that came; None: nothing more has, yet."""
        with self._changed:
            if not self._arrived:
                return None
            message, size = self._arrived.popleft()
            self.unread_bytes -= size
            self._changed.notify()  # the reader may go on
            return message

    @property
    def failure(self) -> grpc.RpcError | None:
        """Why it ended, once all that came before was taken."""
        return self._failure

    @property
    def ended(self) -> bool:
        """Whether nothing will arrive any more, and everything was taken."""
        with self._changed:
            return self._ended and not self._arrived

    def close(self) -> None:
        """Ends it, and soon the thread."""
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
    """The members of an etcd cluster, and what lets us in (``connection.py``)."""

    @property
    def endpoints(self) -> Sequence[str]:
        """``host:port`` of each."""

    def dial(self, number: int) -> grpc.Channel:
        """Opens a new connection to one member, which the caller closes.

        Raises:
            StoreUnreachable: everything is closed.
        """

    def metadata(self, number: int, timeout_seconds: float) -> Metadata:
        """Returns what every call carries: that a leader is required, without which a member that
        lost its quorum is silent; and who asks, which may need a login.

        Raises:
            StoreUnreachable: no login, for now or for good.
        """

    def forget_token(self, used: str | None = None) -> None:
        """Drops the login, so that the next metadata need a new one, if they still hold
        ``used``.
        """


@dataclass(frozen=True, slots=True)
class WatchTimeouts:
    """Timeouts of a watch."""

    ask_seconds: float = 1.0
    """Nothing came for so long: ask whether everything has come."""
    answer_seconds: float = 2.0
    """A question is not answered for so long: another member. So it is if what it showed to be
    missing does not come for so long; each time twice as long, since a large backlog takes time.
    """
    longest_answer_seconds: float = 60.0
    silence_seconds: float = 4.0
    """No member has shown that it is there for so long: the store is away. More than the two above,
    so that a member that fails is replaced before that is reported.
    """
    first_retry_seconds: float = 0.05
    last_retry_seconds: float = 1.0
    """Between rounds over all members."""


@dataclass
class HeadProbe:
    """A linearizable read on its way."""

    call: Any
    asked_at: float
    since: int
    """Our revision when it was asked."""
    past: int = 0
    """The revision that it asks for; 0 = now."""


@dataclass
class MemberConnection:
    """A connection to one member: first it is asked where it is, then followed."""

    endpoint: str
    channel: grpc.Channel
    metadata: Metadata
    question: HeadProbe | None = None
    ask_at: float = 0.0
    """When the next question is due."""
    stream: Stream | None = None
    received_at: float = 0.0
    """When it last brought something, or was found to have nothing more."""
    lags_since: float | None = None
    """When it was found not to have sent what was committed, or sent something then."""
