"""Writes records to the topics of a change log, in transactions of Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resolver.changes.topic_reader import error_text, with_right
from resolver.errors import KafkaUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Producer

__all__ = ["MOST_BYTES", "LogRecord", "LogRefused", "TopicWriter"]

MOST_BYTES: Final = 8 * 1024 * 1024
"""Smallest ``max.message.bytes``: ``MOST_RECORD_BYTES``, the record's key and Kafka's framing."""


class LogRefused(Exception):
    """Error of a log that cannot be published to as it is; has the reason and what is expected."""


class LogRecord(NamedTuple):
    """Record to write; ``value`` None removes the key."""

    topic: str
    key: str
    value: bytes | None


class _ClientReports:
    """Errors that a producer of librdkafka reports by callbacks. Has no reference to the producer,
    which so ends with its last reference, without the garbage collector.
    """

    def __init__(self) -> None:
        self.last_error = ""
        self.not_delivered = ""

    def on_error(self, error: Any) -> None:
        self.last_error = str(error.str())

    def on_delivery(self, error: Any, _: object) -> None:
        """Stores why a record was not delivered, which the error of the failed commit does not
        name. Ignores purged records: their transaction had failed before.
        """
        from confluent_kafka import KafkaError

        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # noqa: SLF001 - its own names
        if error is not None and not self.not_delivered and error.code() not in purged:
            self.not_delivered = str(error.str())


class TopicWriter:
    """Transactional producer. After an error it is unusable, since it is not known what was
    committed: a new one begins by reading the log's end.
    """

    def __init__(
        self, properties: Mapping[str, Any], transactional_id: str, timeout_seconds: float = 30.0
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self._timeout: Final = timeout_seconds
        self._transactional_id: Final = transactional_id
        self._reports: Final = _ClientReports()
        own: dict[str, Any] = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(timeout_seconds * 1000),
            "message.max.bytes": MOST_BYTES,
            "linger.ms": 5,
            "compression.type": "lz4",
            "error_cb": self._reports.on_error,
        }
        given = {key: one for key, one in properties.items() if not key.startswith("receive.")}
        try:
            self._producer: Producer = Producer({**given, **own})
        except KafkaException as error:
            # Such as acks=1, which does not go with a transactional producer.
            raise LogRefused(f"change_log.properties: {error.args[0].str().strip()}") from None
        self._call(self._producer.init_transactions)

    def write(self, *parts: Iterable[LogRecord]) -> None:
        """Writes the records of all parts, in order, as one transaction; it is committed on return.

        Raises:
            KafkaUnavailable: whether the records are committed is not known.
        """
        producer = self._producer
        self._call(lambda _: producer.begin_transaction())
        for one in chain.from_iterable(parts):
            self._produce(one)
        self._call(producer.commit_transaction)

    def _produce(self, one: LogRecord) -> None:
        from confluent_kafka import KafkaException

        for _ in range(round(self._timeout)):
            try:
                self._producer.produce(
                    one.topic, one.value, one.key, 0, on_delivery=self._reports.on_delivery
                )
            except BufferError:
                self._producer.poll(1.0)
            except KafkaException as error:
                raise self._unavailable(error) from error
            else:
                return
        raise KafkaUnavailable(f"{one.topic}: the queue of Kafka's client stays full")

    def close(self) -> None:
        """Aborts an open transaction, unless that takes more than a second."""
        # In a thread of its own: an error that confluent-kafka raises while another exception is
        # handled keeps that exception for ever, with the producer and the tree in its frames.
        ending = threading.Thread(target=self._end, name="end-producer", daemon=True)
        ending.start()
        ending.join()

    def _end(self) -> None:
        with contextlib.suppress(Exception):
            self._producer.purge()
            self._producer.abort_transaction(1.0)

    def _call(self, call: Callable[[float], object]) -> None:
        from confluent_kafka import KafkaException

        try:
            call(self._timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Any) -> KafkaUnavailable:
        text = error_text(self._reports.not_delivered or error, self._reports.last_error)
        is_of_id = "Transactional Id authorization failed" in text
        on = f"transactional id {self._transactional_id}" if is_of_id else "the topics"
        return KafkaUnavailable(with_right(text, f"WRITE on {on}"))
