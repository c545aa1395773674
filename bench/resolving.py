"""Resolve and BatchResolve through a real server on one core, against a bare grpcio server.

The load runs on the other core. A Python client is no faster than a Python server, so rates are
taken per second of the server's own CPU: what it could do with its core to itself. Rounds of both
alternate, and medians are compared: the machine's other work slows both. Latency is wall time, at
half the rate that the slower of the two reached.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from bench import ground
from bench.comparing import beside_echo
from bench.ground import SHOWN, TOPICS, in_use
from bench.load import BATCH, RESOLVE, Load, batches, channel_to, method_of, resolves
from bench.rows import Row, at_least

__all__ = ["run"]

_ECHO: Final = "/bench.Echo/Echo"
_ROUNDS: Final = 7
_FEW: Final = 10_000


def run() -> list[Row]:
    """Measures few and many topics, unary and in batches."""
    ground.free_core()
    store = ground.filled(TOPICS, TOPICS // 100)
    with (
        tempfile.TemporaryDirectory(prefix="kdir-bench-") as name,
        ground.pinned_directory(Path(name) / "many", store) as server,
    ):
        folder = Path(name)
        many = Load(server.address, server.process.pid, RESOLVE, resolves(TOPICS, 200_000))
        return [
            *_unary(folder, many),
            *_batch(folder, server.address, server.process.pid),
        ]


def _unary(folder: Path, many: Load) -> list[Row]:
    """Measures Resolve of random paths of the whole tree, against an echo and a small tree."""
    with channel_to(many.address) as channel:
        size = len(method_of(channel, RESOLVE)(many.requests[0], timeout=5))
    with (
        ground.pinned_echo(folder, "unary", size) as (echo, echo_pid),
        ground.pinned_directory(folder / "few", ground.filled(_FEW, 100)) as small,
    ):
        bare = Load(echo, echo_pid, _ECHO, many.requests)
        few = Load(small.address, small.process.pid, RESOLVE, resolves(_FEW, 200_000))
        name = f"unary Resolve, {SHOWN} topics"
        rows = beside_echo(name, many, bare, _ROUNDS, [few])
    return [*rows, at_least(name, many.rate, "/CPU s", "10k topics", few.rate, 0.85)]


def _batch(folder: Path, address: str, pid: int) -> list[Row]:
    """Measures batches of paths in use, and of random paths of the whole tree, against an echo."""
    used = in_use()
    with ground.pinned_echo(folder, "batch", 1_000) as (echo, echo_pid):
        again = Load(address, pid, BATCH, batches(100, used))
        bare = Load(echo, echo_pid, _ECHO, again.requests)
        repeated = Load(address, pid, BATCH, batches(600, range(TOPICS)))
        for _ in range(2):
            again.round(4)
        again.clear()
        for _ in range(_ROUNDS):
            for load in (bare, again):
                load.round(4)
        for _ in range(_ROUNDS):
            for load in (bare, repeated):
                load.round(4)
    unit, against, per_path = "paths/CPU s", "bare batch echo", 1_000
    return [
        at_least(
            f"BatchResolve of 1,000 paths of {len(used) // 1000}k in use",
            per_path * again.rate,
            unit,
            against,
            per_path * bare.rate,
            0.5,
        ),
        at_least(
            f"BatchResolve of 1,000 paths anywhere among {SHOWN}",
            per_path * repeated.rate,
            unit,
            against,
            per_path * bare.rate,
            0.5,
        ),
    ]
