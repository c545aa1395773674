"""Plans of creating entries: directories, topics, links and mounts. Only ``CreateDirectory``
creates directories (KIP-37).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from directory.namespace import physical_names
from directory.namespace.bounds import check_mount
from directory.namespace.command import (
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    ObservedTopic,
    Plan,
)
from directory.namespace.entry import (
    NO_POLICIES,
    Directory,
    Entry,
    Kind,
    Link,
    Mount,
    Provision,
    Topic,
)
from directory.namespace.keys import ENTRY, mounted_key, parse_entry_key, pushed_key
from directory.namespace.mounted import (
    claim_of,
    is_mount_unreadable,
    mounts_with_paths,
    path_text_below,
)
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.protected_topics import refuse_protected
from directory.namespace.quotas import (
    Amount,
    QuotaAdditions,
    check_quota,
    check_topic_own_quota,
    topic_amount,
)
from directory.namespace.snapshot import Node
from directory.namespace.traversal import (
    describe_kind,
    entry_path,
    raise_not_reachable,
    relative_to_mount,
    require_directory,
    traverse,
)
from directory.namespace.updatable_fields import check_policies, check_targets
from resolver.errors import (
    AlreadyExists,
    InvalidArgument,
    MountLoop,
    MountOverlaps,
    MountShadows,
    PhysicalNameTaken,
)
from resolver.path import Path, is_system
from resolver.units import count

__all__ = [
    "check_name_free",
    "check_names",
    "create_directory",
    "create_link",
    "create_mount",
    "create_topic",
]

_REMOVED_TOPIC: Final = "a topic that is being removed"

_SHOWN_PATHS = 5
_MOST_PARTITIONS = 2**31 - 1
_MOST_REPLICAS = 2**15 - 1
TAKEN_OVER = frozenset({Provision.FAILED, Provision.REPLACED})
"""States of an existing entry in which an operator's adoption gives it the Kafka topic
of its name.
"""


def create_directory(draft: PlanBuilder, command: CreateDirectory) -> Plan:
    """Plans mkdir and mkdir -p."""
    relative = relative_to_mount(draft.mount, command.path)
    way = traverse(draft.snapshot, relative)
    if way.depth == len(relative):
        if command.make_parents:
            return draft.finish(way.node.directory, command.path)
        raise _exists(command.path, way.node.directory)
    if way.stopped_by is not None and way.depth == len(relative) - 1:
        raise _exists(command.path, way.stopped_by)
    if way.stopped_by is not None or (way.depth < len(relative) - 1 and not command.make_parents):
        raise_not_reachable(way, draft.mount, relative[:-1], relative[-1:])
    check_names(command.path, relative)
    check_policies(command.policies, draft.context.bounds)
    policies = draft.stamped_policies(command.policies)
    draft.require_writable(way.node)
    parent_id = way.node.entry_id
    made: Directory | None = None
    for depth in range(way.depth, len(relative)):
        last = depth == len(relative) - 1
        made = Directory(
            entry_id=draft.fresh_id(),
            changed_at_ms=draft.context.now_ms,
            changed_by=draft.context.principal,
            policies=policies if last else NO_POLICIES,
            closed=command.closed and last,
        )
        path = draft.mount.join(relative[: depth + 1])
        draft.insert_entry(parent_id, relative[depth], made, path, parent_is_new=depth > way.depth)
        parent_id = made.entry_id
    return draft.finish(made, command.path)


def create_topic(draft: PlanBuilder, command: CreateTopic) -> Plan:
    """Plans a topic: its entry with the desired state; the reconciler creates Kafka's
    topic later.
    """
    relative, parent = _place(draft, command.path)
    name = relative[-1]
    if command.adopt_existing is not None:
        standing = draft.snapshot.topic(parent.entry_id, name)
        if standing is not None and _takes_over(standing, command.adopt_existing):
            return _take_over(draft, command, parent, standing)
    check_name_free(draft, parent, name, Kind.TOPIC, command.path)
    check_policies(command.policies, draft.context.bounds)
    _check_size("topic.partitions", command.partitions, _MOST_PARTITIONS)
    _check_size("topic.replication_factor", command.replication_factor, _MOST_REPLICAS)
    draft.require_writable(parent)
    topic = (
        _adopted_topic(draft, command)
        if command.adopt_existing is not None
        else _desired_topic(draft, command, relative, parent)
    )
    check_topic_own_quota(command.path, topic.policies, topic.partitions)
    check_quota(draft, parent, topic_amount(topic), known=bool(topic.partitions))
    draft.insert_entry(parent.entry_id, name, topic, command.path)
    draft.claim_name(topic.physical_name)
    return draft.finish(topic, command.path)


def _desired_topic(
    draft: PlanBuilder, command: CreateTopic, relative: Sequence[str], parent: Node
) -> Topic:
    context = draft.context
    base = physical_names.default_physical_name(relative)
    if command.physical_name:
        physical_names.check_requested_name(command.physical_name, draft.names, base=base)
        name = command.physical_name
    else:
        name = physical_names.next_free_name(base, draft.names)
    defaults = draft.inherited_policies(parent)
    own = command.policies
    if command.partitions and defaults.partitions not in {None, command.partitions}:
        # Set on the entry itself from the start: otherwise arming would grow the topic to the
        # inherited value.
        own = replace(own, partitions=own.partitions or command.partitions)
    return Topic(
        entry_id=draft.fresh_id(),
        changed_at_ms=context.now_ms,
        changed_by=context.principal,
        policies=draft.stamped_policies(own),
        physical_name=name,
        partitions=command.partitions or own.partitions or defaults.partitions or 0,
        replication_factor=command.replication_factor
        or own.replication_factor
        or defaults.replication_factor
        or 0,
        provision=Provision.PENDING,
        # No attempt yet: the reconciler records one right before its request to Kafka. Set here, it
        # would make a topic that existed in Kafka before look like kdir's.
    )


def _takes_over(standing: Topic, observed: ObservedTopic) -> bool:
    """True if adoption gives the existing entry Kafka's topic as it is: the entry's topic was
    replaced in Kafka, or kdir could not create it because Kafka had one of its name.
    """
    return observed.physical_name == standing.physical_name and standing.provision in TAKEN_OVER


def _take_over(draft: PlanBuilder, command: CreateTopic, parent: Node, standing: Topic) -> Plan:
    """Gives an existing entry Kafka's topic. It keeps its id, its grants and its policies; the
    request may set no others.
    """
    observed = command.adopt_existing
    assert observed is not None  # noqa: S101 - for the type checker; the caller has checked
    if command.policies != NO_POLICIES:
        raise AlreadyExists(
            f"{command.path} already exists and keeps its policies when it takes the topic that "
            f"Kafka has: adopt it without any, then change them",
            path=command.path,
        )
    refuse_protected(observed.physical_name)
    draft.require_writable(parent, standing.policies)
    taken = replace(
        draft.stamped(standing),
        topic_id=observed.topic_id,
        partitions=observed.partitions,
        replication_factor=observed.replication_factor,
        provision=Provision.ACTIVE,
        provision_message="",
        provision_attempt="",
        adopted=True,
        observed_config=observed.config,
    )
    more = topic_amount(taken).partitions - topic_amount(standing).partitions
    if more > 0:  # they exist in Kafka, whatever the quotas are
        arrivals = QuotaAdditions(draft)
        arrivals.add(parent, Amount(0, more))
        arrivals.mark()
    draft.update(parent.entry_id, command.path.name, standing, taken, command.path)
    # The record of pushed configs is about the previous topic in Kafka.
    draft.forget_facts(pushed_key(standing.entry_id))
    return draft.finish(taken, command.path)


def _adopted_topic(draft: PlanBuilder, command: CreateTopic) -> Topic:
    observed = command.adopt_existing
    assert observed is not None  # noqa: S101 - for the type checker; the caller has checked
    name = observed.physical_name
    refuse_protected(name)
    if command.physical_name not in {"", name}:
        raise InvalidArgument(
            f"topic.physical_name is {command.physical_name!r}, but the topic to adopt is {name!r}",
            field="topic.physical_name",
        )
    owner = draft.names.owner(name)
    if owner is not None or draft.snapshot.locate(name) is not None:
        raise PhysicalNameTaken(
            f"{name!r} is the physical name of {owner or _REMOVED_TOPIC}",
            physical_name=name,
            owner=owner or _REMOVED_TOPIC,
        )
    return Topic(
        entry_id=draft.fresh_id(),
        changed_at_ms=draft.context.now_ms,
        changed_by=draft.context.principal,
        policies=draft.stamped_policies(command.policies),
        physical_name=name,
        topic_id=observed.topic_id,
        partitions=observed.partitions,
        replication_factor=observed.replication_factor,
        provision=Provision.ACTIVE,
        adopted=True,
        observed_config=observed.config,
    )


def create_link(draft: PlanBuilder, command: CreateLink) -> Plan:
    """Plans a link; its targets need not exist, nor be in this cluster."""
    relative, parent = _place(draft, command.path)
    check_name_free(draft, parent, relative[-1], Kind.LINK, command.path)
    check_targets(command.path, command.targets, draft.context.bounds)
    draft.require_writable(parent)
    link = Link(
        entry_id=draft.fresh_id(),
        changed_at_ms=draft.context.now_ms,
        changed_by=draft.context.principal,
        targets=command.targets,
        mode=command.mode,
        writes=command.writes,
        fall_back_on_absent=command.fall_back_on_absent,
    )
    draft.insert_entry(parent.entry_id, relative[-1], link, command.path)
    return draft.finish(link, command.path)


def create_mount(draft: PlanBuilder, command: CreateMount) -> Plan:
    """Plans a mount, at a free path, of a child that this cluster has not mounted. A claim that
    outlived its mount is replaced.
    """
    if not command.cluster_id:
        raise InvalidArgument(
            "mount.cluster_id is empty; expected the child's cluster id",
            field="mount.cluster_id",
        )
    relative = relative_to_mount(draft.mount, command.path)
    _check_no_overlap(draft, command.path, relative)
    relative, parent = _place(draft, command.path)
    name = relative[-1]
    for existing in (draft.snapshot.topic(parent.entry_id, name), parent.containers.get(name)):
        if existing is not None:
            raise MountShadows(
                f"a mount at {command.path} would shadow {describe_kind(existing)} that exists "
                "there",
                path=command.path,
                standing=existing.kind.name.lower(),
            )
    _check_not_mounted(draft, command)
    draft.require_writable(parent)
    draft.require_free(parent.entry_id, Kind.TOPIC, name, command.path)
    mount = Mount(
        entry_id=draft.fresh_id(),
        changed_at_ms=draft.context.now_ms,
        changed_by=draft.context.principal,
        cluster_id=command.cluster_id,
        cluster=command.cluster,
        # Milliseconds since 1970: a child that is mounted again, even within the same second, gets
        # a higher epoch.
        epoch=max(1, draft.context.now_ms),
        endpoints=command.endpoints,
    )
    check_mount(mount, None, draft.context.bounds)
    draft.insert_entry(parent.entry_id, name, mount, command.path)
    # A claim that is found here is left over: no mount has it, and all entries can be read.
    key = mounted_key(mount.cluster_id)
    draft.require_value(key, draft.snapshot.fact(key))
    draft.write_fact(key, claim_of(mount, command.path))
    return draft.finish(mount, command.path)


def _check_no_overlap(draft: PlanBuilder, path: Path, relative: Sequence[str]) -> None:
    way = traverse(draft.snapshot, relative)
    if isinstance(way.stopped_by, Mount) and way.depth < len(relative) - 1:
        above = draft.mount.join(relative[: way.depth + 1])
        raise MountOverlaps(
            f"{path} lies below {above}, {describe_kind(way.stopped_by)}: mount it there, in "
            "that cluster",
            path=path,
            overlaps=above,
        )
    if way.depth == len(relative) and draft.snapshot.has_mounts_below(way.node.entry_id):
        below = mounts_below(draft, relative)
        raise MountOverlaps(
            f"{path} lies above {', '.join(below)}: one cluster's mounts never enclose each other",
            path=path,
            overlaps=", ".join(below),
        )


def _check_not_mounted(draft: PlanBuilder, command: CreateMount) -> None:
    for relative, path, mount in mounts_with_paths(draft.snapshot, draft.mount):
        if mount.cluster_id == command.cluster_id:
            mounted_at = path or path_text_below(relative)
            raise MountLoop(
                f"cluster {command.cluster_id} is mounted at {mounted_at} already; it cannot be at "
                f"{command.path} too",
                mounted_at=mounted_at,
                path=command.path,
                cluster_id=command.cluster_id,
            )
    if is_mount_unreadable(draft.snapshot, command.cluster_id):
        raise MountLoop(
            f"cluster {command.cluster_id} may be mounted already: it has a claim, and the record "
            f"of its mount, or of a directory above it, may be one of those that cannot be read: "
            f"{_unreadable_entries(draft)}; repair or remove them first: kdir verify {draft.mount}",
            path=command.path,
            cluster_id=command.cluster_id,
        )


def _unreadable_entries(draft: PlanBuilder) -> str:
    keys = [key for key in draft.snapshot.unreadable_values if key.startswith(ENTRY)]
    shown = [_place_of(draft, key) for key in sorted(keys)[:_SHOWN_PATHS]]
    more = len(keys) - len(shown)
    return ", ".join(shown) + (f" and {count(more)} more" if more else "")


def _place_of(draft: PlanBuilder, key: bytes) -> str:
    try:
        place = parse_entry_key(key)
    except ValueError:
        return repr(key)
    above = draft.snapshot.path_of(place.parent_id)
    return repr(key) if above is None else str(entry_path(draft.mount, (*above, place.name)))


def mounts_below(
    draft: PlanBuilder, relative: Sequence[str], most: int = _SHOWN_PATHS
) -> list[str]:
    """Returns the paths of the first mounts at or below a path, in path order; for a mount without
    a valid path, its path below this cluster's mount.
    """
    prefix = tuple(relative)
    below = (
        str(path or path_text_below(segments))
        for segments, path, _ in mounts_with_paths(draft.snapshot, draft.mount)
        if segments[: len(prefix)] == prefix
    )
    return list(islice(below, most))


def check_names(path: Path, relative: Sequence[str]) -> None:
    """Checks that no segment begins with ``__``, which is reserved for the system.

    Raises:
        InvalidArgument: names the segment.
    """
    for segment in relative:
        if is_system(segment):
            raise InvalidArgument(
                f"{path}: names that begin with '__', such as {segment!r}, are kept for the system",
                path=path,
                segment=segment,
            )


def check_name_free(draft: PlanBuilder, parent: Node, name: str, kind: Kind, path: Path) -> None:
    """Checks that a new entry of this kind may exist at a place: a topic may share its name with a
    directory or link, not with a mount. For a topic, adds the guard that this stays so.

    Raises:
        AlreadyExists: names the existing entry.
    """
    container = parent.containers.get(name)
    same = draft.snapshot.topic(parent.entry_id, name) if kind is Kind.TOPIC else container
    if same is not None:
        raise _exists(path, same)
    if kind is Kind.TOPIC:
        if isinstance(container, Mount):
            # The child answers for this path: a topic here could never be resolved.
            raise _exists(path, container)
        draft.require_sibling_unchanged(parent.entry_id, name, path)


def _place(draft: PlanBuilder, path: Path) -> tuple[tuple[str, ...], Node]:
    relative = relative_to_mount(draft.mount, path)
    if not relative:
        raise AlreadyExists(f"{path} is the root directory of this cluster", path=path)
    parent = require_directory(draft.snapshot, draft.mount, relative[:-1], relative[-1:])
    check_names(path, relative)
    return relative, parent


def _exists(path: Path, entry: Entry) -> AlreadyExists:
    what = describe_kind(entry).partition(" ")[2]
    return AlreadyExists(
        f"{path} already exists ({what})",
        path=path,
        standing=entry.kind.name.lower(),
    )


def _check_size(field: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise InvalidArgument(
            f"{field} is {value}; expected 1 to {most}, or 0 for the broker's default",
            field=field,
        )
