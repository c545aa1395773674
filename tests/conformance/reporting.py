"""Says at the end what was left out of the conformance cases, by category and reason.

Hooks for ``tests/conftest.py``: of a conftest further down pytest-xdist's controller knows nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.conformance.cases import FOLDER, TALLIES, Tally, folder
from tests.conformance.exclusions import EXCLUSIONS

_KEY = "conformance"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the counts of a pytest-xdist worker to the main process, which prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_KEY] = {name: (one.run, dict(one.excluded)) for name, one in TALLIES.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the counts of the last worker: every worker collects every row."""
    for name, (run, excluded) in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
        TALLIES[name] = Tally(run, Counter(excluded))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints one line a driver and one a category, or why there was no folder."""
    where = folder()
    if where is None or not where.is_dir():
        why = "is not set" if where is None else f"is set to {where}, which is no folder"
        terminalreporter.write_line(f"conformance: no cases were run: {FOLDER} {why}")
        return
    if not TALLIES:
        return
    terminalreporter.section("conformance")
    for driver, tally in sorted(TALLIES.items()):
        left_out = sum(tally.excluded.values())
        terminalreporter.write_line(f"{driver}: {tally.run} rows run, {left_out} excluded")
        for name, count in sorted(tally.excluded.items()):
            terminalreporter.write_line(f"  {count:3} {name}: {EXCLUSIONS[name]}")
