"""What a change does to Kafka is stated as what is known of it: no number stands for more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kdir.v1 import access_pb2, federation_pb2, policies_pb2

from resolver import errors
from resolver.cli.clusters_below import (
    ClusterPlan,
    armed_summary,
    clusters_below,
    failure_text,
    plans_below,
    with_clusters_below,
)
from resolver.confirmation import irreversible_effect


def calls(*topics: str) -> list[policies_pb2.KafkaCall]:
    return [policies_pb2.KafkaCall(resource=topic, key="retention.ms") for topic in topics]


def test_topics_are_counted_by_cluster() -> None:
    plan = access_pb2.ChangePlan(kafka_calls=calls("a", "a", "b"))
    below = [ClusterPlan("ny", "/ny", calls=calls("c")), ClusterPlan("la", "/la")]
    assert armed_summary("root", "/", plan, below) == (
        "armed: 2 topics of root, 1 topic of ny are being changed in Kafka"
    )
    assert armed_summary("root", "/", access_pb2.ChangePlan(), ()) == (
        "not armed: nothing in Kafka changes"
    )
    assert armed_summary("root", "/", access_pb2.ChangePlan(armed=True), ()) == (
        "armed: nothing in Kafka changes"
    )


def test_a_dry_run_is_shown_as_what_would_be() -> None:
    plan = access_pb2.ChangePlan(kafka_calls=calls("a"), armed=True)
    below = [ClusterPlan("ny", "/ny", is_armed=True, held_topics=2)]
    assert armed_summary("la", "/la", plan, below, is_dry_run=True) == (
        "armed: 1 topic of la would be changed in Kafka; held back until approved, since data may "
        "be lost: 2 topics of ny (kdir arm /ny --aspect configs)"
    )
    assert armed_summary("la", "/la", access_pb2.ChangePlan(), below[:0], is_dry_run=True) == (
        "not armed: nothing in Kafka would change"
    )


def test_calls_that_were_left_out_make_it_a_lower_bound() -> None:
    plan = access_pb2.ChangePlan(kafka_calls=calls("a", "b"), kafka_calls_omitted=98)
    assert armed_summary("root", "/", plan, ()) == (
        "armed: at least 2 topics of root are being changed in Kafka"
    )


def test_a_time_limit_is_no_answer() -> None:
    plan = access_pb2.ChangePlan(incomplete=True)
    assert armed_summary("root", "/", plan, ()).startswith("not known: the time limit was reached")
    late = ClusterPlan("ny", "/ny", incomplete=True)
    found = armed_summary("root", "/", access_pb2.ChangePlan(kafka_calls=calls("a")), [late])
    assert found.endswith("; not known: ny did not answer in time")
    assert with_clusters_below(access_pb2.ChangePlan(), [late]).incomplete


def test_what_is_held_back_is_not_shown_as_unarmed() -> None:
    below = [ClusterPlan("ny", "/ny", is_armed=True, held_topics=2)]
    assert armed_summary("root", "/", access_pb2.ChangePlan(), below) == (
        "armed: nothing in Kafka changes yet; held back until approved, since data may be lost: "
        "2 topics of ny (kdir arm /ny --aspect configs)"
    )
    plan = access_pb2.ChangePlan(armed=True, kafka_calls=calls("a"), held_topic_count=1)
    assert armed_summary("la", "/la/x", plan, ()) == (
        "armed: 1 topic of la is being changed in Kafka; held back until approved, since data may "
        "be lost: 1 topic of la (kdir arm /la/x --aspect configs)"
    )


def test_what_a_caller_may_not_describe_makes_it_a_lower_bound() -> None:
    plan = access_pb2.ChangePlan(kafka_calls=calls("a", "b"), caller_view=True)
    assert armed_summary("la", "/la", plan, ()) == (
        "armed: at least 2 topics of la are being changed in Kafka"
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.PermissionDenied("User:bob may not ALTER_CONFIGS /ny"), "ny denied it: User:bob"),
        (errors.Absent("/ny does not exist"), "ny denied it: /ny"),
        (errors.Unreachable("no server answered"), "ny did not answer: no server"),
        (errors.DeadlineExceeded("5 s were over"), "ny did not answer: 5 s"),
        (errors.ReadOnly("/ny is read-only"), "ny refused it: /ny is"),
    ],
)
def test_a_cluster_that_denies_is_not_one_that_does_not_answer(
    error: errors.KdirError, text: str
) -> None:
    unknown = [ClusterPlan("ny", "/ny", error=error)]
    found = armed_summary("root", "/", access_pb2.ChangePlan(), unknown)
    assert f"; not known: {text}" in found


def test_a_cluster_without_an_answer_makes_the_whole_plan_a_lower_bound() -> None:
    plan = access_pb2.ChangePlan()
    plan.policies.add(field="owner", after="x", topic_count=9, cluster_count=1)
    away = ClusterPlan("ny", "/la/ny", error=errors.Unreachable("no server answered"))
    assert with_clusters_below(plan, [away]).incomplete
    assert not with_clusters_below(plan, [ClusterPlan("ny", "/la/ny")]).incomplete
    # The reason is on a line of its own.
    assert armed_summary("la", "/la", plan, [away], is_dry_run=True) == (
        "not armed: nothing in Kafka would change; not known: ny"
    )


def test_clusters_mounted_in_clusters_below_are_counted_and_so_are_their_topics() -> None:
    plan = access_pb2.ChangePlan()
    plan.policies.add(field="owner", after="x", cluster_count=1)
    below = [ClusterPlan("la", "/la", {"owner": 0}), ClusterPlan("la-x", "/la/x", {"owner": 3})]
    (row,) = with_clusters_below(plan, below).policies
    assert (row.cluster_count, row.topic_count) == (2, 3)


def test_what_may_delete_data_cannot_be_undone_and_what_disarms_can() -> None:
    losing = [*calls("a"), *calls("b")]
    for one in losing:
        one.deletes_data, one.before = True, "2"
    effect = irreversible_effect(access_pb2.ChangePlan(kafka_calls=losing))
    assert effect == (
        "change retention.ms of 2 topics", "Kafka may delete data, which cannot be undone"
    )  # fmt: skip
    assert irreversible_effect(access_pb2.ChangePlan(kafka_calls=calls("a"))) is None
    row = access_pb2.PolicyChange(field="topic_config[retention.ms]", deletes_data=True)
    unarmed = access_pb2.ChangePlan(policies=[row])
    assert irreversible_effect(unarmed) is None
    hidden = access_pb2.ChangePlan(policies=[row], armed=True, caller_view=True)
    assert irreversible_effect(hidden) == (
        "change retention.ms of topics that were not all counted",
        "Kafka may delete data, which cannot be undone",
    )
    unknown = irreversible_effect(unarmed, ["ny"])
    assert unknown == (
        "change retention.ms of topics of ny, which did not answer",
        "Whether Kafka deletes data there is not known",
    )
    for one in losing:
        one.ClearField("before")
    effect = irreversible_effect(access_pb2.ChangePlan(kafka_calls=losing))
    assert effect is not None
    assert effect[1].endswith("replaces the broker's default, which is not known")
    row.field = "manage[acls]"
    row.deletes_data = False
    assert irreversible_effect(access_pb2.ChangePlan(policies=[row]), ["ny"]) is None


def test_what_an_incomplete_list_of_mounts_may_lack_is_unknown_and_not_left_out() -> None:
    listed = federation_pb2.ListMountsResponse()
    for cluster, mount in (("root", "/"), ("la", "/la"), ("ny", "/ny")):
        identity = listed.authorities.add().cluster
        identity.cluster_id, identity.cluster, identity.mount = f"kc-{cluster}", cluster, mount
        listed.incomplete_cluster_ids.append(identity.cluster_id)
    missing: list[str] = []
    resolver = SimpleNamespace(call=lambda *_: listed)
    session: Any = SimpleNamespace(resolver=resolver, missing=missing.append)
    change = access_pb2.PolicyChange(field="owner", after="x", cluster_count=1)
    (plan,) = plans_below(session, "/la/p", [change])
    assert with_clusters_below(access_pb2.ChangePlan(), [plan]).incomplete
    assert failure_text(plan.cluster, plan.error or errors.NoRoute("")) == (
        "any other cluster mounted in la (kc-la) did not answer: the list of its mounts is "
        "incomplete"
    )
    assert missing == []
    assert clusters_below(session, "/la/p") == []
    assert missing == [
        "mounts of la (kc-la): the list is incomplete, other clusters may be mounted there"
    ]
    assert len(plans_below(session, "/", [change])) == 3
