"""The reconciler against a real broker: what becomes of topics, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import ConfigChange, KafkaTopic, TopicToCreate
from directory.namespace.adoption_mapping import MappingRule
from directory.namespace.command import UpdateEntry
from directory.namespace.entry import Kind, Policies, Provision
from resolver.errors import (
    Absent,
    InvalidArgument,
    KafkaReplaced,
    PhysicalNameTaken,
    VanishGuard,
)
from resolver.path import Path
from tests.support.reconciler import (
    ALL,
    MOUNT,
    World,
    admin_of,
    drop,
    eventually,
    in_kafka,
    make,
    state_counts,
    world,
)


@pytest.fixture
def here(broker: KafkaBroker, tmp_path: FilePath) -> Iterator[World]:
    with world(tmp_path / "store.db", admin_of(broker.bootstrap)) as made:
        yield made


# -- adoption ------------------------------------------------------------------------------------


def test_existing_topics_are_adopted_flat_and_nothing_changes_in_kafka(
    here: World, kafka: ConfluentAdmin, broker: KafkaBroker
) -> None:
    make(kafka, TopicToCreate("search.clicks", partitions=3, config={"retention.ms": "1000"}))
    make(kafka, "orders", "a..b", "__system")
    before, configs = kafka.describe_all(), kafka.configs(["search.clicks"])
    here.sweep()
    topics = here.topics()
    names = ("__system", "a..b", "orders", "search.clicks")
    assert here.states() == dict.fromkeys(names, "ACTIVE")
    clicks = topics["search.clicks"]
    assert clicks.adopted
    assert clicks.topic_id == before.topics["search.clicks"].topic_id
    assert (clicks.partitions, clicks.replication_factor) == (3, 1)
    assert dict(clicks.observed_config) == {"retention.ms": "1000"}
    assert here.facts.pinned == broker.cluster_id
    assert (kafka.describe_all(), kafka.configs(["search.clicks"])) == (before, configs)


def test_names_are_split_where_the_config_says_and_stay_flat_where_that_makes_no_path(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "search.clicks", "search.views.raw", "search", "a..b")
    admin = admin_of(broker.bootstrap)
    with world(tmp_path / "store.db", admin, split_on=".") as here:
        here.sweep()
        assert set(here.topics()) == {"search/clicks", "search/views/raw", "search", "a..b"}


def test_rules_map_and_can_be_read_before_and_hold_for_later_topics(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "prod.search.clicks", "prod.orders", "tmp.x", "other")
    here.sweep()
    rules = [
        MappingRule.from_fields("tmp.*", ignore=True),
        MappingRule.from_fields("prod.*", split_on=".", strip_prefix="prod.", into="live"),
    ]
    plan = here.reconciler.requests.adopt(rules, True, True).rows
    reported = {one.physical_name: (one.action, str(one.path), one.rule) for one in plan}
    assert reported["prod.search.clicks"] == ("move", "/la/t/live/search/clicks", 2)
    assert reported["other"][0] == "keep"
    assert "prod.orders" in here.topics()

    here.reconciler.requests.adopt(rules, False, True)
    assert {"live/search/clicks", "live/orders", "other"} <= set(here.topics())
    make(kafka, "prod.search.views", "tmp.y")
    here.sweep()
    assert "live/search/views" in here.topics()
    assert not [path for path in here.topics() if path.startswith("tmp.y")]


def test_a_thousand_topics_are_adopted_in_one_round_and_their_configs_read_in_two(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(
        kafka,
        *(
            TopicToCreate(f"t.{number}", config={"retention.ms": str(number + 1)})
            for number in range(1_000)
        ),
    )
    here.sweep()
    topics = here.topics()
    assert state_counts(topics) == {"ACTIVE": 1_000}
    # A broker that has just made so many is too busy to show them for a moment.
    eventually(lambda: len(kafka.configs([f"t.{number}" for number in range(1_000)])) == 1_000)
    here.sweep()
    topics = here.topics()
    assert all(
        topics[f"t.{number}"].observed_config["retention.ms"] == str(number + 1)
        for number in range(1_000)
    )
    # Adopting them took batches, not a transaction for each.
    assert here.replica.snapshot.revision < 20


def test_topics_made_behind_our_back_are_adopted_and_deleted_ones_shown_missing(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a", "b")
    here.sweep()
    make(kafka, "c")
    drop(kafka, "a")
    here.sweep()
    assert here.states() == {"a": "MISSING", "b": "ACTIVE", "c": "ACTIVE"}
    assert here.reconciler.status().missing_count == 1
    make(kafka, TopicToCreate("a"))
    here.sweep()
    assert here.states()["a"] == "REPLACED"
    (drift,) = here.reconciler.drift(MOUNT)
    assert (str(drift.path), drift.field) == ("/la/t/a", "topic_id")
    assert drift.expected != drift.actual
    # An operator accepts the new one.
    here.reconciler.requests.adopt([], False, False)
    assert here.states()["a"] == "ACTIVE"
    assert here.topics()["a"].topic_id == kafka.describe_all().topics["a"].topic_id
    assert here.reconciler.drift(MOUNT) == []


def test_partitions_and_configs_changed_behind_our_back_are_recorded(
    here: World, kafka: ConfluentAdmin
) -> None:
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
    )

    here.reconciler.run_once()
    here.create("a", partitions=1, policies=Policies(topic_config={"retention.ms": "1000"}))
    here.settle()
    assert here.topics()["a"].drift_count == 0
    tool = kafka._current()
    for future in tool.create_partitions([NewPartitions("a", 4)]).values():
        future.result(10)
    entry = ConfigEntry("retention.ms", "5", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "a", incremental_configs=[entry])
    for altered in tool.incremental_alter_configs([resource]).values():
        altered.result(10)
    # Acknowledged by the controller; the broker shows it a moment later.
    eventually(lambda: kafka.list_all().partitions.get("a") == 4)
    eventually(lambda: kafka.configs(["a"]) == {"a": {"retention.ms": "5"}})
    here.sweep()
    topic = here.topics()["a"]
    assert (topic.partitions, topic.drift_count) == (4, 1)
    (drift,) = here.reconciler.drift(MOUNT)
    assert (drift.field, drift.expected, drift.actual) == ("config[retention.ms]", "1000", "5")
    assert here.reconciler.status().drift_count == 1
    assert kafka.configs(["a"]) == {"a": {"retention.ms": "5"}}, "drift is shown, not mended"


def test_what_others_change_is_seen_between_two_looks_at_everything(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "gone", "grows", "kept")
    here.sweep()
    make(kafka, "new")
    drop(kafka, "gone")
    kafka.create_partitions({"grows": 4})
    kafka.alter_configs([ConfigChange("kept", {"retention.ms": "5"})])
    eventually(lambda: kafka.list_all().partitions.get("grows") == 4)
    eventually(lambda: kafka.configs(["kept"]) == {"kept": {"retention.ms": "5"}})
    sweeper = here.reconciler.term.sweeper  # type: ignore[union-attr]
    due = sweeper.due
    here.now += 45  # of 300
    here.reconciler.run_once()
    assert here.states() == {
        "gone": "MISSING",
        "grows": "ACTIVE",
        "kept": "ACTIVE",
        "new": "ACTIVE",
    }
    assert here.topics()["grows"].partitions == 4
    assert here.topics()["kept"].observed_config == {"retention.ms": "5"}
    assert sweeper.due == due, "no sweep was made"


# -- creating ------------------------------------------------------------------------------------


def test_a_request_becomes_a_topic_with_its_numbers_and_configs(
    here: World, kafka: ConfluentAdmin
) -> None:
    here.reconciler.run_once()
    here.mkdir("search")
    here.create(
        "search/clicks", partitions=6, policies=Policies(topic_config={"retention.ms": "1000"})
    )
    here.create("plain")
    assert here.states() == {"plain": "PENDING", "search/clicks": "PENDING"}
    here.settle()
    topic = here.topics()["search/clicks"]
    seen = kafka.describe(["search.clicks"])["search.clicks"]
    assert isinstance(seen, KafkaTopic)
    assert (topic.provision, topic.topic_id, topic.partitions) == (
        Provision.ACTIVE,
        seen.topic_id,
        6,
    )
    assert kafka.configs(["search.clicks"])["search.clicks"] == {"retention.ms": "1000"}
    assert dict(topic.observed_config) == {"retention.ms": "1000"}
    assert topic.provision_attempt
    plain = here.topics()["plain"]
    assert (plain.partitions, plain.replication_factor) == (1, 1), "the broker's defaults, as seen"


def test_the_running_reconciler_makes_a_new_topic_without_waiting_for_its_sweep(
    here: World, kafka: ConfluentAdmin
) -> None:
    here.reconciler.start()
    eventually(lambda: here.reconciler.status().reachable)
    swept = here.reconciler.health.swept_at
    here.create("quick")
    eventually(lambda: here.states() == {"quick": "ACTIVE"})
    assert here.reconciler.health.swept_at == swept
    here.remove("quick")
    eventually(lambda: not in_kafka(kafka))
    eventually(here.nothing_left_to_reap)
    assert here.reconciler.health.swept_at == swept


def test_what_kafka_refuses_is_failed_with_its_message_and_stays_so(
    here: World, kafka: ConfluentAdmin
) -> None:
    here.reconciler.run_once()
    here.create("rf", replication_factor=3)
    # Of Kafka until 3.9, so that we take it and a broker of 4.x does not.
    old = {"message.format.version": "3.0-IV1"}
    here.create("config", policies=Policies(topic_config=old))
    here.create("many", partitions=10_000_000)
    here.create("good")
    here.settle()
    assert here.states() == {
        "config": "FAILED",
        "good": "ACTIVE",
        "many": "FAILED",
        "rf": "FAILED",
    }
    topics = here.topics()
    assert "replication factor of 3 cannot be reached" in topics["rf"].provision_message
    assert "message.format.version" in topics["config"].provision_message
    assert topics["rf"].provision_attempt == ""
    # Somebody makes such a topic later: it is not ours.
    make(kafka, "rf")
    here.sweep()
    assert here.states()["rf"] == "FAILED"
    here.remove("rf")
    here.sweep()
    assert "rf" in in_kafka(kafka)


def test_a_topic_that_is_in_kafka_already_is_not_ours_until_adopted(
    here: World, kafka: ConfluentAdmin
) -> None:
    here.reconciler.run_once()
    make(kafka, TopicToCreate("mine", partitions=2))
    here.create("mine", partitions=5)  # before any sweep saw it
    here.settle()
    topic = here.topics()["mine"]
    assert topic.provision is Provision.FAILED
    assert "exists in Kafka and was not made by kdir" in topic.provision_message
    assert "kdir adopt" in topic.provision_message
    (row,) = here.reconciler.requests.adopt([], True, False).rows
    assert (row.action, str(row.path)) == ("adopt", "/la/t/mine")
    assert here.states() == {"mine": "FAILED"}
    here.reconciler.requests.adopt([], False, False)
    topic = here.topics()["mine"]
    assert (topic.provision, topic.partitions) == (Provision.ACTIVE, 2)
    with pytest.raises(PhysicalNameTaken):
        here.create("other", physical_name="mine")


def test_a_request_that_is_older_than_a_lower_ceiling_is_failed_not_kept_for_later(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    admin = admin_of(broker.bootstrap)
    with world(tmp_path / "store.db", admin) as before:
        before.reconciler.run_once()
        before.create("late")
    with world(tmp_path / "store.db", admin, ceiling=frozenset()) as here:
        here.settle()
        assert here.states() == {"late": "FAILED"}
        assert "ceiling" in here.topics()["late"].provision_message
    with world(tmp_path / "store.db", admin) as after:
        after.settle()
        assert after.states() == {"late": "FAILED"}
    assert in_kafka(kafka) == set()


# -- deleting ------------------------------------------------------------------------------------


def test_a_removed_topic_goes_from_kafka_and_is_not_adopted_again(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a", "b")
    here.sweep()
    here.remove("a")
    assert [topic.physical_name for topic in here.removed()] == ["a"]
    assert here.reconciler.status().pending_count == 1
    here.settle()
    assert in_kafka(kafka) == {"b"}
    here.sweep()
    assert here.states() == {"b": "ACTIVE"}
    assert here.nothing_left_to_reap()


def test_without_the_delete_aspect_a_removed_topic_is_left_alone_and_stays_out(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "a", "b")
    admin = admin_of(broker.bootstrap)
    with world(tmp_path / "store.db", admin, ceiling=frozenset({"create"})) as here:
        here.sweep()
        here.remove("a")
        here.sweep()
        assert here.states() == {"b": "ACTIVE"}
        assert in_kafka(kafka) == {"a", "b"}
        found = here.reconciler.requests.adopt([], True, False).rows
        rows = {one.physical_name: one.action for one in found}
        assert rows == {"a": "detached", "b": "keep"}
        # Made anew behind our back it is another topic, and adopted as such.
        drop(kafka, "a")
        make(kafka, TopicToCreate("a"))
        here.sweep()
        assert here.states() == {"a": "ACTIVE", "b": "ACTIVE"}


def test_a_delete_that_waits_when_the_ceiling_is_lowered_becomes_a_detached_record(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "a")
    admin = admin_of(broker.bootstrap)
    with world(tmp_path / "store.db", admin) as before:
        before.sweep()
        before.remove("a")
        assert len(before.removed()) == 1
    for ceiling in (frozenset({"create"}), ALL):  # raising it again fires no old wish
        with world(tmp_path / "store.db", admin, ceiling=ceiling) as here:
            here.settle()
            assert here.nothing_left_to_reap()
            assert here.states() == {}
            assert in_kafka(kafka) == {"a"}


def test_a_topic_that_was_replaced_in_kafka_survives_the_removal_of_its_entry(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a")
    here.sweep()
    drop(kafka, "a")
    make(kafka, TopicToCreate("a", partitions=7))
    here.remove("a")  # kdir has not seen yet that it is another one
    here.settle()
    seen = kafka.describe(["a"])["a"]
    assert isinstance(seen, KafkaTopic)
    assert seen.partitions == 7
    here.sweep()
    assert here.topics()["a"].topic_id == seen.topic_id, "it is a topic made behind our back"


def test_a_removed_directory_takes_all_its_topics_along(here: World, kafka: ConfluentAdmin) -> None:
    here.reconciler.run_once()
    here.mkdir("d/e")
    for number in range(30):
        here.create(f"d/e/t{number}")
    here.create("keep")
    here.settle()
    assert len(in_kafka(kafka)) == 31
    here.remove("d", Kind.DIRECTORY)
    here.settle(60)
    assert in_kafka(kafka) == {"keep"}
    assert here.nothing_left_to_reap()
    here.sweep()
    assert here.states() == {"keep": "ACTIVE"}


def test_a_topic_removed_before_kafka_had_it_is_never_made(
    here: World, kafka: ConfluentAdmin
) -> None:
    here.reconciler.run_once()
    here.create("a")
    here.remove("a")
    here.settle()
    assert in_kafka(kafka) == set()
    assert here.nothing_left_to_reap()


# -- guards --------------------------------------------------------------------------------------


def test_when_too_many_topics_vanish_everything_stops_until_acknowledged(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, *(f"t{number}" for number in range(10)))
    here.sweep()
    drop(kafka, *(f"t{number}" for number in range(10)))
    make(kafka, "new")
    here.sweep()
    here.create("wished")
    text = here.stopped
    assert text.startswith("10 of 10 topics vanished")
    assert here.reconciler.status().stop_reason == text
    for _ in range(3):
        here.sweep()
    assert state_counts(here.topics()) == {"ACTIVE": 10, "PENDING": 1}, "nothing is done"
    assert in_kafka(kafka) == {"new"}
    with pytest.raises(VanishGuard):
        here.reconciler.requests.adopt([], False, False)

    with pytest.raises(InvalidArgument, match="10 of 10 topics vanished"):
        here.reconciler.acknowledge("yes, yes")
    here.reconciler.acknowledge(text)
    here.settle()
    assert state_counts(here.topics()) == {"MISSING": 10, "ACTIVE": 2}
    assert here.stopped == ""
    assert here.facts.allowed == 0, "an acknowledgement is used once"
    with pytest.raises(InvalidArgument, match="nothing is stopped"):
        here.reconciler.acknowledge(text)


def test_one_of_ten_may_go_and_a_stop_does_not_end_by_itself(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, *(f"t{number}" for number in range(10)))
    here.sweep()
    drop(kafka, "t0")
    here.sweep()
    assert here.stopped == ""
    assert here.states()["t0"] == "MISSING"
    drop(kafka, *(f"t{number}" for number in range(1, 10)))
    here.sweep()
    assert "9 of 9 topics" in here.stopped


def test_another_kafka_at_the_address_stops_everything_and_the_right_one_ends_that(
    broker: KafkaBroker,
    kafka: ConfluentAdmin,
    kafka_brokers: Callable[..., KafkaBroker],
    tmp_path: FilePath,
) -> None:
    make(kafka, "a")
    admin = admin_of(broker.bootstrap)
    with world(tmp_path / "store.db", admin) as here:
        here.sweep()
        here.create("wished")
    with kafka_brokers() as other:
        foreign = ConfluentAdmin([other.bootstrap])
        make(foreign, "x")
        with world(tmp_path / "store.db", admin_of(other.bootstrap)) as here:
            here.settle()
            assert broker.cluster_id in here.stopped
            assert other.cluster_id in here.stopped
            assert "1 of 1 topics are not there" in here.stopped
            status = here.reconciler.status()
            assert (status.pinned_cluster_id, status.seen_cluster_id) == (
                broker.cluster_id,
                other.cluster_id,
            )
            assert here.states() == {"a": "ACTIVE", "wished": "PENDING"}
            assert in_kafka(foreign) == {"x"}
            with pytest.raises(KafkaReplaced):
                here.reconciler.requests.look_up("x")
        with world(tmp_path / "store.db", admin) as here:
            here.settle()
            assert here.stopped == ""
            assert here.states() == {"a": "ACTIVE", "wished": "ACTIVE"}
        with world(tmp_path / "store.db", admin_of(other.bootstrap)) as here:
            here.settle()
            here.reconciler.acknowledge(here.stopped)
            here.settle()
            assert here.facts.pinned == other.cluster_id
            assert here.stopped == ""
            assert here.states() == {"a": "MISSING", "wished": "MISSING", "x": "ACTIVE"}


def test_a_kafka_that_was_exchanged_between_two_sweeps_gets_no_topic(
    broker: KafkaBroker,
    kafka_brokers: Callable[..., KafkaBroker],
    tmp_path: FilePath,
) -> None:
    address = [broker.bootstrap]
    with (
        kafka_brokers() as other,
        world(tmp_path / "store.db", lambda: ConfluentAdmin([address[0]])) as here,
    ):
        here.sweep()
        address[0] = other.bootstrap
        here.reconciler.term.close_admin()  # type: ignore[union-attr]
        here.create("wished")
        here.reconciler.run_once()
        here.reconciler.run_once()
        assert here.states() == {"wished": "PENDING"}
        assert other.cluster_id in here.stopped
        assert in_kafka(ConfluentAdmin([other.bootstrap])) == set()


# -- looking -------------------------------------------------------------------------------------


def test_a_topic_is_looked_up_for_adoption_by_path(here: World, kafka: ConfluentAdmin) -> None:
    here.sweep()
    make(kafka, TopicToCreate("solo", partitions=2, config={"retention.ms": "9"}))
    found = here.reconciler.requests.look_up("solo")
    assert (found.partitions, dict(found.config)) == (2, {"retention.ms": "9"})
    with pytest.raises(Absent):
        here.reconciler.requests.look_up("nobody")


def test_drift_is_listed_below_a_path_only(here: World, kafka: ConfluentAdmin) -> None:
    here.sweep()
    here.mkdir("d")
    for path in ("d/a", "b"):
        here.create(path)
    here.settle()
    for path in ("d/a", "b"):
        changes = {"policies.topic_config.retention.ms": "77"}
        here.execute(
            UpdateEntry(path=MOUNT.join(path.split("/")), kind=Kind.TOPIC, changes=changes)
        )
    here.sweep()
    below = here.reconciler.drift(Path.parse("/la/t/d"))
    assert [str(one.path) for one in below] == ["/la/t/d/a"]
    assert (below[0].expected, below[0].actual) == ("77", "(default)")
    assert [str(one.path) for one in here.reconciler.drift(Path.parse("/la/t/b"))] == ["/la/t/b"]
    assert here.reconciler.status().drift_count == 2
    assert kafka.configs(["b"]) == {"b": {}}
