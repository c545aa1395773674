"""Walking on in a caller's name: the server asks the other directories itself (DESIGN §4).

Uses the client's own resolver, so that there is one walk and one set of checks; questions to this
very server are answered in place. Refuses to take more than half of the threads that answer calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from google.protobuf.message import Message
from kdir.v1 import resolve_pb2

from directory.services.call import CURRENT, REQUEST_ID_KEY, Call
from directory.services.rpc import Handler
from resolver.client import Resolver, TopicLocation
from resolver.errors import Absent, KdirError, LimitExceeded
from resolver.status import to_outcome
from resolver.transport import GrpcTransport, Method, Stream, Transport

__all__ = ["Recursion"]

_KINDS: Final = {0: "", 1: "directory", 2: "topic", 3: "link", 4: "mount"}


class _OwnFirst:
    """A transport that answers questions to this server in place, without a call."""

    def __init__(self, own: Callable[[], tuple[str, ...]], handlers: dict[str, Handler]) -> None:
        self._own = own
        self._handlers = handlers
        self._others = GrpcTransport(metadata=_request_id)

    def call(self, endpoint: str, method: Method, request: Message, timeout_seconds: float) -> Any:
        handler = self._handlers.get(method.name) if endpoint in self._own() else None
        if handler is None:
            return self._others.call(endpoint, method, request, timeout_seconds)
        return handler(request, Call(time.monotonic() + timeout_seconds, is_active=_always))

    def stream(self, endpoint: str, method: Method, request: Message) -> Stream:
        return self._others.stream(endpoint, method, request)

    def close(self) -> None:
        self._others.close()


def _always() -> bool:
    return True


def _request_id() -> Sequence[tuple[str, str | bytes]]:
    """So that a call is found by one id in the logs of all that it came through."""
    call = CURRENT.call
    return () if call is None else ((REQUEST_ID_KEY, call.request_id),)


class Recursion:
    """Resolves for callers that ask for it, as anonymous as they are."""

    def __init__(
        self,
        own: Callable[[], tuple[str, ...]],
        handlers: dict[str, Handler],
        most_at_once: int,
    ) -> None:
        self._own = own
        self._transport: Transport = _OwnFirst(own, handlers)
        self._places = threading.BoundedSemaphore(most_at_once)
        self._lock = threading.Lock()
        self._resolver: Resolver | None = None

    def close(self) -> None:
        """Gives back the channels to other servers."""
        self._transport.close()

    def resolve(
        self, request: resolve_pb2.ResolveRequest, call: Call
    ) -> resolve_pb2.ResolveResponse:
        """One path, walked to its end.

        Raises:
            KdirError: as the walk ended; Absent too, which only the owner said.
        """
        with self._place():
            found = self._ready().resolve(
                request.path,
                prefer=_KINDS.get(request.prefer, ""),
                token=request.token,
                no_follow=request.no_follow,
                timeout_seconds=call.seconds_left(),
            )
        return resolve_pb2.ResolveResponse(
            authority=found.authority, outcome=resolve_pb2.Outcome(resolution=found.resolution)
        )

    def batch_resolve(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse:
        """Many paths, each walked to its end."""
        with self._place():
            found = self._ready().resolve_many(
                request.paths,
                prefer=_KINDS.get(request.prefer, ""),
                token=request.token,
                no_follow=request.no_follow,
                timeout_seconds=call.seconds_left(),
            )
        response = resolve_pb2.BatchResolveResponse()
        indexes: dict[str, int] = {}
        for one in found:
            outcome = response.outcomes.add()
            match one:
                case TopicLocation():
                    index = indexes.setdefault(one.token, len(indexes))
                    if index == len(response.authorities):
                        response.authorities.append(one.authority)
                    outcome.resolution.CopyFrom(one.resolution)
                    outcome.resolution.authority_index = index
                case Absent():
                    outcome.absent.nearest_directory = one.metadata.get("nearest", "")
                case KdirError():
                    outcome.error.CopyFrom(to_outcome(one))
        return response

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise LimitExceeded(
                "too many recursive calls at once; follow the referrals instead, or try again"
            )
        try:
            yield
        finally:
            self._places.release()

    def _ready(self) -> Resolver:
        with self._lock:
            if self._resolver is None:
                self._resolver = Resolver(self._own(), transport=self._transport)
            return self._resolver
