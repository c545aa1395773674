"""RESULTS.md and the README's five lines of figures, made of what the benchmarks kept."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.rows import NO_GOAL, Row, read, show

__all__ = ["BEGIN", "END", "README", "RESULTS", "STRONGEST", "refresh", "with_section"]

RESULTS: Final = Path(__file__).parent / "RESULTS.md"
README: Final = Path(__file__).parent.parent / "README.md"
BEGIN: Final = "<!-- bench -->"
END: Final = "<!-- /bench -->"
STRONGEST: Final = (
    "memory of a topic among 1M",
    "BatchResolve of 1,000 paths of 50k in use",
    "warm resolve",
    "kdir ls of one page",
    "find in 1,000,000 topics",
)
"""The rows that the README shows, by name."""


def refresh(names: Sequence[str]) -> None:
    """Puts the kept rows of these benchmarks into RESULTS.md, and the strongest into the README."""
    kept = {name: read(name) for name in names}
    rows = [row for of_one in kept.values() for row in of_one]
    absent = [name for name, of_one in kept.items() if not of_one]
    strongest = [row for name in STRONGEST for row in rows if row.name == name]
    RESULTS.write_text(with_section(RESULTS.read_text(), section(rows, absent)))
    README.write_text(with_section(README.read_text(), show(strongest)))


def section(rows: Sequence[Row], absent: Sequence[str] = ()) -> str:
    """Returns the table of rows below a line about the machine, the missed goals and the benchmarks
    of which no row is kept.
    """
    goals = [row for row in rows if row.goal != NO_GOAL]
    missed = [row for row in goals if not row.holds]
    fate = f"{len(missed)} of {len(goals)} goals are missed" if missed else "all goals are met"
    left_out = f" Benchmarks without a row here: {', '.join(absent)}." if absent else ""
    return (
        f"On {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, "
        f"beside other work on the same cores:\n{fate}. "
        "Each value is held to its goal as a ratio to the figure beside it, of the\nsame run; "
        f"a goal that is missed stands here as missed.{left_out}\n\n{show(rows)}"
    )


def with_section(text: str, body: str) -> str:
    """Returns the text with ``body`` between the two marks.

    Raises:
        ValueError: the marks are not there once each, in this order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"the text must hold {BEGIN} and {END} once each, in this order")
    return f"{before}{BEGIN}\n{body}\n{END}{after}"
