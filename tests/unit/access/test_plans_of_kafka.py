"""What ``validate_only`` says of Kafka, where a cluster has one: what would be asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from kdir.v1 import access_pb2, admin_pb2, entry_pb2, policies_pb2

from directory.access.grants import Operation, Permission, ResourceType
from directory.kafka.admin_contract import Acl, Resource
from directory.kafka.applying.acl_diff import acl_calls_hash
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
    ArmedRecord,
    acls_to_write,
    configs_to_write,
)
from directory.kafka.arming.releases import Released, armed_plan, inherited_basis, release_writes
from directory.namespace.command import UpdateEntry
from directory.namespace.entry import Kind, Provision
from resolver.errors import QuotaExceeded
from resolver.path import Path
from tests.unit.access.conftest import ADMIN, House, grants, topic
from tests.unit.access.test_plans import plan_grant, plan_mv, plan_rm, plan_set, setting

Make = Callable[..., House]
OLD, NEW = "604800000", "3600000"
ID = b"0123456789abcdef"


@pytest.fixture
def la(house: Make) -> House:
    """Returns two directories; kdir may change configs and ACLs of the topics in the second one."""
    made = house(
        kafka={"bootstrap": ["127.0.0.1:1"], "ceiling": ["configs", "acls", "delete"]},
    )
    made.mkdir("/la/a")
    made.mkdir("/la/armed")
    observed = MappingProxyType({"retention.ms": OLD})
    for text in ("/la/a/t", "/la/armed/u"):
        topic(made, text, topic_id=ID, observed_config=observed, partitions=1)
    made.ask(ADMIN, "UpdateEntry", setting("/la", plan=False, topic_config={"retention.ms": OLD}))
    snapshot = made.cluster.replica.snapshot
    armed = snapshot.find_directory(("armed",))
    assert armed is not None
    path = Path.parse("/la/armed")
    for aspect in ("configs", "acls"):
        made.put(ArmedRecord(aspect=aspect, entry_id=armed, plan="p", pending=False).to_put())
        changes = MappingProxyType({f"policies.manage.{aspect}": True})
        made.cluster.writer.commit_command(
            UpdateEntry(path=path, kind=Kind.DIRECTORY, changes=changes)
        )
    known = snapshot.topic(armed, "u")
    assert known is not None
    named = release_writes(snapshot, "p", armed, [Released((armed, "u"), known.entry_id, ID)])
    made.put(*named, armed_plan("p", inherited_basis(snapshot, Path.parse("/la")), armed))
    return made


def asked(plan: Any) -> list[tuple[str, str, str, str, str]]:
    return [
        (one.operation, one.resource, one.key, one.before, one.after) for one in plan.kafka_calls
    ]


def test_set_and_mv_say_what_kafka_is_asked_where_it_is_armed_and_nowhere_else(la: House) -> None:
    change = ("IncrementalAlterConfigs", "armed.u", "retention.ms", OLD, NEW)
    assert asked(plan_set(la, "/la", topic_config={"retention.ms": NEW})) == [change]
    assert asked(plan_set(la, "/la/a", topic_config={"retention.ms": NEW})) == []
    assert asked(plan_set(la, "/la/armed", owner="x")) == []
    grown = ("CreatePartitions", "armed.u", "partitions", "1", "5")
    assert asked(plan_set(la, "/la/armed/u", partitions=5)) == [grown]
    assert asked(plan_set(la, "/la/armed", topic_config={"retention.ms": NEW})) == [change]

    # A move into what is armed: no plan named that topic, so what deletes its data will wait.
    la.ask(
        ADMIN,
        "UpdateEntry",
        setting("/la/armed", plan=False, topic_config={"retention.ms": NEW, "flush.ms": "9"}),
    )
    change = ("IncrementalAlterConfigs", "a.t", "flush.ms", "", "9")
    assert asked(plan_mv(la, "/la/a/t", "/la/armed/t")) == [change]
    assert asked(plan_mv(la, "/la/a", "/la/armed/a")) == [change]
    assert asked(plan_mv(la, "/la/armed/u", "/la/a/u")) == []


def test_plans_say_what_is_armed_what_is_held_back_and_what_may_delete_data(la: House) -> None:
    def found(path: str, **policies: Any) -> tuple[bool, int, list[bool]]:
        plan = plan_set(la, path, **policies)
        return plan.armed, plan.held_topic_count, [one.deletes_data for one in plan.kafka_calls]

    assert found("/la/a", topic_config={"retention.ms": NEW}) == (False, 0, [])
    assert found("/la/armed", partitions=9) == (True, 0, []), "it is for new topics"
    assert found("/la/armed/u", owner="x") == (True, 0, [])
    assert found("/la", topic_config={"retention.ms": NEW}) == (True, 0, [True])
    assert found("/la", topic_config={"retention.ms": "-1"}) == (True, 0, [False])
    # Without a release nothing is done that may delete data.
    topic(la, "/la/armed/later", topic_id=b"another-topic-id", partitions=1)
    assert found("/la", topic_config={"retention.ms": NEW}) == (True, 1, [True])
    assert found("/la/armed/later", topic_config={"retention.ms": NEW}) == (True, 1, [])
    set_now = setting("/la/armed/later", plan=False, topic_config={"retention.ms": NEW})
    la.ask(ADMIN, "UpdateEntry", set_now)
    assert found("/la/armed/later", owner="x") == (True, 0, []), "it was held back before"
    assert plan_mv(la, "/la/armed/u", "/la/a/u").armed is False


def test_growth_that_quotas_leave_no_room_for_is_not_asked(la: House) -> None:
    la.ask(ADMIN, "UpdateEntry", setting("/la/armed", plan=False, max_partitions=3))
    grown = ("CreatePartitions", "armed.u", "partitions", "1", "3")
    assert asked(plan_set(la, "/la/armed/u", partitions=3)) == [grown]
    assert asked(plan_set(la, "/la/armed", partitions=3)) == [], "it is for new topics"
    with pytest.raises(QuotaExceeded):
        plan_set(la, "/la/armed/u", partitions=4)


def test_grants_and_moves_say_which_acls_follow_and_rm_what_goes(la: House) -> None:
    plan = plan_grant(la, "bob", "read,-write", "/la/armed")
    assert [
        (one.operation, one.acl.permission_type, one.acl.operation) for one in plan.kafka_calls
    ] == [
        ("CreateAcls", "DENY", "WRITE"),
        ("CreateAcls", "ALLOW", "READ"),
    ]
    expected = policies_pb2.AclBinding(
        resource_type="TOPIC",
        pattern_type="LITERAL",
        resource_name="armed.u",
        principal="User:bob",
        host="*",
        operation="READ",
        permission_type="ALLOW",
    )
    assert plan.kafka_calls[1].acl == expected
    assert not plan_grant(la, "bob", "read", "/la/a").kafka_calls
    la.grant("carol", "read", "/la/a/t")
    calls = plan_mv(la, "/la/a/t", "/la/armed/t").kafka_calls
    assert [(one.operation, one.acl.resource_name, one.acl.principal) for one in calls] == [
        ("CreateAcls", "a.t", "User:carol")
    ]

    # What goes goes with its data: the ceiling allows it.
    plan = plan_rm(la, "/la/a")
    assert (plan.entries.kafka_deleted, plan.entries.kafka_detached) == (1, 0)
    assert list(plan.retired_names) == ["a.t"]

    # A topic that says so itself stays, as the reaper has it.
    changes = MappingProxyType({"policies.manage.delete": False})
    kept = UpdateEntry(path=Path.parse("/la/a/t"), kind=Kind.TOPIC, changes=changes)
    la.cluster.writer.commit_command(kept)
    plan = plan_rm(la, "/la/a")
    assert (plan.entries.kafka_deleted, plan.entries.kafka_detached) == (0, 1)
    assert not plan.retired_names


def test_a_plan_removes_acls_of_kdir_and_adds_none_that_kafka_would_not_get(
    la: House,
) -> None:
    la.grant("bob", "read", "/la/armed/u")
    resource = Resource(ResourceType.TOPIC, "armed.u")
    bob = Acl(Permission.ALLOW, "User:bob", Operation.READ, "*")
    made = AppliedRecord({bob: AppliedSetting()}, path="/la/armed/u")
    la.put(acls_to_write(resource, made))
    calls = plan_mv(la, "/la/armed/u", "/la/a/u").kafka_calls
    assert [(one.operation, one.acl.principal) for one in calls] == [("DeleteAcls", "User:bob")]
    # Kafka has no such topic: nothing is added before it is there.
    topic(la, "/la/armed/gone", topic_id=ID, provision=Provision.MISSING)
    assert not plan_grant(la, "carol", "read", "/la/armed/gone").kafka_calls
    # Kafka refused just that before.
    (call,) = plan_grant(la, "dave", "read", "/la/armed/u").kafka_calls
    assert call.acl.principal == "User:dave"
    dave = bob._replace(principal="User:dave")
    refused = replace(made, refused="no", refused_calls=acl_calls_hash([dave], []))
    la.put(acls_to_write(resource, refused))
    assert not plan_grant(la, "dave", "read", "/la/armed/u").kafka_calls


def test_what_kdir_has_yet_to_apply_is_pending_and_no_drift(la: House) -> None:
    def states(path: str) -> dict[str, str]:
        request = policies_pb2.GetEffectivePoliciesRequest(path=path)
        values = la.ask(ADMIN, "GetEffectivePolicies", request).values
        shown = {one.field: one.kafka_state for one in values if one.HasField("kafka_value")}
        drifts = la.ask(ADMIN, "ListDrift", admin_pb2.ListDriftRequest(path=path)).drifts
        listed = {one.field.replace("config[", "topic_config["): one.kafka_state for one in drifts}
        differing = {one.field for one in values if one.kafka_value != one.value}
        assert listed.keys() == shown.keys() & differing
        assert all(shown[field] == state for field, state in listed.items())
        return shown

    snapshot = la.cluster.replica.snapshot
    armed = snapshot.find_directory(("armed",))
    assert armed is not None
    known = snapshot.topic(armed, "u")
    assert known is not None
    done = AppliedRecord(MappingProxyType({"retention.ms": AppliedSetting(OLD)}))
    la.put(configs_to_write(known.entry_id, done))
    field = "topic_config[retention.ms]"
    assert states("/la/armed/u") == {field: ""}
    changed = setting("/la/armed/u", plan=False, topic_config={"retention.ms": NEW}, partitions=5)
    la.ask(ADMIN, "UpdateEntry", changed)
    assert states("/la/armed/u") == {field: "pending", "partitions": "pending"}
    done = AppliedRecord(MappingProxyType({"retention.ms": AppliedSetting(NEW)}))
    la.put(configs_to_write(known.entry_id, done))
    assert states("/la/armed/u") == {field: "", "partitions": "pending"}, "another client's doing"
    la.put(configs_to_write(known.entry_id, replace(done, contested=frozenset({"retention.ms"}))))
    assert states("/la/armed/u")[field] == "contested"


@pytest.mark.parametrize("provision", [Provision.PENDING, Provision.MISSING, Provision.REPLACED])
def test_of_a_topic_that_kafka_does_not_have_no_value_is_compared(
    la: House, provision: Provision
) -> None:
    topic(la, "/la/armed/new", provision=provision)
    request = policies_pb2.GetEffectivePoliciesRequest(path="/la/armed/new")
    values = la.ask(ADMIN, "GetEffectivePolicies", request).values
    assert [one.field for one in values if one.field.startswith("topic_config")]
    assert not any(one.HasField("kafka_value") for one in values)


def test_A12_a_plan_names_no_call_for_what_is_hidden_from_its_caller(la: House) -> None:
    la.mkdir("/la/armed/sd")
    la.mkdir("/la/armed/in")
    la.mkdir("/la/b")
    la.grant("alice", "all", "/la")
    carol = Acl(Permission.ALLOW, "User:carol", Operation.READ, "*")
    applied = AppliedRecord({carol: AppliedSetting()}, path="/la/armed")
    for number, name in enumerate(("secret", "sd/deep", "in/v", "in/hidden")):
        topic(la, f"/la/armed/{name}", topic_id=bytes([number]) * 16, partitions=1)
        resource = Resource(ResourceType.TOPIC, f"armed.{name.replace('/', '.')}")
        la.put(acls_to_write(resource, applied))
    la.grant("carol", "read", "/la/armed")
    la.grant("dave", "write", "/la/b")
    la.grant("dave", "read", "/la/b", kind=access_pb2.RESOURCE_TYPE_GROUP, name="g")
    for path, kind in (
        ("/la/armed/secret", entry_pb2.ENTRY_KIND_TOPIC),
        ("/la/armed/sd", entry_pb2.ENTRY_KIND_DIRECTORY),
        ("/la/armed/in/hidden", entry_pb2.ENTRY_KIND_TOPIC),
    ):
        hide = grants("alice", "-describe")
        la.ask(ADMIN, "AddGrants", access_pb2.AddGrantsRequest(path=path, kind=kind, grants=hide))

    def named(plan: Any) -> set[str]:
        return {one.acl.resource_name for one in plan.kafka_calls}

    hidden = {"armed.secret", "armed.sd.deep", "armed.in.hidden"}
    shown = {"armed.u", "armed.in.v"}
    assert named(plan_grant(la, "bob", "read", "/la/armed")) == hidden | shown
    assert named(plan_grant(la, "bob", "read", "/la/armed", by="alice")) == shown
    # To a place that inherits other grants, where nothing is denied yet.
    assert named(plan_mv(la, "/la/armed", "/la/b/armed")) == {*hidden, *shown, "g"}
    assert named(plan_mv(la, "/la/armed", "/la/b/armed", "alice")) == {*shown, "g"}
    assert hidden <= named(plan_rm(la, "/la/armed"))
    assert not named(plan_rm(la, "/la/armed", "alice")) & hidden


def test_drift_of_an_acl_of_a_group_is_listed_at_the_mount_where_that_is_armed(la: House) -> None:
    lost = Acl(Permission.ALLOW, "User:carol", Operation.READ, "*")
    kept = AppliedRecord(
        MappingProxyType({lost: AppliedSetting()}), lost=frozenset({lost}), path="/la"
    )
    la.put(acls_to_write(Resource(ResourceType.GROUP, "g"), kept))
    found = la.ask(ADMIN, "ListDrift", admin_pb2.ListDriftRequest(path="/la")).drifts
    assert [(one.path, one.physical_name, one.field) for one in found] == [
        ("/la", "g", "acl of group g")
    ]
