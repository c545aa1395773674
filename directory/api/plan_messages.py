"""Converts plans of arming to messages of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdir.v1 import policies_pb2

from directory.kafka.admin_contract import ALTER
from directory.namespace.topic_configs import deletes_data

if TYPE_CHECKING:
    from directory.kafka.admin_contract import AclBinding, KafkaCall
    from directory.kafka.arming.arming import ArmingPlan

__all__ = ["call_to_proto", "planned_to_proto"]


def planned_to_proto(planned: ArmingPlan) -> policies_pb2.PlanArmingResponse:
    """Returns the message of a plan."""
    counts = planned.acls
    return policies_pb2.PlanArmingResponse(
        plan_hash=planned.plan,
        calls=map(call_to_proto, planned.calls),
        acl_counts=None
        if counts is None
        else policies_pb2.AclCounts(before=counts.before, after=counts.after, limit=counts.limit),
    )


def call_to_proto(one: KafkaCall) -> policies_pb2.KafkaCall:
    """Returns the message of one call."""
    return policies_pb2.KafkaCall(
        operation=one.operation,
        resource=one.resource,
        key=one.key,
        before=one.before,
        after=one.after,
        acl=None if one.binding is None else _acl(one.binding),
        takeover=one.takeover,
        rejected=one.rejected,
        deletes_data=one.operation == ALTER and deletes_data(one.key, one.before, one.after),
    )


def _acl(one: AclBinding) -> policies_pb2.AclBinding:
    resource, acl = one
    return policies_pb2.AclBinding(
        resource_type=resource.kind.name,
        pattern_type=resource.pattern.name,
        resource_name=resource.name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation.name,
        permission_type=acl.permission.name,
    )
