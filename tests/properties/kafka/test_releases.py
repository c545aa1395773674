"""No change that may delete data is pushed to a topic that no plan of now names and kdir did not
make: random histories of a cluster and its Kafka, against a model that keeps a list.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st
from kdir.v1 import federation_pb2

from directory.federation import inheritance
from directory.federation import parent_state as parent_facts
from directory.kafka.adoption import pinned_kafka
from directory.kafka.adoption.vanish_guard import StopReason
from directory.kafka.applying import config_diff
from directory.kafka.applying.config_diff import ObservedConfig
from directory.kafka.applying.desired_configs import ArmedTopic, ArmedTopics
from directory.kafka.applying.last_applied import configs_to_write, load_applied_configs
from directory.kafka.arming.releases import (
    Released,
    armed_plan,
    arming_entry,
    inherited_basis,
    release_writes,
    releases_of,
)
from directory.namespace.command import (
    AdoptTopics,
    CreateDirectory,
    DeleteEntry,
    MoveEntry,
    ObservedTopic,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.entry import ROOT_ID, Kind, Provision, Topic
from directory.namespace.snapshot import Snapshot
from directory.namespace.topic_configs import deletes_data
from directory.store.base import Put, Write
from resolver.errors import InvalidArgument
from resolver.path import Path
from tests.support.trees import Cluster

DIRECTORIES = ("/la", "/la/a", "/la/b", "/la/a/c")
VALUES = ("-1", "1000", "2000", "3000")
NAMES = tuple(f"t{number}" for number in range(5))


@dataclass
class Allowed:
    """Change that the model allows."""

    topic_id: bytes
    era: int
    entry_id: int
    """Of what was armed."""
    way: tuple[int, ...]
    """The directories from the topic's own up to that."""


@dataclass
class History:
    """A cluster, its Kafka, and what the model thinks of both."""

    chance: random.Random
    cluster: Cluster = field(default_factory=Cluster)
    kafka: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    allowed: list[Allowed] = field(default_factory=list)
    era: int = 0
    """Rises with each restore, each move of the mount, and each Kafka that is acknowledged."""
    ids: int = 0
    plans: int = 0
    kafka_id: str = "K1"
    pushed: int = 0
    held: int = 0
    refused: int = 0

    def begin(self) -> None:
        for text in DIRECTORIES[1:]:
            self.cluster.do(CreateDirectory(path=Path.parse(text)))
        self.put(*pinned_kafka.pin(self.kafka_id))
        self.backup = self.cluster.rows.values.copy()

    # -- helpers -------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        return self.cluster.snapshot

    def put(self, *writes: Write) -> None:
        assert self.cluster.rows.commit((), writes)
        self.cluster.snapshot = self.snapshot.apply(self.cluster.rows.revision, writes)

    def directory(self) -> str:
        found = self.chance.choice(DIRECTORIES)
        if self.snapshot.find_directory(Path.parse(found).below(self.cluster.mount)) is None:
            return "/la/b/c"  # where it was moved
        return found

    def entry_id(self, text: str) -> int:
        found = self.snapshot.find_directory(Path.parse(text).below(self.cluster.mount))
        assert found is not None
        return found

    def topics(self) -> list[tuple[tuple[int, str], Path, Topic]]:
        found = ArmedTopics(self.snapshot, self.cluster.mount, (), ROOT_ID).below(ROOT_ID)
        return [(one.place, one.path, one.topic) for one in found]

    def known(self, name: str) -> tuple[Path, Topic] | None:
        found = self.snapshot.locate(name)
        if found is None or found.relative is None:
            return None
        return self.cluster.mount.join(found.relative), found.topic

    def make_in_kafka(self, name: str) -> bytes:
        self.ids += 1
        topic_id = self.ids.to_bytes(16, "big")
        self.kafka[name] = (topic_id, {"retention.ms": self.chance.choice(VALUES)})
        return topic_id

    def adopt(self, name: str, topic_id: bytes) -> Released:
        where = self.entry_path(name)
        seen = ObservedTopic(
            physical_name=name,
            topic_id=topic_id,
            partitions=1,
            replication_factor=1,
            config=MappingProxyType(self.kafka[name][1]),
        )
        self.cluster.do(AdoptTopics(topics=((where, seen),)))
        located = self.snapshot.locate(name)
        assert located is not None
        return Released((located.parent_id, where[-1]), located.topic.entry_id, topic_id)

    def entry_path(self, name: str) -> tuple[str, ...]:
        return (*Path.parse(self.directory()).below(self.cluster.mount), name)

    # -- what happens --------------------------------------------------------------------------

    def another_client_makes(self) -> None:
        """Creates a topic in Kafka, new or with an earlier one's name: adopted by itself, or taken
        over.
        """
        name = self.chance.choice(NAMES)
        known = self.known(name)
        topic_id = self.make_in_kafka(name)
        if known is None:
            self.adopt(name, topic_id)
            return
        path, topic = known
        if self.chance.random() < 0.5:  # its old entry is removed
            self.cluster.do(DeleteEntry(path=path, kind=Kind.TOPIC))
            self.adopt(name, topic_id)
            return
        for provision, changes in (
            (Provision.REPLACED, {}),
            (Provision.ACTIVE, {"topic_id": topic_id}),
        ):
            news = TopicObservation(
                path=path,
                entry_id=topic.entry_id,
                provision=provision,
                **changes,  # type: ignore[arg-type]
            )
            self.cluster.do(RecordObservations(news=(news,)))

    def kdir_makes(self) -> None:
        name = self.chance.choice(NAMES)
        if self.known(name) is not None or name in self.kafka:
            return
        made = self.adopt(name, self.make_in_kafka(name))
        self.put(*releases_of(self.snapshot, self.cluster.mount, [made], "made"))
        topic = self.snapshot.topic(*made.place)
        assert topic is not None
        if entry_id := arming_entry(self.snapshot, made.place[0], topic):
            self.allow(made, entry_id)

    def allow(self, one: Released, entry_id: int) -> None:
        way = self.way(one.place[0], entry_id)
        self.allowed.append(Allowed(one.topic_id, self.era, entry_id, way))

    def way(self, here: int, entry_id: int) -> tuple[int, ...]:
        found = [here]
        while found[-1] not in (entry_id, 0):
            node = self.snapshot.nodes.get(found[-1])
            found.append(0 if node is None else node.parent_id)
        return tuple(found)

    def arm(self) -> None:
        """Arms with a plan, which names what is not released yet; some plans are never armed."""
        where = self.directory()
        entry_id = self.entry_id(where)
        mount, basis = self.cluster.mount, inherited_basis(self.snapshot, self.cluster.mount)
        names = [
            Released(one.place, one.topic.entry_id, one.topic.topic_id)
            for one in ArmedTopics(self.snapshot, mount, (), entry_id).below(entry_id)
            if not one.released
        ]
        self.plans += 1
        plan = f"p{self.plans}"
        self.put(*release_writes(self.snapshot, plan, entry_id, names))
        # A topic has one release: what an earlier plan named holds no more, wherever it is moved.
        named = {one.topic_id for one in names}
        self.allowed = [one for one in self.allowed if one.topic_id not in named]
        if self.chance.random() < 0.3:
            return
        self.put(armed_plan(plan, basis, entry_id))
        self.manage(where, True)
        for one in names:
            self.allow(one, entry_id)

    def disarm(self) -> None:
        self.manage(self.directory(), self.chance.choice([False, None]))

    def manage(self, where: str, value: bool | None) -> None:
        changes = {"policies.manage.configs": value}
        try:
            self.cluster.do(UpdateEntry(path=Path.parse(where), changes=changes))
        except InvalidArgument:
            assert value is None
            self.refused += 1

    def set(self) -> None:
        value = self.chance.choice([*VALUES, None])
        changes = {"policies.topic_config.retention.ms": value}
        self.cluster.do(UpdateEntry(path=Path.parse(self.directory()), changes=changes))

    def move(self) -> None:
        topics = self.topics()
        if not topics:
            return
        _, path, topic = self.chance.choice(topics)
        target = self.cluster.mount.join(self.entry_path(topic.physical_name))
        if target != path:
            self.cluster.do(MoveEntry(path=path, new_path=target, kind=Kind.TOPIC))

    def move_directory(self) -> None:
        """Moves the innermost directory with its contents: to and fro, or aside and back at
        once.
        """
        here = next(
            one
            for one in (Path.parse("/la/a/c"), Path.parse("/la/b/c"))
            if self.snapshot.find_directory(one.below(self.cluster.mount)) is not None
        )
        there = Path.parse("/la/b/c" if here == Path.parse("/la/a/c") else "/la/a/c")
        self.cluster.do(MoveEntry(path=here, new_path=there, kind=Kind.DIRECTORY))

    def managed_by_another(self) -> None:
        """Sets or clears the note that another cluster on the same Kafka manages it."""
        known = pinned_kafka.PinnedKafka.load(self.snapshot).unmanaged
        writes, _ = pinned_kafka.note_manager(self.snapshot, unmanaged=not known)
        self.put(*writes)
        self.era += 1

    def another_kafka(self) -> None:
        self.kafka_id = self.chance.choice(["K1", "K2"])
        self.put(
            *pinned_kafka.acknowledge_stop(StopReason("another", 0, self.kafka_id), self.snapshot)
        )
        self.era += 1

    def moved_mount(self) -> None:
        """Sets another parent, or another mount in its welcome; perhaps as it was before."""
        welcome = federation_pb2.Welcome(
            parent_cluster_id=self.chance.choice(["kc-1", "kc-2"]), mount="/la", parent_mount="/"
        )
        before = inherited_basis(self.snapshot, self.cluster.mount)
        self.put(*parent_facts.welcome_writes(self.snapshot, welcome, 1))
        output = federation_pb2.Inherited(revision=1, incarnation="one")
        self.put(*inheritance.inherited_writes(self.snapshot, output, 1))
        self.era += inherited_basis(self.snapshot, self.cluster.mount) != before

    def back_up(self) -> None:
        self.backup = self.cluster.rows.values.copy()

    def restore(self) -> None:
        self.cluster.rows.values = self.backup.copy()
        self.cluster.rows.revision += 1
        rows = sorted((key, value) for key, (value, _) in self.backup.items())
        self.era += 1
        self.cluster.snapshot = Snapshot.load(
            self.cluster.codec, f"life {self.era}", self.cluster.rows.revision, [rows]
        )
        for name, (topic_id, _) in self.kafka.items():
            if self.known(name) is None:
                self.adopt(name, topic_id)

    # -- what reaches Kafka --------------------------------------------------------------------

    def may(self, subject: ArmedTopic) -> bool:
        above = {subject.topic.entry_id}
        here = subject.place[0]
        while here:
            above.add(here)
            node = self.snapshot.nodes.get(here)
            here = node.parent_id if node is not None else 0
        return any(
            (one.topic_id, one.era) == (subject.topic.topic_id, self.era)
            and one.entry_id in above
            and self.is_armed(one.entry_id, subject.topic)
            and one.way == self.way(subject.place[0], one.entry_id)
            for one in self.allowed
        )

    def is_armed(self, entry_id: int, topic: Topic) -> bool:
        """True if this entry itself is armed still; of a topic's own, if the topic is."""
        node = self.snapshot.nodes.get(entry_id)
        policies = topic.policies if node is None else node.directory.policies
        return policies.manage.get("configs", False)

    def push(self) -> None:
        for one in list(ArmedTopics(self.snapshot, self.cluster.mount, ()).below(ROOT_ID)):
            name = one.topic.physical_name
            topic_id, configs = self.kafka.get(name, (b"", {}))
            if topic_id != one.topic.topic_id:
                continue
            found = ObservedConfig(dict(configs), 1)
            pushed = load_applied_configs(self.snapshot, one.topic.entry_id)
            verdict = config_diff.diff_configs(one, found, pushed)
            for key, after in verdict.alterations.items():
                if deletes_data(key, configs.get(key), after):
                    assert self.may(one), f"{one.path} {key}: {configs.get(key)} → {after}"
                    self.pushed += 1
            assert not (verdict.done.held and self.may(one)), f"{one.path} waits"
            self.held += bool(verdict.done.held)
            self.kafka[name] = (topic_id, dict(verdict.configs))
            if verdict.done != pushed:
                self.put(configs_to_write(one.topic.entry_id, verdict.done))


STEPS = (
    History.another_client_makes,
    History.kdir_makes,
    History.arm,
    History.arm,
    History.disarm,
    History.set,
    History.set,
    History.set,
    History.move,
    History.move_directory,
    History.managed_by_another,
    History.another_kafka,
    History.moved_mount,
    History.back_up,
    History.restore,
)


def played(chance: random.Random, steps: int) -> History:
    history = History(chance)
    history.begin()
    for _ in range(steps):
        chance.choice(STEPS)(history)
        history.push()
    return history


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_nothing_is_pushed_that_may_delete_what_no_plan_of_now_names(seed: int, steps: int) -> None:
    played(random.Random(seed), steps)


def test_the_histories_push_and_hold() -> None:
    found = [played(random.Random(seed), 60) for seed in range(20)]
    assert sum(one.pushed for one in found) > 20
    assert sum(one.held for one in found) > 20
    assert sum(one.refused for one in found) > 0


def test_a_record_of_a_newer_version_releases_nothing() -> None:
    history = History(random.Random(1))
    history.begin()
    name = NAMES[0]
    released = history.adopt(name, history.make_in_kafka(name))
    history.manage("/la", True)
    names = release_writes(history.snapshot, "p", ROOT_ID, [released])
    history.put(*names, Put(b"k/plan/p", b'{"newer": 1}'))
    (one,) = ArmedTopics(history.snapshot, history.cluster.mount, ()).below(ROOT_ID)
    assert not one.released
    history.put(armed_plan("p", inherited_basis(history.snapshot, history.cluster.mount), ROOT_ID))
    (one,) = ArmedTopics(history.snapshot, history.cluster.mount, ()).below(ROOT_ID)
    assert one.released
