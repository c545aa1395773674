"""Timeout of a call to one of several servers: a share of the remaining time (R20).

As in a DNS stub resolver, the first round is short and the second longer. So a server that accepts
connections but never answers costs half a second instead of half of the deadline.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_TRY_SECONDS", "LEAST_SECONDS", "per_server_timeout", "time_share"]

FIRST_TRY_SECONDS: Final = 0.5
"""First timeout of a server that can be called again after the others. A healthy server needs
milliseconds; a first connection across an ocean, three round trips.
"""
_MOST_SHARES: Final = 4
"""Most shares of the remaining time, however many servers are left."""
_BATCH_PATHS_A_SECOND: Final = 2_000.0
"""A batch gets one second more for this number of paths, to transfer the answer."""
LEAST_SECONDS: Final = 0.01
"""Shortest timeout of a call."""


def time_share(servers: int) -> float:
    """Returns the share of the remaining time for the next of ``servers`` servers, as a fraction.
    It is at least 1/4, since most servers answer or fail quickly.
    """
    return 1 / min(servers, _MOST_SHARES)


def per_server_timeout(
    left_seconds: float, share: float, *, hurried: bool = False, paths: int = 1
) -> float:
    """Returns the timeout in seconds for one server: its share of the remaining time; if
    ``hurried`` (other servers of the hop are not tried yet), at most the time that a healthy one
    needs.
    """
    part = left_seconds * share
    if hurried:
        part = min(part, left_seconds / 4, FIRST_TRY_SECONDS + (paths - 1) / _BATCH_PATHS_A_SECOND)
    return max(part, LEAST_SECONDS)
