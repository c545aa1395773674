"""gRPC's own services, health and reflection, on the threads of this server's pools.

As they come they would answer from the pool of calls, which one stream of reflection holds a thread
of for as long as it lasts, and wait for ever for a request that does not come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from directory.services.arrivals import Arrivals

__all__ = ["health_handler", "reflection_handler"]


def health_handler(
    servicer: health.HealthServicer, streams: ThreadPoolExecutor, arrivals: Arrivals
) -> grpc.GenericRpcHandler:
    """``grpc.health.v1.Health`` of a servicer that pushes (``experimental_non_blocking``)."""

    def check(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        return servicer.Check(arrivals.take(requests, context) or _EVERY, context)

    untyped: Any = servicer  # its types lag behind it: they know no List

    def list_all(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        return untyped.List(arrivals.take(requests, context), context)

    def watch(
        requests: Iterator[Any], context: grpc.ServicerContext, send: Callable[[Any], None]
    ) -> None:
        servicer.Watch(arrivals.take(requests, context) or _EVERY, context, send)

    watch.experimental_non_blocking = True  # type: ignore[attr-defined]
    watch.experimental_thread_pool = streams  # type: ignore[attr-defined]
    read, write = health_pb2.HealthCheckRequest.FromString, _write
    list_request: Any = health_pb2
    return grpc.method_handlers_generic_handler(
        health.SERVICE_NAME,
        {
            "Check": grpc.stream_unary_rpc_method_handler(check, read, write),
            "List": grpc.stream_unary_rpc_method_handler(
                list_all, list_request.HealthListRequest.FromString, write
            ),
            "Watch": grpc.stream_stream_rpc_method_handler(watch, read, write),
        },
    )


def reflection_handler(names: Sequence[str], streams: ThreadPoolExecutor) -> grpc.GenericRpcHandler:
    """``grpc.reflection.v1alpha.ServerReflection`` for services of these names."""
    servicer = reflection.ReflectionServicer(names)

    def info(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        found: Iterator[Any] = servicer.ServerReflectionInfo(requests, context)
        return found

    info.experimental_thread_pool = streams  # type: ignore[attr-defined]
    return grpc.method_handlers_generic_handler(
        reflection.SERVICE_NAME,
        {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                info, reflection_pb2.ServerReflectionRequest.FromString, _write
            )
        },
    )


def _write(response: Any) -> bytes:
    data: bytes = response.SerializeToString()
    return data


_EVERY = health_pb2.HealthCheckRequest()
"""What a caller means who ends its side without a request: the server as a whole."""
