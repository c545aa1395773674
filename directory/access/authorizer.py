"""Authorizer: every decision about what a caller may do in one cluster, at one revision.

An ``Authorizer`` is built for each snapshot, from its tree of grants and the levels inherited from
above the mount. The caller's identity, the place of a path and the age of inherited grants are
arguments.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from directory.access.compiled_grants import (
    SUPER_USER,
    AccessMode,
    AccessQuestion,
    CompiledGrants,
    Decision,
    DecisionReason,
)
from directory.access.grant_tree import EMPTY_NODE, EntryPlace, GrantNode, GrantTree
from directory.access.grants import (
    IMPLIED_BY,
    Grant,
    Operation,
    Permission,
    ResourceType,
    bit_of,
)
from directory.access.principals import Caller
from resolver.errors import NotReady
from resolver.path import Path

__all__ = [
    "MOUNT_ROOT",
    "Authorizer",
    "DirectoryAuthorization",
    "GrantEvaluator",
    "InheritedGrantLevel",
    "TraverseRight",
    "traverse_right_after",
]

MOUNT_ROOT: Final = EntryPlace(())
"""The root directory."""
_PASSING: Final = bit_of(ResourceType.TOPIC, Operation.DESCRIBE)
"""Right to traverse a closed directory: DESCRIBE on it."""


class TraverseRight(enum.Enum):
    """Right to traverse a closed directory at this level."""

    UNDECIDED = "no matching grant so far"
    ALLOWED = "DESCRIBE is allowed"
    DENIED = "DESCRIBE is denied"


def traverse_right_after(passing: TraverseRight, allow: int, deny: int) -> TraverseRight:
    """Returns the right to traverse after a level with these allows and denies."""
    if deny & _PASSING or passing is TraverseRight.DENIED:
        return TraverseRight.DENIED
    return TraverseRight.ALLOWED if allow & _PASSING else passing


def _deciding_grant(
    grants: Iterable[Grant], permission: Permission, question: AccessQuestion
) -> Grant | None:
    """Returns the grant that matches the question; one that names the operation itself
    comes first.
    """
    found: Grant | None = None
    for grant in grants:
        if (
            grant.permission is permission
            and grant.bits & question.bit
            and (not question.kind.has_names or grant.matches_name(question.name))
        ):
            if grant.operation is question.operation:
                return grant
            found = found or grant
    return found


class GrantEvaluator:
    """Evaluation of one question along one path.

    A field ``…_at`` is the number of the level where the result was found, as passed to
    ``add_level``.
    """

    __slots__ = (
        "allow",
        "allow_at",
        "blocked_at",
        "caller",
        "deny",
        "deny_at",
        "has_blocked_allow",
        "has_expired_allow",
        "has_grants",
        "passing",
        "question",
    )

    def __init__(self, caller: Caller, question: AccessQuestion) -> None:
        self.caller: Final = caller
        self.question: Final = question
        self.allow: Grant | None = None
        """The outermost allow that counts."""
        self.allow_at = 0
        self.deny: Grant | None = None
        """The outermost deny. Nothing further down can change the answer."""
        self.deny_at = 0
        self.passing = TraverseRight.UNDECIDED
        self.blocked_at: int | None = None
        """The outermost closed directory that the caller cannot pass."""
        self.has_blocked_allow = False
        """Whether an allow was found below the directory of ``blocked_at``."""
        self.has_expired_allow = False
        """Whether an inherited allow was found that the parent confirmed too long ago."""
        self.has_grants = False
        """Whether any grant, for any principal, applies to the resource at all."""

    def add_level(
        self, rules: CompiledGrants, at: int, *, closed: bool, allows_count: bool = True
    ) -> None:
        """Adds the grants of the next level."""
        bit = self.question.bit
        allow = deny = 0
        for key in self.caller.keys:
            own = rules.by_key.get(key)
            if own is None:
                continue
            if own.partial_deny & bit and self.deny is None:
                self.deny = _deciding_grant(own.grants, Permission.DENY, self.question)
                self.deny_at = at
            if own.allow & bit:
                self._allowed(
                    _deciding_grant(own.grants, Permission.ALLOW, self.question), at, allows_count
                )
            allow |= own.allow
            deny |= own.deny
        self.passing = traverse_right_after(self.passing, allow if allows_count else 0, deny)
        if closed and self.blocked_at is None and self.passing is not TraverseRight.ALLOWED:
            self.blocked_at = at

    def note_mention(self, rules: CompiledGrants) -> None:
        """Records whether a grant of the level covers the resource; called only in
        ``OPEN_IF_NO_GRANTS``.
        """
        question = self.question
        self.has_grants = self.has_grants or any(
            grant.kind is question.kind
            and (not grant.kind.has_names or grant.matches_name(question.name))
            for grant in rules.grants
        )

    def copy(self) -> GrantEvaluator:
        """Returns an independent evaluator at the same level."""
        other = GrantEvaluator(self.caller, self.question)
        for name in _FOUND:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def state(self) -> tuple[object, ...]:
        """All results so far that decisions further down depend on."""
        return (
            self.deny is None,
            self.allow is None,
            self.passing,
            self.blocked_at is None,
            self.has_blocked_allow,
            self.has_grants,
        )

    def _allowed(self, grant: Grant | None, at: int, counts: bool) -> None:  # noqa: FBT001 - hot
        if grant is None:
            return
        if not counts:
            self.has_expired_allow = True
        elif self.blocked_at is not None:
            self.has_blocked_allow = True
        elif self.allow is None:
            self.allow, self.allow_at = grant, at


_FOUND: Final = tuple(
    name for name in GrantEvaluator.__slots__ if name not in {"caller", "question"}
)


@dataclass(frozen=True, slots=True)
class InheritedGrantLevel:
    """Level of an entry above the mount, with its grants."""

    path: Path
    rules: CompiledGrants
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Authorizer:
    """Access rules of the cluster that is mounted at ``mount``.

    In every method ``age_seconds`` is the time since a parent last confirmed the inherited grants;
    it has no effect where nothing is inherited.

    Until the cluster's own grants and those that its parent sends were loaded, every decision
    raises ``NotReady``, except for super users (A3).
    """

    mount: Path
    tree: GrantTree | None
    """None: the grants were never loaded. An empty tree means that there are none."""
    inherited: tuple[InheritedGrantLevel, ...] | None = ()
    """From the root to the level above the mount. None: there is a parent, and the grants that it
    sends were never received or cannot be read.
    """
    mode: AccessMode = AccessMode.ENFORCE
    super_users: frozenset[str] = frozenset()
    grants_max_age_seconds: float | None = None
    """Inherited allows expire when no parent has confirmed them for this long; None = never."""

    def authorize(
        self,
        caller: Caller,
        question: AccessQuestion,
        place: EntryPlace = MOUNT_ROOT,
        *,
        age_seconds: float = 0.0,
    ) -> Decision:
        """Returns whether the caller may do the operation on the entry at a place, existing or not.

        For a group or transactional id the place is a directory; for a cluster, the root directory.
        """
        if caller.principal in self.super_users:
            return SUPER_USER
        evaluator = self.begin_evaluation(caller, question, age_seconds)
        self.add_levels_to(evaluator, place)
        return self.decide(evaluator, place)

    def is_granted_at(
        self,
        caller: Caller,
        question: AccessQuestion,
        place: EntryPlace,
        *,
        age_seconds: float = 0.0,
    ) -> bool:
        """True if the caller may do the operation on the entry at a place and a grant on the entry
        itself allows it, whether or not grants further up allow it as well.
        """
        return (
            self.has_own_grant(caller, question, place)
            and self.authorize(caller, question, place, age_seconds=age_seconds).allowed
        )

    def has_own_grant(self, caller: Caller, question: AccessQuestion, place: EntryPlace) -> bool:
        """True if a grant on the entry itself allows the operation; another grant may still deny
        it.
        """
        node = self.own_grants().node_at(place)
        own = () if node is None else (node.rules.by_key.get(key) for key in caller.keys)
        return any(
            one is not None and _deciding_grant(one.grants, Permission.ALLOW, question)
            for one in own
        )

    def for_directory(
        self,
        caller: Caller,
        question: AccessQuestion,
        relative: tuple[str, ...] = (),
        *,
        age_seconds: float = 0.0,
    ) -> DirectoryAuthorization:
        """Returns the authorization of a directory and of each entry in it by name: for listings,
        which omit entries that the caller may not describe.
        """
        place = EntryPlace(relative)
        if caller.principal in self.super_users:
            return DirectoryAuthorization(self, None, None, place)
        evaluator = self.begin_evaluation(caller, question, age_seconds)
        return DirectoryAuthorization(self, evaluator, self.add_levels_to(evaluator, place), place)

    def denied_below(
        self,
        caller: Caller,
        question: AccessQuestion,
        place: EntryPlace = MOUNT_ROOT,
        *,
        age_seconds: float = 0.0,
    ) -> Iterator[tuple[EntryPlace, Decision]]:
        """Yields the entries below a place that are closed or have grants of their own and on which
        the caller may not do the operation: these prevent removing or moving the subtree.
        Unordered.
        """
        if caller.principal in self.super_users:
            return
        evaluator = self.begin_evaluation(caller, question, age_seconds)
        node = self.add_levels_to(evaluator, place)
        if node is not None:
            yield from self._refusals(evaluator, node, place)

    def inherited_grants(self) -> tuple[InheritedGrantLevel, ...]:
        """Returns the inherited levels, outermost first."""
        if self.inherited is None:
            raise NotReady(
                f"grants above {self.mount} are not available: never received from the parent, "
                f"or unreadable",
                mount=self.mount,
            )
        return self.inherited

    def own_grants(self) -> GrantTree:
        """Returns the grants of the cluster itself."""
        if self.tree is None:
            raise NotReady(f"the grants of {self.mount} are not loaded yet", mount=self.mount)
        return self.tree

    def has_expired(self, age_seconds: float) -> bool:
        """True if inherited allows have expired."""
        most = self.grants_max_age_seconds
        return most is not None and age_seconds > most

    # Levels above the mount are numbered below zero, those of the tree by their depth.

    def begin_evaluation(
        self, caller: Caller, question: AccessQuestion, age_seconds: float
    ) -> GrantEvaluator:
        """Returns an evaluator that has reached the mount: with the inherited levels."""
        evaluator = GrantEvaluator(caller, question)
        levels = self.inherited_grants()
        counts = not self.has_expired(age_seconds)
        for at, level in enumerate(levels, start=-len(levels)):
            self.add_level(evaluator, level, at, allows_count=counts)
        return evaluator

    def add_levels_to(self, evaluator: GrantEvaluator, place: EntryPlace) -> GrantNode | None:
        """Advances an evaluator from the mount to a place; returns the node there, None = there is
        none.
        """
        nodes = self.own_grants().branches_to(place)
        for at, node in enumerate(nodes):
            if node.rules.grants or node.closed:
                self.add_level(evaluator, node, at)
        return nodes[-1] if len(nodes) > len(place.relative) else None

    def add_level(
        self,
        evaluator: GrantEvaluator,
        level: GrantNode | InheritedGrantLevel,
        at: int,
        *,
        allows_count: bool = True,
    ) -> None:
        """Adds one level of the path to an evaluator."""
        evaluator.add_level(level.rules, at, closed=level.closed, allows_count=allows_count)
        if self.mode is AccessMode.OPEN_IF_NO_GRANTS:
            evaluator.note_mention(level.rules)

    def decide(self, evaluator: GrantEvaluator, place: EntryPlace) -> Decision:
        """Returns the decision of an evaluator that has reached its place."""
        if evaluator.deny is not None:
            return Decision(
                allowed=False,
                reason=DecisionReason.GRANT,
                grant=evaluator.deny,
                path=self._path(place, evaluator.deny_at),
            )
        if evaluator.allow is not None:
            own = evaluator.allow.operation
            implied = own in IMPLIED_BY.get(evaluator.question.operation, ())
            return Decision(
                allowed=True,
                reason=DecisionReason.GRANT,
                grant=evaluator.allow,
                path=self._path(place, evaluator.allow_at),
                implied_by=own if implied else None,
            )
        unsaid = self.mode is AccessMode.OPEN or (
            self.mode is AccessMode.OPEN_IF_NO_GRANTS and not evaluator.has_grants
        )
        if evaluator.blocked_at is not None and (evaluator.has_blocked_allow or unsaid):
            return Decision(
                allowed=False,
                reason=DecisionReason.CLOSED,
                path=self._path(place, evaluator.blocked_at),
            )
        if unsaid:
            return Decision(allowed=True, reason=DecisionReason.OPEN)
        return Decision(
            allowed=False,
            reason=DecisionReason.EXPIRED
            if evaluator.has_expired_allow
            else DecisionReason.NO_GRANT,
        )

    def _path(self, place: EntryPlace, at: int) -> Path:
        if at < 0:
            return self.inherited_grants()[at].path
        return Path((*self.mount.segments, *place.relative[:at]))

    def _refusals(
        self, evaluator: GrantEvaluator, node: GrantNode, place: EntryPlace
    ) -> Iterator[tuple[EntryPlace, Decision]]:
        for step, below in node.children.nodes():
            at = EntryPlace((*place.relative, step.removesuffix("/")), not step.endswith("/"))
            further = evaluator
            if below.rules.grants or below.closed:
                further = evaluator.copy()
                self.add_level(further, below, len(at.relative))
                found = self.decide(further, at)
                if not found.allowed:
                    yield at, found
            yield from self._refusals(further, below, at)


class DirectoryAuthorization:
    """Decisions about a directory, and about the entries directly in it, for one caller."""

    __slots__ = ("_access", "_evaluator", "_node", "_place", "decision")

    def __init__(
        self,
        access: Authorizer,
        evaluator: GrantEvaluator | None,
        node: GrantNode | None,
        place: EntryPlace,
    ) -> None:
        self._access = access
        self._evaluator = evaluator
        self._node = node
        self._place = place
        self.decision: Final = SUPER_USER if evaluator is None else access.decide(evaluator, place)
        """Decision for the directory itself, and for entries in it without grants of their own."""

    @property
    def has_no_grants_below(self) -> bool:
        """True if no entry in the directory, at any depth, has grants of its own, for any
        principal.
        """
        return self._node is None or not self._node.children.size

    @property
    def is_uniform(self) -> bool:
        """True if the directory's decision holds for every entry in it, at any depth, so that a
        page need not evaluate each name.
        """
        return self._node is None or not self._is_sent_in(self._node)

    def is_uniform_in(self, name: str) -> bool:
        """True if a subdirectory's own decision holds for every entry in that subdirectory."""
        below = None if self._node is None else self._node.children.get(f"{name}/")
        return below is None or not self._is_sent_in(below)

    def _is_sent_in(self, node: GrantNode) -> bool:
        """True if entries below a node may have decisions of their own for the caller."""
        if self._evaluator is None:
            return False
        if self._access.mode is AccessMode.OPEN_IF_NO_GRANTS:
            return node.children.size > 0
        return node.children.has_grants_for(self._evaluator.caller.keys)

    def entries_with_grants(self) -> Iterator[tuple[str, bool, bool]]:
        """Yields the entries of the directory at or below which a decision may differ from the
        directory's: name, whether it is a topic, whether the caller is allowed. Unordered.
        """
        if self._evaluator is None or self._node is None:
            return
        for step, below in self._node.children.nodes_for(self._evaluator.caller.keys):
            name, is_topic = step.removesuffix("/"), not step.endswith("/")
            yield name, is_topic, self._of(below, name, is_topic=is_topic).allowed

    def has_own_answer(self, name: str) -> bool:
        """True if the decision for an entry of this name may differ from the directory's."""
        if self._node is None:
            return False
        children = self._node.children
        return children.size > 0 and (children.get(name) or children.get(f"{name}/")) is not None

    def is_same_as(self, other: DirectoryAuthorization) -> bool:
        """True if the decisions for this directory and everything below it equal those for another
        directory with the same names, or for this one under other grants.

        The cost grows with the number of entries with grants for the caller; a subtree of grants
        that both share costs nothing.
        """
        if self._evaluator is None or other._evaluator is None:
            return self._evaluator is other._evaluator
        mine = (self._access, self._evaluator, self._node or EMPTY_NODE, self._place)
        yours = (other._access, other._evaluator, other._node or EMPTY_NODE, other._place)
        return _are_same(mine, yours)

    def entry_decision(self, name: str, *, is_topic: bool) -> Decision:
        """Returns the decision for one entry in the directory."""
        evaluator, node = self._evaluator, self._node
        if evaluator is None or node is None:
            return self.decision
        below = node.children.get(name if is_topic else name + "/")
        return self.decision if below is None else self._of(below, name, is_topic=is_topic)

    def _of(self, below: GrantNode, name: str, *, is_topic: bool) -> Decision:
        if self._evaluator is None or not (below.rules.grants or below.closed):
            return self.decision
        place = EntryPlace((*self._place.relative, name), is_topic)
        further = self._evaluator.copy()
        self._access.add_level(further, below, len(place.relative))
        return self._access.decide(further, place)


_Reached = tuple[Authorizer, GrantEvaluator, GrantNode, EntryPlace]
"""Position of an evaluation in one tree of grants."""


def _are_same(one: _Reached, other: _Reached) -> bool:
    (mine, my_evaluator, my_node, at), (yours, your_evaluator, your_node, your_at) = one, other
    if mine.decide(my_evaluator, at).allowed != yours.decide(your_evaluator, your_at).allowed:
        return False
    if my_evaluator.deny is not None and your_evaluator.deny is not None:
        return True  # nothing below changes that
    children, your_children = my_node.children, your_node.children
    if children is your_children and my_evaluator.state == your_evaluator.state:
        return True
    keys = my_evaluator.caller.keys
    steps = {step for step, _ in (*children.nodes_for(keys), *your_children.nodes_for(keys))}
    return all(
        _are_same(
            _stepped(one, step, children.get(step)), _stepped(other, step, your_children.get(step))
        )
        for step in steps
    )


def _stepped(reached: _Reached, step: str, node: GrantNode | None) -> _Reached:
    access, evaluator, _, place = reached
    at = EntryPlace((*place.relative, step.removesuffix("/")), not step.endswith("/"))
    if node is None:
        return access, evaluator, EMPTY_NODE, at
    further = evaluator.copy()
    access.add_level(further, node, len(at.relative))
    return access, further, node, at
