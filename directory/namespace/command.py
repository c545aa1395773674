"""Commands: what can be changed in a tree, as values; and what planning one gives.

``plan(snapshot, command, context)`` (``directory/namespace/plan.py``) makes of a command a
``Plan`` or raises one of ``resolver.errors``. The caller commits the plan under its guards; when a
guard does not hold, it plans again on a newer snapshot.
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
from directory.store.base import Guard, Limits, Write
from resolver.path import Path

__all__ = [
    "CLEARED",
    "RETIRED_FOR_MS",
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

RETIRED_FOR_MS: Final = 24 * 3600 * 1000
"""For so long a deleted physical name is not used again."""


class Cleared(enum.Enum):
    """The new value of a map's key that ends its inheritance; ``None`` takes the key away, so that
    it inherits again.
    """

    CLEARED = "cleared"


CLEARED: Final = Cleared.CLEARED


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Clock and id source of planning."""

    now_ms: int
    """Unix time, milliseconds."""
    principal: str
    """Who requested it, such as ``User:ana``; empty where identities are not in use."""
    new_id: Callable[[], int]
    """A fresh random entry id, 3 … 2**63-1."""
    deletes_in_kafka: bool = False
    """Whether removing an entry removes Kafka's topic too (ceiling or policy ``delete``)."""
    creates_in_kafka: bool = False
    """Whether new topics may be made in Kafka (ceiling or policy ``create``)."""
    above: Sequence[PolicyLevel] = ()
    """What the ancestors above the mount set, outermost first."""
    bounds: Bounds = DEFAULT_BOUNDS
    """How much may be put into an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDirectory:
    """mkdir. With ``make_parents`` the missing tiers above are made too, in the same plan."""

    path: Path
    make_parents: bool = False
    policies: Policies = NO_POLICIES
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """A new topic. ``physical_name`` asked for is used or refused; else a free one is chosen."""

    path: Path
    physical_name: str = ""
    partitions: int = 0
    replication_factor: int = 0
    policies: Policies = NO_POLICIES
    adopt_existing: ObservedTopic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateLink:
    """A new link."""

    path: Path
    targets: tuple[Path, ...]
    mode: LinkMode = LinkMode.FIRST
    writes: LinkWrites = LinkWrites.STAY
    fall_back_on_absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMount:
    """Mount a child cluster. The federation's checks (loops, the child's record) come before."""

    path: Path
    cluster_id: str
    cluster: str = ""
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateEntry:
    """Change fields of an entry.

    ``changes`` maps a field path to its new value; ``None`` = unset. Field paths: ``policies`` (a
    ``Policies``), ``policies.<field>``, ``policies.<map>.<key>`` (the key may hold dots; the value
    may be ``CLEARED``), ``directory.closed``,
    ``link.targets`` (tuple of Path), ``link.mode``, ``link.writes``, ``link.fall_back_on_absent``,
    ``topic.partitions`` (growing only), ``mount.endpoints`` (tuple of str), ``mount.cluster``.
    Changing a mount raises its epoch.
    """

    path: Path
    kind: Kind | None = None
    changes: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    etag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteEntry:
    """Remove an entry. Not recursive, a directory must be empty. Mounts below are refused always.

    A directory is moved to ``DELETED_ID`` under its id in hexadecimal as name, at once;
    ``ReapDeleted`` finishes. A topic whose Kafka side goes too stays there as DELETING until
    ``FinishDelete``.
    """

    path: Path
    kind: Kind | None = None
    recursive: bool = False
    etag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveEntry:
    """Move an entry within the mount; of a mount, its epoch rises."""

    path: Path
    new_path: Path
    kind: Kind | None = None
    leave_link: bool = False
    etag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTopic:
    """A topic as Kafka shows it. ``topic_id`` is 16 bytes; ``config`` only what is not default."""

    physical_name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptTopics:
    """Take existing Kafka topics in, each at the path that the mapping gave, relative to the mount.

    Missing directories are made. A topic whose place is taken goes under ``__adopted/`` by its flat
    name; one that is known by physical name already is left as it is. At most as many as fit one
    transaction; the caller cuts batches.
    """

    topics: tuple[tuple[tuple[str, ...], ObservedTopic], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObservation:
    """State of one topic entry that the reconciler observed. ``None`` = not changed. Nothing is
    written where nothing differs, or where the entry is gone or has another physical name by now.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordObservations:
    """Commit what the reconciler learnt, or with ``within_quotas`` what it is about to ask for: a
    topic of which quotas do not let more partitions come is passed over, with a note.
    """

    news: tuple[TopicObservation, ...]
    within_quotas: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTopics:
    """Move topics that were adopted before to where new rules put them, all in one step.

    The missing directories are made. One that cannot be moved stays where it is, and a note says
    why; one that is not there any more, or is another by now, is passed over. At most as many as
    fit one transaction; the caller cuts batches.
    """

    moves: tuple[tuple[Path, int, Path], ...]
    """Each: where the topic is, its entry id, where it is to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapDeleted:
    """One step of finishing removals below ``DELETED_ID``: at most ``limit`` entries, leaves first,
    and of ``limits`` as many as one transaction holds. What makes it must be the only one to.
    """

    limit: int = 100
    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishDelete:
    """Kafka no longer has these topics (or they were never there): drop their DELETING entries and
    retire the names.
    """

    topics: tuple[tuple[str, int], ...]
    """Each: the entry's name below ``DELETED_ID``, its entry id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRetired:
    """Command that ends the retirement of physical names; those that must stay retired are
    skipped.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGrants:
    """Add to the grants of an entry; those that it has already stay as they are."""

    path: Path
    grants: tuple[Grant, ...]
    kind: Kind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveGrants:
    """Take from the grants of an entry, each exactly as it was added; one that it does not have is
    passed over.
    """

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
    """One change event without its revision. ``before`` None = insert, ``after`` None = delete.

    ``path`` is where the entry is after the change (was, for a delete); ``path_before`` is set for
    moves. Absolute, canonical.
    """

    kind: Kind
    entry_id: int
    parent_id: int
    path: Path
    path_before: Path | None = None
    before: Entry | None = None
    after: Entry | None = None
    of_grants: bool = False
    """It is about the entry's grants: the entry is as it was, before and after."""
    of_inherited: bool = False
    """It is about what is inherited from above the mount: the entry is as it was."""
    operation: str = ""
    """What an operator did to the cluster, for people: the entry is as it was. Empty: no such act.
    """
    grants_before: EntryGrants | None = None
    """Also of an entry that is gone."""
    grants_after: EntryGrants | None = None
    effective: Policies | None = None
    """What holds for the entry, inherited values too; None: nobody set anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Transaction of guards and writes, committed as a whole. Empty ``writes``: there is nothing to
    do.
    """

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]
    changes: tuple[EntryChange, ...]
    entry: Entry | None = None
    """The entry that the command was about, as it will be (for a delete: as it was)."""
    path: Path | None = None
    """Its path after the change."""
    topic_count: int = 0
    """For a delete: topics that go."""
    directory_count: int = 0
    """For a delete: directories that go."""
    kafka_topics_deleted: bool = False
    """For a delete: topics of Kafka go with the entry."""
    notes: tuple[str, ...] = ()
    """For adoption: one sentence for each topic that was put elsewhere or left out, and why."""
    grants: tuple[Grant, ...] = ()
    """For a change of grants: the entry's grants afterwards."""
    grants_changed: tuple[Grant, ...] = ()
    """For a change of grants: those that came or went."""
