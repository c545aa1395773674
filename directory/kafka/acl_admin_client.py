"""ACLs by Kafka's admin client: a thin edge, as ``admin_client.py`` is, which it is a part of.

Refuses to decide anything. Client and brokers have two traps. ``describe_acls`` answers nothing,
and no error, where the broker has no authorizer or does not let its ACLs be read (confluent-kafka
2.16, tried): so both are asked for otherwise. And brokers show no value of settings that are their
authorizer's own; that one is there can be seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from directory.access.grant import Operation, Permission, ResourceType
from directory.kafka.admin_contract import (
    Acl,
    AlreadyDone,
    ObservedAcls,
    Outcome,
    OutcomeUnknown,
    PatternType,
    Resource,
    Still,
    Succeeded,
)
from directory.kafka.admin_contract import AclBinding as Binding
from resolver.errors import KafkaRejected

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AclBinding, AdminClient

__all__ = ["AclCalls"]

_BATCH: Final = 250
"""ACLs of one request: a controller handles it as one, and others wait for it."""
_SETTINGS_SECONDS: Final = 30.0
"""For so long what brokers say of their settings is believed."""
_AUTHORIZER: Final = "authorizer.class.name"
_OPEN: Final = "allow.everyone.if.no.acl.found"
_DENIED: Final = 31
_NO_AUTHORIZER: Final = 54


class AclCalls:
    """ACLs by one admin client, whose own ways of asking it is given.

    Args:
        asking: a client to ask, whose errors become ours.
        wait: a future's result, within the deadline.
        failed: what an error that is about one ACL comes to.
        name: the Kafka's, for messages.
    """

    def __init__(
        self,
        asking: Callable[[], AbstractContextManager[AdminClient]],
        wait: Callable[[Future[Any]], Any],
        failed: Callable[[KafkaError], Outcome],
        timeout_seconds: float,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asking = asking
        self._wait = wait
        self._failed = failed
        self._timeout = timeout_seconds
        self._name = name
        self._clock = clock
        self._open_to_all = True
        self._read_at: float | None = None

    def all(self) -> ObservedAcls:
        """Returns all that Kafka shows."""
        from confluent_kafka import admin

        every: Any = None  # any name, principal and host; its stubs know no such thing
        everything = admin.AclBindingFilter(
            admin.ResourceType.ANY,
            every,
            admin.ResourcePatternType.ANY,
            every,
            every,
            admin.AclOperation.ANY,
            admin.AclPermissionType.ANY,
        )
        self._check()
        with self._asking() as client:
            shown = self._wait(client.describe_acls(everything, request_timeout=self._timeout))
        found = (_binding(one) for one in shown)
        bindings = frozenset(one for one in found if one is not None)
        return ObservedAcls(bindings, len(shown), self._open_to_all)

    def add(self, bindings: Sequence[Binding], still: Still) -> Mapping[Binding, Outcome]:
        """Adds; each has its own outcome."""

        def ask(client: AdminClient, batch: Sequence[Binding]) -> Mapping[Any, Future[Any]]:
            return client.create_acls([_entry(one) for one in batch], request_timeout=self._timeout)

        return self._each(bindings, still, ask)

    def remove(self, bindings: Sequence[Binding], still: Still) -> Mapping[Binding, Outcome]:
        """Removes exactly these; each has its own outcome."""

        def ask(client: AdminClient, batch: Sequence[Binding]) -> Mapping[Any, Future[Any]]:
            return client.delete_acls(
                [_filter(one) for one in batch], request_timeout=self._timeout
            )

        return self._each(bindings, still, ask)

    def _each(
        self,
        bindings: Sequence[Binding],
        still: Still,
        ask: Callable[[AdminClient, Sequence[Binding]], Mapping[Any, Future[Any]]],
    ) -> Mapping[Binding, Outcome]:
        outcomes: dict[Binding, Outcome] = {}
        for start in range(0, len(bindings), _BATCH):
            with self._asking() as client:
                still()
                futures = ask(client, bindings[start : start + _BATCH])
                for asked, future in futures.items():
                    binding = _binding(asked)
                    assert binding is not None  # noqa: S101 - it was one of ours
                    outcomes[binding] = self._outcome(future)
        return outcomes

    def _outcome(self, future: Future[Any]) -> Outcome:
        from confluent_kafka import KafkaException

        try:
            removed = self._wait(future)
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in {_DENIED, _NO_AUTHORIZER}:
                raise self._refused(error.code()) from None
            return self._failed(error)
        except TimeoutError as raised:
            return OutcomeUnknown(str(raised) or "no answer")
        return AlreadyDone() if removed == [] else Succeeded()

    def _check(self) -> None:
        """That ACLs are kept, and may be read; and whether what has none is open to all."""
        now = self._clock()
        if self._read_at is not None and now - self._read_at < _SETTINGS_SECONDS:
            return
        with self._asking() as client:
            cluster = self._wait(
                client.describe_cluster(
                    include_authorized_operations=True, request_timeout=self._timeout
                )
            )
            brokers = [str(node.id) for node in cluster.nodes]
        settings = list(self._broker_settings(brokers))
        if any(one is not None and not one.get(_AUTHORIZER, "?") for one in settings):
            raise self._refused(_NO_AUTHORIZER)
        if not any(one.name == "DESCRIBE" for one in cluster.authorized_operations or ()):
            raise self._refused(_DENIED)
        self._open_to_all = any(one is None or _OPEN in one for one in settings)
        self._read_at = now

    def _broker_settings(self, brokers: Sequence[str]) -> Iterator[Mapping[str, str | None] | None]:
        """Yields the settings of each broker; None where they cannot be read."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource

        kind = ConfigResource.Type.BROKER
        with self._asking() as client:
            futures = client.describe_configs(
                [ConfigResource(kind, name) for name in brokers], request_timeout=self._timeout
            )
            for future in futures.values():
                try:
                    entries = self._wait(future)
                except KafkaException as raised:
                    if raised.args[0].code() != _DENIED:
                        raise
                    yield None
                    continue
                yield {name: entry.value for name, entry in entries.items()}

    def _refused(self, code: int) -> KafkaRejected:
        self._read_at = None
        if code == _NO_AUTHORIZER:
            return KafkaRejected(
                f"Kafka at {self._name} keeps no ACLs: its brokers have no authorizer "
                f"({_AUTHORIZER} is empty in their settings)",
                kafka_error="SECURITY_DISABLED",
            )
        return KafkaRejected(
            f"Kafka at {self._name}: cluster authorization failed: to read and change ACLs, kdir's "
            f"user there needs DESCRIBE and ALTER on the cluster",
            kafka_error="CLUSTER_AUTHORIZATION_FAILED",
        )


_KINDS: Final = {
    ResourceType.TOPIC: "TOPIC",
    ResourceType.GROUP: "GROUP",
    ResourceType.TRANSACTIONAL_ID: "TRANSACTIONAL_ID",
}
_KINDS_BY_NAME: Final = {name: kind for kind, name in _KINDS.items()}


def _fields(one: Binding) -> tuple[Any, ...]:
    from confluent_kafka import admin

    resource, acl = one
    return (
        admin.ResourceType[_KINDS[resource.kind]],
        resource.name,
        admin.ResourcePatternType[resource.pattern.name],
        acl.principal,
        acl.host,
        admin.AclOperation[acl.operation.name],
        admin.AclPermissionType[acl.permission.name],
    )


def _entry(one: Binding) -> AclBinding:
    from confluent_kafka.admin import AclBinding

    return AclBinding(*_fields(one))


def _filter(one: Binding) -> Any:
    from confluent_kafka.admin import AclBindingFilter

    return AclBindingFilter(*_fields(one))


def _binding(one: Any) -> Binding | None:
    """Returns one of Kafka's; None for what grants cannot express, or this client does
    not know.
    """
    kind = _KINDS_BY_NAME.get(one.restype.name)
    operation = Operation.__members__.get(one.operation.name)
    permission = Permission.__members__.get(one.permission_type.name)
    pattern = PatternType.__members__.get(one.resource_pattern_type.name)
    if kind is None or operation is None or permission is None or pattern is None:
        return None
    acl = Acl(permission, one.principal, operation, one.host)
    return Binding(Resource(kind, one.name, pattern), acl)
