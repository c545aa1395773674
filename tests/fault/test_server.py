"""A directory server under bad input and on bad days: G1 to G5, G10, kill -9."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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

from deploy.local.ports import free_port
from directory.api.cluster_router import ClusterRouter
from directory.api.directory_service import DirectoryService
from directory.api.rpc.call_context import Call
from directory.namespace.command import CreateDirectory
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from resolver.error_status import from_rpc_error
from resolver.errors import Cancelled, KdirError
from resolver.path import Path as Path_
from tests.support.federation import Federation, Server, eventually
from tests.support.server_command import serve

RAW_RESOLVE = "/kdir.v1.ResolveService/Resolve"


@pytest.fixture
def server(federation: Federation) -> Server:
    return federation.start("/la", limits={"read_threads": 4})


@pytest.fixture(scope="module")
def sturdy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields one server for the tests that must leave it as it was."""
    with Federation(tmp_path_factory.mktemp("sturdy")) as made:
        yield made.start("/la", limits={"read_threads": 4})


def raw(server: Server, method: str, request: bytes, timeout: float | None = 10.0) -> bytes:
    """Calls a method with bytes that no client library would send."""
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = server.channel.unary_unary(method)
    try:
        answer: bytes = call(request, timeout=timeout)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None
    return answer


def field(number: int, value: bytes) -> bytes:
    """Returns a length-delimited field in protobuf's wire format."""
    size, length = bytearray(), len(value)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + value


@pytest.mark.parametrize(
    ("path", "reason", "arguments"),
    [
        (b"//", "INVALID_PATH", "segment 1 is empty"),
        (b"", "INVALID_PATH", "must begin with '/'"),
        (b"/la/", "INVALID_PATH", "segment 2 is empty"),
        (b"/la/../x", "INVALID_PATH", "segment 2 is '..'"),
        (b"/la/a\0b", "INVALID_PATH", "segment 2"),
        (b"/la/" + b"x" * 250, "INVALID_PATH", "250 characters"),
        (b"/a" * 65, "INVALID_PATH", "65 segments"),
        (b"/a" * 30_000, "INVALID_PATH", "30000 segments"),
        (b"/" + b"x" * (60 * 1024), "INVALID_PATH", "bytes"),
        (b"/a" * 1_000_000, "LIMIT_EXCEEDED", "request: found 200000"),
        (b"/la/\xff\xfe", "INVALID_PATH", "segment 2: byte 4 is 0xff"),
        (b"/la/" + "é".encode(), "INVALID_PATH", "segment 2"),
    ],
)
def test_G5_a_bad_path_is_refused_by_name(
    sturdy: Server, path: bytes, reason: str, arguments: str
) -> None:
    with pytest.raises(KdirError) as caught:
        raw(sturdy, RAW_RESOLVE, field(1, path))
    assert caught.value.reason == reason
    assert arguments in caught.value.message
    assert sturdy.outcome("/la") == "resolution"


def test_G5_a_request_of_five_mebibytes_is_refused(sturdy: Server) -> None:
    with pytest.raises(KdirError) as caught:
        raw(sturdy, RAW_RESOLVE, field(1, b"/" + b"x" * (5 * 1024 * 1024)))
    assert caught.value.reason == "LIMIT_EXCEEDED"
    assert sturdy.outcome("/la") == "resolution"


def test_G5_nonsense_is_refused(sturdy: Server) -> None:
    for junk in (b"\xff\xff\xff", b"\x0a\x05ab", b"\x0b" * 100):
        with pytest.raises(KdirError) as caught:
            raw(sturdy, RAW_RESOLVE, junk)
        assert caught.value.reason == "INVALID_ARGUMENT"


def test_G5_bytes_that_are_no_grpc_at_all_hurt_nobody(server: Server) -> None:
    for junk in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999,
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(junk)
    assert server.outcome("/la") == "resolution"


def test_G1_a_call_without_a_deadline_gets_the_servers_own(federation: Federation) -> None:
    server = federation.start("/la", limits={"max_call_seconds": 0.5})
    token = server.mkdir("/la/x").token
    future = _later(token, 1_000)
    stub = directory_pb2_grpc.DirectoryServiceStub(server.channel)
    with pytest.raises(grpc.RpcError) as caught:
        # It waits for a revision that never comes, and for no longer than the server's cap.
        stub.GetEntry(directory_pb2.GetEntryRequest(path="/la", token=future))
    assert from_rpc_error(caught.value).reason in {"TOKEN_FROM_FUTURE", "DEADLINE_EXCEEDED"}


def _later(token: str, revisions: int) -> str:
    from resolver.revision_token import Token

    ((cluster, place),) = Token.parse(token).positions.items()
    return str(Token.from_position(cluster, place.incarnation, place.revision + revisions))


def test_N3_a_token_that_is_forged_of_another_cluster_or_incarnation(server: Server) -> None:
    from resolver.revision_token import Token

    good = server.mkdir("/la/x").token
    assert server.outcome("/la/x", token=good) == "resolution"
    assert server.outcome("/la/x", token="nonsense") == "INVALID_TOKEN"
    assert server.outcome("/la/x", token=good[:-2] + "aa") == "INVALID_TOKEN"
    assert (
        server.outcome("/la/x", token=str(Token.from_position("kc-other", "i", 9))) == "resolution"
    )
    ((cluster, place),) = Token.parse(good).positions.items()
    assert server.outcome(
        "/la", token=str(Token.from_position(cluster, "older", place.revision))
    ) == ("TOKEN_EXPIRED")


def test_G2_work_for_a_caller_who_went_away_stops(tmp_path: Path) -> None:
    config = ServerConfig.quick(
        Path_.parse("/la"), cluster="la", store=f"sqlite:///{tmp_path}/store.sqlite"
    )
    cluster = Cluster.open(config)
    cluster.start()
    try:
        eventually(lambda: cluster.replica.reported_revision >= 0)  # later than the snapshot
        for number in range(3_000):
            cluster.writer.commit_command(CreateDirectory(path=Path_.parse(f"/la/d{number}")))
        looks = 0

        def is_active() -> bool:
            nonlocal looks
            looks += 1
            return looks < 2

        call = Call(time.monotonic() + 60, is_active=is_active)
        request = directory_pb2.ListEntriesRequest(path="/la", page_size=10_000)
        with pytest.raises(Cancelled):
            DirectoryService(ClusterRouter([cluster])).list_entries(request, call)
        assert looks == 2  # it looked between two chunks, and went no further
    finally:
        cluster.stop()


def test_G3_watches_hold_no_thread_that_answers_calls(server: Server) -> None:
    streams = [
        server.watch_stub().Watch(watch_pb2.WatchRequest(path="/la", checkpoint_seconds=1))
        for _ in range(40)  # ten times as many as threads that answer calls
    ]
    try:
        for stream in streams:
            assert next(stream).HasField("authority")
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.outcome("/la"), range(100)))
        assert answers == ["resolution"] * 100
        server.mkdir("/la/seen")
        for stream in streams:
            events = next(answer.events for answer in stream if answer.events)
            assert [event.path for event in events] == ["/la/seen"]
    finally:
        for stream in streams:
            stream.cancel()


def test_G4_pages_hold_together_and_their_tokens_cannot_be_forged(server: Server) -> None:
    for number in range(25):
        server.mkdir(f"/la/d{number:02}")
    first = server.entries("ListEntries", path="/la", page_size=10)
    assert len(first.entries) == 10
    server.mkdir("/la/d00x")
    later = server.entries(
        "ListEntries", path="/la", page_size=10, page_token=first.next_page_token
    )
    assert later.revision_changed
    assert later.entries[0].path == "/la/d10"
    with pytest.raises(KdirError) as caught:
        server.entries(
            "ListEntries",
            path="/la",
            page_size=10,
            page_token=first.next_page_token,
            one_revision=True,
        )
    assert caught.value.reason == "REVISION_GONE"
    for token in ("x", first.next_page_token[:-3] + "abc", first.next_page_token + "A"):
        with pytest.raises(KdirError) as caught:
            server.entries("ListEntries", path="/la", page_token=token)
        assert caught.value.reason == "INVALID_PAGE_TOKEN"
    with pytest.raises(KdirError) as caught:
        server.entries("ListEntries", path="/la/d00", page_token=first.next_page_token)
    assert caught.value.reason == "INVALID_PAGE_TOKEN"
    with pytest.raises(KdirError) as caught:
        server.entries("ListEntries", path="/la", page_size=-1)
    assert caught.value.reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_G10_a_signal_drains_and_ends_with_0(
    federation: Federation, number: signal.Signals
) -> None:
    server = federation.start("/la", limits={"drain_seconds": 10})
    server.mkdir("/la/x")
    stream = server.watch_stub().Watch(watch_pb2.WatchRequest(path="/la"))
    token = next(stream).token
    process = server.process
    process.signal(number)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stream:
            pass
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert process.wait(20) == 0
    server.process.kill()
    server.start()
    # The watcher goes on where it was.
    server.mkdir("/la/y")
    resumed = server.watch_stub().Watch(watch_pb2.WatchRequest(path="/la", after_token=token))
    events = eventually(lambda: next(one.events for one in resumed if one.events))
    assert [event.path for event in events] == ["/la/y"]
    resumed.cancel()


def test_kill_9_at_any_moment_loses_nothing_acknowledged(federation: Federation) -> None:
    server = federation.start("/la")
    kept: list[str] = []

    def write(worker: int, stop: threading.Event) -> None:
        stub = directory_pb2_grpc.DirectoryServiceStub(server.channel)
        entry = entry_pb2.Entry(directory=entry_pb2.Directory())
        for number in range(10_000):
            if stop.is_set():
                return
            path = f"/la/w{worker}-{len(kept)}-{number}"
            try:
                stub.CreateEntry(
                    directory_pb2.CreateEntryRequest(path=path, entry=entry), timeout=5
                )
            except grpc.RpcError:
                return
            kept.append(path)

    for round_number in range(4):
        stop = threading.Event()
        writers = [threading.Thread(target=write, args=(one, stop)) for one in range(3)]
        for writer in writers:
            writer.start()
        time.sleep(0.2 + 0.1 * round_number)
        server.kill()
        stop.set()
        for writer in writers:
            writer.join()
        server.start()
        eventually(lambda: server.outcome("/la") == "resolution")
    found = {f"/la/{name}" for name in server.names("/la", page_size=10_000)}
    assert kept
    assert set(kept) <= found


def test_what_cannot_be_used_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    store = f'store = "sqlite:///{tmp_path}/store.sqlite"\n'
    listen = f'listen = "127.0.0.1:{free_port()}"\n'

    def refused(text: str, *arguments: str) -> None:
        config.write_text(text)
        ended = serve("--config", str(config))
        assert ended.returncode == 2, ended
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
        for argument in arguments:
            assert argument in line
        assert "Traceback" not in ended.stderr

    refused(store + "mont = '/la'\n", "'mont'", "'mount'")
    refused(store + "listen = '0.0.0.0:1'\n", "loopback")
    assert not (tmp_path / "store.sqlite").exists()  # nothing was touched
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(store + f'mount = "/la"\nlisten = "127.0.0.1:{port}"\n', str(port))
    (tmp_path / "store.sqlite").unlink(missing_ok=True)
    with Server(tmp_path / "one", "/la", {"store": f"sqlite:///{tmp_path}/store.sqlite"}):
        pass
    refused(store + listen + 'mount = "/ny"\n', "ny", "la")
    (tmp_path / "other.sqlite").write_text("this is no database, whatever it says it is\n" * 99)
    refused(store.replace("store.sqlite", "other.sqlite") + listen + 'mount = "/la"\n', "database")


def test_check_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(
        f'mount = "/la/tracking"\nstore = "sqlite:///{tmp_path}/s.sqlite"\n'
        '[kafka]\nbootstrap = "127.0.0.1:9"\nceiling = ["create"]\n'
    )
    ended = serve("--check", "--config", str(config))
    assert ended.returncode == 0
    assert "/la/tracking" in ended.stdout
    assert "create" in ended.stdout
    assert not (tmp_path / "s.sqlite").exists()


def test_several_clusters_in_one_process(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    for mount, listen in (("/", port), ("/la", port), ("/ny", other)):
        name = mount.strip("/") or "root"
        (tmp_path / f"{name}.toml").write_text(
            f'mount = "{mount}"\nlisten = "127.0.0.1:{listen}"\n'
            f'store = "sqlite:///{name}.sqlite"\n'
            + ("" if mount == "/" else f'parent = ["127.0.0.1:{port}"]\n')
        )
    from deploy.local.process import LocalProcess

    process = LocalProcess(
        [sys.executable, "-m", "directory", "--config", tmp_path], tmp_path / "log"
    )
    process.start()
    try:
        process.await_ready(lambda: process.log.read_text().count("serving ") == 3, 30)
        host = Server(tmp_path / "client", "/", {})
        host.address = f"127.0.0.1:{port}"
        eventually(lambda: len(host.mounts().pending_children) == 2)
        for mount in ("la", "ny"):
            host.mount_child(f"/{mount}", mount)
        host.mkdir("/la/x")
        answer = host.resolve("/la/x")
        assert answer.authority.cluster.mount == "/la"
        eventually(lambda: host.outcome("/ny/x") == "referral")
        request = resolve_pb2.BatchResolveRequest(paths=["/la/x", "/", "/bad//", "/no"])
        resolve_stub = resolve_pb2_grpc.ResolveServiceStub(host.channel)
        batch = resolve_stub.BatchResolve(request, timeout=20)
        kinds = [outcome.WhichOneof("kind") for outcome in batch.outcomes]
        assert kinds == ["resolution", "resolution", "error", "absent"]
        mounts = [
            batch.authorities[outcome.resolution.authority_index].cluster.mount
            for outcome in batch.outcomes[:2]
        ]
        assert mounts == ["/la", "/"]
        host.close()
    finally:
        process.stop()


def test_health_and_reflection(server: Server) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    health: Any = health_pb2_grpc.HealthStub(server.channel)
    eventually(
        lambda: (
            health.Check(health_pb2.HealthCheckRequest(), timeout=5).status
            == health_pb2.HealthCheckResponse.SERVING
        )
    )
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    asking: Any = reflection_pb2.ServerReflectionRequest
    request = asking(list_services="")
    (answer,) = reflection.ServerReflectionInfo(iter([request]), timeout=20)
    names = {service.name for service in answer.list_services_response.service}
    assert {"kdir.v1.ResolveService", "kdir.v1.DirectoryService"} <= names
    asked = asking(file_containing_symbol="kdir.v1.ResolveService")
    (found,) = reflection.ServerReflectionInfo(iter([asked]), timeout=20)
    assert found.file_descriptor_response.file_descriptor_proto
