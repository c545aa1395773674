"""Mount tables that are large, and children that report too much: only their own rows are lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kdir.v1 import entry_pb2, federation_pb2

from directory.federation.inheritance import read_inherited
from directory.server.cluster import Cluster
from directory.server.config import Limits, ServerConfig
from directory.store.replica import ReplicaState
from resolver.path import Path as Path_
from tests.conftest import SharedEtcd
from tests.support.federation import Federation, Server, eventually
from tests.support.hostile import HostileChild

CHILDREN = 20
MOUNTS = 1_000


def set_owner(server: Server, path: str, owner: str) -> None:
    server.entries(
        "UpdateEntry",
        path=path,
        entry=entry_pb2.Entry(policies={"owner": owner}),
        update_mask={"paths": ["policies.owner"]},
    )


def owner_at(server: Server, path: str) -> str:
    return str(server.resolve(path).outcome.resolution.effective.owner)


@pytest.fixture
def children(etcd_cluster: SharedEtcd, federation: Federation) -> Iterator[list[Cluster]]:
    """Yields clusters of this process, each on etcd, of a parent that mounts them and many more."""
    # A commit of more than three heartbeats costs a link, and twenty share a process here.
    root = federation.start("/", store=etcd_cluster.address(), limits={"link_heartbeat_seconds": 3})
    root.mkdir("/m")
    made = [
        Cluster.open(
            ServerConfig.quick(
                Path_.parse(f"/m/c{one}"),
                cluster=f"c{one}",
                store=etcd_cluster.address(),
                listen="127.0.0.1:0",
                parent=(root.address,),
                limits=Limits(link_heartbeat_seconds=3.0),
            )
        )
        for one in range(CHILDREN)
    ]
    mounts = {str(one.config.mount): one.cluster_id for one in made}
    mounts |= {f"/m/x{one}": f"kc-x{one}" for one in range(MOUNTS - len(mounts))}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda mount: root.mount_child(*mount), mounts.items()))
    for one in made:
        one.start()
    yield made
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Cluster.stop, made))


def test_a_federation_of_a_thousand_mounts_works_on_etcd(
    children: list[Cluster], federation: Federation
) -> None:
    root = federation["/"]

    def knows_all(child: Cluster) -> bool:
        is_serving = child.replica.state is ReplicaState.SERVING
        return is_serving and len(child.federation.view().rows()) == MOUNTS

    def inherits(child: Cluster, owner: str) -> bool:
        inherited = read_inherited(child.replica.snapshot)
        return inherited is not None and any(
            level.policies.owner == owner for level in inherited.message.levels
        )

    assert eventually(lambda: all(one.link_status().linked for one in children), 120)
    assert eventually(lambda: all(knows_all(one) for one in children), 120)
    set_owner(root, "/m", "platform")
    assert eventually(lambda: all(inherits(one, "platform") for one in children), 60)
    root.entries("DeleteEntry", path="/m/x7", kind=entry_pb2.ENTRY_KIND_MOUNT)
    root.mount_child("/m/y7", "kc-y7")
    new = Path_.parse("/m/y7")
    assert eventually(lambda: all(new in one.federation.view().above for one in children), 60)
    assert eventually(lambda: all(knows_all(one) for one in children), 60)
    assert eventually(lambda: all(one.link_status().linked for one in children), 60)
    assert eventually(lambda: all(one.unconfirmed_seconds() is None for one in children), 60)


def test_a_child_that_reports_too_much_costs_itself_rows_and_nobody_a_link(
    federation: Federation,
) -> None:
    calm: dict[str, Any] = {
        "limits": {"link_heartbeat_seconds": 2.0}
    }  # on a slow machine nobody is taken for silent
    root = federation.start("/", **calm)
    sibling = federation.join("/ny", "/", **calm)
    below = federation.join("/ny/deep", "/ny", **calm)
    sibling.mkdir("/ny/a")
    eventually(lambda: "/ny/deep" in root.mounted())
    root.mount_child("/la", "kc-hostile")
    hello = federation_pb2.Hello(cluster_id="kc-hostile", cluster="la", mount="/la")
    many = [
        federation_pb2.MountRow(mount=f"/la/{one}", cluster_id=f"kc-{one}", endpoints=["h:1"])
        for one in range(21_000)
    ]
    wrong = [
        federation_pb2.MountRow(mount=mount, cluster_id="kc-hostile", endpoints=["h:1"])
        for mount in ("no path", "/", "/ny", "/ny/deep", "/la", "/lax")
    ]
    child = HostileChild(root.address, hello, 0)
    call = child.report(
        federation_pb2.MountTable(rows=[*wrong, *many]),
        *[federation_pb2.MountTable(rows=many[:4_000], is_change=True, has_more=True)] * 5,
        federation_pb2.MountTable(rows=[], is_change=True),
    )
    try:
        assert eventually(lambda: "/la/1990" in root.mounted(), 60)
        mounted = root.mounted()
        assert len([mount for mount in mounted if mount.startswith("/la/")]) <= 2_000
        assert "/lax" not in mounted
        assert eventually(lambda: "/la/1990" in sibling.mounted(), 60)
        addresses = {row.mount: list(row.endpoints) for row in root.mounts().rows}
        assert addresses["/ny"] == [sibling.address]
        assert addresses["/ny/deep"] == [below.address]
        set_owner(root, "/", "platform")  # what is inherited comes as before
        assert eventually(lambda: owner_at(sibling, "/ny/a") == "platform")
        assert call.is_active(), "its own link stands"
        for one in (sibling, below):
            assert one.status().parent.linked
            assert "the link to the parent" not in one.process.log.read_text()
    finally:
        call.cancel()
        child.close()
