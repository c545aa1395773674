"""Snapshot: the immutable tree of one cluster at one revision, held by a request to its end.

It refuses to change: ``apply`` gives the next one, which shares all but what changed. Counts are of
what resolves: what lies below ``DELETED_ID`` has no path and is in no count but that one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from directory.access.grant_tree import GrantTree
from directory.namespace import snapshot_load, snapshot_update
from directory.namespace.entry import ROOT_ID, Codec, Directory, Kind, Mount, Topic
from directory.namespace.keys import directory_range, entry_key, unify
from directory.namespace.physical_name_index import TopicKey
from directory.namespace.tree_nodes import Container, Contents, Counts, Node, Tree, path_in
from directory.store.base import Write
from resolver.errors import Internal
from resolver.units import plural

__all__ = ["Container", "Counts", "LocatedTopic", "Node", "Snapshot"]


class LocatedTopic(NamedTuple):
    """Place of a physical topic in the tree."""

    parent_id: int
    name: str
    topic: Topic
    relative: tuple[str, ...] | None
    """Its path below the mount; None when it is removed (below ``DELETED_ID``)."""


class Snapshot:
    """The tree of one cluster at one revision. Safe to read from any thread.

    ``root`` is the node of the directory at the mount point, ``nodes`` all of them by id,
    ``grants`` who may do what, by path.
    """

    __slots__ = ("codec", "grants", "incarnation", "nodes", "revision", "root", "tree")

    def __init__(self, codec: Codec, incarnation: str, revision: int, tree: Tree) -> None:
        self.codec = codec
        self.incarnation = incarnation
        self.revision = revision
        self.tree = tree
        # Plain attributes, not properties: every lookup begins with them.
        self.nodes: Mapping[int, Node] = tree.nodes
        self.root: Node = tree.nodes[ROOT_ID]
        self.grants: GrantTree = tree.grants

    @classmethod
    def empty(cls, codec: Codec, incarnation: str = "") -> Snapshot:
        """Returns a cluster without commits: the root directory with nothing in it."""
        return cls.load(codec, incarnation, 0, ())

    @classmethod
    def load(
        cls,
        codec: Codec,
        incarnation: str,
        revision: int,
        pages: Iterable[Sequence[tuple[bytes, bytes]]],
    ) -> Snapshot:
        """Returns the snapshot of all rows of a store, as (key, value), in key order, in pages.

        A record that cannot be read is in ``unreadable_values``, and the rest is served.
        """
        return cls(codec, incarnation, revision, snapshot_load.load(codec, pages))

    def apply(self, revision: int, writes: Iterable[Write]) -> Snapshot:
        """Returns the snapshot after a commit."""
        tree = snapshot_update.apply(self.tree, self.codec, writes)
        return Snapshot(self.codec, self.incarnation, revision, tree)

    # What there is.

    @property
    def topic_count(self) -> int:
        """Topics that have a path."""
        return self.counts(ROOT_ID).topics

    @property
    def directory_count(self) -> int:
        """Directories that have a path, the root not counted."""
        return self.counts(ROOT_ID).directories

    def counts(self, directory_id: int) -> Counts:
        """Returns how many topics, directories and mounts there are below a directory, at any
        depth; of ``DELETED_ID``, what waits for the reaper.
        """
        return self.tree.counts.get(directory_id, Counts())

    def partitions(self, directory_id: int) -> int:
        """Returns how many partitions the topics below a directory have together, at any depth, as
        they are on record; one whose number is not known counts as one.
        """
        return self.tree.partitions.below(directory_id)

    def unreadable(self, key: bytes) -> str:
        """Returns why the record at an entry's key is not in the tree; empty when there is none."""
        return self.tree.unreadable.get(key, "")

    def unreadable_in(self, directory_id: int) -> int:
        """Returns how many records directly in a directory cannot be read, and so are not in the
        tree.
        """
        place = directory_range(directory_id)
        return sum(key.startswith(place) for key in self.tree.unreadable)

    @property
    def unreadable_values(self) -> Mapping[bytes, str]:
        """Keys of what is in the store and not in the tree, with the reason. A directory's range as
        key means all that lies in a directory whose own record is missing or unreadable.
        """
        tree = self.tree
        if not tree.loose and not tree.physical.unreadable:
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

    def node(self, directory_id: int) -> Node | None:
        """Returns a directory with its contents; ``ROOT_ID`` and ``DELETED_ID`` always exist."""
        return self.tree.nodes.get(directory_id)

    @property
    def has_lost(self) -> bool:
        """Whether something lies in a directory that has no readable record."""
        return bool(self.tree.loose)

    def contents(self) -> Iterator[tuple[int, Contents]]:
        """Yields what lies directly in each directory that there is anything in, by id in order;
        also in one that has no readable record.
        """
        tree = self.tree
        for directory_id in sorted({*tree.nodes, *tree.loose}):
            node = tree.nodes.get(directory_id)
            found = tree.loose[directory_id] if node is None else node
            if found.topics or found.containers:
                yield directory_id, Contents(found.topics, found.containers)

    def topic(self, parent_id: int, name: str) -> Topic | None:
        """Returns a topic, decoded.

        Raises:
            Internal: there is a record, and it cannot be read.
        """
        record = self._record(parent_id, name)
        if record is None:
            return None
        try:
            # Loading and applying keep nothing else under a topic's key.
            return cast("Topic", self.codec.decode(record))
        except ValueError as error:
            raise Internal(f"the record of topic {name} cannot be read: {error}") from None

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
        """Returns the path of a directory below the mount; None when there is none: it is removed,
        below a removed one, or unknown.
        """
        return path_in(self.tree.nodes, directory_id)

    def locate(self, physical_name: str) -> LocatedTopic | None:
        """Returns where the topic with this name in Kafka is. Of several (one removed, one new) the
        one that has a path.
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
        """Returns the physical names in the tree that are this one but for ``.`` and ``_``, this
        one included if it is there, in order. Kafka refuses such pairs.
        """
        return tuple(sorted({found for found, _ in self._named_like(physical_name)}))

    def index_physical_names(self, give_way: Callable[[], object] = lambda: None) -> None:
        """Makes now what the first ``locate`` after a load would have to wait for: some two seconds
        a million topics. It also reads every record, so that ``unreadable_values`` is complete.

        ``give_way`` is called every millisecond or so, to let others work, until somebody waits.
        """
        self.tree.physical.prepare(give_way)

    @property
    def all_read(self) -> bool:
        """Whether every topic's record was read whole, and could be. A load looks at first bytes
        only; ``index_physical_names`` reads the rest, and a commit's records are read as they come.
        """
        return self.tree.physical.base.is_all_read

    def _named_like(self, physical_name: str) -> Iterator[tuple[str, TopicKey]]:
        unified = unify(physical_name)
        for place in self.tree.physical.candidates(physical_name):
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

    def directories_below(self, node: Node) -> Iterator[Node]:
        """Yields the directory and every one below it, each before those that it holds."""
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
        """True if a cluster is mounted somewhere below the directory."""
        return self.counts(directory_id).mounts > 0

    # Facts.

    def fact(self, key: bytes) -> bytes | None:
        """Returns the value of a key that is no entry's; claims, requests and events are not kept
        here.
        """
        return self.tree.facts.get(key)

    def facts(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) of all such keys with a prefix, in key order."""
        for key, value in self.tree.facts.items(prefix):
            if not key.startswith(prefix):
                return
            yield key, value

    def _record(self, parent_id: int, name: str) -> bytes | None:
        # Of a topic, also of one whose directory has no readable record.
        contents = self.tree.nodes.get(parent_id) or self.tree.loose.get(parent_id)
        return None if contents is None else contents.topics.get(name)
