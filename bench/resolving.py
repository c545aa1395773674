"""Resolve and BatchResolve through a real server on one core, against a bare grpcio server.

The load runs on the other core. A Python client is no faster than a Python server, so rates are
taken per second of the server's own CPU: what it could do with its core to itself. Rounds take
turns, and medians are compared: the machine's other work hits both. Latency is wall time, at half
the rate that the slower of the two reached.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from kdir.v1 import resolve_pb2

from bench import ground
from bench.rows import Row, at_least, at_most

__all__ = ["run"]

_RESOLVE: Final = "/kdir.v1.ResolveService/Resolve"
_BATCH: Final = "/kdir.v1.ResolveService/BatchResolve"
_ECHO: Final = "/bench.Echo/Echo"
_ROUNDS: Final = 7
_SECONDS: Final = 1.0
_WARM_UP: Final = 5
"""Rounds in which most of the 10,000 directories are met for the first time."""
_LATENCY_ROUNDS: Final = 3
_LATENCY_SECONDS: Final = 2.0
_AT_ONCE: Final = 64
_MANY: Final = 1_000_000
_FEW: Final = 10_000


class _Load:
    """Requests to one method of one server, those of one round never those of the one before."""

    def __init__(self, address: str, pid: int, method: str, requests: Sequence[bytes]) -> None:
        self.address = address
        self.method = method
        self.requests = requests
        self._pid = pid
        self._next = 0
        self.rates: list[float] = []
        self._per_second: list[float] = []

    def round(self, at_once: int = _AT_ONCE) -> None:
        """Adds a round's calls per second of the server's CPU, with so many at a time."""
        stop = time.monotonic() + _SECONDS
        counts: list[int] = []
        begin, count = self._next, len(self.requests)

        def work(call: Callable[..., object], offset: int) -> None:
            mine = 0
            while time.monotonic() < stop:
                call(self.requests[(offset + mine * at_once) % count], timeout=10)
                mine += 1
            counts.append(mine)

        with _channel(self.address) as channel:
            call = _method(channel, self.method)
            call(self.requests[begin % count], timeout=10)
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

    @property
    def rate(self) -> float:
        """Calls per CPU second, the median of the rounds."""
        return statistics.median(self.rates)

    @property
    def reached(self) -> float:
        """Calls per second of wall time, the median of the rounds: what this machine gives now."""
        return statistics.median(self._per_second)


def run() -> list[Row]:
    """10k and 1M topics, unary and batch."""
    ground.free_core()
    with (
        tempfile.TemporaryDirectory(prefix="kdir-bench-") as name,
        ground.pinned_directory(Path(name) / "many", ground.filled(_MANY, 10_000)) as server,
    ):
        folder = Path(name)
        many = _Load(server.address, server.process.pid, _RESOLVE, _requests(_MANY, 200_000))
        return [
            *_unary(folder, many),
            *_batch(folder, server.address, server.process.pid),
        ]


def _requests(topics: int, count: int) -> list[bytes]:
    choose = random.Random(7)
    return [
        resolve_pb2.ResolveRequest(
            path=ground.path_of(choose.randrange(topics), 100)
        ).SerializeToString()
        for _ in range(count)
    ]


def _batches(count: int, paths: Sequence[int]) -> list[bytes]:
    choose = random.Random(8)
    return [
        resolve_pb2.BatchResolveRequest(
            paths=[ground.path_of(number, 100) for number in choose.sample(paths, 1_000)]
        ).SerializeToString()
        for _ in range(count)
    ]


def _unary(folder: Path, many: _Load) -> list[Row]:
    """Paths all over the tree: one in five was asked before."""
    with _channel(many.address) as channel:
        size = len(_method(channel, _RESOLVE)(many.requests[0], timeout=5))
    with (
        ground.pinned_echo(folder, "unary", size) as (echo, echo_pid),
        ground.pinned_directory(folder / "few", ground.filled(_FEW, 100)) as small,
    ):
        bare = _Load(echo, echo_pid, _ECHO, many.requests)
        few = _Load(small.address, small.process.pid, _RESOLVE, _requests(_FEW, 200_000))
        for _ in range(_WARM_UP):
            many.round()
        many.rates.clear()
        for _ in range(_ROUNDS):
            for load in (bare, many, few):
                load.round()
        half = min(bare.reached, many.reached) / 2
        slow, slow_bare = [], []
        for _ in range(_LATENCY_ROUNDS):
            slow_bare.append(_p99(bare, half))
            slow.append(_p99(many, half))
    name = "unary Resolve, 1M topics"
    p99, p99_bare = 1e3 * statistics.median(slow), 1e3 * statistics.median(slow_bare)
    return [
        at_least(name, many.rate, "/CPU s", "bare echo", bare.rate, 0.90),
        at_most("its p99 at half load", p99, "ms", "bare echo", p99_bare, 1.25),
        at_least(name, many.rate, "/CPU s", "10k topics", few.rate, 0.85),
    ]


def _batch(folder: Path, address: str, pid: int) -> list[Row]:
    """Working sets of two sizes: paths that were asked before, and paths from all over the tree."""
    used = random.Random(9).sample(range(_MANY), 50_000)
    with ground.pinned_echo(folder, "batch", 1_000) as (echo, echo_pid):
        again = _Load(address, pid, _BATCH, _batches(100, used))
        bare = _Load(echo, echo_pid, _ECHO, again.requests)
        anew = _Load(address, pid, _BATCH, _batches(600, range(_MANY)))
        for _ in range(2):
            again.round(4)
        again.rates.clear()
        for _ in range(_ROUNDS):
            for load in (bare, again):
                load.round(4)
        for _ in range(_ROUNDS):
            for load in (bare, anew):
                load.round(4)
    unit, against, per_path = "paths/CPU s", "bare batch echo", 1_000
    return [
        at_least(
            "BatchResolve of 1,000 paths of 50k in use",
            per_path * again.rate,
            unit,
            against,
            per_path * bare.rate,
            0.5,
        ),
        at_least(
            "BatchResolve of 1,000 paths anywhere among 1M",
            per_path * anew.rate,
            unit,
            against,
            per_path * bare.rate,
            0.5,
        ),
    ]


def _p99(load: _Load, rate: float) -> float:
    """Seconds that 99 of 100 calls take at most, at an even rate that nothing slows down."""
    took: list[float] = []

    def note(begun: float) -> Callable[[object], None]:
        return lambda _: took.append(time.monotonic() - begun)

    with _channel(load.address) as channel:
        call = _method(channel, load.method)
        call(load.requests[0], timeout=10)
        start = time.monotonic()
        pending = []
        for number in range(int(rate * _LATENCY_SECONDS)):
            left = start + number / rate - time.monotonic()
            if left > 0:
                time.sleep(left)
            begun = time.monotonic()
            future = call.future(load.requests[number % len(load.requests)], timeout=30)
            future.add_done_callback(note(begun))
            pending.append(future)
        for future in pending:
            future.result()
    took.sort()
    return took[int(len(took) * 0.99) - 1]


def _channel(address: str) -> Any:
    return grpc.insecure_channel(address, options=(("grpc.max_receive_message_length", -1),))


def _method(channel: Any, method: str) -> Any:
    return channel.unary_unary(method)
