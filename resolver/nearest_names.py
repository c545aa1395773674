"""Suggestion of known names for an unknown one, as the end of an error's sentence."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["nearest_names"]


def nearest_names(name: str, known: Sequence[str]) -> str:
    """Returns the end of an error's sentence: the nearest known names, or if none is near, all."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known: {', '.join(sorted(set(known)))}" if known else ""
