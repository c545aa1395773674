"""Local brokers with users: each is who it says, what nobody allowed is denied, or open to all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from deploy.local.kafka import KafkaBroker
from deploy.local.kafka_users import BrokerUsers, SaslUsers, TlsUsers
from tests.federation import eventually
from tests.identities import Authority

DENIED = "TOPIC_AUTHORIZATION_FAILED"


def sasl(_folder: Path) -> BrokerUsers:
    return SaslUsers(["alice", "bob"])


def tls(folder: Path) -> BrokerUsers:
    authority = Authority(folder)
    pairs = {}
    for name in ("admin", "alice", "bob"):
        issued = authority.issue(name, addresses=["127.0.0.1"])
        pairs[name] = (issued.files["cert"], issued.files["key"])
    return TlsUsers(authority.file, pairs)


def produce(client: Mapping[str, str]) -> str:
    """What becomes of a message: "" where it is delivered, else the error's name."""
    said: list[str] = []
    producer = Producer({**client, "message.timeout.ms": 20_000, "log_level": 0})
    producer.produce("orders", b"x", on_delivery=lambda error, _: said.append(_name(error)))
    producer.flush(30)
    return said[0]


def _name(error: object) -> str:
    return "" if error is None else str(getattr(error, "name", str)())


def open_to(admin: AdminClient, user: str) -> None:
    acl = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([acl])[acl].result(30)


@pytest.mark.parametrize("users", [sasl, tls])
def test_users_are_told_apart_and_need_an_acl(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path, users: Callable[[Path], BrokerUsers]
) -> None:
    with kafka_brokers(users=users(tmp_path)) as broker:
        admin = AdminClient({**broker.client(), "log_level": 0})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
        assert produce(broker.client("alice")) == DENIED
        open_to(admin, "alice")
        eventually(lambda: produce(broker.client("alice")) == "")
        assert produce(broker.client("bob")) == DENIED
        with pytest.raises(KeyError):
            broker.client("carol")


def test_a_broker_open_to_all_closes_a_topic_with_its_first_acl(
    kafka_brokers: Callable[..., KafkaBroker],
) -> None:
    with kafka_brokers(users=SaslUsers(["alice", "bob"], open_to_all=True)) as broker:
        admin = AdminClient({**broker.client(), "log_level": 0})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
        assert produce(broker.client("bob")) == ""
        open_to(admin, "alice")
        eventually(lambda: produce(broker.client("bob")) == DENIED)
        assert produce(broker.client("alice")) == ""


def test_names_that_a_broker_cannot_be_told_are_refused() -> None:
    with pytest.raises(ValueError, match="user 'a\"b'"):
        SaslUsers(['a"b'])
    with pytest.raises(ValueError, match="super user"):
        SaslUsers(["alice"], super_users=[])
