"""A load of a server beside the same load of a bare echo: both rates, and p99 at half load."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from bench.load import Load
from bench.rows import Row, at_least, at_most

__all__ = ["beside_echo"]

_WARM_UP: Final = 5
"""Rounds in which the server meets most of its 10,000 directories for the first time."""
_LATENCY_ROUNDS: Final = 3


def beside_echo(
    name: str, load: Load, bare: Load, rounds: int, others: Sequence[Load] = ()
) -> list[Row]:
    """Returns two rows: calls a second of processor, and p99 at half of what the slower one
    reaches.

    Args:
        others: further loads of the same rounds, whose rates the caller compares.
    """
    for _ in range(_WARM_UP):
        load.round()
    load.clear()
    for _ in range(rounds):
        for one in (bare, load, *others):
            one.round()
    half = min(bare.reached, load.reached) / 2
    slow, slow_bare = [], []
    for _ in range(_LATENCY_ROUNDS):
        slow_bare.append(bare.p99(half))
        slow.append(load.p99(half))
    p99, p99_bare = 1e3 * statistics.median(slow), 1e3 * statistics.median(slow_bare)
    return [
        at_least(name, load.rate, "/CPU s", "bare echo", bare.rate, 0.90),
        at_most("its p99 at half load", p99, "ms", "bare echo", p99_bare, 1.25),
    ]
