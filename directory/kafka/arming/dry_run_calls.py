"""What a change of the tree would make the reconciler ask of Kafka, where configs are armed.

Goes by what Kafka had at the last look; ``arming.py`` asks it again, and only that plan
arms. Calls that wait already, whatever is changed here, are no part of it, nor those that will
wait. Refuses to ask Kafka anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from directory.kafka.admin_contract import Acl, KafkaCall, Resource
from directory.kafka.applying.acl_diff import (
    AclDiff,
    AclDiffOptions,
    ObservedResource,
    diff_acls,
    ordered_calls,
)
from directory.kafka.applying.config_batch import PartitionQuota
from directory.kafka.applying.config_diff import ObservedConfig, diff_configs
from directory.kafka.applying.desired_acls import DesiredAcls, armed_starts, desired_acls
from directory.kafka.applying.desired_configs import ArmedTopic, ArmedTopics, DesiredConfigs
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    armed_anywhere,
    load_applied_acls,
    load_applied_configs,
)
from directory.kafka.reconciler_settings import ACLS, CONFIGS
from directory.namespace.effective_policies import Shown
from directory.namespace.entry import Directory, Policies, Topic
from directory.namespace.policy_checks import directories_below
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.traversal import LocatedEntry
from resolver.path import Path

__all__ = ["KafkaChangeSide", "predict_acl_calls", "predict_config_calls"]


@dataclass(frozen=True, slots=True)
class KafkaChangeSide:
    """An entry on one side of a change."""

    snapshot: Snapshot
    standing: LocatedEntry
    mount: Path
    above: Sequence[Policies]
    """What the ancestors above the mount set, outermost first."""

    def armed(self) -> ArmedTopics:
        """Returns the armed topics."""
        return ArmedTopics(self.snapshot, self.mount, self.above)


def predict_config_calls(
    before: KafkaChangeSide, after: KafkaChangeSide, budget: TimeBudget, shown: Shown | None = None
) -> Iterator[KafkaCall]:
    """Yields the calls about configs and partitions of the topics at and below an entry that follow
    from its change, topic by topic; with ``shown`` only of those of which it says so. Ends with the
    budget.
    """
    if not armed_anywhere(after.snapshot, CONFIGS):
        return
    room = PartitionQuota(after.snapshot, after.mount)
    armed_before, armed_after = before.armed(), after.armed()
    for place in _places(after, budget):
        is_shown = shown is None or shown(*place)
        now = armed_after.at_place(place) if is_shown else None
        if now is None:
            continue
        is_entry = isinstance(after.standing.entry, Topic)
        was = armed_before.at_place(_place(before.standing) if is_entry else place)
        known = set(_calls(before.snapshot, was))
        news = (call for call in _calls(after.snapshot, now) if call not in known)
        yield from room.allowed_calls(now, news)


def _calls(snapshot: Snapshot, subject: ArmedTopic | None) -> tuple[KafkaCall, ...]:
    if subject is None:
        return ()
    topic = subject.topic
    try:
        pushed = load_applied_configs(snapshot, topic.entry_id)
    except ValueError:
        return ()  # nothing may be done to it
    return diff_configs(
        subject, ObservedConfig(topic.observed_config, topic.partitions), pushed
    ).calls


def _places(seen: KafkaChangeSide, budget: TimeBudget) -> Iterator[tuple[int, str]]:
    """Yields where there may be an armed topic."""
    entry = seen.standing.entry
    if isinstance(entry, Topic):
        yield _place(seen.standing)
    top = seen.snapshot.node(entry.entry_id) if isinstance(entry, Directory) else None
    desired = DesiredConfigs(seen.snapshot, above=seen.above)
    for node in () if top is None else directories_below(seen.snapshot, top):
        if not budget.spend():
            return
        yield from _armed_in(seen.snapshot, node, desired, budget)


def _armed_in(
    snapshot: Snapshot, node: Node, desired: DesiredConfigs, budget: TimeBudget
) -> Iterator[tuple[int, str]]:
    armed = desired.is_armed(node.entry_id)
    for name, record in node.topics.items():
        if not budget.spend():
            return
        if snapshot.codec.policies(record).manage.get(CONFIGS, armed):
            yield node.entry_id, name


def _place(standing: LocatedEntry) -> tuple[int, str]:
    return standing.parent_id, standing.name


_MOST_TOPICS: Final = 20_000
"""In a cluster with more of them it would take too long to say."""


def predict_acl_calls(
    before: Snapshot,
    after: Snapshot,
    mount: Path,
    budget: TimeBudget,
    *,
    expired: bool,
    shown: Callable[[Path], bool] = lambda _: True,
) -> Iterator[KafkaCall]:
    """Yields the calls that follow from a change, in the order in which they are made: denies come
    before allows, and go after them. Only of what is desired at a path for which ``shown`` is true.
    """
    if not armed_anywhere(after, ACLS):
        return
    if before.topic_count > _MOST_TOPICS or not budget.spend(2 * before.topic_count):
        budget.is_over = True
        return
    was = desired_acls(before, mount, armed_starts(before), expired=expired).by_resource
    now = desired_acls(after, mount, armed_starts(after), expired=expired).by_resource
    changes: list[tuple[Resource, set[Acl], set[Acl]]] = []
    for resource in sorted(was.keys() | now.keys()):
        old, new = was.get(resource), now.get(resource)
        place = new or old
        if place is None or not shown(place.path):
            continue
        if all(one.known for one in (old, new) if one is not None):
            first, then = (_acl_diff(before, resource, one) for one in (old, new))
            add, remove = set(then.add) - set(first.add), set(then.remove) - set(first.remove)
            changes.append((resource, add, remove))
    yield from ordered_calls(changes)


def _acl_diff(snapshot: Snapshot, resource: Resource, desired: DesiredAcls | None) -> AclDiff:
    """Returns what follows for a resource that Kafka has as it was last asked to have it."""
    try:
        kept = load_applied_acls(snapshot, resource)
    except ValueError:  # nothing may be done to it
        return AclDiff(resource, AppliedRecord(), AppliedRecord())
    found = ObservedResource(frozenset(acl for acl, one in kept.settings.items() if one.done))
    return diff_acls(resource, desired, found, kept, AclDiffOptions())
