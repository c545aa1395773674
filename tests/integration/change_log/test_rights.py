"""The rights that a publisher of a change log needs at Kafka, and what it reports without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from deploy.local.kafka import KafkaBroker
from deploy.local.kafka_users import SaslUsers
from tests.integration.change_log.test_bad_days import made, state_of, waits_because
from tests.integration.kafka.test_credentials import put
from tests.support.federation import Server, eventually

_NEEDED = (
    *((ResourceType.TOPIC, "__change_", one) for one in ("CREATE", "DESCRIBE", "READ", "WRITE")),
    (ResourceType.TOPIC, "__change_", "DESCRIBE_CONFIGS"),
    (ResourceType.TRANSACTIONAL_ID, "kdir-", "WRITE"),
)
"""As docs/how-to/change-log.md has them."""
_TAKEN = {"Topic": _NEEDED[3], "Transactional Id": _NEEDED[5]}
"""By Kafka's name of what they are about."""


@pytest.fixture(scope="module")
def guarded(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(users=SaslUsers(["alice"])) as broker:
        yield broker


def acl(kind: ResourceType, prefix: str, operation: str) -> AclBinding:
    allow, right = AclPermissionType.ALLOW, AclOperation[operation]
    return AclBinding(kind, prefix, ResourcePatternType.PREFIXED, "User:alice", "*", right, allow)


def test_a_right_that_is_taken_away_is_named_and_waited_for(
    tmp_path: Path, guarded: KafkaBroker
) -> None:
    admin = AdminClient({**guarded.client(), "log_level": 0})
    bindings = [acl(*one) for one in _NEEDED]
    for future in admin.create_acls(bindings).values():
        future.result(30)
    secrets = put(tmp_path / "alice.properties", guarded.client("alice"))
    table = {"bootstrap": [guarded.bootstrap], "properties_file": str(secrets)}
    with made(tmp_path / "la", guarded.bootstrap, change_log=table) as la:
        eventually(lambda: state_of(la).state.revision > 0 and not state_of(la).state.message)
        la.mkdir("/la/a")
        waits_for_nothing(la)
        for name, (kind, prefix, operation) in _TAKEN.items():
            taken = acl(kind, prefix, operation)
            filters = [
                AclBindingFilter(
                    kind,
                    prefix,
                    ResourcePatternType.PREFIXED,
                    "User:alice",
                    "*",
                    taken.operation,
                    AclPermissionType.ALLOW,
                )
            ]
            for gone in admin.delete_acls(filters).values():
                assert len(gone.result(30)) == 1
            la.mkdir(f"/la/{operation}-{prefix}")
            waits_because(la, f"{name} authorization failed")
            for future in admin.create_acls([taken]).values():
                future.result(30)
            waits_for_nothing(la)


def waits_for_nothing(server: Server) -> None:
    def is_there() -> bool:
        found = state_of(server)
        assert not found.state.message, found.state.message
        assert not found.waiting_commits, found
        return True

    eventually(is_there, 30)
