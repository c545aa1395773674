"""Bounds the answers that callers have not taken: gRPC keeps each in memory until it is sent."""

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
"""Smaller answers are bounded by how many calls there are at a time."""


class UnsentAnswers:
    """Large answers between their handler's end and their call's. Thread-safe.

    A caller that reads nothing costs others nothing: it gets no more than its share, and its calls
    are ended after ``seconds``.

    Args:
        most: bytes of all callers.
        per_caller: bytes of one caller.
        seconds: after which an answer that was not taken is dropped, and its call ended.
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
        """Counts an answer until its call is over.

        Raises:
            LimitExceeded: the caller, or all together, have not taken too many before.
        """
        key = caller_key(call)
        size = min(size, self._per_caller)  # alone, one of any size is taken
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
        """Ends calls whose answer is not taken for too long. To be called every now and then."""
        now = self._clock()
        for context, since in list(self._held.items()):
            if now - since > self._seconds:
                context.cancel()
