"""Quotas against one who counts anew: the sums that are kept, and races between plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from directory.namespace.command import (
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    MoveTopics,
    ObservedTopic,
    ReapDeleted,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import DELETED_ID, Directory, Kind, Policies, Topic
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import KdirError
from resolver.path import Path, is_system
from tests.support.trees import Cluster

NAMES = st.sampled_from(["a", "c", "d", "t"])
INSIDE = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: Path(("m", *names)))
ANYWHERE = st.one_of(INSIDE, st.just(Path(("m",))))
KINDS = st.sampled_from([None, Kind.DIRECTORY, Kind.TOPIC])
COUNTS = st.integers(0, 3)
LIMITS = st.none() | st.integers(0, 4)


@dataclass(frozen=True)
class News:
    """Kafka has more partitions of a topic."""

    path: Path
    partitions: int


def observed(name: str, partitions: int) -> ObservedTopic:
    return ObservedTopic(
        physical_name=name, topic_id=b"i" * 16, partitions=partitions, replication_factor=1
    )


QUOTAS = st.builds(
    UpdateEntry,
    path=ANYWHERE,
    kind=st.just(Kind.DIRECTORY),
    changes=st.one_of(
        st.builds(lambda limit: {"policies.max_topics": limit}, LIMITS),
        st.builds(lambda limit: {"policies.max_partitions": limit}, LIMITS),
    ),
)
COMMANDS: st.SearchStrategy[Command | News] = st.one_of(
    st.builds(CreateDirectory, path=INSIDE, make_parents=st.just(value=True)),
    st.builds(CreateTopic, path=INSIDE, partitions=COUNTS),
    st.builds(CreateTopic, path=INSIDE, partitions=COUNTS),
    st.builds(
        UpdateEntry,
        path=INSIDE,
        kind=st.just(Kind.TOPIC),
        changes=st.builds(lambda count: {"topic.partitions": count + 1}, COUNTS),
    ),
    QUOTAS,
    QUOTAS,
    st.builds(DeleteEntry, path=INSIDE, kind=KINDS, recursive=st.booleans()),
    st.builds(MoveEntry, path=INSIDE, new_path=INSIDE, kind=KINDS),
    st.builds(
        lambda where, name, count: AdoptTopics(
            topics=((where.segments[1:], observed(name, count + 1)),)
        ),
        INSIDE,
        st.sampled_from(["p", "q"]),
        COUNTS,
    ),
    st.builds(News, path=INSIDE, partitions=st.integers(1, 5)),
    st.builds(lambda: ReapDeleted(limit=2)),
)
ABOVE = st.lists(st.builds(Policies, max_topics=LIMITS, max_partitions=LIMITS), max_size=2)


def topics_of(snapshot: Snapshot, node: Node, *, systems: bool = False) -> Iterator[Topic]:
    """Yields every topic below a directory; ``systems``: also in a system's directories right in
    it.
    """
    for record in node.topics.values():
        topic = snapshot.codec.decode(record)
        assert isinstance(topic, Topic)
        yield topic
    for name, container in node.containers.items():
        if isinstance(container, Directory) and (systems or not is_system(name)):
            yield from topics_of(snapshot, snapshot.nodes[container.entry_id], systems=True)


def counted(snapshot: Snapshot, node: Node) -> tuple[int, int]:
    topics = list(topics_of(snapshot, node))
    return len(topics), sum(topic.partitions or 1 for topic in topics)


def over(cluster: Cluster, snapshot: Snapshot) -> dict[tuple[int, str], int]:
    """Returns how much is used of each quota that is exceeded."""
    found: dict[tuple[int, str], int] = {}
    for node in snapshot.nodes.values():
        says = node.directory.policies
        levels = [("", says)]
        if node.entry_id == snapshot.root.entry_id:
            levels += [(level.path, level.policies) for level in cluster.context.above]
        used = counted(snapshot, node)
        for where, policies in levels:
            for field, limit, have in (
                (f"topics {where}", policies.max_topics, used[0]),
                (f"partitions {where}", policies.max_partitions, used[1]),
            ):
                if limit is not None and have > limit:
                    found[node.entry_id, field] = have
    return found


def plant(cluster: Cluster) -> None:
    """Creates entries to move and to count: directories, topics, as Kafka has them."""
    cluster.do(
        CreateDirectory(path=Path(("m", "c", "d")), make_parents=True),
        AdoptTopics(
            topics=(
                (("c", "t"), observed("ct", 1)),
                (("c", "d", "t"), observed("cdt", 2)),
                (("c", "d", "u"), observed("cdu", 3)),
            )
        ),
    )


def command_of(cluster: Cluster, step: Command | News) -> Command | None:
    if not isinstance(step, News):
        return step
    topic = cluster.entry(str(step.path), Kind.TOPIC)
    if not isinstance(topic, Topic):
        return None
    news = TopicObservation(path=step.path, entry_id=topic.entry_id, partitions=step.partitions)
    return RecordObservations(news=(news,))


def check_sums(snapshot: Snapshot) -> None:
    for directory_id, node in snapshot.nodes.items():
        below = list(topics_of(snapshot, node, systems=True))
        assert snapshot.partitions(directory_id) == sum(one.partitions or 1 for one in below)
        if directory_id != DELETED_ID:
            assert snapshot.counts(directory_id).topics == len(below)


@given(ABOVE, st.lists(COMMANDS, max_size=14), st.lists(st.integers(0, 3), max_size=14), COUNTS)
@settings(max_examples=400)
@example(
    above=[],
    steps=[
        CreateDirectory(path=Path(("m", "a"))),
        UpdateEntry(path=Path(("m", "a")), changes={"policies.max_topics": 1}),
        CreateTopic(path=Path(("m", "a", "a")), partitions=1),
        CreateTopic(path=Path(("m", "a", "b")), partitions=1),
    ],
    lags=[0, 0, 0, 1],
    asked=0,
)
@example(
    above=[],
    steps=[
        CreateDirectory(path=Path(("m", "a"))),
        UpdateEntry(path=Path(("m", "a")), changes={"policies.max_topics": 1}),
        AdoptTopics(topics=((("a", "p"), observed("p", 1)),)),
        CreateTopic(path=Path(("m", "a", "b")), partitions=1),
    ],
    lags=[0, 0, 0, 1],
    asked=0,
)
@example(
    above=[],
    steps=[
        CreateDirectory(path=Path(("m", "a"))),
        UpdateEntry(path=Path(("m", "a")), changes={"policies.max_partitions": 2}),
        AdoptTopics(topics=((("a", "p"), observed("p", 1)),)),
        News(Path(("m", "a", "p")), 2),
        CreateTopic(path=Path(("m", "a", "b")), partitions=1),
    ],
    lags=[0, 0, 0, 0, 1],
    asked=0,
)
@example(
    above=[],
    steps=[
        CreateDirectory(path=Path(("m", "a"))),
        CreateDirectory(path=Path(("m", "b", "b")), make_parents=True),
        UpdateEntry(path=Path(("m", "a")), changes={"policies.max_partitions": 2}),
        CreateTopic(path=Path(("m", "b", "b", "a")), partitions=2),
        CreateTopic(path=Path(("m", "b", "b", "b")), partitions=2),
        MoveEntry(path=Path(("m", "b")), new_path=Path(("m", "a", "b"))),
    ],
    lags=[0, 0, 0, 0, 0, 1],
    asked=0,
)
def test_nothing_that_is_made_exceeds_a_quota_however_it_was_planned(
    above: list[Policies], steps: list[Command | News], lags: list[int], asked: int
) -> None:
    levels = [PolicyLevel("/" + "x" * number, one) for number, one in enumerate(above)]
    cluster = Cluster("/m", above=levels)
    plant(cluster)
    snapshots = [cluster.snapshot]
    for number, step in enumerate(steps):
        lag = lags[number] if number < len(lags) else 0
        old = snapshots[max(0, len(snapshots) - 1 - lag)]
        command = command_of(cluster, step)
        if command is None:
            continue
        before = over(cluster, cluster.snapshot)
        try:
            made = cluster.plan(command, old)
        except KdirError:
            continue
        cluster.commit(made)
        snapshots.append(cluster.snapshot)
        if number >= asked:  # before, nobody has asked for any
            check_sums(cluster.snapshot)
        after = over(cluster, cluster.snapshot)
        quota_set = isinstance(command, UpdateEntry) and command.kind is Kind.DIRECTORY
        by_kafka = isinstance(command, AdoptTopics | RecordObservations)
        if not quota_set and not by_kafka and not _sets_quota(command):
            worse = {key: used for key, used in after.items() if used > before.get(key, -1)}
            assert not worse, (command, lag)
    check_sums(cluster.snapshot)
    check_sums(cluster.loaded())


def _sets_quota(command: Command) -> bool:
    return isinstance(command, UpdateEntry) and any("max_" in field for field in command.changes)


@given(st.lists(st.tuples(INSIDE, st.sampled_from("pqrs"), COUNTS), max_size=6), LIMITS, LIMITS)
@settings(max_examples=100)
def test_a_batch_of_moves_keeps_to_quotas_together(
    there: list[tuple[Path, str, int]], topics: int | None, partitions: int | None
) -> None:
    cluster = Cluster("/m")
    cluster.do(
        CreateDirectory(
            path=Path(("m", "q")), policies=Policies(max_topics=topics, max_partitions=partitions)
        )
    )
    moves = []
    for where, name, count in there:
        cluster.do(AdoptTopics(topics=((where.segments[1:], observed(name, count + 1)),)))
        at = cluster.entry(str(where), Kind.TOPIC)
        if isinstance(at, Topic):
            moves.append((where, at.entry_id, Path(("m", "q", at.physical_name))))
    made = cluster.do(MoveTopics(moves=tuple(moves)))
    assert not over(cluster, cluster.snapshot)
    q = cluster.snapshot.find_directory(("q",))
    assert q is not None
    assert made.topic_count == cluster.snapshot.counts(q).topics
    left = [at for at, *_ in moves if isinstance(cluster.entry(str(at), Kind.TOPIC), Topic)]
    if topics is None and partitions is None:
        assert not left
