"""S11: an etcd that was put back to an earlier state under running servers."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from deploy.local.etcd import EtcdCluster
from deploy.local.ports import free_port
from directory.maintenance.backup_stream import backup_of
from directory.maintenance.verify_copies import Summary, compare_rows
from directory.namespace.entry import Directory, Kind
from directory.namespace.keys import entry_key
from directory.store.addresses import find_identity
from directory.store.base import (
    Conflict,
    HistoryCompacted,
    IncompatibleStore,
    Put,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
)
from directory.store.etcd import open_or_create
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.store import EtcdStore
from directory.store.replica import Replica
from directory.wire.entry_codec import ProtoCodec
from resolver.path import ROOT
from tests.conformance.store.reading import everything, put, put_many
from tests.conftest import SharedEtcd
from tests.support.federation import eventually

CODEC = ProtoCodec()


@pytest.fixture
def etcd(etcd_clusters: Callable[..., EtcdCluster]) -> Iterator[EtcdCluster]:
    """Yields one member, which is enough: a restore is the same on all."""
    with etcd_clusters(members=1) as cluster:
        yield cluster


def address_in(cluster: EtcdCluster) -> str:
    return SharedEtcd(tuple(cluster.endpoints)).address()


def snapshot(store: EtcdStore, file: Path) -> Path:
    with store.connection.dial(0) as channel, file.open("wb") as out:
        for part in etcdrpc.MaintenanceStub(channel).Snapshot(etcdrpc.SnapshotRequest()):
            out.write(part.blob)
    return file


def etcd_cluster_id(store: EtcdStore) -> int:
    return store.connection.cluster_id_at(0, 10)


def directory(name: str, entry_id: int) -> tuple[bytes, bytes]:
    return entry_key(1, Kind.DIRECTORY, name), CODEC.encode(Directory(entry_id=entry_id))


def names(replica: Replica) -> set[str]:
    return set(replica.snapshot.root.containers)


@pytest.mark.parametrize("token", ["first", "another"])
def test_S11_running_servers_notice_a_restore_and_agree_on_one_new_incarnation(
    etcd: EtcdCluster, tmp_path: Path, token: str
) -> None:
    """Also where etcd's id of the cluster stays, since the operator used the token of before."""
    empty = tmp_path / "empty.db"
    address = address_in(etcd)
    with closing(EtcdStore.open(address, "la")) as store:
        snapshot(store, empty)
    etcd.restore(empty, "first")
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(EtcdStore.open(address, "la"))) for _ in range(2)]
        before = etcd_cluster_id(stores[0])
        put(stores[0], directory("kept", 5))
        file = snapshot(stores[0], tmp_path / "kept.db")
        lost = put(stores[0], directory("lost", 6))
        replicas = [Replica(store, CODEC) for store in stores]
        for replica in replicas:
            replica.start()
            stack.callback(replica.stop)
            replica.wait_for(lost.revision, 30)
        incarnation = stores[0].identity
        seen = [replica.snapshot.revision for replica in replicas]

        etcd.restore(file, token)
        assert (etcd_cluster_id(stores[0]) == before) is (token == "first")
        eventually(lambda: all(names(replica) == {"kept"} for replica in replicas))
        incarnations = {replica.snapshot.incarnation for replica in replicas}
        assert len(incarnations) == 1
        assert incarnations != {incarnation.incarnation}
        assert {store.identity.incarnation for store in stores} == incarnations
        assert stores[0].identity.cluster_id == incarnation.cluster_id
        for replica, revision in zip(replicas, seen, strict=True):
            assert replica.snapshot.revision > revision
        # It is new once: what comes now is one history again.
        done = put(stores[1], directory("later", 7))
        for replica in replicas:
            assert set(replica.wait_for(done.revision, 30).root.containers) == {"kept", "later"}
        with closing(EtcdStore.open(address, "la")) as fresh:
            assert {fresh.identity.incarnation} == incarnations


def test_S11_a_commit_while_the_identity_is_read_is_no_restore(
    etcd_cluster: SharedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is read, then this process commits, and only then is the head compared."""
    with closing(EtcdStore.open(etcd_cluster.address(), "la")) as store:
        put(store, (b"k", b"0"))
        incarnation = store.identity
        read, commits = store.connection.range, iter(range(3))

        def range_then_commit(request: Any, timeout_seconds: float) -> Any:
            answer = read(request, timeout_seconds)
            for number in commits:
                put(store, (b"k", b"%d" % number))
                break
            return answer

        monkeypatch.setattr(store.connection, "range", range_then_commit)
        for _ in range(5):
            assert store.refresh_identity() == incarnation


def test_S11_no_incarnation_begins_while_a_store_of_three_members_is_written_and_read_whole(
    etcd_cluster: SharedEtcd,
) -> None:
    """As ``kdir verify`` and ``kdir backup`` read it, in a server whose clients write."""
    address = etcd_cluster.address()
    with (
        closing(EtcdStore.open(address, "la")) as store,
        closing(EtcdStore.open(address, "la")) as other,
        ThreadPoolExecutor(3) as threads,
    ):
        incarnation = store.identity
        replica = Replica(store, CODEC)
        replica.start()
        stop = threading.Event()

        def write(number: int, through: EtcdStore) -> int:
            count = 0
            while not stop.is_set():
                put(through, (b"x/%d" % number, b"%d" % count))
                count += 1
            return count

        try:
            replica.wait_for(0, 30)
            writers = [threads.submit(write, *one) for one in enumerate((store, store, other))]
            for _ in range(60):
                messages = list(backup_of(store))
                assert messages[-1].HasField("trailer")
                summary = Summary()
                list(compare_rows(store, replica, ROOT, lambda: None, summary))
                assert not [one for one in summary.troubles if "incarnation" in one]
                assert store.identity == incarnation
        finally:
            stop.set()
            replica.stop()
        assert all(writer.result() > 10 for writer in writers)
        assert other.refresh_identity() == store.refresh_identity() == incarnation
        assert replica.reloads == 0


def test_S11_other_commits_at_the_revisions_that_were_seen_are_noticed(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """The restored etcd has counted on, past all that this process knows."""
    address = address_in(etcd)
    with closing(EtcdStore.open(address, "la")) as store:
        file = snapshot(store, tmp_path / "empty.db")
    etcd.restore(file, "same")
    with closing(EtcdStore.open(address, "la")) as store:
        file = snapshot(store, tmp_path / "later.db")
        seen = put(store, (b"k", b"of before"))
        incarnation = store.identity
        etcd.restore(file, "same")
        with closing(EtcdStore.open(address, "la")) as other:  # remembers nothing, notices nothing
            assert other.identity == incarnation
            put_many(other, ((b"%d" % n, b"of after") for n in range(1_000)))
            assert other.load().revision > seen.revision
            assert store.refresh_identity().incarnation != incarnation.incarnation
            with pytest.raises(HistoryCompacted):
                store.watch(seen.revision, seen.commit_id)
            other.refresh_identity()
            assert other.identity == store.identity


def test_S11_a_write_that_meets_a_restored_etcd_is_of_unknown_effect_and_begins_the_new_incarnation(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    address = address_in(etcd)
    with closing(EtcdStore.open(address, "la")) as store:
        incarnation = store.identity
        file = snapshot(store, tmp_path / "kept.db")
        lost = put(store, (b"lost", b""), (b"d/lost", b""))
        etcd.restore(file, "another")
        with pytest.raises(StoreUnreachable, match="was restored in this moment"):
            put(store, (b"k", b"v"))
        assert store.identity.incarnation != incarnation.incarnation
        assert everything(store) == {b"k": b"v"}
        # What was decided on the tree of before is not carried out on this one.
        guard = UnchangedSince(b"d/", lost.revision)
        assert isinstance(store.commit(Transaction((guard,), (Put(b"x", b""),))), Conflict)
        put(store, (b"k", b"w"))


def test_S11_who_held_a_role_or_a_key_before_a_restore_does_not_after_it(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    address = address_in(etcd)
    with closing(EtcdStore.open(address, "la")) as store:
        file = snapshot(store, tmp_path / "kept.db")
        leadership = store.elect("publisher", "one")
        announcement = store.create_ephemeral(b"m/one", b"v")
        assert leadership is not None
        assert not isinstance(announcement, Conflict)
        assert leadership.held()
        etcd.restore(file, "another")
        store.refresh_identity()
        assert not leadership.held()
        assert not announcement.is_alive()
        late = store.commit(Transaction((leadership.guard,), (Put(b"x", b""),)))
        assert isinstance(late, Conflict)
        again = store.elect("publisher", "one")
        assert again is not None
        assert again.held()


def test_members_of_two_etcds_in_one_address_are_refused(
    etcd: EtcdCluster,
    etcd_clusters: Callable[..., EtcdCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would seem to have been restored from the other, for ever."""
    with etcd_clusters(members=1) as other:
        prefix = address_in(etcd).rpartition("/")[2]
        with closing(EtcdStore.open(f"etcd://{etcd.endpoints[0]}/{prefix}", "la")) as store:
            put(store, (b"k", b"v"))
            file = snapshot(store, tmp_path / "copy.db")
            incarnation = store.identity
        other.restore(file, "another")
        both = ",".join([*etcd.endpoints, *other.endpoints])
        monkeypatch.setattr(random, "randrange", lambda most: most - 1)  # begins with the copy
        monkeypatch.setattr(open_or_create, "_MEMBER_SECONDS", 20.0)  # a busy machine's are slow
        with pytest.raises(IncompatibleStore, match="are of different etcd clusters"):
            EtcdStore.open(f"etcd://{both}/{prefix}", "la")
        with closing(EtcdStore.open(f"etcd://{etcd.endpoints[0]}/{prefix}", "la")) as store:
            assert store.identity == incarnation


@pytest.mark.parametrize("begins_with", ["the store's", "the empty one"])
def test_an_empty_etcd_beside_that_of_the_store_is_refused_before_anything_is_created(
    etcd: EtcdCluster,
    etcd_clusters: Callable[..., EtcdCluster],
    monkeypatch: pytest.MonkeyPatch,
    begins_with: str,
) -> None:
    """A second, empty cluster would answer ABSENT for all that exists."""
    monkeypatch.setattr(open_or_create, "_MEMBER_SECONDS", 20.0)  # a busy machine's are slow
    prefix = address_in(etcd).rpartition("/")[2]
    with etcd_clusters(members=1) as other:
        here, there = etcd.endpoints[0], other.endpoints[0]
        with closing(EtcdStore.open(f"etcd://{here}/{prefix}", "la")):
            pass
        number = 0 if begins_with == "the store's" else 1
        monkeypatch.setattr(random, "randrange", lambda _: number)
        both = f"etcd://{here},{there}/{prefix}"
        for ask in (find_identity, lambda address: EtcdStore.open(address, "la")):
            with pytest.raises(IncompatibleStore, match="are of different etcd clusters"):
                ask(both)
        assert find_identity(f"etcd://{there}/{prefix}") is None


def test_a_store_is_not_created_while_a_member_that_may_hold_it_does_not_answer(
    etcd: EtcdCluster,
) -> None:
    """One that exists is opened without that member."""
    here, prefix = etcd.endpoints[0], address_in(etcd).rpartition("/")[2]
    with_another = f"etcd://{here},127.0.0.1:{free_port()}/{prefix}"
    with pytest.raises(StoreUnreachable, match=r"there is no store, and \S+ did not answer"):
        EtcdStore.open(with_another, "la")
    assert find_identity(with_another) is None
    with closing(EtcdStore.open(f"etcd://{here}/{prefix}", "la")) as store:
        put(store, (b"k", b"v"))
    with closing(EtcdStore.open(with_another, "la")) as store:
        assert everything(store)[b"k"] == b"v"
