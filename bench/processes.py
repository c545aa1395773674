"""`kdir server --processes 2` against one process: calls and paths a second, the load in C.

Needs h2load (Debian: nghttp2-client), whose calls cost a twentieth of the server's: a client in
Python would measure itself. Rounds of one and of two take turns, and the best of each counts, since
other work on the machine only ever takes away. With fewer than two free cores nothing is to be
gained, which the last row tells: two processes spend as much processor on a call as one does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kdir.v1 import resolve_pb2

from bench import ground
from bench.rows import Row, at_least, at_most
from deploy.local.directory import DirectoryProcess

__all__ = ["run"]

_ROUNDS: Final = 4
_SECONDS: Final = 4
_CONNECTIONS: Final = 32
"""The kernel gives each to one process: with so many none is left idle."""
_BATCH: Final = 1_000
_TOPICS: Final = 10_000


def run() -> list[Row]:
    """Unary calls, and batches of 1,000 paths."""
    if shutil.which("h2load") is None:
        sys.stderr.write("processes: h2load is missing (Debian: nghttp2-client); left out\n")
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
            body = folder / method
            body.write_bytes(_framed(_request(method)))
            best = {1: 0.0, 2: 0.0}
            for _ in range(_ROUNDS):
                for count, server in servers.items():
                    before = _processor_seconds(server)
                    rate = _load(server.address, method, body, streams)
                    best[count] = max(best[count], rate * each)
                    if method == "Resolve":
                        seconds = _processor_seconds(server) - before
                        spent[count].append(seconds / (rate * (_SECONDS + 1)))
            rows.append(at_least(what, best[2], unit, "1 process", best[1], 1.7))
        two, one = (1e6 * min(spent[count]) for count in (2, 1))
        rows.append(at_most("processor a call, 2 processes", two, "µs", "1 process", one, 1.15))
        return rows


def _processor_seconds(server: DirectoryProcess) -> float:
    """Of the process, and of those that it supervises."""
    pid = server.process.pid
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(ground.cpu_seconds(one) for one in (pid, *map(int, below)))


def _request(method: str) -> bytes:
    paths = [ground.path_of(number * 7 % _TOPICS, _TOPICS // 100) for number in range(_BATCH)]
    if method == "Resolve":
        return resolve_pb2.ResolveRequest(path=paths[1]).SerializeToString()
    return resolve_pb2.BatchResolveRequest(paths=paths).SerializeToString()


def _framed(message: bytes) -> bytes:
    """As gRPC sends it: not compressed, its length, itself."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def _load(address: str, method: str, body: Path, streams: int) -> float:
    """Calls a second that ended well."""
    command = ["h2load", "-t", "1", "-c", str(_CONNECTIONS), "-m", str(streams)]
    command += ["-D", str(_SECONDS), "--warm-up-time", "1s", "-d", str(body)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    url = f"http://{address}/kdir.v1.ResolveService/{method}"
    done = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    found = re.search(r"finished in \S+, (\S+) req/s", done.stdout)
    failed = re.search(r"(\d+) failed, (\d+) errored", done.stdout)
    if found is None or failed is None or int(failed[1]) + int(failed[2]):
        raise RuntimeError(done.stdout)
    return float(found[1])
