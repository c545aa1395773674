"""docs/how-to/upgrade.md shows the feature levels that this version has."""

import re
from pathlib import Path

from directory.server.feature_levels import LEVELS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "upgrade.md"


def test_each_level_is_shown_with_its_name() -> None:
    shown = re.findall(r"^\| (\d+) \| (.+) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert shown == [(str(number), level.name) for number, level in LEVELS.items()]
