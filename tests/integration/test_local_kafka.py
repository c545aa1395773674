"""The local Kafka brokers: ready when they say so, and killed, paused and restarted for real."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from deploy.local import kafka
from deploy.local.kafka import KafkaBroker
from deploy.local.process import StartFailed, stop_recorded
from tests.conftest import SharedBroker
from tests.support.federation import eventually

Brokers = Callable[..., KafkaBroker]


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)  # a future fails when its client is collected
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    failures: list[Any] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None]


def first_value(bootstrap: str, topic: str) -> bytes | None:
    with closing(
        Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "log_level": 0})
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.value()


def test_the_shared_broker_takes_topics(kafka_broker: SharedBroker) -> None:
    topic = f"shared-{os.getpid()}"
    create(kafka_broker.bootstrap, topic)
    metadata = admin(kafka_broker.bootstrap).list_topics(timeout=10)
    assert topic in metadata.topics
    assert metadata.cluster_id == kafka_broker.cluster_id


def test_data_outlives_a_kill_and_a_restart_at_the_same_address(kafka_brokers: Brokers) -> None:
    with kafka_brokers() as broker:
        create(broker.bootstrap, "kept")
        produce(broker.bootstrap, "kept", b"before")
        address = broker.bootstrap
        broker.kill()
        assert not broker.running
        with pytest.raises(KafkaException):
            admin(address).list_topics(timeout=1)
        broker.start()
        assert broker.bootstrap == address
        assert first_value(address, "kept") == b"before"
        broker.restart()
        assert first_value(address, "kept") == b"before"


def test_a_paused_broker_answers_nobody_until_it_is_resumed(kafka_brokers: Brokers) -> None:
    with kafka_brokers() as broker:
        broker.pause()

        def is_silent() -> bool:
            try:
                admin(broker.bootstrap).list_topics(timeout=1)
            except KafkaException:
                return True
            return False  # the signal takes effect a moment later

        assert eventually(is_silent)
        assert broker.running
        broker.resume()
        assert admin(broker.bootstrap).list_topics(timeout=30).cluster_id == broker.cluster_id


def test_another_broker_on_a_used_directory_goes_on_with_it(
    kafka_brokers: Brokers, tmp_path: Path
) -> None:
    with kafka_brokers(directory=tmp_path) as first:
        create(first.bootstrap, "kept")
    assert not first.running
    with kafka_brokers(directory=tmp_path) as second:
        assert (second.port, second.cluster_id) == (first.port, first.cluster_id)
        eventually(lambda: "kept" in admin(second.bootstrap).list_topics(timeout=10).topics)


def test_properties_reach_the_broker_and_its_authorizer_takes_acls(kafka_brokers: Brokers) -> None:
    with kafka_brokers(properties=KafkaBroker.AUTHORIZER) as broker:
        acl = AclBinding(
            ResourceType.TOPIC,
            "orders",
            ResourcePatternType.LITERAL,
            "User:bob",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        client = admin(broker.bootstrap)
        client.create_acls([acl])[acl].result(30)
        orders = AclBindingFilter(
            ResourceType.TOPIC,
            "orders",
            ResourcePatternType.LITERAL,
            "User:bob",
            "*",
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert client.describe_acls(orders).result(30) == [acl]


def test_a_start_that_fails_shows_the_end_of_the_log(kafka_brokers: Brokers) -> None:
    with (
        pytest.raises(StartFailed, match="No security protocol defined for listener NONSENSE"),
        kafka_brokers(properties={"listeners": "NONSENSE://127.0.0.1:1"}),
    ):
        pass


def test_a_port_in_use_is_refused_when_given_and_replaced_when_chosen(
    kafka_brokers: Brokers,
) -> None:
    with kafka_brokers() as first:
        with (
            pytest.raises(StartFailed, match="Address already in use"),
            kafka_brokers(port=first.port),
        ):
            pass
        second = kafka_brokers()
        second.port = first.port  # chosen, then taken by someone quicker
        with second:
            assert second.port != first.port


pytestmark = pytest.mark.slow

STARTER = """
import sys, time
from pathlib import Path
from deploy.local.kafka import KafkaBroker
broker = KafkaBroker(Path(sys.argv[1]), detached=sys.argv[2] == "detached")
broker.start()
print(broker.pid, flush=True)
time.sleep(600)
"""


def start_elsewhere(directory: Path, mode: str) -> tuple[subprocess.Popen[str], int]:
    """Starts a process that started a broker and then sleeps; returns it and the broker's process
    id.
    """
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, directory, mode], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    return starter, int(starter.stdout.readline())


def alive(pid: int) -> bool:
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, check=False
    )
    return bool(shown.stdout.strip()) and not shown.stdout.startswith(b"Z")


@pytest.mark.usefixtures("kafka_brokers")
def test_a_broker_ends_with_the_process_that_started_it_even_by_sigkill(tmp_path: Path) -> None:
    starter, broker = start_elsewhere(tmp_path, "attached")
    with starter:
        assert alive(broker)
        starter.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while alive(broker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(broker)


@pytest.mark.usefixtures("kafka_brokers")
def test_a_detached_broker_stays_until_its_record_is_used(tmp_path: Path) -> None:
    starter, broker = start_elsewhere(tmp_path, "detached")
    record = tmp_path / "broker.pid"
    try:
        with starter:
            starter.send_signal(signal.SIGKILL)
        time.sleep(0.5)  # as long as a leash needs to notice; there must be none
        assert alive(broker)
    finally:
        stopped = stop_recorded(record)
    assert stopped
    assert not alive(broker)
    assert not stop_recorded(record)


def test_a_record_of_a_process_id_that_is_now_another_ends_nothing(tmp_path: Path) -> None:
    record = tmp_path / "broker.pid"
    record.write_text(f"{os.getpid()} Thu Jan  1 00:00:00 1970")
    assert not stop_recorded(record)
    assert not record.exists()


def test_a_made_cluster_id_cannot_be_taken_for_an_option() -> None:
    assert not any(kafka._new_id().startswith("-") for _ in range(1000))
