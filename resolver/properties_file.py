"""Parses Kafka client settings from files: lines of KEY=VALUE, and comments. Errors contain no
value, since it may be a secret: only the line's number, or a repeated key.
"""

from __future__ import annotations

import pathlib

__all__ = ["parse_settings", "read_settings"]


def read_settings(file: str) -> dict[str, str]:
    """Returns the settings in a file (see ``parse_settings``).

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is invalid; names the file.
    """
    try:
        text = pathlib.Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not text in UTF-8") from None
    try:
        return parse_settings(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def parse_settings(text: str) -> dict[str, str]:
    """Returns the settings of lines ``KEY=VALUE``; empty lines and those that begin with ``#`` or
    ``!`` are skipped.

    Blanks around key and value are removed. There are no escapes and no continuation lines.

    Raises:
        ValueError: a line is none of these, or a key is repeated; names the line's number.
    """
    settings: dict[str, str] = {}
    # Not splitlines: a password may hold what Unicode takes for the end of a line.
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"line {number}: expected KEY=VALUE")
        if key in settings:
            raise ValueError(f"line {number}: {key} is in it twice")
        settings[key] = value.strip()
    return settings
