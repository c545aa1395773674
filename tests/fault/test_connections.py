"""Connections that no honest client would make: G6 (pings), G9 (very many, half-open, resets)."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kdir.v1 import resolve_pb2, resolve_pb2_grpc, watch_pb2

from directory.services.arrivals import PATIENT_SECONDS
from directory.services.server import connection_limit
from resolver import Resolver
from resolver.status import from_rpc_error
from tests.fault.http2 import CANCEL, ENHANCE_YOUR_CALM, GOAWAY, PREFACE, RST_STREAM, Raw, frame
from tests.fault.recording_proxy import RecordingProxy
from tests.federation import Federation, Server, eventually

RESOLVE = "/kdir.v1.ResolveService/Resolve"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as made:
        yield made


@pytest.fixture
def server(federation: Federation) -> Server:
    server = federation.start("/la", limits={"workers": 2, "waiting_reads": 2})
    eventually(lambda: is_healthy(server.address))
    return server


def is_healthy(address: str) -> bool:
    """Over a connection of its own."""
    with grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def resident_mib(server: Server) -> float:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


# -- pings ---------------------------------------------------------------------------------------


def test_G6_who_pings_every_second_is_sent_away_and_nobody_else(server: Server) -> None:
    stream = server.watch_stub().Watch(watch_pb2.WatchRequest(path="/la", checkpoint_seconds=1))
    assert next(stream).HasField("authority")
    with Raw(server.port) as raw:
        left = None
        for _ in range(30):
            raw.ping()
            with suppress(ConnectionError):
                frames = raw.receive(1.0)
                left = next((one for one in frames if one.kind == GOAWAY), left)
            if left is not None:
                break
            time.sleep(1.0)
        assert left is not None
        assert left.error_code == ENHANCE_YOUR_CALM
        assert b"too_many_pings" in left.payload
    assert server.outcome("/la") == "resolution"
    assert next(stream).token, "the watch goes on"
    stream.cancel()


@pytest.mark.timeout(900)
def test_G6_our_own_clients_and_servers_never_send_each_other_away(
    server: Server, soak_seconds: float
) -> None:
    """Idle, with a stream, and with calls; ``--soak`` for ten minutes."""
    with RecordingProxy(server.port) as proxy, ExitStack() as cleanup:
        idle = cleanup.enter_context(Resolver(proxy.address, timeout_seconds=20))
        busy = cleanup.enter_context(Resolver(proxy.address, timeout_seconds=20))
        watcher = cleanup.enter_context(Resolver(proxy.address, timeout_seconds=20))
        idle.resolve("/la")
        watching = watcher.watch("/la", checkpoint_seconds=2)
        heard: list[str] = []

        def follow() -> None:
            heard.extend(changes.token for changes in watching)

        follower = threading.Thread(target=follow)
        follower.start()
        deadline = time.monotonic() + soak_seconds
        while time.monotonic() < deadline:
            busy.forget()
            busy.resolve("/la")
            time.sleep(0.5)
        connections = proxy.connections
        idle.forget()
        idle.resolve("/la")
        watching.close()
        follower.join(20)
        assert heard
        assert proxy.connections == connections <= 4, "nobody had to connect again"
        assert proxy.sent_away == []


# -- very many -----------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_G9_thousands_of_idle_connections_cost_little_and_health_answers(
    server: Server, soak_seconds: float
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000 if soak_seconds > 60 else 2_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted + 500), hard))
    count = min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 400)
    before = resident_mib(server)
    try:
        with ExitStack() as cleanup:
            silent = [cleanup.enter_context(connect(server)) for _ in range(count // 4)]
            for one in silent[::2]:
                one.sendall(PREFACE[:9])  # half of a hello
            for _ in range(count * 3 // 4):
                cleanup.enter_context(Raw(server.port))
            assert is_healthy(server.address)
            assert server.outcome("/la") == "resolution"
            assert resident_mib(server) - before < 0.1 * count, "100 KiB each would be much"
            # Those that never said who they are are closed, the idle ones may stay.
            assert eventually(lambda: all(map(is_closed, silent)), 60)
            assert is_healthy(server.address)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def test_G9_no_more_connections_than_the_limit_and_those_that_are_there_go_on(
    federation: Federation,
) -> None:
    server = federation.start("/la", limits={"connections": 40})
    with ExitStack() as cleanup:
        many = [cleanup.enter_context(Raw(server.port)) for _ in range(100)]
        eventually(lambda: sum(is_closed(one.socket) for one in many) >= 60)
        assert sum(is_closed(one.socket) for one in many) <= 62
        assert server.outcome("/la") == "resolution", "over the connection that it had"
    eventually(lambda: is_healthy(server.address))


def test_G9_the_limit_leaves_descriptors_for_the_rest() -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, int(sys.argv[1])))"
        "\nfrom directory.services.server import connection_limit"
        "\nprint(connection_limit(1000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    root = Path(__file__).resolve().parents[2]
    for hard, expected in ((300, "44 300"), (900, "644 900"), (5000, "1000 1256")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(hard)],
            env={**os.environ, "PYTHONPATH": f"{root}:{root / 'proto'}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected
    assert connection_limit(16) == 16


@pytest.mark.timeout(300)
def test_G9_http2_rapid_reset_costs_little_and_health_answers(
    server: Server, soak_seconds: float
) -> None:
    """CVE-2023-44487: a call, and at once its end, again and again."""
    count = 200_000 if soak_seconds > 60 else 8_000
    before = resident_mib(server)
    healthy = 0
    with Raw(server.port) as raw:
        for number in range(count):
            try:
                raw.begin(2 * number + 1, RESOLVE)
                reset = frame(RST_STREAM, 0, 2 * number + 1, CANCEL.to_bytes(4, "big"))
                raw.socket.sendall(reset)
            except OSError:
                break  # it was sent away, which is as good
            if number % (count // 5) == 0:
                # gRPC sheds load at random once a thousand calls wait to be looked at.
                healthy += eventually(lambda: is_healthy(server.address), 60)
    assert healthy >= 1
    assert eventually(lambda: is_healthy(server.address))
    assert server.outcome("/la") == "resolution"
    assert resident_mib(server) - before < 150


def test_G9_calls_whose_request_never_comes_hold_no_thread_for_long(server: Server) -> None:
    with Raw(server.port) as raw:
        raw.begin(1, "/grpc.health.v1.Health/Check")
        for number in range(1, 4):  # as many as there are threads for calls
            raw.begin(2 * number + 1, RESOLVE)
        assert eventually(lambda: server.outcome("/la") == "resolution")
        assert is_healthy(server.address)
        ended: set[int] = set()

        def one_ended() -> bool:
            ended.update(one.stream for one in raw.receive(5) if one.kind == RST_STREAM)
            return bool(ended)

        # It is waited for as long as the largest request may take over a slow line.
        assert eventually(one_ended, 3 * PATIENT_SECONDS), "and is told"


def test_G9_streams_of_reflection_hold_no_thread_that_answers_calls(server: Server) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    gate = threading.Event()
    request: Any = reflection_pb2.ServerReflectionRequest

    def asking() -> Iterator[Any]:
        yield request(list_services="")
        gate.wait(60)

    streams = [stub.ServerReflectionInfo(asking(), timeout=60) for _ in range(20)]
    try:
        for stream in streams:
            assert next(stream).list_services_response.service
        assert server.outcome("/la") == "resolution"
        assert is_healthy(server.address)
    finally:
        gate.set()
        for stream in streams:
            stream.cancel()


def test_a_call_without_a_request_is_refused_by_name(server: Server) -> None:
    stub = resolve_pb2_grpc.ResolveServiceStub(server.channel)
    assert stub.Resolve(resolve_pb2.ResolveRequest(path="/la"), timeout=20).HasField("outcome")
    call: grpc.StreamUnaryMultiCallable[bytes, bytes] = server.channel.stream_unary(RESOLVE)
    with pytest.raises(grpc.RpcError) as caught:
        call(iter(()), timeout=20)
    error = from_rpc_error(caught.value)
    assert error.reason == "INVALID_ARGUMENT"
    assert "without a request" in error.message
