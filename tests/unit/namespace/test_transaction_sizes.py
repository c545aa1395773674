"""Each command's worst case against what one transaction of etcd holds (S9).

The numbers are listed below, so that a change that makes a command dearer is seen. What is too much
for one transaction all the same is refused with the limit named; what is made in steps
(``ReapDeleted``, adoption, news of Kafka) is cut by whoever makes them.
"""

from __future__ import annotations

import pytest

from directory.access.grants import Grant, Operation, Permission
from directory.namespace.command import (
    AddGrants,
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    MoveTopics,
    ObservedTopic,
    Plan,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Kind, Policies
from resolver.errors import InvalidPath
from resolver.path import MAX_SEGMENTS, Path
from tests.support.large_trees import ETCD_LIMITS
from tests.support.trees import Cluster, path

DEEP = ["d"] * (MAX_SEGMENTS - 2)
"""The directories of the deepest path below ``/la``: one more segment is the last."""
GRANT = Grant("User:a", "*", Operation.READ, Permission.ALLOW)
ALL_POLICIES = {
    "policies.owner": "search",
    "policies.contact": "#search",
    "policies.read_only": False,
    "policies.partitions": 3,
    "policies.topic_config.retention.ms": "1000",
    "policies.tags.a": "b",
}


def at(*segments: str) -> Path:
    return Path(("la", *segments))


def deep(first: str, *last: str) -> Path:
    """Returns a path as deep as one can be, below a directory of its own."""
    return at(first, *DEEP[len(last) :], *last)


def tiers(cluster: Cluster, first: str) -> None:
    """Creates directories down to the greatest depth."""
    cluster.do(CreateDirectory(path=deep(first).parent, make_parents=True))


def size(made: Plan) -> tuple[int, int]:
    """Guards and writes, with what the writer adds: the request, its answer, the event."""
    return len(made.guards) + 1, len(made.writes) + 2


def observed(name: str) -> ObservedTopic:
    return ObservedTopic(physical_name=name, topic_id=b"i" * 16, partitions=1, replication_factor=1)


def news(cluster: Cluster, where: Path) -> RecordObservations:
    topic = cluster.topic(str(where))
    reported = TopicObservation(
        path=where, entry_id=topic.entry_id, drift_count=topic.drift_count + 1
    )
    return RecordObservations(news=(reported,))


def worst_cases(cluster: Cluster) -> dict[str, Command]:
    """Returns each command as deep as can be, over the deepest tree."""
    for first in ("a", "b"):
        tiers(cluster, first)
        cluster.do(CreateTopic(path=deep(first, "t")), CreateDirectory(path=deep(first, "x")))
    cluster.do(AdoptTopics(topics=((deep("a", "u").segments[1:], observed("u")),)))
    cluster.do(CreateDirectory(path=at("c")), CreateTopic(path=at("c", "t")))
    entry_id = cluster.topic(str(deep("a", "u"))).entry_id
    return {
        "mkdir -p": CreateDirectory(path=deep("new"), make_parents=True),
        "mkdir": CreateDirectory(path=deep("a", "new"), policies=Policies(read_only=True)),
        "create": CreateTopic(path=deep("a", "new")),
        "ln": CreateLink(path=deep("a", "new"), targets=(path("/far"),)),
        "mount": CreateMount(path=deep("a", "new"), cluster_id="kc-new"),
        "set": UpdateEntry(path=deep("a", "x"), changes=ALL_POLICIES),
        "set read_only": UpdateEntry(path=deep("a", "x"), changes={"policies.read_only": True}),
        "rm topic": DeleteEntry(path=deep("a", "t")),
        "rm directory": DeleteEntry(path=deep("a", "x")),
        "rm -r": DeleteEntry(path=at("a"), recursive=True),
        "mv into the depth": MoveEntry(path=at("c", "t"), new_path=deep("a", "c")),
        "mv within the depth": MoveEntry(
            path=deep("a", "x"), new_path=deep("a", "y"), leave_link=True
        ),
        "adopt": AdoptTopics(topics=((deep("new", "q").segments[1:], observed("q")),)),
        "adopt --remap": MoveTopics(moves=((deep("a", "u"), entry_id, deep("a", "v")),)),
        "news of Kafka": news(cluster, deep("a", "t")),
        "grant": AddGrants(path=deep("a", "x"), grants=(GRANT,)),
    }


WORST = {
    "mkdir -p": (4, 65),
    "mkdir": (66, 4),
    "create": (68, 4),
    "ln": (66, 3),
    "mount": (68, 4),
    "set": (66, 3),
    "set read_only": (66, 4),
    "rm topic": (67, 5),
    "rm directory": (67, 3),
    "rm -r": (6, 5),
    "mv into the depth": (69, 4),
    "mv within the depth": (68, 4),
    "adopt": (4, 66),
    "adopt --remap": (68, 4),
    "news of Kafka": (65, 3),
    "grant": (66, 4),
}
"""Guards and writes: most are one guard for each directory on the way."""
_SLACK = 2
"""A rule more may cost so much without being listed."""


def test_S9_every_command_fits_one_transaction_as_deep_as_paths_go() -> None:
    cluster = Cluster()
    commands = worst_cases(cluster)
    found = {name: size(cluster.plan(command)) for name, command in commands.items()}
    for name, (guards, writes) in found.items():
        assert ETCD_LIMITS.hold(guards, writes), name
    dearer = {
        name: one for name, one in found.items() if max(map(int.__sub__, one, WORST[name])) > _SLACK
    }
    assert not dearer, "say here what it is for"


def test_a_move_between_two_of_the_deepest_places_is_the_one_that_does_not_fit() -> None:
    cluster = Cluster()
    for first in ("a", "b"):
        tiers(cluster, first)
    cluster.do(CreateTopic(path=deep("a", "t")))
    guards, writes = size(cluster.plan(MoveEntry(path=deep("a", "t"), new_path=deep("b", "t"))))
    assert not ETCD_LIMITS.hold(guards, writes)
    # Fifty tiers down on both sides it does.
    fifty = at("a", *["d"] * 50)
    cluster.do(CreateTopic(path=fifty.child("t")))
    move = MoveEntry(path=fifty.child("t"), new_path=at("b", *["d"] * 50, "t"))
    assert ETCD_LIMITS.hold(*size(cluster.plan(move)))


def test_a_directory_moves_with_sixty_mounts_below() -> None:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=at("a", "b"), make_parents=True))
    for number in range(60):
        cluster.do(CreateMount(path=at("a", "b", f"m{number}"), cluster_id=f"kc-{number}"))
    move = MoveEntry(path=at("a"), new_path=at("z"))
    assert ETCD_LIMITS.hold(*size(cluster.plan(move)))
    for number in range(60, 70):
        cluster.do(CreateMount(path=at("a", "b", f"m{number}"), cluster_id=f"kc-{number}"))
    assert not ETCD_LIMITS.hold(*size(cluster.plan(move)))


def test_a_directory_moves_with_any_number_of_read_only_ones_below() -> None:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=at("a")), CreateDirectory(path=at("z")))
    for number in range(200):
        cluster.do(CreateDirectory(path=at("a", f"d{number}"), policies=Policies(read_only=True)))
    cluster.do(CreateDirectory(path=at("w")))
    late = cluster.plan(DeleteEntry(path=at("z"), recursive=True))
    cluster.do(CreateTopic(path=at("z", "t")))
    late = cluster.plan(DeleteEntry(path=at("z"), recursive=True))
    moved = cluster.do(MoveEntry(path=at("a"), new_path=at("z", "a")))
    assert size(moved) <= (10, 10)
    assert not cluster.commit(late), "one mark is enough to save them"


def test_the_cost_does_not_grow_with_what_lies_below() -> None:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=at("a", "b"), make_parents=True))
    before = {
        "rm -r": size(cluster.plan(DeleteEntry(path=at("a"), recursive=True))),
        "mv": size(cluster.plan(MoveEntry(path=at("a"), new_path=at("z")))),
    }
    for number in range(300):
        cluster.do(CreateTopic(path=at("a", "b", f"t{number}")))
    assert {
        "rm -r": size(cluster.plan(DeleteEntry(path=at("a"), recursive=True))),
        "mv": size(cluster.plan(MoveEntry(path=at("a"), new_path=at("z")))),
    } == before


def test_a_path_deeper_than_paths_go_is_refused_before_it_is_counted() -> None:
    with pytest.raises(InvalidPath):
        at("new", *DEEP, "d", "d").join(())
    cluster = Cluster()
    made = cluster.do(CreateDirectory(path=deep("x"), make_parents=True))
    assert isinstance(made.entry, Directory)
    assert made.entry.kind is Kind.DIRECTORY
