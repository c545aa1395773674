"""Producer and consumer by path, on real brokers: KIP-679's defaults, policies, clusters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from deploy.local.kafka import KafkaBroker
from resolver import Resolver
from resolver.errors import Absent, Closed, InvalidArgument
from resolver.kafka import Consumer, PathMessage, Producer, ReceivedMessage
from tests.support.command_line import run
from tests.support.federation import Federation, Server, eventually

ALREADY = 5


def made(server: Server, path: str) -> bool:
    return run(["create", path, "--at", server.address]).code in {0, ALREADY}


@pytest.fixture(scope="module")
def tree(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yields a root with two clusters below it, and the topics /one/t, /one/u and /two/t."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(kafka_brokers()) for _ in range(2)]
        federation = stack.enter_context(Federation(tmp_path_factory.mktemp("by-path")))
        root = federation.start("/")
        for path, broker in zip(("/one", "/two"), brokers, strict=True):
            federation.join(
                path, "/", kafka={"bootstrap": [broker.bootstrap], "ceiling": ["create"]}
            )
        for path in ("/one/t", "/one/u", "/one/v", "/one/w", "/one/x", "/two/t", "/two/x"):
            eventually(partial(made, root, path))
        yield root


@pytest.fixture
def resolver(tree: Server) -> Iterator[Resolver]:
    with Resolver(tree.address) as one:
        yield one


def received(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []

    def all_there() -> bool:
        one = consumer.poll(0.2)
        if one is not None:
            assert one.error() is None, one.error()
            found.append(one)
        return len(found) >= count

    eventually(all_there, 60.0)
    return found


def test_one_producer_and_one_consumer_for_paths_of_two_clusters(
    resolver: Resolver,
) -> None:
    producer = Producer(resolver, {"linger.ms": 1})
    reported: list[tuple[Any, str, str | None]] = []

    def on_delivery(error: object, message: PathMessage) -> None:
        reported.append((error, message.topic(), message.physical_name()))

    for number in range(20):
        for path in ("/one/t", "/two/t"):
            value = f"{path} {number}".encode()
            producer.produce(path, value, on_delivery=on_delivery)
    assert producer.flush() == 0
    # As everywhere where Kafka's clients have a topic: both topics are named t in Kafka.
    assert sorted(set(reported)) == [(None, "/one/t", "t"), (None, "/two/t", "t")]
    assert len(reported) == 40
    assert len(producer) == 0

    own = {"group.id": "by-path", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(resolver, own)
    assigned: list[str] = []
    consumer.subscribe(
        ["/one/t", "/two/t"], on_assign=lambda all_: assigned.extend(one.topic for one in all_)
    )
    try:
        found = received(consumer, 40)
        assert {one.topic() for one in found} == {"/one/t", "/two/t"}
        for path in ("/one/t", "/two/t"):
            values = [one.value() for one in found if one.topic() == path]
            assert values == [f"{path} {number}".encode() for number in range(20)]
        assert {one.cluster for one in found} == {"one", "two"}
        assert {one.physical_name() for one in found} == {"t"}
        assert set(assigned) == {"/one/t", "/two/t"} == {one.topic for one in consumer.assignment()}
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()

    # The group goes on behind what it has committed.
    producer.produce("/one/t", b"later")
    assert producer.close() == 0
    again = Consumer(resolver, own)
    again.subscribe(["/two/t", "/one/t"])
    try:
        [later] = received(again, 1)
        assert later.value() == b"later"
        again.commit(asynchronous=False)  # in /two there is nothing to commit
        offset = later.offset()
        assert offset is not None
        assert again.committed([TopicPartition("/one/t", 0)])[0].offset == offset + 1
        with pytest.raises(KafkaException, match="_NO_OFFSET"):
            again.commit(asynchronous=False)
        again.subscribe(["/two/t"])
        with pytest.raises(InvalidArgument, match="of /one/t, from an earlier subscription"):
            again.commit(later)
    finally:
        again.close()


def test_partitions_are_named_by_path(resolver: Resolver) -> None:
    paths = ("/one/x", "/two/x")
    producer = Producer(resolver)
    for number in range(4):
        for path in paths:
            producer.produce(path, str(number), partition=0, timestamp=1_000 + number)
    assert producer.close() == 0
    own = {"group.id": "partitions", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(resolver, own)
    consumer.subscribe(paths)
    first = [TopicPartition(path, 0) for path in paths]

    def offsets(partitions: list[TopicPartition]) -> dict[str, int]:
        assert {one.partition for one in partitions} == {0}
        return {one.topic: one.offset for one in partitions}

    def values(count: int) -> set[tuple[str, Any]]:
        return {(one.topic(), one.value()) for one in received(consumer, count)}

    try:
        assert offsets(consumer.committed(first)) == dict.fromkeys(paths, -1001)
        assert len(values(8)) == 8
        assert offsets(consumer.position(first)) == dict.fromkeys(paths, 4)
        consumer.commit(asynchronous=False)
        assert offsets(consumer.committed(first)) == dict.fromkeys(paths, 4)
        assert consumer.get_watermark_offsets(first[0]) == (0, 4)
        at_two = consumer.offsets_for_times([TopicPartition(path, 0, 1_002) for path in paths])
        assert offsets(at_two) == dict.fromkeys(paths, 2)
        for one in at_two:
            consumer.seek(one)
        assert values(4) == {(path, value) for path in paths for value in (b"2", b"3")}
        consumer.pause(first[:1])
        for one in at_two:
            consumer.seek(one)
        assert values(2) == {("/two/x", b"2"), ("/two/x", b"3")}
        assert consumer.poll(0.5) is None
        consumer.resume(first[:1])
        assert values(2) == {("/one/x", b"2"), ("/one/x", b"3")}
        with pytest.raises(InvalidArgument, match="/one/t: found no subscription to this path"):
            consumer.seek(TopicPartition("/one/t", 0, 0))
    finally:
        consumer.close()


def test_policies_are_defaults_and_a_conflict_with_them_names_both(
    tree: Server, resolver: Resolver
) -> None:
    done = run(["set", "/one/u", "producer.enable.idempotence=true", "--at", tree.address])
    assert done.code == 0, done.err
    with pytest.raises(InvalidArgument) as raised:
        Producer(resolver, {"acks": 1}).produce("/one/u", b"x")
    assert "acks=1 (by the program), where all is needed" in raised.value.message
    assert "enable.idempotence=true (by the policies of /one/u)" in raised.value.message
    # Elsewhere nobody insists: acks=1 turns it off, as Kafka's own producer does.
    loose = Producer(resolver, {"acks": 1})
    loose.produce("/one/v", b"x")
    assert loose.close() == 0


def test_a_transaction_is_one_clusters(resolver: Resolver) -> None:
    producer = Producer(resolver, {"transactional.id": "by-path-1"})
    with pytest.raises(InvalidArgument, match="begin_transaction comes first"):
        producer.produce("/one/w", b"no")
    producer.begin_transaction()
    producer.produce("/one/w", b"dropped")
    with pytest.raises(InvalidArgument, match="a transaction cannot span clusters"):
        producer.produce("/two/t", b"no")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.produce("/one/w", b"kept")
    producer.commit_transaction()
    assert producer.close() == 0
    consumer = Consumer(
        resolver,
        {
            "group.id": "transactions",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        },
    )
    consumer.subscribe(["/one/w"])
    try:
        assert [one.value() for one in received(consumer, 1)] == [b"kept"]
    finally:
        consumer.close()


def test_what_makes_no_sense_is_refused_before_anything_is_sent(resolver: Resolver) -> None:
    with pytest.raises(InvalidArgument, match="the path of a topic says where its brokers are"):
        Producer(resolver, {"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(InvalidArgument, match=r"acks=7 \(by the program\)"):
        Producer(resolver, {"acks": 7})
    with pytest.raises(InvalidArgument, match=r"group\.id"):
        Consumer(resolver, {})
    producer = Producer(resolver)
    with pytest.raises(Absent):
        producer.produce("/one/nothing", b"x")
    with pytest.raises(InvalidArgument, match="not a topic"):
        producer.produce("/one", b"x")
    with pytest.raises(InvalidArgument, match="transactional"):
        producer.begin_transaction()
    assert producer.close() == 0
    for refused in (partial(producer.produce, "/one/t", b"x"), producer.begin_transaction):
        with pytest.raises(Closed, match="this producer was closed"):
            refused()
    consumer = Consumer(resolver, {"group.id": "closed"})
    consumer.close()
    consumer.close()
    for call in (partial(consumer.subscribe, ["/one/t"]), partial(consumer.poll, 0.0)):
        with pytest.raises(Closed, match="this consumer was closed"):
            call()


def test_G11_a_producer_of_another_process_is_refused(resolver: Resolver) -> None:
    producer = Producer(resolver)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            producer.produce("/one/t", b"x")
        except InvalidArgument as error:
            os.write(write, error.message.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as output:
        assert b"made by another process" in output.read()
