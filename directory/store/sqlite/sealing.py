"""Sealing, emptying, filling and opening a sqlite store; refuses to know why it is done.

A store that is filled keeps no log of it: what is put in is no change of a tree. The oldest commit
that is known moves along instead, so that no watch can resume before the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from directory.store.base import FILLED_FROM, Identity, Limits
from directory.store.schema import Head, begin_incarnation, head_of, sealed_of, trim_log
from directory.store.sqlite.database_file import DatabaseFile, away_on_error

__all__ = ["SqliteSealing"]

_CLEARED_ROWS: Final = 20_000
_FILLED_ROWS: Final = 5_000
_FILLED_BYTES: Final = 8 * 1024 * 1024
_SECONDS: Final = 30.0
_REVISION_ROWS: Final = 100
"""So many rows share a revision: of change events, which are rows, a page is read by revision."""

Row = tuple[bytes, bytes]


class SqliteSealing:
    """Seal of one store; see ``directory.store.base.Store``."""

    def __init__(self, file: DatabaseFile, limits: Limits) -> None:
        self._file: Final = file
        self._limits: Final = limits

    def seal(self, why: str) -> None:
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('sealed', ?)", (why,))
            if why.startswith(FILLED_FROM):
                trim_log(connection)
        self._file.refresh_identity()

    def clear(self) -> int:
        cleared = 0
        while True:
            with self._filling() as connection:
                gone = connection.execute(
                    "DELETE FROM kv WHERE key IN (SELECT key FROM kv LIMIT ?)", (_CLEARED_ROWS,)
                ).rowcount
                connection.execute("DELETE FROM announced")
                trim_log(connection)
            cleared += gone
            if gone < _CLEARED_ROWS:
                return cleared

    def fill(self, rows: Iterable[Row]) -> int:
        filled = 0
        with self._filling():
            pass  # a store that may not be filled is refused even if there is nothing to put in
        for chunk in self._chunks(rows):
            with self._filling() as connection:
                begin = head_of(connection).revision + 1
                connection.executemany(
                    "INSERT OR REPLACE INTO kv VALUES (?, ?, ?)",
                    (
                        (key, value, begin + number // _REVISION_ROWS)
                        for number, (key, value) in enumerate(chunk)
                    ),
                )
                trim_log(connection, begin + (len(chunk) - 1) // _REVISION_ROWS)
            filled += len(chunk)
        return filled

    def unseal(self) -> Identity:
        with self._file.writing(_SECONDS) as connection, away_on_error(self._file.path):
            if sealed_of(connection):
                self._file.committed(begin_incarnation(connection, 0, unseal=True))
        return self._file.refresh_identity()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._file.writing(_SECONDS) as connection, away_on_error(self._file.path):
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            head: Head = head_of(connection)
            connection.execute("COMMIT")
            self._file.committed(head)

    @contextmanager
    def _filling(self) -> Iterator[sqlite3.Connection]:
        with self._transaction() as connection:
            sealed = sealed_of(connection)
            if not sealed.startswith(FILLED_FROM):
                raise ValueError(f"{self._file.path}: not sealed to be filled, but {sealed!r}")
            yield connection

    def _chunks(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        chunk: list[Row] = []
        size = 0
        for key, value in rows:
            length = len(key) + len(value)
            if length > self._limits.max_bytes:
                raise ValueError(
                    f"key {key!r} has {length} bytes with its value; one transaction holds"
                    f" {self._limits.max_bytes}"
                )
            if chunk and (len(chunk) >= _FILLED_ROWS or size + length > _FILLED_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append((key, value))
            size += length
        if chunk:
            yield chunk
