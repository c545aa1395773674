"""Types of settings that are stored as text: which texts are valid, and which mean the same value.

``directory.namespace.topic_configs`` and ``resolver.kafka.client_settings`` define the settings.
Numbers have Kafka's 32 and 64 bits (``org.apache.kafka.common.config.ConfigDef``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

__all__ = [
    "INTEGER",
    "SettingType",
    "boolean",
    "int_of",
    "list_of",
    "long_of",
    "nearest",
    "one_of",
    "parts",
    "ratio",
]

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
"""Pattern of a whole number."""
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)


_MOST_COMPARED: Final = 100


@dataclass(frozen=True, slots=True)
class SettingType:
    """Type of a setting: ``fits`` is true for a valid text; ``wanted`` describes the valid texts,
    for messages.
    """

    wanted: str
    fits: Callable[[str], bool]
    normal: Callable[[str], str] = str.strip
    """Returns the canonical text of a value: equal for all texts of the same value."""


def _whole(least: int, most: int, *besides: int) -> SettingType:
    def fits(text: str) -> bool:
        if not INTEGER.fullmatch(text.strip()):
            return False
        number = int(text)
        return least <= number <= most or number in besides

    upper = "" if most in {_INT_MAX, _LONG_MAX} else f" to {most}"
    bits = "" if upper else f" (at most {most})"
    parts = f"a whole number from {least}{upper}{bits}"
    extra = "".join(f", or {number}" for number in besides)
    return SettingType(parts + extra, fits, lambda text: str(int(text)))


def int_of(least: int = -(2**31), most: int = _INT_MAX, *besides: int) -> SettingType:
    """Returns the type of 32-bit whole numbers from ``least`` to ``most``, or one of
    ``besides``.
    """
    return _whole(least, most, *besides)


def long_of(least: int = -(2**63), most: int = _LONG_MAX) -> SettingType:
    """Returns the type of 64-bit whole numbers from ``least`` to ``most``."""
    return _whole(least, most)


def ratio() -> SettingType:
    """Returns the type of decimal numbers from 0 to 1."""

    def fits(text: str) -> bool:
        return bool(_DECIMAL.fullmatch(text.strip())) and 0.0 <= float(text) <= 1.0

    return SettingType("a number from 0 to 1", fits, lambda text: repr(float(text)))


def boolean() -> SettingType:
    """Returns the type of ``true`` or ``false``, in any case of letters."""
    return SettingType(
        "true or false",
        lambda text: text.strip().lower() in {"true", "false"},
        lambda text: text.strip().lower(),
    )


def one_of(*choices: str) -> SettingType:
    """Returns the type of texts that are one of ``choices``."""
    return SettingType(f"one of {', '.join(choices)}", lambda text: text in choices)


def parts(text: str) -> list[str]:
    """Returns the parts of a text that commas separate, without blanks around them."""
    return [part.strip() for part in text.split(",")]


def list_of(*choices: str) -> SettingType:
    """Returns the type of lists of one or more ``choices``, with commas, in any order."""
    return SettingType(
        f"one or more of {', '.join(choices)}, with commas between them",
        lambda text: set(parts(text)) <= set(choices),
        lambda text: ",".join(sorted(set(parts(text)))),
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the most similar known name."""
    # To compare costs the product of both lengths, and a name may be as long as a request.
    return get_close_matches(name[:_MOST_COMPARED], known, n=1, cutoff=0.0)[0]
