"""The bare peer of writes: a grpcio server that makes guarded transactions in a sqlite file.

``python -m bench.bare_sqlite FILE`` makes a store and records the transaction of one mkdir. Each
call repeats it with another number in its keys: the same guards, rows and sizes, on the same disk,
behind the same gRPC, by plain SQL statements.
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
import threading
import time
from pathlib import Path as FilePath
from typing import Final
from unittest import mock

from bench import ground
from bench.bare_service import serve
from directory.namespace.command import CreateDirectory
from directory.store.base import KeyEquals, Put, Transaction
from directory.store.replica import Replica, ReplicaState
from directory.store.sqlite.store import SqliteStore
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path

_NUMBER: Final = b"xxxxxxx"  # placeholder of a number in the recorded keys


def main(file: str) -> None:
    """Serves until it is killed."""
    transaction, size = _recorded(file)
    database = _Database(file, transaction)
    answer = b"x" * size

    def create(_request: bytes, _context: object) -> bytes:
        database.commit()
        return answer

    serve(create)


class _Database:
    """One connection, used by one thread at a time."""

    def __init__(self, file: str, transaction: Transaction) -> None:
        self._lock: Final = threading.Lock()
        self._numbers: Final = itertools.count(1)
        self._connection: Final = sqlite3.connect(
            file, isolation_level=None, timeout=20, check_same_thread=False
        )
        self._connection.execute("PRAGMA synchronous = FULL")
        self._guards: Final = [one.key for one in transaction.guards if isinstance(one, KeyEquals)]
        self._puts: Final = [
            (one.key, one.value) for one in transaction.writes if isinstance(one, Put)
        ]

    def commit(self) -> None:
        """Makes the next directory."""
        number = b"%07d" % next(self._numbers)
        with self._lock:
            run = self._connection.execute
            run("BEGIN IMMEDIATE")
            (revision,) = run("SELECT max(revision) + 1 FROM commits").fetchone()
            for key in self._guards:
                run("SELECT value FROM kv WHERE key = ?", (_of(key, number),)).fetchone()
            rows = [(_of(key, number), value) for key, value in self._puts]
            self._connection.executemany(
                "INSERT OR REPLACE INTO kv VALUES (?, ?, ?)",
                [(key, value, revision) for key, value in rows],
            )
            self._connection.executemany(
                "INSERT INTO log VALUES (?, ?, ?, ?)",
                [(revision, place, *row) for place, row in enumerate(rows)],
            )
            run("INSERT INTO commits VALUES (?, ?, ?)", (revision, "0" * 16, 3 * revision))
            run("COMMIT")


def _of(key: bytes, number: bytes) -> bytes:
    return key.replace(_NUMBER, number) if _NUMBER in key else key[: -len(number)] + number


def _recorded(file: str) -> tuple[Transaction, int]:
    """Returns the transaction of a mkdir with a request id, and about the size of its answer."""
    store = SqliteStore(FilePath(file), ground.CLUSTER)
    replica = Replica(store, ProtoCodec())
    writer = Writer(store, replica, ProtoCodec(), lambda _: Path.parse(ground.MOUNT))
    replica.start()
    try:
        while replica.state is not ReplicaState.SERVING:
            time.sleep(0.01)
        name = _NUMBER.decode()
        command = CreateDirectory(path=Path.parse(f"{ground.MOUNT}/bare-{name}"))
        with mock.patch.object(store, "commit", wraps=store.commit) as commits:
            writer.commit_command(command, request_id=f"bare-{name}")
        return commits.call_args.args[0], 150
    finally:
        replica.stop()
        store.close()


if __name__ == "__main__":
    main(sys.argv[1])
