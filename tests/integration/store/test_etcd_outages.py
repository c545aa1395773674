"""Members of etcd that die, pause, and lose answers, and processes that do."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.directory import DirectoryProcess
from deploy.local.etcd import EtcdCluster
from deploy.local.ports import free_port
from deploy.local.process import StartFailed
from directory.namespace.command import CreateTopic
from directory.store.base import Committed, Conflict, KeyEquals, Put, StoreUnreachable, Transaction
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.store import EtcdStore
from directory.store.replica import Replica
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver import Resolver
from resolver.errors import NotReady, StoreUnavailable
from resolver.path import Path as EntryPath
from tests.conformance.store.reading import everything, put
from tests.conftest import SharedEtcd
from tests.fault.etcd.links import Links
from tests.support.federation import eventually

ROOT = Path(__file__).resolve().parents[3]
CODEC = ProtoCodec()


@pytest.fixture(scope="module")
def etcd(etcd_clusters: Callable[..., EtcdCluster]) -> Iterator[EtcdCluster]:
    """Yields members that may be killed and paused; each test leaves them running."""
    with etcd_clusters() as cluster:
        yield cluster


def address_in(cluster: EtcdCluster) -> str:
    return SharedEtcd(tuple(cluster.endpoints)).address()


def begin_with(store: EtcdStore, number: int) -> None:
    """Makes the next call begin at this member."""
    for _ in store.connection.endpoints:
        preferred = store.connection.preferred
        if preferred == number:
            return
        store.connection.leave(preferred, "the test says so")


def test_a_paused_or_dead_member_costs_neither_reads_nor_writes(etcd: EtcdCluster) -> None:
    with closing(EtcdStore.open(address_in(etcd), "la")) as store, ExitStack() as stack:
        put(store, (b"k", b"0"))
        for number, member in enumerate(etcd.members):
            if number % 2:
                member.kill()
                stack.callback(member.await_ready)
                stack.callback(member.start)
            else:
                member.pause()
                stack.callback(member.resume)
            value = b"%d" % number
            begin_with(store, number)
            _put_in_the_end(store, value)
            begin_with(store, number)
            assert store.read(b"k")[0].value == value
            assert everything(store, [b"k"]) == {b"k": value}
            stack.close()


def _put_in_the_end(store: EtcdStore, value: bytes) -> None:
    """One whose effect is unknown, for its member had just answered, is asked for again."""
    while True:
        try:
            put(store, (b"k", value))
        except StoreUnreachable:
            continue
        return


def test_a_transaction_goes_on_to_the_next_member_where_it_surely_had_no_effect(
    etcd: EtcdCluster,
) -> None:
    """Nobody listens at the first endpoint, and a member without its quorum is at the second."""
    address = address_in(etcd)
    hosts, _, prefix = address.removeprefix("etcd://").partition("/")
    with closing(EtcdStore.open(address, "la")):
        pass  # it is created only while all members answer
    with closing(EtcdStore.open(f"etcd://127.0.0.1:{free_port()},{hosts}/{prefix}", "la")) as store:
        for number in range(5):
            begin_with(store, 0)
            guard = KeyEquals(b"n", b"%d" % (number - 1) if number else None)
            done = store.commit(Transaction((guard,), (Put(b"n", b"%d" % number),)))
            assert isinstance(done, Committed)


def test_without_a_quorum_calls_end_within_their_time_and_it_recovers(etcd: EtcdCluster) -> None:
    with closing(EtcdStore.open(address_in(etcd), "la")) as store, ExitStack() as stack:
        put(store, (b"k", b"1"))
        for member in etcd.members[:2]:
            member.pause()
            stack.callback(member.resume)
        ended = threading.Event()

        def ask() -> None:
            for call in (
                lambda: store.commit(Transaction((), (Put(b"k", b"2"),)), 1.0),
                lambda: store.read(b"k"),
            ):
                with pytest.raises(StoreUnreachable):
                    call()
            ended.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert ended.wait(60)
        thread.join()
        stack.close()

        def recovers() -> bool:
            try:
                put(store, (b"k", b"3"))
            except StoreUnreachable:
                return False
            return True

        eventually(recovers)
        assert store.read(b"k")[0].value == b"3"


# -- S17 -------------------------------------------------------------------------------------


def test_S17_a_write_whose_answer_is_lost_has_one_effect(etcd: EtcdCluster) -> None:
    hosts, _, prefix = address_in(etcd).removeprefix("etcd://").partition("/")
    with Links(hosts.split(",")[0]) as links, ExitStack() as stack:
        address = f"etcd://{links.endpoints[0]}/{prefix}"
        store = stack.enter_context(closing(EtcdStore.open(address, "la")))
        direct = stack.enter_context(closing(EtcdStore.open(f"etcd://{hosts}/{prefix}", "la")))
        first = put(store, (b"k", b"0"))
        transaction = Transaction((KeyEquals(b"k", b"0"),), (Put(b"k", b"1"),))
        links.links[0].swallow_answers()
        with pytest.raises(StoreUnreachable):
            store.commit(transaction, 1.0)
        eventually(lambda: direct.read(b"k")[0].value == b"1")
        links.links[0].heal()
        # The same again: it is told that somebody was quicker, which was itself.
        again = store.commit(transaction, 10)
        assert isinstance(again, Conflict)
        assert again.guard == transaction.guards[0]
        row = store.read(b"k")[0]
        assert (row.value, row.revision) == (b"1", again.revision)
        assert row.revision > first.revision


def test_S17_a_command_asked_again_with_its_request_id_is_the_one_that_was_made(
    etcd: EtcdCluster,
) -> None:
    hosts, _, prefix = address_in(etcd).removeprefix("etcd://").partition("/")
    with Links(hosts.split(",")[0]) as links, ExitStack() as stack:
        address = f"etcd://{links.endpoints[0]}/{prefix}"
        store = stack.enter_context(closing(EtcdStore.open(address, "la")))
        direct = stack.enter_context(closing(EtcdStore.open(f"etcd://{hosts}/{prefix}", "la")))
        replica = Replica(store, CODEC)
        replica.start()
        stack.callback(replica.stop)
        replica.wait_for(0, 30)
        writer = Writer(store, replica, CODEC, lambda _: EntryPath.parse("/la"))
        put(store, (b"fresh", b""))
        command = CreateTopic(path=EntryPath.parse("/la/clicks"))
        links.links[0].swallow_answers()
        with pytest.raises(StoreUnavailable) as unknown:
            writer.commit_command(command, request_id="one", timeout_seconds=1.0)
        assert unknown.value.metadata["effect"] == "unknown"
        eventually(lambda: len(direct.read(b"q/")) == 1)
        made = direct.read(b"e/")[0]
        links.links[0].heal()

        def again() -> bool:
            try:
                written = writer.commit_command(command, request_id="one")
            except StoreUnavailable:
                return False
            assert written.repeated
            assert written.revision == made.revision
            return True

        eventually(again)
        assert [row.key for row in direct.read(b"e/")] == [made.key]


# -- S19 -------------------------------------------------------------------------------------


def test_S19_a_holder_that_was_paused_past_its_lease_can_write_nothing_when_it_wakes(
    etcd_cluster: SharedEtcd,
) -> None:
    address = etcd_cluster.address()
    with closing(EtcdStore.open(address, "la")) as store, ExitStack() as stack:
        holder = _worker("hold", address, "publisher", "far")
        stack.callback(holder.kill)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "leads\n"
        assert _asked(holder) == "held Committed"
        holder.send_signal(SIGSTOP)
        stack.callback(holder.send_signal, SIGCONT)
        mine = None
        deadline = time.monotonic() + 60
        while mine is None and time.monotonic() < deadline:
            mine = store.elect("publisher", "near")
            time.sleep(0.1)
        assert mine is not None
        assert mine.held()
        acted = store.commit(Transaction((mine.guard,), (Put(b"held/near", b""),)))
        assert isinstance(acted, Committed)
        holder.send_signal(SIGCONT)
        assert _asked(holder) == "lost Conflict"
        assert everything(store, [b"held/"]) == {b"held/far": b"0", b"held/near": b""}
        assert mine.held()
        holder.kill()
        holder.wait()


def _worker(task: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.store.worker", task, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _asked(worker: subprocess.Popen[str]) -> str:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    return worker.stdout.readline().strip()


def test_a_holder_whose_etcd_is_away_lets_go_before_anybody_else_can_hold(
    etcd: EtcdCluster,
) -> None:
    address = EtcdAddress.parse(address_in(etcd))
    with (
        closing(EtcdStore(address, "la", lease_seconds=3)) as store,
        closing(EtcdStore(address, "la", lease_seconds=3)) as other,
        ExitStack() as stack,
    ):
        leadership = store.elect("publisher", "one")
        assert leadership is not None
        for member in etcd.members:
            member.pause()
            stack.callback(member.resume)
        eventually(lambda: not leadership.held())
        stack.close()

        def taken() -> bool:
            try:
                return other.elect("publisher", "two") is not None
            except StoreUnreachable:
                return False

        # Either etcd kept the lease while it slept, and the first has the role again; or not.
        eventually(lambda: leadership.held() or taken())


def test_a_role_is_kept_through_the_death_of_etcds_members_one_after_the_other(
    etcd: EtcdCluster,
) -> None:
    with closing(EtcdStore(EtcdAddress.parse(address_in(etcd)), "la")) as store:
        leadership = store.elect("publisher", "one")
        announced = store.create_ephemeral(b"m/one", b"v")
        assert leadership is not None
        assert not isinstance(announced, Conflict)
        for member in etcd.members:
            member.kill()
            time.sleep(1)  # so long it is not there
            member.start()
            member.await_ready()
        assert leadership.held()
        assert announced.is_alive()
        done = store.commit(Transaction((leadership.guard,), (Put(b"k", b""),)), 30)
        assert isinstance(done, Committed)
        assert store.remove_expired() == 0


# -- S5 --------------------------------------------------------------------------------------


def test_S5_a_server_whose_store_is_away_at_the_start_is_not_ready_and_comes_up_with_it(
    etcd_clusters: Callable[..., EtcdCluster], tmp_path: Path
) -> None:
    with etcd_clusters(members=1) as etcd, ExitStack() as stack:
        address = address_in(etcd)
        server = DirectoryProcess(tmp_path / "server", "/la", {"store": address})
        with server:
            _create(address, "kept")
            with Resolver([server.address]) as resolver:
                eventually(lambda: _resolves(resolver, "/la/kept"))
        etcd.members[0].kill()

        thread = threading.Thread(target=server.start)
        thread.start()
        stack.callback(server.stop)
        stack.callback(thread.join)
        eventually(lambda: _health(server) == health_pb2.HealthCheckResponse.NOT_SERVING)
        with Resolver([server.address]) as resolver:
            for path in ("/la/kept", "/la/never-was"):
                with pytest.raises(NotReady):
                    resolver.resolve(path)
            with pytest.raises(NotReady):
                list(resolver.list("/la"))
        assert thread.is_alive()  # it has not said that it serves
        etcd.members[0].start()
        thread.join(60)
        assert not thread.is_alive()
        eventually(lambda: _health(server) == health_pb2.HealthCheckResponse.SERVING)
        with Resolver([server.address]) as resolver:
            assert resolver.resolve("/la/kept").path == "/la/kept"


def test_S5_asked_to_stop_while_it_waits_it_ends(tmp_path: Path) -> None:
    store = f"etcd://127.0.0.1:{free_port()}/la"
    server = DirectoryProcess(tmp_path / "server", "/la", {"store": store})

    def start() -> None:
        with pytest.raises(StartFailed):
            server.start()

    thread = threading.Thread(target=start)
    thread.start()
    eventually(lambda: _health(server) == health_pb2.HealthCheckResponse.NOT_SERVING)
    server.stop()
    thread.join(30)
    assert not thread.is_alive()


def _create(address: str, name: str) -> None:
    with closing(EtcdStore.open(address, "la")) as store:
        replica = Replica(store, CODEC)
        replica.start()
        try:
            replica.wait_for(0, 30)
            Writer(store, replica, CODEC, lambda _: EntryPath.parse("/la")).commit_command(
                CreateTopic(path=EntryPath.parse(f"/la/{name}"))
            )
        finally:
            replica.stop()


def _resolves(resolver: Resolver, path: str) -> bool:
    return bool(resolver.resolve(path).path == path)


def _health(server: DirectoryProcess) -> int | None:
    with grpc.insecure_channel(server.address) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError:
            return None
        return int(answer.status)


# -- forks -----------------------------------------------------------------------------------


def test_a_forked_child_with_a_store_of_its_own_is_in_nobodys_way(
    etcd_cluster: SharedEtcd,
) -> None:
    """gRPC's channels do not survive a fork; who forks opens his own afterwards."""
    program = """
import os, sys
from directory.store.addresses import open_store
from tests.conformance.store.reading import everything, put
store = open_store(sys.argv[1], "la")
put(store, (b"parent", b"1"))
child = os.fork()
if child == 0:
    own = open_store(sys.argv[1], "la")
    put(own, (b"child", b"1"))
    own.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
put(store, (b"parent", b"2"))
print(sorted(everything(store).items()))
store.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, etcd_cluster.address()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "GRPC_VERBOSITY": "NONE"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[(b'child', b'1'), (b'parent', b'2')]\n", done.stderr
