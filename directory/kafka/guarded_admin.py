"""``KafkaAdmin`` of the Kafka side: refuses internal topics right before each changing call.

Whatever an entry, a plan or a record of an older version contains, an internal topic of Kafka or
kdir is not created, altered, grown or deleted, and no ACL of it is added or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from directory.access.grants import ResourceType
from directory.kafka.admin_contract import (
    AclBinding,
    AclOutcomes,
    ConfigChange,
    KafkaAdmin,
    KafkaMetadata,
    KafkaTopic,
    Outcome,
    Outcomes,
    Rejected,
    Still,
    TopicToCreate,
    always,
)
from directory.namespace.protected_topics import is_protected

__all__ = ["GuardedAdmin"]

_K = TypeVar("_K", str, AclBinding)
_REFUSED: Final = Rejected("an internal topic of Kafka or kdir: kdir never changes it")


class GuardedAdmin:
    """``KafkaAdmin`` around another one. A topic is internal by its name (``is_protected``), or if
    Kafka has shown it as internal on this connection.
    """

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin
        self._internal: set[str] = set()
        self.cluster_id, self.list_all = admin.cluster_id, admin.list_all
        self.configs, self.acls, self.close = admin.configs, admin.acls, admin.close

    def describe_all(self) -> KafkaMetadata:
        survey = self._admin.describe_all()
        self._note(survey.topics.values())
        return survey

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        found = self._admin.describe(names)
        self._note(found.values())
        return found

    # -- changing Kafka ----------------------------------------------------------------------------

    def create(self, desired_set: Sequence[TopicToCreate], still: Still = always) -> Outcomes:
        topics = {one.name: one for one in desired_set}
        return self._unless_internal(
            topics, lambda some: self._admin.create([topics[name] for name in some], still)
        )

    def delete(self, names: Sequence[str], still: Still = always) -> Outcomes:
        return self._unless_internal(names, lambda some: self._admin.delete(some, still))

    def alter_configs(self, changes: Sequence[ConfigChange], still: Still = always) -> Outcomes:
        topics = {one.name: one for one in changes}
        return self._unless_internal(
            topics, lambda some: self._admin.alter_configs([topics[name] for name in some], still)
        )

    def create_partitions(self, partitions: Mapping[str, int], still: Still = always) -> Outcomes:
        def grow(some: Sequence[str]) -> Outcomes:
            return self._admin.create_partitions({name: partitions[name] for name in some}, still)

        return self._unless_internal(partitions, grow)

    def add_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        return self._unless_internal(bindings, lambda some: self._admin.add_acls(some, still))

    def remove_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        return self._unless_internal(bindings, lambda some: self._admin.remove_acls(some, still))

    def _unless_internal(
        self, things: Iterable[_K], call: Callable[[Sequence[_K]], Mapping[_K, Outcome]]
    ) -> Mapping[_K, Outcome]:
        """Calls Kafka for all but internal topics and their ACLs; rejects those."""
        allowed: list[_K] = []
        outcomes: dict[_K, Outcome] = {}
        for thing in things:
            if self._is_internal(thing):
                outcomes[thing] = _REFUSED
            else:
                allowed.append(thing)
        return {**outcomes, **call(allowed)} if allowed else outcomes

    def _is_internal(self, thing: str | AclBinding) -> bool:
        if isinstance(thing, AclBinding):
            is_topic = thing.resource.kind is ResourceType.TOPIC
            return is_topic and self._is_internal(thing.resource.name)
        return is_protected(thing) or thing in self._internal

    def _note(self, found: Iterable[KafkaTopic | Rejected]) -> None:
        self._internal.update(
            one.name for one in found if isinstance(one, KafkaTopic) and one.internal
        )
