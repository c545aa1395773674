"""Plans of adding and removing grants of an entry: all other grants of it stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from directory.access.grants import MOST_GRANTS, Grant, in_order
from directory.namespace.command import AddGrants, EntryChange, Plan, RemoveGrants
from directory.namespace.entry import EntryGrants
from directory.namespace.plan_builder import PlanBuilder
from resolver.errors import LimitExceeded, UnreadableRecord
from resolver.path import Path

__all__ = ["add_grants", "plan_grant_change", "remove_grants"]


def plan_grant_change(draft: PlanBuilder, command: AddGrants | RemoveGrants) -> Plan:
    """Plans added or removed grants; an empty plan if none differs.

    Grants may also be changed on read-only entries: otherwise nobody's access to them could be
    revoked.
    """
    found = draft.find_entry(command.path, command.kind)
    place = (found.parent_id, found.entry.kind, found.name)
    try:
        before = draft.grants_of(*place)
    except ValueError as error:
        raise UnreadableRecord(
            f"the grants of {command.path} cannot be read: {error}; see kdir doctor"
        ) from None
    had = () if before is None else before.grants
    change = add_grants if isinstance(command, AddGrants) else remove_grants
    grants = change(had, command.grants)
    _refuse_too_many(grants, command.path)
    changed = tuple(one for one in (*had, *grants) if (one in had) != (one in grants))
    entry_id, is_topic = found.entry.entry_id, not found.entry.kind.is_container
    topic_count = 1 if is_topic else draft.snapshot.counts(entry_id).topics
    if grants == had:
        return draft.finish(found.entry, command.path, topic_count=topic_count, grants=grants)
    if found.parent is not None:
        draft.require_ancestors(found.parent)
    draft.expect_entry(found.parent_id, found.name, found.entry)
    after = _stored_grants(draft, before, grants)
    draft.put_grants(*place, after)
    draft.bump_grants_version()
    draft.add_event(
        EntryChange(
            kind=found.entry.kind,
            entry_id=found.entry.entry_id,
            parent_id=found.parent_id,
            path=command.path,
            before=found.entry,
            after=found.entry,
            of_grants=True,
            grants_before=before,
            grants_after=after,
        )
    )
    return draft.finish(
        found.entry,
        command.path,
        topic_count=topic_count,
        grants=grants,
        grants_changed=changed,
    )


def add_grants(grants: Iterable[Grant], more: Iterable[Grant]) -> tuple[Grant, ...]:
    """Returns an entry's grants with more; duplicates are left out."""
    return in_order((*grants, *more))


def remove_grants(grants: Iterable[Grant], gone: Iterable[Grant]) -> tuple[Grant, ...]:
    """Returns an entry's grants without these; only exact matches are removed."""
    without = frozenset(gone)
    return tuple(one for one in grants if one not in without)


def _refuse_too_many(grants: Sequence[Grant], path: Path) -> None:
    if len(grants) > MOST_GRANTS:
        raise LimitExceeded(
            f"grants: {path} would have {len(grants):,}; expected at most {MOST_GRANTS:,}: "
            f"grant on a directory above it, or to fewer principals",
            field="grants",
            limit=MOST_GRANTS,
        )


def _stored_grants(
    draft: PlanBuilder, before: EntryGrants | None, grants: tuple[Grant, ...]
) -> EntryGrants | None:
    """Returns the grants to store; None: none are left."""
    if not grants:
        return None
    return EntryGrants(
        grants=grants,
        change_count=1 if before is None else before.change_count + 1,
        changed_at_ms=draft.context.now_ms,
        changed_by=draft.context.principal,
    )
