"""Rows of a lost store, made from the state topic of its cluster's change log.

The log holds what cannot be derived: entries, their grants, and the facts of ``is_logged_fact``.
Claims and read-only marks are derived from the entries. All other rows (``NOT_HELD``) are written
again by the servers.

The log and the rows need not fit in memory: both pass through a temporary sqlite database, which
writes to a file what exceeds its cache.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

from kdir.v1 import admin_pb2

from directory.change_log.settings import ChangeLogConfig
from directory.kafka.own_client_settings import OWN
from directory.maintenance.backup_stream import Row, header_of
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import (
    BELOW,
    CHANGE_LOG,
    CHILD,
    CONTACT,
    ENTRY,
    EVENT,
    GRANTS,
    GRANTS_MARK,
    LINKED,
    MEMBER,
    MOUNT_ROW,
    QUOTA,
    REQUEST,
    ROLE,
    claim_key,
    grants_key,
    is_topic_key,
    parse_entry_key,
    read_only_key,
)
from directory.namespace.plan_builder import claim_value, read_only_mark
from directory.namespace.protected_topics import STATE_TOPIC
from directory.namespace.tree_nodes import ROOT_KEY
from directory.server.feature_levels import LEVELS
from directory.store.base import Identity
from directory.wire.entry_codec import ProtoCodec
from resolver import units
from resolver.changes.log_load import LoadedLog, load_log
from resolver.changes.record import entry_key as entry_state_key
from resolver.changes.registry import SchemaRegistry
from resolver.changes.state_fold import (
    SQL_KEY,
    SQL_KEY_SIZE,
    SQL_RECORD,
    LogState,
    StateFold,
    StateRow,
)
from resolver.changes.state_reader import newest_checkpoint
from resolver.changes.topic_reader import TopicReader, topic_names

__all__ = [
    "NOT_HELD",
    "UnusableLog",
    "log_client",
    "log_rows",
    "make_rows",
    "new_table",
    "read_rows",
    "scratch",
]

NOT_HELD: Final = (
    *(REQUEST, EVENT, MEMBER, ROLE, CHANGE_LOG),
    *(MOUNT_ROW, CHILD, BELOW, LINKED, CONTACT, b"f/configured_parent"),
    *(GRANTS_MARK, QUOTA),
)
"""Prefixes of the rows of a store that its log does not hold: answered requests, history, servers
and roles, the progress of the log; what parent and children report again; marks that only
concurrent changes compare.
"""
_CODEC: Final = ProtoCodec()
_WRITTEN_AT_ONCE: Final = 2_000
_CACHE_KIB: Final = 8_192
_STORE: Final = "CREATE TABLE store (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
"""Table of the store's rows, in the temporary database of a restore."""
_PUT_ROWS: Final = (
    f"INSERT OR REPLACE INTO store SELECT {SQL_KEY} AS place, {SQL_RECORD} "  # noqa: S608 - constants
    f"FROM mapping WHERE {SQL_KEY_SIZE} > 0 ORDER BY place"
)
"""Stores the rows of a state that have a key, in key order: in another order, such as that of ids,
the table would be filled at random places."""
_GRANTS: Final = f"SELECT value FROM mapping WHERE {SQL_KEY_SIZE} = 0"  # noqa: S608 - constants
"""Query of the other rows of a state: grants."""
_ENTRIES: Final = "SELECT key, value FROM store WHERE key > ? AND key < ?"
_CLAIM: Final = (
    "INSERT INTO store VALUES (?, ?) "
    "ON CONFLICT (key) DO UPDATE SET value = merged_claims(value, excluded.value)"
)


class UnusableLog(Exception):
    """Error: no store can be made from a log; with the reason for people."""


# -- reading ---------------------------------------------------------------------------------------


def log_client(config: ChangeLogConfig) -> dict[str, Any]:
    """Returns librdkafka's properties for a connection to a change log.

    Raises:
        ConfigError
    """
    return {**OWN, **config.client.read(), "bootstrap.servers": ",".join(config.bootstrap)}


@contextmanager
def log_rows(
    config: ChangeLogConfig, cluster: str, cluster_id: str
) -> Iterator[tuple[admin_pb2.BackupHeader, Callable[[], Iterator[Row]]]]:
    """Yields header and rows of a backup, made from a cluster's change log. The rows come from a
    function that may be called more than once.

    Args:
        cluster: name of the cluster in the config.
        cluster_id: id of the cluster; empty = of the only one of this name that has a log.

    Raises:
        UnusableLog: there is no such log, or there are several, or it is incomplete.
        KafkaUnavailable, ConfigError, OSError
    """
    with scratch() as database:
        state = _read_log(config, cluster, cluster_id, database).state
        make_rows(state, database)
        yield _header_of(state), partial(read_rows, database)


@contextmanager
def scratch() -> Iterator[sqlite3.Connection]:
    """Yields a temporary database, which is deleted when it is closed.

    Raises:
        OSError: for example, the disk has no space for its file.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        database.execute("BEGIN")
        database.execute(_STORE)
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
    with closing(TopicReader(properties, topic)) as reader:
        # Records before the checkpoint may be of another cluster.
        point = newest_checkpoint(reader, registry)
        of = "" if point is None else point.cluster_id
        log = load_log(reader, StateFold(of, registry, partial(new_table, database)))
    reason = log.why_incomplete() or _why_unusable(log)
    if reason:
        raise UnusableLog(f"topic {topic}: {reason}")
    _refuse_other_cluster(topic, log.state, cluster, cluster_id)
    return log


def new_table(database: sqlite3.Connection) -> MutableMapping[str, bytes]:
    """Returns an empty mapping in a database of ``scratch``."""
    number = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return _Table(database, f"mapping_{number}")


class _Table(MutableMapping[str, bytes]):
    """Mapping that is a table of a database."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database: Final = database
        self._name: Final = name
        self._written: Final[dict[str, bytes]] = {}
        """Values to be written to the database: in batches this takes a third of the time."""
        self._put: Final = self._named("INSERT OR REPLACE INTO mapping VALUES (?, ?)")
        self._run("CREATE TABLE mapping (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def run_whole(self, statement: str) -> sqlite3.Cursor:
        """Runs a statement on the whole table, which the statement calls ``mapping``."""
        self._write()
        return self._run(statement)

    def _named(self, statement: str) -> str:
        return statement.replace("mapping", self._name)

    def _run(self, statement: str, *values: str) -> sqlite3.Cursor:
        return self._database.execute(self._named(statement), values)

    def _write(self) -> None:
        self._database.executemany(self._put, self._written.items())
        self._written.clear()

    def __getitem__(self, key: str) -> bytes:
        written = self._written.get(key)
        if written is not None:
            return written
        found = self._run("SELECT value FROM mapping WHERE key = ?", key).fetchone()
        if found is None:
            raise KeyError(key)
        return found[0]  # type: ignore[no-any-return]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._written[key] = value
        if len(self._written) >= _WRITTEN_AT_ONCE:
            self._write()

    def __delitem__(self, key: str) -> None:
        self._write()
        if not self._run("DELETE FROM mapping WHERE key = ?", key).rowcount:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (key for (key,) in self.run_whole("SELECT key FROM mapping"))

    def __len__(self) -> int:
        return int(self.run_whole("SELECT count(*) FROM mapping").fetchone()[0])

    def items(self) -> ItemsView[str, bytes]:
        return _Items(self)

    def clear(self) -> None:
        self._written.clear()
        self._run("DELETE FROM mapping")


class _Items(ItemsView[str, bytes]):
    """Items of a table."""

    _mapping: _Table

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self._mapping.run_whole("SELECT key, value FROM mapping")


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
            f"{units.plural(len(state.unreadable), 'record')} cannot be read, such as {key}: "
            f"{reason}; where a newer kdir wrote them, use that one"
        )
    return ""


# -- rows ------------------------------------------------------------------------------------------


def _header_of(state: LogState) -> admin_pb2.BackupHeader:
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
    return header_of(identity, point.revision, about.feature_level or max(LEVELS), point.time)


def make_rows(state: LogState, database: sqlite3.Connection) -> None:
    """Makes the rows of the store from the state of its log in this database, all but those of
    ``NOT_HELD``. Claims and read-only marks are derived from the entries.
    """
    database.create_function("merged_claims", 2, _merged_claims, deterministic=True)
    table = state.rows_by_key
    assert isinstance(table, _Table)  # noqa: S101 - of ``new_table``
    table.run_whole(_PUT_ROWS)
    entries = database.execute(_ENTRIES, (ENTRY, b"e0"))  # up to the next prefix after ``ENTRY``
    while page := entries.fetchmany(_WRITTEN_AT_ONCE):
        _put(database, _read_only_marks(page))
        database.executemany(_CLAIM, _claims(page))
    for (packed,) in table.run_whole(_GRANTS):
        row = StateRow.unpack(packed)
        entry = state.rows.get(entry_state_key(state.cluster_id, row.entry_id))
        if row.entry_id == ROOT_ID:
            key = grants_key(0, Kind.DIRECTORY, "")
        elif entry is None or entry.key is None:
            continue
        else:
            key = GRANTS + entry.key[len(ENTRY) :]
        _put(database, [(key, row.record)])


def read_rows(database: sqlite3.Connection) -> Iterator[Row]:
    """Returns the rows that ``make_rows`` made, in key order."""
    return database.execute("SELECT key, value FROM store ORDER BY key")


def _put(database: sqlite3.Connection, rows: Iterable[Row]) -> None:
    database.executemany("INSERT OR REPLACE INTO store VALUES (?, ?)", rows)


def _read_only_marks(entries: Iterable[Row]) -> Iterator[Row]:
    """Yields the marks of entries that are read-only."""
    for key, value in entries:
        try:
            if not _CODEC.policies(value).read_only:
                continue
            parent_id = 0 if key == ROOT_KEY else parse_entry_key(key).parent_id
            entry = _CODEC.decode(value)
        except ValueError:
            continue  # kept as it is: kdir verify names it
        mark = read_only_mark(parent_id, entry)
        if mark is not None:
            yield read_only_key(entry.entry_id), mark


def _claims(entries: Iterable[Row]) -> Iterator[Row]:
    """Yields the claim of each topic; several may have the same key."""
    names = _CODEC.physical_names([value for key, value in entries if is_topic_key(key)])
    for name in names:
        if name is not None and (claim := claim_value((name,))) is not None:
            yield claim_key(name), claim


def _merged_claims(one: bytes, other: bytes) -> bytes | None:
    """Returns the merged value of two claims with the same key."""
    return claim_value({*one.decode().split("\n"), *other.decode().split("\n")})
