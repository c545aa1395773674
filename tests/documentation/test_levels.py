"""docs/operating.md shows the feature levels that this version has."""

import re
from pathlib import Path

from directory.server.feature_levels import LEVELS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating.md"


def test_each_level_is_shown_with_what_it_allows() -> None:
    section = (
        PAGE.read_text()
        .partition("### Rolling upgrades and feature levels")[2]
        .partition("\n## ")[0]
    )
    shown = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", section, re.MULTILINE)
    assert shown == [
        (str(number), level.name, f"changes that {level.allows}")
        for number, level in LEVELS.items()
    ]
