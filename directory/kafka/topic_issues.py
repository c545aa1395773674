"""What people should know of Kafka's side of the topics at and below a place: what waits, is
contested, was refused, or has no room. Reads records; refuses to ask Kafka.

What is about ACLs says so: ``acls`` is the setting of a topic, and stands before what is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from directory.kafka.acl_drift import acl_state, acl_states_below
from directory.kafka.applying.config_diff import PARTITIONS
from directory.kafka.applying.desired_configs import DesiredConfigs
from directory.kafka.applying.last_applied_configs import PUSHED, config_issues
from directory.kafka.applying.partition_growth import NO_ROOM, PartitionQuota
from directory.kafka.reconciler_settings import ACLS
from directory.namespace.entry import Provision, Topic
from directory.namespace.policy_checks import directories_below
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from resolver.errors import NotReady
from resolver.path import Path

__all__ = ["NOT_ARMED", "count_issues_below", "topic_issues"]

NOT_ARMED: Final = "not-armed"
"""What is said of a wish that will not reach Kafka, for nobody armed it there."""

_STATES: Final[Mapping[bytes, str]] = {
    b'"held":': "needs-approval", b'"contested":': "contested", b'"refused":': "rejected",
}  # fmt: skip
"""What a record says where it has these words; elsewhere they would be escaped."""


def topic_issues(
    snapshot: Snapshot, mount: Path, place: tuple[int, str], topic: Topic
) -> Mapping[str, str]:
    """Returns the settings of one topic that there is something to know of, each with what."""
    found = dict(config_issues(snapshot, topic.entry_id))
    if acls := acl_state(snapshot, topic):
        found[ACLS] = acls
    if PARTITIONS not in found and topic.provision is Provision.ACTIVE:
        desired_config = DesiredConfigs(snapshot).for_topic(place[0], topic)
        try:
            room = PartitionQuota(snapshot, mount)
        except NotReady:
            return found
        grows = desired_config is not None and desired_config.partitions > topic.partitions
        if (
            desired_config is not None
            and grows
            and not room.try_reserve(place, topic, desired_config.partitions)
        ):
            found[PARTITIONS] = NO_ROOM
    return found


def count_issues_below(snapshot: Snapshot, node: Node, budget: TimeBudget) -> Mapping[str, int]:
    """Returns how many topics at or below a directory there is something to know of, by what it is;
    as many as were found until the budget was over.
    """
    marked = _marked(snapshot, budget)
    way = snapshot.path_of(node.entry_id) or ()
    found = Counter(f"{ACLS} {state}" for state in acl_states_below(snapshot, way))
    if not marked:
        return dict(sorted(found.items()))
    entry_id = snapshot.codec.entry_id
    for here in directories_below(snapshot, node):
        if not budget.spend(len(here.topics) or 1):
            break
        for record in here.topics.values():
            found.update(marked.get(entry_id(record), ()))
    return dict(sorted(found.items()))


def _marked(snapshot: Snapshot, budget: TimeBudget) -> Mapping[int, tuple[str, ...]]:
    marked: dict[int, tuple[str, ...]] = {}
    for key, value in snapshot.facts(PUSHED):
        if not budget.spend():
            break
        states = tuple(state for text, state in _STATES.items() if text in value)
        if states:
            marked[int(key.removeprefix(PUSHED), 16)] = states
    return marked
