"""Whether the quotas above leave room for what a plan brings; refuses to count anything itself.

A plan that brings topics or partitions below a quota writes the *mark* of the outermost directory
with one, and guards that nobody else has written it since the snapshot: of two that counted the
same, one loses the race and counts again. What Kafka has already is never refused; it writes the
mark all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from directory.namespace.entry import Policies
from directory.namespace.keys import ENTRY, INHERITED, directory_range
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.policy_checks import directories_below
from directory.namespace.quotas import (
    NO_AMOUNT,
    Amount,
    Quota,
    outermost_quota_directory,
    quotas_at,
)
from directory.namespace.snapshot import Node
from directory.namespace.tree_nodes import upwards
from resolver.counts import plural
from resolver.errors import InvalidArgument, QuotaExceeded
from resolver.path import Path

__all__ = [
    "NOTHING",
    "QuotaAdditions",
    "check_quota",
    "check_topic_own_quota",
    "require_subtree_unchanged",
]

NOTHING: Final[Mapping[int, Amount]] = MappingProxyType({})
_MOST_RANGES: Final = 16
"""So many directories are guarded one by one; etcd takes 128 comparisons a transaction."""


def check_quota(
    draft: PlanBuilder,
    node: Node,
    more: Amount,
    *,
    unless: frozenset[int] = frozenset(),
    arriving: Mapping[int, Amount] = NOTHING,
    known: bool = True,
) -> bool:
    """Returns every quota that binds what lies in ``node`` must have room for more; whether there
    are any.

    Args:
        unless: directories whose quota counts these already.
        arriving: what else the same plan brings, by the directories that it comes below.
        known: whether the number of partitions is; else it is the broker's default.

    Raises:
        QuotaExceeded: names the directory, the field, its limit and what is used.
        InvalidArgument: partitions count, and their number is not known.
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
    """A topic's own word on its partitions binds, too.

    Raises:
        QuotaExceeded
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
    """Guard: nothing came below this directory since it was counted. Where it is large, nothing
    came anywhere: such a move has to wait for a quiet moment.
    """
    ranges = []
    for here in directories_below(draft.snapshot, node):
        ranges.append(directory_range(here.entry_id))
        if len(ranges) > _MOST_RANGES:
            ranges = [ENTRY]
            break
    for prefix in ranges:
        draft.expect_nothing_newer(prefix)


class QuotaAdditions:
    """What comes in one plan whatever the quotas say, for Kafka has it; tells what is over."""

    def __init__(self, draft: PlanBuilder) -> None:
        self._draft = draft
        self._came: dict[int, Amount] = {}
        self._nodes: dict[int, Node] = {}

    def add(self, node: Node, amount: Amount, unless: frozenset[int] = frozenset()) -> None:
        """So much comes below a directory that is there already, and was not below ``unless``."""
        self._nodes[node.entry_id] = node
        for here in upwards(self._draft.snapshot.nodes, node):
            if here.entry_id in unless:
                return
            self._came[here.entry_id] = self._came.get(here.entry_id, NO_AMOUNT).plus(amount)

    @property
    def by_directory(self) -> Mapping[int, Amount]:
        """What came below each directory so far."""
        return self._came

    def mark(self) -> None:
        """Who counts meanwhile is to notice."""
        for node in self._nodes.values():
            _mark(self._draft, node, guarded=False)

    def notes(self) -> Iterable[str]:
        """A sentence for each quota that is exceeded now."""
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
