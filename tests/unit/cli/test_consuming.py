"""Where `kdir consume` begins and ends in each partition, messages as JSON, and what `kdir produce`
sends.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO, RawIOBase, StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as KafkaProducer

from resolver.cli.main import EXIT_INTERRUPTED, main
from resolver.cli.parser import UsageError
from resolver.cli.produce import (
    _drop_reached,
    _Start,
    begin_offsets,
    lines_within,
    message_record,
    missing_messages,
    sent_lines,
)
from resolver.kafka import producer as producer_module
from resolver.kafka.producer import flush_deliveries
from resolver.testing import MemoryDirectory
from tests.support.command_line import Ran, run
from tests.support.tcp import TcpServer


@dataclass(frozen=True, slots=True)
class Consumer:
    """One that stands where it is told, by partition."""

    places: dict[int, int]
    times: dict[int, int] = field(default_factory=dict)
    """The offset of the first message that is as new as is asked, by partition."""

    def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
        for one in asked:
            one.offset = self.times.get(one.partition, -1)
        return asked

    def position(self, partitions: list[Any]) -> list[Any]:
        for one in partitions:
            one.offset = self.places[one.partition]
        return partitions

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for one in partitions:
            self.places.pop(one.partition)


@pytest.mark.parametrize(
    ("place", "left"),
    [
        (9, {0: 10}),
        (10, {}),  # the last message was 7: markers of transactions have the offsets behind it
        (12, {}),  # others wrote on
        (-1001, {0: 10}),  # nothing was read yet
    ],
)
def test_P20_a_partition_ends_by_its_position_and_not_by_its_last_message(
    place: int, left: dict[int, int]
) -> None:
    ends = {0: 10}
    _drop_reached(Consumer({0: place}), "orders", ends)
    assert ends == left


def test_P20_each_partition_ends_by_itself() -> None:
    ends = {0: 10, 1: 5}
    _drop_reached(Consumer({0: 10, 1: 4}), "orders", ends)
    assert ends == {1: 5}


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("beginning", {0: 3, 1: 0}),
        ("end", {0: 10, 1: 5}),
        ("4", {0: 4, 1: 4}),
        ("2", {0: 3, 1: 2}),  # what retention has removed is not begun with
        ("9", {0: 9, 1: 5}),  # beyond the end is at the end, not at the beginning
        ("2026-11-01T14:30", {0: 7, 1: 5}),
        ("2026-11-01", {0: 7, 1: 5}),
    ],
)
def test_where_to_begin_is_within_what_each_partition_has(
    text: str, begins: dict[int, int]
) -> None:
    consumer, bounds = Consumer({}, {0: 7}), {0: (3, 10), 1: (0, 5)}
    assert begin_offsets(consumer, "orders", _Start.parse(text), bounds, 1) == begins


def test_an_unknown_offset_of_a_partition_is_an_error_and_not_the_end() -> None:
    class Refusing(Consumer):
        def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
            error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            return [SimpleNamespace(partition=0, offset=-1001, error=error)]

    with pytest.raises(KafkaException, match="LEADER_NOT_AVAILABLE"):
        begin_offsets(Refusing({}), "orders", _Start.parse("2026-11-01"), {0: (3, 10)}, 1)


@pytest.mark.parametrize(
    ("text", "bounds", "note"),
    [
        ("10", {0: (3, 10)}, "no message from offset 10 on; the end is offset 10"),
        ("99", {0: (3, 10), 1: (0, 5)}, "no message from offset 99 on; the last end is offset 10"),
        ("9", {0: (3, 10), 1: (0, 5)}, ""),
        ("2026-11-01", {1: (0, 5)}, "no message from that time on; the end is offset 5"),
        ("beginning", {0: (7, 7), 1: (7, 7)}, "no messages; the end is offset 7"),
        ("end", {0: (3, 10)}, ""),
    ],
)
def test_without_messages_from_the_start_on_the_end_offset_is_noted(
    text: str, bounds: dict[int, tuple[int, int]], note: str
) -> None:
    start = _Start.parse(text)
    begins = begin_offsets(Consumer({}, {0: 7}), "orders", start, bounds, 1)
    assert missing_messages(start, bounds, begins) == note


@pytest.mark.parametrize(
    "text",
    [
        "", "-1", "first", "٣", "2026-13-01", "9" * 19, "0001-01-01",
        "1969-12-31", "1969-12-31T23:59:59.999Z",
    ],
)  # fmt: skip
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="an offset such as"):
        _Start.parse(text)


class BusyConsumer:
    """Consumer of partition 0, which has no leader, and 1, which gets more messages than are read.

    Both had 10 messages at the start.
    """

    def __init__(self, _settings: Any) -> None:
        self.read = dict.fromkeys((0, 1), 0)

    def list_topics(self, topic: str, timeout: float) -> Any:
        found = SimpleNamespace(error=None, partitions={0: None, 1: None})
        return SimpleNamespace(topics={topic: found})

    def get_watermark_offsets(self, _partition: Any, timeout: float) -> tuple[int, int]:
        return 0, 10

    def assign(self, partitions: list[Any]) -> None:
        self.read = {one.partition: one.offset for one in partitions}

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for one in partitions:
            del self.read[one.partition]

    def position(self, partitions: list[Any]) -> list[Any]:
        for one in partitions:
            one.offset = self.read[one.partition]
        return partitions

    def poll(self, timeout: float) -> Any:
        if 1 not in self.read:
            time.sleep(timeout)
            return None
        offset = self.read[1]
        self.read[1] += 1
        return SimpleNamespace(
            error=lambda: None,
            partition=lambda: 1,
            offset=lambda: offset,
            key=lambda: None,
            value=lambda: b"%d" % offset,
            headers=lambda: None,
            timestamp=lambda: (0, -1),
        )

    def close(self) -> None:
        pass


def consume_orders(*options: str) -> Ran:
    """Runs ``kdir consume -o json`` with these options on a topic of a small directory."""
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", bootstrap_servers="la:9092")
        directory.topic("/la/orders")
        arguments = ["--at", endpoint, "consume", "-o", "json", *options, "/la/orders"]
        return run(arguments, directory.transport)


def test_a_partition_without_a_leader_ends_the_wait_while_another_gets_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("confluent_kafka.Consumer", BusyConsumer)
    done = consume_orders("--timeout", "0.3")
    assert done.code == 3
    assert "/la/orders: no answer within 0.3s" in done.err
    assert [one["offset"] for one in done.objects] == list(range(10))


class AbortedConsumer(BusyConsumer):
    """Consumer whose partition 1 has aborted messages before the last one; 0 is at its end."""

    def assign(self, partitions: list[Any]) -> None:
        self.read = {0: 10, 1: 0}

    def poll(self, timeout: float) -> Any:
        if self.read[1] == 9:
            return super().poll(timeout)
        time.sleep(timeout)
        self.read[1] += 1
        return None


def test_P20_aborted_transactions_for_longer_than_the_timeout_end_no_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("confluent_kafka.Consumer", AbortedConsumer)
    done = consume_orders("--timeout", "0.5")
    assert (done.code, done.err) == (0, "")
    assert [one["offset"] for one in done.objects] == [9]


UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE = 3, 5
"""UNKNOWN_TOPIC_OR_PARTITION of Kafka's protocol, and what follows it while a topic is made."""
PARTITION_EOF, TRANSPORT, ALL_BROKERS_DOWN = -191, -195, -187
"""Codes of librdkafka for the end of a partition and for lost connections."""


class EndingConsumer(BusyConsumer):
    """Consumer that reports the end of a partition before its first message."""

    settings: ClassVar[dict[str, str]]

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__(settings)
        EndingConsumer.settings = settings
        self.has_ended = False

    def poll(self, timeout: float) -> Any:
        if self.has_ended:
            return super().poll(timeout)
        self.has_ended = True
        return SimpleNamespace(error=lambda: KafkaError(PARTITION_EOF))


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_broker_does_not_wait_for_as_much_as_a_policy_says(
    monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    monkeypatch.setattr("confluent_kafka.Consumer", EndingConsumer)
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", bootstrap_servers="la:9092")
        directory.topic("/la/orders")
        answer = directory.transport.handler(endpoint)

        def with_policies(name: str, request: Any) -> Any:
            response = answer(name, request)
            for outcome in getattr(response, "outcomes", None) or [response.outcome]:
                defaults = outcome.resolution.effective.consumer_defaults
                defaults["fetch.min.bytes"].value = "1000000"
                defaults["fetch.wait.max.ms"].value = "60000"
            return response

        directory.transport.serve(endpoint, with_policies)
        arguments = ["--at", endpoint, "consume", "-o", "json", "-f", "-n", "1", "/la/orders"]
        more = ["-X", "fetch.min.bytes=7", "-X", "fetch.wait.max.ms=8"] if is_asked else []
        assert run([*arguments, *more], directory.transport).code == 0
    found = EndingConsumer.settings
    assert (found["fetch.min.bytes"], found["fetch.wait.max.ms"]) == (
        ("7", "8") if is_asked else ("1", "500")
    )


class CutOffConsumer(EndingConsumer):
    """Consumer whose broker goes away before the first message, and comes back."""

    def poll(self, timeout: float) -> Any:
        if not self.has_ended:
            self.has_ended = True
            on_error: Any = self.settings["error_cb"]
            refused = "la:9092/1: Connection refused (after 0ms in state CONNECT)"
            on_error(KafkaError(TRANSPORT, refused))
            on_error(KafkaError(ALL_BROKERS_DOWN, "1/1 brokers are down"))
            return None
        return super().poll(timeout)


def test_a_follower_whose_brokers_are_away_reports_it_once_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("confluent_kafka.Consumer", CutOffConsumer)
    done = consume_orders("-f", "-n", "2")
    assert (done.code, len(done.objects)) == (0, 2)
    assert done.err == "/la/orders: no broker is reachable: la:9092/1: Connection refused\n"


class WebServer(TcpServer):
    """Server at the address of a broker that is none."""

    def serve(self, connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("verb", ["consume", "produce"])
@pytest.mark.parametrize(
    ("setting", "reason"),
    [("PLAINTEXT", "Receive failed: Invalid response size"), ("SSL", "wrong version number")],
)
def test_the_one_sentence_has_the_reason_why_a_broker_cannot_be_used(
    verb: str,
    setting: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A wrong setting is reported, without the lines that librdkafka would print."""
    stdin = SimpleNamespace(buffer=BytesIO(b"one\n"), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    with WebServer() as server, MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", bootstrap_servers=server.address)
        directory.topic("/la/orders")
        arguments = ["--at", endpoint, "--timeout", "1", verb, "/la/orders"]
        arguments += ["-X", f"security.protocol={setting}"]
        assert main(arguments, transport=directory.transport) == 3
    err = capfd.readouterr().err
    (sentence,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert sentence.startswith("error: /la/orders: ")
    assert reason in sentence
    assert "%3|" not in err


@pytest.mark.parametrize("verb", ["consume", "produce"])
def test_a_broker_that_refuses_connections_is_one_sentence(
    verb: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stdin = SimpleNamespace(buffer=BytesIO(b"one\n"), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", bootstrap_servers="127.0.0.1:1")
        directory.topic("/la/orders")
        arguments = ["--at", endpoint, "--timeout", "0.5", verb, "/la/orders"]
        assert main(arguments, transport=directory.transport) == 3
    lines = capfd.readouterr().err.splitlines()
    assert lines[-2].endswith("failed: Connection refused (KAFKA_UNAVAILABLE)")
    assert len(lines) == (3 if verb == "produce" else 2), "the counts, the error and its hint"


@pytest.mark.parametrize(("asked", "value"), [([], "false"), (["-X"], "true")])
def test_a_followed_topic_goes_on_at_the_end_of_a_partition(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], value: str
) -> None:
    """A policy may have consumers report the end; for this verb it is no news."""
    monkeypatch.setattr("confluent_kafka.Consumer", EndingConsumer)
    more = [*asked, "enable.partition.eof=true"] if asked else []
    done = consume_orders("-f", "-n", "1", *more)
    assert (done.code, done.err) == (0, "")
    assert len(done.objects) == 1
    assert EndingConsumer.settings["enable.partition.eof"] == value


def test_a_message_as_json_has_key_time_and_headers() -> None:
    message: Any = SimpleNamespace(
        partition=lambda: 2,
        offset=lambda: 7,
        timestamp=lambda: (1, 1_700_000_000_000),
        key=lambda: None,
        value=lambda: b"\xff\xfe",
        headers=lambda: [("trace", b"x"), ("raw", b"\xff"), ("none", None)],
    )
    assert message_record(message, "/la/orders") == {
        "path": "/la/orders",
        "partition": 2,
        "offset": 7,
        "timestamp_ms": 1_700_000_000_000,
        "key": None,
        "value_base64": "__4=",
        "headers": [
            {"key": "trace", "value": "x"},
            {"key": "raw", "value_base64": "_w=="},
            {"key": "none", "value": None},
        ],
    }


@pytest.mark.parametrize(
    ("begin", "separator"),
    [(b"", b""), (b"k" + 500 * b":", 500 * b":")],
    ids=["values", "keys"],
)
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    begin: bytes, separator: bytes
) -> None:
    from confluent_kafka import KafkaError, KafkaException, Producer

    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})

    def sent(stream: IO[bytes]) -> Iterator[bool]:
        lines = lines_within(stream, 1_000_000, separator)
        return sent_lines(producer, "t", lines, separator, lambda *_: None)

    with Path("/dev/zero").open("rb") as zeros, pytest.raises(KafkaException) as refused:
        next(sent(BufferedReader(Begun(begin, zeros))))
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    whole = begin + b"v" * (1_000_000 - len(begin) + len(separator)) + b"\n"
    assert list(lines_within(BytesIO(2 * whole), 1_000_000, separator)) == [whole, whole]
    assert next(sent(BytesIO(begin + b"v" * 999_000)))


class UnknowingProducer:
    """Producer of a Kafka without the topic: what it is given waits until it times out."""

    produced: ClassVar[list[str]] = []
    becomes: ClassVar[list[int]] = []
    """Errors of the topic, one after the other, until Kafka has it; none = it never does."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._left = [*self.becomes, 0] if self.becomes else []

    def list_topics(self, topic: str, timeout: float) -> Any:
        code = self._left.pop(0) if self._left else UNKNOWN_TOPIC
        error = KafkaError(code) if code else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})

    def produce(self, topic: str, **_: Any) -> None:
        self.produced.append(topic)

    def poll(self, timeout: float) -> None:
        pass

    def flush(self, timeout: float) -> int:
        return 0


def produce_one(provision: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Produces a message to a topic in this state; returns the exit code and stderr."""
    UnknowingProducer.produced.clear()
    monkeypatch.setattr("confluent_kafka.Producer", UnknowingProducer)
    stdin = SimpleNamespace(buffer=BytesIO(b"one\n"), isatty=lambda: False)
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", bootstrap_servers="la:9092")
        directory.topic("/la/orders")
        answer = directory.transport.handler(endpoint)

        def with_state(name: str, request: Any) -> Any:
            response = answer(name, request)
            for outcome in getattr(response, "outcomes", None) or [response.outcome]:
                outcome.resolution.entry.topic.provision = f"PROVISION_{provision}"
            return response

        directory.transport.serve(endpoint, with_state)
        err = StringIO()
        monkeypatch.setattr("sys.stdin", stdin)
        line = ["--at", endpoint, "--timeout", "1", "produce", "/la/orders"]
        with contextlib.redirect_stderr(err):
            return main(line, transport=directory.transport), err.getvalue()


@pytest.mark.parametrize("provision", ["PENDING", "FAILED", "MISSING", "ACTIVE"])
def test_nothing_is_produced_to_a_topic_that_kafka_does_not_have(
    provision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, err = produce_one(provision, monkeypatch)
    if provision == "ACTIVE":
        assert (code, UnknowingProducer.produced) == (0, ["orders"]), "Kafka is not asked twice"
        return
    assert (code, UnknowingProducer.produced) == (5, [])
    assert "its entry: kdir stat /la/orders (KAFKA_REJECTED)" in err


@pytest.mark.parametrize(("provision", "code"), [("PENDING", 0), ("MISSING", 5)])
def test_a_producer_waits_for_a_topic_that_is_being_made(
    provision: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes = [UNKNOWN_TOPIC, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE]
    monkeypatch.setattr(UnknowingProducer, "becomes", becomes)
    assert produce_one(provision, monkeypatch)[0] == code
    assert UnknowingProducer.produced == ([] if code else ["orders"])


class Interrupted:
    """Input of two lines, and then ^C."""

    def __init__(self) -> None:
        self._lines = [b"one\n", b"two\n"]

    def readline(self, _most: int) -> bytes:
        if not self._lines:
            signal.raise_signal(signal.SIGINT)
        return self._lines.pop(0)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_after_an_interrupt_what_was_not_delivered_is_counted(
    is_repeated: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = SimpleNamespace(buffer=Interrupted(), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    waits: list[float] = []

    def flush(client: KafkaProducer, seconds: float) -> int:
        waits.append(seconds)
        if not is_repeated:
            return flush_deliveries(client, 0.1)
        # Another ^C, while the brokers are waited for.
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return flush_deliveries(client, 60.0)

    monkeypatch.setattr(producer_module, "flush_deliveries", flush)
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", bootstrap_servers="127.0.0.1:1")
        directory.topic("/la/orders")
        arguments = ["--at", endpoint, "produce", "-X", "log_level=0", "/la/orders"]
        code = main(arguments, transport=directory.transport)
    assert code == EXIT_INTERRUPTED
    counts = "0 messages to la:orders, 2 not delivered\n"
    assert capsys.readouterr().err == ("" if is_repeated else counts)
    assert waits == [2.0]


def test_an_interrupt_ends_the_wait_for_a_broker_that_is_away_at_once() -> None:
    """Else it would wait for longer than a test may take."""
    with MemoryDirectory() as directory:
        endpoint = directory.cluster("/la", bootstrap_servers="127.0.0.1:1")
        directory.topic("/la/orders")
        arguments = ["--at", endpoint, "consume", "-f", "-X", "log_level=0", "/la/orders"]
        arguments += ["--timeout", "1000"]
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        code = main(arguments, transport=directory.transport)
    assert code == EXIT_INTERRUPTED


class Begun(RawIOBase):
    """A stream that begins with some bytes, and goes on as another one."""

    def __init__(self, begin: bytes, rest: IO[bytes]) -> None:
        self._begin, self._rest = begin, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._begin or self._rest.read(len(buffer))
        self._begin = b""
        buffer[: len(found)] = found
        return len(found)
