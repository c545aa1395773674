"""Search for any resource of a kind on which a caller may do an operation (KIP-679).

``authorize_any`` (Kafka's ``authorizeByResourceType``) is true if ``Authorizer.decide`` would allow
the operation on at least one entry. For topics and clusters each node stores the operations that
are allowed at or below it, by key (``GrantNode.live``). If the grants there name only one of the
caller's keys and no directory is closed, one lookup is the answer. If they name several (an allow
for alice, a deny for everybody), the parts of the tree with such grants are searched, and each
``GrantChildren`` stores the result: parts that a later change does not touch are not searched
again.

Names of groups and transactional ids are compared as Kafka does: an allow counts unless a single
deny, at the same entry or above, covers all of its names.
"""

from __future__ import annotations

from typing import Final

from directory.access.authorizer import (
    MOUNT_ROOT,
    Authorizer,
    GrantEvaluator,
    TraverseRight,
    traverse_right_after,
)
from directory.access.compiled_grants import AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace, GrantChildren, GrantNode
from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.access.principals import Caller

__all__ = ["authorize_any", "may_produce_idempotently"]

_IDEMPOTENT_WRITE: Final = AccessQuestion.for_operation(
    Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER
)
Keys = tuple[str, ...]


def authorize_any(
    access: Authorizer,
    caller: Caller,
    operation: Operation,
    kind: ResourceType = ResourceType.TOPIC,
    place: EntryPlace = MOUNT_ROOT,
    *,
    age_seconds: float = 0.0,
) -> bool:
    """True if there is a resource of the kind on which the caller may do the operation: one that
    ``Authorizer.authorize`` would allow, implied operations included. Kafka differs: to its
    ``authorizeByResourceType`` an allow of READ is no allow of DESCRIBE (A6).

    With a place, only topics and directories at or below it count. Groups and transactional ids are
    always searched in the whole cluster.
    """
    if caller.principal in access.super_users:
        return True
    question = AccessQuestion.for_operation(operation, kind)
    evaluator = access.begin_evaluation(caller, question, age_seconds)
    node = access.add_levels_to(evaluator, place)
    if access.decide(evaluator, place).allowed:
        return True
    if evaluator.deny is not None:
        return False
    if kind.has_names:
        return _some_name(access, caller, question, node, age_seconds)
    if evaluator.blocked_at is not None or node is None:
        return False
    return _is_allowed_below(node.children, caller.keys, question.bit, evaluator.passing)


def may_produce_idempotently(
    access: Authorizer, caller: Caller, *, age_seconds: float = 0.0
) -> bool:
    """True if the caller may get a producer id: by IDEMPOTENT_WRITE on the cluster, which WRITE on
    any topic implies (KIP-679).
    """
    asked = access.authorize(caller, _IDEMPOTENT_WRITE, age_seconds=age_seconds)
    return asked.allowed or authorize_any(access, caller, Operation.WRITE, age_seconds=age_seconds)


def _some_name(
    access: Authorizer,
    caller: Caller,
    question: AccessQuestion,
    root: GrantNode | None,
    age_seconds: float,
) -> bool:
    """Returns the answer of ``authorize_any`` for a kind with names. All levels down to the root
    directory count as one, since each name is a resource of the root directory as well.
    """
    free = _NamedResourceSearch(caller.keys, question)
    evaluator = GrantEvaluator(caller, question)
    counts = not access.has_expired(age_seconds)
    allows: list[Grant] = []
    denies: list[Grant] = []
    levels = [(level.rules, level.closed, counts) for level in access.inherited_grants()]
    if root is not None:
        levels.append((root.rules, root.closed, True))
    for rules, closed, count in levels:
        denies += free.matching_grants(rules, Permission.DENY)
        if count and evaluator.blocked_at is None:
            allows += free.matching_grants(rules, Permission.ALLOW)
        evaluator.add_level(rules, 0, closed=closed, allows_count=count)
    if free.has_free_name(allows, denies):
        return True
    if evaluator.blocked_at is not None or root is None:
        return False
    return free.below(root.children, denies, evaluator.passing)


def _is_allowed_below(
    children: GrantChildren, keys: Keys, bit: int, passing: TraverseRight
) -> bool:
    """True if an entry at or below these nodes is allowed, provided that no grant above denies it.

    ``keys`` are the caller's; ``bit`` encodes the operation on topics or clusters.
    """
    present = _keys_with_live_grants(children, keys, bit)
    if not present:
        return False
    if len(present) == 1 and not children.has_closed:
        return True
    asked = (present, bit, passing if children.has_closed else None)
    known = None if children.memo is None else children.memo.get(asked)
    if known is None:
        known = any(
            _is_allowed_below(part, present, bit, passing) for part in children.parts
        ) or any(_in_node(node, present, bit, passing) for node in children.items.values())
        if children.memo is None:
            children.memo = {}
        children.memo[asked] = known
    return known


def _in_node(node: GrantNode, keys: Keys, bit: int, passing: TraverseRight) -> bool:
    by_key = node.rules.by_key
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
    if not node.children.size:
        return False
    passing = traverse_right_after(passing, allow, deny)
    if node.closed and passing is not TraverseRight.ALLOWED:
        return False
    return _is_allowed_below(node.children, keys, bit, passing)


def _keys_with_live_grants(children: GrantChildren, keys: Keys, bit: int) -> Keys:
    """Returns the keys that have grants at or below these nodes; empty if none of them allows the
    operation.
    """
    live = children.live
    present = []
    found = 0
    for key in keys:
        bits = live.get(key)
        if bits is not None:
            present.append(key)
            found |= bits
    return tuple(present) if found & bit else ()


class _NamedResourceSearch:
    """Search for an allow on groups or transactional ids whose names no single deny covers
    completely.

    The cost depends on the number of grants of that kind for the caller and for everybody, not on
    the grants for others.
    """

    def __init__(self, keys: Keys, question: AccessQuestion) -> None:
        self._keys = keys
        self._question = question

    def matching_grants(self, rules: CompiledGrants, permission: Permission) -> list[Grant]:
        """Returns the grants of a level that name or imply the operation, for any resource name."""
        asked = self._question
        return [
            grant
            for key in self._keys
            if (own := rules.by_key.get(key)) is not None
            for grant in own.grants
            if grant.permission is permission and grant.bits & asked.bit
        ]

    def has_free_name(self, allows: list[Grant], denies: list[Grant]) -> bool:
        """True if at least one allow is not covered completely by a single deny."""
        return any(not any(deny.includes(allow) for deny in denies) for allow in allows)

    def below(self, children: GrantChildren, denies: list[Grant], passing: TraverseRight) -> bool:
        """True if there is such an allow at or below these nodes; ``denies`` are those of the
        levels above.
        """
        if not _keys_with_live_grants(children, self._keys, self._question.bit):
            return False
        return any(self.below(part, denies, passing) for part in children.parts) or any(
            self._in_node(node, denies, passing) for node in children.items.values()
        )

    def _in_node(self, node: GrantNode, denies: list[Grant], passing: TraverseRight) -> bool:
        here = [*denies, *self.matching_grants(node.rules, Permission.DENY)]
        if self.has_free_name(self.matching_grants(node.rules, Permission.ALLOW), here):
            return True
        allow = deny = 0
        for key in self._keys:
            own = node.rules.by_key.get(key)
            if own is not None:
                allow |= own.allow
                deny |= own.deny
        passing = traverse_right_after(passing, allow, deny)
        if node.closed and passing is not TraverseRight.ALLOWED:
            return False
        return self.below(node.children, here, passing)
