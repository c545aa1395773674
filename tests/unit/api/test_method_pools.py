"""Which pool gRPC submits the calls of each method to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest
from grpc import _server
from kdir.v1 import resolve_pb2, scan_pb2

from directory.api.access_service import AccessService
from directory.api.admin_service import AdminService
from directory.api.directory_service import DirectoryService
from directory.api.federation_service import FederationService
from directory.api.policy_service import PolicyService
from directory.api.resolve_service import ResolveService
from directory.api.rpc.handlers import CallBounds, Pools, Service, bind_service
from directory.api.rpc.interceptors.request_bounds import RequestBounds
from directory.api.rpc.long_calls import SHORT_PATHS, LongCalls
from directory.api.rpc.method_rights import Threads, check_of
from directory.api.rpc.polled_streams import PolledStreams
from directory.api.rpc.request_intake import CallCompletion, Received, RequestIntake
from directory.api.rpc.stream_slots import StreamPool, StreamSlots
from directory.api.rpc.thread_pools import CallPool, WritePool
from directory.api.rpc.unsent_answers import UnsentAnswers
from directory.api.scan_service import ScanService
from directory.api.watch_service import WatchService
from directory.server.config import Limits
from directory.server.metrics.instrumentation import CallMetrics

SERVICES: tuple[type[Service], ...] = (
    AccessService,
    AdminService,
    DirectoryService,
    FederationService,
    PolicyService,
    ResolveService,
    ScanService,
    WatchService,
)


@pytest.fixture
def pools() -> Iterator[Pools]:
    intake = RequestIntake(1, 1.0, 1)
    short, long = CallPool(1, 1, intake), CallPool(1, 1, intake)
    yield Pools(
        StreamPool(1, "stream", intake),
        WritePool(1, 1, intake, short),
        LongCalls(short, long, intake),
        PolledStreams(short, intake, StreamSlots(1, 1, 1)),
    )
    short.shutdown()
    long.shutdown()


@pytest.mark.parametrize("kind", SERVICES, ids=lambda kind: kind.__name__)
def test_grpc_submits_each_method_to_the_pool_of_its_row(kind: type[Service], pools: Pools) -> None:
    make: Any = kind
    service = make(MagicMock(limits=Limits()))  # the router, of which nothing is asked
    bounds = CallBounds(StreamSlots(1, 1, 1), RequestBounds(1, 1), UnsentAnswers(1, 1, 1.0))
    bound = bind_service(service, 1.0, pools, CallMetrics(), bounds)
    default = ThreadPoolExecutor(1)
    by_threads = {Threads.STREAMS: pools.streams, Threads.WRITES: pools.writes}
    for name in service.method_handlers():
        handler = bound.service(_Asked(f"/{service.descriptor.full_name}/{name}"))
        assert handler is not None
        behave: Any = handler.stream_stream if handler.response_streaming else handler.stream_unary
        found = _server._select_thread_pool_for_behavior(behave, default)
        calls = pools.long if name in service.long else default
        expected = by_threads.get(check_of(f"{service.descriptor.name}/{name}").threads, calls)
        if name in service.polled:
            expected = pools.polled
        assert found is expected, name


class _Asked(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


@pytest.mark.parametrize(
    ("request_message", "expected"),
    [
        (resolve_pb2.BatchResolveRequest(paths=["/"] * SHORT_PATHS), "short"),
        (resolve_pb2.BatchResolveRequest(paths=["/"] * (SHORT_PATHS + 1)), "long"),
        (scan_pb2.ScanTopicsRequest(), "long"),
        (None, "short"),
    ],
)
def test_a_long_call_waits_for_long_ones_only(request_message: Any, expected: str) -> None:
    begun = list[str]()

    class Pool:
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self, *_: object) -> None:
            begun.append(self.name)

    class Intake:
        def submit(self, begin: Any, answer: Any, about: Any) -> None:
            begin(CallCompletion(), answer, about)

    kind: Any = LongCalls
    calls = kind(Pool("short"), Pool("long"), Intake())
    calls.submit(print, None, None, None, None, lambda: Received(request_message))
    assert begun == [expected]
