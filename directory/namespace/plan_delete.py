"""Plans for removing entries, and for finishing removals.

Removing marks at once: a directory is moved below ``DELETED_ID`` whole, however much it holds, and
its path is free again. ``ReapDeleted`` then takes it apart from the leaves, a bounded step at a
time; each step is a transaction of its own, so that it can be killed after any. Refuses to touch
Kafka: a topic that is to go there waits as DELETING for the reconciler.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, assert_never

from directory.namespace import rules
from directory.namespace.command import (
    DeleteEntry,
    FinishDelete,
    ForgetRetired,
    Plan,
    ReapDeleted,
)
from directory.namespace.draft import Draft
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
from directory.namespace.ground import Standing, standing
from directory.namespace.keys import (
    MOUNTED,
    READ_ONLY,
    detached_key,
    directory_range,
    entry_key,
    grants_key,
    mounted_key,
    read_only_id,
    removal_key,
    retired_key,
    retired_until_ms,
)
from directory.namespace.plan_create import mounts_below
from directory.namespace.plan_update import check_etag, own_policies
from directory.namespace.removal import DELETED, LARGE_CHANGES_LEVEL, Removal, level_of
from directory.namespace.snapshot import Node
from directory.store.base import Limits
from resolver.errors import HasMounts, InvalidArgument, NotEmpty, ReadOnly
from resolver.path import MAX_PATH_BYTES, Path

__all__ = [
    "DELETED",
    "Fate",
    "delete_entry",
    "deleted_name",
    "fate_of",
    "finish_delete",
    "forget_retired",
    "reap_deleted",
]

_IN_KAFKA: Final = frozenset({Provision.ACTIVE, Provision.MISSING})


class Fate(enum.Enum):
    """What becomes of Kafka's topic, and of its name, when the entry goes."""

    DELETED = "it goes, with its data; its name is retired"
    DETACHED = "it stays; its name is not free for as long as it does"
    RETIRED = "none is known; should one come late, its name is retired"
    FORGOTTEN = "Kafka refused it: nothing late can come for it"


def fate_of(topic: Topic, *, goes_in_kafka: bool) -> Fate:
    """What removing a topic's entry comes to in Kafka; ``goes_in_kafka``: kdir may delete there."""
    attempted = topic.provision is Provision.PENDING and topic.provision_attempt != ""
    if goes_in_kafka and (topic.provision in _IN_KAFKA or attempted):
        return Fate.DELETED
    if topic.provision is Provision.ACTIVE:
        return Fate.DETACHED
    return Fate.FORGOTTEN if topic.provision is Provision.FAILED else Fate.RETIRED


def deleted_name(entry_id: int) -> str:
    """The name of a removed entry below ``DELETED_ID``."""
    return f"{entry_id:016x}"


def delete_entry(draft: Draft, command: DeleteEntry) -> Plan:
    """Remove an entry, and with ``recursive`` what it holds."""
    found = standing(draft.snapshot, draft.mount, command.path, command.kind)
    parent = found.parent
    if parent is None:
        raise InvalidArgument(
            f"{command.path} is the root directory of this cluster: it cannot be removed",
            path=command.path,
        )
    check_etag(found, command.etag)
    rules.check_writable(draft, parent, own_policies(found.entry))
    draft.expect_way(parent)
    match found.entry:
        case Topic() as topic:
            goes = draft.context.deletes_in_kafka
            _let_go(draft, parent.entry_id, found.name, topic, goes_in_kafka=goes)
            draft.gone(parent.entry_id, found.name, topic, found.path)
            return draft.finish(topic, found.path, topic_count=1)
        case Link() as link:
            draft.delete(parent.entry_id, found.name, link, found.path)
            return draft.finish(link, found.path)
        case Mount() as mount:
            draft.delete(parent.entry_id, found.name, mount, found.path)
            draft.unset(mounted_key(mount.cluster_id))
            return draft.finish(mount, found.path)
        case Directory() as directory:
            return _delete_directory(draft, found, directory, recursive=command.recursive)
        case _:
            assert_never(found.entry)


def _delete_directory(
    draft: Draft, found: Standing, directory: Directory, *, recursive: bool
) -> Plan:
    snapshot = draft.snapshot
    node = snapshot.node(directory.entry_id)
    if node is None or not (node.topics or node.containers):
        # Nothing to reap. Whoever puts something there now is noticed by its key.
        draft.expect_nothing_newer(directory_range(directory.entry_id))
        draft.delete(found.parent_id, found.name, directory, found.path)
        return draft.finish(directory, found.path, directory_count=1)
    if snapshot.has_mounts_below(directory.entry_id):
        mounts = ", ".join(map(str, mounts_below(draft, found.path.below(draft.mount))))
        raise HasMounts(
            f"clusters are mounted below {found.path}: {mounts}; unmount them first",
            path=found.path,
            mounts=mounts,
        )
    if not recursive:
        topics, others = len(node.topics), len(node.containers)
        raise NotEmpty(
            f"{found.path} holds {topics:,} topics and {others:,} directories and links; remove "
            f"them first, or remove it with all below it",
            path=found.path,
            topics=topics,
            containers=others,
        )
    _refuse_read_only_below(draft, found.path)
    # A mount that comes below it meanwhile would be torn down unseen: it writes its claim.
    draft.expect_nothing_newer(MOUNTED)
    # So would a directory that somebody makes read-only meanwhile: it writes its mark.
    draft.expect_nothing_newer(READ_ONLY)
    draft.take(found.parent_id, found.name, directory)
    draft.put(DELETED_ID, deleted_name(directory.entry_id), directory)
    counts = snapshot.counts(directory.entry_id)
    removal = Removal(goes_in_kafka=draft.context.deletes_in_kafka, path=found.path)
    if level_of(snapshot) >= LARGE_CHANGES_LEVEL:
        removal = replace(
            removal,
            entries=counts.topics + counts.directories + 1,
            started_at_ms=draft.context.now_ms,
            principal=draft.context.principal,
        )
    draft.set(removal_key(directory.entry_id), removal.to_bytes())
    draft.gone(found.parent_id, found.name, directory, found.path)
    return draft.finish(
        directory,
        found.path,
        topic_count=counts.topics,
        directory_count=counts.directories + 1,
    )


def _refuse_read_only_below(draft: Draft, path: Path) -> None:
    # By the marks, which are few: a subtree may hold a million directories.
    prefix = path.below(draft.mount)
    for key, _ in draft.snapshot.facts(READ_ONLY):
        at = draft.snapshot.path_of(read_only_id(key))
        if at is not None and at[: len(prefix)] == prefix and at != prefix:
            where = draft.mount.join(at)
            raise ReadOnly(f"{where} is read-only", path=where)


def _let_go(
    draft: Draft,
    parent_id: int,
    name: str,
    topic: Topic,
    *,
    goes_in_kafka: bool,
    record: bytes | None = None,
) -> None:
    """A topic leaves the tree: for good, or to wait as DELETING until Kafka's topic is gone."""
    draft.take(parent_id, name, topic, record)
    fate = fate_of(topic, goes_in_kafka=goes_in_kafka)
    if fate is Fate.DELETED:
        waiting = replace(draft.stamped(topic), provision=Provision.DELETING)
        draft.put(DELETED_ID, deleted_name(topic.entry_id), waiting)
        return
    draft.release(topic.physical_name)
    if fate is Fate.DETACHED:
        draft.set(detached_key(topic.physical_name), topic.topic_id)
    elif fate is Fate.RETIRED:
        draft.retire(topic.physical_name)


# -- finishing ---------------------------------------------------------------------------------

# Nobody but the reaper writes below a removed directory: whoever makes, changes or moves something
# guards every directory above it, by value, and the one that was removed is not there any more. And
# the reaper is one, elected and fenced. So a step looks at nothing but what it takes.

_GUARDS_EACH: Final = 2
_WRITES_EACH: Final = 3
"""What one entry costs, at most, beside its grants."""
_BYTES_EACH: Final = 512
"""What the event of one entry and its keys cost beside its record and its paths, at most about."""
_AROUND: Final = 2
"""Guards and writes that others add to a step: its event, the guard of the reaper's role."""


class _Leaf(NamedTuple):
    """The next entry to take away: nothing is left below it by then."""

    parent_id: int
    name: str
    entry: Entry
    path: Path | None
    """Where it was before the removal, as far as that is known."""
    removal: Removal | None
    top: bool
    """Whether it is the removed directory itself, not something below it."""
    record: bytes | None = None
    """As it is stored; of a topic."""


class _Room:
    """How much of one transaction is left."""

    def __init__(self, draft: Draft, limits: Limits | None) -> None:
        self._draft = draft
        self._limits = limits
        self._bytes = 0

    def takes(self, leaf: _Leaf) -> bool:
        """Whether one more fits; it is counted then. The first always does."""
        if self._limits is None:
            return True
        guards, writes = self._draft.size
        first = writes == 0
        self._bytes += 2 * len(leaf.record or b"") + _BYTES_EACH + 2 * MAX_PATH_BYTES
        key = grants_key(leaf.parent_id, leaf.entry.kind, leaf.name)
        grants = self._draft.snapshot.fact(key)
        each = _WRITES_EACH
        if grants is not None:
            each += 1
            self._bytes += len(grants) + len(key)
        holds = self._limits.hold(guards + _GUARDS_EACH + _AROUND, writes + each + _AROUND)
        return first or (holds and self._bytes <= self._limits.max_bytes)


def reap_deleted(draft: Draft, command: ReapDeleted) -> Plan:
    """One step of taking removed directories apart; an empty plan when there is nothing to do.

    What stands there as DELETING waits for ``FinishDelete`` and is not touched.
    """
    topics = directories = 0
    room = _Room(draft, command.limits)
    for leaf in islice(_leaves(draft), max(0, command.limit)):
        if not room.takes(leaf):
            break
        topics += isinstance(leaf.entry, Topic)
        directories += isinstance(leaf.entry, Directory)
        _reap(draft, leaf)
    return draft.finish(topic_count=topics, directory_count=directories)


def _leaves(draft: Draft) -> Iterator[_Leaf]:
    snapshot = draft.snapshot
    place = snapshot.node(DELETED_ID)
    if place is None:
        return
    for name, container in place.containers.items():
        removal = Removal.of(snapshot, container.entry_id)
        path = removal.path if removal else None
        node = snapshot.node(container.entry_id)
        if isinstance(container, Directory) and node is not None:
            yield from _below(draft, node, path, removal)
        yield _Leaf(DELETED_ID, name, container, path, removal, top=True)


def _below(draft: Draft, node: Node, path: Path | None, removal: Removal | None) -> Iterator[_Leaf]:
    # Depth first, a directory after what it holds: wherever the caller stops, what was taken so far
    # is a whole step. A path has at most 64 segments, so recursion is safe.
    for name, record in node.topics.items():
        topic = _readable(draft, record)
        if topic is not None:
            here = _child(path, name)
            yield _Leaf(node.entry_id, name, topic, here, removal, top=False, record=record)
    for name, container in node.containers.items():
        here = _child(path, name)
        below = draft.snapshot.node(container.entry_id)
        if isinstance(container, Directory) and below is not None:
            yield from _below(draft, below, here, removal)
        yield _Leaf(node.entry_id, name, container, here, removal, top=False)


def _readable(draft: Draft, record: bytes) -> Topic | None:
    try:
        entry = draft.snapshot.codec.decode(record)
    except ValueError:
        return None  # it goes with its directory
    return entry if isinstance(entry, Topic) else None


def _child(path: Path | None, name: str) -> Path | None:
    return None if path is None else Path((*path.segments, name))


def _reap(draft: Draft, leaf: _Leaf) -> None:
    entry = leaf.entry
    match entry:
        case Topic():
            goes = leaf.removal is not None and leaf.removal.goes_in_kafka
            place = (leaf.parent_id, leaf.name)
            _let_go(draft, *place, entry, goes_in_kafka=goes, record=leaf.record)
        case Directory():
            draft.take(leaf.parent_id, leaf.name, entry)
            _drop_unreadable(draft, entry.entry_id)
        case Link():
            draft.take(leaf.parent_id, leaf.name, entry)
        case Mount():
            # None can be below a removed directory; should one be, its child is free again.
            draft.take(leaf.parent_id, leaf.name, entry)
            draft.unset(mounted_key(entry.cluster_id))
        case _:
            assert_never(entry)
    if leaf.top:
        # Its removal was told when it was marked.
        draft.unset(removal_key(entry.entry_id))
    else:
        # Other entries may stand at its old path by now: the event is of the place that it was in.
        where = Path((*draft.mount.segments, DELETED, deleted_name(entry.entry_id)))
        draft.gone(leaf.parent_id, leaf.name, entry, where, leaf.path)


def _drop_unreadable(draft: Draft, directory_id: int) -> None:
    """What cannot be read was not taken before its directory; without one nobody would find it."""
    snapshot, within = draft.snapshot, directory_range(directory_id)
    node = snapshot.node(directory_id)
    for name, record in node.topics.items() if node is not None else ():
        if _readable(draft, record) is None:
            draft.unset(entry_key(directory_id, Kind.TOPIC, name))
    for key in snapshot.quarantined:
        if key.startswith(within) and key != within:
            draft.unset(key)


def forget_retired(draft: Draft, command: ForgetRetired) -> Plan:
    """Physical names may be used again."""
    for name in command.names:
        key = retired_key(name)
        value = draft.snapshot.fact(key)
        until_ms = None if value is None else retired_until_ms(value)
        if until_ms is not None and until_ms <= draft.context.now_ms:
            draft.expect(key, value)
            draft.unset(key)
    return draft.finish()


def finish_delete(draft: Draft, command: FinishDelete) -> Plan:
    """Kafka's topics are gone: so are the entries, and the names are retired for a day."""
    count = 0
    for name, entry_id in command.topics:
        topic = draft.snapshot.topic(DELETED_ID, name)
        if topic is None or topic.entry_id != entry_id or topic.provision is not Provision.DELETING:
            continue
        count += 1
        draft.take(DELETED_ID, name, topic)
        draft.release(topic.physical_name)
        draft.retire(topic.physical_name)
    return draft.finish(topic_count=count)
