"""PolicyService: what holds for an entry, who says so, and what a change would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from kdir.v1 import policies_pb2

from directory.access.grant import Operation
from directory.api.authorizing import authorizing_on, entry_meant, veiling_stop
from directory.api.caller_view import Sight
from directory.api.cluster_router import Hosting
from directory.api.counting import seen_use, shown_topics
from directory.api.plan_messages import planned_to_proto
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.federation import facts
from directory.federation.federation_state import unix_ms
from directory.kafka.applying.desired_configs import Wishing
from directory.kafka.attended import NOT_ARMED, attended_of
from directory.kafka.inheritance import missing_word
from directory.kafka.reconciler_settings import ACLS
from directory.namespace.entry import Directory, Kind, Policies, Stamp, Topic
from directory.namespace.fields import apply_changes
from directory.namespace.inheriting import inheriting
from directory.namespace.lookup import (
    DirectoryAt,
    LinkAt,
    Missing,
    MountAt,
    TopicAt,
    Unreadable,
    lookup,
)
from directory.namespace.policies import (
    Explained,
    Level,
    explain,
    path_levels,
    set_fields,
)
from directory.namespace.quotas import QUOTAS, Quota, counts_of
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import Budget
from directory.namespace.topic_configs import same_value
from directory.namespace.traversal import follow
from directory.server.cluster import Cluster
from directory.store.base import Guard
from directory.wire.request_commands import policy_changes
from resolver.errors import (
    AboveCeiling,
    Absent,
    Internal,
    InvalidArgument,
    NotAuthoritative,
    NotReady,
)
from resolver.path import Path

if TYPE_CHECKING:
    from directory.kafka.armory import Armed, Armory, Planned

__all__ = ["PolicyService"]

_NOT_SET: Final = "if set"
"""Of a value that was only asked about, where kdir would push it to Kafka."""


class PolicyService(Service):
    """Effective settings of one cluster's entries."""

    descriptor = policies_pb2.DESCRIPTOR.services_by_name["PolicyService"]
    long = frozenset({"GetEffectivePolicies"})
    writes = frozenset({"PlanArming", "Arm"})
    """They wait for Kafka, as writes may."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GetEffectivePolicies": self.get_effective_policies,
            "PlanArming": self.plan_arming,
            "Arm": self.arm,
        }

    def plan_arming(
        self, request: policies_pb2.PlanArmingRequest, call: Call
    ) -> policies_pb2.PlanArmingResponse:
        """The exact calls that arming would make."""
        path = Path.parse(request.path)

        def attempt() -> Planned:
            cluster = self._hosting.owner_of(path)
            kind, rights = self._right_to_arm(cluster, path, request, call)
            rights(cluster.replica.snapshot)
            armory = _armory(cluster)
            call.check()
            with veiling_stop(self._hosting.guarding, cluster, call):
                return armory.plan(path, request.aspect, kind, takeover=request.takeover)

        picked = self._hosting.pick(path)
        planned = self._hosting.decide(picked, request.token, call, attempt, ask_first=True)
        return planned_to_proto(planned)

    def _right_to_arm(
        self,
        cluster: Cluster,
        path: Path,
        request: policies_pb2.PlanArmingRequest | policies_pb2.ArmRequest,
        call: Call,
    ) -> tuple[Kind, Callable[[Snapshot], tuple[Guard, ...]]]:
        """The kind of the entry that is meant, and what asks for the right to arm that very one."""
        guarding = self._hosting.guarding
        asked = Kind.DIRECTORY if request.directory else None
        kind = entry_meant(guarding, cluster, path, asked, call)
        operation = Operation.ALTER if request.aspect == ACLS else Operation.ALTER_CONFIGS
        return kind, authorizing_on(guarding, cluster, operation, path, kind, call)

    def arm(self, request: policies_pb2.ArmRequest, call: Call) -> policies_pb2.ArmResponse:
        """Arms by a plan that was read, and waits for its calls to be made."""
        path = Path.parse(request.path)
        if not request.plan_hash:
            raise InvalidArgument(
                "plan_hash: empty; expected what PlanArming answered", field="plan_hash"
            )
        cluster = self._hosting.pick(path)

        def attempt() -> Armed:
            cluster = self._hosting.owner_of(path)
            kind, rights = self._right_to_arm(cluster, path, request, call)
            rights(cluster.replica.snapshot)
            with veiling_stop(self._hosting.guarding, cluster, call):
                return _armory(cluster).arm(
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

        armed = self._hosting.decide(cluster, request.token, call, attempt, ask_first=True)
        return policies_pb2.ArmResponse(
            calls_made=armed.calls_made,
            token=cluster.token_of(cluster.replica.snapshot),
            under_way=armed.left,
            message=armed.message,
        )

    def get_effective_policies(
        self, request: policies_pb2.GetEffectivePoliciesRequest, call: Call
    ) -> policies_pb2.GetEffectivePoliciesResponse:
        """Each value that holds at a path: who set it where and when, and what it overrides."""
        path = Path.parse(request.path)
        cluster, snapshot = self._hosting.read_owned(path, request.token, call)
        _refuse_unloaded(cluster, snapshot)
        prefer = Kind.DIRECTORY if request.directory else None
        sight = self._hosting.sight(cluster, snapshot, call)
        prefer = sight.find(path, prefer)
        node, entry = _found(cluster, snapshot, path, prefer)
        response = policies_pb2.GetEffectivePoliciesResponse(token=cluster.token_of(snapshot))
        own, wished, asked = entry.policies, entry, frozenset[str]()
        if request.what_if_mask.paths:
            bounds, mask = cluster.config.limits.bounds, request.what_if_mask.paths
            changes = policy_changes(mask, request.what_if, bounds, call.check)
            changed = apply_changes(entry, changes, bounds, call.check)
            assert isinstance(changed, Directory | Topic)  # noqa: S101 - the kind stays
            response.topics_changed = _topics_changed(
                sight, node, entry, changed.policies, call, path.below(sight.access.mount)
            )
            own = replace(changed.policies, stamps=_kept(changed.policies, entry.policies))
            wished, asked = changed, _changed(entry.policies, own)
        levels = facts.inherited_origins(snapshot)
        levels += path_levels(snapshot, sight.access.mount, node.entry_id)
        if isinstance(entry, Directory):
            levels = [level for level in levels if level.path != str(path)]
        levels.append(Level(str(path), own))
        observed: Mapping[str, str] = {}
        noted: Mapping[str, str] = {}
        if isinstance(entry, Topic):
            observed = _observed(entry)
            place = node.entry_id, path.name
            noted = attended_of(snapshot, sight.access.mount, place, entry)
        armed = isinstance(wished, Directory) or Wishing(snapshot).of(node.entry_id, wished)
        for one in explain(levels):
            value = _value(one, observed, noted, str(path))
            if value.HasField("kafka_value") and value.kafka_value != value.value:
                is_new = one.origin.path == str(path) and one.field in asked
                if not armed and (is_new or one.origin.path != str(path)):
                    value.kafka_state = NOT_ARMED
                elif is_new:
                    value.kafka_state = _NOT_SET
            response.values.append(value)
        _fill_used(response, sight, entry, path)
        response.ancestors.extend(facts.ancestors(snapshot, unix_ms()))
        return response


def _found(
    cluster: Cluster, snapshot: Snapshot, path: Path, prefer: Kind | None
) -> tuple[Node, Directory | Topic]:
    """The directory at the path, or the one that holds the topic; and the entry itself."""
    found = lookup(snapshot, path.segments[len(cluster.mount_at(snapshot)) :], prefer)
    match found:
        case TopicAt(parent_id=parent_id):
            node, topic = snapshot.node(parent_id), snapshot.topic(parent_id, path.segments[-1])
            assert node is not None  # noqa: S101 - it holds the topic
            assert topic is not None  # noqa: S101 - it was found
            return node, topic
        case DirectoryAt(node=node):
            return node, node.directory
        case Missing(nearest=nearest):
            raise Absent(
                f"{path} does not exist",
                path=path,
                nearest=cluster.mount_at(snapshot).join(nearest),
            )
        case Unreadable(reason=reason):
            raise Internal(f"the record of {path} cannot be read: {reason}; see kdir doctor")
        case LinkAt() | MountAt():
            raise NotAuthoritative(
                f"{path} lies beyond a mount or link of cluster {cluster.config.cluster}; resolve "
                f"it first",
                path=path,
            )
        case _:
            assert_never(found)


def _kept(after: Policies, before: Policies) -> Mapping[str, Stamp]:
    """Who set what the change leaves as it is."""
    old, now = set_fields(before), set_fields(after)
    return {
        name: stamp
        for name, stamp in before.stamps.items()
        if name in now and now[name] == old.get(name)
    }


def _changed(before: Policies, after: Policies) -> frozenset[str]:
    """The fields that are set otherwise, or no longer."""
    old, now = set_fields(before), set_fields(after)
    return frozenset(
        name
        for name in old.keys() | now.keys()
        if (name in old, old.get(name)) != (name in now, now.get(name))
    )


def _topics_changed(
    sight: Sight,
    node: Node,
    entry: Directory | Topic,
    after: Policies,
    call: Call,
    relative: tuple[str, ...],
) -> int:
    """How many topics would see another value, as far as the caller may know."""
    names = _changed(entry.policies, after)
    if not names:
        return 0
    if isinstance(entry, Topic):
        return 1

    def go_on() -> bool:
        call.check()
        return True

    shown = shown_topics(sight, relative)
    return inheriting(sight.snapshot, node.entry_id, names, Budget(go_on), shown).topics


def _observed(topic: Topic) -> Mapping[str, str]:
    """What Kafka had at the last look, by the fields it has a say in."""
    found = {f"topic_config[{key}]": value for key, value in topic.observed_config.items()}
    found["partitions"] = str(topic.partitions) if topic.partitions else ""
    found["replication_factor"] = str(topic.replication_factor) if topic.replication_factor else ""
    return found


def _armory(cluster: Cluster) -> Armory:
    if cluster.reconciler is None:
        raise AboveCeiling(
            f"cluster {cluster.config.cluster} has no Kafka behind it: arm where there is one, at "
            f"or below the mount of its cluster",
            cluster=cluster.config.cluster,
        )
    return cluster.reconciler.armory


def _refuse_unloaded(cluster: Cluster, snapshot: Snapshot) -> None:
    """Not loaded is never empty (P1 to P3)."""
    words = missing_word(snapshot, has_parent=bool(cluster.config.parent))
    if words:
        raise NotReady(words)


def _speaks_of_kafka(one: Explained, found: str, at: str) -> bool:
    """Whether the value is one that Kafka should have, now: an inherited number of partitions is
    for new topics, and for those that have fewer; one of replicas is for new topics only.
    """
    inherited = one.origin.path != at
    match one.field:
        case "partitions":
            return not (inherited and found and int(found) >= int(str(one.origin.value)))
        case "replication_factor":
            return not inherited
        case _:
            return one.field.startswith("topic_config[")


def _value(
    one: Explained, observed: Mapping[str, str], noted: Mapping[str, str], at: str
) -> policies_pb2.EffectiveValue:
    value = policies_pb2.EffectiveValue(
        field=one.field,
        value=_text(one.origin.value),
        set_at=one.origin.path,
        overrides=[
            policies_pb2.OverriddenValue(value=_text(origin.value), set_at=origin.path)
            for origin in one.overrides
        ],
    )
    if one.origin.stamp is not None:
        value.set_by = one.origin.stamp.by
        value.set_time.FromMilliseconds(one.origin.stamp.at_ms)
    found = observed.get(one.field, "")
    if observed and _speaks_of_kafka(one, found, at):
        key = one.field.removeprefix("topic_config[").removesuffix("]")
        same = same_value(key, value.value, found)
        value.kafka_value = value.value if same else found
        value.kafka_state = noted.get(key, "")
    return value


def _fill_used(
    response: policies_pb2.GetEffectivePoliciesResponse,
    sight: Sight,
    entry: Directory | Topic,
    path: Path,
) -> None:
    """How much is used of each quota, whether it is the nearest or one that binds beside it, as far
    as the caller sees.
    """
    snapshot = sight.snapshot
    above = facts.inherited_origins(snapshot)

    def used(field: str, set_at: str) -> int:
        if set_at == str(path) and isinstance(entry, Topic):
            counted = counts_of(entry)
            return counted.topics if field == "max_topics" else counted.partitions
        here = snapshot.root
        if all(level.path != set_at for level in above):
            here = follow(snapshot, Path.parse(set_at).below(sight.access.mount)).node
        return seen_use(sight, Quota(field, set_at, here.entry_id, 0))

    for value in response.values:
        if value.field in QUOTAS:
            value.used = used(value.field, value.set_at)
            for other in value.overrides:
                other.used = used(value.field, other.set_at)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
