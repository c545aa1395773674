"""The client in one process: answers from memory, and cold paths asked by many threads at once."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import ground
from bench.rows import Row, at_least, at_most
from resolver import Resolver
from resolver.transport import GrpcTransport

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from resolver.transport import Method, Stream

__all__ = ["cold_rate", "run"]

_WARM_PATHS: Final = 1_000
_WARM_ROUNDS: Final = 7
_LOOPS: Final = 200
_COLD_PATHS: Final = 1_280
_COLD_ROUNDS: Final = 5
_THREADS: Final = 64


class _Counting:
    """A transport over gRPC that counts the calls."""

    def __init__(self) -> None:
        self._inner = GrpcTransport()
        self.calls = 0

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        self.calls += 1
        return self._inner.call(endpoint, method, request, timeout_seconds)

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        self.calls += 1
        return self._inner.stream(endpoint, method, request)

    def close(self) -> None:
        self._inner.close()


def run() -> list[Row]:
    """Measures warm resolves, and cold resolves by 64 threads against those by one."""
    ground.free_core()
    with (
        tempfile.TemporaryDirectory(prefix="kdir-bench-") as name,
        ground.pinned_directory(Path(name), ground.filled(10_000, 100)) as server,
    ):
        return [*_warm(server.address), _cold(server.address)]


def _warm(address: str) -> list[Row]:
    paths = _paths(_WARM_PATHS)
    transport = _Counting()
    with Resolver(address, transport=transport) as resolver:
        for path in paths:
            resolver.resolve(path)
        before = transport.calls
        resolve = resolver.resolve
        rates = []
        for _ in range(_WARM_ROUNDS):
            began = time.thread_time()
            for _ in range(_LOOPS):
                for path in paths:
                    resolve(path)
            rates.append(_LOOPS * len(paths) / (time.thread_time() - began))
        calls = transport.calls - before
    transport.close()
    asked = _WARM_ROUNDS * _LOOPS * len(paths)
    return [
        at_least("warm resolve", statistics.median(rates), "/CPU s", "goal", 1e6, 1),
        at_most(f"calls of those {asked:,} resolves", calls, "calls", "resolves", asked, 0),
    ]


def _cold(address: str) -> Row:
    """Measures, in wall time, resolves of paths that each new client does not know, by one thread
    and by many in alternating rounds.
    """
    paths = _paths(_COLD_PATHS)
    one, many = [], []
    for _ in range(_COLD_ROUNDS):
        one.append(cold_rate(address, paths, 1))
        many.append(cold_rate(address, paths, _THREADS))
    rate, rate_of_one = statistics.median(many), statistics.median(one)
    return at_least(
        f"cold paths, {_THREADS} threads", rate, "paths/s", "one by one", rate_of_one, 3
    )


def cold_rate(address: str, paths: Sequence[str], threads: int) -> float:
    """Returns how many paths a second a new client resolves by so many threads.

    Raises:
        RuntimeError: not all were resolved.
    """
    resolved: list[str] = []
    with Resolver(address, timeout_seconds=30) as resolver:
        resolver.resolve(ground.MOUNT)  # opens the channel
        ready = threading.Barrier(threads + 1)

        def work(mine: Sequence[str]) -> None:
            ready.wait()
            for path in mine:
                resolver.resolve(path)
                resolved.append(path)

        workers = [
            threading.Thread(target=work, args=(paths[number::threads],))
            for number in range(threads)
        ]
        for worker in workers:
            worker.start()
        ready.wait()
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - began
    if len(resolved) < len(paths):
        raise RuntimeError(f"only {len(resolved)} of {len(paths)} paths were resolved")
    return len(paths) / seconds


def _paths(count: int) -> list[str]:
    return [ground.path_of(number, 100) for number in random.Random(7).sample(range(10_000), count)]
