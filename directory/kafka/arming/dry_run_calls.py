"""The calls to Kafka that would follow from a change of the tree, where configs or ACLs are armed.

Computed from the records of Kafka's state; only ``arming.py`` reads Kafka, and only its plans arm.
Calls that are due without the change are left out, as are those that will wait for approval.
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
from directory.kafka.applying.config_diff import ObservedConfig, diff_configs
from directory.kafka.applying.desired_acls import DesiredAcls, armed_starts, desired_acls
from directory.kafka.applying.desired_configs import (
    ArmedTopic,
    ArmedTopics,
    DesiredConfigs,
    PartitionQuota,
)
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    armed_anywhere,
    load_applied_acls,
    load_applied_configs,
)
from directory.kafka.kafka_context import ACLS, CONFIGS
from directory.namespace.effective_policies import Shown
from directory.namespace.entry import Directory, Kind, Policies, Topic
from directory.namespace.snapshot import Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.traversal import LocatedEntry
from resolver.path import Path

__all__ = ["KafkaChangeSide", "PredictedTopic", "is_armed", "predict_acl_calls", "predict_topics"]


@dataclass(frozen=True, slots=True)
class KafkaChangeSide:
    """An entry on one side of a change."""

    snapshot: Snapshot
    standing: LocatedEntry
    mount: Path
    above: Sequence[Policies]
    """Policies of the ancestors above the mount, outermost first."""

    def armed(self) -> ArmedTopics:
        """Returns the armed topics."""
        return ArmedTopics(self.snapshot, self.mount, self.above)


@dataclass(frozen=True, slots=True)
class PredictedTopic:
    """Armed topic at or below a changed entry."""

    calls: tuple[KafkaCall, ...]
    """Calls about its configs and partitions that follow from the change."""
    is_held: bool
    """Part of the change waits for approval, since it may delete data or cannot be undone."""


def predict_topics(
    before: KafkaChangeSide, after: KafkaChangeSide, budget: TimeBudget, shown: Shown | None = None
) -> Iterator[PredictedTopic]:
    """Yields the effects of a change on each armed topic at and below its entry; with ``shown``,
    only topics for which it returns True. Ends with the budget.
    """
    if not armed_anywhere(after.snapshot, CONFIGS):
        return
    room = PartitionQuota(after.snapshot, after.mount)
    armed_before, armed_after = before.armed(), after.armed()
    entry, is_topic = after.standing.entry, isinstance(after.standing.entry, Topic)
    for now in (
        armed_after.at_places([_place(after.standing)])
        if is_topic
        else armed_after.below(entry.entry_id, budget)
    ):
        if shown is not None and not shown(*now.place, Kind.TOPIC):
            continue
        was = armed_before.at_place(_place(before.standing) if is_topic else now.place)
        known, kept_back = _diff(before.snapshot, was)
        calls, held = _diff(after.snapshot, now)
        news = (call for call in calls if call not in known)
        yield PredictedTopic(tuple(room.allowed_calls(now, news)), bool(held - kept_back))


def _diff(
    snapshot: Snapshot, subject: ArmedTopic | None
) -> tuple[tuple[KafkaCall, ...], frozenset[tuple[str, str | None]]]:
    """Returns the calls for a topic, and the settings that wait for approval, with their values."""
    if subject is None:
        return (), frozenset()
    topic = subject.topic
    try:
        pushed = load_applied_configs(snapshot, topic.entry_id)
    except ValueError:
        return (), frozenset()  # nothing may be done to it
    found = diff_configs(subject, ObservedConfig(topic.observed_config, topic.partitions), pushed)
    held = ((key, subject.configs.get(key, str(subject.partitions))) for key in found.asked.held)
    return found.calls, frozenset(held)


def is_armed(seen: KafkaChangeSide) -> bool:
    """True if configs are armed for topics directly in a directory, even if it has none."""
    entry = seen.standing.entry
    if not (isinstance(entry, Directory) and armed_anywhere(seen.snapshot, CONFIGS)):
        return False
    return DesiredConfigs(seen.snapshot, above=seen.above).is_armed(entry.entry_id)


def _place(standing: LocatedEntry) -> tuple[int, str]:
    return standing.parent_id, standing.name


_MOST_TOPICS: Final = 20_000
"""Most topics of a cluster for which the calls are computed: more would take too long."""


def predict_acl_calls(
    before: Snapshot,
    after: Snapshot,
    mount: Path,
    budget: TimeBudget,
    *,
    expired: bool,
    shown: Callable[[Resource, Path], bool] = lambda *_: True,
) -> Iterator[KafkaCall]:
    """Yields the calls that follow from a change, in the order in which they are made: denies come
    before allows, and go after them. Only of resources for which ``shown`` is true, with the path
    at which they are desired.
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
        if place is None or not shown(resource, place.path):
            continue
        if all(one.known for one in (old, new) if one is not None):
            first, then = (_acl_diff(before, resource, one) for one in (old, new))
            add, remove = set(then.add) - set(first.add), set(then.remove) - set(first.remove)
            changes.append((resource, add, remove))
    yield from ordered_calls(changes)


def _acl_diff(snapshot: Snapshot, resource: Resource, desired: DesiredAcls | None) -> AclDiff:
    """Returns the diff of a resource, as if Kafka had the ACLs that kdir has on record as done."""
    try:
        kept = load_applied_acls(snapshot, resource)
    except ValueError:  # nothing may be done to it
        return AclDiff(resource, AppliedRecord(), AppliedRecord())
    found = ObservedResource(frozenset(acl for acl, one in kept.settings.items() if one.done))
    return diff_acls(resource, desired, found, kept, AclDiffOptions())
