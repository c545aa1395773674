"""Planning against a naive oracle: random commands, random races, nothing lost and nothing left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from directory.maintenance.verify_store import StoreComparison
from directory.namespace.command import (
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
    Plan,
    ReapDeleted,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.entry import (
    DELETED_ID,
    ROOT_ID,
    Directory,
    Entry,
    Kind,
    Link,
    Mount,
    Provision,
    Topic,
)
from directory.namespace.keys import claim_key, mounted_key
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import KdirError
from resolver.path import Path
from tests.properties.namespace.oracle import Oracle
from tests.support.trees import Cluster

MOUNT = "/m"
NAMES = st.sampled_from(["a", "b", "a.b", "a_b"])
RELATIVE = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
INSIDE = RELATIVE.map(lambda segments: Path(("m", *segments)))
ANYWHERE = st.one_of(INSIDE, INSIDE, INSIDE, st.just(Path(("m",))), RELATIVE.map(Path))
PHYSICAL = st.sampled_from(["", "", "", "a", "b", "a.b", "a_b", "a.b.2", "x"])
KINDS = st.sampled_from([None, None, None, Kind.DIRECTORY, Kind.TOPIC, Kind.LINK])


def commands(path: st.SearchStrategy[Path]) -> st.SearchStrategy[Command]:
    """Returns any command that the oracle knows, about such paths."""
    cluster_id = st.sampled_from(["kc-1", "kc-2", "kc-3"])
    observed = st.builds(
        ObservedTopic,
        physical_name=st.sampled_from(["p", "q", "p.q", "p_q"]),
        topic_id=st.just(b"i" * 16),
        partitions=st.just(1),
        replication_factor=st.just(1),
    )
    adopted = st.lists(st.tuples(RELATIVE, observed), max_size=3).map(tuple)
    links = st.booleans()
    return st.one_of(
        st.builds(CreateDirectory, path=path, make_parents=st.booleans()),
        st.builds(CreateDirectory, path=INSIDE, make_parents=st.just(value=True)),
        st.builds(CreateTopic, path=path, physical_name=PHYSICAL),
        st.builds(CreateLink, path=path, targets=st.tuples(path)),
        st.builds(CreateMount, path=path, cluster_id=cluster_id),
        st.builds(DeleteEntry, path=path, kind=KINDS, recursive=st.booleans()),
        st.builds(MoveEntry, path=path, new_path=path, kind=KINDS, leave_link=links),
        st.builds(AdoptTopics, topics=adopted),
    )


COMMANDS = commands(ANYWHERE)


@dataclass
class Watcher:
    """One who knows nothing but the change events, as a cache or the change log does."""

    seen: dict[int, tuple[int, str, Entry]] = field(default_factory=dict)
    ever: set[int] = field(default_factory=set)

    def receive(self, changes: tuple[EntryChange, ...]) -> None:
        for change in changes:
            if change.before is None:
                assert change.entry_id not in self.ever, "an id is never used again"
                self.ever.add(change.entry_id)
            elif change.before is not None:
                assert self.seen[change.entry_id][2] == change.before
            if change.after is None:
                del self.seen[change.entry_id]
            else:
                name = change.path.name
                self.seen[change.entry_id] = (change.parent_id, name, change.after)

    def tree(self) -> dict[int, tuple[int, str, Entry]]:
        """Returns what hangs together from the root: what was below a removed directory
        does not.
        """
        live: dict[int, tuple[int, str, Entry]] = {}
        grown = {ROOT_ID}
        while grown:
            found = {entry_id: one for entry_id, one in self.seen.items() if one[0] in grown}
            live.update(found)
            grown = set(found)
        return live


def entries_of(snapshot: Snapshot, node: Node) -> Iterator[tuple[int, str, Entry]]:
    """Yields (parent id, name, entry) of all below a directory."""
    for name in node.topics:
        topic = snapshot.topic(node.entry_id, name)
        assert topic is not None
        yield node.entry_id, name, topic
    for name, container in node.containers.items():
        yield node.entry_id, name, container
        if isinstance(container, Directory):
            below = snapshot.nodes.get(container.entry_id)
            assert below is not None
            assert (below.parent_id, below.name) == (node.entry_id, name)
            yield from entries_of(snapshot, below)


def check_invariants(cluster: Cluster) -> None:
    """Asserts the invariants of a store that only plans have written to."""
    snapshot, fresh = cluster.snapshot, cluster.loaded()
    removed = snapshot.nodes.get(DELETED_ID)
    assert removed is not None
    live = list(entries_of(snapshot, snapshot.root))
    gone = list(entries_of(snapshot, removed))
    # Served and stored are one, and nothing is an orphan.
    assert list(entries_of(fresh, fresh.root)) == live
    assert not fresh.unreadable_values
    assert not snapshot.unreadable_values
    # Ids are unique; names in Kafka are unique, and each is claimed.
    ids = [entry.entry_id for _, _, entry in (*live, *gone)]
    assert len(ids) == len(set(ids))
    names = [entry.physical_name for _, _, entry in (*live, *gone) if isinstance(entry, Topic)]
    assert len(names) == len(set(names))
    claims: dict[bytes, list[str]] = {}
    for name in sorted(names):
        claims.setdefault(claim_key(name), []).append(name)
    assert cluster.rows.under(b"p/") == {
        key: "\n".join(together).encode() for key, together in claims.items()
    }
    # Mounts: none in another, each child once, and its claim says which.
    mounts = [(tuple(at), mount) for at, mount in snapshot.mounts()]
    for at, _ in mounts:
        assert not any(other != at and at[: len(other)] == other for other, _ in mounts)
    assert set(cluster.rows.under(b"f/mounted/")) == {
        mounted_key(mount.cluster_id) for _, mount in mounts
    }
    # And `kdir verify` finds nothing.
    rows = sorted((key, value) for key, (value, _) in cluster.rows.values.items())
    for held in (snapshot, fresh):
        compared = StoreComparison(held, iter(rows), cluster.mount, lambda: None)
        assert list(compared.differences()) == []
    # Counts.
    assert snapshot.topic_count == sum(isinstance(entry, Topic) for *_, entry in live)
    assert snapshot.directory_count == sum(isinstance(entry, Directory) for *_, entry in live)


def tree_of(cluster: Cluster) -> dict[str, str]:
    """Returns the tree in the oracle's form."""
    shown: dict[str, str] = {}
    snapshot = cluster.snapshot
    for parent_id, name, entry in entries_of(snapshot, snapshot.root):
        above = snapshot.path_of(parent_id)
        assert above is not None
        at = str(Path((*cluster.mount.segments, *above, name)))
        match entry:
            case Topic(physical_name=physical_name):
                shown[at] = physical_name
            case Directory():
                shown[f"{at}/"] = "dir"
            case Link(targets=targets):
                shown[f"{at}/"] = "link:" + " ".join(map(str, targets))
            case Mount(cluster_id=cluster_id):
                shown[f"{at}/"] = f"mount:{cluster_id}"
    return shown


def tried(cluster: Cluster, command: Command) -> Plan | type[KdirError]:
    try:
        return cluster.plan(command)
    except KdirError as error:
        return type(error)


@given(st.lists(COMMANDS, max_size=12), st.sampled_from([0, 1, 3]))
@settings(max_examples=300)
def test_plans_do_what_commands_mean(commands: list[Command], reap: int) -> None:
    cluster, oracle, watcher = Cluster(MOUNT), Oracle((MOUNT[1:],)), Watcher()
    for command in commands:
        made = tried(cluster, command)
        wanted = oracle.do(command)
        if not isinstance(made, Plan):
            assert made is wanted, (command, made, wanted)
            continue
        assert wanted is None, (command, wanted)
        assert cluster.commit(made)
        watcher.receive(made.changes)
        # Whenever the reaper comes, and however far it gets, nobody sees a difference.
        reaped = cluster.do(ReapDeleted(limit=reap))
        watcher.receive(reaped.changes)
        assert tree_of(cluster) == oracle.tree()
        check_invariants(cluster)
        live = entries_of(cluster.snapshot, cluster.snapshot.root)
        assert watcher.tree() == {entry.entry_id: (up, name, entry) for up, name, entry in live}
    while (made := cluster.do(ReapDeleted(limit=2))).writes:
        watcher.receive(made.changes)
        check_invariants(cluster)
    # Nothing is left of what was removed, for anybody.
    removed = cluster.snapshot.nodes.get(DELETED_ID)
    assert removed is not None
    assert (len(removed.topics), len(removed.containers)) == (0, 0)
    assert cluster.rows.under(b"k/") == {}
    assert watcher.seen.keys() == watcher.tree().keys()
    not_free = (*cluster.rows.under(b"r/"), *cluster.rows.under(b"x/"))
    assert sorted(key[2:].decode() for key in not_free) == sorted({*oracle.removed})


NEAR = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(lambda at: Path(("m", *at)))
RACING: st.SearchStrategy[Command] = st.one_of(
    commands(NEAR),
    st.builds(
        UpdateEntry,
        path=NEAR,
        kind=KINDS,
        changes=st.sampled_from([{"policies.read_only": True}, {"policies.owner": "x"}]),
    ),
    st.builds(ReapDeleted, limit=st.integers(1, 3)),
)
"""Two of these are often about the same things."""


# Races that chance finds seldom.
@example(
    [],
    CreateTopic(path=Path(("m", "a", "b", "t"))),
    DeleteEntry(path=Path(("m", "a", "b"))),
)
@example(
    [],
    CreateMount(path=Path(("m", "a", "b", "x")), cluster_id="kc-1"),
    DeleteEntry(path=Path(("m", "a")), recursive=True),
)
@example(
    [CreateMount(path=Path(("m", "x")), cluster_id="kc-1")],
    MoveEntry(path=Path(("m", "x")), new_path=Path(("m", "a", "b", "x"))),
    DeleteEntry(path=Path(("m", "a")), recursive=True),
)
@example(
    [CreateDirectory(path=Path(("m", "b")))],
    MoveEntry(path=Path(("m", "a")), new_path=Path(("m", "b", "a"))),
    MoveEntry(path=Path(("m", "b")), new_path=Path(("m", "a", "b", "b"))),
)
@given(st.lists(commands(NEAR), max_size=6), RACING, RACING)
@settings(max_examples=600)
def test_two_plans_that_both_commit_are_as_one_after_the_other(
    before: list[Command], first: Command, second: Command
) -> None:
    """Guards are enough: what two plans of the same moment make of the tree, one of the two orders
    makes of it too. Where the guards do not hold, planning again is the other's turn.
    """
    start = (CreateDirectory(path=Path(("m", "a", "b")), make_parents=True), *before)
    cluster = after(start)
    old, late = tried(cluster, first), tried(cluster, second)
    if not isinstance(old, Plan) or not isinstance(late, Plan) or not late.writes:
        return
    assert cluster.commit(old)
    if cluster.commit(late):
        orders = [after(start, first, second), after(start, second, first)]
        assert full_tree(cluster) in [full_tree(one) for one in orders if one.refused == 0]
    else:
        again = tried(cluster, second)
        assert not isinstance(again, Plan) or cluster.commit(again)
    check_invariants(cluster)


class Tried(Cluster):
    """A cluster that counts what it refused of the last commands."""

    refused = 0


def after(start: tuple[Command, ...], *then: Command) -> Tried:
    """Returns a cluster after these commands, one by one; refused ones change nothing."""
    cluster = Tried(MOUNT)
    for place, command in enumerate((*start, *then)):
        made = tried(cluster, command)
        if isinstance(made, Plan):
            assert cluster.commit(made)
        elif place >= len(start):
            cluster.refused += 1
    return cluster


def full_tree(cluster: Cluster) -> dict[str, object]:
    """Returns all that can be seen, without ids and counts of changes, and the names in use."""
    shown: dict[str, object] = dict(tree_of(cluster))
    for parent_id, name, entry in entries_of(cluster.snapshot, cluster.snapshot.root):
        if not isinstance(entry, Link):
            shown[f"policies of {entry.kind} {cluster.snapshot.path_of(parent_id)} {name}"] = (
                entry.policies
            )
    shown["policies of the root"] = cluster.snapshot.root.directory.policies
    shown["claims"] = cluster.rows.under(b"p/")
    return shown


@given(st.permutations(range(6)), st.data())
@settings(max_examples=150)
def test_mounts_in_every_order_are_prefix_free(order: list[int], data: st.DataObject) -> None:
    paths = data.draw(st.lists(INSIDE, min_size=6, max_size=6))
    cluster = Cluster(MOUNT)
    stand: dict[tuple[str, ...], str] = {}
    for number in order:
        at = paths[number]
        made = tried(cluster, CreateDirectory(path=at.parent, make_parents=True))
        if isinstance(made, Plan):
            cluster.commit(made)
        made = tried(cluster, CreateMount(path=at, cluster_id=f"kc-{number}"))
        overlaps = any(
            at.segments[: len(one)] == one or one[: len(at)] == at.segments for one in stand
        )
        if isinstance(made, Plan):
            assert not overlaps
            assert cluster.commit(made)
            stand[at.segments] = f"kc-{number}"
        check_invariants(cluster)
    found = {("m", *at): mount.cluster_id for at, mount in cluster.snapshot.mounts()}
    assert found == stand


@given(
    st.lists(st.tuples(RELATIVE, st.sampled_from(list(Provision)[:5])), max_size=8),
    st.booleans(),
    st.integers(1, 4),
)
@settings(max_examples=150)
def test_removing_everything_leaves_nothing_but_what_kafka_keeps(
    topics: list[tuple[tuple[str, ...], Provision]],
    in_kafka: bool,
    limit: int,
) -> None:
    cluster = Cluster(MOUNT)
    kept: dict[str, Provision] = {}
    for relative, provision in topics:
        at = Path(("m", "top", *relative))
        cluster.do(CreateDirectory(path=at.parent, make_parents=True))
        made = tried(cluster, CreateTopic(path=at))
        if not isinstance(made, Plan):
            continue
        assert cluster.commit(made)
        topic = cluster.topic(str(at))
        news = TopicObservation(
            path=at, entry_id=topic.entry_id, provision=provision, topic_id=b"i" * 16
        )
        cluster.do(RecordObservations(news=(news,)))
        kept[topic.physical_name] = provision
    cluster.do(CreateDirectory(path=Path(("m", "top")), make_parents=True))
    top = DeleteEntry(path=Path(("m", "top")), recursive=True)
    assert cluster.do(top, deletes_in_kafka=in_kafka).topic_count == len(kept)
    while cluster.do(ReapDeleted(limit=limit)).writes:
        check_invariants(cluster)
    waiting = cluster.snapshot.nodes.get(DELETED_ID)
    assert waiting is not None
    asked = {name for name in kept if kept[name] in {Provision.ACTIVE, Provision.MISSING}}
    assert len(waiting.topics) == (len(asked) if in_kafka else 0)
    for name in list(waiting.topics):
        cluster.do(FinishDelete(topics=((name, int(name, 16)),)))
    assert set(cluster.rows.under(b"x/")) == {
        b"x/" + name.encode()
        for name, provision in kept.items()
        if provision is Provision.ACTIVE and not in_kafka
    }
    assert set(cluster.rows.under(b"r/")) == {
        b"r/" + name.encode()
        for name, provision in kept.items()
        if provision is not Provision.FAILED and (in_kafka or provision is not Provision.ACTIVE)
    }
    for prefix in (b"e/", b"p/", b"k/", b"f/"):
        assert cluster.rows.under(prefix) == {}
