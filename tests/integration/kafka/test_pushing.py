"""Arming and pushing against a real broker: what reaches Kafka, what is left alone, what waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import pytest
from kdir.v1 import federation_pb2

from deploy.local.kafka import KafkaBroker
from directory.federation import inheritance, parent_state
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import ConfigChange, Succeeded, TopicToCreate
from directory.kafka.applying import config_applier
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    config_issues,
    load_applied_configs,
)
from directory.kafka.arming.arming import ArmingResult
from directory.namespace.command import UpdateEntry
from directory.namespace.entry import NO_POLICIES, Kind, Policies
from directory.wire.entry_codec import policies_to_proto
from resolver.errors import AboveCeiling, EtagMismatch, NotReady
from tests.support.crash_points import Crash, Mortal, Passages
from tests.support.reconciler import (
    MOUNT,
    World,
    admin_of,
    drop,
    eventually,
    make,
    partitions,
    world,
)

CEILING = frozenset({"create", "delete", "configs"})
WEEK, MONTH = "604800000", "2592000000"
DAY = "86400000"


@pytest.fixture
def here(broker: KafkaBroker, tmp_path: FilePath) -> Iterator[World]:
    with world(tmp_path / "store.db", admin_of(broker.bootstrap), **armed()) as made:
        yield made


def armed(**settings: Any) -> dict[str, Any]:
    return {"ceiling": CEILING, "split_on": ".", **settings}


def put(here: World, path: str, kind: Kind = Kind.DIRECTORY, **changes: object) -> None:
    """Sets policies as ``kdir set`` does; a key ``retention_ms`` means the topic config."""
    fields = {_field(key): value for key, value in changes.items()}
    where = MOUNT.join(path.split("/")) if path else MOUNT
    here.execute(UpdateEntry(path=where, kind=kind, changes=fields))


def _field(key: str) -> str:
    known = ("partitions", "owner", "manage")
    if key.startswith(known):
        return f"policies.{key.replace('__', '.')}"
    return f"policies.topic_config.{key.replace('_', '.')}"


def arm(here: World, path: str = "") -> ArmingResult:
    """Reads the plan, and arms by it, while the reconciler works."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    plan = here.reconciler.arming_service.plan(where, "configs")
    found: list[ArmingResult] = []
    asks = threading.Thread(
        target=lambda: found.append(
            here.reconciler.arming_service.arm(where, "configs", plan.plan, timeout_seconds=20)
        )
    )
    asks.start()
    while asks.is_alive():
        here.settle()
        asks.join(0.05)
    return found[0]


def calls(here: World, path: str = "") -> list[tuple[str, str, str | None, str | None]]:
    where = MOUNT.join(path.split("/")) if path else MOUNT
    plan = here.reconciler.arming_service.plan(where, "configs")
    return [(one.resource, one.key, one.before, one.after) for one in plan.calls]


def configs(kafka: ConfluentAdmin, *names: str) -> dict[str, dict[str, str]]:
    found = kafka.configs(names)
    return {name: dict(one) for name, one in found.items() if isinstance(one, Mapping)}


def tamper(kafka: ConfluentAdmin, name: str, **values: str | None) -> None:
    """Alters configs as another tool would, and Kafka shows them."""
    changes = {key.replace("_", "."): value for key, value in values.items()}
    assert kafka.alter_configs([ConfigChange(name, changes)]) == {name: Succeeded()}
    eventually(lambda: all(configs(kafka, name)[name].get(key) == changes[key] for key in changes))


def inherit(here: World, incarnation: str = "one", **changes: str) -> None:
    """Sets the policies that the parent hands down to the mount."""
    values = {key.replace("_", "."): value for key, value in changes.items()}
    level = federation_pb2.InheritedLevel(
        path="/la", policies=policies_to_proto(Policies(topic_config=values))
    )
    output = federation_pb2.Inherited(levels=[level], revision=5, incarnation=incarnation)
    here.writer.put_facts(inheritance.inherited_writes(here.replica.snapshot, output, 1))


def welcome(here: World) -> None:
    reported = federation_pb2.Welcome(
        parent_cluster_id="kc-la", mount=str(MOUNT), parent_mount="/la"
    )
    here.writer.put_facts(parent_state.welcome_writes(here.replica.snapshot, reported, 1))


# -- arming ----------------------------------------------------------------------------------------


def test_nothing_changes_before_it_is_armed_and_then_exactly_what_the_plan_showed(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(
        kafka,
        TopicToCreate("search.clicks", config={"retention.ms": WEEK, "segment.bytes": "2097152"}),
        "search.views",
        TopicToCreate("orders", config={"retention.ms": WEEK}),
    )
    here.sweep()
    before = configs(kafka, "search.clicks", "search.views", "orders")
    put(here, "", retention_ms=MONTH)
    here.sweep()
    assert configs(kafka, "search.clicks", "search.views", "orders") == before

    assert calls(here, "search") == [
        ("search.clicks", "retention.ms", WEEK, MONTH),
        ("search.views", "retention.ms", None, MONTH),
    ]
    assert configs(kafka, "search.clicks", "search.views", "orders") == before
    assert arm(here, "search") == ArmingResult(2)
    assert configs(kafka, "search.clicks", "search.views", "orders") == {
        "search.clicks": {"retention.ms": MONTH, "segment.bytes": "2097152"},
        "search.views": {"retention.ms": MONTH},
        "orders": {"retention.ms": WEEK},
    }
    assert calls(here, "search") == []
    assert here.topics()["search/views"].observed_config == {"retention.ms": MONTH}


def test_a_plan_that_is_another_by_now_is_refused_and_says_what_changed(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a", "b")
    here.sweep()
    put(here, "", retention_ms=MONTH)
    arming_service = here.reconciler.arming_service
    plan = arming_service.plan(MOUNT, "configs")
    tamper(kafka, "b", retention_ms=WEEK)
    with pytest.raises(EtagMismatch, match=rf"b retention.ms: \(default\) → {MONTH}, now {WEEK} "):
        arming_service.arm(MOUNT, "configs", plan.plan)
    with pytest.raises(EtagMismatch, match="2 calls now"):
        arming_service.arm(MOUNT, "configs", "000000")
    here.settle()
    assert configs(kafka, "a", "b") == {"a": {}, "b": {"retention.ms": WEEK}}


def test_beyond_the_ceiling_nothing_is_armed(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "a")
    with world(tmp_path / "store.db", admin_of(broker.bootstrap)) as here:
        here.sweep()
        with pytest.raises(AboveCeiling, match="configs"):
            here.reconciler.arming_service.plan(MOUNT, "configs")


# -- pushing ---------------------------------------------------------------------------------------


def test_what_is_set_above_reaches_kafka_and_nearer_settings_hold(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "d.a", "d.own", "d.off.x", "other")
    here.sweep()
    put(here, "d/own", Kind.TOPIC, retention_ms=DAY)
    arm(here, "d")
    put(here, "d/off", manage__configs=False)
    put(here, "", retention_ms=MONTH)
    here.settle()
    assert configs(kafka, "d.a", "d.own", "d.off.x", "other") == {
        "d.a": {"retention.ms": MONTH},
        "d.own": {"retention.ms": DAY},
        "d.off.x": {},
        "other": {},
    }


def test_unset_takes_back_what_kdir_pushed_and_only_that(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a", TopicToCreate("theirs", config={"retention.ms": MONTH, "flush.ms": "1000"}))
    here.sweep()
    put(here, "", retention_ms=MONTH, segment_ms="3600000")
    arm(here)
    both = {"retention.ms": MONTH, "segment.ms": "3600000"}
    assert configs(kafka, "a", "theirs") == {"a": both, "theirs": both | {"flush.ms": "1000"}}
    put(here, "", retention_ms=None, segment_ms=None)
    here.settle()
    # It had that retention before: a value that kdir did not set is left alone.
    assert configs(kafka, "a", "theirs") == {
        "a": {},
        "theirs": {"retention.ms": MONTH, "flush.ms": "1000"},
    }


def test_partitions_grow_and_never_shrink(here: World, kafka: ConfluentAdmin) -> None:
    make(kafka, TopicToCreate("d.small", partitions=2), TopicToCreate("d.big", partitions=5))
    here.sweep()
    put(here, "d", partitions=9)
    assert calls(here, "d") == []
    put(here, "d/small", Kind.TOPIC, partitions=3)
    put(here, "d/big", Kind.TOPIC, partitions=3)
    assert calls(here, "d") == [("d.small", "partitions", "2", "3")]
    assert arm(here, "d") == ArmingResult(1)
    eventually(lambda: partitions(kafka) == {"d.small": 3, "d.big": 5})
    put(here, "d/small", Kind.TOPIC, partitions=4)
    here.settle()
    eventually(lambda: partitions(kafka)["d.small"] == 4)
    assert here.topics()["d/small"].partitions == 4


def test_what_a_directory_sets_is_for_new_topics_and_grows_none_that_is_there(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, TopicToCreate("d.old", partitions=2))
    here.sweep()
    arm(here)
    for count in (8, None, 12):
        put(here, "d", partitions=count)
        here.settle()
        here.sweep()
        assert kafka.describe_all().topics["d.old"].partitions == 2
        old = here.topics()["d/old"]
        assert (old.partitions, old.drift_count) == (2, 0)
    here.create("d/new")
    here.settle()
    eventually(lambda: partitions(kafka).get("d.new") == 12)


def test_P6_what_was_pushed_to_a_topic_goes_with_it(here: World, kafka: ConfluentAdmin) -> None:
    make(kafka, "a")
    here.sweep()
    put(here, "a", Kind.TOPIC, retention_ms=DAY)
    arm(here)
    entry_id = here.topics()["a"].entry_id
    assert load_applied_configs(here.replica.snapshot, entry_id) != AppliedRecord()
    here.remove("a")
    here.settle()
    here.create("a")
    here.settle()
    again = here.topics()["a"].physical_name  # another one, for a while after the first
    assert configs(kafka, again) == {again: {}}
    assert load_applied_configs(here.replica.snapshot, entry_id) == AppliedRecord()
    assert here.topics()["a"].policies == NO_POLICIES


def test_a_topic_of_another_id_is_not_touched(here: World, kafka: ConfluentAdmin) -> None:
    make(kafka, "a", *(f"z{number}" for number in range(3)))
    here.sweep()
    arm(here)
    drop(kafka, "a")
    make(kafka, "a")
    put(here, "", retention_ms=MONTH)
    here.settle()
    assert configs(kafka, "a", "z0") == {"a": {}, "z0": {"retention.ms": MONTH}}


def test_the_vanish_guard_stops_pushing_too(here: World, kafka: ConfluentAdmin) -> None:
    make(kafka, *(f"t{number}" for number in range(8)))
    here.sweep()
    arm(here)
    drop(kafka, *(f"t{number}" for number in range(4)))
    here.sweep()
    assert "vanished" in here.stopped
    put(here, "", retention_ms=MONTH)
    for _ in range(3):
        here.sweep()
    assert configs(kafka, "t7") == {"t7": {}}
    here.reconciler.acknowledge(here.stopped)
    here.sweep()
    here.settle()
    assert configs(kafka, "t7") == {"t7": {"retention.ms": MONTH}}


def test_kafkas_refusal_is_kept_and_not_asked_again_until_something_is_new(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a", "b")
    here.sweep()
    put(here, "a", Kind.TOPIC, remote_storage_enable="true")
    put(here, "", flush_ms="1000")
    done = arm(here)
    assert "remote" in done.message.lower()
    assert configs(kafka, "a", "b") == {"a": {}, "b": {"flush.ms": "1000"}}
    noted = config_issues(here.replica.snapshot, here.topics()["a"].entry_id)
    assert noted == {"flush.ms": "rejected", "remote.storage.enable": "rejected"}
    put(here, "a", Kind.TOPIC, remote_storage_enable=None)
    here.settle()
    assert configs(kafka, "a") == {"a": {"flush.ms": "1000"}}


# -- drift -----------------------------------------------------------------------------------------


def test_drift_is_reported_and_left_unless_mending_is_set(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a")
    here.sweep()
    put(here, "", retention_ms=MONTH)
    arm(here)
    tamper(kafka, "a", retention_ms=WEEK)
    here.sweep()
    here.settle()
    assert configs(kafka, "a") == {"a": {"retention.ms": WEEK}}
    assert here.topics()["a"].observed_config == {"retention.ms": WEEK}
    put(here, "", retention_ms=DAY)
    here.settle()
    assert configs(kafka, "a") == {"a": {"retention.ms": DAY}}


def test_what_another_client_puts_back_three_times_is_contested_and_left_until_it_is_armed_again(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "a")
    with world(
        tmp_path / "s.db", admin_of(broker.bootstrap), **armed(revert_external_changes=True)
    ) as here:
        here.sweep()
        put(here, "", retention_ms=MONTH)
        arm(here)
        for mended in (True, True, False):
            tamper(kafka, "a", retention_ms=WEEK)
            here.sweep()
            here.settle()
            assert configs(kafka, "a") == {"a": {"retention.ms": MONTH if mended else WEEK}}
        entry_id = here.topics()["a"].entry_id
        assert config_issues(here.replica.snapshot, entry_id) == {"retention.ms": "contested"}
        assert here.reconciler.status().contested_count == 1
        tamper(kafka, "a", flush_ms="5")
        here.sweep()
        here.settle()
        assert configs(kafka, "a") == {"a": {"retention.ms": WEEK, "flush.ms": "5"}}

        assert arm(here) == ArmingResult(1)
        assert configs(kafka, "a")["a"]["retention.ms"] == MONTH
        assert here.reconciler.status().contested_count == 0


# -- what is inherited -----------------------------------------------------------------------------


def test_what_a_mount_brings_waits_where_it_would_delete_data_and_arming_releases_it(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(
        kafka,
        TopicToCreate("a", config={"retention.ms": MONTH}),
        TopicToCreate("b", config={"retention.ms": DAY}),
    )
    here.sweep()
    arm(here)
    welcome(here)
    inherit(here, retention_ms=WEEK, flush_ms="1000")
    here.settle()
    assert configs(kafka, "a", "b") == {
        "a": {"retention.ms": MONTH, "flush.ms": "1000"},
        "b": {"retention.ms": WEEK, "flush.ms": "1000"},
    }
    entry_id = here.topics()["a"].entry_id
    assert config_issues(here.replica.snapshot, entry_id) == {"retention.ms": "needs-approval"}
    assert here.reconciler.status().needs_approval_count == 1
    assert calls(here) == [("a", "retention.ms", MONTH, WEEK)]
    assert arm(here) == ArmingResult(1)
    assert configs(kafka, "a")["a"]["retention.ms"] == WEEK
    assert here.reconciler.status().needs_approval_count == 0


def test_what_an_ancestor_sets_is_pushed_and_its_restore_waits(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "a")
    here.sweep()
    welcome(here)
    inherit(here, retention_ms=MONTH)
    arm(here)
    inherit(here, retention_ms=WEEK)
    here.settle()
    assert configs(kafka, "a") == {"a": {"retention.ms": WEEK}}
    inherit(here, incarnation="restored", retention_ms=DAY)
    here.settle()
    assert configs(kafka, "a") == {"a": {"retention.ms": WEEK}}
    # Restored to what holds nowhere any more: gone is not empty either.
    here.writer.put_facts(
        inheritance.inherited_writes(
            here.replica.snapshot, federation_pb2.Inherited(incarnation="again"), 1
        )
    )
    here.settle()
    assert configs(kafka, "a") == {"a": {"retention.ms": WEEK}}


def test_P3_what_is_not_loaded_is_not_empty_and_nothing_is_pushed_or_made(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    file, admin = tmp_path / "s.db", admin_of(broker.bootstrap)
    make(kafka, "a")
    with world(file, admin, **armed()) as here:
        here.sweep()
        put(here, "", retention_ms=MONTH)
        arm(here)
    with world(file, admin, **armed(has_parent=True)) as here:
        here.sweep()
        put(here, "", retention_ms=DAY)
        here.create("new")
        for _ in range(3):
            here.sweep()
        assert configs(kafka, "a") == {"a": {"retention.ms": MONTH}}
        assert here.states()["new"] == "PENDING"
        assert "no parent has sent" in here.topics()["new"].provision_message
        assert "no parent has sent" in here.reconciler.status().message
        with pytest.raises(NotReady, match="no parent has sent"):
            here.reconciler.arming_service.plan(MOUNT, "configs")

        welcome(here)
        inherit(here, flush_ms="1000")
        here.sweep()
        here.settle()
        # Whether it was the parent's word that shortens it cannot be told: it waits.
        assert configs(kafka, "a") == {"a": {"retention.ms": MONTH, "flush.ms": "1000"}}
        assert here.states()["new"] == "ACTIVE"
        assert configs(kafka, "new") == {"new": {"retention.ms": DAY, "flush.ms": "1000"}}


# -- many, and crashes -----------------------------------------------------------------------------


def test_many_topics_are_changed_in_a_few_requests(
    broker: KafkaBroker,
    kafka: ConfluentAdmin,
    tmp_path: FilePath,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        config_applier, "_SCANNED", 280
    )  # so that one step does not look at all of them
    names = [f"t{number}" for number in range(300)]
    make(kafka, *names)
    passages = Passages(last=-1)
    with world(
        tmp_path / "s.db",
        lambda: Mortal(ConfluentAdmin([broker.bootstrap]), passages, frozenset({"alter_configs"})),
        **armed(),
    ) as here:
        here.sweep()
        arm(here)
        put(here, "", retention_ms=MONTH)
        here.settle(60)
        assert passages.log.count("before alter_configs") == 2
    assert all(one == {"retention.ms": MONTH} for one in configs(kafka, *names).values())


ASKED = frozenset({"alter_configs", "create_partitions", "describe", "configs"})
WRITTEN = frozenset({"commit_command", "put_facts"})


def test_killed_at_any_call_the_next_one_finishes_and_nothing_is_taken_for_another_clients(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "d.a", TopicToCreate("d.b", partitions=1))

    def begin(file: FilePath) -> None:
        with world(file, admin_of(broker.bootstrap), **armed()) as here:
            here.sweep()
            put(here, "d", retention_ms=MONTH, partitions=None)
            arm(here, "d")
            put(here, "d", retention_ms=DAY, segment_ms="3600000")

    def mortal(file: FilePath, passages: Passages) -> World:
        return World(
            file,
            lambda: Mortal(ConfluentAdmin([broker.bootstrap]), passages, ASKED),
            writer=lambda real: Mortal(real, passages, WRITTEN),
            **armed(),
        )

    def run(file: FilePath, last: int) -> list[str]:
        passages = Passages(last)
        here = mortal(file, passages)
        try:
            here.settle()
        except Crash:
            pass
        finally:
            here.close()
        return passages.log

    begin(tmp_path / "whole.db")
    whole = run(tmp_path / "whole.db", -1)
    assert "after alter_configs" in whole
    for last in range(1, len(whole) + 1):
        for name in ("d.a", "d.b"):
            tamper(kafka, name, retention_ms=None, segment_ms=None)
        file = tmp_path / f"{last}.db"
        begin(file)
        run(file, last)
        with world(file, admin_of(broker.bootstrap), **armed()) as here:
            here.settle()
            wanted = {"retention.ms": DAY, "segment.ms": "3600000"}
            assert configs(kafka, "d.a", "d.b") == {"d.a": wanted, "d.b": wanted}, whole[last - 1]
            put(here, "d", retention_ms=None, segment_ms=None)
            here.settle()
            assert configs(kafka, "d.a", "d.b") == {"d.a": {}, "d.b": {}}, whole[last - 1]
