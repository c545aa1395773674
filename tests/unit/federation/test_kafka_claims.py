"""Which of several clusters that are pinned to one Kafka manages it."""

from __future__ import annotations

from kdir.v1 import federation_pb2

from directory.federation.kafka_claims import manager_before, why_unmanaged


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
