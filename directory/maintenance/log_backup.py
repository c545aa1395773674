"""A backup that is made of the state of a change log, for a cluster whose store is lost.

The log holds what cannot be derived and does not come again by itself: entries, their grants, and
the facts of ``is_logged_fact``. Claims and marks of what is read-only are derived from the entries.
The rest (``NOT_HELD``) begins new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
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
from resolver.changes.state import LogState
from resolver.changes.state_reader import LoadedLog, load_log, newest_checkpoint
from resolver.changes.topic_reader import TopicReader, topic_names

__all__ = ["NOT_HELD", "UnusableLog", "log_client", "read_log", "rows_of_log", "write_log_backup"]

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


class UnusableLog(Exception):
    """Error of a log that no store can be made of: why, for people."""


# -- reading ---------------------------------------------------------------------------------------


def log_client(config: ChangeLogConfig) -> dict[str, Any]:
    """Returns librdkafka's properties for the way to a change log.

    Raises:
        ConfigError
    """
    return {**OWN, **config.client.read(), "bootstrap.servers": ",".join(config.bootstrap)}


def read_log(config: ChangeLogConfig, cluster: str, cluster_id: str = "") -> LoadedLog:
    """Returns the state of a cluster's log, whole.

    Args:
        cluster: its name in the config.
        cluster_id: empty = that of the one log which is of a cluster of this name.

    Raises:
        UnusableLog: there is none, or none that is whole.
        KafkaUnavailable, ConfigError
    """
    properties = log_client(config)
    topic = _find_topic(properties, config, cluster, cluster_id)
    with closing(TopicReader(properties, topic)) as reader:
        log = load_log(reader)
    reason = log.why_incomplete() or _why_unusable(log)
    if reason:
        raise UnusableLog(f"topic {topic}: {reason}")
    _refuse_other_cluster(topic, log.state, cluster, cluster_id)
    return log


def _find_topic(
    properties: Mapping[str, Any], config: ChangeLogConfig, cluster: str, cluster_id: str
) -> str:
    there = topic_names(properties)
    if cluster_id or not config.is_shared:
        topic, _ = config.topics(cluster_id)
        if topic not in there:
            raise UnusableLog(f"topic {topic} is not in Kafka: {','.join(config.bootstrap)}")
        return topic
    found: dict[str, str] = {}
    for topic in sorted(name for name in there if name.startswith(f"{STATE_TOPIC}.")):
        with closing(TopicReader(properties, topic)) as reader:
            point = newest_checkpoint(reader)
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


def write_log_backup(state: LogState, file: IO[bytes]) -> None:
    """Writes a backup of the store that the state was made of."""
    point = state.checkpoint
    assert point is not None and point.checkpoint is not None  # noqa: S101, PT018 - ``read_log``
    about = point.checkpoint
    identity = Identity(
        store_id="",
        cluster_id=state.cluster_id,
        cluster=about.cluster,
        incarnation=about.incarnation,
        schema_version=about.schema_version,
    )
    level = about.feature_level or max(LEVELS)
    rows = rows_of_log(state)
    pages = (rows[begin : begin + _ROWS] for begin in range(0, len(rows), _ROWS))
    writer = BackupWriter(file)
    for message in backup_messages(header_of(identity, point.revision, level, point.time), pages):
        writer.write(message)
    writer.close()


def rows_of_log(state: LogState) -> list[Row]:
    """Returns the rows of the store that the state was made of, in key order, but for those of
    ``NOT_HELD``. Claims and marks are as the entries need them.
    """
    rows: dict[bytes, bytes] = {}
    place_of: dict[int, bytes] = {}
    grants: dict[int, bytes] = {}
    for row in state.rows.values():
        if row.key is not None:
            rows[row.key] = row.record
            if row.scope == "entry":
                place_of[row.entry_id] = row.key
        else:
            grants[row.entry_id] = row.record
    for entry_id, value in grants.items():
        if entry_id == ROOT_ID:
            rows[grants_key(0, Kind.DIRECTORY, "")] = value
        elif entry_id in place_of:
            rows[GRANTS + place_of[entry_id][len(ENTRY) :]] = value
    rows.update(dict(_derived(rows)))
    return sorted(rows.items())


def _derived(rows: Mapping[bytes, bytes]) -> Iterator[Row]:
    """Yields claims of physical names, and marks of what is read-only."""
    names: dict[str, list[str]] = {}
    for key, value in rows.items():
        if not key.startswith(ENTRY):
            continue
        try:
            parent_id, is_topic, _ = _ROOT if key == ROOT_KEY else parse_entry_key(key)
            if is_topic and (name := _CODEC.physical_names([value])[0]) is not None:
                names.setdefault(unify(name), []).append(name)
            entry = _CODEC.decode(value)
        except ValueError:
            continue  # kept as it is: kdir verify names it
        mark = read_only_mark(parent_id, entry)
        if mark is not None:
            yield read_only_key(entry.entry_id), mark
    for unified, found in names.items():
        claim = claim_value(set(found))
        if claim is not None:
            yield claim_key(unified), claim
