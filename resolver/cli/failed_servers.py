"""Servers that did not answer lately, kept on disk from one command to the next; imports no gRPC.

A convenience: it only changes the order in which servers that are all alike are asked, so nothing
is lost with it, and nothing that is wrong in it is an error.
"""

# pathlib would cost a part of each start-up.

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from resolver.cli.disk_hints import cache_folder

__all__ = ["FailedServers"]

_MOST: Final = 100
_MOST_BYTES: Final = 16_384
_MOST_SECONDS: Final = 60.0
"""A clock that was set back must not keep a server at the end of the line."""


class FailedServers:
    """One small file: a line a server, ``host:port`` and until when, by the wall clock."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._file = os.path.join(cache_folder(), "troubles")
        self._clock = clock

    def load(self) -> dict[str, float]:
        """Returns the servers, each with the seconds for which it still counts as bad."""
        found: dict[str, float] = {}
        now = self._clock()
        with contextlib.suppress(OSError, ValueError):
            with open(self._file, encoding="ascii") as file:
                lines = file.read(_MOST_BYTES).splitlines()
            for line in lines[:_MOST]:
                endpoint, until = line.split(" ")
                left = min(float(until) - now, _MOST_SECONDS)
                if left > 0:
                    found[endpoint] = left
        return found

    def save(self, seconds: Mapping[str, float]) -> None:
        """Keeps these, and no others."""
        now = self._clock()
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
            temporary = f"{self._file}.{os.getpid()}"
            with open(temporary, "w", encoding="ascii") as file:
                kept = list(seconds.items())[:_MOST]
                file.writelines(f"{endpoint} {now + left:.3f}\n" for endpoint, left in kept)
            os.replace(temporary, self._file)
