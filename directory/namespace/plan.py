"""Planning: from a command and a snapshot to a plan or an error.

Pure: equal arguments give equal plans, except for the ids that the context draws. The caller
commits the plan under its guards, and plans again when one fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import assert_never

from directory.namespace.command import (
    AddGrants,
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    EntryChange,
    FinishDelete,
    ForgetRetired,
    MoveEntry,
    MoveTopics,
    Plan,
    PlanContext,
    ReapDeleted,
    RecordObservations,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.effective_policies import PolicyLevel, inherit, without_cleared_keys
from directory.namespace.entry import NO_POLICIES, Directory, Policies, Topic
from directory.namespace.plan_adopt import adopt_topics, move_topics, record_topics
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.plan_create import (
    create_directory,
    create_link,
    create_mount,
    create_topic,
)
from directory.namespace.plan_delete import delete_entry
from directory.namespace.plan_move import move_entry
from directory.namespace.plan_reap import finish_delete, forget_retired, reap_deleted
from directory.namespace.plan_update import plan_grant_change, update_entry
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["attach_effective_policies", "plan"]

_OF_NOBODY = (AdoptTopics, RecordObservations, ReapDeleted, FinishDelete, ForgetRetired)
"""Commands without a check of rights, which cannot affect grants: they concern new entries,
observations of Kafka, or entries that are removed already.
"""


def plan(snapshot: Snapshot, mount: Path, command: Command, context: PlanContext) -> Plan:
    """Returns the plan of a command.

    ``mount`` is the cluster's mount point; the paths of commands and of changes are absolute.

    Raises:
        AlreadyExists, Absent, InvalidNamespace, NotAuthoritative, InvalidArgument, InvalidPath,
            InvalidPhysicalName, PhysicalNameTaken, PhysicalNameCollides, PhysicalNameRetired,
            NotEmpty, HasMounts, InvalidMove, CrossMount, EtagMismatch, MountShadows, MountOverlaps,
            MountLoop, ReadOnly, QuotaExceeded, LimitExceeded: see ``resolver.errors``.
    """
    draft = PlanBuilder(snapshot, mount, context)
    if not isinstance(command, _OF_NOBODY):
        draft.expect_grants()
    made = _plan(draft, command)
    if not made.changes:
        return made
    return replace(made, changes=attach_effective_policies(made.changes, snapshot, context.above))


def _plan(  # noqa: C901, PLR0911, PLR0912 - one line for each command
    draft: PlanBuilder, command: Command
) -> Plan:
    match command:
        case CreateDirectory():
            return create_directory(draft, command)
        case CreateTopic():
            return create_topic(draft, command)
        case CreateLink():
            return create_link(draft, command)
        case CreateMount():
            return create_mount(draft, command)
        case UpdateEntry():
            return update_entry(draft, command)
        case DeleteEntry():
            return delete_entry(draft, command)
        case MoveEntry():
            return move_entry(draft, command)
        case AdoptTopics():
            return adopt_topics(draft, command)
        case RecordObservations():
            return record_topics(draft, command)
        case MoveTopics():
            return move_topics(draft, command)
        case ReapDeleted():
            return reap_deleted(draft, command)
        case FinishDelete():
            return finish_delete(draft, command)
        case ForgetRetired():
            return forget_retired(draft, command)
        case AddGrants() | RemoveGrants():
            return plan_grant_change(draft, command)
        case _:
            assert_never(command)


def attach_effective_policies(
    changes: Sequence[EntryChange], snapshot: Snapshot, above: Sequence[PolicyLevel]
) -> tuple[EntryChange, ...]:
    """Returns the changes of a plan with the effective policies after each; for a removal, those
    before it.

    Args:
        snapshot: the snapshot of the plan.
        above: the policies of the ancestors above the mount, outermost first.
    """
    carrying = _PolicyAttacher(changes, snapshot, above)
    return tuple(_with_effective(one, carrying.policies_after(one)) for one in changes)


def _with_effective(change: EntryChange, effective: Policies | None) -> EntryChange:
    return change if effective is change.effective else replace(change, effective=effective)


class _PolicyAttacher:
    """Attacher for one plan, which visits each directory once."""

    def __init__(
        self, changes: Sequence[EntryChange], snapshot: Snapshot, above: Sequence[PolicyLevel]
    ) -> None:
        self._snapshot = snapshot
        self._changed = {
            one.entry_id: (one.parent_id, one.after.policies)
            for one in changes
            if isinstance(one.after, Directory)
        }
        self._within = {0: reduce(inherit, (level.policies for level in above), NO_POLICIES)}
        self._plain: dict[int, Policies | None] = {}

    def policies_after(self, change: EntryChange) -> Policies | None:
        """Returns the effective policies after a change; None if none are set, or the entry has
        none.
        """
        entry = change.before if change.after is None else change.after
        if not isinstance(entry, Directory | Topic):
            return None
        if entry.policies is not NO_POLICIES and entry.policies != NO_POLICIES:
            return _bare(inherit(self._holds_in(change.parent_id), entry.policies))
        if change.parent_id not in self._plain:
            self._plain[change.parent_id] = _bare(self._holds_in(change.parent_id))
        return self._plain[change.parent_id]

    def _holds_in(self, directory_id: int) -> Policies:
        found = self._within.get(directory_id)
        if found is None:
            parent_id, own = self._changed.get(directory_id, (0, NO_POLICIES))
            node = self._snapshot.node(directory_id)
            if directory_id not in self._changed and node is not None:
                parent_id, own = node.parent_id, node.directory.policies
            found = inherit(self._holds_in(parent_id), own)
            self._within[directory_id] = found
        return found


def _bare(policies: Policies) -> Policies | None:
    """Returns policies without stamps and without cleared keys."""
    if policies is NO_POLICIES:
        return None
    holds = without_cleared_keys(policies)
    if holds.stamps:
        holds = replace(holds, stamps=MappingProxyType({}))
    return None if holds == NO_POLICIES else holds
