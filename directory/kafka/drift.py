"""Drift: where Kafka differs from what is wished or recorded, as rows for people; pure.

Refuses to mend it.
"""

from __future__ import annotations

from dataclasses import dataclass

from directory.kafka.admin_contract import KafkaMetadata
from directory.kafka.metadata_diff import RecordedTopic, differences, show_id
from directory.namespace.entry import Kind, Provision
from resolver.path import Path

__all__ = ["Drift", "drift_of"]


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference (``kdir.v1.Drift``)."""

    path: Path
    physical_name: str
    field: str
    expected: str
    actual: str
    provision: Provision
    state: str = ""
    """Why it is so, where that is known here."""
    kind: Kind = Kind.TOPIC
    """What stands at the path: of ACLs on groups and transactional ids a directory."""


def drift_of(one: RecordedTopic, survey: KafkaMetadata | None = None) -> list[Drift]:
    """Returns the differences of one topic, in order of field.

    ``survey``: what Kafka showed last, where that is known; else what was recorded of it.
    """
    topic = one.topic
    seen = survey.topics.get(topic.physical_name) if survey else None

    def row(field: str, wanted: str, found: str) -> Drift:
        return Drift(one.path, topic.physical_name, field, wanted, found, topic.provision)

    match topic.provision:
        case Provision.MISSING:
            return [row("topic_id", show_id(topic.topic_id), "(missing)")]
        case Provision.REPLACED:
            found = show_id(seen.topic_id) if seen else "(another)"
            return [row("topic_id", show_id(topic.topic_id), found)]
        case Provision.ACTIVE:
            return [
                row(each.field, each.wanted, each.found)
                for each in differences(topic, seen, one.desired_config)
            ]
        case _:
            # Not in Kafka yet, or not ours there: nothing to compare with.
            return []
