"""Difference: who gains and who loses what on an entry and below it, between two accesses; refuses
to know what makes the difference, and to bound it: who reads stops when it is enough.

A row holds for its entry and all below it, until another row for the same caller further down; one
that neither gains nor loses anything says that nothing changes there. A caller without rows fares
like the nearest wider one that has some: the same principal from any host, everybody from that
host, everybody. So it is with names of groups and transactional ids: the narrowest pattern counts.

Kinds of resources that no grant on the way or below applies to are left out, but for topics,
and of the root directory for the cluster. Not for ``OPEN_IF_NO_GRANTS``, which no server has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from directory.access.authorizer import Authorizer, GrantEvaluator, InheritedGrantLevel
from directory.access.decision import AccessQuestion
from directory.access.grant_tree import NO_BRANCH, EntryPlace, GrantNode
from directory.access.grants import Operation, ResourceType
from directory.access.principals import ANY_HOST, EVERYBODY, Caller, key_of

__all__ = ["AccessChange", "DiffSide", "diff_permissions"]

_OPERATIONS: Final = tuple(one for one in Operation if one is not Operation.ALL)
_NONE: Final[frozenset[Operation]] = frozenset()
_UNNAMED: Final = "\0"
"""No grant's pattern has it: behind the beginning of a pattern it is a name of nothing narrower."""


@dataclass(frozen=True, slots=True)
class DiffSide:
    """An entry before, or after: who may do what, and where the entry is."""

    access: Authorizer
    place: EntryPlace


@dataclass(frozen=True, slots=True)
class AccessChange:
    """Change of one caller's rights on one entry and below it."""

    caller: Caller
    """``EVERYBODY``: whoever has no rows. Without a host: from wherever there are no rows for."""
    kind: ResourceType
    name: str
    """Of groups and transactional ids: a name, or a beginning with ``*`` behind it."""
    place: EntryPlace
    """Where it is afterwards."""
    gained: frozenset[Operation]
    lost: frozenset[Operation]


class _Row(NamedTuple):
    place: EntryPlace
    gained: frozenset[Operation]
    lost: frozenset[Operation]


_Rows = tuple[_Row, ...]


class _InheritedRows:
    """The rows of each caller so far, as far as narrower ones are compared with them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Rows] = {}
        self._principal = EVERYBODY

    def lookup(self, caller: Caller) -> _Rows:
        """Returns what follows for a caller from all rows so far."""
        wider = (
            (caller.principal, caller.host),
            (caller.principal, ""),
            (EVERYBODY, caller.host),
            (EVERYBODY, ""),
        )
        return next((self._rows[one] for one in wider if one in self._rows), ())

    def add(self, caller: Caller, rows: _Rows) -> None:
        if caller.principal != self._principal:
            # Nobody asks for those of the last principal any more.
            self._rows = {key: some for key, some in self._rows.items() if key[0] == EVERYBODY}
            self._principal = caller.principal
        self._rows[caller.principal, caller.host] = rows


def diff_permissions(
    before: DiffSide,
    after: DiffSide,
    *,
    age_seconds: float = 0.0,
    go_on: Callable[[], bool] = lambda: True,
) -> Iterator[AccessChange]:
    """Yields the rows, those for everybody first, then by principal and host; within a caller an
    entry before what lies below it. Ends early when ``go_on``, asked for each caller, says no.

    Raises:
        NotReady: as ``Authorizer.authorize``.
    """
    pair = _SidePair(before, after, age_seconds)
    reported: dict[ResourceType, _InheritedRows] = {kind: _InheritedRows() for kind in ResourceType}
    for caller in pair.callers():
        if not go_on():
            return
        if caller.principal in after.access.super_users:
            continue
        for kind in pair.kinds:
            if not kind.has_names:
                rows = pair.rows(caller, kind)
                if rows != reported[kind].lookup(caller):
                    reported[kind].add(caller, rows)
                    yield from _access_changes(caller, kind, "", rows or pair.nothing)
                continue
            yield from _of_names(pair, reported[kind], caller, kind)


def _of_names(
    pair: _SidePair, inherited_rows: _InheritedRows, caller: Caller, kind: ResourceType
) -> Iterator[AccessChange]:
    """As rows of each pattern, the widest first, where they differ from what a wider one says."""
    by_pattern: dict[str, _Rows] = {}
    for pattern in pair.patterns(caller, kind):
        wider = [one for one in by_pattern if one.endswith("*") and pattern.startswith(one[:-1])]
        known = by_pattern[max(wider, key=len)] if wider else ()
        rows = pair.rows(caller, kind, pattern)
        if rows != known:
            by_pattern[pattern] = rows
    flat = tuple(
        _Row(EntryPlace((pattern, *row.place.relative), row.place.is_topic), row.gained, row.lost)
        for pattern, rows in by_pattern.items()
        for row in rows or pair.nothing
    )
    if flat == inherited_rows.lookup(caller):
        return
    inherited_rows.add(caller, flat)
    for pattern, rows in (by_pattern or {"*": pair.nothing}).items():
        yield from _access_changes(caller, kind, pattern, rows or pair.nothing)


def _access_changes(
    caller: Caller, kind: ResourceType, name: str, rows: Iterable[_Row]
) -> Iterator[AccessChange]:
    for row in rows:
        yield AccessChange(caller, kind, name, row.place, row.gained, row.lost)


class _LevelAtDepth(NamedTuple):
    """A level of a path, as a walk enters it."""

    level: GrantNode | InheritedGrantLevel
    at: int
    counts: bool
    """Whether its allows do."""


class _SidePair:
    """Both sides, and the levels that lead to the entry on each."""

    def __init__(self, before: DiffSide, after: DiffSide, age_seconds: float) -> None:
        self._before, self._after = before, after
        self._old, self._new = _levels(before, age_seconds), _levels(after, age_seconds)
        self._old_branch = before.access.own_grants().node_at(before.place) or NO_BRANCH
        self._new_branch = after.access.own_grants().node_at(after.place) or NO_BRANCH
        self.nothing: Final[_Rows] = (_Row(after.place, _NONE, _NONE),)
        self.kinds: Final = tuple(self._kinds())

    def _kinds(self) -> Iterator[ResourceType]:
        """Yields topics and directories, at its root the cluster; else what grants apply to."""
        reported = {one.kind for entered in self._every() for one in entered.level.rules.grants}
        bits = 0
        for branch in (self._old_branch, self._new_branch):
            for live in branch.live.values():
                bits |= live
        for kind in ResourceType:
            mask = 0
            for one in _OPERATIONS:
                mask |= AccessQuestion.for_operation(one, kind).bit
            always = kind is ResourceType.TOPIC or (
                kind is ResourceType.CLUSTER and not self._after.place.relative
            )
            if always or kind in reported or bits & mask:
                yield kind

    def _every(self) -> tuple[_LevelAtDepth, ...]:
        return (*self._old, *self._new)

    # -- for whom ------------------------------------------------------------------------------

    def callers(self) -> Iterator[Caller]:
        """Yields those for whom there may be a difference, or who may fare otherwise than
        everybody.
        """
        scope = {key for one in self._every() for key in one.level.rules.by_key}
        scope.update(self._old_branch.live, self._new_branch.live)
        touched, everybody = self._touched()
        if everybody:
            touched = scope
        hosts: dict[str, set[str]] = {}
        for key in scope:
            principal, _, host = key.partition("\0")
            if host:
                hosts.setdefault(principal, set()).add(host)
        of_all = hosts.get(EVERYBODY, set())
        principals = {key.partition("\0")[0] for key in touched} - {EVERYBODY}
        for principal in (EVERYBODY, *sorted(principals)):
            own = hosts.get(principal, set()) | of_all
            yield from (Caller(principal, host) for host in ("", *sorted(own)))

    def _touched(self) -> tuple[set[str], bool]:
        """Returns the keys of grants that are not the same on both sides; and whether what is
        different may be for everybody.
        """
        same = 0
        for one, other in zip(self._old, self._new, strict=False):
            if not _alike(one, other):
                break
            same += 1
        old, new = self._old[same:], self._new[same:]
        if len(old) == len(new) == 1:
            mine, yours = old[0].level, new[0].level
            shut = mine.closed != yours.closed or old[0].counts != new[0].counts
            keys = {
                key
                for key in {*mine.rules.by_key, *yours.rules.by_key}
                if mine.rules.by_key.get(key) != yours.rules.by_key.get(key)
            }
        else:
            shut = any(one.level.closed for one in (*old, *new))
            keys = {key for one in (*old, *new) for key in one.level.rules.by_key}
        wide = shut or any(key.startswith(_OF_EVERYBODY) for key in keys)
        return keys, wide

    def patterns(self, caller: Caller, kind: ResourceType) -> list[str]:
        """Returns the patterns of grants of a kind that are about a caller, the widest first."""
        found = {"*"}
        for one in self._every():
            found |= _patterns(one.level, caller, kind)
        waiting = [self._old_branch, self._new_branch]
        while waiting:
            branch = waiting.pop()
            found |= _patterns(branch, caller, kind)
            waiting += [below for _, below in branch.fan.nodes_for(caller.keys)]
        # A name of its own is narrower than a beginning of the same text.
        return sorted(found, key=lambda one: (len(one.removesuffix("*")), one[-1:] != "*", one))

    # -- what ----------------------------------------------------------------------------------

    def rows(self, caller: Caller, kind: ResourceType, pattern: str = "") -> _Rows:
        """Returns what changes for a caller, the entry first."""
        name = pattern[:-1] + _UNNAMED if pattern.endswith("*") else pattern
        pairs = []
        for operation in _OPERATIONS:
            question = AccessQuestion.for_operation(operation, kind, name)
            pairs.append(
                _EvaluatorPair(
                    operation,
                    _evaluate_levels(self._before.access, self._old, caller, question),
                    _evaluate_levels(self._after.access, self._new, caller, question),
                )
            )
        found: list[_Row] = []
        at = _EntryPair(self._old_branch, self._new_branch, self._before.place, self._after.place)
        self._compare(caller, pairs, at, (_NONE, _NONE), found)
        return tuple(found)

    def _compare(
        self,
        caller: Caller,
        pairs: Sequence[_EvaluatorPair],
        at: _EntryPair,
        outer: tuple[frozenset[Operation], frozenset[Operation]],
        found: list[_Row],
    ) -> None:
        gained: set[Operation] = set()
        lost: set[Operation] = set()
        for operation, old, new in pairs:
            was = self._before.access.decide(old, at.old_place).allowed
            now = self._after.access.decide(new, at.new_place).allowed
            if was != now:
                (gained if now else lost).add(operation)
        here = (frozenset(gained), frozenset(lost))
        if here != outer:
            found.append(_Row(at.new_place, *here))
        same = at.old.fan is at.new.fan
        left = [one for one in pairs if not (one.is_settled or (same and one.are_alike))]
        if not left:
            return
        for step in self._steps(at, caller):
            below = at.below(step)
            further = [one.fork() for one in left]
            for one in further:
                self._before.access.add_level(one.old, below.old, len(below.old_place.relative))
                self._after.access.add_level(one.new, below.new, len(below.new_place.relative))
            self._compare(caller, further, below, here, found)

    @staticmethod
    def _steps(at: _EntryPair, caller: Caller) -> list[str]:
        steps = {step for step, _ in at.old.fan.nodes_for(caller.keys)}
        if at.old.fan is not at.new.fan:
            steps |= {step for step, _ in at.new.fan.nodes_for(caller.keys)}
        return sorted(steps)


_OF_EVERYBODY: Final = (key_of(EVERYBODY, ANY_HOST), f"{EVERYBODY}\0")


class _EvaluatorPair(NamedTuple):
    """One question on both sides."""

    operation: Operation
    old: GrantEvaluator
    new: GrantEvaluator

    def fork(self) -> _EvaluatorPair:
        return _EvaluatorPair(self.operation, self.old.copy(), self.new.copy())

    @property
    def is_settled(self) -> bool:
        """Whether nothing below can make a difference: denied on both sides."""
        return self.old.deny is not None and self.new.deny is not None

    @property
    def are_alike(self) -> bool:
        """Whether the same levels below come to the same on both sides."""
        return self.old.state == self.new.state


class _EntryPair(NamedTuple):
    """One entry on both sides."""

    old: GrantNode
    new: GrantNode
    old_place: EntryPlace
    new_place: EntryPlace

    def below(self, step: str) -> _EntryPair:
        name, is_topic = step.removesuffix("/"), not step.endswith("/")
        return _EntryPair(
            self.old.fan.get(step) or NO_BRANCH,
            self.new.fan.get(step) or NO_BRANCH,
            EntryPlace((*self.old_place.relative, name), is_topic),
            EntryPlace((*self.new_place.relative, name), is_topic),
        )


def _levels(side: DiffSide, age_seconds: float) -> tuple[_LevelAtDepth, ...]:
    access = side.access
    counts, above = not access.has_expired(age_seconds), access.inherited_grants()
    entered = [_LevelAtDepth(one, at, counts) for at, one in enumerate(above, start=-len(above))]
    entered += [
        _LevelAtDepth(one, at, True) for at, one in access.own_grants().levels_to(side.place)
    ]
    return tuple(entered)


def _alike(one: _LevelAtDepth, other: _LevelAtDepth) -> bool:
    mine, yours = one.level, other.level
    return (
        (mine.rules is yours.rules or mine.rules.grants == yours.rules.grants)
        and mine.closed == yours.closed
        and one.counts == other.counts
    )


def _evaluate_levels(
    access: Authorizer, levels: Iterable[_LevelAtDepth], caller: Caller, question: AccessQuestion
) -> GrantEvaluator:
    walk = GrantEvaluator(caller, question)
    for level, at, counts in levels:
        access.add_level(walk, level, at, allows_count=counts)
    return walk


def _patterns(
    level: GrantNode | InheritedGrantLevel, caller: Caller, kind: ResourceType
) -> set[str]:
    by_key = level.rules.by_key
    return {
        grant.name
        for key in caller.keys
        if key in by_key
        for grant in by_key[key].grants
        if grant.kind is kind
    }
