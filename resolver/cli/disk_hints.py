"""Caches on disk: names of directories' children, for completion, and servers that failed recently.

There is a small file of names for each combination of directory, servers, credentials and prefix.
If the files are lost, servers are queried again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from resolver.user_config import cache_folder

__all__ = ["FRESH_SECONDS", "MOST_NAMES", "FailedServers", "ListingCache"]


# pathlib would cost the completion of a path a tenth of its time.


FRESH_SECONDS: Final = 30.0
"""Maximum age of a listing that completion uses without querying servers."""
MOST_NAMES: Final = 500
"""Most names in a stored listing: a longer one is not stored, since it is too long to choose
from.
"""
_MOST_FILES: Final = 1_000


class ListingCache:
    """Cache on disk of names that ``servers`` listed for the caller with these credentials (empty =
    anonymous). Names of containers end in ``/``.
    """

    def __init__(
        self,
        servers: Sequence[str],
        login: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = os.path.join(cache_folder(), "names")
        self._asked = f"{','.join(servers)} {_digest(*login) if any(login) else ''}"
        self._clock = clock

    def load(self, directory: str, start: str, *, most_age_seconds: float) -> list[str] | None:
        """Returns the names of the directory's children that begin with ``start``; None if they are
        not cached.
        """
        for length in range(len(start) + 1):
            names = self._read(directory, start[:length], most_age_seconds)
            if names is not None:
                return [name for name in names if name.startswith(start)]
        return None

    def store(self, directory: str, start: str, names: Sequence[str]) -> None:
        """Stores all names that begin with ``start``; errors of the disk are ignored."""
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            path = self._file(directory, start)
            temporary = f"{path}.{os.getpid()}"
            with open(temporary, "w", encoding="ascii") as file:
                file.write("\n".join((f"{self._clock()!r} {self._key(directory, start)}", *names)))
            os.replace(temporary, path)
            self._sweep()

    def _key(self, directory: str, start: str) -> str:
        return f"{self._asked} {directory} {start}"

    def _file(self, directory: str, start: str) -> str:
        return os.path.join(self._folder, _digest(self._key(directory, start)))

    def _read(self, directory: str, start: str, most_age_seconds: float) -> list[str] | None:
        try:
            with open(self._file(directory, start), encoding="ascii") as file:
                head, *names = file.read().split("\n")
            written, _, key = head.partition(" ")
            age_seconds = self._clock() - float(written)
        except (OSError, ValueError):
            return None
        fresh = 0 <= age_seconds <= most_age_seconds
        return names if fresh and key == self._key(directory, start) else None

    def _sweep(self) -> None:
        """Removes the older half of the files if there are too many."""
        with os.scandir(self._folder) as found:
            files = [entry for entry in found if entry.is_file()]
        if len(files) > _MOST_FILES:
            by_age = sorted((entry.stat().st_mtime, entry.path) for entry in files)
            for _, path in by_age[: len(by_age) // 2]:
                os.unlink(path)


def _digest(*texts: str) -> str:
    import hashlib

    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


# pathlib would cost a part of each start-up.


_MOST: Final = 100
_MOST_BYTES: Final = 16_384
_MOST_SECONDS: Final = 60.0
"""Longest time for which a server counts as failed, even if the clock was set back."""


class FailedServers:
    """File of failed servers. Each line has a server (``host:port``) and the Unix time until which
    it counts as failed.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._file = os.path.join(cache_folder(), "troubles")
        self._clock = clock

    def load(self) -> dict[str, float]:
        """Returns the servers, each with the number of seconds for which it still counts as
        failed.
        """
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
        """Replaces the stored servers by these; ``seconds`` as ``load`` returns them."""
        now = self._clock()
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
            temporary = f"{self._file}.{os.getpid()}"
            with open(temporary, "w", encoding="ascii") as file:
                kept = list(seconds.items())[:_MOST]
                file.writelines(f"{endpoint} {now + left:.3f}\n" for endpoint, left in kept)
            os.replace(temporary, self._file)
