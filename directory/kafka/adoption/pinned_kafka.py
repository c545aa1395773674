"""Stored facts about the pinned Kafka as a whole: its id, whether this cluster manages it, a stop,
an acknowledgement, rules of adoption.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from directory.kafka.adoption.vanish_guard import StopReason
from directory.namespace.adoption_mapping import MappingRule
from directory.namespace.keys import kafka_key
from directory.store.base import Delete, KeyEquals, Put, Write
from resolver.errors import InvalidArgument, KafkaReplaced, VanishGuard

__all__ = [
    "MANAGED_ELSEWHERE",
    "NOT_KNOWN",
    "NOT_ON_RECORD",
    "STOPPED",
    "Facts",
    "PinnedKafka",
    "acknowledge_stop",
    "acknowledgement",
    "forget_acknowledgement",
    "note_manager",
    "pin",
    "pinned_text",
    "stop",
    "without_manager",
    "write_rules",
]


_PIN: Final = kafka_key("pin")
_PINNED_AT: Final = kafka_key("pinned-at")
STOPPED: Final = kafka_key("stopped")
NOT_ON_RECORD: Final = "that this cluster manages its Kafka again is not on record yet; ask again"
"""Why nothing is changed in Kafka until the elected server has recorded that."""
NOT_KNOWN: Final = (
    "whether another cluster still manages this Kafka is not known yet: this server has not loaded "
    "all its clusters; ask again"
)
"""Why nothing is changed in Kafka by a cluster that another one managed, while another cluster of
the same process is not loaded."""
MANAGED_ELSEWHERE: Final = (
    "another cluster, which was pinned to this Kafka first, manages it: nothing is changed in it "
    "from here; kdir doctor names that cluster"
)
"""Why nothing is changed in Kafka; omits the cluster that manages it and its mount, which may be
hidden from the caller."""
_MANAGING: Final = kafka_key("managing")
_UNMANAGED: Final = "unmanaged"
_ALLOWED: Final = kafka_key("allowed")
_ACKNOWLEDGED: Final = kafka_key("acknowledged")
_RULES: Final = kafka_key("rules")
_LATEST_MS: Final = 2**63 - 1
"""The latest time that a claim can have (``kdir.v1.KafkaClaim``)."""
_UNREAD_RULES: Final = (MappingRule.from_fields("*", ignore=True),)
"""Rules while those on record cannot be read: they adopt no topic, as those may leave it out
(S21)."""


class Facts(Protocol):
    """Access to the facts of a snapshot."""

    def fact(self, key: bytes) -> bytes | None:
        """Returns the value of a fact."""


@dataclass(frozen=True, slots=True)
class PinnedKafka:
    """Facts about the pinned Kafka, as of one snapshot."""

    pinned: str = ""
    pinned_at_ms: int = 0
    """Unix milliseconds; 0 = unknown: pinned by a version that did not record it."""
    unmanaged: bool = False
    """True: by the last record of the elected server, another cluster manages this Kafka."""
    stop: StopReason | None = None
    allowed: int = 0
    """Number of topics that an operator allowed to be gone at the next comparison."""
    rules: tuple[MappingRule, ...] = ()

    @property
    def is_working(self) -> bool:
        """True if a Kafka is pinned and no stop is in force."""
        return self.stop is None and bool(self.pinned)

    @property
    def note(self) -> str:
        """Why no topic is adopted; empty = rules of adoption can be read."""
        unread = f"nothing is adopted: {_RULES.decode()} cannot be read: give kdir adopt its rules"
        return unread if self.rules is _UNREAD_RULES else ""

    def refuse_stopped(self) -> None:
        """Checks that no stop is in force.

        Raises:
            KafkaReplaced, VanishGuard
        """
        if self.stop is not None:
            raise (KafkaReplaced if self.stop.kafka_id else VanishGuard)(self.stop.text)

    def refuse_another(self, seen_id: str) -> None:
        """Checks that this is the pinned Kafka, if one is pinned.

        Raises:
            KafkaReplaced
        """
        if self.pinned and seen_id != self.pinned:
            message = f"another Kafka cluster answers: {seen_id}; this directory belongs to "
            raise KafkaReplaced(message + self.pinned, pinned=self.pinned, seen=seen_id)

    @classmethod
    def load(cls, snapshot: Facts) -> PinnedKafka:
        """Reads the facts. An unreadable fact counts as missing, except: a stop stays a stop, the
        manager is another cluster, the time of the pin the latest, and rules adopt no topic.
        """
        return cls(
            pinned=(snapshot.fact(_PIN) or b"").decode(errors="replace"),
            pinned_at_ms=_read_pinned_at(snapshot.fact(_PINNED_AT)),
            unmanaged=_read_managing(snapshot)[1],
            stop=_read_stop(snapshot.fact(STOPPED)),
            allowed=_read_number(snapshot.fact(_ALLOWED)),
            rules=_read_rules(snapshot.fact(_RULES)),
        )


def pin(kafka_id: str, at_ms: int = 0) -> tuple[Write, ...]:
    """Returns the writes that pin Kafka's own id; ``at_ms``: Unix milliseconds."""
    return (Put(_PIN, kafka_id.encode()), Put(_PINNED_AT, str(at_ms).encode()))


def stop(reason: StopReason | None) -> tuple[Write, ...]:
    """Returns the write that stops everything; for None, the one that ends a stop."""
    if reason is None:
        return (Delete(STOPPED),)
    return (Put(STOPPED, json.dumps(asdict(reason)).encode()),)


def pinned_text(snapshot: Facts) -> list[str]:
    """Returns the pinned Kafka's id, the time of the pin and the fact of ``note_manager``. So the
    text is new when a Kafka is pinned again after another one, and when this cluster manages its
    Kafka again.
    """
    keys = (_PIN, _PINNED_AT, _MANAGING)
    return [(snapshot.fact(key) or b"").decode(errors="replace") for key in keys]


def note_manager(snapshot: Facts, *, unmanaged: bool) -> tuple[tuple[Write, ...], KeyEquals]:
    """Returns the write that records whether another cluster manages this Kafka, and its guard; no
    write if that is on record already. A number in it makes each recorded value a new one.
    """
    value = snapshot.fact(_MANAGING)
    guard, (number, known) = KeyEquals(_MANAGING, value), _read_managing(snapshot)
    if known == unmanaged:
        return (), guard
    text = _UNMANAGED if unmanaged else "managing"
    return (Put(_MANAGING, f"{number + 1} {text}".encode()),), guard


def without_manager(why: str) -> str:
    """Returns why nothing is changed in Kafka, without naming the cluster that manages it."""
    return why if why in {"", NOT_KNOWN} else MANAGED_ELSEWHERE


def acknowledge_stop(reason: StopReason, snapshot: Facts, at_ms: int = 0) -> tuple[Write, ...]:
    """Returns the writes that acknowledge a stop, for the number of topics that it reported."""
    writes: list[Write] = [Delete(STOPPED), Put(_ALLOWED, str(reason.gone).encode())]
    if reason.kafka_id:
        # Later than before, whatever the clock shows: no two pins have the same time.
        writes += pin(reason.kafka_id, max(at_ms, _read_number(snapshot.fact(_PINNED_AT)) + 1))
    return tuple(writes)


def acknowledgement(text: str, principal: str, request_id: str) -> Put:
    """Returns the write that records a stop's text and the request that acknowledged it: the same
    request, sent again, acknowledges no later stop.
    """
    return Put(_ACKNOWLEDGED, json.dumps([text, principal, request_id]).encode())


def forget_acknowledgement() -> tuple[Write, ...]:
    """Returns the write that removes an acknowledgement that was used."""
    return (Delete(_ALLOWED),)


def write_rules(rules: Sequence[MappingRule]) -> tuple[Write, ...]:
    """Returns the write that stores an adoption's rules, for topics that appear later."""
    names = "split_on", "strip_prefix", "ignore"
    value = [
        {name: getattr(rule, name) for name in names}
        | {"match": rule.match.text, "into": "/".join(rule.into)}
        for rule in rules
    ]
    return (Put(_RULES, json.dumps(value).encode()),)


def _read_stop(value: bytes | None) -> StopReason | None:
    if value is None:
        return None
    try:
        found = json.loads(value)
        return StopReason(str(found["text"]), int(found["gone"]), str(found["kafka_id"]))
    except (ValueError, KeyError, TypeError):
        # A newer version's, perhaps: whatever its form, it is a stop.
        return StopReason(value.decode(errors="replace"), 0)


def _read_number(value: bytes | None) -> int:
    try:
        return int(value or b"0")
    except ValueError:
        return 0


def _read_pinned_at(value: bytes | None) -> int:
    """Returns the time of the pin. An unreadable one is the latest: a cluster with a readable time
    precedes this one.
    """
    try:
        return 0 if value is None else min(int(value), _LATEST_MS)
    except ValueError:
        return _LATEST_MS


def _read_managing(snapshot: Facts) -> tuple[int, bool]:
    """Returns how often the manager changed, and whether it is another cluster now."""
    value = (snapshot.fact(_MANAGING) or b"").decode(errors="replace")
    number, _, text = value.partition(" ")
    try:
        return int(number or "0"), text == _UNMANAGED
    except ValueError:
        return 0, True  # a newer version's, perhaps


def _read_rules(value: bytes | None) -> tuple[MappingRule, ...]:
    if value is None:
        return ()
    try:
        return tuple(MappingRule.from_fields(**rule) for rule in json.loads(value))
    except (ValueError, TypeError, InvalidArgument):
        return _UNREAD_RULES
