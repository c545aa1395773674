"""Compares a cluster's change log with its store, which is the truth; repairs nothing.

The log is read before the tree. Rows that changed after the log's checkpoint, by the outbox, are
left out: so changes that are not published yet are no differences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import closing
from typing import Final

from directory.change_log.settings import ChangeLogConfig
from directory.change_log.state_records import page_records, snapshot_records
from directory.maintenance.event_index import EventIndex
from directory.maintenance.log_backup import log_client
from directory.maintenance.verify_copies import Summary
from directory.maintenance.verify_store import Between, Difference, shortened
from directory.namespace.snapshot import Snapshot
from directory.store.replica import Replica
from resolver.changes.log_load import load_log
from resolver.changes.record import Change
from resolver.changes.registry import SchemaRegistry
from resolver.changes.state_fold import LogState, StateFold
from resolver.changes.topic_reader import TopicReader
from resolver.errors import KafkaUnavailable, KdirError
from resolver.path import Path

__all__ = ["compare_log", "log_differences"]

_PAGE_EVENTS: Final = 500
_WAIT_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.02
_RESYNC: Final = "kdir log resync publishes the difference: the log follows the store"
_TRUNCATED: Final = (
    "no store can be made of it: delete the topic, then kdir log resync makes it again"
)
_UNREADABLE: Final = "a newer kdir may have written it; else kdir log resync writes it again"


def compare_log(
    config: ChangeLogConfig,
    cluster_id: str,
    replica: Replica,
    index: EventIndex,
    mount: Callable[[Snapshot], Path],
    check: Callable[[], None],
    summary: Summary,
) -> Iterator[Difference]:
    """Yields the differences between the state topic and the tree. An unreachable Kafka, and a log
    that is incomplete or of another incarnation, are reported in ``summary.troubles``.

    Raises:
        StoreUnreachable
        what ``check`` raises
    """
    topic, _ = config.topics(cluster_id)

    def keep_on() -> bool:
        check()
        return True

    try:
        with closing(TopicReader(log_client(config), topic, keep_on=keep_on)) as reader:
            registry = SchemaRegistry.at(config.schema_registry)
            log = load_log(reader, StateFold(cluster_id, registry))
    except KafkaUnavailable as error:
        summary.troubles.append(f"the change log was not compared: {error.message}")
        return
    reason = log.why_incomplete()
    point = log.state.checkpoint
    if reason or point is None or point.checkpoint is None:
        summary.troubles.append(f"the change log was not compared: topic {topic}: {reason}")
        return
    found_incarnation = point.checkpoint.incarnation
    try:
        if found_incarnation == replica.snapshot.incarnation:
            replica.wait_for(point.revision, _WAIT_SECONDS)
        snapshot = replica.snapshot
    except KdirError as error:
        summary.troubles.append(f"this server's replica does not reach the log: {error.message}")
        return
    if found_incarnation != snapshot.incarnation:
        summary.troubles.append(
            "the change log was not compared: it is of another incarnation of the store: kdir log"
        )
        return
    changed = _changed_since(point, snapshot, index, check)
    if index.floor() > point.revision:
        summary.troubles.append(
            f"the change log was not compared: it is at revision {point.revision}, and changes "
            f"since are not kept: kdir log"
        )
        return
    if log.first_offset:
        yield Difference(Between.LOG, topic, "first offset", "0", str(log.first_offset), _TRUNCATED)
    for key, reason in log.state.unreadable.items():
        yield Difference(Between.LOG, key, "record", "readable", shortened(reason), _UNREADABLE)
    yield from log_differences(log.state, snapshot, mount(snapshot), changed, check)


def _changed_since(
    point: Change, snapshot: Snapshot, index: EventIndex, check: Callable[[], None]
) -> set[str]:
    """Returns the state topic's keys of the rows that changed after a checkpoint."""
    changed: set[str] = set()
    reached = point.revision
    while reached < snapshot.revision:
        check()
        before = reached
        commits, reached = index.commits(reached, snapshot.revision, _PAGE_EVENTS)
        if reached == before:
            time.sleep(_PAUSE_SECONDS)  # the tree is a moment ahead of the index
        state, _ = page_records(commits, snapshot, point.cluster_id, point.generation, 0)
        changed.update(state)
    return changed


def log_differences(
    state: LogState,
    snapshot: Snapshot,
    mount: Path,
    changed: AbstractSet[str],
    check: Callable[[], None] = lambda: None,
) -> Iterator[Difference]:
    """Yields the differences between a log's state and a tree, without ``changed`` and unreadable
    keys.
    """
    left_out = {*changed, *state.unreadable}
    seen: set[str] = set()
    records = snapshot_records(snapshot, mount, state.cluster_id, 0, revision=0, now_ms=0)
    for number, (key, change) in enumerate(records):
        if number % 2_000 == 0:
            check()
        seen.add(key)
        row = state.rows.get(key)
        if key in left_out or (row and (row.key, row.record) == (change.key, change.record)):
            continue
        where = change.path or key
        if row is None:
            yield Difference(Between.LOG, where, "row", "there", "missing", _RESYNC)
        elif row.key != change.key:
            yield Difference(Between.LOG, where, "key", repr(change.key), repr(row.key), _RESYNC)
        else:
            expected, actual = (
                f"{len(change.record or b'')} bytes",
                f"{len(row.record)} other bytes",
            )
            yield Difference(Between.LOG, where, "value", expected, actual, _RESYNC)
    unreadable = snapshot.unreadable_values
    for key, row in state.rows.items():
        if key not in seen and key not in left_out and row.key not in unreadable:
            yield Difference(Between.LOG, key, "row", "missing", "there", _RESYNC)
