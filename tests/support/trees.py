"""One cluster's tree in memory, for tests of what is pure: commands in, golden trees as text out.

Every plan is committed as a store would: its guards are checked, and no key is written twice. The
next snapshot is made from the writes; ``Cluster.loaded`` makes one from all rows, to compare.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from directory.namespace.command import Command, DeleteEntry, EntryChange, Plan, PlanContext
from directory.namespace.entry import (
    DELETED_ID,
    Directory,
    Entry,
    Kind,
    Link,
    LinkMode,
    Mount,
    Topic,
)
from directory.namespace.plan import plan
from directory.namespace.snapshot import Node, Snapshot
from directory.store.base import Delete, Guard, KeyEquals, Put, UnchangedSince, Write
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path

__all__ = ["NOW_MS", "Cluster", "Rows", "path"]

NOW_MS = 1_800_000_000_000
_SHORT = {Kind.DIRECTORY: "dir", Kind.TOPIC: "topic", Kind.LINK: "link", Kind.MOUNT: "mount"}


def path(text: str) -> Path:
    """Returns the path that a test writes as text."""
    return Path.parse(text)


@dataclass
class Rows:
    """The rows of a store, by the contract of ``directory/store/base.py`` and no more than it."""

    values: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    revision: int = 0

    def holds(self, guard: Guard) -> bool:
        match guard:
            case KeyEquals(key, value):
                row = self.values.get(key)
                return (None if row is None else row[0]) == value
            case UnchangedSince(prefix, revision):
                return not any(
                    key.startswith(prefix) and at > revision for key, (_, at) in self.values.items()
                )

    def commit(self, guards: Iterable[Guard], writes: Iterable[Write]) -> bool:
        """True if all guards held; if so the writes are made."""
        if not all(self.holds(guard) for guard in guards):
            return False
        self.revision += 1
        written: set[bytes] = set()
        for write in writes:
            assert write.key not in written, f"{write.key!r} is written twice"
            written.add(write.key)
            match write:
                case Put(key, value):
                    self.values[key] = (value, self.revision)
                case Delete(key):
                    self.values.pop(key, None)
        return True

    def under(self, prefix: bytes) -> dict[bytes, bytes]:
        return {k: v for k, (v, _) in self.values.items() if k.startswith(prefix)}


class Cluster:
    """A cluster mounted somewhere, its rows and its newest snapshot."""

    def __init__(self, mount: str = "/la", **context: object) -> None:
        self.mount = path(mount)
        self.ids = itertools.count(16)
        self.given: list[int] = []
        self.context = PlanContext(now_ms=NOW_MS, principal="User:ana", new_id=self._new_id)
        self.context = replace(self.context, **context)  # type: ignore[arg-type]
        self.rows = Rows()
        self.codec = ProtoCodec()
        self.snapshot = Snapshot.empty(self.codec)

    def _new_id(self) -> int:
        self.given.append(next(self.ids))
        return self.given[-1]

    def plan(
        self,
        command: Command,
        snapshot: Snapshot | None = None,
        *,
        deletes_in_kafka: bool = False,
        **context: object,
    ) -> Plan:
        """Plans, and commits nothing."""
        if isinstance(command, DeleteEntry):
            command = replace(command, deletes_in_kafka=deletes_in_kafka)
        changed = replace(self.context, **context)  # type: ignore[arg-type]
        return plan(self.snapshot if snapshot is None else snapshot, self.mount, command, changed)

    def commit(self, made: Plan) -> bool:
        """Commits a plan if its guards hold."""
        if not made.writes:
            return True
        if not self.rows.commit(made.guards, made.writes):
            return False
        self.snapshot = self.snapshot.apply(self.rows.revision, made.writes)
        return True

    def do(self, *commands: Command, **context: Any) -> Plan:
        """Plans and commits one command after the other; returns the last plan."""
        made: Plan | None = None
        for command in commands:
            made = self.plan(command, None, **context)
            assert self.commit(made), f"a guard of {command} does not hold"
        assert made is not None
        return made

    def loaded(self) -> Snapshot:
        """Returns what a server that starts now would serve."""
        rows = sorted((key, value) for key, (value, _) in self.rows.values.items())
        return Snapshot.load(self.codec, "", self.rows.revision, [rows])

    def entry(self, text: str, kind: Kind | None = None) -> Entry | None:
        """Returns the entry at an absolute path: the topic before a directory of this name."""
        relative = path(text).below(self.mount)
        if not relative:
            return self.snapshot.root.directory
        parent = self.snapshot.find_directory(relative[:-1])
        if parent is None:
            return None
        found: Entry | None = None
        if kind in {None, Kind.TOPIC}:
            found = self.snapshot.topic(parent, relative[-1])
        if found is None and kind is not Kind.TOPIC:
            found = self.snapshot.container(parent, relative[-1])
        return found

    def topic(self, text: str) -> Topic:
        found = self.entry(text, Kind.TOPIC)
        assert isinstance(found, Topic), f"no topic at {text}"
        return found

    def show(self) -> str:
        """Returns the tree as text, one entry a line, indented; what waits for the reaper last."""
        lines = list(_lines(self.snapshot, self.snapshot.root, 0))
        removed = self.snapshot.nodes.get(DELETED_ID)
        if removed is not None and (removed.topics or removed.containers):
            lines += ["(removed)", *_lines(self.snapshot, removed, 1)]
        return "\n".join(lines)


def _lines(snapshot: Snapshot, node: Node, depth: int) -> Iterator[str]:
    margin = "  " * depth
    for name in sorted({*node.topics, *node.containers}):
        topic = snapshot.topic(node.entry_id, name)
        if topic is not None:
            shown = "" if topic.physical_name == name else f" = {topic.physical_name}"
            yield f"{margin}{name}{shown} [{topic.provision.name.lower()}]"
        match node.containers.get(name):
            case Directory(entry_id=entry_id):
                yield f"{margin}{name}/"
                below = snapshot.nodes.get(entry_id)
                assert below is not None
                yield from _lines(snapshot, below, depth + 1)
            case Link(targets=targets, mode=mode):
                sign = " & " if mode is LinkMode.UNION else " | "
                yield f"{margin}{name} -> {sign.join(map(str, targets))}"
            case Mount(cluster_id=cluster_id, epoch=epoch):
                changes = epoch - NOW_MS
                yield f"{margin}{name} <- {cluster_id}{' raised' * changes}"
            case None:
                pass


def reported(changes: Iterable[EntryChange]) -> list[str]:
    """Returns changes as text: what, which kind, where, and from where."""
    lines = []
    for change in changes:
        sign = "+" if change.before is None else "-" if change.after is None else "~"
        moved = f" from {change.path_before}" if change.path_before is not None else ""
        lines.append(f"{sign} {_SHORT[change.kind]} {change.path}{moved}")
    return lines
