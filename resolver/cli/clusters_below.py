"""What a change of policies comes to in the clusters that are mounted below: each is asked itself.

A cluster knows its own topics only. What would hold at the root of a cluster below is tried there
as a change that is not made (``validate_only``), so that its counts and its calls to Kafka are its
own. A cluster that does not answer is named, and never counted as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resolver import units
from resolver.errors import KdirError

if TYPE_CHECKING:
    from kdir.v1 import access_pb2, entry_pb2, policies_pb2

    from resolver.cli.session import Session

__all__ = ["ClusterPlan", "armed_summary", "plans_below", "with_clusters_below"]

_AT_ONCE: Final = 16
"""Clusters that are asked at a time."""
_CONFIG: Final = "topic_config["


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Plan of a change in one cluster below."""

    cluster: str
    mount: str
    topics: dict[str, int] = field(default_factory=dict)
    """Topics whose value changes, by field."""
    data_loss: frozenset[str] = frozenset()
    """Fields of which Kafka may delete data."""
    calls: Sequence[policies_pb2.KafkaCall] = ()
    calls_omitted: int = 0
    error: str = ""
    """Why nothing of it is known."""


def plans_below(
    session: Session, path: str, changes: Iterable[access_pb2.PolicyChange]
) -> list[ClusterPlan]:
    """Returns what changed values of a path come to in each cluster that is mounted below it, by
    mount.
    """
    from concurrent.futures import ThreadPoolExecutor

    from kdir.v1 import federation_pb2

    from resolver.path import Path

    changed, where = list(changes), Path.parse(path)
    if not any(one.cluster_count for one in changed):
        return []  # no mount inherits it
    try:
        listed = session.resolver.call(
            path, "FederationService.ListMounts", federation_pb2.ListMountsRequest()
        )
    except KdirError as error:
        return [ClusterPlan("the clusters below", path, error=error.message)]
    below = sorted(
        (row.mount, row.cluster or row.cluster_id)
        for row in listed.rows
        if Path.parse(row.mount) != where and where.is_prefix_of(Path.parse(row.mount))
    )

    def ask(one: tuple[str, str]) -> ClusterPlan:
        mount, cluster = one
        try:
            return _plan_of(session, where.segments, mount, cluster, changed)
        except KdirError as error:
            return ClusterPlan(cluster, mount, error=error.message)

    session.resolver  # noqa: B018 - made once, before several threads want it
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, below))


def _plan_of(
    session: Session,
    where: tuple[str, ...],
    mount: str,
    cluster: str,
    changes: Sequence[access_pb2.PolicyChange],
) -> ClusterPlan:
    from kdir.v1 import directory_pb2, policies_pb2

    from resolver.path import Path

    held: policies_pb2.GetEffectivePoliciesResponse = session.resolver.call(
        mount,
        "PolicyService.GetEffectivePolicies",
        policies_pb2.GetEffectivePoliciesRequest(path=mount, directory=True),
    )
    sources = {one.field: Path.parse(one.source_path).segments for one in held.values}
    reaching = [
        one
        for one in changes
        # What a nearer directory sets stays as it is.
        if len(sources.get(one.field, ())) <= len(where)
    ]
    request = directory_pb2.UpdateEntryRequest(
        path=mount, kind="ENTRY_KIND_DIRECTORY", validate_only=True
    )
    masks = [mask for one in reaching if (mask := _put(request.entry, one))]
    if not masks:
        return ClusterPlan(cluster, mount)
    request.update_mask.paths.extend(masks)
    answer: directory_pb2.UpdateEntryResponse = session.resolver.call(
        mount, "DirectoryService.UpdateEntry", request
    )
    plan = answer.plan
    return ClusterPlan(
        cluster,
        mount,
        {one.field: one.topic_count for one in plan.policies},
        frozenset(one.field for one in plan.policies if one.deletes_data),
        list(plan.kafka_calls),
        plan.kafka_calls_omitted,
    )


def _put(entry: entry_pb2.Entry, change: access_pb2.PolicyChange) -> str:
    """Puts the value that would hold into an entry; returns its place in an update mask, empty for
    what Kafka does not have.
    """
    if not change.field.startswith(_CONFIG):
        return ""
    key = change.field.removeprefix(_CONFIG).removesuffix("]")
    value = entry.policies.topic_config[key]
    if change.HasField("after"):
        value.value = change.after
    else:
        value.cleared = True
    return f"policies.topic_config.{key}"


def with_clusters_below(
    plan: access_pb2.ChangePlan, below: Sequence[ClusterPlan]
) -> access_pb2.ChangePlan:
    """Returns the plan with what the clusters below add to its counts and calls."""
    whole = type(plan)()
    whole.CopyFrom(plan)
    for row in whole.policies:
        row.topic_count += sum(one.topics.get(row.field, 0) for one in below)
        row.deletes_data |= any(row.field in one.data_loss for one in below)
    for one in below:
        whole.kafka_calls.extend(one.calls)
        whole.kafka_calls_omitted += one.calls_omitted
    return whole


def armed_summary(
    own: str, calls: Sequence[policies_pb2.KafkaCall], below: Sequence[ClusterPlan]
) -> str:
    """Returns what a change does to Kafka, in one sentence: how many topics of which clusters."""
    counted = [(own, calls), *((one.cluster, one.calls) for one in below)]
    parts = [
        f"{units.plural(len({call.resource for call in some}), 'topic')} of {cluster}"
        for cluster, some in counted
        if some
    ]
    unknown = [one.cluster for one in below if one.error]
    left = f"; not known: {', '.join(unknown)} did not answer" if unknown else ""
    if not parts:
        return f"not armed: nothing in Kafka changes{left}"
    return f"armed: {', '.join(parts)} {_are(parts)} being changed in Kafka{left}"


def _are(parts: Sequence[str]) -> str:
    return "is" if len(parts) == 1 and parts[0].startswith("1 ") else "are"
