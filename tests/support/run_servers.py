"""Servers of a whole test run: the first worker that asks for one starts it, the others use it."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

__all__ = ["run_server"]


def run_server(
    folder: Path, name: str, start: Callable[[], AbstractContextManager[str]], until: ExitStack
) -> str:
    """Returns the address of the run's server of a name; starts it if no other worker has. The
    worker that started it ends it after ``until``, once no other worker uses it.

    Args:
        folder: what all workers of a run have in common, and no other run.
    """
    with _locked(folder / f"{name}.lock"):
        there = folder / f"{name}.address"
        if there.exists():
            address, owner = there.read_text().split()
            until.enter_context(_locked(folder / owner, fcntl.LOCK_SH))
            return address
        owner = f"{name}.{secrets.token_hex(4)}"
        address = until.enter_context(start())
        until.callback(_leave, folder / f"{name}.lock", there, folder / owner)
        there.write_text(f"{address} {owner}")
        return address


def _leave(lock: Path, there: Path, users: Path) -> None:
    """Waits until no worker uses a server; a worker that asks from now on starts another."""
    with _locked(lock):
        there.unlink()
    with _locked(users):
        pass


@contextmanager
def _locked(file: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    with file.open("a") as held:
        fcntl.flock(held, kind)
        try:
            yield
        finally:
            # A process forked meanwhile has the file, too: closing it here would not unlock it.
            fcntl.flock(held, fcntl.LOCK_UN)
