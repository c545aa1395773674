"""Calls that have begun and whose request has not come yet; refuses to wait for one for ever.

gRPC gives a call its thread with the first bytes of its headers. A caller that sends no more would
hold the thread until it goes away, and as many calls as there are threads would hold the server. So
handlers take their request through here, and one that does not come in time is cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

__all__ = ["Arrivals"]

PATIENT_SECONDS: Final = 20.0
"""The largest request, over a slow line."""
CROWDED_SECONDS: Final = 5.0
"""While other calls wait for a thread. Requests come right behind their headers; but under a flood
gRPC itself may take seconds to hand them on, and honest callers must not be cancelled then."""


class Arrivals:
    """Takes the first message of calls. Thread-safe: each change is one step of a dict."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._since: Final[dict[grpc.ServicerContext, float]] = {}
        self.cancelled = 0
        """How many did not come in time."""

    def take(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """The request; None where the caller ended its side without one.

        Raises:
            grpc.RpcError: the call is over; gRPC itself knows what to do with this one.
        """
        self._since[context] = self._clock()
        try:
            return next(requests, None)
        finally:
            del self._since[context]

    def cancel_late(self, *, crowded: bool) -> None:
        """To be called every now and then. ``crowded``: calls wait for a thread."""
        if not self._since:
            return
        limit = CROWDED_SECONDS if crowded else PATIENT_SECONDS
        now = self._clock()
        for context, since in list(self._since.items()):
            if now - since > limit:
                self.cancelled += 1
                context.cancel()
