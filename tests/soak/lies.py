"""Lies: what a broken kdir would do, put between a worker and the servers to show that it is found.

A run with a lie must end in a breach; a checker that never failed has shown nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from deploy.local.kafka import KafkaBroker
from resolver.errors import Absent, KdirError, Unavailable
from tests.soak import model

__all__ = ["KAFKA_LIES", "LIES", "Lies"]

LIES: Final[dict[str, frozenset[str]]] = {
    "lost write": frozenset({"read ", "refused ", "answer "}),
    "second effect": frozenset({"repeat "}),
    "refusal": frozenset({"refused "}),
    "absent": frozenset({"read get", "read list", "settled"}),
    "old value": frozenset({"read get with token", "read list with token"}),
    "old position": frozenset({"older than token"}),
    "allowed": frozenset({"read check with token", "read check"}),
    "lost count": frozenset({"counter"}),
    "watch twice": frozenset({"watch order"}),
    "watch gap": frozenset({"watch lost"}),
}
"""Each lie, with the beginnings of the kinds of breaches of which one must be found."""
KAFKA_LIES: Final[dict[str, frozenset[str]]] = {
    "kafka deletes": frozenset({"kafka deleted"}),
    "kafka shortens": frozenset({"kafka shortened", "kafka messages lost"}),
}


@dataclass(slots=True)
class Lies:
    """The one lie of a run, told now and then."""

    lie: str = ""
    source: random.Random = field(default_factory=lambda: random.Random(1))
    kept: dict[str, Any] = field(default_factory=dict)

    def reports(self, lie: str, share: float = 0.3) -> bool:
        """True if it is told now."""
        return lie == self.lie and self.source.random() < share

    def bend_request(self, request: Any) -> None:
        """Changes a write before it is sent."""
        if self.reports("lost write"):
            request.validate_only = True
        if self.reports("second effect", 1.0):
            request.request_id = f"{self.source.getrandbits(96):x}"

    def bend_refusal(self, error: KdirError) -> KdirError:
        """Returns a refusal, perhaps changed, before it is checked."""
        if self.reports("refusal") and not isinstance(error, Unavailable | Absent):
            return Absent("it is not there")
        return error

    def bend_answer(self, what: str, key: str, token: str, found: Any) -> Any:
        """Returns an answer, perhaps changed, before it is checked; ``found`` is a
        ``doors.Answered``.
        """
        if self.lie in ("old value", "old position"):
            old = self.kept.setdefault(key, found)
            if token and self.reports("old value", 1.0):
                return type(found)(old.value, found.position)
            if token and self.reports("old position", 1.0):
                return old
        if self.reports("absent") and found.value != model.ABSENT and what in ("get", "list"):
            return type(found)(model.ABSENT)
        if what == "check" and self.reports("allowed", 1.0):
            return type(found)(True, found.position)
        return found

    def bend_watch(self, events: list[Any]) -> Iterator[list[Any]]:
        """Yields events, perhaps changed, before they are checked."""
        if events and self.reports("watch twice"):
            yield events
        yield [] if events and self.reports("watch gap") else events

    def bend_kafka(self, broker: KafkaBroker, names: list[str]) -> None:
        """Changes something in Kafka that no operation asked for."""
        if not names:
            return
        admin = AdminClient({**broker.client(), "log_level": 0})
        name = self.source.choice(sorted(names))
        if self.reports("kafka deletes", 1.0):
            admin.delete_topics([name])[name].result(10)
        if self.reports("kafka shortens", 1.0):
            entry = ConfigEntry(
                "retention.ms", "60000", incremental_operation=AlterConfigOpType.SET
            )
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(10)
