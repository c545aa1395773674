"""A mount is unconfirmed since the last link on which all came, not since the last welcome."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kdir.v1 import federation_pb2

from directory.federation import inheritance, parent_state
from directory.federation.federation_state import unix_ms
from directory.federation.referral import Direction, Referral
from directory.server.cluster import Cluster
from directory.server.config import Limits, ServerConfig
from directory.store.replica import ReplicaState
from resolver.path import Path as Path_
from tests.conftest import SharedEtcd
from tests.support.federation import eventually
from tests.support.scripted_parent import ScriptedParent
from tests.unit.federation.test_one_commit import inherited, welcome


class Parent(ScriptedParent):
    """Parent that sends a mount, a table, and what is inherited where it has it; then, with nothing
    to inherit, hangs up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hands_down = True
        self.rows: list[federation_pb2.MountRow] = []
        self.unconfirmed_seconds = 0.0

    def send(
        self, requests: Iterator[federation_pb2.LinkRequest]
    ) -> Iterator[federation_pb2.LinkResponse]:
        hands_down = self.hands_down
        yield federation_pb2.LinkResponse(welcome=welcome("/a", 1))
        table = federation_pb2.MountTable(rows=self.rows)
        yield federation_pb2.LinkResponse(mount_table=table)  # first, as older versions do
        if hands_down:
            yield federation_pb2.LinkResponse(
                inherited=inherited("/one", "/a", 1), unconfirmed_seconds=self.unconfirmed_seconds
            )
        else:
            self.ended.wait(0.2)
        while hands_down and self.hands_down:
            self.ended.wait(0.1)
            yield federation_pb2.LinkResponse(
                heartbeat=federation_pb2.Heartbeat(), unconfirmed_seconds=self.unconfirmed_seconds
            )


@pytest.fixture
def parent() -> Iterator[tuple[Parent, str]]:
    with Parent() as made:
        yield made, made.address


@pytest.fixture(params=["sqlite", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a.sqlite'}"
    etcd: SharedEtcd = request.getfixturevalue("etcd_cluster")
    return etcd.address()


def child_of(address: str, store: str) -> Cluster:
    config = ServerConfig.quick(
        Path_.parse("/a"),
        cluster="a",
        store=store,
        listen="127.0.0.1:0",
        parent=(address,),
        limits=Limits(link_heartbeat_seconds=5.0),
    )
    cluster = Cluster.open(config)
    cluster.start()
    return cluster


def test_a_parent_that_only_welcomes_confirms_nothing(
    parent: tuple[Parent, str], tmp_path: Path
) -> None:
    output, address = parent
    cluster = child_of(address, f"sqlite:///{tmp_path / 'a.sqlite'}")
    try:
        eventually(lambda: cluster.link_status().linked)
        assert cluster.unconfirmed_seconds() is None
        output.hands_down = False
        eventually(lambda: output.links >= 3)
        # Longer than from one link to the next: were a welcome enough, it would never be.
        assert eventually(lambda: (cluster.unconfirmed_seconds() or 0.0) > 3)
        assert not cluster.link_status().linked
        kept = parent_state.parent_contact(cluster.replica.snapshot)
        assert kept is not None
        links = output.links
        eventually(lambda: output.links >= links + 2)
        assert parent_state.parent_contact(cluster.replica.snapshot) == kept, (
            "nor is it kept that it did"
        )
        output.hands_down = True
        assert eventually(lambda: cluster.unconfirmed_seconds() is None)
    finally:
        cluster.stop()


def test_a_parent_confirms_only_as_of_when_it_was_confirmed_itself(
    parent: tuple[Parent, str], tmp_path: Path
) -> None:
    output, address = parent
    output.unconfirmed_seconds = 1_000.0
    store = f"sqlite:///{tmp_path / 'a.sqlite'}"
    cluster = child_of(address, store)

    def stored_seconds() -> float:
        kept = parent_state.parent_contact(cluster.replica.snapshot)
        return -1.0 if kept is None or kept.linked else unix_ms() / 1000 - kept.at_ms / 1000

    def is_unconfirmed() -> bool:
        return 1_000 <= (cluster.unconfirmed_seconds() or 0.0) < 1_100

    try:
        assert eventually(lambda: cluster.link_status().linked)
        assert eventually(is_unconfirmed), "from the first message that brought everything"
        # For the other servers of the cluster, and for a restart.
        assert eventually(lambda: 1_000 <= stored_seconds() < 1_100)
        output.unconfirmed_seconds = 0.0
        assert eventually(lambda: cluster.unconfirmed_seconds() is None)
        output.unconfirmed_seconds = 1_000.0
        assert eventually(is_unconfirmed), "on the same link"
        assert eventually(lambda: 1_000 <= stored_seconds() < 1_100)
        output.unconfirmed_seconds = float("nan")
        assert eventually(lambda: cluster.unconfirmed_seconds() is None)
        assert output.links == 1
    finally:
        cluster.stop()


def test_a_referral_to_another_site_has_the_age_that_the_link_confirms(
    parent: tuple[Parent, str], tmp_path: Path
) -> None:
    output, address = parent
    output.rows = [
        federation_pb2.MountRow(
            mount="/m",
            cluster_id="kc-m",
            epoch=1,
            endpoints=["m:7420"],
            linked=True,
            confirmed=True,
        )
    ]
    cluster = child_of(address, f"sqlite:///{tmp_path / 'a.sqlite'}")

    def owner_time_ms() -> int:
        referral = cluster.federation.outside(Path_.parse("/m/orders"))
        return referral.owner_time_ms if isinstance(referral, Referral) else 0

    def is_direct() -> bool:
        referral = cluster.federation.outside(Path_.parse("/m/orders"))
        return isinstance(referral, Referral) and referral.direction is Direction.DIRECT

    try:
        assert eventually(lambda: cluster.replica.state is ReplicaState.SERVING and is_direct())
        first = owner_time_ms()
        # Heartbeats confirm the row, which is not stored again.
        assert eventually(lambda: owner_time_ms() > first)
    finally:
        cluster.stop()


def test_a_table_of_a_thousand_costs_no_link_and_comes_after_what_is_inherited(
    parent: tuple[Parent, str], store: str
) -> None:
    output, address = parent
    output.rows = [
        federation_pb2.MountRow(mount=f"/m{one}", cluster_id=f"kc-{one}", epoch=1)
        for one in range(1_000)
    ]
    cluster = child_of(address, store)
    try:
        eventually(lambda: cluster.link_status().linked, 60)
        assert eventually(
            lambda: len(list(parent_state.table_rows(cluster.replica.snapshot))) == 1_000, 60
        )
        assert inheritance.is_inherited_readable(cluster.replica.snapshot)
        assert output.links == 1
    finally:
        cluster.stop()
