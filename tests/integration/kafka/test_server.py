"""A whole directory server, a process of its own, in front of a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
from kdir.v1 import admin_pb2, admin_pb2_grpc, entry_pb2

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import TopicToCreate
from resolver.errors import AboveCeiling, InvalidArgument, KafkaRejected, NotAuthoritative
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import drop, in_kafka, make

ARMED = {"ceiling": ["create", "delete"]}


@pytest.fixture
def start(broker: KafkaBroker, tmp_path: FilePath) -> Iterator[Callable[..., Server]]:
    with Federation(tmp_path) as federation:

        def begin(**kafka: Any) -> Server:
            return federation.start("/la/t", kafka={"bootstrap": [broker.bootstrap], **kafka})

        yield begin


def create(server: Server, path: str, **topic: Any) -> entry_pb2.Entry:
    entry = entry_pb2.Entry(topic=entry_pb2.Topic(**topic))
    response = server.entries("CreateEntry", path=path, entry=entry, wait_until_active=True)
    made: entry_pb2.Entry = response.entry
    return made


def listed(server: Server) -> dict[str, entry_pb2.Topic]:
    topics: dict[str, entry_pb2.Topic] = {}
    page = ""
    while True:
        response = server.entries(
            "ListEntries", path="/la/t", page_size=10_000, page_token=page, recursive=True
        )
        topics |= {
            entry.path: entry.topic
            for entry in response.entries
            if entry.WhichOneof("kind") == "topic"
        }
        page = response.next_page_token
        if not page:
            return topics


def admin(server: Server, method: str, **fields: Any) -> Any:
    request = getattr(admin_pb2, f"{method}Request")(**fields)
    return server.ask(admin_pb2_grpc.AdminServiceStub, method, request)


def test_a_running_kafka_is_served_without_a_file_and_left_as_it_is(
    start: Callable[..., Server], kafka: ConfluentAdmin, broker: KafkaBroker
) -> None:
    make(kafka, *(f"t.{number}" for number in range(1_000)))
    before = kafka.describe_all()
    server = start()
    eventually(lambda: server.status().topic_count == 1_000)
    eventually(lambda: server.status().kafka.reachable)
    status = server.status().kafka
    assert (status.pinned_cluster_id, list(status.ceiling)) == (broker.cluster_id, [])
    with pytest.raises(AboveCeiling, match="ceiling"):
        create(server, "/la/t/new")
    assert kafka.describe_all() == before


def test_a_topic_by_path_is_active_when_the_call_returns_and_gone_after_rm(
    start: Callable[..., Server], kafka: ConfluentAdmin
) -> None:
    server = start(**ARMED)
    server.mkdir("/la/t/search")
    made = create(server, "/la/t/search/clicks", partitions=3)
    assert made.topic.provision == entry_pb2.PROVISION_ACTIVE
    assert made.topic.topic_id == kafka.describe_all().topics["search.clicks"].topic_id
    with pytest.raises(KafkaRejected, match="replication factor of 3"):
        create(server, "/la/t/big", replication_factor=3)
    server.entries("DeleteEntry", path="/la/t/search/clicks")
    eventually(lambda: in_kafka(kafka) == set())


def test_a_server_killed_in_the_middle_of_many_creates_finishes_them_all(
    start: Callable[..., Server], kafka: ConfluentAdmin
) -> None:
    server = start(**ARMED)
    eventually(lambda: server.status().kafka.reachable)
    paths = [f"/la/t/n{number}" for number in range(120)]
    for number, path in enumerate(paths):
        entry = entry_pb2.Entry(topic=entry_pb2.Topic())
        server.entries("CreateEntry", path=path, entry=entry)
        if number in {40, 80}:
            server.kill()
            server.start()
            eventually(lambda: server.status().replica_state == admin_pb2.REPLICA_STATE_SERVING)
    server.kill()
    server.start()
    eventually(
        lambda: (
            {topic.provision for topic in listed(server).values()} == {entry_pb2.PROVISION_ACTIVE}
        )
    )
    topics, shown = listed(server), kafka.describe_all().topics
    assert set(topics) == set(paths)
    assert {topic.physical_name: topic.topic_id for topic in topics.values()} == {
        name: seen.topic_id for name, seen in shown.items() if not seen.internal
    }
    assert not any(topic.adopted for topic in topics.values()), "all of them are its own"


def test_operators_see_and_steer_it_over_the_wire(
    start: Callable[..., Server], kafka: ConfluentAdmin
) -> None:
    names = [f"prod.a.t{number}" for number in range(10)]
    make(kafka, *names, TopicToCreate("flat"))
    server = start(**ARMED, sweep_interval_seconds=0.5)
    eventually(lambda: server.status().topic_count == 11)
    rules = [admin_pb2.MappingRule(match="prod.*", split_on=".")]
    plan = admin(server, "AdoptTopics", rules=rules, validate_only=True, remap_adopted=True)
    assert {(one.action, one.path) for one in plan.adoptions} >= {
        ("keep", "/la/t/flat"),
        ("move", "/la/t/prod/a/t3"),
    }
    assert plan.token == ""
    done = admin(server, "AdoptTopics", rules=rules, remap_adopted=True)
    assert done.token
    assert "/la/t/prod/a/t3" in listed(server)
    with pytest.raises(InvalidArgument, match="match is empty"):
        admin(server, "AdoptTopics", rules=[admin_pb2.MappingRule()])

    drop(kafka, *names)
    text = eventually(lambda: server.status().kafka.stop_reason)
    assert "10 of 11 topics vanished" in text
    with pytest.raises(InvalidArgument):
        admin(server, "Acknowledge", stop_reason="fine")
    admin(server, "Acknowledge", stop_reason=text)
    eventually(lambda: server.status().kafka.missing_count == 10)
    assert server.status().kafka.stop_reason == ""
    drifts = admin(server, "ListDrift", path="/la/t/prod").drifts
    assert len(drifts) == 10
    assert drifts[0].provision == entry_pb2.PROVISION_MISSING
    with pytest.raises(NotAuthoritative):
        admin(server, "ListDrift", path="/ny")


def test_manage_false_forbids_what_the_ceiling_would_allow(
    start: Callable[..., Server], kafka: ConfluentAdmin
) -> None:
    server = start(**ARMED)
    for path in ("/la/t/d", "/la/t/d/kept"):
        server.mkdir(path)
    create(server, "/la/t/d/a")
    create(server, "/la/t/d/kept/b")

    def forbid(path: str, aspect: str) -> None:
        entry = entry_pb2.Entry()
        entry.policies.manage[aspect] = False
        mask = {"paths": [f"policies.manage.{aspect}"]}
        server.entries("UpdateEntry", path=path, entry=entry, update_mask=mask)

    forbid("/la/t/d", "create")
    with pytest.raises(AboveCeiling, match=r"/la/t/d says manage\.create=false"):
        create(server, "/la/t/d/more")
    forbid("/la/t/d/kept", "delete")
    with pytest.raises(AboveCeiling, match=r"/la/t/d/kept says manage\.delete=false"):
        server.entries("DeleteEntry", path="/la/t/d", recursive=True)
    left = server.entries("DeleteEntry", path="/la/t/d/kept/b")
    assert not left.kafka_topics_deleted
    gone = server.entries("DeleteEntry", path="/la/t/d/a")
    assert gone.kafka_topics_deleted
    eventually(lambda: "d.a" not in in_kafka(kafka))
    assert "d.kept.b" in in_kafka(kafka)


def test_manage_true_is_armed_and_never_set(start: Callable[..., Server]) -> None:
    server = start(**ARMED)
    server.mkdir("/la/t/d")
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    entry.policies.manage["configs"] = True
    for paths in (["policies.manage.configs"], ["policies.manage"], ["policies"]):
        with pytest.raises(InvalidArgument, match="kdir arm /la/t/d --aspect configs"):
            server.entries("UpdateEntry", path="/la/t/d", entry=entry, update_mask={"paths": paths})
    with pytest.raises(InvalidArgument, match="kdir arm"):
        server.entries("CreateEntry", path="/la/t/e", entry=entry)
