"""Timeouts of a producer and a consumer by path, with the meaning of those of Kafka's clients."""

from __future__ import annotations

import math
import time

__all__ = ["deadline_after"]


def deadline_after(timeout: float) -> float:
    """Returns the monotonic time in ``timeout`` seconds; infinity, for no limit, if ``timeout`` is
    negative.
    """
    return math.inf if timeout < 0 else time.monotonic() + timeout
