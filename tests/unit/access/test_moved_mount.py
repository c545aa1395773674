"""The mount of the tree that answers decides: what is inherited below one mount never decides about
a path below another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kdir.v1 import (
    access_pb2,
    directory_pb2,
    entry_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from directory.server.cluster import Cluster
from resolver.errors import NoRoute, NotAuthoritative
from resolver.path import Path
from tests.unit.access.conftest import ADMIN, House, grants

STORES = ("sqlite", "etcd")

BEFORE = Path.parse("/shut")
"""Where the cluster hung a moment ago: what the process goes by until it has seen the move."""

ASKED: list[tuple[str, Callable[[str], Any]]] = [
    ("GetEntry", lambda path: directory_pb2.GetEntryRequest(path=path)),
    ("ListEntries", lambda path: directory_pb2.ListEntriesRequest(path=path)),
    ("ListGrants", lambda path: access_pb2.ListGrantsRequest(path=path)),
    (
        "CheckAccess",
        lambda path: access_pb2.CheckAccessRequest(
            path=path, principal="User:bob", operation=access_pb2.OPERATION_READ
        ),
    ),
    ("GetEffectivePolicies", lambda path: policies_pb2.GetEffectivePoliciesRequest(path=path)),
    ("ListChanges", lambda path: watch_pb2.ListChangesRequest(path=path)),
    ("Watch", lambda path: watch_pb2.WatchRequest(path=path)),
    ("ScanTopics", lambda path: scan_pb2.ScanTopicsRequest(path=path)),
    (
        "CreateEntry",
        lambda path: directory_pb2.CreateEntryRequest(
            path=f"{path}/new", entry=entry_pb2.Entry(directory=entry_pb2.Directory())
        ),
    ),
    ("DeleteEntry", lambda path: directory_pb2.DeleteEntryRequest(path=path, recursive=True)),
    (
        "AddGrants",
        lambda path: access_pb2.AddGrantsRequest(path=path, grants=grants("bob", "read")),
    ),
    ("PlanArming", lambda path: policies_pb2.PlanArmingRequest(path=path, aspect="configs")),
]


@pytest.fixture
def moving(house: Callable[..., House], monkeypatch: pytest.MonkeyPatch) -> House:
    """Returns a server whose tree is mounted at /la while the process still uses the mount
    before.
    """
    made = house()
    made.mkdir("/la/d")
    made.grant("bob", "read", "/la/d")
    monkeypatch.setattr(Cluster, "mount", BEFORE)
    return made


@pytest.mark.parametrize(("method", "request_of"), ASKED, ids=[name for name, _ in ASKED])
def test_a_path_below_the_mount_of_before_is_not_answered_from_the_tree_of_now(
    moving: House, method: str, request_of: Callable[[str], Any]
) -> None:
    def ask() -> None:
        answer = moving.ask(ADMIN, method, request_of("/shut/d"))
        if isinstance(answer, Iterator):
            next(answer)  # streams begin when they are read

    with pytest.raises(NotAuthoritative):
        ask()
    assert moving.cluster.replica.snapshot.find_directory(("d",)) is not None
    assert moving.cluster.replica.snapshot.find_directory(("d", "new")) is None


def test_a_resolve_is_by_the_tree_too(moving: House) -> None:
    with pytest.raises(NoRoute):
        moving.ask(ADMIN, "Resolve", resolve_pb2.ResolveRequest(path="/shut/d"))
