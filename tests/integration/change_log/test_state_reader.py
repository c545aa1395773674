"""The reader of a state topic on a real broker: loads, follows, and begins again where it must."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from resolver.changes.record import Change, Checkpoint, checkpoint_key, encode, entry_key
from resolver.changes.state_fold import LogState
from resolver.changes.state_reader import StateReader
from resolver.errors import NotReady
from tests.conftest import SharedBroker
from tests.support.waiting import eventually


class Log:
    """A state topic that a test writes, and its readers."""

    def __init__(self, bootstrap: str) -> None:
        self.cluster_id = f"kc-{secrets.token_hex(4)}"
        self.topic = f"__change_events.{self.cluster_id}"
        self.properties: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
        }
        self.admin = AdminClient(self.properties)
        self.producer = Producer(
            {**self.properties, "transactional.id": self.cluster_id, "linger.ms": 0}
        )
        self.producer.init_transactions(30)

    def make(self, **config: str) -> None:
        made = NewTopic(self.topic, 1, 1, config={"cleanup.policy": "compact"} | config)
        self.admin.create_topics([made])[self.topic].result(30)

    def remove(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(30)
        eventually(lambda: self.topic not in self.admin.list_topics(timeout=10).topics)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.producer.begin_transaction()
        yield
        self.producer.commit_transaction(30)

    def put(self, number: int, revision: int, value: str = "a", generation: int = 1) -> None:
        change = Change(
            cluster_id=self.cluster_id,
            generation=generation,
            revision=revision,
            time=0,
            entry_id=number,
            key=b"e/%d" % number,
            record=value.encode(),
        )
        self.producer.produce(self.topic, encode(change), entry_key(self.cluster_id, number))
        self.producer.flush(30)

    def end_page(self, revision: int, generation: int = 1) -> None:
        point = Checkpoint(incarnation="i", incarnations=("i",), cluster="la")
        change = Change(
            cluster_id=self.cluster_id,
            generation=generation,
            revision=revision,
            time=0,
            scope="checkpoint",
            checkpoint=point,
        )
        self.producer.produce(self.topic, encode(change), checkpoint_key(self.cluster_id))

    def page(self, number: int, revision: int, value: str = "a", generation: int = 1) -> None:
        with self.transaction():
            self.put(number, revision, value, generation)
            self.end_page(revision, generation)

    def reader(self, **options: float | Callable[[], float]) -> StateReader:
        return StateReader(self.properties, self.topic, **options)  # type: ignore[arg-type]


@pytest.fixture
def log(kafka_broker: SharedBroker) -> Log:
    return Log(kafka_broker.bootstrap)


def values(state: LogState | None) -> dict[int, str] | None:
    if state is None:
        return None
    return {row.entry_id: row.record.decode() for row in state.rows.values()}


def test_P1_P5_K9_all_who_wait_get_the_first_whole_load_whatever_failed_before(log: Log) -> None:
    with closing(log.reader(timeout_seconds=5.0)) as reader:
        with pytest.raises(NotReady, match="the change log is not loaded"):
            reader.loaded(0.1)
        found: list[LogState] = []
        waiting = [
            threading.Thread(target=lambda: found.append(reader.loaded(60))) for _ in range(4)
        ]
        for one in waiting:
            one.start()
        assert log.topic not in log.admin.list_topics(timeout=10).topics, "none is made by asking"
        log.make()
        eventually(lambda: "empty" in reader.trouble)
        with log.transaction():
            log.put(1, 1)
        assert found == []
        log.page(2, 2)
        for one in waiting:
            one.join(60)
        assert [values(state) for state in found] == 4 * [{1: "a", 2: "a"}]
        assert reader.trouble == ""


def test_P20_K1_K6_it_follows_by_checkpoints_and_stops_at_an_open_transaction(log: Log) -> None:
    log.make()
    log.page(1, 1)
    with closing(log.reader()) as reader:
        first = reader.loaded(60)
        assert values(first) == {1: "a"}
        log.producer.begin_transaction()
        log.put(2, 2)
        with pytest.raises(NotReady, match="did not come so far"):
            reader.wait(lambda state: len(state.rows) > 1, 0.5)
        with closing(log.reader()) as other:
            assert values(other.loaded(60)) == {1: "a"}, "up to where it is stable"
        log.producer.abort_transaction(30)
        log.page(3, 3)
        assert values(reader.wait(lambda state: len(state.rows) > 1, 60)) == {1: "a", 3: "a"}
        assert values(first) == {1: "a"}, "a state never changes"
        with closing(log.reader()) as other:
            assert values(other.loaded(60)) == {1: "a", 3: "a"}
        assert reader.load_count == 1


def test_P2_what_was_loaded_stays_until_a_log_that_was_begun_again_is_whole(log: Log) -> None:
    log.make()
    log.page(1, 7)
    with closing(log.reader(timeout_seconds=5.0)) as reader:
        reader.loaded(60)
        log.remove()
        log.make()
        with log.transaction():
            log.put(2, 1)
        for revision in (1, 2, 3):
            log.page(2, revision, generation=2)
        state = reader.wait(lambda state: 2 in (values(state) or {}), 60)
        assert values(state) == {2: "a"}
        assert reader.load_count > 1


def test_after_a_long_pause_it_begins_again(log: Log) -> None:
    """Tombstones may be gone: only a load knows what was removed meanwhile."""
    log.make(**{"delete.retention.ms": "200000"})
    log.page(1, 1)
    ahead = [0.0]
    now = threading.Lock()

    def clock() -> float:
        with now:
            return ahead[0]

    with closing(log.reader(clock=clock)) as reader:
        reader.loaded(60)
        log.page(2, 2)
        reader.wait(lambda state: len(state.rows) == 2, 60)
        assert reader.load_count == 1
        ahead[0] = 50.0
        log.page(3, 3)
        reader.wait(lambda state: len(state.rows) == 3, 60)
        assert reader.load_count == 1
        with now:  # the reader is paused, and much time passes
            ahead[0] = 1000.0
            log.page(4, 4)
        reader.wait(lambda state: len(state.rows) == 4, 60)
        assert reader.load_count == 2
