"""What the reconciler needs of Kafka, as values and one Protocol (``admin_client.py`` does it)."""

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
"""What Kafka asks for on each kind of resource (``AclEntry.supportedOperations``), besides ALL;
without TWO_PHASE_COMMIT, which its client here cannot write."""


class PatternType(enum.Enum):
    """Meaning of a resource's name."""

    LITERAL = "literal"
    """This very name; ``*`` is every name."""
    PREFIXED = "prefixed"
    """Every name that begins so."""


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
    """One ACL as Kafka keeps it."""

    resource: Resource
    acl: Acl

    def __str__(self) -> str:
        return f"{self.resource}: {self.acl}"


CLOSED: Final = Acl(Permission.DENY, "User:kdir-closed", Operation.ALL, "0.0.0.0")  # noqa: S104
"""Denies nobody anything, as no client has that address; a resource that has it has an ACL."""


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
    """16 bytes (KIP-516); empty where Kafka did not say (brokers before 2.8, or in a race)."""
    partitions: int
    """0 while Kafka cannot say, right after the topic was made."""
    replication_factor: int
    """Replicas of the partition with fewest: during a reassignment, partitions have more."""
    internal: bool = False
    """Kafka's own: consumer offsets, transaction state and the like."""


def show_id(topic_id: bytes) -> str:
    """Returns a topic id as Kafka's own tools print it."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=") or "unknown"


@dataclass(frozen=True, slots=True)
class KafkaListing:
    """List of the names of all topics that Kafka shows, with how many partitions each has."""

    cluster_id: str
    partitions: Mapping[str, int]
    """By name; 0 while Kafka cannot say."""


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
    """None: back to what the broker has by default."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Kafka did it."""


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """Outcome of nothing to do: the topic is there already (create), is not there (delete), or has
    so many partitions (grow).
    """


@dataclass(frozen=True, slots=True)
class Rejected:
    """Kafka refused; the same again gets the same answer."""

    message: str


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """No answer, or a temporary error: Kafka may have made the change, or may make it later."""

    message: str


Outcome = Succeeded | AlreadyDone | Rejected | OutcomeUnknown
Outcomes = Mapping[str, Outcome]
"""By the topic's name."""
AclOutcomes = Mapping[AclBinding, Outcome]

Still = Callable[[], None]
"""Raises if a request must not be sent to Kafka any more."""


def always() -> None:
    """Returns at once: a ``Still`` that allows every request."""


@dataclass(frozen=True, slots=True)
class KafkaCall:
    """One call, about one setting of one topic (``kdir.v1.KafkaCall``)."""

    operation: str
    resource: str
    key: str
    before: str | None
    """What Kafka has now; None = its default."""
    after: str | None
    """None: back to the default."""
    binding: AclBinding | None = None
    takeover: bool = False
    """True: it closes a resource that was open to all; made only on request."""
    rejected: str = field(default="", compare=False)
    """Kafka's message, if it refused the call and is not asked for it again by itself."""


def format_value(value: str | None) -> str:
    """Returns the value of a config, for people; None: it is not set on the topic itself."""
    return "(default)" if value is None else value


@dataclass(frozen=True, slots=True)
class ObservedAcls:
    """All ACLs that Kafka shows, at about one moment."""

    bindings: frozenset[AclBinding]
    """ACLs of topics, groups and transactional ids, with operations that this version knows."""
    count: int
    """Of all ACLs, also of those left out above."""
    open_to_all: bool
    """A resource without ACLs is open to all (``allow.everyone.if.no.acl.found``), or may be."""
    refusal: str = ""
    """Kafka's message, if it does not let ACLs be changed."""


class KafkaAdmin(Protocol):
    """Kafka, as far as the reconciler needs it. Used by one thread. Each changed item has its own
    outcome.

    ``list_all``, ``describe_all``, ``describe`` and ``configs`` need only DESCRIBE and
    DESCRIBE_CONFIGS. All raise ``KafkaUnavailable`` when no broker answers in time, and
    ``KafkaRejected`` when the cluster refuses the request as a whole.
    """

    def cluster_id(self) -> str:
        """Returns Kafka's own id of the cluster that answers now."""

    def list_all(self) -> KafkaListing:
        """Returns the names of all topics; an eighth of the work of ``describe_all`` here."""

    def describe_all(self) -> KafkaMetadata:
        """Returns everything that metadata shows to us."""

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        """Returns these topics, asked again; a name that does not exist is left out."""

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        """Returns what was set on each topic itself; a topic that is gone is left out."""

    def create(self, desired_set: Sequence[TopicToCreate], still: Still = always) -> Outcomes:
        """Makes topics. Like all methods that change Kafka, calls ``still`` right before each
        request, so that a process that was paused on the way sends nothing when it goes on.
        """

    def delete(self, names: Sequence[str], still: Still = always) -> Outcomes:
        """Deletes topics; ``still`` objects when their ids were compared too long ago."""

    def alter_configs(self, changes: Sequence[ConfigChange], still: Still = always) -> Outcomes:
        """Changes configs of topics, many in one request."""

    def create_partitions(self, partitions: Mapping[str, int], still: Still = always) -> Outcomes:
        """Grows topics; ``partitions`` has the total number for each."""

    def acls(self) -> ObservedAcls:
        """Returns all ACLs. An authorizer that is off, or that does not let them be read, is
        ``KafkaRejected``, since both would look like none.
        """

    def add_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        """Adds ACLs, many in one request. An existing ACL counts as ``Succeeded``."""

    def remove_acls(self, bindings: Sequence[AclBinding], still: Still = always) -> AclOutcomes:
        """Removes exactly these ACLs."""

    def close(self) -> None:
        """Ends all connections; the next call opens new ones."""
