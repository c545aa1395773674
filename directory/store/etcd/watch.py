"""Follows one cluster's commits in etcd, from member to member.

``watch_state.py`` evaluates the events, without I/O; this module has connections, timeouts and
waits, and interprets the end of a stream, even in the response that creates the watch (S13). All of
it runs in the thread that calls ``next``; one thread for each open stream reads ahead, and ends
with it.

A member that is dead, paused or cut off, from this process or from its quorum, is detected by
probes: whenever nothing has arrived for ``ask_seconds``, a linearizable read of ``meta/commit`` is
sent over the stream's own connection. Its answer proves a quorum behind that member, and has the
number of commits; a stream that does not deliver these counts as dead, as does one whose probe is
not answered.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, assert_never

import grpc

from directory.store.base import (
    CommittedWrites,
    HistoryCompacted,
    IncompatibleStore,
    StoreUnreachable,
)
from directory.store.etcd.call_errors import (
    FailureKind,
    error_text,
    trouble_of,
)
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.member_stream import (
    HeadProbe,
    MemberConnection,
    Members,
    Stream,
    WatchTimeouts,
    head_of,
    head_request,
    response_of,
    watch_request,
)
from directory.store.etcd.watch_state import (
    Follower,
    Head,
    ReloadRequired,
    Response,
    Step,
    StreamLagging,
    Verdict,
    WatchRefused,
    cancellation_verdict,
)

__all__ = ["EtcdWatch"]

_log = logging.getLogger(__name__)

_ENOUGH_WRITES: Final = 20_000  # of one result; the response that reaches it is added whole
_CLOSE_SECONDS: Final = 2.0
_PATIENCE: Final = WatchTimeouts()


class EtcdWatch:
    """Watch of a store in etcd, by etcd's revisions (``directory.store.base.Watch``)."""

    def __init__(
        self,
        members: Members,
        layout: Layout,
        follower: Follower,
        *,
        patience: WatchTimeouts = _PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins at the follower's position.

        Raises:
            HistoryCompacted: the watch cannot begin there. An unreachable store is reported by
                ``next``.
        """
        self._members: Final = members
        self._layout: Final = layout
        self.follower: Final = follower
        """Position of the watch, and the store's state as received."""
        self._patience: Final = patience
        self._clock: Final = clock
        self._lock: Final = threading.Lock()  # held by the thread in next(), while it waits too
        # Ends a wait. gRPC's threads must never wait for this one: closing a channel waits for
        # them.
        self._woken: Final = threading.Event()
        self._closed = False
        self._link: MemberConnection | None = None
        self._gone = ""
        self._next_endpoint = random.randrange(
            1 << 16
        )  # servers of one cluster begin at different members
        self._failures = 0  # since the last contact with the store
        self._rounds = 0
        self._retry_at = 0.0
        self._lag_seconds = patience.answer_seconds
        self._fragment = False
        self._away = False
        self._trouble = "no member answered"
        self._reported: dict[str, str] = {}  # of members that failed since the last contact
        self._received_at = self._expected_at = clock()
        self._wanted = False  # whether next() was called
        self._opened = 0
        self._readers: list[threading.Thread] = []
        self._ready: list[CommittedWrites] = []
        with self._lock:
            self._until(self._is_examined, patience.answer_seconds)
            self._raise_if_gone()

    @property
    def restarts(self) -> int:
        return max(0, self._opened - 1)

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        with self._lock:
            self._wanted = True
            self._until(lambda: bool(self._ready), timeout_seconds)
            changes, self._ready = self._ready, []
            if changes or self._closed:
                return changes
            self._raise_if_gone()
            self._raise_if_away()
            return ()

    def close(self) -> None:
        self._closed = True
        self._woken.set()
        with self._lock:
            self._drop_link()
            self._ready.clear()
        deadline = self._clock() + _CLOSE_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, deadline - self._clock()))

    # -- waiting -----------------------------------------------------------------------------

    @property
    def followed_endpoint(self) -> str:
        """Endpoint of the open stream of changes; empty while there is none."""
        link = self._link
        return "" if link is None or link.stream is None else link.endpoint

    @property
    def unread_bytes(self) -> int:
        """Size in bytes of the messages that arrived from the member and were not processed yet."""
        link = self._link
        return 0 if link is None or link.stream is None else link.stream.unread_bytes

    def _until(self, enough: Callable[[], bool], seconds: float) -> None:
        """Runs the due steps until ``enough`` is true, the watch is over, the store has just become
        unreachable, or the time has passed.
        """
        deadline = self._clock() + seconds
        while True:
            self._woken.clear()  # first, so that no later event is missed
            if self._closed:
                return
            self._forgive_a_pause()
            due_at = self._go_on()
            self._expected_at = now = self._clock()
            if enough() or self._gone or self._newly_away(now) or now >= deadline:
                return
            seconds = max(0.001, min(due_at, deadline) - now)
            self._expected_at += seconds
            self._woken.wait(seconds)

    def _forgive_a_pause(self) -> None:
        """Extends the timeouts by a time in which ``next`` was not called, or this process was
        paused.
        """
        pause = self._clock() - self._expected_at
        if pause > self._patience.ask_seconds:
            self._received_at += pause
            link = self._link
            if link is not None and link.question is not None:
                link.question.asked_at += pause
            if link is not None and link.lags_since is not None:
                link.lags_since += pause

    def _raise_if_gone(self) -> None:
        if self._gone:
            raise HistoryCompacted(self._gone)

    def _raise_if_away(self) -> None:
        if self._away:
            raise StoreUnreachable(self._trouble)

    def _newly_away(self, now: float) -> bool:
        """True if the store has become unreachable just now: then ``next`` raises at once, so that
        writes are refused; later calls raise after their timeout.
        """
        if self._away or not self._is_away(now):
            return False
        self._away = True
        return True

    def _is_away(self, now: float) -> bool:
        silent = now - self._received_at
        return silent > self._patience.silence_seconds or (
            # Each member has failed twice: an election may make each of them fail once.
            self._failures >= 2 * len(self._members.endpoints)
            and silent > self._patience.answer_seconds
        )

    def _note_contact(self, link: MemberConnection) -> None:
        link.received_at = self._received_at = now = self._clock()
        link.ask_at = now + self._patience.ask_seconds
        if link.lags_since is not None:
            link.lags_since = now
        self._failures = self._rounds = 0
        self._reported.clear()
        self._away = False

    def _is_examined(self) -> bool:
        return self._link is not None and self._link.question is None

    # -- steps -----------------------------------------------------------------------------------

    def _go_on(self) -> float:
        """Runs the steps that are due; returns the time of the next one, if nothing arrives."""
        if self._link is None and not self._gone and self._clock() >= self._retry_at:
            self._connect()
        if self._link is not None:
            if self._link.stream is not None:
                self._drain_stream(self._link, self._link.stream)
            elif self._link.question is None and self._wanted:
                self._open(self._link)
        if self._link is not None and self._link.question is not None:
            self._look_at_answer(self._link, self._link.question)
        if self._link is not None:
            self._leave_if_it_lags(self._link)
        return self._due_at()

    def _due_at(self) -> float:
        link = self._link
        if link is None:
            return self._retry_at
        due_at = link.ask_at
        if link.question is not None:
            due_at = self._given_up_at(link, link.question)
        if link.lags_since is not None:
            due_at = min(due_at, link.lags_since + self._lag_seconds)
        return due_at

    def _given_up_at(self, link: MemberConnection, question: HeadProbe) -> float:
        return max(question.asked_at, link.received_at) + self._patience.answer_seconds

    def _connect(self) -> None:
        endpoints = self._members.endpoints
        number = self._next_endpoint % len(endpoints)
        self._next_endpoint += 1
        try:
            metadata = self._members.metadata(number, self._patience.answer_seconds)
            channel = self._members.dial(number)
        except (
            StoreUnreachable,
            IncompatibleStore,
        ) as reason:  # such as a file that cannot be read now
            self._fail(endpoints[number], str(reason))
            return
        self._link = link = MemberConnection(endpoints[number], channel, metadata)
        self._probe_head(link)

    def _probe_head(self, link: MemberConnection, past: int = 0) -> None:
        call = etcdrpc.KVStub(link.channel).Range.future(
            head_request(self._layout, past),
            timeout=self._patience.answer_seconds,
            metadata=link.metadata,
        )
        link.question = HeadProbe(call, self._clock(), self.follower.revision, past)
        call.add_done_callback(lambda _: self._woken.set())

    def _look_at_answer(self, link: MemberConnection, question: HeadProbe) -> None:
        if not question.call.done():
            if self._clock() >= self._given_up_at(link, question):
                self._fail(link.endpoint, "does not answer")
            return
        error = question.call.exception()
        if error is not None:
            self._look_at_failure(link, question, error)
            return
        head = head_of(self._layout, question.call.result(), question.past)
        if link.stream is None:
            self._examine(link, question, head)
        else:
            self._compare(link, question, head)

    def _look_at_failure(
        self, link: MemberConnection, question: HeadProbe, error: grpc.RpcError
    ) -> None:
        reported = error_text(error)
        if (
            question.past
            and error.code() is grpc.StatusCode.OUT_OF_RANGE
            and "compacted" in reported
        ):
            self._judge(link, self.follower.examine_past(None))
        elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and (
            link.received_at > question.asked_at
        ):
            link.question = None  # too busy for probes, but its stream delivers
        else:
            self._judge(link, WatchRefused(reported, login=trouble_of(error) is FailureKind.LOGIN))

    def _examine(self, link: MemberConnection, question: HeadProbe, head: Head) -> None:
        """Checks, before a stream is opened, that the member has the same store as before."""
        if question.past:
            found: ReloadRequired | int | None = self.follower.examine_past(head)
        else:
            found = self.follower.examine(head)
        match found:
            case ReloadRequired():
                self._judge(link, found)
            case None:
                link.question = None
                if not self._wanted:
                    self._note_contact(link)
            case past:
                self._probe_head(link, past)

    def _open(self, link: MemberConnection) -> None:
        link.stream = Stream(
            link.channel,
            watch_request(self._layout, self.follower.begin(), fragment=self._fragment),
            link.metadata,
            self._woken.set,
        )
        self._opened += 1
        self._readers = [one for one in self._readers if one.is_alive()]
        self._readers.append(link.stream.thread)
        # The stream counts as contact when it delivers, or when this probe shows that nothing is
        # missing: a member that answers probes but refuses the watch cannot be followed.
        self._probe_head(link)

    def _compare(self, link: MemberConnection, question: HeadProbe, head: Head) -> None:
        """Checks, while a stream is open, that it has delivered everything."""
        link.question = None
        gone = self.follower.other_incarnation(head, question.since)
        if gone is not None:
            self._judge(link, gone)
        elif self.follower.has_seen(head):
            link.lags_since = None
            self._lag_seconds, self._fragment = self._patience.answer_seconds, False
            self._note_contact(link)
        else:
            link.ask_at = self._clock() + self._patience.ask_seconds
            if link.lags_since is None:
                link.lags_since = self._clock()

    def _leave_if_it_lags(self, link: MemberConnection) -> None:
        since = link.lags_since
        if since is None or self._clock() < since + self._lag_seconds:
            return
        self._lag_seconds = min(2 * self._lag_seconds, self._patience.longest_answer_seconds)
        self._judge(link, StreamLagging("answers, but does not send what was committed"))

    # -- the stream --------------------------------------------------------------------------

    def _drain_stream(self, link: MemberConnection, stream: Stream) -> None:
        writes = sum(len(change.writes) for change in self._ready)
        while writes < _ENOUGH_WRITES:
            message = stream.next_message()
            if message is None:
                break
            response = response_of(self._layout, message)
            if response.canceled:
                step = self._canceled(response)
            else:
                step = self.follower.on_response(response)
            self._ready.extend(step.changes)
            writes += sum(len(change.writes) for change in step.changes)
            if response.events:
                self._note_contact(link)
            if step.verdict is not None:
                self._judge(link, step.verdict)
                return
        if stream.ended:
            self._look_at_end(link, stream.failure)
        elif link.question is None and self._clock() >= link.ask_at:
            self._probe_head(link)

    def _canceled(self, response: Response) -> Step:
        gone = self.follower.other_cluster(response.etcd_cluster)
        return Step((), gone or cancellation_verdict(response, self.follower.revision))

    def _look_at_end(self, link: MemberConnection, error: grpc.RpcError | None) -> None:
        if error is None:
            self._fail(link.endpoint, "ended the watch")
            return
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._fragment = True  # a response was larger than what we take
        login = trouble_of(error) is FailureKind.LOGIN
        self._judge(link, WatchRefused(error_text(error), login=login))

    def _judge(self, link: MemberConnection, verdict: Verdict | None) -> None:
        match verdict:
            case None:
                pass
            case ReloadRequired(reason, alarm):
                _log.log(logging.ERROR if alarm else logging.INFO, "%s: %s", link.endpoint, reason)
                self._gone = reason
                self._drop_link()
            case WatchRefused(reason, login):
                if login:
                    self._members.forget_token(dict(link.metadata).get("token"))
                self._fail(link.endpoint, reason)
            case StreamLagging(reason):
                _log.warning("%s: %s", link.endpoint, reason)
                self._fail(link.endpoint, reason)
            case _:
                assert_never(verdict)

    def _fail(self, endpoint: str, reason: str) -> None:
        """Drops the connection; the next member is tried at once or, if all have failed, after a
        growing wait.
        """
        self._drop_link()
        self._trouble = f"{endpoint}: {reason}"
        # While etcd is unreachable each member fails with the same error several times a second.
        news = self._reported.get(endpoint) != reason
        self._reported[endpoint] = reason
        _log.log(logging.INFO if news else logging.DEBUG, "etcd member %s", self._trouble)
        self._failures += 1
        if self._failures % len(self._members.endpoints):
            self._retry_at = self._clock()
            return
        seconds = self._patience.first_retry_seconds * 2**self._rounds
        seconds = min(seconds, self._patience.last_retry_seconds) * random.uniform(0.5, 1.0)
        self._rounds = min(self._rounds + 1, 16)
        self._retry_at = self._clock() + seconds

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        if link.question is not None:
            link.question.call.cancel()
        if link.stream is not None:
            link.stream.close()
        link.channel.close()
