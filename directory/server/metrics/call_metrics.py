"""Counts and times the calls of one server; refuses to cost a call more than a microsecond.

What a server refuses before its handlers see it (a request over the size limit, one call too many)
is gRPC's own answer and is not counted here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from directory.server.metrics.histogram import CALL_SECONDS, Histogram

__all__ = ["CallMetrics", "CallOutcome"]


class CallOutcome(NamedTuple):
    """Which rpc, such as ``ResolveService/Resolve``, and the gRPC code that it ended with."""

    method: str
    code: str


class CallMetrics:
    """The calls of one server since it began. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._unary: Final[dict[CallOutcome, Histogram]] = {}
        self._streams: Final[Counter[CallOutcome]] = Counter()
        self._open: Final[Counter[str]] = Counter()

    def unary(self, method: str, code: str) -> Histogram:
        """Returns where calls with one answer are to be observed; always the same for
        the same two.
        """
        key = CallOutcome(method, code)
        found = self._unary.get(key)
        if found is None:
            with self._lock:
                found = self._unary.setdefault(key, Histogram(CALL_SECONDS))
        return found

    def stream_began(self, method: str) -> None:
        """A stream is open from now on."""
        with self._lock:
            self._open[method] += 1

    def stream_ended(self, method: str, code: str) -> None:
        """It ended; so many must have begun."""
        with self._lock:
            self._open[method] -= 1
            self._streams[CallOutcome(method, code)] += 1

    def calls(self) -> Mapping[CallOutcome, Histogram]:
        """Calls with one answer."""
        return dict(self._unary)

    def streams(self) -> tuple[Mapping[str, int], Mapping[CallOutcome, int]]:
        """Returns the streams that are open now, by method, and how many ended how."""
        with self._lock:
            return dict(self._open), dict(self._streams)
