"""Which known names an unknown one may stand for, as an error's sentence ends."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["nearest_names"]


def nearest_names(name: str, known: Sequence[str]) -> str:
    """Returns which of the known names may be meant, to follow an error's sentence."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known: {', '.join(sorted(set(known)))}" if known else ""
