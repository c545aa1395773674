"""Schema of a sqlite store: its tables, its identity and its incarnation, by queries on a
connection.

A new incarnation begins when the database is not as its last writer left it: a backup was restored.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from directory.store.base import Identity, IncompatibleStore
from directory.store.identity import new_identity, random_id, refuse_newer

__all__ = [
    "SCHEMA_VERSION",
    "Head",
    "begin_incarnation",
    "complete",
    "create",
    "damage_of",
    "head_of",
    "holds_commit",
    "identity_of",
    "is_empty",
    "refuse_unknown",
    "sealed_of",
    "trim_log",
]

SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x6B646972  # "kdir", as `file` shows it
_INCARNATION_STEP: Final = 1_000_000
"""Distance of a new incarnation's first revision from the highest one known of the previous
incarnation, so that a guard from an old snapshot never holds by accident.
"""

_ANNOUNCED: Final = """CREATE TABLE IF NOT EXISTS announced (  -- keys that go with their process
         key BLOB PRIMARY KEY,
         token TEXT NOT NULL  -- names the file that the process holds locked
       ) WITHOUT ROWID"""
_SCHEMA: Final = (
    """CREATE TABLE meta (
         name TEXT PRIMARY KEY,
         value TEXT NOT NULL
       ) WITHOUT ROWID""",
    """CREATE TABLE kv (
         key BLOB PRIMARY KEY,
         value BLOB NOT NULL,
         revision INTEGER NOT NULL  -- of its last change
       ) WITHOUT ROWID""",
    """CREATE TABLE commits (  -- the oldest is where a watch can still resume: its log is gone
         revision INTEGER PRIMARY KEY,
         commit_id TEXT NOT NULL,
         writes_total INTEGER NOT NULL  -- of all commits up to this one
       )""",
    """CREATE TABLE log (
         revision INTEGER,
         position INTEGER,
         key BLOB NOT NULL,
         value BLOB,  -- NULL: the key was removed
         PRIMARY KEY (revision, position)
       ) WITHOUT ROWID""",
    "INSERT INTO commits VALUES (0, '', 0)",
    _ANNOUNCED,
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


@dataclass(frozen=True, slots=True)
class Head:
    """Newest commit of a database, and the incarnation it belongs to."""

    revision: int
    commit_id: str
    writes_total: int
    incarnation: str


def head_of(connection: sqlite3.Connection) -> Head:
    """Returns the newest commit that this connection's transaction sees."""
    return head_and_seal_of(connection)[0]


def head_and_seal_of(connection: sqlite3.Connection) -> tuple[Head, str]:
    """Returns ``head_of`` and ``sealed_of``."""
    *head, sealed = connection.execute(
        "SELECT revision, commit_id, writes_total,"
        " (SELECT value FROM meta WHERE name = 'incarnation'),"
        " (SELECT value FROM meta WHERE name = 'sealed')"
        " FROM commits ORDER BY revision DESC LIMIT 1"
    ).fetchone()
    return Head(*head), "" if sealed is None else str(sealed)


def is_empty(connection: sqlite3.Connection) -> bool:
    """True if the database has no tables yet."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables == 0)


def create(
    connection: sqlite3.Connection, cluster: str, cluster_id: str | None, sealed: str = ""
) -> None:
    """Creates the tables of a new store (``new_identity``), ``sealed`` for this reason (empty =
    not).
    """
    new = new_identity(cluster, cluster_id, SCHEMA_VERSION)
    meta = {
        "store_id": new.store_id,
        "cluster_id": new.cluster_id,
        "cluster": new.cluster,
        "incarnation": new.incarnation,
    }
    if sealed:
        meta["sealed"] = sealed
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    connection.execute("COMMIT")


def complete(connection: sqlite3.Connection) -> None:
    """Adds tables that stores of an earlier kdir lack, and which that version ignores."""
    connection.execute(_ANNOUNCED)


def identity_of(connection: sqlite3.Connection) -> Identity:
    """Returns the identity of the store."""
    meta = dict(connection.execute("SELECT name, value FROM meta"))
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return Identity(
        store_id=meta["store_id"],
        cluster_id=meta["cluster_id"],
        cluster=meta["cluster"],
        incarnation=meta["incarnation"],
        schema_version=version,
        sealed=meta.get("sealed", ""),
    )


def sealed_of(connection: sqlite3.Connection) -> str:
    """Returns why the store takes no changes; empty = it takes them."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'sealed'").fetchone()
    return "" if row is None else str(row[0])


def refuse_unknown(connection: sqlite3.Connection) -> None:
    """Checks that the database is a store that this version can use, of any cluster.

    Raises:
        IncompatibleStore: it is not; has the reason, without the name of the file.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != _APPLICATION_ID:
        raise IncompatibleStore("is a sqlite database, but not one that kdir made")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    refuse_newer(version, SCHEMA_VERSION)


def holds_commit(connection: sqlite3.Connection, revision: int, commit_id: str) -> bool:
    """True if this commit was made in this database, or is older than the history kept."""
    known = connection.execute(
        "SELECT commit_id FROM commits WHERE revision = ?", (revision,)
    ).fetchone()
    (oldest,) = connection.execute("SELECT min(revision) FROM commits").fetchone()
    return revision < oldest if known is None else bool(known[0] == commit_id)


def begin_incarnation(
    connection: sqlite3.Connection, seen_revision: int, *, unseal: bool = False
) -> Head:
    """Begins a new incarnation, at a revision of its own before which no watch can resume.

    ``seen_revision`` is the highest known one of the previous incarnation. With ``unseal`` the
    store takes changes from then on.
    """
    head = head_of(connection)
    revision = max(head.revision, seen_revision) + _INCARNATION_STEP
    incarnation = Head(revision, random_id(16), head.writes_total, random_id(16))
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "UPDATE meta SET value = ? WHERE name = 'incarnation'", (incarnation.incarnation,)
    )
    if unseal:
        connection.execute("DELETE FROM meta WHERE name = 'sealed'")
    connection.execute("DELETE FROM log")
    connection.execute("DELETE FROM commits")
    connection.execute(
        "INSERT INTO commits VALUES (?, ?, ?)",
        (incarnation.revision, incarnation.commit_id, incarnation.writes_total),
    )
    connection.execute("COMMIT")
    return incarnation


def trim_log(connection: sqlite3.Connection, revision: int = 0) -> None:
    """Replaces the log by one commit, of at least this revision, before which no watch can resume.
    Runs within a transaction.
    """
    head = head_of(connection)
    connection.execute("DELETE FROM log")
    connection.execute("DELETE FROM commits")
    connection.execute(
        "INSERT INTO commits VALUES (?, ?, ?)",
        (max(head.revision + 1, revision), random_id(16), head.writes_total),
    )


def damage_of(connection: sqlite3.Connection) -> str:
    """Returns what is wrong with the database; empty = nothing.

    A backup that was put beside the write-ahead log of the previous database gives a mixture, which
    sqlite cannot detect. It shows in the structure, or in a log that does not match the rows.
    """
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        return str(found)
    (strays,) = connection.execute(
        """SELECT count(*) FROM (
             SELECT key, value, max(revision) AS revision FROM log GROUP BY key
           ) AS newest LEFT JOIN kv USING (key)
           WHERE kv.value IS NOT newest.value
           OR (kv.revision IS NOT newest.revision AND newest.value IS NOT NULL)"""
    ).fetchone()
    return f"{strays} keys are not as its log says" if strays else ""
