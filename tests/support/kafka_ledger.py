"""A Kafka in memory that keeps a ledger of topic ids: those that kdir made and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from directory.kafka.admin_contract import (
    KafkaListing,
    KafkaMetadata,
    KafkaTopic,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Still,
    Succeeded,
    TopicToCreate,
    always,
)
from resolver.errors import KafkaUnavailable
from tests.unit.kafka.test_acl_applier import Kafka

__all__ = ["Ledger"]


class Ledger(Kafka):
    """A Kafka that gives no topic id twice, and in which tests choose how requests fail."""

    def __init__(self, *names: str) -> None:
        self.ids = 0
        self.away = False
        self.kafka_id = "K"
        self.before_create: Callable[[], None] = lambda: None
        self.before_delete: Callable[[], None] = lambda: None
        self.loses_answers = False
        self.loses_requests = False
        self.shows_ids = True
        self.electing: set[str] = set()
        """Topics of which the next look shows neither id nor partitions: no leader is elected."""
        self.made_ids: dict[bytes, str] = {}
        """Ids and names of topics that were created at kdir's request."""
        self.deleted_ids: list[bytes] = []
        """Ids of topics that were deleted at kdir's request, in order."""
        super().__init__(*names)

    def add(self, *names: str) -> None:
        for name in names:
            self.ids += 1
            self.topics[name] = KafkaTopic(name, self.ids.to_bytes(16, "big"), 1, 1)

    def cluster_id(self) -> str:
        self._answer()
        return self.kafka_id

    def list_all(self) -> KafkaListing:
        shown = self.describe_all()
        counts = {name: seen.partitions for name, seen in shown.topics.items()}
        return KafkaListing(shown.cluster_id, counts)

    def describe_all(self) -> KafkaMetadata:
        self._answer()
        return KafkaMetadata(self.kafka_id, dict(self.topics))

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        self._answer()
        shown = {name: self.topics[name] for name in names if name in self.topics}
        for name in self.electing & shown.keys():
            self.electing.remove(name)
            shown[name] = KafkaTopic(name, b"", 0, 0)
        if self.shows_ids:
            return shown
        return {name: replace(seen, topic_id=b"") for name, seen in shown.items()}

    def create(
        self, desired_set: Sequence[TopicToCreate], still: Still = always
    ) -> Mapping[str, Outcome]:
        self.before_create()
        self._answer()
        if self.loses_requests:
            return {one.name: OutcomeUnknown("timed out") for one in desired_set}
        outcomes = super().create(desired_set, still)
        for one in desired_set:
            if outcomes[one.name] == Succeeded():
                made = self.topics[one.name]
                self.made_ids[made.topic_id] = one.name
                self.topics[one.name] = replace(made, partitions=one.partitions or 1)
        if self.loses_answers:
            return {one.name: OutcomeUnknown("timed out") for one in desired_set}
        return outcomes

    def delete(self, names: Sequence[str], still: Still = always) -> Mapping[str, Outcome]:
        self.before_delete()
        self._answer()
        still()
        self.deleted_ids += [self.topics[name].topic_id for name in names if name in self.topics]
        outcomes = super().delete(names, still)
        if self.loses_answers:
            return {name: OutcomeUnknown("timed out") for name in names}
        return outcomes

    def _answer(self) -> None:
        if self.away:
            raise KafkaUnavailable("nobody answers")
