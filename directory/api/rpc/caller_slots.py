"""Slots for what calls may do a few at a time, in all and each caller; refuses to wait for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from directory.api.rpc.call_context import Call
from resolver.errors import KdirError, NotReady
from resolver.keyed_slots import KeyedSlots

__all__ = ["CallerSlots", "TooManyWaiting", "caller_key"]


class TooManyWaiting(NotReady):
    """A call would have to wait beside too many others."""


def caller_key(call: Call) -> str:
    """Returns whom a call counts for: its principal; its connection where callers are not
    identified, and its host where it is made in another one's name.
    """
    return call.principal or call.peer or call.host


class CallerSlots(KeyedSlots):
    """Slots of which the keys are callers."""

    @contextmanager
    def hold(self, call: Call, refusal: KdirError) -> Iterator[None]:
        """Holds one slot for the caller of a call.

        Raises:
            KdirError: ``refusal``, where there is none left.
        """
        key = caller_key(call)
        if not self.take(key):
            raise refusal
        try:
            yield
        finally:
            self.give_back(key)
