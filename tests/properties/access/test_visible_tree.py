"""Hidden is absent: a tree as one caller sees it answers everything as the tree does from which an
entry that is hidden from that caller was removed with all below it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import cast

from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessMode, AccessQuestion
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant, Operation, Permission
from directory.access.principals import Caller
from directory.api import entry_writes
from directory.api.access_control import CallerRights
from directory.api.visible_tree import OpenTree, VisibleTree, Wanted
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Entry, Kind, Topic
from directory.namespace.lookup import DirectoryAt, Found, LinkAt, Missing, MountAt, TopicAt
from directory.namespace.quotas import Quota
from directory.namespace.snapshot import Node, Snapshot
from directory.server.cluster import Cluster as ServedCluster
from resolver.errors import KdirError
from resolver.path import Path
from tests.support.trees import Cluster

MOUNT = Path(("m",))
ANA = Caller("User:a")
SERVER = cast("ServedCluster", SimpleNamespace(config=SimpleNamespace(cluster="m", kafka=None)))
SEEDS = range(150)
PATHS = [MOUNT.join(names) for depth in range(4) for names in product("abz", repeat=depth)]
EVERY_KIND = (None, *Kind)


def grants(chance: random.Random) -> tuple[Grant, ...]:
    permission = chance.choice((Permission.ALLOW, Permission.DENY))
    operation = chance.choice((Operation.DESCRIBE, Operation.DESCRIBE, Operation.READ))
    return (Grant(chance.choice(("User:a", "User:b")), "*", operation, permission),)


def some_command(chance: random.Random, cluster: Cluster) -> Command:
    path = MOUNT.join(chance.choice("ab") for _ in range(chance.randint(1, 3)))
    match chance.randrange(8):
        case 0 | 1:
            closed = chance.random() < 0.2
            return CreateDirectory(path=path, make_parents=True, closed=closed)
        case 2 | 3:
            return CreateTopic(path=path, partitions=chance.randint(1, 3))
        case 4:
            return CreateLink(path=path, targets=(MOUNT.child("a"),))
        case 5:
            return CreateMount(path=path, cluster_id=f"kc-{chance.random()}", cluster="x")
        case _:
            there = [
                MOUNT,
                *(at for at, _ in entries(cluster.snapshot, cluster.snapshot.root, MOUNT)),
            ]
            return AddGrants(path=chance.choice(there), grants=grants(chance))


def entries(snapshot: Snapshot, node: Node, at: Path) -> Iterator[tuple[Path, Entry]]:
    for name in node.topics:
        topic = snapshot.topic(node.entry_id, name)
        assert topic is not None
        yield at.child(name), topic
    for name, entry in node.containers.items():
        yield at.child(name), entry
        if isinstance(entry, Directory):
            yield from entries(snapshot, snapshot.nodes[entry.entry_id], at.child(name))


def seen(cluster: Cluster, mode: AccessMode) -> VisibleTree:
    access = Authorizer(MOUNT, cluster.snapshot.grants, (), mode)
    return VisibleTree(cluster.snapshot, access, ANA, "m")


def is_hidden(tree: VisibleTree, path: Path, entry: Entry) -> bool:
    """True if the caller may know of nothing at or below an entry."""
    relative = path.below(MOUNT)
    match entry:
        case Topic():
            return not tree.can_describe(relative, is_topic=True)
        case Directory(entry_id=entry_id):
            node = tree.snapshot.nodes[entry_id]
            return not tree.can_describe(relative, is_topic=False) and all(
                is_hidden(tree, at, below) for at, below in entries(tree.snapshot, node, path)
            )
        case _:
            # A link with this name is looked through, a mount is referred to.
            return not (tree.can_describe(relative, is_topic=False) or tree.can_refer_to(path))


def has_mounts(tree: OpenTree, entry: Directory) -> bool:
    """True if a directory cannot be removed for what is mounted below it."""
    return tree.snapshot.has_mounts_below(entry.entry_id)


def shown(tree: OpenTree, found: Found) -> object:
    """Returns what a handler makes of an outcome: of a directory what is listed and counted."""
    match found:
        case TopicAt(relative=relative, has_container=has_container, record=record):
            return "topic", relative, has_container, record
        case DirectoryAt(relative=relative, node=node):
            pages = [
                [
                    (one.relative, type(one).__name__)
                    for one in tree.children(found, Wanted(recursive=deep), None, 1000).entries
                ]
                for deep in (False, True)
            ]
            quota = Quota("max_partitions", "/m", node.entry_id, 10)
            counts = tree.count(relative, node), tree.count_below(relative, node)
            return "directory", relative, pages, counts, tree.quota_use(quota)
        case LinkAt(relative=relative, rest=rest):
            return "link", relative, rest
        case MountAt(relative=relative, rest=rest, mount=mount):
            return "mount", relative, rest, mount.cluster_id
        case Missing(nearest=nearest):
            return "missing", nearest
        case _:
            return found


def required(tree: OpenTree, path: Path, kind: Kind | None, *, no_follow: bool) -> object:
    try:
        return shown(tree, tree.require_entry(path, kind, no_follow=no_follow))
    except KdirError as error:
        return type(error), str(error), dict(error.metadata)


def refused(tree: VisibleTree, command: Command) -> object:
    """Returns how a change is refused before it is planned; None: it is not."""
    rights = CallerRights(tree.snapshot, tree.access, ANA, "m")
    try:
        entry_writes._check(SERVER, rights, command)
    except KdirError as error:
        return type(error), str(error), dict(error.metadata)
    return None


def refusals(tree: VisibleTree) -> dict[object, object]:
    found: dict[object, object] = {}
    for path, kind in product(PATHS[1:], EVERY_KIND):
        for command in (
            UpdateEntry(path=path, kind=kind, changes={"policies.owner": "x"}),
            DeleteEntry(path=path, kind=kind),
        ):
            meant = entry_writes.meant_command(tree, command)
            found[type(command), path, kind] = refused(tree, meant)
    return found


def is_known(tree: VisibleTree, path: Path, entry: Entry) -> bool:
    """True if a grant of the entry itself allows the caller something, so that it knows of it."""
    place = EntryPlace(path.below(MOUNT), isinstance(entry, Topic))
    questions = map(AccessQuestion.for_operation, (Operation.DESCRIBE, Operation.READ))
    return any(tree.access.has_own_grant(ANA, one, place) for one in questions)


def answers(tree: OpenTree) -> dict[object, object]:
    found: dict[object, object] = {}
    for path in PATHS:
        for kind, no_follow in product(EVERY_KIND, (False, True)):
            outcome = tree.lookup(path, kind, no_follow=no_follow)
            found["lookup", path, kind, no_follow] = shown(tree, outcome)
            found["entry", path, kind, no_follow] = required(tree, path, kind, no_follow=no_follow)
        found["visible", path] = tree.is_visible(path)
        found["nearest", path] = tree.nearest(path)
        if not tree.is_visible(path):
            found["shown when made", path] = tree.would_show(path)
        found["located", path] = tree.locate(".".join(path.below(MOUNT)))
    return found


def test_A12_what_is_hidden_is_as_if_it_were_not_there() -> None:
    compared = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        mode = chance.choice((AccessMode.ENFORCE, AccessMode.OPEN))
        cluster = Cluster(str(MOUNT))
        for _ in range(chance.randint(5, 25)):
            try:
                cluster.do(some_command(chance, cluster))
            except KdirError:
                continue  # there is something already, or no directory
        tree = seen(cluster, mode)
        every = list(entries(tree.snapshot, tree.snapshot.root, MOUNT))
        hidden = [
            (at, entry)
            for at, entry in every
            if is_hidden(tree, at, entry)
            and not (isinstance(entry, Directory) and has_mounts(tree, entry))
        ]
        if not hidden:
            continue
        compared += 1
        path, entry = chance.choice(hidden)
        before, refused_before = answers(tree), refusals(tree)
        cluster.do(DeleteEntry(path=path, kind=entry.kind, recursive=True))
        after = seen(cluster, mode)
        assert answers(after) == before, (seed, path, entry.kind)
        # Where access is open, who could remove what hides an entry may change the entry.
        if mode is AccessMode.ENFORCE and not any(
            is_known(tree, at, one) for at, one in every if path.is_prefix_of(at)
        ):
            assert refusals(after) == refused_before, (seed, path, entry.kind)
    assert compared > len(SEEDS) / 4


def test_for_callers_that_may_see_all_both_trees_are_the_same() -> None:
    for seed in SEEDS[:50]:
        chance = random.Random(seed)
        cluster = Cluster(str(MOUNT))
        for _ in range(20):
            try:
                cluster.do(some_command(chance, cluster))
            except KdirError:
                continue
        access = Authorizer(MOUNT, cluster.snapshot.grants, (), super_users=frozenset({"User:a"}))
        whole = OpenTree(cluster.snapshot, MOUNT, "m")
        assert answers(VisibleTree(cluster.snapshot, access, ANA, "m")) == answers(whole)
