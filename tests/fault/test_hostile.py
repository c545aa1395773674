"""Hostile peers: whatever a client, child, parent or directory sends, errors are typed ones.

20,000 requests in ``make test``, 1,000,000 with ``make hostile``. A fault names its request.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import threading
import time
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from kdir.v1 import federation_pb2

from directory.server.config import Limits
from resolver import Resolver
from resolver.errors import KdirError, NotReady, Unmounted
from tests.support.federation import Federation, Server, eventually
from tests.support.hostile import (
    CLOSED_LINK,
    METHODS,
    Arguments,
    Fault,
    HostileChild,
    HostileClient,
    HostileDirectory,
    HostileTransport,
)

CLIENTS = 6
BOUNDS = {
    "retained_change_events": 2_000,
    "watch_queue_bytes": 1 << 20,
    "remembered_bytes": 4 << 20,
    "max_call_seconds": 10,
}


@pytest.fixture
def requests(request: pytest.FixtureRequest) -> int:
    return 1_000_000 if request.config.getoption("--soak") else 18_000


def resident_mib(server: Server) -> float:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def bugs_in(server: Server) -> list[str]:
    """Returns lines of its log that say that something went wrong which nobody had thought of."""
    text = server.process.log.read_text(errors="replace").splitlines()
    return [line for line in text if "by a bug" in line or line.startswith("Traceback")]


def flood(address: str, count: int, seed: int) -> tuple[list[Fault], Counter[str]]:
    """Sends so many requests, by several at once."""
    arguments, faults, outcomes = Arguments(), list[Fault](), Counter[str]()

    def work(number: int) -> None:
        with HostileClient(address, seed + number, arguments) as client:
            client.send(count // CLIENTS)
        faults.extend(client.faults)
        outcomes.update(client.outcomes)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults, outcomes


@pytest.mark.timeout(7_200)
def test_whatever_a_client_sends_to_any_method_only_typed_errors_come_back(
    federation: Federation, requests: int
) -> None:
    server = federation.start("/la", limits=BOUNDS)
    server.mkdir("/la/a/b")
    server.link("/la/d", "/la/a")
    seed = 1
    faults, outcomes = flood(server.address, requests // 3, seed)
    before = resident_mib(server)
    for part in range(2):
        found, more = flood(server.address, requests // 3, seed + 100 * (part + 1))
        faults += found
        outcomes += more
    assert not faults, f"{len(faults)}, such as {faults[:5]}"
    assert not bugs_in(server)
    assert outcomes["answered"] > requests // 20, "it must get past the checks, too"
    assert len(outcomes) >= 6, "and errors are of many kinds"
    assert server.outcome("/la/a") in {"resolution", "absent", "rewrite", "referral"}
    assert eventually(lambda: resident_mib(server) < before + 48, 60), "memory is back"


def test_every_method_of_the_contract_is_among_them() -> None:
    assert {method.containing_service.name for method in METHODS} == {
        "AccessService",
        "AdminService",
        "DirectoryService",
        "FederationService",
        "PolicyService",
        "ResolveService",
        "ScanService",
        "WatchService",
    }


def test_a_child_that_sends_anything_harms_neither_its_parent_nor_its_siblings(
    federation: Federation,
) -> None:
    parent = federation.start("/")
    sibling = federation.join("/ny", "/")
    parent.mount_child("/la", "kc-hostile")
    hello = federation_pb2.Hello(
        cluster_id="kc-hostile",
        cluster="la",
        mount="/la",
        endpoints=["127.0.0.1:1"],
    )
    for seed in range(40):
        child = HostileChild(parent.address, hello, seed)
        problem = child.send(50)
        # The parent hangs up on a child that says what cannot be kept.
        assert problem in {"", CLOSED_LINK}, f"seed {seed}"
        child.close()
    assert not bugs_in(parent)
    assert parent.outcome("/ny") == "referral"
    eventually(lambda: sibling.status().parent.linked)
    assert not bugs_in(sibling)
    assert "/ny" in parent.mounted()
    assert all(mount == "/" or mount.startswith(("/la", "/ny")) for mount in parent.mounted())


def test_a_parent_that_sends_anything_costs_a_child_its_link_and_nothing_else(
    federation: Federation,
) -> None:
    with HostileDirectory(7) as parent:
        federation.servers["/"] = cast("Server", parent)  # for its address
        child = federation.start("/la", parent="/")
        with contextlib.suppress(Unmounted, NotReady):  # the parent may have said so by now
            child.mkdir("/la/a")
        eventually(lambda: parent.calls["/kdir.v1.FederationService/Link"] >= 5, 60)
        assert child.outcome("/la/a") in {"resolution", "absent", "UNMOUNTED", "NOT_READY"}
        assert not bugs_in(child)
        assert child.status().version


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", range(4))
def test_a_directory_that_answers_anything_gets_a_client_a_location_or_a_typed_error(
    part: int, request: pytest.FixtureRequest
) -> None:
    count = 25_000 if request.config.getoption("--soak") else 400
    gc.collect()
    for seed in range(part * count, (part + 1) * count):
        with Resolver("127.0.0.1:1", transport=HostileTransport(seed), timeout_seconds=1) as client:
            for ask in (
                lambda client=client: client.resolve("/la/a/t"),
                lambda client=client: client.resolve_many(["/la/a", "/ny/b", "/"]),
                lambda client=client: list(client.list("/la")),
                lambda client=client: client.which("la", "a.t"),
                lambda client=client: client.trace("/la/a"),
            ):
                started = time.monotonic()
                try:
                    ask()
                except KdirError:
                    pass
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {error!r}") from error
                assert time.monotonic() - started < 30, f"seed {seed}"


def test_the_bounds_that_the_flood_runs_with_are_bounds() -> None:
    assert all(hasattr(Limits(), name) for name in BOUNDS)
