"""Parses Kafka client settings from files: lines KEY=VALUE, and comments. Errors have the number of
the line, and never a value, which may be a secret.
"""

from __future__ import annotations

import pathlib

__all__ = ["parse_settings", "read_settings"]


def read_settings(file: str) -> dict[str, str]:
    """Returns the settings in a file of the form that ``parse_settings`` reads.

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
        ValueError: a line has another form, or a key is repeated; the message has the number of the
            line.
    """
    settings: dict[str, str] = {}
    # Not splitlines: a password may contain other line separators of Unicode.
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"line {number}: expected KEY=VALUE")
        if key in settings:
            raise ValueError(f"line {number}: {key} is set twice")
        settings[key] = value.strip()
    return settings
