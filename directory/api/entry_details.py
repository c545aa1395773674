"""What is said beside one entry: quotas that bind there, what is to be known of its Kafka side."""

from __future__ import annotations

from kdir.v1 import directory_pb2, policies_pb2

from directory.api.caller_view import CallerView
from directory.api.rpc.call_context import Call
from directory.api.visible_counts import seen_use
from directory.federation import parent_state
from directory.kafka.drift import count_issues_below, topic_issues
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import Topic
from directory.namespace.quotas import quotas_at
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.traversal import traverse
from directory.server.cluster import Cluster
from resolver.errors import NotReady
from resolver.path import Path

__all__ = ["fill_entry_details", "policies_above_mount"]

_SHARE: float = 0.25
"""Of the caller's time, for what is only said beside the answer."""


def policies_above_mount(snapshot: Snapshot) -> list[PolicyLevel]:
    """Returns what is set above the mount, as far as it can be read."""
    try:
        return parent_state.inherited_origins(snapshot)
    except NotReady:
        return []


def fill_entry_details(
    response: directory_pb2.GetEntryResponse,
    cluster: Cluster,
    snapshot: Snapshot,
    path: Path,
    call: Call,
    view: CallerView,
) -> None:
    """Adds to the answer of one entry; nothing to that of links and mounts, and no numbers of what
    is hidden from the caller.
    """
    mount = view.access.mount
    relative = path.below(mount)
    if response.entry.HasField("topic"):
        way = traverse(snapshot, relative[:-1])
        topic = snapshot.topic(way.node.entry_id, relative[-1])
        if topic is None or way.depth < len(relative) - 1:
            return
        _quotas(response, view, way.node)
        _of_topic(response, mount, snapshot, (way.node.entry_id, relative[-1]), topic)
    elif response.entry.HasField("directory"):
        node = traverse(snapshot, relative).node
        _quotas(response, view, node)
        if cluster.reconciler is not None and view.can_describe_all_below(relative):
            least = call.seconds_left() * (1 - _SHARE)
            budget = TimeBudget(lambda: call.seconds_left() > least)
            for state, topics in count_issues_below(snapshot, node, budget).items():
                response.topic_issues.add(state=state, topics=topics)


def _quotas(response: directory_pb2.GetEntryResponse, view: CallerView, node: Node) -> None:
    snapshot = view.snapshot
    response.quotas.extend(
        policies_pb2.QuotaUse(
            field=one.field, source_path=one.path, limit=one.limit, used=seen_use(view, one)
        )
        for one in quotas_at(snapshot, view.access.mount, policies_above_mount(snapshot), node)
    )


def _of_topic(
    response: directory_pb2.GetEntryResponse,
    mount: Path,
    snapshot: Snapshot,
    place: tuple[int, str],
    topic: Topic,
) -> None:
    found = topic_issues(snapshot, mount, place, topic)
    for field, state in sorted(found.items()):
        response.topic_issues.add(state=state, field=field)
