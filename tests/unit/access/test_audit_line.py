"""The audit line (A11)."""

from __future__ import annotations

import json

import pytest

from directory.access.audit_line import AuditLevel, audit_line
from directory.access.compiled_grants import AccessQuestion
from directory.access.grants import Operation, ResourceType
from directory.access.principals import Caller
from resolver.path import Path
from tests.unit.access.places import READ, access, at

ALICE = Caller("User:alice", "10.0.0.1")
WHERE = Path.parse("/la/a/t")


@pytest.mark.parametrize(
    ("entries", "explicit", "level"),
    [
        ({}, True, AuditLevel.INFO),
        ({}, False, AuditLevel.TRACE),
        ({"/": ["allow User:* read"]}, True, AuditLevel.DEBUG),
        ({"/": ["allow User:* read"]}, False, AuditLevel.TRACE),
    ],
)
def test_A11_levels(entries: dict[str, list[str]], *, explicit: bool, level: AuditLevel) -> None:
    decision = access(entries).authorize(ALICE, READ, at("a/t"))
    line = audit_line(ALICE, READ, WHERE, decision, request="3f9a", explicit=explicit)
    assert line.level is level


def test_A11_the_line_says_who_what_where_and_by_which_rule() -> None:
    decision = access({"a/": ["deny User:* read"]}).authorize(ALICE, READ, at("a/t"))
    line = audit_line(ALICE, READ, WHERE, decision, request="3f9a", resources=3)
    assert str(line) == (
        'result="DENIED" principal="User:alice" host="10.0.0.1" operation="READ" '
        'resource="TOPIC:/la/a/t" request="3f9a" resources="3" '
        'rule="DENY User:* READ TOPIC from * on /la/a"'
    )


def test_A11_the_rule_is_the_default_where_no_grant_decided() -> None:
    question = AccessQuestion.for_operation(Operation.READ, ResourceType.GROUP, "pay")
    decision = access({}).authorize(ALICE, question)
    line = audit_line(ALICE, question, Path.parse("/la"), decision, request="3f9a")
    assert line.fields["rule"] == "no matching grant"
    assert line.fields["resource"] == "GROUP:/la:pay"
    closed = access({"a/t": ["allow User:alice read"]}, closed=("a/",))
    line = audit_line(ALICE, READ, WHERE, closed.authorize(ALICE, READ, at("a/t")), request="3f9a")
    assert line.fields["rule"].endswith("pass it: /la/a")


def test_A11_a_name_from_a_certificate_forges_no_line() -> None:
    forger = Caller('User:x" result="ALLOWED"\nresult="ALLOWED" principal="User:root')
    line = str(
        audit_line(forger, READ, WHERE, access({}).authorize(forger, READ, at("a/t")), request="R")
    )
    assert "\n" not in line
    key, _, rest = line.partition(" principal=")
    assert key == 'result="DENIED"'
    value, _ = json.JSONDecoder().raw_decode(rest)
    assert value == forger.principal
