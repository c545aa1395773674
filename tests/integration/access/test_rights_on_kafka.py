"""What a caller with few rights tries on a real broker with Kafka's own authorizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import access_pb2, directory_pb2, entry_pb2, policies_pb2

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import AclBinding, KafkaTopic
from directory.namespace.keys import claim_key
from directory.server.cluster import Cluster
from directory.server.config import parse_config
from directory.store.base import Put
from resolver.errors import Absent, InvalidPhysicalName, KdirError, PermissionDenied
from tests.support.acls import shown
from tests.support.federation import eventually
from tests.support.reconciler import in_kafka, make
from tests.unit.access.conftest import ADMIN, House, grants, topic

OFFSETS = "__consumer_offsets"
SHORT = "60000"


@pytest.fixture(scope="module")
def broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(properties=dict(KafkaBroker.AUTHORIZER)) as made:
        yield made


@pytest.fixture
def kafka(broker: KafkaBroker) -> Iterator[ConfluentAdmin]:
    admin = ConfluentAdmin([broker.bootstrap])
    yield admin
    admin.remove_acls(list(shown(admin)))
    if names := in_kafka(admin):
        admin.delete(sorted(names))
        eventually(lambda: not in_kafka(admin))
    admin.close()


@pytest.fixture
def la(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: Path
) -> Iterator[Callable[..., House]]:
    made: list[Cluster] = []

    def house(*ceiling: str) -> House:
        config = parse_config(
            {
                "cluster": "la",
                "mount": "/la",
                "store": f"sqlite:///{tmp_path}/la.sqlite",
                "access": "enforce",
                "auth": {"super_users": [ADMIN], "allow_anonymous": True},
                "kafka": {
                    "bootstrap": [broker.bootstrap],
                    "ceiling": list(ceiling),
                    "split_on": ".",
                    "sweep_interval_seconds": 1,
                },
            }
        )
        cluster = Cluster.open(config, lambda: ("127.0.0.1:1",))
        made.append(cluster)
        cluster.start()
        eventually(lambda: cluster.replica.reported_revision >= 0)
        reconciler = cluster.reconciler
        assert reconciler is not None
        eventually(lambda: reconciler.status().pinned_cluster_id)
        return House(cluster)

    yield house
    for cluster in made:
        cluster.stop()


def committed(broker: KafkaBroker, name: str, offset: int | None = None) -> int:
    """Returns the offset that group billing has committed, after committing one where
    it is given.
    """
    from confluent_kafka import Consumer, TopicPartition

    with closing(
        Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
    ) as consumer:
        if offset is not None:
            consumer.commit(offsets=[TopicPartition(name, 0, offset)], asynchronous=False)
        found = consumer.committed([TopicPartition(name, 0)], timeout=30)
        return int(found[0].offset)


def adopting(path: str, name: str) -> directory_pb2.CreateEntryRequest:
    entry = entry_pb2.Entry(topic=entry_pb2.Topic(physical_name=name))
    return directory_pb2.CreateEntryRequest(path=path, entry=entry, adopt_existing=True)


def existing(house: House, path: str) -> bool:
    return house.outcome(ADMIN, path) == "resolution"


def test_create_in_one_directory_reaches_no_topic_that_kafka_has(
    la: Callable[..., House], broker: KafkaBroker, kafka: ConfluentAdmin
) -> None:
    make(kafka, "payments")
    assert committed(broker, "payments", 10) == 10
    here = la("create", "delete")
    here.mkdir("/la/sandbox")
    here.grant("intern", "create,delete,describe", "/la/sandbox")
    for name in (OFFSETS, "payments", "nothing"):
        refused = here.refusal("intern", "CreateEntry", adopting("/la/sandbox/x", name))
        assert isinstance(refused, PermissionDenied)
        assert "adopting a topic that Kafka has needs ALTER on cluster la" in str(refused)
    refused = here.refusal(ADMIN, "CreateEntry", adopting("/la/sandbox/x", OFFSETS))
    assert isinstance(refused, InvalidPhysicalName)
    here.grant("intern", "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    refused = here.refusal("intern", "CreateEntry", adopting("/la/sandbox/x", OFFSETS))
    assert isinstance(refused, InvalidPhysicalName)


def test_an_internal_topic_that_was_adopted_before_outlives_its_entry(
    la: Callable[..., House], broker: KafkaBroker, kafka: ConfluentAdmin
) -> None:
    make(kafka, "payments")
    assert committed(broker, "payments", 10) == 10
    seen = kafka.describe([OFFSETS])[OFFSETS]
    assert isinstance(seen, KafkaTopic)
    here = la("create", "configs", "delete")
    here.mkdir("/la/sandbox/deep")
    for path in ("/la/sandbox/x", "/la/sandbox/deep/x"):
        topic(here, path, physical_name=OFFSETS, topic_id=seen.topic_id, partitions=50)
        here.put(Put(claim_key(OFFSETS), OFFSETS.encode()))
        refused = here.refusal(
            ADMIN, "PlanArming", policies_pb2.PlanArmingRequest(path=path, aspect="configs")
        )
        assert isinstance(refused, InvalidPhysicalName)
        request = directory_pb2.DeleteEntryRequest(path=path)
        if path.startswith("/la/sandbox/deep"):
            request = directory_pb2.DeleteEntryRequest(path="/la/sandbox/deep", recursive=True)
        here.ask(ADMIN, "DeleteEntry", request)
        assert not existing(here, path)
    # What is made and deleted after it shows that the reconciler has come past it.
    entry = entry_pb2.Entry(topic=entry_pb2.Topic(partitions=1))
    made = directory_pb2.CreateEntryRequest(
        path="/la/sandbox/own", entry=entry, wait_until_active=True
    )
    here.ask(ADMIN, "CreateEntry", made)
    eventually(lambda: "sandbox.own" in in_kafka(kafka))
    here.ask(ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/sandbox/own"))
    eventually(lambda: "sandbox.own" not in in_kafka(kafka))
    assert OFFSETS in kafka.describe_all().topics
    assert committed(broker, "payments") == 10


def retention(kafka: ConfluentAdmin, name: str) -> str:
    found: Any = kafka.configs([name])[name]
    return str(found.get("retention.ms", ""))


def armed(
    here: House, who: str, path: str, aspect: str = "configs", **fields: Any
) -> policies_pb2.PlanArmingResponse:
    """Reads the plan, and arms by it."""
    asked = policies_pb2.PlanArmingRequest(path=path, aspect=aspect, **fields)
    plan: policies_pb2.PlanArmingResponse = here.ask(who, "PlanArming", asked)
    request = policies_pb2.ArmRequest(path=path, aspect=aspect, plan_hash=plan.plan_hash, **fields)
    here.ask(who, "Arm", request)
    return plan


def test_a_right_on_a_topic_arms_nothing_of_the_directory_beside_it(
    la: Callable[..., House], kafka: ConfluentAdmin
) -> None:
    make(kafka, "orders", "orders.cards", "orders.refunds")
    here = la("configs")
    eventually(lambda: all(existing(here, one) for one in ("/la/orders", "/la/orders/refunds")))
    entry = entry_pb2.Entry()
    entry.policies.topic_config["retention.ms"].value = SHORT
    desired = directory_pb2.UpdateEntryRequest(
        path="/la/orders", entry=entry, kind=entry_pb2.ENTRY_KIND_DIRECTORY
    )
    desired.update_mask.paths.append("policies.topic_config.retention.ms")
    here.ask(ADMIN, "UpdateEntry", desired)
    here.grant("intern", "describe,alter-configs", "/la/orders")
    assert here.outcome("intern", "/la/orders/cards") == "absent"

    plan = armed(here, "intern", "/la/orders")
    assert not plan.calls
    get = directory_pb2.GetEntryRequest(path="/la/orders")
    assert here.ask(ADMIN, "GetEntry", get).entry.policies.manage["configs"]
    get.kind = entry_pb2.ENTRY_KIND_DIRECTORY
    assert not here.ask(ADMIN, "GetEntry", get).entry.policies.manage
    whole = policies_pb2.PlanArmingRequest(path="/la/orders", aspect="configs", directory=True)
    assert isinstance(here.refusal("intern", "PlanArming", whole), Absent)
    by_topic = policies_pb2.ArmRequest(
        path="/la/orders", aspect="configs", plan_hash=plan.plan_hash, directory=True
    )
    assert isinstance(here.refusal("intern", "Arm", by_topic), Absent)
    assert isinstance(here.refusal(ADMIN, "Arm", by_topic), KdirError)
    assert retention(kafka, "orders.cards") == retention(kafka, "orders.refunds") == ""

    # Who may change all of it but for what denies it further down may not arm it, either.
    here.ask(
        ADMIN,
        "AddGrants",
        access_pb2.AddGrantsRequest(
            path="/la/orders",
            kind=entry_pb2.ENTRY_KIND_DIRECTORY,
            grants=grants("owner", "alter-configs,describe"),
        ),
    )
    here.grant("owner", "-alter-configs", "/la/orders/cards")
    assert isinstance(here.refusal("owner", "PlanArming", whole), PermissionDenied)
    here.revoke("owner", "-alter-configs", "/la/orders/cards")
    assert len(armed(here, "owner", "/la/orders", directory=True).calls) == 2
    eventually(lambda: retention(kafka, "orders.cards") == SHORT)


def test_grants_of_groups_and_transactional_ids_are_the_clusters_to_give(
    la: Callable[..., House], kafka: ConfluentAdmin
) -> None:
    make(kafka, "teams.intern.sandbox.t")
    here = la("acls")
    eventually(lambda: existing(here, "/la/teams/intern/sandbox/t"))
    armed(here, ADMIN, "/la/teams", "acls")
    here.grant("intern", "alter", "/la/teams/intern/sandbox")
    group, producer = access_pb2.RESOURCE_TYPE_GROUP, access_pb2.RESOURCE_TYPE_TRANSACTIONAL_ID
    asked = [
        grants("User:*", "-all", kind=group, name="*"),
        grants("intern", "all", kind=group, name="payments-*"),
        grants("User:*", "-all", kind=producer, name="*"),
    ]
    for arguments in asked:
        for method, kind in (
            ("AddGrants", access_pb2.AddGrantsRequest),
            ("RemoveGrants", access_pb2.RemoveGrantsRequest),
        ):
            request = kind(path="/la/teams/intern/sandbox", grants=arguments)
            refused = here.refusal("intern", method, request)
            assert isinstance(refused, PermissionDenied)
            assert "needs ALTER on cluster la" in str(refused)
    here.grant("alice", "read", "/la/teams/intern/sandbox", by="intern")
    eventually(lambda: shown(kafka))
    assert {one.resource.kind.name for one in shown(kafka)} == {"TOPIC"}
    here.grant("intern", "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    here.grant("alice", "read", "/la/teams/intern/sandbox", by="intern", kind=group, name="alice-*")
    found: set[AclBinding] = eventually(
        lambda: {one for one in shown(kafka) if one.resource.kind.name == "GROUP"}
    )
    assert {one.resource.name for one in found} == {"alice-"}
