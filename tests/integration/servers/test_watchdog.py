"""A server that is really stuck: systemd's watchdog is not fed, and the liveness probe fails."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from directory.api.rpc.thread_pools import CallCompletion
from directory.server.metrics.prometheus import MetricsEndpoint
from directory.server.watchdog import Watchdog
from tests.integration.servers.lagging import One
from tests.support.federation import Server, eventually

Start = Callable[..., Server]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yields the socket of a unit of systemd, to which servers that start in this test report."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"{tmp_path}/notify")
        bound.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        yield bound


def drain(systemd: socket.socket) -> None:
    """Takes what was sent before, until nothing comes for some times the watchdog's pace."""
    systemd.settimeout(3)
    try:
        while True:
            systemd.recv(100)
    except TimeoutError:
        systemd.settimeout(60)


def await_both(systemd: socket.socket) -> None:
    """Receives until there was each of a healthy server's states, and no other."""
    received: set[bytes] = set()
    while received != {b"READY=1", b"WATCHDOG=1"}:
        received.add(systemd.recv(100))
        assert received <= {b"READY=1", b"WATCHDOG=1"}


def test_a_server_is_ready_once_feeds_the_watchdog_and_stopped_does_not(
    start: Start, systemd: socket.socket
) -> None:
    server = start("/la")
    await_both(systemd)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        drain(systemd)  # ends: it sends no more
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert systemd.recv(100) == b"WATCHDOG=1"


def test_processes_of_one_unit_feed_one_watchdog(start: Start, systemd: socket.socket) -> None:
    start("/la", processes=2)
    await_both(systemd)


def test_reads_that_are_stuck_fail_the_liveness_probe(tmp_path: Path) -> None:
    sent: list[str] = []
    gate = threading.Event()
    with ExitStack() as cleanup:
        one = One(f"sqlite:///{tmp_path / 's.sqlite'}", cleanup)
        watchdog = Watchdog([one.server], 1.0, notify=sent.append)
        watchdog.start()
        endpoint = MetricsEndpoint("127.0.0.1:0", ["la"], [one.cluster], [one.server], watchdog)
        cleanup.enter_context(closing(endpoint))
        cleanup.callback(gate.set)
        host, _, port = endpoint.address.rpartition(":")

        def probe() -> tuple[int, str]:
            connection = HTTPConnection(host, int(port), timeout=20)
            with closing(connection):
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

        assert probe() == (200, "ok\n")
        for _ in range(1000):  # more than there may be threads for those that are stuck
            one.server._calls.begin(CallCompletion(), gate.wait, (60,))
        eventually(lambda: probe()[0] == 503, 60)
        assert "reads are stuck" in probe()[1]
        assert "WATCHDOG=trigger" in sent
        gate.set()
        eventually(lambda: probe() == (200, "ok\n"), 60)
        assert one.outcome("/la") == "resolution"
