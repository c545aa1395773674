"""One process of watchers: many streams of one method, each message counted.

``python -m bench.watching ADDRESS METHOD COUNT REQUEST``, the request in hex: writes ``open`` once
each stream has its first message, and after that ``got N TIME`` when all streams have the Nth
message after it; TIME is of the monotonic clock.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import Any

import grpc

_STREAMS = 50
"""Of one connection: a server allows 64."""


async def _watch(address: str, method: str, count: int, request: bytes) -> None:
    arrived: Counter[int] = Counter()

    async def follow(channel: grpc.aio.Channel) -> None:
        number = 0
        stream: Any = channel.unary_stream(method)(request)  # type: ignore[arg-type]
        async for _ in stream:
            arrived[number] += 1
            if arrived[number] == count:
                what = f"got {number} {time.monotonic()}" if number else "open"
                sys.stdout.write(f"{what}\n")
                sys.stdout.flush()
            number += 1
        raise AssertionError(f"a stream ended: {await stream.code()}, {await stream.details()}")

    channels = [
        grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(-(-count // _STREAMS))
    ]
    await asyncio.gather(*(follow(channels[number % len(channels)]) for number in range(count)))


if __name__ == "__main__":
    asyncio.run(_watch(sys.argv[1], sys.argv[2], int(sys.argv[3]), bytes.fromhex(sys.argv[4])))
