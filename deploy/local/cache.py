"""Keeps what is downloaded or built for the local servers, outside the checkout and by version.

A function of the caller fills each folder, which then never changes.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class ServerUnavailable(RuntimeError):
    """A local server cannot be had here; the message says why, and what to do, in a sentence."""


def cache_home() -> Path:
    """Returns kdir's folder below the user's cache folder (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kdir"


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Locks the cache, for all checkouts; the kernel unlocks it when the process ends."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def provide(name: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder `name` of the cache, made by `make` if it is not there.

    `name` carries the version and whatever else decides the content. `make` is given an empty
    folder, which gets its name only once `make` has returned: no reader ever sees half of it, and
    what a killed process left is removed.

    Raises:
        ServerUnavailable: `make` raised it.
    """
    home = cache_home()
    target = home / name
    if target.is_dir():
        return target
    with _lock(home):
        if target.is_dir():  # made by another while we waited
            return target
        for abandoned in home.glob(f".{name}.*"):
            shutil.rmtree(abandoned)
        made = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=home))
        made.chmod(0o755)
        make(made)
        made.rename(target)
    return target


def find(name: str) -> Path | None:
    """Returns the folder `name` of the cache; None if it is not there."""
    target = cache_home() / name
    return target if target.is_dir() else None
