"""Runs long reads on threads of their own, so that short ones never wait for them.

Python runs one thread at a time; so a short call waits only for its share of the interpreter
(``switch_interval``), not for the end of the long calls. gRPC uses the pool of a method's handler
only if that is a ``ThreadPoolExecutor``, and otherwise silently the server's own; so the pool here
is one, without threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from kdir.v1 import resolve_pb2

from directory.api.rpc.interceptors.malformed_request import MalformedRequest
from directory.api.rpc.request_intake import CallCompletion, Received, RequestIntake
from directory.api.rpc.switch_interval import long_read
from directory.api.rpc.thread_pools import CallPool

__all__ = ["SHORT_PATHS", "LongCalls"]

SHORT_PATHS: Final = 100
"""Most paths of a batch that counts as short: it takes about a millisecond."""


class LongCalls(ThreadPoolExecutor):
    """Executor of methods that may take long: long calls go to ``long``, small batches to
    ``short``.
    """

    def __init__(self, short: CallPool, long: CallPool, intake: RequestIntake) -> None:
        super().__init__(1)  # it starts no thread before one is needed
        self._short: Final = short
        self._long: Final = long
        self._intake: Final = intake

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
        """Runs a call on a thread once its request has arrived."""
        return self._intake.submit(self._begin, fn, args)

    def _begin(
        self, ended: CallCompletion, answer: Callable[..., object], about: tuple[Any, ...]
    ) -> None:
        if _is_short(about):
            self._short.begin(ended, answer, about)
        else:
            self._long.begin(ended, long_read()(answer), about)


def _is_short(about: tuple[Any, ...]) -> bool:
    first = about[4]()
    request = first.request if isinstance(first, Received) else None
    if isinstance(request, resolve_pb2.BatchResolveRequest):
        return len(request.paths) <= SHORT_PATHS
    return isinstance(request, MalformedRequest | None)
