"""Turns: one thread a key, others wait, and nothing is left of what was given back."""

from __future__ import annotations

import threading
import time

import pytest

from directory.store.keyed_locks import KeyedLocks
from resolver.errors import DeadlineExceeded


def test_one_goes_on_at_a_time_and_who_waited_is_known() -> None:
    locks, inside, most, waited = KeyedLocks(time.monotonic), 0, 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most, waited
        with locks.lock_for() as mine:
            had_to_wait = mine.acquire(b"k", time.monotonic() + 30)
            with lock:
                inside += 1
                most, waited = max(most, inside), waited + had_to_wait
            threading.Event().wait(0.005)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert waited
    assert not locks.queues


def test_other_keys_do_not_wait_and_a_second_take_is_none() -> None:
    locks = KeyedLocks(time.monotonic)
    with locks.lock_for() as one, locks.lock_for() as other:
        assert not one.acquire(b"k", 0)
        assert not one.acquire(b"k", 0)
        assert not other.acquire(b"l", 0)
    assert not locks.queues


def test_who_waits_too_long_gets_an_error_and_keeps_nothing() -> None:
    locks = KeyedLocks(lambda: 0.0)
    with locks.lock_for() as one:
        one.acquire(b"k", 0)
        with locks.lock_for() as late, pytest.raises(DeadlineExceeded):
            late.acquire(b"k", 0.01)
        assert len(locks.queues) == 1
    assert not locks.queues
    with locks.lock_for() as one:
        assert not one.acquire(b"k", 0)
