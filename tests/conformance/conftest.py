"""Says at the end what was left out of the conformance cases, by category and reason."""

from __future__ import annotations

import pytest

from tests.conformance.cases import FOLDER, TALLIES, folder
from tests.conformance.exclusions import EXCLUSIONS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a driver and one a category; also that there was no folder."""
    if folder() is None:
        terminalreporter.write_line(f"conformance: no cases were run: {FOLDER} is not set")
        return
    if not TALLIES:
        return
    terminalreporter.section("conformance")
    for driver, tally in sorted(TALLIES.items()):
        left_out = sum(tally.excluded.values())
        terminalreporter.write_line(f"{driver}: {tally.run} rows run, {left_out} excluded")
        for name, count in sorted(tally.excluded.items()):
            terminalreporter.write_line(f"  {count:3} {name}: {EXCLUSIONS[name]}")
