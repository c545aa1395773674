"""Keeps several server processes on one port and one store.

Each process is this program again (exec, never a bare fork: gRPC's threads do not survive it), with
its addresses in ``--bound``. All of them listen there by SO_REUSEPORT, and the kernel gives each
new connection to one of them. The supervisor holds the ports before the first process starts, so
that all share a free port (port 0), and so that no other ``kdir server`` can take one.

A process that ends is started again, after a pause that grows while it keeps ending. A process
without its supervisor (its standard input ends) drains and ends by itself. A process that hangs is
left to systemd or Kubernetes (``watchdog.py``).
"""

from __future__ import annotations

import errno
import json
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TextIO

from directory.server.toml_table import ConfigError, split_address

__all__ = [
    "MOST_PROCESSES",
    "Ports",
    "Supervisor",
    "is_serving_line",
    "print_lines",
    "serving_line",
]


_log = logging.getLogger(__name__)

MOST_PROCESSES: Final = 64
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 30.0
"""Runtime after which a process counts as started well: its pause is reset to the first."""
_BEYOND_DRAIN_SECONDS: Final = 15.0
"""Time after draining to resign from roles and close stores."""
_SERVING: Final = "serving "
_UNUSABLE: Final = 2
"""Exit code of a server process that cannot use its config, port or store."""


def serving_line(mount: object, cluster: str, cluster_id: str, address: str) -> str:
    """Returns the line that is printed once a cluster is served: scripts wait for it and read the
    port in it.
    """
    return f"{_SERVING}{mount} ({cluster} {cluster_id}) on {address}"


def is_serving_line(line: str) -> bool:
    """True if this is a ``serving_line``, or the JSON object with it (``LogFormatter``)."""
    if not line.startswith("{"):
        return line.startswith(_SERVING)
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and str(found.get("message", "")).startswith(_SERVING)


def print_lines(out: TextIO, *lines: str) -> None:
    """Prints lines on stdout. A failure, such as a full disk or a reader that has ended, is logged,
    and the server continues.
    """
    try:
        out.writelines(lines)
        out.flush()
    except OSError as error:
        _log.error("stdout cannot be written: %s", error.strerror)


class Ports:
    """Listening addresses that are held for processes to share.

    SO_REUSEPORT alone would let two unrelated servers of one user share a port unnoticed. So a port
    is first bound without it, which fails while another process listens there; and a name in the
    kernel's abstract namespace, which ends with this process, excludes a second supervisor until
    the first process listens.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.addresses: dict[str, str] = {}
        """Bound addresses, by key."""

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
            if port:  # allows the bind while a former server's connections are still closing
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((host, port))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound = holder.getsockname()
            name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sockets.append(name)
            name.bind(f"\0kdir server {bound[0]} {bound[1]}")
        except OSError as error:
            raise ConfigError(f"listen: cannot bind {listen}: {error.strerror or error}") from error
        self.addresses[key] = f"{listen.rpartition(':')[0]}:{bound[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()


@dataclass(slots=True)
class _Worker:
    """Slot of a server process, with its current process."""

    number: int
    process: subprocess.Popen[str] | None = None
    started_at: float = 0.0
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    due: float | None = None
    """Time of the next start."""
    lines: list[str] = field(default_factory=list)
    """Serving lines of the current process."""
    tried: bool = False
    """True once a process of the slot has served, ended, or could not be started."""
    refused: bool = False
    """True if the slot's last process could not use its config, port or store."""


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
    """Supervisor that starts processes, restarts those that end, and ends them all.

    Args:
        arguments: of the command line, as given.
        count: number of processes.
        addresses: held addresses by key, for ``--bound``.
        clusters: number of serving lines that each process prints.
        drain_seconds: time after SIGTERM in which calls may still be under way.
        out: stream to which the serving lines are written once.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        safe = ["-P"] if sys.flags.safe_path else []
        bound = [part for key, at in addresses.items() for part in ("--bound", f"{key}={at}")]
        self._command = [sys.executable, *safe, "-m", "directory", *arguments, *bound]
        self._workers = [_Worker(number + 1) for number in range(count)]
        self._clusters = clusters
        self._drain_seconds = drain_seconds
        self._out = out
        self._clock = clock
        # SimpleQueue: a signal handler may call ``put`` at any time.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._reported = False

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT, and returns 0. If the first process ends before it serves,
        returns its exit code, or 1 if that is not above 0: it has logged why, and the others would
        fail likewise. Returns 2 once all processes fail with 2, such as after the cluster's feature
        level was raised.
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
                                self._try_start(others.pop(0))
                    case _Ended(worker, process) if worker is first and not worker.tried:
                        return self._stillborn(process.returncode)
                    case _Ended(worker, process):
                        self._buried(worker, process)
                        if all(one.refused for one in self._workers):
                            return _UNUSABLE  # each has reported why; another start changes nothing
                    case None:
                        self._start_due()
                self._print_serving_lines()
        finally:
            self._end_all()

    # -- events ----------------------------------------------------------------------------------

    def _next(self) -> _Event | None:
        """Returns the next event; None = the start of a process is due before any event."""
        due = [worker.due for worker in self._workers if worker.due is not None]
        try:
            return self._events.get(timeout=max(0.0, min(due) - self._clock()) if due else None)
        except queue.Empty:
            return None

    def _start(self, worker: _Worker) -> None:
        """Starts a process in the slot.

        Raises:
            OSError: it cannot be started or monitored; then no process is left running.
        """
        worker.due, worker.started_at, worker.refused = None, self._clock(), False
        worker.lines.clear()
        joining = ["--joining"] if any(map(self._serves, self._workers)) else []
        process = subprocess.Popen(
            [*self._command, "--place", str(worker.number - 1), *joining],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        worker.process = process
        try:
            threading.Thread(target=self._follow, args=(worker, process), daemon=True).start()
        except RuntimeError as error:  # no more threads: nothing would notice the process's end
            process.kill()
            process.wait()
            worker.process = None
            raise OSError(errno.EAGAIN, str(error)) from error

    def _serves(self, worker: _Worker) -> bool:
        return worker.process is not None and len(worker.lines) == self._clusters

    def _follow(self, worker: _Worker, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - for mypy
        for line in process.stdout:
            self._events.put(_WorkerOutput(worker, line))
        process.wait()
        self._events.put(_Ended(worker, process))

    def _received(self, worker: _Worker, line: str) -> None:
        if not is_serving_line(line):
            print_lines(self._out, line)
            return
        worker.lines.append(line)
        if len(worker.lines) == self._clusters:
            worker.tried, worker.refused = True, False
            if self._reported:
                _log.info("server process %d serves", worker.number)

    def _print_serving_lines(self) -> None:
        """Prints one line for each cluster, once every process has served or failed and at least
        one serves.
        """
        serving = next(filter(self._serves, self._workers), None)
        if serving and not self._reported and all(worker.tried for worker in self._workers):
            self._reported = True
            print_lines(self._out, *serving.lines)

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
        """Delays the next start; returns the seconds."""
        pause = worker.pause_seconds
        worker.pause_seconds = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        worker.due = self._clock() + pause
        return pause

    def _start_due(self) -> None:
        now = self._clock()
        for worker in self._workers:
            if worker.due is not None and worker.due <= now:
                self._try_start(worker)

    def _try_start(self, worker: _Worker) -> None:
        try:
            self._start(worker)
        except OSError as error:  # no memory, or no more processes: the others continue
            worker.tried = True
            pause = self._pause(worker)
            _log.error(
                "server process %d cannot be started: %s; it is tried again in %g s",
                worker.number,
                error.strerror,
                pause,
            )

    def _stillborn(self, code: int) -> int:
        if code > 0:
            return code  # it has reported why
        sys.stderr.write(f"error: the first server process ended {_how(code)} before it served\n")
        return 1

    # -- the end ---------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Sends SIGTERM to all processes, and SIGKILL to those left after ``drain_seconds`` and
        ``_BEYOND_DRAIN_SECONDS``.
        """
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


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
