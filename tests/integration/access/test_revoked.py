"""A right that was taken is felt at once, whoever asks for whom, and at every server of a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from kdir.v1 import (
    access_pb2,
    access_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
    entry_pb2,
    resolve_pb2,
    resolve_pb2_grpc,
    watch_pb2,
    watch_pb2_grpc,
)

from resolver.error_status import from_rpc_error
from resolver.errors import KdirError, Unreachable
from tests.support.federation import FAST, Federation, Server, eventually

ANYBODY = "User:ANONYMOUS"
ENFORCE: dict[str, Any] = {**FAST, "auth": {"allow_anonymous": True}}
SECRET = "a secret of these tests, 32 bytes or more"
Start = Callable[..., Server]


def grants(*arguments: str, who: str = ANYBODY) -> list[access_pb2.Grant]:
    return [
        access_pb2.Grant(
            principal=who,
            operation=f"OPERATION_{argument.removeprefix('-').upper()}",
            permission=access_pb2.PERMISSION_DENY
            if argument.startswith("-")
            else access_pb2.PERMISSION_ALLOW,
            resource_type=access_pb2.RESOURCE_TYPE_TOPIC,
        )
        for argument in arguments
    ]


def add(server: Server, path: str, *arguments: str, who: str = ANYBODY) -> str:
    request = access_pb2.AddGrantsRequest(path=path, grants=grants(*arguments, who=who))
    return str(server.ask(access_pb2_grpc.AccessServiceStub, "AddGrants", request).token)


def remove(server: Server, path: str, *arguments: str, who: str = ANYBODY) -> str:
    request = access_pb2.RemoveGrantsRequest(path=path, grants=grants(*arguments, who=who))
    return str(server.ask(access_pb2_grpc.AccessServiceStub, "RemoveGrants", request).token)


def allowed(server: Server, who: str, path: str, token: str = "") -> bool:
    request = access_pb2.CheckAccessRequest(
        principal=who, operation=access_pb2.OPERATION_READ, path=path, token=token
    )
    return bool(server.ask(access_pb2_grpc.AccessServiceStub, "CheckAccess", request).allowed)


def test_N5_a_server_that_walks_for_a_caller_remembers_no_answer(tmp_path: Path) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/", **ENFORCE)
        la = federation.join("/la", "/", **ENFORCE)
        la.mkdir("/la/secret")
        eventually(lambda: root.outcome("/la/secret", recursive=True) == "resolution")
        add(la, "/la/secret", "-describe")
        assert root.outcome("/la/secret", recursive=True) == "absent"
        remove(la, "/la/secret", "-describe")
        assert root.outcome("/la/secret", recursive=True) == "resolution"


@pytest.fixture(params=["sqlite", "etcd"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts servers of one store of each kind; they end with the test."""
    store = (
        str(request.getfixturevalue("etcd_cluster").address())
        if request.param == "etcd"
        else f"sqlite:///{tmp_path}/la.sqlite"
    )
    with ExitStack() as cleanup:

        def begin(name: str, settings: dict[str, Any] | None = None) -> Server:
            server = Server(tmp_path / name, "/la", {**FAST, "store": store, **(settings or {})})
            cleanup.callback(server.kill)
            cleanup.callback(server.close)
            server.start()
            if settings is None:
                eventually(lambda: server.outcome("/la") == "resolution")
            return server

        yield begin


def test_A8_the_others_stay_after_a_restart_and_on_every_server(start: Start) -> None:
    one, two = start("one"), start("two")
    one.mkdir("/la/a")
    add(one, "/la/a", "-read", who="User:x")
    eventually(lambda: add(two, "/la/a", "-read", who="User:y"))
    add(one, "/la/a", "-read", who="User:z")
    token = remove(two, "/la/a", "-read", who="User:y")

    def exactly_the_others(server: Server) -> bool:
        found = {who: allowed(server, f"User:{who}", "/la/a", token) for who in "xyz"}
        return found == {"x": False, "y": True, "z": False}

    assert exactly_the_others(one)
    assert exactly_the_others(two)
    for server in (one, two):
        server.kill()
    for server in (one, two):
        server.start()
        eventually(lambda server=server: exactly_the_others(server))  # type: ignore[misc]
    assert exactly_the_others(start("three"))


def test_A4_a_reader_of_another_server_never_sees_a_later_allow_alone(start: Start) -> None:
    writer, reader = start("writer"), start("reader")
    writer.mkdir("/la/a")
    add(writer, "/la/a", "-read", who="User:y")  # so that something is asked at all
    eventually(lambda: not allowed(reader, "User:y", "/la/a"))
    let_in: list[str] = []
    rounds, done = [0], threading.Event()

    def look() -> None:
        while not done.is_set():
            who = f"User:x{rounds[0]}"
            # Open access allows whom nothing denies: so it is the deny that must be seen first.
            listed = access_pb2.ListGrantsRequest(path="/la/a")
            found = reader.ask(access_pb2_grpc.AccessServiceStub, "ListGrants", listed).grants
            mine = {one.permission for one in found if one.principal == who}
            if mine == {access_pb2.PERMISSION_ALLOW}:
                let_in.append(who)
            if access_pb2.PERMISSION_ALLOW in mine and allowed(reader, who, "/la/a"):
                let_in.append(f"{who} was let in")

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            for number in range(10):
                rounds[0] = number
                add(writer, "/la/a", "-read", who=f"User:x{number}")
                add(writer, "/la/a", "read", who=f"User:x{number}")
        finally:
            done.set()
        looking.result()  # it looked to the end
    assert let_in == []
    eventually(lambda: not allowed(reader, "User:x9", "/la/a"))


def test_N1_bob_asks_a_server_that_lags_for_what_was_made_after_he_was_removed(
    start: Start, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    settings = {
        "access": "enforce",
        "auth": {"jwt_key": str(key), "super_users": ["User:admin"]},
    }
    first, second, third = (start(name, settings) for name in ("first", "second", "third"))
    made = directory_pb2.CreateEntryRequest(
        path="/la/a", entry=entry_pb2.Entry(directory=entry_pb2.Directory())
    )
    eventually(lambda: ask("admin", first, "CreateEntry", made).token)
    bob = grants("describe", who="User:bob")
    given = ask("admin", first, "AddGrants", access_pb2.AddGrantsRequest(path="/la/a", grants=bob))
    eventually(lambda: kind_for_bob(third, "/la/a", given.token) == "resolution")

    for round_number in range(2):
        third.pause()
        taken = access_pb2.RemoveGrantsRequest(path="/la/a", grants=bob)
        revoked = ask("admin", first, "RemoveGrants", taken)
        made.path = f"/la/a/secret-{round_number}"
        asked = access_pb2.ListGrantsRequest(path="/la/a", token=revoked.token)
        ask("admin", second, "ListGrants", asked)
        secret = ask("admin", second, "CreateEntry", made)
        third.resume()
        seen = kind_for_bob(third, made.path, secret.token)
        assert seen in {"absent", "NOT_READY", "UNREACHABLE"}
        # Without a token it may be older than that; then the secret is not there for anybody.
        assert kind_for_bob(third, made.path) == "absent"
        eventually(lambda: kind_for_bob(third, "/la/a") == "absent")
        again = access_pb2.AddGrantsRequest(path="/la/a", grants=bob)
        given = ask("admin", second, "AddGrants", again)
        assert kind_for_bob(third, made.path, given.token) == "resolution"
        # The next turn takes away at the first what it must have seen: else there is nothing to do.
        seen_by_first = access_pb2.ListGrantsRequest(path="/la/a", token=given.token)
        assert ask("admin", first, "ListGrants", seen_by_first).grants


def bearer(who: str) -> str:
    return jwt.encode({"sub": who, "exp": int(time.time()) + 600}, SECRET, "HS256")


def ask(who: str, server: Server, name: str, request: Any) -> Any:
    """Calls a method as a user; a failure is raised as the error in its status."""
    stub: Any = {
        "CreateEntry": directory_pb2_grpc.DirectoryServiceStub,
        "Resolve": resolve_pb2_grpc.ResolveServiceStub,
    }.get(name, access_pb2_grpc.AccessServiceStub)
    metadata = (("authorization", f"Bearer {bearer(who)}"),)
    try:
        return getattr(stub(server.channel), name)(request, timeout=10, metadata=metadata)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None


def kind_for_bob(server: Server, path: str, token: str = "") -> str:
    request = resolve_pb2.ResolveRequest(path=path, token=token)
    try:
        return str(ask("bob", server, "Resolve", request).outcome.WhichOneof("kind"))
    except KdirError as error:
        return error.reason


def test_N5_a_watch_ends_with_the_token_that_opened_it(start: Start, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    auth = {"jwt_key": str(key), "super_users": ["User:admin"]}
    server = start("server", {"access": "enforce", "auth": auth})
    made = directory_pb2.CreateEntryRequest(
        path="/la/a", entry=entry_pb2.Entry(directory=entry_pb2.Directory())
    )
    eventually(lambda: ask("admin", server, "CreateEntry", made).token)
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = watch_pb2_grpc.WatchServiceStub(channel)
        metadata = (("authorization", f"Bearer {bearer('admin')}"),)
        request = watch_pb2.WatchRequest(path="/la", checkpoint_seconds=1)
        stream = stub.Watch(request, metadata=metadata, timeout=60)
        assert next(stream).token
        key.write_text(SECRET[::-1])
        with pytest.raises(grpc.RpcError) as ended:
            for _ in stream:
                pass
    error = from_rpc_error(ended.value)
    # Not refused for good: a client goes on with the token that it has by now.
    assert isinstance(error, Unreachable)
    assert "continue from the last token, with new credentials" in str(error)
