"""Reads a TOML table key by key and refuses unknown keys. Every error is one sentence with the key,
the value found and the value expected.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from resolver.errors import InvalidArgument, KdirError
from resolver.host_port import MAX_ENDPOINTS, parse_endpoint
from resolver.path import Path
from resolver.printable import cut_shown

__all__ = ["LARGEST", "ConfigError", "Table", "parsed_path", "split_address"]

LARGEST: Final = sys.float_info.max
"""Largest number of a config: TOML's integers have no limit, and most are used as floats."""


class ConfigError(Exception):
    """Error in the config; one sentence for people."""


class Table:
    """TOML table that records which of its keys were read."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self._values = dict(values)
        self._name = name
        self._known: list[str] = []

    def where(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def pop(self, key: str, default: Any) -> Any:
        self._known.append(key)
        return self._values.pop(key, default)

    def fail(self, key: str, found: object, right: str) -> NoReturn:
        raise ConfigError(f"{self.where(key)}: found {cut_shown(found)}; {right}")

    def text(self, key: str, default: str) -> str:
        value = self.pop(key, default)
        if not isinstance(value, str):
            self.fail(key, value, "expected a text")
        if not value.isprintable():
            self.fail(key, value, "expected one line of printable characters")
        return value

    def flag(self, key: str) -> bool:
        value = self.pop(key, False)
        if not isinstance(value, bool):
            self.fail(key, value, "expected true or false")
        return value

    def above_zero(self, key: str, default: float, what: str) -> float:
        value = self.pop(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= LARGEST:
            self.fail(key, value, f"expected {what} above 0 and below 1e308")
        return float(value)

    def path(self, key: str, default: Path) -> Path:
        value = self.text(key, str(default))
        return parsed_path(self.where(key), value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.pop(key, [])
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            self.fail(key, value, "expected a list of texts")
        for part in value:
            if not part.isprintable():
                self.fail(key, part, "expected one line of printable characters")
        return tuple(value)

    def addresses(self, key: str) -> tuple[str, ...]:
        found = self.texts(key)
        for address in found:
            if split_address(address) is None:
                self.fail(key, address, "expected host:port")
        return found

    def endpoints(self, key: str) -> tuple[str, ...]:
        """Returns the addresses ``host:port`` of a list of at most ``MAX_ENDPOINTS``."""
        found = self.texts(key)
        for address in found:
            try:
                parse_endpoint(address)
            except InvalidArgument:
                self.fail(key, address, "expected host:port")
        if len(found) > MAX_ENDPOINTS:
            self.fail(key, f"{len(found)} of them", f"expected at most {MAX_ENDPOINTS}")
        return found

    def has(self, key: str) -> bool:
        """True if the table has the key."""
        self._known.append(key)
        return key in self._values

    def table(self, key: str) -> Table | None:
        value = self.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, value, f"expected a table [{self.where(key)}]")
        return Table(value, self.where(key))

    def rest(self) -> dict[str, Any]:
        """Returns all keys and values that are left, for tables whose keys are data."""
        values, self._values = self._values, {}
        return values

    def done(self) -> None:
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.0)
            raise ConfigError(
                f"unknown key {self.where(key)!r}; the nearest known one is {near[0]!r}"
            )


def parsed_path(where: str, text: str) -> Path:
    """Parses a path in a config.

    Raises:
        ConfigError: the path is not canonical; names the key and the rule.
    """
    try:
        return Path.parse(text)
    except KdirError as error:
        raise ConfigError(f"{where}: {error.message}") from error


def split_address(address: str) -> tuple[str, int] | None:
    """Returns host and port of ``host:port``; None for any other text."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        return None
    if not 0 <= int(port) <= 65_535:
        return None
    return host.strip("[]"), int(port)
