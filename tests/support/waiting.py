"""Waits until something holds, with one deadline for all tests, generous for busy machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from resolver.errors import KdirError

__all__ = ["eventually"]

T = TypeVar("T")


def eventually(look: Callable[[], T], timeout_seconds: float = 60.0) -> T:
    """Returns the first true result of ``look``; raises AssertionError once the time is over."""
    deadline = time.monotonic() + timeout_seconds
    pause = 0.002
    while True:
        failure: Exception | None = None
        try:
            found = look()
            if found:
                return found
        except (KdirError, grpc.RpcError, AssertionError) as error:
            failure = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_seconds:g} s; last: {failure!r}")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
