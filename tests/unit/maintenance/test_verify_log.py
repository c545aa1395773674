"""What differs between a change log's state and a tree."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from directory.access.grants import Grant, Operation, Permission
from directory.change_log.log_verification import compare_log, log_differences
from directory.change_log.settings import ChangeLogConfig
from directory.change_log.state_records import checkpoint_of, snapshot_records
from directory.kafka.own_client_settings import ClientProperties
from directory.maintenance.event_index import EventIndex
from directory.maintenance.verify_copies import Summary
from directory.namespace.command import AddGrants, CreateDirectory, CreateTopic
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import GRANTS, entry_key, grants_key, parse_entry_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from resolver.changes.record import Change, Checkpoint, checkpoint_key, encode
from resolver.changes.state_fold import LogState, StateFold
from resolver.changes.topic_reader import TopicReader
from resolver.errors import Cancelled
from tests.support.trees import Cluster, path
from tests.unit.store.scripted_store import ScriptedStore

ID = "kc-test"


class EndlessConsumer:
    """Consumer of a topic whose records never come."""

    def __init__(self, _properties: object) -> None:
        self.is_closed = False

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, 1_000_000

    def consume(self, *_: object) -> list[Any]:
        return []

    def assign(self, _partitions: object) -> None:
        pass

    def unassign(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.do(*(CreateDirectory(path=path(f"/la/{name}")) for name in ("a", "b")))
    return made


def records_of(snapshot: Snapshot) -> dict[str, Change]:
    return dict(snapshot_records(snapshot, path("/la"), ID, 1, revision=1, now_ms=0))


def state_of(records: Iterable[tuple[str, Change]]) -> LogState:
    fold = StateFold(ID)
    for key, change in records:
        fold.add(key.encode(), encode(change))
    point = Checkpoint(incarnation="i", incarnations=("i",), cluster="la")
    last = checkpoint_of(point, ID, 1, revision=9, time=0)
    fold.add(checkpoint_key(ID).encode(), encode(last))
    return fold.state


def found(state: LogState, cluster: Cluster, *changed: str) -> list[tuple[str, str, str, str]]:
    return [
        (one.path_or_key, one.field, one.expected, one.actual)
        for one in log_differences(state, cluster.snapshot, path("/la"), set(changed))
    ]


def test_P22_a_log_that_holds_the_tree_has_no_differences(cluster: Cluster) -> None:
    assert found(state_of(records_of(cluster.snapshot).items()), cluster) == []


def test_P22_each_difference_is_named_but_for_what_was_changed_since(cluster: Cluster) -> None:
    before = state_of(records_of(cluster.snapshot).items())
    (a, _) = records_of(cluster.snapshot)
    cluster.do(CreateDirectory(path=path("/la/c")))
    (new,) = records_of(cluster.snapshot).keys() - before.rows_by_key.keys()
    assert found(before, cluster) == [("/la/c", "row", "there", "missing")]
    assert found(before, cluster, new) == []
    after = records_of(cluster.snapshot)
    gone = after.pop(new)
    damaged = {**after, a: gone}
    names = {(where, field) for where, field, _, _ in found(state_of(damaged.items()), cluster)}
    assert names == {("/la/a", "key"), ("/la/c", "row")}
    more = Cluster()
    stray = found(state_of(records_of(cluster.snapshot).items()), more)
    assert {(field, expected, actual) for _, field, expected, actual in stray} == {
        ("row", "missing", "there")
    }


def test_what_lies_in_a_directory_that_cannot_be_read_is_in_tree_and_log(cluster: Cluster) -> None:
    grants = (Grant("User:ana", "*", Operation.READ, Permission.ALLOW),)
    topic, below = path("/la/a/topic"), path("/la/a/below")
    cluster.do(CreateTopic(path=topic), CreateDirectory(path=below))
    cluster.do(*(AddGrants(path=one, grants=grants) for one in (topic, below)))
    log = state_of(records_of(cluster.snapshot).items())
    spoiled = Put(entry_key(ROOT_ID, Kind.DIRECTORY, "a"), b"\xff")
    tree = cluster.snapshot.apply(cluster.snapshot.revision + 1, [spoiled])
    assert tree.has_lost
    assert list(log_differences(log, tree, path("/la"), set())) == []


def test_S21_rows_that_cannot_be_read_are_in_tree_and_log_as_they_are(cluster: Cluster) -> None:
    grants = (Grant("User:ana", "*", Operation.READ, Permission.ALLOW),)
    cluster.do(CreateTopic(path=path("/la/t")), AddGrants(path=path("/la/a"), grants=grants))
    key = entry_key(ROOT_ID, Kind.TOPIC, "t")
    record = cluster.snapshot.entry_record(parse_entry_key(key))
    assert record is not None
    spoiled = [
        Put(grants_key(ROOT_ID, Kind.DIRECTORY, "a"), b"\xff\xff"),
        Put(GRANTS + b"oops", b"x"),
        Put(key, record[:-3]),
    ]
    cluster.rows.commit((), spoiled)
    tree = cluster.loaded()
    records = records_of(tree)
    held = {change.record for change in records.values()}
    assert {one.value for one in spoiled if one.key != GRANTS + b"oops"} <= held
    assert list(log_differences(state_of(records.items()), tree, path("/la"), set())) == []


def test_the_log_is_not_read_on_for_a_caller_that_has_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = EndlessConsumer(None)
    monkeypatch.setattr("confluent_kafka.Consumer", lambda _: consumer)
    monkeypatch.setattr(TopicReader, "most_pause_seconds", lambda _: 60.0)
    looks = count()

    def check() -> None:
        if next(looks) == 2:
            raise Cancelled("the caller went away")

    config = ChangeLogConfig(("127.0.0.1:1",), ClientProperties(), is_shared=False)
    replica: Any = SimpleNamespace(snapshot=cluster.snapshot)
    summary = Summary()
    compared = compare_log(
        config, ID, replica, EventIndex(ScriptedStore()), lambda _: path("/la"), check, summary
    )
    with pytest.raises(Cancelled):
        next(compared)
    assert consumer.is_closed
    assert not summary.troubles
