"""What people should know of Kafka's side of the topics at and below a place: what waits, is
contested, was refused, or has no room. Reads records; refuses to ask Kafka.

What is about ACLs says so: ``acls`` is the setting of a topic, and stands before what is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from directory.kafka.acl_drift import acl_state, acl_states_below
from directory.kafka.applying.arming import PARTITIONS
from directory.kafka.applying.desired_configs import Wishing
from directory.kafka.applying.partition_growth import NO_ROOM, Room
from directory.kafka.applying.pushed import PUSHED, attention
from directory.kafka.reconciler_settings import ACLS
from directory.namespace.entry import Provision, Topic
from directory.namespace.policy_checks import directories_below
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import Budget
from resolver.errors import NotReady
from resolver.path import Path

__all__ = ["NOT_ARMED", "attended_below", "attended_of"]

NOT_ARMED: Final = "not-armed"
"""What is said of a wish that will not reach Kafka, for nobody armed it there."""

_STATES: Final[Mapping[bytes, str]] = {
    b'"held":': "needs-approval", b'"contested":': "contested", b'"refused":': "rejected",
}  # fmt: skip
"""What a record says where it has these words; elsewhere they would be escaped."""


def attended_of(
    snapshot: Snapshot, mount: Path, place: tuple[int, str], topic: Topic
) -> Mapping[str, str]:
    """The settings of one topic that there is something to know of, each with what."""
    found = dict(attention(snapshot, topic.entry_id))
    if acls := acl_state(snapshot, topic):
        found[ACLS] = acls
    if PARTITIONS not in found and topic.provision is Provision.ACTIVE:
        wished = Wishing(snapshot).of(place[0], topic)
        try:
            room = Room(snapshot, mount)
        except NotReady:
            return found
        grows = wished is not None and wished.partitions > topic.partitions
        if wished is not None and grows and not room.let(place, topic, wished.partitions):
            found[PARTITIONS] = NO_ROOM
    return found


def attended_below(snapshot: Snapshot, node: Node, budget: Budget) -> Mapping[str, int]:
    """How many topics at or below a directory there is something to know of, by what it is; as many
    as were found until the budget was over.
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


def _marked(snapshot: Snapshot, budget: Budget) -> Mapping[int, tuple[str, ...]]:
    marked: dict[int, tuple[str, ...]] = {}
    for key, value in snapshot.facts(PUSHED):
        if not budget.spend():
            break
        states = tuple(state for word, state in _STATES.items() if word in value)
        if states:
            marked[int(key.removeprefix(PUSHED), 16)] = states
    return marked
