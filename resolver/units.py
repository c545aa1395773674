"""Counts, durations and sizes as text for people."""

from __future__ import annotations

__all__ = ["age", "count", "duration_ms", "plural", "retention", "took"]


def count(number: int) -> str:
    """Returns ``1204`` as ``1,204``."""
    return f"{number:,}"


def plural(number: int, one: str, many: str = "") -> str:
    """Returns a count with its noun: ``1 topic``, ``1,204 topics``."""
    return f"{count(number)} {one if number == 1 else many or f'{one}s'}"


_STEPS = (("y", 365 * 86_400), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_LONGEST_SECONDS = 10.0**10
"""Longest age that is shown: a server may send any number, also infinity."""


def age(seconds: float) -> str:
    """Returns an age in its largest whole unit: ``0.2s``, ``6m``, ``3d``."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    seconds = min(seconds, _LONGEST_SECONDS)
    for unit, size in _STEPS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"


def took(seconds: float) -> str:
    """Returns the duration of a call: ``71.4ms``."""
    return f"{seconds * 1000:.1f}ms" if seconds < 10 else f"{seconds:.1f}s"


def duration_ms(milliseconds: int) -> str:
    """Returns a duration as one exact number and unit: ``7d``, ``36h``, ``1500ms``."""
    if milliseconds == 0:
        return "0"
    for unit, size in _STEPS:
        if milliseconds % (size * 1000) == 0 and unit != "y":
            return f"{milliseconds // (size * 1000)}{unit}"
    return f"{milliseconds}ms"


def retention(text: str) -> str:
    """Returns a value of Kafka's ``retention.ms`` for people: ``604800000`` as ``7d``, ``-1`` as
    ``forever``.
    """
    if text == "-1":
        return "forever"
    return duration_ms(int(text)) if text.isascii() and text.isdigit() else text
