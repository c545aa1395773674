"""What is in a sqlite store: its tables, whose it is, and which incarnation of it this is.

Refuses to know files and locks (``database_file.py``): everything here is asked of a connection. A
new incarnation begins when the database is not what its last writer left: a backup was put there.
"""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import dataclass
from typing import Final

from directory.store.base import Identity, IncompatibleStore

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
    "random_id",
    "refuse_foreign",
    "refuse_unknown",
    "sealed_of",
    "trim_log",
]

SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x6B646972  # "kdir", as `file` shows it
_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"  # RFC 4648, lower case
_INCARNATION_STEP: Final = 1_000_000
"""A new incarnation's revisions begin so far above all that were seen of the old one that a guard
made from an old snapshot is never mistaken for a current one."""

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


def random_id(length: int) -> str:
    """Returns letters and digits, such as in the ids of stores and clusters."""
    return "".join(secrets.choice(_BASE32) for _ in range(length))


@dataclass(frozen=True, slots=True)
class Head:
    """The newest commit of a database, and the incarnation it belongs to."""

    revision: int
    commit_id: str
    writes_total: int
    incarnation: str


def head_of(connection: sqlite3.Connection) -> Head:
    """Returns the newest commit, as this connection's transaction sees it."""
    row = connection.execute(
        "SELECT revision, commit_id, writes_total,"
        " (SELECT value FROM meta WHERE name = 'incarnation')"
        " FROM commits ORDER BY revision DESC LIMIT 1"
    ).fetchone()
    return Head(*row)


def is_empty(connection: sqlite3.Connection) -> bool:
    """True if there is nothing in it yet."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables == 0)


def create(connection: sqlite3.Connection, cluster: str, cluster_id: str | None) -> None:
    """Makes a new store for a cluster; without an id it gets a random one."""
    meta = {
        "store_id": random_id(16),
        "cluster_id": cluster_id or f"kc-{random_id(10)}",
        "cluster": cluster,
        "incarnation": random_id(16),
    }
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    connection.execute("COMMIT")


def complete(connection: sqlite3.Connection) -> None:
    """Adds what stores made by an earlier kdir lack; those before it do not mind."""
    connection.execute(_ANNOUNCED)


def identity_of(connection: sqlite3.Connection) -> Identity:
    """Returns whose it is."""
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
    """Returns why it takes no changes; empty = it takes them."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'sealed'").fetchone()
    return "" if row is None else str(row[0])


def refuse_unknown(connection: sqlite3.Connection) -> None:
    """Looks whether it is a store that this version can use, whosever it is.

    Raises:
        Incompatible: why it is not, without naming the file.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != _APPLICATION_ID:
        raise IncompatibleStore("is a sqlite database, but not one that kdir made")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise IncompatibleStore(
            f"has schema version {version}, made by a newer kdir; this one knows up to"
            f" {SCHEMA_VERSION}"
        )


def refuse_foreign(connection: sqlite3.Connection, cluster: str, cluster_id: str | None) -> None:
    """Looks whether it is a store of this cluster that this version can use.

    Raises:
        Incompatible: why it is not, without naming the file.
    """
    refuse_unknown(connection)
    found = identity_of(connection)
    if found.cluster != cluster:
        raise IncompatibleStore(
            f"is the store of cluster {found.cluster} ({found.cluster_id}), not of {cluster}"
        )
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise IncompatibleStore(
            f"is the store of cluster id {found.cluster_id}, not of {cluster_id}"
        )


def holds_commit(connection: sqlite3.Connection, revision: int, commit_id: str) -> bool:
    """True if this commit was made here; one that is older than the history kept may have been."""
    known = connection.execute(
        "SELECT commit_id FROM commits WHERE revision = ?", (revision,)
    ).fetchone()
    (oldest,) = connection.execute("SELECT min(revision) FROM commits").fetchone()
    return revision < oldest if known is None else bool(known[0] == commit_id)


def begin_incarnation(
    connection: sqlite3.Connection, seen_revision: int, *, unseal: bool = False
) -> Head:
    """Begins a new incarnation, at a revision of its own before which no watch can resume.

    ``seen_revision`` is the highest that is known of the incarnation before. With ``unseal`` the
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
    """Makes one commit, of at least this revision, the only one that is known: of what led to it no
    watch learns any more. To be called in a transaction.
    """
    head = head_of(connection)
    connection.execute("DELETE FROM log")
    connection.execute("DELETE FROM commits")
    connection.execute(
        "INSERT INTO commits VALUES (?, ?, ?)",
        (max(head.revision + 1, revision), random_id(16), head.writes_total),
    )


def damage_of(connection: sqlite3.Connection) -> str:
    """Returns what is wrong with it; empty = nothing is.

    A backup put in place beside the write-ahead log of what was there gives a mixture, which sqlite
    cannot know. It shows in its structure, or in a log that the rows do not follow.
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
