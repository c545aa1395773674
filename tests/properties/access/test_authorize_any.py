"""The tree of grants against a full scan of all grants (A2), and its versions against
trees that are built at once.
"""

from __future__ import annotations

import random

import pytest

from directory.access import grant_tree as grant_tree_module
from directory.access.authorize_any import authorize_any
from directory.access.authorizer import MOUNT_ROOT
from directory.access.compiled_grants import AccessQuestion
from directory.access.grant_tree import NO_GRANTS, EntryPlace, GrantChildren, GrantNode, GrantTree
from directory.access.grants import Operation, ResourceType
from tests.properties.access.oracle import (
    World,
    allows,
    denies,
    some_arguments,
    some_caller,
    some_grants,
    some_place,
    some_question,
    some_world,
)

SETS = 10_000
CHUNKS = 20


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small children, so that small examples are parted ones.
    monkeypatch.setattr(grant_tree_module, "_MOST", 2)
    monkeypatch.setattr(grant_tree_module, "_LEAST", 1)


def agree(world: World, chance: random.Random, tree: GrantTree | None = None) -> None:
    """Asks a world a few questions of each sort, and the scan the same ones."""
    access = world.access(tree)
    for _ in range(6):
        caller, question, place = (
            some_caller(chance, world.arguments),
            some_question(chance, world.arguments),
            some_place(chance),
        )
        expected = world.allowed(caller, question, place)
        decision = access.authorize(caller, question, place, age_seconds=world.age)
        assert decision.allowed is expected, (world, caller, question, place, decision)
    for _ in range(4):
        caller, question = (
            some_caller(chance, world.arguments),
            some_question(chance, world.arguments),
        )
        operation, kind = question.operation, question.kind
        expected = world.anywhere(caller, operation, kind)
        found = authorize_any(access, caller, operation, kind, age_seconds=world.age)
        assert found is expected, (world, caller, operation, kind)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_A2_random_grants_decide_as_a_full_scan_does(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunk % 2:
        narrow(monkeypatch)
    for seed in range(chunk * SETS // CHUNKS, (chunk + 1) * SETS // CHUNKS):
        chance = random.Random(seed)
        agree(some_world(chance), chance)


@pytest.mark.parametrize("seed", range(40))
def test_each_version_is_what_its_grants_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        narrow(monkeypatch)
    chance = random.Random(seed)
    world, tree = World(arguments=some_arguments(chance)), NO_GRANTS
    for step in range(60):
        before, was = tree, sorted(map(repr, tree.granted_below(MOUNT_ROOT)))
        tree = changed(world, tree, chance)
        check_shape(tree.root, parted_at=2 if seed % 2 else 64)
        assert same(tree.root, world.tree().root)
        # Reading makes nodes remember; the next versions must not be told what is no longer so.
        agree(world, chance, tree)
        if step % 10 == 0:
            assert sorted(map(repr, before.granted_below(MOUNT_ROOT))) == was


def changed(world: World, tree: GrantTree, chance: random.Random) -> GrantTree:
    """Returns one change of both."""
    place = some_place(chance)
    match chance.randrange(5):
        case 0 | 1:
            world.grants[place] = some_grants(chance, 3, world.arguments)
            return tree.with_grants(place, world.grants[place])
        case 2:
            world.grants.pop(place, None)
            return tree.with_grants(place, ())
        case 3:
            world.closed ^= {place.relative}
            return tree.with_closed(place.relative, closed=place.relative in world.closed)
        case _:
            return moved(world, tree, place, some_place(chance))


def moved(world: World, tree: GrantTree, source: EntryPlace, target: EntryPlace) -> GrantTree:
    """Returns one entry, with all below it, to where nothing is; or removed."""
    target = EntryPlace(target.relative, source.is_topic)
    if not source.relative or target.relative[: len(source.relative)] == source.relative:
        target = MOUNT_ROOT
    inside = [place for place in world.grants if lies_in(place, source)]
    moving = {place: world.grants.pop(place) for place in inside}
    shut = {one for one in world.closed if lies_in(EntryPlace(one), source)}
    world.closed -= shut
    tree, subtree = tree.detach_subtree(source)
    occupied = any(
        lies_in(place, target) for place in (*world.grants, *map(EntryPlace, world.closed))
    )
    if not target.relative or occupied:
        return tree
    cut = len(source.relative)
    for place, grants in moving.items():
        there = EntryPlace(target.relative + place.relative[cut:], place.is_topic)
        world.grants[there] = grants
    world.closed |= {target.relative + one[cut:] for one in shut}
    return tree.attach_subtree(target, subtree)


def lies_in(place: EntryPlace, outer: EntryPlace) -> bool:
    if outer.is_topic:
        return place == outer
    depth = len(outer.relative)
    deeper = len(place.relative) > depth or not place.is_topic
    return place.relative[:depth] == outer.relative and deeper


def same(one: GrantNode, other: GrantNode) -> bool:
    """True if two trees hold and know the same, however their children are parted."""
    mine, theirs = dict(one.children.nodes()), dict(other.children.nodes())
    return (
        one.rules.grants == other.rules.grants
        and (one.closed, one.has_closed, one.count) == (other.closed, other.has_closed, other.count)
        and one.live == other.live
        and mine.keys() == theirs.keys()
        and all(same(below, theirs[step]) for step, below in mine.items())
    )


def check_shape(tree: GrantNode, *, parted_at: int) -> None:
    def visit(children: GrantChildren) -> None:
        assert not (children.items and children.parts)
        assert len(children.items) <= parted_at
        assert children.size == len(dict(children.nodes()))
        for part in children.parts:
            visit(part)
        for below in children.items.values():
            assert not below.is_empty
            visit(below.children)

    visit(tree.children)


def test_what_is_in_the_way_is_found_as_by_asking_for_each() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        world = some_world(chance)
        access = world.access()
        caller, place = (
            some_caller(chance, world.arguments),
            EntryPlace(some_place(chance).relative),
        )
        question = AccessQuestion.for_operation(some_question(chance, world.arguments).operation)
        found = dict(access.denied_below(caller, question, place, age_seconds=world.age))
        depth = len(place.relative)
        set_below = {
            one
            for one in (
                *(p for p, some in world.grants.items() if some),
                *map(EntryPlace, world.closed),
            )
            if one.relative[:depth] == place.relative and len(one.relative) > depth
        }
        assert found == {
            one: decision
            for one in set_below
            if not (
                decision := access.authorize(caller, question, one, age_seconds=world.age)
            ).allowed
        }


def test_a_listing_says_of_each_name_what_asking_for_it_would_say() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        world = some_world(chance)
        access = world.access()
        caller, relative = some_caller(chance, world.arguments), some_place(chance).relative
        question = AccessQuestion.for_operation(some_question(chance, world.arguments).operation)
        within = access.for_directory(caller, question, relative, age_seconds=world.age)
        for name in "abcd":
            for is_topic in (False, True):
                place = EntryPlace((*relative, name), is_topic)
                asked = access.authorize(caller, question, place, age_seconds=world.age)
                assert within.entry_decision(name, is_topic=is_topic) == asked
                if within.is_uniform:
                    assert asked == within.decision


def test_a_decision_names_a_grant_that_says_so() -> None:
    for seed in range(1000):
        chance = random.Random(seed)
        world = some_world(chance)
        caller, question, place = (
            some_caller(chance, world.arguments),
            some_question(chance, world.arguments),
            some_place(chance),
        )
        decision = world.access().authorize(caller, question, place, age_seconds=world.age)
        if decision.grant is None:
            continue
        assert decision.path is not None
        depth = len(decision.path.segments) - 2
        if depth >= 0:
            at = EntryPlace(place.relative[:depth], place.is_topic and depth == len(place.relative))
            assert decision.grant in world.grants[at]
        else:
            assert decision.grant in world.inherited[depth + 2][0]
        says = allows if decision.allowed else denies
        assert says(decision.grant, caller, question)


@pytest.mark.parametrize("kind", [ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID])
def test_any_name_is_asked_for_as_by_trying_names(kind: ResourceType) -> None:
    for seed in range(2000):
        chance = random.Random(seed)
        # DESCRIBE on topics is what lets one pass a closed directory.
        world = some_world(chance, (kind, kind, ResourceType.TOPIC))
        caller = some_caller(chance, world.arguments)
        operation = chance.choice((*world.arguments.operations, Operation.READ))
        found = authorize_any(world.access(), caller, operation, kind, age_seconds=world.age)
        assert found is world.anywhere(caller, operation, kind), world
