"""What a change does to Kafka is stated as what is known of it: no number stands for more."""

from __future__ import annotations

from kdir.v1 import access_pb2, policies_pb2

from resolver.cli.clusters_below import ClusterPlan, armed_summary, with_clusters_below


def calls(*topics: str) -> list[policies_pb2.KafkaCall]:
    return [policies_pb2.KafkaCall(resource=topic, key="retention.ms") for topic in topics]


def test_topics_are_counted_by_cluster() -> None:
    plan = access_pb2.ChangePlan(kafka_calls=calls("a", "a", "b"))
    below = [ClusterPlan("ny", "/ny", calls=calls("c")), ClusterPlan("la", "/la")]
    assert armed_summary("root", plan, below) == (
        "armed: 2 topics of root, 1 topic of ny are being changed in Kafka"
    )
    assert armed_summary("root", access_pb2.ChangePlan(), ()) == (
        "not armed: nothing in Kafka changes"
    )


def test_calls_that_were_left_out_make_it_a_lower_bound() -> None:
    plan = access_pb2.ChangePlan(kafka_calls=calls("a", "b"), kafka_calls_omitted=98)
    assert armed_summary("root", plan, ()) == (
        "armed: at least 2 topics of root are being changed in Kafka"
    )


def test_a_time_limit_is_no_answer() -> None:
    plan = access_pb2.ChangePlan(incomplete=True)
    assert armed_summary("root", plan, ()).startswith("not known: the time limit was reached")
    late = ClusterPlan("ny", "/ny", incomplete=True)
    found = armed_summary("root", access_pb2.ChangePlan(kafka_calls=calls("a")), [late])
    assert found.endswith("; not known: ny did not answer")
    assert with_clusters_below(access_pb2.ChangePlan(), [late]).incomplete
