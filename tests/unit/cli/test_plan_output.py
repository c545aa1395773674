"""What ``--plan`` prints: tables for people, one line a row for programs, one object for both."""

from __future__ import annotations

import io
import json

import pytest
from kdir.v1 import access_pb2, entry_pb2, policies_pb2

from resolver.cli.output import Output
from resolver.cli.plan_output import print_change_plan
from tests.support.command_line import Terminal

READ, DESCRIBE, ALL = (
    access_pb2.OPERATION_READ,
    access_pb2.OPERATION_DESCRIBE,
    access_pb2.OPERATION_ALL,
)
TOPIC = access_pb2.RESOURCE_TYPE_TOPIC
PLAN = access_pb2.ChangePlan(
    entries=access_pb2.ChangedEntries(
        directories=2, topics=1204, links=1, entries_with_grants=1, kafka_deleted=1203
    ),
    access=[
        access_pb2.AccessChange(principal="User:*", resource_type=TOPIC, path="/a", lost=[ALL]),
        access_pb2.AccessChange(
            principal="User:bob", host="10.0.0.1", resource_type=TOPIC, path="/a",
            gained=[READ, DESCRIBE],
        ),
        access_pb2.AccessChange(
            principal="User:bob", resource_type=TOPIC, path="/a/t", kind=entry_pb2.ENTRY_KIND_TOPIC
        ),
        access_pb2.AccessChange(
            principal="User:bob", resource_type=access_pb2.RESOURCE_TYPE_GROUP, path="/a",
            resource_name="g-*", gained=[READ],
        ),
    ],
    access_omitted=3,
    policies=[
        access_pb2.PolicyChange(
            field="topic_config[retention.ms]", before="604800000", after="86400000",
            topic_count=1204, cluster_count=1, deletes_data=True,
        ),
        access_pb2.PolicyChange(field="owner", after="", topic_count=3),
    ],
    kafka_calls=[
        policies_pb2.KafkaCall(
            operation="IncrementalAlterConfigs", resource="a.t", key="retention.ms",
            after="86400000",
        ),
        policies_pb2.KafkaCall(
            operation="CreateAcls", resource="topic a.t", key="ALLOW User:bob READ from *",
            acl=policies_pb2.AclBinding(),
        ),
    ],
    quotas=[access_pb2.ExceededQuota(path="/a", field="max_topics", limit=1000, used=1204)],
    retired_names=["a.t"],
    retired_names_omitted=1203,
    incomplete=True,
)  # fmt: skip


def shown(form: str = "", *, terminal: bool = False) -> tuple[str, str]:
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    print_change_plan(Output(form, stdout=out, stderr=err, environ={"NO_COLOR": "1"}), PLAN)
    return out.getvalue(), err.getvalue()


def test_people_get_a_table_of_each_sort() -> None:
    out, err = shown(terminal=True)
    assert out.splitlines() == [
        "PRINCIPAL             HOST      GAINS          LOSES  RESOURCE TYPE  PATH (RECURSIVE)",
        "all other principals  *         -              ALL    TOPIC          /a/",
        "User:bob              10.0.0.1  READ,DESCRIBE  -      TOPIC          /a/",
        "User:bob              *         no change      -      TOPIC          /a/t",
        "User:bob              *         READ           -      GROUP g-*      /a/",
        "POLICY        BEFORE  AFTER          TOPICS  CLUSTERS  DATA LOSS",
        "retention.ms  7d      1d     at least 1,204         1  possible",
        'owner         -       ""         at least 3         0  -',
        "RESOURCE   SETTING                     BEFORE     AFTER     OPERATION",
        "a.t        retention.ms                (default)  86400000  IncrementalAlterConfigs",
        "topic a.t  ALLOW User:bob READ from *  -          -         CreateAcls",
        "QUOTA PATH  FIELD       LIMIT  USED AFTER",
        "/a          max_topics   1000        1204",
        "RETIRED NAME (24 h)",
        "a.t",
    ]
    assert err.splitlines() == [
        "… and at least 3 more access rows",
        "… and at least 1,203 more retired names",
        (
            "dry run: affects at least 2 directories, 1,204 topics, 1 link, "
            "1 entry with grants of their own, 1,203 topics deleted in Kafka with data"
        ),
        "incomplete: the time limit was reached; counts are lower bounds",
    ]


def test_programs_get_lines_that_say_what_they_are_about() -> None:
    out, _ = shown()
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == [
        *["access"] * 4, *["policy"] * 2, *["kafka"] * 2, "quota", "retired",
    ]  # fmt: skip
    assert rows[0][1:] == ["User:*", "*", "-", "ALL", "TOPIC", "/a/"]
    assert rows[4][1:5] == ["retention.ms", "604800000", "86400000", "1204+"]


@pytest.mark.parametrize(
    ("plan", "is_cluster_unknown", "count", "note"),
    [
        (access_pb2.ChangePlan(), False, "9", ""),
        (
            access_pb2.ChangePlan(incomplete=True), False, "9+",
            "incomplete: the time limit was reached; ",
        ),
        (
            access_pb2.ChangePlan(incomplete=True), True, "9+",
            "incomplete: the plan of a cluster below is not known; ",
        ),
        (
            access_pb2.ChangePlan(caller_view=True), False, "9+",
            "counts are of the entries that you may describe: ",
        ),
    ],
)  # fmt: skip
def test_topics_that_were_not_all_counted_are_a_lower_bound(
    plan: access_pb2.ChangePlan, is_cluster_unknown: bool, count: str, note: str
) -> None:
    row = access_pb2.PolicyChange(field="owner", after="x", topic_count=9, cluster_count=2)
    plan.policies.append(row)
    out, err = io.StringIO(), io.StringIO()
    output = Output(stdout=out, stderr=err)
    print_change_plan(output, plan, is_cluster_unknown=is_cluster_unknown)
    assert out.getvalue().split("\t")[4] == count
    assert f"\n{note}" in err.getvalue()
    assert ("lower bounds" in err.getvalue()) == bool(note)


def test_json_is_one_object_in_the_terms_of_the_contract() -> None:
    out, err = shown("json")
    (line,) = out.splitlines()
    plan = json.loads(line)["plan"]
    assert plan["entries"]["topics"] == 1204
    assert plan["access"][1]["gained"] == ["OPERATION_READ", "OPERATION_DESCRIBE"]
    assert err == ""


def test_a_server_that_says_no_more_changed_nothing_either() -> None:
    out, err = io.StringIO(), io.StringIO()
    print_change_plan(Output(stdout=out, stderr=err), access_pb2.ChangePlan())
    assert (out.getvalue(), err.getvalue()) == ("", "dry run\n")


def test_locked_out_callers_are_shown() -> None:
    plan = access_pb2.ChangePlan(locks_out=True)
    plan.entries.directories = 1
    out, err = io.StringIO(), io.StringIO()
    print_change_plan(Output("", stdout=out, stderr=err, environ={}), plan)
    assert "you would lose the right to reopen it" in err.getvalue()
    assert "asks first" in err.getvalue()
