"""``authorize_any``: whether there is anything at all that a caller may do it on (KIP-679)."""

from __future__ import annotations

import pytest

from directory.access.authorize_any import authorize_any, may_produce_idempotently
from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessMode, AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace, GrantedEntry, GrantTree
from directory.access.grants import Operation, ResourceType
from directory.access.principals import Caller
from resolver.path import MAX_SEGMENTS
from tests.unit.access.places import LA, access, at, grant

ALICE = Caller("User:alice", "10.0.0.1")
BOB = Caller("User:bob", "10.0.0.2")
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def any_read(entries: dict[str, list[str]], caller: Caller = ALICE) -> bool:
    return authorize_any(access(entries), caller, READ)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, False),
        ({"a/b/t": ["allow User:alice read"]}, True),
        ({"a/b/t": ["allow User:bob read"]}, False),
        ({"a/b/t": ["allow User:* all"]}, True),
        ({"a/b/t": ["allow User:alice read from 10.0.0.1"]}, True),
        ({"a/b/t": ["allow User:alice read from 10.0.0.9"]}, False),
        ({"a/b/t": ["allow User:alice write"]}, False),
        # A deny on the same entry, or anywhere above, of any key that is about the caller.
        ({"a/b/t": ["allow User:alice read", "deny User:alice read"]}, False),
        ({"a/b/t": ["allow User:alice read", "deny User:* read"]}, False),
        ({"a/b/t": ["allow User:* read", "deny User:alice all from 10.0.0.1"]}, False),
        ({"a/b/t": ["allow User:* read", "deny User:alice all from 10.0.0.9"]}, True),
        ({"a/b/t": ["allow User:alice read"], "a/": ["deny User:* read"]}, False),
        ({"a/b/t": ["allow User:alice read"], "/": ["deny User:alice read"]}, False),
        ({"a/b/t": ["allow User:alice read"], "a/": ["deny User:alice read"]}, False),
        ({"a/b/t": ["allow User:alice read"], "a/b/u": ["deny User:alice read"]}, True),
        # A deny below an allow leaves the rest.
        ({"a/": ["allow User:alice read"], "a/t": ["deny User:alice read"]}, True),
        # One that is left is enough.
        (
            {"a/": ["allow User:alice read", "deny User:* read"], "b/": ["allow User:alice read"]},
            True,
        ),
    ],
)
def test_one_resource_is_enough(entries: dict[str, list[str]], *, expected: bool) -> None:
    assert any_read(entries) is expected


def test_A6_an_allow_that_implies_it_counts() -> None:
    # Kafka's authorizeByResourceType says no here, though its authorize says yes of each topic.
    given = access({"a/": ["allow User:alice read"]})
    assert authorize_any(given, ALICE, DESCRIBE)
    assert not authorize_any(given, ALICE, WRITE)


def test_an_inherited_deny_denies_all_and_an_inherited_allow_is_one_on_the_mount() -> None:
    given = access(
        {"t": ["allow User:alice write"], "/": ["deny User:bob read"]},
        inherited={"/": ["allow User:* read", "deny User:alice write"]},
    )
    assert authorize_any(given, ALICE, READ)
    assert not authorize_any(given, ALICE, WRITE)
    assert not authorize_any(given, BOB, READ)


def test_below_a_closed_directory_only_who_may_pass_it() -> None:
    entries = {"a/b/t": ["allow User:* read"], "a/": ["allow User:bob describe"]}
    given = access(entries, closed=("a/",))
    assert not authorize_any(given, ALICE, READ)
    assert authorize_any(given, BOB, READ)


def test_what_was_found_for_who_passes_is_not_given_to_who_does_not() -> None:
    # The same part of the tree, with grants of the same keys in it, asked about by both.
    entries = {
        "/": ["allow User:* describe from 10.0.0.1"],
        **{f"a/c/t{number}": ["allow User:alice read", "deny User:* write"] for number in range(9)},
    }
    given = access(entries, closed=("a/c/",))
    elsewhere = Caller("User:alice", "10.0.0.9")
    for _ in range(2):
        assert authorize_any(given, ALICE, READ)
        assert not authorize_any(given, elsewhere, READ)


def test_modes() -> None:
    assert authorize_any(access({}, mode=AccessMode.OPEN), ALICE, READ)
    denied = {"/": ["deny User:alice read"], "t": ["allow User:alice read"]}
    assert not authorize_any(access(denied, mode=AccessMode.OPEN), ALICE, READ)
    some = {"/": ["allow User:bob read"]}
    assert not authorize_any(access(some, mode=AccessMode.OPEN_IF_NO_GRANTS), ALICE, READ)
    below = {"a/": ["allow User:bob read"]}
    assert authorize_any(access(below, mode=AccessMode.OPEN_IF_NO_GRANTS), ALICE, READ)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ({"/": ["allow User:alice read group pay"]}, True),
        ({"/": ["allow User:alice read transactional-id pay"]}, False),
        ({"/": ["allow User:alice read group pay", "deny User:alice read group pay"]}, False),
        ({"/": ["allow User:alice read group pay*", "deny User:alice read group pay"]}, True),
        ({"/": ["allow User:alice read group pay", "deny User:* read group p*"]}, False),
        ({"/": ["allow User:alice read group *", "deny User:* read group p*"]}, True),
        ({"a/": ["allow User:alice read group pay"], "/": ["deny User:* all group p*"]}, False),
        ({"/": ["allow User:alice read group pay"], "a/": ["deny User:* all group *"]}, True),
        ({"a/b/": ["allow User:alice read group pay"], "a/": ["deny User:* all group *"]}, False),
        ({"a/": ["deny User:alice all group q", "allow User:alice all group p"]}, True),
    ],
)
def test_names_of_groups(patterns: dict[str, list[str]], *, expected: bool) -> None:
    assert authorize_any(access(patterns), ALICE, READ, ResourceType.GROUP) is expected


def test_a_closed_directory_closes_groups_too() -> None:
    given = access({"a/b/": ["allow User:alice read group pay"]}, closed=("a/",))
    assert not authorize_any(given, ALICE, READ, ResourceType.GROUP)


def test_an_idempotent_producer_needs_write_on_any_topic() -> None:
    def may(entries: dict[str, list[str]]) -> bool:
        return may_produce_idempotently(access(entries), ALICE)

    assert may({"a/t": ["allow User:alice write"]})
    assert may({"/": ["allow User:alice idempotent-write cluster"]})
    assert not may({"a/t": ["allow User:alice read", "allow User:alice describe"]})
    assert not may({"a/t": ["allow User:alice write"], "a/": ["deny User:* write"]})
    assert not may({"/": ["allow User:alice write cluster"]})


def test_A5_a_hundred_thousand_grants() -> None:
    # Half of all allows are denied again: alice is left with none, bob with one.
    dead = tuple(map(grant, ["allow User:alice read", "deny User:* read", "allow User:bob read"]))
    live = (*dead[::2], grant("deny User:alice read"))
    granted = [
        GrantedEntry(
            EntryPlace((f"d{n % 100}", f"t{n}"), is_topic=True), CompiledGrants.compile(dead)
        )
        for n in range(33_333)
    ]
    tree = GrantTree.build([*granted, GrantedEntry(at("d7/x"), CompiledGrants.compile(live))])
    given = Authorizer(mount=LA, tree=tree)
    assert not authorize_any(given, ALICE, READ)
    assert authorize_any(given, BOB, READ)
    without = tree.with_grants(at("d7/x"), ())
    assert not authorize_any(Authorizer(mount=LA, tree=without), BOB, READ)
    again = without.with_grants(at("d8/t8"), [grant("allow User:* read")])
    assert authorize_any(Authorizer(mount=LA, tree=again), BOB, READ)
    assert authorize_any(Authorizer(mount=LA, tree=again), ALICE, READ)


def test_a_tree_of_rules_that_are_shared_is_as_one_of_rules_that_are_not() -> None:
    rules = CompiledGrants.compile([grant("allow User:alice read")])
    apart, alike = (
        GrantTree.build(GrantedEntry(at(place), one) for place, one in pairs)
        for pairs in (
            [(place, CompiledGrants.compile(rules.grants)) for place in ("a", "b")],
            [(place, rules) for place in ("a", "b")],
        )
    )
    assert apart.root.live == alike.root.live
    assert apart.count == alike.count == 2


def test_the_deepest_tree_is_looked_through() -> None:
    # Allows of everybody meet denies of alice on every topic of 64 directories in each other.
    rules = CompiledGrants.compile(map(grant, ["allow User:* read", "deny User:alice read"]))
    path = tuple(f"d{depth}" for depth in range(MAX_SEGMENTS - 1))
    tree = GrantTree.build(
        GrantedEntry(EntryPlace((*path[:depth], f"t{number}"), is_topic=True), rules)
        for depth in range(MAX_SEGMENTS)
        for number in range(100)
    )
    given = Authorizer(mount=LA, tree=tree)
    assert not authorize_any(given, ALICE, READ)
    assert authorize_any(given, BOB, READ)
    assert len(list(given.denied_below(ALICE, AccessQuestion.for_operation(READ)))) == tree.count
