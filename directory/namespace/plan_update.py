"""Plans for changing fields of an entry; refuses to change where it is or what Kafka calls it."""

from __future__ import annotations

from dataclasses import replace

from directory.namespace import policy_checks
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
from directory.namespace.fields import apply_changes
from directory.namespace.keys import mounted_key
from directory.namespace.links import check_targets
from directory.namespace.mounted import raised_claim
from directory.namespace.plan_builder import Draft
from directory.namespace.quotas import Amount, counts_of
from directory.namespace.room import check_own, check_room
from directory.namespace.snapshot import Node
from directory.namespace.traversal import Standing
from resolver.errors import EtagMismatch, InvalidArgument
from resolver.path import Path

__all__ = ["check_etag", "own_policies", "update_entry"]

_ALWAYS = frozenset({"policies.read_only"})
"""What may be changed where nothing may: or read-only could never be ended."""
_PUSHED = ("configs", "acls")
"""The aspects of Kafka that are pushed without anybody's asking for it, once they are armed."""


def update_entry(draft: Draft, command: UpdateEntry) -> Plan:
    """Change the named fields; nothing at all where nothing differs."""
    found = draft.find_entry(command.path, command.kind)
    check_etag(found, command.etag)
    before = found.entry
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
    node = found.parent or draft.snapshot.node(ROOT_ID)
    if node is not None and not command.changes.keys() <= _ALWAYS:
        policy_checks.check_writable(draft, node, own_policies(before))
    if found.parent is not None:
        draft.expect_way(found.parent)
        if isinstance(before, Topic) and isinstance(after, Topic):
            _check_growth(draft, found.parent, command.path, before, after)
    return draft.finish(_changed(draft, found, after), command.path)


def _check_exclusions(
    draft: Draft, found: Standing, before: Policies, after: Policies, path: Path
) -> None:
    """What is excluded from an armed directory is armed again by a plan that was read, never by
    taking the exclusion away: what was wished since would be asked of Kafka at once.
    """
    for aspect in _PUSHED:
        if before.manage.get(aspect) is not False or aspect in after.manage:
            continue
        above, said = found.parent, None
        while above is not None and said is None:
            said = above.directory.policies.manage.get(aspect)
            above = draft.snapshot.node(above.parent_id) if above.parent_id else None
        if said:
            field = f"policies.manage.{aspect}"
            raise InvalidArgument(
                f"{field}: found false below a directory that is armed; without it what is here "
                f"would be armed again, which takes a plan that was read first: kdir arm {path} "
                f"--aspect {aspect}",
                field=field,
            )


def _check_growth(draft: Draft, node: Node, path: Path, before: Topic, after: Topic) -> None:
    """More partitions than there is room for are refused when they are wished. A policy's are
    counted once they are pushed: until then they are no more than a wish.
    """
    wished = max(after.partitions, after.policies.partitions or 0)
    known = max(before.partitions, before.policies.partitions or 0)
    if wished <= known:
        return
    check_own(path, after.policies, wished)
    check_room(draft, node, Amount(0, wished - counts_of(before).partitions))


def _changed(draft: Draft, found: Standing, after: Entry) -> Entry:
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
            draft.set(mounted_key(raised.cluster_id), claim)
            stamped = raised
        case _:
            raise AssertionError  # apply_changes keeps the kind
    draft.update(found.parent_id, found.name, found.entry, stamped, found.path)
    return stamped


def own_policies(entry: Entry) -> Policies | None:
    """The policies of an entry, of the kinds that have them."""
    return entry.policies if isinstance(entry, Directory | Topic) else None


def check_etag(found: Standing, etag: str) -> None:
    """The entry is the one that the caller saw, if the caller says which that was.

    Raises:
        EtagMismatch: with both.
    """
    current = etag_of(found.entry)
    if etag and etag != current:
        raise EtagMismatch(
            f"{found.path} has changed since: its etag is {current}, not {etag}",
            path=found.path,
            etag=current,
        )
