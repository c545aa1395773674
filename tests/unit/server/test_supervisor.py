"""Keeping processes alive where the machine itself is short of something."""

from __future__ import annotations

import ctypes
import io
import subprocess
from typing import Any

import pytest

from directory.server.supervisor import BEAT, Heartbeat, Supervisor

PTRACE_SEIZE = 0x4206


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
    """One that has been started, and what was done to it."""

    def __init__(self, pid: int = 1 << 30) -> None:
        self.pid = pid
        self.killed = 0

    def kill(self) -> None:
        self.killed += 1


class Watched:
    """A supervisor of one process that gives signs of life as the test says."""

    def __init__(self, pid: int = 1 << 30) -> None:
        self.clock = Clock()
        self.supervisor = Supervisor(
            [], 1, {}, clusters=1, drain_seconds=1, out=io.StringIO(),
            worker_hang_timeout_seconds=30, clock=self.clock,
        )  # fmt: skip
        self.process = Process(pid)
        (self.worker,) = self.supervisor._workers
        self.worker.process = self.process  # type: ignore[assignment]

    def beat(self) -> None:
        self.supervisor._received(self.worker, BEAT)

    def pass_by(self, seconds: int, step: float = 1.0) -> int:
        """Lets the time pass; returns how often the process was killed meanwhile."""
        before = self.process.killed
        for _ in range(int(seconds / step)):
            self.clock.now += step
            self.supervisor._look_for_hung()
        return self.process.killed - before


def test_a_process_that_gives_no_sign_of_life_any_more_is_killed_once() -> None:
    watched = Watched()
    assert watched.pass_by(1000) == 0, "it has not begun to give any: it may be a slow machine"
    for _ in range(10):
        watched.beat()
        assert watched.pass_by(29) == 0
    assert watched.pass_by(2) == 1
    assert watched.pass_by(1000) == 0


def test_time_in_which_the_supervisor_stood_still_itself_does_not_count() -> None:
    watched = Watched()
    watched.beat()
    assert watched.pass_by(3600, step=3600) == 0
    assert watched.pass_by(25) == 0
    assert watched.pass_by(10) == 1


def test_a_process_that_a_debugger_holds_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as held:
        watched = Watched(held.pid)
        watched.beat()
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            assert libc.ptrace(PTRACE_SEIZE, held.pid, None, None) == 0, ctypes.get_errno()
            assert watched.pass_by(1000) == 0
        finally:
            held.kill()


class Answering:
    """A server whose calls the test counts."""

    waiting_reads = 0
    ended_calls = 0


def test_a_process_whose_reads_wait_and_never_end_gives_no_sign_of_life() -> None:
    clock, server = Clock(), Answering()
    beats: list[float] = []
    heartbeat = Heartbeat([server], 30.0, clock=clock, report=lambda: beats.append(clock.now))

    def pass_by(seconds: int, ended: int = 0) -> int:
        beats.clear()
        for _ in range(seconds):
            clock.now += 1
            server.ended_calls += ended
            heartbeat.send_heartbeat()
        return len(beats)

    assert pass_by(100) == 100, "nobody asks"
    server.waiting_reads = 1
    assert pass_by(100, ended=1) == 100, "they are many, and end"
    assert pass_by(100) == 30
    server.waiting_reads = 0
    assert pass_by(10) == 10, "they ended after all"
    server.waiting_reads = 1
    assert pass_by(30) == 30
    assert pass_by(1, ended=1) == 1
