"""Watching the changes below a path, resumed where it broke; refuses to lose or repeat one.

Order holds within a cluster: a watch follows the cluster that owns the path, and says nothing of
clusters mounted below it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kdir.v1 import watch_pb2

from resolver import errors
from resolver.errors import KdirError
from resolver.path import Path
from resolver.transport import Stream, Transport, method

if TYPE_CHECKING:
    from kdir.v1 import resolve_pb2

    from resolver.owner_calls import Owner

__all__ = ["CHECKPOINT_SECONDS", "WatchedChanges", "Watching"]

CHECKPOINT_SECONDS: Final = 5
"""An idle server speaks this often."""
_SILENCE: Final = 3
"""So many checkpoints missed, and the connection is taken for dead."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class WatchedChanges:
    """The changes of one revision, or a checkpoint with none."""

    events: tuple[watch_pb2.ChangeEvent, ...]
    token: str
    """All up to here was given: where to go on after this process is gone."""
    authority: resolve_pb2.Authority | None
    """Who answers now; set in the first of each connection."""


class Watching:
    """Changes as they come; iterate in one thread, ``close`` from any.

    A connection that breaks is made anew, to any server of the owner, after the last token: no
    change is lost or given twice. It ends with ``Resync`` when those after the token are no longer
    held (list again, then watch), with ``Absent`` and the like when the path's owner cannot say
    otherwise, and quietly when it is closed.
    """

    def __init__(
        self,
        path: Path,
        after: str,
        find_owner: Callable[[bool], Owner],
        transport: Transport,
        *,
        checkpoint_seconds: int = CHECKPOINT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.token = after
        self._find_owner = find_owner
        self._transport = transport
        self._checkpoint_seconds = checkpoint_seconds
        self._clock = clock
        self._closed = threading.Event()
        self._stream: Stream | None = None
        self._waiting_since: float | None = None
        """By the clock, when it was last begun to wait for the server; None while the caller is
        busy with what came."""

    def __iter__(self) -> Iterator[WatchedChanges]:
        pause = _FIRST_PAUSE_SECONDS
        position = 0
        owner: Owner | None = None
        while not self._closed.is_set():
            try:
                if owner is None:
                    owner = self._find_owner(position > 0)
                endpoint = owner.endpoints[position % len(owner.endpoints)]
                for changes in self._follow(endpoint, owner):
                    pause = _FIRST_PAUSE_SECONDS
                    yield changes
                failure: KdirError = errors.Unreachable(f"{endpoint} ended the stream")
            except KdirError as error:
                failure = error
            if self._closed.is_set():
                return
            if not _may_come_back(failure):
                raise failure
            position += 1
            if owner is not None and position % len(owner.endpoints) == 0:
                owner = None  # all were tried: it may be elsewhere by now
            self._closed.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _follow(self, endpoint: str, owner: Owner) -> Iterator[WatchedChanges]:
        request = watch_pb2.WatchRequest(
            path=str(owner.path),
            after_token=self.token,
            checkpoint_seconds=self._checkpoint_seconds,
        )
        stream = self._transport.stream(
            endpoint, method("WatchService.Watch"), request, cluster_id=owner.cluster_id
        )
        self._stream = stream
        if self._closed.is_set():  # before there was a stream to cancel
            stream.cancel()
            return
        self._waiting_since = self._clock()
        ended = threading.Event()
        guard = threading.Thread(
            target=self._end_when_silent, args=(stream, ended), name="watch-guard", daemon=True
        )
        guard.start()
        try:
            for response in stream:
                self._waiting_since = None
                authority = response.authority if response.HasField("authority") else None
                if authority is not None and authority.cluster.cluster_id != owner.cluster_id:
                    raise errors.Lame(
                        f"{endpoint} is cluster {authority.cluster.cluster_id}, "
                        f"not {owner.cluster_id}"
                    )
                self.token = response.token or self.token
                yield WatchedChanges(tuple(response.events), self.token, authority)
                if self._closed.is_set():
                    return
                self._waiting_since = self._clock()
        finally:
            self._stream = None
            stream.cancel()
            ended.set()
            guard.join()

    def _end_when_silent(self, stream: Stream, ended: threading.Event) -> None:
        """A server that vanished without a word closes nothing: notice that no checkpoint came."""
        limit = self._checkpoint_seconds * _SILENCE
        while not ended.wait(limit / 4):
            since = self._waiting_since
            if since is not None and self._clock() - since > limit:
                stream.cancel()
                return

    def close(self) -> None:
        """Ends it, from any thread."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()


def _may_come_back(error: KdirError) -> bool:
    return isinstance(
        error,
        errors.Unavailable
        | errors.DeadlineExceeded
        | errors.Cancelled
        | errors.Internal
        | errors.NotAuthoritative
        | errors.Unmounted
        | errors.NoRoute,
    )
