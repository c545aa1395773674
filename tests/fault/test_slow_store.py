"""A store that hangs: deadlines hold, threads do not pile up, reads stay quick."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from kdir.v1 import directory_pb2, directory_pb2_grpc, entry_pb2

from deploy.local.etcd import EtcdCluster
from deploy.local.ports import LOOPBACK, free_port
from directory.namespace.keys import MEMBER
from resolver.errors import KdirError, StoreUnavailable
from resolver.revision_token import Token
from tests.support.federation import Federation, Server, eventually

Hang = Callable[[], AbstractContextManager[None]]
_HANGING = 8
"""Clusters of one process whose stores hang."""


@pytest.fixture(scope="module")
def own_etcd(etcd_clusters: Callable[..., EtcdCluster]) -> Iterator[EtcdCluster]:
    with etcd_clusters() as etcd:
        yield etcd


@pytest.fixture(params=["sqlite", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Hang]:
    """Returns a store's address, and a context manager that makes it hang."""
    if request.param == "sqlite":
        file = tmp_path / "store.sqlite"
        return f"sqlite:///{file}", lambda: locked(file)
    etcd: EtcdCluster = request.getfixturevalue("own_etcd")
    return f"etcd://{','.join(etcd.endpoints)}/{tmp_path.name}", lambda: paused(etcd)


@pytest.fixture
def server(tmp_path: Path, store: tuple[str, Hang]) -> Iterator[Server]:
    limits = {"read_threads": 2, "write_threads": 2, "max_queued_writes": 4, "max_blocked_reads": 4}
    with Federation(tmp_path) as federation:
        yield federation.start("/la", limits=limits, store=store[0])


@pytest.fixture
def hang(store: tuple[str, Hang]) -> Hang:
    return store[1]


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Yields another process writes, and does not come to an end: only writes hang."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def paused(etcd: EtcdCluster) -> Iterator[None]:
    """Pauses every member for the time of the block: ports are open, nothing answers."""
    for member in etcd.members:
        member.pause()
    try:
        yield
    finally:
        for member in etcd.members:
            member.resume()


def is_registered(file: Path) -> bool:
    """True if a server of a cluster is registered in its store."""
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            keys = [key for (key,) in connection.execute("SELECT key FROM kv")]
    except sqlite3.OperationalError:  # not made yet
        return False
    return any(key.startswith(MEMBER) for key in keys)


def thread_count(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Threads")))


def mkdir(server: Server, path: str, timeout: float) -> object:
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(path=path, entry=entry)
    stub = directory_pb2_grpc.DirectoryServiceStub
    return server.ask(stub, "CreateEntry", request, timeout=timeout)


def reason(call: Callable[[], object]) -> str:
    try:
        call()
    except KdirError as error:
        return error.reason
    return "OK"


def refusal(server: Server) -> str:
    """Returns how one more write is refused; empty = it is not, but waits."""
    try:
        mkdir(server, "/la/one-more", timeout=0.3)
    except StoreUnavailable as error:
        return error.message if error.metadata.get("effect", "none") == "none" else ""
    except KdirError:
        pass
    return ""


def test_writes_that_hang_hold_no_thread_that_answers_reads(server: Server, hang: Hang) -> None:
    server.mkdir("/la/x")
    before = thread_count(server)

    def write(number: int) -> str:
        return reason(lambda: mkdir(server, f"/la/d{number}", timeout=12))

    with hang(), ThreadPoolExecutor(40) as callers:
        writes = [callers.submit(write, number) for number in range(40)]
        # Two have a thread, four wait for one; all others are told at once, while nothing moves.
        eventually(lambda: sum(one.done() for one in writes) >= 34)
        reported = Counter(one.result() for one in writes if one.done())
        assert set(reported) == {"STORE_UNAVAILABLE"}
        for _ in range(60):
            assert server.outcome("/la/x") == "resolution"
        assert server.names("/la") == ["x"]
        assert thread_count(server) <= before + 30
        assert any(not one.done() for one in writes), "reads did not wait for the writes' deadlines"
        # Each has an end of its own: the caller's deadline.
        assert not wait(writes, timeout=60).not_done
        # And so have the threads: nothing is under way any more, though the store still hangs.
        eventually(lambda: "none has ended" not in refusal(server))
    eventually(lambda: server.mkdir("/la/again"), 60)


def test_once_it_is_known_to_hang_a_write_is_refused_without_waiting(
    server: Server, hang: Hang
) -> None:
    def write(number: int) -> str:
        return reason(lambda: mkdir(server, f"/la/h{number}", timeout=60))

    with ThreadPoolExecutor(2) as callers, hang():
        hanging = [callers.submit(write, number) for number in range(2)]
        # There would be a place to wait, but nothing has moved for more than a second.
        eventually(lambda: "none has ended" in refusal(server))
        assert not all(one.done() for one in hanging)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_N3_reads_that_wait_for_what_never_comes_hold_nobody_up(server: Server) -> None:
    token = server.mkdir("/la/x").token
    ((cluster, place),) = Token.parse(token).positions.items()
    future = str(Token.from_position(cluster, place.incarnation, place.revision + 1_000))
    with ThreadPoolExecutor(20) as callers:
        waiting: list[Future[str]] = [
            callers.submit(server.outcome, "/la/x", token=future) for _ in range(20)
        ]
        # Four places to wait; who finds none is told to ask another server.
        eventually(lambda: sum(one.done() for one in waiting) >= 16)
        for _ in range(20):
            assert server.outcome("/la/x") == "resolution"
        assert any(not one.done() for one in waiting), "nobody waited for those that wait"
        reported = Counter(one.result() for one in waiting)
    assert set(reported) == {"NOT_READY", "TOKEN_FROM_FUTURE"}
    assert 1 <= reported["TOKEN_FROM_FUTURE"] <= 8
    assert server.outcome("/la/x", token=token) == "resolution"


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_N3_writes_that_wait_for_what_never_comes_hold_nobody_up(server: Server) -> None:
    token = server.mkdir("/la/x").token
    ((cluster, place),) = Token.parse(token).positions.items()
    future = str(Token.from_position(cluster, place.incarnation, place.revision + 1_000))
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(path="/la/y", entry=entry, token=future)
    stub = directory_pb2_grpc.DirectoryServiceStub

    def write(_: int) -> str:
        return reason(lambda: server.ask(stub, "CreateEntry", request, timeout=20))

    with ThreadPoolExecutor(6) as callers:
        waiting = [callers.submit(write, number) for number in range(6)]
        # One of the two threads for writes may wait; who finds none is told to ask another server.
        eventually(lambda: sum(one.done() for one in waiting) >= 3)
        for number in range(5):
            mkdir(server, f"/la/d{number}", timeout=4)
        assert any(not one.done() for one in waiting), "nobody waited for those that wait"
        reported = Counter(one.result() for one in waiting)
    assert set(reported) == {"NOT_READY", "TOKEN_FROM_FUTURE"}


def test_G10_clusters_whose_stores_hang_delay_the_end_of_none_of_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    shared = f"{LOOPBACK}:{free_port()}"
    files = [tmp_path / f"c{number}.sqlite" for number in range(_HANGING + 1)]
    for file in files:
        # Every other one has an address of its own.
        listen = f"{LOOPBACK}:0" if file in files[::2] else shared
        (folder / f"{file.stem}.toml").write_text(
            f'cluster = "{file.stem}"\nmount = "/{file.stem}"\nlisten = "{listen}"\n'
            f'store = "sqlite:///{file}"\nlimits.drain_seconds = 1\n'
        )
    with ExitStack() as stack:
        process = subprocess.Popen([sys.executable, "-m", "directory", "--config", str(folder)])
        stack.callback(process.wait)
        stack.callback(process.kill)
        for file in files:
            eventually(partial(is_registered, file))
        for file in files[:_HANGING]:
            stack.enter_context(locked(file))
        process.terminate()
        # One after the other they would take 5 s each, and the last one would wait for them.
        most_seconds = 5 * _HANGING / 2
        eventually(lambda: not is_registered(files[-1]), most_seconds)
        assert process.poll() is None  # it waits for the others still
        assert process.wait(most_seconds) == 0
        assert all(is_registered(file) for file in files[:_HANGING])
