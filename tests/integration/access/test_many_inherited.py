"""More grants handed down than a transaction of etcd holds, and than gRPC takes by default."""

from __future__ import annotations

from pathlib import Path

import pytest
from kdir.v1 import access_pb2, access_pb2_grpc

from tests.conftest import SharedEtcd
from tests.support.federation import FAST, Federation, Server, eventually

LEVELS = 6
GRANTS = 1000
LONG = "x" * 800
"""6 × 1,000 × 800 bytes: more than 4 MiB."""


def named(level: int, number: int) -> str:
    return f"User:CN={level}-{number},OU={LONG}"


def asked(server: Server, method: str, path: str, level: int, numbers: range) -> None:
    """Asks in requests of 300 grants: one of all of them has too many bytes."""
    for first in range(0, len(numbers), 300):
        request = getattr(access_pb2, f"{method}Request")(
            path=path,
            grants=[
                access_pb2.Grant(
                    principal=named(level, number),
                    operation=access_pb2.OPERATION_READ,
                    permission=access_pb2.PERMISSION_DENY,
                    resource_kind=access_pb2.RESOURCE_KIND_TOPIC,
                )
                for number in numbers[first : first + 300]
            ],
        )
        server.ask(access_pb2_grpc.AccessServiceStub, method, request, timeout=60)


def allowed(server: Server, level: int, number: int) -> bool:
    request = access_pb2.CheckAccessRequest(
        principal=named(level, number), operation=access_pb2.OPERATION_READ, path=server.mount
    )
    return bool(server.ask(access_pb2_grpc.AccessServiceStub, "CheckAccess", request).allowed)


@pytest.mark.parametrize("store", ["sqlite", "etcd"])
def test_A3_more_is_handed_down_than_a_transaction_holds(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        paths = ["/" + "/".join(f"l{level}" for level in range(end + 1)) for end in range(LEVELS)]
        root.mkdir(paths[-1])
        settings = dict(FAST)
        if store == "etcd":
            etcd: SharedEtcd = request.getfixturevalue("etcd_cluster")
            settings["store"] = etcd.address()
        child = federation.join(f"{paths[-1]}/c", "/", **settings)
        for level, path in enumerate(paths):
            asked(root, "AddGrants", path, level, range(GRANTS))

        def all_arrived() -> bool:
            return not any(allowed(child, level, GRANTS - 1) for level in range(LEVELS))

        eventually(all_arrived, 60)
        # One goes: of the parts only what it is in is written again, and all others hold.
        asked(root, "RemoveGrants", paths[3], 3, range(5, 6))
        eventually(lambda: allowed(child, 3, 5), 60)
        assert not allowed(child, 3, 4)
        assert all_arrived()
        # What was kept holds without the parent, from the first answer after a restart.
        root.kill()
        child.kill()
        child.start()
        eventually(all_arrived)
        assert allowed(child, 3, 5)
        assert not child.status().quarantined_count
