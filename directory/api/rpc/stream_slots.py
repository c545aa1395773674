"""Limits of open streams: in all, for each connection and for each principal.

All streams but watches and links hold a thread while they are open. One in eight is reserved for
links to children, which have no limit for each connection: a child without its link gets no
revocations.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn

from directory.api.rpc.request_intake import CallCompletion, RequestIntake, begin_call
from resolver.errors import LimitExceeded

__all__ = ["StreamPool", "StreamSlots"]

_LINK: Final = "FederationService/Link"
_RESERVED: Final = 8
"""One in this many streams is reserved for links."""


class StreamPool(ThreadPoolExecutor):
    """Threads of streams. A call takes a thread when its request has arrived; or, if its connection
    has no slot left, a second later, to be refused (``RequestIntake.delay``).
    """

    def __init__(
        self, threads: int, name: str, intake: RequestIntake, slots: StreamSlots | None = None
    ) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._intake: Final = intake
        self._slots: Final = slots

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a call on a thread."""
        return self._intake.submit(self._begin, fn, args, is_stream=True)

    def _begin(self, ended: CallCompletion, fn: Any, args: tuple[Any, ...]) -> None:
        if self._slots is not None and self._slots.is_full(args[1].call.peer().decode()):
            self._intake.delay(partial(begin_call, self._run, ended, fn, args), ended)
        else:
            self._run(ended, fn, args)

    def _run(self, ended: CallCompletion, fn: Any, args: tuple[Any, ...]) -> None:
        super().submit(fn, *args).add_done_callback(lambda _: ended.end())


class StreamSlots:
    """Number of open streams, in all and by caller. Thread-safe.

    Args:
        most: streams at a time; one in eight is for links only.
        per_connection: streams of one connection, other than links.
        per_principal: streams of one principal, links included.
    """

    def __init__(self, most: int, per_connection: int, per_principal: int) -> None:
        self._others: Final = most - most // _RESERVED
        self._most: Final = most
        self._per_connection: Final = per_connection
        self._per_principal: Final = per_principal
        self._lock: Final = threading.Lock()
        self._links = 0
        self._open: Final[Counter[str]] = Counter()
        """Number of open streams by connection and by principal; ``""`` counts all but links."""
        self.refused = 0
        """Number of streams that were refused."""

    def is_full(self, peer: str) -> bool:
        """True if a connection has as many streams as it may have, without links."""
        return self._open[f"connection {peer}"] >= self._per_connection

    @contextmanager
    def hold(self, method: str, peer: str, principal: str) -> Iterator[None]:
        """Context manager that counts a stream while it is open.

        An empty principal is not counted: callers that are not identified are limited by their
        connection.

        Raises:
            LimitExceeded: there are too many already.
        """
        is_link = method == _LINK
        bounds: dict[str, tuple[int, str]] = {}
        if not is_link:
            bounds[""] = self._others, "max_streams"
            bounds[f"connection {peer}"] = self._per_connection, "connection_streams"
        if principal:
            bounds[principal] = self._per_principal, "principal_streams"
        with self._lock:
            for key, (most, setting) in bounds.items():
                if self._open[key] >= most:
                    self._refuse(key, most, setting)
            # One more stream, of whatever kind, would wait for a thread, without an answer.
            if self._links + self._open[""] >= self._most:
                self._refuse("", self._most, "max_streams")
            self._open.update(bounds.keys())
            self._links += is_link
        try:
            yield
        finally:
            with self._lock:
                self._links -= is_link
                for key in bounds:
                    self._open[key] -= 1
                    if not self._open[key]:
                        del self._open[key]

    def _refuse(self, key: str, most: int, setting: str) -> NoReturn:
        self.refused += 1
        whose = f"{key} has" if key else "this server has"
        raise LimitExceeded(
            f"{whose} {most} open streams, as many as limits.{setting} allows; end one first",
            limit=most,
        )
