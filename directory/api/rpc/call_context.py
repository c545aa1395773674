"""One call as handlers see it: who asks, how long there is; refuses to expose gRPC's context."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from directory.access.principals import parse_host
from resolver.errors import Cancelled, DeadlineExceeded, InvalidArgument

__all__ = ["CURRENT", "REQUEST_ID_KEY", "Call"]

REQUEST_ID_KEY: Final = "x-request-id"
"""Metadata by which a caller names its call."""
_MOST_ADDRESSES: Final = 4096
"""Of callers, remembered: to read one costs as much as to resolve a path."""
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(slots=True)
class Call:
    """Context of the call that a handler answers."""

    deadline: float
    """By ``time.monotonic``: the caller's, or the server's own cap (G1)."""
    principal: str = ""
    """From the certificate or a verified token, never from a field; empty without identities, and
    ``User:ANONYMOUS`` where they are in use and nobody had to say who it is."""
    cluster_ids: tuple[str, ...] = ()
    """The clusters that the peer's certificate names; see ``directory.server.authentication``."""
    bearer: str = field(default="", repr=False)
    """The caller's verified token: for calls in its name, and for nothing else."""
    caller_host: str = ""
    """See ``host``; set where another call is answered in the same caller's name."""
    is_active: Callable[[], bool] = bool
    """Whether the caller still waits."""
    on_end: Callable[[Callable[[], None]], object] = callable
    """Registers what is to be called when the call is over."""
    cancel: Callable[[], object] = bool
    """Ends the call from this side."""
    find_peer: Callable[[], str] = str
    """See ``peer``."""
    metadata: Callable[[], Iterable[tuple[str, str | bytes]]] = tuple
    """What the caller sent beside the request."""
    cluster: str = ""
    """Which cluster it is about, where a process hosts several and it is known; for logs."""
    _request_id: str = ""

    @property
    def request_id(self) -> str:
        """What log lines and errors name the call by: the caller's ``x-request-id`` where it is 1
        to 64 of ``A-Z a-z 0-9 . _ : -``, else one made here. Looked for when first wanted: most
        calls end well and in silence.
        """
        if not self._request_id:
            self._request_id = _asked_id(self.metadata()) or secrets.token_hex(8)
        return self._request_id

    @property
    def peer(self) -> str:
        """The caller's address, such as ``ipv4:127.0.0.1:50212``; asked for when wanted."""
        return self.find_peer()

    @property
    def host(self) -> str:
        """The caller's IP address, as grants name it; empty where the socket has none."""
        if not self.caller_host:
            self.caller_host = _address_of(self.find_peer())
        return self.caller_host

    @property
    def cluster_peer(self) -> str:
        """The (first) cluster id that the peer's certificate names; empty without one."""
        return self.cluster_ids[0] if self.cluster_ids else ""

    def seconds_left(self, most: float = 3600.0) -> float:
        """Returns seconds until the deadline, at most ``most``.

        Raises:
            DeadlineExceeded: there are none.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the answer was ready")
        return min(left, most)

    def check(self) -> None:
        """Raises an error if the caller is gone or the time is over: long work calls it (G2).

        Raises:
            Cancelled, DeadlineExceeded
        """
        if not self.is_active():
            raise Cancelled("the caller went away")
        self.seconds_left()


class _Current(threading.local):
    """What the thread is at. Not a context variable: to set and to clear one costs 0.4 µs, and no
    thread of ours answers two calls at a time.
    """

    call: Call | None = None


CURRENT: Final = _Current()
"""The call that this thread answers right now, for log lines from deep below; see ``logs``."""


def _address_of(peer: str) -> str:
    """Returns the address in gRPC's name of a peer, such as ``ipv6:%5B::1%5D:50212``;
    empty = none.
    """
    kind, _, rest = peer.partition(":")
    return _address_in(rest.rpartition(":")[0]) if kind in {"ipv4", "ipv6"} else ""


@lru_cache(_MOST_ADDRESSES)
def _address_in(text: str) -> str:
    try:
        return parse_host(unquote(text).strip("[]"))
    except InvalidArgument:
        return ""


def _asked_id(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _SANE_ID.fullmatch(value):
            return value
    return ""
