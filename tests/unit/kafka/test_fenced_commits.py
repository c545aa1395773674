"""What is committed of Kafka's side: batches that fit, fenced, one bad topic spoiling no other."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from directory.kafka.fenced_commits import TopicCommits
from directory.namespace.command import (
    Command,
    FinishDelete,
    ObservedTopic,
    Plan,
    RecordObservations,
    TopicObservation,
)
from directory.store.base import Delete, Guard, KeyEquals, Put, Write
from directory.store.leader import LeadershipLost
from directory.store.transaction_limits import Limits
from resolver.errors import (
    DeadlineExceeded,
    InvalidPath,
    KdirError,
    LevelNotFinalized,
    LimitExceeded,
    OutboxFull,
    StoreSealed,
    StoreUnavailable,
    WriteConflict,
)
from tests.support.trees import path

GUARD = KeyEquals(b"l/reconciler", b"me")


class Office:
    """A leadership."""

    guard = GUARD

    def __init__(self) -> None:
        self.is_held = True

    def held(self) -> bool:
        return self.is_held

    def release(self) -> None:
        self.is_held = False


class Script:
    """A writer that keeps what it is told, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.guards: list[tuple[Guard, ...]] = []
        self.writes: list[tuple[Write, ...]] = []
        self.refuse: Any = lambda _: None

    def commit_command(self, command: Command, **options: Any) -> Any:
        error = self.refuse(command)
        if error is not None:
            raise error
        self.commands.append(command)
        self.guards.append(tuple(options["extra_guards"]))
        self.writes.append(tuple(options["extra_writes"]))
        plan = Plan(guards=(), writes=(), changes=(), notes=("note",))
        return SimpleNamespace(plan=plan, revision=len(self.guards))

    def put_facts(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> int:
        error = self.refuse(writes)
        if error is not None:
            raise error
        self.guards.append(tuple(guards))
        self.writes.append(tuple(writes))
        return 1


def commits(script: Any, office: Office | None, limits: Limits | None = None) -> TopicCommits:
    return TopicCommits(script, limits or Limits(800, 1 << 20), office)


def news(count: int) -> list[TopicObservation]:
    return [TopicObservation(path=path(f"/t{number}"), entry_id=number) for number in range(count)]


def recorded(script: Script) -> list[str]:
    return [
        str(one.path)
        for command in script.commands
        if isinstance(command, RecordObservations)
        for one in command.news
    ]


def shown(count: int) -> list[tuple[tuple[str, ...], ObservedTopic]]:
    """Returns topics of Kafka to adopt, with their paths."""
    return [
        (
            (f"t{number}",),
            ObservedTopic(
                physical_name=f"t{number}", topic_id=b"", partitions=1, replication_factor=1
            ),
        )
        for number in range(count)
    ]


def test_every_commit_of_the_leader_holds_its_guard_and_an_operators_none() -> None:
    for office, guards in ((Office(), (GUARD,)), (None, ())):
        script = Script()
        made = commits(script, office)
        made.record(news(1))
        made.finish([("x", 1)])
        made.detach("x", 1, "phys", b"id")
        made.put([Put(b"k/pin", b"K")])
        assert script.guards == [guards] * 4
        assert script.writes[2] == (Put(b"x/phys", b"id"),)


def test_nothing_is_committed_by_who_does_not_lead_any_more() -> None:
    script, office = Script(), Office()
    made = commits(script, office)
    office.release()
    for attempt in (
        lambda: made.record(news(1)),
        lambda: made.finish([("x", 1)]),
        lambda: made.move([(path("/la/a"), 1, path("/la/b"))]),
        lambda: made.put(()),
    ):
        with pytest.raises(LeadershipLost):
            attempt()
    assert script.guards == []


def test_a_guard_that_does_not_hold_is_the_end_of_the_term() -> None:
    script, office = Script(), Office()

    def lost(_: object) -> WriteConflict:
        office.release()
        return WriteConflict("the guard does not hold")

    script.refuse = lost
    with pytest.raises(LeadershipLost):
        commits(script, office).record(news(1))
    script.refuse = lambda _: WriteConflict("others were quicker")
    with pytest.raises(WriteConflict):
        commits(script, Office()).record(news(1))


def sizes(script: Script) -> list[int]:
    return [
        len(command.news) for command in script.commands if isinstance(command, RecordObservations)
    ]


def test_much_is_cut_into_batches_in_order() -> None:
    script = Script()
    commits(script, Office(), Limits(max_writes=60, max_bytes=1 << 20)).record(news(36))
    assert sizes(script) == [10, 11, 12, 3]
    assert recorded(script) == [f"/t{number}" for number in range(36)]


def test_how_many_fit_is_found_out_and_remembered() -> None:
    script = Script()
    script.refuse = lambda command: LimitExceeded("too big") if len(command.news) > 3 else None
    made = commits(script, Office())
    made.record(news(100))
    assert recorded(script) == [f"/t{number}" for number in range(100)]
    assert max(sizes(script)) == 3
    asked = len(script.commands)
    made.record(news(3))
    assert len(script.commands) == asked + 1


def test_a_batch_is_never_larger_than_others_can_wait_for() -> None:
    script = Script()
    commits(script, Office(), Limits(20_000, 1 << 24)).record(news(5_000))
    assert max(sizes(script)) == 1_000


@pytest.mark.parametrize("reason", [InvalidPath("too long"), WriteConflict("16 times")])
def test_one_topic_that_cannot_be_taken_in_is_reported_and_spoils_no_other(
    reason: KdirError,
) -> None:
    script = Script()
    script.refuse = lambda command: (
        reason if any(one[1].physical_name == "t3" for one in command.topics) else None
    )
    made = commits(script, Office())
    notes = made.adopt(shown(8))
    assert made.revision == len(script.guards), "the newest that was committed"
    taken = [one[1].physical_name for command in script.commands for one in command.topics]  # type: ignore[union-attr]
    assert taken == [f"t{number}" for number in range(8) if number != 3]
    assert [note for note in notes if note != "note"] == [f"t3 is left out: {reason}"]


@pytest.mark.parametrize(
    "reason",
    [
        StoreUnavailable("away"),
        StoreSealed("it was moved"),
        OutboxFull("too many changes wait"),
        LimitExceeded("the store is full", limit="store"),
        LevelNotFinalized("a server cannot read it"),
        DeadlineExceeded("the deadline passed"),
    ],
)
def test_a_store_that_takes_nothing_is_not_asked_again_in_halves(reason: KdirError) -> None:
    script = Script()
    asked = []

    def refuse(command: object) -> KdirError | None:
        asked.append(command)
        return None if len(asked) == 1 else InvalidPath("bad") if len(asked) == 2 else reason

    script.refuse = refuse
    made = commits(script, None, Limits(max_writes=60, max_bytes=1 << 20))
    with pytest.raises(type(reason)):
        made.adopt(shown(50))
    assert len(asked) == 3, "the second batch and its first half"
    with pytest.raises(type(reason)):
        made.adopt(shown(50))
    assert len(asked) == 4


def test_an_empty_batch_asks_nobody() -> None:
    script = Script()
    made = commits(script, Office())
    made.record([])
    made.adopt([])
    made.finish([])
    made.move([])
    assert script.commands == []
    made.finish([("x", 1)])
    assert script.commands == [FinishDelete(topics=(("x", 1),))]


def test_a_write_that_one_transaction_does_not_hold_does_not_fit() -> None:
    made = commits(Script(), None, Limits(800, 10_000))
    sizes = (0, 7_900, 8_000)
    assert [made.fits(Put(b"k" * 10, b"v" * size)) for size in sizes] == [True, True, False]
    assert made.fits(Delete(b"k" * 3_976))
    assert not made.fits(Delete(b"k" * 3_977))
