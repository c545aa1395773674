"""From a store's rows, in key order, to a tree; refuses to judge them, and to fail on a bad one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import immutables

from directory.namespace.applying import readable_container, readable_root, why_no_topic
from directory.namespace.entry import DELETED_ID, ROOT_ID, Codec, Directory, Mount
from directory.namespace.keys import ENTRY, parse_entry_key
from directory.namespace.physical_index import PhysicalIndex, Place
from directory.namespace.sorted_map import SortedMap
from directory.namespace.tree import (
    ROOT_KEY,
    Container,
    Contents,
    Counts,
    Node,
    Tree,
    is_fact,
)

__all__ = ["load"]


def load(codec: Codec, pages: Iterable[Sequence[tuple[bytes, bytes]]]) -> Tree:
    """The tree of all these rows."""
    loading = _Loading(codec)
    for page in pages:
        for key, value in page:
            loading.take(key, value)
    return loading.tree()


class _Loading:
    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._topics: dict[int, dict[str, bytes]] = {}
        self._containers: dict[int, dict[str, Container]] = {}
        self._facts: dict[bytes, bytes] = {}
        self._unreadable: dict[bytes, str] = {}
        self._physical = PhysicalIndex()
        self._root = Directory(entry_id=ROOT_ID)

    def take(self, key: bytes, value: bytes) -> None:
        if not key.startswith(ENTRY):
            if is_fact(key):
                self._facts[key] = value
            return
        try:
            if key == ROOT_KEY:
                self._root = readable_root(self._codec, value)
                return
            parent_id, is_topic, name = parse_entry_key(key)
            if not is_topic:
                container = readable_container(self._codec, value)
                self._containers.setdefault(parent_id, {})[name] = container
                return
            (physical_name,) = self._codec.physical_names([value])
            if physical_name is None:
                raise ValueError(why_no_topic(self._codec, value))
            self._topics.setdefault(parent_id, {})[name] = value
            self._physical = self._physical.add(physical_name, Place(parent_id, name))
        except ValueError as error:
            self._unreadable[key] = str(error)

    def tree(self) -> Tree:
        places: dict[int, tuple[int, str, Directory]] = {
            ROOT_ID: (0, "", self._root),
            DELETED_ID: (0, "", Directory(entry_id=DELETED_ID)),
        }
        for parent_id, containers in self._containers.items():
            for name, container in containers.items():
                if isinstance(container, Directory):
                    places[container.entry_id] = (parent_id, name, container)
        contents = {
            directory_id: Contents(
                SortedMap.of(self._topics.get(directory_id, {}).items()),
                SortedMap.of(self._containers.get(directory_id, {}).items()),
            )
            for directory_id in {*self._topics, *self._containers, *places}
        }
        nodes = {
            directory_id: Node(directory_id, *place, *contents[directory_id])
            for directory_id, place in places.items()
        }
        loose = {
            directory_id: content
            for directory_id, content in contents.items()
            if directory_id not in nodes
        }
        counts: dict[int, Counts] = {}

        def count(directory_id: int) -> Counts:
            inside = contents.get(directory_id)
            total = Counts()
            if inside is not None:
                total = Counts(topics=len(inside.topics))
                for container in inside.containers.values():
                    if isinstance(container, Directory):
                        total = total.plus(count(container.entry_id)).plus(Counts(directories=1))
                    elif isinstance(container, Mount):
                        total = total.plus(Counts(mounts=1))
            if any(total):
                counts[directory_id] = total
            return total

        for start in (ROOT_ID, DELETED_ID, *loose):
            count(start)
        return Tree(
            nodes=immutables.Map(nodes),
            loose=immutables.Map(loose),
            counts=immutables.Map(counts),
            mounts=immutables.Map(
                {
                    Place(parent_id, name): container
                    for parent_id, containers in self._containers.items()
                    for name, container in containers.items()
                    if isinstance(container, Mount)
                }
            ),
            physical=self._physical,
            facts=SortedMap.of(self._facts.items()),
            unreadable=immutables.Map(self._unreadable),
        )
