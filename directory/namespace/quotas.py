"""Quotas: the limits of topics and partitions below a directory, and how much of them is used.

The quota of each directory above applies. Quotas inherited from above the mount apply to each
cluster separately. ``check_quota`` refuses a plan that would exceed a quota. Quotas count the
topics of the tree and their recorded partitions; a topic whose number is unknown counts as one
partition. System directories directly below the directory with the quota are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import ROOT_ID, Directory, Policies, Topic
from directory.namespace.keys import ENTRY, INHERITED, directory_range
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import InvalidArgument, QuotaExceeded
from resolver.path import Path, is_system
from resolver.units import plural

__all__ = [
    "NOTHING",
    "NO_AMOUNT",
    "QUOTAS",
    "Amount",
    "Quota",
    "QuotaAdditions",
    "check_quota",
    "check_topic_own_quota",
    "counting_directories",
    "outermost_quota_directory",
    "quota_limits",
    "quotas_at",
    "require_subtree_unchanged",
    "system_directories",
    "topic_amount",
]


class Amount(NamedTuple):
    """Amount of topics and partitions."""

    topics: int = 0
    partitions: int = 0

    def plus(self, other: Amount) -> Amount:
        """Returns the sum."""
        return Amount(self.topics + other.topics, self.partitions + other.partitions)


NO_AMOUNT: Final = Amount()
QUOTAS: Final = ("max_topics", "max_partitions")
"""Policy fields with a quota."""
_COUNTED: Final[Mapping[str, str]] = MappingProxyType(
    dict(zip(QUOTAS, ("topic", "partition"), strict=True))
)


@dataclass(frozen=True, slots=True)
class Quota:
    """Limit for a directory."""

    field: str
    """``max_topics`` or ``max_partitions``."""
    path: str
    """Directory that sets it; may be above the mount."""
    directory_id: int
    """Directory below which it counts; the root directory for a quota from above the mount."""
    limit: int
    above: bool = False
    """True if it is set above the mount."""

    @property
    def limit_text(self) -> str:
        """Limit with its unit: ``1 topic``, ``20 partitions``."""
        return plural(self.limit, _COUNTED[self.field])

    def used(self, snapshot: Snapshot) -> int:
        """Returns the amount used."""
        if self.field == "max_topics":
            return _topics(snapshot, self.directory_id)
        return _partitions(snapshot, self.directory_id)

    def amount_counted(self, amount: Amount) -> int:
        """Returns the part of an amount that this quota counts."""
        return amount.topics if self.field == "max_topics" else amount.partitions


def topic_amount(topic: Topic) -> Amount:
    """Returns the amount of one topic."""
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
    """Yields the quotas that apply directly in a directory, nearest first. ``above`` are the
    policies of the ancestors above the mount, outermost first.
    """
    counting = list(counting_directories(snapshot, node))
    for here in counting:
        for field, limit in quota_limits(here.directory.policies):
            relative = snapshot.path_of(here.entry_id) or ()
            path = Path((*mount.segments, *relative))
            yield Quota(field, str(path), here.entry_id, limit)
    for level in reversed(above if counting[-1].entry_id == ROOT_ID else ()):
        for field, limit in quota_limits(level.policies):
            yield Quota(field, level.path, ROOT_ID, limit, above=True)


def counting_directories(snapshot: Snapshot, node: Node) -> Iterator[Node]:
    """Yields a directory and those above it whose quotas count what is in it, nearest first."""
    is_counted = True
    for here in snapshot.upwards(node):
        if is_counted:
            yield here
        is_counted = not is_system(here.name)


def outermost_quota_directory(
    snapshot: Snapshot, above: Sequence[PolicyLevel], node: Node
) -> int | None:
    """Returns the outermost directory whose quota applies in this one; None = none does. Every
    topic that one of the quotas counts is below that directory.
    """
    if any(any(quota_limits(level.policies)) for level in above):
        return ROOT_ID
    outermost: int | None = None
    for here in snapshot.upwards(node):
        if any(quota_limits(here.directory.policies)):
            outermost = here.entry_id
    return outermost


def system_directories(node: Node) -> Iterator[tuple[str, Directory]]:
    """Yields the system directories directly below one, which its quota does not count; by name."""
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
    node = snapshot.nodes.get(directory_id)
    for _, container in () if node is None else system_directories(node):
        yield container.entry_id


NOTHING: Final[Mapping[int, Amount]] = MappingProxyType({})
_MOST_RANGES: Final = 16
"""Most directories that are guarded one by one; etcd allows 128 comparisons in a transaction."""


def check_quota(
    draft: PlanBuilder,
    node: Node,
    more: Amount,
    *,
    unless: frozenset[int] = frozenset(),
    arriving: Mapping[int, Amount] = NOTHING,
    known: bool = True,
) -> bool:
    """Checks every quota in ``node`` that counts the added amount; returns whether there is one.

    Args:
        unless: directories whose quota counts the added amount already.
        arriving: amounts that the same plan adds, by directory.
        known: False: the number of partitions will be the broker's default.

    Raises:
        QuotaExceeded: names the directory, the field, its limit and the amount used.
        InvalidArgument: partitions are limited, and their number is unknown.
    """
    bound = False
    for quota in quotas_at(draft.snapshot, draft.mount, draft.context.above, node):
        if quota.directory_id in unless or not quota.amount_counted(more):
            continue
        bound = True
        here = arriving.get(quota.directory_id, NO_AMOUNT)
        used = quota.used(draft.snapshot) + quota.amount_counted(here)
        if used + quota.amount_counted(more) > quota.limit:
            raise _exceeded(draft, quota, used, quota.amount_counted(more))
        if quota.field == "max_partitions" and not known:
            raise InvalidArgument(
                f"topic.partitions: not given, and {_where(draft, quota)} allows "
                f"{quota.limit_text} below it and has {used:,}: how many the broker "
                f"would make by default is not known here; say how many (--partitions), or set "
                f"partitions on a directory",
                field="topic.partitions",
                path=quota.path,
                limit=quota.limit,
                used=used,
            )
    if bound:
        _mark(draft, node, guarded=True)
        if draft.snapshot.fact(INHERITED) is not None:
            draft.expect_nothing_newer(INHERITED)
    return bound


def check_topic_own_quota(path: Path, policies: Policies, partitions: int) -> None:
    """Checks a topic's own limit of its partitions.

    Raises:
        QuotaExceeded: names the limit.
    """
    limit = policies.max_partitions
    if limit is not None and partitions > limit:
        raise QuotaExceeded(
            f"{path} allows itself {plural(limit, 'partition')}, not {partitions:,}",
            path=path,
            field="max_partitions",
            limit=limit,
            used=partitions,
        )


def require_subtree_unchanged(draft: PlanBuilder, node: Node) -> None:
    """Adds the guard that nothing was added below this directory since it was counted. If it has
    many directories, nothing may be added anywhere: such a move has to wait for a quiet moment.
    """
    ranges = []
    for here in draft.snapshot.directories_below(node):
        ranges.append(directory_range(here.entry_id))
        if len(ranges) > _MOST_RANGES:
            ranges = [ENTRY]
            break
    for prefix in ranges:
        draft.expect_nothing_newer(prefix)


class QuotaAdditions:
    """Amounts that one plan adds, and the quotas that they exceed: adopted topics are added without
    a check, because Kafka has them.
    """

    def __init__(self, draft: PlanBuilder) -> None:
        self._draft = draft
        self._came: dict[int, Amount] = {}
        self._nodes: dict[int, Node] = {}

    def add(self, node: Node, amount: Amount, unless: frozenset[int] = frozenset()) -> None:
        """Adds an amount to a directory and those above it, until one is in ``unless``."""
        self._nodes[node.entry_id] = node
        for here in counting_directories(self._draft.snapshot, node):
            if here.entry_id in unless:
                return
            self._came[here.entry_id] = self._came.get(here.entry_id, NO_AMOUNT).plus(amount)

    @property
    def by_directory(self) -> Mapping[int, Amount]:
        """Amounts so far by directory."""
        return self._came

    def mark(self) -> None:
        """Bumps the quota versions, so that plans that count meanwhile fail their guard."""
        for node in self._nodes.values():
            _mark(self._draft, node, guarded=False)

    def notes(self) -> Iterable[str]:
        """Yields a sentence for each quota that is exceeded now."""
        draft = self._draft
        over: dict[Quota, str] = {}
        for node in self._nodes.values():
            for quota in quotas_at(draft.snapshot, draft.mount, draft.context.above, node):
                came = quota.amount_counted(self._came.get(quota.directory_id, NO_AMOUNT))
                used = quota.used(draft.snapshot) + came
                if came and used > quota.limit:
                    over[quota] = (
                        f"{_where(draft, quota)} allows {quota.limit_text} below it, "
                        f"{used:,} used with the adopted topics, which exist in Kafka"
                    )
        return over.values()


def _mark(draft: PlanBuilder, node: Node, *, guarded: bool) -> None:
    directory_id = outermost_quota_directory(draft.snapshot, draft.context.above, node)
    if directory_id is not None:
        draft.bump_quota_version(directory_id, guarded=guarded)


def _where(draft: PlanBuilder, quota: Quota) -> str:
    if not quota.above:
        return quota.path
    return f"{quota.path} (of each cluster below it, so of {draft.mount} too)"


def _exceeded(draft: PlanBuilder, quota: Quota, used: int, more: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"quota exceeded: {_where(draft, quota)} allows {quota.limit_text} below "
        f"it, {used:,} used, "
        f"{more:,} requested",
        path=quota.path,
        field=quota.field,
        limit=quota.limit,
        used=used,
    )
