"""A watch of a caller that may see everything, over a move of its cluster's mount."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final

import pytest
from kdir.v1 import watch_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.rpc.call_context import Call
from directory.api.watch_service import WatchService
from directory.federation import inheritance, parent_state
from directory.namespace.command import AddGrants, CreateDirectory
from directory.namespace.keys import PARENT
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from directory.store.base import Put
from directory.store.replica import ReplicaState
from resolver.errors import Resync
from tests.support.federation import eventually
from tests.support.trees import path
from tests.unit.access.places import grant
from tests.unit.federation.test_one_commit import inherited, welcome

SUPER_USER: Final = "User:root"


@contextmanager
def started(file: Path) -> Iterator[Cluster]:
    config = ServerConfig.quick(path("/la"), store=f"sqlite:///{file}")
    auth = replace(config.auth, super_users=frozenset({SUPER_USER}))
    cluster = Cluster.open(replace(config, auth=auth, parent=("127.0.0.1:1",)))
    cluster.replica.start()
    try:
        eventually(lambda: cluster.replica.state is ReplicaState.SERVING)
        yield cluster
    finally:
        cluster.stop()


def hang(cluster: Cluster, mount: str, epoch: int) -> None:
    """Stores a mount and what is inherited there, as the link does."""
    snapshot = cluster.replica.snapshot
    writes = inheritance.inherited_writes(snapshot, inherited("/", mount, epoch), 1)
    writes += parent_state.welcome_writes(snapshot, welcome(mount, epoch), 1)
    eventually(lambda: cluster.writer.put_facts(writes))


def watched(cluster: Cluster, token: str) -> list[str]:
    """Returns the paths of the changes after a token, up to the first checkpoint."""
    call = Call(inf, SUPER_USER, is_active=lambda: True, find_peer=lambda: "ipv4:127.0.0.1:1")
    request = watch_pb2.WatchRequest(path="/", after_token=token)
    source = WatchService(ClusterRouter([cluster])).watch(request, call)
    paths: list[str] = []
    try:
        for _ in range(4):
            response = source.poll()
            if isinstance(response, bytes):
                events = watch_pb2.WatchResponse.FromString(response).events
                paths += [one.path for one in events]
    finally:
        source.close()
    return paths


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("before", ["linked", "never linked before", "welcome unreadable"])
def test_a_watch_over_a_move_of_the_mount_resyncs(
    tmp_path: Path, before: str, is_restarted: bool
) -> None:
    file = tmp_path / "la.sqlite"
    with started(file) as cluster:
        if before != "never linked before":
            hang(cluster, "/la", 1)
        if before == "welcome unreadable":
            cluster.writer.put_facts([Put(PARENT, b"12345678\xff")])
        cluster.writer.commit_command(CreateDirectory(path=path("/la/a")))
        token = cluster.token_of(cluster.replica.snapshot)
        hang(cluster, "/us/la", 2)
        cluster.writer.commit_command(CreateDirectory(path=path("/us/la/b")))
        if not is_restarted:
            with pytest.raises(Resync):
                watched(cluster, token)
    if is_restarted:
        with started(file) as cluster, pytest.raises(Resync):
            watched(cluster, token)


@pytest.mark.parametrize("has_moved_before", [False, True])
def test_a_watch_goes_on_after_a_restart_without_a_move(
    tmp_path: Path, has_moved_before: bool
) -> None:
    file = tmp_path / "la.sqlite"
    with started(file) as cluster:
        if has_moved_before:
            hang(cluster, "/us/la", 1)
        hang(cluster, "/la", 2)
        cluster.writer.commit_command(CreateDirectory(path=path("/la/a")))
        token = cluster.token_of(cluster.replica.snapshot)
        cluster.writer.commit_command(
            AddGrants(path=path("/la/a"), grants=(grant("allow User:x read"),))
        )
        cluster.writer.commit_command(CreateDirectory(path=path("/la/b")))
    with started(file) as cluster:
        assert watched(cluster, token)[-1] == "/la/b"
