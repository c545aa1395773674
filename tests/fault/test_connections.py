"""Connections that no honest client would make: G6 (pings), G9 (very many, half-open, resets)."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kdir.v1 import resolve_pb2, resolve_pb2_grpc, watch_pb2, watch_pb2_grpc

from directory.api.rpc.listener import connection_limit
from directory.server.config import Limits
from resolver import Resolver
from resolver.error_status import from_rpc_error
from tests.support.federation import Federation, Server, eventually
from tests.support.http2 import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    PREFACE,
    RST_STREAM,
    Raw,
    frame,
)
from tests.support.recording_proxy import RecordingProxy

RESOLVE = "/kdir.v1.ResolveService/Resolve"
CREATE = "/kdir.v1.DirectoryService/CreateEntry"


@pytest.fixture
def server(federation: Federation) -> Server:
    server = federation.start("/la", limits={"read_threads": 2, "max_blocked_reads": 2})
    eventually(lambda: is_healthy(server.address))
    return server


def is_healthy(address: str) -> bool:
    """True if a health check over a connection of its own succeeds."""
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
        received: list[str] = []

        def follow() -> None:
            received.extend(changes.token for changes in watching)

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
        assert received
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
    server = federation.start("/la", limits={"max_connections": 40})
    with ExitStack() as cleanup:
        many = [cleanup.enter_context(Raw(server.port)) for _ in range(100)]
        eventually(lambda: sum(is_closed(one.socket) for one in many) >= 60)
        assert sum(is_closed(one.socket) for one in many) <= 62
        assert server.outcome("/la") == "resolution", "over the connection that it had"
    eventually(lambda: is_healthy(server.address))


def test_G9_the_limit_leaves_descriptors_for_the_rest() -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, int(sys.argv[1])))"
        "\nfrom directory.api.rpc.listener import connection_limit"
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


def test_G9_calls_whose_request_never_comes_hold_no_thread(federation: Federation) -> None:
    limits = {
        "read_threads": 2,
        "max_blocked_reads": 2,
        "write_threads": 2,
        "request_seconds": 2,
        "connection_calls": 200,
    }
    server = federation.start("/la", limits=limits)
    eventually(lambda: is_healthy(server.address))
    with Raw(server.port) as raw:
        raw.begin(1, "/grpc.health.v1.Health/Check")
        for number in range(1, 200):  # many times as many as there are threads for calls
            raw.begin(2 * number + 1, RESOLVE if number % 2 else CREATE)
        assert server.outcome("/la") == "resolution"
        server.mkdir("/la/x")
        assert is_healthy(server.address)
        ended: set[int] = set()

        def all_ended() -> bool:
            ended.update(one.stream for one in raw.receive(5) if one.ends_stream)
            return len(ended) == 200

        # It is waited for as long as the largest request may take over a slow line.
        assert eventually(all_ended, 60), "and each is told"


@pytest.mark.parametrize("times", [1, 2, 10])
def test_of_unfinished_requests_beyond_the_bound_the_oldest_are_refused(
    federation: Federation, times: int
) -> None:
    limits = {"unfinished_requests": 64, "request_seconds": 600, "connection_calls": 200}
    server = federation.start("/la", limits=limits)
    with ExitStack() as cleanup:
        raws = [cleanup.enter_context(Raw(server.port)) for _ in range(4)]
        # At the bound there is room for the call of ``outcome``, whose request comes at once.
        for number in range(64 * times - (times == 1)):
            raws[number % 4].begin(2 * (number // 4) + 1, RESOLVE)
        assert server.outcome("/la") == "resolution"
        ended = set[tuple[int, int]]()

        def refused(least: int) -> bool:
            for which, raw in enumerate(raws):
                with suppress(TimeoutError):
                    frames = raw.receive(0.5)
                    ended.update((which, one.stream) for one in frames if one.ends_stream)
            return len(ended) >= least

        if times == 1:
            assert not refused(1), "at the bound nobody is refused"
        else:
            assert eventually(lambda: refused(64 * (times - 1)), 60)
            early = 0
            for which in range(4):  # the server may read one connection before another
                gone = {stream for other, stream in ended if other == which}
                early += len(gone - set(range(1, 2 * len(gone), 2)))
            # gRPC gives a call that comes just as the server asks for one ahead of those that wait.
            # Were any taken, every second one was early.
            assert early <= len(ended) / 4, "the oldest go first"
        assert server.outcome("/la") == "resolution"


def test_streams_of_a_connection_are_bounded_and_others_watch_on(federation: Federation) -> None:
    server = federation.start("/la", limits={"connection_streams": 5})
    request = watch_pb2.WatchRequest(path="/la")
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(server.address, options) as channel:
        stub = watch_pb2_grpc.WatchServiceStub(channel)
        streams = [stub.Watch(request, timeout=60) for _ in range(5)]
        assert all(next(stream).HasField("authority") for stream in streams), "at the bound"
        # At a time, since each of them is refused a second later.
        for one in [stub.Watch(request, timeout=60) for _ in range(50)]:
            with pytest.raises(grpc.RpcError) as caught:
                next(one)
            error = from_rpc_error(caught.value)
            assert error.reason == "LIMIT_EXCEEDED"
            assert "5 open streams" in error.message
        assert next(server.watch_stub().Watch(request, timeout=60)).HasField("authority")
        streams.pop().cancel()

        def begins() -> bool:
            streams.append(stub.Watch(request, timeout=60))
            return next(streams[-1]).HasField("authority")

        assert eventually(begins), "one that ended leaves its place"


def test_watchers_of_health_are_bounded_and_one_that_reads_nothing_delays_nobody(
    federation: Federation,
) -> None:
    server = federation.start("/la", limits={"health_watchers": 3})
    eventually(lambda: is_healthy(server.address))
    with ExitStack() as cleanup:
        stuck = cleanup.enter_context(Raw(server.port, window=0))
        streams = count(1, 2)
        stuck.request(next(streams), "/grpc.health.v1.Health/Watch", b"")
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = cleanup.enter_context(grpc.insecure_channel(server.address, options))
        stub: Any = health_pb2_grpc.HealthStub(channel)
        unknown = health_pb2.HealthCheckRequest(service="x" * 1000)
        watchers = [stub.Watch(unknown, timeout=60) for _ in range(2)]
        for watcher in watchers:
            assert next(watcher).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        assert is_healthy(server.address)

        def is_refused() -> bool:
            one_more = stub.Watch(unknown, timeout=60)
            reason = how_it_begins(one_more)
            one_more.cancel()
            if reason != "LIMIT_EXCEEDED":  # the stuck one may find the place taken by this one
                stuck.request(next(streams), "/grpc.health.v1.Health/Watch", b"")
            return reason == "LIMIT_EXCEEDED"

        assert eventually(is_refused)
        assert is_healthy(server.address)


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
        reasons = Counter(map(how_it_begins, streams))
        most = Limits().reflection_streams
        assert reasons == {"": most, "LIMIT_EXCEEDED": len(streams) - most}
        assert server.outcome("/la") == "resolution"
        assert is_healthy(server.address)
    finally:
        gate.set()
        for stream in streams:
            stream.cancel()


def how_it_begins(stream: Any) -> str:
    """Returns "" where a stream's first message came, else the reason of its error."""
    try:
        next(stream)
    except grpc.RpcError as error:
        return from_rpc_error(error).reason
    return ""


def test_a_call_without_a_request_is_refused_by_name(server: Server) -> None:
    stub = resolve_pb2_grpc.ResolveServiceStub(server.channel)
    assert stub.Resolve(resolve_pb2.ResolveRequest(path="/la"), timeout=20).HasField("outcome")
    call: grpc.StreamUnaryMultiCallable[bytes, bytes] = server.channel.stream_unary(RESOLVE)
    with pytest.raises(grpc.RpcError) as caught:
        call(iter(()), timeout=20)
    error = from_rpc_error(caught.value)
    assert error.reason == "INVALID_ARGUMENT"
    assert "without a request" in error.message


# -- what is sent, and what is not read ----------------------------------------------------------


@pytest.mark.parametrize(("size", "is_taken"), [(7_000, True), (9_000, False), (80_000, False)])
def test_metadata_is_bounded(federation: Federation, size: int, is_taken: bool) -> None:
    server = federation.start("/la", limits={"metadata_bytes": 8_192})
    stub: Any = resolve_pb2_grpc.ResolveServiceStub(server.channel)
    request = resolve_pb2.ResolveRequest(path="/la")
    metadata = (("x-more", "x" * size),)
    if is_taken:
        assert stub.Resolve(request, timeout=20, metadata=metadata).HasField("outcome")
        return
    # Each of them, not now and then.
    for call in [stub.Resolve.future(request, timeout=20, metadata=metadata) for _ in range(20)]:
        with pytest.raises(grpc.RpcError) as caught:
            call.result()
        assert from_rpc_error(caught.value).reason == "LIMIT_EXCEEDED"
    assert server.outcome("/la") == "resolution"


@pytest.mark.parametrize("times", [1, 2, 10])
def test_answers_that_are_not_read_are_bounded_and_dropped_in_time(
    federation: Federation, times: int
) -> None:
    """gRPC keeps each until its caller reads it: 50 of 4 MB took 400 MB."""
    limits = {
        "answer_bytes": 1 << 20,
        "principal_unsent_bytes": 10 << 20,
        "unsent_bytes": 20 << 20,
        "max_call_seconds": 5,
    }
    server = federation.start("/la", limits=limits)
    server.mkdir("/la/" + "/".join(["x" * 240] * 3))
    path = "/la/" + "/".join(["x" * 240] * 3)
    message = resolve_pb2.BatchResolveRequest(paths=[path] * 1_200).SerializeToString()
    before = resident_mib(server)
    with Raw(server.port, window=0) as raw:
        sent = threading.Event()

        def read() -> None:
            with suppress(OSError, ConnectionError):
                while not sent.is_set():
                    raw.receive(0.2)

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(10 * times):
            raw.request(2 * number + 1, "/kdir.v1.ResolveService/BatchResolve", message)
            # A server's window for a connection is small: it grows as it reads.
            time.sleep(0.02)
        assert server.outcome("/la") == "resolution", "others read on"
        assert resident_mib(server) - before < 100, "however many were asked for"
        sent.set()
        reader.join()
    assert eventually(lambda: resident_mib(server) - before < 60, 60)
