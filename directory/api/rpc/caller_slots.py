"""Slots that limit an activity, in all and for each caller; without a free slot a call is refused,
never delayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from directory.api.rpc.call_context import Call
from resolver.errors import KdirError, NotReady
from resolver.keyed_slots import KeyedSlots

__all__ = ["CallerSlots", "TooManyWaiting", "caller_key"]


class TooManyWaiting(NotReady):
    """Error of a call that would have to wait while too many others wait."""


def caller_key(call: Call) -> str:
    """Returns the key that a call counts for: its principal; its connection if callers are not
    identified; its host if it is made in another caller's name.
    """
    return call.principal or call.peer or call.host


class CallerSlots(KeyedSlots):
    """Slots with callers as keys.

    Args:
        settings: names of the settings that set the numbers, for refusals.
    """

    def __init__(self, most: int, per_caller: int, settings: str = "") -> None:
        super().__init__(most, per_caller)
        self.settings: Final = settings

    @contextmanager
    def hold(self, call: Call, refusal: KdirError) -> Iterator[None]:
        """Context manager that holds one slot for the caller of a call.

        Raises:
            KdirError: ``refusal``, if there is none left.
        """
        key = caller_key(call)
        if not self.take(key):
            raise refusal
        try:
            yield
        finally:
            self.give_back(key)
