"""What a reader of a topic of a change log asks of Kafka's client."""

from typing import Any

import pytest

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


def test_a_longest_backoff_below_the_readers_own_is_no_error() -> None:
    TopicReader({"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.max.ms": 300}, "t").close()
