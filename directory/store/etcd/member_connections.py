"""What a watch knows of etcd's members, and how long it waits for them; refuses to call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from directory.store.etcd.member_stream import Metadata, Stream

__all__ = ["HeadProbe", "MemberConnection", "Members", "WatchTimeouts"]


class Members(Protocol):
    """The members of an etcd cluster, and what lets us in (``connection.py``)."""

    @property
    def endpoints(self) -> Sequence[str]:
        """``host:port`` of each."""

    def dial(self, number: int) -> grpc.Channel:
        """A new connection to one member, of the caller's own, who closes it.

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
        """The next metadata need a new login, if ``used`` is still what they hold."""


@dataclass(frozen=True, slots=True)
class WatchTimeouts:
    """How long to wait for what."""

    ask_seconds: float = 1.0
    """Nothing came for so long: ask whether everything has come."""
    answer_seconds: float = 2.0
    """A question is not answered for so long: another member. So it is if what it showed to be
    missing does not come for so long; each time twice as long, since a large backlog takes time.
    """
    longest_answer_seconds: float = 60.0
    silence_seconds: float = 4.0
    """No member has shown that it is there for so long: the store is away. More than the two above,
    so that a member that fails is replaced before anybody is told.
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
