"""Reads a topic of a change log: a range of offsets, or from an offset on without an end.

The consumer joins no group: it is assigned partition 0. It reads only committed transactions and
never creates a topic. An offset that is not kept is an error, and never replaced by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple

from resolver.errors import KafkaUnavailable
from resolver.kafka.client_errors import LastReason

__all__ = ["EndReached", "TopicReader", "TopicRecord", "error_text", "topic_names", "with_right"]

_TIMEOUT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.5
_BATCH: Final = 500
_QUEUED_KIB: Final = 8_192
"""Most KiB that are fetched ahead; librdkafka's default is eight times as much."""
_FULL_QUEUE_MS: Final = 20
"""Pause of fetching after the queue was full. With librdkafka's default, a second, a reader that
emptied the queue would wait."""
_BACK: Final = 4
"""Number of offsets that ``tails`` reads first. More than one, since the end marker of a
transaction has an offset, too."""
_BACKOFF: Final = "reconnect.backoff.ms"
_MOST_BACKOFF: Final = "reconnect.backoff.max.ms"
_FIRST_WAIT_SECONDS: Final = 1.0
"""After it a request to brokers that do not answer is sent again, with twice the time: only in
between does librdkafka report why."""
_TOMBSTONES: Final = "delete.retention.ms"
_TOMBSTONES_MS: Final = 24 * 3600 * 1000
"""Kafka's default of it, used where the caller may not describe the topic's config."""


class TopicRecord(NamedTuple):
    """One record as Kafka has it. ``value`` None: a tombstone."""

    offset: int
    key: bytes | None
    value: bytes | None


class EndReached(NamedTuple):
    """End of a topic, as of now: the next stable record is at ``offset`` or after it."""

    offset: int


class TopicReader:
    """Reader of partition 0 of one topic. Used by one thread; the caller closes it.

    Args:
        properties: librdkafka's, for the connection to the brokers.
        timeout_seconds: of each request; also how long ``read`` waits for a record.
        keep_on: once it returns False, ``read`` fails and ``follow`` ends.
        on_error: called with each reason why a broker could not be used; with an empty one once
            records come all the same.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        keep_on: Callable[[], bool] = lambda: True,
        on_error: Callable[[str], object] = lambda _: None,
    ) -> None:
        from confluent_kafka import Consumer

        self._properties: Final = _quiet(properties)
        self._topic: Final = topic
        self._timeout: Final = timeout_seconds
        self._keep_on: Final = keep_on
        self._reported: Final = on_error
        self._reason: Final = LastReason()
        self._is_assigned = False
        self._consumer = Consumer(
            {
                "queued.max.messages.kbytes": _QUEUED_KIB,
                "fetch.queue.backoff.ms": _FULL_QUEUE_MS,
                **self._properties,
                # librdkafka wants a name for a group that is neither joined nor committed to.
                "group.id": "kdir-change-log",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "error_cb": self._on_error,
            }
        )

    def bounds(self, timeout_seconds: float | None = None) -> tuple[int, int]:
        """Returns the first offset that is kept, and the last stable offset (exclusive).
        ``timeout_seconds``: of this request; None = that of all.

        Raises:
            KafkaUnavailable
        """
        from confluent_kafka import KafkaException

        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        try:
            found = self._watermarks(timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error
        if found is None:
            raise KafkaUnavailable(f"no broker answered in {timeout:g} s: {self._topic}")
        low, high = found
        return low, high

    def _watermarks(self, timeout: float) -> tuple[int, int] | None:
        """Asks for both offsets; again, with twice the time, as long as there is time. The last
        attempt has a third of it at least, for slow brokers.
        """
        from confluent_kafka import KafkaException, TopicPartition

        partition, end = TopicPartition(self._topic, 0), time.monotonic() + timeout
        wait = timeout if self._is_assigned else _FIRST_WAIT_SECONDS
        while True:
            begin = time.monotonic()
            is_last = end - begin < 3 * wait
            wait = max(0.0, end - begin) if is_last else wait
            try:
                return self._consumer.get_watermark_offsets(partition, timeout=wait)
            except KafkaException:
                if not self._is_assigned:  # else records would be lost
                    self._consumer.poll(0)  # has ``_on_error`` called
                is_final = time.monotonic() < begin + 0.9 * wait  # not one of time
                if is_last or is_final or not self._keep_on():
                    raise
            wait *= 2

    def most_pause_seconds(self) -> float:
        """Returns how long a reader of a compacted topic may not be at its end: half of
        ``delete.retention.ms``. After that, an unread tombstone may be gone, and only a read from
        the beginning shows what was removed.

        Raises:
            KafkaUnavailable
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, ConfigResource

        topic = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
        try:
            client = AdminClient(self._properties)
            asked = client.describe_configs([topic], request_timeout=self._timeout)
            found = asked[topic].result(self._timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise self._unavailable(error) from error
            return _TOMBSTONES_MS / 2000
        except TimeoutError as error:
            raise self._unavailable(error) from error
        return int(found[_TOMBSTONES].value) / 2000

    def topic_id(self) -> str:
        """Returns Kafka's id of the topic, which a topic that is made again under the same name
        does not keep; empty where the brokers have no topic ids.

        Raises:
            KafkaUnavailable
        """
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient

        try:
            client = AdminClient(dict(self._properties))
            asked = client.describe_topics(
                TopicCollection([self._topic]), request_timeout=self._timeout
            )
            found = asked[self._topic].result(self._timeout).topic_id
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error
        # Kafka's Uuid has no ``==``.
        if found is None or not (
            found.get_most_significant_bits() or found.get_least_significant_bits()
        ):
            return ""
        return str(found)

    def offset_at(self, time_ms: int) -> int:
        """Returns the first offset whose record has a Kafka timestamp of ``time_ms`` (Unix
        milliseconds) or later; the end if all are older.

        Raises:
            KafkaUnavailable
        """
        from confluent_kafka import KafkaException, TopicPartition

        wanted = TopicPartition(self._topic, 0, max(0, time_ms))
        try:
            (found,) = self._consumer.offsets_for_times([wanted], timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error
        if found.error is not None:
            raise self._unavailable(found.error)
        return found.offset if found.offset >= 0 else self.bounds()[1]

    def read(self, begin: int, end: int) -> Generator[TopicRecord, None, None]:
        """Yields the records from offset ``begin`` up to ``end``, exclusive. Offsets without a
        record (compacted, or of transaction markers) are skipped.

        Raises:
            KafkaUnavailable: also if nothing came for ``timeout_seconds``, or ``keep_on`` ended the
                read: a part of the records is never taken for all.
        """
        if begin >= end:
            return
        quiet_since = time.monotonic()
        with closing(self.follow(begin)) as found:
            for one in found:
                if one is not None and one.offset >= end:
                    return
                if isinstance(one, TopicRecord):
                    yield one
                    if one.offset + 1 >= end:
                        return
                    quiet_since = time.monotonic()
                elif time.monotonic() - quiet_since > self._timeout:
                    why = self._reason.text_after("")
                    raise KafkaUnavailable(
                        f"{self._topic}: nothing came for {self._timeout:g} s, though records up "
                        f"to offset {end} are there{why}"
                    )
        raise KafkaUnavailable(f"{self._topic}: the read was ended before offset {end}")

    def tails(self) -> Iterator[Generator[TopicRecord, None, None]]:
        """Yields iterators over the last records, each from further back; the last one has all
        records. Each must be read to its end before the next.

        Raises:
            KafkaUnavailable
        """
        low, high = self.bounds()
        begin, back = high, _BACK
        while begin > low:
            begin = max(low, high - back)
            yield self.read(begin, high)
            back *= 16

    def follow(self, begin: int) -> Generator[TopicRecord | EndReached | None]:
        """Yields the records from an offset on, until ``keep_on`` returns False. Also yields
        ``EndReached`` at each end of the topic, and None if nothing came for half a second.

        Raises:
            KafkaUnavailable
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        self._consumer.assign([TopicPartition(self._topic, 0, begin)])
        self._is_assigned = True
        try:
            while self._keep_on():
                messages = self._consumer.consume(_BATCH, _POLL_SECONDS)
                if not messages:
                    yield None
                for message in messages:
                    error, offset = message.error(), message.offset()
                    if error is None and offset is not None:
                        self._forget_reason()
                        yield TopicRecord(offset, message.key(), message.value())
                    elif error is not None and _is_of_group(error):
                        yield None
                    elif error is None or error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                        raise self._unavailable(error)
                    elif offset is not None:
                        yield EndReached(offset)
        except KafkaException as error:
            raise self._unavailable(error) from error
        finally:
            self._consumer.unassign()
            self._is_assigned = False

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def _on_error(self, error: Any) -> None:
        if not _is_of_group(error):
            self._reason.on_error(error)
            self._reported(self._reason.text)

    def _forget_reason(self) -> None:
        if self._reason.text:
            self._reason.text = ""
            self._reported("")

    def _unavailable(self, error: Any) -> KafkaUnavailable:
        text = error_text(error, self._reason.text)
        return KafkaUnavailable(with_right(f"{self._topic}: {text}", "READ on the topic"))


def _is_of_group(error: Any) -> bool:
    """True if an error is about the right to use the group, which is ignored: none is joined."""
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def _quiet(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns properties with which librdkafka does not log each failed attempt to stderr, many
    times a second; those of the caller win. librdkafka refuses a backoff above the most.
    """
    backoff = {} if _MOST_BACKOFF in properties else {_BACKOFF: 500}
    return {"log_level": 0, **backoff, **properties}


def error_text(error: Any, last_error: str) -> str:
    """Returns the message of a Kafka error, followed by ``last_error`` if that is another."""
    found = error.args[0] if getattr(error, "args", None) else error
    text = found.str() if hasattr(found, "str") else str(found)
    return f"{text} ({last_error})" if last_error and last_error != text else text


def with_right(message: str, right: str) -> str:
    """Returns Kafka's message. To one about a missing right, ``right`` is added, since Kafka names
    only the kind of the resource.
    """
    is_about_one = "authorization failed" in message.lower()
    return f"{message}; missing: {right}" if is_about_one else message


def topic_names(properties: Mapping[str, Any]) -> set[str]:
    """Returns the names of all topics.

    Raises:
        KafkaUnavailable
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        client = AdminClient(_quiet(properties))
        return set(client.list_topics(timeout=_TIMEOUT_SECONDS).topics)
    except KafkaException as error:
        raise KafkaUnavailable(
            f"no broker answered in {_TIMEOUT_SECONDS:g} s: {properties.get('bootstrap.servers')}: "
            f"{error.args[0].str()}"
        ) from error
