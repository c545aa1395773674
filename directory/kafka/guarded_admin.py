"""The one way to Kafka for all that changes it: refuses internal topics right before each call.

Whatever an entry, a plan or a record of an older version says, a topic of Kafka's own or of kdir's
is not created, altered, grown or deleted, and gets and loses no ACL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from directory.access.grant import ResourceType
from directory.kafka.admin_contract import (
    AclBinding,
    ConfigChange,
    KafkaAdmin,
    KafkaMetadata,
    KafkaTopic,
    ObservedAcls,
    Outcome,
    Rejected,
    Still,
    TopicToCreate,
    always,
)
from directory.namespace.physical_names import is_protected

__all__ = ["GuardedAdmin"]

_T = TypeVar("_T")
_REFUSED: Final = Rejected("an internal topic of Kafka or kdir: kdir never changes it")


class GuardedAdmin:
    """``KafkaAdmin`` by another one. Internal is what is so by its name, and what Kafka itself has
    shown as internal to this connection.
    """

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin
        self._internal: set[str] = set()

    # -- what only reads ---------------------------------------------------------------------------

    def cluster_id(self) -> str:
        return self._admin.cluster_id()

    def describe_all(self) -> KafkaMetadata:
        survey = self._admin.describe_all()
        self._note(survey.topics.values())
        return survey

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        found = self._admin.describe(names)
        self._note(found.values())
        return found

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        return self._admin.configs(names)

    def acls(self) -> ObservedAcls:
        return self._admin.acls()

    # -- what changes Kafka ------------------------------------------------------------------------

    def create(
        self, desired_set: Sequence[TopicToCreate], still: Still = always
    ) -> Mapping[str, Outcome]:
        allowed = [one for one in desired_set if not self._is_internal(one.name)]
        done = self._admin.create(allowed, still) if allowed else {}
        return {**_refused(filter(self._is_internal, (one.name for one in desired_set))), **done}

    def delete(self, names: Sequence[str], still: Still = always) -> Mapping[str, Outcome]:
        allowed = [name for name in names if not self._is_internal(name)]
        done = self._admin.delete(allowed, still) if allowed else {}
        return {**_refused(filter(self._is_internal, names)), **done}

    def alter_configs(
        self, changes: Sequence[ConfigChange], still: Still = always
    ) -> Mapping[str, Outcome]:
        allowed = [one for one in changes if not self._is_internal(one.name)]
        done = self._admin.alter_configs(allowed, still) if allowed else {}
        return {**_refused(filter(self._is_internal, (one.name for one in changes))), **done}

    def create_partitions(
        self, partitions: Mapping[str, int], still: Still = always
    ) -> Mapping[str, Outcome]:
        allowed = {name: n for name, n in partitions.items() if not self._is_internal(name)}
        done = self._admin.create_partitions(allowed, still) if allowed else {}
        return {**_refused(filter(self._is_internal, partitions)), **done}

    def add_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        allowed = [one for one in bindings if not self._is_about_internal(one)]
        done = self._admin.add_acls(allowed, still) if allowed else {}
        return {**_refused(filter(self._is_about_internal, bindings)), **done}

    def remove_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        allowed = [one for one in bindings if not self._is_about_internal(one)]
        done = self._admin.remove_acls(allowed, still) if allowed else {}
        return {**_refused(filter(self._is_about_internal, bindings)), **done}

    def close(self) -> None:
        self._admin.close()

    # -- the rule ----------------------------------------------------------------------------------

    def _is_internal(self, name: str) -> bool:
        return is_protected(name) or name in self._internal

    def _is_about_internal(self, binding: AclBinding) -> bool:
        resource = binding.resource
        return resource.kind is ResourceType.TOPIC and self._is_internal(resource.name)

    def _note(self, found: Iterable[KafkaTopic | Rejected]) -> None:
        self._internal.update(
            one.name for one in found if isinstance(one, KafkaTopic) and one.internal
        )


def _refused(things: Iterable[_T]) -> dict[_T, Outcome]:
    return dict.fromkeys(things, _REFUSED)
