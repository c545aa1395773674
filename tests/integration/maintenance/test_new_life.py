"""A new life that is begun by hand: for an etcd put back under its old id while no server ran.

Nothing shows such a restore to a server that starts afterwards: etcd's id, the store's identity and
the revisions that it sees are those of before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from deploy.local.etcd import EtcdCluster
from directory.namespace.keys import LEVEL
from directory.store.addresses import find_identity, open_store
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.store import EtcdStore
from resolver.errors import TokenExpired
from tests.conftest import SharedEtcd
from tests.integration.maintenance.conftest import Addresses, Kdir
from tests.integration.maintenance.cutting import fill, held, some_rows
from tests.support.federation import Federation, eventually


def snapshot(address: str, file: Path) -> Path:
    """Writes a snapshot as ``etcdctl snapshot save`` does."""
    with (
        closing(EtcdStore.open(address, "la")) as store,
        store.connection.dial(0) as channel,
        file.open("wb") as out,
    ):
        for part in etcdrpc.MaintenanceStub(channel).Snapshot(etcdrpc.SnapshotRequest()):
            out.write(part.blob)
    return file


def test_S11_a_restore_that_nobody_noticed_gets_a_new_incarnation_by_hand(
    etcd_clusters: Callable[..., EtcdCluster],
    federation: Federation,
    kdir: Kdir,
    tmp_path: Path,
) -> None:
    with etcd_clusters(members=1) as etcd:
        address = SharedEtcd(tuple(etcd.endpoints)).address()
        empty = snapshot(address, tmp_path / "empty.db")
        etcd.restore(empty, "token")
        la = federation.start("/la", store=address)
        kept = la.mkdir("/la/kept").token
        file = snapshot(address, tmp_path / "kept.db")
        lost = la.mkdir("/la/lost").token
        la.stop()

        etcd.restore(file, "token")  # not a new one, as the manual says
        la.start()
        eventually(lambda: la.outcome("/la/kept") == "resolution")
        assert la.outcome("/la/lost") == "absent"
        incarnation = la.status().authority.incarnation
        for number in range(5):
            la.mkdir(f"/la/new{number}")
        # So far other changes are taken for those that the caller had made.
        assert la.resolve("/la/kept", token=lost).outcome.HasField("resolution")

        done = kdir("restore", "--new-life", "--config", str(la.config))
        assert "starts a new incarnation" in done.stdout
        eventually(lambda: la.status().authority.incarnation != incarnation)
        assert la.outcome("/la/new4") == "resolution"
        assert la.outcome("/la/lost") == "absent"
        for token in (kept, lost):
            with pytest.raises(TokenExpired):
                la.resolve("/la/kept", token=token)
        after = eventually(lambda: la.mkdir("/la/after")).token
        assert la.resolve("/la/after", token=after).outcome.HasField("resolution")


def test_a_new_incarnation_is_begun_of_any_store_that_is_not_on_its_way(
    new_address: Addresses, kdir: Kdir
) -> None:
    address, rows = new_address(), [(LEVEL, b"1"), *some_rows(10)]
    arguments = ("restore", "--new-life", "--store", address)
    for plan in ((), ("--plan",)):
        assert "there is no store" in kdir(*arguments, *plan, code=2).stderr
    fill(address, rows)
    before = find_identity(address)
    assert before is not None
    kdir(*arguments, "--plan")
    assert find_identity(address) == before
    assert "--replace" in kdir(*arguments, "--replace", code=2).stderr
    kdir(*arguments)
    after = find_identity(address)
    assert after is not None
    assert (after.cluster_id, after.sealed) == (before.cluster_id, "")
    assert after.incarnation != before.incarnation
    assert held(address) == dict(rows)
    with closing(open_store(address, "la")) as store:
        # An earlier kdir was interrupted: the same call finishes it.
        store.seal("beginning a new life, as one that was put back by other means")
    kdir(*arguments)
    finished = find_identity(address)
    assert finished is not None
    assert finished.sealed == ""
    assert finished.incarnation != after.incarnation
    with closing(open_store(address, "la")) as store:
        store.seal("being migrated to elsewhere")
    for plan in ((), ("--plan",)):
        assert "is sealed" in kdir(*arguments, *plan, code=5).stderr
