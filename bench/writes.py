"""Writes through a server on a sqlite file, beside bare transactions behind the same gRPC.

The bare peer (``bare_sqlite``) makes the same rows under the same guards. The same number of
threads loads both sides in alternating rounds; each rate has a write's processor time beside it.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import truediv
from pathlib import Path
from typing import Final

from kdir.v1 import directory_pb2

from bench import ground
from bench.load import channel_to, method_of
from bench.rows import Row, at_least, at_most
from deploy.local.directory import DirectoryProcess
from deploy.local.process import LocalProcess

__all__ = ["BARE", "CREATE", "Mkdirs", "Side", "bare_server", "calls_per_second", "run"]

CREATE: Final = "/kdir.v1.DirectoryService/CreateEntry"
BARE: Final = "/bench.Bare/Create"
"""Method of a bare peer."""
_THREADS: Final = (1, 16)
_GOAL_MS: Final = {1: 1.3, 16: 1.1}
_ROUNDS: Final = 7
_SECONDS: Final = 2.0


def run() -> list[Row]:
    """Measures writes of one client and of 16."""
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name, ExitStack() as cleanup:
        folder = Path(name)
        server = cleanup.enter_context(
            DirectoryProcess(folder / "server", ground.MOUNT, {"cluster": ground.CLUSTER})
        )
        command = [sys.executable, "-m", "bench.bare_sqlite", str(folder / "bare.sqlite")]
        address, pid = cleanup.enter_context(bare_server(command, folder / "bare.log"))
        create = method_of(cleanup.enter_context(channel_to(server.address)), CREATE)
        bare = method_of(cleanup.enter_context(channel_to(address)), BARE)
        mkdirs = Mkdirs(ground.MOUNT, "dir")
        rows: list[Row] = []
        for threads in _THREADS:
            ours, theirs = Side(create, server.process.pid), Side(bare, pid)
            for _ in range(_ROUNDS):
                ours.measure(mkdirs.next, threads)
                theirs.measure(mkdirs.next, threads)
            of = f"{threads} clients" if threads > 1 else "one client"
            rate = statistics.median(theirs.rates)
            ratio = statistics.median(map(truediv, ours.rates, theirs.rates))
            rows += [
                at_least(
                    f"writes on sqlite, {of}", ratio * rate, "/s", "bare transactions", rate, 0.6
                ),
                at_most(
                    f"processor of a write on sqlite, {of}",
                    ours.spent_ms,
                    "ms",
                    "limit",
                    _GOAL_MS[threads],
                    1.0,
                ),
            ]
            sys.stderr.write(
                f"writes: a bare one, {of}, took {theirs.spent_ms:.2f} ms of processor\n"
            )
        return rows


class Mkdirs:
    """Source of requests to make a directory in a parent; for any thread."""

    def __init__(self, parent: str, prefix: str) -> None:
        self._parent: Final = parent
        self._prefix: Final = prefix
        self._numbers: Final = itertools.count(1)

    def next(self) -> bytes:
        """Returns the next request."""
        return self.take()[1]

    def take(self) -> tuple[str, bytes]:
        """Returns the path of the next directory, and the request."""
        name = f"{self._prefix}-{next(self._numbers):07}"
        request = directory_pb2.CreateEntryRequest(path=f"{self._parent}/{name}", request_id=name)
        request.entry.directory.SetInParent()
        return request.path, request.SerializeToString()


def calls_per_second(
    call: Callable[..., object], take: Callable[[], bytes], threads: int, seconds: float
) -> float:
    """Returns the rate of calls from so many threads, each of which waits for its answer."""
    stop = time.monotonic() + seconds
    counts: list[int] = []

    def work() -> None:
        mine = 0
        while time.monotonic() < stop:
            call(take(), timeout=10)
            mine += 1
        counts.append(mine)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if len(counts) < threads:
        raise AssertionError("a thread failed")
    return sum(counts) / seconds


class Side:
    """Rates of one server, and the processor seconds that each of its calls took."""

    def __init__(self, call: Callable[..., object], pid: int) -> None:
        self._call: Final = call
        self._pid: Final = pid
        self._spent: Final[list[float]] = []
        self.rates: Final[list[float]] = []

    def measure(self, take: Callable[[], bytes], threads: int) -> None:
        """Runs one round of two seconds; adds its rate and processor time."""
        before = ground.cpu_seconds(self._pid)
        rate = calls_per_second(self._call, take, threads, _SECONDS)
        self.rates.append(rate)
        self._spent.append((ground.cpu_seconds(self._pid) - before) / (rate * _SECONDS))

    @property
    def spent_ms(self) -> float:
        """Processor milliseconds of a call, the median of the rounds."""
        return 1e3 * statistics.median(self._spent)

    def clear(self) -> None:
        """Forgets the rounds so far."""
        self.rates.clear()
        self._spent.clear()


@contextmanager
def bare_server(command: Sequence[str], log: Path) -> Iterator[tuple[str, int]]:
    """Runs a bare peer; yields its address and process id."""
    process = LocalProcess(command, log)
    process.start()
    try:
        process.await_ready(lambda: "bare on " in process.log.read_text(), 30)
        yield process.log.read_text().split("bare on ")[1].split()[0], process.pid
    finally:
        process.kill()
