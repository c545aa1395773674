"""Planning: from a command and a snapshot to a plan or an error.

Pure: equal arguments give equal plans, except for the ids that the context draws. The caller
commits the plan under its guards, and plans again when one fails.
"""

from __future__ import annotations

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
from directory.namespace.plan_adopt import adopt_topics, move_topics, record_topics
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.plan_create import (
    create_directory,
    create_link,
    create_mount,
    create_topic,
)
from directory.namespace.plan_delete import delete_entry
from directory.namespace.plan_grants import plan_grant_change
from directory.namespace.plan_move import move_entry
from directory.namespace.plan_reap import finish_delete, forget_retired, reap_deleted
from directory.namespace.plan_update import update_entry
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["plan"]

_OF_NOBODY = (AdoptTopics, RecordObservations, ReapDeleted, FinishDelete, ForgetRetired)
"""Commands without a check of rights. They cannot affect grants: they concern new entries,
observations of Kafka, entries that are removed already, or retired names.
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
    return _plan(draft, command)


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
