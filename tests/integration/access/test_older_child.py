"""A child that does not know of grants: none comes above it; where some are, it is told of."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import access_pb2, access_pb2_grpc, entry_pb2

from directory.server.feature_levels import FEATURE_LEVEL
from resolver.errors import LevelNotFinalized
from tests.support.command_line import run
from tests.support.federation import Federation, Server, eventually


def add(server: Server, path: str, **fields: Any) -> access_pb2.AddGrantsResponse:
    grant = access_pb2.Grant(
        principal="User:bob",
        operation=access_pb2.OPERATION_READ,
        permission=access_pb2.PERMISSION_DENY,
        resource_type=access_pb2.RESOURCE_TYPE_TOPIC,
    )
    request = access_pb2.AddGrantsRequest(path=path, grants=[grant], **fields)
    answer: access_pb2.AddGrantsResponse = server.ask(
        access_pb2_grpc.AccessServiceStub, "AddGrants", request
    )
    return answer


def is_refused(server: Server, path: str, **fields: Any) -> bool:
    try:
        add(server, path, **fields)
    except LevelNotFinalized as error:
        return "/la/old (cluster la-old) has 2" in error.message
    return False


def test_no_grant_comes_above_a_cluster_that_does_not_know_of_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        la = federation.join("/la", "/")
        root.mkdir("/ny")
        monkeypatch.setenv("KDIR_FEATURE_LEVEL", "2")
        old = federation.join("/la/old", "/la")
        monkeypatch.delenv("KDIR_FEATURE_LEVEL")
        assert old.status().finalized_level == 2
        la.mkdir("/la/own")
        # Its own parent, the one above that, and the mount itself; by a plan, too.
        for server, path, fields in (
            (la, "/la", {}),
            (la, "/la", {"validate_only": True}),
            (la, "/la/old", {"kind": entry_pb2.ENTRY_KIND_MOUNT}),
            (root, "/", {}),
            (root, "/la", {"kind": entry_pb2.ENTRY_KIND_MOUNT}),
        ):
            # A plan changes nothing, so it can be asked until the server has heard of the child.
            eventually(partial(is_refused, server, path, **{**fields, "validate_only": True}))
            assert is_refused(server, path, **fields)
        # Beside it they come.
        add(la, "/la/own")
        add(root, "/ny")

        # Upgraded: finalized by its operator, and the parents hear of it.
        old.kill()
        old.start()
        eventually(lambda: run(["features", "finalize", "--at", old.address]).code == 0)
        assert old.status().finalized_level == FEATURE_LEVEL
        eventually(lambda: add(la, "/la").added)
        eventually(lambda: add(root, "/").added)


def test_an_old_cluster_that_comes_below_grants_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        add(root, "/")
        monkeypatch.setenv("KDIR_FEATURE_LEVEL", "2")
        old = federation.join("/la", "/")
        monkeypatch.delenv("KDIR_FEATURE_LEVEL")
        (reported,) = eventually(lambda: list(root.status().mounts_not_enforcing_grants))
        assert "/la (cluster la) has 2, and does not enforce" in reported
        assert reported in run(["doctor", "--at", root.address]).err
        assert not old.status().mounts_not_enforcing_grants
