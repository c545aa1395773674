"""Plans of removing entries.

A removed directory is moved below ``DELETED_ID`` at once, however large it is, and its path is free
again; ``plan_reap`` finishes the removal. A topic that is to be deleted in Kafka waits there as
DELETING for the reconciler.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Final, assert_never

from directory.namespace.command import (
    DeleteEntry,
    Plan,
)
from directory.namespace.entry import (
    DELETED_ID,
    Directory,
    Entry,
    Link,
    Mount,
    Provision,
    Topic,
)
from directory.namespace.keys import (
    MOUNTED,
    READ_ONLY,
    detached_key,
    detached_value,
    directory_range,
    entry_key,
    mounted_key,
    quota_key,
    read_only_id,
    read_only_key,
    removal_key,
)
from directory.namespace.mounted import may_have_unreadable_mount_below
from directory.namespace.plan_builder import PlanBuilder, read_only_place
from directory.namespace.plan_create import mounts_below
from directory.namespace.plan_update import check_etag, own_policies
from directory.namespace.protected_topics import is_protected
from directory.namespace.removal_progress import DELETED, Removal
from directory.namespace.traversal import LocatedEntry, entry_path
from resolver.errors import HasMounts, InvalidArgument, NotEmpty, ReadOnly
from resolver.path import Path
from resolver.units import plural

__all__ = [
    "DELETED",
    "KafkaFate",
    "delete_entry",
    "delete_record",
    "deleted_name",
    "is_deleted_in_kafka",
    "kafka_fate_of",
    "remove_topic",
]

_IN_KAFKA: Final = frozenset({Provision.ACTIVE, Provision.MISSING})


class KafkaFate(enum.Enum):
    """Effect of removing an entry on Kafka's topic and on its name."""

    DELETED = "it goes, with its data; its name is retired"
    DETACHED = "it stays; its name is not free for as long as it does"
    RETIRED = "none is known; should one come late, its name is retired, and it is left alone"
    FORGOTTEN = "Kafka refused it: nothing late can come for it"


def kafka_fate_of(topic: Topic, *, goes_in_kafka: bool) -> KafkaFate:
    """Returns the effect in Kafka of removing a topic's entry; ``goes_in_kafka``: kdir may delete
    topics there.

    The entry of an internal topic, which an older version may have adopted, can be removed; the
    topic itself is never deleted.
    """
    goes_in_kafka = goes_in_kafka and not is_protected(topic.physical_name)
    if goes_in_kafka and (topic.provision in _IN_KAFKA or _is_asked_for(topic)):
        return KafkaFate.DELETED
    if topic.provision is Provision.ACTIVE:
        return KafkaFate.DETACHED
    return KafkaFate.FORGOTTEN if topic.provision is Provision.FAILED else KafkaFate.RETIRED


def _is_asked_for(topic: Topic) -> bool:
    """True if, by its record, Kafka was asked to create the topic and has not answered."""
    return topic.provision is Provision.PENDING and topic.provision_attempt != ""


def is_deleted_in_kafka(topic: Topic, *, goes_in_kafka: bool) -> bool:
    """True if, by the topic's record, removing the entry deletes the topic in Kafka."""
    fate = kafka_fate_of(topic, goes_in_kafka=goes_in_kafka)
    return fate is KafkaFate.DELETED and topic.provision is not Provision.MISSING


def deleted_name(entry_id: int) -> str:
    """Returns the name of a removed entry below ``DELETED_ID``."""
    return f"{entry_id:016x}"


def delete_entry(draft: PlanBuilder, command: DeleteEntry) -> Plan:
    """Plans the removal of an entry, and with ``recursive`` of everything below it."""
    found = draft.find_entry(command.path, command.kind)
    parent = found.parent
    if parent is None:
        raise InvalidArgument(
            f"{command.path} is the root directory of this cluster: it cannot be removed",
            path=command.path,
        )
    check_etag(found, command.etag)
    draft.require_writable(parent, own_policies(found.entry))
    match found.entry:
        case Topic() as topic:
            goes = command.deletes_in_kafka
            place = (parent.entry_id, found.name)
            remove_topic(draft, *place, topic, goes_in_kafka=goes, path=found.path)
            draft.record_removal(parent.entry_id, found.name, topic, found.path)
            return draft.finish(
                topic,
                found.path,
                topic_count=1,
                kafka_topics_deleted=is_deleted_in_kafka(topic, goes_in_kafka=goes),
            )
        case Link() as link:
            _delete_at_once(draft, parent.entry_id, found.name, link, found.path)
            return draft.finish(link, found.path)
        case Mount() as mount:
            _delete_at_once(draft, parent.entry_id, found.name, mount, found.path)
            draft.delete_fact(mounted_key(mount.cluster_id))
            return draft.finish(mount, found.path)
        case Directory() as directory:
            return _delete_directory(draft, found, directory, command)
        case _:
            assert_never(found.entry)


def _delete_directory(
    draft: PlanBuilder, found: LocatedEntry, directory: Directory, command: DeleteEntry
) -> Plan:
    snapshot = draft.snapshot
    node = snapshot.nodes.get(directory.entry_id)
    unreadable = snapshot.unreadable_in(directory.entry_id)
    if not unreadable and (node is None or not (node.topics or node.containers)):
        # Nothing to reap. A concurrent insert conflicts by its key.
        draft.expect_nothing_newer(directory_range(directory.entry_id))
        _delete_at_once(draft, found.parent_id, found.name, directory, found.path)
        return draft.finish(directory, found.path, directory_count=1)
    if snapshot.has_mounts_below(directory.entry_id):
        mounts = ", ".join(mounts_below(draft, found.path.below(draft.mount)))
        raise HasMounts(
            f"clusters are mounted below {found.path}: {mounts}; unmount them first",
            path=found.path,
            mounts=mounts,
        )
    if may_have_unreadable_mount_below(snapshot, directory.entry_id):
        raise HasMounts(
            f"clusters may be mounted below {found.path}: a child that no mount names has a claim, "
            f"and the record of its mount, or of a directory above it, may be one of those below "
            f"that cannot be read; repair or remove them first: kdir verify {draft.mount}",
            path=found.path,
        )
    if not command.recursive:
        topics = len(node.topics) if node is not None else 0
        others = len(node.containers) if node is not None else 0
        more = f", and {plural(unreadable, 'entry', 'entries')} that cannot be read"
        raise NotEmpty(
            f"{found.path} holds {plural(topics, 'topic')} and "
            f"{plural(others, 'directory or link', 'directories and links')}"
            f"{more if unreadable else ''}; remove them first, or remove it with all below it",
            path=found.path,
            topics=topics,
            containers=others,
        )
    _refuse_read_only_below(draft, found.path, directory.entry_id)
    # A concurrent mount below it would be removed unnoticed: its claim makes this conflict.
    draft.expect_nothing_newer(MOUNTED)
    # The same for an entry that becomes read-only: its mark makes this conflict.
    draft.expect_nothing_newer(READ_ONLY)
    delete_record(draft, found.parent_id, found.name, directory)
    draft.write_record(DELETED_ID, deleted_name(directory.entry_id), directory)
    counts = snapshot.counts(directory.entry_id)
    removal = Removal(
        goes_in_kafka=command.deletes_in_kafka,
        path=found.path,
        entries=counts.topics + counts.directories + 1,
        started_at_ms=draft.context.now_ms,
        principal=draft.context.principal,
    )
    draft.write_fact(removal_key(directory.entry_id), removal.to_bytes())
    draft.record_removal(found.parent_id, found.name, directory, found.path)
    plan = draft.finish(
        directory,
        found.path,
        topic_count=counts.topics,
        directory_count=counts.directories + 1,
        kafka_topics_deleted=command.deletes_in_kafka and counts.topics > 0,
    )
    return replace(plan, unreadable_count=snapshot.unreadable_below(directory.entry_id))


def _refuse_read_only_below(draft: PlanBuilder, path: Path, directory_id: int) -> None:
    # By the marks, of which there are few: a subtree may have a million entries.
    snapshot, prefix = draft.snapshot, path.below(draft.mount)
    lost = b""
    for key, value in snapshot.facts(READ_ONLY):
        at = read_only_place(snapshot, key, value)
        if at is None and read_only_id(key):
            lost = lost or key
        elif at is not None and at[: len(prefix)] == prefix and at != prefix:
            where = entry_path(draft.mount, at)
            raise ReadOnly(f"{where} is read-only", path=where)
    # Once, after all marks: it takes a pass over all unreadable records.
    if lost and snapshot.has_unreadable_below(directory_id):
        raise ReadOnly(
            f"an entry below {path} may be read-only: the mark {lost.decode()} names none that can "
            f"be read, and not all below can; repair or remove those first: "
            f"kdir verify {draft.mount}",
            path=path,
        )


def remove_topic(
    draft: PlanBuilder,
    parent_id: int,
    name: str,
    topic: Topic,
    *,
    goes_in_kafka: bool,
    path: Path | None,
    record: bytes | None = None,
) -> None:
    """Removes a topic from the tree: permanently, or as DELETING until Kafka's topic is deleted.
    ``path``: its last path, if known.
    """
    delete_record(draft, parent_id, name, topic, record)
    fate = kafka_fate_of(topic, goes_in_kafka=goes_in_kafka)
    if fate is KafkaFate.DELETED:
        waiting = replace(draft.stamped(topic), provision=Provision.DELETING)
        draft.write_record(DELETED_ID, deleted_name(topic.entry_id), waiting)
        return
    draft.release_name(topic.physical_name)
    if fate is KafkaFate.DETACHED:
        # The cluster may have been mounted elsewhere since a directory was removed.
        known = path is not None and draft.mount.is_prefix_of(path)
        relative = path.below(draft.mount) if path is not None and known else ()
        draft.write_fact(
            detached_key(topic.physical_name), detached_value(topic.topic_id, relative)
        )
    elif fate is KafkaFate.RETIRED:
        draft.retire_name(topic.physical_name, awaited=_is_asked_for(topic))


def _delete_at_once(
    draft: PlanBuilder, parent_id: int, name: str, entry: Entry, path: Path
) -> None:
    """Deletes an entry permanently."""
    delete_record(draft, parent_id, name, entry)
    draft.record_removal(parent_id, name, entry, path)


def delete_record(
    draft: PlanBuilder, parent_id: int, name: str, entry: Entry, record: bytes | None = None
) -> None:
    """Removes an entry's record with all that was set or granted on it, so that a new entry of its
    name has none of it (P6). Adds the guard that the record is unchanged: ``record``, if given.
    """
    key = entry_key(parent_id, entry.kind, name)
    if record is None:
        draft.expect_entry(parent_id, name, entry)
    else:
        draft.require_value(key, record)
    draft.delete_fact(key)
    draft.put_grants(parent_id, entry.kind, name, None)
    if isinstance(entry, Directory | Topic):
        draft.forget_facts(read_only_key(entry.entry_id))
    if isinstance(entry, Directory):
        draft.forget_facts(quota_key(entry.entry_id))
