"""The change log on three brokers, of which one after the other dies."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from deploy.local.kafka import KafkaCluster
from tests.integration.change_log.test_publishing import (
    caught_up,
    change_at_random,
    log_of,
    logged_rows,
    outbox_of,
)
from tests.support.federation import Server


def leader_of(admin: AdminClient, topic: str) -> int:
    """Returns the number of the broker that takes what is written to a topic."""
    found: int = admin.list_topics(topic, timeout=20).topics[topic].partitions[0].leader
    return found


@pytest.mark.slow
def test_P23_a_leader_that_dies_loses_nothing_and_repeats_nothing(
    tmp_path: Path, kafka_clusters: Callable[..., KafkaCluster]
) -> None:
    store = tmp_path / "la.sqlite"
    with kafka_clusters() as kafka:
        settings = {
            "store": f"sqlite:///{store}",
            "change_log": {"bootstrap": kafka.bootstrap.split(",")},
        }
        with Server(tmp_path / "la", "/la", settings) as server:
            for thread in range(2):
                server.mkdir(f"/la/w{thread}")
            log = log_of(server, kafka)
            begun = caught_up(log, str(store))
            assert begun.checkpoint is not None
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
            for topic in (log.state_topic, log.history_topic):
                resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
                config = admin.describe_configs([resource])[resource].result(30)
                assert config["min.insync.replicas"].value == "2"
                assert len(admin.list_topics(topic).topics[topic].partitions[0].replicas) == 3
            ended = threading.Event()

            def write(thread: int) -> None:
                own = random.Random(thread)
                while not ended.wait(0.02):
                    change_at_random(server, thread, own)

            writers = [threading.Thread(target=write, args=(thread,)) for thread in range(2)]
            for writer in writers:
                writer.start()
            for topic in (log.history_topic, log.state_topic):
                leader = kafka.broker(leader_of(admin, topic))
                time.sleep(1)
                leader.kill()
                time.sleep(2)
                leader.start()
            ended.set()
            for writer in writers:
                writer.join()
            found = caught_up(log, str(store))
            rows = logged_rows(str(store))
    made = [one for one in found.history if one.checkpoint is None]
    assert [(one.revision, one.position, one.path) for one in made] == outbox_of(
        str(store), begun.checkpoint.revision
    )
    assert len(made) > 100
    assert found.rows == rows
