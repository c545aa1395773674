"""Pushing when something fails once, lags or comes in between: without a broker, with a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import pytest

from directory.kafka.admin_contract import (
    ConfigChange,
    KafkaTopic,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Still,
    Succeeded,
    always,
)
from directory.kafka.applying.last_applied import (
    config_issues,
    load_applied_configs,
    load_armed_record,
)
from directory.kafka.arming.drift import topic_issues
from directory.kafka.arming.releases import NAMED
from directory.namespace.command import MoveEntry, UpdateEntry
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import INHERITED, PUSHED
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put
from resolver.errors import KafkaRejected, KafkaUnavailable, QuotaExceeded
from tests.support.large_trees import FakeKafka
from tests.support.reconciler import MOUNT, Chance, World, begin_arming, unlucky, world
from tests.unit.kafka.test_acl_applier import inherit

DAY, WEEK, MONTH = "86400000", "604800000", "2592000000"


class SlowKafka(FakeKafka):
    """Its controller does at once what it is asked; its brokers show it when they come to it."""

    def __init__(self, *names: str) -> None:
        self.truth: dict[str, dict[str, str]] = {}
        self.shown: dict[str, dict[str, str]] = {}
        super().__init__(*names)
        self.hidden: set[str] = set()
        self.without_configs: set[str] = set()
        """Topics that the broker which is asked for configs does not have yet."""
        self.lags = False
        self.refused = ""
        """A value that it does not take."""
        self.altered: list[list[str]] = []

    def add(self, *names: str) -> None:
        super().add(*names)
        self.truth |= {name: {} for name in names}
        self.catch_up()

    def catch_up(self) -> None:
        """Makes the brokers show all changes."""
        self.shown = {name: dict(configs) for name, configs in self.truth.items()}

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        return {
            name: seen for name, seen in super().describe(names).items() if name not in self.hidden
        }

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        if not self.lags:
            self.catch_up()
        return {
            name: self.shown[name]
            for name in names
            if name in self.shown and name not in self.hidden | self.without_configs
        }

    def alter_configs(
        self, changes: Sequence[ConfigChange], still: Still = always
    ) -> Mapping[str, Outcome]:
        still()
        self.altered.append([change.name for change in changes])
        if self.refused and any(self.refused in change.configs.values() for change in changes):
            return {change.name: Rejected("out of range") for change in changes}
        for change in changes:
            for key, value in change.configs.items():
                if value is None:
                    self.truth[change.name].pop(key, None)
                else:
                    self.truth[change.name][key] = value
        return {change.name: Succeeded() for change in changes}


@contextmanager
def armed(file: FilePath, kafka: Any, **settings: Any) -> Iterator[World]:
    """Runs a cluster whose topics are adopted and armed as a whole."""
    ceiling = frozenset({"configs"})
    with world(file, kafka, ceiling=ceiling, split_on=".", **settings) as here:
        here.sweep()
        begin_arming(here)
        here.settle(1_000)
        yield here


def retention(here: World, value: str | None, *below: str, kind: Kind = Kind.DIRECTORY) -> None:
    changes = {"policies.topic_config.retention.ms": value}
    here.execute(UpdateEntry(path=MOUNT.join(below), kind=kind, changes=changes))


def all_have(kafka: SlowKafka, value: str | None) -> bool:
    return all(configs.get("retention.ms") == value for configs in kafka.truth.values())


# -- nothing is left behind ------------------------------------------------------------------------


def test_what_is_set_while_a_step_begins_is_pushed(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = SlowKafka("a", "b")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        pusher = here.reconciler.term.config_applier  # type: ignore[union-attr]
        latest, last = pusher._latest, [MONTH]

        def then_another_client_sets() -> Snapshot:
            found = latest()
            if last:
                retention(here, last.pop())
            return found

        monkeypatch.setattr(pusher, "_latest", then_another_client_sets)
        # It takes a step to see that this is nothing to Kafka.
        owner: dict[str, object] = {"policies.owner": "search-team"}
        here.execute(UpdateEntry(path=MOUNT.join(("b",)), kind=Kind.TOPIC, changes=owner))
        here.settle()
        assert not last
        assert all_have(kafka, MONTH)


def test_whatever_call_fails_once_the_same_leader_finishes(tmp_path: FilePath) -> None:
    """Each call of pushing to the store and to Kafka, one after the other."""
    for number in range(1, 100):
        kafka, chance = SlowKafka("a", "b", "gone"), Chance()
        with unlucky(
            tmp_path / f"{number}.db",
            kafka,
            chance,
            *("describe", "configs", "alter_configs"),
            ceiling=frozenset({"configs"}),
        ) as here:
            here.sweep()
            retention(here, WEEK)
            begin_arming(here)
            chance.left = number
            here.settle(1_000)
            here.remove("gone")
            kafka.topics.pop("gone")
            kafka.truth.pop("gone")
            retention(here, MONTH)
            here.settle(1_000)
            missed, chance.left = chance.left > 0, -1
            assert all_have(kafka, MONTH), number
            mark = load_armed_record(here.replica.snapshot, "configs", ROOT_ID)
            assert mark is not None
            assert not mark.pending, number
            assert mark.made == 3, number
        if missed:
            assert number > 10
            return
    raise AssertionError("there are more calls than were tried")


def test_K7_a_topic_that_a_broker_does_not_show_yet_is_pushed_once_it_does(
    tmp_path: FilePath,
) -> None:
    kafka = SlowKafka("a", "b")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        kafka.hidden = {"a"}
        retention(here, WEEK)
        for _ in range(5):
            here.now += here.reconciler.run_once()
        assert kafka.truth == {"a": {}, "b": {"retention.ms": WEEK}}
        # Others do not wait for it.
        retention(here, MONTH, "b", kind=Kind.TOPIC)
        here.now += here.reconciler.run_once()
        here.reconciler.run_once()
        assert kafka.truth["b"] == {"retention.ms": MONTH}
        kafka.hidden = set()
        here.settle()
        assert kafka.truth["a"] == {"retention.ms": WEEK}


def test_K7_a_topic_that_only_some_brokers_have_is_pushed_once_all_do(tmp_path: FilePath) -> None:
    kafka = SlowKafka("a", "b")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        kafka.without_configs = {"a"}
        retention(here, WEEK)
        begin_arming(here)
        for _ in range(5):
            here.now += here.reconciler.run_once()
        assert kafka.truth == {"a": {}, "b": {"retention.ms": WEEK}}
        mark = load_armed_record(here.replica.snapshot, "configs", ROOT_ID)
        assert mark is not None
        assert mark.pending
        kafka.without_configs = set()
        here.settle()
        assert all_have(kafka, WEEK)
        mark = load_armed_record(here.replica.snapshot, "configs", ROOT_ID)
        assert mark is not None
        assert not mark.pending


def test_unset_takes_back_what_kdir_set_before_a_change_that_kafka_refused(
    tmp_path: FilePath,
) -> None:
    kafka = SlowKafka("a", "b")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        retention(here, WEEK)
        here.settle()
        kafka.refused = MONTH
        retention(here, MONTH)
        here.settle()
        assert all_have(kafka, WEEK)
        retention(here, None)
        here.settle()
        assert all_have(kafka, None)


def test_where_what_is_inherited_is_unreadable_sweeps_go_on_and_the_status_says_so(
    tmp_path: FilePath,
) -> None:
    kafka = SlowKafka("a", "b")
    with world(
        tmp_path / "s.db", lambda: kafka, ceiling=frozenset({"configs", "create"}), split_on="."
    ) as here:
        here.sweep()
        begin_arming(here)
        here.settle(1_000)
        here.writer.put_facts((Put(INHERITED, b"\xff"),))
        retention(here, WEEK)
        here.create("new")
        kafka.add("c")
        here.sweep()
        assert here.states() == dict.fromkeys("abc", "ACTIVE") | {"new": "PENDING"}
        assert "inherited policies are unreadable" in here.reconciler.status().message
        assert "inherited policies are unreadable" in here.topics()["new"].provision_message
        assert not kafka.altered
        assert not kafka.made
        here.writer.put_facts((Delete(INHERITED),))
        here.now += 60
        here.settle(1_000)
        assert here.states()["new"] == "ACTIVE"
        assert kafka.truth["a"] == {"retention.ms": WEEK}


@pytest.mark.parametrize("when", ["waiting", "asking"])
def test_an_arming_that_begins_before_the_one_before_ends_is_carried_out(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    kafka = SlowKafka("a", "b")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        retention(here, WEEK)
        here.settle()
        for configs in kafka.truth.values():
            configs["retention.ms"] = DAY  # another client's, which only an arming changes back
        alter, plans = kafka.alter_configs, list[str]()

        def arm_again() -> None:
            begin_arming(here)
            mark = load_armed_record(here.replica.snapshot, "configs", ROOT_ID)
            plans.append("" if mark is None else mark.plan)

        def alter_late(*arguments: Any) -> Mapping[str, Outcome]:
            monkeypatch.setattr(kafka, "alter_configs", alter)
            arm_again()
            return alter(*arguments)

        arm_again()
        if when == "asking":
            monkeypatch.setattr(kafka, "alter_configs", alter_late)
        else:
            kafka.hidden = {"a"}
            step(here)
            kafka.hidden = set()
            arm_again()
        here.settle(1_000)
        assert all_have(kafka, WEEK)
        assert len(set(plans)) == 2
        mark = load_armed_record(here.replica.snapshot, "configs", ROOT_ID)
        assert mark is not None
        assert (mark.plan, mark.pending) == (plans[-1], False)


# -- Kafka shows later what it acknowledged --------------------------------------------------------


def test_what_was_pushed_for_a_topic_that_was_removed_while_nobody_led_is_forgotten(
    tmp_path: FilePath,
) -> None:
    kafka = SlowKafka("a", "b")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        retention(here, MONTH)
        here.settle()
        here.writer.put_facts([Put(PUSHED + b"malformed", b"")])

        def kept() -> list[int]:
            rows = [here.replica.snapshot.facts(prefix) for prefix in (PUSHED, NAMED)]
            return [len(list(of_one)) for of_one in rows]

        assert kept() == [3, 2]
        here.reconciler.resign()
        here.remove("a")
        here.reap()
        here.settle()
        assert kept() == [2, 1]
        assert all_have(kafka, MONTH)


def test_an_arming_of_a_topic_that_is_moved_before_its_calls_are_made_is_carried_out(
    tmp_path: FilePath,
) -> None:
    kafka = SlowKafka("a")
    ceiling = frozenset({"configs"})
    with world(tmp_path / "store.db", lambda: kafka, ceiling=ceiling, split_on=".") as here:
        here.sweep()
        retention(here, MONTH, "a", kind=Kind.TOPIC)
        kafka.refused = MONTH
        begin_arming(here, "a")
        here.settle()
        kafka.refused = ""
        begin_arming(here, "a")
        source, to = MOUNT.child("a"), MOUNT.child("z")
        here.execute(MoveEntry(path=source, kind=Kind.TOPIC, new_path=to))
        here.settle()
        entry_id = here.topics()["z"].entry_id
        mark = load_armed_record(here.replica.snapshot, "configs", entry_id)
        assert mark is not None
        assert (mark.made, mark.pending, mark.message) == (1, False, "")
        assert all_have(kafka, MONTH)


def step(here: World, times: int = 4) -> None:
    for _ in range(times):
        here.now += min(0.2, here.reconciler.run_once())


def lagging(here: World, kafka: SlowKafka, *changes: Callable[[], None]) -> None:
    """Changes one after the other, each acknowledged, none shown before the last."""
    kafka.lags = True
    for change in changes:
        change()
        step(here)
    kafka.lags = False
    here.settle(1_000)


def test_what_a_broker_that_is_behind_does_not_show_is_taken_back_by_the_next_leader(
    tmp_path: FilePath,
) -> None:
    kafka, file = SlowKafka("a", "b"), tmp_path / "s.db"
    settings: Any = {"ceiling": frozenset({"configs"}), "split_on": "."}
    with armed(file, lambda: kafka) as here, world(file, lambda: kafka, **settings) as later:
        kafka.lags = True
        retention(here, WEEK)
        step(here)
        assert all_have(kafka, WEEK)
        retention(here, None)
        here.reconciler.resign()
        step(later)
        kafka.lags = False
        later.settle()
        later.sweep()
        later.settle()
        assert all_have(kafka, None)
        for one in later.topics().values():
            assert load_applied_configs(later.replica.snapshot, one.entry_id).is_empty


@pytest.mark.parametrize("refused", [False, True])
def test_what_another_client_took_back_is_asked_about_once(
    tmp_path: FilePath, refused: bool
) -> None:
    """And what Kafka refused to set was never there."""
    kafka = SlowKafka("a")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        kafka.refused = WEEK if refused else ""
        retention(here, WEEK)
        here.settle()
        kafka.truth["a"].clear()
        here.now += 200
        kafka.altered.clear()
        retention(here, None)
        for _ in range(3):
            here.settle()
            here.sweep()
        assert kafka.altered == ([] if refused else [["a"]])
        known = load_applied_configs(here.replica.snapshot, here.topics()["a"].entry_id)
        assert known.is_empty


def test_what_another_client_took_back_waits_for_no_approval_on_another_basis(
    tmp_path: FilePath,
) -> None:
    kafka = SlowKafka("a")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        retention(here, WEEK)
        here.settle()
        inherit(here)  # as of a parent that is new
        kafka.truth["a"].clear()
        here.now += 200
        retention(here, None)
        for _ in range(3):
            here.settle()
            here.sweep()
        known = load_applied_configs(here.replica.snapshot, here.topics()["a"].entry_id)
        assert known.is_empty


@pytest.mark.parametrize("values", [(WEEK, DAY), (WEEK, None), (WEEK, MONTH, WEEK), (None, WEEK)])
def test_what_is_changed_back_before_kafka_shows_it_is_changed_back(
    tmp_path: FilePath, values: Sequence[str | None]
) -> None:
    kafka = SlowKafka("a", "b")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        retention(here, DAY)
        here.settle()
        lagging(here, kafka, *(lambda value=value: retention(here, value) for value in values))
        assert all_have(kafka, values[-1])


def test_what_kafka_does_not_show_yet_is_no_drift_and_nobodys_doing(tmp_path: FilePath) -> None:
    kafka = SlowKafka("a")
    with armed(tmp_path / "s.db", lambda: kafka, revert_external_changes=True) as here:
        retention(here, WEEK)
        here.settle()
        kafka.lags = True
        retention(here, MONTH)
        for _ in range(20):
            # Twenty sweeps in as many seconds.
            here.now += min(1.0, here.reconciler.run_once())
            here.reconciler.term.sweeper.due = 0.0  # type: ignore[union-attr]
            assert here.topics()["a"].drift_count == 0
        kafka.lags = False
        here.settle()
        assert kafka.altered == [["a"], ["a"]]
        entry_id = here.topics()["a"].entry_id
        assert config_issues(here.replica.snapshot, entry_id) == {}
        assert (
            load_applied_configs(here.replica.snapshot, entry_id).settings["retention.ms"].put_back
            == 0
        )


def test_what_another_client_put_back_is_seen_a_moment_after_kafka_showed_ours(
    tmp_path: FilePath,
) -> None:
    kafka = SlowKafka("a")
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        retention(here, WEEK)
        here.settle()
        retention(here, MONTH)
        here.settle()
        kafka.truth["a"]["retention.ms"] = WEEK
        here.now += 45
        here.reconciler.run_once()
        assert here.topics()["a"].observed_config == {"retention.ms": WEEK}


def test_no_more_is_asked_of_a_kafka_that_does_not_show_what_it_was_asked_before(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("directory.kafka.applying.applier.BATCH", 2)
    kafka = SlowKafka(*(f"t{number}" for number in range(10)))
    with armed(tmp_path / "s.db", lambda: kafka) as here:
        kafka.lags = True
        retention(here, WEEK)
        step(here, 20)
        assert len(kafka.altered) == 2  # one on its way, and the next
        kafka.catch_up()
        step(here, 20)
        assert len(kafka.altered) == 4
        # Not for ever: somebody may have changed the very one that is looked at.
        here.now += 30
        step(here, 4)
        assert len(kafka.altered) == 5
        kafka.lags = False
        here.settle()
        assert all_have(kafka, WEEK)


# -- partitions ------------------------------------------------------------------------------------


LOST = OutcomeUnknown("the answer was lost")
"""Of growth that Kafka made."""


class GrowingKafka(SlowKafka):
    """One whose partitions grow, unless it refuses, loses the answer or somebody comes between."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.outcomes: list[Outcome] = []
        self.between: Callable[[], object] = lambda: None

    def create_partitions(
        self, partitions: Mapping[str, int], still: Still = always
    ) -> Mapping[str, Outcome]:
        still()
        outcome = self.outcomes.pop(0) if self.outcomes else Succeeded()
        if outcome in (Succeeded(), LOST):
            for name, count in partitions.items():
                self.topics[name] = replace(self.topics[name], partitions=count)
        between, self.between = self.between, lambda: None
        between()
        return dict.fromkeys(partitions, outcome)


def grow(here: World, field: str, value: int | None) -> None:
    changes = {f"{field}.partitions": value}
    here.execute(UpdateEntry(path=MOUNT.child("a"), kind=Kind.TOPIC, changes=changes))


def counts(here: World, kafka: GrowingKafka) -> tuple[int, int]:
    return here.topics()["a"].partitions, kafka.topics["a"].partitions


def test_growth_that_is_acknowledged_while_kafka_is_asked_for_less_is_not_lost(
    tmp_path: FilePath,
) -> None:
    kafka = GrowingKafka("a")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        kafka.between = lambda: grow(here, "topic", 12)
        grow(here, "policies", 6)
        here.settle()
        assert counts(here, kafka) == (12, 6), "drift, until it is asked for"


@pytest.mark.parametrize(
    "outcomes",
    [[Rejected("no more than 4")], [OutcomeUnknown("timed out"), Rejected("no more than 4")]],
)
def test_growth_below_a_quota_that_kafka_refuses_leaves_the_tree_as_it_was(
    tmp_path: FilePath, outcomes: list[Outcome]
) -> None:
    kafka = GrowingKafka("a", "b")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        changes = {"policies.max_partitions": 8}
        here.execute(UpdateEntry(path=MOUNT, kind=Kind.DIRECTORY, changes=changes))
        kafka.outcomes = list(outcomes)
        grow(here, "policies", 6)
        here.settle()
        assert counts(here, kafka) == (1, 1)
        grow(here, "policies", None)
        here.settle()
        here.sweep()
        here.settle()
        assert counts(here, kafka) == (1, 1), "nobody wants it any more"
        here.create("c", partitions=6)
        kafka.outcomes = list(outcomes)
        grow(here, "policies", None)
        changes = {"policies.max_partitions": 20}
        here.execute(UpdateEntry(path=MOUNT, kind=Kind.DIRECTORY, changes=changes))
        grow(here, "topic", 6)
        here.settle()
        assert counts(here, kafka) == (6, 1), "that it is to have so many was acknowledged"


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("outcome", [Succeeded(), OutcomeUnknown("timed out"), Rejected("no")])
def test_an_arming_counts_configs_that_were_changed_whatever_becomes_of_growth(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, is_slow: bool, outcome: Outcome
) -> None:
    kafka = GrowingKafka("a", "b")
    with world(
        tmp_path / "store.db", lambda: kafka, ceiling=frozenset({"configs"}), split_on="."
    ) as here:
        here.sweep()
        is_grown = not isinstance(outcome, Rejected)
        kafka.outcomes, alter_configs = [outcome] * (1 if is_grown else 9), kafka.alter_configs

        def alter_slowly(*arguments: Any) -> Mapping[str, Outcome]:
            answered = alter_configs(*arguments)
            here.now += 3 if is_slow else 0
            return answered

        monkeypatch.setattr(kafka, "alter_configs", alter_slowly)
        retention(here, WEEK)
        grow(here, "policies", 6)
        begin_arming(here)
        here.settle(1_000)
        mark = load_armed_record(here.replica.snapshot, "configs", ROOT_ID)
        assert mark is not None
        assert counts(here, kafka)[1] == (6 if is_grown else 1)
        assert all_have(kafka, WEEK)
        assert (mark.calls, mark.pending) == (3, False)
        assert 2 <= mark.made <= 2 + is_grown, "the topic's own change may come first"


@pytest.mark.parametrize("answer", [KafkaUnavailable("away"), KafkaRejected("ALTER is missing")])
def test_configs_that_were_changed_are_counted_though_the_request_for_growth_fails(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    kafka = GrowingKafka("a", "b")
    ceiling = frozenset({"configs"})
    with world(tmp_path / "store.db", lambda: kafka, ceiling=ceiling, split_on=".") as here:
        here.sweep()
        retention(here, WEEK)
        grow(here, "policies", 6)
        begin_arming(here)
        failed: list[Exception] = []

        def fail(*_: Any) -> Mapping[str, Outcome]:
            failed.append(answer)
            raise answer

        with monkeypatch.context() as patch:
            patch.setattr(kafka, "create_partitions", fail)
            for _ in range(9):
                if not failed:
                    here.reconciler.run_once()
                    here.now += 1
        assert failed
        assert all_have(kafka, WEEK)
        observed = here.topics()["b"].observed_config
        assert observed.get("retention.ms") == WEEK, "it is on record at once"
        here.now += 60
        here.settle(1_000)
        assert counts(here, kafka) == (6, 6)
        mark = load_armed_record(here.replica.snapshot, "configs", ROOT_ID)
        assert mark is not None
        assert (mark.pending, mark.made) == (False, 3)


def test_growth_that_kafka_refuses_is_taken_back_wherever_the_topic_was_moved_meanwhile(
    tmp_path: FilePath,
) -> None:
    kafka = GrowingKafka("a", "b")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        changes = {"policies.max_partitions": 8}
        here.execute(UpdateEntry(path=MOUNT, kind=Kind.DIRECTORY, changes=changes))
        kafka.outcomes = [Rejected("no more than 4")] * 2
        moved = MoveEntry(path=MOUNT.child("a"), new_path=MOUNT.child("z"))
        kafka.between = lambda: here.execute(moved)
        grow(here, "policies", 6)
        here.settle()
        assert (here.topics()["z"].partitions, kafka.topics["a"].partitions) == (1, 1)


def test_growth_below_a_quota_is_taken_back_while_it_waits_for_approval(tmp_path: FilePath) -> None:
    kafka = GrowingKafka("a", "b")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        changes = {"policies.max_partitions": 8}
        here.execute(UpdateEntry(path=MOUNT, kind=Kind.DIRECTORY, changes=changes))
        kafka.outcomes = [OutcomeUnknown("timed out")]
        kafka.between = lambda: inherit(here)
        grow(here, "policies", 6)
        here.settle()
        assert counts(here, kafka) == (1, 1)
        entry_id = here.topics()["a"].entry_id
        assert config_issues(here.replica.snapshot, entry_id) == {"partitions": "needs-approval"}
        grow(here, "policies", None)
        here.settle()
        assert counts(here, kafka) == (1, 1)
        assert config_issues(here.replica.snapshot, entry_id) == {}
        grow(here, "policies", 6)
        here.settle()
        begin_arming(here)
        here.settle(1_000)
        assert counts(here, kafka) == (6, 6)


def wants_approval(here: World, kafka: GrowingKafka) -> None:
    inherit(here)


def refuses_more(here: World, kafka: GrowingKafka) -> None:
    kafka.outcomes = [Rejected("no more than 6")]


@pytest.mark.parametrize("then", [wants_approval, refuses_more])
def test_growth_below_a_quota_that_kafka_made_is_kept_where_more_is_not_made(
    tmp_path: FilePath, then: Callable[[World, GrowingKafka], None]
) -> None:
    """Also if the answer was lost: else what it took of the quota is given away a second time."""
    kafka = GrowingKafka("a", "b")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        changes = {"policies.max_partitions": 8}
        here.execute(UpdateEntry(path=MOUNT, kind=Kind.DIRECTORY, changes=changes))
        kafka.outcomes = [LOST]

        def more_is_wanted() -> None:
            grow(here, "policies", 7)
            then(here, kafka)

        kafka.between, missing = more_is_wanted, list[int]()

        def compare(_: object) -> None:
            recorded, real = counts(here, kafka)
            missing.append(real - recorded)

        here.replica.subscribe(compare)
        grow(here, "policies", 6)
        here.settle()
        assert (counts(here, kafka), max(missing)) == ((6, 6), 0)
        assert not kafka.outcomes
        with pytest.raises(QuotaExceeded):
            here.create("c", partitions=2)


@pytest.mark.parametrize(
    ("outcomes", "count"),
    [
        ([Succeeded()], 6),
        ([Rejected("no more than 4")], 1),
        ([OutcomeUnknown("timed out"), Rejected("no more than 4")], 1),
        ([OutcomeUnknown("timed out"), Succeeded()], 6),
    ],
)
def test_growth_below_a_quota_is_kept_where_kafka_refuses_a_config_alone(
    tmp_path: FilePath, outcomes: list[Outcome], count: int
) -> None:
    """The tree and Kafka have the same number, without a sweep, and at no time the tree less."""
    kafka = GrowingKafka("a", "b")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        here.execute(
            UpdateEntry(path=MOUNT, kind=Kind.DIRECTORY, changes={"policies.max_partitions": 8})
        )
        kafka.refused, kafka.outcomes = WEEK, list(outcomes)
        missing = list[int]()

        def compare(_: object) -> None:
            recorded, real = counts(here, kafka)
            missing.append(real - recorded)

        here.replica.subscribe(compare)
        changes = {"policies.partitions": 6, "policies.topic_config.retention.ms": WEEK}
        here.execute(UpdateEntry(path=MOUNT.child("a"), kind=Kind.TOPIC, changes=changes))
        here.settle()
        assert counts(here, kafka) == (count, count)
        assert max(missing) <= 0
        assert kafka.truth["a"] == {}
        assert not kafka.outcomes


def partitions_issue(here: World) -> str:
    topic = here.topics()["a"]
    issues = topic_issues(here.replica.snapshot, MOUNT, (ROOT_ID, "a"), topic)
    return issues.get("partitions", "")


def left_over(here: World) -> list[tuple[str, str]]:
    plan = here.reconciler.arming_service.plan(MOUNT, "configs", armed_only=True)
    return [(call.key, call.rejected) for call in plan.calls]


@pytest.mark.parametrize("bound", [False, True])
def test_growth_that_kafka_refuses_is_rejected_until_it_has_it(
    tmp_path: FilePath, bound: bool
) -> None:
    kafka = GrowingKafka("a")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        if bound:
            most: dict[str, object] = {"policies.max_partitions": 8}
            here.execute(UpdateEntry(path=MOUNT, kind=Kind.DIRECTORY, changes=most))
        kafka.outcomes = [Rejected("no more than 4")]
        grow(here, "policies", 6)
        here.settle()
        assert (counts(here, kafka), partitions_issue(here)) == ((1, 1), "rejected")
        here.sweep()
        here.settle()
        assert partitions_issue(here) == "rejected", "it is not asked for again"
        assert left_over(here) == [("partitions", "no more than 4")]
        grow(here, "policies", 3)
        assert left_over(here) == [("partitions", "")], "Kafka was not asked for these yet"
        here.settle()
        assert (counts(here, kafka), partitions_issue(here)) == ((3, 3), "")


def test_growth_is_recorded_at_once_where_kafka_refuses_a_config_alone(tmp_path: FilePath) -> None:
    kafka = GrowingKafka("a")
    with armed(tmp_path / "store.db", lambda: kafka) as here:
        kafka.refused = WEEK
        retention(here, WEEK)
        here.settle()
        grow(here, "policies", 6)
        for _ in range(3):  # no sweep in between
            here.reconciler.run_once()
        assert (counts(here, kafka), partitions_issue(here)) == ((6, 6), "")
        assert config_issues(here.replica.snapshot, here.topics()["a"].entry_id) == {
            "retention.ms": "rejected"
        }
