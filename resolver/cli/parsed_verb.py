"""Parsed arguments of a command line, as text, and the error of an invalid command line;
``parser.py`` has the grammar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from resolver.printable import cut_shown

__all__ = ["Arguments", "ParsedVerb", "UsageError"]

_MOST_DIGITS: Final = 20
"""Longer texts are not converted: for some thousand digits Python raises an error of its own."""


class UsageError(Exception):
    """Error: the arguments are invalid."""

    exit_code: Final = 2

    def __init__(self, message: str, *, verb: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.verb = verb

    @property
    def lines(self) -> tuple[str, str]:
        """The message, and the command that explains more."""
        about = f"{self.verb} " if self.verb else ""
        return f"error: {self.message}", f"  kdir {about}--help explains it"


class ParsedVerb(Protocol):
    """The verb, as far as its arguments need it."""

    @property
    def name(self) -> str:
        """Name as typed."""

    @property
    def timeout_seconds(self) -> float:
        """Timeout by default."""


class Arguments(NamedTuple):
    """Values of a command line by option key and by argument name, all as text."""

    verb: ParsedVerb
    values: Mapping[str, Sequence[str]]

    def flag(self, key: str) -> bool:
        """True if the option was given."""
        return key in self.values

    def one(self, key: str, default: str = "") -> str:
        """Returns the value of an option; of several, the last."""
        given = self.values.get(key)
        return given[-1] if given else default

    def many(self, key: str) -> tuple[str, ...]:
        """Returns all values given, in order."""
        return tuple(self.values.get(key, ()))

    def whole(self, key: str, default: int = 0) -> int:
        """Returns an option's value as a whole number from 1 to 2^31-1, the most that the contract
        and Kafka count to; ``default`` if it was not given.

        Raises:
            UsageError: any other value.
        """
        text = self.one(key)
        if not text:
            return default
        digits = text.isascii() and text.isdigit()
        number = int(text) if digits and len(text) <= _MOST_DIGITS else 0
        if not 0 < number < 2**31:
            raise UsageError(
                f"--{key} {cut_shown(text)}: a whole number from 1 to 2147483647 was expected",
                verb=self.verb.name,
            )
        return number

    def seconds(self, key: str, default: float) -> float:
        """Returns an option's value as seconds, more than 0 and at most a day.

        Raises:
            UsageError: any other value.
        """
        text = self.one(key)
        if not text:
            return default
        try:
            value = float(text.removesuffix("s"))
        except ValueError:
            value = -1.0
        if not 0 < value <= 86_400:
            raise UsageError(
                f"--{key} {text!r}: seconds, more than 0 and at most 86400, were expected",
                verb=self.verb.name,
            )
        return value
