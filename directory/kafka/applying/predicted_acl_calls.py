"""Which ACLs a change of the tree would make the reconciler add to Kafka, or remove from it, where
ACLs are armed.

Goes by what is wished before and after, and by what is recorded as kdir's own; what Kafka has by
now, and whether somebody is in the way there, is for ``arming_service.py`` to ask. Refuses to ask
Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from directory.access.grant import Permission
from directory.kafka.acl_planning import CREATE_ACLS, DELETE_ACLS
from directory.kafka.acl_values import Acl, AclBinding, Resource
from directory.kafka.applying.config_diff import KafkaCall
from directory.kafka.applying.desired_acls import DesiredAcls, armed_starts, desired_acls
from directory.kafka.applying.last_applied_acls import AppliedResource, load_applied_resource
from directory.kafka.applying.last_applied_configs import armed_anywhere
from directory.kafka.reconciler_settings import ACLS
from directory.namespace.snapshot import Snapshot
from directory.namespace.time_budget import TimeBudget
from resolver.path import Path

__all__ = ["predict_acl_calls"]

_MOST_TOPICS: Final = 20_000
"""In a cluster with more of them it would take too long to say."""


def predict_acl_calls(
    before: Snapshot,
    after: Snapshot,
    mount: Path,
    budget: TimeBudget,
    *,
    expired: bool,
    shown: Callable[[Path], bool] = lambda _: True,
) -> Iterator[KafkaCall]:
    """Yields the calls that follow from a change, in the order in which they are made: denies come
    before allows, and go after them. Only of what is wished at a path of which ``shown`` says so.
    """
    if not armed_anywhere(after, ACLS):
        return
    if before.topic_count > _MOST_TOPICS or not budget.spend(2 * before.topic_count):
        budget.is_over = True
        return
    was = desired_acls(before, mount, armed_starts(before), expired=expired).by_resource
    now = desired_acls(after, mount, armed_starts(after), expired=expired).by_resource
    adds: list[AclBinding] = []
    removes: list[AclBinding] = []
    for resource in sorted(was.keys() | now.keys()):
        old, new = was.get(resource), now.get(resource)
        if not all(one.known for one in (old, new) if one is not None):
            continue
        place = new or old
        if place is None or not shown(place.path):
            continue
        kept = _kept(before, resource)
        had, has = _acls(old), _acls(new)
        adds += (AclBinding(resource, acl) for acl in sorted(has - had) if acl not in kept.ours)
        removes += (AclBinding(resource, acl) for acl in sorted(had - has) if acl in kept.ours)
    for operation, some, permission in (
        (CREATE_ACLS, adds, Permission.DENY),
        (CREATE_ACLS, adds, Permission.ALLOW),
        (DELETE_ACLS, removes, Permission.ALLOW),
        (DELETE_ACLS, removes, Permission.DENY),
    ):
        for one in some:
            if one.acl.permission is permission:
                yield KafkaCall(operation, str(one.resource), str(one.acl), None, None, binding=one)


def _acls(desired: DesiredAcls | None) -> frozenset[Acl]:
    return frozenset() if desired is None else desired.acls


def _kept(snapshot: Snapshot, resource: Resource) -> AppliedResource:
    try:
        return load_applied_resource(snapshot, resource)
    except ValueError:
        return AppliedResource()
