"""A thousand watchers of one server, beside a bare broadcast of the same bytes.

The watchers run in processes of their own, and all watch the root. Rounds alternate: a mkdir, until
all watchers have its change; and a broadcast of the change's bytes by the bare peer
(``bare_broadcast``), until all its streams have them. A server without watchers acknowledges a
mkdir in each round, too.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from kdir.v1 import watch_pb2

from bench import children, ground
from bench.load import channel_to, method_of
from bench.rows import Row, at_most
from bench.writes import CREATE, Mkdirs
from deploy.local.process import LocalProcess

__all__ = ["run"]

_WATCHERS: Final = 1_000
_PROCESSES: Final = 2
_ROUNDS: Final = 5
_CHANGES: Final = 20
_WATCH: Final = "/kdir.v1.WatchService/Watch"
_BARE: Final = "/bench.Bare/Watch"
_BROADCAST: Final = "/bench.Bare/Broadcast"
_PATIENCE_SECONDS: Final = 120
_THREADS_GOAL: Final = 40
_PROCESSOR_GOAL_MS: Final = 0.08


def run() -> list[Row]:
    """Measures a change's processor time, its acknowledgement, and its way to all watchers."""
    request = watch_pb2.WatchRequest(path="/", checkpoint_seconds=3_600)
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name, ExitStack() as cleanup:
        folder = Path(name)
        alone = cleanup.enter_context(children.root(folder / "alone"))
        server = cleanup.enter_context(children.root(folder / "server"))
        address, bare_pid = cleanup.enter_context(_bare(folder))
        to_alone, to_server, to_bare = (
            cleanup.enter_context(channel_to(one))
            for one in (alone.address, server.address, address)
        )
        seen = to_server.unary_stream(_WATCH)(request.SerializeToString())
        next(seen)
        ours = cleanup.enter_context(
            _watchers(folder, "ours", server.address, _WATCH, request.SerializeToString())
        )
        theirs = cleanup.enter_context(_watchers(folder, "bare", address, _BARE, b""))
        created, bare = _Side(server.process.pid, ours), _Side(bare_pid, theirs)
        create, create_alone = method_of(to_server, CREATE), method_of(to_alone, CREATE)
        broadcast = method_of(to_bare, _BROADCAST)
        mkdirs, acknowledged = Mkdirs("", "d"), list[float]()
        for _ in range(_ROUNDS):
            for _ in range(_CHANGES):
                acknowledged.append(_seconds(create_alone, mkdirs.next()))
            changes = [mkdirs.next() for _ in range(_CHANGES)]
            created.measure(create, changes)
            bare.measure(broadcast, [next(seen) for _ in changes])
        threads = len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))
        seen.cancel()
    return _rows(created, bare, acknowledged, threads)


def _rows(created: _Side, bare: _Side, alone: list[float], threads: int) -> list[Row]:
    p50, p50_alone = (1e3 * statistics.median(took) for took in (created.answered, alone))
    everywhere, bare_everywhere = (1e3 * _p99(one.everywhere) for one in (created, bare))
    spent, bare_spent = (
        1e3 * one.spent / len(one.everywhere) / _WATCHERS for one in (created, bare)
    )
    p50s = [1e3 * statistics.median(one.everywhere) for one in (created, bare)]
    sys.stderr.write(
        f"watchers: p99 of an acknowledgement {1e3 * _p99(created.answered):.1f} ms, alone "
        f"{1e3 * _p99(alone):.1f}; all have it p50 {p50s[0]:.1f} ms, bare {p50s[1]:.1f}; a bare "
        f"broadcast takes {bare_spent:.3f} ms of processor a watcher\n"
    )
    beside = f"{_WATCHERS:,} watchers"
    return [
        at_most(
            f"threads of a server with {beside}", threads, "threads", "limit", _THREADS_GOAL, 1
        ),
        at_most(
            f"acknowledgement of a mkdir beside {beside}, p50",
            p50,
            "ms",
            f"alone ({p50_alone:.1f} ms) 1.5 times and 5 ms",
            1.5 * p50_alone + 5,
            1,
        ),
        at_most(
            f"a mkdir until {beside} have it, p99",
            everywhere,
            "ms",
            "a bare broadcast",
            bare_everywhere,
            1.5,
        ),
        at_most(
            f"processor of a change, a watcher of {beside}",
            spent,
            "ms",
            "limit",
            _PROCESSOR_GOAL_MS,
            1,
        ),
    ]


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99) - 1]


def _seconds(call: Callable[..., object], request: bytes) -> float:
    began = time.monotonic()
    call(request, timeout=_PATIENCE_SECONDS)
    return time.monotonic() - began


class _Side:
    """Seconds until changes at one server were answered, and until all watchers had them."""

    def __init__(self, pid: int, watchers: _Watchers) -> None:
        self._pid: Final = pid
        self._watchers: Final = watchers
        self.answered: Final[list[float]] = []
        self.everywhere: Final[list[float]] = []
        self.spent = 0.0
        """Seconds of processor."""

    def measure(self, call: Any, requests: list[bytes]) -> None:
        """Makes one round: all watchers have each change before the next is made."""
        before = ground.cpu_seconds(self._pid)
        for request in requests:
            began = time.monotonic()
            call(request, timeout=_PATIENCE_SECONDS)
            self.answered.append(time.monotonic() - began)
            self.everywhere.append(self._watchers.await_next() - began)
        self.spent += ground.cpu_seconds(self._pid) - before


class _Watchers:
    """Processes of watchers, followed by their logs (``bench.watching``)."""

    def __init__(self, logs: list[Path]) -> None:
        self._logs: Final = [log.open() for log in logs]
        self._number = 0

    def await_open(self) -> None:
        """Returns when all streams have their first message."""
        self._each("open")

    def await_next(self) -> float:
        """Returns the time at which the last stream had the next message."""
        self._number += 1
        return max(map(float, self._each(f"got {self._number} ")))

    def _each(self, expected: str) -> list[str]:
        found = []
        until = time.monotonic() + _PATIENCE_SECONDS
        for log in self._logs:
            line = ""
            while not line.endswith("\n"):
                if time.monotonic() > until:
                    raise AssertionError(f"{log.name}: {line!r}, and not {expected!r}")
                line += log.readline()
                if not line:
                    time.sleep(0.002)
            if not line.startswith(expected):
                raise AssertionError(f"{log.name}: {line!r}, and not {expected!r}")
            found.append(line.removeprefix(expected))
        return found

    def close(self) -> None:
        """Closes the logs."""
        for log in self._logs:
            log.close()


@contextmanager
def _watchers(
    folder: Path, name: str, address: str, method: str, request: bytes
) -> Iterator[_Watchers]:
    """Runs processes that open all streams of one server."""
    each = str(_WATCHERS // _PROCESSES)
    command = [sys.executable, "-m", "bench.watching", address, method, each, request.hex()]
    with ExitStack() as cleanup:
        logs = []
        for number in range(_PROCESSES):
            logs.append(folder / f"{name}-{number}.log")
            process = LocalProcess(command, logs[-1])
            process.start()
            cleanup.callback(process.kill)
        found = _Watchers(logs)
        cleanup.callback(found.close)
        found.await_open()
        yield found


@contextmanager
def _bare(folder: Path) -> Iterator[tuple[str, int]]:
    """Runs the bare peer; yields its address and process id."""
    process = LocalProcess([sys.executable, "-m", "bench.bare_broadcast"], folder / "bare.log")
    process.start()
    try:
        process.await_ready(lambda: "bare on " in process.log.read_text(), 30)
        yield process.log.read_text().split("bare on ")[1].split()[0], process.pid
    finally:
        process.kill()
