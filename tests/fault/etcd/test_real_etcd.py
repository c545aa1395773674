"""What a replica, and the server around it, do while a real etcd is killed, paused and cut off."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local.etcd import EtcdCluster, EtcdMember
from directory.api.rpc.call_context import Call
from directory.api.token_waits import choose_snapshot
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import KAFKA, entry_key, kafka_key
from directory.store.base import (
    Committed,
    CommittedWrites,
    Delete,
    Put,
    Store,
    StoreUnreachable,
    Transaction,
    Write,
)
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.store import EtcdStore
from directory.store.etcd.watch import EtcdWatch
from directory.store.etcd.watch_state import Follower
from directory.store.replica import AppliedCommit, Replica, ReplicaState
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import StoreUnavailable, Unreachable
from tests.conftest import SharedEtcd
from tests.fault.etcd.chaos import fresh_facts
from tests.fault.etcd.fake_etcd import FakeMembers
from tests.fault.etcd.links import Links
from tests.support.federation import eventually
from tests.unit.writing.bench import Bench

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

Clusters = Callable[..., EtcdCluster]


def open_at(endpoints: list[str], cleanup: ExitStack, prefix: str = "la") -> EtcdStore:
    store = EtcdStore.open(f"etcd://{','.join(endpoints)}/{prefix}", "la")
    cleanup.callback(store.close)
    return store


def following(store: Store, cleanup: ExitStack) -> Replica:
    replica = Replica(store, ProtoCodec())
    replica.start()
    cleanup.callback(replica.stop)
    replica.wait_for(0, 30)
    return replica


def put(store: Store, *pairs: tuple[str, bytes]) -> int:
    """Commits until it is known to be done."""
    writes = tuple(Put(kafka_key(name), value) for name, value in pairs)
    return commit(store, *writes)


def commit(store: Store, *writes: Write) -> int:
    deadline = time.monotonic() + 60
    while True:
        try:
            done = store.commit(Transaction((), writes))
        except StoreUnreachable:
            assert time.monotonic() < deadline
            continue
        assert isinstance(done, Committed)
        return done.revision


def reaches(replica: Replica, revision: int) -> None:
    eventually(lambda: replica.snapshot.revision >= revision, 60)


def equals_the_store(replica: Replica, store: Store) -> bool:
    revision, facts = fresh_facts(store)
    snapshot = replica.snapshot
    return snapshot.revision == revision and dict(snapshot.facts(KAFKA)) == facts


def member_followed(replica: Replica, cluster: EtcdCluster) -> EtcdMember:
    """Returns the member that the replica's watch is on."""
    eventually(lambda: _member_followed(replica, cluster) is not None)
    found = _member_followed(replica, cluster)
    assert found is not None
    return found


def _member_followed(replica: Replica, cluster: EtcdCluster) -> EtcdMember | None:
    watch: Any = replica.watch
    endpoint = "" if watch is None else watch.watch.followed_endpoint
    return next((one for one in cluster.members if one.endpoint == endpoint), None)


def others(cluster: EtcdCluster, member: EtcdMember) -> list[EtcdMember]:
    return [one for one in cluster.members if one is not member]


@contextmanager
def writing(store: Store, names: str, tally: list[int]) -> Iterator[None]:
    """Runs a writer in the background, which records the acknowledged writes."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = kafka_key(f"{names}{number % 17}")
            write: Write = Delete(key) if number % 5 == 0 else Put(key, b"%d" % number)
            try:
                done = store.commit(Transaction((), (write,)), 2.0)
            except StoreUnreachable:
                continue
            assert isinstance(done, Committed)
            tally.append(done.revision)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("members", "rounds"), [(1, 5), (3, 5)])
def test_S1_killed_again_and_again_under_two_writers(
    etcd_clusters: Clusters, cleanup: ExitStack, members: int, rounds: int
) -> None:
    with etcd_clusters(members=members) as cluster:
        stores = [open_at(cluster.endpoints, cleanup) for _ in range(3)]
        replica = following(stores[0], cleanup)
        steps: list[AppliedCommit] = []
        replica.subscribe(steps.append)
        tally: list[int] = []
        with writing(stores[1], "a", tally), writing(stores[2], "b", tally):
            for _ in range(rounds):
                acknowledged = len(tally)
                eventually(lambda n=acknowledged: len(tally) > n + 5, 60)  # type: ignore[misc]
                victim = member_followed(replica, cluster)
                victim.kill()
                time.sleep(0.3)
                victim.start()
                victim.await_ready()
                reaches(replica, put(stores[1], ("round", b"")))
        eventually(lambda: equals_the_store(replica, stores[1]), 60)
        revisions = [step.revision for step in steps]
        assert revisions == sorted(set(revisions))
        assert set(tally) <= set(revisions)
        assert replica.reloads == 0
        assert replica.watch_restarts >= rounds
        cleanup.close()


def test_S2_compacted_while_it_was_cut_off_it_loads_again_and_swaps_whole(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters(members=1) as cluster, Links(*cluster.endpoints) as links:
        far = open_at(links.endpoints, cleanup)
        near = open_at(cluster.endpoints, cleanup)
        put(near, ("gone", b""), *((f"old{n}", b"") for n in range(50)))
        replica = following(far, cleanup)
        seen: set[int] = set()
        steps: list[AppliedCommit] = []
        replica.subscribe(steps.append)
        replica.subscribe(lambda _: seen.add(len(dict(replica.snapshot.facts(KAFKA)))))
        links.links[0].cut()
        commit(near, Delete(kafka_key("gone")), *(Put(kafka_key(f"new{n}"), b"") for n in range(9)))
        last = put(near, ("later", b""))
        near.connection.compact(last, 10)
        links.links[0].heal()
        reaches(replica, last)
        assert replica.reloads == 1
        assert [step.reloaded for step in steps] == [True]
        assert replica.snapshot.fact(kafka_key("gone")) is None
        assert equals_the_store(replica, near)
        assert seen == {60}
        reaches(replica, put(near, ("followed", b"")))
        assert replica.reloads == 1


def test_S2_what_others_compacted_is_no_reason_to_load_again(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters(members=1) as cluster, Links(*cluster.endpoints) as links:
        replica = following(open_at(links.endpoints, cleanup), cleanup)
        near = open_at(cluster.endpoints, cleanup)
        other = open_at(cluster.endpoints, cleanup, prefix="other")
        reaches(replica, put(near, ("mine", b"")))
        links.links[0].cut()
        last = max(put(other, ("theirs", b"%d" % number)) for number in range(20))
        other.connection.compact(last, 10)
        links.links[0].heal()
        eventually(lambda: replica.watch_restarts > 0, 30)
        reaches(replica, put(near, ("mine", b"again")))
        assert replica.reloads == 0
        assert equals_the_store(replica, near)


def test_S3_the_member_that_is_followed_is_paused(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters() as cluster:
        store = open_at(cluster.endpoints, cleanup)
        replica = following(store, cleanup)
        for _ in range(2):
            paused = member_followed(replica, cluster)
            paused.pause()
            reaches(replica, put(store, ("k", b"while paused")))
            assert member_followed(replica, cluster) is not paused
            paused.resume()
        eventually(lambda: replica.state is ReplicaState.SERVING)
        assert replica.reloads == 0


def test_the_newest_revision_from_any_member_includes_every_acknowledged_commit(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    """One that was paused has not applied it yet, and answers only once its quorum says so."""
    with etcd_clusters() as cluster:
        store = open_at(cluster.endpoints, cleanup)
        members = [open_at([endpoint], cleanup) for endpoint in cluster.endpoints]
        for paused, asked in zip(cluster.members, members, strict=True):
            paused.pause()
            revision = put(store, ("k", b"while paused"))
            with pytest.raises(StoreUnreachable):
                asked.newest_revision(0.5)
            paused.resume()
            for one in (asked, *members):
                assert one.newest_revision(60) >= revision


def test_S3_S4_all_of_it_is_paused_then_stale_with_an_age_and_back(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters() as cluster:
        store = open_at(cluster.endpoints, cleanup)
        bench = cleanup.enter_context(Bench(store))
        bench.create("/la/kept")
        for member in cluster.members:
            member.pause()
        replica = bench.replica
        eventually(lambda: replica.state is ReplicaState.STALE, 30)
        call = Call(deadline=time.monotonic() + 600)
        before = replica.age_seconds
        assert choose_snapshot(replica, "la", 3600, "", call).topic_count == 1
        eventually(lambda: replica.age_seconds > before + 0.5)
        with pytest.raises(Unreachable, match="the store has been away"):
            choose_snapshot(replica, "la", 0.1, "", call)
        begin = time.thread_time()
        with pytest.raises(StoreUnavailable):
            bench.create("/la/refused")
        assert time.thread_time() - begin < 1.0
        for member in cluster.members:
            member.resume()
        eventually(lambda: replica.state is ReplicaState.SERVING, 60)
        assert replica.age_seconds == 0.0
        assert choose_snapshot(replica, "la", 0.1, "", call).topic_count == 1
        bench.create("/la/taken")
        assert replica.snapshot.topic_count == 2
        assert replica.reloads == 0


def share_of_a_busy_loop() -> float:
    """Returns the processor time of this process, against that of one that only runs in circles, in
    the same while. Who tries again without a pause comes to 1 or more, whatever else the machine
    does.
    """
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:

            def busy_seconds() -> float:
                fields = Path(f"/proc/{busy.pid}/stat").read_text().rpartition(") ")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

            eventually(lambda: busy_seconds() > 0.1, 60)  # it has begun
            own, other = time.process_time(), busy_seconds()
            eventually(lambda: busy_seconds() >= other + 2, 120)
            return (time.process_time() - own) / (busy_seconds() - other)
        finally:
            busy.kill()


def test_who_tries_again_without_a_pause_is_found_out() -> None:
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert share_of_a_busy_loop() > 0.5
    finally:
        stop.set()
        thread.join()


def test_S4_away_for_good_costs_little_and_ends_soon(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters() as cluster:
        store = open_at(cluster.endpoints, cleanup)
        replica = following(store, cleanup)
        threads = threading.active_count()
        for member in cluster.members:
            member.kill()
        eventually(lambda: replica.state is ReplicaState.STALE, 30)
        eventually(lambda: share_of_a_busy_loop() < 0.25, 120)
        eventually(lambda: threading.active_count() <= threads + 3)
        assert replica.trouble
        replica.stop()
        eventually(lambda: not any(one.name == "etcd-watch" for one in threading.enumerate()))


def test_S6_cut_off_from_its_quorum_then_another_endpoint(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters() as cluster:
        store = open_at(cluster.endpoints, cleanup)
        replica = following(store, cleanup)
        alone = member_followed(replica, cluster)
        quorum = others(cluster, alone)
        for member in quorum:
            member.pause()
        # It is there, its connections are fine, and it knows nothing: no reason to be believed.
        eventually(lambda: replica.state is ReplicaState.STALE, 30)
        assert alone.process.running
        alone.pause()
        for member in quorum:
            member.resume()
        reaches(replica, put(store, ("k", b"by the others")))
        assert member_followed(replica, cluster) in quorum
        alone.resume()
        assert replica.reloads == 0


def raw_watch(
    etcd: EtcdStore, members: FakeMembers, after: int, commit_id: str, cleanup: ExitStack
) -> EtcdWatch:
    keyspace = etcd._keyspace
    follower = Follower(after, commit_id, etcd.identity, keyspace.note)
    watch = EtcdWatch(members, keyspace.layout, follower)
    cleanup.callback(watch.close)
    return watch


@pytest.mark.parametrize("most_bytes", [4 * 1024 * 1024, 64 * 1024 * 1024])
def test_S8_a_history_of_more_than_6_MB_is_caught_up(
    etcd_cluster: SharedEtcd, cleanup: ExitStack, most_bytes: int
) -> None:
    store = EtcdStore.open(etcd_cluster.address(), "la")
    cleanup.callback(store.close)
    begin = store.load()
    committed: dict[int, tuple[Write, ...]] = {}
    for number in range(8):
        large = tuple(Put(b"k/large%d" % n, b"%d" % number * 300_000) for n in range(3))
        committed[commit(store, *large)] = large
        small = tuple(Put(b"k/small%d" % n, b"%d" % number * 10) for n in range(50))
        committed[commit(store, *small)] = small
    members = FakeMembers(*etcd_cluster.endpoints)
    members.most_bytes = most_bytes
    watch = raw_watch(store, members, begin.revision, begin.commit_id, cleanup)
    seen: list[CommittedWrites] = []
    deadline = time.monotonic() + 60
    while len(seen) < len(committed):
        assert time.monotonic() < deadline
        seen += watch.next(1)
    assert {one.revision: one.writes for one in seen} == committed
    assert [one.revision for one in seen] == sorted(committed)


def test_S8_a_backlog_of_many_small_rows_is_caught_up(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters(members=1) as cluster, Links(*cluster.endpoints) as links:
        replica = following(open_at(links.endpoints, cleanup), cleanup)
        near = open_at(cluster.endpoints, cleanup)
        links.links[0].cut()
        last = 0
        for number in range(200):
            last = put(near, *((f"{number}/{n}", b"x" * 20) for n in range(100)))
        links.links[0].heal()
        reaches(replica, last)
        assert replica.reloads == 0
        assert equals_the_store(replica, near)


class Users:
    """etcd's own users and roles."""

    def __init__(self, cluster: EtcdCluster, cleanup: ExitStack) -> None:
        self._auth = etcdrpc.AuthStub(
            cleanup.enter_context(grpc.insecure_channel(cluster.endpoints[0]))
        )
        self._token: tuple[tuple[str, str], ...] = ()
        for name, role in (("root", "root"), ("kdir", "la")):
            self.call("UserAdd", "AuthUserAddRequest", name=name, password=name)
            self.call("RoleAdd", "AuthRoleAddRequest", name=role)
            self.call("UserGrantRole", "AuthUserGrantRoleRequest", user=name, role=role)
        self.grant()
        self.call("AuthEnable", "AuthEnableRequest")
        answer = self.call("Authenticate", "AuthenticateRequest", name="root", password="root")
        self._token = (("token", answer.token),)

    def call(self, method: str, request: str, **fields: Any) -> Any:
        message = getattr(etcdrpc, request)(**fields)
        return getattr(self._auth, method)(message, timeout=10, metadata=self._token)

    def grant(self) -> None:
        request = etcdrpc.AuthRoleGrantPermissionRequest(name="la")
        request.perm.permType = 2  # READWRITE
        request.perm.key, request.perm.range_end = b"/la/", b"/la0"
        self._auth.RoleGrantPermission(request, timeout=10, metadata=self._token)

    def revoke(self) -> None:
        self.call(
            "RoleRevokePermission",
            "AuthRoleRevokePermissionRequest",
            role="la",
            key="/la/",
            range_end="/la0",
        )


def test_S14_a_right_that_is_revoked_is_reported_until_it_is_back(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    with etcd_clusters(members=1) as cluster:
        users = Users(cluster, cleanup)
        store = EtcdStore.open(f"etcd://kdir:kdir@{cluster.endpoints[0]}/la", "la")
        cleanup.callback(store.close)
        replica = following(store, cleanup)
        reaches(replica, put(store, ("k", b"1")))
        users.revoke()
        eventually(lambda: replica.state is ReplicaState.STALE, 30)
        assert "permission denied" in replica.trouble
        assert replica.snapshot.fact(kafka_key("k")) == b"1"
        users.grant()
        eventually(lambda: replica.state is ReplicaState.SERVING, 30)
        reaches(replica, put(store, ("k", b"2")))
        assert replica.reloads == 0
        cleanup.close()


def test_S15_a_token_that_expires_is_renewed_without_anybody_noticing(
    etcd_clusters: Clusters, cleanup: ExitStack
) -> None:
    flags = ["--auth-token-ttl=1"]
    with etcd_clusters(members=1, flags=flags) as cluster, Links(*cluster.endpoints) as links:
        Users(cluster, cleanup)
        store = EtcdStore.open(f"etcd://kdir:kdir@{links.endpoints[0]}/la", "la")
        cleanup.callback(store.close)
        replica = following(store, cleanup)
        first = store.connection.token
        links.links[0].cut()  # a token lives on while it is used, and each question uses it
        time.sleep(3)
        links.links[0].heal()
        eventually(lambda: replica.watch_restarts > 0, 30)
        reaches(replica, put(store, ("k", b"1")))
        assert store.connection.token not in ("", first)
        assert replica.reloads == 0
        cleanup.close()


def test_S16_a_slow_subscriber_slows_nobody(etcd_cluster: SharedEtcd, cleanup: ExitStack) -> None:
    store = EtcdStore.open(etcd_cluster.address(), "la")
    cleanup.callback(store.close)
    bench = cleanup.enter_context(Bench(store, queue_events=10))
    slow, quick = bench.history.follow(0), bench.history.follow(0)
    seen: list[int] = []
    done: list[int] = []
    for number in range(25):
        done.append(bench.create(f"/la/t{number}").revision)
        while not seen or seen[-1] < done[-1]:
            seen += [revision for revision, _ in quick.next(5)]
    assert seen == done
    with pytest.raises(Exception, match="10"):
        slow.next(0)


def test_S21_what_cannot_be_read_is_put_aside_and_the_rest_is_served(
    etcd_cluster: SharedEtcd, cleanup: ExitStack
) -> None:
    address = etcd_cluster.address()
    store = EtcdStore.open(address, "la")
    cleanup.callback(store.close)
    with Bench(store) as bench:
        bench.create("/la/good")
    bad = entry_key(ROOT_ID, Kind.DIRECTORY, "bad")
    # As somebody else's tool would leave it, under our prefix and without our commit.
    with grpc.insecure_channel(etcd_cluster.endpoints[0]) as channel:
        key = store._keyspace.layout.row(bad)
        etcdrpc.KVStub(channel).Put(etcdrpc.PutRequest(key=key, value=b"\xff\xff"), timeout=10)
    commit(store, Put(entry_key(ROOT_ID, Kind.TOPIC, "worse"), b"\x00\xff"))
    replica = following(store, cleanup)
    assert replica.state is ReplicaState.SERVING
    assert replica.snapshot.topic_count == 1
    assert set(replica.snapshot.unreadable_values) == {bad, entry_key(ROOT_ID, Kind.TOPIC, "worse")}
    last = commit(store, Put(entry_key(ROOT_ID, Kind.TOPIC, "later"), b"\x00"), Delete(bad))
    reaches(replica, last)
    assert set(replica.snapshot.unreadable_values) == {
        entry_key(ROOT_ID, Kind.TOPIC, "worse"),
        entry_key(ROOT_ID, Kind.TOPIC, "later"),
    }
