"""Columns of the index, for Arrow, Spark and Delta.

A row is one topic. Columns of the topic are in the data files; columns of its whole cluster (its
identity, the time of the read, whether it is stale) are the same for all rows of a cluster, and are
partition values of the Delta table, outside the files. So a cluster's time and staleness change
without rewriting a row (``delta_table.py``).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from resolver.errors import Internal

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CLUSTER_COLUMNS",
    "COLUMNS",
    "KIND_TOPIC",
    "KIND_UNREAD",
    "MOST_LONG",
    "TOPIC_COLUMNS",
    "ClusterState",
    "Column",
    "Listener",
    "Type",
    "arrow_schema",
    "partition_values",
    "spark_schema",
    "state_from_partition",
]

KIND_TOPIC: Final = "topic"
MOST_LONG: Final = 2**63 - 1
"""Largest number of a ``Type.LONG`` column; revisions are unsigned in the contract."""
KIND_UNREAD: Final = "unread"
"""``kind`` of the single row that the data source returns for a cluster that it could not read."""


class Type(enum.Enum):
    """Type of a column; the value is the type's name in Spark's DDL."""

    TEXT = "STRING"
    INTEGER = "INT"
    LONG = "BIGINT"
    FLAG = "BOOLEAN"
    TIME = "TIMESTAMP"
    LABELS = "MAP<STRING, STRING>"
    TEXTS = "ARRAY<STRING>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the index."""

    name: str
    type: Type
    comment: str


TOPIC_COLUMNS: Final = (
    Column("path", Type.TEXT, "canonical path"),
    Column("name", Type.TEXT, "last segment of the path"),
    Column("directory", Type.TEXT, "path of the directory that holds it"),
    Column("kind", Type.TEXT, "topic"),
    Column("entry_id", Type.LONG, "identity within the cluster; a move keeps it"),
    Column("physical_name", Type.TEXT, "the topic's name in Kafka"),
    Column("topic_id", Type.TEXT, "Kafka's topic id as Kafka shows it; null while unknown"),
    Column("partitions", Type.INTEGER, "partitions; 0 = the broker's default"),
    Column("replication_factor", Type.INTEGER, "replicas; 0 = the broker's default"),
    Column("provision", Type.TEXT, "active, pending, failed, missing, replaced, …"),
    Column("owner", Type.TEXT, "effective owner; null = nobody"),
    Column("tags", Type.LABELS, "the topic's own labels"),
    Column("drift_count", Type.INTEGER, "settings in Kafka that differ from the desired ones"),
    Column("adopted", Type.FLAG, "whether kdir found it in Kafka rather than made it"),
    Column("changed_at", Type.TIME, "when the entry was last changed"),
    Column("changed_by", Type.TEXT, "who changed it last; null where identities are not in use"),
)

CLUSTER_COLUMNS: Final = (
    Column("cluster_id", Type.TEXT, "the cluster; never changes"),
    Column("cluster", Type.TEXT, "its name, for people"),
    Column("mount", Type.TEXT, "the path at which its tree is attached"),
    Column("site", Type.TEXT, "the site of the server that answered; null = none"),
    Column("bootstrap_servers", Type.TEXT, "host:port,… of its first listener"),
    Column("listeners", Type.TEXT, "all listeners, as JSON"),
    Column("as_of", Type.TIME, "how the cluster was then; null = it was never read"),
    Column("revision", Type.LONG, "order of changes of its store"),
    Column("incarnation", Type.TEXT, "incarnation of its store"),
    Column("stale", Type.FLAG, "it did not answer since as_of"),
    Column("stale_since", Type.TIME, "when it first did not answer"),
    Column("stale_reason", Type.TEXT, "why it, or a part of it, could not be read"),
)

COLUMNS: Final = TOPIC_COLUMNS + CLUSTER_COLUMNS


@dataclass(frozen=True, slots=True)
class Listener:
    """Bootstrap servers of a cluster under one listener (``kdir.v1.Listener``)."""

    name: str
    bootstrap_servers: tuple[str, ...]
    security_protocol: str = ""
    sasl_mechanism: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """State of one cluster in the index; times are UTC."""

    cluster_id: str
    cluster: str = ""
    mount: str = ""
    site: str = ""
    listeners: tuple[Listener, ...] = ()
    as_of: datetime | None = None
    revision: int | None = None
    incarnation: str = ""
    stale: bool = False
    stale_since: datetime | None = None
    stale_reason: str = ""
    unchanged_since: int | None = field(default=None, compare=False)
    """Earliest revision with the same rows as ``revision``; None = not known. Not in the table."""

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        """Brokers of the first listener; empty for a cluster without Kafka."""
        return self.listeners[0].bootstrap_servers if self.listeners else ()

    @property
    def is_doubtful(self) -> bool:
        """True if the cluster's rows may be old, or some are missing."""
        return self.stale or bool(self.stale_reason)

    def same_rows(self, newer: ClusterState) -> bool:
        """True if rows that were read in this state are still right in a newer one.

        Paths depend on the mount, the rest of a row on the store's incarnation and on revisions
        that change topics.
        """
        if self.as_of is None or newer.as_of is None:
            return False
        if self.revision is None or newer.revision is None:
            return False
        since = newer.revision if newer.unchanged_since is None else newer.unchanged_since
        return (self.incarnation, self.mount) == (newer.incarnation, newer.mount) and (
            since <= self.revision <= newer.revision
        )

    def silent(self, since: datetime, reason: str) -> ClusterState:
        """Returns this state marked stale, for a cluster that did not answer. If it was stale
        already, ``stale_since`` stays.
        """
        first = self.stale_since if self.stale and self.stale_since is not None else since
        return replace(self, stale=True, stale_since=first, stale_reason=reason)

    def incomplete(self, reason: str) -> ClusterState:
        """Returns this state for a cluster that could be read only in part. It has no revision, so
        that each build reads the cluster again until all of it can be read.
        """
        return replace(self, revision=None, stale_reason=self.stale_reason or reason)


def arrow_schema(columns: Iterable[Column] = COLUMNS) -> pa.Schema:
    """Returns the columns as an Arrow schema; times are microseconds in UTC."""
    import pyarrow as pa

    types = {
        Type.TEXT: pa.string(),
        Type.INTEGER: pa.int32(),
        Type.LONG: pa.int64(),
        Type.FLAG: pa.bool_(),
        Type.TIME: pa.timestamp("us", tz="UTC"),
        Type.LABELS: pa.map_(pa.string(), pa.string()),
        Type.TEXTS: pa.list_(pa.string()),
    }
    return pa.schema([pa.field(column.name, types[column.type]) for column in columns])


def spark_schema(columns: Iterable[Column] = COLUMNS) -> str:
    """Returns the columns in Spark's DDL."""
    return ", ".join(f"{column.name} {column.type.value}" for column in columns)


def cluster_values(state: ClusterState) -> dict[str, object]:
    """Returns the values of the cluster's columns, by name. Empty values are None, as in Delta's
    partition values.
    """
    return {
        "cluster_id": state.cluster_id,
        "cluster": state.cluster or None,
        "mount": state.mount or None,
        "site": state.site or None,
        "bootstrap_servers": ",".join(state.bootstrap_servers) or None,
        "listeners": _listeners_json(state.listeners),
        "as_of": state.as_of,
        "revision": state.revision,
        "incarnation": state.incarnation or None,
        "stale": state.stale,
        "stale_since": state.stale_since,
        "stale_reason": state.stale_reason or None,
    }


def partition_values(state: ClusterState) -> dict[str, str | None]:
    """Returns the values of the cluster's columns, by name, as text in the form of Delta's
    partition values.

    Raises:
        Internal: a value does not fit the type of its column. Delta does not check this, and the
            table could not be read after such a commit.
    """
    import pyarrow as pa

    if not state.cluster_id:  # Delta would read it as null
        raise Internal(f"{state.cluster} at {state.mount}: the column cluster_id cannot be empty")
    values = cluster_values(state)
    for column in arrow_schema(CLUSTER_COLUMNS):
        try:
            pa.scalar(values[column.name], type=column.type)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise Internal(
                f"{state.cluster} ({state.cluster_id}): the column {column.name} cannot hold "
                f"{values[column.name]!r}: {error}"
            ) from error
    return {name: _text(value) for name, value in values.items()}


def state_from_partition(values: Mapping[str, Any]) -> ClusterState:
    """Returns the state of a cluster from the partition values of its rows."""
    as_of, since = values["as_of"], values["stale_since"]
    return ClusterState(
        cluster_id=values["cluster_id"],
        cluster=values["cluster"] or "",
        mount=values["mount"] or "",
        site=values["site"] or "",
        listeners=_listeners_from(values["listeners"]),
        as_of=as_of.astimezone(UTC) if as_of is not None else None,
        revision=values["revision"],
        incarnation=values["incarnation"] or "",
        stale=bool(values["stale"]),
        stale_since=since.astimezone(UTC) if since is not None else None,
        stale_reason=values["stale_reason"] or "",
    )


def _text(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            # With a Z: without it, readers would use their own time zone.
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case _:
            return str(value)


def _listeners_json(listeners: Sequence[Listener]) -> str | None:
    return json.dumps([asdict(listener) for listener in listeners]) if listeners else None


def _listeners_from(text: str | None) -> tuple[Listener, ...]:
    return tuple(
        Listener(
            name=row["name"],
            bootstrap_servers=tuple(row["bootstrap_servers"]),
            security_protocol=row["security_protocol"],
            sasl_mechanism=row["sasl_mechanism"],
        )
        for row in json.loads(text or "[]")
    )
