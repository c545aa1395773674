"""Keeps several server processes on one port and one store, and kills one that hangs.

Each process is this program anew (exec, never a bare fork: gRPC's threads do not survive one), with
``--bound`` saying at which address. All of them listen there by SO_REUSEPORT, and the kernel gives
each new connection to one of them. The ports are held here from before the first process starts,
so that a free one (port 0) is one for all, and so that no other ``kdir server`` can slip in.

A process that ends is started again, after a pause that grows while it keeps ending. One that
loses its supervisor (its standard input ends) drains and ends by itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from directory.server.toml_table import ConfigError, split_address

__all__ = [
    "BEAT",
    "MOST_PROCESSES",
    "Heartbeat",
    "Ports",
    "ServerCounters",
    "Supervisor",
    "serving_line",
]


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


_log = logging.getLogger(__name__)

MOST_PROCESSES: Final = 64
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 30.0
"""A process that lived so long did not fail at its start: the next pause is the first again."""
_BEYOND_DRAIN_SECONDS: Final = 15.0
"""Draining is followed by giving roles up and closing stores."""
_LOOK_SECONDS: Final = 1.0
"""From one look for processes that hang to the next."""
_SERVING: Final = "serving "
_UNUSABLE: Final = 2
"""What a server process ends with that cannot use its config, its port or its store."""


def serving_line(mount: object, cluster: str, cluster_id: str, address: str) -> str:
    """Returns what is printed once a cluster is served: scripts wait for it and read the port from
    it.
    """
    return f"{_SERVING}{mount} ({cluster} {cluster_id}) on {address}"


class Ports:
    """Listening addresses that are held for processes to share.

    SO_REUSEPORT alone would let two unrelated servers of one user share a port in silence. So a
    port is first bound without it, which fails while anybody listens there; and a name in the
    kernel's abstract namespace, which ends with this process, keeps a second supervisor out during
    the moment in which nobody listens yet.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.addresses: dict[str, str] = {}
        """As bound, by key."""

    def hold(self, key: str, listen: str) -> None:
        """Binds ``listen`` for the processes, under ``key``.

        Raises:
            ConfigError: it is in use, or cannot be bound.
        """
        if not sys.platform.startswith("linux"):
            raise ConfigError("--processes: only Linux shares a port among processes evenly")
        host, port = split_address(listen) or ("", 0)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        holder = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(holder)
        try:
            if port:  # else a connection of a former server that is still closing is in the way
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((host, port))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound = holder.getsockname()
            name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sockets.append(name)
            name.bind(f"\0kdir server {bound[0]} {bound[1]}")
        except OSError as error:
            raise ConfigError(
                f"listen: cannot bind {listen}: {os.strerror(error.errno or 0)}"
            ) from error
        self.addresses[key] = f"{listen.rpartition(':')[0]}:{bound[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._sockets:
            one.close()


@dataclass(slots=True)
class _Worker:
    """One place for a server process, and the process that is in it now."""

    number: int
    process: subprocess.Popen[str] | None = None
    started_at: float = 0.0
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    due: float | None = None
    """When to start it again."""
    lines: list[str] = field(default_factory=list)
    """What the process in it said that it serves."""
    tried: bool = False
    """Whether a process in it has served, or ended, since the beginning."""
    refused: bool = False
    """The last process in it ended since what it was given cannot be used."""
    silent_seconds: float | None = None
    """Since its last sign of life; None: it has given none yet, or is killed for want of them."""


@dataclass(frozen=True, slots=True)
class _WorkerOutput:
    worker: _Worker
    line: str


@dataclass(frozen=True, slots=True)
class _Ended:
    worker: _Worker
    process: subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Event = _WorkerOutput | _Ended | _Stop


class Supervisor:
    """Starts processes, restarts those that end, and ends them all.

    Args:
        arguments: of the command line, as they were given.
        count: how many processes.
        addresses: by key, as held; for ``--bound``.
        clusters: how many serving lines a process prints.
        drain_seconds: so long after SIGTERM calls may still be under way.
        worker_hang_timeout_seconds: a process that sent heartbeats, and then none for so long, is
            killed.
        out: where the serving lines go, once.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        count: int,
        addresses: Mapping[str, str],
        *,
        clusters: int,
        drain_seconds: float,
        out: TextIO,
        worker_hang_timeout_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        safe = ["-P"] if sys.flags.safe_path else []
        bound = [part for key, at in addresses.items() for part in ("--bound", f"{key}={at}")]
        self._command = [sys.executable, *safe, "-m", "directory", *arguments, *bound]
        self._workers = [_Worker(number + 1) for number in range(count)]
        self._clusters = clusters
        self._drain_seconds = drain_seconds
        self._hung_seconds = worker_hang_timeout_seconds
        self._looked_at = clock()
        self._out = out
        self._clock = clock
        # Its put may be called by a signal handler, whatever the main thread is doing.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._reported = False

    def run(self) -> int:
        """Until SIGTERM or SIGINT: 0. Else what the first process ended with before it served:
        it has said why, and the others would say the same. 2 also once all say that they cannot be
        used, such as when the cluster has gone on to a newer feature level.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(_Stop()))
        first, *others = self._workers
        try:
            self._start(first)
            while True:
                match self._next():
                    case _Stop():
                        _log.info("draining")
                        return 0
                    case _WorkerOutput(worker, line):
                        self._received(worker, line)
                        if worker is first and worker.tried:
                            while others:
                                self._start(others.pop(0))
                    case _Ended(worker, process) if worker is first and not worker.tried:
                        return self._stillborn(process.returncode)
                    case _Ended(worker, process):
                        self._buried(worker, process)
                        if all(one.refused for one in self._workers):
                            return _UNUSABLE  # each has said why; another start changes nothing
                    case None:
                        self._start_due()
                        self._look_for_hung()
                self._print_serving_lines()
        finally:
            self._end_all()

    # -- what happens ----------------------------------------------------------------------------

    def _next(self) -> _Event | None:
        """Returns the next event; None: a process is due, or it is time to look for one that hangs,
        and no event waits.
        """
        look_at = self._looked_at + _LOOK_SECONDS
        due = [worker.due for worker in self._workers if worker.due is not None]
        try:
            return self._events.get(timeout=max(0.0, min([*due, look_at]) - self._clock()))
        except queue.Empty:
            return None

    def _start(self, worker: _Worker) -> None:
        worker.due, worker.started_at = None, self._clock()
        worker.lines.clear()
        worker.silent_seconds = None
        joining = ["--joining"] if any(map(self._serves, self._workers)) else []
        process = subprocess.Popen(
            [*self._command, "--place", str(worker.number - 1), *joining],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        worker.process = process
        threading.Thread(target=self._follow, args=(worker, process), daemon=True).start()

    def _serves(self, worker: _Worker) -> bool:
        return worker.process is not None and len(worker.lines) == self._clusters

    def _follow(self, worker: _Worker, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - for mypy
        for line in process.stdout:
            self._events.put(_WorkerOutput(worker, line))
        process.wait()
        self._events.put(_Ended(worker, process))

    def _received(self, worker: _Worker, line: str) -> None:
        if line == BEAT:
            worker.silent_seconds = 0.0
            return
        if not line.startswith(_SERVING):
            self._out.write(line)
            self._out.flush()
            return
        worker.lines.append(line)
        if len(worker.lines) == self._clusters:
            worker.tried, worker.refused = True, False
            if self._reported:
                _log.info("server process %d serves", worker.number)

    def _print_serving_lines(self) -> None:
        """One line a cluster, once every process serves, or could not."""
        if not self._reported and all(worker.tried for worker in self._workers):
            self._reported = True
            self._out.writelines(self._workers[0].lines)
            self._out.flush()

    def _buried(self, worker: _Worker, process: subprocess.Popen[str]) -> None:
        now = self._clock()
        if now - worker.started_at > _STEADY_SECONDS:
            worker.pause_seconds = _FIRST_PAUSE_SECONDS
        pause = self._pause(worker)
        worker.process, worker.tried = None, True
        worker.refused = process.returncode == _UNUSABLE
        _log.error(
            "server process %d (pid %d) ended %s; the others go on; it is started again in %g s",
            worker.number,
            process.pid,
            _how(process.returncode),
            pause,
        )

    def _pause(self, worker: _Worker) -> float:
        """Puts off the next start; for how many seconds."""
        pause = worker.pause_seconds
        worker.pause_seconds = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        worker.due = self._clock() + pause
        return pause

    def _start_due(self) -> None:
        now = self._clock()
        for worker in self._workers:
            if worker.due is not None and worker.due <= now:
                try:
                    self._start(worker)
                except OSError as error:  # no memory, or no more processes: the others go on
                    pause = self._pause(worker)
                    _log.error(
                        "server process %d cannot be started: %s; it is tried again in %g s",
                        worker.number,
                        error.strerror,
                        pause,
                    )

    def _look_for_hung(self) -> None:
        """Kills what gives no sign of life any more. Its end is an event like any other's."""
        now = self._clock()
        # Whoever was stopped itself, or had no processor, knows nothing of the time in between.
        passed = min(now - self._looked_at, 2 * _LOOK_SECONDS)
        self._looked_at = now
        for worker in self._workers:
            process, silent = worker.process, worker.silent_seconds
            if process is None or silent is None:
                continue
            worker.silent_seconds = silent + passed
            if worker.silent_seconds > self._hung_seconds and not _is_traced(process.pid):
                _log.error(
                    "server process %d (pid %d) gave no sign of life for %g s: it is killed",
                    worker.number,
                    process.pid,
                    self._hung_seconds,
                )
                worker.silent_seconds = None
                process.kill()

    def _stillborn(self, code: int) -> int:
        if code > 0:
            return code  # it has said why
        sys.stderr.write(f"error: the first server process ended {_how(code)} before it served\n")
        return 1

    # -- the end ---------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """SIGTERM to all at once; SIGKILL to what is still there after drain and some more."""
        living = [one.process for one in self._workers if one.process is not None]
        for process in living:
            process.terminate()
        deadline = self._clock() + self._drain_seconds + _BEYOND_DRAIN_SECONDS
        for process in living:
            try:
                process.wait(max(0.1, deadline - self._clock()))
            except subprocess.TimeoutExpired:
                _log.error("pid %d does not end by itself; it is killed", process.pid)
                process.kill()
                process.wait()


def _is_traced(pid: int) -> bool:
    """True if a debugger has it: then it is the debugger that holds it up."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text("ascii", errors="replace")
    except OSError:
        return False
    _, _, rest = status.partition("\nTracerPid:")
    return rest.partition("\n")[0].strip() not in {"", "0"}


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
