"""Many watchers of one server: they hold no threads, and none of them holds up another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from kdir.v1 import entry_pb2, policies_pb2, watch_pb2

from deploy.local.ports import free_port
from deploy.local.process import LocalProcess
from tests.support.federation import Federation, Server, eventually

MOST_THREADS = 40
SECONDS = 120
HALF_OPEN_SECONDS = 70
"""Pings answer within 30 s; left to itself gRPC waits for 80."""
Watching = list[LocalProcess]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Federation(tmp_path) as federation:
        yield federation.start("/la", metrics=f"127.0.0.1:{free_port()}")


def measured(server: Server, name: str) -> float:
    """Returns the value of a metric of the server, summed over all labels."""
    with urlopen(f"http://{server.settings['metrics']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def threads(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def change(server: Server, name: str, size: int = 0) -> None:
    """Makes a directory; the event of it has about so many bytes."""
    value = policies_pb2.ConfigValue(value="x" * 3_900)
    config = {f"redpanda.{number}": value for number in range(size // 4_000)}
    policies = policies_pb2.Policies(topic_config=config) if config else None
    entry = entry_pb2.Entry(directory=entry_pb2.Directory(), policies=policies)
    server.entries("CreateEntry", path=f"/la/{name}", entry=entry)


@contextmanager
def watching(server: Server, folder: Path, *counts: int) -> Iterator[Watching]:
    """Runs processes with so many watchers each, all of which have begun."""
    request = watch_pb2.WatchRequest(path="/la", checkpoint_seconds=3_600).SerializeToString()
    method = "/kdir.v1.WatchService/Watch"
    with ExitStack() as cleanup:
        processes = []
        for number, count in enumerate(counts):
            arguments = [server.address, method, str(count), request.hex()]
            command = [sys.executable, "-m", "bench.watching", *arguments]
            processes.append(LocalProcess(command, folder / f"watchers-{number}.log"))
            processes[-1].start()
            cleanup.callback(processes[-1].kill)
        for one in processes:
            eventually(lambda one=one: written(one) >= 1, SECONDS)  # type: ignore[misc]
        yield processes


def written(process: LocalProcess) -> int:
    """Returns how many messages all watchers of a process have."""
    return len(process.log.read_text().splitlines())


def test_watchers_that_read_nothing_hold_up_no_others_and_lose_nothing(
    server: Server, tmp_path: Path
) -> None:
    with watching(server, tmp_path, 100, 100) as (slow, quick):
        slow.pause()
        for number in range(20):
            change(server, f"d{number}", 16_000)
        eventually(lambda: written(quick) == 21, SECONDS)
        assert written(slow) == 1
        assert measured(server, "kdir_watcher_max_lag_events") > 0, "they fill their windows"
        assert threads(server) <= MOST_THREADS
        slow.resume()
        eventually(lambda: written(slow) == 21, SECONDS)
        assert measured(server, "kdir_watchers") == 200


def test_half_open_watchers_are_ended_and_others_watch_on(server: Server, tmp_path: Path) -> None:
    """What the kernel still acknowledges for them, they do not."""
    with watching(server, tmp_path, 50, 50) as (gone, quick):
        gone.pause()
        eventually(lambda: measured(server, "kdir_watchers") == 50, HALF_OPEN_SECONDS)
        assert measured(server, "kdir_rpc_open_streams") == 50
        change(server, "later")
        eventually(lambda: written(quick) == 2, SECONDS)


def test_a_thousand_watchers_killed_at_once_leave_nothing(server: Server, tmp_path: Path) -> None:
    with watching(server, tmp_path, 500, 500) as processes:
        assert measured(server, "kdir_watchers") == 1_000
        assert threads(server) <= MOST_THREADS
        change(server, "one")
        for process in processes:
            eventually(lambda process=process: written(process) == 2, SECONDS)  # type: ignore[misc]
        change(server, "two")  # it is on its way
        for process in processes:
            process.kill()
        eventually(lambda: measured(server, "kdir_watchers") == 0, SECONDS)
        eventually(lambda: measured(server, "kdir_rpc_open_streams") == 0, SECONDS)
    stream = server.watch_stub().Watch(watch_pb2.WatchRequest(path="/la"), timeout=SECONDS)
    assert next(stream).HasField("authority")
    change(server, "three")
    assert next(stream).events[0].path == "/la/three"
    assert threads(server) <= MOST_THREADS


def test_watchers_are_ended_by_name_when_their_server_ends(server: Server, tmp_path: Path) -> None:
    with watching(server, tmp_path, 100) as (watchers,):
        server.process.stop()
        eventually(lambda: not watchers.running, SECONDS)
        assert "this server stops: continue at another one" in watchers.log.read_text()
