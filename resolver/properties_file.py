"""Parses Kafka client settings from files: lines of KEY=VALUE, and comments. Errors contain no more
of a line than its number, since it may have a secret.
"""

from __future__ import annotations

import pathlib

__all__ = ["parse_settings", "read_settings"]


def read_settings(file: str) -> dict[str, str]:
    """Returns the settings in a file (see ``parse_settings``).

    Raises:
        ValueError: it cannot be read, or a line is wrong; one sentence that begins with its name.
    """
    try:
        text = pathlib.Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not text in UTF-8") from None
    try:
        return parse_settings(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def parse_settings(text: str) -> dict[str, str]:
    """Returns the settings of lines ``KEY=VALUE``; those that begin with ``#`` or ``!`` are
    comments.

    Blanks around key and value are no part of them. Nothing is escaped, and no line goes on in the
    next.

    Raises:
        ValueError: a line that is none of these, or a key that comes twice.
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
