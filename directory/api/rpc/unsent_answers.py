"""Limit of the responses that callers have not read: gRPC keeps each in memory until it is sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import grpc

from directory.api.rpc.call_context import Call
from directory.api.rpc.caller_slots import CallerSlots, caller_key
from resolver.errors import LimitExceeded

__all__ = ["LARGE_BYTES", "UnsentAnswers"]

LARGE_BYTES: Final = 16 * 1024
"""Responses up to this size are limited only by the number of concurrent calls."""


class UnsentAnswers:
    """Large responses between the end of their handler and that of their call. Thread-safe.

    A caller that reads nothing gets no more than its share of memory, and its calls are ended after
    ``seconds``.

    Args:
        most: bytes of all callers.
        per_caller: bytes of one caller.
        seconds: time after which an unread response is dropped, and its call ended.
    """

    def __init__(
        self,
        most: int,
        per_caller: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots: Final = CallerSlots(most, per_caller)
        self._per_caller: Final = per_caller
        self._seconds: Final = seconds
        self._clock: Final = clock
        self._held: Final[dict[grpc.ServicerContext, float]] = {}

    def hold(self, context: grpc.ServicerContext, call: Call, size: int) -> None:
        """Counts a response until its call is over.

        Raises:
            LimitExceeded: the caller, or all callers together, have too many unread bytes.
        """
        key = caller_key(call)
        size = min(size, self._per_caller)  # a single response may have any size
        if not self._slots.take(key, size):
            raise LimitExceeded(
                f"answers of {self._per_caller} bytes or more wait to be read; read them first "
                f"(limits.principal_unsent_bytes, limits.unsent_bytes)",
                limit=self._per_caller,
            )

        def over() -> None:
            self._held.pop(context, None)
            self._slots.give_back(key, size)

        self._held[context] = self._clock()
        if not context.add_callback(over):
            over()

    def end_late(self) -> None:
        """Ends calls whose response was not read in time. Called periodically."""
        now = self._clock()
        for context, since in list(self._held.items()):
            if now - since > self._seconds:
                context.cancel()
