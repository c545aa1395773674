"""Another caller's resolves while somebody attacks a bound of the server: p99, and back to normal.

For each attack the same caller resolves at an even rate before, during and after it; both goals are
ratios against its own p99 before. The attacker is a process of its own. Whatever else the machine
does is in all three.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import grpc
from kdir.v1 import directory_pb2, entry_pb2, policies_pb2

from bench import ground
from bench.attackers import ATTACKS, RESOLVE
from bench.load import channel_to, resolves
from bench.rows import Row, at_most

__all__ = ["run"]

_RATE: Final = 60.0
_BEFORE_SECONDS: Final = 5.0
_DURING_SECONDS: Final = 6.0
_SETTLE_SECONDS: Final = 1.5
"""An attack needs a moment to begin."""
_BACK_SECONDS: Final = 2.0
_TOPICS: Final = 10_000
_NEVER: Final = 10.0
"""Seconds that a call counts as whose answer was an error, or none."""


def run() -> list[Row]:
    """Returns two rows for each attack."""
    rows = []
    for name in ATTACKS:
        rows += _attacked(name)
    return rows


def _attacked(name: str) -> list[Row]:
    # A store of its own for each: what one attack left behind is not the next one's.
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as folder:
        address = f"sqlite:///{folder}/store.sqlite"
        ground.fill_store(address, _TOPICS, 100)
        with ground.pinned_directory(Path(folder) / "server", address) as server:
            _furnish(server.address)
            with _Caller(server.address) as caller:
                caller.seconds(1.0)
                before = caller.p99(_BEFORE_SECONDS)
                with _attack(name, server.address):
                    caller.seconds(_SETTLE_SECONDS)
                    during = caller.p99(_DURING_SECONDS)
                caller.seconds(_BACK_SECONDS)
                after = caller.p99(_BEFORE_SECONDS)
    shown = name.replace("_", " ")
    base = "before, ms"
    return [
        at_most(f"p99 of others during {shown}", 1e3 * during, "ms", base, 1e3 * before, 3),
        at_most(f"p99 of others 2 s after {shown}", 1e3 * after, "ms", base, 1e3 * before, 2),
    ]


def _furnish(address: str) -> None:
    """What makes answers large, and a past: policies above all, and some hundred changes."""
    with channel_to(address) as channel:
        update: Any = channel.unary_unary("/kdir.v1.DirectoryService/UpdateEntry")
        for number in range(300):
            text = f"{number} " + "x" * 2_000
            request = directory_pb2.UpdateEntryRequest(
                path=f"{ground.MOUNT}/dir{number % 100:05}",
                entry=entry_pb2.Entry(policies=policies_pb2.Policies(description=text)),
                update_mask={"paths": ["policies.description"]},
            )
            update(request.SerializeToString(), timeout=30)


@contextmanager
def _attack(name: str, address: str) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.attackers", name, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            process.stdout.readline()
            yield
        finally:
            process.kill()


class _Caller:
    """Another caller, on a connection of its own, who resolves at an even rate."""

    def __init__(self, address: str) -> None:
        self._channel: Final = grpc.insecure_channel(
            address, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self._call: Final[Any] = self._channel.unary_unary(RESOLVE)
        self._requests: Final = resolves(_TOPICS, 1_000)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def p99(self, seconds: float) -> float:
        """Returns seconds that 99 of 100 calls take at most."""
        took = sorted(self.seconds(seconds))
        return took[int(len(took) * 0.99) - 1]

    def seconds(self, seconds: float) -> list[float]:
        """Returns what each call took."""
        took: list[float] = []
        lock = threading.Lock()
        start = time.monotonic()
        pending = []
        for number in range(int(seconds * _RATE)):
            left = start + number / _RATE - time.monotonic()
            if left > 0:
                time.sleep(left)
            begun = time.monotonic()

            def note(done: Any, begun: float = begun) -> None:
                good = done.code() is grpc.StatusCode.OK
                with lock:
                    took.append(time.monotonic() - begun if good else _NEVER)

            self._number += 1
            request = self._requests[self._number % len(self._requests)]
            future = self._call.future(request, timeout=_NEVER)
            future.add_done_callback(note)
            pending.append(future)
        for future in pending:
            future.exception()
        while len(took) < len(pending):
            time.sleep(0.01)
        return took
