"""Producers and consumers by path, over librdkafka's own mock of a cluster or a fake client."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from resolver import Resolver
from resolver.errors import Closed, InvalidArgument, KafkaRejected, KdirError
from resolver.kafka import Consumer, Producer
from resolver.kafka import consumer as consumer_module
from resolver.kafka import producer as producer_module
from resolver.testing import MemoryDirectory

MOCK = {"test.mock.num.brokers": 1, "allow.auto.create.topics": True, "log_level": 0}
"""Settings of a client that connects to a cluster within itself, whatever its brokers are."""


class Tree:
    """A cluster in memory, of which the id and the brokers can be changed."""

    def __init__(self) -> None:
        self.directory = MemoryDirectory()
        self.brokers = ["a:9092"]
        self.cluster_id = "kc-la"
        endpoint = self.directory.cluster("/la", bootstrap_servers="a:9092")
        self.linger_ms: dict[str, str] = {}
        """By path, the policy producer.linger.ms."""
        for name in ("x", "y", "z"):
            self.directory.topic(f"/la/{name}")
        answer = self.directory.transport.handler(endpoint)

        def handle(name: str, request: Any) -> Any:
            response = answer(name, request)
            for authority in getattr(response, "authorities", None) or [response.authority]:
                authority.cluster.cluster_id = self.cluster_id
                authority.cluster.listeners[0].bootstrap_servers[:] = self.brokers
            for outcome in getattr(response, "outcomes", None) or [response.outcome]:
                if value := self.linger_ms.get(outcome.resolution.entry.path):
                    defaults = outcome.resolution.effective.producer_defaults
                    defaults["linger.ms"].value = value
            return response

        self.directory.transport.serve(endpoint, handle)

    def resolver(self, **more: Any) -> Resolver:
        """Returns a client of the cluster."""
        return self.directory.resolver(**more)


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree()
    with made.directory:
        yield made


def test_a_transactional_producer_goes_on_when_the_list_of_brokers_changes(tree: Tree) -> None:
    producer = Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})
    for brokers in (["a:9092"], ["a:9092", "b:9092"], ["b:9092"]):
        tree.brokers = brokers
        producer.begin_transaction()
        producer.produce("/la/x", b"1")
        producer.produce("/la/y", b"1")
        producer.commit_transaction()
    assert producer.close() == 0


def produce_in_transaction(producer: Producer, *paths: str, timeout: float = 30.0) -> None:
    producer.begin_transaction()
    for one in paths:
        producer.produce(one, b"1")
    producer.commit_transaction(timeout)


@pytest.mark.parametrize("timeout", [30.0, -1])
def test_a_transactional_producer_goes_on_when_a_policy_changes(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", CountedProducer)
    monkeypatch.setattr(CountedProducer, "alive", weakref.WeakSet())
    reported: list[object] = []
    with closing(Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})) as one:
        produce_in_transaction(one, "/la/x", "/la/y", timeout=timeout)
        one.begin_transaction()
        one.produce("/la/x", b"1")
        tree.linger_ms = {"/la/x": "20", "/la/y": "20"}
        one.produce("/la/y", b"1", on_delivery=lambda error, _: reported.append(error))
        assert [client.linger_ms for client in CountedProducer.alive] == [None]
        one.abort_transaction()
        assert [client.linger_ms for client in CountedProducer.alive] == [None]
        produce_in_transaction(one, "/la/x", "/la/y", timeout=timeout)
        assert [client.linger_ms for client in CountedProducer.alive] == ["20"]
        assert len(reported) == 1
        produce_in_transaction(one, "/la/x", "/la/y", timeout=timeout)
        assert [client.linger_ms for client in CountedProducer.alive] == ["20"]


def test_a_transaction_is_committed_before_it_is_asked_which_settings_its_paths_have(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at once: while no directory answers, each question takes its time."""
    steps: list[str] = []

    class Committing(KafkaProducer):
        def commit_transaction(self, *timeout: float) -> None:
            super().commit_transaction(*timeout)
            steps.append("commit")

    monkeypatch.setattr(producer_module, "KafkaProducer", Committing)
    resolver = tree.resolver(max_entries=0)
    many = resolver.resolve_many

    def resolve_many(paths: list[str], **more: Any) -> Any:
        assert more["timeout_seconds"] <= 0.5
        steps.append(f"ask for {len(paths)}")
        return many(paths, **more)

    monkeypatch.setattr(resolver, "resolve_many", resolve_many)
    with closing(Producer(resolver, {**MOCK, "transactional.id": "t"})) as one:
        produce_in_transaction(one, "/la/x", "/la/y")
        tree.linger_ms = {"/la/x": "20"}
        produce_in_transaction(one, "/la/x")
        assert steps == ["commit", "commit", "ask for 2"]


@pytest.mark.parametrize(("timeout", "most"), [(9.0, 9.0), (-1, 30.0), (4.9, 0.0)])
def test_a_replacement_takes_no_longer_than_the_commit_has_left(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, timeout: float, most: float
) -> None:
    given: list[float] = []

    class Timed(KafkaProducer):
        def init_transactions(self, *timeout: float) -> None:
            given.extend(timeout)
            super().init_transactions(*timeout)

    monkeypatch.setattr(producer_module, "KafkaProducer", Timed)
    with closing(Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})) as one:
        produce_in_transaction(one, "/la/x")
        tree.linger_ms["/la/x"] = "20"
        produce_in_transaction(one, "/la/x", timeout=timeout)
    assert len(given) == (2 if most else 1), "a request that is given up may fence the former one"
    assert all(0 < seconds <= most for seconds in given[1:])


def test_a_replacement_that_kafka_refuses_is_tried_once_and_reported(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str | None] = []

    class Refused(KafkaProducer):
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__(settings)
            self.linger_ms = settings.get("linger.ms")

        def init_transactions(self, *timeout: float) -> None:
            tried.append(self.linger_ms)
            if self.linger_ms == "20":
                error = KafkaError.INVALID_TRANSACTION_TIMEOUT
                raise KafkaException(KafkaError(error, "it is larger than the maximum"))
            super().init_transactions(*timeout)

    monkeypatch.setattr(producer_module, "KafkaProducer", Refused)
    with closing(Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})) as one:
        produce_in_transaction(one, "/la/x")
        for linger_ms, expected in (
            ("20", [None, "20"]),
            ("20", [None, "20"]),
            ("", [None, "20"]),
            ("20", [None, "20", "20"]),
            ("30", [None, "20", "20", "30"]),
        ):
            tree.linger_ms["/la/x"] = linger_ms
            produce_in_transaction(one, "/la/x")
            assert tried == expected
    (first, _) = [one.getMessage() for one in caplog.records]
    assert first.startswith("/la/x: the transactional producer keeps its former settings until")
    assert "it is larger than the maximum" in first


def test_a_transactional_producer_keeps_its_settings_while_paths_of_a_cluster_differ(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", CountedProducer)
    monkeypatch.setattr(CountedProducer, "alive", weakref.WeakSet())
    with closing(Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})) as one:
        produce_in_transaction(one, "/la/x", "/la/y")
        tree.linger_ms = {"/la/x": "20", "/la/z": "20"}
        produce_in_transaction(one, "/la/x", "/la/y")
        one.begin_transaction()
        with pytest.raises(InvalidArgument, match=r"/la/z: its policies set another linger\.ms"):
            one.produce("/la/z", b"1")
        one.abort_transaction()
        tree.directory.remove("/la/y")
        produce_in_transaction(one, "/la/x")
        produce_in_transaction(one, "/la/z", "/la/x")
        assert "20" in [client.linger_ms for client in CountedProducer.alive]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_transactional_producer_that_is_fenced_fences_no_other_when_a_policy_changes(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, *, is_begun: bool
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", FencedProducer)
    monkeypatch.setattr(FencedProducer, "newest", None)
    settings = {**MOCK, "transactional.id": "t"}
    successor = FencedProducer({**settings, "bootstrap.servers": "a:9092"})
    with closing(Producer(tree.resolver(max_entries=0), settings)) as one:
        produce_in_transaction(one, "/la/x")
        if is_begun:
            one.begin_transaction()
            one.produce("/la/x", b"1")
        successor.init_transactions(10)
        tree.linger_ms["/la/x"] = "20"
        if not is_begun:
            one.begin_transaction()
        for _ in range(2):
            one.produce("/la/x", b"1")
            with pytest.raises(KafkaException, match="_FENCED"):
                one.commit_transaction(10)
        one.abort_transaction(10)
        with pytest.raises(KafkaException, match="_FENCED"):
            produce_in_transaction(one, "/la/x")
        successor.begin_transaction()
        successor.produce("x", b"1")
        successor.commit_transaction(10)


class CountedProducer(KafkaProducer):
    """A client that is in ``alive`` until it is dropped."""

    alive: ClassVar[weakref.WeakSet[CountedProducer]] = weakref.WeakSet()

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.linger_ms = settings.get("linger.ms")
        self.alive.add(self)


class FencedProducer(CountedProducer):
    """A client that Kafka fences once another one has the id. An empty transaction is not sent to
    Kafka, and librdkafka's own Kafka fences none.
    """

    newest: ClassVar[FencedProducer | None] = None
    has_sent = False

    def init_transactions(self, *timeout: float) -> None:
        super().init_transactions(*timeout)
        FencedProducer.newest = self

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self.has_sent = False

    def produce(self, *args: Any, **more: Any) -> None:
        super().produce(*args, **more)
        self.has_sent = True

    def commit_transaction(self, *timeout: float) -> None:
        if self.has_sent and self.newest is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True))
        super().commit_transaction(*timeout)


@pytest.mark.parametrize("timeout", [30.0, -1, 0.0])
@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_producer_that_is_closed_aborts_its_transaction_and_keeps_no_client(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, timeout: float, *, is_fenced: bool
) -> None:
    aborted: list[object] = []

    class Aborting(CountedProducer):
        def abort_transaction(self, *timeout: float) -> None:
            super().abort_transaction(*timeout)
            aborted.extend(timeout)
            if is_fenced:
                raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True))

    monkeypatch.setattr(producer_module, "KafkaProducer", Aborting)
    monkeypatch.setattr(CountedProducer, "alive", weakref.WeakSet())
    producer = Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})
    producer.begin_transaction()
    producer.produce("/la/x", b"1")
    assert producer.close(timeout) == 0 or timeout == 0
    assert len(aborted) == 1
    assert not CountedProducer.alive
    assert producer.close(timeout) == 0
    with pytest.raises(InvalidArgument, match="no transaction is open"):
        producer.commit_transaction()


def test_a_producer_drops_the_clients_that_no_path_has_any_more(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", CountedProducer)
    monkeypatch.setattr(CountedProducer, "alive", weakref.WeakSet())
    producer = Producer(tree.resolver(max_entries=0), MOCK)
    reported: list[object] = []

    def produce(path: str) -> int:
        """Sends one message; returns the number of clients."""
        producer.produce(path, b"1", on_delivery=lambda error, _: reported.append(error))
        return len(CountedProducer.alive)

    assert (produce("/la/x"), produce("/la/y")) == (1, 1)
    for number in range(3):
        tree.brokers = [f"b-{number}:9092"]
        assert (produce("/la/x"), produce("/la/y")) == (2, 1)
    assert producer.close() == 0
    assert reported == [None] * 8
    assert len(CountedProducer.alive) == 0


class HeldProducer(KafkaProducer):
    """A client whose thread ``late`` sends its message only when it may."""

    has_client: ClassVar[threading.Event]
    may_send: ClassVar[threading.Event]
    when_counted: ClassVar[list[Callable[[], object]]]
    """Is run after the messages were counted, before the caller has the count."""

    def produce(self, *args: Any, **options: Any) -> None:
        if threading.current_thread().name == "late":
            self.has_client.set()
            assert self.may_send.wait(20)
        super().produce(*args, **options)

    def __len__(self) -> int:
        count = super().__len__()
        if self.when_counted:
            self.when_counted.pop()()
        return count


@pytest.mark.parametrize("moment", ["while its messages are counted", "before the message is sent"])
def test_a_message_is_not_lost_whose_client_another_thread_drops(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", HeldProducer)
    HeldProducer.has_client, HeldProducer.may_send = threading.Event(), threading.Event()
    HeldProducer.when_counted = []
    producer = Producer(tree.resolver(max_entries=0), MOCK)
    reported: list[str] = []

    def produce(name: str) -> None:
        producer.produce("/la/x", name, on_delivery=lambda _error, _: reported.append(name))

    def send_late() -> None:
        HeldProducer.may_send.set()
        late.join(20)

    produce("first")
    assert producer.flush() == 0
    late = threading.Thread(target=produce, args=("late",), name="late")
    late.start()
    assert HeldProducer.has_client.wait(20)
    tree.brokers = ["b:9092"]
    if moment == "while its messages are counted":
        HeldProducer.when_counted.append(send_late)
        produce("second")
    else:
        produce("second")
        with monkeypatch.context() as slow:  # nothing arrives within the time
            slow.setattr(producer_module, "flush_deliveries", lambda client, _seconds: len(client))
            send_late()
    assert producer.close() == 0
    assert sorted(reported) == ["first", "late", "second"]


class EndedProducer(KafkaProducer):
    """A client with a fatal error."""

    when_flushed: ClassVar[list[Callable[[], object]]] = []

    def poll(self, timeout: float = -1) -> int:
        raise KafkaException(KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "fenced", fatal=True))

    def flush(self, timeout: float = -1) -> int:
        if self.when_flushed:
            self.when_flushed.pop()()
        raise KafkaException(KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "fenced", fatal=True))


def test_each_thread_that_meets_a_fatal_error_gets_the_error_of_kdir(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", EndedProducer)
    producer = Producer(tree.resolver(), MOCK)
    producer.produce("/la/x", b"1")
    ended: list[KdirError] = []

    def poll() -> None:
        with pytest.raises(KdirError) as polled:
            producer.poll()
        ended.append(polled.value)

    EndedProducer.when_flushed.append(poll)  # as another thread would, before the error is raised
    with pytest.raises(KdirError, match="fenced"):
        producer.flush(0.1)
    assert [type(one) for one in ended] == [KafkaRejected]
    producer.purge()


def test_the_client_of_the_open_transaction_stays(tree: Tree) -> None:
    producer = Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})
    producer.begin_transaction()
    producer.produce("/la/x", b"1")
    tree.cluster_id = "kc-other"
    with pytest.raises(InvalidArgument, match="the open transaction is of another"):
        producer.produce("/la/x", b"2")
    producer.commit_transaction()
    assert producer.close() == 0


def test_poll_waits_also_before_the_first_message_and_after_the_last(tree: Tree) -> None:
    producer = Producer(tree.resolver(), MOCK)
    for _ in range(2):
        began = time.monotonic()
        assert producer.poll(0.12) == 0
        assert time.monotonic() - began >= 0.12
        producer.close()


def test_poll_receives_the_delivery_of_a_message_that_another_thread_sends(tree: Tree) -> None:
    producer = Producer(tree.resolver(), MOCK)
    threading.Timer(0.1, producer.produce, ("/la/x", b"1")).start()
    began = time.monotonic()
    assert producer.poll(20.0) == 1
    assert time.monotonic() - began < 10
    producer.close()


class SlowProducer(KafkaProducer):
    """A client whose messages are delivered at the second call that waits for them."""

    asked: ClassVar[list[float]]

    def flush(self, timeout: float = -1) -> int:
        return self._answer(timeout, 7, 0)

    def poll(self, timeout: float = -1) -> int:
        return self._answer(timeout, 0, 1) if timeout else 0

    def _answer(self, timeout: float, first: int, second: int) -> int:
        self.asked.append(timeout)
        return first if len(self.asked) == 1 else second


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda producer: producer.flush(-1), 0),
        (lambda producer: producer.close(-1), 0),
        (lambda producer: producer.poll(-1), 1),
    ],
    ids=["flush", "close", "poll"],
)
def test_a_negative_timeout_of_a_producer_is_no_limit(
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Producer], int],
    expected: int,
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", SlowProducer)
    SlowProducer.asked = []
    producer = Producer(tree.resolver(), MOCK)
    producer.produce("/la/x", b"1")
    assert ask(producer) == expected
    assert len(SlowProducer.asked) == 2
    assert all(0 < one <= 0.1 for one in SlowProducer.asked), "it can be interrupted"


def test_a_fatal_error_ends_a_flush_without_limit(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "KafkaProducer", EndedProducer)
    monkeypatch.setattr(producer_module, "_REPORT_SECONDS", 0.1)
    producer = Producer(tree.resolver(), {**MOCK, "linger.ms": 60_000})
    producer.produce("/la/x", b"1")
    with pytest.raises(KafkaRejected, match="fenced"):
        producer.flush(-1)


def test_close_ends_a_poll_without_limit_of_another_thread(tree: Tree) -> None:
    producer = Producer(tree.resolver(), MOCK)
    polled: list[int] = []
    polling = threading.Thread(target=lambda: polled.append(producer.poll(-1)), daemon=True)
    polling.start()
    polling.join(0.2)
    assert polling.is_alive()
    producer.close()
    polling.join(20)
    assert polled == [0]


class FakeConsumer:
    """A client that keeps its settings."""

    made: list[dict[str, Any]]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.made.append(settings)

    def subscribe(self, topics: list[str]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Returns the settings of each consumer's client, in order."""
    FakeConsumer.made = []
    monkeypatch.setattr(consumer_module, "KafkaConsumer", FakeConsumer)
    return FakeConsumer.made


@pytest.mark.parametrize("paths", [("/la/x", "/la/y"), ("/la/y", "/la/x")])
@pytest.mark.parametrize("max_entries", [0, 10])
def test_a_consumer_takes_the_newest_list_of_a_clusters_brokers(
    tree: Tree, made: list[dict[str, Any]], paths: tuple[str, str], max_entries: int
) -> None:
    resolver = tree.resolver(max_entries=max_entries)
    resolver.resolve("/la/x")  # with a cache, the answer that is older
    tree.brokers = ["b:9092", "c:9092"]
    consumer = Consumer(resolver, {"group.id": "g"})
    consumer.subscribe(paths)
    consumer.close()
    assert [one["bootstrap.servers"] for one in made] == ["b:9092,c:9092"]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_closed_consumer_commits_nothing(tree: Tree, asynchronous: bool) -> None:
    consumer = Consumer(tree.resolver(), {"group.id": "g"})
    consumer.close()
    with pytest.raises(Closed, match="this consumer was closed"):
        consumer.commit(asynchronous=asynchronous)


class LeavingConsumer:
    """A client that calls ``on_revoke`` when it is closed."""

    made: ClassVar[list[LeavingConsumer]]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.is_closed = False
        self.commits = 0
        self.made.append(self)

    def subscribe(self, topics: list[str], on_revoke: Callable[[object, list[Any]], None]) -> None:
        self.on_revoke = on_revoke

    def commit(self, *, asynchronous: bool) -> list[TopicPartition]:
        assert not self.is_closed
        self.commits += 1
        return []

    def close(self) -> None:
        try:
            self.on_revoke(self, [])
        finally:
            self.is_closed = True


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> list[LeavingConsumer]:
    """Returns each consumer's client, in order."""
    LeavingConsumer.made = []
    monkeypatch.setattr(consumer_module, "KafkaConsumer", LeavingConsumer)
    return LeavingConsumer.made


@pytest.fixture
def two_clusters() -> Iterator[Resolver]:
    with MemoryDirectory() as directory:
        directory.cluster("/")
        for name in ("la", "ny"):
            directory.cluster(f"/{name}", bootstrap_servers=f"{name}:9092")
            directory.topic(f"/{name}/x")
        yield directory.resolver()


def test_offsets_are_committed_when_partitions_are_revoked_by_close(
    two_clusters: Resolver, leaving: list[LeavingConsumer]
) -> None:
    consumer = Consumer(two_clusters, {"group.id": "g"})

    def revoked(_: list[TopicPartition]) -> None:
        consumer.commit(asynchronous=False)
        with pytest.raises(Closed):
            consumer.poll(0)

    consumer.subscribe(["/la/x", "/ny/x"], on_revoke=revoked)
    consumer.close()
    assert [one.commits for one in leaving] == [1, 2], "each before it is closed"
    with pytest.raises(Closed):
        consumer.commit()


def test_an_error_of_a_callback_keeps_no_client_in_its_group(
    two_clusters: Resolver, leaving: list[LeavingConsumer]
) -> None:
    consumer = Consumer(two_clusters, {"group.id": "g"})

    def revoked(_: list[TopicPartition]) -> None:
        raise ValueError(sum(one.is_closed for one in leaving))

    consumer.subscribe(["/la/x", "/ny/x"], on_revoke=revoked)
    with pytest.raises(ValueError, match="0"):
        consumer.close()
    assert [one.is_closed for one in leaving] == [True, True]
    consumer.close()


class SlowConsumer:
    """A client that receives a message at its second call that waits."""

    asked: ClassVar[list[float]]

    def __init__(self, settings: dict[str, Any]) -> None:
        pass

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics

    def topic(self) -> str:
        return self.topics[0]

    def poll(self, timeout: float) -> SlowConsumer | None:
        if not timeout:
            return None
        self.asked.append(timeout)
        return None if len(self.asked) % 2 else self


@pytest.mark.parametrize("paths", [["/la/x"], ["/la/x", "/ny/x"]])
def test_a_negative_timeout_of_a_consumer_is_no_limit(
    two_clusters: Resolver, monkeypatch: pytest.MonkeyPatch, paths: list[str]
) -> None:
    monkeypatch.setattr(consumer_module, "KafkaConsumer", SlowConsumer)
    SlowConsumer.asked = []
    consumer = Consumer(two_clusters, {"group.id": "g"})
    assert consumer.poll(-1) is None, "there is no subscription"
    consumer.subscribe(paths)
    assert consumer.poll(-1) is not None
    assert len(consumer.consume(2, -1)) == 2
    assert len(SlowConsumer.asked) == 6
    assert all(0 < one <= 0.1 for one in SlowConsumer.asked), "it can be interrupted"
