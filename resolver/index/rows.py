"""Turns a page of a scan into an Arrow batch, column by column; refuses to ask servers.

Column by column, because a row at a time costs several times as much: a page's entries are listed
once, and each column is one comprehension over them.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from resolver.index.schema import (
    CLUSTER_COLUMNS,
    KIND_TOPIC,
    KIND_UNREAD,
    TOPIC_COLUMNS,
    ClusterState,
    arrow_schema,
    cluster_values,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from kdir.v1 import entry_pb2, scan_pb2

__all__ = ["topic_batch", "unread_batch", "with_cluster"]

_NO_UUID: Final = bytes(16)
_UUID_LENGTHS: Final = frozenset({0, len(_NO_UUID)})


def topic_batch(page: scan_pb2.ScanTopicsResponse) -> pa.RecordBatch:
    """The topics of a page, as ``TOPIC_COLUMNS``."""
    import pyarrow as pa

    schema = arrow_schema(TOPIC_COLUMNS)
    entries = list(page.entries)
    topics = [entry.topic for entry in entries]
    paths = [entry.path for entry in entries]
    split = [path.rpartition("/") for path in paths]
    owners = list(page.owners) if len(page.owners) == len(entries) else [""] * len(entries)
    columns: dict[str, object] = {
        "path": paths,
        "name": [parts[2] for parts in split],
        "directory": [parts[0] or "/" for parts in split],
        "kind": pa.repeat(pa.scalar(KIND_TOPIC), len(entries)),
        "entry_id": _signed(entries),
        "physical_name": [topic.physical_name for topic in topics],
        "topic_id": _uuid_texts([topic.topic_id for topic in topics]),
        "partitions": [topic.partitions for topic in topics],
        "replication_factor": [topic.replication_factor for topic in topics],
        "provision": _provisions(topics),
        "owner": [owner or None for owner in owners],
        "tags": _tags(entries),
        "drift_count": [topic.drift_count for topic in topics],
        "adopted": [topic.adopted for topic in topics],
        "changed_at": _changed(entries),
        "changed_by": [entry.changed_by or None for entry in entries],
    }
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, type=field.type)
        for field in schema
        for column in (columns[field.name],)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def with_cluster(batch: pa.RecordBatch, state: ClusterState) -> pa.RecordBatch:
    """The batch with its cluster's columns behind it, the same in each row."""
    import pyarrow as pa

    schema = arrow_schema(CLUSTER_COLUMNS)
    values = cluster_values(state)
    arrays = [
        pa.repeat(pa.scalar(values[field.name], type=field.type), batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *arrays], schema=pa.schema([*batch.schema, *schema])
    )


def unread_batch(state: ClusterState) -> pa.RecordBatch:
    """The one row that stands for a cluster that could not be read: its mount, and the cluster."""
    import pyarrow as pa

    head, _, name = state.mount.rpartition("/")
    row = {"path": state.mount or None, "name": name, "directory": head or "/", "kind": KIND_UNREAD}
    schema = arrow_schema(TOPIC_COLUMNS)
    arrays = [pa.array([row.get(field.name)], type=field.type) for field in schema]
    return with_cluster(pa.RecordBatch.from_arrays(arrays, schema=schema), state)


def _signed(entries: Sequence[entry_pb2.Entry]) -> pa.Array:
    # The contract's ids are unsigned and Spark has no such type: the same 64 bits.
    import pyarrow as pa

    return pa.array([entry.entry_id for entry in entries], pa.uint64()).view(pa.int64())


def _uuid_texts(raws: Sequence[bytes]) -> list[str | None]:
    """Kafka's text form of its Uuid (KIP-516): base64 for URLs, no padding; None for none.

    All at once: 16 bytes and two zeros are 18, which is 24 characters with none of padding, of
    which the first 22 are those that the 16 bytes alone would give.
    """
    if any(len(raw) not in _UUID_LENGTHS for raw in raws):
        return [urlsafe_b64encode(raw).rstrip(b"=").decode() or None for raw in raws]
    text = urlsafe_b64encode(b"".join([(raw or _NO_UUID) + b"\0\0" for raw in raws])).decode()
    return [
        text[start : start + 22] if raw else None
        for raw, start in zip(raws, range(0, len(text), 24), strict=True)
    ]


def _provisions(topics: Sequence[entry_pb2.Topic]) -> list[str]:
    from kdir.v1 import entry_pb2

    known = {
        number: name.removeprefix("PROVISION_").lower()
        for name, number in entry_pb2.Provision.items()
    }
    return [known.get(topic.provision) or str(topic.provision) for topic in topics]


def _changed(entries: Sequence[entry_pb2.Entry]) -> pa.Array:
    import pyarrow as pa

    moments = [entry.changed_at for entry in entries]
    micros = [
        # An entry of before any clock was kept says nothing, rather than 1970.
        (moment.seconds * 1_000_000 + moment.nanos // 1_000) or None
        for moment in moments
    ]
    return pa.array(micros, pa.timestamp("us", tz="UTC"))


def _tags(entries: Sequence[entry_pb2.Entry]) -> pa.Array:
    """Built of offsets, since most topics have no tags of their own."""
    import pyarrow as pa

    counts, keys, values = [0] * len(entries), [], []
    for position, entry in enumerate(entries):
        if entry.HasField("policies"):
            for key, value in entry.policies.tags.items():
                if value.WhichOneof("kind") == "value":
                    keys.append(key)
                    values.append(value.value)
                    counts[position] += 1
    offsets = list(accumulate(counts, initial=0))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )
