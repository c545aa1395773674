"""What a producer or a consumer by path gets, and what may be a default for a path (KIP-679)."""

from __future__ import annotations

import logging
import subprocess
import sys
from itertools import permutations, product
from types import SimpleNamespace
from typing import cast

import kdir
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from kdir.v1 import policies_pb2

from resolver.errors import InvalidArgument
from resolver.kafka.client_settings import (
    Client,
    SettingLayer,
    conflict_in,
    consumer_settings,
    for_librdkafka,
    problem_with,
    producer_settings,
)
from resolver.kafka.listener_choice import setting_layers
from resolver.testing import MemoryDirectory
from resolver.topic_location import TopicLocation
from tests.support.waiting import eventually

POLICY = "the policies of /la/orders"


def settings(program: dict[str, object], **policy: str) -> dict[str, str]:
    output = {name.replace("_", "."): value for name, value in policy.items()}
    return producer_settings([SettingLayer(POLICY, output), SettingLayer("the program", program)])


def test_nobody_says_anything() -> None:
    found = settings({})
    assert (found["acks"], found["enable.idempotence"]) == ("all", "true")


def test_a_program_goes_before_a_policy() -> None:
    found = settings({"linger.ms": 5}, linger_ms="100", compression_type="zstd")
    assert (found["linger.ms"], found["compression.type"]) == ("5", "zstd")


def test_librdkafkas_second_name_is_the_same_setting() -> None:
    found = settings({"request.required.acks": 0, "queue.buffering.max.ms": 1}, acks="all")
    assert (found["acks"], found["linger.ms"]) == ("0", "1")
    assert found["enable.idempotence"] == "false"


@pytest.mark.parametrize(
    ("program", "policy", "both"),
    [
        ({"acks": 1}, {"enable_idempotence": "true"}, ("acks=1 (by the program)", POLICY)),
        ({"enable.idempotence": True}, {"acks": "1"}, (f"acks=1 (by {POLICY})", "the program")),
        ({"transactional.id": "t"}, {"enable_idempotence": "false"}, ("=false", "=t (by the prog")),
        ({"transactional.id": "t", "max.in.flight": 6}, {}, ("=6", "at most 5", "=t")),
        ({"retries": 0, "enable.idempotence": "TRUE"}, {}, ("retries=0", "1 or more")),
    ],
)
def test_a_conflict_names_both_sides(
    program: dict[str, object], policy: dict[str, str], both: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        settings(program, **policy)
    for arguments in both:
        assert arguments in raised.value.message


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("acks", "2", "one of all, -1, 0, 1"),
        ("retries", "-1", "a whole number from 0"),
        ("enable.idempotence", "perhaps", "true or false"),
        ("max.in.flight.requests.per.connection", "0", "a whole number from 1"),
        ("transactional.id", "", "a name that is not empty"),
    ],
)
def test_a_value_that_kafka_does_not_take(name: str, value: str, wanted: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        settings({name: value})
    assert wanted in raised.value.message
    assert raised.value.metadata["field"] == name


def test_a_conflict_switches_idempotence_off_exactly_where_nobody_asked_for_it() -> None:
    """Against Kafka's rule as it is written down (KIP-679), for all combinations."""
    acks, retries, flying = (None, "all", "1"), (None, "0", "3"), (None, "5", "6")
    asked, transaction = (None, "true", "false"), (None, "t")
    for one in product(acks, retries, flying, asked, transaction):
        names = ("acks", "retries", "max.in.flight", "enable.idempotence", "transactional.id")
        output = {name: value for name, value in zip(names, one, strict=True) if value is not None}
        fits = one[0] != "1" and one[1] != "0" and one[2] != "6"
        insists = one[3] == "true" or one[4] is not None
        if (insists and not fits) or (one[3] == "false" and one[4] is not None):
            with pytest.raises(InvalidArgument):
                settings(dict(output))
        else:
            wanted = "true" if fits and one[3] != "false" else "false"
            assert settings(dict(output))["enable.idempotence"] == wanted, output


def test_librdkafka_gets_its_own_names_and_nothing_unknown() -> None:
    output = {"max.request.size": "2000000", "buffer.memory": "1", "retries": "3", "acks": "all"}
    found = for_librdkafka(output)
    assert found == {"message.max.bytes": "2000000", "retries": "3", "acks": "all"}
    Producer({**found, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})


def test_of_a_setting_with_two_names_the_later_layer_counts() -> None:
    both = {"fetch.max.wait.ms": "500", "fetch.wait.max.ms": "400"}
    for name in both:
        layers = [SettingLayer("policy", both), SettingLayer("program", {name: 100})]
        assert for_librdkafka(consumer_settings(layers))["fetch.wait.max.ms"] == "100"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto.offset.reset", "none"),
        ("connections.max.idle.ms", "-1"),
        ("receive.buffer.bytes", "-1"),
        ("send.buffer.bytes", "-1"),
    ],
)
def test_a_value_of_kafka_is_translated_for_librdkafka(name: str, value: str) -> None:
    found = for_librdkafka(consumer_settings([SettingLayer("policy", {name: value})]))
    Consumer({**found, "bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}).close()


def test_a_producer_makes_no_topics_unless_its_program_wants_it() -> None:
    """By default librdkafka's producer does, and Kafka would have a topic that was never armed."""
    assert for_librdkafka(settings({}))["allow.auto.create.topics"] == "false"
    asked = settings({"allow.auto.create.topics": True})
    assert asked["allow.auto.create.topics"] == "true"


BOTH = (
    "connections.max.idle.ms", "metadata.max.age.ms", "metadata.recovery.rebootstrap.trigger.ms",
    "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms",
    "request.timeout.ms", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes",
    "socket.connection.setup.timeout.ms",
)  # fmt: skip
PRODUCER = (
    "batch.size", "delivery.timeout.ms", "linger.ms", "max.in.flight.requests.per.connection",
    "max.request.size", "queue.buffering.max.kbytes", "queue.buffering.max.messages", "retries",
    "transaction.timeout.ms",
)  # fmt: skip
TRANSACTIONLESS = {"max.in.flight.requests.per.connection", "retries"}
"""Some values of these are refused with a transaction, as Kafka's producer does."""
CONSUMER = (
    "auto.commit.interval.ms", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes",
    "heartbeat.interval.ms", "max.partition.fetch.bytes", "max.poll.interval.ms",
    "session.timeout.ms",
)  # fmt: skip


@pytest.mark.parametrize("value", ["0", "1", "10", "1000", "299999", "899999", "2147483647"])
def test_every_number_that_a_policy_may_set_starts_a_client(value: str) -> None:
    where = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    for name in (*BOTH, *PRODUCER):
        if not problem_with(Client.PRODUCER, name, value):
            Producer({**where, **for_librdkafka(settings({}, **{name: value}))})
            if name not in TRANSACTIONLESS:
                own = settings({"transactional.id": "t"}, **{name: value})
                Producer({**where, **for_librdkafka(own)})
    for name in (*BOTH, *CONSUMER):
        if not problem_with(Client.CONSUMER, name, value):
            found = for_librdkafka(consumer_settings([SettingLayer(POLICY, {name: value})]))
            Consumer({**where, "group.id": "g", **found}).close()


@pytest.mark.parametrize("timeout", ["10", "300000"])
@pytest.mark.parametrize("transaction", ["1", "300000", "2147483547", "2147483600", "2147483647"])
def test_a_transaction_of_any_length_starts_with_any_socket_timeout(
    transaction: str, timeout: str
) -> None:
    policy = {"transaction_timeout_ms": transaction, "socket_timeout_ms": timeout}
    programs: tuple[dict[str, object], ...] = ({}, {"transactional.id": "t"})
    for program in programs:
        found = for_librdkafka(settings(program, **policy))
        Producer({**found, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_list_of_assignors_starts_a_consumer(count: int) -> None:
    where = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    name = "partition.assignment.strategy"
    for chosen in permutations(("range", "roundrobin", "cooperative-sticky"), count):
        for value in (",".join(chosen), " , ".join(chosen), ",".join((*chosen, chosen[0]))):
            assert not problem_with(Client.CONSUMER, name, value)
            found = for_librdkafka(consumer_settings([SettingLayer(POLICY, {name: value})]))
            Consumer({**where, **found}).close()
            assert found[name].startswith(chosen[0])
    assert for_librdkafka({name: "range,roundrobin"}) == {name: "range,roundrobin"}
    assert for_librdkafka({name: "roundrobin, cooperative-sticky, range"}) == {
        name: "roundrobin,range"
    }


@pytest.mark.parametrize("who", ["the program", "a policy"])
def test_policies_that_the_consumer_protocol_does_not_allow_are_left_out(who: str) -> None:
    """KIP-848: the brokers have these; a client that is given one of them does not start."""
    protocol = {"group.protocol": "consumer"}
    policy = {
        "session.timeout.ms": "60000",
        "heartbeat.interval.ms": "6000",
        "partition.assignment.strategy": "range",
        "fetch.min.bytes": "2",
    }
    program = {"group.id": "g", **(protocol if who == "the program" else {})}
    if who == "a policy":
        policy |= protocol
    layers = [SettingLayer(POLICY, policy), SettingLayer("the program", program)]
    found = for_librdkafka(consumer_settings(layers))
    Consumer({**found, "bootstrap.servers": "127.0.0.1:1", "log_level": 0}).close()
    assert found["fetch.min.bytes"] == "2"
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
        own = [*layers, SettingLayer("the program", {name: policy[name]})]
        assert consumer_settings(own)[name] == policy[name], "the program's own stays, an error"


def test_only_a_number_that_librdkafka_refuses_is_changed() -> None:
    texts = {"linger.ms": "0.5", "batch.size": "16384", "delivery.timeout.ms": "0"}
    assert for_librdkafka(texts) == texts
    out_of_range = {"batch.size": "0", "max.request.size": "10", "linger.ms": "1000000"}
    assert for_librdkafka(out_of_range) == {
        "batch.size": "1",
        "message.max.bytes": "1000",
        "linger.ms": "900000",
        "delivery.timeout.ms": "900001",
    }


def test_a_consumer_makes_no_topics() -> None:
    assert consumer_settings([])["allow.auto.create.topics"] == "false"
    assert consumer_settings([SettingLayer("p", {"group.id": "g"})])["group.id"] == "g"


@pytest.mark.parametrize(
    ("client", "name", "value", "arguments"),
    [
        (Client.PRODUCER, "acks", "all", ""),
        (Client.PRODUCER, "acks", "banana", "found 'banana'; expected one of all, -1, 0, 1"),
        (Client.PRODUCER, "ackss", "1", "did you mean acks?"),
        (Client.PRODUCER, "linger.ms", "99999999999999", "a whole number from 0"),
        (Client.PRODUCER, "message.timeout.ms", "5", "expected delivery.timeout.ms"),
        (Client.PRODUCER, "bootstrap.servers", "evil:9092", "can be set only by a program"),
        (Client.PRODUCER, "metadata.broker.list", "evil:9092", "can be set only by a program"),
        (Client.PRODUCER, "sasl.jaas.config", "x", "can be set only by a program"),
        (Client.PRODUCER, "ssl.ca.location", "/x", "can be set only by a program"),
        (Client.PRODUCER, "plugin.library.paths", "/x.so", "can be set only by a program"),
        (Client.PRODUCER, "interceptor.classes", "X", "can be set only by a program"),
        (Client.PRODUCER, "key.serializer", "X", "can be set only by a program"),
        (Client.PRODUCER, "transactional.id", "x", "can be set only by a program"),
        (Client.PRODUCER, "isolation.level", "read_committed", "no producer setting"),
        (Client.CONSUMER, "isolation.level", "read_committed", ""),
        (Client.CONSUMER, "group.id", "g", "can be set only by a program"),
        (Client.CONSUMER, "auto.offset.reset", "first", "one of earliest, latest"),
        (Client.CONSUMER, "acks", "all", "no consumer setting"),
    ],
)
def test_what_may_be_a_default_for_a_path(
    client: Client, name: str, value: str, arguments: str
) -> None:
    found = problem_with(client, name, value)
    assert arguments in found
    assert bool(arguments) == bool(found)


def test_defaults_that_nobody_could_have_together() -> None:
    both = {"acks": "1", "enable.idempotence": "true"}
    assert "acks=1, where all is needed" in conflict_in(Client.PRODUCER, both)
    assert conflict_in(Client.PRODUCER, {"acks": "1", "enable.idempotence": None}) == ""
    assert conflict_in(Client.CONSUMER, {"acks": "1"}) == ""


def test_a_policy_that_says_where_to_connect_is_ignored() -> None:
    """Also from a directory that did not refuse it."""
    policies = policies_pb2.Policies()
    for key, value in (("bootstrap.servers", "evil:9092"), ("linger.ms", "5"), ("acks", "9")):
        policies.producer_defaults[key].value = value
    found = SimpleNamespace(path="/la/t", effective=policies)
    assert setting_layers({}, cast("TopicLocation", found)) == [
        SettingLayer("the policies of /la/t", {"linger.ms": "5"}),
        SettingLayer("the program", {}),
    ]


def test_the_rules_need_no_kafka_client() -> None:
    """The directory has them without ``kdir[kafka]``."""
    code = "import resolver.kafka.client_settings, sys; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_callbacks_and_a_logger_are_the_clients() -> None:
    """As text they made confluent-kafka raise a TypeError at the first message."""
    with MemoryDirectory() as directory:
        directory.cluster("/la", bootstrap_servers="127.0.0.1:1")
        directory.topic("/la/t")
        errors: list[KafkaError] = []
        own = {"error_cb": errors.append, "logger": logging.getLogger("of a test")}
        producer = kdir.Producer(directory.resolver(), own)
        producer.produce("/la/t", b"one")
        eventually(lambda: producer.poll(0.1) or errors)
        producer.purge()
        producer.close(5)
        errors.clear()
        consumer = kdir.Consumer(directory.resolver(), {"group.id": "g", **own})
        consumer.subscribe(["/la/t"])
        eventually(lambda: consumer.poll(0.1) or errors)
        consumer.close()
