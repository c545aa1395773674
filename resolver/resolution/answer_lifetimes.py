"""Lifetimes of answers, absences and referrals: their caps, and their remaining time.

A lifetime that a server sets is capped (R18). The lifetime of an answer is at most that of the
replies that led to it: no answer of a child extends the lifetime of its parent's referral (R11).
``resolver/watch_streams.py`` limits answers of watched clusters by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = [
    "MAX_LIFETIME_SECONDS",
    "MAX_NEGATIVE_SECONDS",
    "UNLIMITED_SECONDS",
    "basis_lifetime",
    "cap_lifetime",
    "cap_negative_lifetime",
    "limit_by_referrals",
    "saved_seconds_left",
    "shortest_lifetime",
]

MAX_LIFETIME_SECONDS: Final = 3600
"""Longest lifetime of an answer or referral, whatever its sender sets (R18)."""
MAX_NEGATIVE_SECONDS: Final = 30
"""Longest lifetime of an absence: a topic that was just created must appear soon (R18)."""
UNLIMITED_SECONDS: Final = 2**31
"""Lifetime of replies to which no referral or link led, since the start servers are configured."""


# -- caps (R18) ----------------------------------------------------------------------------


def cap_lifetime(seconds: int) -> int:
    """Returns the lifetime of an answer, a referral or a link whose sender set ``seconds``."""
    return min(seconds, MAX_LIFETIME_SECONDS)


def cap_negative_lifetime(seconds: int) -> int:
    """Returns the lifetime of an absence whose sender set ``seconds``."""
    return min(seconds, MAX_NEGATIVE_SECONDS)


def saved_seconds_left(seconds: float, elapsed_seconds: float) -> float:
    """Returns the seconds left of a lifetime that had ``seconds`` left when it was saved. A saved
    lifetime is capped like a server's.
    """
    return max(min(seconds, MAX_LIFETIME_SECONDS) - elapsed_seconds, 0.0)


# -- limits by referrals and links (R11) ---------------------------------------------------


def shortest_lifetime(parts: Iterable[int | None]) -> int | None:
    """Returns the shortest of some lifetimes in seconds; None = unlimited."""
    return min((part for part in parts if part is not None), default=None)


def basis_lifetime(referral_seconds: int, answer_seconds: int, *, recursive: bool) -> int:
    """Returns the remaining seconds of the replies that led to an answer. The lifetime of a
    recursive answer also covers the referrals that its server followed.
    """
    return min(referral_seconds, answer_seconds) if recursive else referral_seconds


def limit_by_referrals(seconds: int, referral_seconds: int) -> int:
    """Returns the lifetime in seconds of an answer or link, limited by the replies before it."""
    return min(seconds, referral_seconds)
