"""What Kafka's refusals are called by path: the right that is missing, and how to ask why."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from resolver.errors import KafkaRejected, KafkaUnavailable, PermissionDenied
from resolver.kafka.client_errors import LastReason, client_error

TRANSPORT, ALL_BROKERS_DOWN = -195, -187
"""Codes of librdkafka for lost connections."""
ALICE = {"sasl.username": "alice", "sasl.password": "hunter2"}


@pytest.mark.parametrize(
    ("code", "for_writes", "arguments"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True, ("WRITE", "alice write /a/b")),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, ("READ", "alice read /a/b")),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, True, ("WRITE", "alice write /a/b")),
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            False,
            ("READ on group g", "alice read /a/b --group g"),
        ),
        (
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            True,
            ("WRITE on transactional id t", "alice write /a/b --transactional-id t"),
        ),
    ],
)
def test_a_denial_names_the_right_and_the_question(
    code: int, for_writes: bool, arguments: tuple[str, str]
) -> None:
    settings = {**ALICE, "group.id": "g", "transactional.id": "t"}
    found = client_error(KafkaError(code), "/a/b", settings, for_writes=for_writes)
    assert isinstance(found, PermissionDenied)
    assert found.exit_code == 4
    assert found.message.startswith(f"/a/b: Kafka denies alice {arguments[0]} (")
    assert f"kdir check {arguments[1]} --explain" in found.message
    assert found.metadata["principal"] == "User:alice"
    assert "hunter2" not in str(found)


def test_who_has_no_name_is_asked_for() -> None:
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    found = client_error(error, "/a", {}, for_writes=True)
    assert "denies this user WRITE" in found.message
    assert "kdir check PRINCIPAL write /a --explain" in found.message


def test_a_local_error_ends_with_the_last_reason_and_kafkas_answer_does_not() -> None:
    reason, down = LastReason(), KafkaError(TRANSPORT)
    assert client_error(down, "/a", {}, for_writes=True, reason=reason).message == (
        f"/a: {down.str()}"
    )
    state = " (after 3ms in state CONNECT, 2 identical error(s) suppressed)"
    refused = KafkaError(TRANSPORT, f"b:1: Connection refused{state}")
    reason.on_error(refused)
    reason.on_error(KafkaError(ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert reason.is_all_down
    assert client_error(down, "/a", {}, for_writes=True, reason=reason).message == (
        f"/a: {down.str()}: b:1: Connection refused"
    )
    same = client_error(refused, "/a", {}, for_writes=True, reason=reason).message
    assert same.count("Connection refused") == 1
    too_large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    answered = client_error(too_large, "/a", {}, for_writes=True, reason=reason)
    assert "Connection refused" not in answered.message


def test_what_passes_and_what_does_not() -> None:
    timed_out, too_large = (
        KafkaError(KafkaError._TIMED_OUT),
        KafkaError(KafkaError.MSG_SIZE_TOO_LARGE),
    )
    assert isinstance(client_error(timed_out, "/a", ALICE, for_writes=True), KafkaUnavailable)
    for over in (KafkaError(-144), KafkaError(-172, fatal=True)):
        assert isinstance(client_error(over, "/a", ALICE, for_writes=True), KafkaRejected)
    refused = client_error(too_large, "/a", ALICE, for_writes=True)
    assert isinstance(refused, KafkaRejected)
    assert refused.message.startswith("/a: ")
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    missing = client_error(unknown, "/a", ALICE, for_writes=False)
    assert missing.message.endswith("; its entry: kdir stat /a")
    # Not about numbering messages: there is nothing to grant on a path.
    cluster = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    assert isinstance(client_error(cluster, "/a", ALICE, for_writes=False), KafkaRejected)
