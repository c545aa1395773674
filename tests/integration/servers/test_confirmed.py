"""Two servers of one store: what one acknowledged is never undone, or refused, by the other's not
having seen it yet. No token is sent: each command is right by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import (
    access_pb2,
    access_pb2_grpc,
    admin_pb2,
    admin_pb2_grpc,
    entry_pb2,
    policies_pb2,
)

from resolver.errors import KdirError
from tests.conftest import SharedEtcd
from tests.support.federation import Server, eventually

pytestmark = pytest.mark.slow

Start = Callable[..., Server]
ROUNDS = {"sqlite": 80, "etcd": 25}
SOAK_ROUNDS = {"sqlite": 200, "etcd": 50}


class Pair:
    """Two servers of /la, which take turns at being the first."""

    def __init__(self, one: Server, other: Server, rounds: int) -> None:
        self._servers = one, other
        self.rounds = rounds

    def in_order(self, number: int) -> tuple[Server, Server]:
        one, other = self._servers
        return (one, other) if number % 2 else (other, one)


@pytest.fixture(params=["sqlite", "etcd"])
def pair(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Pair:
    if request.param == "sqlite":
        store = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    else:
        shared: SharedEtcd = request.getfixturevalue("etcd_cluster")
        store = shared.address()
    one, other = (start("/la", name=name, store=store) for name in ("one", "other"))
    is_long = request.config.getoption("--soak")
    return Pair(one, other, (SOAK_ROUNDS if is_long else ROUNDS)[request.param])


GRANT = access_pb2.Grant(
    principal="User:ana",
    host="*",
    operation=access_pb2.OPERATION_READ,
    permission=access_pb2.PERMISSION_ALLOW,
)


def access(server: Server, method: str, **fields: Any) -> Any:
    request = getattr(access_pb2, f"{method}Request")(path="/la/d", **fields)
    return server.ask(access_pb2_grpc.AccessServiceStub, method, request, 30)


def set_owner(server: Server, owner: str, **fields: Any) -> Any:
    entry = entry_pb2.Entry(policies=policies_pb2.Policies(owner=owner))
    mask = FieldMask(paths=["policies.owner"])
    return server.entries("UpdateEntry", path="/la/d", entry=entry, update_mask=mask, **fields)


def owner_at(server: Server, token: str) -> str:
    entry = server.entries("GetEntry", path="/la/d", token=token).entry
    return str(entry.policies.owner)


def rounds(pair: Pair, step: Callable[[Server, Server, int], str], share: int = 1) -> list[str]:
    """Returns what went wrong, by round; ``share``: one in so many rounds is enough."""
    wrong = []
    for number in range(pair.rounds // share):
        first, second = pair.in_order(number)
        try:
            found = step(first, second, number)
        except KdirError as error:
            found = str(error)
        if found:
            wrong.append(f"{number}: {found}")
    return wrong


def test_a_grant_at_one_and_its_revoke_at_the_other(pair: Pair) -> None:
    pair.in_order(0)[0].mkdir("/la/d")

    def step(first: Server, second: Server, _: int) -> str:
        access(first, "AddGrants", grants=[GRANT])
        token = access(second, "RemoveGrants", grants=[GRANT]).token
        left = access(first, "ListGrants", token=token).grants
        return "the grant stands" if left else ""

    assert rounds(pair, step) == []


def test_a_value_set_at_one_and_set_back_at_the_other(pair: Pair) -> None:
    pair.in_order(0)[0].mkdir("/la/d")

    def step(first: Server, second: Server, _: int) -> str:
        owner_at(second, set_owner(first, "x").token)
        set_owner(first, "y")
        token = set_owner(second, "x").token
        found = owner_at(first, token)
        return "" if found == "x" else f"the owner is {found}"

    assert rounds(pair, step) == []


def test_a_directory_at_one_and_what_is_in_it_at_the_other(pair: Pair) -> None:
    def step(first: Server, second: Server, number: int) -> str:
        directory = entry_pb2.Entry(directory=entry_pb2.Directory())
        first.entries("CreateEntry", path=f"/la/{number}", entry=directory)
        second.entries("CreateEntry", path=f"/la/{number}/y", entry=directory)
        return ""

    assert rounds(pair, step) == []


def test_a_directory_removed_at_one_and_made_again_at_the_other(pair: Pair) -> None:
    pair.in_order(0)[0].mkdir("/la/d/x")

    def step(first: Server, second: Server, _: int) -> str:
        directory = entry_pb2.Entry(directory=entry_pb2.Directory())
        first.entries("DeleteEntry", path="/la/d", recursive=True)
        second.entries("CreateEntry", path="/la/d", entry=directory)
        first.entries("CreateEntry", path="/la/d/x", entry=directory)
        return ""

    assert rounds(pair, step) == []


def test_a_removal_with_all_below_it_counts_what_is_below_it(pair: Pair) -> None:
    def step(first: Server, second: Server, number: int) -> str:
        path = f"/la/d{number}"
        first.mkdir(f"{path}/kept")
        second.names(path, token=first.mkdir(f"{path}/gone").token)
        kind: Any = entry_pb2.ENTRY_KIND_DIRECTORY
        first.entries("DeleteEntry", path=f"{path}/gone", kind=kind)
        removed = second.entries("DeleteEntry", path=path, kind=kind, recursive=True)
        return "" if removed.directory_count == 2 else f"{removed.directory_count} directories"

    assert rounds(pair, step, share=4) == []


def test_a_request_that_changed_nothing_is_answered_as_before_at_the_other(pair: Pair) -> None:
    pair.in_order(0)[0].mkdir("/la/d")

    def step(first: Server, second: Server, number: int) -> str:
        set_owner(first, "x")
        before = set_owner(first, "x", request_id=f"same-{number}")
        token = set_owner(second, "y").token
        again = set_owner(second, "x", request_id=f"same-{number}")
        if again.entry != before.entry:
            return "it is answered otherwise"
        return "" if owner_at(first, token) == "y" else "it was done again"

    assert rounds(pair, step) == []


def test_a_server_that_was_paused_for_a_second(pair: Pair) -> None:
    """Its replica is a second behind when it goes on, and its first question is the revoke."""
    first, second = pair.in_order(0)
    first.mkdir("/la/d")
    for _ in range(3):
        eventually(lambda: second.outcome("/la/d") == "resolution")
        second.pause()
        access(first, "AddGrants", grants=[GRANT])
        time.sleep(1)
        second.resume()
        token = access(second, "RemoveGrants", grants=[GRANT]).token
        assert not access(first, "ListGrants", token=token).grants


# -- the link to the parent -----------------------------------------------------------------------


def admin(server: Server, method: str, **fields: Any) -> Any:
    request = getattr(admin_pb2, f"{method}Request")(**fields)
    return server.ask(admin_pb2_grpc.AdminServiceStub, method, request, 30)


def test_a_detach_at_one_and_an_attach_at_the_other(start: Start, tmp_path: Path) -> None:
    root = start("/", name="root", store=f"sqlite:///{tmp_path / 'root.sqlite'}")
    store = f"sqlite:///{tmp_path / 'la.sqlite'}"
    one, other = (
        start("/la", name=name, store=store, parent=[root.address]) for name in ("one", "other")
    )
    pair = Pair(one, other, 20)
    root.mount_child("/la", one.cluster_id)
    # Nothing can be kept before the parent has said what there is.
    eventually(lambda: admin(one, "DetachParent", keep_inherited=True))

    def detached(server: Server, token: str) -> bool:
        server.resolve("/la", token=token)
        return bool(server.status().parent.detached_reason)

    def step(first: Server, second: Server, _: int) -> str:
        admin(first, "DetachParent", keep_inherited=True)
        token = admin(second, "AttachParent").token
        if detached(first, token) or detached(second, token):
            return "it is detached"
        token = admin(first, "DetachParent", keep_inherited=True).token
        if not (detached(second, token) and detached(first, token)):
            return "it is attached"
        admin(second, "AttachParent")
        token = admin(first, "DetachParent", keep_inherited=True).token
        return "" if detached(second, token) else "it is attached after all"

    assert rounds(pair, step) == []
