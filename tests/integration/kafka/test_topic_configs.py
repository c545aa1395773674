"""The definitions of topic configs, held against a real broker: it judges every sample value."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from directory.namespace.topic_configs import NAMES, conflict_in, problem_with
from tests.conftest import SharedBroker

_UNTIL_3_9 = {
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
}
_NEEDS_MORE = {"remote.storage.enable", "remote.log.delete.on.disable", "remote.log.copy.disable"}
"""Refused by a broker without tiered storage, or beside other configs, whatever the value."""
_STRICTER = {"", ",", "0:1,", "٣"}
"""Taken by the broker, and by us not: empty lists and parts, and digits that are not ASCII."""
_NUMBERS = [
    -(2**63),
    -(2**31) - 1,
    -131_073,
    -131_072,
    -3,
    -2,
    -1,
    0,
    1,
    3,
    4,
    9,
    10,
    17,
    18,
    22,
    23,
]
_NUMBERS += [2**20 - 1, 2**20, 2**31 - 1, 2**31, 2**63 - 1, 2**63]
_TEXTS = ["", "x", "1.5", "0.5", "1e-1", ".5", "1.1", "nan", "1_0", " 1 ", "+1", "0x1", "٣"]
_TEXTS += ["true", "TRUE", "yes", "compact", "delete", "compact,delete", "delete, compact", "a,b"]
_TEXTS += ["compact,", ",", "gzip", "GZIP", "zstd", "uncompressed", "none", "producer"]
_TEXTS += ["CreateTime", "createtime", "LogAppendTime", "0:1", "0:1,1:2", "*", "a:b", "0:1,"]


def judged(broker: SharedBroker, samples: list[dict[str, str]]) -> list[str]:
    """Returns Kafka's words on each, empty where it would make the topic; nothing is made."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [
        NewTopic(f"judged-{number}", 1, 1, config=config) for number, config in enumerate(samples)
    ]
    futures = admin.create_topics(topics, validate_only=True, request_timeout=60)
    arguments: list[str] = []
    refused: set[int] = set()
    for topic in topics:
        try:
            futures[topic.topic].result()
        except KafkaException as error:
            (refusal,) = error.args
            arguments.append(refusal.str())
            refused.add(refusal.code())
        else:
            arguments.append("")
    assert refused <= {KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST}
    return arguments


def test_every_value_is_judged_as_a_broker_judges_it(kafka_broker: SharedBroker) -> None:
    samples = [
        {name: value}
        for name in sorted(NAMES - _UNTIL_3_9 - _NEEDS_MORE)
        for value in [*map(str, _NUMBERS), *_TEXTS]
    ]
    disagree = [
        (sample, theirs, ours)
        for sample, theirs in zip(samples, judged(kafka_broker, samples), strict=True)
        for (name, value) in sample.items()
        if bool(ours := problem_with(name, value)) != bool(theirs)
        and not (ours and value in _STRICTER)
    ]
    assert not disagree, "\n".join(map(str, disagree))


def test_what_does_not_go_together_is_refused_by_the_broker_too(
    kafka_broker: SharedBroker,
) -> None:
    sample = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}
    assert conflict_in(sample)
    assert judged(kafka_broker, [sample]) != [""]


def test_the_broker_knows_no_config_that_is_not_here(kafka_broker: SharedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    admin.create_topics([NewTopic("all-configs", 1, 1)])["all-configs"].result()
    resource = ConfigResource(ConfigResource.Type.TOPIC, "all-configs")
    shown = admin.describe_configs([resource])[resource].result()
    assert set(shown) <= NAMES
    assert set(shown) >= NAMES - _UNTIL_3_9 - {"internal.segment.bytes"}
