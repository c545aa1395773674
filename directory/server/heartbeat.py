"""Tells a supervisor that this process runs and that its calls end; refuses to judge for how long.

One of several processes on a port that hangs (is stopped, has deadlocked) would keep its share of
the new connections: to clients all of them are one address. So each says every second, on standard
output, that it lives; what it means that nothing comes is the supervisor's to decide.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

__all__ = ["BEAT", "Heartbeat", "ServerCounters"]

BEAT: Final = "alive\n"
"""The line; nothing else that a server process prints is like it."""
_BEAT_SECONDS: Final = 1.0
_STANDARD_OUTPUT: Final = 1


class ServerCounters(Protocol):
    """A server, as far as it is needed here."""

    @property
    def waiting_reads(self) -> int:
        """Reads that no thread has taken yet."""

    @property
    def ended_calls(self) -> int:
        """Calls that have ended since it began."""


class Heartbeat:
    """Of one process.

    Args:
        servers: that answer here; may grow.
        stuck_seconds: where reads have waited for a thread for so long, and no call has ended, this
            process lives no more: as long as no call may work.
    """

    def __init__(
        self,
        servers: Sequence[ServerCounters],
        stuck_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[], object] = lambda: os.write(_STANDARD_OUTPUT, BEAT.encode()),
    ) -> None:
        self._servers: Final = servers
        self._stuck_seconds: Final = stuck_seconds
        self._clock: Final = clock
        self._report: Final = report
        self._moved: Final[dict[ServerCounters, tuple[int, float]]] = {}
        """How many calls had ended when that last changed, or when nothing waited, and when."""

    def start(self) -> None:
        """Begins, in the background, until the process ends."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # a supervisor that is gone; the end comes by itself
                self.send_heartbeat()
            time.sleep(_BEAT_SECONDS)

    def send_heartbeat(self) -> None:
        """Says so, if it is so."""
        stuck = [server for server in list(self._servers) if self._is_stuck(server)]
        if not stuck:
            self._report()

    def _is_stuck(self, server: ServerCounters) -> bool:
        now, ended = self._clock(), server.ended_calls
        before, since = self._moved.get(server, (-1, now))
        if ended != before or not server.waiting_reads:
            self._moved[server] = (ended, now)
            return False
        return now - since > self._stuck_seconds
