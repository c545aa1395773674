"""What a server process does at signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

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
