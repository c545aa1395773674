"""Who gains and who loses by a command: the rows against every decision, before and after, on every
entry of a real tree, found by its id wherever it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from directory.access.authorizer import Authorizer, InheritedGrantLevel
from directory.access.compiled_grants import AccessMode, AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant, Operation, Permission
from directory.access.permission_diff import DiffSide, diff_permissions
from directory.access.principals import Caller
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateTopic,
    MoveEntry,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Kind
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.traversal import locate_entry
from resolver.errors import KdirError
from resolver.path import Path
from tests.properties.access.test_permission_diff import read
from tests.support.trees import Cluster

PRINCIPALS = ("User:a", "User:b", "User:*")
CALLERS = [Caller(one, host) for one in ("User:a", "User:b", "User:x") for host in ("", "10.0.0.1")]
OPERATIONS = [one for one in Operation if one is not Operation.ALL]


def some_path(chance: random.Random, least: int = 0) -> Path:
    return Path(("m", *(chance.choice("ab") for _ in range(chance.randint(least, 3)))))


def some_grants(chance: random.Random) -> tuple[Grant, ...]:
    return tuple(
        Grant(
            chance.choice(PRINCIPALS),
            chance.choice(("*", "*", "10.0.0.1")),
            chance.choice((Operation.READ, Operation.DESCRIBE, Operation.ALL, Operation.ALTER)),
            chance.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
        )
        for _ in range(chance.randint(1, 3))
    )


def some_command(chance: random.Random) -> Command:
    path, kind = some_path(chance), chance.choice((None, Kind.DIRECTORY))
    match chance.randrange(8):
        case 0:
            return CreateDirectory(path=path, make_parents=True, closed=chance.random() < 0.3)
        case 1 | 2:
            return CreateTopic(path=path)
        case 3 | 4:
            return AddGrants(path=path, grants=some_grants(chance), kind=kind)
        case 5:
            return RemoveGrants(path=path, grants=some_grants(chance), kind=kind)
        case 6:
            closed = {"directory.closed": chance.random() < 0.5}
            return UpdateEntry(path=path, kind=Kind.DIRECTORY, changes=closed)
        case _:
            return MoveEntry(path=path, new_path=some_path(chance, least=1), kind=kind)


def entries(snapshot: Snapshot) -> Iterator[tuple[int, EntryPlace]]:
    """Yields every topic and directory, by id."""
    yield snapshot.root.entry_id, EntryPlace(())
    waiting: list[tuple[tuple[str, ...], Node]] = [((), snapshot.root)]
    while waiting:
        above, node = waiting.pop()
        for name in node.topics:
            topic = snapshot.topic(node.entry_id, name)
            assert topic is not None
            yield topic.entry_id, EntryPlace((*above, name), is_topic=True)
        for name, container in node.containers.items():
            if isinstance(container, Directory):
                yield container.entry_id, EntryPlace((*above, name))
                waiting.append(((*above, name), snapshot.nodes[container.entry_id]))


def reported(
    command: Command, mount: Path, before: Snapshot, after: Snapshot
) -> tuple[EntryPlace, EntryPlace]:
    """Returns where the entry of a command is, before and after."""
    assert isinstance(command, AddGrants | RemoveGrants | UpdateEntry | MoveEntry)
    found = locate_entry(before, mount, command.path, command.kind)
    is_topic = found.entry.kind is Kind.TOPIC
    path = command.new_path if isinstance(command, MoveEntry) else command.path
    now = locate_entry(after, mount, path, found.entry.kind)
    assert now.entry.entry_id == found.entry.entry_id
    return EntryPlace(found.path.below(mount), is_topic), EntryPlace(
        now.path.below(mount), is_topic
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_rows_of_a_command_are_all_that_changes_anywhere(seed: int) -> None:
    chance = random.Random(seed)
    above = (
        (InheritedGrantLevel(Path(()), CompiledGrants.compile(some_grants(chance))),)
        if seed % 3 == 0
        else ()
    )
    mode = AccessMode.OPEN if seed % 2 else AccessMode.ENFORCE
    cluster, differing, asked = Cluster("/m"), 0, 0
    while asked < 25 or not differing:
        command, before = some_command(chance), cluster.snapshot
        try:
            made = cluster.plan(command)
        except KdirError:
            continue
        after = before.apply(before.revision + 1, made.writes)
        was, now = (Authorizer(cluster.mount, one.grants, above, mode) for one in (before, after))
        places, moved = dict(entries(before)), dict(entries(after))
        if isinstance(command, AddGrants | RemoveGrants | UpdateEntry | MoveEntry):
            sides = reported(command, cluster.mount, before, after)
            rows = list(diff_permissions(DiffSide(was, sides[0]), DiffSide(now, sides[1])))
            asked += 1
        else:
            rows, sides = [], (EntryPlace(()), EntryPlace(()))
        for caller in CALLERS:
            for operation in OPERATIONS:
                question = AccessQuestion.for_operation(operation)
                for entry_id, place in places.items():
                    here = moved[entry_id]
                    one = was.authorize(caller, question, place).allowed
                    other = now.authorize(caller, question, here).allowed
                    differing += one != other
                    inside = here == sides[1] or (
                        not sides[1].is_topic
                        and len(here.relative) > len(sides[1].relative)
                        and here.relative[: len(sides[1].relative)] == sides[1].relative
                    )
                    found = read(rows, caller, question, here) if inside else (False, False)
                    expected = (other and not one, one and not other)
                    assert found == expected, (command, caller, operation, place, here, rows)
        assert cluster.commit(made)
