"""Access: everything that decides who may do what in one cluster, at one revision; refuses to find
out who is calling, where a path leads, or what time it is.

An ``Access`` is made anew with each snapshot, of its tree of grants and what is inherited from
above the mount, so a reader never sees one change without those before it (A4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from directory.access.authorize_any import Free, anywhere_below
from directory.access.branch import NO_BRANCH, Branch
from directory.access.compiled_grants import Question, Rules
from directory.access.decision import SUPER_USER, Decision, Mode, Reason
from directory.access.grant import IMPLIED_BY, Grant, Operation, Permission, ResourceKind
from directory.access.grant_tree import GrantTree, Place
from directory.access.principals import Caller
from directory.access.walk import Walk
from resolver.errors import NotReady
from resolver.path import Path

__all__ = ["HERE", "Access", "Level", "Within"]

HERE: Final = Place(())
"""The root directory."""
_IDEMPOTENT_WRITE: Final = Question.of(Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER)


@dataclass(frozen=True, slots=True)
class Level:
    """What an entry above the mount sets."""

    path: Path
    rules: Rules
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what in the cluster that is mounted at ``mount``.

    Of every method: ``age_seconds`` is how long ago a parent last confirmed what is inherited; it
    does not matter where nothing is.

    Raises, by every method: ``NotReady`` for all but super users while the grants, or those that a
    parent has to hand down, were never loaded (A3).
    """

    mount: Path
    tree: GrantTree | None
    """None: the grants were never loaded, which is not the same as that there are none."""
    inherited: tuple[Level, ...] | None = ()
    """From the root down to right above the mount. None: there is a parent, and what it hands down
    never came, or cannot be read.
    """
    mode: Mode = Mode.ENFORCE
    super_users: frozenset[str] = frozenset()
    grants_max_age_seconds: float | None = None
    """An inherited allow ends when no parent confirmed it for so long; None = never."""

    def decide(
        self, caller: Caller, question: Question, place: Place = HERE, *, age_seconds: float = 0.0
    ) -> Decision:
        """Whether the caller may do it on the entry at a place, whether or not there is one.

        Of a group or transactional id the place is a directory; of a cluster, its root directory.
        """
        if caller.principal in self.super_users:
            return SUPER_USER
        walk = self._begun(caller, question, age_seconds)
        self._along(walk, place)
        return self.verdict(walk, place)

    def is_granted_at(
        self, caller: Caller, question: Question, place: Place, *, age_seconds: float = 0.0
    ) -> bool:
        """True if the caller may do it on the entry at a place, and a grant of the entry itself
        allows it, whatever grants further up allow as well.
        """
        branch = self.loaded().branch(place)
        if (
            branch is None
            or not self.decide(caller, question, place, age_seconds=age_seconds).allowed
        ):
            return False
        own = (branch.rules.by_key.get(key) for key in caller.keys)
        return any(one is not None and one.find(Permission.ALLOW, question) for one in own)

    def within(
        self,
        caller: Caller,
        question: Question,
        relative: tuple[str, ...] = (),
        *,
        age_seconds: float = 0.0,
    ) -> Within:
        """The same for a directory and for what stands in it, name by name: for listings, which
        leave out what the caller may not describe.
        """
        place = Place(relative)
        if caller.principal in self.super_users:
            return Within(self, None, None, place)
        walk = self._begun(caller, question, age_seconds)
        return Within(self, walk, self._along(walk, place), place)

    def refusals_below(
        self, caller: Caller, question: Question, place: Place = HERE, *, age_seconds: float = 0.0
    ) -> Iterator[tuple[Place, Decision]]:
        """The entries with grants of their own (or closed) below a place on which the caller may
        not do it: what stands in the way of removing or moving a subtree. In no order.
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
        kind: ResourceKind = ResourceKind.TOPIC,
        place: Place = HERE,
        *,
        age_seconds: float = 0.0,
    ) -> bool:
        """Whether there is a resource of the kind on which the caller may do it (KIP-679): one for
        which ``decide`` would say so, implied operations and all. There Kafka differs: to its
        ``authorizeByResourceType`` an allow of READ is none of DESCRIBE (A6).

        With a place, whether there is a topic or directory at or below it; kinds with names are
        asked for as a whole.
        """
        if caller.principal in self.super_users:
            return True
        question = Question.of(operation, kind)
        walk = self._begun(caller, question, age_seconds)
        branch = self._along(walk, place)
        if self.verdict(walk, place).allowed:
            return True
        if walk.deny is not None:
            return False
        if kind.has_names:
            return self._some_name(caller, question, branch, age_seconds)
        if walk.shut_at is not None or branch is None:
            return False
        return anywhere_below(branch.fan, caller.keys, question.bit, walk.passing)

    def may_produce_idempotently(self, caller: Caller, *, age_seconds: float = 0.0) -> bool:
        """Whether the caller may have a producer id: by IDEMPOTENT_WRITE on the cluster, which
        WRITE on any topic implies (KIP-679).
        """
        asked = self.decide(caller, _IDEMPOTENT_WRITE, age_seconds=age_seconds)
        return asked.allowed or self.authorize_any(caller, Operation.WRITE, age_seconds=age_seconds)

    def above(self) -> tuple[Level, ...]:
        """What is inherited."""
        if self.inherited is None:
            raise NotReady(
                f"grants above {self.mount} are not available: never received from the parent, "
                f"or unreadable",
                mount=self.mount,
            )
        return self.inherited

    def loaded(self) -> GrantTree:
        """The cluster's own grants."""
        if self.tree is None:
            raise NotReady(f"the grants of {self.mount} are not loaded yet", mount=self.mount)
        return self.tree

    def has_expired(self, age_seconds: float) -> bool:
        """Whether inherited allows have ended."""
        most = self.grants_max_age_seconds
        return most is not None and age_seconds > most

    # Levels above the mount are numbered below zero, those of the tree by their depth.

    def _begun(self, caller: Caller, question: Question, age_seconds: float) -> Walk:
        walk = Walk(caller, question)
        levels = self.above()
        counts = not self.has_expired(age_seconds)
        for at, level in enumerate(levels, start=-len(levels)):
            self.enter(walk, level, at, allows_count=counts)
        return walk

    def _along(self, walk: Walk, place: Place) -> Branch | None:
        """Takes a walk that is at the mount to a place; the branch there, if there is one."""
        relative = place.relative
        branch: Branch | None = self.loaded().root
        last = len(relative) if place.is_topic else 0
        at = 0
        while branch is not None:
            if branch.rules or branch.closed:
                self.enter(walk, branch, at)
            if at == len(relative):
                return branch
            name = relative[at]
            at += 1
            branch = branch.fan.get(name if at == last else name + "/")
        return None

    def enter(
        self, walk: Walk, level: Branch | Level, at: int, *, allows_count: bool = True
    ) -> None:
        """Takes a walk one level further."""
        walk.enter(level.rules, at, closed=level.closed, allows_count=allows_count)
        if self.mode is Mode.OPEN_WHERE_UNGRANTED:
            walk.listen(level.rules)

    def verdict(self, walk: Walk, place: Place) -> Decision:
        """What the walk comes to, if its place is the end of it."""
        if walk.deny is not None:
            return Decision(
                allowed=False,
                reason=Reason.GRANT,
                grant=walk.deny,
                path=self._path(place, walk.deny_at),
            )
        if walk.allow is not None:
            own = walk.allow.operation
            implied = own in IMPLIED_BY.get(walk.question.operation, ())
            return Decision(
                allowed=True,
                reason=Reason.GRANT,
                grant=walk.allow,
                path=self._path(place, walk.allow_at),
                implied_by=own if implied else None,
            )
        unsaid = self.mode is Mode.OPEN or (
            self.mode is Mode.OPEN_WHERE_UNGRANTED and not walk.spoken
        )
        if walk.shut_at is not None and (walk.blocked or unsaid):
            return Decision(
                allowed=False, reason=Reason.CLOSED, path=self._path(place, walk.shut_at)
            )
        if unsaid:
            return Decision(allowed=True, reason=Reason.OPEN)
        return Decision(allowed=False, reason=Reason.EXPIRED if walk.expired else Reason.NO_GRANT)

    def _path(self, place: Place, at: int) -> Path:
        if at < 0:
            return self.above()[at].path
        return Path((*self.mount.segments, *place.relative[:at]))

    def _refusals(
        self, walk: Walk, branch: Branch, place: Place
    ) -> Iterator[tuple[Place, Decision]]:
        for step, below in branch.fan.branches():
            at = Place((*place.relative, step.removesuffix("/")), not step.endswith("/"))
            further = walk
            if below.rules or below.closed:
                further = walk.fork()
                self.enter(further, below, len(at.relative))
                found = self.verdict(further, at)
                if not found.allowed:
                    yield at, found
            yield from self._refusals(further, below, at)

    def _some_name(
        self, caller: Caller, question: Question, root: Branch | None, age_seconds: float
    ) -> bool:
        """``authorize_any`` of a kind with names: the levels down to the root are one to it, as
        each name is a resource of the root directory, too.
        """
        free = Free(caller.keys, question)
        walk = Walk(caller, question)
        counts = not self.has_expired(age_seconds)
        allows: list[Grant] = []
        denies: list[Grant] = []
        levels = [(level.rules, level.closed, counts) for level in self.above()]
        if root is not None:
            levels.append((root.rules, root.closed, True))
        for rules, closed, count in levels:
            denies += free.about(rules, Permission.DENY)
            if count and walk.shut_at is None:
                allows += free.about(rules, Permission.ALLOW)
            walk.enter(rules, 0, closed=closed, allows_count=count)
        if free.left(allows, denies):
            return True
        if walk.shut_at is not None or root is None:
            return False
        return free.below(root.fan, denies, walk.passing)


class Within:
    """One question of one caller, for a directory and what stands directly in it."""

    __slots__ = ("_access", "_branch", "_place", "_walk", "decision")

    def __init__(
        self, access: Access, walk: Walk | None, branch: Branch | None, place: Place
    ) -> None:
        self._access = access
        self._walk = walk
        self._branch = branch
        self._place = place
        self.decision: Final = SUPER_USER if walk is None else access.verdict(walk, place)
        """For the directory itself, and for all in it that has no grants of its own."""

    @property
    def has_none_below(self) -> bool:
        """Whether nothing in it, at any depth, has grants of its own, for whomever."""
        return self._branch is None or not self._branch.fan.size

    @property
    def is_uniform(self) -> bool:
        """Whether the directory's answer is that of all in it, at any depth: a page need not ask
        for each name.
        """
        return self._branch is None or not self._speaks_in(self._branch)

    def is_uniform_in(self, name: str) -> bool:
        """The same of a directory in it, with that one's own answer."""
        below = None if self._branch is None else self._branch.fan.get(f"{name}/")
        return below is None or not self._speaks_in(below)

    def _speaks_in(self, branch: Branch) -> bool:
        """Whether what is below a branch may have answers of its own for the caller."""
        if self._walk is None:
            return False
        if self._access.mode is Mode.OPEN_WHERE_UNGRANTED:
            return branch.fan.size > 0
        return branch.fan.speaks_to(self._walk.caller.keys)

    def others(self) -> Iterator[tuple[str, bool, bool]]:
        """The entries in the directory in or below which something may have an answer of its own:
        name, whether it is a topic, whether the caller may do it there. In no order.
        """
        if self._walk is None or self._branch is None:
            return
        for step, below in self._branch.fan.about(self._walk.caller.keys):
            name, is_topic = step.removesuffix("/"), not step.endswith("/")
            yield name, is_topic, self._of(below, name, is_topic=is_topic).allowed

    def speaks_of(self, name: str) -> bool:
        """Whether an entry of this name in the directory may have an answer of its own."""
        if self._branch is None:
            return False
        fan = self._branch.fan
        return fan.size > 0 and (fan.get(name) or fan.get(f"{name}/")) is not None

    def is_same_as(self, other: Within) -> bool:
        """True if the answers here, and of all that has answers of its own below, are the same as
        in another directory of the same names, or in this one by other grants. It costs by the
        entries whose grants are about the caller, and nothing where both share the grants below.
        """
        if self._walk is None or other._walk is None:
            return self._walk is other._walk
        mine = (self._access, self._walk, self._branch or NO_BRANCH, self._place)
        yours = (other._access, other._walk, other._branch or NO_BRANCH, other._place)
        return _are_same(mine, yours)

    def child(self, name: str, *, is_topic: bool) -> Decision:
        """For one entry in the directory."""
        walk, branch = self._walk, self._branch
        if walk is None or branch is None:
            return self.decision
        below = branch.fan.get(name if is_topic else name + "/")
        return self.decision if below is None else self._of(below, name, is_topic=is_topic)

    def _of(self, below: Branch, name: str, *, is_topic: bool) -> Decision:
        if self._walk is None or not (below.rules or below.closed):
            return self.decision
        place = Place((*self._place.relative, name), is_topic)
        further = self._walk.fork()
        self._access.enter(further, below, len(place.relative))
        return self._access.verdict(further, place)


_Reached = tuple[Access, Walk, Branch, Place]
"""How far a question has come in one tree of grants."""


def _are_same(one: _Reached, other: _Reached) -> bool:
    (mine, my_walk, my_branch, at), (yours, your_walk, your_branch, your_at) = one, other
    if mine.verdict(my_walk, at).allowed != yours.verdict(your_walk, your_at).allowed:
        return False
    if my_walk.deny is not None and your_walk.deny is not None:
        return True  # nothing below changes that
    fan, your_fan = my_branch.fan, your_branch.fan
    if fan is your_fan and my_walk.state == your_walk.state:
        return True
    keys = my_walk.caller.keys
    steps = {step for step, _ in (*fan.about(keys), *your_fan.about(keys))}
    return all(
        _are_same(_stepped(one, step, fan.get(step)), _stepped(other, step, your_fan.get(step)))
        for step in steps
    )


def _stepped(reached: _Reached, step: str, branch: Branch | None) -> _Reached:
    access, walk, _, place = reached
    at = Place((*place.relative, step.removesuffix("/")), not step.endswith("/"))
    if branch is None:
        return access, walk, NO_BRANCH, at
    further = walk.fork()
    access.enter(further, branch, len(at.relative))
    return access, further, branch, at
