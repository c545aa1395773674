"""Access: everything that decides who may do what in one cluster, at one revision; refuses to find
out who is calling, where a path leads, or what time it is.

An ``Authorizer`` is built for each snapshot, from its tree of grants and what is inherited from
above the mount, so a reader never sees one change without those before it (A4). A
``GrantEvaluator`` collects the grants of one path, level by level. Longer than most files: all
questions about access are answered here, by one evaluation.

Whether a caller may do something on any entry of a tree (KIP-679's ``authorizeByResourceType``) is
true when there is an entry for which ``decide`` would allow it. For topics and clusters branches
know that by key (``GrantNode.live``), so one look answers it where grants of one key only are about
the caller. Where several meet (an allow for alice, a deny for everybody), those parts of the tree
that hold grants of more than one are looked at, and the fans remember what was found: a second
question, and one after a change elsewhere, finds it there. Names of groups and transactional ids
are compared as Kafka does it: of all the names that an allow covers, one is free unless a single
deny, at the same entry or above, covers them all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from directory.access.decision import (
    SUPER_USER,
    AccessMode,
    AccessQuestion,
    CompiledGrants,
    Decision,
    DecisionReason,
)
from directory.access.grant_tree import NO_BRANCH, EntryPlace, GrantChildren, GrantNode, GrantTree
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
]

MOUNT_ROOT: Final = EntryPlace(())
"""The root directory."""
_IDEMPOTENT_WRITE: Final = AccessQuestion.for_operation(
    Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER
)


_PASSING: Final = bit_of(ResourceType.TOPIC, Operation.DESCRIBE)
"""Who may DESCRIBE a closed directory may pass it."""


class TraverseRight(enum.Enum):
    """Right to pass a closed directory here."""

    UNDECIDED = "no matching grant so far"
    ALLOWED = "DESCRIBE is allowed"
    DENIED = "DESCRIBE is denied"


def traverse_right_after(passing: TraverseRight, allow: int, deny: int) -> TraverseRight:
    """Returns the right after a level with these allows and denies."""
    if deny & _PASSING or passing is TraverseRight.DENIED:
        return TraverseRight.DENIED
    return TraverseRight.ALLOWED if allow & _PASSING else passing


def _deciding_grant(
    grants: Iterable[Grant], permission: Permission, question: AccessQuestion
) -> Grant | None:
    """Returns the grant, of those for one principal from one host, that applies to the question;
    one that names the operation is first.
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
    """Evaluation along one path. A result ``…_at`` is the number of the level where it was found,
    as the caller of ``add_level`` counts them.
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
        """Whether an allow was found below that one."""
        self.has_expired_allow = False
        """Whether an allow was found that was confirmed too long ago."""
        self.has_grants = False
        """Whether any grant, whoever it is for, applies to the resource at all."""

    def add_level(
        self, rules: CompiledGrants, at: int, *, closed: bool, allows_count: bool = True
    ) -> None:
        """Takes in the next level."""
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
        """Notes whether a grant of the level applies to the resource; called only where needed."""
        question = self.question
        self.has_grants = self.has_grants or any(
            grant.kind is question.kind
            and (not grant.kind.has_names or grant.matches_name(question.name))
            for grant in rules.grants
        )

    def copy(self) -> GrantEvaluator:
        """Returns an evaluation at the same level, which continues on its own."""
        other = GrantEvaluator(self.caller, self.question)
        for name in _FOUND:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def state(self) -> tuple[object, ...]:
        """All of it that the answers further down depend on."""
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
    """Rules of who may do what in the cluster that is mounted at ``mount``.

    Of every method: ``age_seconds`` is how long ago a parent last confirmed what is inherited; it
    does not matter where nothing is.

    Raises, by every method: ``NotReady`` for all but super users while the grants, or those that a
    parent has to hand down, were never loaded (A3).
    """

    mount: Path
    tree: GrantTree | None
    """None: the grants were never loaded, which is not the same as that there are none."""
    inherited: tuple[InheritedGrantLevel, ...] | None = ()
    """From the root down to right above the mount. None: there is a parent, and what it hands down
    never came, or cannot be read.
    """
    mode: AccessMode = AccessMode.ENFORCE
    super_users: frozenset[str] = frozenset()
    grants_max_age_seconds: float | None = None
    """An inherited allow ends when no parent confirmed it for so long; None = never."""

    def authorize(
        self,
        caller: Caller,
        question: AccessQuestion,
        place: EntryPlace = MOUNT_ROOT,
        *,
        age_seconds: float = 0.0,
    ) -> Decision:
        """Returns whether the caller may do it on the entry at a place, whether or not there is
        one.

        Of a group or transactional id the place is a directory; of a cluster, its root directory.
        """
        if caller.principal in self.super_users:
            return SUPER_USER
        walk = self._begun(caller, question, age_seconds)
        self._along(walk, place)
        return self.decide(walk, place)

    def is_granted_at(
        self,
        caller: Caller,
        question: AccessQuestion,
        place: EntryPlace,
        *,
        age_seconds: float = 0.0,
    ) -> bool:
        """True if the caller may do it on the entry at a place, and a grant of the entry itself
        allows it, whatever grants further up allow as well.
        """
        return (
            self.has_own_grant(caller, question, place)
            and self.authorize(caller, question, place, age_seconds=age_seconds).allowed
        )

    def has_own_grant(self, caller: Caller, question: AccessQuestion, place: EntryPlace) -> bool:
        """True if a grant of the entry at a place itself allows it; another may deny it."""
        branch = self.own_grants().node_at(place)
        own = () if branch is None else (branch.rules.by_key.get(key) for key in caller.keys)
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
        """Returns the same for a directory and for the entries in it, name by name: for listings,
        which leave out what the caller may not describe.
        """
        place = EntryPlace(relative)
        if caller.principal in self.super_users:
            return DirectoryAuthorization(self, None, None, place)
        walk = self._begun(caller, question, age_seconds)
        return DirectoryAuthorization(self, walk, self._along(walk, place), place)

    def denied_below(
        self,
        caller: Caller,
        question: AccessQuestion,
        place: EntryPlace = MOUNT_ROOT,
        *,
        age_seconds: float = 0.0,
    ) -> Iterator[tuple[EntryPlace, Decision]]:
        """Yields the entries with grants of their own (or closed) below a place on which the caller
        may not do it: what prevents removing or moving a subtree. In no order.
        """
        if caller.principal in self.super_users:
            return
        walk = self._begun(caller, question, age_seconds)
        branch = self._along(walk, place)
        if branch is not None:
            yield from self._refusals(walk, branch, place)

    def authorize_any(
        self,
        caller: Caller,
        operation: Operation,
        kind: ResourceType = ResourceType.TOPIC,
        place: EntryPlace = MOUNT_ROOT,
        *,
        age_seconds: float = 0.0,
    ) -> bool:
        """True if there is a resource of the kind on which the caller may do it (KIP-679): one for
        which ``authorize`` would say so, implied operations and all. There Kafka differs: to its
        ``authorizeByResourceType`` an allow of READ is none of DESCRIBE (A6).

        With a place, whether there is a topic or directory at or below it; kinds with names are
        asked for as a whole.
        """
        if caller.principal in self.super_users:
            return True
        question = AccessQuestion.for_operation(operation, kind)
        walk = self._begun(caller, question, age_seconds)
        branch = self._along(walk, place)
        if self.decide(walk, place).allowed:
            return True
        if walk.deny is not None:
            return False
        if kind.has_names:
            return self._some_name(caller, question, branch, age_seconds)
        if walk.blocked_at is not None or branch is None:
            return False
        return _is_allowed_below(branch.fan, caller.keys, question.bit, walk.passing)

    def may_produce_idempotently(self, caller: Caller, *, age_seconds: float = 0.0) -> bool:
        """True if the caller may have a producer id: by IDEMPOTENT_WRITE on the cluster, which
        WRITE on any topic implies (KIP-679).
        """
        asked = self.authorize(caller, _IDEMPOTENT_WRITE, age_seconds=age_seconds)
        return asked.allowed or self.authorize_any(caller, Operation.WRITE, age_seconds=age_seconds)

    def inherited_grants(self) -> tuple[InheritedGrantLevel, ...]:
        """Returns what is inherited."""
        if self.inherited is None:
            raise NotReady(
                f"grants above {self.mount} are not available: never received from the parent, "
                f"or unreadable",
                mount=self.mount,
            )
        return self.inherited

    def own_grants(self) -> GrantTree:
        """Returns the cluster's own grants."""
        if self.tree is None:
            raise NotReady(f"the grants of {self.mount} are not loaded yet", mount=self.mount)
        return self.tree

    def has_expired(self, age_seconds: float) -> bool:
        """True if inherited allows have ended."""
        most = self.grants_max_age_seconds
        return most is not None and age_seconds > most

    # Levels above the mount are numbered below zero, those of the tree by their depth.

    def _begun(
        self, caller: Caller, question: AccessQuestion, age_seconds: float
    ) -> GrantEvaluator:
        walk = GrantEvaluator(caller, question)
        levels = self.inherited_grants()
        counts = not self.has_expired(age_seconds)
        for at, level in enumerate(levels, start=-len(levels)):
            self.add_level(walk, level, at, allows_count=counts)
        return walk

    def _along(self, walk: GrantEvaluator, place: EntryPlace) -> GrantNode | None:
        """Takes a walk that is at the mount to a place; the branch there, if there is one."""
        branches = self.own_grants().branches_to(place)
        for at, branch in enumerate(branches):
            if branch.rules.grants or branch.closed:
                self.add_level(walk, branch, at)
        return branches[-1] if len(branches) > len(place.relative) else None

    def add_level(
        self,
        walk: GrantEvaluator,
        level: GrantNode | InheritedGrantLevel,
        at: int,
        *,
        allows_count: bool = True,
    ) -> None:
        """Takes a walk one level further."""
        walk.add_level(level.rules, at, closed=level.closed, allows_count=allows_count)
        if self.mode is AccessMode.OPEN_IF_NO_GRANTS:
            walk.note_mention(level.rules)

    def decide(self, walk: GrantEvaluator, place: EntryPlace) -> Decision:
        """Returns what the walk comes to, if its place is the end of it."""
        if walk.deny is not None:
            return Decision(
                allowed=False,
                reason=DecisionReason.GRANT,
                grant=walk.deny,
                path=self._path(place, walk.deny_at),
            )
        if walk.allow is not None:
            own = walk.allow.operation
            implied = own in IMPLIED_BY.get(walk.question.operation, ())
            return Decision(
                allowed=True,
                reason=DecisionReason.GRANT,
                grant=walk.allow,
                path=self._path(place, walk.allow_at),
                implied_by=own if implied else None,
            )
        unsaid = self.mode is AccessMode.OPEN or (
            self.mode is AccessMode.OPEN_IF_NO_GRANTS and not walk.has_grants
        )
        if walk.blocked_at is not None and (walk.has_blocked_allow or unsaid):
            return Decision(
                allowed=False, reason=DecisionReason.CLOSED, path=self._path(place, walk.blocked_at)
            )
        if unsaid:
            return Decision(allowed=True, reason=DecisionReason.OPEN)
        return Decision(
            allowed=False,
            reason=DecisionReason.EXPIRED if walk.has_expired_allow else DecisionReason.NO_GRANT,
        )

    def _path(self, place: EntryPlace, at: int) -> Path:
        if at < 0:
            return self.inherited_grants()[at].path
        return Path((*self.mount.segments, *place.relative[:at]))

    def _refusals(
        self, walk: GrantEvaluator, branch: GrantNode, place: EntryPlace
    ) -> Iterator[tuple[EntryPlace, Decision]]:
        for step, below in branch.fan.branches():
            at = EntryPlace((*place.relative, step.removesuffix("/")), not step.endswith("/"))
            further = walk
            if below.rules.grants or below.closed:
                further = walk.copy()
                self.add_level(further, below, len(at.relative))
                found = self.decide(further, at)
                if not found.allowed:
                    yield at, found
            yield from self._refusals(further, below, at)

    def _some_name(
        self, caller: Caller, question: AccessQuestion, root: GrantNode | None, age_seconds: float
    ) -> bool:
        """``authorize_any`` of a kind with names: the levels down to the root are one to it, as
        each name is a resource of the root directory, too.
        """
        free = _NamedResourceSearch(caller.keys, question)
        walk = GrantEvaluator(caller, question)
        counts = not self.has_expired(age_seconds)
        allows: list[Grant] = []
        denies: list[Grant] = []
        levels = [(level.rules, level.closed, counts) for level in self.inherited_grants()]
        if root is not None:
            levels.append((root.rules, root.closed, True))
        for rules, closed, count in levels:
            denies += free.matching_grants(rules, Permission.DENY)
            if count and walk.blocked_at is None:
                allows += free.matching_grants(rules, Permission.ALLOW)
            walk.add_level(rules, 0, closed=closed, allows_count=count)
        if free.has_free_name(allows, denies):
            return True
        if walk.blocked_at is not None or root is None:
            return False
        return free.below(root.fan, denies, walk.passing)


class DirectoryAuthorization:
    """Question of one caller about a directory and the entries directly in it."""

    __slots__ = ("_access", "_branch", "_place", "_walk", "decision")

    def __init__(
        self,
        access: Authorizer,
        walk: GrantEvaluator | None,
        branch: GrantNode | None,
        place: EntryPlace,
    ) -> None:
        self._access = access
        self._walk = walk
        self._branch = branch
        self._place = place
        self.decision: Final = SUPER_USER if walk is None else access.decide(walk, place)
        """For the directory itself, and for all in it that has no grants of its own."""

    @property
    def has_no_grants_below(self) -> bool:
        """Whether nothing in it, at any depth, has grants of its own, for whomever."""
        return self._branch is None or not self._branch.fan.size

    @property
    def is_uniform(self) -> bool:
        """Whether the directory's answer is that of all in it, at any depth: a page need not ask
        for each name.
        """
        return self._branch is None or not self._is_sent_in(self._branch)

    def is_uniform_in(self, name: str) -> bool:
        """Returns the same of a directory in it, with that one's own answer."""
        below = None if self._branch is None else self._branch.fan.get(f"{name}/")
        return below is None or not self._is_sent_in(below)

    def _is_sent_in(self, branch: GrantNode) -> bool:
        """True if what is below a branch may have answers of its own for the caller."""
        if self._walk is None:
            return False
        if self._access.mode is AccessMode.OPEN_IF_NO_GRANTS:
            return branch.fan.size > 0
        return branch.fan.has_grants_for(self._walk.caller.keys)

    def entries_with_grants(self) -> Iterator[tuple[str, bool, bool]]:
        """Yields the entries in the directory in or below which something may have an answer of its
        own: name, whether it is a topic, whether the caller may do it there. In no order.
        """
        if self._walk is None or self._branch is None:
            return
        for step, below in self._branch.fan.nodes_for(self._walk.caller.keys):
            name, is_topic = step.removesuffix("/"), not step.endswith("/")
            yield name, is_topic, self._of(below, name, is_topic=is_topic).allowed

    def has_own_answer(self, name: str) -> bool:
        """True if an entry of this name in the directory may have an answer of its own."""
        if self._branch is None:
            return False
        fan = self._branch.fan
        return fan.size > 0 and (fan.get(name) or fan.get(f"{name}/")) is not None

    def is_same_as(self, other: DirectoryAuthorization) -> bool:
        """True if the answers here, and of all that has answers of its own below, are the same as
        in another directory of the same names, or in this one by other grants. It costs by the
        entries whose grants are about the caller, and nothing where both share the grants below.
        """
        if self._walk is None or other._walk is None:
            return self._walk is other._walk
        mine = (self._access, self._walk, self._branch or NO_BRANCH, self._place)
        yours = (other._access, other._walk, other._branch or NO_BRANCH, other._place)
        return _are_same(mine, yours)

    def entry_decision(self, name: str, *, is_topic: bool) -> Decision:
        """Returns the decision for one entry in the directory."""
        walk, branch = self._walk, self._branch
        if walk is None or branch is None:
            return self.decision
        below = branch.fan.get(name if is_topic else name + "/")
        return self.decision if below is None else self._of(below, name, is_topic=is_topic)

    def _of(self, below: GrantNode, name: str, *, is_topic: bool) -> Decision:
        if self._walk is None or not (below.rules.grants or below.closed):
            return self.decision
        place = EntryPlace((*self._place.relative, name), is_topic)
        further = self._walk.copy()
        self._access.add_level(further, below, len(place.relative))
        return self._access.decide(further, place)


_Reached = tuple[Authorizer, GrantEvaluator, GrantNode, EntryPlace]
"""How far a question has come in one tree of grants."""


def _are_same(one: _Reached, other: _Reached) -> bool:
    (mine, my_walk, my_branch, at), (yours, your_walk, your_branch, your_at) = one, other
    if mine.decide(my_walk, at).allowed != yours.decide(your_walk, your_at).allowed:
        return False
    if my_walk.deny is not None and your_walk.deny is not None:
        return True  # nothing below changes that
    fan, your_fan = my_branch.fan, your_branch.fan
    if fan is your_fan and my_walk.state == your_walk.state:
        return True
    keys = my_walk.caller.keys
    steps = {step for step, _ in (*fan.nodes_for(keys), *your_fan.nodes_for(keys))}
    return all(
        _are_same(_stepped(one, step, fan.get(step)), _stepped(other, step, your_fan.get(step)))
        for step in steps
    )


def _stepped(reached: _Reached, step: str, branch: GrantNode | None) -> _Reached:
    access, walk, _, place = reached
    at = EntryPlace((*place.relative, step.removesuffix("/")), not step.endswith("/"))
    if branch is None:
        return access, walk, NO_BRANCH, at
    further = walk.copy()
    access.add_level(further, branch, len(at.relative))
    return access, further, branch, at


Keys = tuple[str, ...]


def _is_allowed_below(fan: GrantChildren, keys: Keys, bit: int, passing: TraverseRight) -> bool:
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
        known = any(_is_allowed_below(part, present, bit, passing) for part in fan.parts) or any(
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
    return _is_allowed_below(branch.fan, keys, bit, passing)


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


class _NamedResourceSearch:
    """Search for an allow on a group or transactional id of which no deny covers all names.

    What it costs depends on the caller's own grants of that kind (and everybody's), not on those of
    others.
    """

    def __init__(self, keys: Keys, question: AccessQuestion) -> None:
        self._keys = keys
        self._question = question

    def matching_grants(self, rules: CompiledGrants, permission: Permission) -> list[Grant]:
        """Returns the grants of a level that name or imply the operation, whatever the name."""
        asked = self._question
        return [
            grant
            for key in self._keys
            if (own := rules.by_key.get(key)) is not None
            for grant in own.grants
            if grant.permission is permission and grant.bits & asked.bit
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
