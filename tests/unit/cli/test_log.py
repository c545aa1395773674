"""`kdir log`: what is given up was shown; and which changes have one server's whole time."""

from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from kdir.v1 import admin_pb2, watch_pb2

from resolver.errors import DeadlineExceeded
from resolver.testing import MemoryDirectory, MemoryTransport
from resolver.transport import Method
from tests.support.command_line import run


class Timed(MemoryTransport):
    """Transport that keeps each request with the time that its server has."""

    def __init__(self) -> None:
        super().__init__()
        self.timed: list[tuple[str, Any, float]] = []

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        self.timed.append((method.name, request, timeout_seconds))
        return super().call(endpoint, method, request, timeout_seconds, cluster_id=cluster_id)


@pytest.mark.parametrize("path", [(), ("/",)])
@pytest.mark.parametrize("action", ["skip", "resync", "off"])
def test_a_change_of_the_log_has_the_whole_time_of_its_first_server(
    path: tuple[str, ...], action: str
) -> None:
    method = {"skip": "SkipChangeLog", "resync": "ResyncChangeLog", "off": "EndChangeLog"}[action]
    with MemoryDirectory() as directory:
        transport = directory.transport = Timed()
        endpoint = directory.cluster("/", "la")
        answer = transport.handler(endpoint)
        other = "127.0.0.1:1"

        def handle(name: str, request: Any) -> Any:
            if name == f"AdminService.{method}":
                raise DeadlineExceeded("it is slow")
            if name != "WatchService.GetChangeLog":
                return answer(name, request)
            found = watch_pb2.GetChangeLogResponse(configured=True, waiting_commits=3)
            found.authority.cluster.cluster_id = directory.at("/").cluster_id
            found.authority.cluster.cluster = "la"
            found.authority.revision = 17
            return found

        for server in (endpoint, other):
            transport.serve(server, handle)
        at = f"{endpoint},{other}"
        done = run(["--at", at, "--timeout", "8", "log", action, *path, "--yes"], transport)
    assert done.code == 3
    sent = [one for one in transport.timed if one[0].endswith(method)]
    assert sent[0][2] > 4, "not half a second, after which another server would do it again"
    if action == "skip":
        assert sent[0][1].revision == 17, "the newest that was shown"


@pytest.mark.parametrize("of", [("--cluster", "la"), ("/",)], ids=["by-cluster", "by-path"])
@pytest.mark.parametrize("action", ["attach", "detach"])
def test_R20_a_server_that_hangs_has_its_share_of_the_time_for_what_may_be_done_twice(
    action: str, of: tuple[str, ...]
) -> None:
    with MemoryDirectory() as directory:
        transport = directory.transport = Timed()
        endpoint = directory.cluster("/", "la")
        answer = transport.handler(endpoint)
        other = "127.0.0.1:1"
        asked: list[str] = []

        def handle(server: str, name: str, request: Any) -> Any:
            if name == "AdminService.GetStatus":
                status = admin_pb2.GetStatusResponse()
                status.parent.detached_reason = "it was detached"
                return status
            if name not in {"AdminService.DetachParent", "AdminService.AttachParent"}:
                return answer(name, request)
            asked.append(server)
            if len(asked) < 2:
                raise DeadlineExceeded("it hangs")
            detaches = name == "AdminService.DetachParent"
            return (
                admin_pb2.DetachParentResponse() if detaches else admin_pb2.AttachParentResponse()
            )

        for server in (endpoint, other):
            transport.serve(server, partial(handle, server))
        keep = ["--keep-inherited"] if action == "detach" else []
        options = ["--at", f"{endpoint},{other}", "--timeout", "8"]
        done = run([*options, "parent", action, *of, "--yes", *keep], transport)
    assert done.code == 0, done.err
    assert sorted(asked) == sorted((endpoint, other))
    (first, second) = [one[2] for one in transport.timed if one[0].endswith("Parent")]
    assert 1 < first <= 4 < second, "half of the time; no less, since a change may take long"


@pytest.mark.parametrize(
    ("commits", "text"), [(2, "la: 2 commits given up; "), (0, "la: nothing more was given up: ")]
)
def test_skip_prints_how_many_commits_were_given_up(commits: int, text: str) -> None:
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", "la")
        answer = directory.transport.handler(endpoint)

        def handle(name: str, request: Any) -> Any:
            if name == "AdminService.SkipChangeLog":
                return admin_pb2.SkipChangeLogResponse(commits=commits)
            if name != "WatchService.GetChangeLog":
                return answer(name, request)
            found = watch_pb2.GetChangeLogResponse(configured=True, waiting_commits=3)
            found.authority.cluster.cluster = "la"
            return found

        directory.transport.serve(endpoint, handle)
        done = run(["--at", endpoint, "log", "skip", "--yes"], directory.transport)
    assert done.code == 0
    assert done.err.startswith(text)
