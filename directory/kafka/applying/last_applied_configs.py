"""What the store keeps of what kdir pushed to Kafka: per topic and per armed entry.

Values and their bytes; refuses to decide what is pushed (``config_diff.py``), and to push it.
Keys: ``k/pushed/<entry id>``, ``k/armed/<aspect>/<entry id>``; see ``keys.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from directory.namespace.keys import kafka_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write

__all__ = [
    "ARMED",
    "NOTHING_PUSHED",
    "PUSHED",
    "AppliedConfig",
    "AppliedTopic",
    "ArmedRecord",
    "armed_anywhere",
    "armed_records",
    "config_issues",
    "count_topics_with_issues",
    "load_applied_topic",
    "load_armed_record",
]

PUSHED: Final = kafka_key("pushed/")
ARMED: Final = kafka_key("armed/")
_HELD: Final = b'"held":'
_CONTESTED: Final = b'"contested":'


@dataclass(frozen=True, slots=True)
class AppliedConfig:
    """One config of one topic, as it was wished when it was last looked at."""

    value: str
    ours: bool
    """kdir set it in Kafka; else Kafka had it so already, and it is never taken back."""
    done: bool = True
    """Kafka had it; else it was to be asked for, and whether it was is not known."""
    put_back: int = 0
    """So often somebody else has changed it since."""


@dataclass(frozen=True, slots=True)
class AppliedTopic:
    """One topic. Immutable, as its maps are (P16)."""

    configs: Mapping[str, AppliedConfig] = field(default_factory=lambda: MappingProxyType({}))
    held: frozenset[str] = frozenset()
    """Configs whose change waits for an operator."""
    contested: frozenset[str] = frozenset()
    """Configs that somebody else keeps putting back: left alone."""
    refused: str = ""
    """Kafka's words, when it refused what was asked last."""
    refused_calls: str = ""
    """Which calls those were: the same ones are not asked again."""

    def to_write(self, entry_id: int) -> Write:
        """Returns what keeps it, or what forgets it where there is nothing to keep."""
        key = _key(entry_id)
        if self == NOTHING_PUSHED:
            return Delete(key)
        value: dict[str, object] = {
            "configs": {
                name: [one.value, int(one.ours), int(one.done), one.put_back]
                for name, one in sorted(self.configs.items())
            }
        }
        if self.held:
            value["held"] = sorted(self.held)
        if self.contested:
            value["contested"] = sorted(self.contested)
        if self.refused:
            value["refused"] = [self.refused, self.refused_calls]
        return Put(key, json.dumps(value, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Back from ``to_write``.

        Raises:
            ValueError: no such record.
        """
        try:
            found = json.loads(value)
            configs = {
                str(name): AppliedConfig(str(text), bool(ours), bool(done), int(back))
                for name, (text, ours, done, back) in found["configs"].items()
            }
            return cls(
                MappingProxyType(configs),
                frozenset(map(str, found.get("held", ()))),
                frozenset(map(str, found.get("contested", ()))),
                *map(str, found.get("refused", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no record of what was pushed: {error}") from None


NOTHING_PUSHED: Final = AppliedTopic()


def load_applied_topic(snapshot: Snapshot, entry_id: int) -> AppliedTopic:
    """Returns what was pushed of a topic.

    Raises:
        ValueError: what is kept cannot be read: nothing may be done to this topic.
    """
    value = snapshot.fact(_key(entry_id))
    return NOTHING_PUSHED if value is None else AppliedTopic.from_bytes(value)


def count_topics_with_issues(snapshot: Snapshot) -> tuple[int, int]:
    """Returns how many topics have something that (waits for an operator, is contested)."""
    waiting = contested = 0
    for _, value in snapshot.facts(PUSHED):
        waiting += _HELD in value
        contested += _CONTESTED in value
    return waiting, contested


def config_issues(snapshot: Snapshot, entry_id: int) -> Mapping[str, str]:
    """Returns what people should know of a topic's configs, by name: ``waiting``, ``contested``,
    ``refused``; ``partitions`` is one of the names.
    """
    try:
        known = load_applied_topic(snapshot, entry_id)
    except ValueError:
        return {}
    found = dict.fromkeys(known.contested, "contested")
    found |= dict.fromkeys(known.held, "needs-approval")
    if known.refused:
        unsure = (name for name, one in known.configs.items() if not one.done)
        found |= dict.fromkeys(unsure, "rejected")
    return found


def _key(entry_id: int) -> bytes:
    return b"%b%016x" % (PUSHED, entry_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedRecord:
    """An entry below which an aspect was armed, by which plan. A hint of where to look: whether it
    is armed still is for its policies to say.
    """

    aspect: str
    entry_id: int
    place: tuple[int, str] | None = None
    """Of a topic: parent id and name; None = a directory."""
    plan: str
    calls: int = 0
    """So many calls the plan had."""
    made: int = 0
    pending: bool = True
    """Not all of it is done yet; whoever is elected goes on."""
    basis: str = ""
    """What the plan stood on. What waited for an operator is released by it, and only by it."""
    message: str = ""
    """What did not go as planned."""
    takeover: bool = False
    """Of ``acls``: what was open to all is closed to all but those who are granted something."""
    physical_name: str = ""
    """Of a topic: its name in Kafka, by which it is found wherever it moves."""

    @property
    def key(self) -> bytes:
        """Where it is kept."""
        return _mark_key(self.aspect, self.entry_id)

    def to_put(self) -> Put:
        """Returns what keeps it."""
        value = {
            "place": self.place,
            "plan": self.plan,
            "calls": self.calls,
            "made": self.made,
            "pending": self.pending,
            "basis": self.basis,
            "message": self.message,
            "takeover": self.takeover,
            "physical_name": self.physical_name,
        }
        return Put(self.key, json.dumps(value).encode())


def armed_anywhere(snapshot: Snapshot, aspect: str) -> bool:
    """True if the aspect was ever armed at an entry of this cluster."""
    return next(snapshot.facts(ARMED + aspect.encode() + b"/"), None) is not None


def load_armed_record(snapshot: Snapshot, aspect: str, entry_id: int) -> ArmedRecord | None:
    """Returns the mark of an entry; None where it was never armed."""
    value = snapshot.fact(_mark_key(aspect, entry_id))
    return None if value is None else _mark(aspect, entry_id, value)


def armed_records(snapshot: Snapshot, aspect: str) -> list[ArmedRecord]:
    """Returns every entry that the aspect was ever armed at."""
    prefix = ARMED + aspect.encode() + b"/"
    return [
        _mark(aspect, int(key.removeprefix(prefix), 16), value)
        for key, value in snapshot.facts(prefix)
    ]


def _mark_key(aspect: str, entry_id: int) -> bytes:
    return b"%b%b/%016x" % (ARMED, aspect.encode(), entry_id)


def _mark(aspect: str, entry_id: int, value: bytes) -> ArmedRecord:
    try:
        found = json.loads(value)
        return ArmedRecord(
            aspect=aspect,
            entry_id=entry_id,
            place=None if found["place"] is None else (int(found["place"][0]), found["place"][1]),
            plan=str(found["plan"]),
            calls=int(found["calls"]),
            made=int(found["made"]),
            pending=bool(found["pending"]),
            basis=str(found["basis"]),
            message=str(found["message"]),
            takeover=bool(found.get("takeover")),
            physical_name=str(found.get("physical_name", "")),
        )
    except (ValueError, KeyError, TypeError):
        # A newer server's, perhaps: the entry is armed, and nothing is released by it.
        return ArmedRecord(aspect=aspect, entry_id=entry_id, plan="", pending=False)
