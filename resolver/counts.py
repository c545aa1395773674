"""How many of something, in words for people; refuses to round."""

from __future__ import annotations

__all__ = ["count", "plural"]


def count(number: int) -> str:
    """``1204`` as ``1,204``."""
    return f"{number:,}"


def plural(number: int, one: str, many: str = "") -> str:
    """``1 topic``, ``1,204 topics``."""
    return f"{count(number)} {one if number == 1 else many or f'{one}s'}"
