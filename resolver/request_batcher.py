"""Questions to one server that threads ask at the same time, sent together in one BatchResolve.

Refuses to wait for company: a question that finds the way free goes at once, alone. Those that
come while calls are under way gather, and the next call takes them all; so the batches are as
large as the load makes them, and a lone caller pays nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from resolver import errors, reply_decoding
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution.values import Reply
from resolver.transport import Transport, method

__all__ = ["MAX_BATCH", "Options", "RequestBatcher", "Server", "batch_resolve"]

MAX_BATCH: Final = 1000
"""Paths in one call; servers take 10,000, and answers stay far below a message's limit."""
_MAX_FLYING: Final = 2
"""Calls under way to one server: while one is answered, the next one is being filled."""


class Server(NamedTuple):
    """Whom to ask, and whose server a referral says that it is; empty: nobody's word."""

    endpoint: str
    cluster_id: str = ""


Options = tuple[int, str, bool, bool]
"""(preferred kind, token, no_follow, recursive): what the questions of one call share."""


def batch_resolve(
    transport: Transport,
    server: Server,
    paths: Sequence[Path],
    options: Options,
    timeout_seconds: float,
) -> list[Reply | KdirError]:
    """Returns one call for all paths, or more where the server's limits ask for it; what went wrong
    with a path stands in its place.

    Raises:
        KdirError: the call itself failed, or its answer is none.
    """
    return _send_request(transport, server, paths, options, time.monotonic() + timeout_seconds)


def _send_request(
    transport: Transport,
    server: Server,
    paths: Sequence[Path],
    options: Options,
    deadline: float,
) -> list[Reply | KdirError]:
    timeout_seconds = deadline - time.monotonic()
    if timeout_seconds <= 0:
        raise errors.DeadlineExceeded(f"{server.endpoint}: no answer in time to {len(paths)} paths")

    def call() -> Any:
        return transport.call(
            server.endpoint, method(name), request, timeout_seconds, cluster_id=server.cluster_id
        )

    prefer, token, no_follow, recursive = options
    name = "ResolveService.Resolve" if len(paths) == 1 else "ResolveService.BatchResolve"
    request = method(name).request(token=token, recursive=recursive, no_follow=no_follow)
    if prefer:
        request.prefer = prefer
    if len(paths) == 1:
        request.path = str(paths[0])
        return [reply_decoding.decode_reply(call())]
    request.paths.extend(map(str, paths))
    try:
        response = call()
    except errors.LimitExceeded as error:
        if not _is_of_paths(error):
            raise  # more calls would only add to the server's load
        # Servers may take fewer paths a call than they do by default.
        middle = len(paths) // 2
        halves = paths[:middle], paths[middle:]
        return [
            reply
            for half in halves
            for reply in _send_request(transport, server, half, options, deadline)
        ]
    replies = list(reply_decoding.decode_batch(response, paths))
    over = [place for place, reply in enumerate(replies) if _is_of_paths(reply)]
    if over and len(over) < len(paths):
        # The answers were too large for one call. Each further call answers one path at least.
        rest = _send_request(transport, server, [paths[place] for place in over], options, deadline)
        for place, reply in zip(over, rest, strict=True):
            replies[place] = reply
    return replies


def _is_of_paths(reply: object) -> bool:
    """True if a server refuses so many paths in one call, or so many bytes of them or of their
    answers; not where it has too many calls.
    """
    return isinstance(reply, errors.LimitExceeded) and (
        reply.metadata.get("field") == "paths" or "message larger than max" in reply.message
    )


class _Waiter:
    """A thread with a question."""

    __slots__ = ("crew", "gone", "path", "result", "timeout_seconds", "woken")

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        self.path = path
        self.timeout_seconds = timeout_seconds
        self.result: Reply | KdirError | None = None
        self.crew: list[_Waiter] = []
        """Filled when this thread is to send for all of these."""
        self.gone = False
        # A lock that is held is the cheapest thing to wait for; whoever has news lets it go.
        self.woken = threading.Lock()
        self.woken.acquire()


class RequestBatcher:
    """The questions to one server with the same options. Thread-safe."""

    def __init__(self, transport: Transport, server: Server, options: Options) -> None:
        self._transport = transport
        self._server = server
        self._options = options
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._flying = 0

    def ask(self, path: Path, timeout_seconds: float) -> Reply:
        """Returns the server's reply, however many others ask.

        Raises:
            KdirError: what went wrong with this question.
        """
        me = _Waiter(path, timeout_seconds)
        if self._may_send(me) or self._is_woken_to_send(me):
            self._send(me.crew)
        if isinstance(me.result, KdirError):
            raise me.result
        assert me.result is not None  # noqa: S101 - _send gives everyone a result
        return me.result

    def _may_send(self, me: _Waiter) -> bool:
        with self._lock:
            if self._flying < _MAX_FLYING:
                self._flying += 1
                me.crew = [me]
                return True
            self._waiting.append(me)
            return False

    def _is_woken_to_send(self, me: _Waiter) -> bool:
        """Waits for a result, or for the turn to send for others."""
        if not me.woken.acquire(timeout=me.timeout_seconds):
            with self._lock:
                if not me.crew and me.result is None:
                    me.gone = True
                    raise errors.DeadlineExceeded(
                        f"{self._server.endpoint}: no answer within {me.timeout_seconds:.2f} s"
                    )
        return bool(me.crew)

    def _send(self, crew: list[_Waiter]) -> None:
        longest = max(waiter.timeout_seconds for waiter in crew)
        results: Sequence[Reply | KdirError]
        try:
            results = batch_resolve(
                self._transport,
                self._server,
                [waiter.path for waiter in crew],
                self._options,
                longest,
            )
        except KdirError as error:
            # Each walk adds its own attempts to its error: one object for all would mix them.
            results = [error.copy() for _ in crew]
        except BaseException:
            results = [errors.Cancelled("the thread that asked for several was ended")] * len(crew)
            raise
        finally:
            self._hand_over()
            for waiter, result in zip(crew, results, strict=True):
                waiter.result = result
                if waiter is not crew[0]:
                    waiter.woken.release()

    def _hand_over(self) -> None:
        """Lets the next crew, if anyone waits, be sent by the first of it."""
        with self._lock:
            waiting = [waiter for waiter in self._waiting if not waiter.gone]
            crew, self._waiting = waiting[:MAX_BATCH], waiting[MAX_BATCH:]
            if not crew:
                self._flying -= 1
                return
            crew[0].crew = crew
        crew[0].woken.release()
