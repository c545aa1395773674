"""Kafka's topic configs: which there are, and which values Kafka takes; refuses to know defaults.

The definitions are those of Apache Kafka 4.1 (``org.apache.kafka.storage.internals.log.LogConfig``
with its ``ConfigDef`` types and validators), and of what 4.0 removed (KIP-724), since older
clusters have it. A test holds them against a real broker. Numbers have Kafka's 32 and 64 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

__all__ = ["NAMES", "conflict_in", "deletes_data", "problem_with", "same_value"]

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_VENDORS: Final = ("confluent.", "redpanda.")
"""Configs of such names are their vendors': any text is taken."""


@dataclass(frozen=True, slots=True)
class _Definition:
    """One config: ``fits`` is a test of its text, ``wanted`` says in words what would be right."""

    wanted: str
    fits: Callable[[str], bool]
    normal: Callable[[str], str] = str.strip
    """The same text for the same value."""


def _whole(least: int, most: int, *besides: int) -> _Definition:
    def fits(text: str) -> bool:
        if not _INTEGER.fullmatch(text.strip()):
            return False
        number = int(text)
        return least <= number <= most or number in besides

    upper = "" if most in {_INT_MAX, _LONG_MAX} else f" to {most}"
    bits = "" if upper else f" (at most {most})"
    words = f"a whole number from {least}{upper}{bits}"
    extra = "".join(f", or {number}" for number in besides)
    return _Definition(words + extra, fits, lambda text: str(int(text)))


def _int(least: int = -(2**31), most: int = _INT_MAX, *besides: int) -> _Definition:
    return _whole(least, most, *besides)


def _long(least: int = -(2**63), most: int = _LONG_MAX) -> _Definition:
    return _whole(least, most)


def _ratio() -> _Definition:
    def fits(text: str) -> bool:
        return bool(_DECIMAL.fullmatch(text.strip())) and 0.0 <= float(text) <= 1.0

    return _Definition("a number from 0 to 1", fits, lambda text: repr(float(text)))


def _truth() -> _Definition:
    return _Definition(
        "true or false",
        lambda text: text.strip().lower() in {"true", "false"},
        lambda text: text.strip().lower(),
    )


def _one_of(*choices: str) -> _Definition:
    return _Definition(f"one of {', '.join(choices)}", lambda text: text in choices)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _list_of(*choices: str) -> _Definition:
    return _Definition(
        f"one or more of {', '.join(choices)}, with commas between them",
        lambda text: set(_parts(text)) <= set(choices),
        lambda text: ",".join(sorted(set(_parts(text)))),
    )


def _throttled() -> _Definition:
    pair = re.compile(r"[0-9]+:[0-9]+", re.ASCII)

    def fits(text: str) -> bool:
        parts = _parts(text)
        return parts in ([""], ["*"]) or all(pair.fullmatch(part) for part in parts)

    return _Definition("* or PARTITION:BROKER, with commas between them", fits)


_DEFINITIONS: Final[Mapping[str, _Definition]] = {
    "cleanup.policy": _list_of("compact", "delete"),
    "compression.gzip.level": _int(1, 9, -1),
    "compression.lz4.level": _int(1, 17),
    "compression.type": _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "compression.zstd.level": _int(-131_072, 22),
    "delete.retention.ms": _long(0),
    "file.delete.delay.ms": _long(0),
    "flush.messages": _long(1),
    "flush.ms": _long(0),
    "follower.replication.throttled.replicas": _throttled(),
    "index.interval.bytes": _int(0),
    "leader.replication.throttled.replicas": _throttled(),
    "local.retention.bytes": _long(-2),
    "local.retention.ms": _long(-2),
    "max.compaction.lag.ms": _long(1),
    "max.message.bytes": _int(0),
    "message.timestamp.after.max.ms": _long(0),
    "message.timestamp.before.max.ms": _long(0),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _ratio(),
    "min.compaction.lag.ms": _long(0),
    "min.insync.replicas": _int(1),
    "preallocate": _truth(),
    "remote.log.copy.disable": _truth(),
    "remote.log.delete.on.disable": _truth(),
    "remote.storage.enable": _truth(),
    "retention.bytes": _long(),
    "retention.ms": _long(-1),
    "segment.bytes": _int(1024 * 1024),
    "segment.index.bytes": _int(4),
    "segment.jitter.ms": _long(0),
    "segment.ms": _long(1),
    "unclean.leader.election.enable": _truth(),
    # Until Kafka 3.9; a newer broker refuses them in its own words.
    "message.downconversion.enable": _truth(),
    "message.format.version": _Definition("a version such as 3.0-IV1", bool),
    "message.timestamp.difference.max.ms": _long(0),
}

NAMES: Final = frozenset(_DEFINITIONS)
"""The configs that Kafka knows."""


def problem_with(name: str, value: str) -> str:
    """What is wrong with a config, in words that end a sentence; empty = nothing is.

    An unknown name is told with the nearest known one.
    """
    definition = _DEFINITIONS.get(name)
    if definition is None:
        if name.startswith(_VENDORS):
            return ""
        near = get_close_matches(name, _DEFINITIONS, n=1, cutoff=0.0)
        return f"Kafka has no topic config {name!r}; did you mean {near[0]}?"
    if definition.fits(value):
        return ""
    return f"found {value!r}; {definition.wanted} would be right"


def conflict_in(configs: Mapping[str, str | None]) -> str:
    """Two configs that Kafka does not take together, in words; empty = there are none. Those that
    are not set are not looked at: what a broker's defaults are is the broker's business.
    """

    def number(name: str) -> int | None:
        text = configs.get(name)
        return int(text) if text is not None and _INTEGER.fullmatch(text.strip()) else None

    shortest, longest = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if shortest is not None and longest is not None and shortest > longest:
        return (
            f"min.compaction.lag.ms {shortest} is above max.compaction.lag.ms {longest}; at most "
            f"that would be right"
        )
    local, whole = number("local.retention.ms"), number("retention.ms")
    if local is not None and whole is not None and -1 < whole < local:
        return (
            f"local.retention.ms {local} is above retention.ms {whole}; at most that would be right"
        )
    return ""


def same_value(name: str, one: str | None, other: str | None) -> bool:
    """Whether two texts are the same value to Kafka: ``1`` and ``01``, ``TRUE`` and ``true``."""
    if one == other or one is None or other is None:
        return one == other
    definition = _DEFINITIONS.get(name)
    if definition is None or not (definition.fits(one) and definition.fits(other)):
        return False
    return definition.normal(one) == definition.normal(other)


def deletes_data(name: str, before: str | None, after: str | None) -> bool:
    """Whether a change may make Kafka delete records that it would have kept.

    ``None`` is the broker's default, which is not known here: a change from or to it counts as one
    that deletes, unless nothing could be kept longer than what comes after.
    """
    match name:
        case "retention.ms" | "retention.bytes":
            left, now = _kept(before), _kept(after)
            return now is None or (now != _FOR_EVER and (left is None or now < left))
        case "cleanup.policy":
            # Compaction deletes older records of a key, deletion old records of any.
            had = set(_parts(before)) if before is not None else set()
            return after is None or not {part for part in _parts(after) if part} <= had
        case "remote.log.delete.on.disable" | "remote.storage.enable":
            return same_value(name, after, "true") == (name == "remote.log.delete.on.disable")
        case _:
            return False


_FOR_EVER: Final = 2**64


def _kept(text: str | None) -> int | None:
    """How much is kept, in the unit of the config; None = not known."""
    if text is None or not _INTEGER.fullmatch(text.strip()):
        return None
    number = int(text)
    return _FOR_EVER if number < 0 else number
