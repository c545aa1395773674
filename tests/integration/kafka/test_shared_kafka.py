"""Two clusters of a federation in front of one Kafka: the first that was pinned manages it."""

from __future__ import annotations

from pathlib import Path as FilePath

from kdir.v1 import entry_pb2

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import Rejected, TopicToCreate
from directory.kafka.adoption.pinned_kafka import MANAGED_ELSEWHERE
from tests.support.federation import Federation, Server, eventually
from tests.support.kafka_clients import kdir
from tests.support.reconciler import in_kafka, make

DAY, MONTH = "86400000", "2592000000"


def desired(server: Server, path: str) -> None:
    entry = entry_pb2.Entry(topic=entry_pb2.Topic())
    server.entries("CreateEntry", path=path, entry=entry)


def topic(server: Server, path: str) -> entry_pb2.Topic:
    found: entry_pb2.Topic = server.entries("GetEntry", path=path).entry.topic
    return found


def test_the_second_cluster_of_a_kafka_changes_nothing_in_it_until_it_is_alone(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    settings = {
        "bootstrap": [broker.bootstrap],
        "ceiling": ["create", "delete"],
        "sweep_interval_seconds": 0.5,
    }
    make(kafka, "kept")
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        first = federation.join("/a", "/", kafka=settings)
        eventually(lambda: first.status().kafka.pinned_cluster_id)
        second = federation.join("/b", "/", kafka=settings)
        arguments = eventually(lambda: second.status().kafka.unmanaged)
        assert broker.cluster_id in arguments
        assert f"at /a ({first.cluster_id})" in arguments
        assert first.status().kafka.unmanaged == ""

        desired(first, "/a/mine")
        eventually(lambda: topic(first, "/a/mine").provision == entry_pb2.PROVISION_ACTIVE)
        desired(second, "/b/theirs")
        second.entries("DeleteEntry", path="/b/kept")
        eventually(lambda: topic(second, "/b/theirs").provision_message == MANAGED_ELSEWHERE)
        assert topic(second, "/b/theirs").provision == entry_pb2.PROVISION_PENDING
        assert topic(second, "/b/theirs").provision_attempt == ""
        assert in_kafka(kafka) == {"kept", "mine"}

        ran = kdir(root, "doctor", code=3)
        assert arguments in ran.err
        assert "unmanaged" in ran.out

        # Nothing is lost: alone, it does what waited.
        root.entries("DeleteEntry", path="/a", kind=entry_pb2.ENTRY_KIND_MOUNT)
        eventually(lambda: not second.status().kafka.unmanaged, 60)
        eventually(lambda: topic(second, "/b/theirs").provision == entry_pb2.PROVISION_ACTIVE, 60)
        eventually(lambda: in_kafka(kafka) == {"mine", "theirs"}, 60)


def test_what_was_set_while_another_cluster_managed_waits_for_a_plan_of_now(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    settings = {
        "bootstrap": [broker.bootstrap],
        "ceiling": ["configs"],
        "sweep_interval_seconds": 0.5,
    }
    make(kafka, TopicToCreate("kept", config={"retention.ms": MONTH}))

    def retention() -> str:
        found = kafka.configs(["kept"])["kept"]
        assert not isinstance(found, Rejected)
        return found["retention.ms"]

    def arm(server: Server, path: str) -> None:
        plan = kdir(server, "arm", path, "--aspect", "configs", "-o", "name").out.strip()
        kdir(server, "arm", path, "--aspect", "configs", "--plan", plan)

    with Federation(tmp_path) as federation:
        root = federation.start("/")

        def unmount_first() -> None:
            root.entries("DeleteEntry", path="/a", kind=entry_pb2.ENTRY_KIND_MOUNT)
            eventually(lambda: not second.status().kafka.unmanaged, 60)

        first = federation.join("/a", "/", kafka=settings)
        eventually(lambda: first.status().kafka.pinned_cluster_id)
        second = federation.join("/b", "/", kafka=settings)
        eventually(lambda: second.status().kafka.unmanaged)
        eventually(lambda: second.status().topic_count == 1)
        # Refused at once, for it does not end by itself.
        assert MANAGED_ELSEWHERE in kdir(second, "arm", "/b", "--aspect", "configs", code=5).err

        unmount_first()
        kdir(second, "set", "-y", "/b", f"retention.ms={MONTH}")
        arm(second, "/b")
        root.mount_child("/a", first.cluster_id)
        eventually(lambda: second.status().kafka.unmanaged, 60)
        kdir(second, "set", "-y", "/b", f"retention.ms={DAY}")
        unmount_first()
        eventually(lambda: second.status().kafka.needs_approval_count == 1, 60)
        assert retention() == MONTH
        arm(second, "/b")
        eventually(lambda: retention() == DAY, 60)
