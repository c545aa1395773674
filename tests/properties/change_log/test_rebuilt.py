"""Whatever is done, the rows that are made of the change log are those of the store."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.access.grants import Grant, Operation, Permission
from directory.change_log.state_records import (
    checkpoint_of,
    page_records,
    snapshot_records,
)
from directory.maintenance.log_backup import NOT_HELD, make_rows, new_table, read_rows, scratch
from directory.namespace.command import (
    AddGrants,
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    EntryChange,
    FinishDelete,
    MoveEntry,
    ObservedTopic,
    ReapDeleted,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import DELETED_ID, Directory
from directory.namespace.keys import kafka_key, retired_key
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Delete, Put, Write
from directory.store.event_rows import OutboxCommit, logged_facts, pack, unpack
from resolver.changes.record import Checkpoint, checkpoint_key, encode
from resolver.changes.state_fold import LogState, StateFold
from resolver.errors import KdirError
from resolver.path import Path
from tests.support.trees import Cluster

ID = "kc-test"
MOUNT = Path(("m",))
NAMES = st.sampled_from("ab")
PATHS = st.lists(NAMES, max_size=3).map(lambda at: Path(("m", *at)))
PHYSICAL = st.sampled_from(["p.q", "p_q", "r"])
GRANTS = st.sampled_from(["User:ana", "User:bob"]).map(
    lambda name: (Grant(name, "*", Operation.READ, Permission.ALLOW),)
)


@dataclass(frozen=True)
class Facts:
    """The server writes what is no entry's."""

    writes: tuple[Write, ...]


@dataclass(frozen=True)
class Publish:
    """A page of what waits is published."""


@dataclass(frozen=True)
class Restore:
    """The store is lost, and made again of what is in the log."""


def observed(name: str) -> ObservedTopic:
    return ObservedTopic(physical_name=name, topic_id=b"i" * 16, partitions=1, replication_factor=1)


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateDirectory, path=PATHS, make_parents=st.just(value=True)),
    st.builds(CreateTopic, path=PATHS),
    st.builds(CreateLink, path=PATHS, targets=st.just((Path(("far",)),))),
    st.builds(CreateMount, path=PATHS, cluster_id=st.sampled_from(["kc-1", "kc-2"])),
    st.builds(DeleteEntry, path=PATHS, recursive=st.just(value=True)),
    st.builds(MoveEntry, path=PATHS, new_path=PATHS),
    st.builds(
        AdoptTopics,
        topics=st.tuples(
            st.tuples(PATHS.map(lambda path: path.segments[1:]), PHYSICAL.map(observed))
        ),
    ),
    st.builds(
        UpdateEntry,
        path=PATHS,
        changes=st.sampled_from(
            [
                {"policies.read_only": True},
                {"policies.read_only": None, "policies.owner": None},
                {"policies.owner": "ana"},
                {"policies.max_topics": 5},
            ]
        ),
    ),
    st.builds(AddGrants, path=PATHS, grants=GRANTS),
    st.builds(RemoveGrants, path=PATHS, grants=GRANTS),
    st.builds(ReapDeleted, limit=st.integers(1, 4)),
)
FACTS = st.one_of(
    st.sampled_from([kafka_key("pin"), retired_key("p.q"), b"f/detached", b"f/inherited"]).flatmap(
        lambda key: st.one_of(
            st.sampled_from([b"x", b"y"]).map(lambda value: Put(key, value)),
            st.just(Delete(key)),
        )
    )
)
STEPS = st.one_of(
    COMMANDS,
    COMMANDS,
    COMMANDS,
    st.builds(Facts, st.tuples(FACTS)),
    st.just(FinishDelete(topics=())),
    st.builds(Publish),
    st.builds(Restore),
)
Record = tuple[bytes, bytes | None]


@dataclass
class World:
    """A store, what waits in its outbox, and its state topic."""

    store: Cluster = field(default_factory=lambda: Cluster("/m"))
    waiting: list[OutboxCommit] = field(default_factory=list)
    topic: list[Record] = field(default_factory=list)
    generation: int = 1

    def do(self, step: Command | Facts | Publish | Restore) -> None:
        match step:
            case Facts(writes):
                self.store.rows.commit((), writes)
                self.apply((), writes)
            case Publish():
                self.publish()
            case Restore():
                self.restore()
            case FinishDelete():
                place = self.store.snapshot.nodes.get(DELETED_ID)
                gone = tuple((name, int(name, 16)) for name in place.topics) if place else ()
                self.change(FinishDelete(topics=gone))
            case _:
                self.change(step)

    def change(self, command: Command) -> None:
        try:
            made = self.store.plan(command, deletes_in_kafka=True)
        except KdirError:
            return
        if made.writes and self.store.rows.commit(made.guards, made.writes):
            self.apply(made.changes, made.writes)

    def apply(self, changes: tuple[EntryChange, ...], writes: tuple[Write, ...]) -> None:
        revision = self.store.rows.revision
        self.store.snapshot = self.store.snapshot.apply(revision, writes)
        value = pack(changes, time_ms=revision, facts=logged_facts(writes))
        self.waiting.append(unpack(value, revision, ID))

    def publish(self) -> None:
        if not self.waiting:
            return
        state, _ = page_records(self.waiting, self.store.snapshot, ID, self.generation, 0)
        for key, change in state.items():
            self.topic.append((key.encode(), None if change is None else encode(change)))
        self.end_page(self.waiting[-1].revision)
        self.waiting.clear()

    def end_page(self, revision: int) -> None:
        point = Checkpoint(incarnation="i", incarnations=("i",), cluster="m")
        change = checkpoint_of(point, ID, self.generation, revision=revision, time=0)
        self.topic.append((checkpoint_key(ID).encode(), encode(change)))

    def restore(self) -> None:
        """Makes the store again, and goes on as the next generation: nothing differs."""
        self.publish()
        if not self.topic:
            return
        before = kept(self.store)
        rows = sorted(rebuilt(self.topic).items())
        self.store.rows.values = {key: (value, 1) for key, value in rows}
        self.store.rows.revision = 1
        self.store.snapshot = Snapshot.load(self.store.codec, "", 1, [rows])
        assert kept(self.store) == before
        self.generation += 1
        self.end_page(1)
        assert differing(self.store.snapshot, state_of(self.topic)) == set()


def kept(store: Cluster) -> dict[bytes, bytes]:
    """Returns the rows that the log is to give back. A root directory on which nothing is set is
    the same with a row and without.
    """
    plain = store.codec.encode(store.snapshot.root.directory) == store.codec.encode(
        Directory(entry_id=store.snapshot.root.directory.entry_id)
    )
    return {
        key: value
        for key, (value, _) in store.rows.values.items()
        if not key.startswith(NOT_HELD) and not (plain and key == ROOT_KEY)
    }


def rebuilt(records: list[Record]) -> dict[bytes, bytes]:
    """Returns the rows that a restore makes of a topic; its state is not held in memory."""
    with scratch() as database:
        state = state_of(records, partial(new_table, database))
        assert dict(state.rows.items()) == dict(state_of(records).rows.items())
        make_rows(state, database)
        rows = list(read_rows(database))
    assert rows == sorted(rows)
    return dict(rows)


def state_of(
    records: list[Record], new_table: Callable[[], MutableMapping[str, Any]] | None = None
) -> LogState:
    fold = StateFold(ID, new_table=new_table)
    for key, value in records:
        fold.add(key, value)
    assert not fold.pending_count
    assert not fold.state.skipped
    return fold.state


def compacted(records: list[Record], *, keeps_tombstones: bool) -> list[Record]:
    """Returns what Kafka's log cleaner leaves: the last record of each key, in their order."""
    last = {key: number for number, (key, _) in enumerate(records)}
    return [
        (key, value)
        for number, (key, value) in enumerate(records)
        if last[key] == number and (keeps_tombstones or value is not None)
    ]


def differing(snapshot: Snapshot, state: LogState) -> set[str]:
    """Returns the keys that a resync would write."""
    wanted = {
        key: (change.key, change.record)
        for key, change in snapshot_records(snapshot, MOUNT, ID, 1, revision=1, now_ms=0)
    }
    there = {key: (row.key, row.record) for key, row in state.rows.items()}
    return {key for key, _ in wanted.items() ^ there.items()}


@given(st.lists(STEPS, min_size=3, max_size=30), st.data())
@settings(max_examples=100, deadline=None)
def test_P7_P9_P21_rows_rebuilt_from_the_log_are_those_of_the_store(
    steps: list[Command | Facts | Publish | Restore], data: st.DataObject
) -> None:
    world = World()
    world.do(CreateDirectory(path=Path(("m", "a", "b")), make_parents=True))
    for step in steps:
        world.do(step)
    world.publish()
    expected = kept(world.store)
    whole = state_of(world.topic)
    assert rebuilt(world.topic) == expected
    assert differing(world.store.snapshot, whole) == set()
    # The cleaner ran up to anywhere, and a reader begins in its middle: it has read the first
    # records as they were, and reads the rest as the cleaner left it.
    cleaned = data.draw(st.integers(0, len(world.topic)))
    head = compacted(world.topic[:cleaned], keeps_tombstones=False)
    assert rebuilt([*head, *world.topic[cleaned:]]) == expected
    middle = data.draw(st.integers(0, len(world.topic)))
    rest = compacted(world.topic[middle:], keeps_tombstones=True)
    assert rebuilt([*world.topic[:middle], *rest]) == expected
