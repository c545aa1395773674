"""A grpcio server of one call, which the bare peers of writes on sqlite and on etcd share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

__all__ = ["serve"]

_THREADS: Final = 16


def serve(create: Callable[[bytes, object], bytes]) -> None:
    """Serves ``/bench.Bare/Create`` by ``create`` until the process is killed; prints the
    address.
    """
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=(("grpc.so_reuseport", 0),))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(create)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Bare", {"Create": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"bare on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    threading.Event().wait()
