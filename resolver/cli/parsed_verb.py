"""Parsed arguments of a command line, as text, and the error of an invalid command line;
``parser.py`` has the grammar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from resolver.printable import cut_shown

__all__ = ["Arguments", "ParsedVerb", "UsageError"]

_MOST_DIGITS: Final = 20
"""Most digits of a number that is converted: Python raises an error of its own for thousands of
digits.
"""


class UsageError(Exception):
    """Error of invalid arguments."""

    exit_code: Final = 2

    def __init__(self, message: str, *, verb: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.verb = verb

    @property
    def lines(self) -> tuple[str, str]:
        """Lines of the error: the message, and the command that explains the verb."""
        about = f"{self.verb} " if self.verb else ""
        return f"error: {self.message}", f"  kdir {about}--help explains it"


class ParsedVerb(Protocol):
    """Attributes of a verb that its arguments need."""

    @property
    def name(self) -> str:
        """Name of the verb on the command line."""

    @property
    def timeout_seconds(self) -> float:
        """Default timeout of a request."""


class Arguments(NamedTuple):
    """Values of a command line, as text, by the key of the option or the name of the argument."""

    verb: ParsedVerb
    values: Mapping[str, Sequence[str]]

    def flag(self, key: str) -> bool:
        """True if the option was given."""
        return key in self.values

    def one(self, key: str, default: str = "") -> str:
        """Returns the value of an option or argument; of several values, the last."""
        given = self.values.get(key)
        return given[-1] if given else default

    def many(self, key: str) -> tuple[str, ...]:
        """Returns all values of an option or argument, in order."""
        return tuple(self.values.get(key, ()))

    def whole(self, key: str, default: int = 0) -> int:
        """Returns an option's value as a whole number from 1 to 2^31-1, the largest in the contract
        and in Kafka; ``default`` if the option was not given.

        Raises:
            UsageError: the value is no such number.
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
        """Returns an option's value in seconds, more than 0 and at most a day; ``default`` if the
        option was not given.

        Raises:
            UsageError: the value is no such number.
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
