"""Kafka's rule for the names of topics (``org.apache.kafka.common.internals.Topic#validate``)."""

from __future__ import annotations

import re
from typing import Final

from resolver.printable import shown_character

__all__ = ["MAX_NAME_LENGTH", "why_invalid"]

MAX_NAME_LENGTH: Final = 249
"""Most characters in a topic name (``org.apache.kafka.common.internals.Topic#MAX_NAME_LENGTH``)."""

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]", re.ASCII)


def why_invalid(name: str) -> str | None:
    """Returns the rule of Kafka (``Topic#validate``) that a name violates; None = it is valid."""
    if not name:
        return "it is empty"
    if name in {".", ".."}:
        return "'.' and '..' are no names"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed"
    if (illegal := _ILLEGAL.search(name)) is not None:
        character = shown_character(illegal.group())
        return f"character {character} at {illegal.start() + 1} is not one of a-z A-Z 0-9 . _ -"
    return None
