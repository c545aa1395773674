"""Loads a tree from a store's rows, in key order; unreadable rows are left out, with the reason.

A load of a million topics is bound by the work for each topic, so it is done a directory at a time,
by the few calls that work on all names at once: 0.4 µs a topic, about what sqlite takes to read it.
Only the first bytes of a topic's record are checked. Damage further in is found when the physical
names are indexed, or when the record is decoded, and is an error of its path alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import immutables

from directory.namespace.entry import DELETED_ID, ROOT_ID, Codec, Directory, Kind, Mount
from directory.namespace.grant_rows import grant_tree_of
from directory.namespace.keys import ENTRY, entry_key
from directory.namespace.physical_name_index import TopicKey, why_no_topic
from directory.namespace.snapshot_update import (
    UNREADABLE_ROOT,
    readable_container,
    readable_root,
)
from directory.namespace.sorted_map import SortedMap
from directory.namespace.tree_nodes import (
    LEGAL,
    NOTHING,
    ROOT_KEY,
    Container,
    Contents,
    Counts,
    Node,
    PartitionCounts,
    Topics,
    Tree,
    entry_place,
    is_fact,
    partitions_of,
    physical_index_of,
)

__all__ = ["load"]

_PREFIX = len(ENTRY) + 9
"""Bytes of an entry's key before its name: the same for all topics of one directory."""
_NO_TOPICS: Topics = SortedMap()

Row = tuple[bytes, bytes]


def load(codec: Codec, pages: Iterable[Sequence[Row]]) -> Tree:
    """Returns the tree of all these rows."""
    rows = _Rows(codec)
    for page in pages:
        rows.add_page(page)
    return _assembled(codec, rows)


class _Rows:
    """Rows sorted by directory."""

    def __init__(self, codec: Codec) -> None:
        self.topics: dict[int, Topics] = {}
        self.containers: dict[int, dict[str, Container]] = {}
        self.facts: dict[bytes, bytes] = {}
        self.unreadable: dict[bytes, str] = {}
        self.root = Directory(entry_id=ROOT_ID)
        self._codec = codec
        # The directory whose topics are being read; it may span many pages.
        self._parent_id = 0
        self._names: list[str] = []
        self._records: list[bytes] = []

    def add_page(self, page: Sequence[Row]) -> None:
        """Adds a page run by run; a run is the rows of one directory and kind."""
        start = 0
        while start < len(page):
            prefix = page[start][0][:_PREFIX]
            if page[-1][0][:_PREFIX] == prefix:
                end = len(page)
            else:
                # A name has no byte 0xFF; a key that has one makes a run of its own.
                end = max(bisect_left(page, (prefix + b"\xff",), start), start + 1)
            run = page[start:end] if end - start < len(page) else page
            place = prefix[_PREFIX - 1 :] if prefix.startswith(ENTRY) else b""
            if place == b"t":
                self._take_topics(prefix, run)
            elif place == b"c":
                self._take_containers(prefix, run)
            else:
                self._take_others(run)
            start = end

    def finish(self) -> None:
        """Finishes after the last page."""
        if self._names:
            self.topics[self._parent_id] = SortedMap.from_sorted(self._names, self._records)

    def _take_topics(self, prefix: bytes, run: Sequence[Row]) -> None:
        parent_id = int.from_bytes(prefix[len(ENTRY) : -1], "big")
        if parent_id != self._parent_id:
            self.finish()
            self._parent_id, self._names, self._records = parent_id, [], []
        names = _names(prefix, run)
        records = [record for _, record in run]
        if names and self._codec.look_like_topics(records):
            self._names += names
            self._records += records
            return
        for key, record in run:
            try:
                name = entry_place(key).name
                if self._codec.physical_names([record])[0] is None:
                    raise ValueError(why_no_topic(self._codec, record))
            except ValueError as error:
                self.unreadable[key] = str(error)
            else:
                self._names.append(name)
                self._records.append(record)

    def _take_containers(self, prefix: bytes, run: Sequence[Row]) -> None:
        containers = self.containers.setdefault(int.from_bytes(prefix[len(ENTRY) : -1], "big"), {})
        names = _names(prefix, run)
        for position, (key, record) in enumerate(run):
            if key == ROOT_KEY:
                self._take_root(record)
                continue
            try:
                name = names[position] if names else entry_place(key).name
                containers[name] = readable_container(self._codec, record)
            except ValueError as error:
                self.unreadable[key] = str(error)

    def _take_root(self, record: bytes) -> None:
        try:
            self.root = readable_root(self._codec, record)
        except ValueError as error:
            self.unreadable[ROOT_KEY], self.root = str(error), UNREADABLE_ROOT

    def _take_others(self, run: Sequence[Row]) -> None:
        for key, value in run:
            if is_fact(key):
                self.facts[key] = value
            elif key.startswith(ENTRY):
                self.unreadable[key] = f"not an entry key: {key!r}"


def _names(prefix: bytes, run: Sequence[Row]) -> list[str]:
    """Returns the names in the keys of a run; empty if one of them is not legal."""
    # All keys as one text, split at their common prefix. No legal name has the prefix's `/`, so the
    # prefix is found only where a key begins; a name with `/` or another odd byte is not legal.
    keys = b"".join([key for key, _ in run]).decode("latin-1")
    names = keys.split(prefix.decode("latin-1"))
    del names[0]
    odd = "".join(names).encode().translate(None, LEGAL)
    # An empty name would be the first: it is the shortest.
    return [] if odd or len(names) != len(run) or not names[0] else names


class _DirectoryPlace(NamedTuple):
    """Directory and its place."""

    parent_id: int
    name: str
    directory: Directory


def _assembled(codec: Codec, rows: _Rows) -> Tree:
    rows.finish()
    standing = _directories(rows)
    contents = {
        directory_id: Contents(
            rows.topics.get(directory_id, _NO_TOPICS), _in_order(rows.containers.get(directory_id))
        )
        for directory_id in {*rows.topics, *rows.containers}
    }
    nodes = {
        directory_id: Node(directory_id, *one, *contents.get(directory_id, NOTHING))
        for directory_id, one in standing.items()
    }
    loose = immutables.Map(
        {one: content for one, content in contents.items() if one not in nodes and any(content)}
    )
    mounts = {
        TopicKey(parent_id, name): container
        for parent_id, containers in rows.containers.items()
        for name, container in containers.items()
        if isinstance(container, Mount)
    }
    finished = immutables.Map(nodes)
    facts = SortedMap.from_sorted(list(rows.facts), list(rows.facts.values()))
    grants = grant_tree_of(codec, nodes, facts, rows.unreadable)
    return Tree(
        nodes=finished,
        loose=loose,
        counts=immutables.Map(_counts(standing, contents, mounts)),
        mounts=immutables.Map(mounts),
        physical=physical_index_of(codec, finished, loose),
        partitions=PartitionCounts(partitions_of(codec, finished, loose)),
        facts=facts,
        unreadable=immutables.Map(rows.unreadable),
        grants=grants,
    )


def _in_order(containers: dict[str, Container] | None) -> SortedMap[str, Container]:
    # A dict keeps the order of its rows, which is that of the names.
    if not containers:
        return NOTHING.containers
    return SortedMap.from_sorted(list(containers), list(containers.values()))


def _directories(rows: _Rows) -> dict[int, _DirectoryPlace]:
    """Returns all directories by id; removes those with an impossible place from ``rows``."""
    standing = {
        ROOT_ID: _DirectoryPlace(0, "", rows.root),
        DELETED_ID: _DirectoryPlace(0, "", Directory(entry_id=DELETED_ID)),
    }

    def put_aside(parent_id: int, name: str, reason: str) -> None:
        del rows.containers[parent_id][name]
        rows.unreadable[entry_key(parent_id, Kind.DIRECTORY, name)] = reason

    for parent_id, containers in rows.containers.items():
        for name, container in list(containers.items()):
            if not isinstance(container, Directory):
                continue
            if container.entry_id not in standing:
                standing[container.entry_id] = _DirectoryPlace(parent_id, name, container)
            elif container.entry_id in {ROOT_ID, DELETED_ID}:
                put_aside(parent_id, name, f"entry id {container.entry_id} is reserved")
            else:
                put_aside(parent_id, name, f"entry id {container.entry_id} exists elsewhere too")
    sound = {ROOT_ID, DELETED_ID}
    for directory_id in list(standing):
        trail: list[int] = []
        at: int = directory_id
        while at in standing and at not in sound:
            sound.add(at)
            trail.append(at)
            at = standing[at].parent_id
        if at in trail:
            parent_id, name, _ = standing.pop(at)
            put_aside(parent_id, name, "the directory would lie in itself")
    return standing


def _counts(
    standing: dict[int, _DirectoryPlace], contents: dict[int, Contents], mounts: Iterable[TopicKey]
) -> dict[int, Counts]:
    """Returns the counts below each directory: deepest first, so that each is added to its parent
    once.
    """
    counts: dict[int, Counts] = {
        one: Counts(topics=len(content.topics)) for one, content in contents.items()
    }
    for place in mounts:
        counts[place.parent_id] = counts.get(place.parent_id, Counts()).plus(Counts(mounts=1))
    left = dict.fromkeys(standing, 0)
    for parent_id, _, _ in standing.values():
        if parent_id in left:
            left[parent_id] += 1
    ready = [one for one, below in left.items() if not below]
    while ready:
        one = ready.pop()
        parent_id = standing[one].parent_id
        if not parent_id:
            continue
        inside = counts.get(one, Counts())
        above = counts.get(parent_id, Counts())
        counts[parent_id] = Counts(
            above.topics + inside.topics,
            above.directories + inside.directories + 1,
            above.mounts + inside.mounts,
        )
        if parent_id in left:
            left[parent_id] -= 1
            if not left[parent_id]:
                ready.append(parent_id)
    return {one: count for one, count in counts.items() if any(count)}
