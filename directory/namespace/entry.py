"""Entries (directory, topic, link, mount) and an entry's grants, as pure values.

The numbers of the enums are those of ``kdir.v1``; ``directory/wire/entry_codec.py`` encodes
entries.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, Protocol

from directory.access.grants import Grant
from resolver.path import Path

__all__ = [
    "DELETED_ID",
    "NO_POLICIES",
    "ROOT_ID",
    "Codec",
    "Directory",
    "Entry",
    "EntryGrants",
    "Kind",
    "Link",
    "LinkMode",
    "LinkWrites",
    "Mount",
    "Policies",
    "PolicyLevel",
    "Provision",
    "Stamp",
    "Topic",
    "etag_of",
]

ROOT_ID: Final = 1
"""Entry id of the directory at the mount point; it always exists and is never moved or removed."""
DELETED_ID: Final = 2
"""Id of the directory to which removed entries are moved until the reaper has finished them."""


class Kind(enum.IntEnum):
    """Kind of an entry."""

    DIRECTORY = 1
    TOPIC = 2
    LINK = 3
    MOUNT = 4

    @property
    def is_container(self) -> bool:
        """True for directories, links and mounts: paths can continue below them."""
        return self is not Kind.TOPIC


class Provision(enum.IntEnum):
    """State of a topic in Kafka (``kdir.v1.Provision``)."""

    ACTIVE = 1
    PENDING = 2
    FAILED = 3
    MISSING = 4
    REPLACED = 5
    DETACHED = 6
    DELETING = 7


class LinkMode(enum.IntEnum):
    """Use of a link's targets: the first that is reachable, or all merged, a name by the first that
    has it.
    """

    FIRST = 1
    UNION = 2


class LinkWrites(enum.IntEnum):
    """Rule for producers when the first target cannot be reached."""

    STAY = 1
    FOLLOW = 2


def _frozen(mapping: Mapping[str, str | None] | None = None) -> Mapping[str, str | None]:
    return MappingProxyType(dict(mapping or {}))


@dataclass(frozen=True, slots=True)
class Stamp:
    """Principal that set a value, and the time (Unix milliseconds)."""

    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Policies:
    """Settings of one entry for everything below it (KIP-37). ``None`` is unset: the field
    inherits.

    In the maps, ``None`` is a *cleared* key: it does not inherit. Maps merge key by key.
    """

    topic_config: Mapping[str, str | None] = field(default_factory=_frozen)
    producer_defaults: Mapping[str, str | None] = field(default_factory=_frozen)
    consumer_defaults: Mapping[str, str | None] = field(default_factory=_frozen)
    tags: Mapping[str, str | None] = field(default_factory=_frozen)
    manage: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    partitions: int | None = None
    replication_factor: int | None = None
    max_topics: int | None = None
    max_partitions: int | None = None
    owner: str | None = None
    contact: str | None = None
    description: str | None = None
    read_only: bool | None = None
    encryption_key_id: str | None = None
    stamps: Mapping[str, Stamp] = field(default_factory=lambda: MappingProxyType({}))
    """Who set each field, with keys such as ``topic_config[retention.ms]``; not inherited."""


NO_POLICIES: Final = Policies()


class PolicyLevel(NamedTuple):
    """Policies of one entry on a path, with its canonical path."""

    path: str
    policies: Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyEntry:
    """Fields of every entry."""

    entry_id: int
    change_count: int = 1
    changed_at_ms: int = 0
    changed_by: str = ""
    policies: Policies = NO_POLICIES
    unknown: bytes = b""
    """Fields that a newer version stored: kept unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory(_AnyEntry):
    """A directory (a namespace in KIP-37's terms)."""

    kind: ClassVar[Kind] = Kind.DIRECTORY

    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(_AnyEntry):
    """Topic, with its recorded (never derived) physical name and Kafka topic id."""

    kind: ClassVar[Kind] = Kind.TOPIC

    physical_name: str
    topic_id: bytes = b""
    partitions: int = 0
    replication_factor: int = 0
    provision: Provision = Provision.PENDING
    provision_message: str = ""
    drift_count: int = 0
    adopted: bool = False
    provision_attempt: str = ""
    observed_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(_AnyEntry):
    """Entry that rewrites its prefix to one of several target paths, tried in order."""

    kind: ClassVar[Kind] = Kind.LINK

    targets: tuple[Path, ...]
    mode: LinkMode = LinkMode.FIRST
    writes: LinkWrites = LinkWrites.STAY
    fall_back_on_absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount(_AnyEntry):
    """Entry at which a child cluster's tree is attached; ``epoch`` rises with each change of it."""

    kind: ClassVar[Kind] = Kind.MOUNT

    cluster_id: str
    cluster: str = ""
    epoch: int = 1
    endpoints: tuple[str, ...] = ()


Entry = Directory | Topic | Link | Mount
"""Any entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryGrants:
    """The grants of one entry in order, with who changed them and when; stored beside the entry."""

    grants: tuple[Grant, ...]
    change_count: int = 1
    changed_at_ms: int = 0
    changed_by: str = ""


class Codec(Protocol):
    """Encoding of entries as the store keeps them.

    Pure: equal entries give equal bytes, and ``encode(decode(record)) == record``, so that a guard
    can compare stored bytes.
    """

    def encode(self, entry: Entry) -> bytes:
        """Returns the stored form, without parent and name, which are in the key."""

    def decode(self, record: bytes) -> Entry:
        """Decodes the stored form.

        Raises:
            ValueError: the bytes are not a valid record.
        """

    def policies(self, record: bytes) -> Policies:
        """Returns the policies of a topic's record. Most have none: the result is then
        ``NO_POLICIES`` itself, without decoding.
        """

    def look_like_topics(self, records: Sequence[bytes]) -> bool:
        """True if the first bytes of all these records are those of topics. Cheap enough to check
        the million records of a load. If False, ``physical_names`` finds which records are not
        topics.
        """

    def physical_names(self, records: Sequence[bytes]) -> Sequence[str | None]:
        """Returns the physical name of each topic's record without decoding the entry.

        None if the record is not a topic's, cannot be read, or has a name with a character that no
        name in Kafka has; ``decode`` raises the reason.
        """

    def entry_id(self, record: bytes) -> int:
        """Returns the entry id of a topic's record, without decoding the entry."""

    def partitions(self, records: Iterable[bytes]) -> int:
        """Returns the sum of the partitions of these topics' records, at a fifth of a microsecond
        each.

        A topic whose number is unknown, or whose record cannot be read, counts as one.
        """

    def encode_grants(self, grants: EntryGrants) -> bytes:
        """Returns the stored form of an entry's grants."""

    def decode_grants(self, record: bytes) -> EntryGrants:
        """Decodes the stored form.

        Raises:
            ValueError: the bytes are not valid, or have fields that this version does not know:
                then none of the grants may be applied.
        """


def etag_of(entry: Entry) -> str:
    """Returns the etag, opaque to callers, which changes with every change of the entry
    (AIP-154).
    """
    return f"{entry.entry_id:x}-{entry.change_count}"
