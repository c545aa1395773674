"""Watches of gRPC's health service end with their call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2

from directory.api.grpc_server import Health
from directory.api.rpc.request_intake import Received, RequestIntake

WATCH = "/grpc.health.v1.Health/Watch"


class EndingCall:
    """Context of a call that ends while it is asked whether it goes on, once ``ends`` is set."""

    def __init__(self) -> None:
        self._is_over = False
        self._at_end: Callable[[], object] = int
        self.ends = False

    def add_callback(self, at_end: Callable[[], object]) -> bool:
        self._at_end = at_end
        return True

    def is_active(self) -> bool:
        active = not self._is_over
        if self.ends and active:
            self._is_over = True
            ending = threading.Thread(target=self._at_end, daemon=True)
            ending.start()
            ending.join(0.2)  # unless it waits for the lock under which this is asked
        return active


def test_a_watch_of_a_call_that_ends_at_any_moment_holds_no_thread() -> None:
    health = Health(["a"], 3, RequestIntake(1, 1.0, 99))
    details = cast("grpc.HandlerCallDetails", SimpleNamespace(method=WATCH))
    watch: Any = health.handler().service(details)
    call, statuses = EndingCall(), []
    request = Received(health_pb2.HealthCheckRequest())

    def run() -> None:
        for one in watch.stream_stream(request, call):
            statuses.append(one.status)
            call.ends = True

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert statuses == [health_pb2.HealthCheckResponse.NOT_SERVING]
    health.shutdown()
