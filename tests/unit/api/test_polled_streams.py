"""Streams without a thread: who is polled when, and that nobody waits for another's caller."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from directory.api.rpc.call_context import Call
from directory.api.rpc.polled_streams import PolledSource, PolledStream, PolledStreams
from directory.api.rpc.request_intake import RequestIntake
from directory.api.rpc.stream_slots import StreamSlots
from directory.api.rpc.thread_pools import CallPool
from resolver.errors import Resync
from tests.support.waiting import eventually


class Source(PolledSource):
    """Source of what a test puts into it."""

    def __init__(self) -> None:
        self.seconds = float("inf")
        """From one poll to the next."""
        self.ready: deque[bytes | Exception] = deque()
        self.polls = 0
        self.waits = False
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.gives_up = False

    def put(self, one: bytes | Exception) -> None:
        self.ready.append(one)
        self.on_ready()

    def poll(self) -> bytes | None:
        self.polls += 1
        self.due_at = time.monotonic() + self.seconds
        self.threads.append(threading.current_thread().name)
        self.gate.wait(30)
        if not self.ready:
            return None
        one = self.ready.popleft()
        if isinstance(one, Exception):
            raise one
        return one

    @property
    def has_more(self) -> bool:
        return bool(self.ready)

    @property
    def may_wait(self) -> bool:
        return self.waits

    def is_given_up(self) -> bool:
        self.due_at = time.monotonic() + self.seconds
        return self.gives_up

    def close(self) -> None: ...


class Writer:
    """Writer to a caller that reads when the test says so."""

    def __init__(self) -> None:
        self.is_free = True
        self.sent: list[bytes] = []
        self.on_taken: Any = bool

    def send(self, message: bytes) -> None:
        assert self.is_free, "one at a time"
        self.is_free = False
        self.sent.append(message)

    def read(self) -> None:
        self.is_free = True
        self.on_taken()


class Open:
    """One stream of the streams under test."""

    def __init__(self, streams: PolledStreams) -> None:
        self.source, self.writer = Source(), Writer()
        self.errors: list[Exception] = []
        self.is_cancelled = False
        writer: Any = self.writer
        self.stream = PolledStream(self.source, writer, Call(0.0, cancel=self.cancel), self.fail)
        self.streams = streams

    def add(self) -> "Open":
        self.streams.add(self.stream)
        eventually(lambda: self.source.polls > 0)
        return self

    def cancel(self) -> None:
        self.is_cancelled = True
        self.streams.discard(self.stream)

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.streams.discard(self.stream)


@pytest.fixture
def streams() -> Iterator[PolledStreams]:
    intake = RequestIntake(1, 1.0, 9)
    pool = CallPool(1, 1, intake)
    found = PolledStreams(pool, intake, StreamSlots(8, 8, 8))
    yield found
    found.end()
    pool.shutdown()


def test_a_caller_that_reads_nothing_holds_up_no_other(streams: PolledStreams) -> None:
    slow, quick = Open(streams).add(), Open(streams).add()
    for number in range(50):
        slow.source.put(b"%d" % number)
        quick.source.put(b"%d" % number)
        eventually(lambda number=number: len(quick.writer.sent) == number + 1)  # type: ignore[misc]
        quick.writer.read()
    assert slow.writer.sent == [b"0"]
    for number in range(1, 50):
        slow.writer.read()
        eventually(lambda number=number: len(slow.writer.sent) == number + 1)  # type: ignore[misc]
    assert slow.writer.sent == quick.writer.sent


def test_an_error_waits_until_what_was_sent_before_is_taken(streams: PolledStreams) -> None:
    one = Open(streams).add()
    one.source.put(b"a")
    eventually(lambda: one.writer.sent == [b"a"])
    one.source.put(Resync("it lags"))
    other = Open(streams).add()
    other.source.put(b"b")
    eventually(lambda: other.writer.sent == [b"b"])
    assert one.errors == []
    one.writer.read()
    eventually(lambda: [type(error) for error in one.errors] == [Resync])


def test_a_source_that_may_wait_is_polled_by_another_thread(streams: PolledStreams) -> None:
    waiting, other = Open(streams), Open(streams).add()
    waiting.source.waits = True
    waiting.source.gate.clear()
    waiting.add()
    for number in range(3):
        waiting.source.put(b"%d" % number)
        other.source.put(b"x")
        eventually(lambda number=number: len(other.writer.sent) == number + 1)  # type: ignore[misc]
        other.writer.read()
    assert waiting.source.polls == 1
    waiting.source.gate.set()
    for number in range(3):
        eventually(lambda number=number: len(waiting.writer.sent) == number + 1)  # type: ignore[misc]
        waiting.writer.read()
    assert set(other.source.threads) == {"streams"}
    assert "streams" not in waiting.source.threads


def test_a_source_is_polled_when_it_is_due_by_the_clock(streams: PolledStreams) -> None:
    Open(streams).add()
    one, waiting = Open(streams), Open(streams)
    one.source.seconds = waiting.source.seconds = 0.3
    waiting.source.waits = True
    for each in (one, waiting):
        each.add()
        each.source.ready.append(b"checkpoint")
    for each in (one, waiting):
        eventually(lambda each=each: each.writer.sent == [b"checkpoint"])  # type: ignore[misc]


@pytest.mark.parametrize("is_noticed_by_clock", [True, False])
def test_a_stream_that_its_source_gives_up_ends_though_its_caller_reads_nothing(
    streams: PolledStreams, is_noticed_by_clock: bool
) -> None:
    one, other = Open(streams), Open(streams)
    if is_noticed_by_clock:
        one.source.seconds = 0.2
    for each in (one, other):
        each.add()
        each.source.put(b"a")
    eventually(lambda: one.writer.sent and other.writer.sent)
    polls = one.source.polls
    one.source.gives_up = True
    if not is_noticed_by_clock:
        one.source.on_ready()
    eventually(lambda: one.is_cancelled)
    assert one.source.polls == polls
    assert not other.is_cancelled
    assert one.errors == []


def test_a_stream_that_ended_while_it_began_is_not_kept(streams: PolledStreams) -> None:
    one = Open(streams)
    streams.discard(one.stream)
    streams.add(one.stream)
    one.source.put(b"a")
    Open(streams).add()
    assert one.source.polls == 0


def test_a_bug_of_one_source_ends_its_stream_only(streams: PolledStreams) -> None:
    one, other = Open(streams).add(), Open(streams).add()
    one.source.put(ZeroDivisionError())
    eventually(lambda: len(one.errors) == 1)
    other.source.put(b"b")
    eventually(lambda: other.writer.sent == [b"b"])


def test_a_bug_of_one_stream_loses_nothing_of_another(streams: PolledStreams) -> None:
    first, one = Open(streams).add(), Open(streams).add()

    def fail(_: Exception) -> None:
        raise ZeroDivisionError

    one.stream.fail = fail  # type: ignore[misc]
    for _ in range(20):
        first.source.put(b"a")
        one.source.put(ZeroDivisionError())
        eventually(lambda: not first.writer.is_free)
        first.writer.read()
    assert first.writer.sent == [b"a"] * 20
