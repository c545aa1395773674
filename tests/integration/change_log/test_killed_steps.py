"""A publisher that dies at each step of a page and of a resync: what it leaves open at Kafka is
ended by the next one, and nothing is missing or there twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import watch_pb2

from directory.change_log import publisher as publishing
from directory.change_log.log_state import (
    noted_state,
    published_revision,
    refuse_full_outbox,
    resync_confirmation,
)
from directory.change_log.log_topics import LogTopics
from directory.change_log.publisher import ChangeLogPublisher
from directory.change_log.topic_writer import TopicWriter
from directory.kafka.admin_client import ConfluentAdmin
from directory.maintenance.event_index import EventIndex
from directory.namespace.command import CreateDirectory, DeleteEntry, UpdateEntry
from directory.namespace.keys import (
    CHANGE_LOG,
    CHANGE_LOG_RESYNC,
    CHANGE_LOG_SKIP,
    EVENT,
    LEVEL,
    kafka_key,
)
from directory.store.base import Delete, Put, Transaction
from directory.store.event_rows import FLOOR_KEY
from directory.store.sqlite.store import SqliteStore
from resolver.errors import KafkaUnavailable
from tests.conftest import SharedBroker
from tests.integration.change_log.test_publishing import logged_rows, outbox_of
from tests.support.change_logs import ChangeLogTopics
from tests.support.crash_points import WRITTEN, Crash, Mortal, Passages
from tests.support.large_trees import MOUNT, Server, server
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

_TRANSACTIONS = frozenset({"begin_transaction", "commit_transaction"})
_IDLE_SECONDS = 30.0
"""What a step returns once there is nothing to do until something is changed."""
_READS = frozenset({"end", "state_digests", "make_and_check", "writer"})


class Dying(TopicWriter):
    """Writer that is killed: nobody ends what it began, and its client lives on."""

    def die_at(self, passages: Passages) -> None:
        self._passages, self._produced = passages, 0
        self._producer: Any = Mortal(self._producer, passages, _TRANSACTIONS)

    def _produce(self, one: Any) -> None:
        super()._produce(one)
        self._produced += 1
        if self._produced % 3 == 2:
            self._passages.passed("produced some")

    def close(self) -> None:
        pass


class DyingTopics(LogTopics):
    """Topics whose writers die at a step."""

    passages: Passages

    def writer(self, transactional_id: str) -> TopicWriter:
        made = Dying(self._client(), transactional_id)
        made.die_at(self.passages)
        return made


class Log:
    """A store with its publishers, of which one lives at a time, and its change log."""

    def __init__(self, here: Server, broker: SharedBroker) -> None:
        self.here, self._broker = here, broker
        cluster_id = here.store.identity.cluster_id
        self.topics = ChangeLogTopics(broker.bootstrap, cluster_id, suffix=f".{cluster_id}")
        self.index = EventIndex(here.store)
        here.replica.subscribe(self.index.applied)
        self._ticks = count(step=10)

    def publish(self, death: int = 0) -> bool:
        """Publishes all there is; False: it died before."""
        publisher = self.publisher(death)
        try:
            eventually(lambda: publisher.step() >= _IDLE_SECONDS)
        except Crash:
            return False
        finally:
            publisher.leader.resign()  # as the system does with the lock of a process that died
        return True

    def publisher(self, death: int = 0) -> ChangeLogPublisher:
        """Returns the next publisher, which dies at a step."""
        passages = Passages(death)
        topics = DyingTopics(
            self.topics.cluster_id,
            self.topics.state_topic,
            self.topics.history_topic,
            [self._broker.bootstrap],
            dict,
        )
        topics.passages = passages
        mortal: Any = Mortal(topics, passages, _READS)
        writer: Any = Mortal(self.here.writer, passages, WRITTEN)
        return ChangeLogPublisher(
            "one",
            "la",
            self.here.store,
            self.here.replica,
            writer,
            self.index,
            mount=lambda _: MOUNT,
            topics=mortal,
            admin=lambda: ConfluentAdmin([self._broker.bootstrap]),
            clock=lambda: float(next(self._ticks)),
        )

    def fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tries to publish while the brokers are away."""

        def make_and_check(*_: object, **__: object) -> None:
            raise KafkaUnavailable("no broker answered")

        publisher = self.publisher()
        with monkeypatch.context() as patches:
            patches.setattr(LogTopics, "make_and_check", make_and_check)
            eventually(lambda: (publisher.step(), publisher.trouble)[1])
        publisher.leader.resign()

    def forget(self) -> None:
        """Trims the whole outbox, published or not: what the log lacks shows in the state only."""
        store = self.here.store
        rows = [row for row in store.read(EVENT, limit=1_000) if row.key != FLOOR_KEY]
        if rows:
            floor = Put(FLOOR_KEY, b"%d" % max(row.revision for row in rows))
            store.commit(Transaction((), (*(Delete(row.key) for row in rows), floor)))
            self.index.forget(row.key for row in rows)
        self.here.replica.wait_for(store.newest_revision(), 10)


def damage(file: Path, revisions: Sequence[int]) -> None:
    """Makes what the outbox has of these revisions unreadable."""
    with closing(sqlite3.connect(file)) as connection, connection:
        for revision in revisions:
            where = (revision, EVENT, EVENT + b"\xff")
            connection.execute(
                "UPDATE kv SET value = x'ff' WHERE revision = ? AND key BETWEEN ? AND ?", where
            )


@pytest.fixture
def step(request: pytest.FixtureRequest) -> int:
    """Returns from which step to which it dies next; ``--soak`` tries each."""
    return 1 if request.config.getoption("--soak") else 7


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "la.sqlite"


@contextmanager
def log(store: Path, broker: SharedBroker) -> Iterator[Log]:
    with server(SqliteStore(store, "la")) as here:
        here.writer.put_facts((Put(LEVEL, b"2"),))
        made = Log(here, broker)
        assert made.publish()
        yield made


def test_killed_at_each_step_of_a_page_each_change_is_there_once(
    store: Path, kafka_broker: SharedBroker, step: int
) -> None:
    with log(store, kafka_broker) as made:
        begun = made.topics.read().checkpoint
        assert begun is not None
        for death in count(1, step):
            made.here.execute(CreateDirectory(path=MOUNT.join((f"a{death}",))))
            made.here.writer.put_facts((Put(kafka_key("pin"), b"%d" % death),))
            if made.publish(death):
                break
        assert death > 15
        found = made.topics.read()
        assert found.rows == logged_rows(str(store))
    changes = [one for one in found.history if one.checkpoint is None]
    expected = outbox_of(str(store), begun.revision)
    assert [(one.revision, one.position, one.path) for one in changes] == expected
    assert len(changes) == 1 + (death - 1) // step


def test_killed_at_each_step_of_a_resync_each_difference_is_there_once(
    store: Path, kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(publishing, "_RESYNC_RECORDS", 2)
    names = "abc"
    with log(store, kafka_broker) as made:
        for name in names:
            made.here.execute(CreateDirectory(path=MOUNT.join((name,))))
        assert made.publish()
        for death in count(1, step):
            for name in names:
                changes = {"policies.owner": f"owner-{death}"}
                made.here.execute(UpdateEntry(path=MOUNT.join((name,)), changes=changes))
            made.forget()
            if made.publish(death):
                break
        assert death > 20
        found = made.topics.read()
        assert found.rows == logged_rows(str(store))
    differences = [
        (one.path, one.after["owner"])
        for one in found.history
        if one.cause == "resync" and one.after is not None
    ]
    assert len(differences) == len(set(differences))
    assert {(f"/la/{name}", f"owner-{death}") for name in names} <= set(differences)
    orders = [one.order for one in found.history if one.checkpoint is None]
    assert orders == sorted(set(orders)), "each has a place of its own"


def test_killed_at_each_step_of_a_skip_each_difference_has_a_position_of_its_own(
    store: Path, kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(publishing, "_RESYNC_RECORDS", 1)
    with log(store, kafka_broker) as made:
        for name in "abc":
            made.here.execute(CreateDirectory(path=MOUNT.join((name,))))
        given_up = made.here.replica.snapshot.revision
        incarnation = made.here.replica.snapshot.incarnation
        skip = watch_pb2.ChangeLogSkip(incarnation=incarnation, revision=given_up, commits=3)
        made.here.writer.put_facts((Put(CHANGE_LOG_SKIP, skip.SerializeToString()),))
        for death in count(1, step // 2 + 1):
            if made.publish(death):
                break
        assert death > 10
        found = made.topics.read()
        assert found.rows == logged_rows(str(store))
    changes = [one for one in found.history if one.checkpoint is None]
    assert [one.cause for one in changes] == ["resync", "resync", "resync", "skip"]
    orders = [one.order for one in changes]
    assert orders == sorted(set(orders)), "each has a place of its own"


def test_a_second_skip_counts_nothing_again_that_a_killed_publisher_recorded(
    store: Path, kafka_broker: SharedBroker
) -> None:
    with log(store, kafka_broker) as made:
        skip = watch_pb2.ChangeLogSkip(incarnation=made.here.replica.snapshot.incarnation)
        for name in "abc":
            skip.revision = made.here.execute(CreateDirectory(path=MOUNT.join((name,)))).revision
            skip.commits += 1
            # What the first one gave up is on record, and nothing in the store says so.
            made.here.writer.put_facts((Put(CHANGE_LOG_SKIP, skip.SerializeToString()),))
            if name != "b":
                assert made.publish()
            skip.earlier.add(revision=skip.revision, commits=skip.commits)
        history = made.topics.read().history
    skips = [one.operation.rpartition(", in ")[2] for one in history if one.cause == "skip"]
    assert skips == ["1 commit", "2 commits"]


def test_what_was_given_up_never_waits_again(store: Path, kafka_broker: SharedBroker) -> None:
    """A second skip between two commits of the publisher counts only what came after the first."""
    with log(store, kafka_broker) as made:
        given_up = made.here.execute(CreateDirectory(path=MOUNT.join(("a",)))).revision
        incarnation = made.here.replica.snapshot.incarnation
        skip = watch_pb2.ChangeLogSkip(incarnation=incarnation, revision=given_up, commits=1)
        made.here.writer.put_facts((Put(CHANGE_LOG_SKIP, skip.SerializeToString()),))
        settled: list[bool] = []
        published: list[int] = []

        def look(_: object) -> None:
            snapshot = made.here.replica.snapshot
            settled.append(snapshot.fact(CHANGE_LOG_SKIP) is None)
            published.append(published_revision(snapshot) or 0)

        made.here.replica.subscribe(look)
        assert made.publish()
        eventually(lambda: settled and settled[-1])
    assert min(published) >= given_up


def test_what_was_there_before_a_log_does_not_wait_for_it(
    store: Path, kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with server(SqliteStore(store, "la")) as here:
        made = Log(here, kafka_broker)
        here.writer.put_facts((Put(LEVEL, b"2"),))
        for name in "abcdef":
            here.execute(CreateDirectory(path=MOUNT.join((name,))))
        made.fail(monkeypatch)
        assert noted_state(here.replica.snapshot) is not None
        refuse_full_outbox(here.replica.snapshot, made.index, 5, is_urgent=False)
        for death in count(5, step):
            is_done = made.publish(death)
            refuse_full_outbox(here.replica.snapshot, made.index, 5, is_urgent=False)
            if is_done:
                break
        assert death > 10
        assert made.topics.read().rows == logged_rows(str(store))


def test_a_log_that_is_kept_again_has_what_was_changed_meanwhile_wherever_its_publisher_dies(
    store: Path, kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with log(store, kafka_broker) as made:
        for death in count(2, step):
            made.here.writer.put_facts((Delete(CHANGE_LOG),))
            made.here.writer.put_facts((Put(kafka_key("pin"), b"%d" % death),))
            made.fail(monkeypatch)
            is_done = made.publish(death)
            assert is_done or made.publish()
            assert made.topics.read().rows == logged_rows(str(store))
            if is_done:
                break
        assert death > 10


def test_of_a_log_whose_end_the_brokers_lost_everything_is_published_again(
    store: Path, kafka_broker: SharedBroker
) -> None:
    """Both topics ended at the same transaction, such as in a copy of the brokers' disks; what the
    store trimmed as published since then is in no outbox.
    """
    with log(store, kafka_broker) as made:
        kept = made.topics.read().checkpoint
        noted = noted_state(made.here.replica.snapshot)
        assert kept is not None
        assert noted is not None
        made.here.execute(CreateDirectory(path=MOUNT.join(("a",))))
        lost = made.here.writer.put_facts((Put(kafka_key("pin"), b"1"),))
        (row,) = made.index.oldest_of_facts(lost, 10)
        made.here.store.commit(Transaction((), (Delete(row),)))
        noted.revision = lost
        made.here.writer.put_facts((Put(CHANGE_LOG, noted.SerializeToString()),))
        for death in count(4, step=6):
            if made.publish(death):
                break
        found = made.topics.read()
        assert found.rows == logged_rows(str(store))
        assert found.rows[kafka_key("pin")] == b"1"
        assert made.publish()
        assert made.topics.read().history == found.history
    changes = [one for one in found.history if one.revision > kept.revision]
    assert [one.path for one in changes if one.checkpoint is None] == ["/la/a"]


def test_S21_what_rows_held_that_cannot_be_read_is_in_the_state(
    store: Path, kafka_broker: SharedBroker
) -> None:
    """The changes before and after them are in the history as ever."""
    with log(store, kafka_broker) as made:

        def make(name: str) -> int:
            return made.here.execute(CreateDirectory(path=MOUNT.join((name,)))).revision

        make("gone")
        assert made.publish()
        gone = made.here.execute(DeleteEntry(path=MOUNT.join(("gone",)))).revision
        fact = made.here.writer.put_facts((Put(kafka_key("pin"), b"1"),))
        make("a")
        come = make("come")
        make("b")
        damage(store, (gone, fact, come))
        assert made.publish()
        found = made.topics.read()
        assert found.rows == logged_rows(str(store))
    changes = [(one.cause, one.path) for one in found.history if one.checkpoint is None]
    assert [path for cause, path in changes if cause != "resync"] == ["/la/gone", "/la/a", "/la/b"]
    assert ("resync", "/la/come") in changes
    orders = [one.order for one in found.history if one.checkpoint is None]
    assert orders == sorted(set(orders)), "each has a place of its own"


@pytest.mark.parametrize("loss", ["unreadable", "trimmed"])
def test_an_operator_confirms_that_much_vanishes_whose_rows_were_lost(
    store: Path, kafka_broker: SharedBroker, loss: str
) -> None:
    names = [f"d{number}" for number in range(30)]
    with log(store, kafka_broker) as made:
        for name in names:
            made.here.execute(CreateDirectory(path=MOUNT.join((name,))))
        assert made.publish()
        for name in names:
            gone = made.here.execute(DeleteEntry(path=MOUNT.join((name,)))).revision
            damage(store, (gone,))
        if loss == "trimmed":
            made.forget()
        publisher = made.publisher()
        eventually(lambda: (publisher.step(), publisher.trouble)[1])
        publisher.leader.resign()
        assert "30 of 30 entries of the log are not in the store" in publisher.trouble
        snapshot = made.here.replica.snapshot
        of_before = Put(CHANGE_LOG_RESYNC, b"another incarnation\nconfirmed by ana")
        confirmed = Put(CHANGE_LOG_RESYNC, resync_confirmation(snapshot, "confirmed by ana"))
        made.here.writer.put_facts((of_before,))
        eventually(lambda: (publisher.step(), publisher.leader.leads)[1])
        publisher.step()
        publisher.leader.resign()
        assert "30 of 30 entries" in publisher.trouble, "what a restore brought back"
        made.here.writer.put_facts((confirmed,))
        assert made.publish()
        assert made.topics.read().rows == logged_rows(str(store))
        assert made.here.replica.snapshot.fact(CHANGE_LOG_RESYNC) is None


def test_a_resync_that_was_confirmed_before_a_restore_is_not_made(
    store: Path, kafka_broker: SharedBroker
) -> None:
    with log(store, kafka_broker) as made:
        made.here.execute(CreateDirectory(path=MOUNT.join(("a",))))
        assert made.publish()
        before = made.topics.read()
        confirmed = Put(CHANGE_LOG_RESYNC, b"another incarnation\nconfirmed by ana")
        made.here.writer.put_facts((confirmed,))
        assert made.publish()
        eventually(lambda: made.here.replica.snapshot.fact(CHANGE_LOG_RESYNC) is None)
        assert made.topics.read() == before


def test_a_publisher_that_waits_for_a_feature_level_goes_on_once_it_is_finalized(
    store: Path, kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_IDLE_SECONDS", 3600.0)
    with server(SqliteStore(store, "la")) as here:
        made = Log(here, kafka_broker)
        publisher = made.publisher()
        publisher.start()
        try:
            eventually(lambda: "feature level 2 is not finalized" in publisher.trouble)
            here.writer.put_facts((Put(LEVEL, b"2"),))
            eventually(lambda: made.topics.read().checkpoint is not None)
        finally:
            publisher.stop()
