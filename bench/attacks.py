"""p99 of another caller's resolves while a client attacks a limit of the server, and afterwards.

For each attack the same caller resolves at an even rate before, during and after it. Both goals are
ratios to its p99 before the attack, so that the machine's other work is in both figures.

The server has a core of its own. The caller and the attacking process share the other core, where
the attacker has the lowest priority: its own cost must neither take the server's core nor delay the
caller. ``python -m bench.attacks NAME ...`` runs some of the attacks.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc
from kdir.v1 import directory_pb2, entry_pb2, policies_pb2

from bench import ground
from bench.attackers import ATTACKS, RESOLVE
from bench.load import channel_to, resolves
from bench.rows import Row, at_most, show

__all__ = ["attack", "run"]

_RATE: Final = 60.0
_BEFORE_SECONDS: Final = 5.0
_DURING_SECONDS: Final = 6.0
_SETTLE_SECONDS: Final = 1.5
"""An attack needs a moment to begin."""
_BACK_SECONDS: Final = 2.0
_TOPICS: Final = 10_000
_NEVER: Final = 10.0
"""Seconds that are counted for a call that failed or had no answer."""


def run(names: Sequence[str] = tuple(ATTACKS)) -> list[Row]:
    """Returns two rows for each attack."""
    rows = []
    with ground.on_core(1):
        for name in names:
            rows += _attacked(name)
    return rows


def _attacked(name: str) -> list[Row]:
    # A new store for each attack: what one leaves behind must not affect the next.
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as folder:
        address = f"sqlite:///{folder}/store.sqlite"
        ground.fill_store(address, _TOPICS, 100)
        with ground.pinned_directory(Path(folder) / "server", address) as server:
            _furnish(server.address)
            with _Caller(server.address, server.process.pid) as caller:
                caller.calls(1.0)
                before = _P99.of(caller.calls(_BEFORE_SECONDS))
                with attack(name, server.address):
                    caller.calls(_SETTLE_SECONDS)
                    during = _P99.of(caller.calls(_DURING_SECONDS))
                caller.calls(_BACK_SECONDS)
                after = _P99.of(caller.calls(_BEFORE_SECONDS))
    shown = name.replace("_", " ")
    base = "before, ms"
    sys.stderr.write(f"{shown}: before {before}, during {during}, after {after}\n")
    return [
        at_most(f"p99 of others during {shown}", during.took, "ms", base, before.took, 3),
        at_most(f"p99 of others 2 s after {shown}", after.took, "ms", base, before.took, 2),
    ]


@dataclass(frozen=True, slots=True)
class _Took:
    """Cost of one call."""

    seconds: float
    server_seconds: float
    """Processor time that the server used meanwhile; other processes are not in it."""


@dataclass(frozen=True, slots=True)
class _P99:
    """99th percentiles of both figures of calls, each taken by itself, in milliseconds."""

    took: float
    server: float

    @classmethod
    def of(cls, calls: Sequence[_Took]) -> _P99:
        """Returns the percentiles of these calls."""
        last = int(len(calls) * 0.99) - 1
        return cls(
            1e3 * sorted(call.seconds for call in calls)[last],
            1e3 * sorted(call.server_seconds for call in calls)[last],
        )

    def __str__(self) -> str:
        return f"{self.took:.1f} ms ({self.server:.1f} ms of the server's processor)"


def _furnish(address: str) -> None:
    """Makes answers and the history large: 300 updates set descriptions of 2 kB on directories."""
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
def attack(name: str, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs an attack on a server until the end of the block; yields its process.

    Raises:
        RuntimeError: the attack did not begin, or ended early: what was measured meanwhile is void.
    """
    with subprocess.Popen(
        ["nice", "-n", "19", sys.executable, "-m", "bench.attackers", name, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            if process.stdout.readline() != b"attacking\n":
                raise RuntimeError(f"the attack {name} did not begin")
            yield process
            if process.poll() is not None:
                raise RuntimeError(f"the attack {name} ended early")
        finally:
            process.kill()


class _Caller:
    """Caller on a connection of its own that resolves at an even rate."""

    def __init__(self, address: str, server_pid: int) -> None:
        self._channel: Final = grpc.insecure_channel(
            address, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self._call: Final[Any] = self._channel.unary_unary(RESOLVE)
        self._requests: Final = resolves(_TOPICS, 1_000)
        self._number = 0
        self._server_clock: Final = ~server_pid << 3 | 2  # as clock_getcpuclockid(3) makes it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def calls(self, seconds: float) -> list[_Took]:
        """Resolves for so many seconds; returns the cost of each call."""
        took: list[_Took] = []
        lock = threading.Lock()
        start = time.monotonic()
        pending = []
        for number in range(int(seconds * _RATE)):
            left = start + number / _RATE - time.monotonic()
            if left > 0:
                time.sleep(left)
            begun, used = time.monotonic(), time.clock_gettime(self._server_clock)

            def note(done: Any, begun: float = begun, used: float = used) -> None:
                passed = time.monotonic() - begun
                server = time.clock_gettime(self._server_clock) - used
                is_good = done.code() is grpc.StatusCode.OK
                with lock:
                    took.append(_Took(passed, server) if is_good else _Took(_NEVER, _NEVER))

            self._number += 1
            request = self._requests[self._number % len(self._requests)]
            future = self._call.future(request, timeout=_NEVER)
            future.add_done_callback(note)
            pending.append(future)
        for future in pending:
            future.exception()
        while len(took) < len(pending):
            time.sleep(0.01)
        codes = Counter(one.code().name for one in pending)
        if set(codes) != {"OK"}:
            sys.stderr.write(f"not all were answered: {dict(codes)}\n")
            sys.stderr.write(f"{next(o.details() for o in pending if o.code().value[0])}\n")
        return took


if __name__ == "__main__":
    sys.stdout.write(show(run(sys.argv[1:] or tuple(ATTACKS))) + "\n")
