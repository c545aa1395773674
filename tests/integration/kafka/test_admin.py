"""The edge to Kafka, on a real broker."""

from __future__ import annotations

import gc
import socket
import uuid
from collections.abc import Callable, Iterator

import pytest

from deploy.local.kafka import KafkaBroker
from deploy.local.ports import free_port
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import (
    AlreadyDone,
    KafkaTopic,
    OutcomeUnknown,
    Rejected,
    Succeeded,
    TopicToCreate,
)
from resolver.errors import KafkaRejected, KafkaUnavailable
from tests.conftest import SharedBroker
from tests.support.reconciler import eventually, make
from tests.support.tcp import TcpServer


@pytest.fixture
def admin(kafka_broker: SharedBroker) -> Iterator[ConfluentAdmin]:
    admin = ConfluentAdmin([kafka_broker.bootstrap])
    yield admin
    admin.close()


@pytest.fixture
def prefix() -> str:
    return f"admin-{uuid.uuid4().hex[:8]}"


def test_a_topic_is_created_shown_configured_and_deleted(
    admin: ConfluentAdmin, kafka_broker: SharedBroker, prefix: str
) -> None:
    name = f"{prefix}.a"
    make(admin, TopicToCreate(name, partitions=3, config={"retention.ms": "1000"}))
    survey = admin.describe_all()
    assert survey.cluster_id == admin.cluster_id() == kafka_broker.cluster_id
    seen = survey.topics[name]
    assert (seen.partitions, seen.replication_factor, seen.internal) == (3, 1, False)
    assert len(seen.topic_id) == 16
    assert admin.describe([name, f"{prefix}.none", "no/name"]) == {name: seen}
    assert admin.configs([name, f"{prefix}.none"]) == {name: {"retention.ms": "1000"}}
    assert admin.delete([name, f"{prefix}.none"]) == {
        name: Succeeded(),
        f"{prefix}.none": AlreadyDone(),
    }
    eventually(lambda: name not in admin.describe_all().topics)


def test_kafkas_own_topics_are_marked(admin: ConfluentAdmin, kafka_broker: SharedBroker) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": "g"})
    consumer.subscribe(["nothing"])
    consumer.poll(5)
    consumer.close()
    seen = admin.describe_all().topics["__consumer_offsets"]
    assert seen.internal


def test_each_topic_has_its_own_outcome_in_kafkas_message(
    admin: ConfluentAdmin, prefix: str
) -> None:
    make(admin, f"{prefix}.there")
    outcomes = admin.create(
        [
            TopicToCreate(f"{prefix}.good"),
            TopicToCreate(f"{prefix}.there"),
            TopicToCreate(f"{prefix}_there"),
            TopicToCreate(f"{prefix}.rf", replication_factor=3),
            TopicToCreate(f"{prefix}.config", config={"retention.ms": "soon"}),
            TopicToCreate(f"{prefix}.unknown", config={"no.such.config": "1"}),
        ]
    )
    assert outcomes[f"{prefix}.good"] == Succeeded()
    assert outcomes[f"{prefix}.there"] == AlreadyDone()
    arguments = {
        name.removeprefix(prefix): outcome.message
        for name, outcome in outcomes.items()
        if isinstance(outcome, Rejected)
    }
    assert "collides with existing topic" in arguments["_there"]
    assert "replication factor of 3 cannot be reached" in arguments[".rf"]
    assert "Invalid value soon for configuration retention.ms" in arguments[".config"]
    assert "no.such.config" in arguments[".unknown"]


def test_a_topic_that_has_as_many_partitions_is_not_refused_to_grow(
    admin: ConfluentAdmin, prefix: str
) -> None:
    name = f"{prefix}grows"
    make(admin, name)
    assert admin.create_partitions({name: 4}) == {name: Succeeded()}
    for count in (4, 3):
        assert admin.create_partitions({name: count}) == {name: AlreadyDone()}


def test_a_number_that_the_client_itself_refuses_spoils_no_other_topic(
    admin: ConfluentAdmin, prefix: str
) -> None:
    outcomes = admin.create(
        [TopicToCreate(f"{prefix}.good"), TopicToCreate(f"{prefix}.many", partitions=10_000_000)]
    )
    assert outcomes[f"{prefix}.good"] == Succeeded()
    refused = outcomes[f"{prefix}.many"]
    assert isinstance(refused, Rejected)
    assert "num_partitions" in refused.message


def test_K9_asking_for_a_topic_never_makes_it(
    kafka_brokers: Callable[..., KafkaBroker],
) -> None:
    with kafka_brokers(properties={"auto.create.topics.enable": "true"}) as broker:
        admin = ConfluentAdmin([broker.bootstrap])
        assert admin.describe(["ghost"]) == {}
        assert admin.configs(["ghost"]) == {}
        assert admin.delete(["ghost"]) == {"ghost": AlreadyDone()}
        assert dict(admin.describe_all().topics) == {}


def test_K8_a_client_is_recycled_and_the_next_one_does_not_know_what_the_first_asked(
    kafka_broker: SharedBroker,
) -> None:
    now = [0.0]
    admin = ConfluentAdmin([kafka_broker.bootstrap], recycle_seconds=60, clock=lambda: now[0])
    admin.cluster_id()
    first = admin._client
    now[0] = 60.0
    admin.cluster_id()
    assert admin._client is first
    now[0] = 60.1
    admin.cluster_id()
    assert admin._client is not first


def test_what_a_look_makes_is_freed_or_used_again(admin: ConfluentAdmin, prefix: str) -> None:
    """A version of the client library that finds its class of topic ids otherwise fails here."""
    from confluent_kafka.cimpl import Uuid

    def topic_ids() -> int:
        gc.collect()
        return sum(isinstance(one, Uuid) for one in gc.get_objects())

    names = [f"{prefix}.{number}" for number in range(3)]
    make(admin, *names)
    admin.describe(names)
    before = topic_ids()
    for _ in range(10):
        assert len(admin.describe(names)) == 3
    assert topic_ids() == before


def test_K10_nobody_at_the_address_is_unavailable_with_the_reason() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else takes it
        port = held.getsockname()[1]
        admin = ConfluentAdmin([f"127.0.0.1:{port}"], timeout_seconds=1.0)
        for ask in (
            admin.cluster_id,
            admin.describe_all,
            lambda: admin.describe(["a"]),
            lambda: admin.configs(["a"]),
        ):
            with pytest.raises(KafkaUnavailable, match="Connection refused") as raised:
                ask()
            assert str(port) in raised.value.message
        assert isinstance(admin.create([TopicToCreate("a")])["a"], OutcomeUnknown)
        assert isinstance(admin.delete(["a"])["a"], OutcomeUnknown)


def test_a_server_that_accepts_and_says_nothing_is_unavailable_in_time() -> None:
    with TcpServer() as server:
        admin = ConfluentAdmin([server.address], timeout_seconds=1.0)
        with pytest.raises(KafkaUnavailable):
            admin.describe_all()


def test_something_that_is_no_kafka_is_unavailable() -> None:
    class Greeter(TcpServer):
        def serve(self, connection: socket.socket) -> None:
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with Greeter() as server:
        admin = ConfluentAdmin([server.address], timeout_seconds=1.0)
        with pytest.raises(KafkaUnavailable):
            admin.describe_all()


def test_a_broker_that_is_killed_and_comes_back_is_found_again(
    kafka_brokers: Callable[..., KafkaBroker],
) -> None:
    with kafka_brokers() as broker:
        admin = ConfluentAdmin([broker.bootstrap], timeout_seconds=2.0)
        make(admin, "a")
        before = admin.describe_all()
        broker.kill()
        with pytest.raises(KafkaUnavailable):
            admin.describe_all()
        broker.start()
        assert admin.describe_all() == before
        broker.pause()
        with pytest.raises(KafkaUnavailable):
            admin.describe_all()
        broker.resume()
        assert isinstance(admin.describe(["a"])["a"], KafkaTopic)


def test_a_property_that_kafkas_client_does_not_know_is_refused_by_name() -> None:
    admin = ConfluentAdmin(["127.0.0.1:1"], properties={"no.such.property": "1"})
    with pytest.raises(KafkaRejected, match=r"no\.such\.property"):
        admin.describe_all()


def test_observing_needs_only_describe_and_describe_configs(
    kafka_brokers: Callable[..., KafkaBroker],
) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    port, controller_port, guarded_port = free_port(), free_port(), free_port()
    listener = f"127.0.0.1:{guarded_port}"
    properties = {
        **KafkaBroker.AUTHORIZER,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},"
        f"SASL_PLAINTEXT://{listener}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://{listener}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security."
        'plain.PlainLoginModule required user_kdir="secret";',
    }
    with kafka_brokers(port=port, properties=properties) as broker:
        make(
            ConfluentAdmin([broker.bootstrap]),
            TopicToCreate("a", config={"retention.ms": "1"}),
            "b",
        )
        bindings = [
            AclBinding(
                ResourceType.TOPIC,
                "a",
                ResourcePatternType.LITERAL,
                "User:kdir",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        ]
        rights = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for future in rights.create_acls(bindings).values():
            future.result(10)
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        observer = ConfluentAdmin(
            [listener], properties={**sasl, "sasl.username": "kdir", "sasl.password": "secret"}
        )
        assert observer.cluster_id() == broker.cluster_id
        eventually(
            lambda: set(observer.describe_all().topics) == {"a"}
        )  # rights arrive a moment later
        assert observer.configs(["a"]) == {"a": {"retention.ms": "1"}}
        assert isinstance(observer.configs(["b"])["b"], Rejected)
        assert isinstance(observer.describe(["b"])["b"], Rejected)
        assert isinstance(observer.create([TopicToCreate("c")])["c"], Rejected)
        assert isinstance(observer.delete(["a"])["a"], Rejected)
        stranger = ConfluentAdmin(
            [listener],
            properties={**sasl, "sasl.username": "kdir", "sasl.password": "wrong"},
            timeout_seconds=2,
        )
        with pytest.raises(KafkaUnavailable, match="Invalid username or password"):
            stranger.describe_all()
