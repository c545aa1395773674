"""``kdir server --processes N``: one port and one store, several processes, one supervisor."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest
from kdir.v1 import (
    directory_pb2,
    directory_pb2_grpc,
    entry_pb2,
    resolve_pb2,
    resolve_pb2_grpc,
    watch_pb2,
)

from deploy.local.process import LocalProcess
from tests.conftest import SharedEtcd
from tests.support.federation import Server, eventually
from tests.support.server_command import serve

Start = Callable[..., Server]


@contextmanager
def connection(address: str) -> Iterator[grpc.Channel]:
    """Opens a connection of its own: the kernel gives it to one of the processes."""
    with grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        yield channel


def resolve(address: str, path: str, token: str = "") -> resolve_pb2.ResolveResponse:
    with connection(address) as channel:
        stub = resolve_pb2_grpc.ResolveServiceStub(channel)
        request = resolve_pb2.ResolveRequest(path=path, token=token)
        # What a killed process had not accepted yet is reset, and tried again; no answer is.
        answer: resolve_pb2.ResolveResponse = stub.Resolve(request, timeout=20, wait_for_ready=True)
        return answer


def answering(server: Server, calls: int = 24) -> Counter[str]:
    """Returns which processes answer, by as many new connections."""
    return Counter(resolve(server.address, "/la").authority.server for _ in range(calls))


def workers(server: Server) -> list[int]:
    """Returns the pids of the processes below the supervisor."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def test_new_connections_spread_over_the_processes_of_one_port(start: Start) -> None:
    server = start("/la", processes=3)
    eventually(lambda: len(answering(server)) == 3)
    assert len(workers(server)) == 3
    lines = [line for line in server.process.log.read_text().splitlines() if "serving /" in line]
    assert len(lines) == 1, "one line for all, as with one process"


@pytest.fixture(params=["sqlite", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.sqlite'}"
    shared: SharedEtcd = request.getfixturevalue("etcd_cluster")
    return shared.address()


def test_a_token_of_one_process_is_honoured_by_the_others(start: Start, store: str) -> None:
    server = start("/la", processes=2, store=store)
    reported: Counter[str] = Counter()
    for number in range(60):
        path = f"/la/d{number}"
        with connection(server.address) as channel:
            stub = directory_pb2_grpc.DirectoryServiceStub(channel)
            entry = entry_pb2.Entry(directory=entry_pb2.Directory())
            request = directory_pb2.CreateEntryRequest(path=path, entry=entry)
            written = stub.CreateEntry(request, timeout=20)
        found = resolve(server.address, path, written.token)
        assert found.outcome.WhichOneof("kind") == "resolution", path
        wrote, read = written.authority.server, found.authority.server
        reported["same" if wrote == read else "other"] += 1
    # By chance it would be all the same process once in 2 to the 60.
    assert reported["other"] > 0, reported


def test_a_process_that_dies_is_started_again_and_the_others_go_on(
    start: Start, store: str
) -> None:
    server = start("/la", processes=2, store=store)
    token = server.mkdir("/la/x").token
    before = workers(server)
    os.kill(before[0], signal.SIGKILL)
    for _ in range(10):
        with connection(server.address) as channel:
            stub = resolve_pb2_grpc.ResolveServiceStub(channel)
            request = resolve_pb2.ResolveRequest(path="/la/x", token=token)
            # The dead one's connections are refused by nobody: its socket went with it.
            assert stub.Resolve(request, timeout=20, wait_for_ready=True).outcome.HasField(
                "resolution"
            )
    eventually(lambda: len(set(workers(server)) - set(before)) == 1)
    eventually(lambda: len(answering(server)) == 2)
    log = server.process.log.read_text()
    assert re.search(rf"server process \d \(pid {before[0]}\) ended by SIGKILL", log)
    assert server.process.running


def is_live(address: str) -> bool:
    """True if a liveness probe of Kubernetes accepts the answer to ``/healthz``."""
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def test_the_probe_of_a_process_that_hangs_fails_and_killed_it_is_started_again(
    start: Start,
) -> None:
    server = start("/la", processes=2, metrics="127.0.0.1:0")
    token = server.mkdir("/la/x").token
    before = workers(server)
    probed = re.findall(r"metrics on http://(\S+)/metrics", server.process.log.read_text())
    assert len(probed) == 2
    eventually(lambda: all(map(is_live, probed)))
    os.kill(before[0], signal.SIGSTOP)
    assert sorted(map(is_live, probed)) == [False, True], "each has a probe of its own"
    os.kill(before[0], signal.SIGKILL)  # as Kubernetes and systemd do
    eventually(lambda: len(set(workers(server)) - set(before)) == 1, 60)
    eventually(lambda: len(answering(server)) == 2, 60)
    for _ in range(10):
        assert resolve(server.address, "/la/x", token).outcome.HasField("resolution")
    assert before[1] in workers(server)


def test_nobody_meets_a_process_that_has_not_loaded(start: Start, store: str) -> None:
    """Neither one of the later ones, nor one that is started again."""
    server = start("/la", processes=3, store=store)
    token = server.mkdir("/la/x").token
    before = workers(server)
    os.kill(before[0], signal.SIGKILL)
    reported: set[str] = set()
    deadline = time.monotonic() + 60
    while len(reported) < 3:
        assert time.monotonic() < deadline, reported
        restarted = bool(set(workers(server)) - set(before))
        found = resolve(server.address, "/la/x", token)
        assert found.outcome.HasField("resolution")
        if restarted:
            reported.add(found.authority.server)


def test_port_0_is_one_free_port_for_all(tmp_path: Path) -> None:
    config = tmp_path / "la.toml"
    config.write_text(
        f'mount = "/la"\nlisten = "127.0.0.1:0"\nstore = "sqlite:///{tmp_path}/s.sqlite"\n'
    )
    command = [sys.executable, "-m", "directory", "--config", str(config), "--processes", "2"]
    process = LocalProcess(command, tmp_path / "log")
    process.start()
    try:
        process.await_ready(lambda: "serving /la" in process.log.read_text(), 30)
        (address,) = re.findall(r"serving /la .* on (\S+)", process.log.read_text())
        servers: set[str] = set()

        def both_answer() -> bool:
            servers.add(resolve(address, "/la").authority.server)
            return len(servers) == 2

        eventually(both_answer)
    finally:
        process.stop()


def test_G10_sigterm_ends_all_of_them_and_the_exit_code_is_0(start: Start) -> None:
    server = start("/la", processes=2)
    children = workers(server)
    stream = server.watch_stub().Watch(watch_pb2.WatchRequest(path="/la", checkpoint_seconds=1))
    assert next(stream).HasField("authority")
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.process.wait(60) == 0
    with pytest.raises(grpc.RpcError):
        list(stream)
    for pid in children:
        assert not Path(f"/proc/{pid}").exists()


def test_processes_without_their_supervisor_end(start: Start) -> None:
    server = start("/la", processes=2)
    children = workers(server)
    os.kill(server.process.pid, signal.SIGKILL)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def one_sentence(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_what_cannot_be_used_is_reported_once_and_ends_it_at_once(tmp_path: Path) -> None:
    two = ("--processes", "2")
    config = tmp_path / "la.toml"
    config.write_text("mont = '/la'\n")
    assert "'mount'" in one_sentence(serve("--config", str(config), *two))
    (tmp_path / "other.sqlite").write_text("this is no database, whatever it says it is\n" * 99)
    config.write_text(
        f'mount = "/la"\nlisten = "127.0.0.1:0"\nstore = "sqlite:///{tmp_path}/other.sqlite"\n'
    )
    assert "database" in one_sentence(serve("--config", str(config), *two))
    assert "1 to 64" in one_sentence(serve("--mount", "/la", "--processes", "0"))
    assert "1 to 64" in one_sentence(serve("--mount", "/la", "--processes", "65"))


def test_servers_that_do_not_belong_together_share_no_port(start: Start, tmp_path: Path) -> None:
    server = start("/la", processes=2)
    for processes in ("1", "2"):
        config = tmp_path / "other.toml"
        config.write_text(
            f'mount = "/ny"\nlisten = "{server.address}"\n'
            f'store = "sqlite:///{tmp_path}/ny.sqlite"\n'
        )
        line = one_sentence(serve("--config", str(config), "--processes", processes))
        assert server.address in line
        assert not (tmp_path / "ny.sqlite").exists(), "nothing was touched"
    alone = start("/ny", name="ny", store=f"sqlite:///{tmp_path}/alone.sqlite")
    ended = serve(
        *("--mount", "/x", "--listen", alone.address, "--processes", "2"),
        *("--store", f"sqlite:///{tmp_path}/x.sqlite"),
    )
    assert alone.address in one_sentence(ended)


def test_two_supervisors_that_start_at_once_do_not_share_a_port(tmp_path: Path) -> None:
    """Before either listens, the bind alone would let both in."""
    from directory.server.supervisor import Ports
    from directory.server.toml_table import ConfigError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with Ports() as ports, pytest.raises(ConfigError, match="Address already in use"):
            ports.hold("a", listen)
    with Ports() as one, Ports() as other:
        one.hold("a", listen)
        with pytest.raises(ConfigError, match="Address already in use"):
            other.hold("a", listen)
    with Ports() as again:
        again.hold("a", listen)
        assert again.addresses == {"a": listen}


def test_check_says_how_many(tmp_path: Path) -> None:
    ended = serve(
        *("--check", "--mount", "/la", "--processes", "4"),
        *("--store", f"sqlite:///{tmp_path}/s.sqlite"),
    )
    assert ended.returncode == 0
    assert "processes: 4" in ended.stdout
