"""Children of one parent, in one process, that store nothing: they link, and count table rows.

A thousand real clusters need more memory and threads than a machine for benchmarks has; what links
cost their parent is the same for these.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import grpc.aio
from kdir.v1 import federation_pb2

__all__ = ["child_id", "mount_of"]

_LINKS_A_CONNECTION: Final = 50
_HEARTBEAT_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.05


def child_id(number: int) -> str:
    """Returns the cluster id of a child."""
    return f"kc-hollow{number:05}"


def mount_of(number: int) -> str:
    """Returns where a child is mounted."""
    return f"/c{number:04}"


class _Links:
    def __init__(self, address: str, count: int) -> None:
        self._address: Final = address
        self._count: Final = count
        self._rows: Final[dict[int, set[str]]] = {}

    async def hold(self) -> None:
        """Holds all links, and prints how many children have the rows of all."""
        channels = [
            grpc.aio.insecure_channel(self._address, (("grpc.use_local_subchannel_pool", 1),))
            for _ in range(0, self._count, _LINKS_A_CONNECTION)
        ]
        links = [
            asyncio.create_task(self._link(channels[one // _LINKS_A_CONNECTION], one))
            for one in range(self._count)
        ]
        done = 0
        while True:
            now_done = sum(len(rows) >= self._count for rows in self._rows.values())
            if now_done != done:
                done = now_done
                sys.stdout.write(f"whole {done} children\n")
                sys.stdout.flush()
            await asyncio.wait(links, timeout=_LOOK_SECONDS)

    async def _link(self, channel: grpc.aio.Channel, number: int) -> None:
        link = channel.stream_stream(
            "/kdir.v1.FederationService/Link",
            request_serializer=federation_pb2.LinkRequest.SerializeToString,
            response_deserializer=federation_pb2.LinkResponse.FromString,
        )
        while True:
            rows = self._rows[number] = set()
            call = link()
            beats: asyncio.Task[None] | None = None
            try:
                hello = federation_pb2.Hello(
                    cluster_id=child_id(number),
                    cluster=f"c{number}",
                    mount=mount_of(number),
                    endpoints=[f"127.0.0.1:{10_000 + number}"],
                )
                await call.write(federation_pb2.LinkRequest(hello=hello))
                beats = asyncio.create_task(self._beat(call))
                async for response in call:
                    table = response.mount_table
                    rows.update(row.mount for row in table.rows)
                    rows.difference_update(table.removed)
            except grpc.aio.AioRpcError as error:
                sys.stderr.write(f"link {number} ended: {error.code()} {error.details()}\n")
            finally:
                if beats is not None:
                    beats.cancel()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _beat(self, call: Any) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            beat = federation_pb2.Heartbeat()
            await call.write(federation_pb2.LinkRequest(heartbeat=beat))


if __name__ == "__main__":
    asyncio.run(_Links(sys.argv[1], int(sys.argv[2])).hold())
