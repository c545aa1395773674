"""Updates a tree by the writes of one commit, in any order.

A record that cannot be read, or a directory that would be below itself or at two places, is left
out with the reason; all other writes are applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from directory.namespace.entry import (
    DELETED_ID,
    ROOT_ID,
    Codec,
    Directory,
    Mount,
    Policies,
    Topic,
)
from directory.namespace.grant_rows import update_grant_tree
from directory.namespace.keys import ENTRY, GRANTS
from directory.namespace.physical_name_index import PhysicalNameIndex, TopicKey, why_no_topic
from directory.namespace.sorted_map import SortedMap
from directory.namespace.tree_nodes import (
    NOTHING,
    ROOT_KEY,
    Container,
    Contents,
    Counts,
    Node,
    Tree,
    entry_place,
    is_fact,
    partitions_of,
    physical_index_of,
)
from directory.namespace.updatable_fields import ASPECTS
from directory.store.base import Put, Write

__all__ = ["UNREADABLE_ROOT", "apply", "readable_container", "readable_root"]

UNREADABLE_ROOT: Final = Directory(
    entry_id=ROOT_ID,
    closed=True,
    policies=Policies(read_only=True, manage=MappingProxyType(dict.fromkeys(ASPECTS, False))),
)
"""Root directory whose record cannot be read (S21). What it forbade is unknown, so it forbids all:
only super users, and callers that may describe it by a grant, see entries below; nothing may
change.
"""
_ONE_DIRECTORY = Counts(directories=1)
_ONE_MOUNT = Counts(mounts=1)


def apply(tree: Tree, codec: Codec, writes: Iterable[Write]) -> Tree:
    """Returns the tree after these writes; each key is written at most once."""
    change = _Change(tree, codec)
    for write in writes:
        change.add_write(write)
    return change.tree()


def readable_container(codec: Codec, record: bytes) -> Container:
    """Returns the directory, link or mount of a record.

    Raises:
        ValueError: the record is none of these; the message is one sentence.
    """
    entry = codec.decode(record)
    if isinstance(entry, Topic):
        raise ValueError("a topic's record under a container's key")  # noqa: TRY004 - bad bytes
    return entry


def readable_root(codec: Codec, record: bytes) -> Directory:
    """Returns the root directory, decoded from its record.

    Raises:
        ValueError: the record is not the root directory's; the message is one sentence.
    """
    entry = codec.decode(record)
    if not isinstance(entry, Directory) or entry.entry_id != ROOT_ID:
        raise ValueError("not the root directory's record")
    return entry


class _Change:
    """Change of a tree by the writes of one commit.

    Containers are applied first, removals before puts: a moved directory is a removal and a put of
    the same id, in either order. Topics follow, directory by directory.
    """

    def __init__(self, tree: Tree, codec: Codec) -> None:
        self._codec = codec
        self._nodes = tree.nodes.mutate()
        self._loose = tree.loose.mutate()
        self._counts = tree.counts.mutate()
        sums = tree.partitions.kept
        self._partitions = None if sums is None else sums.mutate()
        self._mounts = tree.mounts.mutate()
        self._unreadable = tree.unreadable.mutate()
        self._physical: PhysicalNameIndex = tree.physical
        self._facts: SortedMap[bytes, bytes] = tree.facts
        self._before = tree
        self._directories: dict[int, None] = {}
        self._grants: list[bytes] = []
        self._new_containers: dict[bytes, tuple[TopicKey, Container | None]] = {}
        self._new_topics: dict[int, list[tuple[bytes, str, bytes | None]]] = {}

    def add_write(self, write: Write) -> None:
        """Applies a write of a fact or of the root; collects others, by kind, for ``tree``."""
        key, record = write.key, write.value if isinstance(write, Put) else None
        if not key.startswith(ENTRY):
            if is_fact(key):
                self._facts = (
                    self._facts.delete(key) if record is None else self._facts.set(key, record)
                )
            if key.startswith(GRANTS):
                self._unreadable.pop(key, None)
                self._grants.append(key)
            return
        self._unreadable.pop(key, None)
        if key == ROOT_KEY:
            self._set_root(record)
            return
        try:
            parent_id, is_topic, name = entry_place(key)
        except ValueError as error:
            if record is not None:
                self._unreadable[key] = str(error)
            return
        if is_topic:
            self._new_topics.setdefault(parent_id, []).append((key, name, record))
        else:
            container = None if record is None else self._read(key, record)
            self._new_containers[key] = (TopicKey(parent_id, name), container)

    def tree(self) -> Tree:
        """Returns the tree after all added writes."""
        for place, container in self._new_containers.values():
            self._remove_container(place, container)
        for key, (place, container) in self._new_containers.items():
            if container is not None:
                self._put_container(key, place, container)
        for parent_id, topics in self._new_topics.items():
            self._set_topics(parent_id, topics)
        nodes, loose = self._nodes.finish(), self._loose.finish()
        grants = self._before.grants
        if self._directories or self._grants:
            # Grants are part of the tree of the same commit, so that no reader finds a later allow
            # without an earlier deny (A4).
            grants, unreadable = update_grant_tree(
                grants,
                self._codec,
                self._before.nodes,
                nodes,
                self._facts,
                self._directories,
                self._grants,
            )
            self._unreadable.update(unreadable)
        if self._physical.due:
            self._physical = physical_index_of(self._codec, nodes, loose)
        return Tree(
            nodes=nodes,
            loose=loose,
            counts=self._counts.finish(),
            mounts=self._mounts.finish(),
            physical=self._physical,
            partitions=self._before.partitions.after(
                partitions_of(self._codec, nodes, loose),
                None if self._partitions is None else self._partitions.finish(),
            ),
            facts=self._facts,
            unreadable=self._unreadable.finish(),
            grants=grants,
        )

    def _read(self, key: bytes, record: bytes) -> Container | None:
        try:
            return readable_container(self._codec, record)
        except ValueError as error:
            self._unreadable[key] = str(error)
            return None

    def _set_root(self, record: bytes | None) -> None:
        directory = Directory(entry_id=ROOT_ID)
        if record is not None:
            try:
                directory = readable_root(self._codec, record)
            except ValueError as error:
                self._unreadable[ROOT_KEY], directory = str(error), UNREADABLE_ROOT
        self._nodes[ROOT_ID] = replace(self._nodes[ROOT_ID], directory=directory)
        self._directories[ROOT_ID] = None

    # The entries of a directory, whether it has a record or not.

    def _contents(self, directory_id: int) -> Contents:
        node = self._nodes.get(directory_id)
        if node is not None:
            return Contents(node.topics, node.containers)
        return self._loose.get(directory_id, NOTHING)

    def _set_contents(self, directory_id: int, contents: Contents) -> None:
        node = self._nodes.get(directory_id)
        if node is not None:
            self._nodes[directory_id] = Node(
                directory_id, node.parent_id, node.name, node.directory, *contents
            )
        elif contents.topics or contents.containers:
            self._loose[directory_id] = contents
        else:
            self._loose.pop(directory_id, None)

    # Counts of what is below, kept for each directory along the path.

    def _count(
        self, directory_id: int, counts: Counts, sign: int = 1, *, partitions: int = 0
    ) -> None:
        at: int = directory_id
        while True:
            new = self._counts.get(at, Counts()).plus(counts, sign)
            if any(new):
                self._counts[at] = new
            else:
                self._counts.pop(at, None)
            if partitions and self._partitions is not None:
                total = self._partitions.get(at, 0) + sign * partitions
                if total:
                    self._partitions[at] = total
                else:
                    self._partitions.pop(at, None)
            node = self._nodes.get(at)
            if node is None or not node.parent_id:
                return
            at = node.parent_id

    def _count_directory(self, directory_id: int, parent_id: int, sign: int = 1) -> None:
        counts = self._counts.get(directory_id, Counts()).plus(_ONE_DIRECTORY)
        partitions = 0 if self._partitions is None else self._partitions.get(directory_id, 0)
        self._count(parent_id, counts, sign, partitions=partitions)

    # Containers.

    def _remove_container(self, place: TopicKey, successor: Container | None) -> None:
        contents = self._contents(place.parent_id)
        old = contents.containers.get(place.name)
        if old is None:
            return
        if isinstance(old, Directory):
            self._directories[old.entry_id] = None
            stays = isinstance(successor, Directory) and successor.entry_id == old.entry_id
            if stays:
                return
            self._detach(old.entry_id)
        elif isinstance(old, Mount):
            del self._mounts[place]
            self._count(place.parent_id, _ONE_MOUNT, -1)
        contents = self._contents(place.parent_id)
        self._set_contents(
            place.parent_id, contents._replace(containers=contents.containers.delete(place.name))
        )

    def _detach(self, directory_id: int) -> None:
        node = self._nodes.pop(directory_id)
        self._count_directory(directory_id, node.parent_id, -1)
        self._set_contents(directory_id, Contents(node.topics, node.containers))

    def _put_container(self, key: bytes, place: TopicKey, container: Container) -> None:
        if isinstance(container, Directory):
            reason = self._attach(place, container)
            if reason:
                self._unreadable[key] = reason
                return
            self._directories[container.entry_id] = None
        elif isinstance(container, Mount):
            self._mounts[place] = container
            self._count(place.parent_id, _ONE_MOUNT)
        contents = self._contents(place.parent_id)
        self._set_contents(
            place.parent_id,
            contents._replace(containers=contents.containers.set(place.name, container)),
        )

    def _attach(self, place: TopicKey, directory: Directory) -> str:
        directory_id = directory.entry_id
        if directory_id in {ROOT_ID, DELETED_ID}:
            return f"entry id {directory_id} is reserved"
        node = self._nodes.get(directory_id)
        if node is not None:
            if (node.parent_id, node.name) != place:
                return f"entry id {directory_id} exists elsewhere too"
            self._nodes[directory_id] = replace(node, directory=directory)
            return ""
        above: Node | None = self._nodes.get(place.parent_id)
        at: int = place.parent_id
        while at != directory_id and above is not None and above.parent_id:
            at = above.parent_id
            above = self._nodes.get(at)
        if at == directory_id:
            return "the directory would lie in itself"
        contents = self._contents(directory_id)
        self._loose.pop(directory_id, None)
        self._nodes[directory_id] = Node(directory_id, *place, directory, *contents)
        self._count_directory(directory_id, place.parent_id)
        return ""

    # Topics.

    def _set_topics(self, parent_id: int, changes: list[tuple[bytes, str, bytes | None]]) -> None:
        contents = self._contents(parent_id)
        topics = contents.topics
        before = len(topics)
        partitions = 0
        names = self._codec.physical_names([record or b"" for _, _, record in changes])
        for (key, name, record), physical_name in zip(changes, names, strict=True):
            place = TopicKey(parent_id, name)
            old = topics.get(name)
            old_name = None if old is None else self._codec.physical_names([old])[0]
            if old is not None and self._partitions is not None:
                partitions -= self._codec.partitions((old,))
            if record is not None and physical_name is not None:
                topics = topics.set(name, record)
                if self._partitions is not None:
                    partitions += self._codec.partitions((record,))
            else:
                topics = topics.delete(name)
            if old_name != physical_name:
                if old_name is not None:
                    self._physical = self._physical.remove(old_name, place)
                if physical_name is not None:
                    self._physical = self._physical.add(physical_name, place)
            if record is not None and physical_name is None:
                self._unreadable[key] = why_no_topic(self._codec, record)
        self._set_contents(parent_id, contents._replace(topics=topics))
        if partitions or len(topics) != before:
            self._count(parent_id, Counts(topics=len(topics) - before), partitions=partitions)
