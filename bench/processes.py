"""`kdir server --processes 2` against one process: calls and paths a second, the load in C.

Needs h2load (Debian: nghttp2-client), whose calls cost a twentieth of the server's: a client in
Python would measure itself. Rounds of one and of two alternate, and the best of each counts, since
other work on the machine can only slow a round. With fewer than two free cores two processes gain
nothing; the last row still compares the processor time that one and two spend on a call.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kdir.v1 import resolve_pb2

from bench import ground, h2load
from bench.rows import Row, at_least, at_most
from deploy.local.directory import DirectoryProcess

__all__ = ["run"]

_ROUNDS: Final = 4
_SECONDS: Final = 4
_WARM_UP: Final = 1
_CONNECTIONS: Final = 32
"""The kernel assigns each connection to one process: with so many, no process is idle."""
_BATCH: Final = 1_000
_TOPICS: Final = 10_000


def run() -> list[Row]:
    """Measures unary calls, and batches of 1,000 paths."""
    if h2load.missing("processes"):
        return []
    store = ground.filled(_TOPICS, 100)
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name, ExitStack() as cleanup:
        folder = Path(name)
        servers = {
            count: cleanup.enter_context(
                DirectoryProcess(
                    folder / str(count),
                    ground.MOUNT,
                    {"store": store, "cluster": ground.CLUSTER},
                    processes=count,
                )
            )
            for count in (1, 2)
        }
        rows = []
        spent: dict[int, list[float]] = {1: [], 2: []}
        for what, unit, method, streams, each in (
            ("unary resolves, 2 processes", "calls/s", "Resolve", 4, 1),
            ("batches of 1,000, 2 processes", "paths/s", "BatchResolve", 1, _BATCH),
        ):
            body = h2load.Body(folder / method, _request(method))
            best = {1: 0.0, 2: 0.0}
            for _ in range(_ROUNDS):
                for count, server in servers.items():
                    before = _processor_seconds(server)
                    rate = h2load.per_second(
                        f"http://{server.address}/kdir.v1.ResolveService/{method}",
                        body,
                        connections=_CONNECTIONS,
                        streams=streams,
                        seconds=_SECONDS,
                        warm_up=_WARM_UP,
                    )
                    best[count] = max(best[count], rate * each)
                    if method == "Resolve":
                        seconds = _processor_seconds(server) - before
                        spent[count].append(seconds / (rate * (_SECONDS + _WARM_UP)))
            rows.append(at_least(what, best[2], unit, "1 process", best[1], 1.7))
        two, one = (1e6 * min(spent[count]) for count in (2, 1))
        rows.append(at_most("processor a call, 2 processes", two, "µs", "1 process", one, 1.15))
        return rows


def _processor_seconds(server: DirectoryProcess) -> float:
    """Returns the processor time of a server and of the processes that it supervises."""
    pid = server.process.pid
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(ground.cpu_seconds(one) for one in (pid, *map(int, below)))


def _request(method: str) -> bytes:
    paths = [ground.path_of(number * 7 % _TOPICS, _TOPICS // 100) for number in range(_BATCH)]
    if method == "Resolve":
        return resolve_pb2.ResolveRequest(path=paths[1]).SerializeToString()
    return resolve_pb2.BatchResolveRequest(paths=paths).SerializeToString()
