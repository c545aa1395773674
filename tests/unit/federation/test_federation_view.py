"""The view of the mounts: made of what a commit touched, and equal to one made of everything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import federation_pb2

from directory.federation.child_state import below_writes, child_writes, link_write
from directory.federation.federation_state import FederationState, unix_ms
from directory.federation.parent_state import TableRow
from directory.namespace.command import (
    Command,
    CreateDirectory,
    CreateMount,
    DeleteEntry,
    MoveEntry,
)
from directory.namespace.entry import Kind, Policies
from directory.namespace.keys import child_key
from directory.namespace.sorted_map import SortedMap
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from resolver.path import Path as Path_
from tests.support.federation import eventually
from tests.support.trees import path

CHILDREN = 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yields a cluster that mounts children below ``/m``."""
    made = Cluster.open(
        ServerConfig.quick(path("/"), store=f"sqlite:///{tmp_path / 'root.sqlite'}")
    )
    made.start()
    try:
        # A write waits for what the subscribers know, which is a moment after the tree is served.
        eventually(lambda: made.replica.reported_revision >= 0)
        commit(made, CreateDirectory(path=path("/m")))
        for number in range(CHILDREN):
            commit(made, CreateMount(path=path(f"/m/c{number}"), cluster_id=f"kc-{number}"))
        yield made
    finally:
        made.stop()


def commit(cluster: Cluster, command: Command) -> None:
    cluster.writer.commit_command(command)


def hello(number: int, port: int) -> federation_pb2.Hello:
    return federation_pb2.Hello(
        cluster_id=f"kc-{number}",
        cluster=f"c{number}",
        mount=f"/m/c{number}",
        endpoints=[f"h:{port}"],
    )


def report(cluster: Cluster, number: int, port: int) -> None:
    """Keeps what a child says of itself, and who holds its link."""
    writes = child_writes(cluster.replica.snapshot, hello(number, port), unix_ms())
    cluster.writer.put_facts((*writes, link_write(f"kc-{number}", "server-a", port)))


def report_below(cluster: Cluster, number: int, names: range) -> None:
    rows = [
        TableRow(federation_pb2.MountRow(mount=f"/m/c{number}/{one}", cluster_id=f"kc-{one}"), 0)
        for one in names
    ]
    snapshot = cluster.replica.snapshot
    if writes := below_writes(snapshot, f"kc-{number}", rows, unix_ms()):
        cluster.writer.put_facts(writes)


def shown(federation: FederationState) -> dict[Path_, bytes]:
    view = federation.view()
    rows = {
        mount: one.row.SerializeToString(deterministic=True) for mount, one in view.rows().items()
    }
    assert set(view.reporters) == set(view.below)
    return rows


def test_a_view_made_of_what_was_touched_is_that_of_everything(cluster: Cluster) -> None:
    chance = random.Random(12)
    for step in range(150):
        number = chance.randrange(CHILDREN)
        mounts = {one.cluster_id: mount for mount, one in cluster.replica.snapshot.mounts()}
        known = mounts.get(f"kc-{number}")
        match chance.randrange(5):
            case 0 if known is not None:
                target = Path_(known)
                commit(cluster, DeleteEntry(path=target, kind=Kind.MOUNT))
            case 0:
                commit(cluster, CreateMount(path=path(f"/m/c{number}"), cluster_id=f"kc-{number}"))
            case 1 if known is not None:
                moved = path(f"/m/moved{step}")
                commit(cluster, MoveEntry(path=Path_(known), new_path=moved, kind=Kind.MOUNT))
            case 2:
                report_below(cluster, number, range(chance.randrange(4)))
            case _:
                report(cluster, number, chance.randrange(1, 9))
        fresh = FederationState(cluster.replica, path("/"), ())
        assert shown(cluster.federation) == shown(fresh)
        assert cluster.federation.view().mounts == fresh.view().mounts


def test_what_one_child_reports_costs_no_look_at_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[bytes] = []
    get = SortedMap.get

    def counted(facts: SortedMap[bytes, bytes], key: bytes, default: Any = None) -> Any:
        looked_at.append(key)
        return get(facts, key, default)

    monkeypatch.setattr(SortedMap, "get", counted)
    report(cluster, 7, 1)
    assert list(cluster.federation.view().own[path("/m/c7")].row.endpoints) == ["h:1"]
    every = {child_key(f"kc-{one}") for one in range(CHILDREN)}
    assert every & set(looked_at) == {child_key("kc-7")}


def test_a_new_mount_and_a_directory_beside_change_nothing_that_others_inherit(
    cluster: Cluster,
) -> None:
    federation = cluster.federation
    before = federation.view().handed_sequence
    commit(cluster, CreateMount(path=path("/m/new"), cluster_id="kc-new"))
    assert path("/m/new") in federation.view().own
    commit(cluster, CreateDirectory(path=path("/m/beside"), policies=Policies(owner="a")))
    assert federation.view().handed_sequence == before
    commit(cluster, MoveEntry(path=path("/m/new"), new_path=path("/m/other"), kind=Kind.MOUNT))
    assert federation.view().handed_sequence > before
    assert path("/m/new") not in federation.view().own
