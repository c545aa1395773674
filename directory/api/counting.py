"""How much a directory holds, as far as one caller may know; refuses to look at each entry.

Numbers come from what a snapshot keeps, and are put right where grants say otherwise: it costs by
the grants that are about the caller, not by what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from directory.api.caller_view import Seen, Sight
from directory.namespace.entry import Directory
from directory.namespace.quotas import Amount, Quota, counts_of, system_directories

if TYPE_CHECKING:
    from directory.namespace.inheriting import Shown
    from directory.namespace.snapshot import Node, Snapshot

__all__ = ["seen_below", "seen_use", "shown_topics"]


def seen_below(sight: Sight, relative: tuple[str, ...], node: Node) -> Seen:
    """Of the topics and directories below a directory, at any depth."""
    snapshot = sight.snapshot
    if sight.sees_all_in(relative):
        return _all_below(snapshot, node)
    within = sight.within(relative)
    usual = within.decision.allowed
    topics, directories, partitions = _all_below(snapshot, node) if usual else Seen()
    for name, is_topic, allowed in within.others():
        if is_topic:
            topic = snapshot.topic(node.entry_id, name) if allowed != usual else None
            if topic is not None:
                counted = counts_of(topic)
                topics += counted.topics if allowed else -counted.topics
                partitions += counted.partitions if allowed else -counted.partitions
            continue
        container = node.containers.get(name)
        below = snapshot.node(container.entry_id) if container is not None else None
        if not isinstance(container, Directory) or below is None:
            continue
        whole = _all_below(snapshot, below) if usual else Seen()
        part = seen_below(sight, (*relative, name), below)
        topics += part.topics - whole.topics
        partitions += part.partitions - whole.partitions
        directories += part.containers + allowed - whole.containers - usual
    return Seen(topics, directories, partitions)


def _all_below(snapshot: Snapshot, node: Node) -> Seen:
    counts = snapshot.counts(node.entry_id)
    return Seen(counts.topics, counts.directories, snapshot.partitions(node.entry_id))


def seen_use(sight: Sight, quota: Quota) -> int:
    """How much of a quota is used by what the caller sees."""
    snapshot = sight.snapshot
    node = snapshot.node(quota.directory_id)
    relative = snapshot.path_of(quota.directory_id)
    if sight.sees_all or node is None or relative is None or sight.sees_all_in(relative):
        return quota.used(snapshot)
    seen = seen_below(sight, relative, node)
    used = Amount(seen.topics, seen.partitions)
    for name, system in system_directories(node):
        part = seen_below(sight, (*relative, name), snapshot.nodes[system.entry_id])
        used = used.plus(Amount(-part.topics, -part.partitions))
    return quota.of(used)


def shown_topics(sight: Sight, relative: tuple[str, ...]) -> Shown | None:
    """Which topics below a directory may be told of; None = all."""
    if sight.sees_all_in(relative):
        return None
    paths: dict[int, tuple[str, ...] | None] = {}

    def shown(directory_id: int, name: str) -> bool:
        if directory_id not in paths:
            paths[directory_id] = sight.snapshot.path_of(directory_id)
        above = paths[directory_id]
        return above is not None and sight.sees((*above, name), is_topic=True)

    return shown
