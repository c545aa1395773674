"""The bare peer of watches: a grpcio server that sends the bytes it is given to all open streams.

``python -m bench.bare_broadcast``: ``/bench.Bare/Watch`` sends one empty message and stays open;
``/bench.Bare/Broadcast`` answers at once, then sends its request to all open streams. The server is
grpcio's asynchronous one, since the synchronous one needs a thread for each stream.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc


async def _serve() -> None:
    waiting: set[asyncio.Queue[bytes]] = set()

    async def watch(_: bytes, __: Any) -> AsyncIterator[bytes]:
        mine: asyncio.Queue[bytes] = asyncio.Queue()
        waiting.add(mine)
        try:
            yield b""
            while True:
                yield await mine.get()
        finally:
            waiting.discard(mine)

    def send_all(payload: bytes) -> None:
        for one in waiting:
            one.put_nowait(payload)

    async def broadcast(payload: bytes, _: Any) -> bytes:
        asyncio.get_running_loop().call_soon(send_all, payload)
        return b""

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
        "Broadcast": grpc.unary_unary_rpc_method_handler(broadcast),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bare", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"bare on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
