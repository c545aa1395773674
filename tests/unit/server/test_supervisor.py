"""Keeping processes alive where the machine itself is short of something."""

from __future__ import annotations

import io
import subprocess
from typing import Any

import pytest

from directory.server.supervisor import Supervisor


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
