"""Partitions and groups of a topic as Kafka reports them, and what is missing of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from resolver.cli import kafka_offsets, produce
from resolver.cli.kafka_offsets import PartitionOffsets, TopicReader
from resolver.cli.parser import UsageError, parse
from resolver.cli.session import Session
from resolver.cli.stat import VERBS
from resolver.errors import Absent, KafkaUnavailable, KdirError, PermissionDenied

FOUND: Any = SimpleNamespace(path="/la/orders", topic="orders", cluster="la")
LEADERLESS, DENIED = 2, "secret"


def future(make: Callable[[], Any]) -> Future[Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(make())
    except KafkaException as error:
        done.set_exception(error)
    return done


def failure(code: int) -> Any:
    raise KafkaException(KafkaError(code))


class Admin:
    """AdminClient of a topic with three partitions, the last without a leader."""

    def __init__(self, error: int | None = None, ends: Mapping[int, int] | None = None) -> None:
        self.error = error
        self.ends = {0: 10, 1: 5} if ends is None else ends
        self.asked = 0

    def describe_topics(self, _topics: object, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0

        def described() -> Any:
            if self.error is not None:
                failure(self.error)
            one, two = SimpleNamespace(id=1), SimpleNamespace(id=2)
            return SimpleNamespace(
                partitions=[
                    SimpleNamespace(id=LEADERLESS, leader=None, replicas=[two], isr=[]),
                    SimpleNamespace(id=0, leader=one, replicas=[one, two], isr=[one, two]),
                    SimpleNamespace(id=1, leader=one, replicas=[two, one], isr=[one]),
                ]
            )

        return {"orders": future(described)}

    def poll(self, _seconds: float) -> None:
        pass

    def list_offsets(self, asked: Mapping[Any, Any], request_timeout: float) -> dict[Any, Any]:
        assert request_timeout > 0
        self.asked += 1
        offsets = {0: 3, 1: 5} if self.asked == 1 else self.ends

        def offset(place: Any) -> Any:
            at = offsets.get(place.partition)
            return SimpleNamespace(offset=at) if at is not None else failure(5)

        return {place: future(partial(offset, place)) for place in asked}

    def list_consumer_groups(self, request_timeout: float) -> Future[Any]:
        assert request_timeout > 0
        names = ["readers", "others", DENIED]
        state = ConsumerGroupState.PREPARING_REBALANCING
        return future(
            lambda: SimpleNamespace(
                valid=[SimpleNamespace(group_id=name, state=state) for name in names], errors=[]
            )
        )

    def list_consumer_group_offsets(
        self, requests: list[Any], request_timeout: float
    ) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        (request,) = requests
        at = {("readers", 0): 4}

        def committed() -> Any:
            if request.group_id == DENIED:
                failure(KafkaError.GROUP_AUTHORIZATION_FAILED)
            for one in request.topic_partitions:
                one.offset = at.get((request.group_id, one.partition), -1001)
            return request

        return {request.group_id: future(committed)}


def shown(
    line: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[bool, list[str], str]:
    """Returns whether something is missing, what ``kdir stat`` prints, and its notes."""
    settings = (FOUND, {"sasl.username": "alice"})
    monkeypatch.setattr(produce, "client_settings", lambda *_, **__: settings)
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _settings: admin)
    (verb,) = VERBS
    arguments = parse(verb, line.split())
    session = Session(arguments, environ={})
    assert verb.run(session, arguments) == 0
    printed = capsys.readouterr()
    return session.partial, printed.out.splitlines(), printed.err


def test_partitions_mark_what_is_under_replicated_and_name_what_has_no_leader(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_partial, rows, err = shown("/la/orders --partitions", Admin(), monkeypatch, capsys)
    assert [row.split("\t") for row in rows] == [
        ["0", "1", "1,2", "1,2", "3", "10", "-"],
        ["1", "1", "2,1", "1", "5", "5", "under-replicated"],
        ["2", "-", "2", "-", "-", "-", "no leader"],
    ]
    assert is_partial
    assert err == "".join(
        f"not shown: /la/orders: {which} offset of partition 2: Broker: Leader not available\n"
        for which in ("begin", "end")
    )


def test_offsets_that_kafka_does_not_report_are_not_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin(ends={0: 10})
    is_partial, rows, err = shown("/la/orders --partitions -o json", admin, monkeypatch, capsys)
    assert [json.loads(row)["end"] for row in rows] == [10, None, None]
    assert is_partial
    assert "end offset of partition 1, 2: " in err


def test_the_lag_of_a_group_is_a_lower_bound_if_a_partitions_lag_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_partial, rows, err = shown("/la/orders --groups", Admin(), monkeypatch, capsys)
    assert [row.split("\t") for row in rows] == [
        ["readers", "preparing-rebalancing", "0", "4", "10", "6"],
        ["readers", "preparing-rebalancing", "1", "-", "5", "0"],  # it is empty
        ["readers", "preparing-rebalancing", "2", "-", "-", "-"],
        ["readers", "preparing-rebalancing", "all", "-", "-", "6+"],
    ]
    assert is_partial
    assert f"not shown: /la/orders: offsets of group {DENIED}: " in err
    _, rows, _ = shown("/la/orders --groups -o table", Admin(), monkeypatch, capsys)
    assert rows[0].split() == ["GROUP", "STATE", "PARTITION", "COMMITTED", "END", "LAG"]
    assert rows[-1].endswith("at least 6")
    _, (row,), _ = shown("/la/orders --groups -o json", Admin(), monkeypatch, capsys)
    group = json.loads(row)
    assert (group["lag"], group["is_lower_bound"], len(group["partitions"])) == (6, True, 3)


@pytest.mark.parametrize(
    ("begin", "end", "committed", "lag"),
    [
        (0, 9, 4, 5),
        (6, 9, 4, 5),  # retention has removed what is before 6
        (9, 9, None, 0),
        (0, 9, None, None),  # where it would begin is the group's own setting
        (0, None, 4, None),
    ],
)
def test_lag_is_known_or_none(
    begin: int, end: int | None, committed: int | None, lag: int | None
) -> None:
    assert PartitionOffsets(0, 1, [1], [1], begin, end).lag(committed) == lag


def test_groups_for_which_no_time_is_left_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_offsets, "time", SimpleNamespace(monotonic=iter(range(99)).__next__))
    (verb,) = VERBS
    session = Session(parse(verb, ["/la/orders", "--timeout", "1"]), environ={})
    assert TopicReader(session, Admin(), FOUND).groups([0]) == []
    assert session.partial
    assert "offsets of group others, readers, secret: no time left of 1s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Absent, "la has no topic orders in Kafka"),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            PermissionDenied,
            "kdir check alice describe /la/orders --explain",
        ),
    ],
)
def test_an_absent_topic_and_a_denial_are_different_errors(
    code: int,
    kind: type[KdirError],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(kind, match=text):
        shown("/la/orders --groups", Admin(code), monkeypatch, capsys)


@pytest.mark.parametrize("option", ["--partitions", "--groups"])
def test_a_kafka_that_does_not_answer_has_the_reason_of_its_client(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
    monkeypatch.setattr(produce, "client_settings", lambda *_, **__: (FOUND, settings))
    (verb,) = VERBS
    arguments = parse(verb, ["/la/orders", option, "--timeout", "1"])
    with pytest.raises(KafkaUnavailable, match=r"^/la/orders: .*127\.0\.0\.1:1.*refused"):
        verb.run(Session(arguments, environ={}), arguments)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/a --partitions --groups", "are two commands"),
        ("/a /b --groups", "--groups takes one PATH"),
        ("/a --partitions -o name", "--partitions takes -o table, json or yaml"),
        ("/a -X a=b", "-X needs --partitions or --groups"),
        ("/a --listener x", "--listener needs --partitions or --groups"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line: str, text: str) -> None:
    (verb,) = VERBS
    arguments = parse(verb, line.split())
    with pytest.raises(UsageError, match=text):
        verb.run(Session(arguments, environ={}), arguments)
