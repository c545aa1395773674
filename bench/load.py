"""Load on one method of one server: calls per second of its processor, latency at an even rate.

Requests and answers are bytes; answers are not looked at.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from kdir.v1 import resolve_pb2

from bench import ground

__all__ = [
    "BATCH",
    "BATCH_PATHS",
    "RESOLVE",
    "Load",
    "batches",
    "channel_to",
    "method_of",
    "resolves",
]

RESOLVE: Final = "/kdir.v1.ResolveService/Resolve"
BATCH: Final = "/kdir.v1.ResolveService/BatchResolve"
BATCH_PATHS: Final = 1_000
_SECONDS: Final = 1.0
_LATENCY_SECONDS: Final = 2.0
_AT_ONCE: Final = 64


class Load:
    """Load of one method of one server; each round sends other requests than the round before."""

    def __init__(
        self,
        address: str,
        pid: int,
        method: str,
        requests: Sequence[bytes],
        metadata: ground.Metadata = (),
    ) -> None:
        self._metadata = metadata
        self.address = address
        self.method = method
        self.requests = requests
        self._pid = pid
        self._next = 0
        self.rates: list[float] = []
        self._per_second: list[float] = []

    def round(self, at_once: int = _AT_ONCE) -> None:
        """Runs one round with ``at_once`` threads; adds its calls per CPU second to ``rates``."""
        stop = time.monotonic() + _SECONDS
        counts: list[int] = []
        begin, count = self._next, len(self.requests)

        def work(call: Callable[..., object], offset: int) -> None:
            mine = 0
            while time.monotonic() < stop:
                request = self.requests[(offset + mine * at_once) % count]
                call(request, timeout=10, metadata=self._metadata)
                mine += 1
            counts.append(mine)

        with channel_to(self.address) as channel:
            call = method_of(channel, self.method)
            call(self.requests[begin % count], timeout=10, metadata=self._metadata)
            before = ground.cpu_seconds(self._pid)
            threads = [
                threading.Thread(target=work, args=(call, begin + one)) for one in range(at_once)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self._per_second.append(sum(counts) / _SECONDS)
            self.rates.append(sum(counts) / (ground.cpu_seconds(self._pid) - before))
        self._next += sum(counts)

    def clear(self) -> None:
        """Removes the results of the rounds so far: they were to warm up."""
        self.rates.clear()
        self._per_second.clear()

    @property
    def rate(self) -> float:
        """Calls per CPU second, the median of the rounds."""
        return statistics.median(self.rates)

    @property
    def reached(self) -> float:
        """Calls per second of wall time, the median of the rounds: what this machine gives now."""
        return statistics.median(self._per_second)

    def p99(self, rate: float) -> float:
        """Returns the 99th percentile of the seconds of a call, at so many calls a second: none of
        them waits for the answer to another.
        """
        took: list[float] = []

        def note(begun: float) -> Callable[[object], None]:
            return lambda _: took.append(time.monotonic() - begun)

        with channel_to(self.address) as channel:
            call = method_of(channel, self.method)
            call(self.requests[0], timeout=10, metadata=self._metadata)
            start = time.monotonic()
            pending = []
            for number in range(int(rate * _LATENCY_SECONDS)):
                left = start + number / rate - time.monotonic()
                if left > 0:
                    time.sleep(left)
                begun = time.monotonic()
                request = self.requests[number % len(self.requests)]
                future = call.future(request, timeout=30, metadata=self._metadata)
                future.add_done_callback(note(begun))
                pending.append(future)
            for future in pending:
                future.result()
            while len(took) < len(pending):
                time.sleep(0.001)  # a future has its result a moment before its callback runs
        took.sort()
        return took[int(len(took) * 0.99) - 1]


def channel_to(address: str) -> Any:
    """Returns a channel of its own, for answers of any size."""
    return grpc.insecure_channel(address, options=(("grpc.max_receive_message_length", -1),))


def method_of(channel: Any, method: str) -> Any:
    """Returns a callable of the unary method with this full name, from bytes to bytes."""
    return channel.unary_unary(method)


def resolves(topics: int, count: int) -> list[bytes]:
    """Returns ``count`` Resolve requests for random topics among so many."""
    choose = random.Random(7)
    return [
        resolve_pb2.ResolveRequest(
            path=ground.path_of(choose.randrange(topics), 100)
        ).SerializeToString()
        for _ in range(count)
    ]


def batches(count: int, topics: Sequence[int]) -> list[bytes]:
    """Returns BatchResolve requests for topics of these numbers."""
    choose = random.Random(8)
    return [
        resolve_pb2.BatchResolveRequest(
            paths=[ground.path_of(number, 100) for number in choose.sample(topics, BATCH_PATHS)]
        ).SerializeToString()
        for _ in range(count)
    ]
