"""What is said beside one entry: quotas that bind there, what is to be known of its Kafka side."""

from __future__ import annotations

from kdir.v1 import directory_pb2, policies_pb2

from directory.api.caller_view import Sight
from directory.api.counting import seen_use
from directory.api.rpc.call_context import Call
from directory.federation import facts
from directory.kafka.attended import attended_below, attended_of
from directory.namespace.entry import Topic
from directory.namespace.policies import Level
from directory.namespace.quotas import quotas_at
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import Budget
from directory.namespace.traversal import follow
from directory.server.cluster import Cluster
from resolver.errors import NotReady
from resolver.path import Path

__all__ = ["above_of", "fill_beside"]

_SHARE: float = 0.25
"""Of the caller's time, for what is only said beside the answer."""


def above_of(snapshot: Snapshot) -> list[Level]:
    """What is set above the mount, as far as it can be read."""
    try:
        return facts.inherited_origins(snapshot)
    except NotReady:
        return []


def fill_beside(
    response: directory_pb2.GetEntryResponse,
    cluster: Cluster,
    snapshot: Snapshot,
    path: Path,
    call: Call,
    sight: Sight,
) -> None:
    """Adds to the answer of one entry; nothing to that of links and mounts, and no numbers of what
    is hidden from the caller.
    """
    mount = sight.access.mount
    relative = path.below(mount)
    if response.entry.HasField("topic"):
        way = follow(snapshot, relative[:-1])
        topic = snapshot.topic(way.node.entry_id, relative[-1])
        if topic is None or way.depth < len(relative) - 1:
            return
        _quotas(response, sight, way.node)
        _of_topic(response, mount, snapshot, (way.node.entry_id, relative[-1]), topic)
    elif response.entry.HasField("directory"):
        node = follow(snapshot, relative).node
        _quotas(response, sight, node)
        if cluster.reconciler is not None and sight.sees_all_in(relative):
            least = call.seconds_left() * (1 - _SHARE)
            budget = Budget(lambda: call.seconds_left() > least)
            for state, topics in attended_below(snapshot, node, budget).items():
                response.attention.add(state=state, topics=topics)


def _quotas(response: directory_pb2.GetEntryResponse, sight: Sight, node: Node) -> None:
    snapshot = sight.snapshot
    response.quotas.extend(
        policies_pb2.QuotaUse(
            field=one.field, set_at=one.path, limit=one.limit, used=seen_use(sight, one)
        )
        for one in quotas_at(snapshot, sight.access.mount, above_of(snapshot), node)
    )


def _of_topic(
    response: directory_pb2.GetEntryResponse,
    mount: Path,
    snapshot: Snapshot,
    place: tuple[int, str],
    topic: Topic,
) -> None:
    found = attended_of(snapshot, mount, place, topic)
    for field, state in sorted(found.items()):
        response.attention.add(state=state, field=field)
