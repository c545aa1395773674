"""One call as handlers see it: who asks, how long there is; refuses to expose gRPC's context."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from resolver.errors import Cancelled, DeadlineExceeded

__all__ = ["Call"]


@dataclass(slots=True)
class Call:
    """What a handler may know of the call it answers."""

    deadline: float
    """By ``time.monotonic``: the caller's, or the server's own cap (RELIABILITY G1)."""
    principal: str = ""
    """From the certificate or a verified token, never from a field; empty without identities."""
    request_id: str = ""
    """For logs."""
    peer: str = ""
    is_active: Callable[[], bool] = bool
    """Whether the caller still waits."""
    on_end: Callable[[Callable[[], None]], object] = callable
    """Registers what is to be called when the call is over."""
    cancel: Callable[[], object] = bool
    """Ends the call from this side."""

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
