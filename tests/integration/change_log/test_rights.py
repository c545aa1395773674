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
from directory.change_log.log_topics import LogTopics
from directory.change_log.topic_writer import LogRefused
from directory.kafka.admin_client import ConfluentAdmin
from resolver.errors import KafkaUnavailable
from tests.integration.change_log.test_bad_days import made, state_of, waits_because
from tests.integration.kafka.test_credentials import put
from tests.support.federation import Server, eventually

_NEEDED = (
    *((ResourceType.TOPIC, "__change_", one) for one in ("CREATE", "DESCRIBE", "READ", "WRITE")),
    (ResourceType.TOPIC, "__change_", "DESCRIBE_CONFIGS"),
    (ResourceType.TRANSACTIONAL_ID, "kdir-", "WRITE"),
)
"""As docs/how-to/change-log.md has them."""
_TAKEN = {
    "missing: WRITE on the topics": _NEEDED[3],
    "missing: WRITE on transactional id kdir-kc-": _NEEDED[5],
}
"""By what is reported."""


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
        for reported, right in _TAKEN.items():
            take_away(admin, right)
            la.mkdir(f"/la/{right[2]}-{right[1]}")
            waits_because(la, reported)
            for future in admin.create_acls([acl(*right)]).values():
                future.result(30)
            waits_for_nothing(la)
        cluster_id = la.cluster_id
    name_what_is_missing_at_the_start(admin, guarded, cluster_id)


def name_what_is_missing_at_the_start(
    admin: AdminClient, broker: KafkaBroker, cluster_id: str
) -> None:
    settings = {key: str(value) for key, value in broker.client("alice").items()}
    client = ConfluentAdmin([broker.bootstrap], properties=settings)
    missing: dict[int, Callable[[LogTopics], object]] = {
        2: lambda topics: topics.end(topics.history),
        4: lambda topics: topics.make_and_check(client, were_there=True),
        0: lambda topics: topics.make_and_check(client, were_there=False),
    }
    for number, call in missing.items():
        suffix = cluster_id if number else "another"  # whose topics are to be made
        names = (f"__change_events.{suffix}", f"__change_history.{suffix}")
        topics = LogTopics(suffix, *names, [broker.bootstrap], lambda: settings)
        take_away(admin, _NEEDED[number])

        def is_named(call: Callable[[LogTopics], object] = call, topics: LogTopics = topics) -> str:
            try:
                call(topics)
            except (KafkaUnavailable, LogRefused) as error:
                return str(error)
            return ""

        eventually(is_named)
        assert f"missing: {_NEEDED[number][2]} on the topic" in is_named()
    client.close()


def take_away(admin: AdminClient, right: tuple[ResourceType, str, str]) -> None:
    kind, prefix, operation = right
    pattern, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
    taken = AclBindingFilter(
        kind, prefix, pattern, "User:alice", "*", AclOperation[operation], allow
    )
    for gone in admin.delete_acls([taken]).values():
        assert len(gone.result(30)) == 1


def waits_for_nothing(server: Server) -> None:
    def is_there() -> bool:
        found = state_of(server)
        assert not found.state.message, found.state.message
        assert not found.waiting_commits, found
        return True

    eventually(is_there, 30)
