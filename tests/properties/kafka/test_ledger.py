"""Random histories against a ledger: only those topic ids are ever deleted in Kafka that kdir made,
or recorded as an entry's own, and whose entry somebody removed.

Servers die at any step, Kafka goes away, loses requests and answers and is exchanged for another,
stores are backed up, restored and given a new life, ceilings change, and somebody else makes and
deletes topics under the very same names.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path as FilePath
from typing import Any

import pytest

from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.maintenance.restore import begin_new_incarnation
from directory.namespace.entry import Provision
from resolver.errors import KdirError
from tests.support.acls import arm, grant
from tests.support.backups import back_up, put_back
from tests.support.crash_points import ASKED, WRITTEN, Crash, Mortal, Passages
from tests.support.kafka_ledger import Ledger
from tests.support.reconciler import World

SEEDS = range(6, 20)
STEPS = 150
NAMES = [f"t{number}" for number in range(40)]
CEILINGS = [{"create", "delete", "acls"}] * 4 + [{"create"}, {"delete"}, set()]


class History:
    """One random history."""

    def __init__(self, folder: FilePath, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.kafka = Ledger("kept")
        self.released: set[bytes] = set()
        """Ids of topics whose entries somebody removed."""
        self.desired_gone: set[str] = set()
        """Names of topics that somebody removed before their ids were known."""
        self.backups: list[bytes] = []
        self.kafkas: dict[str, dict[str, Any]] = {}
        self.log: list[str] = []
        self.first = 0
        self.here = self.start()

    def start(self, last: int = -1) -> World:
        passages = Passages(last)
        return World(
            self.folder / "store.db",
            lambda: Mortal(self.kafka, passages, ASKED),
            writer=lambda real: Mortal(real, passages, WRITTEN),
            ceiling=frozenset(self.chance.choice(CEILINGS)),
            max_acls=self.chance.choice([0, 1, 100]),
        )

    # -- what happens --------------------------------------------------------------------------

    def create(self) -> None:
        self.here.create(self.name(), partitions=self.chance.choice([0, 1, 3]))

    def remove(self) -> None:
        name = self.name()
        topic = self.here.topics().get(name)
        self.here.remove(name)
        if topic is not None and topic.topic_id:
            self.released.add(topic.topic_id)
        elif topic is not None:
            self.desired_gone.add(topic.physical_name)

    def another_client_makes(self) -> None:
        """Creates a topic as another tool would, most often one that kdir is about to create or
        delete.
        """
        waiting = [one.physical_name for one in self.here.removed()]
        waiting += [
            one.physical_name
            for one in self.here.topics().values()
            if one.provision is Provision.PENDING
        ]
        name = self.chance.choice(waiting or [self.name()])
        if name not in self.kafka.topics:
            self.kafka.add(name)

    def another_client_deletes(self) -> None:
        self.kafka.topics.pop(self.name(), None)

    def grant(self) -> None:
        if not self.kafka.away and "acls" in self.here.ceiling:
            grant(self.here, "", self.chance.choice(["allow alice read", "deny eve all"]))

    def adopt(self) -> None:
        self.here.reconciler.requests.adopt([], False, False)

    def acknowledge(self) -> None:
        stop = PinnedKafka.load(self.here.replica.snapshot).stop
        if stop is not None:
            self.here.reconciler.acknowledge(stop.text)

    def kafka_goes(self) -> None:
        self.kafka.away = True

    def requests_are_lost(self) -> None:
        """Makes requests get lost: an attempt is on record for a topic that does not exist."""
        self.kafka.loses_requests = True
        if self.chance.random() < 0.5:
            self.create()
            self.look()

    def answers_are_lost(self) -> None:
        self.kafka.loses_answers = True

    def another_kafka(self) -> None:
        self.kafkas[self.kafka.kafka_id] = self.kafka.topics
        self.kafka.kafka_id = "L" if self.kafka.kafka_id == "K" else "K"
        self.kafka.topics = self.kafkas.get(self.kafka.kafka_id, {})

    def another_client_is_quicker(self) -> None:
        self.kafka.before_create = self.chance.choice([lambda: None, self.another_client_makes])

    def restart(self) -> None:
        self.here.close()
        self.here = self.start()

    def dies_soon(self) -> None:
        self.here.close()
        self.here = self.start(self.chance.randint(1, 30))

    def back_up(self) -> None:
        self.backups.append(back_up(self.here.store))

    def put_back(self) -> None:
        if self.backups:
            self.here.close()
            put_back(self.chance.choice(self.backups), self.address)
            self.here = self.start()

    def new_incarnation(self) -> None:
        self.here.close()
        begin_new_incarnation(self.address)
        self.here = self.start()

    def look(self) -> None:
        self.chance.choice([self.here.sweep, self.here.reconciler.run_once, self.settle])()

    def settle(self) -> None:
        for _ in range(5):
            self.here.reap()
            self.here.now += self.here.reconciler.run_once()

    # -- the run -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"sqlite:///{self.folder / 'store.db'}"

    def name(self) -> str:
        """Returns one of two, most often the same; a name that kdir deleted is not given again for
        a day, so that others come.
        """
        return NAMES[self.first + (self.chance.random() < 0.2)]

    def recover(self) -> None:
        """Ends the faults with some probability: else no topic would ever be created."""
        kafka = self.kafka
        if self.chance.random() < 0.3:
            kafka.away = kafka.loses_requests = kafka.loses_answers = False
        if kafka.kafka_id != "K" and self.chance.random() < 0.4:
            self.another_kafka()

    def step(self) -> None:
        weights: list[tuple[Callable[[], None], int]] = [
            (self.look, 30),
            (self.create, 14),
            (self.remove, 14),
            (self.another_client_makes, 14),
            (self.another_client_deletes, 3),
            (self.grant, 2),
            (self.adopt, 2),
            (self.acknowledge, 4),
            (self.kafka_goes, 3),
            (self.requests_are_lost, 8),
            (self.answers_are_lost, 3),
            (self.another_kafka, 1),
            (self.another_client_is_quicker, 2),
            (self.restart, 2),
            (self.dies_soon, 8),
            (self.back_up, 3),
            (self.put_back, 2),
            (self.new_incarnation, 1),
        ]
        actions, shares = zip(*weights, strict=True)
        (action,) = self.chance.choices(actions, shares)
        self.recover()
        self.log.append(action.__name__)
        try:
            action()
        except KdirError as refused:
            self.log.append(f"  {refused.message}")
        except Crash:
            self.log.append("  died")
            self.here.close()
            self.here = self.start()
        self.first = min(self.first + (self.chance.random() < 0.1), len(NAMES) - 2)
        self.check()

    def check(self) -> None:
        for topic_id in self.kafka.deleted_ids:
            made_as = self.kafka.made_ids.get(topic_id)
            asked_for = topic_id in self.released or made_as in self.desired_gone
            assert asked_for, (int.from_bytes(topic_id, "big"), self.log)

    def close(self) -> None:
        self.here.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_deleted_in_kafka_that_is_not_in_the_ledger(
    tmp_path: FilePath, seed: int
) -> None:
    with closing(History(tmp_path, seed)) as history:
        history.here.sweep()
        if "acls" in history.here.ceiling and seed % 2:
            arm(history.here, "", takeover=True)
        for _ in range(STEPS):
            history.step()


def test_the_ledger_finds_a_deletion_that_nobody_asked_for(tmp_path: FilePath) -> None:
    with closing(History(tmp_path, 1)) as history:
        history.kafka.add("t1")
        history.kafka.delete(["t1"])
        with pytest.raises(AssertionError):
            history.check()
