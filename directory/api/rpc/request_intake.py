"""Receives the request of a call before the call takes a thread.

grpcio's synchronous server gives a call a thread as soon as its headers arrive, and that thread
waits for the request. A caller that sends headers and nothing more would hold a thread until it
disconnects. Here the request is received first, on gRPC's own thread, and only then is the call
given to a pool: an unfinished request costs memory only, bounded by ``most`` and ``seconds``.
Concurrent calls are limited here, too: gRPC's own limit gives no reason.

A call without a request, or with one that exceeds a bound, is refused a second later (``delay``),
and so is one that a handler refuses with ``DelayedRefusal``: a client that retries at once would
otherwise keep the server busy with refusals.

``tests/unit/api/test_request_intake.py`` shows when this module can be dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from directory.api.rpc.grpc_internals import abort_call, is_call_active, receive_message
from directory.api.rpc.interceptors.abort_status import status_of
from directory.api.rpc.interceptors.malformed_request import MalformedRequest
from resolver.errors import KdirError, LimitExceeded

__all__ = [
    "CallCompletion",
    "DelayedRefusal",
    "Received",
    "RequestIntake",
    "begin_call",
    "end_with",
    "refused",
    "takes_request",
]

Behaviour = TypeVar("Behaviour", bound=Callable[..., object])

_log = logging.getLogger(__name__)
_calls_log = logging.getLogger("directory.calls")

_MARK: Final = "kdir_takes_request"
_FREED_AT_ONCE: Final = 8
"""One in this many unfinished requests, the oldest first, is refused when there are too many:
several at a time, so that a flood does not copy the list for each.
"""
_DELAY_SECONDS: Final = 1.0
"""Time from the arrival of a request over a limit until the call is refused."""
_REPORT_SECONDS: Final = 1.0
"""Time between two reports of refused calls: a flood of calls must not become one of log lines."""
_MOST_DELAYED: Final = 1_024
"""Most calls that wait to be refused; further ones are refused at once."""


class DelayedRefusal(BaseException):
    """Raised by a handler that has answered nothing: the call gives its thread back, and a second
    later the handler gets a ``MalformedRequest`` of this error instead of the request.
    """

    def __init__(self, error: KdirError) -> None:
        super().__init__(error)
        self.error: Final = error


class CallCompletion:
    """Part of a future that gRPC uses: the callback that runs when a call has ended. Thread-safe
    without a lock: each operation on a list or set is atomic.
    """

    __slots__ = ("_callbacks", "_has_ended", "_under_way")

    def __init__(self, under_way: set[CallCompletion] | None = None) -> None:
        """``under_way``: contains this call from now until its end."""
        self._callbacks: list[Callable[[Any], object]] = []
        self._has_ended = False
        self._under_way = under_way
        if under_way is not None:
            under_way.add(self)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Calls the function when the call has ended, or now if it has."""
        self._callbacks.append(callback)
        if self._has_ended:
            self._call_back()

    def release(self) -> None:
        """Removes the call from those under way already now, before its end."""
        if self._under_way is not None:
            self._under_way.discard(self)

    def end(self) -> None:
        """Marks the call as ended."""
        self.release()
        self._has_ended = True
        self._call_back()

    def _call_back(self) -> None:
        """Calls each function once, also if another thread does the same meanwhile."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


@dataclass(slots=True)
class Received:
    """First message of a call, for handlers marked by ``takes_request``."""

    request: Any
    """None: the caller sent no message."""


Begin = Callable[[CallCompletion, Callable[..., object], tuple[Any, ...]], None]
"""Gives a call to a pool: its completion, the function, and the arguments."""


class RequestIntake:
    """Register of calls whose request has not arrived yet. Thread-safe.

    Args:
        most: unfinished requests at a time; beyond it the oldest are refused.
        seconds: time after which an unfinished request is refused.
        calls: calls at a time, streams not counted; one more is refused.
    """

    def __init__(
        self,
        most: int,
        seconds: float,
        calls: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most: Final = most
        self._most_calls: Final = calls
        self._under_way: Final[set[CallCompletion]] = set()
        self._lock: Final = threading.Lock()
        """Held while ``_delayed`` or a count of refused calls changes."""
        self._seconds: Final = seconds
        self._clock: Final = clock
        self._unfinished: Final[dict[CallCompletion, tuple[Any, Any, float]]] = {}
        """For each call gRPC's event and state, and when its headers arrived; oldest first."""
        self._delayed: Final[deque[tuple[float, Callable[[], object]]]] = deque()
        """For each call when it was delayed, and the function that begins it; oldest first."""
        self._is_closed = False
        self.refused = 0
        """Number of calls that were refused before their request arrived."""
        self.excess = 0
        """Number of calls that were refused because too many were under way."""
        self._unreported: Counter[str] = Counter()
        """Number of refused calls that are not in the log yet, by reason."""
        self._reported_at = clock() - _REPORT_SECONDS

    @property
    def calls(self) -> int:
        """Number of calls under way, without streams."""
        return len(self._under_way)

    @property
    def unfinished(self) -> int:
        """Number of calls whose request has not arrived."""
        return len(self._unfinished)

    def submit(
        self,
        begin: Begin,
        answer: Callable[..., object],
        about: tuple[Any, ...],
        *,
        is_stream: bool = False,
    ) -> CallCompletion:
        """Receives the request of a call that gRPC submits to a pool, then runs it by ``begin``.

        Calls that take their messages themselves begin at once. ``is_stream``: the call counts as
        an open stream, not as a call.
        """
        if len(about) < 4 or not getattr(about[3], _MARK, False):
            ended = CallCompletion()
            begin(ended, answer, about)
            return ended
        run, event, state, behave, _, read, write = about
        if not is_stream and len(self._under_way) >= self._most_calls:
            why = f"{self._most_calls} calls are under way (limits.max_concurrent_calls); ask again"
            with self._lock:
                self.excess += 1
                self._unreported[why] += 1
            abort_call(event, state, status_of(LimitExceeded(why, limit=self._most_calls), ""))
            ended = CallCompletion()
            ended.end()
            return ended
        # One thread of gRPC submits all calls, so none is added between the count and this.
        ended = CallCompletion() if is_stream else CallCompletion(self._under_way)

        def received(request: Any) -> None:
            self._unfinished.pop(ended, None)
            first = Received(request)
            about = (run, event, state, behave, lambda: first, read, write)
            if request is None or _is_excess(request):
                self.delay(partial(begin_call, begin, ended, answer, about), ended)
            else:
                begin_call(begin, ended, answer, about)

        self._unfinished[ended] = (event, state, self._clock())
        # gRPC holds the condition of the call around submit.
        receive_message(event.call, state, read, received)
        if len(self._unfinished) > self._most:
            self._refuse_oldest()
        return ended

    def delay(self, begin: Callable[[], object], ended: CallCompletion) -> None:
        """Begins a call that will be refused: a second later, or at once if many are delayed
        already. Until then it counts as delayed, not as a call.
        """
        ended.release()
        with self._lock:
            is_room = not self._is_closed and len(self._delayed) < _MOST_DELAYED
            if is_room:
                self._delayed.append((self._clock(), begin))
        if not is_room:
            begin()

    def run(
        self,
        begin: Begin,
        ended: CallCompletion,
        answer: Callable[..., object],
        about: tuple[Any, ...],
    ) -> None:
        """Runs a call on this thread; ``begin`` gives it to a pool again if it is to be refused
        later.
        """
        try:
            answer(*about)
        except DelayedRefusal as refusal:
            about = refused(about, refusal.error)
            self.delay(partial(begin_call, begin, ended, answer, about), ended)
        except Exception:  # noqa: BLE001 - the thread is needed
            _log.exception("a call failed outside of its handler")
            ended.end()
        except BaseException:
            ended.end()
            raise
        else:
            ended.end()

    def begin_delayed(self) -> None:
        """Begins calls whose delay is over, at most a tenth of those delayed, so that a burst of
        calls is not refused in a burst. Called periodically.
        """
        before = self._clock() - _DELAY_SECONDS
        due: list[Callable[[], object]] = []
        with self._lock:
            most = len(self._delayed) if self._is_closed else -(-len(self._delayed) // 10)
            while len(due) < most and (self._is_closed or self._delayed[0][0] <= before):
                due.append(self._delayed.popleft()[1])
        for begin in due:
            begin()

    def close(self) -> None:
        """Begins the delayed calls and delays no others."""
        self._is_closed = True
        self.begin_delayed()
        self.report_refused()

    def refuse_late(self) -> None:
        """Refuses the calls whose request is overdue. Called periodically."""
        if not self._unfinished:
            return
        now = self._clock()
        for ended, (event, state, since) in list(self._unfinished.items()):
            if now - since > self._seconds:
                why = f"no request came within {self._seconds:g} s (limits.request_seconds)"
                self._refuse(ended, event, state, why)

    def report_refused(self) -> None:
        """Logs how many calls were refused here since the last report, in one line a reason; at
        most once a second, until the intake is closed. Called periodically: the thread that refuses
        them is gRPC's, and must not wait for the log.
        """
        if not self._unreported:
            return
        now = self._clock()
        if not self._is_closed and now - self._reported_at < _REPORT_SECONDS:
            return
        self._reported_at = now
        with self._lock:
            counts, self._unreported = self._unreported, Counter()
        for why, count in counts.items():
            error = LimitExceeded(why)
            _calls_log.info(
                "calls refused: %d (%s %s): %s",
                count,
                error.code,
                error.reason,
                why,
                extra={"facts": {"code": error.code, "reason": error.reason}},
            )

    def _refuse_oldest(self) -> None:
        count = max(1, self._most // _FREED_AT_ONCE)
        why = (
            f"more than {self._most} calls wait for their request (limits.unfinished_requests); "
            f"send it with the headers"
        )
        for ended, (event, state, _) in list(islice(self._unfinished.items(), count)):
            self._refuse(ended, event, state, why)

    def _refuse(self, ended: CallCompletion, event: Any, state: Any, why: str) -> None:
        if self._unfinished.pop(ended, None) is None:
            return  # its request arrived meanwhile
        with self._lock:
            self.refused += 1
            self._unreported[why] += 1
        abort_call(event, state, status_of(LimitExceeded(why), ""))


def begin_call(
    begin: Begin, ended: CallCompletion, answer: Callable[..., object], about: tuple[Any, ...]
) -> None:
    """Gives a call to a pool; ends it if the caller is gone or the pool is shut down."""
    _, event, state, *_ = about
    if not is_call_active(state):
        ended.end()
        return
    try:
        begin(ended, answer, about)
    except RuntimeError:  # the pool is shut down
        event.call.cancel()
        ended.end()


def end_with(ended: CallCompletion, about: tuple[Any, ...]) -> None:
    """Calls ``ended.end`` when gRPC ends the call; at once if gRPC has ended it already.
    ``about``: the arguments of ``begin_call``, the third of which is the call's state.
    """
    state = about[2]
    with state.condition:
        goes_on = state.callbacks is not None
        if goes_on:
            state.callbacks.append(ended.end)
    if not goes_on:
        ended.end()


def refused(about: tuple[Any, ...], error: KdirError) -> tuple[Any, ...]:
    """Returns the arguments with which a call whose request has arrived ends with this error."""
    run, event, state, behave, _, read, write = about
    first = Received(MalformedRequest(error))
    return run, event, state, behave, lambda: first, read, write


def _is_excess(request: object) -> bool:
    return isinstance(request, MalformedRequest) and isinstance(request.error, LimitExceeded)


def takes_request(behave: Behaviour) -> Behaviour:
    """Marks a handler of ``stream_unary`` or ``stream_stream`` that takes the ``Received`` first
    message instead of an iterator, once that has arrived.
    """
    setattr(behave, _MARK, True)
    return behave
