"""Versions of the tree: what a change leaves alone, and what readers of whole versions see."""

from __future__ import annotations

import random
import threading

from directory.access.authorize_any import authorize_any
from directory.access.authorizer import MOUNT_ROOT, Authorizer
from directory.access.compiled_grants import CompiledGrants
from directory.access.grant_tree import NO_GRANTS, GrantedEntry, GrantTree
from directory.access.grants import Grant, Operation
from directory.access.principals import Caller
from directory.namespace.plan_grants import add_grants, remove_grants
from tests.unit.access.places import LA, READ, at, grant, tree

ALICE = Caller("User:alice", "10.0.0.1")


def may(given: GrantTree, place: str) -> bool:
    return Authorizer(mount=LA, tree=given).authorize(ALICE, READ, at(place)).allowed


def test_a_version_stays_as_it_was() -> None:
    first = tree({"a/t": ["allow User:alice read"]})
    second = first.with_grants(at("a/"), [grant("deny User:alice read")])
    third = second.with_grants(at("a/t"), ())
    assert [may(one, "a/t") for one in (first, second, third)] == [True, False, False]
    assert [one.count for one in (first, second, third)] == [1, 2, 1]
    assert third.with_grants(at("a/"), ()).root.is_empty


def test_nothing_is_left_of_what_is_taken_away() -> None:
    given = NO_GRANTS.with_closed(("a", "b"), closed=True)
    assert given.node_at(at("a/")) is not None
    assert given.with_closed(("a", "b"), closed=False).root.is_empty
    many = NO_GRANTS
    places = [at(f"d{number % 7}/t{number}") for number in range(500)]
    for place in places:
        many = many.with_grants(place, [grant(f"allow User:{place.relative[1]} read")])
    random.Random(1).shuffle(places)
    for place in places:
        many = many.with_grants(place, ())
    assert many.root.is_empty
    assert not many.root.live


def test_A8_one_of_three_grants_of_an_entry_is_removed_exactly() -> None:
    texts = ["allow User:alice read", "allow User:alice write", "deny User:bob read"]
    given = tree({"a/t": texts, "a/u": texts})
    left = remove_grants(given.grants_at(at("a/t")), [grant(texts[0])])
    after = Authorizer(mount=LA, tree=given.with_grants(at("a/t"), left))
    assert not after.authorize(ALICE, READ, at("a/t")).allowed
    assert after.authorize(ALICE, READ, at("a/u")).allowed
    assert (
        after.authorize(ALICE, READ._replace(operation=Operation.WRITE), at("a/t")).allowed is False
    )
    assert authorize_any(after, ALICE, Operation.WRITE)
    assert after.authorize(Caller("User:bob"), READ, at("a/t")).grant == grant(texts[2])


def test_a_moved_directory_takes_its_grants_along() -> None:
    given = tree(
        {
            "a/b/t": ["allow User:alice read"],
            "a/b/": ["deny User:x read"],
            "c/": ["deny User:* all"],
        }
    )
    without, moving = given.detach_subtree(at("a/b/"))
    assert without.node_at(at("a/")) is None
    there = without.attach_subtree(at("d/e/"), moving)
    assert may(there, "d/e/t")
    assert not may(there, "a/b/t")
    assert [one.place for one in there.granted_below(at("d/"))] == [at("d/e/"), at("d/e/t")]
    # Where somebody else's rules hold, they hold for it.
    assert not may(without.attach_subtree(at("c/b/"), moving), "c/b/t")


def test_cutting_what_is_not_there_changes_nothing() -> None:
    given = tree({"a/": ["allow User:alice read"]})
    after, nothing = given.detach_subtree(at("x/y/"))
    assert after is given
    assert nothing.is_empty


def test_what_there_is_below_and_along() -> None:
    given = tree({"/": ["deny User:x read"], "a/b/t": ["deny User:y read"]}, closed=("a/",))
    assert list(given.granted_below(MOUNT_ROOT)) == [
        GrantedEntry(at("a/"), closed=True),
        GrantedEntry(at("a/b/t"), CompiledGrants.compile([grant("deny User:y read")])),
    ]
    assert [depth for depth, _ in given.levels_to(at("a/b/t"))] == [0, 1, 3]
    assert [depth for depth, _ in given.levels_to(at("a/b/"))] == [0, 1]
    assert list(given.granted_below(at("z/"))) == []
    assert given.grants_at(at("a/b/t")) == (grant("deny User:y read"),)
    assert given.grants_at(at("a/b/")) == given.grants_at(at("z")) == ()


def test_A4_a_reader_never_sees_a_later_allow_without_the_earlier_deny() -> None:
    # A writer denies alice, then allows everybody, and takes both back in the other order.
    published = Authorizer(mount=LA, tree=NO_GRANTS)
    done = threading.Event()
    seen: set[bool] = set()

    def read() -> None:
        while not done.is_set():
            held = published
            seen.add(held.authorize(ALICE, READ, at("a/t")).allowed)
            seen.add(authorize_any(held, ALICE, Operation.READ))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    deny, allow = grant("deny User:alice read"), grant("allow User:* read")
    try:
        for _ in range(300):
            for change, one in ((add_grants, deny), (add_grants, allow)):
                published = _changed(published, change(_own(published), [one]))
            for one in (allow, deny):
                published = _changed(published, remove_grants(_own(published), [one]))
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert seen == {False}


def _own(given: Authorizer) -> tuple[Grant, ...]:
    assert given.tree is not None
    return given.tree.grants_at(at("a/"))


def _changed(given: Authorizer, grants: tuple[Grant, ...]) -> Authorizer:
    assert given.tree is not None
    return Authorizer(mount=LA, tree=given.tree.with_grants(at("a/"), grants))
