"""Finds the history topics of all clusters' change logs, and reads a range of one as Arrow batches.

A ``LogRange`` is a plain value, so that another process can read the range with its own consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import grpc
from kdir.v1 import watch_pb2, watch_pb2_grpc

from resolver import units
from resolver.changes import record
from resolver.changes.record import Schemas, UndecodableRecord
from resolver.changes.registry import RegistryUnavailable, SchemaRegistry, why_no_registry
from resolver.changes.topic_reader import TopicReader, TopicRecord
from resolver.error_status import from_rpc_error
from resolver.errors import (
    InvalidArgument,
    KafkaUnavailable,
    KdirError,
    Lame,
    Unreachable,
)
from resolver.index.arrow_rows import no_collector
from resolver.index.cluster_discovery import (
    ASK_SECONDS,
    ReachableCluster,
    channel_to,
    discover_clusters,
)
from resolver.index.row_schema import Column, Type, arrow_schema
from resolver.path import ROOT, Path

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CHANGE_COLUMNS",
    "KAFKA_SECONDS",
    "UNREAD_COLUMNS",
    "ChangeFilter",
    "HistoryReading",
    "LogLocation",
    "LogRange",
    "UnreadLog",
    "change_batch",
    "find_ranges",
    "unread_rows",
]

KAFKA_SECONDS: Final = 30.0
"""Time without an answer after which brokers count as unreachable."""
_EARLIER_MS: Final = 3600 * 1000
"""A read begins this much before the wanted time, since clocks of servers differ."""
_BATCH_ROWS: Final = 5_000
_BATCH_BYTES: Final = 8 * 1024 * 1024
_MOST_ASKED_AT_ONCE: Final = 16
_ATTEMPTS: Final = 3
"""Number of failed reads in a row, without a record, after which a range is given up."""

CHANGE_COLUMNS: Final = (
    Column("cluster_id", Type.TEXT, "the changed cluster"),
    Column("cluster", Type.TEXT, "its name today"),
    Column("generation", Type.LONG, "number of its store's incarnation, from 1"),
    Column("revision", Type.LONG, "revision of the store; changes of one commit share it"),
    Column("position", Type.INTEGER, "order within the revision, from 0"),
    Column("time", Type.TIME, "when it was committed, by the server's clock"),
    Column(
        "cause",
        Type.TEXT,
        "change; resync = found by comparing log and store; skip = changes that were given up",
    ),
    Column("scope", Type.TEXT, "entry, grants, inherited or operated"),
    Column("action", Type.TEXT, "insert, update or delete"),
    Column("kind", Type.TEXT, "dir, topic, link or mount"),
    Column("entry_id", Type.LONG, "identity within the cluster; a move keeps it"),
    Column("parent_id", Type.LONG, "identity of its directory"),
    Column("path", Type.TEXT, "its path at that time; null where the log does not have it"),
    Column(
        "path_before",
        Type.TEXT,
        "of a move, and of what was removed with a directory: the path before; else null",
    ),
    Column("principal", Type.TEXT, "who made it; null where identities are not in use"),
    Column("request_id", Type.TEXT, "the request that made it"),
    Column("before", Type.LABELS, "its own fields before, as kdir set names them"),
    Column("after", Type.LABELS, "the same after; a value that is null was cleared"),
    Column("effective", Type.LABELS, "own and inherited policies after the change"),
    Column("grants_before", Type.TEXTS, "its grants before, as kdir grants prints them"),
    Column("grants_after", Type.TEXTS, "the same after"),
    Column("operation", Type.TEXT, "of scope operated: what was done, for people; else null"),
    Column("cut", Type.TEXTS, "columns that are null because the record was too large"),
)
"""Columns of the changes; a row is one change, and rows are ordered by (cluster_id, generation,
revision, position).
"""

UNREAD_COLUMNS: Final = (
    Column("cluster_id", Type.TEXT, "a cluster whose changes are missing, or some of them"),
    Column("cluster", Type.TEXT, "its name"),
    Column("mount", Type.TEXT, "where it is mounted"),
    Column("reason", Type.TEXT, "what is missing, and why"),
)


ChangeFields = Mapping[str, Any]
"""A change as ``Schemas.decode_fields`` returns it."""


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Location of one cluster's change log; ``history`` and ``state`` are its topics."""

    cluster_id: str
    cluster: str
    mount: str
    brokers: tuple[str, ...]
    history: str
    state: str
    registry: str = ""
    """URL of the schema registry whose ids are in the records' framing; empty = no registry."""

    def consumer_properties(self, own: Mapping[str, str]) -> dict[str, str]:
        """Returns librdkafka's properties for this log; ``own``: the caller's properties, such as
        credentials.
        """
        quiet = {"client.id": "kdir-audit", "log_level": "0"}
        return {**quiet, **own, "bootstrap.servers": ",".join(self.brokers)}

    def unread(self, reason: str) -> UnreadLog:
        """Returns an ``UnreadLog`` of this cluster with a reason."""
        return UnreadLog(self.cluster_id, self.cluster, self.mount, reason)


@dataclass(frozen=True, slots=True)
class UnreadLog:
    """Cluster whose changes are missing, all or some, with the reason."""

    cluster_id: str
    cluster: str
    mount: str
    reason: str

    def __str__(self) -> str:
        return f"{self.mount} ({self.cluster or self.cluster_id or 'id unknown'}): {self.reason}"


@dataclass(frozen=True, slots=True)
class LogRange:
    """Part of a history topic: offsets from ``begin`` up to ``end``, exclusive."""

    log: LogLocation
    begin: int
    end: int
    topic_id: str = ""
    """Kafka's id of the topic; empty = not requested, or Kafka has none."""

    def split(self, most_offsets: int) -> list[LogRange]:
        """Returns the range in parts of at most ``most_offsets`` offsets each."""
        return [
            replace(self, begin=begin, end=min(begin + most_offsets, self.end))
            for begin in range(self.begin, self.end, most_offsets)
        ]


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Filter of changes: at or below a path, and between two times, both included."""

    below: Path = ROOT
    since: datetime | None = None
    until: datetime | None = None

    @property
    def seek_ms(self) -> int | None:
        """Kafka timestamp (Unix milliseconds) from which a history is read; None = from its
        beginning.
        """
        return None if self.since is None else _milliseconds(self.since) - _EARLIER_MS

    def matcher(self) -> Callable[[ChangeFields], bool]:
        """Returns a predicate that is true for the wanted changes; a change without a path is
        wanted by any ``below``.
        """
        below = "" if self.below.is_root else str(self.below)
        since = None if self.since is None else _milliseconds(self.since)
        until = None if self.until is None else _milliseconds(self.until)

        def is_below(path: str | None) -> bool:
            return path is not None and (path == below or path.startswith(f"{below}/"))

        def matches(change: ChangeFields) -> bool:
            if since is not None and change["time"] < since:
                return False
            if until is not None and change["time"] > until:
                return False
            path = change["path"]
            return not below or not path or is_below(path) or is_below(change["path_before"])

        return matches


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


# -- where the logs are ----------------------------------------------------------------------------


def find_ranges(
    servers: Sequence[str],
    wanted: ChangeFilter,
    properties: Mapping[str, str],
    *,
    ask_seconds: float = ASK_SECONDS,
    kafka_seconds: float = KAFKA_SECONDS,
    with_topic_ids: bool = False,
) -> tuple[list[LogRange], list[UnreadLog]]:
    """Finds the change logs of the cluster that owns the wanted path and of those mounted below it,
    starting at ``servers``. Returns the range of each history topic, from the wanted time to its
    present end, and the clusters whose changes are missing, all or some.

    Args:
        properties: librdkafka's properties of the caller, such as credentials.
        with_topic_ids: also read the topic ids, by one more request for each log.

    Raises:
        NoRoute: no discovered cluster has this path.
        InvalidArgument: Kafka's client refuses the properties; or as ``discover_clusters``.
        Unreachable: as ``discover_clusters``.
    """
    found = discover_clusters(servers, ask_seconds=ask_seconds)
    mounts = found.mounts_at(wanted.below)
    asked = [one for one in found.answered.values() if one.mount in mounts]
    asked.sort(key=lambda one: (one.state.mount, one.state.cluster_id))
    unread = [
        UnreadLog(one.cluster_id, one.cluster, str(one.mount), one.reason)
        for one in found.silent.values()
        if one.mount in mounts
    ]

    def find(one: ReachableCluster) -> tuple[list[LogRange], list[str]]:
        return _find_range(
            one,
            wanted.seek_ms,
            properties,
            ask_seconds,
            kafka_seconds,
            with_topic_id=with_topic_ids,
        )

    ranges: list[LogRange] = []
    with ThreadPoolExecutor(_MOST_ASKED_AT_ONCE, "kdir-change-logs") as pool:
        for one, (parts, reasons) in zip(asked, pool.map(find, asked), strict=True):
            state = one.state
            ranges += parts
            unread += [
                UnreadLog(state.cluster_id, state.cluster, state.mount, reason)
                for reason in reasons
            ]
    return ranges, sorted(unread, key=lambda one: (one.mount, one.cluster_id))


def _find_range(
    one: ReachableCluster,
    since_ms: int | None,
    properties: Mapping[str, str],
    ask_seconds: float,
    kafka_seconds: float,
    *,
    with_topic_id: bool,
) -> tuple[list[LogRange], list[str]]:
    """Returns the range of a cluster's history (empty list = it cannot be read), and the reasons
    why changes are missing.
    """
    try:
        answer = _ask_for_log(one, ask_seconds)
    except KdirError as error:
        return [], [error.message]
    if not answer.configured:
        return [], ["it keeps no change log: its servers' configs have no [change_log]"]
    registry = answer.schema_registry
    if registry and (wrong := why_no_registry(registry)):
        return [], [f"its schema registry {registry!r}: {wrong}"]
    log = LogLocation(
        one.state.cluster_id,
        one.state.cluster,
        one.state.mount,
        tuple(answer.bootstrap_servers),
        answer.history_topic,
        answer.state_topic,
        registry,
    )
    reasons = []
    if answer.state.message:
        waiting = f"{units.plural(answer.waiting_commits, 'commit')} to be published"
        reasons.append(f"its change log waits, with {waiting}: {answer.state.message}")
    try:
        with closing(_reader(log, log.history, properties, kafka_seconds)) as reader:
            # Before the bounds: if the topic is created again meanwhile, the id is the older one.
            topic_id = reader.topic_id() if with_topic_id else ""
            begin, end = reader.bounds()
            if since_ms is not None:
                begin = max(begin, min(end, reader.offset_at(since_ms)))
            return [LogRange(log, begin, end, topic_id)], reasons
    except KafkaUnavailable as error:
        return [], [*reasons, error.message]


def _ask_for_log(one: ReachableCluster, ask_seconds: float) -> watch_pb2.GetChangeLogResponse:
    """Returns the answer of the first server whose config has a change log, else of the last server
    that answered.

    Raises:
        KdirError: no endpoint of the cluster answered.
    """
    cluster_id = one.state.cluster_id
    request = watch_pb2.GetChangeLogRequest(cluster=cluster_id)
    error: KdirError = Unreachable("no endpoint of it is known")
    answer: watch_pb2.GetChangeLogResponse | None = None
    for endpoint in one.endpoints:
        try:
            with channel_to(endpoint, cluster_id, one.named) as channel:
                stub = watch_pb2_grpc.WatchServiceStub(channel)
                given = stub.GetChangeLog(request, timeout=ask_seconds)
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
            continue
        except KdirError as refusal:
            error = refusal
            continue
        found = given.authority.cluster.cluster_id
        if found != cluster_id:
            error = Lame(f"{found} answers where {cluster_id} should")
            continue
        answer = given
        if answer.configured:
            break
    if answer is None:
        raise error
    return answer


def _reader(
    log: LogLocation, topic: str, properties: Mapping[str, str], timeout_seconds: float
) -> TopicReader:
    from confluent_kafka import KafkaException

    try:
        own = log.consumer_properties(properties)
        return TopicReader(own, topic, timeout_seconds=timeout_seconds)
    except KafkaException as error:
        raise InvalidArgument(f"confluent-kafka: {error.args[0].str()}") from error


# -- reading ---------------------------------------------------------------------------------------


class HistoryReading:
    """Reader of one range of a history. Used by one thread.

    Args:
        properties: librdkafka's properties of the caller, such as credentials.
        must_read: raise if the registry does not answer; otherwise its records are left out as
            undecodable.
    """

    def __init__(
        self,
        part: LogRange,
        properties: Mapping[str, str],
        wanted: ChangeFilter,
        *,
        timeout_seconds: float = KAFKA_SECONDS,
        must_read: bool = False,
    ) -> None:
        self._part: Final = part
        self._properties: Final = properties
        self._is_wanted: Final = wanted.matcher()
        self._timeout: Final = timeout_seconds
        self._must_read: Final = must_read
        self._schemas = Schemas(SchemaRegistry.at(part.log.registry))
        self._has_all_schemas = False
        self._undecodable = 0
        self._first_undecodable = ""
        self._foreign = 0
        self._removed = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the wanted changes of the range, in order, with the columns ``CHANGE_COLUMNS``. A
        failed read is continued after its last record, so that no change comes twice.

        Raises:
            KafkaUnavailable: the brokers, or with ``must_read`` the registry, do not answer;
                batches before that are valid.
        """
        rows: list[ChangeFields] = []
        size = 0
        for one in self._records():
            size += len(one.value or b"")
            change = self._change(one)
            if change is not None:
                rows.append(change)
            if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                if rows:
                    yield change_batch(rows, self._part.log.cluster)
                rows, size = [], 0
        if rows:
            yield change_batch(rows, self._part.log.cluster)

    def problems(self) -> list[UnreadLog]:
        """Returns the reasons why changes of the range, up to the last record read, may be missing
        in ``batches``.
        """
        found = []
        if self._removed:
            count = units.plural(self._removed, "offset")
            found.append(f"{count} not kept any more: the topic's retention removed them")
        if self._undecodable:
            count = units.plural(self._undecodable, "record")
            found.append(f"{count} could not be decoded, the first {self._first_undecodable}")
        if self._foreign:
            count = units.plural(self._foreign, "record")
            found.append(f"{count} left out: of other clusters")
        return [self._part.log.unread(reason) for reason in found]

    def _records(self) -> Iterator[TopicRecord]:
        log, begin, end = self._part.log, self._part.begin, self._part.end
        attempts = 0
        while begin < end:
            try:
                with closing(_reader(log, log.history, self._properties, self._timeout)) as reader:
                    low, _ = reader.bounds()
                    if low > begin:
                        self._removed += min(low, end) - begin
                        begin = low
                    for one in reader.read(begin, end):
                        begin, attempts = one.offset + 1, 0
                        yield one
                    return
            except KafkaUnavailable:
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise

    def _change(self, one: TopicRecord) -> ChangeFields | None:
        """Returns the change of a record; None = it cannot be decoded, or is not wanted."""
        try:
            change = self._decoded(one.value)
        except UndecodableRecord as error:
            self._undecodable += 1
            self._first_undecodable = self._first_undecodable or f"at offset {one.offset}: {error}"
            return None
        if change["cluster_id"] != self._part.log.cluster_id:
            self._foreign += 1
            return None
        if change["checkpoint"] is not None or not self._is_wanted(change):
            return None
        return change

    def _decoded(self, value: bytes | None) -> ChangeFields:
        if value is None:
            raise UndecodableRecord("it has no value")
        try:
            return self._schemas.decode_fields(value)
        except RegistryUnavailable as error:
            if self._must_read:
                raise
            raise UndecodableRecord(error.message) from None
        except UndecodableRecord:
            if self._has_all_schemas or not record.is_framed_by_another(value):
                raise
        self._has_all_schemas = True
        for _ in range(_ATTEMPTS - 1):
            with suppress(KafkaUnavailable):
                self._load_schemas()
                break
        else:
            self._load_schemas()
        return self._schemas.decode_fields(value)

    def _load_schemas(self) -> None:
        """Adds the schemas of the state topic, for records of another version of kdir."""
        log = self._part.log
        prefix = record.schema_key(log.cluster_id, b"").encode()
        with closing(_reader(log, log.state, self._properties, self._timeout)) as reader:
            for one in reader.read(*reader.bounds()):
                if one.key is not None and one.key.startswith(prefix) and one.value:
                    with suppress(UndecodableRecord):  # records that need the schema are counted
                        self._schemas.add(one.value.decode(errors="replace"))


# -- rows ------------------------------------------------------------------------------------------


def change_batch(changes: Sequence[ChangeFields], cluster: str) -> pa.RecordBatch:
    """Returns changes of one cluster as a batch with the columns ``CHANGE_COLUMNS``."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {"cluster": [cluster] * len(changes)}
    with no_collector():
        for name in (column.name for column in CHANGE_COLUMNS if column.name != "cluster"):
            columns[name] = [one[name] for one in changes]
        columns["time"] = [milliseconds * 1000 for milliseconds in columns["time"]]
        for name in _NULL_IF_EMPTY:
            columns[name] = [value or None for value in columns[name]]
        for name in _MAPS:
            maps = columns[name]
            columns[name] = [None if one is None else list(one.items()) for one in maps]
        return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(CHANGE_COLUMNS))


_MAPS: Final = ("before", "after", "effective")
_NULL_IF_EMPTY: Final = ("action", "kind", "path", "principal", "request_id", "operation")


def unread_rows(unread: Iterable[UnreadLog]) -> pa.RecordBatch:
    """Returns clusters whose changes are missing as a batch with the columns ``UNREAD_COLUMNS``."""
    import pyarrow as pa

    rows = [asdict(one) for one in unread]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(UNREAD_COLUMNS))
