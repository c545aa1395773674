"""Conformance cases: reads any folder of the known files, and keeps count of what is left out.

``KDIR_CONFORMANCE_DIR`` names the folder; without it the drivers skip, saying so.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.exclusions import EXCLUSIONS

__all__ = [
    "FOLDER",
    "NOT_UNDERSTOOD",
    "TALLIES",
    "Row",
    "Tally",
    "assert_fields",
    "assert_same",
    "cases",
    "folder",
    "run",
    "section_rows",
]

NOT_UNDERSTOOD = "not-understood"
"""What a driver says of a row that holds a word that it does not know."""

FOLDER = "KDIR_CONFORMANCE_DIR"

Row = dict[str, Any]


@dataclass
class Tally:
    """Tally of one file's rows that were run and that were excluded."""

    run: int = 0
    excluded: Counter[str] = field(default_factory=Counter)


TALLIES: dict[str, Tally] = {}
"""By driver; the terminal summary (``conftest.py``) shows it."""


def folder() -> Path | None:
    """Returns the folder of cases, if one is named."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else None


def cases(
    driver: str,
    file: str,
    read: Callable[[str], Iterable[Row]],
    category: Callable[[Row], str | None],
) -> list[Any]:
    """Returns the rows to run, as parameters of a test; those of a category are counted and left
    out.

    A row whose category cannot be told, or that holds a word that its driver does not know
    (``NOT_UNDERSTOOD``), is run, and fails with the reason.
    """
    where = folder()
    if where is None:
        return [_skipped(f"{FOLDER} is not set")]
    if not (where / file).is_file():
        return [_skipped(f"{where} holds no {file}")]
    tally = TALLIES[driver] = Tally()
    params = []
    for number, row in enumerate(_rows(where / file, read), start=1):
        name = _category(row, category)
        if name == NOT_UNDERSTOOD:
            row[NOT_UNDERSTOOD] = True
        if name is None or name == NOT_UNDERSTOOD:
            tally.run += 1
            params.append(pytest.param(row, id=str(row.get("id") or row.get("test") or number)))
        else:
            tally.excluded[name] += 1
    return params or [_skipped(f"{file} holds no row to run")]


def section_rows(text: str, metadata: Collection[str]) -> Iterator[Row]:
    """Yields the rows of every section of a JSON file, each with the name of its section.

    A section is a list of rows, or a table whose ``cases`` are one. ``metadata`` names the lists
    and tables that hold no rows; any other is rows to which the driver must give a category.
    """
    yield from _rows_below("", json.loads(text), metadata)


def _rows_below(section: str, part: Any, metadata: Collection[str]) -> Iterator[Row]:
    if isinstance(part, list):
        for row in part:
            yield {**(row if isinstance(row, dict) else {"row": row}), "section": section}
        return
    parts = {name: one for name, one in part.items() if isinstance(one, list | dict)}
    if section and part and not parts:
        yield {**part, "section": section}
    for name, one in parts.items():
        if section and name == "cases":
            yield from _rows_below(section, one, metadata)
        elif section or name not in metadata:
            yield from _rows_below(f"{section}/{name}".lstrip("/"), one, metadata)


def run(check: Callable[[Row], None], row: Row) -> None:
    """Holds kdir to a row; one that the driver cannot read fails."""
    if row.get(NOT_UNDERSTOOD):
        pytest.fail(
            f"a kind of row that this driver does not know, to be sorted by a person: {row}"
        )
    try:
        check(row)
    except KeyError as error:
        pytest.fail(f"the row lacks {error}, or its driver does not know it: {row}")


def assert_same(found: object, expected: object) -> None:
    """Asserts that two values are the same JSON value; 1 is not true."""
    shown, wanted = (json.dumps(value, sort_keys=True) for value in (found, expected))
    assert shown == wanted, f"found {shown}, expected {wanted}"


def assert_fields(found: Row, expected: Row) -> None:
    """Asserts every field that a row states; it states at least one, and only known ones."""
    assert expected, f"the row expects nothing of {found}"
    assert expected.keys() <= found.keys(), f"expected {expected}, known are {sorted(found)}"
    assert_same({name: found[name] for name in expected}, expected)


def _rows(file: Path, read: Callable[[str], Iterable[Row]]) -> list[Row]:
    """Returns all rows of a file.

    Raises:
        ValueError: it does not hold what its name says, or nothing; names the file.
    """
    try:
        rows = list(read(file.read_text(encoding="utf-8")))
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file} cannot be read as such cases: {what}") from error
    if not rows:
        raise ValueError(f"{file} holds no row")
    return rows


def _category(row: Row, category: Callable[[Row], str | None]) -> str | None:
    try:
        name = category(row)
    except Exception:  # noqa: BLE001 - the row is run, and its test says what is wrong
        return None
    if name is not None and name != NOT_UNDERSTOOD and name not in EXCLUSIONS:
        raise ValueError(f"no exclusion is called {name!r}; see tests/conformance/exclusions.py")
    return name


def _skipped(reason: str) -> Any:
    return pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")
