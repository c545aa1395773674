"""A cluster on a store of its own, asked by its services' handlers as whoever a test says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import (
    access_pb2,
    directory_pb2,
    entry_pb2,
    federation_pb2,
    resolve_pb2,
    watch_pb2,
)

from directory.api.access_service import AccessService
from directory.api.admin_service import AdminService
from directory.api.cluster_router import ClusterRouter
from directory.api.directory_service import DirectoryService
from directory.api.federation_service import FederationService
from directory.api.policy_service import PolicyService
from directory.api.resolve_service import ResolveService
from directory.api.rpc.call_context import Call
from directory.api.scan_service import ScanService
from directory.api.watch_service import WatchService
from directory.kafka import admin_client
from directory.kafka.admin_client import ConfluentAdmin
from directory.namespace.entry import Kind, Provision, Topic
from directory.namespace.keys import entry_key
from directory.server.cluster import Cluster
from directory.server.config import parse_config
from directory.store.base import Put, Write
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import KdirError
from tests.support.federation import eventually

ADMIN = "User:admin"
SERVICES = (
    AccessService,
    AdminService,
    DirectoryService,
    FederationService,
    PolicyService,
    ResolveService,
    ScanService,
    WatchService,
)


class House:
    """One cluster at /la, and its services; ``others`` share its address."""

    def __init__(self, cluster: Cluster, *others: Cluster) -> None:
        self.cluster = cluster
        self.router = ClusterRouter([cluster, *others])
        self.handlers: dict[str, Callable[[Any, Call], Any]] = {}
        for service in SERVICES:
            self.handlers.update(service(self.router).method_handlers())

    def ask(self, who: str, method: str, request: Any, host: str = "", **call: Any) -> Any:
        asked = Call(
            time.monotonic() + 10,
            principal=who if ":" in who or not who else f"User:{who}",
            caller_host=host,
            is_active=lambda: True,
            **call,
        )
        if method in WatchService.polled | FederationService.polled:
            return self._polled(method, request, asked)
        answer = self.handlers[method](request, asked)
        if isinstance(answer, bytes):
            kinds = {"Resolve": resolve_pb2.ResolveResponse}
            answer = kinds.get(method, resolve_pb2.BatchResolveResponse).FromString(answer)
        return answer

    def _polled(self, method: str, request: Any, call: Call) -> Iterator[Any]:
        """Yields responses as a server sends them; the stream begins when the first is read."""
        kind: Any = federation_pb2.LinkResponse if method == "Link" else watch_pb2.WatchResponse
        with closing(self.handlers[method](request, call)) as source:
            while True:
                response = source.poll()
                if response is None:
                    time.sleep(0.01)
                elif isinstance(response, bytes):
                    yield kind.FromString(response)
                else:
                    yield response

    def refusal(self, who: str, method: str, request: Any) -> KdirError:
        with pytest.raises(KdirError) as refused:
            self.ask(who, method, request)
        return refused.value

    def mkdir(self, path: str, who: str = ADMIN, *, closed: bool = False) -> None:
        entry = entry_pb2.Entry(directory=entry_pb2.Directory(closed=closed))
        request = directory_pb2.CreateEntryRequest(path=path, entry=entry, make_parents=True)
        self.ask(who, "CreateEntry", request)

    def link(self, path: str, target: str, who: str = ADMIN) -> None:
        entry = entry_pb2.Entry(link=entry_pb2.Link(targets=[target]))
        self.ask(who, "CreateEntry", directory_pb2.CreateEntryRequest(path=path, entry=entry))

    def put(self, *writes: Write) -> None:
        self.cluster.writer.put_facts(writes)

    def grant(self, who: str, arguments: str, path: str, by: str = ADMIN, **fields: Any) -> Any:
        """Grants as in ``grant("bob", "read,describe", "/la")``; ``-read`` denies."""
        return self.ask(
            by,
            "AddGrants",
            access_pb2.AddGrantsRequest(path=path, grants=grants(who, arguments, **fields)),
        )

    def revoke(self, who: str, arguments: str, path: str, by: str = ADMIN) -> Any:
        return self.ask(
            by,
            "RemoveGrants",
            access_pb2.RemoveGrantsRequest(path=path, grants=grants(who, arguments)),
        )

    def outcome(self, who: str, path: str, host: str = "", **fields: Any) -> str:
        request = resolve_pb2.ResolveRequest(path=path, **fields)
        return str(self.ask(who, "Resolve", request, host).outcome.WhichOneof("kind"))

    def names(self, who: str, path: str, **fields: Any) -> list[str]:
        request = directory_pb2.ListEntriesRequest(path=path, **fields)
        return [one.path for one in self.ask(who, "ListEntries", request).entries]


def grants(who: str, arguments: str, **fields: Any) -> list[access_pb2.Grant]:
    made = []
    for argument in arguments.split(","):
        operation = argument.removeprefix("-").upper().replace("-", "_")
        made.append(
            access_pb2.Grant(
                principal=who if ":" in who else f"User:{who}",
                operation=f"OPERATION_{operation}",
                permission=access_pb2.PERMISSION_DENY
                if argument.startswith("-")
                else access_pb2.PERMISSION_ALLOW,
                resource_type=fields.get("kind", access_pb2.RESOURCE_TYPE_TOPIC),
                resource_name=fields.get("name", ""),
                host=fields.get("host", ""),
            )
        )
    return made


def topic(house: House, path: str, **fields: Any) -> None:
    """Adds a topic as adoption does."""
    segments = path.split("/")[2:]
    parent = house.cluster.replica.snapshot.find_directory(segments[:-1])
    assert parent is not None
    made = Topic(
        entry_id=hash(path) % 2**60 + 3,
        **{"physical_name": ".".join(segments), "provision": Provision.ACTIVE, **fields},
    )
    house.put(Put(entry_key(parent, Kind.TOPIC, segments[-1]), ProtoCodec().encode(made)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests on sqlite, which is enough where rights are decided in memory; those of a module
    with ``STORES`` on these kinds.
    """
    if "store" in metafunc.fixturenames:
        kinds = getattr(metafunc.module, "STORES", ["sqlite"])
        metafunc.parametrize("store", kinds, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns the address of a new store of the kind that the test is for."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/la.sqlite"
    return str(request.getfixturevalue("etcd_cluster").address())


@pytest.fixture
def house(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., House]]:
    """Makes clusters. A Kafka that their config names is not there: nobody waits for it long."""
    hasty = partial(ConfluentAdmin, timeout_seconds=0.1)
    monkeypatch.setattr(admin_client, "ConfluentAdmin", hasty)
    with ExitStack() as cleanup:

        def make(access: str = "enforce", **settings: Any) -> House:
            config = parse_config(
                {
                    "cluster": "la",
                    "mount": "/la",
                    "store": store,
                    "access": access,
                    "auth": {"super_users": [ADMIN], "allow_anonymous": True},
                    **settings,
                }
            )
            cluster = Cluster.open(config, lambda: ("127.0.0.1:1",))
            cleanup.callback(cluster.stop)
            cluster.start()
            eventually(lambda: cluster.replica.reported_revision >= 0)  # later than the snapshot
            return House(cluster)

        yield make
