"""A cluster's store, replica, writer and reconciler in this process, over a Kafka.

The reconciler's thread runs only where a test starts it; ``sweep`` and ``settle`` make rounds in
the test's own thread, so that nothing depends on timing.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import KafkaAdmin, KafkaTopic, Succeeded, TopicToCreate
from directory.kafka.adoption import recorded_topics
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.kafka.kafka_context import KafkaContext
from directory.kafka.reconciler import Reconciler
from directory.maintenance.reaper import Reaper
from directory.namespace.command import Command, CreateDirectory, CreateTopic, DeleteEntry
from directory.namespace.entry import DELETED_ID, Kind, Topic
from directory.server.config_kafka import KafkaConfig
from directory.store.base import Store
from directory.store.replica import Replica
from directory.store.sqlite.store import SqliteStore
from directory.store.writer import CommitResult, Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import KafkaUnavailable, StoreUnavailable
from resolver.path import Path
from tests.support.waiting import eventually

__all__ = [
    "MOUNT",
    "Chance",
    "Failing",
    "World",
    "admin_of",
    "begin_arming",
    "drop",
    "eventually",
    "in_kafka",
    "make",
    "partitions",
    "state_counts",
    "unlucky",
    "world",
]

MOUNT = Path.parse("/la/t")
ALL = frozenset({"create", "delete"})
PACE = {"sweep_interval_seconds": 300.0}
"""Settings by which looks at Kafka are 20 s apart, so that ``settle`` ends between two."""


def admin_of(bootstrap: str, timeout_seconds: float = 15.0) -> Callable[[], ConfluentAdmin]:
    """Returns a function that makes an admin client of a broker."""
    return lambda: ConfluentAdmin([bootstrap], timeout_seconds=timeout_seconds)


def in_kafka(kafka: ConfluentAdmin) -> set[str]:
    """Returns the topics that Kafka shows, its own aside."""
    return {name for name, seen in kafka.describe_all().topics.items() if not seen.internal}


def partitions(kafka: ConfluentAdmin) -> dict[str, int]:
    """Returns the partitions of each topic that the broker shows."""
    return {name: seen.partitions for name, seen in kafka.describe_all().topics.items()}


def make(kafka: ConfluentAdmin, *desired_set: str | TopicToCreate) -> None:
    """Creates topics as another tool would, and waits until they are visible."""
    topics = [
        desired if isinstance(desired, TopicToCreate) else TopicToCreate(desired)
        for desired in desired_set
    ]
    assert set(kafka.create(topics).values()) <= {Succeeded()}
    eventually(
        lambda: all(
            isinstance(seen := kafka.describe([desired.name]).get(desired.name), KafkaTopic)
            and seen.partitions
            for desired in topics
        )
    )


def drop(kafka: ConfluentAdmin, *names: str) -> None:
    """Deletes topics as another tool would, and waits until they are gone."""
    assert set(kafka.delete(names).values()) <= {Succeeded()}
    eventually(lambda: not kafka.describe(names))


class World:
    """One server of a cluster. Several may share the store's file, or with ``open_store`` another
    store.
    """

    def __init__(
        self, file: FilePath, admin: Callable[[], KafkaAdmin], writer: Any = None, **settings: Any
    ) -> None:
        open_store: Callable[[], Store] = settings.pop(
            "open_store", lambda: SqliteStore(file, "la-t")
        )
        self.store = open_store()
        codec = ProtoCodec()
        self.replica = Replica(self.store, codec)
        self.replica.start()
        eventually(lambda: self.replica.state.value == "serving")
        self.writer = Writer(self.store, self.replica, codec, lambda _: MOUNT)
        self.ceiling: frozenset[str] = settings.get("ceiling", ALL)
        self.now = 0.0
        self.unmanaged = ""
        """Why this cluster changes nothing in its Kafka: another manages it."""
        self.unconfirmed_seconds = 0.0
        """For how long no parent has confirmed what is inherited."""
        self.admin = admin
        names = ("has_parent", "grants_max_age_seconds", "configs_per_read")
        of_context = {name: settings.pop(name) for name in names if name in settings}
        context = KafkaContext(
            "la-t",
            self.store.limits,
            lambda: self.replica.snapshot,
            writer(self.writer) if writer else self.writer,
            lambda _: MOUNT,
            KafkaConfig(**({"bootstrap": ("unused:1",), "ceiling": ALL} | PACE | settings)),
            lambda _: admin(),
            clock=lambda: self.now + time.monotonic(),
            unconfirmed_seconds=lambda: self.unconfirmed_seconds,
            unmanaged=lambda: self.unmanaged,
            **of_context,
        )
        self.reconciler = Reconciler(context, self.store, self.replica, chance=random.Random(7))
        self.reaper = Reaper(
            f"la-t-{id(self)}",
            self.store,
            self.replica,
            writer(self.writer) if writer else self.writer,
            clock=lambda: self.now + time.monotonic(),
        )
        # As `start` does, which not every test calls.
        self.replica.subscribe(self.reconciler._on_applied)

    def close(self) -> None:
        self.reconciler.stop(20)
        self.reconciler.resign()
        self.reaper.stop(20)
        self.replica.stop()
        self.store.close()

    def sweep(self) -> float:
        """Runs the reaper and one round in which all is due; returns the seconds until the next."""
        self.now += 3600
        self.reap()
        return self.reconciler.run_once()

    def reap(self) -> None:
        """Runs the reaper until every removal that no other server works on is finished."""
        while self.reaper.step() < 0.5:
            pass

    def settle(self, rounds: int = 20) -> None:
        """Runs rounds, with the clock set to the next due time, until nothing is due for 10 s.

        A busy broker shows changes late: after ``rounds`` rounds it also sleeps, up to a minute.
        """
        deadline = time.monotonic() + 60
        for number in itertools.count():
            self.reap()
            delay = self.reconciler.run_once()
            if delay > 10:
                return
            self.now += delay
            if number >= rounds:
                assert time.monotonic() < deadline, "it never settles"
                time.sleep(0.05)

    # -- what people do ----------------------------------------------------------------------------

    def execute(self, command: Command) -> CommitResult:
        if isinstance(command, DeleteEntry):
            command = replace(command, deletes_in_kafka="delete" in self.ceiling)
        return self.writer.commit_command(command)

    def create(self, path: str, **fields: Any) -> None:
        self.execute(CreateTopic(path=MOUNT.join(path.split("/")), **fields))

    def mkdir(self, path: str) -> None:
        self.execute(CreateDirectory(path=MOUNT.join(path.split("/")), make_parents=True))

    def remove(self, path: str, kind: Kind | None = None) -> None:
        self.execute(DeleteEntry(path=MOUNT.join(path.split("/")), kind=kind, recursive=True))

    # -- what exists -------------------------------------------------------------------------------

    @property
    def facts(self) -> PinnedKafka:
        return PinnedKafka.load(self.replica.snapshot)

    @property
    def stopped(self) -> str:
        stop = self.facts.stop
        return stop.text if stop else ""

    def topics(self) -> dict[str, Topic]:
        """Returns the recorded topics by path below the mount."""
        return {
            "/".join(one.path.below(MOUNT)): one.topic
            for one in recorded_topics.recorded_topics(self.replica.snapshot, MOUNT)
        }

    def states(self) -> dict[str, str]:
        return {path: topic.provision.name for path, topic in sorted(self.topics().items())}

    def removed(self) -> Sequence[Topic]:
        """Returns the topics that wait to be deleted in Kafka."""
        return [
            one.topic for one in recorded_topics.pending_deletions(self.replica.snapshot, MOUNT)
        ]

    def nothing_left_to_reap(self) -> bool:
        node = self.replica.snapshot.nodes.get(DELETED_ID)
        return node is None or not (node.topics or node.containers)


@contextmanager
def world(file: FilePath, admin: Callable[[], KafkaAdmin], **settings: Any) -> Iterator[World]:
    """Runs a server that ends with the test."""
    with closing(World(file, admin, **settings)) as made:
        yield made


def state_counts(topics: Mapping[str, Topic]) -> dict[str, int]:
    """Returns the number of topics in each state of provisioning."""
    counts: dict[str, int] = {}
    for topic in topics.values():
        counts[topic.provision.name] = counts.get(topic.provision.name, 0) + 1
    return counts


def begin_arming(here: World, *below: str, aspect: str = "configs", takeover: bool = False) -> None:
    """Commits an arming without waiting for its calls, which a later step of the test makes. Its
    clock goes on by 30 s at each reading: the commit has 30 s, and the wait after it ends at once.
    """
    arming_service, where = copy(here.reconciler.arming_service), MOUNT.join(below)
    late = itertools.count(0.0, 30.0)
    arming_service._context = replace(arming_service._context, clock=lambda: next(late))
    plan = arming_service.plan(where, aspect, takeover=takeover).plan
    arming_service.arm(where, aspect, plan, takeover=takeover, timeout_seconds=60.0)


class Failing:
    """Proxy that forwards calls; ``chance`` decides which one fails."""

    def __init__(self, real: Any, chance: Chance, error: Exception, *methods: str) -> None:
        self._real = real
        self._chance = chance
        self._error = error
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in self._methods:
            return found

        def call(*arguments: Any, **keywords: Any) -> Any:
            if self._chance.now():
                raise self._error
            return found(*arguments, **keywords)

        return call


class Chance:
    """Countdown of calls; the one that brings ``left`` to 0 fails."""

    def __init__(self) -> None:
        self.left = -1

    def now(self) -> bool:
        self.left -= 1
        return self.left == 0


@contextmanager
def unlucky(
    file: FilePath, kafka: KafkaAdmin, chance: Chance, *asked: str, ceiling: frozenset[str]
) -> Iterator[World]:
    """Runs a cluster of which one call to the store or to Kafka (``asked``) fails."""
    written = ("commit_command", "put_facts")
    with world(
        file,
        lambda: Failing(kafka, chance, KafkaUnavailable("away for a moment"), "cluster_id", *asked),
        writer=lambda real: Failing(real, chance, StoreUnavailable("away for a moment"), *written),
        ceiling=ceiling,
        split_on=".",
    ) as here:
        yield here
