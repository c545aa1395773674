"""Decisions: each rule of ``compiled_grants.py`` by itself, with what decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from directory.access.authorize_any import authorize_any, may_produce_idempotently
from directory.access.authorizer import MOUNT_ROOT, Authorizer
from directory.access.compiled_grants import AccessMode, AccessQuestion, DecisionReason
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Operation, ResourceType
from directory.access.principals import Caller
from resolver.errors import NotReady
from tests.unit.access.places import DESCRIBE, LA, READ, WRITE, access, at, grant

ALICE = Caller("User:alice", "10.0.0.1")
BOB = Caller("User:bob", "10.0.0.2")
CREATE = AccessQuestion.for_operation(Operation.CREATE)


def test_without_a_grant_nothing_is_allowed() -> None:
    decision = access({}).authorize(ALICE, READ, at("a/t"))
    assert (decision.allowed, decision.reason) == (False, DecisionReason.NO_GRANT)
    assert str(decision) == "denied: no matching grant"


def test_an_allow_covers_its_entry_and_all_below_and_nothing_else() -> None:
    given = access({"a/b/": ["allow User:alice read"]})
    for place in ("a/b/", "a/b/t", "a/b/c/d/t", "a/b/t/"):
        decision = given.authorize(ALICE, READ, at(place))
        assert decision.allowed
        assert decision.grant == grant("allow User:alice read")
        assert str(decision.path) == "/la/a/b"
    # Nor does `a/b` cover `a/bc`, or the topic `a/b` that stands beside the directory.
    for place in ("/", "a/", "a/bc", "a/bc/t", "a/b", "b/t"):
        assert not given.authorize(ALICE, READ, at(place)).allowed
    assert not given.authorize(BOB, READ, at("a/b/t")).allowed
    assert not given.authorize(ALICE, WRITE, at("a/b/t")).allowed


def test_A9_a_deny_anywhere_on_the_path_beats_any_allow() -> None:
    above = access({"a/": ["deny User:alice read"], "a/b/": ["allow User:alice read"]})
    decision = above.authorize(ALICE, READ, at("a/b/t"))
    assert not decision.allowed
    assert str(decision) == "denied: DENY User:alice READ TOPIC from * on /la/a"
    below = access({"a/": ["allow User:alice all"], "a/b/t": ["deny User:* read"]})
    assert not below.authorize(ALICE, READ, at("a/b/t")).allowed
    assert below.authorize(ALICE, READ, at("a/b/u")).allowed
    assert below.authorize(ALICE, WRITE, at("a/b/t")).allowed


def test_of_several_that_say_so_the_outermost_is_named() -> None:
    given = access({"a/": ["allow User:* all"], "a/b/": ["allow User:alice read"]})
    assert str(given.authorize(ALICE, READ, at("a/b/t")).path) == "/la/a"


@pytest.mark.parametrize("operation", ["read", "write", "delete", "alter"])
def test_an_allow_that_implies_describe(operation: str) -> None:
    given = access({"a/": [f"allow User:alice {operation}"]})
    decision = given.authorize(ALICE, DESCRIBE, at("a/t"))
    assert decision.allowed
    assert decision.implied_by is Operation.parse(operation)
    assert str(decision).endswith(f"on /la/a, which {operation.upper()} implies")
    denied = access({"/": ["allow User:alice describe"], "a/": [f"deny User:alice {operation}"]})
    assert denied.authorize(ALICE, DESCRIBE, at("a/t")).allowed, "a deny implies nothing"


def test_what_implies_describing_configs() -> None:
    configs = AccessQuestion.for_operation(Operation.DESCRIBE_CONFIGS)
    given = access({"/": ["allow User:alice alter-configs"]})
    assert given.authorize(ALICE, configs).implied_by is Operation.ALTER_CONFIGS
    assert not access({"/": ["allow User:alice alter"]}).authorize(ALICE, configs).allowed


def test_the_very_operation_is_rather_named_than_one_that_implies_it() -> None:
    given = access({"/": ["allow User:alice read", "allow User:alice describe"]})
    decision = given.authorize(ALICE, DESCRIBE)
    assert decision.grant == grant("allow User:alice describe")
    assert decision.implied_by is None


@pytest.mark.parametrize("operation", ["create", "describe-configs", "alter-configs"])
def test_an_allow_that_implies_nothing_of_it(operation: str) -> None:
    given = access({"/": [f"allow User:alice {operation}"]})
    assert not given.authorize(ALICE, DESCRIBE, at("a/t")).allowed


def test_hosts_matter() -> None:
    given = access({"/": ["allow User:* read", "deny User:alice read from 10.0.0.1"]})
    assert not given.authorize(ALICE, READ).allowed
    assert given.authorize(Caller("User:alice", "10.0.0.9"), READ).allowed
    # From nowhere that is known: grants for every host only.
    assert given.authorize(Caller("User:alice"), READ).allowed
    only = access({"/": ["allow User:alice read from 10.0.0.1"]})
    assert only.authorize(ALICE, READ).allowed
    assert not only.authorize(Caller("User:alice"), READ).allowed


def test_everybody_is_of_whatever_type() -> None:
    given = access({"/": ["allow User:* read"]})
    assert given.authorize(Caller("Group:ops"), READ).allowed
    assert not access({"/": ["allow User:ops read"]}).authorize(Caller("Group:ops"), READ).allowed


def test_super_users_pass_every_deny() -> None:
    given = access({"/": ["deny User:* all"]}, closed=("a/",), supers=frozenset({"User:alice"}))
    assert given.authorize(ALICE, READ, at("a/t")).reason is DecisionReason.SUPER_USER
    assert given.for_directory(ALICE, READ, ("a",)).entry_decision("t", is_topic=True).allowed
    assert authorize_any(given, ALICE, Operation.READ, ResourceType.GROUP)
    assert not list(given.denied_below(ALICE, READ))
    assert not given.authorize(BOB, READ, at("a/t")).allowed


@pytest.mark.parametrize("lost", ["tree", "inherited"])
def test_A3_not_loaded_is_never_allowed_nor_denied(lost: str) -> None:
    given = access({}, mode=AccessMode.OPEN, supers=frozenset({"User:alice"}))
    if lost == "tree":
        given = dataclasses.replace(given, tree=None)
    else:
        given = dataclasses.replace(given, inherited=None)
    asks: tuple[Callable[[Caller], object], ...] = (
        lambda one: given.authorize(one, READ),
        lambda one: given.for_directory(one, READ).decision,
        lambda one: list(given.denied_below(one, READ)),
        lambda one: authorize_any(given, one, Operation.READ),
        lambda one: authorize_any(given, one, Operation.READ, ResourceType.GROUP),
        lambda one: may_produce_idempotently(given, one),
    )
    for ask in asks:
        ask(ALICE)
        with pytest.raises(NotReady):
            ask(BOB)
    assert given.authorize(ALICE, READ).reason is DecisionReason.SUPER_USER


def test_nothing_loaded_is_not_the_same_as_no_grants() -> None:
    assert Authorizer(mount=LA, tree=None).tree is None
    assert not access({}).authorize(ALICE, READ).allowed


def test_open_allows_what_no_grant_applies_to_and_says_so() -> None:
    given = access(
        {"a/": ["deny User:alice read"], "b/": ["allow User:bob read"]}, mode=AccessMode.OPEN
    )
    decision = given.authorize(ALICE, READ, at("b/t"))
    assert (decision.allowed, decision.reason) == (True, DecisionReason.OPEN)
    assert not given.authorize(ALICE, READ, at("a/t")).allowed
    assert given.authorize(BOB, READ, at("b/t")).reason is DecisionReason.GRANT


def test_open_where_nobody_was_granted_anything() -> None:
    given = access(
        {"a/": ["allow User:alice read"], "/": ["allow User:x read group pay"]},
        mode=AccessMode.OPEN_IF_NO_GRANTS,
    )
    assert given.authorize(BOB, READ, at("b/t")).reason is DecisionReason.OPEN
    assert not given.authorize(BOB, WRITE, at("a/t")).allowed
    group = AccessQuestion.for_operation(Operation.READ, ResourceType.GROUP, "pay")
    assert not given.authorize(BOB, group).allowed
    assert given.authorize(BOB, group._replace(name="other")).allowed


# -- closed directories ------------------------------------------------------------------------


def test_an_allow_below_implies_passing_and_not_listing() -> None:
    given = access({"a/b/t": ["allow User:alice read"]})
    assert given.authorize(ALICE, READ, at("a/b/t")).allowed
    assert not given.authorize(ALICE, DESCRIBE, at("a/b/")).allowed


def test_a_closed_directory_is_not_passed_by_an_allow_below() -> None:
    given = access({"a/b/t": ["allow User:alice read"]}, closed=("a/",))
    decision = given.authorize(ALICE, READ, at("a/b/t"))
    assert (decision.allowed, decision.reason) == (False, DecisionReason.CLOSED)
    assert str(decision).endswith("lets this principal pass it: /la/a")
    assert given.authorize(ALICE, READ, at("a/b/other")).reason is DecisionReason.NO_GRANT


@pytest.mark.parametrize("opened_at", ["/", "a/"])
def test_a_closed_directory_is_passed_by_who_may_describe_it(opened_at: str) -> None:
    given = access(
        {opened_at: ["allow User:alice describe"], "a/b/t": ["allow User:alice read"]},
        closed=("a/",),
    )
    assert given.authorize(ALICE, READ, at("a/b/t")).allowed


def test_an_allow_on_the_closed_directory_covers_all_below_as_ever() -> None:
    given = access({"a/": ["allow User:alice create"]}, closed=("a/",))
    assert given.authorize(ALICE, CREATE, at("a/b/")).allowed
    assert not given.authorize(ALICE, DESCRIBE, at("a/b/")).allowed
    # CREATE lets nobody describe it; so a further allow below does not count.
    further = access(
        {"a/": ["allow User:alice create"], "a/b/": ["allow User:alice read"]}, closed=("a/",)
    )
    assert not further.authorize(ALICE, READ, at("a/b/t")).allowed


def test_who_is_denied_to_describe_it_does_not_pass_it() -> None:
    entries = {
        "/": ["allow User:alice describe"],
        "a/": ["deny User:alice describe from 10.0.0.1"],
        "a/t": ["allow User:alice read"],
    }
    given = access(entries, closed=("a/",))
    assert not given.authorize(ALICE, READ, at("a/t")).allowed
    assert given.authorize(Caller("User:alice", "10.0.0.9"), READ, at("a/t")).allowed


def test_of_several_closed_ones_the_outermost_is_named() -> None:
    given = access({"a/b/c/t": ["allow User:alice read"]}, closed=("a/", "a/b/"))
    assert str(given.authorize(ALICE, READ, at("a/b/c/t")).path) == "/la/a"
    opened = given.tree
    assert opened is not None
    passed = dataclasses.replace(
        given, tree=opened.with_grants(at("a/"), [grant("allow User:alice describe")])
    )
    assert passed.authorize(ALICE, READ, at("a/b/c/t")).allowed


def test_a_closed_directory_is_closed_where_access_is_open() -> None:
    given = access({}, closed=("a/",), mode=AccessMode.OPEN)
    assert given.authorize(ALICE, READ, at("a/t")).reason is DecisionReason.CLOSED
    assert given.authorize(ALICE, DESCRIBE, at("a/")).reason is DecisionReason.CLOSED
    assert given.authorize(ALICE, READ, at("b/t")).reason is DecisionReason.OPEN


# -- from above the mount ----------------------------------------------------------------------


def test_what_is_inherited_are_the_outermost_levels() -> None:
    given = access(
        {"a/": ["deny User:bob read"]},
        inherited={"/": ["allow User:* read"], "/elsewhere": ["deny User:* write"]},
    )
    decision = given.authorize(ALICE, READ, at("a/t"))
    assert str(decision) == "allowed: ALLOW User:* READ TOPIC from * on /"
    assert not given.authorize(BOB, READ, at("a/t")).allowed
    assert str(given.authorize(ALICE, WRITE, at("a/t")).path) == "/elsewhere"


def test_an_inherited_allow_ends_and_a_deny_stays() -> None:
    given = access(
        {"b/": ["allow User:alice read"]},
        inherited={"/": ["allow User:alice read", "deny User:alice write"]},
        max_age=60,
    )
    assert given.authorize(ALICE, READ, at("a/t"), age_seconds=60).allowed
    late = given.authorize(ALICE, READ, at("a/t"), age_seconds=60.1)
    assert (late.allowed, late.reason) == (False, DecisionReason.EXPIRED)
    denied = given.authorize(ALICE, WRITE, at("a/t"), age_seconds=10**9)
    assert denied.reason is DecisionReason.GRANT
    # The cluster's own grants do not age.
    assert given.authorize(ALICE, READ, at("b/t"), age_seconds=10**9).allowed
    for_ever = dataclasses.replace(given, grants_max_age_seconds=None)
    assert for_ever.authorize(ALICE, READ, at("a/t"), age_seconds=10**9).allowed


def test_an_allow_that_has_ended_opens_no_closed_directory() -> None:
    given = access(
        {"a/t": ["allow User:alice read"]},
        closed=("a/",),
        inherited={"/": ["allow User:alice describe"]},
        max_age=60,
    )
    assert given.authorize(ALICE, READ, at("a/t"), age_seconds=1).allowed
    assert not given.authorize(ALICE, READ, at("a/t"), age_seconds=61).allowed
    assert authorize_any(given, ALICE, Operation.READ, age_seconds=1)
    assert not authorize_any(given, ALICE, Operation.READ, age_seconds=61)


# -- groups, transactional ids, the cluster ----------------------------------------------------


def test_groups_are_named_by_patterns_on_directories() -> None:
    given = access(
        {
            "/": ["allow User:alice read group pay*", "deny User:alice read group payroll"],
            "a/": ["allow User:alice read group other", "allow User:alice read"],
        }
    )

    def may(
        name: str, place: EntryPlace = MOUNT_ROOT, kind: ResourceType = ResourceType.GROUP
    ) -> bool:
        return given.authorize(
            ALICE, AccessQuestion.for_operation(Operation.READ, kind, name), place
        ).allowed

    assert may("payments")
    assert may("payments", at("a/"))
    assert not may("payroll", at("a/"))
    assert may("other", at("a/"))
    assert not may("other")
    assert not may("payments", kind=ResourceType.TRANSACTIONAL_ID)
    assert not given.authorize(ALICE, READ).allowed, "a group's grant is none of topics"


def test_a_deny_of_one_operation_on_a_group_is_none_of_another() -> None:
    # A deny implies nothing, though READ implies DESCRIBE in an allow and both are denied here.
    given = access(
        {
            "/": [
                "allow User:alice all group *",
                "deny User:alice read group pay",
                "deny User:alice describe group other",
            ]
        }
    )
    describe = AccessQuestion.for_operation(Operation.DESCRIBE, ResourceType.GROUP, "pay")
    assert given.authorize(ALICE, describe).allowed
    assert not given.authorize(ALICE, describe._replace(name="other")).allowed


def test_the_cluster_as_such() -> None:
    action = AccessQuestion.for_operation(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    given = access({}, inherited={"/": ["allow User:alice cluster-action cluster"]})
    assert given.authorize(ALICE, action).allowed
    assert not access({"/": ["allow User:alice all"]}).authorize(ALICE, action).allowed
