"""What operators do to a change log: giving up what waits, ending it; and how much may wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import access_pb2, access_pb2_grpc, admin_pb2, admin_pb2_grpc

from deploy.local.kafka import KafkaBroker
from resolver.errors import InvalidArgument, OutboxFull
from tests.conftest import SharedBroker
from tests.integration.change_log.test_bad_days import made, state_of
from tests.integration.change_log.test_publishing import (
    caught_up,
    changes_of,
    log_of,
    logged_rows,
)
from tests.support.federation import Server, eventually


def operate(server: Server, method: str, **fields: Any) -> None:
    request = getattr(admin_pb2, f"{method}Request")(**fields)
    server.ask(admin_pb2_grpc.AdminServiceStub, method, request)


def deny(server: Server, path: str, principal: str) -> None:
    grant = access_pb2.Grant(
        principal=principal,
        host="*",
        operation=access_pb2.OPERATION_READ,
        permission=access_pb2.PERMISSION_DENY,
    )
    request = access_pb2.AddGrantsRequest(path=path, grants=[grant])
    server.ask(access_pb2_grpc.AccessServiceStub, "AddGrants", request)


def test_more_than_may_wait_is_refused_but_for_what_is_urgent_until_it_is_given_up(
    tmp_path: Path, kafka_brokers: Callable[..., KafkaBroker]
) -> None:
    limits = {"outbox_changes": 5, "drain_seconds": 1}
    store = tmp_path / "la" / "la.sqlite"
    with kafka_brokers() as broker, made(tmp_path / "la", broker.bootstrap, limits=limits) as la:
        la.mkdir("/la/a")
        log = log_of(la, broker)
        caught_up(log, str(store))
        eventually(lambda: state_of(la).waiting_commits == 0)
        broker.kill()
        for number in range(5):
            la.mkdir(f"/la/b{number}")
        with pytest.raises(OutboxFull, match="5 changes wait for the change log") as refused:
            la.mkdir("/la/c")
        assert refused.value.exit_code == 3
        assert refused.value.metadata["limit"] == "5"
        for number in range(5):
            deny(la, "/la/a", f"User:{number}")
        with pytest.raises(OutboxFull, match="10 changes wait"):
            deny(la, "/la/a", "User:late")
        eventually(lambda: state_of(la).state.message)
        with pytest.raises(OutboxFull, match=r"because of this: \S"):
            la.mkdir("/la/c")
        operate(la, "SkipChangeLog")
        assert state_of(la).waiting_commits == 1, "the skip itself"
        la.mkdir("/la/d")
        broker.start()
        found = caught_up(log, str(store))
        eventually(lambda: state_of(la).waiting_commits == 0)
        rows = logged_rows(str(store))
        assert la.status().change_log.message == ""
    assert {key: row for key, row in found.rows.items() if not key.startswith(b"g/")} == rows
    kept = [(one.scope, one.path) for one in found.history if one.cause == "change"]
    assert [one for one in kept if one[0] != "checkpoint"] == [
        ("operated", "/la"),
        ("entry", "/la/d"),
    ]
    (skip,) = [one for one in found.history if one.cause == "skip"]
    assert "in 10 commits" in skip.operation
    resynced = {one.path for one in found.history if one.cause == "resync"}
    assert {f"/la/b{number}" for number in range(5)} <= resynced
    orders = [one.order for one in found.history if one.checkpoint is None]
    assert orders == sorted(set(orders)), "each has a place of its own"


@pytest.mark.slow
def test_what_was_committed_since_the_approved_revision_is_published_after_a_skip(
    tmp_path: Path, kafka_brokers: Callable[..., KafkaBroker]
) -> None:
    store = tmp_path / "la" / "la.sqlite"
    with kafka_brokers() as broker, made(tmp_path / "la", broker.bootstrap) as la:
        la.mkdir("/la/a")
        log = log_of(la, broker)
        caught_up(log, str(store))
        eventually(lambda: state_of(la).waiting_commits == 0)
        broker.kill()
        for number in range(3):
            la.mkdir(f"/la/b{number}")
        shown = state_of(la)
        la.mkdir("/la/c")
        la.entries("DeleteEntry", path="/la/b0")
        operate(la, "SkipChangeLog", revision=shown.authority.revision)
        assert state_of(la).waiting_commits == 3, "two later ones, and the skip itself"
        broker.start()
        found = caught_up(log, str(store))
    published = [one for one in found.history if one.checkpoint is None]
    (skip,) = [one for one in published if one.cause == "skip"]
    assert skip.revision == shown.authority.revision
    assert f"in {shown.waiting_commits} commits" in skip.operation
    later = published[published.index(skip) + 1 :]
    assert [(one.cause, one.action, one.path) for one in later] == [
        ("change", "insert", "/la/c"),
        ("change", "delete", "/la/b0"),
        ("change", "update", "/la"),
    ]


def test_a_log_that_is_in_no_config_any_more_waits_until_it_is_ended(
    tmp_path: Path, kafka_broker: SharedBroker
) -> None:
    store = tmp_path / "la" / "la.sqlite"
    with made(tmp_path / "la", kafka_broker.bootstrap) as la:
        la.mkdir("/la/a")
        log = log_of(la, kafka_broker)
        caught_up(log, str(store))
        with pytest.raises(InvalidArgument, match="publishes the change log"):
            operate(la, "EndChangeLog")
        table = la.settings["change_log"]
        la.stop()
        la.settings.pop("change_log")
        la.start()
        la.mkdir("/la/b")
        assert "kdir log off" in la.status().change_log.message
        assert state_of(la).waiting_commits >= 1
        operate(la, "EndChangeLog")
        assert not state_of(la).HasField("state")
        assert not la.status().HasField("change_log")
        with pytest.raises(InvalidArgument, match="keeps no change log"):
            operate(la, "SkipChangeLog")
        la.mkdir("/la/c")
        la.stop()
        la.settings["change_log"] = table
        la.start()
        eventually(lambda: log.read().rows == logged_rows(str(store)))
        la.mkdir("/la/d")
        found = caught_up(log, str(store))
    assert changes_of(found)[-1] == ("insert", "/la/d")
    assert [one.path for one in found.history if one.cause == "resync"] == ["/la/b", "/la/c"]
