"""Plans of finishing removals, in bounded steps, for the elected reaper.

``ReapDeleted`` removes the entries of a removed directory, leaves first; each step is one
transaction, so the reaper can be killed after any. No record is left behind that nothing would find
again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, assert_never

from directory.namespace.command import (
    FinishDelete,
    ForgetRetired,
    Plan,
    ReapDeleted,
)
from directory.namespace.entry import (
    DELETED_ID,
    Directory,
    Entry,
    Kind,
    Link,
    Mount,
    Provision,
    Topic,
)
from directory.namespace.keys import (
    ENTRY,
    GRANTS,
    directory_range,
    entry_key,
    mounted_key,
    parse_entry_key,
    removal_key,
    retired_key,
    retired_until_ms,
)
from directory.namespace.mounted import is_claimed_by
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.plan_delete import delete_record, deleted_name, remove_topic
from directory.namespace.removal_progress import DELETED, Removal
from directory.namespace.snapshot import Node, Snapshot
from directory.store.transaction_limits import Limits
from resolver.path import MAX_PATH_BYTES, Path
from resolver.units import plural

__all__ = ["finish_delete", "forget_retired", "reap_deleted", "why_held_up"]

# Only the reaper writes below a removed directory: any other change guards the records of the
# directories above its entry, and that guard fails once one of them is removed. The reaper is
# elected and fenced, so a step guards only the entries that it removes.

_GUARDS_EACH: Final = 2
_WRITES_EACH: Final = 3
"""Writes for one entry at most, without its grants."""
_BYTES_EACH: Final = 512
"""Approximate upper bound of the bytes of one entry's event and keys, without its
record and paths.
"""
_AROUND: Final = 2
"""Guards and writes that others add to a step: its event, the guard of the reaper's role."""


class _ReapTarget(NamedTuple):
    """Next entry to remove; nothing is left below it."""

    parent_id: int
    name: str
    entry: Entry
    path: Path | None
    """Its path before the removal, if known."""
    removal: Removal | None
    top: bool
    """True for the removed directory itself, False for an entry below it."""
    record: bytes | None = None
    """Stored form of a topic."""

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return entry_key(self.parent_id, self.entry.kind, self.name)


class _UnreadableRecord(NamedTuple):
    """Next record to remove that cannot be read."""

    key: bytes
    record: None = None


class _StepBudget:
    """Rest of one transaction's limits."""

    def __init__(self, draft: PlanBuilder, limits: Limits | None) -> None:
        self._draft = draft
        self._limits = limits
        self._bytes = 0

    def takes(self, leaf: _ReapTarget | _UnreadableRecord) -> bool:
        """True if one more entry fits; counts it then. The first always fits."""
        if self._limits is None:
            return True
        guards, writes = self._draft.size
        first = writes == 0
        self._bytes += 2 * len(leaf.record or b"") + _BYTES_EACH + 2 * MAX_PATH_BYTES
        key = _key_of_grants(leaf.key)
        grants = self._draft.snapshot.fact(key)
        each = _WRITES_EACH
        if grants is not None:
            each += 1
            self._bytes += len(grants) + len(key)
        holds = self._limits.hold(guards + _GUARDS_EACH + _AROUND, writes + each + _AROUND)
        return first or (holds and self._bytes <= self._limits.max_bytes)


def reap_deleted(draft: PlanBuilder, command: ReapDeleted) -> Plan:
    """Returns one step of removing the entries of removed directories; an empty plan if there are
    none. DELETING topics wait for ``FinishDelete`` and are left alone.
    """
    topics = directories = 0
    room = _StepBudget(draft, command.limits)
    for leaf in islice(_leaves(draft), max(0, command.limit)):
        if not room.takes(leaf):
            break
        if isinstance(leaf, _UnreadableRecord):
            draft.delete_fact(leaf.key)
            draft.forget_facts(_key_of_grants(leaf.key))
            continue
        topics += isinstance(leaf.entry, Topic)
        directories += isinstance(leaf.entry, Directory)
        _reap(draft, leaf)
    return draft.finish(topic_count=topics, directory_count=directories)


def _key_of_grants(key: bytes) -> bytes:
    return GRANTS + key.removeprefix(ENTRY)


def _leaves(draft: PlanBuilder) -> Iterator[_ReapTarget | _UnreadableRecord]:
    snapshot = draft.snapshot
    place = snapshot.nodes.get(DELETED_ID)
    if place is None:
        return
    kept = frozenset(parent_id for parent_id, _ in _unreadable_directories(snapshot))
    for name, container in place.containers.items():
        removal = Removal.load(snapshot, container.entry_id)
        path = removal.path if removal else None
        node = snapshot.nodes.get(container.entry_id)
        stays = False
        if isinstance(container, Directory) and node is not None:
            stays = yield from _below(draft, node, path, removal, kept)
        if not stays:
            yield _ReapTarget(DELETED_ID, name, container, path, removal, top=True)


def why_held_up(snapshot: Snapshot) -> str:
    """Returns why a removed directory may not be finished; empty = it may.

    The entries of a directory with an unreadable record are found only by that record. So that
    record and the directories above it stay until a version runs that can read it, or an operator
    removes it; otherwise the entries, and their topics in Kafka, would never be found.
    """
    removed = [
        key
        for parent_id, key in _unreadable_directories(snapshot)
        if _is_removed(snapshot, parent_id)
    ]
    if not removed:
        return ""
    return (
        f"{plural(len(removed), 'directory', 'directories')} below removed ones cannot be read, "
        f"the first at {removed[0]!r}, and something lies in directories without a record: "
        f"kdir verify"
    )


def _unreadable_directories(snapshot: Snapshot) -> Iterator[tuple[int, bytes]]:
    """Yields the parent's id and the key of each unreadable record of a container, if some
    directory without a readable record has entries; otherwise nothing.
    """
    if not snapshot.has_lost:
        return
    for key in snapshot.unreadable_values:
        try:
            place = parse_entry_key(key)
        except ValueError:
            continue
        if not place.is_topic:
            yield place.parent_id, key


def _is_removed(snapshot: Snapshot, directory_id: int) -> bool:
    at = snapshot.nodes.get(directory_id)
    while at is not None and at.entry_id != DELETED_ID:
        at = snapshot.nodes.get(at.parent_id)
    return at is not None


def _below(
    draft: PlanBuilder,
    node: Node,
    path: Path | None,
    removal: Removal | None,
    kept: frozenset[int],
) -> Generator[_ReapTarget | _UnreadableRecord, None, bool]:
    """Yields the entries to remove below a directory, last the unreadable records directly in it:
    without the directory nothing would find them. Returns whether an entry there, and so the
    directory, stays.
    """
    # Depth first, a directory after its entries: wherever the caller stops, the entries so far are
    # a whole step. A path has at most 64 segments, so recursion is safe.
    if removal is not None and removal.goes_in_kafka and is_kept_in_kafka(node.directory):
        removal = replace(removal, goes_in_kafka=False)
    unreadable: set[bytes] = set()
    for name, record in node.topics.items():
        topic = _readable(draft, record)
        if topic is None:
            unreadable.add(entry_key(node.entry_id, Kind.TOPIC, name))
            continue
        here = _child(path, name)
        yield _ReapTarget(node.entry_id, name, topic, here, removal, top=False, record=record)
    stays = node.entry_id in kept
    for name, container in node.containers.items():
        here = _child(path, name)
        below = draft.snapshot.nodes.get(container.entry_id)
        one_stays = False
        if isinstance(container, Directory) and below is not None:
            one_stays = yield from _below(draft, below, here, removal, kept)
        if one_stays:
            stays = True
        else:
            yield _ReapTarget(node.entry_id, name, container, here, removal, top=False)
    if not stays:
        within = directory_range(node.entry_id)
        keys = draft.snapshot.unreadable_values
        unreadable |= {key for key in keys if key.startswith(within) and key != within}
        yield from map(_UnreadableRecord, sorted(unreadable))
    return stays


def _readable(draft: PlanBuilder, record: bytes) -> Topic | None:
    try:
        entry = draft.snapshot.codec.decode(record)
    except ValueError:
        return None  # removed after the other entries of its directory
    return entry if isinstance(entry, Topic) else None


def _child(path: Path | None, name: str) -> Path | None:
    return None if path is None else Path((*path.segments, name))


def _reap(draft: PlanBuilder, leaf: _ReapTarget) -> None:
    entry = leaf.entry
    match entry:
        case Topic():
            goes = leaf.removal is not None and leaf.removal.goes_in_kafka
            goes = goes and not is_kept_in_kafka(entry)
            place = (leaf.parent_id, leaf.name)
            remove_topic(
                draft, *place, entry, goes_in_kafka=goes, path=leaf.path, record=leaf.record
            )
        case Directory() | Link():
            delete_record(draft, leaf.parent_id, leaf.name, entry)
        case Mount():
            # No mount can be below a removed directory; if one is, its child becomes free again.
            delete_record(draft, leaf.parent_id, leaf.name, entry)
            _free_child(draft, entry)
        case _:
            assert_never(entry)
    if leaf.top:
        # The event of its removal was written when it was moved below DELETED_ID.
        draft.delete_fact(removal_key(entry.entry_id))
    else:
        # Another entry may have its old path now, so that is only the event's `path_before`. A path
        # outside the mount, which was moved since, is another cluster's: the event omits it (R5).
        where = Path((*draft.mount.segments, DELETED, deleted_name(entry.entry_id)))
        is_below_mount = leaf.path is not None and draft.mount.is_prefix_of(leaf.path)
        before = leaf.path if is_below_mount else None
        draft.record_removal(leaf.parent_id, leaf.name, entry, where, before)


def _free_child(draft: PlanBuilder, mount: Mount) -> None:
    """Removes the claim of a removed mount; that of the child's mount elsewhere stays."""
    key = mounted_key(mount.cluster_id)
    claim = draft.snapshot.fact(key)
    if claim is not None and is_claimed_by(claim, mount):
        draft.require_value(key, claim)
        draft.delete_fact(key)


def is_kept_in_kafka(entry: Directory | Topic) -> bool:
    """True if the entry's own policies forbid deleting its topics in Kafka. A removed entry never
    changes, so these are its policies at the removal.
    """
    return entry.policies.manage.get("delete") is False or bool(entry.policies.read_only)


def forget_retired(draft: PlanBuilder, command: ForgetRetired) -> Plan:
    """Plans the end of the retirement of physical names."""
    for name in command.names:
        key = retired_key(name)
        value = draft.snapshot.fact(key)
        until_ms = None if value is None else retired_until_ms(value)
        if until_ms is not None and until_ms <= draft.context.now_ms:
            draft.require_value(key, value)
            draft.delete_fact(key)
    return draft.finish()


def finish_delete(draft: PlanBuilder, command: FinishDelete) -> Plan:
    """Plans the removal of entries whose topics are deleted in Kafka; their names are retired for a
    day.

    A topic that kdir asked for and never saw may still appear: Kafka may execute a request long
    after it was sent.
    """
    count = 0
    for name, entry_id in command.topics:
        topic = draft.snapshot.topic(DELETED_ID, name)
        if topic is None or topic.entry_id != entry_id or topic.provision is not Provision.DELETING:
            continue
        count += 1
        delete_record(draft, DELETED_ID, name, topic)
        draft.release_name(topic.physical_name)
        unseen = topic.provision_attempt != "" and not topic.topic_id
        deleted_id = topic.topic_id if command.is_acknowledged else b""
        draft.retire_name(topic.physical_name, awaited=unseen, deleted_id=deleted_id)
    return draft.finish(topic_count=count)
