"""Callers with tokens at a real server that enforces: what plans tell whom, what it takes to move a
subtree, and that no call on the wire tells what is hidden from what is not there.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kdir.v1 import access_pb2_grpc, directory_pb2_grpc, policies_pb2_grpc, resolve_pb2_grpc

from tests.support.command_line import Ran, run
from tests.support.federation import Federation
from tests.support.identities import token
from tests.unit.access.test_hidden import ABSENT, into, of_a_path, of_an_entry

SECRET = "a shared secret of more than 32 bytes"
STUBS = (
    access_pb2_grpc.AccessServiceStub,
    directory_pb2_grpc.DirectoryServiceStub,
    policies_pb2_grpc.PolicyServiceStub,
    resolve_pb2_grpc.ResolveServiceStub,
)


class Place:
    """A server at /la, and kdir in the name of whoever a test says."""

    def __init__(self, federation: Federation, folder: Path, patch: pytest.MonkeyPatch) -> None:
        key = folder / "jwt.key"
        key.write_text(SECRET)
        auth = {"jwt_key": str(key), "super_users": ["User:admin"], "allow_anonymous": True}
        server = federation.make(folder / "la", "/la", {"access": "enforce", "auth": auth})
        self.server = federation.servers["/la"] = server
        server.start()
        self._patch = patch
        wait_until_serving(server)

    def kdir(self, who: str, *arguments: str) -> Ran:
        self._patch.setenv("KDIR_TOKEN", bearer(who))
        return run([*arguments, "--at", self.server.address])

    def do(self, *arguments: str) -> None:
        ran = self.kdir("admin", *arguments)
        assert ran.code == 0, ran.err


def wait_until_serving(server: Any) -> None:
    from kdir.v1 import resolve_pb2

    ask = resolve_pb2_grpc.ResolveServiceStub(server.channel).Resolve
    metadata = (("authorization", f"Bearer {bearer('admin')}"),)
    deadline = time.monotonic() + 20
    while True:
        try:
            ask(resolve_pb2.ResolveRequest(path="/la"), metadata=metadata, timeout=5)
            return
        except grpc.RpcError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def bearer(who: str) -> str:
    return token(SECRET, "HS256", sub=who, exp=int(time.time()) + 600)


@pytest.fixture
def la(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Federation(tmp_path) as federation:
        place = Place(federation, tmp_path, monkeypatch)
        try:
            yield place
        finally:
            place.server.close()
            place.server.process.kill()


def test_a_move_changes_rights_as_its_plan_showed(la: Place) -> None:
    la.do("mkdir", "/la/a/deep/er", "/la/b")
    la.do("grant", "bob", "read,alter", "/la/a")
    la.do("grant", "carol", "write", "/la/b")
    la.do("grant", "dora", "read", "/la/a/deep/er")
    planned = la.kdir("admin", "mv", "--plan", "/la/a/deep", "/la/b/deep")
    assert planned.code == 0, planned.err
    rows = [line.split("\t") for line in planned.lines]
    assert [(row[1], row[3], row[4], row[6]) for row in rows] == [
        ("User:bob", "-", "READ,ALTER,DESCRIBE", "/la/b/deep/"),
        ("User:carol", "WRITE,DESCRIBE", "-", "/la/b/deep/"),
    ]
    entry, plan = la.kdir("admin", "mv", "--plan", "/la/a/deep", "/la/b/deep", "-o", "json").objects
    assert entry["path"] == "/la/b/deep"
    assert plan["plan"]["entries"] == {"directories": 2, "entries_with_grants": 1}
    assert la.kdir("bob", "ls", "/la/a/deep").code == 0  # nothing was moved
    # The plan takes the rights of the deed, on both ends and on what has grants of its own.
    for arguments in (["--plan"], []):
        assert la.kdir("bob", "mv", *arguments, "/la/a/deep", "/la/b/deep").code == 1
        assert la.kdir("carol", "mv", *arguments, "/la/a/deep", "/la/b/deep").code == 1
    la.do("grant", "bob", "alter,create", "/la/b")
    la.do("grant", "bob", "alter", "/la/a/deep/er", "--deny")
    for arguments in (["--plan"], []):
        refused = la.kdir("bob", "mv", *arguments, "/la/a/deep", "/la/b/deep")
        assert refused.code == 4
        assert "/la/a/deep/er" in refused.err
    la.do("revoke", "bob", "alter", "/la/a/deep/er", "--deny")
    moved = la.kdir("bob", "mv", "/la/a/deep", "/la/b/deep")
    assert moved.code == 0, moved.err
    assert la.kdir("carol", "check", "carol", "write", "/la/b/deep").code == 0
    assert la.kdir("admin", "check", "bob", "read", "/la/b/deep").code == 4
    explained = la.kdir("admin", "check", "dora", "read", "/la/b/deep/er", "--explain")
    assert "on /la/b/deep/er" in explained.out


def test_every_verb_that_plans_says_what_and_changes_nothing(la: Place) -> None:
    la.do("mkdir", "/la/a/b")
    la.do("ln", "/la/a", "/la/l")
    before = la.kdir("admin", "history", "/la", "-o", "json").out
    planned = {
        "rm": ("rm", "-r", "/la/a"),
        "set": ("set", "/la/a", "owner=ana", "retention.ms=1h"),
        "unset": ("unset", "/la/a", "owner"),
        "closed": ("set", "/la/a", "closed=true"),
        "grant": ("grant", "bob", "read", "/la/a"),
        "revoke": ("revoke", "bob", "read", "/la/a"),
        "mv": ("mv", "/la/a", "/la/c"),
        "link": ("rm", "/la/l"),
    }
    for arguments in planned.values():
        ran = la.kdir("admin", *arguments, "--plan")
        assert ran.code == 0, ran.err
        assert "dry run: affects" in ran.err
        reported = json.loads(la.kdir("admin", *arguments, "--plan", "-o", "json").lines[-1])
        assert "entries" in reported["plan"]
    assert la.kdir("admin", "history", "/la", "-o", "json").out == before


def test_A12_nothing_on_the_wire_distinguishes_hidden_from_absent(la: Place) -> None:
    la.do("mkdir", "/la/p/hidd/in", "/la/p/vis")
    la.do("grant", "alice", "all", "/la/p")
    la.do("grant", "alice", "all", "/la/p/hidd", "--deny")
    channel = la.server.channel
    methods = {
        name: getattr(stub, name)
        for stub in (make(channel) for make in STUBS)
        for name in dir(stub)
        if not name.startswith("_")
    }
    metadata = (("authorization", f"Bearer {bearer('alice')}"), ("x-request-id", "same"))

    def reported(method: str, request: Any, name: str) -> str:
        try:
            received = str(methods[method](request, metadata=metadata, timeout=10))
        except grpc.RpcError as error:
            trailing: Any = error.trailing_metadata() or ()
            details = [value for key, value in trailing if "details" in key]
            received = f"{error.code()} {error.details()} {details}"
        received = re.sub(r"age_seconds: \S+", "", received)
        return received.replace(name, "NAME")

    asked = 0
    for calls in (of_an_entry, into, of_a_path):
        pairs = zip(calls("/la/p/hidd"), calls(f"/la/p/{ABSENT}"), strict=True)
        for (method, request), (_, other) in pairs:
            if method in methods:
                asked += 1
                assert reported(method, request, "hidd") == reported(method, other, ABSENT), request
    assert asked > 200
