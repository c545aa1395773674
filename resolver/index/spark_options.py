"""Options that all of kdir's data sources for Spark have, read from text."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from resolver.errors import InvalidArgument

__all__ = ["check_names", "failures_option", "positive_option", "servers_option", "whole_option"]

_FAILURES = ("row", "skip", "raise")


def check_names(options: Mapping[str, str], known: Collection[str], prefix: str = "") -> None:
    """Checks that each option is known or has the prefix.

    Raises:
        InvalidArgument: an option is unknown; the message names it and the known ones.
    """
    for name in options:
        if name.lower() not in known and not (prefix and name.lower().startswith(prefix)):
            raise InvalidArgument(f"option {name}: not one of {', '.join(sorted(known))}")


def servers_option(options: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the addresses in the option ``servers``, which commas separate.

    Raises:
        InvalidArgument: the option has no address.
    """
    servers = tuple(filter(None, (options.get("servers") or "").replace(" ", "").split(",")))
    if not servers:
        raise InvalidArgument('option servers: found none; expected "host:port,…"')
    return servers


def failures_option(options: Mapping[str, str]) -> str:
    """Returns the option ``failures``: the handling of a cluster that cannot be read; by default
    ``row``.

    Raises:
        InvalidArgument: the option is not row, skip or raise.
    """
    failures = options.get("failures") or "row"
    if failures not in _FAILURES:
        raise InvalidArgument(
            f"option failures: found {failures!r}; expected {', '.join(_FAILURES)}"
        )
    return failures


def positive_option(options: Mapping[str, str], name: str, default: float) -> float:
    """Returns the value of an option, a number above 0.

    Raises:
        InvalidArgument: the value is no such number.
    """
    text = options.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InvalidArgument(f"option {name}: found {text!r}; expected a positive number")
    return number


def whole_option(options: Mapping[str, str], name: str, default: int) -> int:
    """Returns the value of an option, a whole number of at least 1.

    Raises:
        InvalidArgument: the value is no such number.
    """
    number = positive_option(options, name, default)
    if number != int(number):
        raise InvalidArgument(f"option {name}: found {options[name]!r}; expected a whole number")
    return int(number)
