"""The table of methods and their checks is what the servers execute, and what the docs show."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from kdir.v1 import access_pb2

from directory.access.grants import Operation
from directory.api.rpc.handlers import Service, _refuse_other_threads
from directory.api.rpc.method_rights import CHECKS, Threads, check_of, cluster_check, table
from resolver.errors import KdirError, PermissionDenied
from tests.unit.access.conftest import SERVICES, House

STORES = ("sqlite", "etcd")

ROOT = Path(__file__).resolve().parents[3]
ADMIN_METHODS = [name for name in CHECKS if name.startswith("AdminService/")]
Make = Callable[..., House]


def methods() -> dict[str, Any]:
    return {
        f"{service.descriptor.name}/{method.name}": method
        for service in SERVICES
        for method in service.descriptor.methods
    }


def test_each_method_of_the_contract_has_a_row_and_no_other() -> None:
    assert set(CHECKS) == set(methods())
    with pytest.raises(LookupError, match=r"Admin/New has no row"):
        check_of("Admin/New")
    with pytest.raises(LookupError, match="no right on a cluster"):
        cluster_check("ResolveService/Resolve")


def test_a_method_without_a_row_or_on_other_threads_does_not_start() -> None:
    class Odd(Service):
        descriptor = SERVICES[1].descriptor
        writes = frozenset({"GetStatus"})

        def method_handlers(self) -> dict[str, Any]:
            return {}

    check = check_of("AdminService/GetStatus")
    with pytest.raises(ValueError, match=r"GetStatus runs on limits\.write_threads"):
        _refuse_other_threads(Odd(), "GetStatus", check, streams=False)
    for service in SERVICES:
        for method in service.descriptor.methods:
            check = check_of(f"{service.descriptor.name}/{method.name}")
            is_write, is_stream = method.name in service.writes, method.server_streaming
            expected = Threads.STREAMS if is_stream else Threads.WRITES
            assert (check.threads is expected) == (is_write or is_stream)


@pytest.mark.parametrize("method", CHECKS)
def test_what_a_row_says_decides_is_there(method: str) -> None:
    module, _, name = CHECKS[method].by.partition(":")
    found: Any = importlib.import_module(f"directory.api.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


def request_of(method: str) -> Message:
    made: Message = GetMessageClass(methods()[method].input_type)()
    return made


@pytest.mark.parametrize("method", ADMIN_METHODS)
def test_what_is_a_clusters_takes_the_right_of_its_row(method: str, house: Make) -> None:
    kafka = {"bootstrap": ["127.0.0.1:1"]}
    la = house(kafka=kafka)
    needed, _ = cluster_check(method)
    cluster = access_pb2.RESOURCE_TYPE_CLUSTER

    def refused() -> KdirError | None:
        try:
            answer = la.ask("bob", method.partition("/")[2], request_of(method))
            if methods()[method].server_streaming:
                next(answer)
        except KdirError as error:
            return error
        return None

    la.grant("bob", "all", "/la")  # of entries: all of them
    for other in ("create", "cluster-action", "describe-configs"):
        la.grant("bob", other, "/la", kind=cluster)
    assert isinstance(refused(), PermissionDenied)
    if needed is Operation.ALTER:
        la.grant("bob", "describe", "/la", kind=cluster)
        assert isinstance(refused(), PermissionDenied)
    la.grant("bob", needed.name.lower(), "/la", kind=cluster)
    assert not isinstance(refused(), PermissionDenied)


def test_the_docs_show_the_table() -> None:
    shown = (ROOT / "docs" / "security.md").read_text()
    assert table() in shown, f"docs/security.md: put this there:\n{table()}"
