"""``kdir doctor``: what waits, or is not as it is wished, is never said to be well."""

from __future__ import annotations

from typing import Any

import pytest
from kdir.v1 import admin_pb2

from resolver.path import Path as KdirPath
from resolver.testing import MemoryDirectory
from tests.support.command_line import Ran, answering, run

AT = "127.0.0.1:20000"


pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")


def doctor(**kafka: Any) -> Ran:
    """Runs ``kdir doctor`` at a server with this status of Kafka."""
    status = admin_pb2.GetStatusResponse(
        replica_state=admin_pb2.REPLICA_STATE_SERVING,
        kafka=admin_pb2.KafkaStatus(reachable=True, leader=True, **kafka),
    )
    status.authority.cluster.cluster, status.authority.cluster.mount = "la", "/la"
    with MemoryDirectory() as tree:
        tree.cluster("/la", "la")
        owner = tree.deepest(KdirPath.parse("/la"))
        assert owner is not None
        answers = {"AdminService.GetStatus": status}
        tree.transport.serve(AT, answering(answers, owner.answer, []))
        return run(["--at", AT, "doctor", "--local"], tree.transport)


def test_what_is_well_is_reported_as_well() -> None:
    ran = doctor(acl_count=4)
    assert (ran.code, "all servers healthy" in ran.err) == (0, True)


@pytest.mark.parametrize(
    ("count", "output"),
    [
        (
            "acl_resources_needing_approval_count",
            "ACLs of 1 topic, group or id needing approval or quota",
        ),
        ("acl_resources_rejected_count", "ACLs of 1 topic, group or id rejected by Kafka"),
        ("acls_removed_externally_count", "1 ACL of kdir's removed externally"),
    ],
)
def test_acls_that_are_not_as_desired_are_named(count: str, output: str) -> None:
    ran = doctor(**{count: 1})
    assert ran.code == 3
    assert "all servers healthy" not in ran.err
    assert (
        f"/la at {AT}: {output}: kdir effective --diff /la; kdir arm /la --aspect acls" in ran.err
    )


@pytest.mark.parametrize("count", ["pending_count", "missing_count", "drift_count"])
def test_what_is_under_way_or_differs_is_not_reported_as_well(count: str) -> None:
    ran = doctor(**{count: 1})
    assert ran.code == 0
    assert "all servers healthy\n" not in ran.err
    assert "changes pending or drift in Kafka: kdir effective --diff /la" in ran.err
