"""The plainest model of a cluster's tree: one dict of rows, walked anew for each question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from directory.namespace.entry import (
    DELETED_ID,
    ROOT_ID,
    Directory,
    Entry,
    Kind,
    Link,
    Mount,
    Policies,
    Topic,
)
from directory.namespace.keys import entry_key, parse_entry_key, unify
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Delete, Put, Write
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path

CODEC = ProtoCodec()
Segments = tuple[str, ...]


@dataclass
class Model:
    """Rows as a store would hold them, and the answers that follow from them."""

    rows: dict[bytes, bytes] = field(default_factory=dict)

    def write(self, writes: Iterable[Write]) -> None:
        for write in writes:
            match write:
                case Put(key, value):
                    self.rows[key] = value
                case Delete(key):
                    self.rows.pop(key, None)

    def load(self, page_size: int = 7) -> Snapshot:
        rows = sorted(self.rows.items())
        pages = [rows[start : start + page_size] for start in range(0, len(rows), page_size)]
        return Snapshot.load(CODEC, "i", 1, pages)

    def entries(self, parent_id: int) -> Iterator[tuple[str, bool, Entry]]:
        """Yields (name, whether a container, entry) in listing order."""
        found = []
        for key, value in self.rows.items():
            if key.startswith(b"e/") and key != ROOT_KEY:
                place = parse_entry_key(key)
                if place.parent_id == parent_id:
                    found.append((place.name, not place.is_topic, CODEC.decode(value)))
        yield from sorted(found, key=lambda one: one[:2])

    def get(self, parent_id: int, name: str, *, container: bool) -> Entry | None:
        for found, is_container, entry in self.entries(parent_id):
            if (found, is_container) == (name, container):
                return entry
        return None

    def walk(self, directory_id: int, above: Segments = ()) -> Iterator[tuple[Segments, Entry]]:
        """Yields all below, each directory followed by what is in it."""
        for name, _, entry in self.entries(directory_id):
            yield (*above, name), entry
            if isinstance(entry, Directory):
                yield from self.walk(entry.entry_id, (*above, name))

    def directories(self) -> dict[int, Segments | None]:
        """Returns ids of all directories with their paths; None for those that are removed."""
        found: dict[int, Segments | None] = {ROOT_ID: (), DELETED_ID: None}
        for path, entry in self.walk(ROOT_ID):
            if isinstance(entry, Directory):
                found[entry.entry_id] = path
        for _, entry in self.walk(DELETED_ID):
            if isinstance(entry, Directory):
                found[entry.entry_id] = None
        return found

    def physical(self) -> dict[str, list[Segments | None]]:
        """Returns the paths of topics by physical name."""
        found: dict[str, list[Segments | None]] = {}
        for start in (ROOT_ID, DELETED_ID):
            for path, entry in self.walk(start):
                if isinstance(entry, Topic):
                    place = path if start == ROOT_ID else None
                    found.setdefault(entry.physical_name, []).append(place)
        return found

    def same_unified(self, physical_name: str) -> tuple[str, ...]:
        unified = unify(physical_name)
        return tuple(sorted(name for name in self.physical() if unify(name) == unified))


def topic(entry_id: int, physical_name: str) -> Topic:
    return Topic(entry_id=entry_id, physical_name=physical_name)


def directory(entry_id: int, owner: str | None = None) -> Directory:
    return Directory(entry_id=entry_id, policies=Policies(owner=owner))


def link(entry_id: int) -> Link:
    return Link(entry_id=entry_id, targets=(Path.parse("/elsewhere"),))


def mount(entry_id: int) -> Mount:
    return Mount(entry_id=entry_id, cluster_id=f"kc-{entry_id}")


def put(parent_id: int, name: str, entry: Entry) -> Put:
    return Put(entry_key(parent_id, entry.kind, name), CODEC.encode(entry))


def remove(parent_id: int, name: str, kind: Kind) -> Delete:
    return Delete(entry_key(parent_id, kind, name))
