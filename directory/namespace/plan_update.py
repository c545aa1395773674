"""Plans of changing the fields of an entry."""

from __future__ import annotations

from dataclasses import replace

from directory.namespace.bounds import check_mount
from directory.namespace.command import Plan, UpdateEntry
from directory.namespace.entry import (
    ROOT_ID,
    Directory,
    Entry,
    Link,
    Mount,
    Policies,
    Topic,
    etag_of,
)
from directory.namespace.keys import mounted_key
from directory.namespace.mounted import raised_claim
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.quotas import Amount, check_quota, check_topic_own_quota, topic_amount
from directory.namespace.snapshot import Node
from directory.namespace.snapshot_update import UNREADABLE_ROOT
from directory.namespace.traversal import LocatedEntry
from directory.namespace.updatable_fields import apply_changes, check_targets
from resolver.errors import EtagMismatch, InvalidArgument
from resolver.path import Path

__all__ = [
    "check_etag",
    "own_policies",
    "update_entry",
]


_ALWAYS = frozenset({"policies.read_only"})
"""Fields that may be changed below a read-only directory: otherwise read-only could
never be ended.
"""
_PUSHED = ("configs", "acls")
"""Aspects of Kafka that are pushed without a further request, once they are armed."""


def update_entry(draft: PlanBuilder, command: UpdateEntry) -> Plan:
    """Plans the change of the named fields; an empty plan if none differs."""
    found = draft.find_entry(command.path, command.kind)
    check_etag(found, command.etag)
    before = found.entry
    is_replaced = before is UNREADABLE_ROOT and command.changes.get("policies.read_only") is False
    if is_replaced:
        before = Directory(entry_id=ROOT_ID)
    bounds = draft.context.bounds
    after = apply_changes(before, command.changes, bounds)
    if isinstance(after, Directory | Topic) and isinstance(before, Directory | Topic):
        _check_exclusions(draft, found, before.policies, after.policies, command.path)
        policies = draft.stamped_policies(after.policies, before.policies)
        after = replace(after, policies=policies)
    if after == before:
        return draft.finish(before, command.path)
    if isinstance(after, Link) and isinstance(before, Link):
        check_targets(command.path, after.targets, bounds, before.targets)
    if isinstance(after, Mount) and isinstance(before, Mount):
        check_mount(after, before, bounds)
    node = found.parent or draft.snapshot.nodes.get(ROOT_ID)
    if node is not None and not is_replaced and not command.changes.keys() <= _ALWAYS:
        own = None if before is UNREADABLE_ROOT else own_policies(before)
        draft.check_not_read_only(node, own)
    if found.parent is not None:
        draft.require_ancestors(found.parent)
        if isinstance(before, Topic) and isinstance(after, Topic):
            _check_growth(draft, found.parent, command.path, before, after)
    return draft.finish(_changed(draft, found, after), command.path)


def _check_exclusions(
    draft: PlanBuilder, found: LocatedEntry, before: Policies, after: Policies, path: Path
) -> None:
    """Checks that the change does not undo an exclusion from an armed directory. Only a plan that
    an operator has read may arm the entry again: otherwise changes made meanwhile would be pushed
    to Kafka at once.
    """
    for aspect in _PUSHED:
        if before.manage.get(aspect) is not False or aspect in after.manage:
            continue
        above, reported = found.parent, None
        while above is not None and reported is None:
            reported = above.directory.policies.manage.get(aspect)
            above = draft.snapshot.nodes.get(above.parent_id) if above.parent_id else None
        if reported:
            field = f"policies.manage.{aspect}"
            raise InvalidArgument(
                f"{field}: found false below a directory that is armed; removing it would arm the "
                f"entry again, which takes a plan that an operator has read: kdir arm {path} "
                f"--aspect {aspect}",
                field=field,
            )


def _check_growth(draft: PlanBuilder, node: Node, path: Path, before: Topic, after: Topic) -> None:
    """Checks the quotas for requested partitions, the topic's own policy included. Partitions by
    inherited policies are counted when they are pushed: until then they are only desired.
    """
    known = max(before.partitions, before.policies.partitions or 0)
    own = after.policies.partitions or 0
    # An own policy that was set before is not in the record, which is what quotas count.
    desired_config = max(after.partitions, own if own > known else 0)
    if desired_config <= before.partitions:
        return
    check_topic_own_quota(path, after.policies, desired_config)
    check_quota(draft, node, Amount(0, desired_config - topic_amount(before).partitions))


def _changed(draft: PlanBuilder, found: LocatedEntry, after: Entry) -> Entry:
    match found.entry, after:
        case Directory() as before, Directory():
            stamped: Entry = draft.stamped(after)
        case Topic() as before, Topic():
            stamped = draft.stamped(after)
        case Link() as before, Link():
            stamped = draft.stamped(after)
        case Mount() as before, Mount():
            raised = replace(draft.stamped(after), epoch=before.epoch + 1)
            claim = raised_claim(draft.snapshot, before, raised, found.path)
            draft.write_fact(mounted_key(raised.cluster_id), claim)
            stamped = raised
        case _:
            raise AssertionError  # apply_changes keeps the kind
    draft.update(found.parent_id, found.name, found.entry, stamped, found.path)
    return stamped


def own_policies(entry: Entry) -> Policies | None:
    """Returns the entry's own policies, if its kind has any."""
    return entry.policies if isinstance(entry, Directory | Topic) else None


def check_etag(found: LocatedEntry, etag: str) -> None:
    """Checks that the entry has the etag of the request, if that has one.

    Raises:
        EtagMismatch: has both etags.
    """
    current = etag_of(found.entry)
    if etag and etag != current:
        raise EtagMismatch(
            f"{found.path} has changed since it was read or planned: its etag is {current}, not "
            f"{etag}; nothing was done",
            path=found.path,
            etag=current,
        )
