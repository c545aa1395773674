"""N2 and N3 across two servers of one store: with a token never older, without one boundedly so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from kdir.v1 import directory_pb2, directory_pb2_grpc, entry_pb2, resolve_pb2, resolve_pb2_grpc

from directory.cluster import Cluster
from directory.config import Limits, ServerConfig
from directory.services import consistency
from directory.services.server import DirectoryServer
from directory.store.replica import ReplicaState
from resolver.errors import KdirError
from resolver.path import Path as TreePath
from resolver.status import from_rpc_error
from resolver.token import Token
from tests.federation import eventually


class One:
    """A server in this process, whose replica can be made to lag."""

    def __init__(self, store: str, cleanup: ExitStack, **limits: Any) -> None:
        config = ServerConfig.quick(
            TreePath.parse("/la"),
            cluster="la",
            store=store,
            listen="127.0.0.1:0",
            limits=Limits(drain_seconds=0.1, **limits),
        )
        self.cluster = Cluster.open(config)
        cleanup.callback(self.cluster.stop)
        self._gate = threading.Event()
        self._gate.set()
        self.cluster.replica.subscribe(self._hold)
        server = DirectoryServer([self.cluster], config.listen)
        cleanup.callback(server.drain)
        cleanup.callback(self._gate.set)
        self.cluster.start()
        server.start()
        eventually(lambda: self.cluster.replica.state is ReplicaState.SERVING)
        self.channel = cleanup.enter_context(grpc.insecure_channel(server.address))

    def _hold(self, _: object) -> None:
        self._gate.wait(60)

    def lag(self) -> None:
        """The next change still comes, then none."""
        self._gate.clear()

    def catch_up(self) -> None:
        self._gate.set()

    def mkdir(self, path: str) -> str:
        stub = directory_pb2_grpc.DirectoryServiceStub(self.channel)
        entry = entry_pb2.Entry(directory=entry_pb2.Directory())
        request = directory_pb2.CreateEntryRequest(path=path, entry=entry)
        return str(stub.CreateEntry(request, timeout=20).token)

    def resolve(
        self, path: str, token: str = "", timeout: float = 20
    ) -> resolve_pb2.ResolveResponse:
        stub = resolve_pb2_grpc.ResolveServiceStub(self.channel)
        request = resolve_pb2.ResolveRequest(path=path, token=token)
        try:
            answer: resolve_pb2.ResolveResponse = stub.Resolve(request, timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        return answer

    def outcome(self, path: str, token: str = "", timeout: float = 20) -> str:
        try:
            answer = self.resolve(path, token, timeout)
        except KdirError as error:
            return error.reason
        return str(answer.outcome.WhichOneof("kind"))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[One, One]]:
    store = f"sqlite:///{tmp_path / 'store.sqlite'}"
    with ExitStack() as cleanup:
        yield One(store, cleanup), One(store, cleanup, max_stale_seconds=1.5)


def make_it_lag(writer: One, reader: One) -> str:
    """The reader does not see what the writer just wrote; the token of that."""
    reader.lag()
    writer.mkdir("/la/seen")
    eventually(lambda: reader.outcome("/la/seen") == "resolution")
    return writer.mkdir("/la/unseen")


def test_a_token_of_one_server_is_waited_for_by_the_other(two: tuple[One, One]) -> None:
    one, other = two
    token = make_it_lag(one, other)
    assert other.outcome("/la/unseen") == "absent"
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(other.outcome("/la/unseen", token)))
    waiting.start()
    other.catch_up()
    waiting.join(30)
    assert found == ["resolution"]


def test_N2_without_a_token_an_answer_may_be_old_and_says_so_up_to_a_limit(
    two: tuple[One, One],
) -> None:
    one, other = two
    other.cluster.replica._stale_after_seconds = 0.3  # type: ignore[misc]
    make_it_lag(one, other)
    assert other.outcome("/la/unseen") == "absent"
    eventually(lambda: other.resolve("/la/unseen").authority.stale)
    authority = other.resolve("/la/unseen").authority
    assert 0 < authority.age_seconds < 1.6
    eventually(lambda: other.outcome("/la/unseen") == "UNREACHABLE")
    other.catch_up()
    eventually(lambda: other.outcome("/la/unseen") == "resolution")
    assert not other.resolve("/la/unseen").authority.stale


def test_N3_tokens_of_others_forged_or_of_the_future(
    two: tuple[One, One], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "LONGEST_WAIT_SECONDS", 1.0)
    one, other = two
    token = one.mkdir("/la/x")
    ((cluster, place),) = Token.parse(token).positions.items()
    foreign = Token.of("kc-other", "its-life", 10**9)
    future = Token.of(cluster, place.incarnation, place.revision + 10**6)
    for server in (one, other):
        assert server.outcome("/la/x", token) == "resolution"
        assert server.outcome("/la/x", str(foreign)) == "resolution", "ignored"
        both = Token.merge([foreign, Token.parse(token)])
        assert server.outcome("/la/x", str(both)) == "resolution"
        for forged in ("nonsense", token[:-2] + "aa", token[1:], token * 2, "\0", "é"):
            assert server.outcome("/la/x", forged) == "INVALID_TOKEN", forged
        older = Token.of(cluster, "another-life", place.revision)
        assert server.outcome("/la/x", str(older)) == "TOKEN_EXPIRED"
        # No hang: within the caller's deadline, whichever side notices it first.
        assert server.outcome("/la/x", str(future), timeout=0.5) in {
            "TOKEN_FROM_FUTURE",
            "DEADLINE_EXCEEDED",
        }
        assert server.outcome("/la/x", str(future)) == "TOKEN_FROM_FUTURE"
