"""Effects of a change of policies in the clusters mounted below: each cluster computes its own.

A cluster stores only its own topics. So each cluster below receives, for a dry run
(``validate_only``), the values that its root would inherit, and returns its own counts and calls to
Kafka. A cluster that does not answer is named, never counted as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from resolver import units
from resolver.errors import Absent, DeadlineExceeded, Denied, KdirError, NoRoute, Unavailable

if TYPE_CHECKING:
    from kdir.v1 import access_pb2, entry_pb2, federation_pb2, policies_pb2

    from resolver.cli.policy_arguments import Field
    from resolver.cli.session import Session
    from resolver.path import Path

__all__ = [
    "ClusterBelow",
    "ClusterPlan",
    "acl_calls_below",
    "armed_summary",
    "clusters_below",
    "failure_text",
    "incomplete_text",
    "inheriting_topics",
    "plans_below",
    "query_each",
    "report_incomplete",
    "topics_text",
    "unchanged_text",
    "unlisted_at",
    "with_clusters_below",
]

_T = TypeVar("_T")

_AT_ONCE: Final = 16
"""Most clusters that are queried at the same time."""
_NOT_INHERITED: Final = frozenset({"manage", "max_topics", "max_partitions"})
"""Fields that topics of other clusters do not inherit: arming is for one cluster's Kafka, and a
quota for one directory.
"""


class ClusterBelow(NamedTuple):
    """Cluster that is mounted below a path."""

    mount: str
    cluster: str
    """Name of the cluster; its id if the name is not known."""
    topics: int = 0
    """Number of topics that the cluster last reported."""
    cluster_id: str = ""


def clusters_below(session: Session, path: str) -> list[ClusterBelow]:
    """Returns the clusters that are mounted below a path, by mount; reports if there may be others.

    Raises:
        KdirError: the owner of the path did not answer.
    """
    from resolver.path import Path

    listed = _list_mounts(session, path)
    report_incomplete(session, listed, Path.parse(path))
    return _mounted_below(listed, path)


def report_incomplete(
    session: Session, listed: federation_pb2.ListMountsResponse, path: Path | None = None
) -> None:
    """Reports the clusters of ``unlisted_at`` as a missing part of the output."""
    for name in unlisted_at(listed, path):
        session.missing(incomplete_text(name))


def incomplete_text(name: str) -> str:
    """Returns the report of one cluster of ``unlisted_at``."""
    return f"mounts of {name}: the list is incomplete, other clusters may be mounted there"


def unlisted_at(listed: federation_pb2.ListMountsResponse, path: Path | None = None) -> list[str]:
    """Returns the clusters whose list of mounts is incomplete, with ``path`` only those that may
    have other mounts below it: a cluster that is not listed may still be mounted
    (docs/guarantees.md#s21).
    """
    from resolver.path import Path

    names = {row.cluster_id: row.cluster for row in listed.rows}
    mounts = {row.cluster_id: Path.parse(row.mount) for row in listed.rows}
    for one in listed.authorities:
        names[one.cluster.cluster_id] = one.cluster.cluster
        if one.cluster.mount:
            mounts[one.cluster.cluster_id] = Path.parse(one.cluster.mount)
    above = [each for each in mounts.values() if path and each.is_prefix_of(path)]
    owner = max(above, key=len, default=None)
    whole = {one.cluster.cluster_id for one in listed.authorities}.difference(
        listed.incomplete_cluster_ids
    )
    owned = {mounts[cluster_id] for cluster_id in whole if cluster_id in mounts}
    found = []
    for cluster_id in listed.incomplete_cluster_ids:
        mount = mounts.get(cluster_id)
        if mount in owned:
            continue  # an unmounted cluster, in whose place another one is mounted
        if path is None or mount is None or mount == owner or path.is_prefix_of(mount):
            name = names.get(cluster_id, "")
            found.append(f"{name} ({cluster_id})" if name else cluster_id)
    return found


def _list_mounts(session: Session, path: str) -> federation_pb2.ListMountsResponse:
    from kdir.v1 import federation_pb2

    listed: federation_pb2.ListMountsResponse = session.resolver.call(
        path, "FederationService.ListMounts", federation_pb2.ListMountsRequest()
    )
    return listed


def _mounted_below(listed: federation_pb2.ListMountsResponse, path: str) -> list[ClusterBelow]:
    from resolver.path import Path

    where = Path.parse(path)
    return sorted(
        ClusterBelow(row.mount, row.cluster or row.cluster_id, row.topic_count, row.cluster_id)
        for row in listed.rows
        if Path.parse(row.mount) != where and where.is_prefix_of(Path.parse(row.mount))
    )


def query_each(
    session: Session, below: Sequence[ClusterBelow], query: Callable[[ClusterBelow], _T]
) -> list[_T | KdirError]:
    """Returns the answer or the error of each cluster; several are queried concurrently."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(one: ClusterBelow) -> _T | KdirError:
        try:
            return query(one)
        except KdirError as error:
            return error

    if not below:
        return []
    session.resolver  # noqa: B018 - created before several threads use it
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, below))


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Plan of a change in one cluster below."""

    cluster: str
    mount: str
    topics: dict[str, int] = field(default_factory=dict)
    """Number of topics whose value changes, by field."""
    data_loss: frozenset[str] = frozenset()
    """Fields whose change may make Kafka delete data."""
    calls: Sequence[policies_pb2.KafkaCall] = ()
    calls_omitted: int = 0
    is_armed: bool = False
    held_topics: int = 0
    """Number of armed topics whose change waits for approval."""
    incomplete: bool = False
    """True if the cluster's time limit was reached, so that its counts are lower bounds."""
    caller_view: bool = False
    """True if the counts are only of entries that the caller may describe."""
    error: KdirError | None = None
    """Reason why the cluster's plan is not known; None = it is known."""

    @property
    def is_lower_bound(self) -> bool:
        """True if there may be more topics than are counted."""
        return bool(self.calls_omitted) or self.incomplete or self.caller_view


def failure_text(cluster: str, error: KdirError) -> str:
    """Returns why a cluster's effects are unknown: access denied, no answer, or another error."""
    match error:
        case Denied() | Absent():  # Absent: mounted, but hidden from the caller
            what = "denied it"
        case Unavailable() | DeadlineExceeded() | NoRoute():
            what = "did not answer"
        case _:
            what = "refused it"
    return f"{cluster} {what}: {error.message}"


def plans_below(
    session: Session, path: str, changes: Iterable[access_pb2.PolicyChange]
) -> list[ClusterPlan]:
    """Returns the effects of changed values of a path in each cluster mounted below it,
    by mount, and as unknown those in clusters that an incomplete list of mounts may lack.
    """
    from resolver.path import Path

    changed, where = list(changes), Path.parse(path)
    if not any(one.cluster_count for one in changed):
        return []  # no mount inherits them
    try:
        listed = _list_mounts(session, path)
    except KdirError as error:
        return [ClusterPlan("the clusters below", path, error=error)]
    below = _mounted_below(listed, path)
    plans = query_each(
        session,
        below,
        lambda one: _plan_of(session, where.segments, one.mount, one.cluster, changed),
    )
    incomplete = NoRoute("the list of its mounts is incomplete")
    return [
        ClusterPlan(one.cluster, one.mount, error=plan) if isinstance(plan, KdirError) else plan
        for one, plan in zip(below, plans, strict=True)
    ] + [
        ClusterPlan(f"any other cluster mounted in {name}", path, error=incomplete)
        for name in unlisted_at(listed, where)
    ]


def acl_calls_below(
    session: Session,
    below: Sequence[ClusterBelow],
    grants: Sequence[access_pb2.Grant],
    removed_from: str = "",
) -> list[ClusterPlan]:
    """Returns the ACL calls that a change of grants above causes in each cluster below. The grants
    are added or, if ``removed_from`` is set, removed from that directory.
    """
    from kdir.v1 import access_pb2

    def ask(one: ClusterBelow) -> ClusterPlan:
        kind = "ENTRY_KIND_DIRECTORY"
        if removed_from:
            removal = access_pb2.RemoveGrantsRequest(
                path=one.mount,
                kind=kind,
                grants=grants,
                validate_only=True,
                inherited_from=removed_from,
            )
            answer = session.resolver.call(one.mount, "AccessService.RemoveGrants", removal)
        else:
            # A grant inherited at a mount has the effect of one made there.
            request = access_pb2.AddGrantsRequest(
                path=one.mount, kind=kind, grants=grants, validate_only=True
            )
            answer = session.resolver.call(one.mount, "AccessService.AddGrants", request)
        return ClusterPlan(
            one.cluster,
            one.mount,
            calls=list(answer.plan.kafka_calls),
            calls_omitted=answer.plan.kafka_calls_omitted,
            incomplete=answer.plan.incomplete,
            caller_view=answer.plan.caller_view,
        )

    return [
        ClusterPlan(one.cluster, one.mount, error=plan) if isinstance(plan, KdirError) else plan
        for one, plan in zip(below, query_each(session, below, ask), strict=True)
    ]


def inheriting_topics(
    session: Session,
    below: Sequence[ClusterBelow],
    path: str,
    policies: policies_pb2.Policies,
    fields: Sequence[Field],
) -> list[str | KdirError]:
    """Returns for each cluster below the number of topics that would inherit other values if
    ``policies`` were set at ``path``, as text of ``topics_text``, or the cluster's error.
    """
    from resolver.path import Path

    depth = len(Path.parse(path).segments)

    def count(one: ClusterBelow) -> str:
        sources = _sources(session, one.mount)
        # A value that a nearer directory sets stays unchanged.
        reaching = [each for each in fields if len(sources.get(each.in_answers, ())) <= depth]
        if not reaching:
            return ""
        return topics_text(_effective(session, one.mount, policies, reaching), one.cluster)

    return query_each(session, below, count)


def topics_text(answer: policies_pb2.GetEffectivePoliciesResponse, cluster: str) -> str:
    """Returns the number of topics of a cluster with other values, such as ``at least 3 topics of
    la``; empty = none.
    """
    count, least = answer.topics_changed, "at least " if answer.caller_view else ""
    return f"{least}{units.plural(count, 'topic')} of {cluster}" if count or least else ""


def _sources(session: Session, mount: str) -> dict[str, tuple[str, ...]]:
    """Returns the path at which each effective value of a mount is set, by field."""
    from resolver.path import Path

    held = _effective(session, mount)
    return {one.field: Path.parse(one.source_path).segments for one in held.values}


def _effective(
    session: Session,
    mount: str,
    policies: policies_pb2.Policies | None = None,
    fields: Sequence[Field] = (),
) -> policies_pb2.GetEffectivePoliciesResponse:
    from kdir.v1 import policies_pb2

    request = policies_pb2.GetEffectivePoliciesRequest(path=mount, directory=True, what_if=policies)
    request.what_if_mask.paths.extend(one.mask for one in fields)
    answer: policies_pb2.GetEffectivePoliciesResponse = session.resolver.call(
        mount, "PolicyService.GetEffectivePolicies", request
    )
    return answer


def _plan_of(
    session: Session,
    where: tuple[str, ...],
    mount: str,
    cluster: str,
    changes: Sequence[access_pb2.PolicyChange],
) -> ClusterPlan:
    from kdir.v1 import directory_pb2

    sources = _sources(session, mount)
    reaching = [
        one
        for one in changes
        # A value that a nearer directory sets stays unchanged.
        if len(sources.get(one.field, ())) <= len(where)
        and one.field.partition("[")[0] not in _NOT_INHERITED
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
        {one.field: 0 for one in reaching} | {one.field: one.topic_count for one in plan.policies},
        frozenset(one.field for one in plan.policies if one.deletes_data),
        list(plan.kafka_calls),
        plan.kafka_calls_omitted,
        is_armed=plan.armed,
        held_topics=plan.held_topic_count,
        incomplete=plan.incomplete,
        caller_view=plan.caller_view,
    )


def _put(entry: entry_pb2.Entry, change: access_pb2.PolicyChange) -> str:
    """Puts the value after a change into an entry; returns the path for the update mask."""
    from resolver.cli.policy_arguments import assign, field_of
    from resolver.entry_fields import policy_key

    key = policy_key(change.field)
    wanted = field_of(key, "set")
    if change.HasField("after"):
        return assign(entry, f"{key}={change.after}", "set").mask
    if wanted.key:
        getattr(entry.policies, wanted.name)[wanted.key].cleared = True
        return wanted.mask
    # A request cannot unset an inherited value; any other value affects the same topics.
    others = ("1", "2") if change.before.isdigit() else ("false", "true")
    return assign(entry, f"{key}={others[change.before == others[0]]}", "set").mask


def with_clusters_below(
    plan: access_pb2.ChangePlan, below: Sequence[ClusterPlan]
) -> access_pb2.ChangePlan:
    """Returns the plan with the counts and calls of the clusters below added; incomplete if one of
    their plans is not known.
    """
    whole = type(plan)()
    whole.CopyFrom(plan)
    for row in whole.policies:
        row.topic_count += sum(one.topics.get(row.field, 0) for one in below)
        row.deletes_data |= any(row.field in one.data_loss for one in below)
        # The row's own count includes clusters mounted deeper, which also inherit the value.
        row.cluster_count = max(row.cluster_count, sum(row.field in one.topics for one in below))
    for one in below:
        whole.kafka_calls.extend(one.calls)
        whole.kafka_calls_omitted += one.calls_omitted
        whole.incomplete |= one.incomplete or one.error is not None
        whole.armed |= one.is_armed
        whole.held_topic_count += one.held_topics
        whole.caller_view |= one.caller_view
    return whole


def armed_summary(
    own: str,
    path: str,
    plan: access_pb2.ChangePlan,
    below: Sequence[ClusterPlan],
    *,
    is_dry_run: bool = False,
) -> str:
    """Returns the effect of a change on Kafka, as text: the number of topics in each cluster. After
    a dry run the text leaves out why a plan is not known, which the caller reports.
    """
    planned = ClusterPlan(
        own,
        path,
        calls=list(plan.kafka_calls),
        calls_omitted=plan.kafka_calls_omitted,
        is_armed=plan.armed,
        held_topics=plan.held_topic_count,
        incomplete=plan.incomplete,
        caller_view=plan.caller_view,
    )
    every = [planned, *below]
    changed = [
        _topics_of(one, len(topics))
        for one in every
        if (topics := {call.resource for call in one.calls})
    ]
    held = [
        f"{_topics_of(one, one.held_topics)} (kdir arm {one.mount} --aspect configs)"
        for one in every
        if one.held_topics
    ]
    # A cluster that ran out of time without finding a call is unknown, not unchanged.
    late = [one for one in every if not one.error and one.incomplete and not one.calls]
    unknown = [
        f"not known: {one.cluster if is_dry_run else failure_text(one.cluster, one.error)}"
        for one in every
        if one.error
    ]
    unknown += [f"not known: {one.cluster} did not answer in time" for one in late if one.mount]
    if changed:
        being = "would be" if is_dry_run else f"{_are(changed)} being"
        text = f"armed: {', '.join(changed)} {being} changed in Kafka"
    elif planned in late and not planned.held_topics:
        return "not known: the time limit was reached before the calls to Kafka were counted"
    elif any(one.is_armed for one in every):
        text = f"armed: {unchanged_text(is_dry_run=is_dry_run)}{' yet' if held else ''}"
    else:
        text = f"not armed: {unchanged_text(is_dry_run=is_dry_run)}"
    waiting = (
        [f"held back until approved, since data may be lost: {', '.join(held)}"] if held else []
    )
    return "; ".join((text, *waiting, *unknown))


def unchanged_text(*, is_dry_run: bool) -> str:
    """Returns the text for a change that has no effect in Kafka."""
    return f"nothing in Kafka {'would change' if is_dry_run else 'changes'}"


def _topics_of(one: ClusterPlan, count: int) -> str:
    least = "at least " if one.is_lower_bound else ""
    return f"{least}{units.plural(count, 'topic')} of {one.cluster}"


def _are(parts: Sequence[str]) -> str:
    return "is" if len(parts) == 1 and parts[0].startswith("1 ") else "are"
