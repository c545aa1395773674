"""Grants are part of what is backed up, restored and verified."""

from __future__ import annotations

from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant, Operation, Permission
from directory.maintenance.backup_stream import rows_of
from directory.maintenance.restore import DirectoryPaths, EntryCounts, losses
from directory.maintenance.verify_store import StoreComparison
from directory.namespace.command import AddGrants, CreateDirectory, CreateTopic
from directory.namespace.entry import EntryGrants, Kind
from directory.namespace.keys import grants_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from resolver.path import Path
from tests.support.trees import Cluster, path
from tests.unit.access.conftest import ADMIN, House
from tests.unit.access.test_services import Make

STORES = ("sqlite", "etcd")

READ = Grant("User:a", "*", Operation.READ, Permission.ALLOW)


def made() -> Cluster:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=path("/la/a")), CreateTopic(path=path("/la/a/t")))
    cluster.do(AddGrants(path=path("/la/a"), grants=(READ,)))
    cluster.do(AddGrants(path=path("/la/a/t"), grants=(READ,)))
    return cluster


def differences(cluster: Cluster, snapshot: Snapshot) -> list[tuple[str, str, str]]:
    rows = iter(sorted(cluster.rows.under(b"").items()))
    found = StoreComparison(snapshot, rows, cluster.mount, lambda: None).differences()
    return [(one.compared.value, one.path_or_key, one.field) for one in found]


def test_verify_names_grants_without_an_entry_and_those_that_the_replica_lacks() -> None:
    cluster = made()
    assert differences(cluster, cluster.snapshot) == []
    parent = cluster.snapshot.find_directory(("a",))
    assert parent is not None
    stray = Put(
        grants_key(parent, Kind.TOPIC, "gone"),
        cluster.codec.encode_grants(EntryGrants(grants=(READ,))),
    )
    before = cluster.snapshot
    cluster.rows.commit((), [stray])
    assert differences(cluster, before) == [("store-replica", "/la/a/gone", "row")]
    assert differences(cluster, cluster.loaded()) == [("store", "/la/a/gone", "grants")]
    odd = Put(grants_key(parent, Kind.TOPIC, "t"), b"\xff")
    cluster.rows.commit((), [odd])
    assert ("store", "/la/a/t", "value") in differences(cluster, cluster.loaded())


def test_restore_says_whose_grants_are_lost() -> None:
    cluster = made()
    now = sorted(cluster.rows.under(b"").items())
    topic_counts, paths = EntryCounts(), DirectoryPaths()
    for key, value in now:
        topic_counts.add(key, value)
        paths.learn(key, value)
    assert "2 entries' grants" in str(topic_counts)
    found = losses(now, [row for row in now if not row[0].startswith(b"g/")], paths)
    assert (str(found.gone), sorted(found.examples)) == (
        "2 entries' grants",
        ["a/t: grants lost", "a: grants lost"],
    )


def test_a_backup_holds_them(house: Make) -> None:
    la: House = house()
    la.mkdir("/la/a")
    la.grant("bob", "read", "/la/a")
    rows = [row for page in rows_of(la.cluster.store.load()) for row in page]
    restored = Snapshot.load(la.cluster.replica.snapshot.codec, "new", 1, [rows])
    assert [str(one) for one in restored.grants.grants_at(EntryPlace(("a",)))] == [
        "ALLOW User:bob READ TOPIC from *"
    ]
    assert la.outcome("bob", "/la/a") == "resolution"
    assert la.outcome(ADMIN, str(Path(("la",)))) == "resolution"
