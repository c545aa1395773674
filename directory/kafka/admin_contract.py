"""Protocol and values for all that the reconciler requests of Kafka (see ``admin_client.py``)."""

from __future__ import annotations

import enum
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import total_ordering
from ipaddress import IPv6Address, ip_address
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from directory.access.grants import Operation, Permission, ResourceType
from directory.access.principals import ANY_HOST

__all__ = [
    "ALTER",
    "CLOSED",
    "CREATE_ACLS",
    "DELETE_ACLS",
    "GROW",
    "OPERATIONS",
    "Acl",
    "AclBinding",
    "AclOutcomes",
    "AlreadyDone",
    "ConfigChange",
    "KafkaAdmin",
    "KafkaCall",
    "KafkaListing",
    "KafkaMetadata",
    "KafkaTopic",
    "ObservedAcls",
    "Outcome",
    "OutcomeUnknown",
    "Outcomes",
    "PatternType",
    "Rejected",
    "Resource",
    "Still",
    "Succeeded",
    "TopicToCreate",
    "always",
    "format_value",
    "kafka_host",
    "show_id",
]

ALTER: Final = "IncrementalAlterConfigs"
GROW: Final = "CreatePartitions"
CREATE_ACLS: Final = "CreateAcls"
DELETE_ACLS: Final = "DeleteAcls"


def _operations(names: str) -> frozenset[Operation]:
    return frozenset(Operation[name] for name in names.split())


OPERATIONS: Final = {
    ResourceType.TOPIC: _operations(
        "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"
    ),
    ResourceType.GROUP: _operations("READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"),
    ResourceType.TRANSACTIONAL_ID: _operations("WRITE DESCRIBE"),
}
"""Operations that each kind of resource has in Kafka (``AclEntry.supportedOperations``), besides
ALL; without TWO_PHASE_COMMIT, which confluent-kafka cannot write."""


class PatternType(enum.Enum):
    """Meaning of a resource's name."""

    LITERAL = "literal"
    """Exactly this name; ``*`` is every name."""
    PREFIXED = "prefixed"
    """Every name that begins with this one."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Resource:
    """Subject of ACLs: a name, or a pattern of names."""

    kind: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def __lt__(self, other: Resource) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[int, str, str]:
        return self.kind, self.name, self.pattern.value

    def __str__(self) -> str:
        kind = self.kind.name.lower().replace("_", "-")
        prefixed = " (prefixed)" if self.pattern is PatternType.PREFIXED else ""
        return f"{kind} {self.name}{prefixed}"


class Acl(NamedTuple):
    """Allow or deny for a principal. ``host`` is as Kafka writes an address, or ``*``."""

    permission: Permission
    principal: str
    operation: Operation
    host: str = ANY_HOST

    def __str__(self) -> str:
        return f"{self.permission.name} {self.principal} {self.operation.name} from {self.host}"


class AclBinding(NamedTuple):
    """One ACL of Kafka, with its resource."""

    resource: Resource
    acl: Acl

    def __str__(self) -> str:
        return f"{self.resource}: {self.acl}"


CLOSED: Final = Acl(Permission.DENY, "User:kdir-closed", Operation.ALL, "0.0.0.0")  # noqa: S104
"""Denies nobody anything, as no client has that address; keeps a resource from having no ACL."""


def kafka_host(host: str) -> str:
    """Returns an address as Kafka compares it (Java's ``InetAddress.getHostAddress``): IPv6 is
    written with all eight groups, none shortened.
    """
    if host == ANY_HOST:
        return host
    address = ip_address(host)
    if not isinstance(address, IPv6Address):
        return str(address)
    groups = address.exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups)


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic as metadata shows it."""

    name: str
    topic_id: bytes
    """16 bytes (KIP-516); empty if Kafka did not return it (brokers before 2.8, or in a race)."""
    partitions: int
    """0 while Kafka does not return their number, right after the topic was made."""
    replication_factor: int
    """Replicas of the partition with the fewest: during a reassignment, partitions have more."""
    internal: bool = False
    """Kafka's own: consumer offsets, transaction state and the like."""


def show_id(topic_id: bytes) -> str:
    """Returns a topic id as Kafka's own tools print it."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=") or "unknown"


@dataclass(frozen=True, slots=True)
class KafkaListing:
    """List of all topics that Kafka shows: names and numbers of partitions."""

    cluster_id: str
    partitions: Mapping[str, int]
    """Number by topic name; 0 while Kafka does not return it."""


@dataclass(frozen=True, slots=True)
class KafkaMetadata:
    """All topics that Kafka shows, at about one moment."""

    cluster_id: str
    topics: Mapping[str, KafkaTopic]
    unsettled: AbstractSet[str] = frozenset()
    """Names of topics that may exist, though they are not among ``topics``: they were made a moment
    ago, or Kafka refuses to describe them.
    """


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    """A topic to be made. 0 partitions or replicas: the broker's default (KIP-464)."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Configs of one topic to be changed, all or none (KIP-339); others stay as they are."""

    name: str
    configs: Mapping[str, str | None]
    """Value by config name; None = back to the broker's default."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Kafka made the change."""


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """Outcome if nothing was to change: the topic exists (create), the topic or ACL does not exist
    (delete), or the topic has these partitions or more (grow).
    """


@dataclass(frozen=True, slots=True)
class Rejected:
    """Kafka refused the change, and would refuse it again."""

    message: str


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """No answer, or a temporary error: Kafka may have made the change, or may make it later."""

    message: str


Outcome = Succeeded | AlreadyDone | Rejected | OutcomeUnknown
Outcomes = Mapping[str, Outcome]
"""Outcome by topic name."""
AclOutcomes = Mapping[AclBinding, Outcome]

Still = Callable[[], None]
"""Check that raises if a request must not be sent to Kafka any more."""


def always() -> None:
    """Returns at once: a ``Still`` that allows every request."""


@dataclass(frozen=True, slots=True)
class KafkaCall:
    """One change of a config, of partitions or of an ACL (``kdir.v1.KafkaCall``)."""

    operation: str
    resource: str
    key: str
    before: str | None
    """Value that Kafka has now; None = its default."""
    after: str | None
    """Value to set; None = back to the default."""
    binding: AclBinding | None = None
    takeover: bool = False
    """True: it closes a resource that was open to all; made only on request."""
    rejected: str = field(default="", compare=False)
    """Kafka's message if it refused the call, which is not repeated automatically."""


def format_value(value: str | None) -> str:
    """Returns the value of a config, for people; None = not set on the topic itself."""
    return "(default)" if value is None else value


@dataclass(frozen=True, slots=True)
class ObservedAcls:
    """All ACLs that Kafka shows, at about one moment."""

    bindings: frozenset[AclBinding]
    """ACLs of topics, groups and transactional ids, with operations that this version knows."""
    count: int
    """Number of all ACLs, with those that ``bindings`` leaves out."""
    open_to_all: bool
    """A resource without ACLs is open to all (``allow.everyone.if.no.acl.found``), or may be."""
    refusal: str = ""
    """Kafka's message if kdir may not change ACLs; else empty."""


class KafkaAdmin(Protocol):
    """Kafka client of the reconciler, used by one thread. Each item to change has its own outcome.

    ``list_all``, ``describe_all``, ``describe`` and ``configs`` need only DESCRIBE and
    DESCRIBE_CONFIGS. All raise ``KafkaUnavailable`` when no broker answers in time, and
    ``KafkaRejected`` when the cluster refuses the request as a whole.
    """

    def cluster_id(self) -> str:
        """Returns Kafka's own id of the cluster that answers now."""

    def list_all(self) -> KafkaListing:
        """Returns the names of all topics, with an eighth of the work of ``describe_all``."""

    def describe_all(self) -> KafkaMetadata:
        """Returns all topics that metadata shows to kdir."""

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        """Returns these topics as Kafka has them now, without those that do not exist."""

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        """Returns the configs set on each topic itself; leaves out topics that are gone or whose
        configs cannot be read now.
        """

    def create(self, desired_set: Sequence[TopicToCreate], still: Still = always) -> Outcomes:
        """Makes topics. Like all methods that change Kafka, calls ``still`` right before each
        request, so that a process that was paused sends no outdated request.
        """

    def delete(self, names: Sequence[str], still: Still = always) -> Outcomes:
        """Deletes topics; ``still`` raises if their ids were compared too long ago."""

    def alter_configs(self, changes: Sequence[ConfigChange], still: Still = always) -> Outcomes:
        """Changes configs of topics, many in one request."""

    def create_partitions(self, partitions: Mapping[str, int], still: Still = always) -> Outcomes:
        """Grows topics; ``partitions`` has each topic's total number."""

    def acls(self) -> ObservedAcls:
        """Returns all ACLs. Raises ``KafkaRejected`` if brokers have no authorizer or do not let
        kdir read ACLs: both would look like no ACLs.
        """

    def add_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        """Adds ACLs, many in one request. An existing ACL counts as ``Succeeded``."""

    def remove_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        """Removes exactly these ACLs."""

    def close(self) -> None:
        """Closes all connections; the next call opens new ones."""
