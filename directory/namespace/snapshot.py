"""Snapshot: the immutable tree of one cluster at one revision, which a request holds to its end.

``apply`` returns the next one, which shares all but the changed parts. Counts include only entries
with a path: those below ``DELETED_ID`` have none, and count only for ``DELETED_ID`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from directory.access.grant_tree import GrantTree
from directory.namespace import snapshot_load, snapshot_update
from directory.namespace.entry import ROOT_ID, Codec, Directory, Kind, Mount, Topic
from directory.namespace.keys import (
    EntryKey,
    directory_range,
    entry_key,
    may_change_topics,
    parse_entry_key,
    unify,
)
from directory.namespace.physical_name_index import TopicKey, why_no_topic
from directory.namespace.tree_nodes import Container, Contents, Counts, Node, Tree, path_in
from directory.store.base import Write
from resolver.errors import UnreadableRecord
from resolver.units import plural

__all__ = ["Container", "Counts", "LocatedTopic", "Node", "Snapshot"]


class LocatedTopic(NamedTuple):
    """Place of a topic with a physical name."""

    parent_id: int
    name: str
    topic: Topic
    relative: tuple[str, ...] | None
    """Path below the mount; None if the topic is removed (below ``DELETED_ID``)."""


class Snapshot:
    """Tree of one cluster at one revision. Safe to read from any thread.

    ``root`` is the node of the directory at the mount point; ``nodes`` has all nodes by id, always
    including those of ``ROOT_ID`` and ``DELETED_ID``; ``grants`` is the tree of grants. ``fact``
    returns the value of a key that is not an entry's; claims, requests and events are not kept
    here. After ``topics_unchanged_since``, up to ``revision``, no commit changed which topics there
    are, what is recorded or inherited for them, or who may see them; the true revision may be
    older.
    """

    __slots__ = (
        *("codec", "fact", "grants", "incarnation", "nodes", "revision", "root"),
        *("topics_unchanged_since", "tree", "_unreadable_entries"),
    )

    def __init__(
        self,
        codec: Codec,
        incarnation: str,
        revision: int,
        tree: Tree,
        unchanged_since: int,
        unreadable_entries: Mapping[int, Sequence[EntryKey]] | None = None,
    ) -> None:
        self.codec = codec
        self.incarnation = incarnation
        self.revision = revision
        self.topics_unchanged_since = unchanged_since
        self.tree = tree
        self._unreadable_entries = unreadable_entries  # None: made when first read
        # Plain attributes, not properties: every lookup begins with them.
        self.nodes: Mapping[int, Node] = tree.nodes
        self.root: Node = tree.nodes[ROOT_ID]
        self.grants: GrantTree = tree.grants
        self.fact: Callable[[bytes], bytes | None] = tree.facts.get

    @classmethod
    def empty(cls, codec: Codec, incarnation: str = "") -> Snapshot:
        """Returns the snapshot of a cluster without commits: an empty root directory."""
        return cls.load(codec, incarnation, 0, ())

    @classmethod
    def load(
        cls,
        codec: Codec,
        incarnation: str,
        revision: int,
        pages: Iterable[Sequence[tuple[bytes, bytes]]],
    ) -> Snapshot:
        """Returns the snapshot of all rows of a store: pages of (key, value), in key order.

        Unreadable records are in ``unreadable_values``; the rest is served.
        """
        return cls(codec, incarnation, revision, snapshot_load.load(codec, pages), revision)

    def apply(self, revision: int, writes: Collection[Write]) -> Snapshot:
        """Returns the snapshot after a commit."""
        tree = snapshot_update.apply(self.tree, self.codec, writes)
        is_changed = any(may_change_topics(one.key) for one in writes)
        since = revision if is_changed else self.topics_unchanged_since
        entries = self._unreadable_entries
        places = (self.tree.unreadable, tree.unreadable)
        if entries is not None and any(one.key in place for one in writes for place in places):
            entries = None
        return Snapshot(self.codec, self.incarnation, revision, tree, since, entries)

    # Counts and unreadable records.

    @property
    def topic_count(self) -> int:
        """Number of topics with a path."""
        return self.counts(ROOT_ID).topics

    @property
    def directory_count(self) -> int:
        """Number of directories with a path, without the root."""
        return self.counts(ROOT_ID).directories

    def counts(self, directory_id: int) -> Counts:
        """Returns the counts of topics, directories and mounts below a directory, at any depth; for
        ``DELETED_ID``, of the entries that wait for the reaper.
        """
        return self.tree.counts.get(directory_id, Counts())

    def partitions(self, directory_id: int) -> int:
        """Returns the sum of the recorded partitions of the topics below a directory, at any depth;
        an unknown number counts as one.
        """
        return self.tree.partitions.below(directory_id)

    def unreadable(self, key: bytes) -> str:
        """Returns why the record at an entry's key is unreadable; empty if it is not."""
        return self.tree.unreadable.get(key, "")

    def unreadable_in(self, directory_id: int) -> int:
        """Returns the number of unreadable records directly in a directory."""
        place = directory_range(directory_id)
        return sum(key.startswith(place) for key in self.tree.unreadable)

    def unreadable_below(self, directory_id: int) -> int:
        """Returns the number of unreadable records of entries in a directory and those below it."""
        return sum(1 for _ in self._unreadable_below(directory_id))

    def has_unreadable_below(self, directory_id: int) -> bool:
        """True if the record of an entry in a directory, or in one below it, is unreadable; also if
        a topic's was found unreadable only after the load, such as by ``locate``.
        """
        for key in self.unreadable_values:
            try:
                above = parse_entry_key(key).parent_id
            except ValueError:  # not an entry's
                continue
            if self._is_within(directory_id, above):
                return True
        return False

    def has_unreadable_containers_below(self, directory_id: int) -> bool:
        """True if the record of a directory, link or mount in a directory, or in one below it, is
        unreadable.
        """
        return any(not entry.is_topic for entry in self._unreadable_below(directory_id))

    def _unreadable_below(self, directory_id: int) -> Iterator[EntryKey]:
        for above, entries in self.unreadable_entries.items():
            if self._is_within(directory_id, above):
                yield from entries

    @property
    def unreadable_entries(self) -> Mapping[int, Sequence[EntryKey]]:
        """Keys of the entries whose records are unreadable, by the id of their directory."""
        if self._unreadable_entries is None:
            found: dict[int, list[EntryKey]] = {}
            for key in self.tree.unreadable:
                try:
                    entry = parse_entry_key(key)
                except ValueError:  # not an entry's, but grants, for example
                    continue
                found.setdefault(entry.parent_id, []).append(entry)
            self._unreadable_entries = found
        return self._unreadable_entries

    def _is_within(self, directory_id: int, above: int) -> bool:
        while above and above != directory_id:
            node = self.nodes.get(above)
            above = node.parent_id if node is not None else 0
        return above == directory_id

    @property
    def unreadable_values(self) -> Mapping[bytes, str]:
        """Keys of stored records that are not in the tree, with the reason.

        If a directory's own record is missing or unreadable, its ``directory_range`` is one key for
        all records directly in it.
        """
        tree = self.tree
        if not tree.loose and not tree.physical.base.unreadable:
            return tree.unreadable
        every = dict(tree.unreadable)
        for place, reason in tree.physical.unreadable.items():
            record = self._record(*place)
            if record is not None and self.codec.physical_names([record])[0] is None:
                every[entry_key(place.parent_id, Kind.TOPIC, place.name)] = reason
        for directory_id, contents in tree.loose.items():
            every[directory_range(directory_id)] = (
                f"{plural(len(contents.topics), 'topic')} and "
                f"{plural(len(contents.containers), 'other entry', 'other entries')} in "
                f"directory {directory_id:x}, which has no readable record"
            )
        return every

    # Entries.

    @property
    def has_lost(self) -> bool:
        """True if there are entries in a directory without a readable record."""
        return bool(self.tree.loose)

    def contents(self) -> Iterator[tuple[int, Contents]]:
        """Yields the entries directly in each directory, by id in order; also for directories
        without a readable record.
        """
        tree = self.tree
        for directory_id in sorted({*tree.nodes, *tree.loose}):
            node = tree.nodes.get(directory_id)
            found = tree.loose[directory_id] if node is None else node
            if found.topics or found.containers:
                yield directory_id, Contents(found.topics, found.containers)

    def entry_record(self, place: EntryKey) -> bytes | None:
        """Returns the record of an entry, also of one whose directory has no readable record."""
        if place.is_topic:
            return self._record(place.parent_id, place.name)
        contents = self._contents_of(place.parent_id)
        one = None if contents is None else contents.containers.get(place.name)
        return None if one is None else self.codec.encode(one)

    def topic(self, parent_id: int, name: str) -> Topic | None:
        """Returns a topic, decoded.

        Raises:
            UnreadableRecord: there is a record, and it cannot be read.
        """
        record = self._record(parent_id, name)
        if record is None:
            return None
        try:
            entry = self.codec.decode(record)
        except ValueError:
            entry = None
        if not isinstance(entry, Topic):
            # Loading checks first bytes only: damage further in may name another kind.
            reason = why_no_topic(self.codec, record)
            raise UnreadableRecord(f"the record of topic {name} cannot be read: {reason}")
        return entry

    def readable_topic(self, parent_id: int, name: str) -> Topic | None:
        """Returns a topic, decoded; None also if its record cannot be read: for work on all topics,
        which one such record must not stop.
        """
        try:
            return self.topic(parent_id, name)
        except UnreadableRecord:
            return None

    def topic_at(self, relative: Sequence[str]) -> Topic | None:
        """Returns the topic at a path below the mount, decoded.

        Raises:
            UnreadableRecord: there is a record, and it cannot be read.
        """
        parent_id = self.find_directory(relative[:-1]) if relative else None
        return None if parent_id is None else self.topic(parent_id, relative[-1])

    def container(self, parent_id: int, name: str) -> Container | None:
        """Returns a directory, link or mount."""
        node = self.tree.nodes.get(parent_id)
        return None if node is None else node.containers.get(name)

    def find_directory(self, relative: Iterable[str]) -> int | None:
        """Returns the id of the directory at a path below the mount."""
        node = self.root
        for name in relative:
            container = node.containers.get(name)
            if not isinstance(container, Directory):
                return None
            node = self.tree.nodes[container.entry_id]
        return node.entry_id

    def path_of(self, directory_id: int) -> tuple[str, ...] | None:
        """Returns the path of a directory below the mount; None if there is none: it is removed,
        below a removed one, or unknown.
        """
        return path_in(self.tree.nodes, directory_id)

    def locate(self, physical_name: str) -> LocatedTopic | None:
        """Returns the place of the topic with this physical name; if there are several (one
        removed, one new), of the one with a path.
        """
        removed: TopicKey | None = None
        for found, place in self._named_like(physical_name):
            if found != physical_name:
                continue
            above = self.path_of(place.parent_id)
            if above is not None:
                return self._located(place, (*above, place.name))
            removed = removed or place
        return None if removed is None else self._located(removed, None)

    def same_unified(self, physical_name: str) -> tuple[str, ...]:
        """Returns the physical names in the tree that equal this one except for ``.`` and ``_``, in
        order; itself included, if it is there. Kafka refuses such pairs.
        """
        return tuple(sorted({found for found, _ in self._named_like(physical_name)}))

    def index_physical_names(self, give_way: Callable[[], object] = lambda: None) -> None:
        """Builds the index that the first ``locate`` after a load would wait for: some two seconds
        for a million topics. It also parses every topic's record, so that ``unreadable_values`` is
        complete.

        ``give_way`` is called every millisecond or so, to let other threads work, until another
        thread waits for the index.
        """
        self.tree.physical.prepare(give_way)

    @property
    def all_read(self) -> bool:
        """True if every topic's record was parsed without error. A load checks first bytes only;
        ``index_physical_names`` parses the rest, and records of commits are parsed as they come.
        """
        return self.tree.physical.base.is_all_read

    def _named_like(self, physical_name: str) -> Iterator[tuple[str, TopicKey]]:
        unified = unify(physical_name)
        for place in self.tree.physical.candidates(unified):
            record = self._record(*place)
            if record is not None:
                (found,) = self.codec.physical_names([record])
                if found is not None and unify(found) == unified:
                    yield found, place

    def _located(self, place: TopicKey, relative: tuple[str, ...] | None) -> LocatedTopic | None:
        topic = self.topic(*place)
        return None if topic is None else LocatedTopic(*place, topic, relative)

    def mounts(self) -> Sequence[tuple[tuple[str, ...], Mount]]:
        """Returns the mounts with their paths below this cluster's mount, in path order."""
        found = []
        for (parent_id, name), mount in self.tree.mounts.items():
            above = self.path_of(parent_id)
            if above is not None:
                found.append(((*above, name), mount))
        return sorted(found, key=lambda one: one[0])

    def upwards(self, node: Node) -> list[Node]:
        """Returns the directory and those above it, up to the root directory."""
        found = [node]
        while node.parent_id and (above := self.nodes.get(node.parent_id)) is not None:
            found.append(above)
            node = above
        return found

    def directories_below(self, node: Node) -> Iterator[Node]:
        """Yields the directory and every one below it, parents before children."""
        stack = [node]
        while stack:
            here = stack.pop()
            yield here
            stack.extend(
                self.nodes[container.entry_id]
                for container in here.containers.values()
                if isinstance(container, Directory)
            )

    def has_mounts_below(self, directory_id: int) -> bool:
        """True if a cluster is mounted at any depth below the directory."""
        return self.counts(directory_id).mounts > 0

    # Facts.

    def facts(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows with a key prefix that are not entries: (key, value), in key order."""
        for key, value in self.tree.facts.items(prefix):
            if not key.startswith(prefix):
                return
            yield key, value

    def _record(self, parent_id: int, name: str) -> bytes | None:
        # The record of a topic.
        contents = self._contents_of(parent_id)
        return None if contents is None else contents.topics.get(name)

    def _contents_of(self, directory_id: int) -> Node | Contents | None:
        # The contents also of a directory without a readable record.
        return self.tree.nodes.get(directory_id) or self.tree.loose.get(directory_id)
