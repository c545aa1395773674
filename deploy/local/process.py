"""Runs one server, of any kind, as a process group of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.local import leash

_POLL_SECONDS = 0.05
_STAND_SECONDS = 5.0
"""The longest wait for SIGSTOP, which stops a thread only once it leaves the kernel."""


class StartFailed(RuntimeError):
    """A server did not become ready; the message ends with the last lines of its log."""


class LocalProcess:
    """A server process, its output in a log file, that does not outlive this process.

    With `detached` the server outlives this process: the file `record` beside the log identifies
    it, and `stop_recorded` ends it later, from any process.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> None:
        self.command = [str(part) for part in command]
        self.log = log
        self.record = log.with_suffix(".pid")
        self._environment = dict(environment or {})
        self._detached = detached
        self._server: subprocess.Popen[bytes] | None = None
        self._leash: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group.

        Raises:
            RuntimeError: it was not started, or has been stopped.
        """
        if self._server is None:
            raise RuntimeError(f"{self.command[0]} is not running")
        return self._server.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended, by us or by itself."""
        return self._server is not None and self._server.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None before its start, while it runs, and after `stop` or `kill`."""
        return None if self._server is None else self._server.poll()

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone, not to its group."""
        if self._server is not None:
            self._server.send_signal(number)

    def wait(self, timeout_seconds: float) -> int:
        """Returns its exit code once it has ended.

        Raises:
            RuntimeError: it was not started, or has been stopped.
            subprocess.TimeoutExpired: it runs on after the time.
        """
        if self._server is None:
            raise RuntimeError(f"{self.command[0]} does not run")
        return self._server.wait(timeout_seconds)

    def start(self) -> None:
        """Starts it; its output is appended to the log.

        Raises:
            RuntimeError: it runs already.
        """
        if self.running:
            raise RuntimeError(f"{self.command[0]} runs already")
        with self.log.open("ab") as output:
            self._server = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self._environment,
                start_new_session=True,
            )
        self._paused = False
        if self._detached:
            self.record.write_text(_identity(self._server.pid))
        else:
            self._leash = subprocess.Popen(
                [sys.executable, "-S", "-E", leash.__file__, str(self._server.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is not for it
            )

    def await_ready(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Calls `ready` again and again, and returns once it is true.

        Raises:
            StartFailed: the process ended first, or the time was over.
        """
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.running:
                raise StartFailed(f"{self.command[0]} ended while starting.\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"not ready after {timeout_seconds:g} s.\n{self.tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self, grace_seconds: float = 20) -> None:
        """Sends SIGTERM to its group, and SIGKILL once it ended or `grace_seconds` are over."""
        if self._server is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(grace_seconds)
        self.kill()

    def kill(self) -> None:
        """Sends SIGKILL to its group, as in a crash; does nothing if it was not started."""
        if self._server is None:
            return
        self._signal(signal.SIGKILL)
        self._server.wait()
        self._server = None
        self.record.unlink(missing_ok=True)
        if self._leash is not None:
            self._leash.kill()
            self._leash.communicate()  # closes our end of the pipe
            self._leash = None

    def pause(self) -> None:
        """Sends SIGSTOP and waits until its threads are stopped: sockets stay open, nothing
        answers.
        """
        self._signal(signal.SIGSTOP)
        self._paused = True
        until = time.monotonic() + _STAND_SECONDS
        while not _is_stopped(self.pid) and time.monotonic() < until:
            time.sleep(0.001)

    def resume(self) -> None:
        """Sends SIGCONT after `pause`."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def tail(self, lines: int = 20) -> str:
        """Returns the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: int) -> None:
        # No such group: all its processes ended. A group outlives its leader while children run.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _is_stopped(pid: int) -> bool:
    """True if all threads of a process, and of its children, are stopped or gone."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            # The name before the state is in parentheses, and may hold spaces.
            state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            children = (task / "children").read_text().split()
        except OSError:
            continue  # it ended
        if state not in {"T", "t", "Z", "X"} or not all(_is_stopped(int(one)) for one in children):
            return False
    return True


def is_recorded(record: Path) -> bool:
    """True if the detached process that `record` names is still there."""
    if not record.exists():
        return False
    identity = record.read_text()
    return _identity(int(identity.split(maxsplit=1)[0])) == identity


def stop_recorded(record: Path, grace_seconds: float = 20) -> bool:
    """Ends the detached process that `record` names; returns whether it was still there.

    A process that merely got the same id later is left alone.
    """
    if not record.exists():
        return False
    identity = record.read_text()
    pid = int(identity.split(maxsplit=1)[0])
    found = _identity(pid) == identity
    deadline = time.monotonic() + grace_seconds
    number = signal.SIGTERM
    while _identity(pid) == identity:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)
            os.killpg(pid, number)
        number = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM
        time.sleep(_POLL_SECONDS)
    record.unlink(missing_ok=True)
    return found


def _identity(pid: int) -> str:
    """Returns the process id and when it started; only the id if there is no such process, or a
    zombie.

    Where there is a /proc, the start is counted from the boot: what ``ps`` shows moves with the
    wall clock.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        shown = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        state, _, began = shown.stdout.strip().partition(" ")
    else:
        state, began = "", ""
        with contextlib.suppress(OSError):  # it ended
            # The name before the state is in parentheses, and may hold spaces and any bytes.
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            fields = stat.rpartition(")")[2].split()
            state, began = fields[0], f"{boot} {fields[19]}"
    return f"{pid} {began.strip()}" if state and not state.startswith(("Z", "X")) else f"{pid}"
