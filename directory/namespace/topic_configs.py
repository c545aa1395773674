"""Kafka's topic configs: their names, and the values that Kafka accepts; not their defaults.

The definitions are those of Apache Kafka 4.1 (``org.apache.kafka.storage.internals.log.LogConfig``
with its ``ConfigDef`` types and validators), with those that 4.0 removed (KIP-724), since older
clusters have them. A test compares them with a real broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from resolver.printable import cut_shown
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
    ratio,
)

__all__ = ["NAMES", "conflict_in", "deletes_data", "problem_with", "same_value", "unknown"]

_VENDORS: Final = ("confluent.", "redpanda.")
"""Prefixes of vendors' configs, for which any text is accepted."""


def _throttled() -> SettingType:
    pair = re.compile(r"[0-9]+:[0-9]+", re.ASCII)

    def fits(text: str) -> bool:
        found = parts(text)
        return found in ([""], ["*"]) or all(pair.fullmatch(part) for part in found)

    return SettingType("* or PARTITION:BROKER, with commas between them", fits)


_DEFINITIONS: Final[Mapping[str, SettingType]] = {
    "cleanup.policy": list_of("compact", "delete"),
    "compression.gzip.level": int_of(1, 9, -1),
    "compression.lz4.level": int_of(1, 17),
    "compression.type": one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "compression.zstd.level": int_of(-131_072, 22),
    "delete.retention.ms": long_of(0),
    "file.delete.delay.ms": long_of(0),
    "flush.messages": long_of(1),
    "flush.ms": long_of(0),
    "follower.replication.throttled.replicas": _throttled(),
    "index.interval.bytes": int_of(0),
    "leader.replication.throttled.replicas": _throttled(),
    "local.retention.bytes": long_of(-2),
    "local.retention.ms": long_of(-2),
    "max.compaction.lag.ms": long_of(1),
    "max.message.bytes": int_of(0),
    "message.timestamp.after.max.ms": long_of(0),
    "message.timestamp.before.max.ms": long_of(0),
    "message.timestamp.type": one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": ratio(),
    "min.compaction.lag.ms": long_of(0),
    "min.insync.replicas": int_of(1),
    "preallocate": boolean(),
    "remote.log.copy.disable": boolean(),
    "remote.log.delete.on.disable": boolean(),
    "remote.storage.enable": boolean(),
    "retention.bytes": long_of(),
    "retention.ms": long_of(-1),
    "segment.bytes": int_of(1024 * 1024),
    "segment.index.bytes": int_of(4),
    "segment.jitter.ms": long_of(0),
    "segment.ms": long_of(1),
    "unclean.leader.election.enable": boolean(),
    # Until Kafka 3.9; a newer broker refuses them with its own message.
    "message.downconversion.enable": boolean(),
    "message.format.version": SettingType("a version such as 3.0-IV1", bool),
    "message.timestamp.difference.max.ms": long_of(0),
}

NAMES: Final = frozenset(_DEFINITIONS)
"""Names of Kafka's configs."""


def problem_with(name: str, value: str) -> str:
    """Returns what is wrong with a config, as the end of a sentence; empty = nothing. The text for
    an unknown name suggests the nearest known one.
    """
    definition = _DEFINITIONS.get(name)
    if definition is None:
        return unknown(name)
    if definition.fits(value):
        return ""
    return f"found {cut_shown(value)}; expected {definition.wanted}"


def unknown(name: str) -> str:
    """Returns the sentence that Kafka has no such config, with the nearest name; empty = Kafka has
    it, or a vendor's may.
    """
    if name in _DEFINITIONS or name.startswith(_VENDORS):
        return ""
    near = nearest(name, _DEFINITIONS)
    return f"Kafka has no topic config {cut_shown(name)}; did you mean {near}?"


def conflict_in(configs: Mapping[str, str | None]) -> str:
    """Returns two configs that Kafka does not accept together, as text; empty = none. Configs that
    are not set are ignored, since the broker's defaults are unknown.
    """

    def number(name: str) -> int | None:
        text = configs.get(name)
        return int(text) if text is not None and INTEGER.fullmatch(text.strip()) else None

    shortest, longest = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if shortest is not None and longest is not None and shortest > longest:
        return (
            f"min.compaction.lag.ms {shortest} is above max.compaction.lag.ms {longest}; "
            f"expected at most that"
        )
    local, whole = number("local.retention.ms"), number("retention.ms")
    if local is not None and whole is not None and -1 < whole < local:
        return f"local.retention.ms {local} is above retention.ms {whole}; expected at most that"
    return ""


def same_value(name: str, one: str | None, other: str | None) -> bool:
    """True if Kafka treats two texts as the same value: ``1`` and ``01``, ``TRUE`` and ``true``."""
    if one == other or one is None or other is None:
        return one == other
    definition = _DEFINITIONS.get(name)
    if definition is None or not (definition.fits(one) and definition.fits(other)):
        return False
    return definition.normal(one) == definition.normal(other)


def deletes_data(name: str, before: str | None, after: str | None) -> bool:
    """True if a change may make Kafka delete records that it would have kept.

    ``None`` is the broker's default, which is unknown here: a change from or to it counts as
    deleting, unless the new value keeps everything. Earlier compaction counts whatever the cleanup
    policy is, since that may be the broker's, or may change. Configs that only affect new records,
    or how often Kafka cleans up, do not count.
    """
    match name:
        case (
            "retention.ms"
            | "retention.bytes"
            | "delete.retention.ms"
            | "min.compaction.lag.ms"
            | "max.compaction.lag.ms"
        ):
            left, now = _kept(before), _kept(after)
            return now is None or (now != _FOR_EVER and (left is None or now < left))
        case "cleanup.policy":
            # Compaction deletes older records of a key, deletion old records of any.
            had = set(parts(before)) if before is not None else set()
            return after is None or not {part for part in parts(after) if part} <= had
        case "unclean.leader.election.enable":
            # A replica that is behind becomes the leader, and the others forget what it lacks.
            return not (same_value(name, after, "false") or same_value(name, before, "true"))
        case "remote.log.delete.on.disable" | "remote.storage.enable":
            return same_value(name, after, "true") == (name == "remote.log.delete.on.disable")
        case _:
            return False


_FOR_EVER: Final = 2**64


def _kept(text: str | None) -> int | None:
    """Returns the limit up to which Kafka keeps records, in the config's unit; None = unknown."""
    if text is None or not INTEGER.fullmatch(text.strip()):
        return None
    number = int(text)
    return _FOR_EVER if number < 0 else number
