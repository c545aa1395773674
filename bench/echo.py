"""The bare peer of resolves: a grpcio server with one fixed answer.

``python -m bench.echo unary SIZE`` answers bytes with SIZE bytes; ``batch COUNT`` parses each
BatchResolveRequest and serialises a ready BatchResolveResponse with COUNT outcomes.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from kdir.v1 import entry_pb2, resolve_pb2


def _unary(size: int) -> grpc.RpcMethodHandler[Any, Any]:
    payload = b"x" * size
    return grpc.unary_unary_rpc_method_handler(lambda _request, _context: payload)


def _batch(count: int) -> grpc.RpcMethodHandler[Any, Any]:
    answer = resolve_pb2.BatchResolveResponse()
    answer.authorities.add(server="echo", token="x" * 48)
    for number in range(count):
        resolution = answer.outcomes.add().resolution
        entry = resolution.entry
        entry.path = f"/la/tracking/dir{number:05}/topic-{number:06}"
        entry.entry_id = number + 2**62
        entry.etag = f"{entry.entry_id:x}-1"
        entry.change_count = 1
        entry.changed_at.FromMilliseconds(1_700_000_000_000)
        entry.topic.physical_name = f"dir{number:05}.topic-{number:06}"
        entry.topic.topic_id = b"x" * 16
        entry.topic.partitions = 24
        entry.topic.replication_factor = 3
        entry.topic.provision = entry_pb2.PROVISION_ACTIVE
        entry.topic.adopted = True
        resolution.lifetime_seconds = 60
    return grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: answer,
        request_deserializer=resolve_pb2.BatchResolveRequest.FromString,
        response_serializer=resolve_pb2.BatchResolveResponse.SerializeToString,
    )


def main(kind: str, size: int) -> None:
    """Serves until it is killed."""
    server = grpc.server(ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))
    handler = _unary(size) if kind == "unary" else _batch(size)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"echo on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
