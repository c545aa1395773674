"""Whether a request may change an aspect of Kafka: the server's ceiling, and what policies say.

For what people ask for by path, at that moment: making and deleting topics. A ``manage`` of false
forbids it, from above the mount too; that it is unset does not (decision 0030).
"""

from __future__ import annotations

from directory.federation.parent_state import inherited_origins
from directory.kafka.inherited_basis import why_inherited_missing
from directory.namespace.effective_policies import PolicyLevel, path_levels
from directory.namespace.entry import Kind
from directory.namespace.policy_checks import directories_below
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from resolver.errors import AboveCeiling, NotReady
from resolver.path import Path

__all__ = ["check_kafka_removal_allowed", "is_kafka_change_allowed", "nearest_manage_false"]


def is_kafka_change_allowed(
    cluster: Cluster, snapshot: Snapshot, aspect: str, path: Path, kind: Kind | None = None
) -> bool:
    """True if kdir may change this in Kafka for the entry of a kind at a path; None: the topic,
    where there is one.
    """
    kafka, mount = cluster.config.kafka, cluster.mount_at(snapshot)
    if kafka is None or aspect not in kafka.ceiling or not mount.is_prefix_of(path):
        return False
    return not nearest_manage_false(snapshot, mount, path, aspect, kind)


def check_kafka_removal_allowed(
    cluster: Cluster, snapshot: Snapshot, path: Path, kind: Kind | None, *, recursive: bool
) -> None:
    """Topics are not deleted in Kafka while what is inherited is not known, nor along with others
    from a directory further down that forbids it.

    Raises:
        NotReady, AboveCeiling
    """
    if not is_kafka_change_allowed(cluster, snapshot, "delete", path, kind):
        return  # Kafka's topics are left alone
    if message := why_inherited_missing(snapshot, has_parent=bool(cluster.config.parent)):
        raise NotReady(message)
    mount = cluster.mount_at(snapshot)
    if not recursive or _is_topic(snapshot, path.below(mount), kind):
        return
    directory_id = snapshot.find_directory(path.below(mount))
    node = None if directory_id is None else snapshot.node(directory_id)
    if node is None:
        return
    for one in directories_below(snapshot, node):
        if one.directory.policies.manage.get("delete") is False:
            below = mount.join(snapshot.path_of(one.entry_id) or ())
            raise AboveCeiling(
                f"{below} says manage.delete=false: its topics are not deleted in Kafka; remove or "
                f"move it first, by itself",
                path=below,
            )


def _is_topic(snapshot: Snapshot, relative: tuple[str, ...], kind: Kind | None) -> bool:
    if kind is not None or not relative:
        return kind is Kind.TOPIC
    parent_id = snapshot.find_directory(relative[:-1])
    return parent_id is not None and snapshot.topic(parent_id, relative[-1]) is not None


def nearest_manage_false(
    snapshot: Snapshot, mount: Path, path: Path, aspect: str, kind: Kind | None = None
) -> str:
    """Returns the nearest entry at or above a path that speaks of the aspect, where it says no;
    else nothing. What a directory says is no word about the topic beside it, nor the other way
    round.
    """
    relative = path.below(mount)
    levels = inherited_origins(snapshot)
    is_topic = _is_topic(snapshot, relative, kind)
    for length in range(len(relative) - is_topic, -1, -1):
        directory_id = snapshot.find_directory(relative[:length])
        if directory_id is not None:
            levels += path_levels(snapshot, mount, directory_id)
            break
    parent_id = snapshot.find_directory(relative[:-1]) if is_topic and relative else None
    topic = None if parent_id is None else snapshot.topic(parent_id, relative[-1])
    if topic is not None:
        levels.append(PolicyLevel(str(path), topic.policies))
    for level in reversed(levels):
        reported = level.policies.manage.get(aspect)
        if reported is not None:
            return "" if reported else level.path
    return ""
