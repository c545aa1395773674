"""Who inherits: how many topics, and mounted clusters, take a policy from an entry above them,
since no nearer level sets it; refuses to say what the policy is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from directory.namespace.effective_policies import set_fields
from directory.namespace.entry import NO_POLICIES, Directory, Mount
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget

__all__ = ["InheritorCounts", "Shown", "count_inheritors"]

Shown = Callable[[int, str], bool]
"""Whether a topic counts, by the id of its directory and its name."""


@dataclass(slots=True)
class InheritorCounts:
    """How many inherit; fields are named as in ``set_fields``."""

    topics: int = 0
    """Those that take at least one of the fields."""
    by_field: Counter[str] = field(default_factory=Counter)
    """Topics, by field."""
    clusters: Counter[str] = field(default_factory=Counter)
    """Mounts, by field: what their clusters say themselves is not known here."""


def count_inheritors(
    snapshot: Snapshot,
    directory_id: int,
    names: frozenset[str],
    budget: TimeBudget | None = None,
    shown: Shown | None = None,
) -> InheritorCounts:
    """Of what lies below a directory, within the cluster. Costs by the topics there: when the
    budget is over, it is the least that there are. ``shown``: only topics of which it says so.
    """
    budget = budget or TimeBudget()
    found = InheritorCounts()
    waiting = [(directory_id, names)]
    while waiting:
        at, open_names = waiting.pop()
        node = snapshot.node(at)
        if node is None:
            continue
        _topics(snapshot, node, open_names, found, budget, shown)
        for container in node.containers.values():
            if not budget.spend():
                return found
            if isinstance(container, Mount):
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
        if shown is not None and not shown(node.entry_id, name):
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
