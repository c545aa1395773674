"""Change logs in tests: what their topics hold, read by the project's own reader."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from directory.change_log.log_topics import LogTopics
from directory.change_log.settings import ChangeLogConfig
from directory.change_log.topic_writer import LogRecord, LogRefused
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.own_client_settings import ClientProperties
from directory.maintenance.log_backup import NOT_HELD, UnusableLog, log_rows
from directory.store.addresses import open_store
from resolver.backup_file import BackupReader
from resolver.changes import record
from resolver.changes.record import Change, Checkpoint, Schemas
from resolver.changes.registry import SchemaRegistry
from resolver.changes.topic_reader import TopicReader
from tests.support.backups import back_up
from tests.support.waiting import eventually

__all__ = ["ChangeLogTopics", "LogContents", "WrittenLog", "held_rows", "rebuilt_rows"]


def held_rows(store: str) -> list[tuple[bytes, bytes]]:
    """Returns the rows that a change log holds of the store of cluster la, from a backup of it."""
    with closing(open_store(store, "la")) as opened:
        backup = io.BytesIO(back_up(opened))
    return [row for row in BackupReader(backup).rows() if not row[0].startswith(NOT_HELD)]


def rebuilt_rows(bootstrap: str, cluster_id: str) -> list[tuple[bytes, bytes]]:
    """Returns the rows that a restore makes from the change log of cluster la.

    Raises:
        AssertionError: the log is unusable, as during a resync: ``eventually`` tries again.
    """
    config = ChangeLogConfig((bootstrap,), ClientProperties(), is_shared=True)
    try:
        with log_rows(config, "la", cluster_id) as (_, read_rows):
            return list(read_rows())
    except UnusableLog as reason:
        raise AssertionError(str(reason)) from reason


@dataclass(frozen=True, slots=True)
class LogContents:
    """Contents of the two topics: the newest value of each state key, and the history in order."""

    state: dict[str, Change]
    checkpoint: Change | None
    history: list[Change]

    @property
    def rows(self) -> dict[bytes, bytes]:
        """The rows of the store that the state holds whole, by key; grants by their entry's id."""
        return {
            one.key if one.key is not None else b"g/%d" % one.entry_id: one.record
            for one in self.state.values()
            if one.record is not None
        }


class ChangeLogTopics:
    """The topics of one cluster's change log."""

    def __init__(
        self, bootstrap: str, cluster_id: str, *, suffix: str = "", registry: str = ""
    ) -> None:
        self.cluster_id = cluster_id
        self._registry = registry
        self._properties = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.state_topic = f"__change_events{suffix}"
        self.history_topic = f"__change_history{suffix}"

    def read(self) -> LogContents:
        """Reads both topics to their ends."""
        schemas, state = Schemas(SchemaRegistry.at(self._registry)), dict[str, Change]()
        prefix = f"{self.cluster_id}/"
        for key, value in self.records(self.state_topic):
            assert key.startswith(prefix), key
            if key.startswith(f"{prefix}s/"):
                continue
            if value is None:
                state.pop(key, None)
            else:
                state[key] = schemas.decode(value)
        checkpoint = state.pop(f"{prefix}c", None)
        records = self.records(self.history_topic)
        history = [schemas.decode(value) for _, value in records if value is not None]
        return LogContents(state, checkpoint, history)

    def records(self, topic: str) -> list[tuple[str, bytes | None]]:
        """Returns keys and values of a topic as they are."""
        with closing(TopicReader(self._properties, topic)) as reader:
            found = reader.read(*reader.bounds())
            return [((one.key or b"").decode(), one.value) for one in found]


class WrittenLog:
    """A change log that a test writes itself, in transactions as the publisher's."""

    def __init__(self, bootstrap: str, cluster_id: str) -> None:
        self.cluster_id, self._bootstrap = cluster_id, bootstrap
        names = (f"__change_events.{cluster_id}", f"__change_history.{cluster_id}")
        self.topics = LogTopics(cluster_id, *names, [bootstrap], lambda: {"log_level": "0"})
        admin = ConfluentAdmin([bootstrap])
        # Right after they were made their settings may not be there yet.
        eventually(lambda: self._is_made(admin))
        admin.close()
        self._writer = self.topics.writer(f"kdir-{cluster_id}")
        self.revision = 0

    def _is_made(self, admin: ConfluentAdmin) -> bool:
        try:
            self.topics.make_and_check(admin, were_there=False)
        except LogRefused:
            return False
        return True

    def add(self, *paths: str, **fields: Any) -> list[Change]:
        """Publishes a change for each path, each of a revision of its own, and a checkpoint."""
        changes = []
        for path in paths:
            self.revision += 1
            one = {"generation": 1, "revision": self.revision, "time": 1_790_000_000_000, **fields}
            changes.append(Change(cluster_id=self.cluster_id, path=path, **one))
        point = Checkpoint(incarnation="one", incarnations=("one",), cluster=self.cluster_id)
        end = Change(
            cluster_id=self.cluster_id,
            generation=1,
            revision=self.revision,
            time=1_790_000_000_000,
            scope="checkpoint",
            checkpoint=point,
        )
        self.write(*((one.path, record.encode(one)) for one in (*changes, end)))
        return changes

    def write(self, *records: tuple[str, bytes | None]) -> None:
        """Writes keys and values to the history as they are, as one transaction; returns once
        readers may read them, which is a moment after the commit is acknowledged.
        """
        properties = {"bootstrap.servers": self._bootstrap}
        with closing(TopicReader(properties, self.topics.history)) as reader:
            _, before = reader.bounds()
            self._writer.write(LogRecord(self.topics.history, key, value) for key, value in records)
            eventually(lambda: reader.bounds()[1] > before + len(records))  # the commit's, too

    def add_schema(self, text: str, fingerprint: bytes) -> None:
        """Publishes a schema."""
        key = record.schema_key(self.cluster_id, fingerprint)
        self._writer.write([LogRecord(self.topics.state, key, text.encode())])
