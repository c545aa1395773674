"""Writing: one effect for each request, whatever happens to store, rivals and answers."""

import threading
import time

import pytest

from directory.namespace.command import (
    Command,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    UpdateEntry,
)
from directory.namespace.entry import Topic
from directory.namespace.keys import EVENT, REQUEST, kafka_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import KeyEquals, Put, StoreRefused, StoreUnreachable, Transaction
from directory.store.replica import ReplicaState
from directory.store.transaction_limits import Limits
from directory.store.writer import CommitResult
from resolver.errors import (
    AlreadyExists,
    InvalidNamespace,
    KdirError,
    LimitExceeded,
    NotReady,
    RequestIdReused,
    StoreUnavailable,
    WriteConflict,
)
from tests.unit.store.scripted_store import ScriptedStore
from tests.unit.writing.bench import Bench, eventually, path


def test_what_was_written_is_in_the_replica_when_the_answer_comes(bench: Bench) -> None:
    for number in range(30):
        written = bench.create(f"/la/t{number}")
        assert bench.replica.snapshot.revision >= written.revision
        assert f"t{number}" in bench.names()
        assert not written.repeated


def test_the_event_is_in_the_transaction_with_who_when_and_why(
    store: ScriptedStore, bench: Bench
) -> None:
    written = bench.writer.commit_command(
        CreateDirectory(path=path("/la/a/b"), make_parents=True),
        principal="User:ana",
        request_id="r1",
    )
    ((revision, events),) = bench.history.since(0)
    assert revision == written.revision
    assert [(event.path, event.position) for event in events] == [("/la/a", 0), ("/la/a/b", 1)]
    assert {event.principal for event in events} == {"User:ana"}
    assert {event.request_id for event in events} == {"r1"}
    assert {event.cluster_id for event in events} == {"kc-scripted00"}
    assert {event.revision for event in events} == {revision}
    assert abs(events[0].time.ToMilliseconds() / 1000 - time.time()) < 3600
    (row,) = store.read(EVENT)
    assert row.revision == written.revision


def test_what_changes_nothing_writes_nothing(store: ScriptedStore, bench: Bench) -> None:
    bench.create("/la/t")
    update = UpdateEntry(path=path("/la/t"), changes={"policies.owner": "ana"})
    first = bench.writer.commit_command(update)
    before = store.commits
    again = bench.writer.commit_command(update)
    assert again.revision == first.revision
    assert store.commits == before


def test_an_error_of_planning_writes_nothing(store: ScriptedStore, bench: Bench) -> None:
    with pytest.raises(InvalidNamespace):
        bench.create("/la/nowhere/t", request_id="r")
    assert store.commits == 0


def test_validate_only_plans_and_writes_nothing(store: ScriptedStore, bench: Bench) -> None:
    command = CreateTopic(path=path("/la/t"))
    planned = bench.writer.commit_command(command, validate_only=True, request_id="r")
    assert planned.plan.path == path("/la/t")
    assert store.commits == 0
    bench.create("/la/t", request_id="r")
    with pytest.raises(AlreadyExists):
        bench.writer.commit_command(command, validate_only=True, request_id="r")


# -- the same request again -------------------------------------------------------------------


def _answer(written: CommitResult) -> tuple[object, ...]:
    plan = written.plan
    return (
        plan.entry,
        plan.path,
        plan.topic_count,
        plan.directory_count,
        plan.notes,
        written.revision,
    )


def test_the_same_request_again_gets_the_same_answer_and_has_no_second_effect(
    store: ScriptedStore, bench: Bench
) -> None:
    bench.mkdir("/la/a/b")
    bench.create("/la/a/b/t")
    commands: dict[str, Command] = {
        "create": CreateTopic(path=path("/la/a/new"), partitions=3),
        "move": MoveEntry(path=path("/la/a/new"), new_path=path("/la/a/b/new")),
        "update": UpdateEntry(path=path("/la/a"), changes={"policies.owner": "ana"}),
        "delete": DeleteEntry(path=path("/la/a"), recursive=True),
    }
    first = {}
    for request_id, command in commands.items():
        first[request_id] = bench.writer.commit_command(command, request_id=request_id)
        assert not first[request_id].repeated
    # The counts were worth keeping, so that the test shows that they are.
    assert first["delete"].plan.topic_count == 2
    assert first["delete"].plan.directory_count == 2
    events = len(store.read(EVENT))
    for request_id, command in commands.items():
        again = bench.writer.commit_command(command, request_id=request_id)
        assert again.repeated
        assert _answer(again) == _answer(first[request_id])
    assert len(store.read(EVENT)) == events


def test_the_same_id_with_another_command_is_refused(bench: Bench) -> None:
    bench.create("/la/t", request_id="r")
    for command in (
        CreateTopic(path=path("/la/other")),
        CreateTopic(path=path("/la/t"), partitions=7),
        DeleteEntry(path=path("/la/t")),
    ):
        with pytest.raises(RequestIdReused, match="'r'"):
            bench.writer.commit_command(command, request_id="r")
    assert bench.names() == {"t"}


def test_the_same_id_of_another_principal_is_another_request(bench: Bench) -> None:
    bench.create("/la/t", request_id="r")
    command = CreateTopic(path=path("/la/u"))
    assert not bench.writer.commit_command(command, request_id="r", principal="User:bob").repeated
    assert bench.names() == {"t", "u"}


def test_without_an_id_the_same_command_is_another_request(bench: Bench) -> None:
    bench.create("/la/t")
    with pytest.raises(AlreadyExists):
        bench.create("/la/t")


def test_the_same_request_at_the_same_time_has_one_effect_and_one_answer(
    store: ScriptedStore, bench: Bench
) -> None:
    answers: list[CommitResult] = []
    start = threading.Barrier(6)

    def ask() -> None:
        start.wait()
        answers.append(bench.create("/la/t", request_id="r"))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert len({answer.revision for answer in answers}) == 1
    assert [answer.repeated for answer in answers].count(False) == 1
    assert len({str(_answer(answer)[0]) for answer in answers}) == 1
    assert len(store.read(EVENT)) == 1


# -- the store breaks down --------------------------------------------------------------------


def _lose_answer_once(store: ScriptedStore, *, stays_away: bool) -> None:
    def lose(transaction: Transaction) -> None:
        store.after_commit = lambda _: None
        store.away = stays_away
        raise StoreUnreachable("the answer was lost")

    store.after_commit = lose


def test_S17_a_lost_answer_is_found_again_when_the_store_can_be_asked(
    store: ScriptedStore, bench: Bench
) -> None:
    _lose_answer_once(store, stays_away=False)
    written = bench.create("/la/t")
    assert written.revision == store.read(EVENT)[0].revision
    assert bench.names() == {"t"}


def test_S17_a_lost_answer_whose_effect_is_unknown_is_repeated_by_the_same_request(
    store: ScriptedStore, bench: Bench
) -> None:
    _lose_answer_once(store, stays_away=True)
    with pytest.raises(StoreUnavailable, match="not known") as lost:
        bench.create("/la/t", request_id="r")
    assert lost.value.metadata["effect"] == "unknown"
    eventually(lambda: bench.replica.state is ReplicaState.STALE)
    assert bench.writer.refused_writes == 0
    with pytest.raises(StoreUnavailable, match="away"):
        bench.create("/la/u")
    assert bench.writer.refused_writes == 1, "no commit was tried, so none is counted as failed"
    store.return_soon()
    eventually(lambda: bench.replica.state is ReplicaState.SERVING)
    again = bench.create("/la/t", request_id="r")
    assert again.repeated
    assert isinstance(again.plan.entry, Topic)
    assert len(store.read(EVENT)) == 1


def test_S17_when_the_lost_try_had_no_effect_the_same_request_has_it(
    store: ScriptedStore, bench: Bench
) -> None:
    def fail(transaction: Transaction) -> None:
        store.before_commit = lambda _: None
        raise StoreUnreachable("it never got there")

    store.before_commit = fail
    with pytest.raises(StoreUnavailable):
        bench.create("/la/t", request_id="r")
    assert bench.names() == set()
    assert not bench.create("/la/t", request_id="r").repeated
    assert len(store.read(EVENT)) == 1


def test_the_log_names_why_a_write_failed(
    store: ScriptedStore, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(transaction: Transaction) -> None:
        raise StoreUnreachable("disk I/O error")

    store.before_commit = fail
    with pytest.raises(StoreUnavailable) as failed:
        bench.create("/la/t")
    assert failed.value.metadata["effect"] == "unknown"
    assert "the store is away: disk I/O error" in caplog.text


def test_what_the_store_refuses_is_known_not_to_be_written(
    store: ScriptedStore, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(transaction: Transaction) -> None:
        raise StoreRefused("etcd does not let user kdir do this")

    store.before_commit = refuse
    for write in (
        lambda: bench.create("/la/t", request_id="r"),
        lambda: bench.writer.put_facts((Put(b"fact", b""),)),
    ):
        caplog.clear()
        with pytest.raises(StoreUnavailable, match="refuses writes") as refused:
            write()
        assert refused.value.metadata["effect"] == "none"
        assert "the store refuses a write: etcd does not let user kdir do this" in caplog.text


def test_S4_while_the_store_is_away_writes_are_refused_at_once(
    store: ScriptedStore, bench: Bench
) -> None:
    bench.create("/la/t")
    store.away = True
    eventually(lambda: bench.replica.state is ReplicaState.STALE)
    asked: list[Transaction] = []
    store.before_commit = asked.append
    for attempt in ("/la/u", "/la/t", "/la/nowhere/t"):
        with pytest.raises(StoreUnavailable):
            bench.create(attempt, timeout_seconds=600)
    with pytest.raises(StoreUnavailable):
        bench.writer.put_facts([Put(kafka_key("pin"), b"x")])
    assert asked == []
    store.return_soon()
    eventually(lambda: bench.replica.state is ReplicaState.SERVING)
    bench.create("/la/u")


def test_S5_before_anything_is_loaded_writes_are_not_ready() -> None:
    store = ScriptedStore()
    store.away = True
    bench = Bench(store)
    with pytest.raises(NotReady):
        bench.create("/la/t")


# -- rivals -----------------------------------------------------------------------------------


def test_S18_of_two_servers_that_make_one_path_exactly_one_wins(store: ScriptedStore) -> None:
    outcomes: list[CommitResult | KdirError] = []
    start = threading.Barrier(2)

    def make(bench: Bench, number: int) -> None:
        start.wait()
        try:
            outcomes.append(bench.create(f"/la/t{number}"))
        except KdirError as error:
            outcomes.append(error)

    with Bench(store) as one, Bench(store) as two:
        for number in range(30):
            threads = [threading.Thread(target=make, args=(b, number)) for b in (one, two)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert one.names() == {f"t{number}" for number in range(30)}
    won = [outcome for outcome in outcomes if isinstance(outcome, CommitResult)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, KdirError)]
    assert len(won) == len(lost) == 30
    assert all(isinstance(error, AlreadyExists) for error in lost)


def test_a_lost_race_is_planned_again_on_what_won(store: ScriptedStore, bench: Bench) -> None:
    bench.mkdir("/la/a")
    with Bench(store) as rival:

        def interfere(transaction: Transaction) -> None:
            store.before_commit = lambda _: None
            rival.writer.commit_command(
                UpdateEntry(path=path("/la/a"), changes={"policies.owner": "rival"})
            )

        store.before_commit = interfere
        bench.writer.commit_command(
            UpdateEntry(path=path("/la/a"), changes={"policies.contact": "me"})
        )
    assert store.conflicts == 1
    entry = bench.replica.snapshot.container(1, "a")
    assert entry is not None
    assert (entry.policies.owner, entry.policies.contact) == ("rival", "me")


def test_who_loses_every_race_gets_that_error(store: ScriptedStore, bench: Bench) -> None:
    bench.mkdir("/la/a")
    wins = 0

    def interfere(transaction: Transaction) -> None:
        nonlocal wins
        wins += 1
        store.before_commit = lambda _: None
        bench.writer.commit_command(
            UpdateEntry(path=path("/la/a"), changes={"policies.owner": f"{wins}"})
        )
        store.before_commit = interfere

    store.before_commit = interfere
    with pytest.raises(WriteConflict):
        bench.writer.commit_command(
            UpdateEntry(path=path("/la/a"), changes={"policies.contact": "me"})
        )
    assert 1 < wins < 100
    entry = bench.replica.snapshot.container(1, "a")
    assert entry is not None
    assert entry.policies.contact is None


def test_writers_of_different_things_do_not_collide(store: ScriptedStore, bench: Bench) -> None:
    bench.mkdir("/la/a/b")

    def make(worker: int) -> None:
        for number in range(25):
            bench.create(f"/la/a/b/w{worker}-{number}")

    threads = [threading.Thread(target=make, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bench.names("/la/a/b")) == 150
    assert store.conflicts == 0


# -- limits, extra guards, facts --------------------------------------------------------------


def test_S9_what_does_not_fit_one_transaction_is_refused_naming_the_limit(
    store: ScriptedStore, bench: Bench
) -> None:
    store.limits = Limits(max_writes=12, max_bytes=1_000_000)
    deep = "/la/" + "/".join("abcdefghijklmnop")
    with pytest.raises(LimitExceeded, match="12"):
        bench.mkdir(deep)
    store.limits = Limits(max_writes=1_000, max_bytes=600)
    with pytest.raises(LimitExceeded, match="600"):
        bench.mkdir(deep)
    with pytest.raises(LimitExceeded, match="600"):
        bench.writer.put_facts([Put(kafka_key("pin"), b"x" * 700)])
    assert store.commits == 0


def test_extra_writes_come_with_the_plan_or_not_at_all(store: ScriptedStore, bench: Bench) -> None:
    fence = KeyEquals(kafka_key("fence"), b"mine")
    extra = Put(kafka_key("pin"), b"x")
    command = CreateTopic(path=path("/la/t"))
    with pytest.raises(WriteConflict):
        bench.writer.commit_command(command, extra_guards=[fence], extra_writes=[extra])
    assert bench.names() == set()
    bench.writer.put_facts([Put(fence.key, b"mine")])
    written = bench.writer.commit_command(command, extra_guards=[fence], extra_writes=[extra])
    (row,) = store.read(extra.key)
    assert (row.value, row.revision) == (b"x", written.revision)


def test_facts_are_seen_when_the_answer_comes_and_guarded(bench: Bench) -> None:
    key = kafka_key("pin")
    revision = bench.writer.put_facts([Put(key, b"1")], guards=[KeyEquals(key, None)])
    assert bench.replica.snapshot.fact(key) == b"1"
    assert bench.replica.snapshot.revision >= revision
    with pytest.raises(WriteConflict):
        bench.writer.put_facts([Put(key, b"2")], guards=[KeyEquals(key, None)])
    assert bench.replica.snapshot.fact(key) == b"1"


def test_facts_may_be_put_by_a_subscriber_of_the_replica_which_waits_for_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    waited: list[bool] = []
    wait_for = bench.replica.wait_for

    def watched(revision: int, timeout_seconds: float) -> Snapshot:
        waited.append(bench.replica.in_callback)
        return wait_for(revision, timeout_seconds)

    monkeypatch.setattr(bench.replica, "wait_for", watched)

    def answer(applied: object) -> None:
        if not done.is_set():
            done.set()
            bench.writer.put_facts([Put(kafka_key("pin"), b"1")])

    bench.replica.subscribe(answer)
    bench.create("/la/t")
    eventually(lambda: bench.replica.snapshot.fact(kafka_key("pin")) == b"1")
    assert waited
    assert not any(waited)


def test_a_request_that_cannot_be_read_is_not_taken_for_a_new_one(
    store: ScriptedStore, bench: Bench
) -> None:
    bench.create("/la/t", request_id="r")
    (row,) = store.read(REQUEST)
    store.commit(Transaction((), (Put(row.key, b"\xff"),)))
    with pytest.raises(RequestIdReused, match="cannot read"):
        bench.create("/la/t", request_id="r")


@pytest.mark.parametrize(
    "damaged", ['"entry": "/////w=="', '"path": "nope"', '"path": 5', '"topic_count": 1e400']
)
def test_a_request_whose_answer_cannot_be_read_is_refused_as_one(
    store: ScriptedStore, bench: Bench, damaged: str
) -> None:
    bench.create("/la/t", request_id="r")
    (row,) = store.read(REQUEST)
    value = row.value.rstrip(b"}") + f", {damaged}}}".encode()  # of one name the last counts
    store.commit(Transaction((), (Put(row.key, value),)))
    with pytest.raises(RequestIdReused, match="cannot read"):
        bench.create("/la/t", request_id="r")


def test_a_request_that_was_kept_by_a_newer_version_is_still_known(
    store: ScriptedStore, bench: Bench
) -> None:
    bench.create("/la/t", request_id="r")
    (row,) = store.read(REQUEST)
    store.commit(Transaction((), (Put(row.key, row.value[:-1] + b',"of_a_newer":1}'),)))
    assert bench.create("/la/t", request_id="r").repeated
