"""Ephemeral keys of a sqlite store: the process of each holds a file locked while it is alive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol, Self

from directory.store.base import IncompatibleStore, StoreIsSealed, StoreUnreachable
from directory.store.sqlite.transaction import key_range

__all__ = [
    "EphemeralKeys",
    "LivenessFile",
    "SqliteAnnouncement",
    "announced",
    "note",
    "remove_strays",
    "unannounced",
]


class LivenessFile:
    """Locked file that shows that this process is alive."""

    def __init__(self, path: Path, token: str, descriptor: int) -> None:
        self._path: Final = path
        self.token: Final = token
        self._descriptor = descriptor

    @classmethod
    def create(cls, database: Path) -> Self:
        """Creates and locks a new file beside the database.

        Raises:
            OSError
        """
        token = secrets.token_hex(8)
        path = _path(database, token)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        return cls(path, token, descriptor)

    @property
    def held(self) -> bool:
        """True until the file is removed."""
        return self._descriptor >= 0

    def remove(self) -> None:
        """Removes the file, then unlocks it: an existing file without a lock has no process."""
        if self.held:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


class EphemeralKeys(Protocol):
    """Part of the store that an ephemeral key uses."""

    @property
    def incarnation(self) -> str:
        """The incarnation of the store, as far as this process knows."""

    def update_announced(self, key: bytes, token: str, value: bytes) -> bool:
        """Puts the key's value if the key still belongs to this token; returns whether it does."""

    def withdraw_announced(self, key: bytes, token: str) -> None:
        """Removes the key if it still belongs to this token."""


class SqliteAnnouncement:
    """Ephemeral key of a sqlite store (``directory.store.base.EphemeralKey``)."""

    def __init__(self, store: EphemeralKeys, key: bytes, alive: LivenessFile) -> None:
        self._store: Final = store
        self._key: Final = key
        self._alive: Final = alive
        self._incarnation: Final = store.incarnation
        self._lost = False

    def update(self, value: bytes) -> None:
        if self.is_alive() and not self._store.update_announced(
            self._key, self._alive.token, value
        ):
            self._lost = True

    def is_alive(self) -> bool:
        """True if the key exists; not after a restore: it may be gone in another incarnation."""
        same_incarnation = self._store.incarnation == self._incarnation
        return self._alive.held and not self._lost and same_incarnation

    def delete(self) -> None:
        if not self._alive.held:
            return
        # The file first: for a watcher that sees the key removed, ``is_alive`` must be false. If
        # the key is not removed here, the next sweep removes it.
        token = self._alive.token
        self._alive.remove()
        with contextlib.suppress(StoreUnreachable, StoreIsSealed, IncompatibleStore):
            self._store.withdraw_announced(self._key, token)


def note(connection: sqlite3.Connection, key: bytes, token: str) -> None:
    """Records the token that a key belongs to, in place of any earlier one."""
    connection.execute("INSERT OR REPLACE INTO announced VALUES (?, ?)", (key, token))


def announced(connection: sqlite3.Connection, database: Path) -> tuple[set[str], dict[bytes, str]]:
    """Returns the tokens of ephemeral keys whose process is alive, and the keys, with tokens, of
    those whose process has ended.
    """
    living: set[str] = set()
    dead: dict[bytes, str] = {}
    for key, token in connection.execute("SELECT key, token FROM announced"):
        if _is_locked(_path(database, token)):
            living.add(token)
        else:
            dead[key] = token
    return living, dead


def unannounced(connection: sqlite3.Connection, prefix: bytes) -> list[bytes]:
    """Returns the keys under a prefix that are not ephemeral; none without a prefix."""
    if not prefix:
        return []
    where, bounds = key_range(prefix)
    query = f"SELECT key FROM kv WHERE {where} AND key NOT IN (SELECT key FROM announced)"  # noqa: S608
    return [key for (key,) in connection.execute(query, bounds)]


def remove_strays(database: Path, living: Collection[str]) -> None:
    """Removes liveness files whose token is not in ``living``, unless a process locks them."""
    prefix = _path(database, "").name
    for name in os.listdir(database.parent):  # noqa: PTH208 - names are all that is wanted
        token = name.removeprefix(prefix)
        if name.startswith(prefix) and token not in living:
            path = database.with_name(name)
            if not _is_locked(path):
                path.unlink(missing_ok=True)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _path(database: Path, token: str) -> Path:
    return database.with_name(f"{database.name}-alive-{token}")
