"""How long one of several servers is waited for: its share of the remaining time (R20).

As in a DNS stub resolver: a short first round, a longer second one; so a hanging server with an
open port costs half a second instead of half of the deadline.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_TRY_SECONDS", "LEAST_SECONDS", "per_server_timeout", "time_share"]

FIRST_TRY_SECONDS: Final = 0.5
"""First timeout of a server that can be tried again after the others: a healthy one needs some
milliseconds, and a first connection across an ocean three round trips.
"""
_MOST_SHARES: Final = 4
"""Most parts that the remaining time is split into, however many servers are left."""
_BATCH_PATHS_A_SECOND: Final = 2_000.0
"""Rate by which a large batch gets more time: its answer must be transferred, too."""
LEAST_SECONDS: Final = 0.01
"""Shortest timeout of a call."""


def time_share(servers: int) -> float:
    """Returns the share of the remaining time for the first of ``servers`` servers. The share has
    a lower limit, since most servers answer or fail quickly.
    """
    return 1 / min(servers, _MOST_SHARES)


def per_server_timeout(
    left_seconds: float, share: float, *, hurried: bool = False, paths: int = 1
) -> float:
    """Returns the timeout for one server: its share of the remaining time and, while others of its
    kind were not tried yet (``hurried``), no more than a healthy one needs.
    """
    part = left_seconds * share
    if hurried:
        part = min(part, left_seconds / 4, FIRST_TRY_SECONDS + (paths - 1) / _BATCH_PATHS_A_SECOND)
    return max(part, LEAST_SECONDS)
