"""What kdir learns below an armed directory later than its plan loses no message before a new plan.

Each topic holds 50 messages that are two days old, and keeps them for 30 days; one day is wished.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import ConfigChange, Succeeded, TopicToCreate
from tests.support.command_line import Ran, run
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import drop, in_kafka, make

MONTH, DAY = "2592000000", "86400000"
OLD_SECONDS = 2 * 86_400
MESSAGES = 50
QUICK: Mapping[str, str] = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
}
"""A broker that deletes what it may delete a moment later."""
CONTROLS = itertools.count()


class Data:
    """One broker, and the messages in it."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.kafka = ConfluentAdmin([broker.bootstrap])
        self._bootstrap = broker.bootstrap

    def fill(self, name: str, retention: str = MONTH) -> None:
        """Creates a topic as another tool would, with old messages in it."""
        make(self.kafka, TopicToCreate(name, partitions=1, config={"retention.ms": retention}))
        self.produce(name)

    def produce(self, name: str) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        then = int((time.time() - OLD_SECONDS) * 1000)
        for number in range(MESSAGES):
            producer.produce(name, f"message {number}", timestamp=then)
        assert producer.flush(30) == 0

    def count(self, name: str) -> int:
        """Returns how many messages a topic holds."""
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "nobody"}
        with closing(Consumer(settings)) as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=20)
            return int(high - low)

    def config(self, name: str, key: str) -> str | None:
        found = self.kafka.configs([name]).get(name)
        return found.get(key) if isinstance(found, Mapping) else None

    def retention(self, name: str) -> str | None:
        return self.config(name, "retention.ms")

    def let_it_delete(self) -> None:
        """Waits until the broker has deleted what it may: a topic of now that may not keep its
        messages has none left.
        """
        name = f"__control-{next(CONTROLS)}"
        self.fill(name)
        assert self.count(name) == MESSAGES
        shorter = ConfigChange(name, {"retention.ms": DAY})
        assert self.kafka.alter_configs([shorter]) == {name: Succeeded()}
        eventually(lambda: self.count(name) == 0, 60)
        drop(self.kafka, name)


@pytest.fixture(scope="module")
def broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(properties=QUICK) as one:
        yield one


@pytest.fixture
def data(broker: KafkaBroker) -> Iterator[Data]:
    found = Data(broker)
    names = in_kafka(found.kafka)
    if names:
        drop(found.kafka, *names)
    yield found
    found.kafka.close()


def kdir(server: Server, *arguments: str) -> Ran:
    done = run([*arguments, "--at", server.address])
    assert done.code == 0, done.err
    return done


def settings(broker: KafkaBroker, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap": [broker.bootstrap],
        "ceiling": ["create", "configs", "delete"],
        "sweep_interval_seconds": 1,
        "mapping_rules": [{"match": "__control-*", "ignore": True}],
        **more,
    }


def arm(server: Server) -> None:
    aspect = ("arm", "/la", "--aspect", "configs")
    plan = kdir(server, *aspect, "-o", "name").out.strip()
    kdir(server, *aspect, "--plan", plan)


def begin(server: Server, data: Data) -> None:
    """Sets a retention of a day, and arms it with a plan that names one topic."""
    eventually(lambda: server.status().topic_count == 1)
    kdir(server, "set", "-y", "/la", f"retention.ms={DAY}")
    arm(server)
    eventually(lambda: data.retention("first") == DAY)
    assert server.status().kafka.needs_approval_count == 0


def check_waits(server: Server, data: Data, *names: str) -> None:
    """Asserts that the topics wait and doctor counts them; nothing is lost until a plan that names
    them is armed.
    """
    eventually(lambda: server.status().kafka.needs_approval_count == len(names), 60)
    data.let_it_delete()
    assert {name: data.count(name) for name in names} == dict.fromkeys(names, MESSAGES)
    assert {data.retention(name) for name in names} == {MONTH}
    doctor = run(["doctor", "--at", server.address])
    plural = "1 topic" if len(names) == 1 else f"{len(names)} topics"
    assert f"{plural} with changes that may delete data need approval" in " ".join(
        doctor.err.split()
    )
    for name in names:
        assert "needs-approval\tretention.ms" in kdir(server, "stat", f"/la/{name}").out
    # What is set meanwhile waits with it, and what deletes nothing does not.
    kdir(server, "set", "-y", "/la", "retention.ms=12h", "segment.ms=1d")
    eventually(lambda: data.config(names[0], "segment.ms") == DAY)
    data.let_it_delete()
    assert {name: data.count(name) for name in names} == dict.fromkeys(names, MESSAGES)

    arm(server)
    eventually(lambda: {data.retention(name) for name in names} == {"43200000"})
    eventually(lambda: not any(data.count(name) for name in names), 60)
    assert server.status().kafka.needs_approval_count == 0


def test_a_topic_that_an_older_backup_does_not_know(
    broker: KafkaBroker, data: Data, tmp_path: Path
) -> None:
    make(data.kafka, "first")
    with Federation(tmp_path / "servers") as federation:
        store = f"sqlite:///{tmp_path / 'la.db'}"
        la = federation.start("/la", store=store, kafka=settings(broker))
        begin(la, data)
        backup = str(tmp_path / "one.kdir")
        kdir(la, "backup", "--to", backup)
        kdir(la, "create", "/la/since", "--partitions", "1")
        kdir(la, "set", "-y", "/la/since", "retention.ms=30d")
        eventually(lambda: data.retention("since") == MONTH)
        data.produce("since")
        la.process.stop()
        command = [sys.executable, "-m", "resolver.cli.main", "restore", "--from", backup]
        subprocess.run([*command, "--store", store, "--replace", "-y"], check=True)
        la.start()
        check_waits(la, data, "since")


def test_another_kafka_at_the_address_that_was_acknowledged(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    with Federation(tmp_path / "servers") as federation:
        with kafka_brokers(properties=QUICK) as one:
            data = Data(one)
            make(data.kafka, "first")
            la = federation.start("/la", kafka=settings(one))
            begin(la, data)
            port = one.port
        with kafka_brokers(properties=QUICK, port=port) as other:
            data = Data(other)
            data.fill("first")
            data.fill("unknown")
            stopped = eventually(lambda: la.status().kafka.stop_reason, 60)
            assert "another Kafka cluster answers" in stopped
            kdir(la, "ack", "/la", "--stopped", stopped)
            eventually(lambda: "replaced" in run(["stat", "/la/first", "--at", la.address]).out)
            rules = tmp_path / "rules.toml"
            ignored = '[[rule]]\nmatch = "__control-*"\nignore = true\n'
            rules.write_text(f'{ignored}[[rule]]\nmatch = "*"\n')
            kdir(la, "adopt", "/la", "--map", str(rules))
            check_waits(la, data, "first", "unknown")


def test_a_topic_that_is_made_while_the_cluster_is_detached(
    broker: KafkaBroker, data: Data, tmp_path: Path
) -> None:
    make(data.kafka, "first")
    with Federation(tmp_path / "servers") as federation:
        root = federation.start("/")
        la = federation.join("/la", "/", kafka=settings(broker))
        eventually(lambda: la.status().topic_count == 1)
        kdir(root, "set", "-y", "/", "retention.ms=30d")
        eventually(lambda: MONTH in kdir(la, "effective", "/la/first").out)
        arm(la)
        eventually(lambda: data.retention("first") == MONTH)
        kdir(la, "parent", "detach", "/la", "--keep-inherited", "-y")
        data.fill("late")
        kdir(root, "set", "-y", "/", f"retention.ms={DAY}")
        kdir(la, "parent", "attach", "/la")
        eventually(lambda: la.status().parent.linked)
        data.produce("first")
        check_waits(la, data, "first", "late")


def test_a_topic_that_was_made_again_and_whose_old_entry_is_removed(
    broker: KafkaBroker, data: Data, tmp_path: Path
) -> None:
    make(data.kafka, "first")
    with Federation(tmp_path / "servers") as federation:
        la = federation.start("/la", kafka=settings(broker))
        begin(la, data)
        drop(data.kafka, "first")
        data.fill("first")
        eventually(lambda: "replaced" in kdir(la, "stat", "/la/first").out)
        kdir(la, "rm", "/la/first", "--yes")
        check_waits(la, data, "first")


def test_a_topic_that_another_client_makes_there_and_not_one_that_kdir_makes(
    broker: KafkaBroker, data: Data, tmp_path: Path
) -> None:
    make(data.kafka, "first")
    with Federation(tmp_path / "servers") as federation:
        la = federation.start("/la", kafka=settings(broker))
        begin(la, data)
        kdir(la, "create", "/la/own", "--partitions", "1")
        eventually(lambda: data.retention("own") == DAY)
        kdir(la, "set", "-y", "/la", "retention.ms=20h")
        eventually(lambda: data.retention("own") == "72000000")
        kdir(la, "set", "-y", "/la", f"retention.ms={DAY}")
        eventually(lambda: data.retention("own") == DAY)
        data.fill("theirs")
        check_waits(la, data, "theirs")
