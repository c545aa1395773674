"""Stop of many parts at the same time, and of a server's clusters."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deploy.local.ports import LOOPBACK
from directory.api.grpc_server import DirectoryServer
from directory.server.cluster import Cluster
from directory.server.concurrent_stop import run_together
from directory.server.config import ServerConfig
from resolver.path import Path as Path_

_COUNT = 5
_SECONDS = 20.0
"""After which what waits for the others in vain gives up."""


def test_each_runs_though_others_have_not_ended() -> None:
    met = threading.Barrier(_COUNT)
    assert run_together([lambda: met.wait(_SECONDS)] * _COUNT) == 0
    assert not met.broken


def test_those_that_hang_share_one_time_limit_and_are_counted() -> None:
    free, ended = threading.Event(), threading.Event()
    try:
        assert run_together([*[free.wait] * _COUNT, ended.set], 0.1) == _COUNT
        assert ended.is_set()
    finally:
        free.set()


def test_an_error_of_one_is_logged_and_ends_none_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = threading.Event()

    def fail() -> None:
        raise ValueError("a bug of one")

    assert run_together([fail, ended.set]) == 0
    assert ended.is_set()
    assert "a bug of one" in caplog.text


@pytest.mark.parametrize("left", [0, 2])
def test_all_run_though_no_thread_can_be_started(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(started) == left:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    ended = [threading.Event() for _ in range(_COUNT)]
    assert run_together((one.set for one in ended), _SECONDS) == 0
    assert all(one.is_set() for one in ended)


def test_a_server_drains_its_clusters_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [
        Cluster.open(
            ServerConfig.quick(
                Path_.parse(f"/c{n}"), cluster=f"c{n}", store=f"sqlite:///{tmp_path}/{n}.sqlite"
            )
        )
        for n in range(3)
    ]
    met = threading.Barrier(len(clusters))
    for cluster in clusters:
        monkeypatch.setattr(cluster, "drain", lambda: met.wait(_SECONDS))
    server = DirectoryServer(clusters, f"{LOOPBACK}:0")
    server.start()
    try:
        server.drain()
        assert not met.broken
    finally:
        monkeypatch.undo()
        for cluster in clusters:
            cluster.stop()
