"""The edge to Kafka's admin client, without a Kafka: what is about an item, and what is not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import closing
from unittest import mock

import pytest
from confluent_kafka.admin import AdminClient

from directory.access.grants import Operation, Permission, ResourceType
from directory.kafka import admin_client
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import (
    Acl,
    AclBinding,
    ConfigChange,
    Outcome,
    Resource,
    TopicToCreate,
)
from directory.server.toml_table import ConfigError
from resolver.errors import KafkaRejected, KafkaUnavailable

READ = Acl(Permission.ALLOW, "User:ana", Operation.READ, "*")
BINDINGS = [AclBinding(Resource(ResourceType.TOPIC, name), READ) for name in "ab"]


def _no_properties() -> Mapping[str, str]:
    raise ConfigError("kafka.properties_file: kafka.properties cannot be read")


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.create([TopicToCreate("a"), TopicToCreate("b")]),
        lambda admin: admin.delete(["a", "b"]),
        lambda admin: admin.alter_configs([ConfigChange("a", {"retention.ms": "1"})]),
        lambda admin: admin.create_partitions({"a": 2}),
        lambda admin: admin.add_acls(BINDINGS),
        lambda admin: admin.remove_acls(BINDINGS),
    ],
)
def test_a_client_that_cannot_be_made_is_no_answer_of_kafka_about_an_item(
    change: Callable[[ConfluentAdmin], Mapping[str, Outcome]],
) -> None:
    """An answer would be recorded: Kafka is not asked again what it refused."""
    admin = ConfluentAdmin(["127.0.0.1:9"], properties=_no_properties)
    with pytest.raises(KafkaRejected, match="properties cannot be read"):
        change(admin)


def test_K8_a_client_that_is_given_up_is_kept_until_its_requests_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that comes while it is destroyed would end the process."""
    destroyed: list[int] = []

    class Client(AdminClient):
        def __del__(self) -> None:
            destroyed.append(id(self))

    now = [200.0]  # before the times of clients that other tests of this process gave up
    monkeypatch.setattr(admin_client, "AdminClient", Client)
    monkeypatch.setattr(admin_client, "time", mock.Mock(monotonic=lambda: now[0]))
    later = ConfluentAdmin(["127.0.0.1:9"], timeout_seconds=0.1)
    with closing(later), pytest.raises(KafkaUnavailable):
        later.cluster_id()
    now[0] = 0.0  # the one before is kept longer than those that follow
    with closing(ConfluentAdmin(["127.0.0.1:9"], timeout_seconds=0.1)) as admin:
        for _ in range(2):
            with pytest.raises(KafkaUnavailable):
                admin.cluster_id()
        gc.collect()
        assert destroyed == []
        now[0] += 60.0
        with pytest.raises(KafkaUnavailable):
            admin.cluster_id()
        gc.collect()
        assert len(destroyed) == 2
    now[0] += 60.0
    admin.close()
    gc.collect()
    assert len(destroyed) == 3
    now[0] = 400.0
    admin.close()
    gc.collect()
    assert len(destroyed) == 4


def test_a_kafka_that_does_not_answer_is_reported_within_the_budget_of_all_requests() -> None:
    now = [0.0]
    with closing(
        ConfluentAdmin(["127.0.0.1:9"], budget_seconds=0.3, clock=lambda: now[0])
    ) as admin:
        with pytest.raises(KafkaUnavailable, match=r"answered within 0\.3 s: .*refused"):
            admin.cluster_id()
        now[0] = 0.3
        with pytest.raises(KafkaUnavailable, match=r"answered within 0\.3 s"):
            admin.list_all()
