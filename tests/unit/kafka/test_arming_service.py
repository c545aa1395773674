"""What operators ask about arming is answered of one snapshot, its mount included."""

from __future__ import annotations

from typing import Any

import pytest

from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.adoption import pinned_kafka
from directory.kafka.arming.arming import ArmingService
from directory.kafka.kafka_context import CONFIGS, KafkaContext
from directory.namespace.command import CreateDirectory
from directory.server.config_kafka import KafkaConfig
from directory.store.sqlite.store import LIMITS
from resolver.errors import Absent, KafkaUnavailable
from tests.support.trees import Cluster, path


def test_a_plan_is_made_at_the_mount_of_its_snapshot() -> None:
    """The cluster is moved before the plan is made, and its tree here is still the one before."""
    cluster = Cluster("/la")
    cluster.do(CreateDirectory(path=path("/la/a")))
    pinned = pinned_kafka.pin("K")
    assert cluster.rows.commit((), pinned)
    snapshot = cluster.snapshot.apply(cluster.rows.revision, pinned)

    budgets: list[float] = []

    def away(budget_seconds: float) -> KafkaAdmin:
        budgets.append(budget_seconds)
        raise KafkaUnavailable("away")

    writer: Any = None
    arming_service = ArmingService(
        KafkaContext(
            "la",
            LIMITS,
            lambda: snapshot,
            writer,
            lambda of: path("/la") if of is snapshot else path("/ny"),
            KafkaConfig(bootstrap=("unused:1",), ceiling=frozenset({CONFIGS})),
            away,
        )
    )
    with pytest.raises(KafkaUnavailable):  # it is there, and Kafka is asked for its topics
        arming_service.plan(path("/la/a"), CONFIGS, timeout_seconds=5.0)
    assert budgets == [4.0]  # less than the caller waits
    with pytest.raises(Absent):
        arming_service.plan(path("/la/b"), CONFIGS)
