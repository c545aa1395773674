"""The bare peer of a change log: fastavro and Kafka's client in loops, and nothing else.

What is read and written is what the topics of a change log held: the same bytes, in transactions of
the same size, to two topics with the same settings.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from directory.kafka.own_client_settings import OWN
from resolver.changes import record
from resolver.changes.record import Change, Schemas, UndecodableRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

__all__ = ["BareProducer", "BareRecord", "LogTopic", "Stored", "Tail", "decoded"]

_MAGIC: Final = b"\xc3\x01"
_FRAMING_BYTES: Final = 10
"""Magic and fingerprint."""
_PATIENCE_SECONDS: Final = 600.0
_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.5
_BATCH: Final = 500
_SETTINGS: Final = {
    "state": {"cleanup.policy": "compact", "max.message.bytes": "8388608"},
    "history": {"cleanup.policy": "delete", "max.message.bytes": "8388608"},
}


BareRecord = tuple[str, "bytes | None", Any]
"""Topic, key and value; the value is a dict that ``write`` encodes, or bytes, or None."""


@cache
def _schema() -> Any:
    """Returns the schema without its logical type: times stay numbers, as in the log's own code."""
    from fastavro import parse_schema

    text = record.schema_text().replace(', "logicalType": "timestamp-millis"', "")
    return parse_schema(json.loads(text))


def decoded(value: bytes | None) -> Any:
    """Returns a record's fields, by fastavro; bytes that are no record, and None, unchanged."""
    from fastavro import schemaless_reader

    if value is None or value[: len(_MAGIC)] != _MAGIC:
        return value
    return schemaless_reader(io.BytesIO(value[_FRAMING_BYTES:]), _schema())


class Stored(NamedTuple):
    """One record of a topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int


class LogTopic:
    """Topic with one partition. Each read has a new consumer, which joins no group and sees
    committed transactions only.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap: Final = bootstrap
        self.name: Final = name

    def consumer(self) -> Consumer:
        """Returns a consumer; the caller closes it."""
        from confluent_kafka import Consumer

        return Consumer(
            {
                **OWN,
                "bootstrap.servers": self.bootstrap,
                "group.id": "kdir-bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )

    def end(self) -> int:
        """Returns the offset after the last stable record."""
        with closing(self.consumer()) as consumer:
            return self.end_for(consumer)

    def end_for(self, consumer: Consumer) -> int:
        """Returns what ``end`` does, by an existing consumer."""
        from confluent_kafka import TopicPartition

        bounds = consumer.get_watermark_offsets(TopicPartition(self.name, 0), timeout=_SECONDS)
        if bounds is None:
            raise AssertionError(f"{self.name}: no broker answers")
        return int(bounds[1])

    def read(self, begin: int = 0) -> Iterator[Stored]:
        """Yields the records from an offset to the end that the topic has when it is called."""
        from confluent_kafka import KafkaError, TopicPartition

        with closing(self.consumer()) as consumer:
            end = self.end_for(consumer)
            if begin >= end:
                return
            consumer.assign([TopicPartition(self.name, 0, begin)])
            while True:
                for message in consumer.consume(_BATCH, _POLL_SECONDS):
                    error, offset = message.error(), message.offset()
                    if error is not None or offset is None:
                        if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                            return
                        raise AssertionError(f"{self.name}: {error}")
                    yield Stored(offset, message.key(), message.value(), message.timestamp()[1])
                    if offset + 1 >= end:
                        return

    def decode_all(self) -> int:
        """Decodes each record with fastavro, in one loop; returns how many there were."""
        return sum(isinstance(decoded(one.value), dict) for one in self.read())


class Tail:
    """Times (``time.monotonic``) at which new records of a topic became readable, by a thread that
    reads its end. A key that comes again keeps its first time.
    """

    def __init__(self, topic: LogTopic) -> None:
        self._topic: Final = topic
        self._consumer: Final = topic.consumer()
        topic.end_for(self._consumer)  # opens the connection
        self._changed: Final = threading.Condition()
        self._seen: dict[bytes, float] = {}
        self._checkpoints: list[tuple[Change, float]] = []
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """Begins to read what is committed from now on."""
        from confluent_kafka import TopicPartition

        end = self._topic.end_for(self._consumer)
        self._consumer.assign([TopicPartition(self._topic.name, 0, end)])
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and the consumer."""
        self._ended.set()
        with suppress(RuntimeError):  # it was never begun
            self._thread.join()
        self._consumer.close()

    def seen_at(self, key: bytes) -> float:
        """Waits for a record with this key; returns when it became readable."""
        return self._wait(lambda: self._seen.get(key))

    def checkpoint_at(self, revision: int) -> float:
        """Returns when a checkpoint of this revision or a later one became readable."""
        return self._wait(
            lambda: next((at for one, at in self._checkpoints if one.revision >= revision), None)
        )

    def second_checkpoint_at(self, after: float) -> float:
        """Returns when the second checkpoint after a moment became readable."""
        return self._wait(
            lambda: next(islice((at for _, at in self._checkpoints if at > after), 1, None), None)
        )

    def _wait(self, found: Callable[[], float | None]) -> float:
        with self._changed:
            self._changed.wait_for(lambda: found() is not None, _PATIENCE_SECONDS)
            at = found()
        if at is None:
            raise AssertionError(f"{self._topic.name}: what was waited for did not come")
        return at

    def _read(self) -> None:
        schemas = Schemas()
        while not self._ended.is_set():
            message = self._consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            at, key, value = time.monotonic(), message.key() or b"", message.value() or b""
            with self._changed:
                self._seen.setdefault(key, at)
                if not key:
                    with suppress(UndecodableRecord):
                        self._checkpoints.append((schemas.decode(value), at))
                self._changed.notify_all()


def _make_topics(bootstrap: str, state: str, history: str) -> None:
    """Creates two topics with the settings of a change log's topics."""
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({**OWN, "bootstrap.servers": bootstrap})
    asked = [
        NewTopic(name, 1, 1, config=_SETTINGS[kind])
        for kind, name in (("state", state), ("history", history))
    ]
    for future in client.create_topics(asked, request_timeout=_SECONDS).values():
        future.result()


class BareProducer:
    """Transactional producer to two topics of its own, with the settings of kdir's publisher."""

    def __init__(self, bootstrap: str, name: str) -> None:
        from confluent_kafka import Producer

        self.state: Final = LogTopic(bootstrap, f"{name}-state")
        self.history: Final = LogTopic(bootstrap, f"{name}-history")
        _make_topics(bootstrap, self.state.name, self.history.name)
        self._producer: Producer = Producer(
            {
                **{key: one for key, one in OWN.items() if not key.startswith("receive.")},
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "linger.ms": 5,
                "compression.type": "lz4",
            }
        )
        self._producer.init_transactions(_SECONDS)

    def write(self, transactions: Iterable[Sequence[BareRecord]]) -> None:
        """Writes the records of each transaction; encodes dicts with fastavro."""
        from fastavro import schemaless_writer

        schema, framing = _schema(), _MAGIC + record.fingerprint()
        producer = self._producer
        for one in transactions:
            producer.begin_transaction()
            for topic, key, value in one:
                if isinstance(value, dict):
                    written = io.BytesIO()
                    written.write(framing)
                    schemaless_writer(written, schema, value)
                    self._produce(topic, key, written.getvalue())
                else:
                    self._produce(topic, key, value)
            producer.commit_transaction(_SECONDS)

    def _produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, 0)
            except BufferError:
                self._producer.poll(1.0)
            else:
                return
