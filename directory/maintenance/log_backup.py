"""A backup that is made of the state of a change log, for a cluster whose store is lost.

The log holds what cannot be derived and does not come again by itself: entries, their grants, and
the facts of ``is_logged_fact``. Claims and marks of what is read-only are derived from the entries.
The rest (``NOT_HELD``) begins new.

Neither the log nor the backup need fit in memory: what is larger than the cache of a database of
its own is in a temporary file.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, groupby, islice
from operator import itemgetter
from typing import IO, Any, Final

from directory.change_log.settings import STATE_TOPIC, ChangeLogConfig
from directory.federation.link_records import BELOW
from directory.kafka.client_properties import OWN
from directory.maintenance.backup_stream import Row, backup_messages, header_of
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import (
    CHANGE_LOG,
    CHILD,
    ENTRY,
    EVENT,
    GRANTS,
    GRANTS_MARK,
    MEMBER,
    MOUNT_ROW,
    QUOTA,
    REQUEST,
    ROLE,
    EntryKey,
    claim_key,
    grants_key,
    parse_entry_key,
    read_only_key,
    unify,
)
from directory.namespace.plan_builder import claim_value, read_only_mark
from directory.namespace.tree_nodes import ROOT_KEY
from directory.server.feature_levels import LEVELS
from directory.store.base import Identity
from directory.wire.entry_codec import ProtoCodec
from resolver.backup_file import BackupWriter
from resolver.changes.registry import SchemaRegistry
from resolver.changes.state import LogState, StateFold
from resolver.changes.state_reader import LoadedLog, load_log, newest_checkpoint
from resolver.changes.topic_reader import TopicReader, topic_names

__all__ = [
    "NOT_HELD",
    "UnusableLog",
    "log_client",
    "new_table",
    "rows_of_log",
    "scratch",
    "write_log_backup",
]

NOT_HELD: Final = (
    *(REQUEST, EVENT, MEMBER, ROLE, CHANGE_LOG),
    *(MOUNT_ROW, CHILD, BELOW, b"f/linked/", b"f/heard", b"f/configured_parent"),
    *(GRANTS_MARK, QUOTA),
)
"""Prefixes of the rows of a store that its log does not hold: answered requests, history, servers
and roles, how far the log is; what parent and children report again; marks that only changes at the
same time compare.
"""
_CODEC: Final = ProtoCodec()
_ROOT: Final = EntryKey(0, is_topic=False, name="")
_ROWS: Final = 500
_CACHE_KIB: Final = 8_192
_TABLES: Final = (
    "CREATE TABLE mapping (number, key TEXT, value BLOB, PRIMARY KEY (number, key)) WITHOUT ROWID",
    "CREATE TABLE store (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID",
    "CREATE TABLE added (key BLOB, value BLOB)",
    "CREATE TABLE place (entry_id INTEGER PRIMARY KEY, key BLOB)",
    "CREATE TABLE grants (entry_id INTEGER PRIMARY KEY, value BLOB)",
    "CREATE TABLE name (unified TEXT, name TEXT, PRIMARY KEY (unified, name)) WITHOUT ROWID",
)
"""Of the database of a restore: mappings; the rows of the store, and what they are made of."""


class UnusableLog(Exception):
    """Error of a log that no store can be made of: why, for people."""


# -- reading ---------------------------------------------------------------------------------------


def log_client(config: ChangeLogConfig) -> dict[str, Any]:
    """Returns librdkafka's properties for the way to a change log.

    Raises:
        ConfigError
    """
    return {**OWN, **config.client.read(), "bootstrap.servers": ",".join(config.bootstrap)}


def write_log_backup(
    config: ChangeLogConfig, cluster: str, cluster_id: str, file: IO[bytes]
) -> None:
    """Writes a backup of the store that the log of a cluster was made of.

    Args:
        cluster: its name in the config.
        cluster_id: empty = that of the one log which is of a cluster of this name.

    Raises:
        UnusableLog: there is none, or none that is whole.
        KafkaUnavailable, ConfigError, OSError
    """
    with scratch() as database:
        _write_backup(_read_log(config, cluster, cluster_id, database).state, database, file)


@contextmanager
def scratch() -> Iterator[sqlite3.Connection]:
    """Yields a database that is gone when it is closed.

    Raises:
        OSError: such as where its temporary file has no room.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        database.execute("BEGIN")
        for statement in _TABLES:
            database.execute(statement)
        try:
            yield database
        except sqlite3.Error as error:
            why = f"{error}; SQLITE_TMPDIR names another folder for it"
            raise OSError(errno.EIO, why, "temporary database") from error


def _read_log(
    config: ChangeLogConfig, cluster: str, cluster_id: str, database: sqlite3.Connection
) -> LoadedLog:
    properties = log_client(config)
    topic = _find_topic(properties, config, cluster, cluster_id)
    registry = SchemaRegistry.at(config.schema_registry)
    fold = StateFold(registry=registry, new_table=partial(new_table, database))
    with closing(TopicReader(properties, topic)) as reader:
        log = load_log(reader, fold=fold)
    reason = log.why_incomplete() or _why_unusable(log)
    if reason:
        raise UnusableLog(f"topic {topic}: {reason}")
    _refuse_other_cluster(topic, log.state, cluster, cluster_id)
    return log


def new_table(database: sqlite3.Connection) -> MutableMapping[str, bytes]:
    """Returns an empty mapping in a database of ``scratch``."""
    return _Table(database, next(_numbers))


_numbers: Final = count()


class _Table(MutableMapping[str, bytes]):
    """Mapping in a database that may hold several."""

    def __init__(self, database: sqlite3.Connection, number: int) -> None:
        self._run: Final = database.execute
        self._number: Final = number

    def __getitem__(self, key: str) -> bytes:
        asked = "SELECT value FROM mapping WHERE number = ? AND key = ?"
        found = self._run(asked, (self._number, key)).fetchone()
        if found is None:
            raise KeyError(key)
        return found[0]  # type: ignore[no-any-return]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._run("INSERT OR REPLACE INTO mapping VALUES (?, ?, ?)", (self._number, key, value))

    def __delitem__(self, key: str) -> None:
        delete = "DELETE FROM mapping WHERE number = ? AND key = ?"
        if not self._run(delete, (self._number, key)).rowcount:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        found = self._run("SELECT key FROM mapping WHERE number = ?", (self._number,))
        return (key for (key,) in found)

    def __len__(self) -> int:
        asked = "SELECT count(*) FROM mapping WHERE number = ?"
        return int(self._run(asked, (self._number,)).fetchone()[0])

    def items(self) -> ItemsView[str, bytes]:
        return _Items(self)

    def pairs(self) -> Iterator[tuple[str, bytes]]:
        """Yields keys and values in one pass."""
        asked = "SELECT key, value FROM mapping WHERE number = ?"
        yield from self._run(asked, (self._number,))

    def clear(self) -> None:
        self._run("DELETE FROM mapping WHERE number = ?", (self._number,))


class _Items(ItemsView[str, bytes]):
    """Items of a table."""

    _mapping: _Table

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self._mapping.pairs()


def _find_topic(
    properties: Mapping[str, Any], config: ChangeLogConfig, cluster: str, cluster_id: str
) -> str:
    there = topic_names(properties)
    if cluster_id or not config.is_shared:
        topic, _ = config.topics(cluster_id)
        if topic not in there:
            raise UnusableLog(f"topic {topic} is not in Kafka: {','.join(config.bootstrap)}")
        return topic
    registry = SchemaRegistry.at(config.schema_registry)
    found: dict[str, str] = {}
    for topic in sorted(name for name in there if name.startswith(f"{STATE_TOPIC}.")):
        with closing(TopicReader(properties, topic)) as reader:
            point = newest_checkpoint(reader, registry)
        if point is not None and point.checkpoint and point.checkpoint.cluster == cluster:
            found[topic] = point.cluster_id
    if not found:
        raise UnusableLog(f"no topic {STATE_TOPIC}.* of this Kafka is the log of cluster {cluster}")
    if len(found) > 1:
        raise UnusableLog(
            f"there are logs of {len(found)} clusters named {cluster}: --cluster-id says which, "
            f"of {', '.join(found.values())}"
        )
    return next(iter(found))


def _refuse_other_cluster(topic: str, state: LogState, cluster: str, cluster_id: str) -> None:
    point = state.checkpoint
    name = point.checkpoint.cluster if point and point.checkpoint else ""
    if name != cluster or cluster_id not in ("", state.cluster_id):
        raise UnusableLog(
            f"topic {topic} holds the log of cluster {name} ({state.cluster_id}); expected "
            f"{cluster}{f' ({cluster_id})' if cluster_id else ''}"
        )


def _why_unusable(log: LoadedLog) -> str:
    state = log.state
    if log.first_offset:
        return (
            f"it begins at offset {log.first_offset:,}: records before that were deleted, so it "
            f"does not hold everything"
        )
    if state.other_clusters:
        others = ", ".join(sorted(state.other_clusters))
        return f"it holds records of cluster {state.cluster_id}, and of {others}"
    if state.unreadable:
        key, reason = next(iter(state.unreadable.items()))
        return (
            f"{len(state.unreadable):,} records cannot be read, such as {key}: {reason}; where a "
            f"newer kdir wrote them, use that one"
        )
    return ""


# -- rows ------------------------------------------------------------------------------------------


def _write_backup(state: LogState, database: sqlite3.Connection, file: IO[bytes]) -> None:
    point = state.checkpoint
    assert point is not None and point.checkpoint is not None  # noqa: S101, PT018 - ``_read_log``
    about = point.checkpoint
    identity = Identity(
        store_id="",
        cluster_id=state.cluster_id,
        cluster=about.cluster,
        incarnation=about.incarnation,
        schema_version=about.schema_version,
    )
    level = about.feature_level or max(LEVELS)
    pages = _pages(rows_of_log(state, database))
    writer = BackupWriter(file)
    for message in backup_messages(header_of(identity, point.revision, level, point.time), pages):
        writer.write(message)
    writer.close()


def _pages(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while page := list(islice(rows, _ROWS)):
        yield page


def rows_of_log(state: LogState, database: sqlite3.Connection) -> Iterator[Row]:
    """Yields the rows of the store that the state was made of, in key order, but for those of
    ``NOT_HELD``. Claims and marks are as the entries need them.
    """
    run = database.execute
    for row in state.rows.values():
        if row.key is None:
            run("INSERT OR REPLACE INTO grants VALUES (?, ?)", (row.entry_id, row.record))
            continue
        run("INSERT OR REPLACE INTO store VALUES (?, ?)", (row.key, row.record))
        if row.place:
            run("INSERT OR REPLACE INTO place VALUES (?, ?)", (row.entry_id, row.key))
    root = grants_key(0, Kind.DIRECTORY, "")
    run("INSERT INTO added SELECT ?, value FROM grants WHERE entry_id = ?", (root, ROOT_ID))
    of_entries = "SELECT key, value FROM grants JOIN place USING (entry_id) WHERE entry_id != ?"
    for key, value in run(of_entries, (ROOT_ID,)):
        run("INSERT INTO added VALUES (?, ?)", (GRANTS + key[len(ENTRY) :], value))
    for key, value in run("SELECT key, value FROM store"):
        if key.startswith(ENTRY):
            _derive(database, key, value)
    for unified, found in groupby(run("SELECT unified, name FROM name"), itemgetter(0)):
        claim = claim_value({name for _, name in found})
        if claim is not None:
            run("INSERT INTO added VALUES (?, ?)", (claim_key(unified), claim))
    run("INSERT OR REPLACE INTO store SELECT key, value FROM added")
    yield from run("SELECT key, value FROM store")


def _derive(database: sqlite3.Connection, key: bytes, value: bytes) -> None:
    """Adds the mark of an entry that is read-only, and its physical name to those that are to be
    claimed.
    """
    try:
        parent_id, is_topic, _ = _ROOT if key == ROOT_KEY else parse_entry_key(key)
        if is_topic and (name := _CODEC.physical_names([value])[0]) is not None:
            database.execute("INSERT OR IGNORE INTO name VALUES (?, ?)", (unify(name), name))
        entry = _CODEC.decode(value)
    except ValueError:
        return  # kept as it is: kdir verify names it
    mark = read_only_mark(parent_id, entry)
    if mark is not None:
        row = read_only_key(entry.entry_id), mark
        database.execute("INSERT INTO added VALUES (?, ?)", row)
