"""The bare peer of writes on etcd: a grpcio server that makes guarded transactions in etcd.

``python -m bench.bare_etcd_server ADDRESS`` records the transaction of one mkdir in the store at
``etcd://…``, and then makes it with other names and ids for each call: the same guards, rows and
bytes, behind the same gRPC, and nothing else.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from bench.bare_etcd import NewDirectories, transacting
from directory.store.etcd.etcd_address import EtcdAddress

_THREADS: Final = 16
_SECONDS: Final = 10.0
_ANSWER: Final = b"x" * 150


def main(address: str) -> None:
    """Serves until it is killed."""
    requests = NewDirectories.record(address, "served")
    with transacting(EtcdAddress.parse(address).endpoints[0]) as transact:

        def create(_request: bytes, _context: object) -> bytes:
            transact(requests.next(), timeout=_SECONDS)
            return _ANSWER

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


if __name__ == "__main__":
    main(sys.argv[1])
