"""The edge to Kafka's admin client, without a Kafka: what is about an item, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from directory.access.grants import Operation, Permission, ResourceType
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
from resolver.errors import KafkaRejected

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
