"""Converts untrusted text to one line of printable characters, for terminals and logs.

Printable is what ``str.isprintable`` accepts: no control characters (C0, DEL, C1), no line or
paragraph separators, no format characters (such as Unicode's bidirectional overrides), no blanks
other than the space, no surrogates, no unassigned characters.
"""

from __future__ import annotations

__all__ = ["cut_name", "cut_shown", "first_unprintable", "printable", "shown_character"]


def printable(text: str) -> str:
    r"""Returns the text with each unprintable character replaced by a Python escape, such as
    ``\x1b`` or ``\u202e``: one line without control sequences.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def first_unprintable(text: str) -> str:
    r"""Returns the first unprintable character, escaped, with its position (from 1), such as
    ``\x1b at 3``; empty if there is none.
    """
    if text.isprintable():
        return ""
    at = next(at for at, one in enumerate(text) if not one.isprintable())
    return f"{printable(text[at])} at {at + 1}"


def shown_character(one: str) -> str:
    """Returns a character as messages quote it, such as ``'ü' (U+00FC)``: non-ASCII with its code
    point, since some letters look like ASCII ones.
    """
    quoted = printable(repr(one))
    return quoted if one.isascii() or not one.isprintable() else f"{quoted} (U+{ord(one):04X})"


def cut_shown(text: object, most: int = 80) -> str:
    """Returns a value as messages quote it: printable, cut to ``most`` characters."""
    # Cut first: the text may have megabytes.
    if isinstance(text, str) and len(text) > most:
        return f"{printable(repr(text[:most]))}…"
    try:
        shown = repr(text)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        size = f"{text.bit_length()} bits" if isinstance(text, int) else "too many digits"
        return f"a number of {size}"
    return shown if len(shown) <= most + 2 else f"{shown[:most]}…"


def cut_name(text: str, most: int = 120) -> str:
    """Returns a name as messages show it: printable, cut to ``most`` characters, without quotes."""
    return printable(text) if len(text) <= most else f"{printable(text[:most])}…"
