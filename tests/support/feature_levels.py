"""Feature levels that no release has, for tests of how levels are raised."""

from __future__ import annotations

from typing import Final

from directory.namespace.keys import LARGE_CHANGE
from directory.server.feature_levels import FeatureLevel, Levels

__all__ = ["INVENTED", "NEWEST", "levels_up_to"]

INVENTED: Final[Levels] = {
    1: FeatureLevel(1, "first"),
    2: FeatureLevel(2, "second", (LARGE_CHANGE,)),
    3: FeatureLevel(3, "third"),
}
NEWEST: Final = max(INVENTED)


def levels_up_to(level: int) -> Levels:
    """Returns what a release of that level supports."""
    return {number: one for number, one in INVENTED.items() if number <= level}
