"""Effective policies: each field's own value or the nearest ancestor's, key by key for maps; the
effective policies after each change of a plan; and the number of topics that inherit a field.

The levels above the mount are the outermost ones (KIP-37).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from directory.namespace.command import EntryChange
from directory.namespace.entry import (
    NO_POLICIES,
    Directory,
    Kind,
    Mount,
    Policies,
    PolicyLevel,
    Stamp,
    Topic,
)
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.traversal import entry_path

if TYPE_CHECKING:
    from resolver.path import Path

__all__ = [
    "ExplainedValue",
    "InheritorCounts",
    "LevelOrigin",
    "PolicyLevel",
    "Shown",
    "attach_effective_policies",
    "count_inheritors",
    "effective",
    "explain",
    "inherit",
    "levels_of",
    "path_levels",
    "set_fields",
    "stamp_changed_fields",
    "without_cleared_keys",
]


_FIELDS: Final = tuple(one.name for one in fields(Policies) if one.name != "stamps")
_values_of: Final = attrgetter(*_FIELDS)
_MAPS: Final = frozenset(
    {"topic_config", "producer_defaults", "consumer_defaults", "tags", "manage"}
)


def inherit(outer: Policies, inner: Policies) -> Policies:
    """Returns the effective policies if ``inner`` is set below ``outer``. A cleared key (``None``)
    stays cleared until a nearer level sets it.
    """
    # Usually the same object: comparing field by field would take as long as all the rest.
    if inner is NO_POLICIES or inner == NO_POLICIES:
        return outer
    if outer is NO_POLICIES or outer == NO_POLICIES:
        return inner
    values: dict[str, Any] = {}
    for name in _FIELDS:
        near, far = getattr(inner, name), getattr(outer, name)
        if name in _MAPS:
            values[name] = MappingProxyType({**far, **near}) if near else far
        else:
            values[name] = far if near is None else near
    return Policies(**values)


def set_fields(policies: Policies) -> dict[str, object]:
    """Returns the values that are set, by field: ``owner``, or with a map's key
    ``topic_config[retention.ms]``. A cleared key is ``None``.
    """
    found: dict[str, object] = {}
    for name, value in zip(_FIELDS, _values_of(policies), strict=True):
        if value is None:
            continue
        if name not in _MAPS:
            found[name] = value
        elif value:
            for key, one in value.items():
                found[f"{name}[{key}]"] = one
    return found


def stamp_changed_fields(after: Policies, before: Policies, stamp: Stamp) -> Policies:
    """Returns policies with a stamp for each field: ``stamp`` for fields that differ from
    ``before``, and the previous stamp, if any, for the others.
    """
    if after is NO_POLICIES or after == NO_POLICIES:
        return after
    old, now = set_fields(before), set_fields(after)
    same = {name for name, value in now.items() if name in old and old[name] == value}
    stamps = {
        name: stamp if name not in same else before.stamps[name]
        for name in now
        if name not in same or name in before.stamps
    }
    return after if stamps == after.stamps else replace(after, stamps=MappingProxyType(stamps))


def effective(levels: Iterable[Policies]) -> Policies:
    """Returns the effective policies of the last level, without stamps and cleared keys; levels are
    outermost first.
    """
    each = [level for level in levels if level is not NO_POLICIES]
    if len(each) < 2:
        return _without_stamps(without_cleared_keys(each[0])) if each else NO_POLICIES
    # The same result as ``inherit`` level by level, in one pass over the fields.
    found: dict[str, Any] = {}
    for name, values in zip(_FIELDS, zip(*map(_values_of, each), strict=True), strict=True):
        if name in _MAPS:
            merged: dict[str, Any] = {}
            for near in values:
                if near:
                    merged.update(near)
            if merged:
                found[name] = MappingProxyType({k: v for k, v in merged.items() if v is not None})
        else:
            found[name] = next((value for value in reversed(values) if value is not None), None)
    return Policies(**found)


def without_cleared_keys(policies: Policies) -> Policies:
    """Returns policies without cleared keys, as answers show them."""
    changed: dict[str, Mapping[str, Any]] = {}
    for name in _MAPS:
        values = getattr(policies, name)
        if any(value is None for value in values.values()):
            changed[name] = MappingProxyType({k: v for k, v in values.items() if v is not None})
    if not changed:
        return policies
    return Policies(**{name: changed.get(name, getattr(policies, name)) for name in _FIELDS})


def _without_stamps(policies: Policies) -> Policies:
    return replace(policies, stamps=MappingProxyType({})) if policies.stamps else policies


class LevelOrigin(NamedTuple):
    """Value that one level sets, with its path."""

    value: object
    path: str
    stamp: Stamp | None
    """Who set it and when; None if unknown."""


class ExplainedValue(NamedTuple):
    """One effective value, with the level that sets it and the values that it overrides, nearest
    first. The value of a cleared key is None.
    """

    field: str
    """As in ``set_fields``."""
    origin: LevelOrigin
    overrides: tuple[LevelOrigin, ...]


def explain(levels: Sequence[PolicyLevel]) -> tuple[ExplainedValue, ...]:
    """Returns each effective value of the last level, by field; cleared keys are included."""
    found: dict[str, list[LevelOrigin]] = {}
    for path, policies in reversed(levels):
        stamp_of = policies.stamps.get
        for name, value in set_fields(policies).items():
            origin = LevelOrigin(value, path, stamp_of(name))
            origins = found.get(name)
            if origins is None:
                found[name] = [origin]
            else:
                origins.append(origin)
    return tuple(
        ExplainedValue(name, origins[0], tuple(one for one in origins[1:] if one.value is not None))
        for name, origins in sorted(found.items())
    )


def path_levels(snapshot: Snapshot, mount: Path, directory_id: int) -> list[PolicyLevel]:
    """Returns the levels with policies, from the mount root to a directory."""
    levels: list[PolicyLevel] = []
    path = snapshot.path_of(directory_id)
    if path is None:
        return levels
    here = str(entry_path(mount, path))
    node = snapshot.nodes.get(directory_id)
    while node is not None:
        policies = node.directory.policies
        if policies is not NO_POLICIES and policies != NO_POLICIES:
            levels.append(PolicyLevel(here, policies))
        here = here.rpartition("/")[0] or "/"
        node = snapshot.nodes.get(node.parent_id) if node.parent_id else None
    levels.reverse()
    return levels


def levels_of(snapshot: Snapshot, directory_id: int) -> list[Policies]:
    """Returns the policies of the levels from the mount root to a directory, where any are set."""
    levels: list[Policies] = []
    node = snapshot.nodes.get(directory_id)
    while node is not None:
        if node.directory.policies is not NO_POLICIES and node.directory.policies != NO_POLICIES:
            levels.append(node.directory.policies)
        node = snapshot.nodes.get(node.parent_id)
    levels.reverse()
    return levels


def attach_effective_policies(
    changes: Sequence[EntryChange], snapshot: Snapshot, above: Sequence[PolicyLevel]
) -> tuple[EntryChange, ...]:
    """Returns the changes of a plan with the effective policies after each; for a removal, those
    before it.

    Args:
        snapshot: the snapshot of the plan.
        above: the policies of the ancestors above the mount, outermost first.
    """
    carrying = _PolicyAttacher(changes, snapshot, above)
    return tuple(_with_effective(one, carrying.policies_after(one)) for one in changes)


def _with_effective(change: EntryChange, effective: Policies | None) -> EntryChange:
    return change if effective is change.effective else replace(change, effective=effective)


class _PolicyAttacher:
    """Attacher for one plan, which visits each directory once."""

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
        """Returns the effective policies after a change; None if none are set, or the entry has
        none.
        """
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
            node = self._snapshot.nodes.get(directory_id)
            if directory_id not in self._changed and node is not None:
                parent_id, own = node.parent_id, node.directory.policies
            found = inherit(self._holds_in(parent_id), own)
            self._within[directory_id] = found
        return found


def _bare(policies: Policies) -> Policies | None:
    """Returns policies without stamps and cleared keys; None if none are set."""
    if policies is NO_POLICIES:
        return None
    holds = _without_stamps(without_cleared_keys(policies))
    return None if holds == NO_POLICIES else holds


Shown = Callable[[int, str, Kind], bool]
"""True if a topic or mount is counted, by the id of its directory, its name and its kind."""


@dataclass(slots=True)
class InheritorCounts:
    """Number of inheritors; fields are named as in ``set_fields``."""

    topics: int = 0
    """Topics that inherit at least one of the fields."""
    by_field: Counter[str] = field(default_factory=Counter)
    """Topics, by field."""
    clusters: Counter[str] = field(default_factory=Counter)
    """Mounts by field; overrides in their clusters are unknown here."""


def count_inheritors(
    snapshot: Snapshot,
    directory_id: int,
    names: frozenset[str],
    budget: TimeBudget | None = None,
    shown: Shown | None = None,
) -> InheritorCounts:
    """Counts the inheritors below a directory, within the cluster.

    Visits each topic below: when the time budget is spent, the count is a lower bound. Only topics
    and mounts for which ``shown`` is true are counted.
    """
    budget = budget or TimeBudget()
    found = InheritorCounts()
    waiting = [(directory_id, names)]
    while waiting:
        at, open_names = waiting.pop()
        node = snapshot.nodes.get(at)
        if node is None:
            continue
        _topics(snapshot, node, open_names, found, budget, shown)
        for name, container in node.containers.items():
            if not budget.spend():
                return found
            if isinstance(container, Mount):
                if shown is None or shown(at, name, Kind.MOUNT):
                    found.clusters.update(open_names)
            elif isinstance(container, Directory):
                left = open_names - set_fields(container.policies).keys()
                if left:
                    waiting.append((container.entry_id, left))
    return found


def _topics(
    snapshot: Snapshot,
    node: Node,
    names: frozenset[str],
    found: InheritorCounts,
    budget: TimeBudget,
    shown: Shown | None,
) -> None:
    policies = snapshot.codec.policies
    plain = 0
    for name, record in node.topics.items():
        if not budget.spend():
            break
        if shown is not None and not shown(node.entry_id, name, Kind.TOPIC):
            continue
        own = policies(record)
        if own is NO_POLICIES:
            plain += 1
            continue
        left = names - set_fields(own).keys()
        found.topics += bool(left)
        found.by_field.update(left)
    found.topics += plain
    for field_name in names:
        found.by_field[field_name] += plain
