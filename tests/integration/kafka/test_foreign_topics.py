"""Topics of somebody else that come under a name for which kdir has a wish or a removal pending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path as FilePath
from typing import Any

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import Outcome, OutcomeUnknown, Still, TopicToCreate, always
from directory.namespace.keys import detached_key
from tests.support.acls import arm, grant, shown
from tests.support.backups import back_up, put_back
from tests.support.reconciler import admin_of, drop, eventually, in_kafka, make, world

CEILING = frozenset({"create", "delete", "acls"})


@pytest.fixture(scope="module")
def guarded(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(properties=dict(KafkaBroker.AUTHORIZER)) as broker:
        yield broker


@pytest.fixture
def kafka(guarded: KafkaBroker) -> ConfluentAdmin:
    admin = ConfluentAdmin([guarded.bootstrap])
    if names := in_kafka(admin):
        drop(admin, *names)
    admin.remove_acls(list(shown(admin)))
    eventually(lambda: not shown(admin))
    return admin


def settings(**more: Any) -> dict[str, Any]:
    return {"ceiling": CEILING, "split_on": ".", **more}


def test_a_topic_made_while_its_acls_wait_is_neither_taken_nor_deleted(
    guarded: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "kept")
    with world(tmp_path / "s.db", admin_of(guarded.bootstrap), **settings(max_acls=1)) as here:
        here.sweep()
        grant(here, "kept", "allow alice read")
        arm(here)
        eventually(lambda: len(shown(kafka)) == 1)
        here.mkdir("search")
        grant(here, "search", "allow bob read")
        here.create("search/clicks")
        here.reconciler.run_once()
        waiting = here.topics()["search/clicks"]
        assert waiting.provision_message.startswith("its ACLs wait"), waiting
        assert waiting.provision_attempt == ""

        make(kafka, "search.clicks")
        produce(guarded, "search.clicks", 50)
        theirs = kafka.describe_all().topics["search.clicks"].topic_id
        here.sweep()
        found = here.topics()["search/clicks"]
        assert found.provision.name == "FAILED"
        assert "was not made by kdir" in found.provision_message
        here.remove("search/clicks")
        here.sweep()
        here.sweep()
        assert kafka.describe_all().topics["search.clicks"].topic_id == theirs
        assert message_count(guarded, "search.clicks") == 50


def produce(broker: KafkaBroker, topic: str, count: int) -> None:
    """Produces messages to a topic."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce(topic, value=str(number).encode())
    assert producer.flush(30) == 0


def message_count(broker: KafkaBroker, topic: str) -> int:
    """Returns how many of them are there, by the offsets of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    with closing(
        Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    ) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        return int(high - low)


class LosesRequests(ConfluentAdmin):
    """Admin client whose requests to create topics do not arrive, and which does not learn that."""

    def create(self, desired_set: Any, still: Still = always) -> dict[str, Outcome]:
        still()
        return {desired.name: OutcomeUnknown("timed out") for desired in desired_set}


def test_a_removal_restored_from_a_backup_does_not_delete_what_was_made_since(
    guarded: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    file = tmp_path / "store.db"
    with world(file, lambda: LosesRequests([guarded.bootstrap]), **settings()) as here:
        here.sweep()
        here.create("x")
        here.sweep()
        assert here.topics()["x"].provision_attempt
        here.remove("x")  # Kafka does not answer: it waits
        backup = back_up(here.store)
        here.settle()
        assert here.nothing_left_to_reap()

    make(kafka, TopicToCreate("x"))
    produce(guarded, "x", 50)
    theirs = kafka.describe_all().topics["x"].topic_id
    put_back(backup, f"sqlite:///{file}")
    with world(file, admin_of(guarded.bootstrap), **settings()) as again:
        assert [one.physical_name for one in again.removed()] == ["x"]
        again.sweep()
        again.settle()
        assert again.nothing_left_to_reap()
        assert kafka.describe_all().topics["x"].topic_id == theirs
        assert message_count(guarded, "x") == 50
        assert again.replica.snapshot.fact(detached_key("x")) == theirs
        assert "x" not in again.topics()
