"""Resolve and BatchResolve through a real server on one core, against a bare grpcio server.

The load runs on the other core. A Python client is no faster than a Python server, so rates are
taken per second of the server's own CPU: what it could do with its core to itself. Latency is
wall time, at half the rate that the slower of the two reached.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

from bench import ground
from bench.rows import Row, at_least, at_most
from kdir.v1 import resolve_pb2

__all__ = ["run"]

_RESOLVE: Final = "/kdir.v1.ResolveService/Resolve"
_BATCH: Final = "/kdir.v1.ResolveService/BatchResolve"
_ECHO: Final = "/bench.Echo/Echo"
_ROUNDS: Final = 5
_SECONDS: Final = 3.0
_AT_ONCE: Final = 64


def run() -> list[Row]:
    """10k and 1M topics, unary and batch."""
    ground.free_core()
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name:
        folder = Path(name)
        small, large = f"sqlite:///{folder}/small.sqlite", f"sqlite:///{folder}/large.sqlite"
        ground.fill_store(small, 10_000, 100)
        ground.fill_store(large, 1_000_000, 10_000)
        return [*_unary(folder, small, large), *_batch(folder, large)]


def _requests(topics: int, per_directory: int = 100) -> list[bytes]:
    choose = random.Random(7)
    return [
        resolve_pb2.ResolveRequest(
            path=ground.path_of(choose.randrange(topics), per_directory)
        ).SerializeToString()
        for _ in range(5_000)
    ]


def _unary(folder: Path, small: str, large: str) -> list[Row]:
    requests = _requests(1_000_000)
    with ground.pinned_directory(folder / "large", large) as server:
        with grpc.insecure_channel(server.address) as channel:
            size = len(channel.unary_unary(_RESOLVE)(requests[0], timeout=5))
        with (
            ground.pinned_echo(folder, "unary", size) as (echo, echo_pid),
            ground.pinned_directory(folder / "small", small) as few,
        ):
            ours, bare, fewer = [], [], []
            for _ in range(_ROUNDS):
                bare.append(_rate(echo, echo_pid, _ECHO, requests))
                ours.append(_rate(server.address, server.process.pid, _RESOLVE, requests))
                fewer.append(
                    _rate(few.address, few.process.pid, _RESOLVE, _requests(10_000))
                )
            half = min(_median(bare), _median(ours)) / 2
            slow = _p99(server.address, _RESOLVE, requests, half)
            slow_bare = _p99(echo, _ECHO, requests, half)
    return [
        at_least(
            "unary Resolve, 1M topics", _median(ours), "/CPU s", "bare echo", _median(bare), 0.90
        ),
        at_most("its p99 at half load", slow * 1e3, "ms", "bare echo", slow_bare * 1e3, 1.25),
        at_least(
            "unary Resolve, 1M topics", _median(ours), "/CPU s", "10k topics", _median(fewer), 0.85
        ),
    ]


def _batch(folder: Path, large: str) -> list[Row]:
    choose = random.Random(8)
    requests = [
        resolve_pb2.BatchResolveRequest(
            paths=[ground.path_of(choose.randrange(1_000_000), 100) for _ in range(1_000)]
        ).SerializeToString()
        for _ in range(50)
    ]
    with (
        ground.pinned_directory(folder / "batch", large) as server,
        ground.pinned_echo(folder, "batch", 1_000) as (echo, echo_pid),
    ):
        ours, bare = [], []
        for _ in range(_ROUNDS):
            bare.append(1_000 * _rate(echo, echo_pid, _ECHO, requests, 4))
            ours.append(
                1_000 * _rate(server.address, server.process.pid, _BATCH, requests, 4)
            )
    return [
        at_least(
            "BatchResolve of 1,000 paths",
            _median(ours),
            "paths/CPU s",
            "bare batch echo",
            _median(bare),
            0.5,
        )
    ]


def _rate(
    address: str, pid: int, method: str, requests: list[bytes], at_once: int = _AT_ONCE
) -> float:
    """Calls a second of the server's CPU, with so many at a time."""
    done = 0
    lock = threading.Lock()
    stop = time.monotonic() + _SECONDS

    def work(call: Callable[..., Any], offset: int) -> None:
        nonlocal done
        mine = 0
        while time.monotonic() < stop:
            call(requests[(offset + mine * at_once) % len(requests)], timeout=10)
            mine += 1
        with lock:
            done += mine

    with grpc.insecure_channel(
        address, options=(("grpc.max_receive_message_length", -1),)
    ) as channel:
        call = channel.unary_unary(method)
        call(requests[0], timeout=10)
        before = ground.cpu_seconds(pid)
        threads = [threading.Thread(target=work, args=(call, one)) for one in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done / (ground.cpu_seconds(pid) - before)


def _p99(address: str, method: str, requests: list[bytes], rate: float) -> float:
    """Seconds that 99 of 100 calls take at most, at an even rate that nothing slows down."""
    took: list[float] = []
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(method)
        call(requests[0], timeout=10)
        start = time.monotonic()
        pending = []
        for number in range(int(rate * _SECONDS)):
            due = start + number / rate
            left = due - time.monotonic()
            if left > 0:
                time.sleep(left)
            begun = time.monotonic()
            future = call.future(requests[number % len(requests)], timeout=10)
            future.add_done_callback(
                lambda _, begun=begun: took.append(time.monotonic() - begun)
            )
            pending.append(future)
        for future in pending:
            future.result()
    took.sort()
    return took[int(len(took) * 0.99) - 1]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
