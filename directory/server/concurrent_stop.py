"""Stop of many parts of one process at the same time, within one time limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

__all__ = ["run_together"]

_log = logging.getLogger(__name__)


def run_together(
    functions: Iterable[Callable[[], object]], timeout_seconds: float | None = None
) -> int:
    """Runs each function on a thread of its own; returns the number that have not ended in time.

    None of them waits for another one; late ones end with the process. Errors are logged. If no
    thread can be started, a function runs in the calling thread, after the others have begun and
    without the time limit.

    Args:
        functions: the functions to run.
        timeout_seconds: time for all of them together; None = no limit.
    """
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    threads: list[threading.Thread] = []
    left: list[Callable[[], object]] = []
    for one in functions:
        thread = threading.Thread(target=_run, args=(one,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the process has reached its limit of threads
            left.append(one)
        else:
            threads.append(thread)
    for one in left:
        _run(one)
    for thread in threads:
        thread.join(None if until is None else max(0.0, until - time.monotonic()))
    return sum(thread.is_alive() for thread in threads)


def _run(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception:  # noqa: BLE001 - the others end all the same
        _log.exception("stopping failed by a bug")
