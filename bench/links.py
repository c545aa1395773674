"""What linked children cost their parent: linking them, and a mkdir beside them.

A hundred children are real clusters in four processes. A thousand others, and the hundred that
these are compared with, store nothing (``hollow_children``). Rounds of mkdirs alternate with rounds
in a root without children.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from operator import truediv
from pathlib import Path
from typing import Any, Final

from bench import children, ground
from bench.load import channel_to, method_of
from bench.rows import Row, at_most, reported
from bench.writes import CREATE, Mkdirs
from deploy.local.directory import DirectoryProcess

__all__ = ["run"]

_REAL: Final = 100
_FEW: Final = 100
_MANY: Final = 1_000
_ROUNDS: Final = 9
_MKDIRS: Final = 30
_SETTLING_SECONDS: Final = 5.0
"""Longer than a parent waits between two parts of the mount table: all children have it by then."""


def run() -> list[Row]:
    """Measures real children, and the growth from a hundred to a thousand."""
    with (
        tempfile.TemporaryDirectory(prefix="kdir-bench-") as name,
        children.root(Path(name) / "alone") as alone,
    ):
        folder = Path(name)
        rows, _ = _linked(folder / "real", alone, children.real, _REAL, "clusters", 1.2)
        _, few = _linked(folder / "few", alone, children.hollow, _FEW, "bare links", 1.2)
        more, many = _linked(folder / "many", alone, children.hollow, _MANY, "bare links", 1.5)
    return [
        *rows,
        *more,
        at_most(f"linking {_MANY:,} bare links", many, "s", f"{_FEW} of them", few, 12),
    ]


def _linked(
    folder: Path,
    alone: DirectoryProcess,
    run_children: Callable[..., Any],
    count: int,
    kind: str,
    goal: float,
) -> tuple[list[Row], float]:
    """Returns the rows for ``count`` children of a new root, and the seconds that linking took."""
    folder.mkdir()
    with (
        children.root(folder / "root") as root,
        run_children(folder, root, count) as linked,
    ):
        if kind == "clusters":
            time.sleep(_SETTLING_SECONDS)  # they are loaded by then
        pid, spent, began = root.process.pid, ground.cpu_seconds(root.process.pid), time.monotonic()
        if kind == "clusters":
            children.mount_all(root, linked)
        linked.await_whole()
        seconds = time.monotonic() - began
        spent = ground.cpu_seconds(pid) - spent
        time.sleep(_SETTLING_SECONDS)
        beside, bare = _Mkdirs(root), _Mkdirs(alone)
        try:
            for _ in range(_ROUNDS):
                bare.measure()
                beside.measure()
        finally:
            bare.close()
            beside.close()
    against = statistics.median(bare.p50s)
    ratio = statistics.median(map(truediv, beside.p50s, bare.p50s))
    what = f"mkdir beside {count:,} {kind}"
    rows = [
        at_most(f"{what}, p50", 1e3 * ratio * against, "ms", "without", 1e3 * against, goal),
        reported(
            f"processor of a {what}",
            1e3 * statistics.median(beside.spent),
            "ms",
            "without",
            1e3 * statistics.median(bare.spent),
        ),
        reported(
            f"processor of the parent while {count:,} {kind} link", spent, "s", "wall", seconds
        ),
    ]
    if kind == "clusters":
        rows.insert(
            0, at_most(f"linking {count} {kind}, each with all rows", seconds, "s", "limit", 3, 1)
        )
    return rows, seconds


class _Mkdirs:
    """Rounds of mkdirs, one after the other, in one root."""

    def __init__(self, server: DirectoryProcess) -> None:
        self._pid: Final = server.process.pid
        self._channel: Final = channel_to(server.address)
        self._create: Final = method_of(self._channel, CREATE)
        self._mkdirs: Final = Mkdirs("", f"d{time.monotonic_ns()}")
        self.p50s: Final[list[float]] = []
        self.spent: Final[list[float]] = []

    def measure(self) -> None:
        """Makes one round of mkdirs; adds its figures to ``p50s`` and ``spent``."""
        took, before = [], ground.cpu_seconds(self._pid)
        for _ in range(_MKDIRS):
            request, began = self._mkdirs.next(), time.perf_counter()
            self._create(request, timeout=60)
            took.append(time.perf_counter() - began)
        self.p50s.append(statistics.median(took))
        self.spent.append((ground.cpu_seconds(self._pid) - before) / _MKDIRS)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()
