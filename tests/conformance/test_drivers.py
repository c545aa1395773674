"""The drivers themselves: each tells a right row from a wrong one, and sorts rows by what they say.

Runs without any folder of cases; the rows here are our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from resolver.errors import KdirError
from tests.conformance import (
    reporting,
    test_finagle_dtab,
    test_hdfs_mount_table,
    test_kafka_authorizer,
    test_kafka_producer,
    test_kafka_topic_names,
    test_pulsar_names,
)
from tests.conformance.cases import FOLDER, NOT_UNDERSTOOD, TALLIES, Row, cases, run
from tests.conformance.exclusions import EXCLUSIONS

TABLE = {
    "default_ns": "0",
    "default_ns_enabled": False,
    "entries": [["/a", [["1", "/x"]]], ["/a/b", [["2", "/"]]], ["/m", [["3", "/"], ["4", "/"]]]],
}


def hdfs(op: str, path: str, expected: object, table: object = TABLE) -> Row:
    return {"section": "cases", "op": op, "path": path, "expected": expected, "table": table}


def scenario(steps: str, expected: str = "") -> Row:
    return {"section": "scenarios", "steps": steps, "expected": expected}


def finagle(kind: str, rules: list[str], given: object, expected: object) -> Row:
    row = {"kind": kind, "dtab": rules, "input": given, "expected": expected}
    return {"section": "cases", **row}


def chain(links: int) -> list[str]:
    """Returns rules by which ``/n0`` leads over so many links to ``1``."""
    ends = [f"/n{number}" for number in range(1, links)]
    return [f"/n{number} => {end}" for number, end in enumerate([*ends, "/$/inet/1"])]


def states(tree: str, expected: object, **state: str) -> Row:
    return finagle("bind_tree_state", [], {"tree": tree, "state": state}, expected)


def pulsar(kind: str, given: object, expected: object) -> Row:
    return {"section": "name_cases", "kind": kind, "input": given, "expected": expected}


def incarnation(steps: str, expected: str) -> Row:
    return {"section": "lifecycle", "steps": steps, "expected": expected}


def kafka(check: str, name: str, expected: str, other: str = "") -> Row:
    return {"check": check, "name_a": name, "name_b": other, "expected": expected}


def acl(text: str) -> list[str]:
    """Returns the columns of an ACL such as ``TOPIC LITERAL t User:a READ ALLOW``."""
    kind, pattern, name, principal, operation, permission = text.split()
    return [kind, pattern, name, principal, "*", operation, permission]


def access(expected: str, *acls: str, **asked: object) -> Row:
    request = {
        "principal": "User:a",
        "host": "10.0.0.1",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "foo",
        "pattern_type": "LITERAL",
    }
    return {
        "section": "cases",
        "mode": asked.pop("mode", "authorize"),
        "super_users": ["User:root"],
        "allow_everyone_if_no_acl": False,
        "loaded": asked.pop("loaded", True),
        "acls": [acl(text) for text in acls],
        "request": {**request, **asked},
        "expected": expected,
    }


NO_PRODUCER_ID = "DENIED_CLUSTER_AUTHORIZATION_FAILED"
LAST_WRITE = "last write of each topic is what both the cache and a bypass-cache read return"
GROUP = {"resource_type": "GROUP", "resource_name": "group"}


def filtered(resource: str, sought: str) -> Row:
    names = ("resource_type", "pattern_type", "name")
    both = {"resource": resource, "filter": sought}
    asked = {key: dict(zip(names, text.split(), strict=True)) for key, text in both.items()}
    return {"section": "resource_pattern_filter", **asked, "expected_match": True}


BINDINGS = "a=TOPIC/LITERAL/x alice * READ DENY; b=GROUP/PREFIXED/g User:* * ALL"


def managed(expected: object, *steps: list[object]) -> Row:
    steps = steps or (["add-bindings", ["a", "b"]],)
    return {
        "section": "acl_management",
        "steps": list(steps),
        "expected": expected,
        "note": BINDINGS,
    }


KAFKA, HDFS = test_kafka_topic_names.check, test_hdfs_mount_table.check
ACCESS, PRODUCER = test_kafka_authorizer.check, test_kafka_producer.check
FINAGLE, PULSAR = test_finagle_dtab.check, test_pulsar_names.check


@pytest.mark.parametrize(
    ("check", "row", "wrong"),
    [
        (KAFKA, kafka("validate", '"a b"', "INVALID"), "VALID"),
        (KAFKA, kafka("unify", '"a.b"', '"a_b"'), '"a.b"'),
        (KAFKA, kafka("unify", 'REPEAT(".",4)', 'REPEAT("_",4)'), 'REPEAT("_",5)'),
        (KAFKA, kafka("has_only_legal_characters", '""', "true"), "false"),
        (KAFKA, kafka("has_collision_chars", '"a_"', "true"), "1"),
        (KAFKA, kafka("has_collision", '"a.b"', "true", '"a_b"'), "false"),
        (HDFS, hdfs("destination", "/a/c", "1->/x/c"), "1->/c"),
        (HDFS, hdfs("destination", "/ab", "ERROR_DEFAULT_NS_DISABLED"), "ERROR_NO_LOCATION"),
        (HDFS, hdfs("destination", "/ab", "ERROR_NO_LOCATION", {**TABLE, "default_ns": ""}),
         "ERROR_DEFAULT_NS_DISABLED"),
        (HDFS, hdfs("mount_point", "/ab", None), "ERROR_NO_LOCATION"),
        (HDFS, hdfs("mounts_count", "/a/b", 1), True),
        (HDFS, hdfs("destination", "a/b", "ERROR_BAD_PATH"), "ERROR_NO_LOCATION"),
        (HDFS, hdfs("destination", "", "ERROR_BAD_PATH"), "1->/x"),
        (HDFS, hdfs("mount_point", "/a/b/c", "/a/b"), "/a"),
        (HDFS, scenario("update /a from 1 to 2", "get /a returns 2"), "get /a returns 1"),
        (HDFS, scenario("add /a twice", "first true, second false, table size +1"),
         "first true, second true, table size +2"),
        (HDFS, scenario("add /a->1, refresh table with /a->2, remove it",
                        "1, then 2, then mount_point is null (table is empty)"),
         "1, then 1, then mount_point is null (table is empty)"),
        (HDFS, scenario("9 flat mounts; 3 nested mounts in one chain; 20 in deep+wide trees",
                        "children(/)=9 & mounts=9; children(/)=1 & mounts=3; mounts=20"),
         "children(/)=9 & mounts=9; children(/)=1 & mounts=3; mounts=21"),
        (HDFS, hdfs("children", "/a", ["b"]), []),
        (HDFS, hdfs("children", "/z", None), []),
        (HDFS, hdfs("mounts_count", "/a", 2), 3),
        (FINAGLE, finagle("bind", ["/s => /t", "/t => /$/inet/1"], "/s/x", ["1"]), ["2"]),
        (FINAGLE, finagle("bind", ["/s => /$/inet/1", "/s => /$/inet/2"], "/s", ["2"]), ["1"]),
        (FINAGLE, finagle("bind", ["/s => /t", "/t => /s"], "/s", "ERROR_MAX_DEPTH"), "NEG"),
        (FINAGLE, finagle("bind", ["/s => /a/s", "/a => /s"], "/s", "ERROR_MAX_DEPTH"), ["1"]),
        *((FINAGLE, finagle(f"resolve_max_depth_{depth}", chain(links), "/n0", expected), wrong)
          for depth, links, expected, wrong in (
              (2, 1, ["1"], "ERROR_MAX_DEPTH"), (2, 2, "ERROR_MAX_DEPTH", ["1"]),
              (2, 4, "ERROR_MAX_DEPTH", ["1"]), (5, 4, ["1"], "ERROR_MAX_DEPTH"),
              (0, 1, "ERROR_MAX_DEPTH", ["1"]), (50, 15, ["1"], "ERROR_MAX_DEPTH"),
              (2, 40, "ERROR_MAX_DEPTH", ["1"]))),
        (FINAGLE, finagle("resolve_max_depth_2", [], "invalid", "ERROR"), "ERROR_MAX_DEPTH"),
        (FINAGLE, finagle("bind", ["/s => $"], "/s/x", "EMPTY"), "NEG"),
        (FINAGLE, finagle("bind", ["/s/a => /$/inet/1"], "/s", "NEG"), "EMPTY"),
        (FINAGLE, finagle("bind_tree", ["/s/a => /$/inet/1"], "/s & $", "EMPTY"), "NEG"),
        (FINAGLE, finagle("lookup_once", ["/s/a => /t"], "/s", None), "EMPTY"),
        (FINAGLE, finagle("bind", ["/s => ~ | /$/inet/1"], "/s", ["1"]), "NEG"),
        (FINAGLE, finagle("bind", ["/s => ! | /$/inet/1"], "/s", "FAIL"), ["1"]),
        (FINAGLE, finagle("bind", ["/s => /$/inet/h.example/80"], "/s", ["h.example:80"]), ["80"]),
        (FINAGLE, finagle("lookup_system", [], "/$/inet/h.example/80", {"bound": "h.example:80"}),
         {"bound": "80"}),
        (FINAGLE, finagle("bind", [], "/$/inet/h/80/x", {"bound": "h:80", "residual": "/x"}),
         {"bound": "h:80", "residual": "/y"}),
        (FINAGLE, finagle("resolve", [], "/$/inet/80/x", {"bound": "80", "path": "/x"}),
         {"bound": "80", "port": "80"}),
        (FINAGLE, finagle("bind", ["/s => /$/inet/h/80"], "/s", "/$/inet/h/80"), "/$/inet/h/81"),
        (FINAGLE, finagle("bind", ["/s => /$/inet/80"], "/s/x",
                          {"bound": "/$/inet/80", "residual": "/x"}), {"bound": "/$/inet/81"}),
        (FINAGLE, finagle("bind", [], "s/x", "ERROR_BAD_PATH"), "NEG"),
        (FINAGLE, states("/a & /b", "ERROR", **{"/a": "ERROR", "/b": "ERROR"}), ["1"]),
        (FINAGLE, states("/a & /b", "ERROR", **{"/a": "PENDING", "/b": "ERROR"}), "PENDING"),
        (FINAGLE, finagle("tree_eval", [], "! & ~", None), []),
        (FINAGLE, states("/a & /b", ["1"], **{"/a": "ERROR", "/b": "-> /$/inet/1"}), "ERROR"),
        (FINAGLE, states("/a | /b", "ERROR", **{"/a": "ERROR", "/b": "-> /$/inet/1"}), ["1"]),
        (FINAGLE, states("/a", "ERROR", **{"/a": "-> /b", "/b": "ERROR"}), "PENDING"),
        (FINAGLE, finagle("tree_eval", [], "(~ | /a) & /b", ["/a", "/b"]), ["/a"]),
        (FINAGLE, finagle("prefix_matches", [], ["/s", "/s/x"], True), False),
        (FINAGLE, finagle("prefix_matches", [], ["/s", "/sx"], False), True),
        (FINAGLE, finagle("lookup_once", ["/s => /t/u"], "/s/x", "/t/u/x"), "/t/x"),
        (FINAGLE, finagle("lookup_once", ["/s => /t/u"], "/x", None), "/t/x"),
        (FINAGLE, finagle("lookup_once", ["/s => /$/inet/1"], "/s/x", "/$/inet/1/x"), "/$/inet/1"),
        (FINAGLE, finagle("lookup_once", ["/s => /a | /b"], "/s", "/a | /b"), "/b | /a"),
        *((FINAGLE, finagle("lookup_once", rules, "/s/x", expected), wrong)
          for rules, expected, wrong in (
              (["/s => /a & /b"], "/a/x & /b/x", "/a/x | /b/x"),
              (["/s => /a & /b"], "(/a/x & /b/x)", "/b/x & /a/x"),
              (["/s => ~ | /b"], "~ | /b/x", "/b/x"),
              (["/s => (/a | /b)"], "(/a/x | /b/x)", "/a/x"),
              (["/s => /a", "/s => /a"], "/a/x | /a/x", "/a | /a"),
              (["/s => /kdir-bound & /a"], "/kdir-bound/x & /a/x", "/a/x"))),
        *((FINAGLE, finagle(kind, [f"/s => {sign}"], "/s", sign), wrong)
          for kind in ("lookup_once", "bind")
          for sign, wrong in (("~", "$"), ("$", "~"), ("!", "~"))),
        *((FINAGLE, finagle("bind", [f"/kdir-{name} => /$/inet/1"], f"/kdir-{name}", ["1"]), "NEG")
          for name in ("bound", "tree", "pending", "error", "nowhere")),
        (FINAGLE, finagle("lookup_once", ["/s => !"], "/s", "FAIL"), "NEG"),
        (FINAGLE, finagle("lookup_once", ["/s => ~"], "/s", "NEG"), "EMPTY"),
        (FINAGLE, finagle("lookup_once", ["/s/a => /t/u"], "/s/b", "NEG"), "/t/x"),
        (FINAGLE, finagle("resolve", [], "invalid", "ERROR"), "NEG"),
        (PULSAR, pulsar("parse_namespace", "a/b", {"tenant": "a", "cluster": None, "local": "b"}),
         {"tenant": "a", "cluster": None, "local": "c"}),
        (PULSAR, pulsar("parse_namespace_parts", ["a", "b", "c"],
                        {"tenant": "a", "cluster": "b", "local": "c"}),
         {"tenant": "a", "cluster": "b", "local": "d"}),
        *((PULSAR, pulsar("parse_topic", "persistent://a/b/c", {"tenant": "a", name: value}), wrong)
          for name, value, wrong in (
              ("domain", "persistent", {"domain": "non-persistent"}),
              ("canonical", "persistent://a/b/c", {"canonical": "persistent://a/b"}),
              ("storage", "a/b/persistent/c", {"storage": "a/b/c"}),
              ("cluster", None, {}),
              ("local", "c", {"tenants": "a"}))),
        *((PULSAR, pulsar(kind, given, "INVALID"), {"tenant": None})
          for kind, given in (("parse_topic", ""), ("parse_topic", None),
                              ("parse_topic", "persistent://"), ("parse_namespace", ""),
                              ("parse_namespace", None), ("parse_namespace", " "),
                              ("parse_namespace_parts", ["a", "", "c"]))),
        (PULSAR, pulsar("partition_index", "", -1), 0),
        (PULSAR, pulsar("is_partitioned", "", False), True),
        (PULSAR, pulsar("is_partitioned", "a", False), 0),
        (PULSAR, pulsar("is_change_events_topic", "a/__change_events", True), False),
        (PULSAR, incarnation("delete (force=true) a namespace with topics", "OK_204"), "ERROR_409"),
        (PULSAR, incarnation("delete (force=false) a namespace with one topic", "ERROR_409"), "OK"),
        (PULSAR, incarnation("delete (force=false) a namespace that has 3 topics", "ERROR"), "OK"),
        (PULSAR, incarnation("create a namespace with an invalid name", "ERROR_412"), "OK"),
        (PULSAR, incarnation("delete a namespace whose replication cluster is another cluster",
                             "REDIRECT_307"), "ERROR_409"),
        (PULSAR, incarnation("create a namespace that exists", "ERROR_409"), "INVALID"),
        (PULSAR, incarnation("create a topic that exists", "ERROR_409"), "OK"),
        (PULSAR, incarnation("delete a topic that does not exist", "ERROR_404"), "OK"),
        *((PULSAR, incarnation(steps, "OK_204, and it leaves the tenant listing"), wrong)
          for steps in ("delete an empty namespace", "delete (force=true) a topic",
                        "delete a topic", "delete (force=false) a namespace with no topics")
          for wrong in ("ERROR_409", "OKAY", "OK_409", "OK, and it stays")),
        *((PULSAR, incarnation(f"delete {what}", "ERROR_409, and it stays"), wrong)
          for what in ("a namespace with topics", "(force=false) a namespace that has a topic")
          for wrong in ("OK", "ERROR_404", "ERROR, and it is gone")),
        *((PULSAR, incarnation(f"create {what}", expected), wrong)
          for what, expected, wrong in (
              ("a topic", "OK", "ERROR"),
              ("a topic with an empty name", "ERROR_412", "OK"),
              ("a namespace with a blank name", "ERROR_412", "ERROR_409"),
              ("in a namespace that does not exist", "ERROR_404", "OK"),
              ("a topic in a missing namespace", "ERROR_404", "ERROR_409"))),
        (PULSAR, incarnation("limit 2, have 2, create one more", "ERROR_412"), "OK"),
        (PULSAR, incarnation("limit 2 topics, have 2, create a third topic", "ERROR_412"), "OK"),
        (PULSAR, incarnation("limit 0, have 9, create one more", "OK"), "ERROR_412"),
        (PULSAR, incarnation("limit 9 partitions, have 8, create a topic with 2 partitions",
                             "ERROR_412"), "OK"),
        (PULSAR, incarnation("is __change_events a system topic; is y", "true; false"),
         "true; true"),
        (PULSAR, incarnation("set a policy, delete the topic", "policy reads as unset"),
         "policy reads as set"),
        (PULSAR, incarnation("3 topics in 2 namespaces, then 6 interleaved updates on 2 topics",
                             LAST_WRITE), "not the " + LAST_WRITE),
        (PRODUCER, {"props": {}, "expected": {"acks": "-1 or all"}}, {"acks": "1 or all"}),
        (PRODUCER, {"props": {}, "expected": {"acks": "all"}}, {}),
        (PRODUCER, {"props": {"acks": "1"}, "expected": {"enable.idempotence": False}},
         {"enable.idempotence": True}),
        (PRODUCER, {"props": {"acks": "all"}, "expected": {"acks": "-1"}}, "CONFIG_ERROR"),
        (PRODUCER, {"props": {"retries": "0", "transactional.id": "t"}, "expected": "CONFIG_ERROR"},
         {"retries": 0}),
        (ACCESS, access("ALLOWED", "TOPIC PREFIXED f User:a READ ALLOW"), "DENIED"),
        (ACCESS, access("DENIED"), "DENIED_CLUSTER_AUTHORIZATION_FAILED"),
        (ACCESS, access("DENIED", "TOPIC LITERAL f User:a READ ALLOW"), "ALLOWED"),
        (ACCESS, access("DENIED", "TOPIC PREFIXED * User:a READ ALLOW"), "ALLOWED"),
        (ACCESS, access("DENIED", "TOPIC LITERAL f User:a READ ALLOW", resource_name=""),
         "ALLOWED"),
        (ACCESS, access("ALLOWED", "TOPIC LITERAL * User:a READ ALLOW", resource_name=""),
         "DENIED"),
        (ACCESS, access("NO_MATCH", mode="find_result"), "DENIED"),
        (ACCESS, {**access("NO_MATCH", mode="find_result"), "allow_everyone_if_no_acl": True},
         "ALLOWED"),
        (ACCESS, access("NOT_READY", loaded=False), "DENIED"),
        (ACCESS, access("ALLOWED", loaded=False, principal="User:root"), "NOT_READY"),
        (ACCESS, access("ERROR", "GROUP LITERAL g bob READ ALLOW"), "DENIED"),
        (ACCESS, access("ERROR", "GROUP PREFIXD g User:a READ ALLOW", **GROUP), "ALLOWED"),
        (ACCESS, access("ERROR", "TOPIC MATCH foo User:a READ ALLOW"), "ALLOWED"),
        (ACCESS, {**access("ERROR", **GROUP),
                  "acls": [["GROUP", "PREFIXED", "", "User:a", "*", "READ", "ALLOW"]]}, "ALLOWED"),
        (ACCESS, access("DENIED", "GROUP LITERAL g* User:a READ ALLOW", **GROUP), "ALLOWED"),
        (ACCESS, access("ALLOWED", "GROUP LITERAL * User:a READ ALLOW", **GROUP), "DENIED"),
        (ACCESS, access("DENIED", "GROUP PREFIXED * User:a READ ALLOW", **GROUP), "ALLOWED"),
        (ACCESS, access("ALLOWED", "TOPIC PREFIXED * User:a READ ALLOW", resource_name="*"),
         "DENIED"),
        (ACCESS, {**access("ALLOWED", resource_name="a b/ü" * 50),
                  "acls": [["TOPIC", "PREFIXED", "a b/", "User:a", "*", "READ", "ALLOW"]]},
         "DENIED"),
        (ACCESS, access("ALLOWED", "GROUP PREFIXED g User:* ALL ALLOW", resource_type="GROUP",
                        mode="authorize_by_resource_type"), "DENIED"),
        (ACCESS, access(NO_PRODUCER_ID, "TOPIC LITERAL t User:a READ ALLOW",
                        mode="init_producer_id"), "DENIED_TOPIC_AUTHORIZATION_FAILED"),
        (ACCESS, access("ALLOWED", "TOPIC LITERAL t User:a WRITE ALLOW", mode="init_producer_id"),
         "ALLOWED_X"),
        (ACCESS, {"section": "super_users_parse", "input": ";User:b", "expected": ["User:b"]}, []),
        (ACCESS, {"section": "principal_parse", "input": "User:a:b",
                  "expected": {"type": "User", "name": "a:b"}}, {"type": "User", "name": "a"}),
        *((ACCESS, {"section": section, "input": "User:a;bob"[start:],
                    "expected": f"ERROR: {wanted} but got bob"}, wrong)
          for section, start, wanted in (("super_users_parse", 0, "a string"),
                                         ("principal_parse", 7, "a principal"))
          for wrong in ("ERROR: a string but got alice", "OK", ["User:bob"])),
        *((ACCESS, managed({asked: right}), {asked: wrong}) for asked, right, wrong in (
            ("list ANY", ["a", "b"], ["a"]),
            ("list TOPIC/ANY", ["a"], ["b"]),
            ("list GROUP/MATCH/gx", ["b"], []),
            ("list principal=User:alice", 1, True),
            ("list principal=User:*", ["b"], []),
            ("delete [exact a, ANY/MATCH/gx] in one request", [["a"], ["b"]], [["a"], []]))),
        (ACCESS, managed({"list GROUP/ANY": ["b"],
                          "TOPIC|LITERAL|x": ["User:alice READ DENY"],
                          "GROUP|PREFIXED|g": ["User:* ALL ALLOW"]}),
         {"list GROUP/ANY": ["b"], "TOPIC|LITERAL|x": ["User:alice READ ALLOW"]}),
        (ACCESS, managed({}, ["add-bindings", ["a"]], ["remove-bindings", ["a"]]),
         {"list ANY": ["a"]}),
        (ACCESS, managed({"TOPIC|LITERAL|x": ["User:a 10.0.0.1 READ ALLOW", "denyAlterConfigs"]},
                         ["add", "TOPIC", "LITERAL", "x",
                          ["User:a 10.0.0.1 READ ALLOW", "denyAlterConfigs"]]),
         {"TOPIC|LITERAL|x": ["User:a 10.0.0.2 READ ALLOW", "denyAlterConfigs"]}),
        (ACCESS, {"section": "acl_management", "expected": {"TOPIC|LITERAL|t": ["allowRead"]},
                  "steps": [["add", "TOPIC", "LITERAL", "t", ["allowRead", "denyRead"]],
                            ["remove", "TOPIC", "LITERAL", "t", ["denyRead"]]]}, {}),
    ],
)  # fmt: skip
def test_a_driver_distinguishes_right_from_wrong(
    check: Callable[[Row], None], row: Row, wrong: object
) -> None:
    check(row)
    with pytest.raises((AssertionError, KdirError, pytest.fail.Exception)):
        check({**row, "expected": wrong})


@pytest.mark.parametrize(
    ("category", "row", "name"),
    [
        (test_kafka_topic_names.category, kafka("sing", '"a"', "true"), NOT_UNDERSTOOD),
        (test_hdfs_mount_table.category, hdfs("destination", "/m/x", ""), "several-destinations"),
        (test_hdfs_mount_table.category,
         hdfs("destination", "/z", "0->/z", {**TABLE, "default_ns_enabled": True}),
         "default-namespace"),
        (test_hdfs_mount_table.category, hdfs("dance", "/z", ""), NOT_UNDERSTOOD),
        (test_hdfs_mount_table.category, scenario("a write while in SAFEMODE"), "router-process"),
        (test_hdfs_mount_table.category, scenario("sing a song"), NOT_UNDERSTOOD),
        (test_kafka_authorizer.category, {"section": "songs"}, NOT_UNDERSTOOD),
        (test_pulsar_names.category, {"section": "songs"}, NOT_UNDERSTOOD),
        (test_finagle_dtab.category, finagle("bind", ["/s => 3 * /a & /b"], "/s", []), "weights"),
        (test_finagle_dtab.category, finagle("bind", ["/*/s => /"], "/s", []),
         "wildcard-prefixes"),
        (test_finagle_dtab.category, finagle("prefix_matches", [], ["/s/*/b", "/s/a/b"], True),
         "wildcard-prefixes"),
        (test_finagle_dtab.category, finagle("bind", ["/ => /a"], "/s", []), "root-prefix"),
        (test_finagle_dtab.category, finagle("resolve", [], "/", "NEG"), "root-prefix"),
        (test_finagle_dtab.category, finagle("bind", ["/s => /a", "/s/t => /b"], "/s", []),
         "nested-prefixes"),
        (test_finagle_dtab.category, finagle("bind", ["/s => /$/namer"], "/s", []), "system-names"),
        (test_finagle_dtab.category, finagle("bind", [], "/$/inet", "ERROR"), "system-names"),
        (test_finagle_dtab.category, finagle("tree_eval", [], "/a & /b | /c", []),
         "union-inside-fallback"),
        (test_finagle_dtab.category,
         states("/a | /b", "PENDING", **{"/a": "PENDING", "/b": "-> /$/inet/1"}),
         "pending-in-fallback"),
        *((test_finagle_dtab.category, finagle(kind, chain(links), "/n0", ["1"]), name)
          for kind, links, name in (
              ("bind", 16, "long-chains"), ("resolve_max_depth_17", 16, "long-chains"),
              ("resolve_max_depth_x", 1, NOT_UNDERSTOOD),
              ("resolve_max_depth", 1, NOT_UNDERSTOOD))),
        *((test_finagle_dtab.category, finagle("bind", rules, "/a", []), "circular-fallback")
          for rules in (["/a => /a | /$/inet/1"], ["/a => /$/inet/1", "/a => /b", "/b => /a/x"])),
        *((test_finagle_dtab.category, row, "unanswered-union") for row in (
            states("/a & /b", "NEG", **{"/a": "PENDING", "/b": "~"}),
            states("/c", "ERROR", **{"/b": "ERROR", "/c": "-> /b & ~"}),
            finagle("bind_tree", [], "! & !", "NEG"),
            finagle("bind", ["/s => /a & ~", "/a => /a"], "/s", "NEG"))),
        (test_finagle_dtab.category, finagle("tickle", [], "/", []), NOT_UNDERSTOOD),
        (test_kafka_authorizer.category, access("", resource_type="USER"), "tokens"),
        (test_kafka_authorizer.category,
         managed({}, ["add", "USER", "LITERAL", "u", ["allowRead"]]), "tokens"),
        *((test_kafka_authorizer.category, filtered(resource, sought), name)
          for resource, sought, name in (
              ("USER LITERAL a", "USER LITERAL a", "tokens"),
              ("TOPIC LITERAL a", "DELEGATION_TOKEN LITERAL a", "tokens"),
              ("CLUSTER PREFIXED kafka-cluster", "CLUSTER LITERAL kafka-cluster",
               "cluster-names"),
              ("CLUSTER LITERAL kafka-cluster", "ANY LITERAL Name", "cluster-names"),
              ("GROUP LITERAL a", "GROUP FOO a", NOT_UNDERSTOOD),
              ("GROUP ANY a", "GROUP ANY a", NOT_UNDERSTOOD))),
        *((test_kafka_authorizer.category, managed({"list ANY": ["a", "b"], asked: 77}),
           NOT_UNDERSTOOD) for asked in ("count ANY", "list host=*", "delete ANY")),
        (test_kafka_authorizer.category, access("", pattern_type="PREFIXED"), "asked-by-pattern"),
        (test_kafka_authorizer.category, access("", pattern_type="LITERALL"), NOT_UNDERSTOOD),
        (test_kafka_authorizer.category, access("", pattern_type=None), NOT_UNDERSTOOD),
        (test_kafka_authorizer.category,
         access("", "TOPIC LITERAL t User:a WRITE ALLOW", mode="authorize_by_resource_type",
                operation="DESCRIBE"), "implied-any"),
        (test_kafka_authorizer.category,
         {**access("", "CLUSTER LITERAL kafka-cluster User:b ALTER ALLOW",
                   mode="authorize_by_resource_type", resource_type="CLUSTER"),
          "allow_everyone_if_no_acl": True}, "cluster-names"),
        (test_kafka_authorizer.category, access("", resource_type="CLUSTER"), "cluster-names"),
        (test_kafka_authorizer.category, access("", "CLUSTER LITERAL c User:a READ ALLOW"),
         "cluster-names"),
        (test_kafka_authorizer.category,
         access("", "CLUSTER PREFIXED kafka-cluster User:a READ ALLOW"), "cluster-names"),
        (test_kafka_authorizer.category, access("", mode="guess"), NOT_UNDERSTOOD),
        (test_kafka_authorizer.category,
         {"section": "derived_from_code", "fact": test_kafka_authorizer.IMPLIED_FACT},
         "implied-any"),
        *((test_kafka_authorizer.category, {"section": "derived_from_code", "fact": fact},
           NOT_UNDERSTOOD)
          for fact in ("authorizeByResourceType never rejects resource type ANY",
                       "it never asks whether that resource exists is false")),
        *((test_hdfs_mount_table.category, scenario(steps), NOT_UNDERSTOOD)
          for steps in ("add /a twice with different destinations", "remove /a of ns0 twice")),
        (test_kafka_authorizer.category, {"section": "property_tests", "test": "odd"},
         NOT_UNDERSTOOD),
        (test_pulsar_names.category, pulsar("parse_namespace", "ns", "INVALID"), "fixed-levels"),
        (test_pulsar_names.category, pulsar("parse_topic", "a/b/c", {"tenant": "a"}),
         "default-tenant"),
        (test_pulsar_names.category, pulsar("parse_topic", "persistent://a/b/c d", {}),
         "wider-names"),
        *((test_pulsar_names.category, pulsar("partition_index", "a-partition-0", index),
           "partition-suffix") for index in (0, -1)),
        (test_pulsar_names.category, incarnation("limit 5, create a new namespace", "E"),
         "directory-quota"),
        *((test_pulsar_names.category, incarnation(steps, "OK"), NOT_UNDERSTOOD)
          for steps in ("paint it green", "paint the tenant green", "delete the cache",
                        "delete a namespace with few topics")),
        *((test_pulsar_names.category, incarnation(steps, "OK"), name) for steps, name in (
            ("cache not loaded, read", "broker-process"),
            ("list namespaces of tenant t", "fixed-levels"),
            ("delete a tenant with namespaces", "fixed-levels"),
            ("create a topic named t-partition-0", "partition-suffix"))),
        (test_pulsar_names.category, {"section": "policy_validation"}, "pulsar-settings"),
    ],
)  # fmt: skip
def test_a_row_is_sorted_by_what_it_says(
    category: Callable[[Row], str | None], row: Row, name: str
) -> None:
    assert category(row) == name
    assert category({**row, "id": "XX-999"}) == name
    assert name == NOT_UNDERSTOOD or EXCLUSIONS[name]


def test_a_name_may_hold_what_ends_a_line_elsewhere() -> None:
    row = kafka("validate", '"a\u0085b\u2028c"', "INVALID")
    text = "\n".join(["# names", "\t".join(row), "\t".join(row.values()), ""])
    assert list(test_kafka_topic_names.read(text)) == [row]


@pytest.mark.parametrize(
    "row",
    [
        pulsar("parse_namespace", "", "INVALID"),
        pulsar("parse_topic", "persistent://", "INVALID"),
        pulsar("parse_topic", "persistent://a/b/c", "INVALID"),
        pulsar("partition_index", "a", 3),
    ],
)
def test_a_row_that_only_its_expectation_would_exclude_is_run(row: Row) -> None:
    assert test_pulsar_names.category(row) is None


def test_a_row_that_a_driver_cannot_read_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    row = {"id": "x", "kind": "tickle", "dtab": [], "input": "/", "expected": []}
    (tmp_path / "rows.json").write_text(json.dumps({"cases": [row]}))
    try:
        (param,) = cases("ours", "rows.json", test_finagle_dtab.read, test_finagle_dtab.category)
        assert not param.marks
        with pytest.raises(pytest.fail.Exception, match=r"does not know.*tickle"):
            run(FINAGLE, param.values[0])
    finally:
        TALLIES.pop("ours", None)


READERS = [
    test_finagle_dtab,
    test_hdfs_mount_table,
    test_kafka_authorizer,
    test_kafka_producer,
    test_pulsar_names,
]


@pytest.mark.parametrize("driver", READERS)
@pytest.mark.parametrize(
    "songs", [[{"op": "s"}], ["s"], {"op": "s"}, {"cases": [{"op": "s"}]}, {"rows": [{"op": "s"}]}]
)
def test_the_rows_of_a_section_that_a_driver_does_not_know_are_not_understood(
    driver: Any, songs: object
) -> None:
    (row,) = driver.read(json.dumps({"note": "x", "cases": [], "tables": {}, "songs": songs}))
    assert row["section"] in {"songs", "songs/rows"}
    assert driver.category(row) == NOT_UNDERSTOOD


def test_a_section_may_be_a_list_of_rows_or_a_table_that_holds_them_as_cases() -> None:
    for rows in ([{"kind": "parse_topic"}], {"source": "x", "cases": [{"kind": "parse_topic"}]}):
        assert list(test_pulsar_names.read(json.dumps({"name_cases": rows}))) == [
            {"section": "name_cases", "kind": "parse_topic"}
        ]


@pytest.mark.parametrize(
    ("check", "row", "output"),
    [
        (
            ACCESS,
            {"section": "cases", "id": "x", "mode": "authorize", "acls": []},
            "lacks .*request",
        ),
        (ACCESS, {**access("DENIED"), "acls": [["TOPIC", "LITERAL", "t"]]}, "an ACL has"),
        (ACCESS, access("DENIED", operation="REED"), "REED"),
        (KAFKA, kafka("validate", "123", "VALID"), "123 is no name"),
        (KAFKA, kafka("validate", "null", "VALID"), "null is no name"),
        (PRODUCER, {"props": {}, "expected": "CONFIG_ERORR"}, "neither settings nor"),
        (PRODUCER, {"props": {}, "expected": {"no.such": 1}}, "no.such is not set"),
    ],
)
def test_a_row_that_cannot_be_says_what_is_wrong_with_it(
    check: Callable[[Row], None], row: Row, output: str
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=output):
        check(row)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("{", "JSONDecodeError"),
        ('{"cases": []}', "holds no row"),
        ('"x"', "AttributeError"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, output: str
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "rows.json").write_text(text)
    try:
        with pytest.raises(ValueError, match="rows.json.*" + output):
            cases("ours", "rows.json", test_kafka_producer.read, lambda _: None)
    finally:
        TALLIES.pop("ours", None)


def test_the_summary_reports_a_named_folder_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "none"))
    terminal = mock.Mock()
    reporting.pytest_terminal_summary(terminal)
    (line,) = (call.args[0] for call in terminal.write_line.call_args_list)
    assert line.endswith(f"{FOLDER} is set to {tmp_path / 'none'}, which is no folder")


def test_a_row_that_lacks_a_key_says_which() -> None:
    with pytest.raises(pytest.fail.Exception, match="lacks 'expected'"):
        run(PRODUCER, {"section": "cases", "props": {}})


@pytest.mark.parametrize(
    ("minutes", "keeps"), [(-1, True), (0, False), (2, False), (3, True), (None, False)]
)
def test_a_retention_without_end_keeps_a_topic(minutes: int | None, *, keeps: bool) -> None:
    row = {"policy": "retention_keeps_topic_2min_idle", "broker": 0, "namespace": minutes}
    row |= {"section": "policy_precedence", "topic": None, "applied": keeps}
    PULSAR(row)
    for wrong in (not keeps, int(keeps)):
        with pytest.raises(AssertionError):
            PULSAR({**row, "applied": wrong})


def test_without_a_folder_a_driver_skips_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    (param,) = cases("none", "none.json", json.loads, lambda _: None)
    assert f"{FOLDER} is not set" in str(param.marks)


def test_any_folder_will_do_and_exclusions_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (param,) = cases("ours", "rows.json", json.loads, lambda _: None)
    assert "holds no rows.json" in str(param.marks)
    rows = [{"id": "a"}, {"id": "b", "odd": True}, {"id": "c"}, {}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))

    def category(row: Row) -> str | None:
        return "weights" if row.get("odd") else None if row["id"] else ""

    try:
        params = cases("ours", "rows.json", json.loads, category)
        # The row that cannot be sorted is run, and will say what is wrong with it.
        assert [param.id for param in params] == ["a", "c", "4"]
        assert TALLIES["ours"].run == 3
        assert TALLIES["ours"].excluded == {"weights": 1}
    finally:
        TALLIES.pop("ours", None)
