"""Which of several clusters that are pinned to one Kafka manages it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from kdir.v1 import federation_pb2

from directory.federation.kafka_claims import manager_before, why_unmanaged
from directory.kafka.adoption.pinned_kafka import note_manager, pin
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from directory.server.config_kafka import KafkaConfig
from directory.store.replica import ReplicaState
from tests.support.federation import eventually
from tests.support.trees import path


def claim(cluster_id: str, at_ms: int, kafka: str = "K") -> federation_pb2.KafkaClaim:
    return federation_pb2.KafkaClaim(
        kafka_cluster_id=kafka,
        pinned_at_ms=at_ms,
        cluster_id=cluster_id,
        cluster=f"name-{cluster_id}",
        mount=f"/{cluster_id}",
    )


def test_the_first_that_was_pinned_manages_and_of_equal_ones_the_lowest_cluster_id() -> None:
    a, b, c, other = claim("a", 5), claim("b", 3), claim("c", 3), claim("o", 1, "L")
    every = [a, b, c, other]
    assert manager_before(a, every) == b
    assert manager_before(b, every) is None
    assert manager_before(c, every) == b
    assert manager_before(other, every) is None
    assert manager_before(a, [claim("a", 1)]) is None, "its own claim, as it was told before"
    assert manager_before(a, []) is None


def test_the_message_names_the_kafka_and_the_cluster_that_manages_it() -> None:
    arguments = why_unmanaged(claim("b", 3))
    assert "Kafka K is managed by cluster name-b at /b (b)" in arguments


def config_of(name: str, folder: Path) -> ServerConfig:
    kafka, store = KafkaConfig(("unused:1",)), f"sqlite:///{folder / name}.sqlite"
    return ServerConfig.quick(path(f"/{name}"), store=store, kafka=kafka)


def load(cluster: Cluster) -> None:
    cluster.replica.start()
    eventually(lambda: cluster.replica.state is ReplicaState.SERVING)


@pytest.mark.parametrize("was_unmanaged", [False, True])
def test_an_unmanaged_cluster_stays_so_until_all_clusters_of_its_process_are_loaded(
    tmp_path: Path, was_unmanaged: bool
) -> None:
    first, second = config_of("first", tmp_path), config_of("second", tmp_path)
    with ExitStack() as stack:
        a, b = Cluster.open(first), Cluster.open(second)
        stack.callback(a.stop)
        stack.callback(b.stop)
        load(b)
        b.writer.put_facts(pin("K", 2))
        if was_unmanaged:
            b.writer.put_facts(note_manager(b.replica.snapshot, unmanaged=True)[0])

        def is_unknown() -> bool:
            return "is not known yet" in b.unmanaged()

        assert b.unmanaged() == ""
        b.unopened = lambda: (first,)
        assert is_unknown() == was_unmanaged
        b.unopened, b.beside = tuple, lambda: (a, b)
        assert is_unknown() == was_unmanaged
        load(a)
        assert b.unmanaged() == ""
        a.writer.put_facts(pin("K", 1))
        assert "Kafka K is managed by cluster first" in b.unmanaged()
