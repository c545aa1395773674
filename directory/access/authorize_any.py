"""Whether a caller may do something on any entry of a tree (KIP-679's ``authorizeByResourceType``);
refuses to know what is above the tree: how far a walk has come is handed in.

True when there is an entry for which ``decide`` would allow it. For topics and clusters the
branches know that by key (``GrantNode.live``), so one look answers it where grants of one key only
are about the caller. Where several meet (an allow for alice, a deny for everybody), those parts of
the tree that hold grants of more than one are looked at, and the fans remember what was found: a
second question, and one after a change elsewhere, finds it there.

Names of groups and transactional ids are compared as Kafka does it: of all the names that an allow
covers, one is free unless a single deny, at the same entry or above, covers them all.
"""

from __future__ import annotations

from directory.access.decision import (
    AccessQuestion,
    CompiledGrants,
    TraverseRight,
    traverse_right_after,
)
from directory.access.grant import Grant, Permission
from directory.access.grant_tree import GrantChildren, GrantNode

__all__ = ["NamedResourceSearch", "is_allowed_below"]

Keys = tuple[str, ...]


def is_allowed_below(fan: GrantChildren, keys: Keys, bit: int, passing: TraverseRight) -> bool:
    """True if something in the fan is allowed; nothing above it denies it.

    ``keys`` are the caller's, ``bit`` says the operation on topics or clusters.
    """
    present = _keys_with_live_grants(fan, keys, bit)
    if not present:
        return False
    if len(present) == 1 and not fan.shut:
        return True
    asked = (present, bit, passing if fan.shut else None)
    known = None if fan.memo is None else fan.memo.get(asked)
    if known is None:
        known = any(is_allowed_below(part, present, bit, passing) for part in fan.parts) or any(
            _in_branch(branch, present, bit, passing) for branch in fan.items.values()
        )
        if fan.memo is None:
            fan.memo = {}
        fan.memo[asked] = known
    return known


def _in_branch(branch: GrantNode, keys: Keys, bit: int, passing: TraverseRight) -> bool:
    by_key = branch.rules.by_key
    allow = deny = 0
    for key in keys:
        own = by_key.get(key)
        if own is not None:
            allow |= own.allow
            deny |= own.deny
    if deny & bit:
        return False
    if allow & bit:
        return True
    if not branch.fan.size:
        return False
    passing = traverse_right_after(passing, allow, deny)
    if branch.closed and passing is not TraverseRight.ALLOWED:
        return False
    return is_allowed_below(branch.fan, keys, bit, passing)


def _keys_with_live_grants(fan: GrantChildren, keys: Keys, bit: int) -> Keys:
    """Returns those of the keys that occur in the fan; none when nothing that they
    allow is left.
    """
    live = fan.live
    present = []
    found = 0
    for key in keys:
        bits = live.get(key)
        if bits is not None:
            present.append(key)
            found |= bits
    return tuple(present) if found & bit else ()


class NamedResourceSearch:
    """Search for an allow on a group or transactional id of which no deny covers all names.

    What it costs depends on the caller's own grants of that kind (and everybody's), not on those of
    others.
    """

    def __init__(self, keys: Keys, question: AccessQuestion) -> None:
        self._keys = keys
        self._question = question

    def matching_grants(self, rules: CompiledGrants, permission: Permission) -> list[Grant]:
        """Returns the grants of a level that speak of the operation, whatever the name."""
        asked = self._question
        return [
            grant
            for key in self._keys
            if (own := rules.by_key.get(key)) is not None
            for grant in own.grants
            if grant.permission is permission
            and grant.kind is asked.kind
            and grant.covers(asked.operation)
        ]

    def has_free_name(self, allows: list[Grant], denies: list[Grant]) -> bool:
        """True if one of the allows has a name that no deny takes away."""
        return any(not any(deny.includes(allow) for deny in denies) for allow in allows)

    def below(self, fan: GrantChildren, denies: list[Grant], passing: TraverseRight) -> bool:
        """True if there is one in the fan; ``denies`` are those on the way to it."""
        if not _keys_with_live_grants(fan, self._keys, self._question.bit):
            return False
        return any(self.below(part, denies, passing) for part in fan.parts) or any(
            self._in_branch(branch, denies, passing) for branch in fan.items.values()
        )

    def _in_branch(self, branch: GrantNode, denies: list[Grant], passing: TraverseRight) -> bool:
        here = [*denies, *self.matching_grants(branch.rules, Permission.DENY)]
        if self.has_free_name(self.matching_grants(branch.rules, Permission.ALLOW), here):
            return True
        allow = deny = 0
        for key in self._keys:
            own = branch.rules.by_key.get(key)
            if own is not None:
                allow |= own.allow
                deny |= own.deny
        passing = traverse_right_after(passing, allow, deny)
        if branch.closed and passing is not TraverseRight.ALLOWED:
            return False
        return self.below(branch.fan, here, passing)
