"""What grants mean, said as plainly as can be: a list of all of them, scanned for every question.

No bits, no keys, no tree; ``directory/access`` must agree. And worlds made by chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from directory.access.authorizer import Authorizer, InheritedGrantLevel
from directory.access.compiled_grants import AccessMode, AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace, GrantedEntry, GrantTree
from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.access.principals import Caller
from resolver.path import Path

IMPLIES = {
    "READ": {"DESCRIBE"},
    "WRITE": {"DESCRIBE"},
    "DELETE": {"DESCRIBE"},
    "ALTER": {"DESCRIBE"},
    "ALTER_CONFIGS": {"DESCRIBE_CONFIGS"},
}
FRESH = "~fresh~"
"""Part of a name that no grant of a made world speaks of."""
MOUNT = Path(("up", "here"))


PRINCIPALS = ("User:a", "User:b", "Group:a", "User:*")
HOSTS = ("*", "*", "*", "10.0.0.1", "10.0.0.2")
NAMES = ("*", "p*", "pa*", "pay", "pax", "q")
OPERATIONS = (
    *(Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL) * 3,
    *Operation,
)
KINDS = (*(ResourceType.TOPIC,) * 5, *ResourceType)


@dataclass(frozen=True)
class Arguments:
    """Arguments of a world's grants: few, so that grants often concern the same."""

    principals: Sequence[str] = PRINCIPALS
    hosts: Sequence[str] = HOSTS
    operations: Sequence[Operation] = OPERATIONS
    kinds: Sequence[ResourceType] = KINDS


@dataclass
class World:
    """All that there is; ``inherited`` from the root down, the tree's places below ``MOUNT``."""

    grants: dict[EntryPlace, list[Grant]] = field(default_factory=dict)
    closed: set[tuple[str, ...]] = field(default_factory=set)
    inherited: list[tuple[list[Grant], bool]] = field(default_factory=list)
    mode: AccessMode = AccessMode.ENFORCE
    expired: bool = False
    arguments: Arguments = field(default_factory=Arguments)
    """What it is made of, and what it is worth asking about."""

    def tree(self) -> GrantTree:
        places = {*self.grants, *map(EntryPlace, self.closed)}
        return GrantTree.build(
            GrantedEntry(
                place,
                CompiledGrants.compile(self.grants.get(place, ())),
                place.relative in self.closed and not place.is_topic,
            )
            for place in places
        )

    def access(self, tree: GrantTree | None = None) -> Authorizer:
        return Authorizer(
            mount=MOUNT,
            tree=self.tree() if tree is None else tree,
            inherited=tuple(
                InheritedGrantLevel(
                    Path(MOUNT.segments[:depth]), CompiledGrants.compile(grants), closed
                )
                for depth, (grants, closed) in enumerate(self.inherited)
            ),
            mode=self.mode,
            grants_max_age_seconds=60,
        )

    @property
    def age(self) -> float:
        return 61.0 if self.expired else 60.0

    # -- the plain rules -----------------------------------------------------------------------

    def levels(self, place: EntryPlace) -> Iterator[tuple[list[Grant], bool, bool]]:
        """Yields of each level from the outermost: its grants, whether it is closed, is
        inherited.
        """
        for grants, closed in self.inherited:
            yield grants, closed, True
        for depth in range(len(place.relative) + 1):
            at = place.relative[:depth]
            if depth == len(place.relative) and place.is_topic:
                yield self.grants.get(place, []), False, False
            else:
                yield self.grants.get(EntryPlace(at), []), at in self.closed, False

    def allowed(self, caller: Caller, question: AccessQuestion, place: EntryPlace) -> bool:
        levels = list(self.levels(place))
        if any(denies(one, caller, question) for grants, _, _ in levels for one in grants):
            return False
        for number, (grants, _, inherited) in enumerate(levels):
            if inherited and self.expired:
                continue
            if any(allows(one, caller, question) for one in grants) and all(
                self.passes(levels[: above + 1], caller)
                for above in range(number)
                if levels[above][1]
            ):
                return True
        if any(
            closed and not self.passes(levels[: number + 1], caller)
            for number, (_, closed, _) in enumerate(levels)
        ):
            return False
        if self.mode is AccessMode.OPEN_IF_NO_GRANTS:
            return not any(
                one.kind is question.kind
                and (not one.kind.has_names or names(one.name, question.name))
                for grants, _, _ in levels
                for one in grants
            )
        return self.mode is AccessMode.OPEN

    def passes(self, levels: list[tuple[list[Grant], bool, bool]], caller: Caller) -> bool:
        describe = AccessQuestion.for_operation(Operation.DESCRIBE)
        return not any(
            denies(one, caller, describe) for grants, _, _ in levels for one in grants
        ) and any(
            allows(one, caller, describe)
            for grants, _, inherited in levels
            if not (inherited and self.expired)
            for one in grants
        )

    def anywhere(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        resources = {""}
        if kind.has_names:
            patterns = {one.name for some in self.every() for one in some if one.kind is kind}
            resources = {name.replace("*", FRESH) for name in patterns} | {FRESH}
        places = {EntryPlace(()), *self.grants, *map(EntryPlace, self.closed)}
        return any(
            self.allowed(caller, AccessQuestion.for_operation(operation, kind, name), place)
            for name in resources
            for place in places
        )

    def every(self) -> Iterator[list[Grant]]:
        yield from (grants for grants, _ in self.inherited)
        yield from self.grants.values()


def about(grant: Grant, caller: Caller, question: AccessQuestion) -> bool:
    return (
        grant.principal in {caller.principal, "User:*"}
        and grant.host in {caller.host, "*"}
        and grant.kind is question.kind
        and (not grant.kind.has_names or names(grant.name, question.name))
    )


def names(pattern: str, name: str) -> bool:
    if pattern == "*":
        return True
    return name.startswith(pattern[:-1]) and name != "" if pattern[-1] == "*" else name == pattern


def denies(grant: Grant, caller: Caller, question: AccessQuestion) -> bool:
    return (
        grant.permission is Permission.DENY
        and about(grant, caller, question)
        and grant.operation.name in {"ALL", question.operation.name}
    )


def allows(grant: Grant, caller: Caller, question: AccessQuestion) -> bool:
    asked = question.operation.name
    own = grant.operation.name
    return (
        grant.permission is Permission.ALLOW
        and about(grant, caller, question)
        and (own in {"ALL", asked} or asked in IMPLIES.get(own, ()))
    )


# -- made by chance ----------------------------------------------------------------------------

EVERY_RECORD = Arguments()


def some_arguments(chance: random.Random, kinds: Sequence[ResourceType] = KINDS) -> Arguments:
    if chance.random() < 0.3:
        return Arguments(kinds=kinds)
    return Arguments(
        chance.sample(PRINCIPALS, chance.randint(1, 2)),
        chance.sample(HOSTS, chance.randint(1, 3)),
        chance.sample(OPERATIONS, chance.randint(1, 3)),
        chance.sample(kinds, chance.randint(1, 2)),
    )


def some_grant(chance: random.Random, arguments: Arguments) -> Grant:
    kind = chance.choice(arguments.kinds)
    return Grant.from_fields(
        chance.choice(arguments.principals),
        chance.choice(arguments.hosts),
        chance.choice(arguments.operations),
        chance.choice((Permission.ALLOW, Permission.DENY)),
        kind,
        chance.choice(NAMES) if kind.has_names else "",
    )


def some_grants(
    chance: random.Random, most: int, arguments: Arguments = EVERY_RECORD
) -> list[Grant]:
    return list({some_grant(chance, arguments) for _ in range(chance.randint(0, most))})


def some_place(chance: random.Random) -> EntryPlace:
    relative = tuple(chance.choice("abc") for _ in range(chance.randint(0, 4)))
    return EntryPlace(relative, bool(relative) and chance.random() < 0.4)


def some_world(chance: random.Random, kinds: Sequence[ResourceType] = KINDS) -> World:
    arguments = some_arguments(chance, kinds)
    world = World(
        mode=chance.choice((AccessMode.ENFORCE, AccessMode.ENFORCE, *AccessMode)),
        arguments=arguments,
    )
    for _ in range(chance.randint(0, 9)):
        world.grants[some_place(chance)] = some_grants(chance, 3, arguments)
    if chance.random() < 0.5:
        world.closed = {some_place(chance).relative for _ in range(chance.randint(0, 3))}
    if chance.random() < 0.4:
        world.inherited = [
            (some_grants(chance, 2, arguments), chance.random() < 0.1)
            for _ in range(chance.randint(0, 2))
        ]
        world.expired = chance.random() < 0.3
    return world


def some_caller(chance: random.Random, arguments: Arguments = EVERY_RECORD) -> Caller:
    named = [one for one in arguments.principals if one != "User:*"]
    return Caller(
        chance.choice((*named, "User:other")),
        chance.choice(("10.0.0.1", "10.0.0.2", "10.0.0.3", "")),
    )


def some_question(chance: random.Random, arguments: Arguments = EVERY_RECORD) -> AccessQuestion:
    kind = chance.choice(arguments.kinds)
    name = chance.choice(("pay", "pax", "pa", "p", "q", "zz", "")) if kind.has_names else ""
    operation = chance.choice((*arguments.operations, Operation.DESCRIBE))
    return AccessQuestion.for_operation(operation, kind, name)
