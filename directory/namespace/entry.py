"""Entries as pure values: directory, topic, link, mount, and what is granted on one; refuses to
know how they are stored.

The numbers of the enums are those of ``kdir.v1``; the codec (``directory/wire/entry_codec.py``)
translates.
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
    "CONTAINER_KINDS",
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
"""Id of the place that removed entries are moved to until the reaper has finished them."""


class Kind(enum.IntEnum):
    """Kind of an entry."""

    DIRECTORY = 1
    TOPIC = 2
    LINK = 3
    MOUNT = 4

    @property
    def is_container(self) -> bool:
        """Whether it is one of the three that a path can go on through."""
        return self is not Kind.TOPIC


CONTAINER_KINDS: Final = (Kind.DIRECTORY, Kind.LINK, Kind.MOUNT)


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
    """In which order a link's targets are asked."""

    FIRST = 1
    UNION = 2


class LinkWrites(enum.IntEnum):
    """Rule for producers when the first target is unreachable."""

    STAY = 1
    FOLLOW = 2


def _frozen(mapping: Mapping[str, str | None] | None = None) -> Mapping[str, str | None]:
    return MappingProxyType(dict(mapping or {}))


@dataclass(frozen=True, slots=True)
class Stamp:
    """Principal that set something, and the time (Unix milliseconds)."""

    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Policies:
    """Settings of one entry that hold for all below it (KIP-37).

    ``None`` is unset: the field inherits. In the maps a value of ``None`` means *cleared*: the key
    inherits no longer. Maps merge key by key.
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
    """Who set each field, by ``owner`` or ``topic_config[retention.ms]``; not inherited."""


NO_POLICIES: Final = Policies()


class PolicyLevel(NamedTuple):
    """Policies of one entry; ``path`` is where it is, canonical."""

    path: str
    policies: Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyEntry:
    """What every entry has."""

    entry_id: int
    change_count: int = 1
    changed_at_ms: int = 0
    changed_by: str = ""
    policies: Policies = NO_POLICIES
    unknown: bytes = b""
    """What a newer version stored and this one must hand on untouched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory(_AnyEntry):
    """A directory (a namespace in KIP-37's terms)."""

    kind: ClassVar[Kind] = Kind.DIRECTORY

    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(_AnyEntry):
    """A topic: its physical name and Kafka id are recorded, never derived."""

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
    """The grants of one entry, in order, and who changed them when. Kept beside the entry."""

    grants: tuple[Grant, ...]
    change_count: int = 1
    changed_at_ms: int = 0
    changed_by: str = ""


class Codec(Protocol):
    """Encoding of entries as the bytes that the store keeps. Pure: equal entries give equal bytes,
    and ``encode(decode(record))`` is ``record``, so that a guard can compare what is stored.
    """

    def encode(self, entry: Entry) -> bytes:
        """Returns the stored form; without path, parent or name, which are in the key."""

    def decode(self, record: bytes) -> Entry:
        """Decodes the stored form.

        Raises:
            ValueError: the bytes are not a record of ours.
        """

    def policies(self, record: bytes) -> Policies:
        """Returns the policies of a topic's record: ``NO_POLICIES`` itself, and at
        once, for most.
        """

    def look_like_topics(self, records: Sequence[bytes]) -> bool:
        """True if all of these are topics' records by their first bytes: so cheap that a load can
        ask it of a million. If not, ``physical_names`` says which are.
        """

    def physical_names(self, records: Sequence[bytes]) -> Sequence[str | None]:
        """Returns the physical name of each topic's record, without making an entry of it. None
        where the record is not a topic's or cannot be read; ``decode`` says why.
        """

    def entry_id(self, record: bytes) -> int:
        """Returns the entry id of a topic's record, at once."""

    def partitions(self, records: Iterable[bytes]) -> int:
        """Returns how many partitions the topics of these records have together, in a fifth of a
        microsecond each. One whose number is not known, or that cannot be read, counts as one.
        """

    def encode_grants(self, grants: EntryGrants) -> bytes:
        """Returns the stored form of an entry's grants."""

    def decode_grants(self, record: bytes) -> EntryGrants:
        """Decodes the stored form.

        Raises:
            ValueError: the bytes are not grants, or say more than this version understands: then
                nothing of them may be acted on.
        """


def etag_of(entry: Entry) -> str:
    """Returns the etag, opaque to callers; it changes whenever the entry does (AIP-154)."""
    return f"{entry.entry_id:x}-{entry.change_count}"
