"""A thin edge over Kafka's admin client: what a cluster shows; topics, configs, ACLs.

Every call has a deadline and ends in values or in one of two errors, with Kafka's own message:
``KafkaUnavailable`` (nobody answered: ask again) and ``KafkaRejected`` (asking again changes
nothing). Refuses to decide anything, to keep anything between calls, and to create a topic by
asking for it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import confluent_kafka
from confluent_kafka import KafkaException, admin
from confluent_kafka.admin import ConfigResource
from confluent_kafka.cimpl import Uuid

from directory.access.grants import Operation, Permission, ResourceType
from directory.kafka.admin_contract import (
    Acl,
    AclBinding,
    AlreadyDone,
    ConfigChange,
    KafkaListing,
    KafkaMetadata,
    KafkaTopic,
    ObservedAcls,
    Outcome,
    OutcomeUnknown,
    PatternType,
    Rejected,
    Resource,
    Still,
    Succeeded,
    TopicToCreate,
    always,
)
from directory.kafka.client_properties import OWN
from directory.server.toml_table import ConfigError
from resolver.errors import KafkaRejected, KafkaUnavailable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

__all__ = ["AclCalls", "ConfluentAdmin", "SharedUuid", "share_uuids"]


class _OnePerValue(type):
    """Type of a class that has one object per value, however often it is called.

    ``describe_topics`` of confluent-kafka (2.13.0 to 2.16.1, the newest) makes a ``Uuid`` for each
    topic of each answer and never releases its own reference to it, so that each look at all topics
    leaves some 100 bytes a topic until the process ends. The library's C code finds that class by
    its name in the module ``confluent_kafka``, at each call. A class there that returns the same
    object for the same id leaves one object per id, however often it is looked at.
    """

    def __init__(cls, *arguments: Any) -> None:
        super().__init__(*arguments)
        cls._by_text: Final[dict[str, Any]] = {}

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        made = super().__call__(*arguments, **named)
        # One step, since several clients read their answers in threads of their own.
        return cls._by_text.setdefault(str(made), made)


class SharedUuid(Uuid, metaclass=_OnePerValue):
    """``Uuid`` with one object per value, which is never freed and cannot be changed."""

    __slots__ = ()


def share_uuids() -> None:
    """Makes confluent-kafka return each topic id as a ``SharedUuid``, in the whole process."""
    confluent_kafka.Uuid = SharedUuid  # type: ignore[misc]


_BATCH: Final = 2_000
"""Names of one request: bounds the memory of an answer and the time that a broker gives to it."""
_CONFIG_BATCH: Final = 250
"""The same for configs, which cost a broker more."""
_CONFIGS_AHEAD: Final = 1
"""So many of those are asked for while the one before is read here: that takes as long again."""
_ALTER_BATCH: Final = 250
"""Topics that one request changes: a controller handles it as one, and others wait for it."""
_SLACK_SECONDS: Final = 2.0
"""A future is waited for a little longer than librdkafka's own deadline, whose error says more."""
_BROKER_SHARE: Final = 0.8
"""Of a request's time, what the broker may take: its own "timed out" should reach us."""
_STATE: Final = re.compile(r" \(after \d+ms in state \w+.*?\)")

# Codes of Kafka's protocol (org.apache.kafka.common.protocol.Errors).
_UNKNOWN_TOPIC: Final = 3
_LEADER_NOT_AVAILABLE: Final = 5
_INVALID_TOPIC: Final = 17
_TOPIC_DENIED: Final = 29
_TOPIC_EXISTS: Final = 36
_ABSENT: Final = frozenset({_UNKNOWN_TOPIC, _INVALID_TOPIC})
# Those after which nobody can say whether the request had an effect, or which pass by themselves:
# an unknown server error, no leader, not the leader, timed out, broker or replica or network not
# there, coordinators that load or move, too few replicas, not the controller, throttled.
_PASSING: Final = frozenset({-1, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 89})

_NO_CODE: Final = 1 << 20
"""Where no answer means "there was nothing to do"."""

_ACL_BATCH: Final = 250
"""ACLs of one request: a controller handles it as one, and others wait for it."""
_SETTINGS_SECONDS: Final = 30.0
"""For so long what brokers say of their settings is believed."""
_AUTHORIZER: Final = "authorizer.class.name"
_OPEN: Final = "allow.everyone.if.no.acl.found"
_DENIED: Final = 31
_NO_AUTHORIZER: Final = 54

_T = TypeVar("_T")


class ConfluentAdmin:
    """``KafkaAdmin`` by confluent-kafka.

    Args:
        bootstrap: ``host:port`` of some brokers.
        properties: librdkafka's, for TLS and SASL, or what gives them, for each client: a
            password that was changed comes with the next.
        timeout_seconds: of one request; a survey makes several.
        recycle_seconds: a client is used no longer: an old one goes on asking for every topic
            that it ever saw (confluent-kafka-python #1737).
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        properties: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        timeout_seconds: float = 10.0,
        recycle_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = ",".join(bootstrap)
        self._properties = properties if callable(properties) else dict(properties or {})
        self._timeout = timeout_seconds
        self._recycle = recycle_seconds
        self._clock = clock
        self._client: AdminClient | None = None
        self._made_at = 0.0
        self._last_message = ""
        self._acls = AclCalls(
            self._asking, self._wait, self._failure, timeout_seconds, self._bootstrap, clock
        )

    def cluster_id(self) -> str:
        with self._asking() as client:
            answer = self._wait(client.describe_cluster(request_timeout=self._timeout))
        return answer.cluster_id or ""

    def list_all(self) -> KafkaListing:
        with self._asking() as client:
            metadata: Any = client.list_topics(timeout=self._timeout)
        counts = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
        return KafkaListing(metadata.cluster_id or "", counts)

    def describe_all(self) -> KafkaMetadata:
        listing = self.list_all()
        shown = self.describe(list(listing.partitions))
        topics = {name: seen for name, seen in shown.items() if isinstance(seen, KafkaTopic)}
        return KafkaMetadata(listing.cluster_id, topics)

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        from confluent_kafka import TopicCollection

        found: dict[str, KafkaTopic | Rejected] = {}
        for batch in _batches(names):
            with self._asking() as client:
                futures = client.describe_topics(
                    TopicCollection(batch), request_timeout=self._timeout
                )
                for name, future in futures.items():
                    match self._each(future):
                        case Rejected() as refused:
                            found[name] = refused
                        case OutcomeUnknown():
                            found[name] = KafkaTopic(name, b"", 0, 0)
                        case None:
                            pass
                        case topic:
                            found[name] = _seen(topic)
        return found

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        found: dict[str, Mapping[str, str] | Rejected] = {}
        with self._asking() as client:
            under_way: deque[dict[Any, Future[Any]]] = deque()
            for batch in _batches(names, _CONFIG_BATCH):
                asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in batch]
                under_way.append(client.describe_configs(asked, request_timeout=self._timeout))
                if len(under_way) > _CONFIGS_AHEAD:
                    self._take_configs(under_way.popleft(), found)
            for futures in under_way:
                self._take_configs(futures, found)
        return found

    def _take_configs(
        self, futures: Mapping[Any, Future[Any]], found: dict[str, Mapping[str, str] | Rejected]
    ) -> None:
        for resource, future in futures.items():
            match self._each(future):
                case Rejected() as refused:
                    found[resource.name] = refused
                case OutcomeUnknown() | None:
                    pass
                case entries:
                    found[resource.name] = _set_on_topic(entries)

    def create(
        self, desired_set: Sequence[TopicToCreate], still: Still = always
    ) -> Mapping[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        for batch in _batches(desired_set):
            try:
                outcomes.update(self._create(batch, still))
            except KafkaRejected as refused:
                if len(batch) == 1:
                    outcomes[batch[0].name] = Rejected(refused.message)
                    continue
                # Not an answer of Kafka's but of its client, to the whole batch for one of it.
                for desired in batch:
                    outcomes.update(self.create([desired], still))
        return outcomes

    def _create(self, desired_set: Sequence[TopicToCreate], still: Still) -> Mapping[str, Outcome]:
        from confluent_kafka.admin import NewTopic

        with self._asking() as client:
            topics = [
                NewTopic(
                    desired.name,
                    desired.partitions or -1,
                    desired.replication_factor or -1,
                    config=dict(desired.config),
                )
                for desired in desired_set
            ]
            still()
            futures = client.create_topics(
                topics,
                operation_timeout=self._timeout * _BROKER_SHARE,
                request_timeout=self._timeout,
            )
            return {
                name: self._outcome(future, already=_TOPIC_EXISTS)
                for name, future in futures.items()
            }

    def delete(self, names: Sequence[str], still: Still = always) -> Mapping[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        for batch in _batches(names):
            with self._asking() as client:
                still()
                futures = client.delete_topics(
                    batch,
                    operation_timeout=self._timeout * _BROKER_SHARE,
                    request_timeout=self._timeout,
                )
                for name, future in futures.items():
                    outcomes[name] = self._outcome(future, already=_UNKNOWN_TOPIC)
        return outcomes

    def alter_configs(
        self, changes: Sequence[ConfigChange], still: Still = always
    ) -> Mapping[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        for batch in _batches(changes, _ALTER_BATCH):
            try:
                outcomes.update(self._alter(batch, still))
            except KafkaRejected as refused:
                if len(batch) == 1:
                    outcomes[batch[0].name] = Rejected(refused.message)
                    continue
                for change in batch:
                    outcomes.update(self.alter_configs([change], still))
        return outcomes

    def _alter(self, changes: Sequence[ConfigChange], still: Still) -> Mapping[str, Outcome]:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

        def entry(name: str, value: str | None) -> ConfigEntry:
            kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            return ConfigEntry(name, value, incremental_operation=kind)

        with self._asking() as client:
            resources = [
                ConfigResource(
                    ConfigResource.Type.TOPIC,
                    change.name,
                    incremental_configs=[entry(*one) for one in change.configs.items()],
                )
                for change in changes
            ]
            still()
            futures = client.incremental_alter_configs(resources, request_timeout=self._timeout)
            return {
                resource.name: self._outcome(future, already=_NO_CODE)
                for resource, future in futures.items()
            }

    def create_partitions(
        self, partitions: Mapping[str, int], still: Still = always
    ) -> Mapping[str, Outcome]:
        from confluent_kafka.admin import NewPartitions

        outcomes: dict[str, Outcome] = {}
        for batch in _batches(list(partitions), _ALTER_BATCH):
            with self._asking() as client:
                desired_set = [NewPartitions(name, partitions[name]) for name in batch]
                still()
                futures = client.create_partitions(
                    desired_set,
                    operation_timeout=self._timeout * _BROKER_SHARE,
                    request_timeout=self._timeout,
                )
                for name, future in futures.items():
                    outcomes[name] = self._outcome(future, already=_NO_CODE)
        return outcomes

    def acls(self) -> ObservedAcls:
        return self._acls.all()

    def add_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        return self._acls.add(bindings, still)

    def remove_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        return self._acls.remove(bindings, still)

    def close(self) -> None:
        self._client = None

    @contextlib.contextmanager
    def _asking(self) -> Iterator[AdminClient]:
        client = self._current()
        try:
            yield client
        except KafkaException as raised:
            raise self._error(raised.args[0], client) from None
        except TimeoutError:
            raise self._unavailable("no answer", client) from None
        except ValueError as raised:
            # The client checks some numbers before it asks.
            raise KafkaRejected(str(raised)) from None

    def _current(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        now = self._clock()
        if self._client is None or now - self._made_at > self._recycle:
            share_uuids()
            settings: dict[str, Any] = {
                **self._read_properties(),
                **OWN,
                "bootstrap.servers": self._bootstrap,
                "error_cb": self._on_error,
            }
            try:
                self._client = AdminClient(settings)
            except KafkaException as raised:
                # A property that librdkafka does not know, a certificate that is not there.
                raise KafkaRejected(f"Kafka's client: {raised.args[0].str()}") from None
            self._made_at, self._last_message = now, ""
        return self._client

    def _read_properties(self) -> Mapping[str, str]:
        if not callable(self._properties):
            return self._properties
        try:
            return self._properties()
        except ConfigError as error:
            raise KafkaRejected(str(error)) from None

    def _on_error(self, error: KafkaError) -> None:
        # "All brokers are down" says less than the reason that came before it.
        if error.name() != "_ALL_BROKERS_DOWN":
            self._last_message = _STATE.sub("", error.str())

    def _wait(self, future: Future[_T]) -> _T:
        return future.result(self._timeout + _SLACK_SECONDS)

    def _each(self, future: Future[_T]) -> _T | Rejected | OutcomeUnknown | None:
        """Returns one topic's answer of a reading batch: None = there is no such topic."""
        try:
            return self._wait(future)
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in _ABSENT:
                return None
            if error.code() == _TOPIC_DENIED:
                return Rejected(error.str())
            if error.code() == _LEADER_NOT_AVAILABLE:
                return OutcomeUnknown(error.str())
            raise

    def _outcome(self, future: Future[None], *, already: int) -> Outcome:
        try:
            self._wait(future)
        except KafkaException as raised:
            error = raised.args[0]
            return AlreadyDone() if error.code() == already else self._failure(error)
        except TimeoutError:
            return OutcomeUnknown("no answer")
        return Succeeded()

    @staticmethod
    def _failure(error: KafkaError) -> Outcome:
        return OutcomeUnknown(error.str()) if _is_passing(error) else Rejected(error.str())

    def _error(self, error: KafkaError, client: AdminClient) -> KafkaRejected | KafkaUnavailable:
        if _is_passing(error):
            return self._unavailable(error.str(), client)
        return KafkaRejected(f"Kafka at {self._bootstrap}: {error.str()}", kafka_error=error.name())

    def _unavailable(self, message: str, client: AdminClient) -> KafkaUnavailable:
        # What librdkafka knows of the reason waits in its queue of events.
        client.poll(0)
        # An address may mean another broker by now, and one that is away must not be dialled on
        # and on in the background: the next call begins again.
        reason, self._client = self._last_message or message, None
        return KafkaUnavailable(
            f"no broker of {self._bootstrap} answered within {self._timeout:g} s: {reason}"
        )


def _is_passing(error: KafkaError) -> bool:
    # Below -1 are librdkafka's own: timed out, transport, resolve, authentication, TLS, destroyed.
    return error.code() < 0 or error.retriable() or error.code() in _PASSING


def _seen(topic: Any) -> KafkaTopic:
    counts = [len(partition.replicas) for partition in topic.partitions]
    return KafkaTopic(
        topic.name,
        _id_bytes(topic.topic_id),
        len(counts),
        min(counts, default=0),
        bool(topic.is_internal),
    )


def _id_bytes(topic_id: Any) -> bytes:
    """16 bytes, big-endian, as everyone but librdkafka writes them; the zero id is no id."""
    if topic_id is None:
        return b""
    high = topic_id.get_most_significant_bits().to_bytes(8, "big", signed=True)
    low = topic_id.get_least_significant_bits().to_bytes(8, "big", signed=True)
    both: bytes = high + low
    return both if any(both) else b""


def _set_on_topic(entries: Mapping[str, Any]) -> Mapping[str, str]:
    """Only what was set on the topic itself: defaults of brokers and of the cluster are not its."""
    from confluent_kafka.admin import ConfigSource

    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        name: "" if entry.is_sensitive or entry.value is None else entry.value
        for name, entry in sorted(entries.items())
        if entry.source == own
    }


def _batches(items: Sequence[_T], size: int = _BATCH) -> Iterator[list[_T]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


class AclCalls:
    """ACLs by one admin client, whose own ways of asking it is given.

    Client and brokers have two traps. ``describe_acls`` answers nothing, and no error, where the
    broker has no authorizer or does not let its ACLs be read (confluent-kafka 2.16, tried): so both
    are asked for otherwise. And brokers show no value of settings that are their authorizer's own;
    that one is there can be seen.

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
        found = (_acl_binding(one) for one in shown)
        bindings = frozenset(one for one in found if one is not None)
        return ObservedAcls(bindings, len(shown), self._open_to_all)

    def add(self, bindings: Sequence[AclBinding], still: Still) -> Mapping[AclBinding, Outcome]:
        """Adds; each has its own outcome."""

        def ask(client: AdminClient, batch: Sequence[AclBinding]) -> Mapping[Any, Future[Any]]:
            return client.create_acls(
                [_acl_entry(one) for one in batch], request_timeout=self._timeout
            )

        return self._each(bindings, still, ask)

    def remove(self, bindings: Sequence[AclBinding], still: Still) -> Mapping[AclBinding, Outcome]:
        """Removes exactly these; each has its own outcome."""

        def ask(client: AdminClient, batch: Sequence[AclBinding]) -> Mapping[Any, Future[Any]]:
            return client.delete_acls(
                [_acl_filter(one) for one in batch], request_timeout=self._timeout
            )

        return self._each(bindings, still, ask)

    def _each(
        self,
        bindings: Sequence[AclBinding],
        still: Still,
        ask: Callable[[AdminClient, Sequence[AclBinding]], Mapping[Any, Future[Any]]],
    ) -> Mapping[AclBinding, Outcome]:
        outcomes: dict[AclBinding, Outcome] = {}
        for start in range(0, len(bindings), _ACL_BATCH):
            with self._asking() as client:
                still()
                futures = ask(client, bindings[start : start + _ACL_BATCH])
                for asked, future in futures.items():
                    binding = _acl_binding(asked)
                    assert binding is not None  # noqa: S101 - it was one of ours
                    outcomes[binding] = self._outcome(future)
        return outcomes

    def _outcome(self, future: Future[Any]) -> Outcome:

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


def _acl_fields(one: AclBinding) -> tuple[Any, ...]:
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


def _acl_entry(one: AclBinding) -> admin.AclBinding:
    return admin.AclBinding(*_acl_fields(one))


def _acl_filter(one: AclBinding) -> Any:
    return admin.AclBindingFilter(*_acl_fields(one))


def _acl_binding(one: Any) -> AclBinding | None:
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
    return AclBinding(Resource(kind, one.name, pattern), acl)
