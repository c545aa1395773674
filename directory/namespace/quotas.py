"""Quotas: how many topics and partitions may lie below a directory, and how much of that is used.

All levels count: each directory above that says something binds, and so does what the ancestors
above the mount say, of each cluster by itself. Refuses to refuse: ``quota_check.py`` does.

Counted are the topics of the tree and the partitions on record, one for a topic whose number is not
known; a system's directories right below the one with the quota do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import ROOT_ID, Directory, Policies, Topic
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.tree_nodes import upwards
from resolver.counts import plural
from resolver.path import Path, is_system

__all__ = [
    "NO_AMOUNT",
    "QUOTAS",
    "Amount",
    "Quota",
    "outermost_quota_directory",
    "quota_limits",
    "quotas_at",
    "system_directories",
    "topic_amount",
]


class Amount(NamedTuple):
    """Of what quotas count."""

    topics: int = 0
    partitions: int = 0

    def plus(self, other: Amount) -> Amount:
        """Returns the sum."""
        return Amount(self.topics + other.topics, self.partitions + other.partitions)


NO_AMOUNT: Final = Amount()
QUOTAS: Final = ("max_topics", "max_partitions")
"""The fields that say one."""
_COUNTED: Final[Mapping[str, str]] = MappingProxyType(
    dict(zip(QUOTAS, ("topic", "partition"), strict=True))
)


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit that binds what lies in a directory."""

    field: str
    """``max_topics`` or ``max_partitions``."""
    path: str
    """The directory that says so; above the mount, too."""
    directory_id: int
    """Below which it is counted: of one above the mount, the root directory."""
    limit: int
    above: bool = False
    """It is said above the mount."""

    @property
    def limit_text(self) -> str:
        """The limit in words: ``1 topic``, ``20 partitions``."""
        return plural(self.limit, _COUNTED[self.field])

    def used(self, snapshot: Snapshot) -> int:
        """Returns how much there is."""
        if self.field == "max_topics":
            return _topics(snapshot, self.directory_id)
        return _partitions(snapshot, self.directory_id)

    def amount_counted(self, amount: Amount) -> int:
        """Returns what it counts of an amount."""
        return amount.topics if self.field == "max_topics" else amount.partitions


def topic_amount(topic: Topic) -> Amount:
    """Returns what one topic counts."""
    return Amount(1, topic.partitions or 1)


def quota_limits(policies: Policies) -> Iterator[tuple[str, int]]:
    """Yields the quotas that an entry itself sets, by field."""
    for field in _COUNTED:
        limit = getattr(policies, field)
        if limit is not None:
            yield field, limit


def quotas_at(
    snapshot: Snapshot, mount: Path, above: Sequence[PolicyLevel], node: Node
) -> Iterator[Quota]:
    """Yields the quotas that bind what lies directly in a directory, nearest first.

    ``above`` is what the ancestors above the mount set, outermost first.
    """
    for here in upwards(snapshot.nodes, node):
        for field, limit in quota_limits(here.directory.policies):
            relative = snapshot.path_of(here.entry_id) or ()
            path = Path((*mount.segments, *relative))
            yield Quota(field, str(path), here.entry_id, limit)
    for level in reversed(above):
        for field, limit in quota_limits(level.policies):
            yield Quota(field, level.path, ROOT_ID, limit, above=True)


def outermost_quota_directory(
    snapshot: Snapshot, above: Sequence[PolicyLevel], node: Node
) -> int | None:
    """Returns the outermost directory with a quota that binds what lies in this one; None = none
    does. All that counts for any of them counts for that one.
    """
    if any(any(quota_limits(level.policies)) for level in above):
        return ROOT_ID
    outermost: int | None = None
    for here in upwards(snapshot.nodes, node):
        if any(quota_limits(here.directory.policies)):
            outermost = here.entry_id
    return outermost


def system_directories(node: Node) -> Iterator[tuple[str, Directory]]:
    """A system's directories right below one, which do not count for its quota; by name."""
    for name, container in node.containers.items("__"):
        if not is_system(name):
            break
        if isinstance(container, Directory):
            yield name, container


def _topics(snapshot: Snapshot, directory_id: int) -> int:
    count = snapshot.counts(directory_id).topics
    return count - sum(snapshot.counts(one).topics for one in _systems(snapshot, directory_id))


def _partitions(snapshot: Snapshot, directory_id: int) -> int:
    count = snapshot.partitions(directory_id)
    return count - sum(snapshot.partitions(one) for one in _systems(snapshot, directory_id))


def _systems(snapshot: Snapshot, directory_id: int) -> Iterator[int]:
    node = snapshot.node(directory_id)
    for _, container in () if node is None else system_directories(node):
        yield container.entry_id
