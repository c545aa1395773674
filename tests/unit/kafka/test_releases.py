"""Which topics are released, over a reconciler, a store and a Kafka in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import pytest

from directory.kafka.admin_contract import (
    KafkaTopic,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Still,
    Succeeded,
    TopicToCreate,
    always,
)
from directory.kafka.adoption import pinned_kafka
from directory.kafka.adoption.pinned_kafka import MANAGED_ELSEWHERE
from directory.kafka.adoption.vanish_guard import StopReason
from directory.kafka.applying.last_applied import config_issues
from directory.namespace.command import CreateDirectory, MoveEntry, UpdateEntry
from directory.namespace.entry import Kind
from resolver.errors import (
    AboveCeiling,
    EtagMismatch,
    KafkaUnavailable,
    NotReady,
    StoreUnavailable,
)
from tests.support.reconciler import MOUNT, World, begin_arming, world
from tests.unit.kafka.test_config_applier import (
    DAY,
    MONTH,
    WEEK,
    SlowKafka,
    retention,
)

CEILING = frozenset({"configs", "create", "delete"})


@pytest.fixture
def kafka() -> SlowKafka:
    return Makes("d.a", "d.b")


@pytest.fixture
def here(kafka: SlowKafka, tmp_path: FilePath) -> Iterator[World]:
    """Yields two topics in a directory that is armed as a whole; nothing is wished of them yet."""
    with world(tmp_path / "s.db", lambda: kafka, ceiling=CEILING, split_on=".") as made:
        made.sweep()
        arm(made)
        yield made


class Makes(SlowKafka):
    """Also makes topics, and says what it is told to say of that."""

    answer: Outcome = Succeeded()

    def create(
        self, desired_set: Sequence[TopicToCreate], still: Still = always
    ) -> Mapping[str, Outcome]:
        outcomes = super().create(desired_set, still)
        for desired in desired_set:
            self.truth[desired.name] = dict(desired.config)
        return {
            name: self.answer if isinstance(one, Succeeded) else one
            for name, one in outcomes.items()
        }


def arm(here: World, *below: str) -> None:
    begin_arming(here, *below)
    here.settle(1_000)


def another_client_makes(here: World, kafka: SlowKafka, name: str, value: str = MONTH) -> None:
    kafka.topics.pop(name, None)
    kafka.add(name)
    kafka.topics[name] = KafkaTopic(name, (100 + len(kafka.altered)).to_bytes(16, "big"), 1, 1)
    kafka.truth[name] = {"retention.ms": value}
    here.sweep()
    here.settle(1_000)


def value(kafka: SlowKafka, name: str) -> str | None:
    return kafka.truth[name].get("retention.ms")


def waits(here: World, path: str) -> bool:
    entry_id = here.topics()[path].entry_id
    return config_issues(here.replica.snapshot, entry_id) == {"retention.ms": "needs-approval"}


# -- what is remembered ----------------------------------------------------------------------------


def test_of_plans_only_calls_and_names_are_remembered_and_the_oldest_go_first(
    here: World, kafka: SlowKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("directory.kafka.arming.arming._REMEMBERED", 5)
    arming_service, plans = here.reconciler.arming_service, list[str]()
    for days in (DAY, WEEK, MONTH):  # of two calls each
        retention(here, days, "d")
        plans.append(arming_service.plan(MOUNT, "configs").plan)
    another_client_makes(here, kafka, "d.late")
    messages = []
    for plan in plans:
        with pytest.raises(EtagMismatch) as refused:
            arming_service.arm(MOUNT, "configs", plan)
        messages.append(refused.value.message)
    assert ["retention.ms" in one for one in messages] == [False, True, True]
    assert "outdated: it would make 0 calls now" in messages[0]


# -- what comes later ------------------------------------------------------------------------------


def test_a_topic_that_comes_while_a_plan_is_carried_out_is_not_one_that_it_names(
    here: World, kafka: SlowKafka
) -> None:
    retention(here, WEEK)
    here.settle(1_000)
    retention(here, DAY, "d")
    begin_arming(here)
    another_client_makes(here, kafka, "d.late")
    assert (value(kafka, "d.a"), value(kafka, "d.late")) == (DAY, MONTH)
    assert waits(here, "d/late")
    assert here.reconciler.status().needs_approval_count == 1
    arm(here)
    assert value(kafka, "d.late") == DAY
    assert here.reconciler.status().needs_approval_count == 0


def test_a_plan_that_would_name_other_topics_by_now_is_another_one(
    here: World, kafka: SlowKafka
) -> None:
    arming_service = here.reconciler.arming_service
    plan = arming_service.plan(MOUNT, "configs")
    assert plan.calls == ()
    another_client_makes(here, kafka, "d.late")
    with pytest.raises(EtagMismatch, match=r"d\.late came"):
        arming_service.arm(MOUNT, "configs", plan.plan)
    retention(here, DAY)
    here.settle(1_000)
    assert value(kafka, "d.late") == MONTH


def test_a_plan_without_the_configs_of_a_topic_is_none(here: World, kafka: SlowKafka) -> None:
    """It would release changes of the topic that nobody read."""
    another_client_makes(here, kafka, "d.late")
    retention(here, DAY)
    kafka.without_configs.add("d.late")
    arming_service = here.reconciler.arming_service
    with pytest.raises(KafkaUnavailable, match=r"configs of topic d\.late"):
        arming_service.plan(MOUNT, "configs")
    kafka.without_configs.clear()
    plan = arming_service.plan(MOUNT, "configs")
    assert "d.late" in {call.resource for call in plan.calls}


def test_a_plan_that_was_not_armed_after_all_releases_nothing(
    here: World, kafka: SlowKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_client_makes(here, kafka, "d.late")

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away for a moment")

    with monkeypatch.context() as patched:
        patched.setattr(here.writer, "commit_command", away)
        with pytest.raises(StoreUnavailable):
            arm(here)
    retention(here, DAY)
    here.settle(1_000)
    assert (value(kafka, "d.a"), value(kafka, "d.late")) == (DAY, MONTH)
    arm(here)
    assert value(kafka, "d.late") == DAY


def test_what_kdir_made_is_released_and_what_it_may_have_made_is_not(
    here: World, kafka: Makes
) -> None:
    retention(here, MONTH)
    here.create("d/own", partitions=1, replication_factor=1)
    here.settle(1_000)
    kafka.answer = OutcomeUnknown("no answer")
    here.create("d/perhaps", partitions=1, replication_factor=1)
    here.settle(1_000)
    assert (value(kafka, "d.own"), value(kafka, "d.perhaps")) == (MONTH, MONTH)
    retention(here, DAY)
    here.settle(1_000)
    assert (value(kafka, "d.own"), value(kafka, "d.perhaps")) == (DAY, MONTH)
    assert waits(here, "d/perhaps")


def test_what_kdir_made_is_released_though_kafka_shows_it_only_in_a_later_round(
    here: World, kafka: SlowKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = kafka.describe, list[str]()

    def describe(names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        if "d.new" in kafka.topics and not failed:
            failed.append("d.new")
            raise KafkaUnavailable("nobody answers")
        return real(names)

    monkeypatch.setattr(kafka, "describe", describe)
    retention(here, MONTH)
    here.create("d/new")
    here.settle(1_000)
    assert failed
    retention(here, DAY)
    here.settle(1_000)
    assert value(kafka, "d.new") == DAY


def test_a_topic_that_takes_the_place_of_one_that_was_released_is_not(
    here: World, kafka: SlowKafka
) -> None:
    retention(here, DAY)
    here.settle(1_000)
    another_client_makes(here, kafka, "d.a")
    assert here.states()["d/a"] == "REPLACED"
    here.reconciler.requests.adopt([], False, False)
    here.settle(1_000)
    assert here.states()["d/a"] == "ACTIVE"
    assert value(kafka, "d.a") == MONTH
    assert waits(here, "d/a")


def test_plans_of_entries_that_are_gone_leave_no_records(here: World) -> None:
    arm(here, "d", "a")
    here.remove("d/a")
    here.settle(1_000)
    here.sweep()
    prefixes = (b"k/armed/", b"k/plan/")
    assert [len(list(here.replica.snapshot.facts(one))) for one in prefixes] == [1, 1]


def test_a_topic_that_is_moved_below_what_another_plan_armed_waits(
    here: World, kafka: SlowKafka
) -> None:
    retention(here, None)
    here.execute(UpdateEntry(path=MOUNT, changes={"policies.manage.configs": None}))
    another_client_makes(here, kafka, "free")
    for name in ("e", "f"):
        here.execute(CreateDirectory(path=MOUNT.child(name)))
        retention(here, DAY, name)
    arm(here, "e")
    here.execute(MoveEntry(path=MOUNT.child("free"), new_path=MOUNT.join(("e", "free"))))
    here.settle(1_000)
    assert value(kafka, "free") == MONTH
    assert waits(here, "e/free")
    arm(here, "e")
    assert value(kafka, "free") == DAY
    # Named there, and not where it goes.
    retention(here, "3600000", "f")
    arm(here, "f")
    here.execute(MoveEntry(path=MOUNT.join(("e", "free")), new_path=MOUNT.join(("f", "free"))))
    here.settle(1_000)
    assert value(kafka, "free") == DAY
    assert waits(here, "f/free")


def test_a_directory_that_was_armed_once_and_is_moved_below_what_another_plan_armed_waits(
    here: World, kafka: SlowKafka
) -> None:
    manage = "policies.manage.configs"
    here.execute(UpdateEntry(path=MOUNT, changes={manage: None}))
    arm(here, "d")
    here.execute(UpdateEntry(path=MOUNT.child("d"), changes={manage: None}))
    here.execute(CreateDirectory(path=MOUNT.child("e")))
    kafka.truth["d.a"]["retention.ms"] = kafka.truth["d.b"]["retention.ms"] = MONTH
    retention(here, DAY, "e")
    arm(here, "e")
    here.execute(MoveEntry(path=MOUNT.child("d"), new_path=MOUNT.join(("e", "d"))))
    here.settle(1_000)
    assert (value(kafka, "d.a"), value(kafka, "d.b")) == (MONTH, MONTH)
    assert waits(here, "e/d/a")
    arm(here, "e")
    assert (value(kafka, "d.a"), value(kafka, "d.b")) == (DAY, DAY)


def test_a_topic_that_leaves_a_directory_which_was_excluded_waits(
    here: World, kafka: SlowKafka
) -> None:
    here.mkdir("d/sub")
    here.execute(MoveEntry(path=MOUNT.join(("d", "b")), new_path=MOUNT.join(("d", "sub", "b"))))
    retention(here, MONTH)
    here.settle(1_000)
    arm(here)
    here.execute(UpdateEntry(path=MOUNT.child("d"), changes={"policies.manage.configs": False}))
    retention(here, DAY)
    here.settle(1_000)
    here.execute(MoveEntry(path=MOUNT.join(("d", "a")), new_path=MOUNT.child("a")))
    here.execute(MoveEntry(path=MOUNT.join(("d", "sub")), new_path=MOUNT.child("sub")))
    here.settle(1_000)
    assert (value(kafka, "d.a"), value(kafka, "d.b")) == (MONTH, MONTH)
    assert waits(here, "a")
    assert waits(here, "sub/b")
    arm(here)
    assert (value(kafka, "d.a"), value(kafka, "d.b")) == (DAY, DAY)


def test_a_directory_that_is_renamed_where_it_is_stays_released(
    here: World, kafka: SlowKafka
) -> None:
    retention(here, MONTH)
    here.settle(1_000)
    here.execute(MoveEntry(path=MOUNT.child("d"), new_path=MOUNT.child("e")))
    retention(here, DAY)
    here.settle(1_000)
    assert (value(kafka, "d.a"), value(kafka, "d.b")) == (DAY, DAY)


# -- what it stood on ------------------------------------------------------------------------------


def acknowledge(here: World, kafka_id: str) -> None:
    here.writer.put_facts(
        pinned_kafka.acknowledge_stop(StopReason("another", 0, kafka_id), here.replica.snapshot)
    )


def test_a_kafka_that_is_acknowledged_was_not_what_a_plan_was_about_nor_when_it_comes_back(
    here: World, kafka: SlowKafka
) -> None:
    retention(here, MONTH)
    here.settle(1_000)
    for kafka_id in ("another", "K"):
        acknowledge(here, kafka_id)
    retention(here, DAY)
    here.settle(1_000)
    assert {value(kafka, name) for name in ("d.a", "d.b")} == {MONTH}
    assert here.reconciler.status().needs_approval_count == 2
    # An answer of before is no new arming.
    arming_service = here.reconciler.arming_service
    arm(here)
    assert {value(kafka, name) for name in ("d.a", "d.b")} == {DAY}
    assert arming_service.plan(MOUNT, "configs").calls == ()


def test_what_a_plan_stood_on_may_change_until_kafka_is_asked(
    here: World, kafka: SlowKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention(here, MONTH)
    here.settle(1_000)
    describe = kafka.describe
    looks = [0]

    def described(names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        looks[0] += 1
        if looks[0] == 2:  # the ids are compared once more: all is decided
            acknowledge(here, "K")
        return describe(names)

    monkeypatch.setattr(kafka, "describe", described)
    retention(here, DAY)
    here.settle(1_000)
    assert looks[0] > 2
    assert {value(kafka, name) for name in ("d.a", "d.b")} == {MONTH}
    assert here.reconciler.status().needs_approval_count == 2


def test_why_a_topic_waits_names_no_mount_that_may_be_hidden(here: World) -> None:
    here.unmanaged = "managed by cluster la, at /la"
    here.create("d/new")
    here.reconciler.run_once()
    assert here.topics()["d/new"].provision_message == MANAGED_ELSEWHERE
    assert here.reconciler.status().unmanaged == here.unmanaged


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "by another server"])
def test_a_cluster_that_manages_its_kafka_again_was_not_what_a_plan_was_about(
    here: World, kafka: SlowKafka, restarted: bool
) -> None:
    retention(here, MONTH)
    here.settle(1_000)
    here.unmanaged = "managed by cluster la, at /la"
    here.settle(1_000)
    retention(here, DAY)
    here.settle(1_000)
    arming_service = here.reconciler.arming_service
    with pytest.raises(AboveCeiling, match=re.escape(MANAGED_ELSEWHERE)):
        arming_service.plan(MOUNT, "configs")
    if restarted:
        here.reconciler.resign()
        here.unmanaged = pinned_kafka.NOT_KNOWN
        here.settle(1_000)
        with pytest.raises(NotReady, match="not known yet"):
            arming_service.plan(MOUNT, "configs")
    here.unmanaged = ""
    with pytest.raises(NotReady, match="not on record yet"):
        arming_service.plan(MOUNT, "configs")
    here.settle(1_000)
    assert {value(kafka, name) for name in ("d.a", "d.b")} == {MONTH}
    assert here.reconciler.status().needs_approval_count == 2
    arm(here)
    assert {value(kafka, name) for name in ("d.a", "d.b")} == {DAY}


def test_growth_waits_with_it(here: World, kafka: SlowKafka) -> None:
    another_client_makes(here, kafka, "d.late")
    here.execute(
        UpdateEntry(
            path=MOUNT.join(("d", "late")), kind=Kind.TOPIC, changes={"policies.partitions": 3}
        )
    )
    here.settle(1_000)
    entry_id = here.topics()["d/late"].entry_id
    assert config_issues(here.replica.snapshot, entry_id) == {"partitions": "needs-approval"}
