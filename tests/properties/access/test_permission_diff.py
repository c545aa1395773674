"""Who gains and who loses what, against asking a full scan of all grants before and after about
every caller, every operation and every entry.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import pytest

from directory.access import grant_tree
from directory.access.compiled_grants import AccessMode, AccessQuestion
from directory.access.grant_tree import EntryPlace, GrantTree
from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.access.permission_diff import AccessChange, DiffSide, diff_permissions
from directory.access.principals import EVERYBODY, Caller
from tests.properties.access.oracle import (
    World,
    names,
    some_grants,
    some_place,
    some_world,
)

WORLDS = 800
CHUNKS = 8
OPERATIONS = [one for one in Operation if one is not Operation.ALL]


def moved(world: World, old: EntryPlace, new: EntryPlace) -> World:
    """Returns the world with an entry, and all below it, at another place."""
    grants, closed = {}, set()
    for place, some in world.grants.items():
        grants[_moved(place, old, new)] = some
    for relative in world.closed:
        closed.add(_moved(EntryPlace(relative), old, new).relative)
    return replace(world, grants=grants, closed=closed)


def _moved(place: EntryPlace, old: EntryPlace, new: EntryPlace) -> EntryPlace:
    if place == old:
        return new
    depth = len(old.relative)
    if old.is_topic or place.relative[:depth] != old.relative or len(place.relative) <= depth:
        return place
    return EntryPlace((*new.relative, *place.relative[depth:]), place.is_topic)


def replanted(tree: GrantTree, old: EntryPlace, new: EntryPlace) -> GrantTree:
    rest, cut = tree.detach_subtree(old)
    return tree if cut.is_empty else rest.attach_subtree(new, cut)


def nearest(rows: Iterable[AccessChange], place: EntryPlace) -> AccessChange | None:
    """Returns the row that holds for an entry."""
    holding = [row for row in rows if row.place == place or _holds(row.place, place)]
    return max(holding, key=lambda row: len(row.place.relative), default=None)


def _holds(outer: EntryPlace, place: EntryPlace) -> bool:
    depth = len(outer.relative)
    return (
        not outer.is_topic
        and depth < len(place.relative)
        and place.relative[:depth] == outer.relative
    )


def read(
    rows: list[AccessChange], caller: Caller, question: AccessQuestion, place: EntryPlace
) -> tuple[bool, bool]:
    """Returns whether the rows say that it is gained, or lost: read as the module says they are."""
    wider = (
        (caller.principal, caller.host),
        (caller.principal, ""),
        (EVERYBODY, caller.host),
        (EVERYBODY, ""),
    )
    for principal, host in wider:
        own = [
            row
            for row in rows
            if (row.caller.principal, row.caller.host, row.kind) == (principal, host, question.kind)
        ]
        if not own:
            continue
        if question.kind.has_names:
            fitting = {row.name for row in own if names(row.name, question.name)}
            if not fitting:
                return False, False
            narrowest = max(fitting, key=lambda one: (len(one.rstrip("*")), one[-1] != "*"))
            own = [row for row in own if row.name == narrowest]
        row = nearest(own, place)
        if row is None:
            return False, False
        return question.operation in row.gained, question.operation in row.lost
    return False, False


def changed(world: World, chance: random.Random) -> tuple[World, EntryPlace, EntryPlace]:
    """Returns a world after some change, and the entry's place before and after: its grants,
    whether it is closed, or its place changes.
    """
    place = some_place(chance)
    if chance.random() < 0.5:
        after = replace(world, grants=dict(world.grants), closed=set(world.closed))
        after.grants[place] = some_grants(chance, 3, world.arguments)
        if not place.is_topic and chance.random() < 0.4:
            after.closed ^= {place.relative}
        return after, place, place
    if not place.relative:
        place = EntryPlace(("a",))
    # Where nothing stands yet: "z" is no name of a made world.
    above = some_place(chance).relative
    new = EntryPlace((*above[:3], "z"), place.is_topic)
    if above[: len(place.relative)] == place.relative:
        new = EntryPlace(("z",), place.is_topic)
    return moved(world, place, new), place, new


def questions(
    world: World, old: EntryPlace, after: World, new: EntryPlace
) -> Iterator[AccessQuestion]:
    levels = (*world.levels(old), *after.levels(new))
    kinds = {one.kind for grants, _, _ in levels for one in grants}
    if not new.relative:
        kinds.add(ResourceType.CLUSTER)
    for kind in sorted({ResourceType.TOPIC, *kinds}):
        for name in ("pay", "pax", "p", "q", "zz") if kind.has_names else ("",):
            for operation in OPERATIONS:
                yield AccessQuestion.for_operation(operation, kind, name)


def callers(world: World, after: World) -> list[Caller]:
    mentioned = {one.principal for some in (*world.every(), *after.every()) for one in some}
    principals = sorted((mentioned - {EVERYBODY}) | {"User:other"})
    return [Caller(one, host) for one in principals for host in ("", "10.0.0.1", "10.0.0.9")]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_rows_are_the_difference_of_all_decisions(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunk % 2:
        monkeypatch.setattr(grant_tree, "_MOST", 2)
        monkeypatch.setattr(grant_tree, "_LEAST", 1)
    differing = 0
    for seed in range(chunk * WORLDS // CHUNKS, (chunk + 1) * WORLDS // CHUNKS):
        chance = random.Random(seed)
        world = some_world(chance)
        world.mode = chance.choice((AccessMode.ENFORCE, AccessMode.OPEN))
        after, old, new = changed(world, chance)
        tree = world.tree()
        grown = after.tree() if old == new else replanted(tree, old, new)
        sides = DiffSide(world.access(tree), old), DiffSide(after.access(grown), new)
        rows = list(diff_permissions(*sides, age_seconds=world.age))
        every = {old, *(one for one in (*world.grants, *after.grants))}
        every |= {some_place(chance) for _ in range(3)}
        inside = [one for one in every if one == old or _moved(one, old, EntryPlace(("z",))) != one]
        # What has no grants of its own fares like what is around it.
        inside += [
            EntryPlace((*one.relative, "new"), is_topic)
            for one in inside
            if not one.is_topic
            for is_topic in (True, False)
        ]
        asked = [
            (caller, question, place)
            for caller in callers(world, after)
            for question in questions(world, old, after, new)
            for place in inside
        ]
        for caller, question, place in chance.sample(asked, min(len(asked), 400)):
            was = world.allowed(caller, question, place)
            now = after.allowed(caller, question, _moved(place, old, new))
            expected = (now and not was, was and not now)
            differing += was != now
            found = read(rows, caller, question, _moved(place, old, new))
            assert found == expected, (seed, old, new, caller, question, place, rows)
    assert differing > 100


def test_a_row_says_no_more_than_is_needed() -> None:
    world = World(grants={EntryPlace(("a", "b")): _grants("User:a READ")})
    after = replace(world, grants={**world.grants, EntryPlace(("a",)): _grants("User:a READ")})
    sides = (
        DiffSide(world.access(), EntryPlace(("a",))),
        DiffSide(after.access(), EntryPlace(("a",))),
    )
    rows = list(diff_permissions(*sides))
    gained = frozenset({Operation.READ, Operation.DESCRIBE})
    assert [(row.caller.principal, row.place.relative, row.gained, row.lost) for row in rows] == [
        ("User:a", ("a",), gained, frozenset()),
        # There it may already: the row says that nothing changes.
        ("User:a", ("a", "b"), frozenset(), frozenset()),
    ]


def test_it_ends_when_it_is_asked_to() -> None:
    grants = [grant for number in range(100) for grant in _grants(f"User:u{number} READ")]
    world, after = World(), World(grants={EntryPlace(("a",)): grants})
    left = iter([True] * 11)
    sides = (
        DiffSide(world.access(), EntryPlace(("a",))),
        DiffSide(after.access(), EntryPlace(("a",))),
    )
    rows = list(diff_permissions(*sides, go_on=lambda: next(left, False)))
    assert 0 < len(rows) <= 11


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.GROUP])
def test_it_ends_while_the_entries_of_one_caller_are_compared(kind: ResourceType) -> None:
    def allowed(operation: Operation) -> list[Grant]:
        name = "g" if kind.has_names else ""
        return [Grant.from_fields("User:u", "*", operation, Permission.ALLOW, kind, name)]

    below = {EntryPlace(("a", f"{at:03}"), True): allowed(Operation.READ) for at in range(100)}
    world = World(grants=below)
    after = World(grants={**below, EntryPlace(("a",)): allowed(Operation.DELETE)})
    sides = (
        DiffSide(world.access(), EntryPlace(("a",))),
        DiffSide(after.access(), EntryPlace(("a",))),
    )
    whole = list(diff_permissions(*sides))
    assert len(whole) > 100
    sizes = set()
    for most in range(0, 700, 13):
        answers = chain([True] * most, [False])
        rows = list(diff_permissions(*sides, go_on=lambda left=answers: next(left)))  # type: ignore[misc]
        assert rows == whole[: len(rows)]
        assert len(rows) <= most
        sizes.add(len(rows))
    assert len(sizes) > 5


def _grants(*texts: str) -> list[Grant]:
    made = []
    for text in texts:
        principal, operation = text.split()
        made.append(Grant.from_fields(principal, "*", Operation[operation], Permission.ALLOW))
    return made
