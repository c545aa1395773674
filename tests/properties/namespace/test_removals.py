"""Removing while others write: whatever comes in whatever order, nothing is left over or lost.

Two servers see the store at moments of their own, and plan on what they see; a plan is committed
where its guards hold, or never, when its server died. The reaper is one at a time and has seen what
the one before it did, as its election makes sure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from directory.namespace.command import (
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateTopic,
    DeleteEntry,
    FinishDelete,
    MoveEntry,
    MoveTopics,
    ObservedTopic,
    Plan,
    ReapDeleted,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory, Provision, Topic
from directory.namespace.keys import claim_key, parse_entry_key
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.transaction_limits import Limits
from resolver.errors import KdirError
from resolver.path import Path
from tests.support.trees import Cluster

NAMES = st.sampled_from("ab")
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda at: Path(("m", *at)))
PHYSICAL = st.sampled_from(["p.q", "p_q", "r", "s"])
TIGHT = Limits(max_writes=9, max_guards=7, max_bytes=1 << 20)


@dataclass(frozen=True)
class See:
    """A server comes up to the newest revision."""

    server: int


@dataclass(frozen=True)
class Think:
    """A server plans on what it sees; ``Write`` commits it, if it lives that long."""

    server: int
    command: Command
    in_kafka: bool


@dataclass(frozen=True)
class Write:
    """A server commits what it planned, however long ago."""

    server: int


@dataclass(frozen=True)
class Kill:
    """A server dies with what it planned, and the next one loads everything."""

    server: int


@dataclass(frozen=True)
class Reap:
    """One step of the reaper."""

    limit: int


@dataclass(frozen=True)
class Finish:
    """Kafka has no topic of these any more."""


@dataclass(frozen=True)
class Overtake:
    """Two things are planned at one moment, and committed one after the other; None = the reaper's
    next step.
    """

    first: Command | None
    second: Command | None
    in_kafka: bool


def observed(name: str) -> ObservedTopic:
    return ObservedTopic(physical_name=name, topic_id=b"i" * 16, partitions=1, replication_factor=1)


Step = See | Think | Write | Kill | Reap | Finish | Overtake
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateDirectory, path=PATHS, make_parents=st.just(value=True)),
    st.builds(CreateTopic, path=PATHS),
    st.builds(CreateLink, path=PATHS, targets=st.just((Path(("far",)),))),
    st.builds(DeleteEntry, path=PATHS, recursive=st.just(value=True)),
    st.builds(DeleteEntry, path=PATHS, recursive=st.just(value=True)),
    st.builds(MoveEntry, path=PATHS, new_path=PATHS),
    st.builds(
        AdoptTopics,
        topics=st.tuples(
            st.tuples(PATHS.map(lambda path: path.segments[1:]), PHYSICAL.map(observed))
        ),
    ),
    st.builds(
        UpdateEntry, path=PATHS, changes=st.sampled_from([{"policies.read_only": False}, {}])
    ),
)
SERVERS = st.integers(0, 1)
REMOVING = st.one_of(
    st.none(),
    st.builds(
        DeleteEntry,
        path=st.sampled_from([Path(("m", "a")), Path(("m", "a", "b"))]),
        recursive=st.just(value=True),
    ),
)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(See, SERVERS),
    st.builds(Think, SERVERS, COMMANDS, st.booleans()),
    st.builds(Think, SERVERS, COMMANDS, st.booleans()),
    st.builds(Write, SERVERS),
    st.builds(Write, SERVERS),
    st.builds(Kill, SERVERS),
    st.builds(Reap, st.integers(1, 4)),
    st.builds(Finish),
    st.builds(Overtake, COMMANDS, REMOVING, st.booleans()),
    st.builds(Overtake, REMOVING, COMMANDS, st.booleans()),
)
START = (
    CreateTopic(path=Path(("m", "a", "b", "t"))),
    AdoptTopics(topics=((("a", "b", "u"), observed("p.q")),)),
)


@dataclass
class World:
    """A store, and what two servers see of it."""

    store: Cluster = field(default_factory=lambda: Cluster("/m"))
    seen: list[Snapshot] = field(default_factory=list)
    planned: list[Plan | None] = field(default_factory=lambda: [None, None])
    events: list[tuple[int, bool]] = field(default_factory=list)
    """Entry id, and whether it was the end of the entry."""

    def __post_init__(self) -> None:
        self.commit(self.store.plan(CreateDirectory(path=Path(("m", "a", "b")), make_parents=True)))
        for command in START:
            self.commit(self.store.plan(command))
        self.seen = [self.store.snapshot, self.store.snapshot]

    def commit(self, made: Plan) -> None:
        if not self.store.commit(made):
            return
        self.events += [(one.entry_id, one.after is None) for one in made.changes]
        for change in made.changes:
            if change.after is not None:
                # Whoever was told that it is there finds it there: not in a removed directory.
                found = self.store.entry(str(change.path), change.kind)
                assert found is not None, change
                assert found.entry_id == change.entry_id

    def plan(self, command: Command, seen: Snapshot, *, in_kafka: bool) -> Plan | None:
        try:
            return self.store.plan(command, seen, deletes_in_kafka=in_kafka)
        except KdirError:
            return None

    def do(self, step: Step) -> None:
        match step:
            case See(server):
                self.seen[server] = self.store.snapshot
            case Think(server, command, in_kafka):
                self.planned[server] = self.plan(command, self.seen[server], in_kafka=in_kafka)
            case Overtake(first, second, in_kafka):
                plans = [
                    self.plan(one or ReapDeleted(limit=3), self.store.snapshot, in_kafka=in_kafka)
                    for one in (first, second)
                ]
                for made in plans:
                    if made is not None:
                        self.commit(made)
            case Write(server):
                made, self.planned[server] = self.planned[server], None
                if made is not None:
                    self.commit(made)
            case Kill(server):
                self.planned[server] = None
                self.seen[server] = self.store.loaded()
            case Reap(limit):
                self.commit(self.store.plan(ReapDeleted(limit=limit, limits=TIGHT)))
            case Finish():
                place = self.store.snapshot.nodes.get(DELETED_ID)
                assert place is not None
                gone = tuple((name, int(name, 16)) for name in place.topics)
                self.commit(self.store.plan(FinishDelete(topics=gone)))

    def everything_is_finished(self) -> None:
        place = self.store.snapshot.nodes.get(DELETED_ID)
        while place is not None and place.containers:
            self.do(Reap(3))
            place = self.store.snapshot.nodes.get(DELETED_ID)
        self.do(Finish())


def check_rows(store: Cluster) -> None:
    """Looks at rows and at nothing else: what a snapshot does not show is found too."""
    entries = {key: store.codec.decode(value) for key, value in store.rows.under(b"e/").items()}
    directories = {one.entry_id for one in entries.values() if isinstance(one, Directory)}
    for key in entries:
        if key != ROOT_KEY:
            assert parse_entry_key(key).parent_id in {ROOT_ID, DELETED_ID, *directories}
    claimed: dict[bytes, set[str]] = {}
    for one in entries.values():
        if isinstance(one, Topic):
            claimed.setdefault(claim_key(one.physical_name), set()).add(one.physical_name)
    found = {key: set(value.decode().split("\n")) for key, value in store.rows.under(b"p/").items()}
    assert found == claimed


REMOVE = DeleteEntry(path=Path(("m", "a")), recursive=True)
MOVE_IN = MoveEntry(path=Path(("m", "b")), new_path=Path(("m", "a", "b", "a")))
COLLIDING = AdoptTopics(topics=((("b",), observed("p_q")),))


# Races that chance finds seldom.
@example(
    [
        Think(0, CreateTopic(path=Path(("m", "b"))), in_kafka=False),
        Write(0),
        Overtake(REMOVE, MOVE_IN, in_kafka=False),
    ]
)
@example(
    [Think(0, REMOVE, in_kafka=False), Write(0), Overtake(None, COLLIDING, in_kafka=False)],
)
@example(
    [Think(0, REMOVE, in_kafka=False), Write(0), Overtake(COLLIDING, None, in_kafka=False)],
)
@given(st.lists(STEPS, min_size=4, max_size=40))
@settings(max_examples=400)
def test_P13_nothing_is_left_over_whatever_comes_between(steps: list[Step]) -> None:
    world = World()
    for step in steps:
        world.do(step)
        check_rows(world.store)
    live = world.store.show().split("(removed)")[0]
    world.everything_is_finished()
    check_rows(world.store)
    assert world.store.show() == live.rstrip(), "what was not removed is there, and nothing else"
    assert world.store.rows.under(b"k/") == {}
    # Whoever was told of an entry was told once of its end.
    ends = [entry_id for entry_id, ended in world.events if ended]
    assert len(ends) == len(set(ends))
    there = {
        one.entry_id
        for one in map(world.store.codec.decode, world.store.rows.under(b"e/").values())
    }
    assert {entry_id for entry_id, _ in world.events} - set(ends) == there


@given(
    st.lists(st.tuples(PATHS, PHYSICAL), max_size=4),
    st.lists(st.tuples(PATHS, PATHS), min_size=1, max_size=4),
    st.lists(COMMANDS, max_size=2),
)
@settings(max_examples=200)
def test_moving_topics_in_bulk_is_as_moving_them_one_by_one(
    topics: list[tuple[Path, str]], moves: list[tuple[Path, Path]], late: list[Command]
) -> None:
    bulk, single = Cluster("/m"), Cluster("/m")
    for one in (bulk, single):
        for path, name in topics:
            one.do(AdoptTopics(topics=((path.segments[1:], observed(name)),)))
    wanted = []
    for path, new_path in moves:
        topic = bulk.entry(str(path))
        if isinstance(topic, Topic):
            wanted.append((path, topic.entry_id, new_path))
    made = bulk.plan(MoveTopics(moves=tuple(wanted)))
    assert made.topic_count + len(made.notes) >= bool(wanted)
    for path, entry_id, new_path in wanted:
        single.do(MoveTopics(moves=((path, entry_id, new_path),)))
    for command in late:
        try:
            changed = bulk.plan(command)
        except KdirError:
            continue
        bulk.commit(changed)
    if bulk.commit(made):
        check_rows(bulk)
        assert not bulk.loaded().unreadable_values
        if not late and len({new for *_, new in wanted} | {old for old, *_ in wanted}) == 2 * len(
            wanted
        ):
            # No two of them have to do with each other: the order does not matter.
            assert names_of(bulk) == names_of(single)


def names_of(cluster: Cluster) -> dict[str, str]:
    """Returns physical names by path."""
    found = {}
    stack = [cluster.snapshot.root]
    while stack:
        node = stack.pop()
        above = cluster.snapshot.path_of(node.entry_id)
        for name in node.topics:
            topic = cluster.snapshot.topic(node.entry_id, name)
            assert topic is not None
            assert above is not None
            found["/".join((*above, name))] = topic.physical_name
        stack += [
            cluster.snapshot.nodes[one.entry_id]
            for one in node.containers.values()
            if isinstance(one, Directory)
        ]
    return found


@given(st.lists(st.sampled_from(list(Provision)[:5]), min_size=1, max_size=5), st.booleans())
@settings(max_examples=50)
def test_a_crash_between_any_two_steps_changes_nothing(
    provisions: list[Provision], in_kafka: bool
) -> None:
    """The reaper that goes on is always another server, which has loaded everything anew."""
    cluster = Cluster("/m")
    cluster.do(CreateDirectory(path=Path(("m", "a", "b")), make_parents=True))
    for number, provision in enumerate(provisions):
        at = Path(("m", "a", "b", f"t{number}"))
        topic = cluster.do(CreateTopic(path=at)).entry
        assert topic is not None
        news = TopicObservation(
            path=at, entry_id=topic.entry_id, provision=provision, topic_id=b"i" * 16
        )
        cluster.do(RecordObservations(news=(news,)))
    cluster.do(DeleteEntry(path=Path(("m", "a")), recursive=True), deletes_in_kafka=in_kafka)
    whole = 0
    while (made := cluster.plan(ReapDeleted(limit=2), cluster.loaded())).writes:
        assert cluster.commit(made)
        check_rows(cluster)
        whole += len(made.changes)
    assert whole == len(provisions) + 1
