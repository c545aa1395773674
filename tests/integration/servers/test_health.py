"""Health: loading and too old are NOT_SERVING; stale within the limit is SERVING."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.servers.lagging import One
from tests.support.federation import eventually


def test_S5_while_nothing_is_loaded_it_is_not_serving(tmp_path: Path, cleanup: ExitStack) -> None:
    one = One(f"sqlite:///{tmp_path / 's.sqlite'}", cleanup, load=False)
    assert one.health == "NOT_SERVING"
    assert one.outcome("/la") == "NOT_READY"
    stub: Any = health_pb2_grpc.HealthStub(one.channel)
    watching = stub.Watch(health_pb2.HealthCheckRequest(service="kdir.v1.ResolveService"))
    assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
    one.load()
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    assert one.health == "SERVING"
    watching.cancel()


def test_S4_stale_within_the_limit_is_serving_and_beyond_it_is_not(
    tmp_path: Path, cleanup: ExitStack
) -> None:
    store = f"sqlite:///{tmp_path / 's.sqlite'}"
    writer = One(store, cleanup)
    # So old that a slow machine cannot be late to see it stale and serving.
    one = One(store, cleanup, max_stale_seconds=6.0)
    one.cluster.replica.stale_after_seconds = 0.3
    eventually(lambda: one.health == "SERVING")
    one.lag()
    writer.mkdir("/la/seen")
    writer.mkdir("/la/unseen")
    eventually(lambda: one.resolve("/la").authority.stale)
    assert one.health == "SERVING"
    eventually(lambda: one.health == "NOT_SERVING")
    assert one.outcome("/la") == "UNREACHABLE"
    one.catch_up()
    eventually(lambda: one.health == "SERVING")
    assert one.outcome("/la/unseen") == "resolution"
