"""Timeouts of a producer and a consumer by path, which mean what those of Kafka's clients mean."""

from __future__ import annotations

import math
import time

__all__ = ["deadline_after"]


def deadline_after(timeout: float) -> float:
    """Returns the monotonic time at which ``timeout`` seconds are over; a negative ``timeout`` is
    no limit (infinity).
    """
    return math.inf if timeout < 0 else time.monotonic() + timeout
