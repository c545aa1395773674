"""Verbs for messages: ``produce`` and ``consume``, for quick checks and scripts.

They resolve the path and use confluent-kafka. For more, use a Kafka client and ``kdir resolve -o
kcat``.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from resolver import units
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import parse_path_argument
from resolver.errors import InvalidArgument, KafkaUnavailable
from resolver.properties_file import read_settings
from resolver.user_config import unreadable_file_error

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from resolver.cli.session import Session
    from resolver.kafka.client_errors import LastReason
    from resolver.topic_location import TopicLocation

__all__ = [
    "LISTENER",
    "PROPERTIES",
    "SETTING",
    "VERBS",
    "begin_offsets",
    "client_settings",
    "lines_within",
    "message_record",
    "own_settings",
    "sent_lines",
]

_T = TypeVar("_T")
_DELIVERY_SECONDS: Final = 30.0
"""Default time limit for the brokers to acknowledge all messages."""
_INTERRUPTED_SECONDS: Final = 2.0
"""Time limit for the brokers to acknowledge messages after ^C; another ^C ends the wait."""
_PAUSE_SECONDS: Final = 0.1
"""Pause between two checks whether Kafka has a topic."""
_MOST_BYTES: Final = 1_000_000
"""Most bytes of a message, by librdkafka's default."""
_OFFSET_DIGITS: Final = 19
_PARTITION_DIGITS: Final = 10
"""Numbers with this number of digits, or with ``_OFFSET_DIGITS`` as offsets, are too large for
Kafka.
"""


def client_settings(
    session: Session,
    arguments: Arguments,
    own: Mapping[str, str],
    *,
    for_writes: bool,
    feature: str = "",
) -> tuple[TopicLocation, dict[str, str]]:
    """Returns the location of the topic, and the settings of a Kafka client. Settings of the
    command line override ``own``, the verb's settings, which override the policies of the path.

    Args:
        feature: option that needs kdir[kafka], if the verb itself does not.

    Raises:
        InvalidArgument: the path is no topic, or kdir[kafka] is not installed.
    """
    from resolver.extras import missing_extra

    if missing := missing_extra(feature or f"kdir {arguments.verb.name}", "kafka"):
        raise InvalidArgument(missing)
    where = parse_path_argument(arguments.one("PATH"))
    # A producer stays with a link's first target: an outage must not redirect data.
    found = session.resolver.resolve(where.path, prefer=where.prefer, for_writes=for_writes)
    where.check_kind(found)
    from resolver.kafka.client_settings import (
        COMMAND_LINE,
        Client,
        consumer_settings,
        for_librdkafka,
        producer_settings,
    )
    from resolver.kafka.listener_choice import connection, setting_layers

    brokers = connection(found, arguments.one("listener"))
    answered = {"client.id": "kdir", "log_level": "0", **own, **own_settings(arguments)}
    client = Client.PRODUCER if for_writes else Client.CONSUMER
    layers = setting_layers(answered, found, client, COMMAND_LINE)
    settings = producer_settings(layers) if for_writes else consumer_settings(layers)
    return found, brokers | for_librdkafka(settings)


def own_settings(arguments: Arguments) -> dict[str, str]:
    """Returns the settings of ``--properties`` and ``-X``."""
    settings: dict[str, str] = {}
    file = arguments.one("properties")
    if file:
        try:
            settings |= read_settings(file)
        except OSError as error:
            raise unreadable_file_error(error, file) from None
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
    for text in arguments.many("X"):
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"-X {text!r}: KEY=VALUE was expected", verb=arguments.verb.name)
        settings[key] = value
    return settings


# -- produce -------------------------------------------------------------------------------------


def _produce(session: Session, arguments: Arguments) -> int:
    seconds = arguments.seconds("timeout", _DELIVERY_SECONDS)
    own = {"delivery.timeout.ms": str(math.ceil(seconds * 1000))}
    found, settings = client_settings(session, arguments, own, for_writes=True)
    from confluent_kafka import KafkaException, Producer

    from resolver.kafka.client_errors import LastReason, client_error
    from resolver.kafka.producer import flush_deliveries

    reason = LastReason()
    failures: list[KafkaError] = []
    delivered = 0

    def reported(error: KafkaError | None, _message: Message) -> None:
        nonlocal delivered
        if error is None:
            delivered += 1
        else:
            failures.append(error)

    try:
        producer = Producer({**settings, "error_cb": reason.on_error})
    except KafkaException as error:
        raise InvalidArgument(f"confluent-kafka: {error.args[0].str()}") from error
    ended: list[KafkaError] = []
    try:
        if _may_be_missing(found):
            # Otherwise each message would wait for the topic, and time out as if Kafka did not
            # answer.
            patience = seconds if _is_pending(found) else 0.0
            _in_thread(lambda: _wait_for_topic(producer, found, session.timeout_seconds, patience))
    except KafkaException as error:
        producer.poll(0)
        raise client_error(
            error.args[0], str(found.path), settings, for_writes=True, reason=reason
        ) from error
    try:
        try:
            separator = arguments.one("key-separator").encode()
            most = int(settings.get("message.max.bytes", _MOST_BYTES))
            lines = lines_within(sys.stdin.buffer, most, separator)
            sent = sent_lines(producer, found.topic, lines, separator, reported)
            while not failures and next(sent, False):
                pass
        except KafkaException as error:
            ended.append(error.args[0])
        left = flush_deliveries(producer, seconds)
    except KafkaException as error:
        # This error has the cause; the earlier one only that the client is unusable.
        ended, left = [error.args[0]], 0
    except KeyboardInterrupt:
        with contextlib.suppress(KafkaException):
            flush_deliveries(producer, _INTERRUPTED_SECONDS)
        _note_counts(session, found, delivered, len(failures) + len(producer))
        raise
    _note_counts(session, found, delivered, len(failures))
    for why in (*ended, *failures):
        raise client_error(why, str(found.path), settings, for_writes=True, reason=reason)
    if left:
        raise KafkaUnavailable(
            f"{found.path}: {units.plural(left, 'message')} not delivered in time"
            f"{reason.text_after('')}"
        )
    return 0


def _may_be_missing(found: TopicLocation) -> bool:
    """True if Kafka did not have the topic when the directory server last read Kafka."""
    from kdir.v1 import entry_pb2

    return found.entry.topic.provision in {
        entry_pb2.PROVISION_PENDING, entry_pb2.PROVISION_FAILED, entry_pb2.PROVISION_MISSING,
    }  # fmt: skip


def _is_pending(found: TopicLocation) -> bool:
    """True if kdir had not yet created the topic in Kafka when the path was resolved."""
    from kdir.v1 import entry_pb2

    return found.entry.topic.provision == entry_pb2.PROVISION_PENDING


def _wait_for_topic(client: Any, found: TopicLocation, seconds: float, patience: float) -> None:
    """Waits until Kafka has a topic, up to ``patience`` seconds.

    Raises:
        KafkaException: Kafka does not have the topic, or did not answer within ``seconds``.
    """
    from confluent_kafka import KafkaError, KafkaException

    is_coming = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE}
    deadline = time.monotonic() + patience
    while True:
        try:
            _topic_metadata(client, found.topic, seconds)
        except KafkaException as error:
            if error.args[0].code() not in is_coming or time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _topic_metadata(client: Any, topic: str, seconds: float) -> Any:
    """Returns Kafka's metadata of a topic.

    Raises:
        KafkaException: Kafka does not have the topic, or did not answer.
    """
    from confluent_kafka import KafkaException

    metadata = client.list_topics(topic, timeout=seconds).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    return metadata


def _note_counts(session: Session, found: TopicLocation, delivered: int, undelivered: int) -> None:
    more = f", {undelivered} not delivered" if undelivered else ""
    count = units.plural(delivered, "message")
    session.out.note(f"{count} to {found.cluster}:{found.topic}{more}")


def lines_within(stream: IO[bytes], most: int, separator: bytes) -> Iterator[bytes]:
    """Yields lines. A line of more than ``most`` bytes, not counting the separator of its key, is
    yielded in parts, of which the first also has more than ``most`` bytes.
    """
    while line := stream.readline(most + len(separator) + 1):
        yield line


def sent_lines(
    producer: Producer,
    topic: str,
    lines: Iterable[bytes],
    separator: bytes,
    reported: Callable[[KafkaError | None, Message], None],
) -> Iterator[bool]:
    """Sends one line for each value that it yields. Kafka's client refuses a line that is too long.

    Raises:
        KafkaException
    """
    for line in lines:
        key, value = _split(line.rstrip(b"\n"), separator)
        while True:
            try:
                producer.produce(topic, value=value, key=key, on_delivery=reported)
                break
            except BufferError:  # its queue is full: wait for deliveries
                producer.poll(0.1)
        producer.poll(0)
        yield True


def _split(line: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    if not separator:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)


# -- consume -------------------------------------------------------------------------------------


def _consume(session: Session, arguments: Arguments) -> int:
    start = _Start.parse(arguments.one("from", "beginning"))
    if start.where == "end" and not arguments.flag("follow"):
        raise UsageError("--from end prints only new messages: it needs -f", verb="consume")
    separator = arguments.one("key-separator")
    as_json = session.out.format == "json"
    if separator and as_json:
        raise UsageError("-o json has the keys; it takes no -K", verb="consume")
    chosen = _chosen_partitions(arguments)
    own = {
        "group.id": "kdir-consume",  # required by the client; no group is joined
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": "false",
        # Kafka's defaults: by a policy, a broker might wait longer than this verb does.
        "fetch.min.bytes": "1",
        "fetch.max.wait.ms": "500",
    }
    found, settings = client_settings(session, arguments, own, for_writes=False)
    from confluent_kafka import Consumer, KafkaException

    from resolver.kafka.client_errors import LastReason, client_error

    reason = LastReason()
    try:
        consumer = Consumer({**settings, "error_cb": reason.on_error})
    except KafkaException as error:
        raise InvalidArgument(f"confluent-kafka: {error.args[0].str()}") from error
    is_interrupted = False
    try:
        for message in _messages(session, consumer, reason, found, arguments, start, chosen):
            if as_json:
                session.out.record(message_record(message, str(found.path)))
            else:
                if separator:
                    sys.stdout.buffer.write((message.key() or b"") + separator.encode())
                sys.stdout.buffer.write((message.value() or b"") + b"\n")
            if arguments.flag("follow"):
                sys.stdout.flush()
    except KafkaException as error:
        consumer.poll(0)
        raise client_error(
            error.args[0], str(found.path), settings, for_writes=False, reason=reason
        ) from error
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        if not is_interrupted:  # a thread may still use it, and it has joined no group
            consumer.close()
        sys.stdout.flush()
    return 0


def message_record(message: Message, path: str) -> dict[str, Any]:
    """Returns a message as JSON values. Bytes that are not UTF-8 are URL-safe base64, under a name
    that ends in ``_base64``; null in Kafka is null.
    """
    kind, milliseconds = message.timestamp()
    record: dict[str, Any] = {
        "path": path,
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": milliseconds if kind else None,
        **_as_text("key", message.key()),
        **_as_text("value", message.value()),
    }
    headers: Any = message.headers()
    if headers:
        record["headers"] = [{"key": key, **_as_text("value", value)} for key, value in headers]
    return record


def _as_text(name: str, value: bytes | str | None) -> dict[str, str | None]:
    if value is None or isinstance(value, str):
        return {name: value}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.urlsafe_b64encode(value).decode()}


class _Start(NamedTuple):
    """Place at which to begin in each partition."""

    where: str
    """``beginning``, ``end``, ``offset`` or ``time``."""
    number: int = 0
    """Offset, or time in Unix milliseconds."""

    @classmethod
    def parse(cls, text: str) -> _Start:
        """Parses the value of ``--from``.

        Raises:
            UsageError: the value is invalid.
        """
        if text in {"beginning", "end"}:
            return cls(text)
        if text.isascii() and text.isdigit() and len(text) < _OFFSET_DIGITS:
            return cls("offset", int(text))
        from datetime import datetime

        try:
            milliseconds = int(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            milliseconds = -1
        if milliseconds < 0:  # negative times have special meanings in Kafka
            raise UsageError(
                f"--from {text!r}: beginning, end, an offset such as 1200 or a time from 1970 on, "
                f"such as 2026-11-01T14:30, was expected",
                verb="consume",
            )
        return cls("time", milliseconds)


def _chosen_partitions(arguments: Arguments) -> list[int]:
    """Returns the partitions of ``--partition``; empty = all.

    Raises:
        UsageError: a value is not a number.
    """
    texts = arguments.many("partition")
    for text in texts:
        if not (text.isascii() and text.isdigit() and len(text) < _PARTITION_DIGITS):
            raise UsageError(f"--partition {text!r}: a number from 0 was expected", verb="consume")
    return sorted(set(map(int, texts)))


def begin_offsets(
    consumer: Any, topic: str, start: _Start, bounds: Mapping[int, tuple[int, int]], seconds: float
) -> dict[int, int]:
    """Returns the offset at which to begin in each partition, limited to its bounds: at an offset
    outside, the client would begin at the first message.

    Raises:
        KafkaException: Kafka did not answer, or returned an error for a partition.
    """
    from confluent_kafka import KafkaException, TopicPartition

    match start.where:
        case "beginning":
            wanted = {partition: low for partition, (low, _) in bounds.items()}
        case "end":
            wanted = {partition: high for partition, (_, high) in bounds.items()}
        case "offset":
            wanted = dict.fromkeys(bounds, start.number)
        case _:
            asked = [TopicPartition(topic, partition, start.number) for partition in bounds]
            found = consumer.offsets_for_times(asked, timeout=seconds)
            if errors := [one.error for one in found if one.error is not None]:
                raise KafkaException(errors[0])
            wanted = {
                # Negative: no message is so new.
                one.partition: one.offset if one.offset >= 0 else bounds[one.partition][1]
                for one in found
            }
    return {
        partition: min(max(wanted[partition], low), high)
        for partition, (low, high) in bounds.items()
    }


def missing_messages(
    start: _Start, bounds: Mapping[int, tuple[int, int]], begins: Mapping[int, int]
) -> str:
    """Returns a note if there is no message from the chosen start on, with the end offset; empty if
    there may be one, or if the start is the end.
    """
    if start.where == "end" or any(begins[one] < high for one, (_, high) in bounds.items()):
        return ""
    missing = {
        "offset": f"no message from offset {start.number} on",
        "time": "no message from that time on",
    }
    ends = sorted({high for _, high in bounds.values()})
    end = f"the end is offset {ends[0]}" if len(ends) == 1 else f"the last end is offset {ends[-1]}"
    return f"{missing.get(start.where, 'no messages')}; {end}"


def _messages(
    session: Session,
    consumer: Any,
    reason: LastReason,
    found: TopicLocation,
    arguments: Arguments,
    start: _Start,
    chosen: Sequence[int],
) -> Iterator[Message]:
    """Yields messages from the chosen start up to the current ends; with ``--follow`` without an
    end.

    The ends are read first, since "end of partition" is reported again for each new message.
    """
    from confluent_kafka import TopicPartition

    topic, follow, most = found.topic, arguments.flag("follow"), arguments.whole("count")
    timeout_seconds = session.timeout_seconds
    bounds, begins = _in_thread(
        lambda: _find_offsets(consumer, found, start, chosen, timeout_seconds)
    )
    if note := missing_messages(start, bounds, begins):
        session.out.note(f"{found.path}: {note}")
    ends: dict[int, int] = {}
    if not follow:
        ends = {one: high for one, (_, high) in bounds.items() if high > begins[one]}
        begins = {one: begins[one] for one in ends}
    last = dict(ends)
    if not begins:
        return
    consumer.assign([TopicPartition(topic, one, offset) for one, offset in begins.items()])
    yielded = 0
    known_positions: dict[int, int] = {}
    received = time.monotonic()
    while follow or ends:
        message = consumer.poll(0.2)
        positions = _drop_reached(consumer, topic, ends)
        if positions != known_positions:  # a position also passes gaps of aborted transactions
            known_positions, received = positions, time.monotonic()
        if message is None:
            if follow and reason.is_all_down:  # otherwise it would wait silently
                text = f"{found.path}: no broker is reachable"
                session.out.note(f"{text}{reason.text_after(text)}", "warn")
                reason.is_all_down = False
            if not follow and time.monotonic() - received > timeout_seconds:
                text = f"{found.path}: no answer within {timeout_seconds:g}s"
                raise KafkaUnavailable(f"{text}{reason.text_after(text)}")
            continue
        if message.error() is not None:
            _check(message.error())
            continue
        if not follow and message.offset() >= last[message.partition()]:
            continue  # newer than the end at the start
        yield message
        received = time.monotonic()  # after the yield: the reader of the output may be slow
        yielded += 1
        if most and yielded >= most:
            return


def _find_offsets(
    consumer: Any, found: TopicLocation, start: _Start, chosen: Sequence[int], seconds: float
) -> tuple[Mapping[int, tuple[int, int]], dict[int, int]]:
    """Returns the bounds of each partition, and the offset at which to begin in it.

    Raises:
        InvalidArgument: the topic has no such partition.
        KafkaException
    """
    from confluent_kafka import TopicPartition

    topic = found.topic
    metadata = _topic_metadata(consumer, topic, seconds)
    if missing := [one for one in chosen if one not in metadata.partitions]:
        raise InvalidArgument(
            f"{found.path}: no partition {missing[0]}; it has "
            f"{units.plural(len(metadata.partitions), 'partition')}, from 0",
            field="partition",
        )
    bounds = {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=seconds)
        for partition in chosen or metadata.partitions
    }
    return bounds, begin_offsets(consumer, topic, start, bounds, seconds)


def _in_thread(work: Callable[[], _T]) -> _T:
    """Calls ``work`` in a thread; returns its result or raises its error. So ^C ends the wait at
    once, not only when a call of Kafka's client returns.
    """
    from concurrent.futures import Future

    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="kafka-client", daemon=True).start()
    return done.result()


def _check(error: KafkaError) -> None:
    """Raises an error that prevents reading; ignores a denied group, since none is joined, and the
    end of a partition, which ``-X enable.partition.eof=true`` reports.
    """
    from confluent_kafka import KafkaError, KafkaException

    is_end = error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - its only name
    if not is_end and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
        raise KafkaException(error)


def _drop_reached(consumer: Any, topic: str, ends: dict[int, int]) -> dict[int, int]:
    """Unassigns the partitions that have reached their end of the start, so that their newer
    messages are not fetched while others are read. Returns the positions, by partition.

    The position decides, not the last message: compaction and markers leave gaps (P20).
    """
    from confluent_kafka import TopicPartition

    if not ends:
        return {}
    places = consumer.position([TopicPartition(topic, partition) for partition in ends])
    reached = [one.partition for one in places if one.offset >= ends[one.partition]]
    for partition in reached:
        del ends[partition]
    if reached:
        consumer.incremental_unassign([TopicPartition(topic, one) for one in reached])
    return {one.partition: one.offset for one in places}


LISTENER: Final = Option(("--listener",), "which listener (default: the first)", "NAME")
PROPERTIES: Final = Option(
    ("--properties",), "client settings, KEY=VALUE lines; secrets go here", "FILE", completes="file"
)
SETTING: Final = Option(("-X",), "a client setting; repeatable", "KEY=VALUE", repeated=True)
_TOPIC: Final = Argument("PATH", "path of a topic", completes="path")

VERBS: Final = (
    Verb(
        name="produce",
        summary="write lines of stdin to a topic",
        run=_produce,
        writes=True,
        details=(
            "Each line is a message. acks=all and enable.idempotence=true unless set otherwise\n"
            "(KIP-679). Through a link, messages go to its first target, reachable or not; with\n"
            "kdir ln --writes-follow, to the target that reads go to.\n"
            "--timeout is also that of the delivery, which is 30 s otherwise.\n"
            "Needs kdir[kafka]."
        ),
        arguments=(_TOPIC,),
        options=(
            Option(("-K", "--key-separator"), "separator of key and value", "TEXT"),
            LISTENER,
            PROPERTIES,
            SETTING,
        ),
        examples=(
            ("echo hello | kdir produce /la/tracking/search/clicks", "one message"),
            ("kdir produce -K : /la/tracking/orders < orders.txt", "key:value lines"),
        ),
    ),
    Verb(
        name="consume",
        summary="print the messages of a topic",
        run=_consume,
        timeout_seconds=10.0,
        details=(
            "From the beginning to the current end; -f continues. --from begins at an offset, or\n"
            "at the first message that is as new as a time, in each partition. With -o json, one\n"
            "object a line: path, partition, offset, timestamp_ms, key, value, headers; what is\n"
            "no UTF-8 is URL-safe base64 (key_base64, value_base64). Joins no group and commits\n"
            "nothing. Needs kdir[kafka]."
        ),
        arguments=(_TOPIC,),
        options=(
            Option(("-n", "--count"), "maximum number of messages", "N"),
            Option(("-f", "--follow"), "continue with new messages"),
            Option(
                ("--from",),
                "beginning (the default), end (with -f), an offset, or a time: 2026-11-01T14:30",
                "WHERE",
            ),
            Option(("--partition",), "only this one; repeatable", "N", repeated=True),
            Option(("-K", "--key-separator"), "print keys, too, and this behind them", "TEXT"),
            LISTENER,
            PROPERTIES,
            SETTING,
        ),
        examples=(
            ("kdir consume /la/tracking/search/clicks", "all messages"),
            ("kdir consume -f --from end /la/tracking/orders", "only new messages"),
            (
                "kdir consume -o json --partition 0 --from 1200 -n 10 /la/tracking/orders",
                "ten messages, with key, headers and time",
            ),
        ),
        formats=("text", "json"),
    ),
)
