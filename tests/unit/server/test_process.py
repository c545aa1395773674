"""What a server process does at signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from directory.server.process import stop_at_signals


class SlowEvent(threading.Event):
    """Event with a lock that a thread may hold for long."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def set(self) -> None:
        assert self.lock.acquire(timeout=20), "waits for the thread that it interrupted"
        super().set()
        self.lock.release()


@pytest.fixture
def _handlers() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_does_not_wait_for_a_lock_of_the_thread_that_it_interrupts(
    number: signal.Signals,
) -> None:
    stop = SlowEvent()
    stop_at_signals(stop)
    with stop.lock:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert not stop.is_set()
    assert stop.wait(20)


def test_a_config_is_checked_where_stdout_lacks_a_character(tmp_path: Path) -> None:
    file = tmp_path / "la.toml"
    file.write_text(
        'mount = "/la"\nstore = "sqlite:////nowhere/la.sqlite"\n[links]\n"/ny/x" = "/la/x"\n'
    )
    ran = subprocess.run(
        [sys.executable, "-m", "directory", "--check", "--config", file],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert rb"site link /ny/x \u2192 /la/x" in ran.stdout
