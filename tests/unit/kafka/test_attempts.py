"""Whose topic it is: what was asked of Kafka, what was not, and which removals reach its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path as FilePath

import pytest

from directory.kafka.admin_contract import (
    Outcome,
    OutcomeUnknown,
    Still,
    TopicToCreate,
    always,
)
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.kafka.provisioning.provisioning import Attempt
from directory.maintenance.restore import begin_new_incarnation
from directory.namespace.command import MoveEntry, UpdateEntry
from directory.namespace.entry import Kind, Topic
from directory.namespace.keys import detached_key
from tests.support.acls import arm, grant
from tests.support.backups import back_up, put_back
from tests.support.crash_points import Crash
from tests.support.kafka_ledger import Ledger
from tests.support.reconciler import MOUNT, World, world
from tests.unit.kafka.test_acl_applier import CEILING


@pytest.fixture
def kafka() -> Ledger:
    return Ledger("kept")


@pytest.fixture
def address(tmp_path: FilePath) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def started(folder: FilePath, kafka: Ledger, **settings: object) -> World:
    merged: dict[str, object] = {"ceiling": CEILING, "split_on": ".", **settings}
    made = World(folder / "store.db", lambda: kafka, **merged)
    made.sweep()
    return made


def topic(here: World, path: str) -> Topic:
    return here.topics()[path]


def put_off_by_acls(here: World, path: str) -> None:
    """Creates a topic that is not made, since its ACLs are more than the limit allows."""
    grant(here, "kept", "allow alice read")
    arm(here, "", takeover=True)
    here.mkdir("search")
    grant(here, "search", "allow bob read")
    here.create(path)
    here.reconciler.run_once()
    assert topic(here, path).provision_message.startswith("its ACLs wait")


def test_a_deleted_topic_that_a_broker_still_shows_does_not_come_back_with_the_next_leader(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        before = kafka.topics["kept"]
        here.remove("kept")
        here.settle()
        assert kafka.deleted_ids == [before.topic_id]
        here.reconciler.resign()  # what one process remembers of its deletions ends
        kafka.topics["kept"] = before
        here.sweep()
        assert here.states() == {}
        assert here.reconciler.requests.adopt([], True, False).rows == []
        kafka.add("kept")  # by another client
        here.sweep()
        assert here.states() == {"kept": "ACTIVE"}


def test_a_removed_topic_that_a_broker_did_not_show_and_that_was_not_deleted_is_adopted(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        before = kafka.topics["kept"]
        here.reconciler.resign()
        here.remove("kept")
        del kafka.topics["kept"]
        here.settle()
        kafka.topics["kept"] = before
        assert kafka.deleted_ids == []
        here.sweep()
        assert here.states() == {"kept": "ACTIVE"}


def test_while_its_acls_wait_there_is_no_attempt_and_a_topic_that_comes_is_another_clients(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka, max_acls=1)) as here:
        put_off_by_acls(here, "search/clicks")
        assert topic(here, "search/clicks").provision_attempt == ""
        kafka.add("search.clicks")
        here.sweep()
        found = topic(here, "search/clicks")
        assert found.provision.name == "FAILED"
        assert "exists in Kafka and was not made by kdir" in found.provision_message
        here.remove("search/clicks")
        here.sweep()
        here.sweep()
        assert "search.clicks" in kafka.topics
        assert kafka.deleted == []


def test_acls_that_are_there_already_stay_while_others_wait(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    from tests.support.acls import on

    with closing(started(tmp_path, kafka)) as here:
        arm(here, "", takeover=True)
        here.mkdir("search")
        grant(here, "search", "deny eve read", "allow bob read")
        (second,) = on("topic search.clicks", "allow bob read")
        kafka.answers[second] = OutcomeUnknown("nobody answered")
        here.create("search/clicks")
        for _ in range(3):
            here.sweep()
        assert kafka.bindings == on("topic search.clicks", "deny eve read")
        assert not [one for one in kafka.order if one.startswith("- ")], "none comes and goes"
        assert topic(here, "search/clicks").provision_attempt == ""
        del kafka.answers[second]
        here.settle()
        assert here.states()["search/clicks"] == "ACTIVE"
        assert kafka.bindings == on("topic search.clicks", "deny eve read", "allow bob read")


def test_a_topic_asked_for_a_moment_ago_is_kdirs_though_its_acls_wait_when_it_is_not_shown_yet(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    from tests.support.acls import on

    with closing(started(tmp_path, kafka)) as here:
        arm(here, "", takeover=True)
        here.mkdir("search")
        grant(here, "search", "allow bob read")
        here.settle()
        kafka.loses_answers = True
        here.create("search/clicks")
        here.reconciler.run_once()
        kafka.loses_answers = False
        hidden = kafka.topics.pop("search.clicks")  # brokers lag
        (second,) = on("topic search.clicks", "allow eve read")
        kafka.answers[second] = OutcomeUnknown("nobody answered")
        grant(here, "search", "allow eve read")
        here.now += 15
        here.reconciler.run_once()
        assert topic(here, "search/clicks").provision_message.startswith("its ACLs wait")
        kafka.topics["search.clicks"] = hidden
        here.now += 15
        here.reconciler.run_once()
        assert here.states()["search/clicks"] == "ACTIVE"


def test_a_removal_without_a_topic_id_does_not_outlive_a_restore(
    kafka: Ledger, tmp_path: FilePath, address: str
) -> None:
    here = started(tmp_path, kafka)
    here.create("x")
    kafka.loses_requests = True
    here.sweep()
    assert topic(here, "x").provision_attempt
    kafka.away = True
    here.remove("x")
    here.sweep()
    backup = back_up(here.store)
    kafka.away = False
    here.settle()
    assert here.nothing_left_to_reap(), "Kafka has none: nothing is left to do"
    here.close()
    kafka.add("x")
    put_back(backup, address)
    with world(tmp_path / "store.db", lambda: kafka, ceiling=CEILING) as again:
        assert [one.physical_name for one in again.removed()] == ["x"]
        again.sweep()
        again.settle()
        assert kafka.deleted == []
        assert again.nothing_left_to_reap()
        mark = again.replica.snapshot.fact(detached_key("x"))
        assert mark == kafka.topics["x"].topic_id, "an operator decides: it is left out, and listed"
        assert "x" not in again.topics()
        (row,) = (
            r for r in again.reconciler.requests.adopt([], True, False).rows if r.path is None
        )
        assert (row.physical_name, row.action) == ("x", "detached")


@pytest.mark.parametrize("by", ["restore", "new life"])
def test_an_attempt_counts_in_the_incarnation_of_the_store_in_which_it_was_recorded(
    kafka: Ledger, tmp_path: FilePath, address: str, by: str
) -> None:
    here = started(tmp_path, kafka)
    here.create("x")
    kafka.loses_requests = True
    here.sweep()
    assert topic(here, "x").provision_attempt
    backup = back_up(here.store)
    here.remove("x")
    here.close()
    if by == "restore":
        put_back(backup, address)
    else:
        with world(tmp_path / "store.db", lambda: kafka, ceiling=CEILING) as between:
            between.create("y")
            between.sweep()
        begin_new_incarnation(address)
    name = "x" if by == "restore" else "y"
    kafka.loses_requests = False
    kafka.add(name)
    with world(tmp_path / "store.db", lambda: kafka, ceiling=CEILING) as again:
        again.settle()
        assert topic(again, name).provision.name == "FAILED"
        assert topic(again, name).provision_attempt == ""
        again.remove(name)
        again.sweep()
        assert kafka.deleted == []


def test_an_attempt_that_still_waits_after_a_restore_is_made_again(
    kafka: Ledger, tmp_path: FilePath, address: str
) -> None:
    here = started(tmp_path, kafka)
    here.create("x")
    kafka.loses_requests = True
    here.sweep()
    before = topic(here, "x").provision_attempt
    backup = back_up(here.store)
    here.create("z")
    here.close()
    put_back(backup, address)
    kafka.loses_requests, kafka.loses_answers = False, True
    with world(tmp_path / "store.db", lambda: kafka, ceiling=CEILING) as again:
        again.settle()
        assert topic(again, "x").provision.name == "ACTIVE"
        assert topic(again, "x").provision_attempt != before


def test_an_attempt_at_one_kafka_accounts_for_nothing_in_another(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x")
        kafka.loses_requests = True
        here.sweep()
        kafka.kafka_id, kafka.loses_requests = "other", False
        kafka.add("x")
        here.sweep()
        stop = PinnedKafka.load(here.replica.snapshot).stop
        assert stop is not None
        here.reconciler.acknowledge(stop.text)
        here.settle()
        assert topic(here, "x").provision.name == "FAILED"


class _Dies:
    def __init__(self, kafka: Ledger) -> None:
        self._kafka = kafka

    def __call__(self) -> None:
        raise Crash


def test_who_died_between_record_and_request_leaves_nothing_to_be_deleted(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    here = started(tmp_path, kafka)
    here.create("x")
    kafka.before_create = _Dies(kafka)
    with pytest.raises(Crash):
        here.sweep()
    assert topic(here, "x").provision_attempt
    here.remove("x")
    here.close()
    kafka.before_create = lambda: None
    kafka.add("x")
    with world(tmp_path / "store.db", lambda: kafka, ceiling=CEILING) as again:
        again.sweep()
        again.settle()
        assert kafka.deleted == []
        assert again.nothing_left_to_reap()


def test_a_topic_that_is_otherwise_than_it_was_asked_for_is_another_clients(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    here = started(tmp_path, kafka)
    here.create("x", partitions=3)
    kafka.before_create = _Dies(kafka)
    with pytest.raises(Crash):
        here.sweep()
    here.close()
    kafka.before_create = lambda: None
    kafka.add("x")
    with world(tmp_path / "store.db", lambda: kafka, ceiling=CEILING) as again:
        again.settle()
        assert topic(again, "x").provision.name == "FAILED"


def test_what_is_removed_while_it_is_made_goes_all_the_same(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x")
        kafka.before_create = lambda: here.remove("x")
        here.sweep()
        kafka.before_create = lambda: None
        here.settle()
        assert kafka.deleted == ["x"]
        assert here.nothing_left_to_reap()


@pytest.mark.parametrize("ceiling", [("create",), CEILING])
def test_what_comes_after_its_entry_was_removed_is_left_alone_and_not_adopted(
    kafka: Ledger, tmp_path: FilePath, ceiling: tuple[str, ...]
) -> None:
    """Whoever sent the request died, and Kafka answers it long after the removal was finished."""
    here = started(tmp_path, kafka, ceiling=ceiling)
    here.create("x")
    kafka.before_create = _Dies(kafka)
    with pytest.raises(Crash):
        here.sweep()
    here.remove("x")
    here.close()
    kafka.before_create = lambda: None
    with world(tmp_path / "store.db", lambda: kafka, ceiling=ceiling, split_on=".") as again:
        again.sweep()
        again.settle()
        assert again.nothing_left_to_reap()
        kafka.add("x")
        again.sweep()
        again.settle()
        assert "x" not in again.topics()
        assert kafka.deleted == []
        # Once it is seen it is that very topic; another one of its name is somebody else's.
        del kafka.topics["x"]
        again.sweep()
        kafka.add("x")
        again.sweep()
        assert "x" in again.topics()


def test_a_topic_that_another_client_makes_again_after_a_removal_is_adopted(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka, split_on=".")) as here:
        here.create("x")
        here.settle()
        here.remove("x")
        here.settle()
        assert kafka.deleted == ["x"]
        kafka.add("x")
        here.sweep()
        assert "x" in here.topics()


def test_a_topic_is_not_deleted_while_kafka_does_not_show_which_one_it_is(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x")
        here.settle()
        here.remove("x")
        kafka.shows_ids = False
        here.sweep()
        assert kafka.deleted == []
        (waiting,) = here.removed()
        assert "without its topic id" in waiting.provision_message
        kafka.shows_ids = True
        here.settle()
        assert kafka.deleted == ["x"]


def test_what_was_moved_before_it_was_asked_for_has_no_attempt_left(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    class Moves:
        """Right after the attempt is recorded, somebody moves the topic."""

        def __init__(self, real: object) -> None:
            self._real = real
            self.here: World | None = None

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

        def commit_command(self, command: object, **options: object) -> object:
            done = self._real.commit_command(command, **options)  # type: ignore[attr-defined]
            here, self.here = self.here, None
            if here is not None:
                source, to = MOUNT.child("x"), MOUNT.child("y")
                here.execute(MoveEntry(path=source, new_path=to, kind=Kind.TOPIC))
            return done

    moves: list[Moves] = []

    def writer(real: object) -> Moves:
        moves.append(Moves(real))
        return moves[-1]

    with closing(started(tmp_path, kafka, writer=writer)) as here:
        here.create("x")
        moves[0].here = here  # the reconciler's writer
        here.reconciler.run_once()
        assert kafka.made == []
        assert topic(here, "y").provision_attempt == ""
        here.settle()
        assert here.states()["y"] == "ACTIVE"


def test_a_topic_has_the_configs_of_its_directory_though_that_is_renamed_right_before_the_request(
    kafka: Ledger, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        term = here.reconciler.term
        assert term is not None
        asked: list[TopicToCreate] = []
        note_asked, create = term.acknowledged.note_asked, kafka.create

        def rename(attempts: Iterable[str]) -> None:
            note_asked(attempts)
            source, to = MOUNT.child("d"), MOUNT.child("e")
            here.execute(MoveEntry(path=source, new_path=to, kind=Kind.DIRECTORY))

        def note_and_create(
            desired_set: Sequence[TopicToCreate], still: Still = always
        ) -> Mapping[str, Outcome]:
            asked.extend(desired_set)
            return create(desired_set, still)

        monkeypatch.setattr(term.acknowledged, "note_asked", rename)
        monkeypatch.setattr(kafka, "create", note_and_create)
        here.mkdir("d")
        changes = {"policies.topic_config.retention.ms": "7", "policies.partitions": 3}
        here.execute(UpdateEntry(path=MOUNT.child("d"), kind=Kind.DIRECTORY, changes=changes))
        here.create("d/x")
        here.reconciler.run_once()
        assert [(one.partitions, dict(one.config)) for one in asked] == [(3, {"retention.ms": "7"})]
        monkeypatch.undo()
        here.settle()
        assert here.states()["e/x"] == "ACTIVE"
        assert topic(here, "e/x").observed_config == {"retention.ms": "7"}


def test_a_topic_that_is_asked_for_again_with_another_number_is_kdirs(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x", partitions=3)
        kafka.loses_requests = True
        here.reconciler.run_once()
        changes = {"topic.partitions": 6}
        here.execute(UpdateEntry(path=MOUNT.child("x"), kind=Kind.TOPIC, changes=changes))
        kafka.loses_requests, kafka.loses_answers = False, True
        here.sweep()
        kafka.loses_answers = False
        here.sweep()
        assert here.states()["x"] == "ACTIVE"
        assert topic(here, "x").partitions == kafka.topics["x"].partitions == 6


def test_a_topic_of_the_first_request_is_kdirs_though_the_last_asked_for_another_number(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x", partitions=3)
        kafka.loses_answers = True
        here.reconciler.run_once()
        hidden = kafka.topics.pop("x")  # brokers lag
        changes = {"topic.partitions": 6}
        here.execute(UpdateEntry(path=MOUNT.child("x"), kind=Kind.TOPIC, changes=changes))
        kafka.loses_answers, kafka.loses_requests = False, True
        here.sweep()
        kafka.loses_requests, kafka.topics["x"] = False, hidden
        here.sweep()
        assert here.states()["x"] == "ACTIVE"


def test_a_topic_that_another_client_made_first_in_another_shape_is_not_kdirs_at_the_second_request(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x", partitions=12)
        kafka.loses_requests = True
        here.reconciler.run_once()
        kafka.loses_requests = False

        def is_quicker() -> None:
            kafka.before_create = lambda: None
            kafka.add("x")

        kafka.before_create = is_quicker
        here.sweep()
        assert here.states()["x"] == "FAILED"
        assert topic(here, "x").provision_attempt == ""
        here.remove("x")
        here.settle()
        assert kafka.deleted == []


def test_a_topic_whose_partitions_are_shown_late_is_not_kdirs_in_another_shape(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x", partitions=12)
        kafka.loses_requests = True
        here.reconciler.run_once()
        kafka.loses_requests = False
        kafka.add("x")
        kafka.electing = {"x"}
        here.sweep()
        assert here.states()["x"] == "FAILED"
        here.remove("x")
        here.settle()
        assert kafka.deleted == []


# -- topics made a moment ago ----------------------------------------------------------------------


def test_K7_a_topic_removed_a_moment_after_its_making_goes_once_a_broker_shows_it(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x")
        here.settle()
        hidden = kafka.topics.pop("x")  # the next broker that is asked lags
        here.remove("x")
        here.reconciler.run_once()
        assert [one.physical_name for one in here.removed()] == ["x"]
        kafka.topics["x"] = hidden
        here.settle()
        assert kafka.deleted == ["x"]
        assert here.nothing_left_to_reap()
        here.sweep()
        assert set(here.topics()) == {"kept"}


def test_a_topic_that_another_client_deleted_a_moment_after_its_making_does_not_come_back(
    kafka: Ledger, tmp_path: FilePath
) -> None:
    with closing(started(tmp_path, kafka)) as here:
        here.create("x")
        here.settle()
        del kafka.topics["x"]
        here.remove("x")
        here.settle()
        assert here.nothing_left_to_reap()
        # Its sweep is due within the minute in which other brokers may not know of the topic.
        term = here.reconciler.term
        assert term is not None
        term.sweeper.due = 0.0
        here.reconciler.run_once()
        assert set(here.topics()) == {"kept"}


def test_topics_made_a_moment_ago_are_neither_there_nor_gone_for_the_vanish_guard(
    tmp_path: FilePath,
) -> None:
    kafka = Ledger(*(f"old{number}" for number in range(20)))
    with closing(started(tmp_path, kafka)) as here:
        names = [f"t{number}" for number in range(60)]
        for name in names:
            here.create(name)
        here.settle()
        for name in names:
            del kafka.topics[name]
        term = here.reconciler.term
        assert term is not None
        term.sweeper.due = 0.0
        here.reconciler.run_once()
        assert {here.states()[name] for name in names} == {"ACTIVE"}
        assert here.stopped == ""
        for number in range(3):
            del kafka.topics[f"old{number}"]
        term.sweeper.due = 0.0
        here.reconciler.run_once()
        assert "3 of 20 topics vanished" in here.stopped


# -- the stored form -------------------------------------------------------------------------------


def test_an_attempt_is_read_back_and_any_other_text_is_none() -> None:
    for one in (Attempt("n", "i", "K", 3, 2), Attempt("n", "", "", 0, 0)):
        assert Attempt.from_text(one.to_text()) == one
    older = "9f86d081884c7d65"
    for text in ("", older, "3 n i K 1 1", "2 n i K 1", "2 n i K 1 x", "2 n i K  "):
        assert Attempt.from_text(text) is None
