"""What is said beside one entry: quotas that bind there, what is to be known of its Kafka side."""

from __future__ import annotations

from kdir.v1 import directory_pb2, policies_pb2

from directory.api.rpc.call_context import Call
from directory.api.visible_tree import EntryAt, OpenTree
from directory.federation import parent_state
from directory.kafka.drift import count_issues_below, topic_issues
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.lookup import DirectoryAt, TopicAt
from directory.namespace.quotas import quotas_at
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.server.cluster import Cluster
from resolver.errors import NotReady

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
    tree: OpenTree,
    found: EntryAt,
    call: Call,
) -> None:
    """Adds to the answer of one entry; nothing to that of links and mounts, and no numbers of what
    is hidden from the caller.
    """
    snapshot = tree.snapshot
    match found:
        case TopicAt(relative=relative, parent_id=parent_id):
            topic = snapshot.topic(parent_id, relative[-1])
            if topic is None:
                return
            _quotas(response, tree, snapshot.nodes[parent_id])
            issues = topic_issues(snapshot, tree.mount, (parent_id, relative[-1]), topic)
            for field, state in sorted(issues.items()):
                response.topic_issues.add(state=state, field=field)
        case DirectoryAt(relative=relative, node=node):
            _quotas(response, tree, node)
            if cluster.reconciler is not None and tree.can_describe_all_below(relative):
                least = call.seconds_left() * (1 - _SHARE)
                budget = TimeBudget(lambda: call.seconds_left() > least)
                for state, topics in count_issues_below(snapshot, node, budget).items():
                    response.topic_issues.add(state=state, topics=topics)
        case _:
            pass


def _quotas(response: directory_pb2.GetEntryResponse, tree: OpenTree, node: Node) -> None:
    response.quotas.extend(
        policies_pb2.QuotaUse(
            field=one.field, source_path=one.path, limit=one.limit, used=tree.quota_use(one)
        )
        for one in quotas_at(tree.snapshot, tree.mount, policies_above_mount(tree.snapshot), node)
    )
