"""PolicyService: effective policies with their origins, and arming."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kdir.v1 import policies_pb2

from directory.access.grants import Operation
from directory.api.cluster_router import ClusterRouter
from directory.api.entry_writes import authorizing_on, entry_meant
from directory.api.plan_messages import planned_to_proto
from directory.api.plan_redaction import redacting_stop
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.visible_tree import EntryAt, OpenTree
from directory.federation import inheritance, parent_state
from directory.federation.federation_state import unix_ms
from directory.federation.unloaded_policies import why_inherited_missing
from directory.kafka.applying.desired_configs import DesiredConfigs
from directory.kafka.arming.drift import NOT_ARMED, difference_states
from directory.kafka.kafka_context import ACLS
from directory.namespace.effective_policies import (
    ExplainedValue,
    PolicyLevel,
    count_inheritors,
    effective,
    explain,
    path_levels,
    set_fields,
)
from directory.namespace.entry import Directory, Kind, Policies, Provision, Stamp, Topic
from directory.namespace.lookup import DirectoryAt, TopicAt
from directory.namespace.quotas import QUOTAS, Quota, topic_amount
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.topic_configs import same_value
from directory.namespace.traversal import traverse
from directory.namespace.updatable_fields import apply_changes
from directory.server.cluster import Cluster
from directory.store.base import Guard
from directory.wire.request_commands import policy_changes
from resolver.errors import AboveCeiling, InvalidArgument, NotReady
from resolver.path import Path

if TYPE_CHECKING:
    from directory.kafka.arming.arming import ArmingPlan, ArmingResult, ArmingService

__all__ = ["PolicyService"]

_NOT_SET: Final = "if set"
"""State of a value that a request only asks about: if it were set, kdir would push it to Kafka."""


class PolicyService(Service):
    """Service for the effective policies of one cluster's entries."""

    descriptor = policies_pb2.DESCRIPTOR.services_by_name["PolicyService"]
    long = frozenset({"GetEffectivePolicies"})
    writes = frozenset({"PlanArming", "Arm"})
    """These methods wait for Kafka, so they run on the threads of writes."""

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def method_handlers(self) -> Mapping[str, Handler]:
        return {
            "GetEffectivePolicies": self.get_effective_policies,
            "PlanArming": self.plan_arming,
            "Arm": self.arm,
        }

    def plan_arming(
        self, request: policies_pb2.PlanArmingRequest, call: Call
    ) -> policies_pb2.PlanArmingResponse:
        """Returns the exact calls that arming would make."""
        path = Path.parse(request.path)

        def attempt() -> ArmingPlan:
            cluster = self._router.require_owner(path, call)
            kind, rights = self._right_to_arm(cluster, path, request, call)
            rights(cluster.replica.snapshot)
            arming_service = _arming_service(cluster)
            call.check()
            with redacting_stop(self._router.access_control, cluster, call):
                return arming_service.plan(
                    path,
                    request.aspect,
                    kind,
                    takeover=request.takeover,
                    armed_only=request.armed,
                    timeout_seconds=call.seconds_left(),
                )

        picked = self._router.cluster_for_path(path, call)
        planned = self._router.decide(picked, request.token, call, attempt, ask_first=True)
        return planned_to_proto(planned)

    def _right_to_arm(
        self,
        cluster: Cluster,
        path: Path,
        request: policies_pb2.PlanArmingRequest | policies_pb2.ArmRequest,
        call: Call,
    ) -> tuple[Kind, Callable[[Snapshot], tuple[Guard, ...]]]:
        """Returns the kind of the entry, and the function that checks the right to arm
        that entry.
        """
        access_control = self._router.access_control
        asked = Kind.DIRECTORY if request.directory else None
        kind = entry_meant(access_control, cluster, path, asked, call)
        operation = Operation.ALTER if request.aspect == ACLS else Operation.ALTER_CONFIGS
        return kind, authorizing_on(access_control, cluster, operation, path, kind, call)

    def arm(self, request: policies_pb2.ArmRequest, call: Call) -> policies_pb2.ArmResponse:
        """Arms by a plan that an operator has read, and waits, within the deadline, until its calls
        are made.
        """
        path = Path.parse(request.path)
        if not request.plan_hash:
            raise InvalidArgument(
                "plan_hash: empty; expected the hash of a plan that PlanArming returned",
                field="plan_hash",
            )
        cluster = self._router.cluster_for_path(path, call)

        def attempt() -> ArmingResult:
            cluster = self._router.require_owner(path, call)
            kind, rights = self._right_to_arm(cluster, path, request, call)
            rights(cluster.replica.snapshot)
            with redacting_stop(self._router.access_control, cluster, call):
                return _arming_service(cluster).arm(
                    path,
                    request.aspect,
                    request.plan_hash,
                    kind,
                    authorize=rights,
                    takeover=request.takeover,
                    principal=call.principal,
                    request_id=request.request_id,
                    timeout_seconds=call.seconds_left(),
                )

        armed = self._router.decide(cluster, request.token, call, attempt, ask_first=True)
        return policies_pb2.ArmResponse(
            calls_made=armed.calls_made,
            token=cluster.token_after(armed.revision),
            in_progress=armed.left,
            message=armed.message,
        )

    def get_effective_policies(
        self, request: policies_pb2.GetEffectivePoliciesRequest, call: Call
    ) -> policies_pb2.GetEffectivePoliciesResponse:
        """Returns each effective value at a path: who set it, where and when, and which values it
        overrides.
        """
        path = Path.parse(request.path)
        cluster, tree = self._router.read_owned(path, request.token, call)
        snapshot = tree.snapshot
        _refuse_unloaded(cluster, snapshot)
        found = tree.require_entry(path, Kind.DIRECTORY if request.directory else None)
        if request.directory and isinstance(found, TopicAt):
            raise tree.absent_error(path, Kind.DIRECTORY)
        node, entry = _node_and_entry(snapshot, found)
        response = policies_pb2.GetEffectivePoliciesResponse(token=cluster.token_of(snapshot))
        levels = inheritance.inherited_origins(snapshot)
        levels += path_levels(snapshot, tree.mount, node.entry_id)
        if isinstance(entry, Directory):
            levels = [level for level in levels if level.path != str(path)]
        own, desired_config, asked = entry.policies, entry, frozenset[str]()
        if request.what_if_mask.paths:
            bounds, mask = cluster.config.limits.bounds, request.what_if_mask.paths
            changes = policy_changes(mask, request.what_if, bounds, call.check)
            changed = apply_changes(entry, changes, bounds, call.check)
            assert isinstance(changed, Directory | Topic)  # noqa: S101 - the kind stays
            response.topics_changed = _topics_changed(
                tree, node, entry, changed.policies, levels, call, path.below(tree.mount)
            )
            response.caller_view = isinstance(entry, Directory) and not tree.can_describe_all_below(
                path.below(tree.mount)
            )
            own = replace(changed.policies, stamps=_kept(changed.policies, entry.policies))
            desired_config, asked = changed, _changed(entry.policies, own)
        levels.append(PolicyLevel(str(path), own))
        observed: Mapping[str, str] = {}
        noted: Mapping[str, str] = {}
        if isinstance(entry, Topic):
            observed = _observed(entry)
            place = node.entry_id, path.name
            noted = difference_states(snapshot, tree.mount, place, entry)
        armed = isinstance(desired_config, Directory) or DesiredConfigs(snapshot).for_topic(
            node.entry_id, desired_config
        )
        for one in explain(levels):
            value = _value(one, observed, noted, str(path))
            if value.HasField("kafka_value") and value.kafka_value != value.value:
                is_new = one.origin.path == str(path) and one.field in asked
                if not armed and (is_new or one.origin.path != str(path)):
                    value.kafka_state = NOT_ARMED
                elif is_new:
                    value.kafka_state = _NOT_SET
            response.values.append(value)
        _fill_used(response, tree, entry, path)
        response.ancestors.extend(parent_state.ancestors(snapshot, unix_ms()))
        return response


def _node_and_entry(snapshot: Snapshot, found: EntryAt) -> tuple[Node, Directory | Topic]:
    """Returns the directory at the path, or the one that holds the topic; and the entry itself."""
    if isinstance(found, TopicAt):
        topic = snapshot.topic(found.parent_id, found.relative[-1])
        assert topic is not None  # noqa: S101 - it was found
        return snapshot.nodes[found.parent_id], topic
    assert isinstance(found, DirectoryAt)  # noqa: S101 - links and mounts are followed
    return found.node, found.node.directory


def _kept(after: Policies, before: Policies) -> Mapping[str, Stamp]:
    """Returns the stamps of the fields that the change leaves unchanged."""
    old, now = set_fields(before), set_fields(after)
    return {
        name: stamp
        for name, stamp in before.stamps.items()
        if name in now and now[name] == old.get(name)
    }


def _changed(before: Policies, after: Policies) -> frozenset[str]:
    """Returns the fields that are set to another value, or unset."""
    old, now = set_fields(before), set_fields(after)
    return frozenset(
        name
        for name in old.keys() | now.keys()
        if (name in old, old.get(name)) != (name in now, now.get(name))
    )


def _topics_changed(
    tree: OpenTree,
    node: Node,
    entry: Directory | Topic,
    after: Policies,
    levels: Sequence[PolicyLevel],
    call: Call,
    relative: tuple[str, ...],
) -> int:
    """Returns the number of topics, of those that the caller may see, whose effective value of a
    field changes. ``levels`` are those that the entry inherits.
    """
    inherited = [level.policies for level in levels]
    names = _changed(effective([*inherited, entry.policies]), effective([*inherited, after]))
    if not names:
        return 0
    if isinstance(entry, Topic):
        return 1

    def go_on() -> bool:
        call.check()
        return True

    shown = tree.shown_below(relative)
    return count_inheritors(tree.snapshot, node.entry_id, names, TimeBudget(go_on), shown).topics


def _observed(topic: Topic) -> Mapping[str, str]:
    """Returns the values that Kafka had when last observed, for the fields that exist in Kafka;
    empty for a topic that is not ACTIVE.
    """
    if topic.provision is not Provision.ACTIVE:
        return {}
    found = {f"topic_config[{key}]": value for key, value in topic.observed_config.items()}
    found["partitions"] = str(topic.partitions) if topic.partitions else ""
    found["replication_factor"] = str(topic.replication_factor) if topic.replication_factor else ""
    return found


def _arming_service(cluster: Cluster) -> ArmingService:
    if cluster.reconciler is None:
        raise AboveCeiling(
            f"cluster {cluster.config.cluster} has no Kafka behind it: arm where there is one, at "
            f"or below the mount of its cluster",
            cluster=cluster.config.cluster,
            kafka="none",
        )
    return cluster.reconciler.arming_service


def _refuse_unloaded(cluster: Cluster, snapshot: Snapshot) -> None:
    """Raises ``NotReady`` until the inherited policies are loaded: policies that are not loaded
    never count as empty (P1 to P3).
    """
    message = why_inherited_missing(snapshot, has_parent=bool(cluster.config.parent))
    if message:
        raise NotReady(message)


def _has_kafka_value(one: ExplainedValue, at: str) -> bool:
    """True if Kafka should have the value now; inherited numbers of partitions or replicas apply
    only to new topics.
    """
    if one.origin.value is None:
        return False  # a cleared key is left to Kafka
    if one.field in {"partitions", "replication_factor"}:
        return one.origin.path == at
    return one.field.startswith("topic_config[")


def _value(
    one: ExplainedValue, observed: Mapping[str, str], noted: Mapping[str, str], at: str
) -> policies_pb2.EffectiveValue:
    value = policies_pb2.EffectiveValue(
        field=one.field,
        value="" if one.origin.value is None else _text(one.origin.value),
        cleared=one.origin.value is None,
        source_path=one.origin.path,
        overrides=[
            policies_pb2.OverriddenValue(value=_text(origin.value), source_path=origin.path)
            for origin in one.overrides
        ],
    )
    if one.origin.stamp is not None:
        value.set_by = one.origin.stamp.by
        value.set_time.FromMilliseconds(one.origin.stamp.at_ms)
    found = observed.get(one.field, "")
    if observed and _has_kafka_value(one, at):
        key = one.field.removeprefix("topic_config[").removesuffix("]")
        same = same_value(key, value.value, found)
        value.kafka_value = value.value if same else found
        value.kafka_state = noted.get(key, "")
    return value


def _fill_used(
    response: policies_pb2.GetEffectivePoliciesResponse,
    tree: OpenTree,
    entry: Directory | Topic,
    path: Path,
) -> None:
    """Fills in the use of each quota that binds, counting only what the caller may see."""
    snapshot = tree.snapshot
    above = inheritance.inherited_origins(snapshot)

    def used(field: str, source_path: str) -> int:
        if source_path == str(path) and isinstance(entry, Topic):
            counted = topic_amount(entry)
            return counted.topics if field == "max_topics" else counted.partitions
        here = snapshot.root
        if all(level.path != source_path for level in above):
            here = traverse(snapshot, Path.parse(source_path).below(tree.mount)).node
        return tree.quota_use(Quota(field, source_path, here.entry_id, 0))

    for value in response.values:
        if value.field in QUOTAS:
            value.used = used(value.field, value.source_path)
            for other in value.overrides:
                other.used = used(value.field, other.source_path)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
