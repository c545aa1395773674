"""Keeping processes alive where the machine itself is short of something."""

from __future__ import annotations

import errno
import io
import itertools
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import pytest

from directory.server.supervisor import Supervisor, serving_line
from tests.support.waiting import eventually

SERVING = serving_line("/la", "la", "kc-1", "127.0.0.1:7420") + "\n"
METRICS = "metrics on http://127.0.0.1:9420/metrics\n"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_process_that_cannot_be_started_now_is_tried_again_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    supervisor = Supervisor([], 2, {}, clusters=1, drain_seconds=1, out=io.StringIO(), clock=clock)
    worker = supervisor._workers[1]
    started: list[float] = []

    def start(*_: Any, **__: Any) -> Any:
        started.append(clock.now)
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", start)
    worker.due = clock.now
    pauses = []
    for _ in range(10):
        supervisor._start_due()
        assert worker.due is not None
        pauses.append(worker.due - clock.now)
        clock.now = worker.due
    assert len(started) == 10
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 30.0)


class Process:
    """Server process that prints and ends as the test says."""

    pid = 1
    returncode = 0

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self.stdout = iter(self._lines.get, "")

    def write(self, line: str) -> None:
        self._lines.put(line)

    def end(self, code: int) -> None:
        self.returncode = code
        self._is_over.set()
        self._lines.put("")

    def terminate(self) -> None:
        self.end(-signal.SIGTERM)

    def kill(self) -> None:
        self.end(-signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        assert self._is_over.wait(timeout)
        return self.returncode


@contextmanager
def supervised(
    monkeypatch: pytest.MonkeyPatch, count: int, out: TextIO, start: Callable[[], Any] = Process
) -> Iterator[list[Process]]:
    """Runs a supervisor, and yields the processes that it has started so far. At the end it must be
    running, and stop.
    """
    started: list[Process] = []
    handlers: dict[int, Callable[[], None]] = {}
    codes: list[int] = []

    def popen(*_: Any, **__: Any) -> Process:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    supervisor = Supervisor([], count, {}, clusters=1, drain_seconds=1, out=out)
    thread = threading.Thread(target=lambda: codes.append(supervisor.run()), daemon=True)
    thread.start()
    try:
        yield started
        assert thread.is_alive()
    finally:
        handlers[signal.SIGTERM]()
        thread.join(10)
    assert codes == [0]


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_output_that_cannot_be_written_ends_no_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with supervised(monkeypatch, 2, FullDisk()) as started:
        eventually(lambda: len(started) == 1)
        started[0].write(METRICS)
        started[0].write(SERVING)
        eventually(lambda: len(started) == 2)
        started[1].write(SERVING)
        eventually(lambda: caplog.text.count("stdout cannot be written: No space left") == 2)


def test_the_serving_lines_are_of_any_process_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with supervised(monkeypatch, 3, out) as started:
        eventually(lambda: len(started) == 1)
        started[0].write(SERVING)
        eventually(lambda: len(started) == 3)
        started[0].end(-signal.SIGKILL)
        started[1].end(1)
        eventually(lambda: len(started) == 5)  # both are started again
        assert not out.getvalue()  # the third has neither served nor failed
        started[2].write(SERVING)
        eventually(lambda: out.getvalue() == SERVING)
        started[3].write(SERVING)
        started[3].write(METRICS)
        eventually(lambda: METRICS in out.getvalue())
        assert out.getvalue() == SERVING + METRICS


def test_the_serving_lines_wait_for_a_process_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with supervised(monkeypatch, 2, out) as started:
        eventually(lambda: len(started) == 1)
        started[0].write(SERVING)
        eventually(lambda: len(started) == 2)
        started[0].end(-signal.SIGKILL)
        eventually(lambda: len(started) == 3)  # the first one's end is known before the other's
        started[1].end(1)
        eventually(lambda: len(started) == 4)
        assert not out.getvalue()
        started[3].write(SERVING)
        eventually(lambda: out.getvalue() == SERVING)


def test_a_process_that_loads_again_after_it_refused_may_still_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The config may have been mended meanwhile: the other's refusal is of the old one."""
    out = io.StringIO()
    with supervised(monkeypatch, 2, out) as started:
        eventually(lambda: len(started) == 1)
        started[0].write(SERVING)
        eventually(lambda: len(started) == 2)
        started[1].end(2)
        eventually(lambda: len(started) == 3)
        started[0].end(2)
        eventually(lambda: len(started) == 4)
        started[2].write(SERVING)
        eventually(lambda: out.getvalue() == SERVING)


def test_one_of_the_other_processes_that_cannot_be_started_ends_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    attempts = itertools.count(1)

    def start() -> Process:
        if next(attempts) == 2:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return Process()

    with supervised(monkeypatch, 2, out, start) as started:
        eventually(lambda: len(started) == 1)
        started[0].write(SERVING)
        eventually(lambda: out.getvalue() == SERVING)
        eventually(lambda: len(started) == 2)


def test_a_process_that_no_thread_can_follow_is_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = io.StringIO()
    started: list[Process] = []
    refused: list[Process] = []
    begin = threading.Thread.start

    def start() -> Process:
        started.append(Process())
        return started[-1]

    def start_thread(thread: threading.Thread) -> None:
        if len(started) == 2 and not refused:
            refused.append(started[-1])
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start_thread)
    with supervised(monkeypatch, 2, out, start):
        eventually(lambda: len(started) == 1)
        started[0].write(SERVING)
        eventually(lambda: out.getvalue() == SERVING)
        assert [process.returncode for process in started[:2]] == [0, -signal.SIGKILL]
        eventually(lambda: len(started) == 3)
    assert "server process 2 cannot be started: can't start new thread" in caplog.text
    assert started[2].returncode == -signal.SIGTERM
