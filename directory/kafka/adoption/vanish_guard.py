"""Vanish guard: how many topics may be gone at once before all changes stop, and the reasons of a
stop; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "VANISH_FLOOR",
    "VANISH_PERCENT",
    "StopReason",
    "another_kafka_stop",
    "exceeds_vanish_guard",
    "vanished_stop",
]

VANISH_PERCENT: Final = 5
"""If more than this share of a cluster's topics is gone or replaced at once, all changes stop."""
VANISH_FLOOR: Final = 3
"""Fewer gone topics never stop anything: one of ten, or two of two, is an operator at work."""
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class StopReason:
    """Reason why nothing is done until an operator acknowledges it with this very text."""

    text: str
    gone: int
    """Number of topics that vanished or changed; an acknowledgement covers no more."""
    kafka_id: str = ""
    """Another Kafka's id, which an acknowledgement pins."""


def exceeds_vanish_guard(gone: int, present: int) -> bool:
    """True if ``gone`` of ``present`` topics are more than may be gone at once."""
    return gone >= VANISH_FLOOR and gone * 100 > present * VANISH_PERCENT


def vanished_stop(gone: Sequence[str], present: int) -> StopReason:
    """Returns the stop for these topic names, which are gone of ``present`` topics."""
    return StopReason(
        f"{len(gone)} of {present} topics vanished from Kafka or changed their topic id at once: "
        f"{_some(gone)}; nothing is done until this is acknowledged",
        gone=len(gone),
    )


def another_kafka_stop(found: str, pinned: str, *, gone: int, recorded: int) -> StopReason:
    """Returns the stop for another Kafka, with the id ``found``, that lacks ``gone`` topics."""
    return StopReason(
        f"another Kafka cluster answers: {found}, this directory belongs to {pinned}; "
        f"{gone} of {recorded} topics are not there; nothing is done until the right one is back "
        f"or this one is acknowledged",
        gone=gone,
        kafka_id=found,
    )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(ordered[:_NAMED])
    return f"{shown}, …" if len(ordered) > _NAMED else shown
