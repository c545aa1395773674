"""Rows of measured claims: made, kept in files, and shown as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["NO_GOAL", "OUT", "Row", "at_least", "at_most", "read", "reported", "show", "write"]

NO_GOAL = "none"
OUT = Path(__file__).parent / "out"


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value and its goal. ``ratio`` is value / baseline_value; ``goal`` bounds it."""

    name: str
    value: float
    unit: str
    baseline: str
    baseline_value: float
    ratio: float
    goal: str
    holds: bool


def at_least(
    name: str, value: float, unit: str, baseline: str, baseline_value: float, goal: float
) -> Row:
    """Returns a row that claims that the value is ``goal`` times the baseline or more."""
    ratio = value / baseline_value
    return Row(name, value, unit, baseline, baseline_value, ratio, f">= {goal:g}", ratio >= goal)


def at_most(
    name: str, value: float, unit: str, baseline: str, baseline_value: float, goal: float
) -> Row:
    """Returns a row that claims that the value is ``goal`` times the baseline or less."""
    ratio = value / baseline_value
    return Row(name, value, unit, baseline, baseline_value, ratio, f"<= {goal:g}", ratio <= goal)


def reported(name: str, value: float, unit: str, baseline: str, baseline_value: float) -> Row:
    """Returns a row with a figure beside another, of which nothing is claimed."""
    return Row(name, value, unit, baseline, baseline_value, value / baseline_value, NO_GOAL, True)


def show(rows: Sequence[Row]) -> str:
    """Returns the rows as a Markdown table, as RESULTS.md has it."""
    lines = [
        "| what | value | against | ratio | goal | holds |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {_number(row.value)} {row.unit} | {row.baseline}: "
        f"{_number(row.baseline_value)} | {row.ratio:.2f} | {row.goal} | "
        f"{'yes' if row.holds else 'no'} |"
        for row in rows
    ]
    return "\n".join(lines)


def write(name: str, rows: Sequence[Row]) -> Path:
    """Keeps the rows as ``bench/out/NAME.json``."""
    OUT.mkdir(exist_ok=True)
    file = OUT / f"{name}.json"
    file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return file


def read(name: str) -> list[Row]:
    """Returns what ``write`` kept; nothing when that benchmark was not run here."""
    file = OUT / f"{name}.json"
    return [Row(**one) for one in json.loads(file.read_text())] if file.exists() else []


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
