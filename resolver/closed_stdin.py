"""Stream in the place of a stdin that the caller closed: reading it is an error, not the end of an
empty input.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from resolver.errors import InvalidArgument

__all__ = ["replace_closed_stdin"]


class _ClosedStdin(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, _: Any) -> int:
        """Raises InvalidArgument."""
        raise InvalidArgument("stdin is closed; redirect a file to it, or name one")


def replace_closed_stdin() -> None:
    """Puts a stream in the place of stdin if that is closed."""
    if getattr(sys, "stdin") is None:  # noqa: B009 - mypy takes it for a stream
        os.open(os.devnull, os.O_RDONLY)  # no other file gets the number of stdin
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedStdin()), encoding="utf-8")
