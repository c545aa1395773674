"""Streams that hold no thread while they are open: one thread polls all of them.

The handler of such a method returns a ``PolledSource`` instead of an iterator. Threads are needed
only to begin a stream, and for a source that may wait for the store. Each stream sends one response
at a time without waiting for it: a caller that reads slowly, or not at all, delays no other.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from directory.api.rpc.call_context import CURRENT, Call
from directory.api.rpc.grpc_internals import ResponseWriter
from directory.api.rpc.request_intake import CallCompletion, RequestIntake, begin_call, end_with
from directory.api.rpc.stream_slots import StreamSlots
from directory.api.rpc.thread_pools import CallPool

__all__ = ["PolledExchange", "PolledSource", "PolledStream", "PolledStreams", "StreamEnded"]

_log = logging.getLogger(__name__)
_TICK_SECONDS: Final = 0.1
"""Shortest interval between two searches for sources that are due by the clock."""


class StreamEnded(Exception):
    """Raised by a source to end its stream without an error."""


class PolledSource(ABC):
    """Source of the responses of one stream. Polled by one thread at a time."""

    due_at: float = 0.0
    """When to poll next by the clock (``time.monotonic``); ``poll`` sets it."""
    on_ready: Callable[[], object] = bool
    """The source calls this, from any thread, when it may have a response."""

    @abstractmethod
    def poll(self) -> Message | bytes | None:
        """Returns the next response, or its bytes; None: there is none now.

        Raises:
            KdirError: ends the stream with this error.
            StreamEnded: ends the stream.
        """

    @property
    @abstractmethod
    def has_more(self) -> bool:
        """True if the source is to be polled again at once. Thread-safe."""

    @property
    @abstractmethod
    def may_wait(self) -> bool:
        """True if the next poll may wait for the store."""

    def is_given_up(self) -> bool:
        """True if the stream is to end although its caller has not taken the last response. Called
        instead of ``poll`` until then; may set ``due_at``.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Releases the source's resources. Thread-safe; may be called more than once."""


class PolledExchange(PolledSource):
    """Source of a bidirectional stream: messages of the caller arrive one at a time, whether or not
    the caller reads.
    """

    ask: Callable[[], object] = bool
    """The source calls this, from any thread, to receive the next message."""

    @abstractmethod
    def receive(self, request: Any) -> None:
        """Receives a message; None: the caller sends no more. Called in gRPC's thread: it must not
        wait.
        """


class PolledStream:
    """One open stream."""

    __slots__ = ("call", "fail", "is_busy", "is_closed", "is_due", "is_listed", "source", "writer")

    def __init__(
        self,
        source: PolledSource,
        writer: ResponseWriter,
        call: Call,
        fail: Callable[[Exception], object],
    ) -> None:
        """``fail`` ends the call with an error."""
        self.source: Final = source
        self.writer: Final = writer
        self.call: Final = call
        self.fail: Final = fail
        self.is_listed = False
        """True if the stream is among those to be polled."""
        self.is_due = False
        """True if the stream was to be polled while its writer was not free, or another thread
        polled it.
        """
        self.is_busy = False
        """True while another thread polls the stream."""
        self.is_closed = False


class PolledStreams(ThreadPoolExecutor):
    """Executor of the methods whose handlers return a ``PolledSource``, and the thread that polls
    all of their streams.

    gRPC accepts only a ``ThreadPoolExecutor`` as the pool of a method; so this is one, without
    threads.

    Args:
        pool: threads that begin streams, and poll sources that may wait.
        intake: receives requests.
        slots: limit of open streams.
        give_way: waits until the calls under way have ended, for at most some seconds.
    """

    def __init__(
        self,
        pool: CallPool,
        intake: RequestIntake,
        slots: StreamSlots,
        give_way: Callable[[float], object] = bool,
    ) -> None:
        super().__init__(1)  # it starts no thread before one is needed
        self._pool: Final = pool
        self._intake: Final = intake
        self._slots: Final = slots
        self._give_way: Final = give_way
        self._streams: Final[set[PolledStream]] = set()
        self._listed: Final[deque[PolledStream]] = deque()
        """Streams to be polled."""
        self._lock: Final = threading.Lock()
        self._woken: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._due_at = float("inf")
        """When the next source is due by the clock; those that are due and not free do not count.
        """
        self.sending: Final = threading.Lock()
        """Lock around the sending of responses, as ``ResponseWriter`` needs it."""

    # -- the beginning of a stream ---------------------------------------------------------------

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
        """Begins a stream on a thread once its request has arrived; a second later if its
        connection has no slot left.
        """
        return self._intake.submit(self._begin, fn, args, is_stream=True)

    def _begin(
        self, ended: CallCompletion, fn: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if self._slots.is_full(args[1].call.peer().decode()):
            begin = partial(begin_call, self._give_to_pool, ended, fn, args)
            self._intake.delay(begin, ended)
        else:
            self._give_to_pool(ended, fn, args)

    def _give_to_pool(
        self, ended: CallCompletion, fn: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        # The thread is free before the call ends.
        self._pool.begin(CallCompletion(), fn, args)
        end_with(ended, args)

    def add(self, stream: PolledStream) -> None:
        """Begins to poll a stream."""
        stream.source.on_ready = partial(self._list, stream)
        stream.writer.on_taken = partial(self._taken, stream)
        with self._lock:
            if stream.is_closed or self._is_ending:
                return
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
                self._thread.start()
        self._list(stream)

    def discard(self, stream: PolledStream) -> None:
        """Stops polling a stream."""
        stream.is_closed = True
        with self._lock:
            self._streams.discard(stream)
        stream.source.on_ready = stream.writer.on_taken = bool

    def end(self) -> None:
        """Ends the polling thread."""
        self._is_ending = True
        self._woken.set()

    # -- polling ---------------------------------------------------------------------------------

    def _list(self, stream: PolledStream) -> None:
        # Each stream is listed once for all threads: one that is listed twice would be polled twice
        # before a response is sent to it.
        with self._lock:
            if stream.is_listed:
                return
            stream.is_listed = True
            self._listed.append(stream)
        if not self._woken.is_set():
            self._woken.set()

    def _taken(self, stream: PolledStream) -> None:
        # In gRPC's thread.
        if stream.is_due or stream.source.has_more:
            self._list(stream)

    def _run(self) -> None:
        looked_at = 0.0
        while not self._is_ending:
            next_look = max(self._due_at, looked_at + _TICK_SECONDS)
            left = next_look - time.monotonic()
            self._woken.wait(None if left == float("inf") else max(0.0, left))
            self._woken.clear()
            try:
                now = time.monotonic()
                if now >= next_look:
                    looked_at = now
                    self._list_due(now)
                self._poll_listed()
            except Exception:  # noqa: BLE001 - a bug must not end it in silence
                _log.exception("polling streams failed")

    def _list_due(self, now: float) -> None:
        with self._lock:
            due = [one for one in self._streams if one.source.due_at <= now]
            later = (one.source.due_at for one in self._streams if one.source.due_at > now)
            self._due_at = min(later, default=float("inf"))
        for one in due:
            self._list(one)

    def _poll_listed(self) -> None:
        made: list[tuple[PolledStream, bytes]] = []
        try:
            self._poll_into(made)
        finally:
            self._send(made)  # also if a bug ended the polling: the sources have gone on

    def _poll_into(self, made: list[tuple[PolledStream, bytes]]) -> None:
        for number in range(len(self._listed)):
            if number % _AT_ONCE == 0:
                if number:
                    self._send(made)
                    time.sleep(_PAUSE_SECONDS)
                self._give_way(_BETWEEN_SECONDS if number else _FIRST_SECONDS)
            stream = self._listed.popleft()
            stream.is_listed = False
            # Set before the writer is checked: if gRPC takes a response in between, ``_taken``
            # lists the stream again.
            stream.is_due = True
            if stream.is_closed or stream.is_busy:
                continue
            if not stream.writer.is_free:
                self._end_if_given_up(stream)
                continue
            stream.is_due = False
            if stream.source.may_wait:
                stream.is_busy = True
                self._pool.begin(CallCompletion(), self._poll_waiting, (stream,))
            elif message := self._poll(stream):
                made.append((stream, message))

    def _end_if_given_up(self, stream: PolledStream) -> None:
        try:
            # Not with a status: gRPC would send it after responses that the caller does not read.
            if stream.source.is_given_up():
                stream.call.cancel()
        finally:
            with self._lock:
                if stream.source.due_at > time.monotonic():
                    self._due_at = min(self._due_at, stream.source.due_at)

    def _poll_waiting(self, stream: PolledStream) -> None:
        # In a thread of the pool.
        try:
            if message := self._poll(stream):
                self._send([(stream, message)])
        finally:
            stream.is_busy = False
            if stream.writer.is_free and (stream.is_due or stream.source.has_more):
                self._list(stream)
            self._woken.set()  # it may be due by the clock before all others

    def _poll(self, stream: PolledStream) -> bytes:
        """Returns the next response of a stream; empty: none."""
        CURRENT.call = stream.call
        try:
            response = stream.source.poll()
            if response is None:
                if stream.source.has_more:
                    self._list(stream)
                return b""
            return response if isinstance(response, bytes) else response.SerializeToString()
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            stream.fail(error)
            return b""
        finally:
            CURRENT.call = None
            with self._lock:
                self._due_at = min(self._due_at, stream.source.due_at)

    def _send(self, made: list[tuple[PolledStream, bytes]]) -> None:
        """Sends all responses of the list and clears it."""
        failed: list[tuple[PolledStream, Exception]] = []
        with self.sending:
            for stream, message in made:
                try:
                    stream.writer.send(message)
                except Exception as error:  # noqa: BLE001 - one stream's is not the others'
                    failed.append((stream, error))
        made.clear()
        for stream, reason in failed:
            stream.fail(reason)


_AT_ONCE: Final = 20
"""Number of streams that are polled between two pauses for calls under way."""
_PAUSE_SECONDS: Final = 0.000_1
"""Pause in which gRPC's thread records the responses that it has taken."""
_FIRST_SECONDS: Final = 0.01
"""Longest time for which a change is held back for calls under way, one of which made it."""
_BETWEEN_SECONDS: Final = 0.001
