"""Watchdog: reports to systemd, and on ``/healthz``, whether this process works; if not, the
service manager restarts it (docs/decisions/0060-hangs-are-the-service-managers.md).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

__all__ = ["ServerCounters", "Watchdog", "notify_systemd"]

_LOOK_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 5.0
"""Shortest time after which reads count as stuck, even if calls must be shorter: a busy machine
alone may delay a process for a second or two.
"""


class ServerCounters(Protocol):
    """Counters of a server that the watchdog reads."""

    @property
    def waiting_reads(self) -> int:
        """Number of reads that no thread has taken yet."""

    @property
    def ended_calls(self) -> int:
        """Number of calls that have ended since the server started."""


def notify_systemd(state: str) -> None:
    """Sends systemd a state such as ``READY=1`` (sd_notify(3)), if it started this process and
    expects one.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    # A systemd that restarts misses a message; the next one follows in a second.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as way,
    ):
        way.sendto(state.encode(), name)


class Watchdog:
    """Check, every second, that the reads of a process make progress, for systemd's watchdog.

    Args:
        servers: servers of this process; the sequence may grow.
        call_seconds: longest time of a call. Reads are stuck if for more than two seconds longer
            than this, and at least ``_LEAST_SECONDS``, every check finds that reads wait for a
            thread and that no call has ended.
        notify: sends systemd a state.
    """

    def __init__(
        self,
        servers: Sequence[ServerCounters],
        call_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        notify: Callable[[str], object] = notify_systemd,
    ) -> None:
        self._servers: Final = servers
        self._stuck_seconds: Final = max(call_seconds + 2 * _LOOK_SECONDS, _LEAST_SECONDS)
        self._clock: Final = clock
        self._notify: Final = notify
        self._waiting: Final[dict[ServerCounters, tuple[int, float]]] = {}
        """For each server where reads wait: its number of ended calls, and the time of the first
        check that found this number and a waiting read.
        """
        self.is_stuck = False
        """Whether reads of this process were stuck at the last check."""

    def start(self) -> None:
        """Starts the checks, in the background, until the process ends."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.check_reads()
            time.sleep(_LOOK_SECONDS)

    def check_reads(self) -> None:
        """Checks once. A stuck process asks systemd to restart the unit, since other processes of
        the unit may feed the same watchdog.
        """
        looks = [self._has_stuck_reads(server) for server in list(self._servers)]
        self.is_stuck = any(looks)
        self._notify("WATCHDOG=trigger" if self.is_stuck else "WATCHDOG=1")

    def _has_stuck_reads(self, server: ServerCounters) -> bool:
        now, ended = self._clock(), server.ended_calls
        if not server.waiting_reads:
            self._waiting.pop(server, None)
            return False
        before, since = self._waiting.get(server, (-1, now))
        if ended != before:
            self._waiting[server] = (ended, now)
            return False
        return now - since > self._stuck_seconds
