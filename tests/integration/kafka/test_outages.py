"""Kafka away, slow, back: nothing but the reconciler notices, and it says since when and why."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import NoReturn

import pytest

from deploy.local.kafka import KafkaBroker
from deploy.local.ports import free_port
from directory.kafka.admin_client import ConfluentAdmin
from directory.store.base import StoreUnreachable
from tests.conftest import SharedBroker
from tests.support.reconciler import admin_of, eventually, in_kafka, make, world


def test_K10_a_kafka_that_is_away_at_the_start_is_waited_for(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: FilePath
) -> None:
    port = free_port()
    with world(tmp_path / "store.db", admin_of(f"127.0.0.1:{port}", 1.0)) as here:
        here.reconciler.start()
        eventually(lambda: "Connection refused" in here.reconciler.status().message)
        status = here.reconciler.status()
        assert status.leader
        assert not status.reachable
        assert status.last_sweep_seconds is None
        assert status.message.startswith("since 20")
        # The tree takes wishes all the same.
        here.mkdir("d")
        here.create("d/wished")
        assert here.reconciler.status().pending_count == 1
        with kafka_brokers(port=port) as broker:
            make(ConfluentAdmin([broker.bootstrap]), "old")
            eventually(lambda: here.states() == {"d/wished": "ACTIVE", "old": "ACTIVE"})
            status = here.reconciler.status()
            assert (status.reachable, status.message, status.pending_count) == (True, "", 0)


def test_a_broker_that_is_paused_and_killed_loses_no_request_and_marks_no_topic_missing(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: FilePath
) -> None:
    with (
        kafka_brokers() as broker,
        world(
            tmp_path / "store.db", admin_of(broker.bootstrap, 1.0), sweep_interval_seconds=0.5
        ) as here,
    ):
        kafka = ConfluentAdmin([broker.bootstrap])
        make(kafka, "old", "gone")
        here.reconciler.start()
        eventually(lambda: here.states() == {"gone": "ACTIVE", "old": "ACTIVE"})

        broker.pause()
        here.create("a")
        here.remove("gone")
        eventually(lambda: not here.reconciler.status().reachable)
        revision = here.replica.snapshot.revision
        assert here.reconciler.status().pending_count == 2
        broker.resume()
        eventually(lambda: here.states() == {"a": "ACTIVE", "old": "ACTIVE"})
        eventually(here.nothing_left_to_reap)
        assert here.replica.snapshot.revision < revision + 20

        broker.kill()
        eventually(lambda: not here.reconciler.status().reachable)
        here.create("b")
        assert here.states() == {"a": "ACTIVE", "b": "PENDING", "old": "ACTIVE"}
        broker.start()
        eventually(lambda: here.states() == {"a": "ACTIVE", "b": "ACTIVE", "old": "ACTIVE"})
        assert in_kafka(kafka) == {"a", "b", "old"}
        assert here.stopped == ""


def test_a_store_that_is_away_holds_the_reconciler_up_and_no_longer(
    kafka_broker: SharedBroker, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> NoReturn:
        raise StoreUnreachable("its disk is gone")

    kafka = ConfluentAdmin([kafka_broker.bootstrap])
    with world(tmp_path / "store.db", admin_of(kafka_broker.bootstrap)) as here:
        here.sweep()
        name = f"outage-{uuid.uuid4().hex[:8]}"
        make(kafka, name)
        with monkeypatch.context() as patch:
            patch.setattr(here.store, "commit", away)
            assert here.sweep() == 1.0
            assert name not in here.states()
        here.sweep()
        assert here.states()[name] == "ACTIVE"


def test_it_backs_off_while_kafka_is_away_and_a_request_does_not_hurry_it(
    tmp_path: FilePath,
) -> None:
    with world(tmp_path / "store.db", admin_of(f"127.0.0.1:{free_port()}", 0.2)) as here:
        delays = []
        for _ in range(7):
            delays.append(here.reconciler.run_once())
            here.now += delays[-1]
        assert delays[0] <= 0.5
        assert max(delays) <= 10
        assert delays[-1] >= 5
        here.create("wished")
        here.now -= 3  # not yet time
        before = here.reconciler.health
        assert 0 < here.reconciler.run_once() <= 10
        assert here.reconciler.health is before, "Kafka was not asked"
