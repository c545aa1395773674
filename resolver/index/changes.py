"""Spark's data source ``kdir.changes``: every change of every cluster as a row, from the change
logs; as a table and as a stream.

    spark.read.format("kdir.changes").option("servers", "la-1:7420,ny-1:7420").load("/la")

The driver finds the clusters' logs and their first and last offsets; each executor reads a range of
offsets of one history. A cluster or a part of a history that cannot be read becomes a row of scope
``unread`` with the reason (``failures=row``), is left out (``failures=skip``), or is an error
(``failures=raise``).

A stream's position has an offset and the topic's id for each cluster, by cluster id. If the brokers
or the schema registry do not answer, a stream fails, whatever ``failures`` is: otherwise its
position would pass the missing changes, and they would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import time as day_time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resolver.changes.audit import (
    CHANGE_COLUMNS,
    KAFKA_SECONDS,
    ChangeFilter,
    HistoryReading,
    LogLocation,
    LogRange,
    UnreadLog,
    find_ranges,
)
from resolver.errors import InvalidArgument, KafkaUnavailable, Unavailable
from resolver.extras import missing_extra
from resolver.index.cluster_discovery import ASK_SECONDS
from resolver.index.row_schema import Column, Type, arrow_schema, spark_schema
from resolver.index.search import parse_as_of
from resolver.index.spark_options import (
    check_names,
    failures_option,
    positive_option,
    servers_option,
    whole_option,
)
from resolver.path import Path

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
except ModuleNotFoundError as error:
    missing = missing_extra("Spark's data source kdir.changes", "index", "pyspark")
    raise ImportError(missing or str(error)) from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "ChangesOptions", "ChangesReader", "ChangesSource", "ChangesStreamReader"]

SCOPE_UNREAD: Final = "unread"
"""``scope`` of a row that is not a change, but reports that changes of its cluster are missing."""
COLUMNS: Final = (
    *CHANGE_COLUMNS,
    Column("unread_reason", Type.TEXT, "of scope unread: what is missing, and why"),
)
_SHARD_OFFSETS: Final = 50_000
_POLL_SECONDS: Final = 5.0
_KAFKA: Final = "kafka."


@dataclass(frozen=True, slots=True)
class ChangesOptions:
    """Options of a read."""

    servers: tuple[str, ...]
    wanted: ChangeFilter
    properties: Mapping[str, str]
    failures: str = "row"
    ask_seconds: float = ASK_SECONDS
    kafka_seconds: float = KAFKA_SECONDS
    shard_offsets: int = _SHARD_OFFSETS
    poll_seconds: float = _POLL_SECONDS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ChangesOptions:
        """Reads ``servers``, ``path``, ``since``, ``until``, ``failures``, ``ask_seconds``,
        ``kafka_seconds``, ``shard_offsets``, ``poll_seconds``, and ``kafka.…`` for librdkafka.

        Raises:
            InvalidArgument: an option is unknown or wrong; the message names it and the expected
                value.
            InvalidPath: ``path`` is no canonical path.
        """
        known = {"servers", "path", "since", "until", "failures", "ask_seconds", "kafka_seconds",
                 "shard_offsets", "poll_seconds"}  # fmt: skip
        check_names(options, known, _KAFKA)
        since, until = options.get("since"), options.get("until")
        return cls(
            servers=servers_option(options),
            wanted=ChangeFilter(
                Path.parse(options.get("path") or "/"),
                parse_as_of(since, "option since", at=day_time.min) if since else None,
                parse_as_of(until, "option until") if until else None,
            ),
            properties={
                name.lower().removeprefix(_KAFKA): value
                for name, value in options.items()
                if name.lower().startswith(_KAFKA)
            },
            failures=failures_option(options),
            ask_seconds=positive_option(options, "ask_seconds", ASK_SECONDS),
            kafka_seconds=positive_option(options, "kafka_seconds", KAFKA_SECONDS),
            shard_offsets=whole_option(options, "shard_offsets", _SHARD_OFFSETS),
            poll_seconds=positive_option(options, "poll_seconds", _POLL_SECONDS),
        )

    def find_ranges(
        self, *, with_topic_ids: bool = False
    ) -> tuple[list[LogRange], list[UnreadLog]]:
        """Returns the ranges of the histories now, and the clusters with missing changes that get a
        row.

        Raises:
            Unavailable: changes are missing, and ``failures`` is ``raise``.
            NoRoute, InvalidArgument, Unreachable: as ``resolver.changes.audit.find_ranges``.
        """
        ranges, unread = find_ranges(
            self.servers,
            self.wanted,
            self.properties,
            ask_seconds=self.ask_seconds,
            kafka_seconds=self.kafka_seconds,
            with_topic_ids=with_topic_ids,
        )
        return ranges, _reported(unread, self.failures)

    def reading(self, part: LogRange, *, must_read: bool = False) -> HistoryReading:
        """Returns the reader of a range; ``must_read`` as in ``HistoryReading``."""
        return HistoryReading(
            part,
            self.properties,
            self.wanted,
            timeout_seconds=self.kafka_seconds,
            must_read=must_read,
        )


class ChangesSource(DataSource):
    """Spark data source of ``spark.read.format("kdir.changes")``, and of ``readStream``."""

    @classmethod
    def name(cls) -> str:
        return "kdir.changes"

    def schema(self) -> str:
        return spark_schema(COLUMNS)

    def reader(self, schema: StructType) -> ChangesReader:
        return ChangesReader(ChangesOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> ChangesStreamReader:  # noqa: N802 - Spark's name
        options = ChangesOptions.parse(self.options)
        if options.wanted.until is not None:
            raise InvalidArgument("option until: a stream has no end; leave it out")
        return ChangesStreamReader(options)


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """Range of one history, to be read by one task."""

    part: LogRange


@dataclass(frozen=True)
class UnreadPartition(InputPartition):
    """Cluster whose changes could not be found when the read was planned."""

    unread: UnreadLog


class ChangesReader(DataSourceReader):
    """Reader that plans its ranges in the driver, and reads them in the executors."""

    def __init__(self, options: ChangesOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        ranges, unread = self.options.find_ranges()
        parts = [one for part in ranges for one in part.split(self.options.shard_offsets)]
        return [*map(RangePartition, parts), *map(UnreadPartition, unread)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        match partition:
            case RangePartition(part=part):
                try:
                    yield from _read(self.options, part)
                except KafkaUnavailable as error:
                    # Rows that were read before stay in the result: this row marks them as
                    # incomplete.
                    unread = part.log.unread(error.message)
                    yield from map(unread_batch, _reported([unread], self.options.failures))
            case UnreadPartition(unread=unread):
                yield unread_batch(unread)
            case _:
                raise TypeError(f"not a partition of this source: {partition!r}")


_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of all zeros, which checkpoints of before have for brokers without topic ids."""


class _Position(NamedTuple):
    """Position in one history: the offset up to which it is read, and Kafka's id of its topic."""

    offset: int
    topic_id: str = ""
    """Empty = not known: the checkpoint is from an older kdir, or the brokers have no topic ids."""

    @classmethod
    def parse(cls, value: Any) -> _Position:
        """Reads what ``as_json`` returned."""
        if isinstance(value, int):
            return cls(value)
        topic_id = value["topic_id"]
        return cls(value["offset"], "" if topic_id == _NO_TOPIC_ID else topic_id)

    def as_json(self) -> Any:
        """Returns the position as JSON values, for a checkpoint."""
        return self._asdict() if self.topic_id else self.offset

    def is_of_another(self, other: _Position) -> bool:
        """True if the topic was created again between the two positions."""
        return bool(self.topic_id and other.topic_id and self.topic_id != other.topic_id)


_NO_POSITION: Final = _Position(-1)


class ChangesStreamReader(DataSourceStreamReader):
    """Reader of a stream. One reader plans in the driver; copies of it read in the executors."""

    def __init__(self, options: ChangesOptions) -> None:
        self.options = options
        self._ends: dict[str, _Position] = {}
        """Newest position by cluster id: from ``latestOffset``, or after a restart from Spark."""
        self._logs: dict[str, LogLocation] = {}
        self._begins: dict[str, int] = {}
        """First offset of each history, by cluster id: clusters without a position begin there."""
        self._asked_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at >= self.options.poll_seconds:
            self._ask()
            self._asked_at = now
        return {key: position.as_json() for key, position in sorted(self._ends.items())}

    def _ask(self) -> None:
        ranges, _ = self.options.find_ranges(with_topic_ids=True)
        for part in ranges:
            key, found = part.log.cluster_id, _Position(part.end, part.topic_id)
            reached = self._ends.get(key)
            if reached is not None and found.offset < reached.offset:
                raise _made_again(part.log, f"ends at offset {found.offset}", reached)
            if reached is not None and found.is_of_another(reached):
                raise _made_again(part.log, f"has the topic id {found.topic_id}", reached)
            self._logs[key] = part.log
            self._begins[key] = part.begin
            self._ends[key] = found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun = {key: _Position.parse(value) for key, value in start.items()}
        wanted: dict[str, _Position] = {}
        # After a restart Spark first plans the ranges up to its last position.
        for key, value in end.items():
            position = _Position.parse(value)
            known = self._ends.get(key, _NO_POSITION)
            if known.offset <= position.offset and not known.is_of_another(position):
                self._ends[key] = position._replace(topic_id=position.topic_id or known.topic_id)
            reached = begun.get(key, _NO_POSITION)
            # A topic that was made again may be shorter than the last position, or as long.
            if reached.offset != position.offset or position.is_of_another(reached):
                wanted[key] = position
        if not wanted.keys() <= self._begins.keys():
            self._ask()
        parts: list[InputPartition] = []
        for key, (offset, topic_id) in wanted.items():
            log = self._logs.get(key)
            if log is not None:
                reached = begun.get(key, _Position(self._begins[key]))
                _check_range(log, begun.get(key, _NO_POSITION), _Position(offset, topic_id))
                for one in (reached, _Position(offset, topic_id)):
                    if one.is_of_another(self._ends[key]):
                        has = f"has the topic id {self._ends[key].topic_id}"
                        raise _made_again(log, has, one)
                part = LogRange(log, reached.offset, offset)
                parts += map(RangePartition, part.split(self.options.shard_offsets))
            elif self.options.failures != "skip":
                raise Unavailable(
                    f"cluster {key} does not answer, and the stream is to read its changes up to "
                    f"offset {offset}; failures=skip leaves them out"
                )
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        yield from _read(self.options, partition.part, must_read=True)


def _check_range(log: LogLocation, begun: _Position, end: _Position) -> None:
    """Checks that a range ends in the topic that it begins in.

    Raises:
        InvalidArgument: the topic was made again between the two.
    """
    if end.is_of_another(begun):
        raise _made_again(log, f"has the topic id {end.topic_id}", begun)
    if end.offset < begun.offset:
        raise _made_again(log, f"ends at offset {end.offset}", begun)


def _made_again(log: LogLocation, found: str, reached: _Position) -> InvalidArgument:
    of_id = f" of the topic id {reached.topic_id}" if reached.topic_id else ""
    return InvalidArgument(
        f"{log.mount} ({log.cluster}): {log.history} {found}, and the stream has read it up to "
        f"{reached.offset}{of_id}: the topic was made again; begin with a new checkpoint"
    )


def _read(
    options: ChangesOptions, part: LogRange, *, must_read: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yields the changes of a range, then a row for each reason why some are missing.

    Raises:
        KafkaUnavailable: as ``HistoryReading.batches``.
    """
    import pyarrow as pa

    reading = options.reading(part, must_read=must_read)
    schema = arrow_schema(COLUMNS)
    for batch in reading.batches():
        none = pa.nulls(batch.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, none], schema=schema)
    yield from map(unread_batch, _reported(reading.problems(), options.failures))


def _reported(unread: list[UnreadLog], failures: str) -> list[UnreadLog]:
    """Returns the items of ``unread`` that get a row.

    Raises:
        Unavailable: ``unread`` is not empty, and ``failures`` is ``raise``.
    """
    if unread and failures == "raise":
        raise Unavailable(str(unread[0]))
    return unread if failures == "row" else []


def unread_batch(unread: UnreadLog) -> pa.RecordBatch:
    """Returns the single row for a cluster with missing changes; its path is the mount."""
    import pyarrow as pa

    row: dict[str, Any] = {
        "cluster_id": unread.cluster_id,
        "cluster": unread.cluster,
        "scope": SCOPE_UNREAD,
        "path": unread.mount or None,
        "unread_reason": unread.reason,
    }
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(COLUMNS))
