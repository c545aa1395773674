"""How much a directory holds, as far as one caller may know; refuses to look at each entry.

Numbers come from what a snapshot keeps, and are put right where grants say otherwise: it costs by
the grants that are about the caller, not by what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from directory.api.caller_view import CallerView, Seen
from directory.namespace.entry import Directory
from directory.namespace.quotas import Amount, Quota, system_directories, topic_amount

if TYPE_CHECKING:
    from directory.namespace.effective_policies import Shown
    from directory.namespace.snapshot import Node, Snapshot

__all__ = ["count_visible_below", "seen_use", "visible_topics"]


def count_visible_below(view: CallerView, relative: tuple[str, ...], node: Node) -> Seen:
    """Of the topics and directories below a directory, at any depth."""
    snapshot = view.snapshot
    if view.can_describe_all_below(relative):
        return _all_below(snapshot, node)
    within = view.directory_view(relative)
    usual = within.decision.allowed
    topics, directories, partitions = _all_below(snapshot, node) if usual else Seen()
    for name, is_topic, allowed in within.entries_with_grants():
        if is_topic:
            topic = snapshot.topic(node.entry_id, name) if allowed != usual else None
            if topic is not None:
                counted = topic_amount(topic)
                topics += counted.topics if allowed else -counted.topics
                partitions += counted.partitions if allowed else -counted.partitions
            continue
        container = node.containers.get(name)
        below = snapshot.node(container.entry_id) if container is not None else None
        if not isinstance(container, Directory) or below is None:
            continue
        whole = _all_below(snapshot, below) if usual else Seen()
        part = count_visible_below(view, (*relative, name), below)
        topics += part.topics - whole.topics
        partitions += part.partitions - whole.partitions
        directories += part.containers + allowed - whole.containers - usual
    return Seen(topics, directories, partitions)


def _all_below(snapshot: Snapshot, node: Node) -> Seen:
    counts = snapshot.counts(node.entry_id)
    return Seen(counts.topics, counts.directories, snapshot.partitions(node.entry_id))


def seen_use(view: CallerView, quota: Quota) -> int:
    """Returns how much of a quota is used by what the caller sees."""
    snapshot = view.snapshot
    node = snapshot.node(quota.directory_id)
    relative = snapshot.path_of(quota.directory_id)
    if (
        view.is_unrestricted
        or node is None
        or relative is None
        or view.can_describe_all_below(relative)
    ):
        return quota.used(snapshot)
    seen = count_visible_below(view, relative, node)
    used = Amount(seen.topics, seen.partitions)
    for name, system in system_directories(node):
        part = count_visible_below(view, (*relative, name), snapshot.nodes[system.entry_id])
        used = used.plus(Amount(-part.topics, -part.partitions))
    return quota.amount_counted(used)


def visible_topics(view: CallerView, relative: tuple[str, ...]) -> Shown | None:
    """Returns which topics below a directory may be told of; None = all."""
    if view.can_describe_all_below(relative):
        return None
    paths: dict[int, tuple[str, ...] | None] = {}

    def shown(directory_id: int, name: str) -> bool:
        if directory_id not in paths:
            paths[directory_id] = view.snapshot.path_of(directory_id)
        above = paths[directory_id]
        return above is not None and view.can_describe((*above, name), is_topic=True)

    return shown
