"""What a reader of a topic of a change log asks of Kafka's client."""

from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError

from resolver.changes.topic_reader import TopicReader


def test_a_reader_does_not_wait_once_it_took_all_that_was_fetched_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default librdkafka waits a second where the queue was full: 8 s of 200,000 records."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("confluent_kafka.Consumer", made.append)
    TopicReader({"bootstrap.servers": "127.0.0.1:1"}, "t")
    (settings,) = made
    assert settings["queued.max.messages.kbytes"] == 8_192
    assert settings["fetch.queue.backoff.ms"] <= 100


class Message:
    """A record, or the end of its partition."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        """Returns None: it has none."""

    def offset(self) -> int:
        return self._offset

    key = value = lambda _: b"x"


class Consumer:
    """A consumer of which one broker is away, while others return two records."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._on_error = settings["error_cb"]

    def assign(self, partitions: object) -> None:
        """Takes the partitions."""

    unassign = close = lambda _: None

    def consume(self, *_: object) -> list[Message]:
        self._on_error(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
        return [Message(0), Message(1)]


def test_a_reason_is_forgotten_once_records_come(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr("confluent_kafka.Consumer", Consumer)
    with closing(TopicReader({}, "t", on_error=reported.append)) as reader:
        assert [one.offset for one in reader.read(0, 2)] == [0, 1]
    assert reported == ["Connection refused", ""]


def test_a_longest_backoff_below_the_readers_own_is_no_error() -> None:
    TopicReader({"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.max.ms": 300}, "t").close()
