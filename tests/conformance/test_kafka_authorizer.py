"""Who may do what, by the cases of Kafka's authorizers (``kafka_authorizer.json``).

Kafka's resources have names, and its patterns match them whole or by their beginning, character by
character. Here a topic's name is a path of one directory a character with the topic ``=`` in the
last: so a prefix is a directory, ``*`` the root, and the grants of a path are those of all patterns
that match. Groups and transactional ids have patterns in kdir as well, on the root directory.

One file, though a long one: all parts of the cases are read with this one mapping.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from directory.access.audit_line import audit_line
from directory.access.authorize_any import authorize_any, may_produce_idempotently
from directory.access.authorizer import MOUNT_ROOT, Authorizer
from directory.access.compiled_grants import AccessMode, AccessQuestion, Decision, DecisionReason
from directory.access.grant_tree import NO_GRANTS, EntryPlace, GrantTree
from directory.access.grants import (
    IMPLIED_BY,
    Grant,
    Operation,
    Permission,
    ResourceType,
)
from directory.access.principals import Caller, parse_principal
from directory.namespace.plan_grants import add_grants, remove_grants
from directory.server.config_security import parse_super_users
from resolver.errors import InvalidArgument, InvalidInput, NotReady
from resolver.path import ROOT
from tests.conformance.cases import NOT_UNDERSTOOD, Row, assert_same, cases, run, section_rows

_COLUMNS = "resource_type pattern_type resource_name principal host operation permission"
_MODES = {"authorize", "authorize_by_resource_type", "find_result", "init_producer_id"}
_NEEDED = {"acls", "allow_everyone_if_no_acl", "expected", "mode", "request", "super_users"}
_PATTERNS = ("LITERAL", "PREFIXED")
_TOKENS = {"DELEGATION_TOKEN", "USER"}
_CLUSTER = "kafka-cluster"
_NO_MATCH = {DecisionReason.NO_GRANT, DecisionReason.OPEN}


def read(text: str) -> Iterator[Row]:
    """Yields the rows of all sections; of a property test there is no more than its name."""
    for row in section_rows(text, {"acl_columns"}):
        if row["section"] == "property_tests/names":
            yield {"section": "property_tests", "test": row["row"]}
        else:
            yield row


# -- which rows are run ------------------------------------------------------------------------


def category(row: Row) -> str | None:
    match row["section"]:
        case "cases":
            if row["mode"] not in _MODES:
                return NOT_UNDERSTOOD
            return case_category(row)
        case "property_tests":
            return None if _PROPERTY.fullmatch(row["test"]) else NOT_UNDERSTOOD
        case "derived_from_code":
            if row["fact"] == IMPLIED_FACT:
                return "implied-any"
            return None if row["fact"] in _FACTS else NOT_UNDERSTOOD
        case "acl_management":
            return management_category(row)
        case "resource_pattern_filter":
            return filter_category(row["resource"], row["filter"])
        case section:
            return None if section in _CHECKS else NOT_UNDERSTOOD


def case_category(row: Row) -> str | None:
    asked = row["request"]
    if {asked["resource_type"], *(acl[0] for acl in row["acls"])} & _TOKENS:
        return "tokens"
    if asked["pattern_type"] != "LITERAL":
        is_pattern = asked["pattern_type"] in {"PREFIXED", "MATCH", "ANY"}
        return "asked-by-pattern" if is_pattern else NOT_UNDERSTOOD
    names = [acl[1:3] for acl in row["acls"] if acl[0] == "CLUSTER"]
    if any(pattern == "PREFIXED" or name not in {"", "*", _CLUSTER} for pattern, name in names):
        return "cluster-names"
    by_type = row["mode"] == "authorize_by_resource_type"
    if asked["resource_type"] == "CLUSTER" and (
        row["allow_everyone_if_no_acl"] and ["LITERAL", _CLUSTER] in names
        if by_type
        else asked["resource_name"] != _CLUSTER
    ):
        return "cluster-names"
    return "implied-any" if by_type and is_implied(row["acls"], asked) else None


def is_implied(acls: list[list[str]], asked: Row) -> bool:
    """True if an allow of another operation implies to the caller the one asked for."""
    implied_by = {
        one.name for of, by in IMPLIED_BY.items() if of.name == asked["operation"] for one in by
    }
    own = {"User:*", asked["principal"]}, {"*", asked["host"]}
    return any(
        kind == asked["resource_type"]
        and (principal in own[0] and host in own[1])
        and (operation in implied_by and permission == "ALLOW")
        for kind, _, _, principal, host, operation, permission in acls
    )


# -- Kafka's patterns in a tree ----------------------------------------------------------------


class Binding(NamedTuple):
    """A grant where it stands."""

    place: EntryPlace
    grant: Grant


def letters(name: str) -> tuple[str, ...]:
    return tuple(f"{ord(letter):x}" for letter in name)


def place_of(kind: ResourceType, pattern: str, name: str) -> EntryPlace:
    """Returns where the grants of a pattern stand."""
    if (pattern, name) == ("LITERAL", "*"):
        return MOUNT_ROOT
    if pattern == "PREFIXED" and kind is ResourceType.TOPIC:
        return EntryPlace(letters(name))
    return place_of_resource(kind, name)


def place_of_resource(kind: ResourceType, name: str) -> EntryPlace:
    """Returns where a resource stands; ``*`` is a name like any other."""
    if kind is not ResourceType.TOPIC:
        return MOUNT_ROOT
    return EntryPlace((*letters(name), "="), is_topic=True)


def name_of(kind: ResourceType, pattern: str, name: str) -> str:
    """Returns what the grants of a pattern are about, besides the place where they stand."""
    if pattern == "PREFIXED" and kind.has_names:
        return f"{name_of_resource(kind, name)}*"
    is_wildcard = kind.has_names and name == "*"
    return "*" if is_wildcard else name_of_resource(kind, name)


def name_of_resource(kind: ResourceType, name: str) -> str:
    """Returns a name in which no letter means anything to kdir, as ``*`` at its end would."""
    return "".join(f"{letter}." for letter in letters(name)) if kind.has_names else ""


def binding(columns: Sequence[str]) -> Binding:
    """Returns one ACL, by the columns of the file."""
    assert len(columns) == len(_COLUMNS.split()), f"{columns}: an ACL has {_COLUMNS}"
    resource_type, pattern, name, principal, host, operation, permission = columns
    if pattern not in _PATTERNS:
        raise InvalidArgument(f"{pattern!r} is no pattern of an ACL; expected {_PATTERNS}")
    if not name:
        raise InvalidArgument("an ACL has the name of a resource, found none")
    kind = ResourceType.parse(resource_type)
    grant = Grant.from_fields(
        principal,
        host,
        Operation.parse(operation),
        Permission.parse(permission),
        kind,
        name_of(kind, pattern, name),
    )
    return Binding(place_of(kind, pattern, name), grant)


def added(tree: GrantTree, bindings: Iterable[Binding]) -> GrantTree:
    for place, grant in bindings:
        tree = tree.with_grants(place, add_grants(tree.grants_at(place), [grant]))
    return tree


def removed(tree: GrantTree, bindings: Iterable[Binding]) -> GrantTree:
    for place, grant in bindings:
        tree = tree.with_grants(place, remove_grants(tree.grants_at(place), [grant]))
    return tree


def every(tree: GrantTree) -> Iterator[Binding]:
    yield from (Binding(MOUNT_ROOT, grant) for grant in tree.root.rules.grants)
    for place, rules, _ in tree.granted_below(MOUNT_ROOT):
        yield from (Binding(place, grant) for grant in rules.grants)


# -- asking ------------------------------------------------------------------------------------


def access_of(row: Row) -> Authorizer:
    loaded = row.get("loaded", True)
    open_where = (
        AccessMode.OPEN_IF_NO_GRANTS if row["allow_everyone_if_no_acl"] else AccessMode.ENFORCE
    )
    return Authorizer(
        mount=ROOT,
        tree=added(NO_GRANTS, map(binding, row["acls"])) if loaded else None,
        mode=open_where,
        super_users=parse_super_users(row["super_users"]),
    )


def check_case(row: Row) -> None:
    missing = _NEEDED - row.keys()
    assert not missing, f"the row lacks {sorted(missing)}"
    asked = row["request"]
    expected = row["expected"]
    try:
        caller = Caller.parse(asked["principal"], asked["host"])
        found = answer(row["mode"], access_of(row), caller, asked)
    except NotReady:
        assert "NOTREADY" in expected.upper().replace("_", ""), expected
        return
    except InvalidInput as error:
        if not expected.startswith("ERROR"):
            pytest.fail(f"{error}; expected: {expected}")
        return
    assert found == expected


def answer(mode: str, access: Authorizer, caller: Caller, asked: Row) -> str:
    if mode == "init_producer_id":
        allowed = may_produce_idempotently(access, caller)
        return "ALLOWED" if allowed else "DENIED_CLUSTER_AUTHORIZATION_FAILED"
    kind, operation = (
        ResourceType.parse(asked["resource_type"]),
        Operation.parse(asked["operation"]),
    )
    if mode == "authorize_by_resource_type":
        return output(authorize_any(access, caller, operation, kind))
    decision = decided(access, caller, operation, kind, asked["resource_name"])
    nothing = mode == "find_result" and decision.reason in _NO_MATCH
    return "NO_MATCH" if nothing else output(decision.allowed)


def decided(
    access: Authorizer, caller: Caller, operation: Operation, kind: ResourceType, name: str
) -> Decision:
    question = AccessQuestion.for_operation(operation, kind, name_of_resource(kind, name))
    return access.authorize(caller, question, place_of_resource(kind, name))


def output(allowed: bool) -> str:
    return "ALLOWED" if allowed else "DENIED"


# -- listing by pattern ------------------------------------------------------------------------


def matching(tree: GrantTree, kind: str, pattern: str, name: str | None) -> list[Binding]:
    """Returns the ACLs that a filter of Kafka finds: at a pattern, or at all that match a name."""
    kinds = list(ResourceType) if kind == "ANY" else [ResourceType.parse(kind)]
    return [
        one
        for one in every(tree)
        if one.grant.kind in kinds
        and (is_pattern(one, pattern) if name is None else is_found(tree, one, pattern, name))
    ]


def is_pattern(one: Binding, pattern: str) -> bool:
    prefixed = one.place.relative and not one.place.is_topic
    prefixed = prefixed or (one.grant.name.endswith("*") and one.grant.name != "*")
    return pattern in {"ANY", "MATCH", "PREFIXED" if prefixed else "LITERAL"}


def is_found(tree: GrantTree, one: Binding, pattern: str, name: str) -> bool:
    kind = one.grant.kind
    if pattern == "MATCH":
        place = place_of_resource(kind, name)
        on_the_way = any(
            EntryPlace(place.relative[:depth], place.is_topic and depth == len(place.relative))
            == one.place
            and one.grant in branch.rules.grants
            for depth, branch in tree.levels_to(place)
        )
        return on_the_way and (
            not kind.has_names or one.grant.matches_name(name_of_resource(kind, name))
        )
    patterns = ("LITERAL", "PREFIXED") if pattern == "ANY" else (pattern,)
    return any(
        place_of(kind, exact, name) == one.place and name_of(kind, exact, name) == one.grant.name
        for exact in patterns
    )


def filter_category(resource: Row, sought: Row) -> str | None:
    if {resource["resource_type"], sought["resource_type"]} & _TOKENS:
        return "tokens"
    is_pattern = resource["pattern_type"] in _PATTERNS
    if not is_pattern or sought["pattern_type"] not in {*_PATTERNS, "MATCH", "ANY"}:
        return NOT_UNDERSTOOD
    if resource["resource_type"] != "CLUSTER" or sought["resource_type"] not in {"CLUSTER", "ANY"}:
        return None
    has_name = sought["name"] is not None or resource["pattern_type"] == "PREFIXED"
    return "cluster-names" if has_name else None


def check_filter(row: Row) -> None:
    resource, sought = row["resource"], row["filter"]
    where = [resource["resource_type"], resource["pattern_type"], resource["name"]]
    tree = added(NO_GRANTS, [binding([*where, "User:alice", "*", "READ", "ALLOW"])])
    found = matching(tree, sought["resource_type"], sought["pattern_type"], sought["name"])
    assert bool(found) is row["expected_match"]


# -- adding, removing, listing -----------------------------------------------------------------

_SHORT = re.compile(r"(allow|deny)([A-Z]\w*)")
_DEFINED = re.compile(r"(\w+)=(\w+)/(\w+)/(\S+) (\S+) (\S+) (\w+)(?: (ALLOW|DENY))?")
_FILTER = r"(?:ANY|exact \w+|\w+/\w+(?:/[^,\]]+)?)"
_LISTING = re.compile(
    rf"list (?P<filter>principal=\S+|{_FILTER})|"
    rf"delete \[(?P<filters>{_FILTER}(?:, {_FILTER})*)\] in one request"
)
_LEFT = re.compile(r"\w+\|\w+\|.+")


def management_category(row: Row) -> str | None:
    if _TOKENS & {step[1] for step in row["steps"] if isinstance(step[1], str)}:
        return "tokens"
    known = all(_LISTING.fullmatch(one) or _LEFT.fullmatch(one) for one in row["expected"])
    return None if known else NOT_UNDERSTOOD


def definitions(note: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the ACLs that a note names, such as ``b1=TOPIC/LITERAL/t alice * READ``."""
    for name, kind, pattern, at, who, host, operation, permission in _DEFINED.findall(note):
        principal = who if ":" in who else f"User:{who}"
        yield name, [kind, pattern, at, principal, host, operation, permission or "ALLOW"]


def check_management(row: Row) -> None:
    defined = {name: binding(columns) for name, columns in definitions(row.get("note", ""))}
    tree = NO_GRANTS
    for step in row["steps"]:
        tree = done(tree, step, defined)
    left = {where: grants for where, grants in row["expected"].items() if _LEFT.fullmatch(where)}
    for asked, expected in row["expected"].items():
        if found := _LISTING.fullmatch(asked):
            check_listing(tree, found, expected, defined)
    if left or not row["expected"]:
        check_what_is_left(tree, left)


def done(tree: GrantTree, step: list[Any], defined: dict[str, Binding]) -> GrantTree:
    match step:
        case ["add-bindings", names]:
            return added(tree, (defined[name] for name in names))
        case ["remove-bindings", names]:
            return removed(tree, (defined[name] for name in names))
        case ["add", kind, pattern, name, grants]:
            return added(tree, (short([kind, pattern, name], one) for one in grants))
        case ["remove", kind, pattern, name, "ALL"]:
            return removed(tree, matching(tree, kind, pattern, name))
        case ["remove", kind, pattern, name, grants]:
            return removed(tree, (short([kind, pattern, name], one) for one in grants))
        case _:
            raise AssertionError(step)


def short(where: list[str], text: str) -> Binding:
    """Returns the binding that a short form means: ``allowRead``, or ``User:alice WRITE ALLOW``."""
    if found := _SHORT.fullmatch(text):
        operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[2])
        return binding([*where, "User:alice", "*", operation, found[1]])
    principal, *host, operation, permission = text.split()
    return binding([*where, principal, *(host or "*"), operation, permission])


def check_what_is_left(tree: GrantTree, expected: dict[str, list[str]]) -> None:
    wanted = set()
    for where, grants in expected.items():
        wanted |= {short(where.split("|"), one) for one in grants}
    assert set(every(tree)) == wanted


def check_listing(
    tree: GrantTree, asked: re.Match[str], expected: Any, defined: dict[str, Binding]
) -> None:
    if asked["filters"]:
        found = [set(sought(tree, one, defined)) for one in asked["filters"].split(", ")]
        assert found == [{defined[name] for name in names} for names in expected]
        assert not set(every(removed(tree, set().union(*found)))) & set().union(*found)
        return
    one = sought(tree, asked["filter"], defined)
    if isinstance(expected, list):
        assert set(one) == {defined[name] for name in expected}
    else:
        assert_same(len(one), expected)


def sought(tree: GrantTree, text: str, defined: dict[str, Binding]) -> list[Binding]:
    if text.startswith("principal="):
        principal = text.removeprefix("principal=")
        return [one for one in every(tree) if one.grant.principal == principal]
    if text.startswith("exact "):
        one = defined[text.removeprefix("exact ")]
        return [one] if one.grant in tree.grants_at(one.place) else []
    if text == "ANY":
        return list(every(tree))
    kind, pattern, *name = text.split("/", 2)
    return matching(tree, kind, pattern, name[0] if name else None)


# -- settings and lines ------------------------------------------------------------------------

_FIELDS = {
    "principal": "principal",
    "result": "result",
    "operation": "operation",
    "host": "host",
    "resource type:pattern:name": "resource",
    "request kind": "request",
    "resource ref count": "resources",
    "matching rule (the whole ACL)": "rule",
}


def check_super_users(row: Row) -> None:
    if isinstance(row["expected"], str):
        check_refused(parse_super_users, row)
    else:
        assert sorted(parse_super_users(row["input"] or "")) == row["expected"]


def check_refused(parse: Callable[[str], object], row: Row) -> None:
    """Asserts that a text is refused; for the part that the row names, if it names one."""
    assert row["expected"].startswith("ERROR"), row["expected"]
    _, _, bad = row["expected"].partition(" but got ")
    with pytest.raises(InvalidArgument, match=re.escape(repr(bad)) if bad else None):
        parse(row["input"] or "")


def check_default(row: Row) -> None:
    everyone = (row["allow_everyone_if_no_acl"] or "false").strip().lower() == "true"
    access = access_of({"allow_everyone_if_no_acl": everyone, "acls": [], "super_users": []})
    decision = decided(access, Caller("User:a"), Operation.READ, ResourceType.TOPIC, "t")
    assert output(decision.allowed) == row["expected"]


def check_principal(row: Row) -> None:
    if isinstance(row["expected"], str):
        check_refused(parse_principal, row)
        return
    kind, name = parse_principal(row["input"])
    assert {"type": kind, "name": name} == row["expected"]


def check_audit(row: Row) -> None:
    acl = ["TOPIC", "PREFIXED", "foo", "User:bob", "*", "READ"]
    permission = "ALLOW" if row["result"] == "ALLOWED" else "DENY"
    access = Authorizer(mount=ROOT, tree=added(NO_GRANTS, [binding([*acl, permission])]))
    caller, question = Caller("User:bob", "10.0.0.1"), AccessQuestion.for_operation(Operation.READ)
    decision = access.authorize(caller, question, place_of_resource(ResourceType.TOPIC, "foobar"))
    line = audit_line(
        caller,
        question,
        ROOT,
        decision,
        request="Resolve",
        resources=10,
        explicit=row["explicit_request"],
    )
    assert line.level.name == row["expected_level"]
    assert line.fields["result"] == row["result"]
    assert all(line.fields[_FIELDS[name]] for name in row["expected_fields"])
    assert str(decision.grant) in line.fields["rule"]


# -- what Kafka tries at random, and what was read in its code -----------------------------------

_PROPERTY = re.compile(
    r"matching(Prefix|Literal)(DenyOverridesAllAllowRules|AllowWithNoMatchingDenyRules)"
)
_TRIES = 100


def check_property(row: Row) -> None:
    found = _PROPERTY.fullmatch(row["test"])
    assert found is not None
    for seed in range(_TRIES):
        chance = random.Random(seed)
        name = "".join(chance.choices("abc", k=chance.randint(1, 5)))
        pattern, beginning = "LITERAL", name
        if found[1] == "Prefix":
            pattern, beginning = "PREFIXED", name[: chance.randint(1, len(name))]
        denied = found[2].startswith("Deny")
        others = [random_acl(chance, name, matches=denied) for _ in range(chance.randint(0, 20))]
        own = ["User:bob", "*", "WRITE", "DENY" if denied else "ALLOW"]
        acls = [*others, ["TOPIC", pattern, beginning, *own]]
        chance.shuffle(acls)
        access = Authorizer(mount=ROOT, tree=added(NO_GRANTS, map(binding, acls)))
        caller = Caller("User:bob", "10.0.0.1")
        decision = decided(access, caller, Operation.WRITE, ResourceType.TOPIC, name)
        assert decision.allowed is not denied


def random_acl(chance: random.Random, name: str, *, matches: bool) -> list[str]:
    """Returns an allow that matches the name, or a deny that does not."""
    if matches:
        pattern = chance.choice(("LITERAL", "PREFIXED"))
        at = name if pattern == "LITERAL" else name[: chance.randint(1, len(name))]
        operation = chance.choice(("WRITE", "ALL"))
        return [
            "TOPIC",
            pattern,
            at,
            chance.choice(("User:bob", "User:*")),
            "*",
            operation,
            "ALLOW",
        ]
    other = name + chance.choice(string.ascii_lowercase)
    pattern = chance.choice(("LITERAL", "PREFIXED"))
    return ["TOPIC", pattern, other, "User:bob", "*", "WRITE", "DENY"]


def refuses_what_is_no_kind() -> None:
    for text in ("ANY", "UNKNOWN"):
        for parse in (ResourceType.parse, Operation.parse):
            with pytest.raises(InvalidArgument):
                parse(text)


def a_literal_deny_leaves_a_prefix() -> None:
    for kind in ("TOPIC", "GROUP"):
        acls = [
            [kind, "PREFIXED", "foo", "User:bob", "*", "READ", "ALLOW"],
            [kind, "LITERAL", "foo", "User:bob", "*", "READ", "DENY"],
        ]
        assert may_any(acls, kind)
        for wider in (["PREFIXED", "fo"], ["PREFIXED", "foo"], ["LITERAL", "*"]):
            assert not may_any([acls[0], [kind, *wider, *acls[1][3:]]], kind)


def nothing_need_be_there() -> None:
    for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID"):
        assert may_any([[kind, "LITERAL", "foo", "User:bob", "*", "READ", "ALLOW"]], kind)


def may_any(acls: list[list[str]], kind: str) -> bool:
    access = Authorizer(mount=ROOT, tree=added(NO_GRANTS, map(binding, acls)))
    return authorize_any(access, Caller("User:bob"), Operation.READ, ResourceType.parse(kind))


IMPLIED_FACT = (
    "authorizeByResourceType does not use implied operations: one ALLOW READ on PREFIXED foo gives "
    "authorizeByResourceType(DESCRIBE,TOPIC)=DENIED although authorize(DESCRIBE, foo1)=ALLOWED"
)
_FACTS: dict[str, Callable[[], None]] = {
    "authorizeByResourceType rejects resource type ANY, type UNKNOWN, operation ANY, operation "
    "UNKNOWN with an invalid-argument error (4 cases)": refuses_what_is_no_kind,
    "a literal DENY of the same name does not dominate a PREFIXED allow; only a prefixed deny that "
    "is a (non-strict) prefix of it or a wildcard deny does": a_literal_deny_leaves_a_prefix,
    "a plain literal allow on a resource is enough: the check never asks whether that resource "
    "exists": nothing_need_be_there,
}


def check_fact(row: Row) -> None:
    _FACTS[row["fact"]]()


# -- the rows ----------------------------------------------------------------------------------

_CHECKS: dict[str, Callable[[Row], None]] = {
    "cases": check_case,
    "resource_pattern_filter": check_filter,
    "acl_management": check_management,
    "super_users_parse": check_super_users,
    "default_result": check_default,
    "principal_parse": check_principal,
    "audit_log": check_audit,
    "property_tests": check_property,
    "derived_from_code": check_fact,
}


def check(row: Row) -> None:
    """Holds the authorizer to one case."""
    _CHECKS[row["section"]](row)


@pytest.mark.parametrize("row", cases("kafka_authorizer", "kafka_authorizer.json", read, category))
def test_A1_decisions_equal_those_of_kafkas_authorizer(row: Row) -> None:
    run(check, row)
