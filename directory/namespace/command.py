"""Commands: the changes of a tree, as values; and the plan of one.

``plan(snapshot, command, context)`` (``directory/namespace/plan.py``) makes a ``Plan`` from a
command, or raises one of ``resolver.errors``. The caller commits the plan under its guards; when a
guard fails, it plans again on a newer snapshot.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from directory.access.grants import Grant
from directory.namespace.bounds import DEFAULT_BOUNDS, Bounds
from directory.namespace.entry import (
    NO_POLICIES,
    Entry,
    EntryGrants,
    Kind,
    LinkMode,
    LinkWrites,
    Policies,
    PolicyLevel,
    Provision,
)
from directory.store.base import Guard, Write
from directory.store.transaction_limits import Limits
from resolver.path import Path

__all__ = [
    "CLEARED",
    "AddGrants",
    "AdoptTopics",
    "Cleared",
    "Command",
    "CreateDirectory",
    "CreateLink",
    "CreateMount",
    "CreateTopic",
    "Creation",
    "DeleteEntry",
    "EntryChange",
    "FinishDelete",
    "ForgetRetired",
    "MoveEntry",
    "MoveTopics",
    "ObservedTopic",
    "Plan",
    "PlanContext",
    "ReapDeleted",
    "RecordObservations",
    "RemoveGrants",
    "TopicObservation",
    "UpdateEntry",
]


class Cleared(enum.Enum):
    """Value of a map's key that ends its inheritance; ``None`` removes the key, so that it inherits
    again.
    """

    CLEARED = "cleared"


CLEARED: Final = Cleared.CLEARED


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Inputs of planning besides the snapshot: time, ids, the caller and the bounds."""

    now_ms: int
    """Unix time, milliseconds."""
    principal: str
    """Principal of the request, such as ``User:ana``; empty if callers are not identified."""
    new_id: Callable[[], int]
    """Returns a random entry id, 3 … 2**63-1."""
    above: Sequence[PolicyLevel] = ()
    """Policies of the ancestors above the mount, outermost first."""
    bounds: Bounds = DEFAULT_BOUNDS
    """Bounds of an entry's contents."""
    claims: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Stored claims of physical names, by key, whose guards failed in an earlier plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDirectory:
    """Command mkdir. With ``make_parents`` missing directories above are created too, in the same
    plan.
    """

    path: Path
    make_parents: bool = False
    policies: Policies = NO_POLICIES
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Command that creates a topic. A ``physical_name`` is used or refused; without one a free name
    is chosen.
    """

    path: Path
    physical_name: str = ""
    partitions: int = 0
    replication_factor: int = 0
    policies: Policies = NO_POLICIES
    adopt_existing: ObservedTopic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateLink:
    """Command that creates a link."""

    path: Path
    targets: tuple[Path, ...]
    mode: LinkMode = LinkMode.FIRST
    writes: LinkWrites = LinkWrites.STAY
    fall_back_on_absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMount:
    """Command that mounts a child cluster. The checks of the federation (loops, the child's record)
    are made before it is planned.
    """

    path: Path
    cluster_id: str
    cluster: str = ""
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateEntry:
    """Command that changes fields of an entry. ``changes`` maps a field path to its new value;
    ``None`` = unset.

    Field paths: ``policies`` (a ``Policies``), ``policies.<field>``, ``policies.<map>.<key>`` (the
    key may contain dots; the value may be ``CLEARED``), ``directory.closed``, ``link.targets``
    (tuple of Path), ``link.mode``, ``link.writes``, ``link.fall_back_on_absent``,
    ``topic.partitions`` (growing only), ``mount.endpoints`` (tuple of str), ``mount.cluster``.
    Changing a mount raises its epoch.
    """

    path: Path
    kind: Kind | None = None
    changes: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    etag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteEntry:
    """Command that removes an entry. Unless ``recursive``, a directory must be empty; one with
    mounts below it is always refused.

    A directory is moved below ``DELETED_ID`` at once, with its id in hexadecimal as its name;
    ``ReapDeleted`` finishes. A topic that is deleted in Kafka too is DELETING, below
    ``DELETED_ID``, until ``FinishDelete``.
    """

    path: Path
    kind: Kind | None = None
    recursive: bool = False
    etag: str = ""
    deletes_in_kafka: bool = False
    """True if Kafka's topics are deleted too (ceiling and policy ``delete``). It is never part of a
    request, but is set from the snapshot on which the removal is planned.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveEntry:
    """Command that moves an entry within the mount; the epoch of a moved mount rises."""

    path: Path
    new_path: Path
    kind: Kind | None = None
    leave_link: bool = False
    etag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTopic:
    """Topic as Kafka reports it. ``topic_id`` has 16 bytes; ``config`` has only
    non-default values.
    """

    physical_name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptTopics:
    """Command that adopts Kafka topics, each at the path from the mapping, relative to the mount.

    Missing directories are created. A topic whose path is taken goes under ``__adopted/`` by its
    flat name; one with a known physical name is left alone. The caller splits batches to fit one
    transaction.
    """

    topics: tuple[tuple[tuple[str, ...], ObservedTopic], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObservation:
    """State of one topic as the reconciler observed it. ``None`` = unchanged.

    Nothing is written if nothing differs, or if no topic with this entry id is at the path.
    """

    path: Path
    entry_id: int
    provision: Provision | None = None
    provision_message: str | None = None
    topic_id: bytes | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    observed_config: Mapping[str, str] | None = None
    drift_count: int | None = None
    provision_attempt: str | None = None
    adopted: bool | None = None
    refused_partitions: int = 0
    """Recorded number of partitions that Kafka refused: ``partitions`` replaces it. Any other
    recorded number only grows, except with ``adopted``.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordObservations:
    """Command that records what the reconciler observed or, with ``within_quotas``, what it is
    about to request: a topic for which quotas allow no more partitions is skipped, with a note.
    """

    news: tuple[TopicObservation, ...]
    within_quotas: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTopics:
    """Command that moves adopted topics to their paths by new rules, all in one transaction.

    Missing directories are created. A topic that cannot be moved stays, with a note; one that is no
    longer at its path is skipped. The caller splits batches to fit one transaction.
    """

    moves: tuple[tuple[Path, int, Path], ...]
    """Each: the topic's path, its entry id, its new path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapDeleted:
    """Command for one step of finishing removals below ``DELETED_ID``: at most ``limit`` entries,
    leaves first, and no more than one transaction holds by ``limits``. Only one server may run it.
    """

    limit: int = 100
    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishDelete:
    """Command for topics that Kafka no longer has, or never had: removes their DELETING entries and
    retires the names.
    """

    topics: tuple[tuple[str, int], ...]
    """Each: the entry's name below ``DELETED_ID``, its entry id."""
    is_acknowledged: bool = False
    """True if Kafka acknowledged the deletion: a broker that still shows one of them lags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRetired:
    """Command that ends the retirement of physical names; those whose time is not over
    are skipped.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGrants:
    """Command that adds grants to an entry; duplicates are ignored."""

    path: Path
    grants: tuple[Grant, ...]
    kind: Kind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveGrants:
    """Command that removes grants from an entry; only exact matches are removed."""

    path: Path
    grants: tuple[Grant, ...]
    kind: Kind | None = None


Creation = CreateDirectory | CreateTopic | CreateLink | CreateMount
Command = (
    Creation
    | UpdateEntry
    | DeleteEntry
    | MoveEntry
    | AdoptTopics
    | RecordObservations
    | MoveTopics
    | ReapDeleted
    | FinishDelete
    | ForgetRetired
    | AddGrants
    | RemoveGrants
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """Change event without its revision. ``before`` None = insert, ``after`` None = delete.

    ``path`` is the entry's path after the change (before it, for a delete); ``path_before`` is set
    for moves. Both are absolute and canonical.
    """

    kind: Kind
    entry_id: int
    parent_id: int
    path: Path
    path_before: Path | None = None
    before: Entry | None = None
    after: Entry | None = None
    of_grants: bool = False
    """True: the entry's grants changed, and the entry itself did not."""
    of_inherited: bool = False
    """True: the records inherited from above the mount changed, and the entry itself did not."""
    operation: str = ""
    """Text of an operator's act on the cluster, which changes no entry; empty: none."""
    grants_before: EntryGrants | None = None
    """Set also for a removed entry."""
    grants_after: EntryGrants | None = None
    effective: Policies | None = None
    """Effective policies of the entry, inherited values included; None: no policies are set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Transaction of guards and writes, committed as a whole. Without ``writes`` there is nothing
    to do.
    """

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]
    changes: tuple[EntryChange, ...]
    entry: Entry | None = None
    """Entry of the command after the change (before it, for a delete)."""
    path: Path | None = None
    """Its path after the change."""
    topic_count: int = 0
    """For a delete: number of topics removed."""
    directory_count: int = 0
    """For a delete: number of directories removed."""
    unreadable_count: int = 0
    """For a delete: number of removed entries whose records, and so whose kinds, cannot be read."""
    kafka_topics_deleted: bool = False
    """For a delete: Kafka topics are deleted, too."""
    notes: tuple[str, ...] = ()
    """One sentence for each topic that is put at another path than the mapping's, left out or not
    moved, and for each quota that is exceeded.
    """
    grants: tuple[Grant, ...] = ()
    """For a change of grants: the entry's grants afterwards."""
    grants_changed: tuple[Grant, ...] = ()
    """For a change of grants: those added or removed."""
