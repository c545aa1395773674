"""What arming makes of one topic, and who is armed: pure, without a broker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from kdir.v1 import federation_pb2

from directory.federation import inheritance, parent_state
from directory.federation.unloaded_policies import why_inherited_missing
from directory.kafka.admin_contract import ALTER, GROW, KafkaCall
from directory.kafka.applying import config_diff
from directory.kafka.applying.config_diff import (
    ConfigDiffOptions,
    ObservedConfig,
)
from directory.kafka.applying.desired_configs import ArmedTopic, ArmedTopics
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
    ArmedRecord,
    armed_records,
    config_issues,
    configs_to_write,
    count_topics_with_issues,
    load_applied_configs,
    load_armed_record,
)
from directory.kafka.arming.arming import plan_hash
from directory.kafka.arming.releases import inherited_basis
from directory.namespace.command import (
    AdoptTopics,
    CreateDirectory,
    ObservedTopic,
    UpdateEntry,
)
from directory.namespace.entry import ROOT_ID, Policies, Topic
from directory.namespace.keys import INHERITED, PARENT, pushed_key
from directory.namespace.snapshot import Snapshot
from directory.namespace.topic_configs import deletes_data
from directory.store.base import Put
from resolver.path import Path
from tests.support.trees import Cluster, path

LONG, SHORT = "2592000000", "86400000"


def adopted(name: str, *segments: str, **config: str) -> AdoptTopics:
    seen = ObservedTopic(
        physical_name=name,
        topic_id=name.encode().ljust(16, b"\0"),
        partitions=2,
        replication_factor=1,
        config=MappingProxyType(config),
    )
    return AdoptTopics(topics=((segments or (name,), seen),))


def put(cluster: Cluster, where: str, **changes: object) -> None:
    fields = {f"policies.{key.replace('__', '.')}": value for key, value in changes.items()}
    cluster.do(UpdateEntry(path=path(where), changes=fields))


def retention(cluster: Cluster, where: str, value: str | None) -> None:
    cluster.do(UpdateEntry(path=path(where), changes={"policies.topic_config.retention.ms": value}))


def armed_at(cluster: Cluster, above: tuple[Policies, ...] = (), assume: int = 0) -> list[str]:
    found = ArmedTopics(cluster.snapshot, cluster.mount, above, assume).below(ROOT_ID)
    return [str(one.path) for one in found]


def only(
    cluster: Cluster, above: tuple[Policies, ...] = (), *, is_released: bool = True
) -> ArmedTopic:
    (found,) = ArmedTopics(cluster.snapshot, cluster.mount, above, ROOT_ID).below(ROOT_ID)
    return dataclasses.replace(found, released=is_released)


def found(partitions: int = 2, **config: str) -> ObservedConfig:
    return ObservedConfig(
        {key.replace("_", "."): value for key, value in config.items()}, partitions
    )


def pushed(desired: str, **fields: object) -> AppliedRecord[str]:
    known = AppliedSetting(desired, ours=True)
    changed = dataclasses.replace(known, **fields)  # type: ignore[arg-type]
    return AppliedRecord(MappingProxyType({"retention.ms": changed}))


def cluster_with_topic() -> Cluster:
    cluster = Cluster()
    cluster.do(adopted("t"))
    return cluster


def values(calls: tuple[KafkaCall, ...]) -> list[tuple[str, str | None, str | None]]:
    return [(one.key, one.before, one.after) for one in calls]


# -- who is armed ----------------------------------------------------------------------------------


def test_the_nearest_setting_of_the_own_cluster_arms() -> None:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=path("/la/d/off"), make_parents=True))
    cluster.do(adopted("a", "d", "a"), adopted("b", "d", "off", "b"), adopted("c", "c"))
    assert armed_at(cluster) == []
    put(cluster, "/la/d", manage__configs=True)
    assert armed_at(cluster) == ["/la/d/a", "/la/d/off/b"]
    put(cluster, "/la/d/off", manage__configs=False)
    assert armed_at(cluster) == ["/la/d/a"]
    # Above the mount somebody read a plan that was not about this cluster's Kafka.
    above = (Policies(manage=MappingProxyType({"configs": True})),)
    assert armed_at(cluster, above) == ["/la/d/a"]
    assert armed_at(cluster, assume=ROOT_ID) == ["/la/c", "/la/d/a"]


def test_a_topic_is_armed_by_itself_and_those_that_say_nothing_are_not_even_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.do(*(adopted(name, "d", name) for name in ("a", "b", "c", "configs")))
    put(cluster, "/la/d/b", manage__configs=True)
    read: list[str] = []
    topic = Snapshot.topic

    def noted(snapshot: Snapshot, parent_id: int, name: str) -> Topic | None:
        read.append(name)
        return topic(snapshot, parent_id, name)

    monkeypatch.setattr(Snapshot, "topic", noted)
    assert armed_at(cluster) == ["/la/d/b"]
    assert read == ["b", "configs"]


def test_a_subject_has_what_is_inherited_from_above_the_mount_and_its_own() -> None:
    cluster = cluster_with_topic()
    above = (Policies(topic_config={"retention.ms": LONG, "flush.ms": "1"}, partitions=6),)
    retention(cluster, "/la/t", SHORT)
    one = only(cluster, above)
    assert dict(one.configs) == {"retention.ms": SHORT, "flush.ms": "1"}
    assert one.partitions == 2, "what is inherited is for new topics"
    place = ArmedTopics(cluster.snapshot, cluster.mount, above, ROOT_ID).at_place(one.place)
    assert place == dataclasses.replace(one, released=False)


# -- what follows ----------------------------------------------------------------------------------


def test_a_request_is_recorded_once_and_what_is_none_is_left_alone() -> None:
    cluster = cluster_with_topic()
    retention(cluster, "/la", LONG)
    verdict = config_diff.diff_configs(only(cluster), found(flush_ms="5"))
    assert values(verdict.calls) == [("retention.ms", None, LONG)]
    assert verdict.configs == {"flush.ms": "5", "retention.ms": LONG}
    again = config_diff.diff_configs(
        only(cluster), ObservedConfig(verdict.configs, 2), verdict.done
    )
    assert (again.calls, again.done) == ((), verdict.done)
    assert not config_diff.needs_check(
        dataclasses.replace(
            only(cluster),
            topic=dataclasses.replace(only(cluster).topic, observed_config=verdict.configs),
        ),
        verdict.done,
        ConfigDiffOptions(),
    )


@pytest.mark.parametrize(
    ("kafka", "known", "calls"),
    [
        (LONG, pushed(LONG), [("retention.ms", LONG, None)]),
        (LONG, pushed(LONG, ours=False), []),
        (SHORT, pushed(LONG), []),
        (LONG, AppliedRecord(), []),
    ],
    ids=["ours", "as it was", "somebody else's by now", "never wished"],
)
def test_what_nobody_desires_any_more_goes_only_where_it_is_ours(
    kafka: str, known: AppliedRecord[str], calls: list[tuple[str, str | None, str | None]]
) -> None:
    verdict = config_diff.diff_configs(only(cluster_with_topic()), found(retention_ms=kafka), known)
    assert values(verdict.calls) == calls
    assert verdict.done == AppliedRecord()


@pytest.mark.parametrize(
    ("kafka", "known", "calls"),
    [
        (LONG, pushed(LONG), [("retention.ms", LONG, None)]),
        (LONG, pushed(LONG, ours=False), []),
        ("-1", pushed(LONG), []),
    ],
    ids=["ours", "as it was", "another client's by now"],
)
def test_what_kdir_set_before_a_change_that_was_not_made_is_taken_back_too(
    kafka: str, known: AppliedRecord[str], calls: list[tuple[str, str | None, str | None]]
) -> None:
    """Kafka refused the change, or the process ended before it was asked; perhaps more than one."""
    cluster = cluster_with_topic()
    have = found(retention_ms=kafka)
    for desired in (SHORT, SHORT, "3600000"):
        retention(cluster, "/la", desired)
        known = config_diff.diff_configs(only(cluster), have, known).asked
    write = configs_to_write(7, known)
    assert isinstance(write, Put)
    known = load_applied_configs(with_facts(cluster, write), 7)
    retention(cluster, "/la", None)
    unset = config_diff.diff_configs(only(cluster), have, known)
    assert values(unset.calls) == calls
    assert unset.done == AppliedRecord()


def test_what_kdir_set_before_is_not_taken_for_its_own_once_kafka_has_the_change() -> None:
    cluster = cluster_with_topic()
    retention(cluster, "/la", SHORT)
    known = config_diff.diff_configs(only(cluster), found(retention_ms=LONG), pushed(LONG)).done
    retention(cluster, "/la", None)
    assert not config_diff.diff_configs(only(cluster), found(retention_ms=LONG), known).calls


def test_what_was_asked_and_is_not_known_is_asked_again_and_is_nobodys_doing() -> None:
    cluster = cluster_with_topic()
    retention(cluster, "/la", LONG)
    known = pushed(LONG, done=False)
    verdict = config_diff.diff_configs(only(cluster), found(retention_ms=SHORT), known)
    assert values(verdict.calls) == [("retention.ms", SHORT, LONG)]
    assert verdict.done.settings["retention.ms"].put_back == 0


def test_partitions_only_grow_and_a_topics_own_number_holds() -> None:
    cluster = cluster_with_topic()
    put(cluster, "/la", partitions=9)
    put(cluster, "/la/t", partitions=5)
    verdict = config_diff.diff_configs(only(cluster), found(2))
    assert verdict.calls == (KafkaCall(GROW, "t", "partitions", "2", "5"),)
    assert config_diff.diff_configs(only(cluster), found(9)).calls == ()
    put(cluster, "/la/t", partitions=2)
    assert config_diff.diff_configs(only(cluster), found(2)).calls == ()


@pytest.mark.parametrize(
    ("name", "before", "after", "deletes"),
    [
        ("retention.ms", LONG, SHORT, True),
        ("retention.ms", SHORT, LONG, False),
        ("retention.ms", "-1", LONG, True),
        ("retention.ms", LONG, "-1", False),
        ("retention.ms", None, LONG, True),
        ("retention.ms", None, "-1", False),
        ("retention.ms", LONG, None, True),
        ("retention.bytes", "100", "99", True),
        ("cleanup.policy", "compact", "delete", True),
        ("cleanup.policy", "compact,delete", "compact", False),
        ("cleanup.policy", "delete", "compact,delete", True),
        ("cleanup.policy", "delete", "delete", False),
        ("segment.ms", "9", "1", False),
        ("delete.retention.ms", "9", "1", True),
        ("delete.retention.ms", "1", "9", False),
        ("max.compaction.lag.ms", None, "9", True),
        ("min.compaction.lag.ms", "9", "1", True),
        ("message.timestamp.type", "CreateTime", "LogAppendTime", False),
        ("unclean.leader.election.enable", "false", "true", True),
        ("unclean.leader.election.enable", None, "TRUE", True),
        ("unclean.leader.election.enable", "false", None, True),
        ("unclean.leader.election.enable", "true", None, False),
        ("unclean.leader.election.enable", None, "false", False),
        ("remote.log.delete.on.disable", "false", "true", True),
        ("remote.storage.enable", "true", "false", True),
        ("remote.storage.enable", "false", "true", False),
    ],
)
def test_what_may_delete_data(
    name: str, before: str | None, after: str | None, deletes: bool
) -> None:
    assert deletes_data(name, before, after) is deletes


@pytest.mark.parametrize(
    "rules",
    [
        ConfigDiffOptions(),
        ConfigDiffOptions(revert_external_changes=True),
        ConfigDiffOptions(repeated=True),
    ],
)
def test_what_deletes_data_or_cannot_be_taken_back_waits_until_the_topic_is_released(
    rules: ConfigDiffOptions,
) -> None:
    cluster = cluster_with_topic()
    retention(cluster, "/la", SHORT)
    put(cluster, "/la/t", partitions=5)
    cluster.do(UpdateEntry(path=path("/la"), changes={"policies.topic_config.flush.ms": "9"}))
    unreleased = only(cluster, is_released=False)
    held = config_diff.diff_configs(unreleased, found(retention_ms=LONG), AppliedRecord(), rules)
    assert values(held.calls) == [("flush.ms", None, "9")]
    assert held.done.held == {"retention.ms", "partitions"}
    kafka = ObservedConfig(held.configs, 2)
    assert config_diff.diff_configs(unreleased, kafka, held.done, rules).calls == ()
    released = config_diff.diff_configs(only(cluster), kafka, held.done, rules)
    assert values(released.calls) == [("retention.ms", LONG, SHORT), ("partitions", "2", "5")]
    assert released.done.held == frozenset()
    # Once it would not delete any more, it waits no longer.
    retention(cluster, "/la", "-1")
    longer = config_diff.diff_configs(only(cluster, is_released=False), kafka, held.done, rules)
    assert values(longer.calls) == [("retention.ms", LONG, "-1")]


# -- plans -----------------------------------------------------------------------------------------


def test_a_plan_hash_depends_on_the_path_the_aspect_and_each_call() -> None:
    call = KafkaCall(ALTER, "t", "retention.ms", None, LONG)
    names = {
        plan_hash(path("/la"), "configs", [call]),
        plan_hash(path("/la/d"), "configs", [call]),
        plan_hash(path("/la"), "create", [call]),
        plan_hash(path("/la"), "configs", [dataclasses.replace(call, before="")]),
        plan_hash(path("/la"), "configs", [call, call]),
        plan_hash(path("/la"), "configs", []),
    }
    assert len(names) == 6
    assert plan_hash(path("/la"), "configs", [call]) == "cb6629c2e13e"


# -- what is kept ----------------------------------------------------------------------------------


def with_facts(cluster: Cluster, *writes: Put) -> Snapshot:
    assert cluster.rows.commit((), writes)
    cluster.snapshot = cluster.snapshot.apply(cluster.rows.revision, writes)
    return cluster.snapshot


def test_records_come_back_as_they_were() -> None:
    known = AppliedRecord(
        MappingProxyType(
            {"retention.ms": AppliedSetting(LONG, ours=True, done=False, put_back=2, was=SHORT)}
        ),
        frozenset({"flush.ms"}),
        frozenset({"retention.ms"}),
        refused="no",
        refused_calls="abc",
    )
    write = configs_to_write(77, known)
    assert isinstance(write, Put)
    snapshot = with_facts(Cluster(), write)
    assert load_applied_configs(snapshot, 77) == known
    assert load_applied_configs(snapshot, 78) == AppliedRecord()
    assert count_topics_with_issues(snapshot) == (1, 1)
    assert config_issues(snapshot, 77) == {"retention.ms": "rejected", "flush.ms": "needs-approval"}
    mark = ArmedRecord(aspect="configs", entry_id=9, plan="p", place=(3, "t"), basis="b")
    snapshot = with_facts(Cluster(), mark.to_put())
    assert (load_armed_record(snapshot, "configs", 9), armed_records(snapshot, "configs")) == (
        mark,
        [mark],
    )
    assert armed_records(snapshot, "create") == []


def test_a_record_that_cannot_be_read_is_an_error_and_a_mark_releases_nothing() -> None:
    cluster = Cluster()
    with_facts(cluster, Put(pushed_key(5), b"{"))
    with pytest.raises(ValueError, match="no record"):
        load_applied_configs(cluster.snapshot, 5)
    mark = ArmedRecord(aspect="configs", entry_id=9, plan="p")
    snapshot = with_facts(cluster, Put(mark.key, b"newer"))
    (known,) = armed_records(snapshot, "configs")
    assert (known.pending, known.basis) == (False, "")


def test_P16_records_and_effective_policies_are_values() -> None:
    cluster = cluster_with_topic()
    retention(cluster, "/la", LONG)
    before, one = cluster.snapshot, only(cluster)
    verdict = config_diff.diff_configs(one, found(), AppliedRecord())
    retention(cluster, "/la", SHORT)
    (then,) = ArmedTopics(before, cluster.mount, (), ROOT_ID).below(ROOT_ID)
    assert dataclasses.replace(then, released=True) == one
    assert dict(one.configs) == {"retention.ms": LONG}
    maps: list[Mapping[str, object]] = [verdict.done.settings, verdict.configs]
    for each in maps:
        with pytest.raises(TypeError):
            each["x"] = "y"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.done.refused = "x"  # type: ignore[misc]


# -- what is inherited -----------------------------------------------------------------------------


def reported(cluster: Cluster, incarnation: str, **values: str) -> Snapshot:
    level = federation_pb2.InheritedLevel(path="/")
    for key, value in values.items():
        level.policies.topic_config[key].value = value
    output = federation_pb2.Inherited(levels=[level], revision=1, incarnation=incarnation)
    welcome = federation_pb2.Welcome(parent_cluster_id="kc-root", mount="/la", parent_mount="/")
    writes = [
        *parent_state.welcome_writes(cluster.snapshot, welcome, 1),
        *inheritance.inherited_writes(cluster.snapshot, output, 1),
    ]
    return with_facts(cluster, *(one for one in writes if isinstance(one, Put)))


def test_P3_not_received_is_not_empty() -> None:
    cluster = Cluster()
    assert why_inherited_missing(cluster.snapshot, has_parent=False) == ""
    assert "no parent has sent" in why_inherited_missing(cluster.snapshot, has_parent=True)
    welcomed = with_facts(cluster, Put(PARENT, b"x"))
    assert "no parent has sent" in why_inherited_missing(welcomed, has_parent=False)
    assert why_inherited_missing(reported(Cluster(), "one"), has_parent=True) == ""
    unreadable = with_facts(Cluster(), Put(INHERITED, b"\xff"))
    assert "unreadable" in why_inherited_missing(unreadable, has_parent=False)


def test_the_basis_is_of_incarnations_and_mounts_and_not_of_what_is_set() -> None:
    mount = Path.parse("/la")
    one = inherited_basis(reported(Cluster(), "one", owner="x"), mount)
    assert inherited_basis(reported(Cluster(), "one", owner="y"), mount) == one
    others = {
        inherited_basis(reported(Cluster(), "two"), mount),
        inherited_basis(reported(Cluster(), "one"), Path.parse("/ny")),
        inherited_basis(Cluster().snapshot, mount),
    }
    assert len(others | {one}) == 4
