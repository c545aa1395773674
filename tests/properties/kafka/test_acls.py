"""Kafka decides by the ACLs that are pushed as kdir decides by the grants: random grants, Kafka's
rules said as plainly as can be, and kdir's own decision.
"""

from __future__ import annotations

import random

import pytest

from directory.access.compiled_grants import AccessMode, AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Operation, Permission, ResourceType
from directory.access.principals import Caller
from directory.kafka.admin_contract import OPERATIONS, AclBinding, Resource, kafka_host
from directory.kafka.applying.desired_acls import PathLevel, pattern_acls, topic_acls
from tests.properties.access.oracle import (
    Arguments,
    World,
    some_grants,
    some_place,
    some_world,
)
from tests.support.acls import kafka_allows

SETS = 3_000
CHUNKS = 12
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "fe80::1")
NAMES = ("pay", "pax", "pa", "p", "q", "zz")


def levels_of(world: World, place: EntryPlace) -> list[PathLevel]:
    return [
        PathLevel(CompiledGrants.compile(grants), closed, counts=not (inherited and world.expired))
        for grants, closed, inherited in world.levels(place)
    ]


def shut(world: World, place: EntryPlace, chance: random.Random) -> None:
    """Closes a directory on the way; some principals may pass it, and some of these are denied."""
    relative = place.relative[: chance.randint(0, len(place.relative))]
    world.closed.add(relative)
    operations = (Operation.DESCRIBE, Operation.READ, Operation.ALL)
    passing = Arguments(operations=operations, kinds=(ResourceType.TOPIC,))
    world.grants[EntryPlace(relative)] = some_grants(chance, 4, passing)


def may_be_stricter(world: World, place: EntryPlace) -> bool:
    """True if somebody is denied to pass a closed directory on the way: what Kafka cannot say of
    some callers it denies to more of them.
    """
    levels = list(world.levels(place))
    last = max((at for at, (_, closed, _) in enumerate(levels) if closed), default=-1)
    return any(
        one.permission is Permission.DENY and one.operation.name in {"DESCRIBE", "ALL"}
        for grants, _, _ in levels[: last + 1]
        for one in grants
    )


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_kafka_allows_what_kdir_does_on_topics(chunk: int) -> None:
    chance = random.Random(chunk)
    exact = 0
    for _ in range(SETS // CHUNKS):
        world = some_world(chance)
        world.mode = AccessMode.ENFORCE
        place = some_place(chance)
        topic = EntryPlace((*place.relative, "t"), is_topic=True)
        if chance.random() < 0.3:
            shut(world, place, chance)
        if chance.random() < 0.5:
            world.grants[topic] = some_grants(chance, 3, world.arguments)
        resource = Resource(ResourceType.TOPIC, "a.b")
        bindings = {AclBinding(resource, acl) for acl in topic_acls(levels_of(world, topic))}
        access = world.access()
        stricter = may_be_stricter(world, topic)
        exact += not stricter
        for operation in OPERATIONS[ResourceType.TOPIC]:
            for principal in (*world.arguments.principals, "User:other"):
                if principal == "User:*":
                    continue
                for host in HOSTS:
                    question = AccessQuestion.for_operation(operation)
                    caller = Caller.parse(principal, host)
                    expected = access.authorize(
                        caller, question, topic, age_seconds=world.age
                    ).allowed
                    found = kafka_allows(bindings, principal, kafka_host(host), operation, resource)
                    if stricter:
                        assert expected or not found, (world, topic, caller, operation)
                    else:
                        assert found is expected, (world, topic, caller, operation, bindings)
    assert exact > SETS // CHUNKS // 2


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_kafka_allows_what_kdir_does_on_groups_and_transactional_ids(chunk: int) -> None:
    chance = random.Random(chunk)
    for _ in range(SETS // CHUNKS):
        world = some_world(chance)
        world.mode = AccessMode.ENFORCE
        place = EntryPlace(some_place(chance).relative)
        if chance.random() < 0.3:
            shut(world, EntryPlace(place.relative[:-1]), chance)
        bindings = pattern_acls(levels_of(world, place))
        access = world.access()
        stricter = may_be_stricter(world, place)
        for kind in (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            for operation in OPERATIONS[kind]:
                caller = Caller.parse(
                    chance.choice([*world.arguments.principals, "User:other"]).replace("*", "x"),
                    chance.choice(HOSTS),
                )
                for name in NAMES:
                    question = AccessQuestion.for_operation(operation, kind, name)
                    expected = access.authorize(
                        caller, question, place, age_seconds=world.age
                    ).allowed
                    host, resource = kafka_host(caller.host), Resource(kind, name)
                    found = kafka_allows(bindings, caller.principal, host, operation, resource)
                    if stricter:
                        assert expected or not found, (world, place, caller, operation, name)
                    else:
                        assert found is expected, (world, place, caller, question, bindings)
