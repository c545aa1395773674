"""``validate_only``: what a change would do, told in full and written nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import access_pb2, directory_pb2, entry_pb2, policies_pb2

from directory.namespace.entry import Policies, Provision
from resolver.errors import Absent, PermissionDenied
from tests.unit.access.conftest import ADMIN, House, grants, topic

Make = Callable[..., House]


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    for path in ("/la/a/deep/er", "/la/b"):
        made.mkdir(path)
    topic(made, "/la/a/t")
    topic(made, "/la/a/deep/u")
    made.link("/la/a/l", "/la/b")
    return made


def changes(plan: access_pb2.ChangePlan) -> list[tuple[str, str, set[str], set[str]]]:
    """Returns who, where, gains and losses: of topics and directories."""

    def names(found: Any) -> set[str]:
        return {access_pb2.Operation.Name(one).removeprefix("OPERATION_") for one in found}

    return [
        (one.principal, one.path, names(one.gained), names(one.lost))
        for one in plan.access
        if one.resource_type == access_pb2.RESOURCE_TYPE_TOPIC
    ]


def plan_rm(house: House, path: str, who: str = ADMIN) -> access_pb2.ChangePlan:
    request = directory_pb2.DeleteEntryRequest(path=path, recursive=True, validate_only=True)
    plan: access_pb2.ChangePlan = house.ask(who, "DeleteEntry", request).plan
    return plan


def plan_mv(house: House, path: str, new: str, who: str = ADMIN) -> access_pb2.ChangePlan:
    request = directory_pb2.MoveEntryRequest(path=path, new_path=new, validate_only=True)
    plan: access_pb2.ChangePlan = house.ask(who, "MoveEntry", request).plan
    return plan


def setting(path: str, *, plan: bool, closed: bool | None = None, **policies: Any) -> Any:
    """Returns an update of policies; a value of None takes it away."""
    values = {key: value for key, value in policies.items() if value is not None}
    configs = values.pop("topic_config", {})
    entry = entry_pb2.Entry(policies=policies_pb2.Policies(**values))
    for key, value in configs.items():
        entry.policies.topic_config[key].value = value
    masks = [f"policies.{key}" for key in policies if key != "topic_config"]
    masks += [f"policies.topic_config.{key}" for key in configs]
    if closed is not None:
        entry.directory.closed = closed
        masks.append("directory.closed")
    return directory_pb2.UpdateEntryRequest(
        path=path, entry=entry, update_mask=FieldMask(paths=masks), validate_only=plan
    )


def plan_set(house: House, path: str, who: str = ADMIN, **desired: Any) -> access_pb2.ChangePlan:
    answer = house.ask(who, "UpdateEntry", setting(path, plan=True, **desired))
    plan: access_pb2.ChangePlan = answer.plan
    return plan


def plan_grant(house: House, who: str, arguments: str, path: str, by: str = ADMIN) -> Any:
    request = access_pb2.AddGrantsRequest(
        path=path, grants=grants(who, arguments), validate_only=True
    )
    return house.ask(by, "AddGrants", request).plan


def test_rm_says_how_much_goes_and_what_becomes_of_it_in_kafka(la: House) -> None:
    topic(la, "/la/a/pending", provision=Provision.PENDING)
    la.grant("bob", "read", "/la/a/deep")
    plan = plan_rm(la, "/la/a")
    assert plan.entries == access_pb2.ChangedEntries(
        directories=3, topics=3, links=1, entries_with_grants=1, kafka_detached=2
    )
    # The one that Kafka may have got meanwhile.
    assert list(plan.retired_names) == ["a.pending"]
    assert not plan.incomplete
    assert la.outcome(ADMIN, "/la/a/deep/u") == "resolution"


def test_rm_of_one_entry(la: House) -> None:
    assert plan_rm(la, "/la/a/t").entries == access_pb2.ChangedEntries(topics=1, kafka_detached=1)
    assert plan_rm(la, "/la/a/l").entries == access_pb2.ChangedEntries(links=1)


def test_mv_says_who_gains_and_who_loses(la: House) -> None:
    la.grant("bob", "read", "/la/a")
    la.grant("carol", "write", "/la/b")
    la.grant("dora", "read", "/la/a/deep")
    plan = plan_mv(la, "/la/a/deep", "/la/b/deep")
    assert changes(plan) == [
        ("User:bob", "/la/b/deep", set(), {"READ", "DESCRIBE"}),
        ("User:carol", "/la/b/deep", {"WRITE", "DESCRIBE"}, set()),
    ]
    assert plan.entries.directories == 2
    assert plan.entries.entries_with_grants == 1
    assert la.outcome("bob", "/la/a/deep/u") == "resolution"


def test_a_plan_of_mv_into_a_closed_directory_lists_the_rights_that_end(la: House) -> None:
    la.grant("dora", "read", "/la/a/deep")
    la.ask(ADMIN, "UpdateEntry", setting("/la/b", plan=False, closed=True))
    assert changes(plan_mv(la, "/la/a/deep", "/la/b/deep")) == [
        ("User:dora", "/la/b/deep", set(), {"READ", "DESCRIBE"})
    ]


def test_grant_and_revoke_say_what_is_new_and_where_it_is_not(la: House) -> None:
    la.grant("bob", "-read", "/la/a/deep")
    assert changes(plan_grant(la, "bob", "read", "/la/a")) == [
        ("User:bob", "/la/a", {"READ", "DESCRIBE"}, set()),
        ("User:bob", "/la/a/deep", {"DESCRIBE"}, set()),
    ]
    assert changes(plan_grant(la, "bob", "-describe", "/la")) == []
    la.grant("bob", "read", "/la/a")
    revoke = access_pb2.RemoveGrantsRequest(
        path="/la/a", grants=grants("bob", "read"), validate_only=True
    )
    assert changes(la.ask(ADMIN, "RemoveGrants", revoke).plan) == [
        ("User:bob", "/la/a", set(), {"READ", "DESCRIBE"}),
        ("User:bob", "/la/a/deep", set(), {"DESCRIBE"}),
    ]
    assert la.outcome("bob", "/la/a/t") == "resolution"


def test_closing_says_who_is_shut_out(house: Make) -> None:
    made = house("open")
    made.mkdir("/la/a/b")
    made.grant("bob", "read", "/la/a")
    made.grant("carol", "read", "/la/a/b")
    assert changes(plan_set(made, "/la/a", closed=True)) == [
        ("User:*", "/la/a", set(), {"ALL"}),
        ("User:bob", "/la/a", set(), set()),
    ]


def test_set_says_for_how_many_which_value_becomes_another(la: House) -> None:
    la.ask(ADMIN, "UpdateEntry", setting("/la", plan=False, topic_config={"retention.ms": "100"}))
    topic(la, "/la/a/own", policies=Policies(topic_config={"retention.ms": "7"}, owner="own"))
    plan = plan_set(la, "/la/a", owner="ana", topic_config={"retention.ms": "50"})
    found = {one.field: one for one in plan.policies}
    assert set(found) == {"owner", "topic_config[retention.ms]"}
    assert not found["owner"].HasField("before")
    assert (found["owner"].after, found["owner"].topic_count) == ("ana", 2)
    retention = found["topic_config[retention.ms]"]
    assert (retention.before, retention.after, retention.topic_count) == ("100", "50", 2)
    assert retention.deletes_data
    assert not found["owner"].deletes_data
    again = plan_set(la, "/la", topic_config={"retention.ms": "200"}).policies
    assert [(one.after, one.topic_count, one.deletes_data) for one in again] == [("200", 2, False)]


def test_mv_says_which_policies_are_others_there(la: House) -> None:
    la.ask(ADMIN, "UpdateEntry", setting("/la/a", plan=False, topic_config={"retention.ms": "100"}))
    la.ask(ADMIN, "UpdateEntry", setting("/la/b", plan=False, owner="bo"))
    plan = plan_mv(la, "/la/a/deep", "/la/b/deep")
    assert [
        (one.field, one.before, one.HasField("after"), one.after, one.topic_count, one.deletes_data)
        for one in plan.policies
    ] == [
        ("owner", "", True, "bo", 1, False),
        ("topic_config[retention.ms]", "100", False, "", 1, True),
    ]


def test_set_says_which_quota_is_passed(la: House) -> None:
    plan = plan_set(la, "/la/a", max_topics=1)
    assert list(plan.quotas) == [
        access_pb2.ExceededQuota(path="/la/a", field="max_topics", limit=1, used=2)
    ]
    assert not plan_set(la, "/la/a", max_topics=2).quotas


def test_a_plan_takes_the_right_of_the_deed(la: House) -> None:
    la.grant("bob", "read", "/la/a")
    for ask in (
        lambda: plan_rm(la, "/la/a", "bob"),
        lambda: plan_mv(la, "/la/a", "/la/c", "bob"),
        lambda: plan_set(la, "/la/a", "bob", owner="x"),
        lambda: plan_grant(la, "bob", "write", "/la/a", "bob"),
    ):
        with pytest.raises(PermissionDenied):
            ask()
    with pytest.raises(Absent):
        plan_rm(la, "/la/b", "bob")


def test_A12_a_plan_says_nothing_of_what_may_not_be_described(la: House) -> None:
    la.grant("bob", "alter", "/la/a")
    la.grant("bob", "-describe", "/la/a/deep")
    la.grant("carol", "-read", "/la/a/deep")
    found = changes(plan_grant(la, "carol", "read", "/la/a", "bob"))
    assert found == [("User:carol", "/la/a", {"READ", "DESCRIBE"}, set())]
    seen = changes(plan_grant(la, "carol", "read", "/la/a"))
    assert [path for _, path, _, _ in seen] == ["/la/a", "/la/a/deep"]
