"""What a watcher keeps is what a listing would show it, whatever is granted, revoked, closed, moved
and removed in between, and however late it reads; and no change shows how an entry was while it was
hidden.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from kdir.v1 import entry_pb2, watch_pb2

from directory.access.authorizer import Authorizer, InheritedGrantLevel
from directory.access.compiled_grants import AccessMode, AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant, Operation, Permission
from directory.access.principals import Caller
from directory.api.change_view import ChangeView
from directory.api.visible_tree import VisibleTree
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Entry, Kind, etag_of
from directory.namespace.keys import INHERITED
from directory.namespace.snapshot import Node, Snapshot
from directory.server.access_history import AccessHistory
from directory.store.base import Put, Store
from directory.store.replica import AppliedCommit, Replica
from directory.wire.entry_codec import change_to_proto
from resolver.errors import KdirError, Resync
from resolver.path import Path
from tests.support.trees import Cluster

MOUNT = Path(("m",))
DESCRIBE = AccessQuestion.for_operation(Operation.DESCRIBE)
Event = watch_pb2.ChangeEvent
Key = tuple[Path, bool]
"""A path, and whether it is a topic's."""
Shown = dict[Key, str]
"""The entries that somebody sees, each with its etag."""
BYSTANDER = Caller("User:z")
"""It sees all, and no grant is ever about it."""


def grant(principal: str, permission: Permission = Permission.ALLOW) -> Grant:
    return Grant(principal, "*", Operation.DESCRIBE, permission)


@dataclass(frozen=True)
class Inherit:
    """Step that replaces what a parent hands down."""

    grants: tuple[Grant, ...]


def entries(snapshot: Snapshot, node: Node, at: Path) -> Iterator[tuple[Path, Entry]]:
    yield at, node.directory
    for name in node.topics:
        topic = snapshot.topic(node.entry_id, name)
        assert topic is not None
        yield at.join((name,)), topic
    for name in node.containers:
        entry = snapshot.container(node.entry_id, name)
        below = snapshot.nodes.get(entry.entry_id) if isinstance(entry, Directory) else None
        if below is not None:
            yield from entries(snapshot, below, at.join((name,)))
        elif entry is not None:
            yield at.join((name,)), entry


@dataclass
class Tree:
    """A cluster of which every revision is kept."""

    mode: AccessMode
    cluster: Cluster = field(default_factory=lambda: Cluster(str(MOUNT)))
    inherited: tuple[InheritedGrantLevel, ...] = ()
    snapshots: list[Snapshot] = field(default_factory=list)
    accesses: list[Authorizer] = field(default_factory=list)
    events: list[tuple[Event, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        replica = SimpleNamespace(subscribe=lambda listener: setattr(self, "publish", listener))
        self.history = AccessHistory(
            cast("Replica", replica), cast("Store", None), lambda _: self.accesses[-1]
        )
        self.publish: Any = self.publish
        self._keep((), reloaded=True)

    def _keep(self, events: Iterable[Event], *, reloaded: bool = False) -> None:
        snapshot = self.cluster.snapshot
        assert len(self.snapshots) == self.cluster.rows.revision
        self.snapshots.append(snapshot)
        self.accesses.append(Authorizer(MOUNT, snapshot.grants, self.inherited, self.mode))
        self.events.append(tuple(events))
        self.publish(
            AppliedCommit(snapshot, snapshot, len(self.snapshots) - 1, (), (), reloaded=reloaded)
        )

    def do(self, step: Command | Inherit) -> None:
        rows = self.cluster.rows
        if isinstance(step, Inherit):
            self.inherited = (InheritedGrantLevel(Path(()), CompiledGrants.compile(step.grants)),)
            write = Put(INHERITED, b"%d" % rows.revision)
            assert rows.commit((), (write,))
            self.cluster.snapshot = self.cluster.snapshot.apply(rows.revision, (write,))
            self._keep(())
            return
        before = rows.revision
        try:
            made = self.cluster.plan(step)
        except KdirError:
            return
        assert self.cluster.commit(made)
        if rows.revision != before:
            events = [change_to_proto(one, time_ms=0) for one in made.changes]
            for event in events:
                event.revision = rows.revision
            self._keep(events)

    def sees(self, who: Caller, revision: int, path: Path, *, is_topic: bool) -> bool:
        place = EntryPlace(path.below(MOUNT), is_topic)
        return self.accesses[revision].authorize(who, DESCRIBE, place).allowed

    def listed(self, who: Caller, revision: int, watched: Path) -> Shown:
        """Returns what a listing shows: each entry looked at by itself."""
        snapshot = self.snapshots[revision]
        return {
            (path, entry.kind is Kind.TOPIC): etag_of(entry)
            for path, entry in entries(snapshot, snapshot.root, MOUNT)
            if watched.is_prefix_of(path)
            and self.sees(who, revision, path, is_topic=entry.kind is Kind.TOPIC)
        }

    def view(self, who: Caller, now: int, watched: Path) -> ChangeView:
        view = VisibleTree(self.snapshots[now], self.accesses[now], who, "m")
        return ChangeView(view, self.history, watched)

    def check_contents(self, who: Caller, now: int, event: Event) -> None:
        """Asserts that an event does not show an entry as it was while hidden from the caller."""
        is_topic = event.kind == entry_pb2.ENTRY_KIND_TOPIC
        path, old = Path.parse(event.path), Path.parse(event.path_before or event.path)
        revision = event.revision
        for at in {path, old} if event.HasField("after") else ():
            assert self.sees(who, now, at, is_topic=is_topic), event
        if event.HasField("before"):
            assert self.sees(who, revision - 1, old, is_topic=is_topic), event
            assert self.sees(who, now, old, is_topic=is_topic), event
        if event.HasField("after") and not self.sees(who, revision, path, is_topic=is_topic):
            assert self.listed(who, now, path)[path, is_topic] == event.after.etag, event


class MustList(Exception):
    """A watcher learns that it has to list again by what the change itself says."""


def apply(held: Shown, event: Event, watched: Path) -> None:
    """Applies an event as a watcher does."""
    path, is_topic = Path.parse(event.path), event.kind == entry_pb2.ENTRY_KIND_TOPIC

    def below(at: Path) -> list[Key]:
        return [
            key for key in held if key == (at, is_topic) or (not is_topic and is_under(key[0], at))
        ]

    if event.action == watch_pb2.CHANGE_ACTION_DELETE:
        for key in below(path):
            del held[key]
        return
    if event.path_before:
        old = Path.parse(event.path_before)
        is_directory = event.kind == entry_pb2.ENTRY_KIND_DIRECTORY
        if is_directory and not watched.is_prefix_of(old):
            raise MustList  # what it holds came from where nobody watched
        moved = {(path.join(key[0].below(old)), key[1]): held.pop(key) for key in below(old)}
        held.update({key: etag for key, etag in moved.items() if watched.is_prefix_of(key[0])})
    if watched.is_prefix_of(path):
        held[path, is_topic] = event.after.etag


def is_under(path: Path, directory: Path) -> bool:
    return path != directory and directory.is_prefix_of(path)


GRANTS = [
    grant(principal, permission)
    for principal in ("User:a", "User:a", "User:b")
    for permission in (Permission.ALLOW, Permission.ALLOW, Permission.DENY)
]


def some_path(chance: random.Random) -> Path:
    return Path(("m", *(chance.choice("ab") for _ in range(chance.randint(0, 3)))))


def some_step(chance: random.Random, tree: Tree, *, closing: bool) -> Command | Inherit:
    """Returns a step, as a rule on an entry that exists."""
    snapshot = tree.cluster.snapshot
    there = [(path, entry.kind) for path, entry in entries(snapshot, snapshot.root, MOUNT)]
    path, kind = chance.choice(there)
    new, some = some_path(chance), (chance.choice(GRANTS),)
    if closing and chance.random() < 0.15:
        closed = chance.random() < 0.7
        if chance.random() < 0.5:
            return CreateDirectory(path=new, make_parents=True, closed=closed)
        return UpdateEntry(path=path, kind=Kind.DIRECTORY, changes={"directory.closed": closed})
    match chance.randrange(12):
        case 0 | 1 | 2:
            return AddGrants(path=path, grants=some, kind=kind)
        case 3 | 4:
            return RemoveGrants(path=path, grants=some, kind=kind)
        case 5:
            return CreateDirectory(path=new, make_parents=True)
        case 6:
            return CreateTopic(path=new)
        case 7:
            return DeleteEntry(path=path, kind=kind, recursive=True)
        case 8 | 9:
            leave_link = chance.random() < 0.2
            return MoveEntry(path=path, new_path=new, kind=kind, leave_link=leave_link)
        case 10:
            owner = {"policies.owner": chance.choice("xy")}
            return UpdateEntry(path=path, kind=kind, changes=owner)
        case _:
            return Inherit(some if chance.random() < 0.5 else ())


def grown(chance: random.Random, mode: AccessMode, *, closing: bool = True) -> Tree:
    tree = Tree(mode)
    tree.do(AddGrants(path=MOUNT, grants=(grant(BYSTANDER.principal),)))
    for names in ("aa", "ba"):
        tree.do(CreateDirectory(path=Path(("m", *names)), make_parents=True))
        tree.do(CreateTopic(path=Path(("m", *names, "b"))))
    allow, deny = grant("User:a"), grant("User:a", Permission.DENY)
    begin = {"": allow, "b": deny} if chance.random() < 0.5 else {"a": allow, "aa": allow}
    for names, one in begin.items():
        tree.do(AddGrants(path=Path(("m", *names)), grants=(one,), kind=Kind.DIRECTORY))
    for _ in range(chance.randint(5, 20)):
        tree.do(some_step(chance, tree, closing=closing))
    return tree


SEEDS = range(150)


def some_case(seed: int) -> tuple[random.Random, Tree, Caller, Path]:
    chance = random.Random(seed)
    tree = grown(chance, chance.choice((AccessMode.ENFORCE, AccessMode.ENFORCE, AccessMode.OPEN)))
    watched = MOUNT if chance.random() < 0.6 else some_path(chance)
    return chance, tree, Caller(chance.choice(("User:a", "User:a", "User:b"))), watched


def test_what_a_watcher_keeps_is_what_a_listing_shows() -> None:
    for seed in SEEDS:
        chance, tree, who, watched = some_case(seed)
        last = len(tree.snapshots) - 1
        reached = chance.randint(0, last)
        held = tree.listed(who, reached, watched)
        while reached < last:
            # As a rule it reads at once.
            now = reached + 1 if chance.random() < 0.7 else chance.randint(reached + 1, last)
            view = tree.view(who, now, watched)
            try:
                while reached < now:
                    events = tree.events[reached + 1]
                    for event in view.streamed(reached, reached + 1, events):
                        tree.check_contents(who, now, event)
                        apply(held, event, watched)
                    reached += 1
                    assert held == tree.listed(who, reached, watched), (seed, reached)
            except (Resync, MustList):
                reached, held = now, tree.listed(who, now, watched)


def test_a_list_of_past_changes_shows_nothing_of_how_an_entry_was_while_hidden() -> None:
    for seed in SEEDS:
        _, tree, who, _ = some_case(seed)
        now = len(tree.snapshots) - 1
        view = tree.view(who, now, MOUNT)
        for events in tree.events:
            for event in view.logged(events):
                tree.check_contents(who, now, event)


def test_rights_of_others_end_nobodys_watch() -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        tree, watched = grown(chance, AccessMode.ENFORCE, closing=False), some_path(chance)
        last = len(tree.snapshots) - 1
        for revision in range(2, last + 1):
            events = tree.events[revision]
            shown = tree.view(BYSTANDER, last, watched).streamed(revision - 1, revision, events)
            assert shown == [one for one in events if concerns(one, watched)], (seed, revision)


def concerns(event: Event, watched: Path) -> bool:
    paths = [Path.parse(text) for text in (event.path, event.path_before) if text]
    takes_along = bool(event.path_before) or not event.HasField("after")
    return "/__deleted/" not in event.path and any(
        watched.is_prefix_of(one) or (takes_along and one.is_prefix_of(watched)) for one in paths
    )
