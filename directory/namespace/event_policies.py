"""What each change carries beside the entry: the policies that hold for it, inherited ones too.

Whoever only receives changes needs whose a topic is and which key its data is encrypted with.
Refuses to know what holds below: a directory's change is one change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

from directory.namespace.command import EntryChange
from directory.namespace.effective_policies import PolicyLevel, inherit, without_cleared_keys
from directory.namespace.entry import NO_POLICIES, Directory, Policies, Topic
from directory.namespace.snapshot import Snapshot

__all__ = ["attach_effective_policies"]


def attach_effective_policies(
    changes: Sequence[EntryChange], snapshot: Snapshot, above: Sequence[PolicyLevel]
) -> tuple[EntryChange, ...]:
    """Returns the changes of one plan, each with what holds after it; of what is gone, what did
    before.

    Args:
        snapshot: what was planned on.
        above: what the ancestors above the mount set, outermost first.
    """
    carrying = _PolicyAttacher(changes, snapshot, above)
    return tuple(_with_effective(one, carrying.policies_after(one)) for one in changes)


def _with_effective(change: EntryChange, effective: Policies | None) -> EntryChange:
    return change if effective is change.effective else replace(change, effective=effective)


class _PolicyAttacher:
    """Of one plan; each directory is looked at once."""

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
        """None where nobody set anything, and of what has no policies."""
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
    """Without who set what, and without what is cleared."""
    if policies is NO_POLICIES:
        return None
    holds = without_cleared_keys(policies)
    if holds.stamps:
        holds = replace(holds, stamps=MappingProxyType({}))
    return None if holds == NO_POLICIES else holds
