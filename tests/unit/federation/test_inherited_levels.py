"""A change that would hand down more than 1 MiB to a cluster is refused where it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Final

import pytest
from kdir.v1 import federation_pb2

from directory.access.grants import Grant, Operation, Permission
from directory.federation.inheritance import MOST_BYTES, inherited_size, levels_at_mount
from directory.federation.link_records import encode_record
from directory.namespace import keys
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateMount,
    DeleteEntry,
    MoveEntry,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Kind
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from directory.store.base import Put
from directory.wire.grant_messages import grant_to_proto
from resolver.errors import LimitExceeded
from tests.support.trees import path

HALF: Final = 600
"""So many grants of long names are more than half of what may be inherited."""
LONG: Final = "x" * 900


@pytest.fixture
def cluster(tmp_path: FilePath) -> Iterator[Cluster]:
    made = Cluster.open(ServerConfig.quick(path("/"), store=f"sqlite:///{tmp_path / 's.sqlite'}"))
    made.start()
    made.replica.wait_for(0, 20)
    try:
        yield made
    finally:
        made.stop()


def do(cluster: Cluster, *commands: Command) -> None:
    for command in commands:
        cluster.writer.commit_command(command, timeout_seconds=30)


def many(name: str, count: int = HALF) -> tuple[Grant, ...]:
    return tuple(
        Grant(f"User:{name}{number}{LONG}", "*", Operation.READ, Permission.ALLOW)
        for number in range(count)
    )


def mkdir(text: str) -> CreateDirectory:
    return CreateDirectory(path=path(text))


def refused(cluster: Cluster, command: Command) -> LimitExceeded:
    before = cluster.replica.snapshot.revision
    with pytest.raises(LimitExceeded):
        cluster.writer.commit_command(command, validate_only=True, timeout_seconds=30)
    with pytest.raises(LimitExceeded) as caught:
        cluster.writer.commit_command(command, timeout_seconds=30)
    assert cluster.replica.snapshot.revision == before
    assert caught.value.metadata["limit"] == str(MOST_BYTES)
    assert int(caught.value.metadata["found"]) > MOST_BYTES
    return caught.value


def inherited_bytes(cluster: Cluster, *relative: str) -> int:
    return inherited_size(levels_at_mount(cluster.replica.snapshot, path("/"), relative))


def test_grants_above_a_mount_are_refused_from_1_mib_on(cluster: Cluster) -> None:
    do(cluster, mkdir("/a"), mkdir("/a/b"), CreateMount(path=path("/a/b/m"), cluster_id="kc-m"))
    do(cluster, AddGrants(path=path("/a"), grants=many("one")))
    error = refused(cluster, AddGrants(path=path("/a/b"), grants=many("two")))
    assert "mounted at or below /a/b would inherit 1," in error.message
    assert "at most 1,048,576" in error.message
    # The mount's own count; beside it they are nobody's inheritance.
    refused(cluster, AddGrants(path=path("/a/b/m"), kind=Kind.MOUNT, grants=many("two")))
    do(cluster, mkdir("/a/c"), AddGrants(path=path("/a/c"), grants=many("two")))
    assert MOST_BYTES / 2 < inherited_bytes(cluster, "a", "b", "m") < MOST_BYTES


def test_what_comes_below_too_much_is_refused(cluster: Cluster) -> None:
    do(cluster, mkdir("/a"), mkdir("/a/b"), mkdir("/c"))
    do(cluster, AddGrants(path=path("/a"), grants=many("one")))
    do(cluster, AddGrants(path=path("/a/b"), grants=many("two")))  # nothing is mounted there
    refused(cluster, CreateMount(path=path("/a/b/m"), cluster_id="kc-m"))
    do(cluster, CreateMount(path=path("/c/m"), cluster_id="kc-m"))
    refused(cluster, MoveEntry(path=path("/c/m"), new_path=path("/a/b/m")))
    refused(cluster, MoveEntry(path=path("/c"), new_path=path("/a/b/c")))
    do(cluster, MoveEntry(path=path("/c"), new_path=path("/a/c")))
    do(cluster, DeleteEntry(path=path("/a/c/m")))


def test_what_this_cluster_inherits_counts(cluster: Cluster) -> None:
    """The parent's levels and the own ones come down together."""
    above = federation_pb2.Inherited(incarnation="life")
    above.levels.add(path="/", grants=map(grant_to_proto, many("above")))
    value = encode_record(1, above.SerializeToString())
    cluster.writer.put_facts((Put(keys.INHERITED, value),))
    do(cluster, mkdir("/a"), CreateMount(path=path("/a/m"), cluster_id="kc-m"))
    refused(cluster, AddGrants(path=path("/a"), grants=many("one")))


def test_of_what_is_too_much_already_some_may_go_and_none_may_come(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore of a tree that is larger."""
    do(cluster, mkdir("/a"), CreateMount(path=path("/a/m"), cluster_id="kc-m"))
    with monkeypatch.context() as unchecked:
        unchecked.setattr(cluster.writer, "_check", lambda *_: None)
        do(cluster, AddGrants(path=path("/a"), grants=many("one")))
        do(cluster, AddGrants(path=path("/"), grants=many("two")))
    assert inherited_bytes(cluster, "a", "m") > MOST_BYTES
    refused(cluster, UpdateEntry(path=path("/a"), changes={"policies.owner": "search"}))
    do(cluster, RemoveGrants(path=path("/a"), grants=many("one", 10)))
    assert inherited_bytes(cluster, "a", "m") > MOST_BYTES
    do(cluster, RemoveGrants(path=path("/a"), grants=many("one")[10:]))
    do(cluster, UpdateEntry(path=path("/a"), changes={"policies.owner": "search"}))
