"""What a running server writes to its log, and how an error is found there by its request id."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from kdir.v1 import directory_pb2, directory_pb2_grpc, resolve_pb2, resolve_pb2_grpc

from deploy.local.process import LocalProcess
from resolver.error_status import from_rpc_error
from resolver.errors import KdirError
from tests.support.federation import eventually
from tests.support.server_command import serve

FORGED = '/la/x\r\n{"level": "ERROR", "message": "all is lost"}\r\n2026-11-21T00:00:00.000Z ERROR'


_SERVING = re.compile(r"""(?:^|")serving /la .* on ([\d.:]+)""", re.MULTILINE)


class Logged:
    """A server of its own, with the words of its command line."""

    def __init__(
        self, folder: Path, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        store = f"sqlite:///{folder}/store.sqlite"
        self.process = LocalProcess(
            [
                *(sys.executable, "-m", "directory", "--mount", "/la"),
                *("--listen", "127.0.0.1:0", "--store", store, *arguments),
            ],
            folder / "server.log",
            environment=environment,
        )
        self.process.start()
        self.process.await_ready(lambda: bool(_SERVING.findall(self.text)), 30)
        (self.address,) = _SERVING.findall(self.text)
        self.channel = grpc.insecure_channel(self.address)

    @property
    def text(self) -> str:
        return self.process.log.read_text()

    @property
    def lines(self) -> list[str]:
        """Without what is said on stdout."""
        return [line for line in self.text.splitlines() if not line.startswith("serving ")]

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def resolve(self, path: str, request_id: str = "") -> KdirError | None:
        """Returns what went wrong."""
        stub = resolve_pb2_grpc.ResolveServiceStub(self.channel)
        metadata = (("x-request-id", request_id),) if request_id else ()
        try:
            stub.Resolve(resolve_pb2.ResolveRequest(path=path), timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return from_rpc_error(error)
        return None

    def reported(self, **facts: str) -> dict[str, Any]:
        """Returns the one line with these facts, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [one for one in self.objects if facts.items() <= one.items()]

        eventually(found)
        (line,) = found()
        return line


Start = Callable[..., Logged]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as cleanup:

        def begin(*arguments: str, **options: Any) -> Logged:
            made = Logged(tmp_path, *arguments, **options)
            cleanup.callback(made.process.kill)
            cleanup.callback(made.channel.close)
            return made

        yield begin


def test_a_failed_call_is_one_object_with_its_reason_and_its_callers_request_id(
    start: Start,
) -> None:
    server = start(environment={"KDIR_LOG_FORMAT": "json"})
    error = server.resolve(FORGED, "order-4711")
    assert error is not None
    assert (error.reason, error.metadata["request_id"]) == ("INVALID_PATH", "order-4711")
    line = server.reported(request_id="order-4711")
    assert line["level"] == "INFO"
    assert line["logger"] == "directory.calls"
    assert (line["method"], line["code"]) == ("ResolveService/Resolve", "INVALID_ARGUMENT")
    assert line["reason"] == "INVALID_PATH"
    assert line["path"] == FORGED
    assert line["cluster"] == "la"
    assert line["server"].startswith("la-")
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert line["seconds"] >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert not [one for one in server.objects if one["message"] == "all is lost"]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_with_json_every_line_of_both_streams_is_an_object(start: Start, processes: str) -> None:
    flags = ("--metrics", "127.0.0.1:0") if processes == "1" else ("--processes", processes)
    server = start("--log-format", "json", *flags)
    everything = [json.loads(line) for line in server.text.splitlines()]
    (serving,) = [one for one in everything if one["message"].startswith("serving ")]
    assert serving["message"].endswith(f" on {server.address}")
    assert (serving["level"], serving["cluster"]) == ("INFO", "la")
    metrics = [one for one in everything if one["message"].startswith("metrics on http://")]
    assert len(metrics) == (processes == "1")


def test_a_request_id_is_made_where_the_callers_is_none(start: Start) -> None:
    server = start("--log-format", "json")
    for sent in ("", 'x" level="ERROR', "x" * 65):
        error = server.resolve("nonsense", sent)
        assert error is not None
        made = error.metadata["request_id"]
        assert re.fullmatch(r"[0-9a-f]{16}", made)
        server.reported(request_id=made)
    assert "x" * 65 not in server.text


def test_calls_that_end_well_are_logged_at_debug_only(start: Start) -> None:
    server = start("--log-format", "json", "--log-level", "DEBUG")
    eventually(lambda: server.resolve("/la", "good-1") is None)
    line = server.reported(request_id="good-1", code="OK")
    assert (line["level"], line["path"]) == ("DEBUG", "/la")


def test_nothing_is_logged_of_calls_that_end_well_otherwise(start: Start) -> None:
    server = start()
    eventually(lambda: server.resolve("/la", "good-1") is None)
    server.resolve("nonsense", "bad-1")
    eventually(lambda: "bad-1" in server.text)
    assert "good-1" not in server.text


def test_lines_for_people_carry_the_request_id_and_nothing_passes_for_one(start: Start) -> None:
    server = start()
    server.resolve(FORGED, "order-4711")
    eventually(lambda: "order-4711" in server.text)
    (line,) = [one for one in server.lines if "order-4711" in one]
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO directory\.calls \[order-4711\]: "
        r"ResolveService/Resolve INVALID_ARGUMENT INVALID_PATH in ",
        line,
    )
    assert all(re.match(r"\d{4}-.* (INFO|WARNING) directory", one) for one in server.lines)


def test_a_write_keeps_its_own_request_id_which_is_another_thing(start: Start) -> None:
    server = start("--log-format", "json")
    stub = directory_pb2_grpc.DirectoryServiceStub(server.channel)
    request = directory_pb2.DeleteEntryRequest(path="/la/nothing", request_id="once-1")
    with pytest.raises(grpc.RpcError) as caught:
        stub.DeleteEntry(request, timeout=10, metadata=(("x-request-id", "call-1"),))
    assert from_rpc_error(caught.value).metadata["request_id"] == "call-1"
    server.reported(request_id="call-1")


def test_a_stdout_that_cannot_be_written_does_not_end_a_server(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "directory", "--mount", "/la", "--listen", "127.0.0.1:0"),
        *("--store", f"sqlite:///{tmp_path}/store.sqlite"),
    ]
    log = tmp_path / "server.log"
    with Path("/dev/full").open("w") as full, log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=full, stderr=stderr)
    try:
        eventually(
            lambda: (
                "stdout cannot be written: No space left on device" in log.read_text()
                or process.poll() is not None
            ),
            timeout_seconds=60,
        )
        assert process.poll() is None, log.read_text()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "unforeseen" not in log.read_text()


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_stores_password_is_never_written(tmp_path: Path, form: str) -> None:
    process = LocalProcess(
        [
            *(sys.executable, "-m", "directory", "--mount", "/la", "--log-format", form),
            *("--listen", "127.0.0.1:0", "--log-level", "DEBUG"),
            *("--store", "etcd://root:s3cr3t@127.0.0.1:1/la"),
        ],
        tmp_path / "server.log",
    )
    process.start()
    try:
        eventually(lambda: "its store is away" in process.log.read_text(), timeout_seconds=60)
    finally:
        process.stop()
    assert "s3cr3t" not in process.log.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--store", "etcd://root:s3cr3t@127.0.0.1:1/la", "--check"),
        ("--store", "etcd://root:s3cr3t@no port/la"),
        ("--store", "nothing://root:s3cr3t@127.0.0.1:1/la"),
    ],
)
def test_nor_is_it_logged_at_the_start(arguments: tuple[str, ...]) -> None:
    ended = serve("--mount", "/la", *arguments)
    output = ended.stdout + ended.stderr
    assert output
    assert "s3cr3t" not in output


def test_a_form_that_there_is_not_is_refused(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "directory", "--mount", "/la", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"KDIR_LOG_FORMAT": "yaml", "HOME": str(tmp_path)},
    )
    assert ended.returncode == 2
    assert "KDIR_LOG_FORMAT: found 'yaml'; expected text or json" in ended.stderr
