"""S19: a leader that was paused and is woken changes nothing, in the store or in Kafka.

The reconciler is paused by SIGSTOP between its last check and its request, or its commit. With etcd
its lease ends meanwhile, and another server takes over. With sqlite the role hangs on a lock that
only the process's end frees: nobody takes over from who is paused, and what is true then is tested.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import KafkaTopic, TopicToCreate
from tests.conftest import SharedEtcd
from tests.fault.paused_leader import open_quick
from tests.support.reconciler import World, admin_of, drop, eventually, in_kafka, make

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def own_broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers() as broker:
        yield broker


@pytest.fixture
def kafka(own_broker: KafkaBroker) -> Iterator[ConfluentAdmin]:
    admin = ConfluentAdmin([own_broker.bootstrap])
    if names := in_kafka(admin):
        drop(admin, *names)
    yield admin
    admin.close()


class Paused:
    """The process of ``paused_leader``."""

    def __init__(self, address: str, broker: KafkaBroker, passage: str, end: ExitStack) -> None:
        command = [sys.executable, "-m", "tests.fault.paused_leader"]
        self.process = subprocess.Popen(
            [*command, address, broker.bootstrap, passage],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        end.callback(self.process.wait)
        end.callback(self.process.kill)
        self.expect("ready")

    def expect(self, text: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(text), line
        return line.strip()

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def run_until_paused(self) -> None:
        self.say()
        self.expect("paused")
        eventually(lambda: self._state() == "T")

    def _state(self) -> str:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def wake(self) -> str:
        """Resumes the process, and returns how it ended."""
        self.process.send_signal(signal.SIGCONT)
        self.expect("woken")
        return self.expect("done")


@pytest.fixture(params=["etcd", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    shared: SharedEtcd = request.getfixturevalue("etcd_cluster")
    return shared.address()


@pytest.fixture
def end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def server(address: str, broker: KafkaBroker, end: ExitStack) -> World:
    made = World(Path(), admin_of(broker.bootstrap), open_store=lambda: open_quick(address))
    end.callback(made.close)
    return made


def topic_id(kafka: ConfluentAdmin, name: str) -> bytes:
    seen = kafka.describe([name]).get(name)
    return seen.topic_id if isinstance(seen, KafkaTopic) else b""


def prepare(address: str, broker: KafkaBroker, kafka: ConfluentAdmin) -> None:
    """Prepares topics to create and topics to delete; no server leads yet."""
    make(kafka, "old", "kept")
    with ExitStack() as end:
        here = server(address, broker, end)
        here.sweep()
        here.create("new")
        here.remove("old")


def take_over(here: World) -> None:
    """Waits until this server has done all that is left to do."""

    def leads() -> bool:
        here.reconciler.run_once()
        return here.reconciler.status().leader

    eventually(leads)
    here.settle(60)


def witness(here: World, kafka: ConfluentAdmin) -> tuple[Any, ...]:
    """Returns all that somebody who should do nothing could have changed."""
    shown = {name: topic_id(kafka, name) for name in sorted(in_kafka(kafka))}
    return shown, here.states(), [str(topic) for _, topic in sorted(here.topics().items())]


@pytest.mark.parametrize("address", ["etcd"], indirect=True)
@pytest.mark.parametrize("passage", ["before create", "after create", "before commit_command"])
def test_S19_a_paused_maker_of_topics_changes_nothing_when_it_is_woken(
    address: str, passage: str, own_broker: KafkaBroker, kafka: ConfluentAdmin, end: ExitStack
) -> None:
    prepare(address, own_broker, kafka)
    paused = Paused(address, own_broker, passage, end)
    other = server(address, own_broker, end)
    paused.run_until_paused()
    take_over(other)
    assert other.states() == {"kept": "ACTIVE", "new": "ACTIVE"}
    assert in_kafka(kafka) == {"kept", "new"}
    # What the paused one was about to make is made, and removed again: its name is retired.
    other.remove("new")
    other.settle(60)
    eventually(lambda: in_kafka(kafka) == {"kept"})
    revision = other.replica.snapshot.revision
    before = witness(other, kafka)
    assert paused.wake() == "done, leader: False"
    assert witness(other, kafka) == before
    assert other.replica.snapshot.revision == revision, "not one commit"
    other.create("another")
    other.settle(60)
    assert other.states() == {"another": "ACTIVE", "kept": "ACTIVE"}, "the work goes on"


@pytest.mark.parametrize("address", ["etcd"], indirect=True)
@pytest.mark.parametrize("passage", ["before delete", "after delete"])
def test_S19_a_paused_deleter_leaves_a_topic_alone_that_was_made_again(
    address: str, passage: str, own_broker: KafkaBroker, kafka: ConfluentAdmin, end: ExitStack
) -> None:
    prepare(address, own_broker, kafka)
    first = topic_id(kafka, "old")
    paused = Paused(address, own_broker, passage, end)
    other = server(address, own_broker, end)
    paused.run_until_paused()
    take_over(other)
    eventually(lambda: "old" not in in_kafka(kafka))
    make(kafka, TopicToCreate("old", partitions=2))  # somebody, with another tool
    again = topic_id(kafka, "old")
    assert again
    assert again != first
    other.sweep()
    revision = other.replica.snapshot.revision
    before = witness(other, kafka)
    assert paused.wake() == "done, leader: False"
    assert topic_id(kafka, "old") == again
    assert witness(other, kafka) == before
    assert other.replica.snapshot.revision == revision


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_S19_on_sqlite_nobody_takes_over_from_who_is_paused_and_he_looks_again(
    address: str, own_broker: KafkaBroker, kafka: ConfluentAdmin, end: ExitStack
) -> None:
    prepare(address, own_broker, kafka)
    paused = Paused(address, own_broker, "before delete", end)
    other = server(address, own_broker, end)
    paused.run_until_paused()
    for _ in range(3):
        other.reconciler.run_once()
    assert not other.reconciler.status().leader, "its lock is held as long as it exists"
    # People's reads and writes go on: what waits is Kafka's side.
    other.create("waits")
    assert other.states()["waits"] == "PENDING"
    drop(kafka, "old")
    make(kafka, TopicToCreate("old", partitions=2))
    again = topic_id(kafka, "old")
    # It still leads, rightly; but what it compared is not what Kafka has now.
    time.sleep(2.5)  # longer than a look may be old
    assert paused.wake() == "done, leader: True"
    assert topic_id(kafka, "old") == again
    eventually(lambda: other.states().get("waits") == "ACTIVE")
    paused.process.kill()
    paused.process.wait()
    take_over(other)
    assert topic_id(kafka, "old") == again


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_S19_on_sqlite_the_next_one_leads_once_the_paused_one_is_killed(
    address: str, own_broker: KafkaBroker, kafka: ConfluentAdmin, end: ExitStack
) -> None:
    prepare(address, own_broker, kafka)
    paused = Paused(address, own_broker, "before create", end)
    other = server(address, own_broker, end)
    paused.run_until_paused()
    paused.process.kill()
    paused.process.wait()
    take_over(other)
    assert other.states() == {"kept": "ACTIVE", "new": "ACTIVE"}
    assert in_kafka(kafka) == {"kept", "new"}
