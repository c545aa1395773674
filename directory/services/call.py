"""One call as handlers see it: who asks, how long there is; refuses to expose gRPC's context."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from resolver.errors import Cancelled, DeadlineExceeded

__all__ = ["CURRENT", "REQUEST_ID_KEY", "Call"]

REQUEST_ID_KEY: Final = "x-request-id"
"""Metadata by which a caller names its call."""
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(slots=True)
class Call:
    """What a handler may know of the call it answers."""

    deadline: float
    """By ``time.monotonic``: the caller's, or the server's own cap (RELIABILITY G1)."""
    principal: str = ""
    """From the certificate or a verified token, never from a field; empty without identities."""
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

    def seconds_left(self, most: float = 3600.0) -> float:
        """Seconds until the deadline, at most ``most``.

        Raises:
            DeadlineExceeded: there are none.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the answer was ready")
        return min(left, most)

    def check(self) -> None:
        """To be called in long work: stops it when nobody waits any more (RELIABILITY G2).

        Raises:
            Cancelled, DeadlineExceeded
        """
        if not self.is_active():
            raise Cancelled("the caller went away")
        self.seconds_left()


class _Current(threading.local):
    """What the thread is at. Not a context variable: to set and to clear one costs 0.4 µs, and no
    thread of ours answers two calls by turns.
    """

    call: Call | None = None


CURRENT: Final = _Current()
"""The call that this thread answers right now, for log lines from deep below; see ``logs``."""


def _asked_id(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _SANE_ID.fullmatch(value):
            return value
    return ""
