"""Dry run: fills in the ChangePlan of a change (``validate_only``): rights, policies, quotas and
calls to Kafka that it would change. Entries that the caller may not describe are left out.

The command was authorized and planned before; nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar, cast

from kdir.v1 import access_pb2, entry_pb2

from directory.access.grant_tree import EntryPlace
from directory.access.grants import Operation, ResourceType
from directory.access.permission_diff import AccessChange, DiffSide, diff_permissions
from directory.api.entry_writes import is_kafka_change_allowed, locks_out
from directory.api.plan_messages import call_to_proto
from directory.federation import inheritance
from directory.kafka.admin_contract import KafkaCall, Resource
from directory.kafka.arming import dry_run_calls
from directory.kafka.arming.dry_run_calls import predict_acl_calls
from directory.kafka.kafka_context import ACLS, CONFIGS
from directory.namespace import change_impact
from directory.namespace.change_impact import ChangeSide
from directory.namespace.command import (
    AddGrants,
    DeleteEntry,
    MoveEntry,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.effective_policies import Shown
from directory.namespace.entry import Directory, Topic, etag_of
from directory.namespace.quotas import Quota
from directory.namespace.snapshot import Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.traversal import LocatedEntry, entry_path, locate_entry
from directory.store.writer import CommitResult
from resolver.path import Path

if TYPE_CHECKING:
    from directory.api.cluster_router import ClusterRouter
    from directory.api.rpc.call_context import Call
    from directory.server.cluster import Cluster

__all__ = ["Planned", "fill_change_plan"]

Planned = UpdateEntry | DeleteEntry | MoveEntry | AddGrants | RemoveGrants
"""Commands for which a ChangePlan exists."""

T = TypeVar("T")
_MOST: Final = 100
"""Most rows of each sort in a plan; the rest are counted."""
_SECONDS: Final = 2.0
"""Most time that a server spends on one plan."""
_OPERATIONS: Final = frozenset(Operation) - {Operation.ALL}


def fill_change_plan(
    router: ClusterRouter,
    cluster: Cluster,
    command: Planned,
    written: CommitResult,
    call: Call,
    out: access_pb2.ChangePlan,
) -> None:
    """Fills in the effects of a planned command; nothing for a caller that may neither describe
    nor ALTER the entry.

    Raises:
        NotReady: the inherited records are not loaded.
        DeadlineExceeded: the caller's deadline has passed.
        Cancelled: the caller has gone.
    """
    assert written.snapshot is not None  # noqa: S101 - it was only planned
    _ChangePlanBuilder(router, cluster, command, written, written.snapshot, call).fill(out)


class _ChangePlanBuilder:
    """Builder of one ChangePlan, within one call."""

    def __init__(
        self,
        router: ClusterRouter,
        cluster: Cluster,
        command: Planned,
        written: CommitResult,
        before: Snapshot,
        call: Call,
    ) -> None:
        self._router = router
        self._cluster = cluster
        self._command = command
        self._call = call
        self._mount = cluster.mount_at(before)
        self._before = before
        self._after = before.apply(before.revision + 1, written.plan.writes)
        self._was = locate_entry(before, self._mount, command.path, command.kind)
        self._now = self._standing_after()
        self._budget = TimeBudget(_until(call))
        self._tree = router.tree(cluster, before, call)
        self._here = self._was.path.below(self._mount)
        self._above = inheritance.inherited_origins(before)

    def _standing_after(self) -> LocatedEntry | None:
        command = self._command
        if isinstance(command, DeleteEntry):
            return None
        path = command.new_path if isinstance(command, MoveEntry) else command.path
        return locate_entry(self._after, self._mount, path, self._was.entry.kind)

    def fill(self, out: access_pb2.ChangePlan) -> None:
        """Fills in the effects on the entry; for a removal, what is removed with it and the calls
        for ACLs, without policies and access.
        """
        if not self._tree.shows(self._here, self._was.entry.kind):
            return
        out.etag = etag_of(self._was.entry)
        self._entries(out)
        if self._now is None:
            self._kafka_topics(out)
        else:
            self._policies(self._now, out)
            self._access(self._now, out)
        self._kafka_calls(self._now, out)
        out.locks_out = locks_out(
            self._router.access_control, self._cluster, self._before, self._command, self._call
        )
        out.incomplete = self._budget.is_over
        self._call.check()

    def _place(self, found: LocatedEntry) -> EntryPlace:
        return EntryPlace(found.path.below(self._mount), isinstance(found.entry, Topic))

    def _entries(self, out: access_pb2.ChangePlan) -> None:
        place = self._place(self._was)
        size = change_impact.size_of(self._before, self._was, place, self._budget)
        out.entries.directories, out.entries.topics = size.directories, size.topics
        node = self._before.nodes.get(self._was.entry.entry_id)
        if isinstance(self._was.entry, Directory) and not self._sees_all and node is not None:
            seen = self._tree.count_below(self._here, node)
            out.entries.directories, out.entries.topics = seen.containers + 1, seen.topics
            return  # how many links, mounts and entries with grants are hidden is unknown
        out.entries.links, out.entries.mounts = size.links, size.mounts
        out.entries.entries_with_grants = size.entries_with_grants

    @property
    def _sees_all(self) -> bool:
        """True if nothing below the entry is hidden from the caller."""
        return isinstance(self._was.entry, Topic) or self._tree.can_describe_all_below(self._here)

    @property
    def _shown(self) -> Shown | None:
        """Filter of the topics and mounts that may be shown; None = all."""
        if not isinstance(self._was.entry, Directory):
            return None
        return self._tree.shown_below(self._here)

    def _kafka_topics(self, out: access_pb2.ChangePlan) -> None:
        path, kind = self._command.path, self._was.entry.kind
        found = change_impact.removal_impact(
            self._before,
            self._was.entry,
            self._budget,
            goes_in_kafka=is_kafka_change_allowed(
                self._cluster, self._before, "delete", path, kind
            ),
            shown=self._shown,
        )
        out.entries.kafka_deleted, out.entries.kafka_detached = found.deleted, found.detached
        out.entries.kafka_missing, out.entries.kafka_replaced = found.missing, found.replaced
        out.retired_names.extend(found.retired)
        out.retired_names_omitted = found.retired_count - len(found.retired)

    def _policies(self, now: LocatedEntry, out: access_pb2.ChangePlan) -> None:
        kept = ChangeSide(self._before, self._was), ChangeSide(self._after, now)
        for one in change_impact.diff_effective_policies(
            *kept, self._above, self._budget, self._shown
        ):
            row = out.policies.add(
                field=one.field,
                topic_count=one.topics,
                cluster_count=one.clusters,
                deletes_data=one.deletes_data,
            )
            if one.before is not None:
                row.before = _text(one.before)
            if one.after is not None:
                row.after = _text(one.after)
        for quota, used in change_impact.newly_exceeded_quotas(*kept, self._mount, self._above):
            shown = (
                used if self._sees_all_of(quota) else quota.limit + 1
            )  # the lowest value above the quota
            out.quotas.add(path=quota.path, field=quota.field, limit=quota.limit, used=shown)

    def _sees_all_of(self, quota: Quota) -> bool:
        """True if nothing that a quota counts is hidden from the caller."""
        relative = self._before.path_of(quota.directory_id)
        return relative is not None and self._tree.can_describe_all_below(relative)

    # -- who may do what -----------------------------------------------------------------------

    def _access(self, now: LocatedEntry, out: access_pb2.ChangePlan) -> None:
        access = self._router.access_control.access(self._cluster, self._before)
        place = self._place(now)
        rows = diff_permissions(
            DiffSide(access, self._place(self._was)),
            DiffSide(replace(access, tree=self._after.grants), place),
            age_seconds=self._cluster.unconfirmed_seconds() or 0.0,
            go_on=lambda: self._budget.spend(_COMPARISON_COSTS),
        )
        shown = (row for row in rows if self._is_shown(row, place))
        for row in _take_limited(shown, out, "access_omitted"):
            out.access.append(self._row(row))

    def _is_shown(self, row: AccessChange, place: EntryPlace) -> bool:
        """True if the caller may see the entry at its current place."""
        inside = row.place.relative[len(place.relative) :]
        return self._tree.can_describe((*self._here, *inside), is_topic=row.place.is_topic)

    def _row(self, row: AccessChange) -> access_pb2.AccessChange:
        return access_pb2.AccessChange(
            principal=row.caller.principal,
            host=row.caller.host,
            resource_type=cast("access_pb2.ResourceType", row.kind.value),
            resource_name=row.name,
            path=str(entry_path(self._mount, row.place.relative)),
            kind=entry_pb2.ENTRY_KIND_TOPIC if row.place.is_topic else None,
            gained=_operations(row.gained),
            lost=_operations(row.lost),
        )

    # -- Kafka ---------------------------------------------------------------------------------

    def _kafka_calls(self, now: LocatedEntry | None, out: access_pb2.ChangePlan) -> None:
        out.caller_view = not self._sees_all
        calls = chain(() if now is None else self._config_calls(now, out), self._acl_calls())
        for one in _take_limited(calls, out, "kafka_calls_omitted"):
            out.kafka_calls.append(call_to_proto(one))

    def _is_allowed(self, aspect: str) -> bool:
        kafka = self._cluster.config.kafka
        return kafka is not None and aspect in kafka.ceiling

    def _config_calls(self, now: LocatedEntry, out: access_pb2.ChangePlan) -> Iterable[KafkaCall]:
        """Yields the calls that change configs, and fills in which aspects are armed and which
        changes are held back.
        """
        if not self._is_allowed(CONFIGS):
            return
        above = [level.policies for level in self._above]
        was, then = (
            dry_run_calls.KafkaChangeSide(snapshot, standing, self._mount, above)
            for snapshot, standing in ((self._before, self._was), (self._after, now))
        )
        out.armed = dry_run_calls.is_armed(then)
        for topic in dry_run_calls.predict_topics(was, then, self._budget, self._shown):
            out.armed = True
            out.held_topic_count += topic.is_held
            yield from topic.calls

    def _acl_calls(self) -> Iterable[KafkaCall]:
        if not self._is_allowed(ACLS):
            return ()
        access = self._router.access_control.access(self._cluster, self._before)
        return predict_acl_calls(
            self._before,
            self._after,
            self._mount,
            self._budget,
            expired=access.has_expired(self._cluster.unconfirmed_seconds() or 0.0),
            shown=self._is_resource_shown,
        )

    def _is_resource_shown(self, resource: Resource, path: Path) -> bool:
        """True if the caller may see, at its current place, the entry that desires ACLs of a
        resource.

        Args:
            resource: the resource.
            path: the entry's path: after the change, if it desires ACLs then.
        """
        is_topic = resource.kind is ResourceType.TOPIC
        relative = path.below(self._mount)
        if self._now is not None and self._now.path.is_prefix_of(path):
            inside = path.below(self._now.path)
            # A topic and a directory may have one path: only one of them is the changed entry.
            if isinstance(self._was.entry, Topic) and not inside:
                relative = self._here
            elif isinstance(self._was.entry, Directory) and (inside or not is_topic):
                relative = (*self._here, *inside)
        # A group is desired by a directory, or by a topic that is armed by itself.
        is_topic = is_topic or self._before.find_directory(relative) is None
        return self._tree.can_describe(relative, is_topic=is_topic)


_COMPARISON_COSTS: Final = 50
"""Cost of comparing one caller's rights on one entry, in entries visited."""


def _until(call: Call) -> Callable[[], bool]:
    """Returns a function that returns True until ``_SECONDS``, or half of the caller's time, are
    over.
    """
    end = time.monotonic() + min(_SECONDS, call.seconds_left() / 2)

    def go_on() -> bool:
        call.check()
        return time.monotonic() < end

    return go_on


def _take_limited(found: Iterable[T], out: access_pb2.ChangePlan, omitted: str) -> Iterator[T]:
    """Yields the first rows; stores the number of further ones in a field."""
    for number, one in enumerate(found):
        if number < _MOST:
            yield one
        else:
            setattr(out, omitted, number + 1 - _MOST)


def _operations(found: frozenset[Operation]) -> list[access_pb2.Operation]:
    shown = [Operation.ALL] if found == _OPERATIONS else sorted(found)
    return [cast("access_pb2.Operation", one.value) for one in shown]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
