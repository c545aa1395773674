"""How often a publisher that cannot go on tries again, and what waits for it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import watch_pb2

from directory.change_log import publisher as publishing
from directory.change_log.log_state import noted_state, published_revision
from directory.change_log.log_topics import LogEnd, LogTopics
from directory.change_log.publisher import ChangeLogPublisher
from directory.change_log.state_records import row_digest, snapshot_rows
from directory.change_log.topic_writer import LogRecord, LogRefused
from directory.maintenance.event_index import EventIndex
from directory.namespace.command import CreateDirectory, DeleteEntry
from directory.namespace.keys import CHANGE_LOG, CHANGE_LOG_SKIP, LEVEL
from directory.store.base import Delete, Put
from directory.store.sqlite.store import SqliteStore
from resolver.changes.record import Change, Schemas
from resolver.changes.state_fold import StateFold
from resolver.errors import KafkaUnavailable
from tests.support.large_trees import MOUNT, FakeKafka, Server, server
from tests.support.waiting import eventually


class Failing(LogTopics):
    """Topics of which brokers return nothing but an error, or hold what is written, in memory."""

    asked_count = 0
    error: Exception | None
    index: EventIndex
    """That of the server, for each of its publishers."""
    fails_after = 1_000
    """Number of transactions after which brokers fail."""

    def __init__(self) -> None:
        super().__init__("kc-a", "state", "history", ["127.0.0.1:1"], dict)
        self.records: list[LogRecord] = []
        self.on_asked: Callable[[], object] = lambda: None

    def make_and_check(self, admin: Any, *, were_there: bool) -> None:
        self.asked_count += 1
        self.on_asked()
        if self.error is not None:
            raise self.error

    def framings(self) -> dict[str, bytes]:
        return {self.state: b"", self.history: b""}

    def writer(self, transactional_id: str) -> Any:
        return self

    def write(self, *parts: Iterable[LogRecord]) -> None:
        self.fails_after -= 1
        if self.fails_after < 0:
            raise KafkaUnavailable("no broker")
        self.records += chain.from_iterable(parts)

    def close(self) -> None:
        """Ends the writer."""

    def end(self, topic: str, *_: Any) -> LogEnd:
        found = self.changes(topic)
        orders = [one.order for one in found if one.checkpoint is None]
        points = [one for one in found if one.checkpoint is not None]
        return LogEnd(points[-1] if points else None, orders[-1] if orders else (0, 0, 0))

    def state_digests(self, *_: Any) -> dict[str, bytes]:
        values = {one.key: one.value for one in self.records if one.topic == self.state}
        rows = {
            key: Schemas().decode(value)
            for key, value in values.items()
            if value is not None and "/s/" not in key and not key.endswith("/c")
        }
        return {key: row_digest(one.key, one.record) for key, one in rows.items()}

    def changes(self, topic: str) -> list[Change]:
        """Returns what a topic holds, without schemas."""
        records = [one for one in self.records if one.topic == topic and "/s/" not in one.key]
        return [Schemas().decode(one.value) for one in records if one.value is not None]


@contextmanager
def publisher(
    store: Path, error: Exception | None
) -> Iterator[tuple[ChangeLogPublisher, Failing, Server]]:
    with server(SqliteStore(store, "la")) as here:
        here.writer.put_facts((Put(LEVEL, b"2"),))
        topics = Failing()
        topics.error = error
        topics.index = EventIndex(here.store)
        here.replica.subscribe(topics.index.applied)
        made = next_publisher(topics, here)
        yield made, topics, here
        here.execute(CreateDirectory(path=MOUNT.child("z")))  # it holds up no change
        made.leader.resign()


def next_publisher(topics: Failing, here: Server) -> ChangeLogPublisher:
    return ChangeLogPublisher(
        "one",
        "la",
        here.store,
        here.replica,
        here.writer,
        topics.index,
        mount=lambda _: MOUNT,
        topics=topics,
        admin=FakeKafka(),
    )


def killed(made: ChangeLogPublisher, topics: Failing, here: Server) -> ChangeLogPublisher:
    """Returns the publisher after one that was killed."""
    made.leader.resign()  # as the system does with the lock of a process that died
    return next_publisher(topics, here)


def until_asked(made: ChangeLogPublisher, topics: Failing) -> None:
    """Runs rounds until the brokers were asked for the first time."""
    eventually(lambda: (made.step(), topics.asked_count)[1])


def test_P14_K10_brokers_that_are_away_are_asked_less_and_less_often(tmp_path: Path) -> None:
    with publisher(tmp_path / "la.sqlite", KafkaUnavailable("no broker")) as (made, topics, _):
        until_asked(made, topics)
        delays = [made.step() for _ in range(8)]
        assert made.trouble.startswith("no broker")
        assert topics.asked_count == 9
    for number, delay in enumerate(delays, 1):
        longest = min(30.0, 2.0 ** (number + 1))
        assert longest / 2 <= delay <= longest


def test_P14_topics_that_are_refused_are_asked_about_now_and_then(tmp_path: Path) -> None:
    with publisher(tmp_path / "la.sqlite", LogRefused("topic state is gone")) as (made, topics, _):
        until_asked(made, topics)
        assert [made.step() for _ in range(3)] == [5.0, 5.0, 5.0]
        assert made.trouble == "topic state is gone"
        assert topics.asked_count == 4


def until_written(made: ChangeLogPublisher, topics: Failing) -> None:
    """Runs rounds until one of them wrote to the topics."""
    before = len(topics.records)
    eventually(lambda: (made.step(), len(topics.records) > before)[1])


def published(topics: Failing) -> list[tuple[str, str]]:
    return [(one.action, one.path) for one in topics.changes("history") if one.checkpoint is None]


@pytest.mark.parametrize("fails_after", range(5))
def test_P14_changes_before_the_first_contact_with_kafka_are_in_the_history(
    tmp_path: Path, fails_after: int
) -> None:
    away = KafkaUnavailable("no broker")
    with publisher(tmp_path / "la.sqlite", away) as (made, topics, here):
        here.execute(CreateDirectory(path=MOUNT.child("before")))

        def on_first() -> None:
            topics.on_asked = lambda: None
            here.execute(CreateDirectory(path=MOUNT.child("a")))

        topics.on_asked = on_first
        until_asked(made, topics)
        here.execute(CreateDirectory(path=MOUNT.child("gone")))
        here.execute(DeleteEntry(path=MOUNT.child("gone")))
        made.step()
        noted = published_revision(here.replica.snapshot)
        assert noted is not None
        topics.error = None
        # A session that ends before it notes how far it is publishes nothing twice.
        topics.fails_after = fails_after
        for _ in range(9):
            made.step()
            if made.trouble:
                topics.fails_after = 1_000
        assert published(topics) == [
            ("insert", "/la/a"),
            ("insert", "/la/gone"),
            ("delete", "/la/gone"),
        ]
        assert "/la/before" in {one.path for one in topics.changes("state")}


def state_rows(topics: Failing) -> dict[str, tuple[bytes | None, bytes]]:
    """Returns what a restore reads: the rows as of the newest checkpoint."""
    fold = StateFold()
    for one in topics.records:
        if one.topic == topics.state:
            fold.add(one.key.encode(), one.value)
    return {key: (row.key, row.record) for key, row in fold.state.rows.items()}


def tree_rows(here: Server) -> dict[str, tuple[bytes | None, bytes]]:
    rows = snapshot_rows(here.replica.snapshot, here.store.identity.cluster_id)
    return {one.state_key: (one.key, one.value) for one in rows}


def test_P14_changes_after_a_restore_wait_for_a_log_that_never_reached_kafka(
    tmp_path: Path,
) -> None:
    with publisher(tmp_path / "la.sqlite", KafkaUnavailable("no broker")) as (made, topics, here):
        until_asked(made, topics)
        noted = noted_state(here.replica.snapshot)
        assert noted is not None
        noted.incarnation, noted.revision = "earlier", 1  # a restore keeps what was stored
        here.execute(CreateDirectory(path=MOUNT.child("before")))
        here.writer.put_facts((Put(CHANGE_LOG, noted.SerializeToString()),))
        made.step()
        reason = noted_state(here.replica.snapshot)
        assert reason is not None
        assert reason.message == made.trouble
        here.execute(CreateDirectory(path=MOUNT.child("after")))
        topics.error = None
        for _ in range(5):
            made.step()
        assert published(topics) == [("insert", "/la/after")]


@pytest.mark.parametrize("is_killed", [False, True])
def test_P2_while_the_first_changes_are_published_the_state_is_always_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    monkeypatch.setattr(publishing, "_PAGE_EVENTS", 1)
    a = MOUNT.child("a")
    away = KafkaUnavailable("no broker")
    with publisher(tmp_path / "la.sqlite", away) as (first, topics, here):
        made = first
        until_asked(made, topics)
        expected = [("insert", "/la/a"), ("delete", "/la/a"), ("insert", "/la/a")]
        for command in (CreateDirectory(path=a), DeleteEntry(path=a), CreateDirectory(path=a)):
            here.execute(command)
        topics.error = None
        trees = [tree_rows(here)]
        newest = 0
        while newest < 5:
            here.execute(CreateDirectory(path=a.child(f"b{len(trees)}")))
            expected.append(("insert", f"/la/a/b{len(trees)}"))
            trees.append(tree_rows(here))
            until_written(made, topics)
            found = trees.index(state_rows(topics))
            assert found >= newest, "the state never goes back"
            newest = found
            if is_killed:
                made = killed(made, topics, here)
        for _ in range(30):
            made.step()
        assert state_rows(topics) == trees[-1]
        assert published(topics) == expected, "each change once"
        made.leader.resign()


def begun_again_without_kafka(
    topics: Failing, here: Server, made: ChangeLogPublisher
) -> ChangeLogPublisher:
    """Ends a log that has ``/la/c``, and begins it again while the brokers are away; returns the
    publisher of that.
    """
    here.execute(CreateDirectory(path=MOUNT.child("c")))
    until_written(made, topics)
    made.leader.resign()
    here.writer.put_facts((Delete(CHANGE_LOG),))
    here.execute(CreateDirectory(path=MOUNT.child("off")))
    topics.error, asked = KafkaUnavailable("no broker"), topics.asked_count
    again = next_publisher(topics, here)
    eventually(lambda: (again.step(), topics.asked_count > asked)[1])
    return again


@pytest.mark.parametrize("fails_after", range(7))
def test_a_skip_is_on_record_wherever_the_first_publisher_of_a_log_begun_again_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_after: int
) -> None:
    monkeypatch.setattr(publishing, "_RESYNC_RECORDS", 1)
    with publisher(tmp_path / "la.sqlite", None) as (first, topics, here):
        made = begun_again_without_kafka(topics, here, first)
        noted = published_revision(here.replica.snapshot) or 0
        here.execute(CreateDirectory(path=MOUNT.child("b")))
        given_up = here.execute(DeleteEntry(path=MOUNT.child("c"))).revision
        incarnation = here.replica.snapshot.incarnation
        skip = watch_pb2.ChangeLogSkip(incarnation=incarnation, revision=given_up, commits=2)
        here.writer.put_facts((Put(CHANGE_LOG_SKIP, skip.SerializeToString()),))
        topics.error, topics.fails_after = None, fails_after
        for _ in range(20):
            made.step()
            if made.trouble:
                topics.fails_after = 1_000
                made = killed(made, topics, here)
        skips = [one for one in topics.changes("history") if one.cause == "skip"]
        assert [one.revision for one in skips] == [given_up]
        assert skips[0].operation == (
            f"gave up the changes of revisions {noted + 1} to {given_up}, in 2 commits"
        )
        assert here.replica.snapshot.fact(CHANGE_LOG_SKIP) is None
        assert state_rows(topics) == tree_rows(here)
        made.leader.resign()


@pytest.mark.parametrize("fails_after", range(5))
def test_what_waits_for_a_log_that_is_begun_again_is_in_the_history_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_after: int
) -> None:
    monkeypatch.setattr(publishing, "_RESYNC_RECORDS", 1)
    with publisher(tmp_path / "la.sqlite", None) as (first, topics, here):
        made = begun_again_without_kafka(topics, here, first)
        noted = published_revision(here.replica.snapshot) or 0
        here.execute(CreateDirectory(path=MOUNT.child("b")))
        here.execute(DeleteEntry(path=MOUNT.child("c")))
        topics.error, topics.fails_after = None, fails_after
        for _ in range(20):
            made.step()
            if made.trouble:
                topics.fails_after = 1_000
                made = killed(made, topics, here)
        found = [one for one in topics.changes("history") if one.checkpoint is None]
        resynced = {(one.action, one.path) for one in found if one.cause == "resync"}
        assert resynced == {("update", "/la/off")}, "only what no outbox has"
        later = [(one.action, one.path) for one in found if one.revision > noted]
        assert later == [("insert", "/la/b"), ("delete", "/la/c")]
        assert state_rows(topics) == tree_rows(here)
        made.leader.resign()
