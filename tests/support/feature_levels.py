"""Feature levels that no release has, for tests of how levels are raised."""

from __future__ import annotations

from typing import Final

from directory.namespace.keys import LARGE_CHANGE
from directory.server.feature_levels import FeatureLevel, Levels

__all__ = ["INVENTED", "NEWEST", "levels_up_to"]

INVENTED: Final[Levels] = {
    1: FeatureLevel(1, "first", "the first release makes"),
    2: FeatureLevel(2, "second", "put rows of large changes", (LARGE_CHANGE,)),
    3: FeatureLevel(3, "third", "need nothing in the store"),
}
NEWEST: Final = max(INVENTED)


def levels_up_to(level: int) -> Levels:
    """Returns what a release of that level supports."""
    return {number: one for number, one in INVENTED.items() if number <= level}
