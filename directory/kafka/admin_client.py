"""``KafkaAdmin`` by confluent-kafka: each call has a deadline, and errors have Kafka's message."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

import confluent_kafka
from confluent_kafka import KafkaException, TopicCollection, admin
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import Uuid

from directory.access.grants import Operation, Permission, ResourceType
from directory.kafka.admin_contract import (
    OPERATIONS,
    Acl,
    AclBinding,
    AclOutcomes,
    AlreadyDone,
    ConfigChange,
    KafkaListing,
    KafkaMetadata,
    KafkaTopic,
    ObservedAcls,
    Outcome,
    Outcomes,
    OutcomeUnknown,
    PatternType,
    Rejected,
    Resource,
    Still,
    Succeeded,
    TopicToCreate,
    always,
)
from directory.kafka.own_client_settings import OWN
from directory.server.toml_table import ConfigError
from resolver.errors import KafkaRejected, KafkaUnavailable
from resolver.kafka.client_errors import LastReason

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

__all__ = ["ConfluentAdmin", "SharedUuid"]


class _OnePerValue(type):
    """Metaclass of a class that has one object per value, however often it is called.

    ``describe_topics`` of confluent-kafka (2.13.0 to 2.16.1, the newest) makes an object of the
    class ``confluent_kafka.Uuid`` for each topic of each answer and never releases it: about 100
    bytes per topic and call leak until the process ends. A class that returns the same object for
    the same id leaks one object per id.
    """

    def __init__(cls, *arguments: Any) -> None:
        super().__init__(*arguments)
        cls._by_text: Final[dict[str, Any]] = {}

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        made = super().__call__(*arguments, **named)
        # One atomic step: several clients read their answers in threads of their own.
        return cls._by_text.setdefault(str(made), made)


class SharedUuid(Uuid, metaclass=_OnePerValue):
    """``Uuid`` with one object per value, which is never freed and cannot be changed."""

    __slots__ = ()


_BATCH: Final = 2_000
"""Most names in one request: bounds an answer's memory and a broker's time for it."""
_SMALL_BATCH: Final = 250
"""Most items in one request where each costs more: reads of configs, and changes of configs,
partitions and ACLs, which a controller makes in one step while others wait."""
_CONFIGS_AHEAD: Final = 1
"""Batches of configs requested while the previous one is decoded, which takes as long again."""
_SLACK_SECONDS: Final = 2.0
"""Time to wait for a future beyond librdkafka's deadline, whose error has more detail."""
_LEAST_SECONDS: Final = 0.1
"""Shortest timeout of a request."""
_BROKER_SHARE: Final = 0.8
"""Share of a request's time that the broker may take, so that its own "timed out" reaches us."""
_SETTINGS_SHARE: Final = 0.25
"""Share of a request's time that brokers have to return their settings: a broker that does not
answer is left out, and the request that needs the settings is still to come."""
_MOST_SETTINGS_SECONDS: Final = 2.0
"""Longest such time: it counts for the age of the ACLs that are read next."""
_SETTINGS_SECONDS: Final = 30.0
"""Time for which brokers' settings are used before they are read again."""
_AUTHORIZER: Final = "authorizer.class.name"
_OPEN: Final = "allow.everyone.if.no.acl.found"

# Codes of Kafka's protocol (org.apache.kafka.common.protocol.Errors).
_UNKNOWN_ERROR: Final = -1
_UNKNOWN_TOPIC: Final = 3
_CLUSTER_DENIED: Final = 31
_TOPIC_EXISTS: Final = 36
_INVALID_PARTITIONS: Final = 37
_NO_AUTHORIZER: Final = 54
# Codes after which it is unknown whether the request had an effect, or which pass by themselves:
# an unknown server error, no leader, not the leader, timed out, broker or replica or network not
# available, coordinators that load or move, too few replicas, not the controller, throttled.
_PASSING: Final = frozenset({-1, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 89})

_RESTING: Final[list[tuple[float, AdminClient]]] = []
"""Clients that were given up, each with the time until which it is kept: librdkafka 2.16 aborts the
process if an answer arrives while its client is being destroyed (assertion ``rko_result``)."""
_RESTING_LOCK: Final = threading.Lock()

_K = TypeVar("_K")
_T = TypeVar("_T")
_AclFutures = Mapping[AclBinding, "Future[Any]"]
_Configs = dict[str, Mapping[str, str] | Rejected]


class ConfluentAdmin:
    """``KafkaAdmin`` by confluent-kafka.

    Args:
        bootstrap: ``host:port`` of some brokers.
        properties: librdkafka's, for TLS and SASL, or a function that returns them for each new
            client, so that a changed password takes effect.
        timeout_seconds: of one request; ``describe_all`` makes several.
        budget_seconds: of all requests together; no request outlasts it.
        recycle_seconds: age at which a client is replaced: an old one keeps requesting metadata of
            every topic that it ever saw (confluent-kafka-python #1737).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        properties: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        timeout_seconds: float = 10.0,
        budget_seconds: float = inf,
        recycle_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = ",".join(bootstrap)
        self._properties = properties if callable(properties) else dict(properties or {})
        self._most_seconds = min(timeout_seconds, budget_seconds)
        self._until = clock() + budget_seconds
        self._recycle = recycle_seconds
        self._clock = clock
        self._client: AdminClient | None = None
        self._made_at = 0.0
        self._reason = LastReason()
        self._open_to_all = True
        self._refusal = ""
        self._settings_read_at = -inf

    # -- reading Kafka -----------------------------------------------------------------------------

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
        refused = {name for name, seen in shown.items() if isinstance(seen, Rejected)}
        return KafkaMetadata(listing.cluster_id, topics, refused)

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        found: dict[str, KafkaTopic | Rejected] = {}
        for batch in _batches(names, _BATCH):
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
        found: _Configs = {}
        with self._asking() as client:
            under_way: deque[dict[Any, Future[Any]]] = deque()
            for batch in _batches(names, _SMALL_BATCH):
                asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in batch]
                under_way.append(client.describe_configs(asked, request_timeout=self._timeout))
                if len(under_way) > _CONFIGS_AHEAD:
                    found |= self._read_configs(under_way.popleft())
            for futures in under_way:
                found |= self._read_configs(futures)
        return found

    def _read_configs(self, futures: Mapping[Any, Future[Any]]) -> _Configs:
        found: _Configs = {}
        for resource, future in futures.items():
            try:
                answer = self._each(future)
            except KafkaException as raised:
                error = raised.args[0]
                if error.code() < _UNKNOWN_ERROR:
                    raise  # librdkafka's own: it is about the whole request
                answer = _config_failure(error)
            match answer:
                case Rejected() as refused:
                    found[resource.name] = refused
                case OutcomeUnknown() | None:
                    pass
                case entries:
                    found[resource.name] = _set_on_topic(entries)
        return found

    def acls(self) -> ObservedAcls:
        """Returns all ACLs.

        ``describe_acls`` returns no ACLs, and no error, where the broker has no authorizer or does
        not let kdir read ACLs (confluent-kafka 2.16, tried): ``_check_authorizer`` checks both.
        """
        every: Any = None  # any name, principal and host; the client's stubs lack this
        everything = admin.AclBindingFilter(
            admin.ResourceType.ANY,
            every,
            admin.ResourcePatternType.ANY,
            every,
            every,
            admin.AclOperation.ANY,
            admin.AclPermissionType.ANY,
        )
        self._check_authorizer()
        with self._asking() as client:
            shown = self._wait(client.describe_acls(everything, request_timeout=self._timeout))
        found = (_acl_binding(one) for one in shown)
        bindings = frozenset(one for one in found if one is not None)
        return ObservedAcls(bindings, len(shown), self._open_to_all, self._refusal)

    def _check_authorizer(self) -> None:
        """Checks that brokers keep ACLs and let kdir read them; stores whether kdir may change
        them, and whether a resource without ACLs is open to all. Brokers return only the names of
        their authorizer's settings, no values.
        """
        now = self._clock()
        if now - self._settings_read_at < _SETTINGS_SECONDS:
            return
        with self._asking() as client:
            asked = {"include_authorized_operations": True, "request_timeout": self._timeout}
            cluster = self._wait(client.describe_cluster(**asked))
        settings = self._broker_settings([str(node.id) for node in cluster.nodes])
        if any(one is not None and not one.get(_AUTHORIZER, "?") for one in settings):
            raise self._acls_refused(_NO_AUTHORIZER)
        allowed = {one.name for one in cluster.authorized_operations or ()}
        if "DESCRIBE" not in allowed:
            raise self._acls_refused(_CLUSTER_DENIED)
        self._refusal = "" if "ALTER" in allowed else self._acls_refused(_CLUSTER_DENIED).message
        self._open_to_all = any(one is None or _OPEN in one for one in settings)
        self._settings_read_at = now

    def _broker_settings(self, brokers: Sequence[str]) -> list[Mapping[str, str | None] | None]:
        """Returns the settings of each broker; None = they cannot be read. Raises if no broker
        answers.
        """
        kind = ConfigResource.Type.BROKER
        found: list[Mapping[str, str | None] | None] = []
        failed: list[KafkaException | TimeoutError] = []
        with self._asking() as client:
            # librdkafka takes one broker per call.
            asked = [[ConfigResource(kind, name)] for name in brokers]
            most = self._timeout * _SETTINGS_SHARE
            seconds = max(_LEAST_SECONDS, min(most, _MOST_SETTINGS_SECONDS))
            until = self._clock() + seconds * 2  # librdkafka's own error comes first
            each = [client.describe_configs(one, request_timeout=seconds) for one in asked]
            for future in chain.from_iterable(futures.values() for futures in each):
                try:
                    entries = future.result(max(0.0, until - self._clock()))
                    settings = {name: entry.value for name, entry in entries.items()}
                except (KafkaException, TimeoutError) as raised:
                    if not _is_denied(raised):
                        failed.append(raised)
                    found.append(None)
                else:
                    found.append(settings)
            if failed and len(failed) == len(found):
                raise failed[0]
        return found

    # -- changing Kafka ----------------------------------------------------------------------------

    def create(self, desired_set: Sequence[TopicToCreate], still: Still = always) -> Outcomes:
        by_name = {desired.name: desired for desired in desired_set}

        def ask(client: AdminClient, names: Sequence[str]) -> Mapping[str, Future[Any]]:
            topics = [_new_topic(by_name[name]) for name in names]
            return client.create_topics(topics, **self._deadlines)

        failure = partial(_failure, already=_TOPIC_EXISTS)
        return self._change(list(by_name), still, ask, failure, _BATCH)

    def delete(self, names: Sequence[str], still: Still = always) -> Outcomes:
        def ask(client: AdminClient, names: list[str]) -> Mapping[str, Future[Any]]:
            return client.delete_topics(names, **self._deadlines)

        failure = partial(_failure, already=_UNKNOWN_TOPIC)
        return self._change(names, still, ask, failure, _BATCH)

    def alter_configs(self, changes: Sequence[ConfigChange], still: Still = always) -> Outcomes:
        configs = {change.name: change.configs for change in changes}

        def ask(client: AdminClient, names: Sequence[str]) -> Mapping[str, Future[Any]]:
            resources = [_config_changes(name, configs[name]) for name in names]
            futures = client.incremental_alter_configs(resources, request_timeout=self._timeout)
            return {resource.name: future for resource, future in futures.items()}

        return self._change(list(configs), still, ask, _failure)

    def create_partitions(self, partitions: Mapping[str, int], still: Still = always) -> Outcomes:
        def ask(client: AdminClient, names: Sequence[str]) -> Mapping[str, Future[Any]]:
            grown = [admin.NewPartitions(name, partitions[name]) for name in names]
            return client.create_partitions(grown, **self._deadlines)

        # The topic has these or more partitions, which a broker that is behind did not show.
        failure = partial(_failure, already=_INVALID_PARTITIONS)
        return self._change(list(partitions), still, ask, failure)

    def add_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        def ask(client: AdminClient, batch: Sequence[AclBinding]) -> _AclFutures:
            entries = {admin.AclBinding(*_acl_fields(one)): one for one in batch}
            futures = client.create_acls(list(entries), request_timeout=self._timeout)
            return {entries[entry]: future for entry, future in futures.items()}

        return self._change(bindings, still, ask, self._acl_failure)

    def remove_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        def ask(client: AdminClient, batch: Sequence[AclBinding]) -> _AclFutures:
            filters = {admin.AclBindingFilter(*_acl_fields(one)): one for one in batch}
            futures = client.delete_acls(list(filters), request_timeout=self._timeout)
            return {filters[asked]: future for asked, future in futures.items()}

        return self._change(bindings, still, ask, self._acl_failure)

    def _change(
        self,
        items: Sequence[_K],
        still: Still,
        ask: Callable[[AdminClient, list[_K]], Mapping[_K, Future[Any]]],
        failure: Callable[[KafkaError], Outcome],
        size: int = _SMALL_BATCH,
    ) -> dict[_K, Outcome]:
        """Requests changes, in batches; returns each item's outcome."""
        outcomes: dict[_K, Outcome] = {}
        for batch in _batches(items, size):
            self._current()  # first: an error in making the client is not about an item
            try:
                with self._asking() as client:
                    still()
                    futures = ask(client, batch)
            except KafkaRejected as refused:
                # Kafka's client, not Kafka, refused the whole batch for one item of it.
                if len(batch) == 1:
                    outcomes[batch[0]] = Rejected(refused.message)
                else:
                    outcomes |= self._change(batch, still, ask, failure, 1)
                continue
            outcomes |= {item: self._outcome(one, failure) for item, one in futures.items()}
        return outcomes

    def _outcome(self, future: Future[Any], failure: Callable[[KafkaError], Outcome]) -> Outcome:
        try:
            answer = self._wait(future)
        except KafkaException as raised:
            return failure(raised.args[0])
        except TimeoutError:
            return OutcomeUnknown("no answer")
        # [] = a filter of ACLs that matched none.
        return AlreadyDone() if answer == [] else Succeeded()

    def _acl_failure(self, error: KafkaError) -> Outcome:
        if error.code() in {_CLUSTER_DENIED, _NO_AUTHORIZER}:
            raise self._acls_refused(error.code())
        return _failure(error)

    def _acls_refused(self, code: int) -> KafkaRejected:
        self._settings_read_at = -inf
        if code == _NO_AUTHORIZER:
            return KafkaRejected(
                f"Kafka at {self._bootstrap} keeps no ACLs: its brokers have no authorizer "
                f"({_AUTHORIZER} is empty in their settings)",
                kafka_error="SECURITY_DISABLED",
            )
        return KafkaRejected(
            f"Kafka at {self._bootstrap}: cluster authorization failed: to read and change ACLs, "
            f"kdir's user there needs DESCRIBE and ALTER on the cluster",
            kafka_error="CLUSTER_AUTHORIZATION_FAILED",
        )

    # -- the client --------------------------------------------------------------------------------

    def close(self) -> None:
        self._give_up()

    @property
    def _timeout(self) -> float:
        """Timeout of the next request, in seconds."""
        return max(_LEAST_SECONDS, min(self._most_seconds, self._until - self._clock()))

    @property
    def _deadlines(self) -> dict[str, float]:
        seconds = self._timeout
        return {"operation_timeout": seconds * _BROKER_SHARE, "request_timeout": seconds}

    @contextmanager
    def _asking(self) -> Iterator[AdminClient]:
        client = self._current()
        if self._clock() >= self._until:
            raise self._unavailable("the time of the call is over", client)
        try:
            yield client
        except KafkaException as raised:
            raise self._error(raised.args[0], client) from None
        except TimeoutError:
            raise self._unavailable("no answer", client) from None
        except ValueError as raised:
            # The client checks some numbers before it sends a request.
            raise KafkaRejected(str(raised)) from None

    def _current(self) -> AdminClient:
        now = self._clock()
        if self._client is None or now - self._made_at > self._recycle:
            self._give_up()
            confluent_kafka.Uuid = SharedUuid  # type: ignore[misc] # in the whole process
            self._reason = LastReason()
            own = {**OWN, "bootstrap.servers": self._bootstrap, "error_cb": self._reason.on_error}
            settings: dict[str, Any] = {**self._read_properties(), **own}
            try:
                self._client = AdminClient(settings)
            except KafkaException as raised:
                # A property that librdkafka does not know, or a certificate that does not exist.
                raise KafkaRejected(f"Kafka's client: {raised.args[0].str()}") from None
            self._made_at = now
        return self._client

    def _give_up(self) -> None:
        """Keeps the client, if there is one, until its requests have ended; drops earlier clients
        whose own time is over, in any order.
        """
        client, self._client = self._client, None
        now = time.monotonic()
        with _RESTING_LOCK:
            ended = [one for one in _RESTING if one[0] <= now]
            _RESTING[:] = [one for one in _RESTING if one[0] > now]
            if client is not None:
                _RESTING.append((now + self._most_seconds + _SLACK_SECONDS, client))
        ended.clear()  # destroyed without the lock

    def _read_properties(self) -> Mapping[str, str]:
        try:
            return self._properties() if callable(self._properties) else self._properties
        except ConfigError as error:
            raise KafkaRejected(str(error)) from None

    def _wait(self, future: Future[_T]) -> _T:
        return future.result(self._timeout + _SLACK_SECONDS)

    def _each(self, future: Future[_T]) -> _T | Rejected | OutcomeUnknown | None:
        """Returns what was read of one topic of a batch; None = there is no such topic."""
        try:
            return self._wait(future)
        except KafkaException as raised:
            error = raised.args[0]
            match error.code():
                case 3 | 17:  # UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION
                    return None
                case 29:  # TOPIC_AUTHORIZATION_FAILED
                    return Rejected(error.str())
                case 5:  # LEADER_NOT_AVAILABLE
                    return OutcomeUnknown(error.str())
                case _:
                    raise

    def _error(self, error: KafkaError, client: AdminClient) -> KafkaRejected | KafkaUnavailable:
        if _is_passing(error):
            return self._unavailable(error.str(), client)
        return KafkaRejected(f"Kafka at {self._bootstrap}: {error.str()}", kafka_error=error.name())

    def _unavailable(self, message: str, client: AdminClient) -> KafkaUnavailable:
        # librdkafka's reason is in its queue of events.
        client.poll(0)
        # The next call makes a new client: the address may lead to another broker now, and the old
        # client would keep dialling the unreachable broker in the background.
        reason = self._reason.text or message
        self._give_up()
        return KafkaUnavailable(
            f"no broker of {self._bootstrap} answered within {self._most_seconds:.3g} s: {reason}"
        )


def _failure(error: KafkaError, already: int | None = None) -> Outcome:
    """Returns the outcome for one item's error; ``already`` is the code of ``AlreadyDone``."""
    if error.code() == already:
        return AlreadyDone()
    return OutcomeUnknown(error.str()) if _is_passing(error) else Rejected(error.str())


def _config_failure(error: KafkaError) -> Rejected | OutcomeUnknown:
    """Returns what Kafka's error means for the configs of one topic. A stored value that a newer
    broker considers invalid is an unknown error, which is permanent.
    """
    if error.code() != _UNKNOWN_ERROR and _is_passing(error):
        return OutcomeUnknown(error.str())
    return Rejected(error.str())


def _is_denied(raised: KafkaException | TimeoutError) -> bool:
    return isinstance(raised, KafkaException) and raised.args[0].code() == _CLUSTER_DENIED


def _is_passing(error: KafkaError) -> bool:
    # -1: unknown; below, librdkafka's own: timed out, transport, resolve, authentication, TLS.
    return error.code() < 0 or error.retriable() or error.code() in _PASSING


def _batches(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _seen(topic: Any) -> KafkaTopic:
    counts = [len(partition.replicas) for partition in topic.partitions]
    topic_id, least = _id_bytes(topic.topic_id), min(counts, default=0)
    return KafkaTopic(topic.name, topic_id, len(counts), least, bool(topic.is_internal))


def _id_bytes(topic_id: Any) -> bytes:
    """Returns 16 big-endian bytes, as all but librdkafka write an id; empty = no id, or zero."""
    if topic_id is None:
        return b""
    high = topic_id.get_most_significant_bits().to_bytes(8, "big", signed=True)
    low = topic_id.get_least_significant_bits().to_bytes(8, "big", signed=True)
    both: bytes = high + low
    return both if any(both) else b""


def _set_on_topic(entries: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the configs set on the topic itself, without defaults of brokers and cluster."""
    own = admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        name: "" if entry.is_sensitive or entry.value is None else entry.value
        for name, entry in sorted(entries.items())
        if entry.source == own
    }


def _new_topic(one: TopicToCreate) -> admin.NewTopic:
    counts = one.partitions or -1, one.replication_factor or -1
    return admin.NewTopic(one.name, *counts, config=dict(one.config))


def _config_changes(topic: str, configs: Mapping[str, str | None]) -> ConfigResource:
    entries = []
    for name, value in configs.items():
        kind = admin.AlterConfigOpType.DELETE if value is None else admin.AlterConfigOpType.SET
        entries.append(ConfigEntry(name, value, incremental_operation=kind))
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)


def _acl_fields(one: AclBinding) -> tuple[Any, ...]:
    resource, acl = one
    return (
        admin.ResourceType[resource.kind.name],
        resource.name,
        admin.ResourcePatternType[resource.pattern.name],
        acl.principal,
        acl.host,
        admin.AclOperation[acl.operation.name],
        admin.AclPermissionType[acl.permission.name],
    )


def _acl_binding(one: Any) -> AclBinding | None:
    """Converts an ACL of Kafka; None if grants cannot express it or this client cannot read it."""
    kind = ResourceType.__members__.get(one.restype.name)
    operation = Operation.__members__.get(one.operation.name)
    permission = Permission.__members__.get(one.permission_type.name)
    pattern = PatternType.__members__.get(one.resource_pattern_type.name)
    if kind not in OPERATIONS or operation is None or permission is None or pattern is None:
        return None
    acl = Acl(permission, one.principal, operation, one.host)
    return AclBinding(Resource(kind, one.name, pattern), acl)
