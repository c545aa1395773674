"""Drift: below armed directories from all that holds there, elsewhere from own settings."""

from __future__ import annotations

from types import MappingProxyType

from kdir.v1 import federation_pb2

from directory.federation import inheritance, parent_state
from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic
from directory.kafka.adoption import recorded_topics
from directory.kafka.adoption.metadata_diff import diff_metadata
from directory.kafka.applying.desired_configs import is_under_way
from directory.kafka.applying.last_applied import AppliedRecord, AppliedSetting, configs_to_write
from directory.kafka.arming.drift import topic_drift
from directory.namespace.command import CreateDirectory, RecordObservations
from directory.namespace.entry import Policies
from directory.store.base import Put
from directory.wire.entry_codec import policies_to_proto
from tests.support.trees import Cluster, path
from tests.unit.kafka.test_arming import LONG, SHORT, adopted, put, retention


def drift(cluster: Cluster, where: str = "/la") -> list[tuple[str, str, str, str]]:
    found = recorded_topics.recorded_at(cluster.snapshot, cluster.mount, path(where))
    rows = [row for one in found for row in topic_drift(one)]
    return sorted((str(row.path), row.field, row.expected, row.actual) for row in rows)


def inherit(cluster: Cluster, **values: str) -> None:
    configs = {key.replace("_", "."): value for key, value in values.items()}
    level = federation_pb2.InheritedLevel(
        path="/", policies=policies_to_proto(Policies(topic_config=MappingProxyType(configs)))
    )
    output = federation_pb2.Inherited(levels=[level], revision=5, incarnation="one")
    report(cluster, *inheritance.inherited_writes(cluster.snapshot, output, 1))


def report(cluster: Cluster, *writes: object) -> None:
    puts = [write for write in writes if isinstance(write, Put)]
    assert cluster.rows.commit((), puts)
    cluster.snapshot = cluster.snapshot.apply(cluster.rows.revision, puts)


def planted() -> Cluster:
    """Returns a cluster in which /la/on is armed, and /la/on/off below it and /la/far are not."""
    cluster = Cluster()
    cluster.do(CreateDirectory(path=path("/la/on/off"), make_parents=True))
    cluster.do(
        adopted("a", "on", "a"),
        adopted("b", "on", "b", **{"retention.ms": LONG}),
        adopted("x", "on", "off", "x"),
        adopted("far", "far"),
    )
    put(cluster, "/la/on", manage__configs=True)
    put(cluster, "/la/on/off", manage__configs=False)
    return cluster


def test_what_is_inherited_counts_where_it_is_armed() -> None:
    cluster = planted()
    retention(cluster, "/la", LONG)
    assert drift(cluster) == [("/la/on/a", "config[retention.ms]", LONG, "(default)")]
    retention(cluster, "/la/far", SHORT)
    retention(cluster, "/la/on/b", SHORT)
    assert drift(cluster) == [
        ("/la/far", "config[retention.ms]", SHORT, "(default)"),
        ("/la/on/a", "config[retention.ms]", LONG, "(default)"),
        ("/la/on/b", "config[retention.ms]", SHORT, LONG),
    ]
    assert drift(cluster, "/la/on/b") == [("/la/on/b", "config[retention.ms]", SHORT, LONG)]
    put(cluster, "/la/far", manage__configs=True)
    retention(cluster, "/la/far", None)
    assert ("/la/far", "config[retention.ms]", LONG, "(default)") in drift(cluster)


def test_what_is_inherited_from_above_the_mount_counts_too() -> None:
    cluster = planted()
    inherit(cluster, retention_ms=LONG, flush_ms="5")
    assert drift(cluster) == [
        ("/la/on/a", "config[flush.ms]", "5", "(default)"),
        ("/la/on/a", "config[retention.ms]", LONG, "(default)"),
        ("/la/on/b", "config[flush.ms]", "5", "(default)"),
    ]
    # Armed above the mount is not armed here.
    assert not drift(cluster, "/la/far")
    report(cluster, Put(parent_state.INHERITED_KEY, b"\0" * 8 + b"\xff\xff"))
    assert not drift(cluster), "what cannot be read is not known, and so is no wish"


def test_inherited_partitions_are_no_drift_and_a_topics_own_number_is_exact() -> None:
    cluster = planted()
    put(cluster, "/la/on", partitions=4)
    put(cluster, "/la/on/b", partitions=1)
    assert drift(cluster) == [
        ("/la/on/b", "partitions", "1", "2"),
    ]


def test_a_sweep_counts_what_was_pushed_and_not_what_is_to_be() -> None:
    cluster = planted()
    retention(cluster, "/la", LONG)

    def counted() -> int:
        seen = {
            name: KafkaTopic(name, name.encode().ljust(16, b"\0"), 2, 1)
            for name in ("a", "b", "x", "far")
        }
        found = diff_metadata(
            recorded_topics.recorded_topics(cluster.snapshot, cluster.mount),
            KafkaMetadata("kafka", seen),
            pinned="kafka",
            under_way=lambda one: is_under_way(cluster.snapshot, one.topic, one.desired_config),
        )
        if found.news:
            cluster.do(RecordObservations(news=found.news))
        return cluster.topic("/la/on/a").drift_count

    assert counted() == 0, "its turn has not come yet"
    a = cluster.topic("/la/on/a").entry_id
    for pushed in (
        AppliedRecord(MappingProxyType({"retention.ms": AppliedSetting(LONG, ours=True)})),
        AppliedRecord(held=frozenset({"retention.ms"})),
        AppliedRecord(refused="no", refused_calls="x"),
    ):
        write = configs_to_write(a, pushed)
        report(cluster, write)
        assert counted() == 1, pushed
    retention(cluster, "/la", None)
    assert counted() == 0
