"""As many grants as may be handed down, on every store; more are refused where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from kdir.v1 import access_pb2, access_pb2_grpc

from resolver.errors import LimitExceeded
from tests.conftest import SharedEtcd
from tests.support.federation import FAST, Federation, Server, eventually

LEVELS = 3
GRANTS = 400
LONG = "x" * 800
"""3 × 400 × 850 bytes: almost 1 MiB."""


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
                    resource_type=access_pb2.RESOURCE_TYPE_TOPIC,
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
def test_A3_a_mebibyte_is_handed_down_and_more_is_refused_where_it_is_written(
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
        with pytest.raises(LimitExceeded, match="mounted at or below /l0 would inherit 1,"):
            asked(root, "AddGrants", paths[0], 0, range(GRANTS, 2 * GRANTS))
        asked(root, "RemoveGrants", paths[1], 1, range(5, 6))
        eventually(lambda: allowed(child, 1, 5), 60)
        assert not allowed(child, 1, 4)
        assert all_arrived()
        # What was kept holds without the parent, from the first answer after a restart.
        root.kill()
        child.kill()
        child.start()
        eventually(all_arrived)
        assert allowed(child, 1, 5)
        assert not child.status().unreadable_value_count


def test_A3_what_is_too_much_further_down_is_reported_and_opens_nothing(tmp_path: Path) -> None:
    """Its parent adds to what it inherits itself: the cluster above cannot know that."""
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        la = federation.join("/la", "/")
        la.mkdir("/la/x")
        child = federation.join("/la/x/c", "/la")
        for numbers in (range(GRANTS), range(GRANTS, 2 * GRANTS)):
            asked(la, "AddGrants", "/la/x", 0, numbers)
        eventually(lambda: not allowed(child, 0, 2 * GRANTS - 1), 60)
        asked(root, "AddGrants", "/", 1, range(2 * GRANTS))
        eventually(lambda: not allowed(la, 1, 2 * GRANTS - 1), 60)
        # Too much for the one below: its link ends and says so; what it inherited holds.
        # Between two links it says for a moment that the parent has sent nothing yet.
        why = "a cluster mounted at /la/x/c would inherit 1,"
        eventually(lambda: why in child.status().parent.message, 60)
        assert not allowed(child, 0, 2 * GRANTS - 1)
        asked(la, "RemoveGrants", "/la/x", 0, range(GRANTS))
        eventually(lambda: not allowed(child, 1, GRANTS - 1), 60)
        eventually(lambda: child.status().parent.linked)
