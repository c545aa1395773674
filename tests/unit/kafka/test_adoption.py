"""Adoption as an operator asks for it, and drift, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from kdir.v1 import admin_pb2, entry_pb2

from directory.api.admin_service import adoption_to_proto, drift_to_proto
from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic
from directory.kafka.adoption import adoption
from directory.kafka.adoption.adoption import AdoptionRow
from directory.kafka.adoption.recorded_topics import (
    count_topics,
    pending,
    pending_deletions,
    recorded_at,
    recorded_topics,
)
from directory.kafka.applying.applier import DirtySet
from directory.kafka.applying.desired_configs import ArmedTopics, RecordedTopic
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
    configs_to_write,
    load_applied_configs,
)
from directory.kafka.arming.drift import topic_drift
from directory.kafka.fenced_commits import TopicCommits
from directory.namespace.adoption_mapping import MappingRule, split_on
from directory.namespace.command import (
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateTopic,
    DeleteEntry,
    ObservedTopic,
    RecordObservations,
    TopicObservation,
)
from directory.namespace.entry import DELETED_ID, ROOT_ID, Kind, Policies, Provision, Topic
from directory.namespace.keys import directory_range, entry_key
from directory.store.base import Delete, Write
from directory.store.large_change_records import LargeAdoption, adoptions, rules_from_proto
from directory.store.replica import AppliedCommit
from directory.store.transaction_limits import Limits
from resolver.errors import OutboxFull
from tests.support.trees import Cluster, path


def survey(*names: str, letter: bytes = b"i") -> KafkaMetadata:
    return KafkaMetadata("K", {name: KafkaTopic(name, letter * 16, 2, 1) for name in names})


def adopted(cluster: Cluster, *names: str) -> None:
    for name in names:
        observed = ObservedTopic(
            physical_name=name, topic_id=b"i" * 16, partitions=2, replication_factor=1
        )
        cluster.do(AdoptTopics(topics=(((name,), observed),)))


def reported(rows: list[AdoptionRow]) -> dict[str, tuple[str, str]]:
    return {row.physical_name: (row.action, str(row.path)) for row in rows}


def became(cluster: Cluster, text: str, provision: Provision, **news: Any) -> None:
    entry_id = cluster.topic(text).entry_id
    learnt = TopicObservation(path=path(text), entry_id=entry_id, provision=provision, **news)
    cluster.do(RecordObservations(news=(learnt,)))


class Committed:
    """``TopicCommits``, as far as adoption goes."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.notes: list[str] = []

    def adopt(self, topics: list[tuple[tuple[str, ...], ObservedTopic]]) -> list[str]:
        self.log.append(("adopt", [(one[0], one[1].physical_name) for one in topics]))
        return self.notes

    def put_all(self, writes: list[Write]) -> None:
        assert all(isinstance(write, Delete) for write in writes)
        self.log.append(("forget", len(writes)))

    def record(self, news: list[TopicObservation]) -> None:
        self.log.append(("record", [str(one.path) for one in news]))

    def move(self, moves: Any) -> list[str]:
        self.log.append(("move", [(str(source), str(target)) for source, _, target in moves]))
        return [
            f"{source} cannot be moved to {target}: something stands there"
            for source, _, target in moves
            if target.name == "taken"
        ]


class ClusterWriter:
    """``Writer`` to a cluster in memory, which can refuse."""

    def __init__(self, cluster: Cluster) -> None:
        self.refusal: Exception | None = None
        self._cluster = cluster

    def commit_command(self, command: Command, *, principal: str, **_: object) -> SimpleNamespace:
        if self.refusal is not None:
            raise self.refusal
        plan = self._cluster.do(command, principal=principal)
        return SimpleNamespace(plan=plan, revision=self._cluster.rows.revision)

    def put_facts(self, writes: Sequence[Write], **_: object) -> int:
        cluster = self._cluster
        assert cluster.rows.commit((), writes)
        cluster.snapshot = cluster.snapshot.apply(cluster.rows.revision, writes)
        return cluster.rows.revision


def backlog_of(
    rows: Sequence[AdoptionRow], change: LargeAdoption | None, cluster: Cluster
) -> adoption.AdoptionBacklog:
    mount = cluster.mount
    return adoption.AdoptionBacklog(rows, change, lambda: 0.0, mount, lambda: cluster.mount)


def test_new_known_moved_and_taken_over_topics_are_distinguished_and_done_so() -> None:
    cluster = Cluster("/la")
    adopted(cluster, "x.a", "x.taken", "known")
    cluster.do(CreateTopic(path=path("/la/there")))
    became(cluster, "/la/there", Provision.FAILED)
    rows = adoption.plan(
        (MappingRule.from_fields("x.*", split_on="."),),
        survey("x.a", "x.taken", "known", "there", "new", "__consumer_offsets"),
        cluster.snapshot,
        cluster.mount,
        remap=True,
    )
    assert reported(rows) == {
        "__consumer_offsets": ("ignore", "None"),
        "known": ("keep", "/la/known"),
        "new": ("flat", "/la/new"),
        "there": ("adopt", "/la/there"),
        "x.a": ("move", "/la/x/a"),
        "x.taken": ("move", "/la/x/taken"),
    }
    commits = Committed()
    finished = adoption.carry_out(rows, commits)  # type: ignore[arg-type]
    done = reported(finished)
    assert commits.log == [
        ("adopt", [(("new",), "new")]),
        ("forget", 1),
        ("record", ["/la/there"]),
        ("move", [("/la/x.a", "/la/x/a"), ("/la/x.taken", "/la/x/taken")]),
    ]
    assert done["x.taken"] == ("keep", "/la/x.taken"), "it stays where it was"
    (stays,) = [row for row in finished if row.physical_name == "x.taken"]
    assert stays.message == "it cannot be moved to /la/x/taken: something stands there"
    assert done["x.a"] == ("move", "/la/x/a")


def test_rows_of_topics_that_were_left_out_or_put_elsewhere_say_so() -> None:
    cluster = Cluster("/la")
    rows = adoption.plan((), survey("a", "b", "c"), cluster.snapshot, cluster.mount, remap=False)
    commits = Committed()
    commits.notes = [
        "a is put at /la/__adopted/a: /la/a is taken by topic 'x.a'",
        "b is left out: others changed the same thing 16 times in a row (WRITE_CONFLICT)",
        "/la allows 2 topics below it, 3 used with the adopted topics, which exist in Kafka",
    ]
    finished = adoption.carry_out(rows, commits)  # type: ignore[arg-type]
    assert reported(finished) == {
        "a": ("collides", "/la/__adopted/a"),
        "b": ("ignore", "None"),
        "c": ("flat", "/la/c"),
    }
    assert [row.message for row in finished[:2]] == [
        "/la/a is taken by topic 'x.a'",
        "it is left out: others changed the same thing 16 times in a row (WRITE_CONFLICT)",
    ]


def test_moves_that_the_store_did_not_take_are_made_later() -> None:
    cluster = Cluster("/la")
    adopted(cluster, "x.a")
    rules = (MappingRule.from_fields("x.*", split_on="."),)
    rows = adoption.plan(rules, survey("x.a"), cluster.snapshot, cluster.mount, remap=True)
    writer: Any = ClusterWriter(cluster)
    commits = TopicCommits(writer, Limits(800, 1 << 20), None)
    backlog = backlog_of(rows, None, cluster)
    writer.refusal = OutboxFull("too many changes wait")
    with pytest.raises(OutboxFull):
        backlog.carry_on(commits)
    assert backlog.left == 1
    writer.refusal = None
    assert not backlog.carry_on(commits)
    assert cluster.topic("/la/x/a").physical_name == "x.a"


def test_a_large_adoption_is_the_doing_of_who_asked_for_it() -> None:
    cluster = Cluster("/la")
    adopted(cluster, "x.a")
    rules = (MappingRule.from_fields("x.*", split_on="."),)
    rows = adoption.plan(rules, survey("x.a", "new"), cluster.snapshot, cluster.mount, remap=True)
    change = LargeAdoption(
        change_id="1", mount=cluster.mount, started_at_ms=1, done=0, left=2, principal="User:ben"
    )
    writer: Any = ClusterWriter(cluster)
    commits = TopicCommits(writer, Limits(800, 1 << 20), None)
    assert not backlog_of(rows, change, cluster).carry_on(commits)
    assert cluster.topic("/la/x/a").changed_by == "User:ben"
    assert cluster.topic("/la/new").changed_by == "User:ben"
    # A sweep's is nobody's.
    rows = adoption.plan((), survey("more"), cluster.snapshot, cluster.mount, remap=False)
    backlog_of(rows, None, cluster).carry_on(commits)
    assert cluster.topic("/la/more").changed_by == ""


@pytest.mark.parametrize("is_between", [False, True])
def test_what_is_left_of_a_large_adoption_when_the_mount_moves_is_planned_again(
    is_between: bool,
) -> None:
    cluster = Cluster("/la")
    adopted(cluster, "x.a")
    rules = (MappingRule.from_fields("x.*", split_on="."),)
    rows = adoption.plan(rules, survey("x.a"), cluster.snapshot, cluster.mount, remap=True)
    change = LargeAdoption(change_id="1", mount=cluster.mount, started_at_ms=1, done=0, left=1)
    writer: Any = ClusterWriter(cluster)
    commits = TopicCommits(writer, Limits(800, 1 << 20), None)
    backlog_of(rows, change, cluster).begin(commits)
    moved = iter([path("/la")] if is_between else [])
    cluster.mount = path("/ny")
    backlog = adoption.AdoptionBacklog(
        rows, change, lambda: 0.0, path("/la"), lambda: next(moved, cluster.mount)
    )
    assert not backlog.carry_on(commits)
    assert [one.change_id for one in adoptions(cluster.snapshot)] == ["1"]
    rows = adoption.plan(rules, survey("x.a"), cluster.snapshot, cluster.mount, remap=True)
    assert not backlog_of(rows, change, cluster).carry_on(commits)
    assert cluster.topic("/ny/x/a").physical_name == "x.a"
    assert not adoptions(cluster.snapshot)


def test_kafkas_own_and_half_made_topics_have_no_row() -> None:
    cluster = Cluster("/la")
    shown = {
        "own": KafkaTopic("own", b"i" * 16, 1, 1, internal=True),
        "half": KafkaTopic("half", b"", 0, 0),
    }
    rows = adoption.plan(
        (), KafkaMetadata("K", shown), cluster.snapshot, cluster.mount, remap=False
    )
    assert rows == []


def test_a_replaced_topic_takes_the_new_id_when_an_operator_adopts() -> None:
    cluster = Cluster("/la")
    adopted(cluster, "t")
    became(cluster, "/la/t", Provision.REPLACED)
    (row,) = adoption.plan(
        (), survey("t", letter=b"n"), cluster.snapshot, cluster.mount, remap=False
    )
    assert (row.action, row.message) == (
        "adopt",
        "it was replaced in Kafka; the entry takes the new topic id",
    )
    assert isinstance(row.step, adoption.TakeOverStep)
    assert row.step.news.topic_id == b"n" * 16
    assert row.step.news.provision is Provision.ACTIVE


@pytest.mark.parametrize("is_by_path", [False, True])
def test_an_entry_that_takes_kafkas_topic_has_made_none_of_it(is_by_path: bool) -> None:
    cluster = Cluster("/la")
    cluster.do(CreateTopic(path=path("/la/t")))
    became(cluster, "/la/t", Provision.REPLACED)
    entry_id = cluster.topic("/la/t").entry_id
    of_before = AppliedRecord(MappingProxyType({"retention.ms": AppliedSetting("1")}))
    writer: Any = ClusterWriter(cluster)
    writer.put_facts([configs_to_write(entry_id, of_before)])
    shown = survey("t", letter=b"n")
    if is_by_path:
        seen = adoption.observed(shown.topics["t"])
        cluster.do(CreateTopic(path=path("/la/t"), adopt_existing=seen))
    else:
        rows = adoption.plan((), shown, cluster.snapshot, cluster.mount, remap=False)
        adoption.carry_out(rows, TopicCommits(writer, Limits(800, 1 << 20), None))
    taken = cluster.topic("/la/t")
    assert (taken.entry_id, taken.topic_id, taken.provision.name) == (entry_id, b"n" * 16, "ACTIVE")
    assert taken.adopted
    assert load_applied_configs(cluster.snapshot, entry_id) == AppliedRecord()


def topic(**fields: Any) -> RecordedTopic:
    values: dict[str, Any] = {
        "entry_id": 9,
        "physical_name": "t",
        "topic_id": b"i" * 16,
        "partitions": 2,
        "replication_factor": 1,
        "provision": Provision.ACTIVE,
        "policies": Policies(topic_config={"a": "1"}),
    }
    return RecordedTopic(path("/la/t"), Topic(**(values | fields)))


def test_drift_by_state() -> None:
    (row,) = topic_drift(topic())
    assert (row.field, row.expected, row.actual) == ("config[a]", "1", "(default)")
    (row,) = topic_drift(topic(provision=Provision.MISSING))
    assert (row.field, row.actual) == ("topic_id", "(missing)")
    (row,) = topic_drift(topic(provision=Provision.REPLACED))
    assert row.actual == "(another)"
    (row,) = topic_drift(topic(provision=Provision.REPLACED), survey("t", letter=b"n"))
    assert row.actual == "bm5ubm5ubm5ubm5ubm5ubg"
    assert topic_drift(topic(provision=Provision.PENDING)) == []
    assert topic_drift(topic(provision=Provision.FAILED)) == []
    grown = topic_drift(topic(policies=Policies(partitions=4)), survey("t"))
    assert [(one.field, one.expected, one.actual) for one in grown] == [("partitions", "4", "2")]


def test_topics_are_walked_and_counted_in_every_directory_and_in_none_that_was_removed() -> None:
    cluster = Cluster("/la")
    cluster.do(CreateDirectory(path=path("/la/d/e"), make_parents=True))
    cluster.do(CreateLink(path=path("/la/l"), targets=(path("/ny"),)))
    for text in ("/la/a", "/la/d", "/la/d/b", "/la/d/e/c", "/la/d/e/gone"):
        cluster.do(CreateTopic(path=path(text)))
    for text in ("/la/a", "/la/d/b", "/la/d/e/gone"):
        became(cluster, text, Provision.ACTIVE, topic_id=b"i" * 16, drift_count=2)
    became(cluster, "/la/a", Provision.MISSING)
    cluster.do(DeleteEntry(path=path("/la/d/e/gone")), deletes_in_kafka=True)

    def below(text: str) -> list[str]:
        found = recorded_at(cluster.snapshot, cluster.mount, path(text))
        return sorted(str(one.path) for one in found)

    everything = ["/la/a", "/la/d", "/la/d/b", "/la/d/e/c"]
    assert (
        sorted(str(one.path) for one in recorded_topics(cluster.snapshot, cluster.mount))
        == everything
    )
    assert below("/la") == everything
    assert below("/la/d") == ["/la/d", "/la/d/b", "/la/d/e/c"]
    assert below("/la/a") == ["/la/a"]
    assert below("/la/none/x") == []
    *partly, topic_counts = count_topics(cluster.snapshot, cluster.mount, every=2)
    assert {one.revision for one in partly} == {-1}
    assert (topic_counts.pending, topic_counts.missing, topic_counts.drifting) == (3, 1, 2)
    cluster.do(DeleteEntry(path=path("/la/d"), kind=Kind.DIRECTORY, recursive=True))
    assert below("/la") == ["/la/a", "/la/d"]


def test_S21_topics_that_cannot_be_read_are_left_out_and_the_rest_is_found() -> None:
    cluster = Cluster("/la")
    for name in ("bad", "good", "gone", "kept"):
        cluster.do(CreateTopic(path=path(f"/la/{name}")))
    for name in ("gone", "kept"):
        became(cluster, f"/la/{name}", Provision.ACTIVE, topic_id=b"i" * 16)
        cluster.do(DeleteEntry(path=path(f"/la/{name}")), deletes_in_kafka=True)
    removed = {cluster.codec.physical_names([r])[0]: key for key, r in removed_rows(cluster)}
    bad = entry_key(ROOT_ID, Kind.TOPIC, "bad")
    for key in (bad, removed["gone"]):
        record, revision = cluster.rows.values[key]
        cluster.rows.values[key] = (record[:-3], revision)
    snapshot, mount = cluster.loaded(), cluster.mount

    assert [str(one.path) for one in recorded_topics(snapshot, mount)] == ["/la/good"]
    assert [one.name for one in pending_deletions(snapshot, mount)] == ["kept"]
    assert pending(snapshot, mount, (ROOT_ID, "bad")) is None
    armed = ArmedTopics(snapshot, mount, above=(), assume=ROOT_ID)
    assert armed.at_place((ROOT_ID, "bad")) is None
    assert list(armed.below(ROOT_ID)) == []
    (row,) = adoption.plan((), survey("bad"), snapshot, mount, remap=False)
    assert (row.action, str(row.path)) == ("collides", "/la/__adopted/bad")
    assert row.message == "something exists at /la/bad that cannot be read"
    # An operator removes the record.
    changed, writes = DirtySet(), (Delete(bad),)
    with changed.take_all():
        pass
    assert not changed.note(AppliedCommit(snapshot, snapshot.apply(9, writes), 9, writes, ()))


def removed_rows(cluster: Cluster) -> list[tuple[bytes, bytes]]:
    return list(cluster.rows.under(directory_range(DELETED_ID)).items())


def test_rows_and_rules_cross_the_wire() -> None:
    (rule,) = rules_from_proto(
        [admin_pb2.MappingRule(match="a.*", split_on=".", into="x/y", strip_prefix="a.")]
    )
    assert (rule.match.text, rule.split_on, rule.into, rule.strip_prefix, rule.ignore) == (
        "a.*",
        ".",
        ("x", "y"),
        "a.",
        False,
    )
    assert split_on("") == ()
    sent = adoption_to_proto(AdoptionRow("p", path("/la/p"), 2, "move", "why"))
    assert sent == admin_pb2.Adoption(
        physical_name="p", path="/la/p", rule=2, action="move", message="why"
    )
    assert adoption_to_proto(AdoptionRow("p", None, 0, "ignore")).path == ""
    (row,) = topic_drift(topic())
    drift = drift_to_proto(row)
    assert drift.provision == entry_pb2.PROVISION_ACTIVE
    assert (drift.path, drift.physical_name, drift.field) == ("/la/t", "t", "config[a]")
