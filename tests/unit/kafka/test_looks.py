"""What is seen of Kafka between two sweeps: which topics came, went or have more partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from directory.kafka.admin_contract import KafkaListing, KafkaMetadata, KafkaTopic, Rejected
from directory.namespace.command import RecordObservations, TopicObservation, UpdateEntry
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import claim_key, entry_key
from directory.store.base import Delete, Put, Transaction
from resolver.errors import InvalidArgument, StoreUnavailable
from tests.support.kafka_ledger import Ledger
from tests.support.reconciler import MOUNT, World, eventually, world

LOOK_SECONDS = 21.0
"""From one look to the next in a world, whose sweeps are 300 s apart."""


class Kafka(Ledger):
    """One that counts what it is asked, and whose listing can leave topics out."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.sweeps = 0
        self.described: list[str] = []
        self.unlisted: frozenset[str] = frozenset()
        self.denied: frozenset[str] = frozenset()
        """Topics that kdir may not describe: not listed, either."""
        self.before_listing: Callable[[], object] = lambda: None
        self.read: list[str] = []
        self.set_on: dict[str, Mapping[str, str] | Rejected] = {}
        """Configs that are set on topics."""

    def list_all(self) -> KafkaListing:
        self.before_listing()
        shown = super().list_all()
        self.sweeps -= 1  # that one was made of all
        left_out = self.unlisted | self.denied
        counts = {name: n for name, n in shown.partitions.items() if name not in left_out}
        return KafkaListing(shown.cluster_id, counts)

    def describe_all(self) -> KafkaMetadata:
        self.sweeps += 1
        shown = super().describe_all()
        left_out = self.unlisted | self.denied
        topics = {name: one for name, one in shown.topics.items() if name not in left_out}
        return replace(shown, topics=topics)

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        self.described += names
        refused = Rejected("Topic authorization failed.")
        denied = {name: refused for name in names if name in self.denied}
        return {**super().describe(names), **denied}

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        self.read += names
        return {name: self.set_on.get(name, {}) for name in super().configs(names)}


@pytest.fixture
def kafka() -> Kafka:
    return Kafka(*(f"t{number}" for number in range(20)))


@pytest.fixture
def here(tmp_path: FilePath, kafka: Kafka) -> Iterator[World]:
    """Yields a directory that has made its one sweep."""
    with world(tmp_path / "store.db", lambda: kafka) as made:
        made.sweep()
        assert kafka.sweeps == 1
        kafka.described.clear()
        yield made


def look(here: World, kafka: Kafka) -> None:
    """Makes the rounds until Kafka was looked at once more, without a sweep."""
    here.now += LOOK_SECONDS
    here.reconciler.run_once()
    assert kafka.sweeps == 1


def test_topics_that_come_go_and_grow_are_seen_between_two_sweeps(
    here: World, kafka: Kafka
) -> None:
    kafka.add("new")
    look(here, kafka)
    assert here.topics()["new"].adopted
    del kafka.topics["t3"]
    kafka.topics["t4"] = replace(kafka.topics["t4"], partitions=7)
    look(here, kafka)
    assert here.states()["t3"] == "MISSING"
    assert here.topics()["t4"].partitions == 7
    assert kafka.described == ["new", "t3", "t4"], "what changed, and nothing else"


def test_where_nothing_changed_only_the_names_are_listed(here: World, kafka: Kafka) -> None:
    before = here.replica.snapshot
    for _ in range(5):
        look(here, kafka)
    assert kafka.described == []
    assert here.replica.snapshot is before


@pytest.mark.parametrize("is_sweep", [False, True])
def test_a_topic_that_kafka_refuses_to_describe_is_not_gone(
    here: World, kafka: Kafka, is_sweep: bool
) -> None:
    """Of 20 topics these are enough for the guard, if they were gone."""
    kafka.denied = frozenset({"t1", "t2", "t3", "t4"})
    kafka.add("new")
    for _ in range(2):
        here.sweep() if is_sweep else look(here, kafka)
        assert not here.stopped
        assert set(here.states().values()) == {"ACTIVE"}
    assert "new" in here.topics()
    status = here.reconciler.status()
    why = "topic t1 and 3 other topics cannot be described: Topic authorization failed."
    assert (status.message, status.message_names_topics) == (why, True)
    del kafka.topics["t1"]
    kafka.denied = frozenset({"t2"})
    here.sweep()
    assert [path for path, state in here.states().items() if state == "MISSING"] == ["t1"]
    kafka.denied = frozenset()
    here.sweep()
    assert here.states()["t2"] == "ACTIVE"
    assert here.reconciler.status().message == ""


def test_a_topic_that_one_broker_does_not_list_and_another_one_shows_is_there(
    here: World, kafka: Kafka
) -> None:
    kafka.unlisted = frozenset({"t5"})
    look(here, kafka)
    assert kafka.described == ["t5"]
    assert here.states()["t5"] == "ACTIVE"


@pytest.mark.parametrize("is_new_leader", [False, True])
def test_a_sweep_stops_for_no_topics_that_one_broker_does_not_list_and_another_one_shows(
    here: World, kafka: Kafka, is_new_leader: bool
) -> None:
    if is_new_leader:
        here.reconciler.resign()
    kafka.unlisted = frozenset({"t5", "t6", "t7"})
    del kafka.topics["t7"]
    here.sweep()
    assert sorted(kafka.described) == ["t5", "t6", "t7"], "what is not listed, and nothing else"
    assert not here.stopped
    assert [here.states()[name] for name in ("t5", "t6", "t7")] == ["ACTIVE", "ACTIVE", "MISSING"]


def test_topics_that_vanish_one_after_the_other_between_two_sweeps_stop_as_at_once(
    here: World, kafka: Kafka
) -> None:
    for number in range(3):
        assert not here.stopped
        del kafka.topics[f"t{number}"]
        look(here, kafka)
    assert here.stopped.startswith("3 of 20 topics vanished from Kafka")
    assert here.states()["t2"] == "ACTIVE"


def test_S17_an_acknowledgement_whose_answer_is_lost_is_answered_when_it_is_sent_again(
    here: World, kafka: Kafka
) -> None:
    topics = dict(kafka.topics)

    def stop() -> str:
        kafka.topics.update(topics)
        here.sweep()
        kafka.topics.clear()
        here.sweep()
        return here.stopped

    acknowledge, text = here.reconciler.acknowledge, stop()
    for _ in range(2):
        acknowledge(text, principal="User:a", request_id="r1")
    assert here.stopped == ""
    for who, request_id in (("User:b", "r1"), ("User:a", "r2"), ("User:a", "")):
        with pytest.raises(InvalidArgument, match="nothing is stopped"):
            acknowledge(text, principal=who, request_id=request_id)
    here.sweep()
    assert stop() == text
    acknowledge(text, principal="User:a", request_id="r1")
    assert here.stopped == text, "a later stop is not what it was about"
    acknowledge(text, principal="User:a", request_id="r3")
    assert here.stopped == ""


@pytest.mark.parametrize("during_a_look", [False, True])
def test_a_vanish_that_was_acknowledged_at_another_server_does_not_stop_again(
    here: World, kafka: Kafka, during_a_look: bool
) -> None:
    for number in range(3):
        del kafka.topics[f"t{number}"]
    look(here, kafka)

    def acknowledge() -> None:
        kafka.before_listing = lambda: None
        # As another server does, which is not the elected one.
        here.reconciler.requests.acknowledge(here.stopped)

    if during_a_look:
        kafka.before_listing = acknowledge
        kafka.add("new")
        look(here, kafka)
    else:
        acknowledge()
        here.reconciler.run_once()
    assert here.states()["t2"] == "MISSING"
    del kafka.topics["t3"]
    here.now += LOOK_SECONDS
    here.reconciler.run_once()
    assert not here.stopped
    assert here.states()["t3"] == "MISSING"


@pytest.mark.parametrize("is_sweep", [False, True])
def test_what_could_not_be_committed_is_committed_by_the_next_look(
    here: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, is_sweep: bool
) -> None:
    kafka.add("new")
    del kafka.topics["t3"]
    with monkeypatch.context() as fails:

        def commit_command(*_: object, **__: object) -> None:
            raise StoreUnavailable("away for a moment")

        fails.setattr(here.writer, "commit_command", commit_command)
        here.now += 3600 if is_sweep else LOOK_SECONDS
        here.reconciler.run_once()
        assert (here.states()["t3"], "new" in here.topics()) == ("ACTIVE", False)
    sweeps = kafka.sweeps
    here.now += LOOK_SECONDS
    here.reconciler.run_once()
    assert (here.states()["t3"], "new" in here.topics()) == ("MISSING", True)
    assert kafka.sweeps == sweeps


def test_topics_that_vanish_with_sweeps_in_between_do_not_stop_anything(
    here: World, kafka: Kafka
) -> None:
    for number in range(3):
        del kafka.topics[f"t{number}"]
        here.sweep()
    assert not here.stopped
    assert here.states()["t2"] == "MISSING"


@pytest.mark.parametrize(("rate", "looks"), [(500.0, 1), (0.25, 2)])
def test_configs_of_all_are_read_within_two_looks_or_as_fast_as_the_setting_lets_them_be(
    tmp_path: FilePath, kafka: Kafka, rate: float, looks: int
) -> None:
    settings = {"configs_per_read": 10, "configs_per_second": rate}
    with world(tmp_path / "other.db", lambda: kafka, **settings) as here:
        here.sweep()
        first = set(kafka.read)
        for number in range(1, looks + 1):
            assert len(kafka.read) == 10, "longest unread first, and no more often"
            look(here, kafka)
            assert len(kafka.read) == (20 if number == looks else 10)
        assert len(first) == 10
        assert not first & set(kafka.read[10:])


@pytest.mark.parametrize("is_loaded", [False, True])
def test_S21_a_topic_whose_entry_cannot_be_read_holds_up_no_sweep(
    tmp_path: FilePath, kafka: Kafka, is_loaded: bool
) -> None:
    file = tmp_path / "spoiled.db"
    with world(file, lambda: kafka) as here:
        here.sweep()
        record = here.replica.snapshot.root.topics.get("t3")
        assert record is not None
        key = entry_key(ROOT_ID, Kind.TOPIC, "t3")
        here.store.commit(Transaction((), (Put(key, record[:-3]),)))
        if not is_loaded:  # a commit is read whole, and the record is set aside
            eventually(lambda: "t3" not in here.replica.snapshot.root.topics)
            see_what_came_and_went(here, kafka)
    if is_loaded:  # a load reads first bytes only, and the record is in the tree
        with world(file, lambda: kafka) as here:
            assert "t3" in here.replica.snapshot.root.topics
            see_what_came_and_went(here, kafka)


@pytest.mark.parametrize("stored", [b"\xff", b"other", None])
def test_S21_a_damaged_claim_of_a_name_holds_up_no_round_and_no_removal(
    tmp_path: FilePath, stored: bytes | None
) -> None:
    kafka = Ledger("x", "d.y", "e.z")
    with world(tmp_path / "claims.db", lambda: kafka, split_on=".") as here:
        here.sweep()
        keys = [claim_key(name) for name in ("x", "d.y")]
        here.writer.put_facts([Put(key, stored) if stored else Delete(key) for key in keys])
        for path in ("x", "d", "e"):
            here.remove(path)
        here.create("new")
        kafka.add("foreign")
        here.sweep()
        here.sweep()
        assert here.nothing_left_to_reap()
        assert here.states() == {"foreign": "ACTIVE", "new": "ACTIVE"}
        assert here.store.read(claim_key("x")) == []


@pytest.mark.parametrize("stored", [b"\xff", b"other", None])
def test_S21_many_damaged_claims_below_a_directory_hold_up_no_removal_of_it(
    tmp_path: FilePath, stored: bytes | None
) -> None:
    """More than a write is tried because of others: each is found by a try of its own."""
    names = [f"d.t{number}" for number in range(20)]
    kafka = Ledger(*names, "kept")
    with world(tmp_path / "claims.db", lambda: kafka, split_on=".") as here:
        here.sweep()
        keys = [claim_key(name) for name in names]
        here.writer.put_facts([Put(key, stored) if stored else Delete(key) for key in keys])
        here.remove("d")
        for name in names:
            del kafka.topics[name]
        here.sweep()
        assert here.nothing_left_to_reap()
        assert here.states() == {"kept": "ACTIVE"}
        assert [row for key in keys for row in here.store.read(key)] == []


def test_S21_a_name_is_free_again_once_its_unreadable_entry_is_removed(tmp_path: FilePath) -> None:
    kafka = Ledger("a.b")
    with world(tmp_path / "claims.db", lambda: kafka, split_on=".") as here:
        here.sweep()
        directory_id = here.replica.snapshot.find_directory(("a",))
        assert directory_id is not None
        here.writer.put_facts([Put(entry_key(directory_id, Kind.TOPIC, "b"), b"\xff")])
        here.remove("a")
        kafka.topics.clear()
        here.sweep()
        here.create("a_b", physical_name="a_b")
        here.settle()
        assert here.states() == {"a_b": "ACTIVE"}


def see_what_came_and_went(here: World, kafka: Kafka) -> None:
    kafka.add("new")
    del kafka.topics["t4"]
    here.sweep()
    assert here.topics()["new"].adopted
    assert here.states()["t4"] == "MISSING"
    assert "t3" not in {topic.physical_name for topic in here.topics().values()}
    assert list(here.replica.snapshot.unreadable_values) == [entry_key(ROOT_ID, Kind.TOPIC, "t3")]
    counts = here.reconciler.status()
    assert (counts.reachable, counts.missing_count) == (True, 1)


def test_configs_of_another_topic_of_that_name_are_not_drift_of_the_recorded_one(
    here: World, kafka: Kafka
) -> None:
    here.create("refused")
    kafka.add("refused")
    del kafka.topics["t1"]
    kafka.add("t1")
    for name in ("refused", "t1", "t2"):
        wanted = {"policies.topic_config.retention.ms": "2"}
        here.execute(UpdateEntry(path=MOUNT.child(name), kind=Kind.TOPIC, changes=wanted))
        kafka.set_on[name] = {"retention.ms": "1"}
    here.sweep()
    here.sweep()
    found = {name: here.topics()[name] for name in ("refused", "t1", "t2")}
    assert [one.provision.name for one in found.values()] == ["FAILED", "REPLACED", "ACTIVE"]
    assert [dict(one.observed_config) for one in found.values()] == [{}, {}, {"retention.ms": "1"}]
    assert here.reconciler.status().drift_count == 1


def test_what_no_list_shows_is_not_counted_as_drifting(here: World, kafka: Kafka) -> None:
    here.create("refused")
    kafka.add("refused")
    here.sweep()
    # An older version recorded it so.
    known = TopicObservation(
        path=MOUNT.child("refused"), entry_id=here.topics()["refused"].entry_id, drift_count=1
    )
    here.execute(RecordObservations(news=(known,)))
    assert here.topics()["refused"].drift_count == 1
    assert here.reconciler.status().drift_count == 0


def test_why_configs_cannot_be_read_is_in_the_status_until_they_are_read(
    tmp_path: FilePath, kafka: Kafka
) -> None:
    with world(tmp_path / "other.db", lambda: kafka, configs_per_read=10) as here:
        kafka.set_on["t3"] = Rejected("not authorized")
        here.sweep()
        for _ in range(4):
            look(here, kafka)
            status = here.reconciler.status()
            assert status.message == "configs of t3 cannot be read: not authorized"
            assert status.message_names_topics
        del kafka.set_on["t3"]
        for _ in range(2):
            look(here, kafka)
        status = here.reconciler.status()
        assert (status.message, status.message_names_topics) == ("", False)
        kafka.set_on["t3"] = Rejected("not authorized")
        for _ in range(2):
            look(here, kafka)
        del kafka.topics["t3"]
        look(here, kafka)
        assert here.reconciler.status().message == ""


@pytest.mark.parametrize(("read", "unread"), [("t3", "t15"), ("t15", "t3")])
def test_the_status_names_another_topic_whose_configs_cannot_be_read(
    tmp_path: FilePath, kafka: Kafka, read: str, unread: str
) -> None:
    """Each reading is of a part of the topics: none of them forgets what others found."""
    with world(tmp_path / "other.db", lambda: kafka, configs_per_read=10) as here:

        def message() -> str:
            for _ in range(2):
                look(here, kafka)
            return here.reconciler.status().message

        kafka.set_on |= {name: Rejected("not authorized") for name in (read, unread)}
        here.sweep()
        assert " and 1 other topic cannot be read: not authorized" in message()
        del kafka.set_on[read]
        assert message() == f"configs of {unread} cannot be read: not authorized"
        del kafka.set_on[unread]
        assert message() == ""
