"""Suggests known names for an unknown one, as the end of an error message."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["nearest_names"]


def nearest_names(name: str, known: Sequence[str]) -> str:
    """Returns the end of an error message: the most similar known names; if none is similar, all
    known names.
    """
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known: {', '.join(sorted(set(known)))}" if known else ""
