"""Settings of Kafka's producers and consumers: those that policies may set as defaults, their valid
values, and a client's effective settings from kdir's defaults, policies and the program.

Names are Kafka's (``ProducerConfig`` and ``ConsumerConfig`` of Apache Kafka 4.1) and librdkafka's
2.x. Settings that name brokers, a principal or a group, or that load code, are set only by the
program: the right to set policies must not allow to redirect producers. Producers are idempotent by
default (KIP-679).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from resolver.errors import InvalidArgument
from resolver.printable import cut_name, cut_shown
from resolver.setting_types import (
    INTEGER,
    SettingType,
    boolean,
    int_of,
    list_of,
    long_of,
    nearest,
    one_of,
    parts,
)

__all__ = [
    "COMMAND_LINE",
    "PROGRAM",
    "Client",
    "SettingLayer",
    "conflict_in",
    "consumer_settings",
    "for_librdkafka",
    "problem_with",
    "producer_settings",
]

PROGRAM: Final = "the program"
COMMAND_LINE: Final = "-X or --properties"
"""Origin of settings from the command line; ``PROGRAM`` is that of settings which a program gives
to its client.
"""
_IDEMPOTENCE: Final = "enable.idempotence"
_IN_FLIGHT: Final = "max.in.flight.requests.per.connection"
_MOST_IN_FLIGHT: Final = 5
_TRANSACTION: Final = "transactional.id"
_ASSIGNORS: Final = "partition.assignment.strategy"
_COOPERATIVE: Final = "cooperative-sticky"
_CLASSIC: Final = ("heartbeat.interval.ms", _ASSIGNORS, "session.timeout.ms")
"""Settings that the brokers have for a consumer with ``group.protocol=consumer`` (KIP-848); a
client with one of them does not start.
"""


class Client(StrEnum):
    """Kind of Kafka client."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class SettingLayer:
    """Settings of one origin. A later layer overrides an earlier one."""

    origin: str
    """Text for people, such as ``the policies of /la/tracking``."""
    settings: Mapping[str, object]


_TEXT: Final = SettingType("a text", bool)
_MS: Final = int_of(0)
_BOTH: Final[Mapping[str, SettingType]] = {
    "allow.auto.create.topics": boolean(),
    "broker.address.family": one_of("any", "v4", "v6"),
    "client.dns.lookup": one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "client.id": _TEXT,
    "connections.max.idle.ms": long_of(-1),
    "enable.metrics.push": boolean(),
    "metadata.max.age.ms": long_of(0),
    "metadata.recovery.rebootstrap.trigger.ms": long_of(0),
    "metadata.recovery.strategy": one_of("none", "rebootstrap"),
    "receive.buffer.bytes": int_of(-1),
    "reconnect.backoff.max.ms": long_of(0),
    "reconnect.backoff.ms": long_of(0),
    "request.timeout.ms": _MS,
    "retry.backoff.max.ms": long_of(0),
    "retry.backoff.ms": long_of(0),
    "send.buffer.bytes": int_of(-1),
    "socket.connection.setup.timeout.max.ms": long_of(0),
    "socket.connection.setup.timeout.ms": long_of(0),
    "socket.keepalive.enable": boolean(),
    "socket.nagle.disable": boolean(),
    "socket.timeout.ms": int_of(10, 300_000),
    "statistics.interval.ms": int_of(0, 86_400_000),
    "topic.metadata.refresh.interval.ms": int_of(-1, 3_600_000),
}
_PRODUCER: Final[Mapping[str, SettingType]] = {
    "acks": one_of("all", "-1", "0", "1"),
    "batch.num.messages": int_of(1, 1_000_000),
    "batch.size": int_of(0),
    "buffer.memory": long_of(0),
    "compression.gzip.level": int_of(1, 9, -1),
    "compression.level": int_of(-1, 12),
    "compression.lz4.level": int_of(1, 17),
    "compression.type": one_of("none", "gzip", "snappy", "lz4", "zstd"),
    "compression.zstd.level": int_of(-131_072, 22),
    "delivery.timeout.ms": _MS,
    _IDEMPOTENCE: boolean(),
    "linger.ms": int_of(0),
    "max.block.ms": long_of(0),
    _IN_FLIGHT: int_of(1),
    "max.request.size": int_of(0),
    "message.max.bytes": int_of(1000, 1_000_000_000),
    "metadata.max.idle.ms": long_of(5_000),
    "partitioner": one_of(
        "random", "consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a",
        "fnv1a_random",
    ),
    "partitioner.adaptive.partitioning.enable": boolean(),
    "partitioner.availability.timeout.ms": long_of(0),
    "partitioner.ignore.keys": boolean(),
    "queue.buffering.max.kbytes": int_of(1),
    "queue.buffering.max.messages": int_of(0),
    "retries": int_of(0),
    "sticky.partitioning.linger.ms": int_of(0, 900_000),
    "transaction.timeout.ms": int_of(1),
}  # fmt: skip
_TRANSACTIONAL: Final = SettingType("a name that is not empty", bool, str)
"""Type of a transactional id. Kafka's producer refuses an empty id; librdkafka would use no
transactions.
"""
_CONSUMER: Final[Mapping[str, SettingType]] = {
    "auto.commit.interval.ms": int_of(0),
    "auto.offset.reset": one_of("earliest", "latest", "none", "error"),
    "check.crcs": boolean(),
    "client.rack": _TEXT,
    "default.api.timeout.ms": _MS,
    "enable.auto.commit": boolean(),
    "enable.auto.offset.store": boolean(),
    "enable.partition.eof": boolean(),
    "exclude.internal.topics": boolean(),
    "fetch.max.bytes": int_of(0),
    "fetch.max.wait.ms": _MS,
    "fetch.min.bytes": int_of(0),
    "fetch.wait.max.ms": int_of(0, 300_000),
    "group.protocol": one_of("classic", "consumer"),
    "group.remote.assignor": _TEXT,
    "heartbeat.interval.ms": int_of(1),
    "isolation.level": one_of("read_committed", "read_uncommitted"),
    "max.partition.fetch.bytes": int_of(0),
    "max.poll.interval.ms": int_of(1),
    "max.poll.records": int_of(1),
    _ASSIGNORS: list_of("range", "roundrobin", _COOPERATIVE),
    "queued.max.messages.kbytes": int_of(1, 2_097_151),
    "queued.min.messages": int_of(1, 10_000_000),
    "session.timeout.ms": int_of(1),
}
_DEFINITIONS: Final[Mapping[Client, Mapping[str, SettingType]]] = {
    Client.PRODUCER: {**_BOTH, **_PRODUCER},
    Client.CONSUMER: {**_BOTH, **_CONSUMER},
}
_ALIASES: Final[Mapping[str, str]] = {
    # librdkafka has two names for each of these settings; kdir uses Kafka's name.
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.in.flight": _IN_FLIGHT,
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}
_THE_PROGRAMS: Final = (
    "bootstrap.servers", "group.id", "group.instance.id", "interceptor.classes", "key.", "metric",
    "plugin.", "sasl.", "security.", "ssl.", _TRANSACTION, "value.",
)  # fmt: skip
"""Prefixes of the names of settings that only a program may set."""
_NOT_LIBRDKAFKAS: Final[Mapping[str, str]] = {
    # Settings of Kafka's Java client that librdkafka has by another name, or (empty) not at all.
    "buffer.memory": "",
    "compression.gzip.level": "",
    "compression.lz4.level": "",
    "compression.zstd.level": "",
    "default.api.timeout.ms": "",
    "exclude.internal.topics": "",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.block.ms": "",
    "max.request.size": "message.max.bytes",
    "metadata.max.idle.ms": "",
    "partitioner.adaptive.partitioning.enable": "",
    "partitioner.availability.timeout.ms": "",
    "partitioner.ignore.keys": "",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "",
}
_SYNONYMS: Final[Mapping[str, str]] = {
    one: other
    for pair in _NOT_LIBRDKAFKAS.items()
    for one, other in (pair, pair[::-1])
    if one and other
}
"""Kafka's name of a setting by librdkafka's name, and the reverse."""
_OTHER_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("auto.offset.reset", "none"): "error",
    ("connections.max.idle.ms", "-1"): "0",
    ("socket.receive.buffer.bytes", "-1"): "0",
    ("socket.send.buffer.bytes", "-1"): "0",
}
"""librdkafka's values by its name of the setting and Kafka's value; others are the same."""
_INT_MAX: Final = 2**31 - 1
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "auto.commit.interval.ms": (0, 86_400_000),
    "batch.size": (1, _INT_MAX),
    "connections.max.idle.ms": (0, _INT_MAX),
    "fetch.max.bytes": (0, 2_147_483_135),
    "fetch.min.bytes": (1, 100_000_000),
    "fetch.wait.max.ms": (0, 300_000),
    "heartbeat.interval.ms": (1, 3_600_000),
    "linger.ms": (0, 900_000),
    _IN_FLIGHT: (1, 1_000_000),
    "max.partition.fetch.bytes": (1, 1_000_000_000),
    "max.poll.interval.ms": (1, 86_400_000),
    "message.max.bytes": (1_000, 1_000_000_000),
    "metadata.max.age.ms": (1, 86_400_000),
    "metadata.recovery.rebootstrap.trigger.ms": (0, _INT_MAX),
    "reconnect.backoff.max.ms": (0, 3_600_000),
    "reconnect.backoff.ms": (0, 3_600_000),
    "request.timeout.ms": (1, 900_000),
    "retry.backoff.max.ms": (1, 300_000),
    "retry.backoff.ms": (1, 300_000),
    "session.timeout.ms": (1, 3_600_000),
    "socket.connection.setup.timeout.ms": (1_000, _INT_MAX),
    "socket.receive.buffer.bytes": (0, 100_000_000),
    "socket.send.buffer.bytes": (0, 100_000_000),
    # librdkafka adds 100 to this, in 32 bits, to compare it with `socket.timeout.ms`.
    "transaction.timeout.ms": (1_000, _INT_MAX - 100),
}
"""Least and greatest values in librdkafka, by its name, of settings with a wider range in Kafka: a
value that is valid in Kafka must not keep a client from starting.
"""
_AT_LEAST: Final[Mapping[str, tuple[int, str, int, int]]] = {
    "delivery.timeout.ms": (300_000, "linger.ms", 5, 1),
    "fetch.max.bytes": (52_428_800, "message.max.bytes", 1_000_000, 0),
    "max.poll.interval.ms": (300_000, "session.timeout.ms", 45_000, 0),
    "reconnect.backoff.max.ms": (10_000, "reconnect.backoff.ms", 100, 0),
}
"""Settings of librdkafka that must be at least as large as another one: their default, the other
setting, its default, and the least difference.
"""

_NO_TOPICS: Final = {"allow.auto.create.topics": "false"}
"""Default of producers and consumers: a request for a missing topic does not create it."""
_SAFE: Final = SettingLayer(
    "kdir", MappingProxyType({"acks": "all", "retries": "2147483647", **_NO_TOPICS})
)
"""Defaults of a producer; ``_idempotent`` computes the default of idempotence."""


# -- defaults for a path ---------------------------------------------------------------------------


def problem_with(client: Client, name: str, value: str) -> str:
    """Returns why a policy may not set a default to this value, as text; empty = it may."""
    known = _DEFINITIONS[client]
    own = _ALIASES.get(name, name)
    if own.startswith(_THE_PROGRAMS):
        return f"{cut_name(name)} can be set only by a program, not by a policy"
    definition = known.get(own)
    if definition is None:
        near = nearest(name, known)
        return f"no {client} setting {cut_shown(name)} could be a default; did you mean {near}?"
    if own != name:
        return f"expected {own}, which is Kafka's name for {name}"
    if definition.fits(value):
        return ""
    return f"found {cut_shown(value)}; expected {definition.wanted}"


def conflict_in(client: Client, settings: Mapping[str, str | None]) -> str:
    """Returns the conflict between defaults that no producer can have together (KIP-679), as text;
    empty = none.
    """
    if client is not Client.PRODUCER:
        return ""
    sourced = {key: value for key, value in settings.items() if value is not None}
    try:
        producer_settings([SettingLayer("", sourced)])
    except InvalidArgument as error:
        return error.message
    return ""


# -- what a client gets ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SourcedValue:
    """Value of a setting, and the origin that set it."""

    value: str
    origin: str

    def reported(self, name: str) -> str:
        by = f" (by {self.origin})" if self.origin else ""
        return f"{name}={self.value}{by}"


def producer_settings(layers: Sequence[SettingLayer]) -> dict[str, str]:
    """Returns the settings of a producer, by Kafka's names: by default ``acks=all`` and
    ``enable.idempotence=true`` (KIP-679), and it creates no topics.

    A setting that conflicts with idempotence switches idempotence off, unless a layer requests it
    by ``enable.idempotence=true`` or a transactional id: then the conflict is an error.

    Raises:
        InvalidArgument: two settings conflict (the message names both), or a checked setting has an
            invalid value.
    """
    sourced = _put_together([_SAFE, *layers])
    for name in ("acks", "retries", _IN_FLIGHT, _IDEMPOTENCE):
        _check(sourced, name, _PRODUCER[name])
    _check(sourced, _TRANSACTION, _TRANSACTIONAL)
    sourced[_IDEMPOTENCE] = _idempotent(sourced)
    if _TRANSACTION in sourced and "client.id" not in sourced:
        own = sourced[_TRANSACTION]
        sourced["client.id"] = _SourcedValue(f"producer-{own.value}", own.origin)
    return {name: one.value for name, one in sourced.items()}


def consumer_settings(layers: Sequence[SettingLayer]) -> dict[str, str]:
    """Returns the settings of a consumer, by Kafka's names; by default it creates no topics.
    Settings that its group protocol does not allow are left out, unless the program sets them.
    """
    sourced = _put_together([SettingLayer("kdir", _NO_TOPICS), *layers])
    protocol = sourced.get("group.protocol")
    if protocol is not None and protocol.value.strip().lower() == "consumer":
        for name in _CLASSIC:
            if name in sourced and sourced[name].origin not in {PROGRAM, COMMAND_LINE}:
                del sourced[name]
    return {name: one.value for name, one in sourced.items()}


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings with librdkafka's names and values; settings that it does not have are
    left out. A number outside librdkafka's range becomes the nearest one in it.
    """
    named = ((_NOT_LIBRDKAFKAS.get(name, name), value) for name, value in settings.items())
    found = {name: _librdkafkas(name, value) for name, value in named if name}
    for name, (default, other, others_default, more) in _AT_LEAST.items():
        if name in found or other in found:
            value = _number(found.get(name, ""), default)
            least = _number(found.get(other, ""), others_default) + more
            # A delivery timeout of 0 means no limit.
            if value < least and not (more and value == 0):
                found[name] = str(least)
    if found.get(_TRANSACTION):
        _fit_transaction(found)
    if _ASSIGNORS in found:
        found[_ASSIGNORS] = _of_one_protocol(found[_ASSIGNORS])
    return found


def _of_one_protocol(assignors: str) -> str:
    """Returns only the assignors of the same protocol as the first one: librdkafka refuses a list
    with both protocols, by which Kafka's clients change from the eager to the cooperative one
    (KIP-429).
    """
    named = parts(assignors)
    is_cooperative = named[0] == _COOPERATIVE
    return ",".join(one for one in named if (one == _COOPERATIVE) == is_cooperative)


def _fit_transaction(found: dict[str, str]) -> None:
    """Lowers the timeouts that librdkafka refuses because they exceed the transaction's."""
    most = _number(found.get("transaction.timeout.ms", ""), 60_000)
    limits = {
        "socket.timeout.ms": most + 100,
        "delivery.timeout.ms": most,
        "linger.ms": most - 1,
    }
    for name, limit in limits.items():
        if _number(found.get(name, ""), 0) > limit:
            found[name] = str(limit)


def _librdkafkas(name: str, value: str) -> str:
    value = _OTHER_VALUES.get((name, value), value)
    if name not in _RANGES or not INTEGER.fullmatch(value.strip()):
        return value
    least, most = _RANGES[name]
    return value if least <= int(value) <= most else str(min(max(int(value), least), most))


def _number(text: str, default: int) -> int:
    return int(text) if INTEGER.fullmatch(text.strip()) else default


def _put_together(layers: Sequence[SettingLayer]) -> dict[str, _SourcedValue]:
    sourced: dict[str, _SourcedValue] = {}
    for layer in layers:
        for name, value in layer.settings.items():
            sourced.pop(_SYNONYMS.get(name, ""), None)
            sourced[_ALIASES.get(name, name)] = _SourcedValue(_text(value), layer.origin)
    return sourced


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(sourced: dict[str, _SourcedValue], name: str, definition: SettingType) -> None:
    one = sourced.get(name)
    if one is None:
        return
    if not definition.fits(one.value.strip()):
        raise InvalidArgument(
            f"{one.reported(name)}: expected {definition.wanted}", field=name, found=one.value
        )
    sourced[name] = _SourcedValue(definition.normal(one.value), one.origin)


def _idempotent(sourced: Mapping[str, _SourcedValue]) -> _SourcedValue:
    asked, transaction = sourced.get(_IDEMPOTENCE), sourced.get(_TRANSACTION)
    if asked is not None and asked.value == "false":
        if transaction is not None:
            raise _conflict(asked.reported(_IDEMPOTENCE), transaction.reported(_TRANSACTION))
        return asked
    against = _against(sourced)
    if not against:
        return asked or _SourcedValue("true", _SAFE.origin)
    for name, one in ((_IDEMPOTENCE, asked), (_TRANSACTION, transaction)):
        if one is not None:
            raise _conflict(against, one.reported(name))
    return _SourcedValue("false", _SAFE.origin)


def _against(sourced: Mapping[str, _SourcedValue]) -> str:
    """Returns the first setting that conflicts with idempotence, as text; empty = none."""
    acks, retries, flying = sourced["acks"], sourced["retries"], sourced.get(_IN_FLIGHT)
    if acks.value not in {"all", "-1"}:
        return f"{acks.reported('acks')}, where all is needed,"
    if int(retries.value) == 0:
        return f"{retries.reported('retries')}, where 1 or more is needed,"
    if flying is not None and int(flying.value) > _MOST_IN_FLIGHT:
        return f"{flying.reported(_IN_FLIGHT)}, where at most {_MOST_IN_FLIGHT} is needed,"
    return ""


def _conflict(one: str, other: str) -> InvalidArgument:
    return InvalidArgument(f"{one} cannot be combined with {other}: leave one of them out")
