"""Context of one call, as handlers use it: the caller's identity and the deadline."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final
from urllib.parse import unquote

from directory.access.principals import parse_host
from resolver.errors import Cancelled, DeadlineExceeded, InvalidArgument

__all__ = ["CURRENT", "REQUEST_ID_KEY", "Call", "UnfinishedWrites"]

REQUEST_ID_KEY: Final = "x-request-id"
"""Metadata by which a caller names its call."""
_MOST_ADDRESSES: Final = 4096
"""Most parsed addresses of callers that are cached: to parse one costs as much as to resolve a
path.
"""
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def _at_once(finish: Callable[[], None]) -> None:
    finish()


class UnfinishedWrites:
    """Work that writes have left to do after their answers. Each call that begins later does it
    first, so that it sees the answered writes. Thread-safe.
    """

    def __init__(self) -> None:
        self.left: Final[deque[Callable[[], None]]] = deque()
        """Functions that are left to call, oldest first."""

    def add(self, finish: Callable[[], None]) -> None:
        """Adds a function to call later. ``finish`` must not fail; it may be called several times,
        also by several threads at once, and returns only once it is done.
        """
        self.left.append(partial(finish))  # unlike a function, a partial equals no other

    def finish(self) -> None:
        """Calls the functions that are left."""
        with suppress(IndexError):
            while True:
                finish = self.left[0]
                finish()
                with suppress(ValueError):
                    self.left.remove(finish)


@dataclass(slots=True)
class Call:
    """Context of the call that a handler answers."""

    deadline: float
    """By ``time.monotonic``: the caller's, or the server's own cap (G1)."""
    principal: str = ""
    """From the certificate or a verified token, never from a field of the request; empty if callers
    are not identified, ``User:ANONYMOUS`` for one without an identity where that is allowed.
    """
    cluster_ids: tuple[str, ...] = ()
    """The clusters that the peer's certificate names; see ``directory.server.authentication``."""
    bearer: str = field(default="", repr=False)
    """The caller's verified token, used only for calls to other servers in the caller's name."""
    identify: Callable[[], object] = bool
    """Reads the caller's credentials again: raises ``Unauthenticated`` if they have ended."""
    caller_host: str = ""
    """IP address that ``host`` returns; set if the call is answered within another call."""
    is_active: Callable[[], bool] = bool
    """Returns whether the caller still waits."""
    cancel: Callable[[], object] = bool
    """Cancels the call."""
    find_peer: Callable[[], str] = str
    """Returns the caller's address, as in ``peer``."""
    metadata: Callable[[], Iterable[tuple[str, str | bytes]]] = tuple
    """Returns the metadata of the request."""
    after_answer: Callable[[Callable[[], None]], None] = _at_once
    """Has a function called after the answer of a write is sent; see ``UnfinishedWrites.add``."""
    cluster: str = ""
    """The cluster that the call is for, if a process hosts several; for logs."""
    _request_id: str = ""

    @property
    def request_id(self) -> str:
        """Id of the call in log lines and errors: the caller's ``x-request-id`` if it is 1 to 64 of
        ``A-Z a-z 0-9 . _ : -``, else a random one.

        Computed on first use: most calls succeed and are not logged.
        """
        if not self._request_id:
            self._request_id = _asked_id(self.metadata()) or secrets.token_hex(8)
        return self._request_id

    @property
    def peer(self) -> str:
        """The caller's address, such as ``ipv4:127.0.0.1:50212``."""
        return self.find_peer()

    @property
    def host(self) -> str:
        """The caller's IP address, as in grants; empty for a Unix socket."""
        if not self.caller_host:
            self.caller_host = _address_of(self.find_peer())
        return self.caller_host

    def seconds_left(self, most: float = 3600.0) -> float:
        """Returns the seconds until the deadline, at most ``most``.

        Raises:
            DeadlineExceeded: the deadline has passed.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the answer was ready")
        return min(left, most)

    def check(self) -> None:
        """Checks that the caller still waits and the deadline has not passed; long work calls it
        (G2).

        Raises:
            Cancelled: the caller has gone.
            DeadlineExceeded: the deadline has passed.
        """
        if not self.is_active():
            raise Cancelled("the caller went away")
        self.seconds_left()


class _Current(threading.local):
    """Call of each thread. Not a context variable: setting and clearing one costs 0.4 µs, and no
    thread answers two calls at a time.
    """

    call: Call | None = None


CURRENT: Final = _Current()
"""The call that this thread answers now, for log lines of lower layers; see ``logs``."""


def _address_of(peer: str) -> str:
    """Returns the IP address of a peer in gRPC's syntax, such as ``ipv6:%5B::1%5D:50212``; empty =
    none.
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
