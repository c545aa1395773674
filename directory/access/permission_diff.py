"""Permission diff: the callers that gain or lose rights on an entry and below it, between two trees
of grants.

A row holds for its entry and all below it, until another row for the same caller further down; a
row without gains or losses ends an outer one. A caller without rows has those of the nearest wider
caller with rows: the same principal from any host, everybody from that host, everybody. In the same
way the narrowest matching pattern decides for the names of groups and transactional ids.

Topics are always compared, clusters always at the root directory. Elsewhere clusters, and all other
kinds of resources, are compared only if a grant on the path or below covers them.
``OPEN_IF_NO_GRANTS``, which no server has, is not supported. The number of rows is not limited: the
caller stops reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from directory.access.authorizer import Authorizer, GrantEvaluator, InheritedGrantLevel
from directory.access.compiled_grants import AccessQuestion
from directory.access.grant_tree import EMPTY_NODE, EntryPlace, GrantNode
from directory.access.grants import Operation, ResourceType
from directory.access.principals import ANY_HOST, EVERYBODY, Caller, key_of

__all__ = ["AccessChange", "DiffSide", "diff_permissions"]

_OPERATIONS: Final = tuple(one for one in Operation if one is not Operation.ALL)
_NONE: Final[frozenset[Operation]] = frozenset()
_UNNAMED: Final = "\0"
"""Character that no pattern contains: appended to a prefix it makes a name that no narrower pattern
matches.
"""


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One side of the diff: the access rules, and the place of the entry."""

    access: Authorizer
    place: EntryPlace


@dataclass(frozen=True, slots=True)
class AccessChange:
    """Change of one caller's rights on one entry and below it."""

    caller: Caller
    """The principal ``EVERYBODY``: all principals without rows of their own. No host: all hosts
    without rows.
    """
    kind: ResourceType
    name: str
    """For groups and transactional ids: a literal name, or a prefix followed by ``*``."""
    place: EntryPlace
    """Place of the entry after the change."""
    gained: frozenset[Operation]
    lost: frozenset[Operation]


class _Row(NamedTuple):
    place: EntryPlace
    gained: frozenset[Operation]
    lost: frozenset[Operation]


_Rows = tuple[_Row, ...]


class _InheritedRows:
    """Rows so far, by caller, for comparison with the rows of narrower callers."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Rows] = {}
        self._principal = EVERYBODY

    def lookup(self, caller: Caller) -> _Rows:
        """Returns the rows of a caller so far, or those of the nearest wider caller with rows."""
        wider = (
            (caller.principal, caller.host),
            (caller.principal, ""),
            (EVERYBODY, caller.host),
            (EVERYBODY, ""),
        )
        return next((self._rows[one] for one in wider if one in self._rows), ())

    def add(self, caller: Caller, rows: _Rows) -> None:
        if caller.principal != self._principal:
            # The rows of the last principal are not needed any more.
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
    """Yields the rows: those for everybody first, then by principal and host; for each caller, the
    row of an entry before those of entries below it.

    Ends early when ``go_on``, called for each entry that is compared for a caller, returns False;
    the last caller then has only its first rows.

    Raises:
        NotReady: as ``Authorizer.authorize``.
    """
    pair = _SidePair(before, after, age_seconds, go_on)
    reported: dict[ResourceType, _InheritedRows] = {kind: _InheritedRows() for kind in ResourceType}
    for caller in pair.callers():
        if caller.principal in after.access.super_users:
            continue
        for kind in pair.kinds:
            if not kind.has_names:
                rows = pair.rows(caller, kind)
                if pair.differ(rows, reported[kind].lookup(caller)):
                    reported[kind].add(caller, rows)
                    yield from _access_changes(caller, kind, "", rows or pair.nothing)
            else:
                yield from _of_names(pair, reported[kind], caller, kind)
            if pair.is_over:
                return


def _of_names(
    pair: _SidePair, inherited_rows: _InheritedRows, caller: Caller, kind: ResourceType
) -> Iterator[AccessChange]:
    """Yields the rows of each pattern, the widest first, unless they equal those of the nearest
    wider pattern.
    """
    by_pattern: dict[str, _Rows] = {}
    for pattern in pair.patterns(caller, kind):
        wider = [one for one in by_pattern if one.endswith("*") and pattern.startswith(one[:-1])]
        known = by_pattern[max(wider, key=len)] if wider else ()
        rows = pair.rows(caller, kind, pattern)
        if pair.differ(rows, known):
            by_pattern[pattern] = rows
        if pair.is_over:
            break
    flat = tuple(
        _Row(EntryPlace((pattern, *row.place.relative), row.place.is_topic), row.gained, row.lost)
        for pattern, rows in by_pattern.items()
        for row in rows or pair.nothing
    )
    if not pair.differ(flat, inherited_rows.lookup(caller)):
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
    """One level of a path, with its depth."""

    level: GrantNode | InheritedGrantLevel
    at: int
    counts: bool
    """False if the level is inherited and its allows have expired."""


class _SidePair:
    """Both sides of the diff, with the levels that lead to the entry on each."""

    def __init__(
        self, before: DiffSide, after: DiffSide, age_seconds: float, go_on: Callable[[], bool]
    ) -> None:
        self._before, self._after = before, after
        self._go_on: Final = go_on
        self.is_over = False
        """True if ``go_on`` returned False: the rows of the last caller are only the first ones."""
        self._old, self._new = _levels(before, age_seconds), _levels(after, age_seconds)
        self._old_node = before.access.own_grants().node_at(before.place) or EMPTY_NODE
        self._new_node = after.access.own_grants().node_at(after.place) or EMPTY_NODE
        self.nothing: Final[_Rows] = (_Row(after.place, _NONE, _NONE),)
        self.kinds: Final = tuple(self._kinds())

    def _kinds(self) -> Iterator[ResourceType]:
        """Yields the kinds of resources to compare."""
        reported = {one.kind for entered in self._every() for one in entered.level.rules.grants}
        bits = 0
        for node in (self._old_node, self._new_node):
            for live in node.live.values():
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

    def _may_go_on(self) -> bool:
        if not self.is_over and not self._go_on():
            self.is_over = True
        return not self.is_over

    def differ(self, rows: _Rows, wider: _Rows) -> bool:
        """True if a caller's rows differ from those of a wider caller; if the diff has ended, only
        the first rows are compared.
        """
        return rows != (wider[: len(rows)] if self.is_over else wider)

    def _every(self) -> tuple[_LevelAtDepth, ...]:
        return (*self._old, *self._new)

    # -- callers -------------------------------------------------------------------------------

    def callers(self) -> Iterator[Caller]:
        """Yields everybody, and principals whose rights may change in another way; each without a
        host, then with each host that grants name.
        """
        scope = {key for one in self._every() for key in one.level.rules.by_key}
        scope.update(self._old_node.live, self._new_node.live)
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
        """Returns the keys of the grants that differ between the sides, and whether the difference
        may concern everybody.
        """
        same = 0
        for one, other in zip(self._old, self._new, strict=False):
            if not _alike(one, other):
                break
            same += 1
        old, new = self._old[same:], self._new[same:]
        if len(old) == len(new) == 1:
            mine, yours = old[0].level, new[0].level
            has_closed = mine.closed != yours.closed or old[0].counts != new[0].counts
            keys = {
                key
                for key in {*mine.rules.by_key, *yours.rules.by_key}
                if mine.rules.by_key.get(key) != yours.rules.by_key.get(key)
            }
        else:
            has_closed = any(one.level.closed for one in (*old, *new))
            keys = {key for one in (*old, *new) for key in one.level.rules.by_key}
        wide = has_closed or any(key.startswith(_OF_EVERYBODY) for key in keys)
        return keys, wide

    def patterns(self, caller: Caller, kind: ResourceType) -> list[str]:
        """Returns the patterns of the grants of a kind that apply to a caller, the widest first."""
        found = {"*"}
        for one in self._every():
            found |= _patterns(one.level, caller, kind)
        waiting = [self._old_node, self._new_node]
        while waiting and self._may_go_on():
            node = waiting.pop()
            found |= _patterns(node, caller, kind)
            waiting += [below for _, below in node.children.nodes_for(caller.keys)]
        # A literal name is narrower than a prefix of the same text.
        return sorted(found, key=lambda one: (len(one.removesuffix("*")), one[-1:] != "*", one))

    # -- rows ----------------------------------------------------------------------------------

    def rows(self, caller: Caller, kind: ResourceType, pattern: str = "") -> _Rows:
        """Returns the changes for a caller, the entry itself first."""
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
        at = _EntryPair(self._old_node, self._new_node, self._before.place, self._after.place)
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
        if not self._may_go_on():
            return
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
        same = at.old.children is at.new.children
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
        steps = {step for step, _ in at.old.children.nodes_for(caller.keys)}
        if at.old.children is not at.new.children:
            steps |= {step for step, _ in at.new.children.nodes_for(caller.keys)}
        return sorted(steps)


_OF_EVERYBODY: Final = (key_of(EVERYBODY, ANY_HOST), f"{EVERYBODY}\0")


class _EvaluatorPair(NamedTuple):
    """Evaluators of one question on both sides."""

    operation: Operation
    old: GrantEvaluator
    new: GrantEvaluator

    def fork(self) -> _EvaluatorPair:
        return _EvaluatorPair(self.operation, self.old.copy(), self.new.copy())

    @property
    def is_settled(self) -> bool:
        """True if both sides deny, so that no level below makes a difference."""
        return self.old.deny is not None and self.new.deny is not None

    @property
    def are_alike(self) -> bool:
        """True if the same levels below lead to the same decision on both sides."""
        return self.old.state == self.new.state


class _EntryPair(NamedTuple):
    """Nodes of one entry on both sides."""

    old: GrantNode
    new: GrantNode
    old_place: EntryPlace
    new_place: EntryPlace

    def below(self, step: str) -> _EntryPair:
        name, is_topic = step.removesuffix("/"), not step.endswith("/")
        return _EntryPair(
            self.old.children.get(step) or EMPTY_NODE,
            self.new.children.get(step) or EMPTY_NODE,
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
    evaluator = GrantEvaluator(caller, question)
    for level, at, counts in levels:
        access.add_level(evaluator, level, at, allows_count=counts)
    return evaluator


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
