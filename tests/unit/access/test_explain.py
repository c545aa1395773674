"""What ``kdir check --explain`` has to show."""

from __future__ import annotations

from directory.access.compiled_grants import AccessQuestion, DecisionReason
from directory.access.explain import Effect, explain
from directory.access.grants import Operation, ResourceType
from directory.access.principals import Caller
from tests.unit.access.places import READ, access, at

ALICE = Caller("User:alice", "10.0.0.1")


def test_every_level_with_what_each_grant_came_to() -> None:
    given = access(
        {
            "a/": ["deny User:alice read", "allow User:bob read", "allow User:alice read group g"],
            "a/b/": [
                "allow User:alice read",
                "allow User:alice write",
                "deny User:alice read from 10.0.0.9",
                "deny User:* all",
            ],
        },
        inherited={"/": ["allow User:* read"]},
    )
    assert list(explain(given, ALICE, READ, at("a/b/t")).lines()) == [
        "denied: DENY User:alice READ TOPIC from * on /la/a",
        "  / (inherited)",
        "    ALLOW User:* READ TOPIC from *: overruled by the deny",
        "  /la/a",
        "    DENY User:alice READ TOPIC from *: decides",
        "  /la/a/b",
        "    DENY User:* ALL TOPIC from *: says the same",
        "    DENY User:alice READ TOPIC from 10.0.0.9: is about another host",
        "    ALLOW User:alice READ TOPIC from *: overruled by the deny",
        "    ALLOW User:alice WRITE TOPIC from *: is about another operation",
    ]


def test_what_does_not_count_is_reported() -> None:
    given = access(
        {"a/": [], "a/b/": ["allow User:alice read"]},
        closed=("a/",),
        inherited={"/": ["allow User:alice read"]},
        max_age=60,
    )
    assert list(explain(given, ALICE, READ, at("a/b/t"), age_seconds=61).lines()) == [
        f"denied: {DecisionReason.CLOSED.value}: /la/a",
        "  / (inherited)",
        f"    ALLOW User:alice READ TOPIC from *: {Effect.EXPIRED.value}",
        "  /la/a (closed)",
        "  /la/a/b",
        "    ALLOW User:alice READ TOPIC from *: does not count: below a closed directory",
    ]
    confirmed = explain(given, ALICE, READ, at("a/b/t"), age_seconds=1)
    assert confirmed.decision.allowed
    assert confirmed.levels[0].grants[0].effect is Effect.DECIDES
    assert confirmed.levels[-1].grants[0].effect is Effect.AGREES


def test_other_names_and_super_users() -> None:
    given = access({"/": ["allow User:alice read group pay*"]}, supers=frozenset({"User:root"}))
    question = AccessQuestion.for_operation(Operation.READ, ResourceType.GROUP, "other")
    (level,) = explain(given, ALICE, question).levels
    assert level.grants[0].effect is Effect.OTHER_NAME
    assert list(explain(given, Caller("User:root"), question).lines()) == ["allowed: a super user"]
