"""Quotas on topics and partitions, level by level: what is refused, in which words."""

from __future__ import annotations

import pytest

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
from directory.namespace.entry import ROOT_ID, Kind, Policies
from directory.namespace.keys import INHERITED, QUOTA, quota_key
from directory.namespace.quotas import quotas_at
from directory.store.base import KeyEquals, Put, UnchangedSince
from resolver.errors import InvalidArgument, QuotaExceeded
from tests.support.large_trees import ETCD_LIMITS
from tests.support.trees import Cluster, path


def mkdir(text: str, **policies: object) -> CreateDirectory:
    return CreateDirectory(path=path(text), policies=Policies(**policies))  # type: ignore[arg-type]


def topic(text: str, partitions: int = 1, **policies: object) -> CreateTopic:
    own = Policies(**policies)  # type: ignore[arg-type]
    return CreateTopic(path=path(text), partitions=partitions, policies=own)


def grow(text: str, partitions: int) -> UpdateEntry:
    return UpdateEntry(path=path(text), kind=Kind.TOPIC, changes={"topic.partitions": partitions})


def set_quota(text: str, **quotas: int | None) -> UpdateEntry:
    changes = {f"policies.{field}": limit for field, limit in quotas.items()}
    return UpdateEntry(path=path(text), kind=Kind.DIRECTORY, changes=changes)


def adopt(name: str, partitions: int, *where: str) -> AdoptTopics:
    observed = ObservedTopic(
        physical_name=name, topic_id=b"i" * 16, partitions=partitions, replication_factor=1
    )
    return AdoptTopics(topics=(((*where, name), observed),))


def refused(cluster: Cluster, command: Command, arguments: str) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded, match=arguments) as caught:
        cluster.plan(command)
    return caught.value


# -- partitions ------------------------------------------------------------------------------------


def test_partitions_are_counted_over_all_topics_below() -> None:
    cluster = Cluster()
    cluster.do(
        mkdir("/la/a", max_partitions=10),
        mkdir("/la/a/b"),
        topic("/la/a/x", 4),
        topic("/la/a/b/y", 4),
    )
    wrong = refused(
        cluster,
        topic("/la/a/b/z", 3),
        "^quota exceeded: /la/a allows 10 partitions .*8 used, 3 requested",
    )
    assert dict(wrong.metadata) == {
        "path": "/la/a", "field": "max_partitions", "limit": "10", "used": "8",
    }  # fmt: skip
    cluster.do(topic("/la/a/b/z", 2), topic("/la/elsewhere", 50))


def test_defaults_count_and_those_of_the_broker_are_to_be_set() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a", max_partitions=5), mkdir("/la/a/three", partitions=3))
    cluster.do(topic("/la/a/three/x", 0))
    refused(cluster, topic("/la/a/three/y", 0), "3 used, 3 requested")
    with pytest.raises(InvalidArgument, match=r"topic.partitions: not given, and /la/a allows 5"):
        cluster.plan(topic("/la/a/y", 0))
    # One partition there would be at least.
    cluster.do(topic("/la/a/y", 2))
    refused(cluster, topic("/la/a/z", 0), "1 requested")
    # Where only topics are counted, nobody asks how many partitions.
    cluster.do(mkdir("/la/t", max_topics=1), topic("/la/t/x", 0))


def test_more_partitions_need_room_too() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a", max_partitions=5), topic("/la/a/x", 3), topic("/la/a/y", 1))
    refused(cluster, grow("/la/a/x", 5), "4 used, 2 requested")
    desired = UpdateEntry(path=path("/la/a/y"), changes={"policies.partitions": 3})
    refused(cluster, desired, "2 requested")
    cluster.do(grow("/la/a/x", 4))
    refused(cluster, grow("/la/a/y", 2), "5 used, 1 requested")
    # What has nothing to do with it goes on.
    cluster.do(UpdateEntry(path=path("/la/a/y"), changes={"policies.owner": "x"}))


def test_an_own_policy_that_was_set_before_lets_no_growth_past_the_quota() -> None:
    cluster = Cluster()
    policies = Policies(partitions=1000)
    cluster.do(mkdir("/la/a", max_partitions=5))
    cluster.do(CreateTopic(path=path("/la/a/x"), partitions=2, policies=policies))
    refused(cluster, grow("/la/a/x", 1000), "/la/a allows 5 .*2 used, 998 requested")
    cluster.do(grow("/la/a/x", 5))
    refused(cluster, grow("/la/a/x", 6), "5 used, 1 requested")
    # Nor past the topic's own limit.
    policies = Policies(partitions=1000, max_partitions=3)
    cluster.do(CreateTopic(path=path("/la/y"), partitions=2, policies=policies))
    refused(cluster, grow("/la/y", 4), "/la/y allows itself 3 partitions, not 4")


def test_a_topic_binds_itself() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/x", 2, max_partitions=3))
    wrong = refused(cluster, grow("/la/x", 4), "/la/x allows itself 3 partitions, not 4")
    assert wrong.metadata["path"] == "/la/x"
    cluster.do(grow("/la/x", 3))
    refused(cluster, topic("/la/y", 2, max_partitions=1), "allows itself 1")


def test_what_moves_in_needs_room_and_what_moves_within_does_not() -> None:
    cluster = Cluster()
    cluster.do(
        mkdir("/la/a", max_partitions=5),
        mkdir("/la/a/in", max_partitions=3),
        mkdir("/la/b"),
        topic("/la/a/x", 3),
        topic("/la/b/y", 2),
        topic("/la/b/z", 1),
    )

    def mv(old: str, new: str) -> MoveEntry:
        return MoveEntry(path=path(old), new_path=path(new))

    refused(cluster, mv("/la/b", "/la/a/b"), "/la/a allows 5 .*3 used, 3 requested")
    cluster.do(mv("/la/b/y", "/la/a/y"))
    refused(cluster, mv("/la/b/z", "/la/a/z"), "/la/a allows 5 .*5 used")
    # /la/a counts them already, /la/a/in does not.
    cluster.do(mv("/la/a/x", "/la/a/in/x"))
    refused(cluster, mv("/la/a/y", "/la/a/in/y"), "/la/a/in allows 3")
    cluster.do(mv("/la/a/in", "/la/b/in"), mv("/la/b/in", "/la/a/in"))


def test_what_moves_out_of_a_system_directory_needs_room_and_nothing_in_it_does() -> None:
    cluster = Cluster()
    cluster.do(
        set_quota("/la", max_topics=2, max_partitions=4),
        topic("/la/a", 2),
        adopt("x", 1, "__adopted"),
        adopt("y", 1, "__adopted"),
        grow("/la/__adopted/x", 3),
    )
    out = MoveEntry(path=path("/la/__adopted/x"), kind=Kind.TOPIC, new_path=path("/la/x"))
    refused(cluster, out, "/la allows 4 partitions .*2 used, 3 requested")
    entries = {name: cluster.entry(f"/la/__adopted/{name}") for name in "xy"}
    moves = [
        (path(f"/la/__adopted/{name}"), entry.entry_id, path(f"/la/{name}"))
        for name, entry in entries.items()
        if entry is not None
    ]
    (note,) = cluster.do(MoveTopics(moves=tuple(moves))).notes
    assert "/la/__adopted/x cannot be moved" in note
    assert cluster.entry("/la/y") is not None
    whole = MoveEntry(path=path("/la/__adopted"), new_path=path("/la/taken"))
    refused(cluster, whole, "/la allows 2 topics .*2 used, 1 requested")


def test_adoption_drops_nothing_and_reports() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a", max_topics=1, max_partitions=4))
    assert cluster.do(adopt("one", 3, "a")).notes == ()
    made = cluster.do(adopt("two", 3, "a"))
    assert made.topic_count == 1
    assert list(made.notes) == [
        "/la/a allows 1 topic below it, 2 used with the adopted topics, which exist in Kafka",
        "/la/a allows 4 partitions below it, 6 used with the adopted topics, which exist in Kafka",
    ]
    refused(cluster, topic("/la/a/three"), "2 used")


def test_news_of_kafka_are_never_refused() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a", max_partitions=2), topic("/la/a/x", 2))
    grown = TopicObservation(
        path=path("/la/a/x"), entry_id=cluster.topic("/la/a/x").entry_id, partitions=6
    )
    late = cluster.plan(DeleteEntry(path=path("/la/a/x")))
    assert late.writes
    cluster.do(RecordObservations(news=(grown,)))
    refused(cluster, topic("/la/a/y"), "allows 2 .*6 used")


# -- levels ----------------------------------------------------------------------------------------


def test_every_level_binds_and_zero_is_a_quota() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a", max_topics=3), mkdir("/la/a/b", max_topics=5), mkdir("/la/a/none"))
    for name in ("x", "y", "z"):
        cluster.do(topic(f"/la/a/b/{name}"))
    refused(cluster, topic("/la/a/b/w"), "^quota exceeded: /la/a allows 3")
    cluster.do(set_quota("/la/a", max_topics=None), set_quota("/la/a/none", max_topics=0))
    cluster.do(topic("/la/a/b/w"))
    refused(
        cluster,
        topic("/la/a/none/x"),
        "^quota exceeded: /la/a/none allows 0 topics below it, 0 used",
    )
    cluster.do(set_quota("/la/a/none", max_topics=None), topic("/la/a/none/x"))


def test_a_quota_below_what_is_there_lets_nothing_come_and_takes_nothing() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), *(topic(f"/la/a/{name}", 2) for name in "xyz"))
    cluster.do(set_quota("/la/a", max_topics=1, max_partitions=1))
    node = cluster.snapshot.nodes.get(cluster.snapshot.find_directory(("a",)) or 0)
    assert node is not None
    shown = [
        (quota.field, quota.path, quota.used(cluster.snapshot), quota.limit)
        for quota in quotas_at(cluster.snapshot, cluster.mount, (), node)
    ]
    assert shown == [("max_topics", "/la/a", 3, 1), ("max_partitions", "/la/a", 6, 1)]
    refused(cluster, topic("/la/a/w"), "allows 1 topic .*3 used")
    cluster.do(DeleteEntry(path=path("/la/a/x")), DeleteEntry(path=path("/la/a/y")))
    refused(cluster, topic("/la/a/w"), "1 used")
    cluster.do(DeleteEntry(path=path("/la/a/z")), topic("/la/a/w", 1))


def test_above_a_mount_each_cluster_has_its_own_count() -> None:
    above = [
        PolicyLevel("/", Policies(max_partitions=7)),
        PolicyLevel("/la", Policies(max_partitions=4)),
    ]
    cluster = Cluster("/la/t", above=above)
    cluster.do(topic("/la/t/x", 3))
    wrong = refused(
        cluster, topic("/la/t/y", 2), r"^quota exceeded: /la \(of each cluster .* of /la/t too\)"
    )
    assert wrong.metadata["path"] == "/la"
    made = cluster.do(topic("/la/t/y", 1))
    assert Put(quota_key(ROOT_ID), b"%016x" % cluster.given[-1]) in made.writes


# -- races -----------------------------------------------------------------------------------------


def test_of_two_that_counted_the_same_one_counts_again() -> None:
    cluster = Cluster()
    cluster.do(
        mkdir("/la/a", max_topics=2), mkdir("/la/a/b"), mkdir("/la/a/c", max_topics=2),
        topic("/la/a/x"),
    )  # fmt: skip
    one, two = cluster.plan(topic("/la/a/b/t")), cluster.plan(topic("/la/a/c/t"))
    far = cluster.plan(topic("/la/far"))
    assert cluster.commit(one)
    assert not cluster.commit(two), "in another directory, below another quota, below this one"
    assert cluster.commit(far), "no quota there"
    refused(cluster, topic("/la/a/c/t"), "2 used")


def test_one_mark_however_many_levels_and_none_without_a_quota() -> None:
    cluster = Cluster()
    at = "/la"
    for _ in range(60):
        at += "/d"
        cluster.do(mkdir(at, max_topics=9))
    made = cluster.plan(topic(f"{at}/t"))
    marks = [one for one in made.guards if isinstance(one, KeyEquals) and one.key.startswith(QUOTA)]
    top = cluster.snapshot.find_directory(("d",)) or 0
    assert marks == [KeyEquals(quota_key(top), None)]
    assert ETCD_LIMITS.hold(len(made.guards) + 3, len(made.writes) + 3)
    free = cluster.plan(topic("/la/t"))
    assert not any(one.key.startswith(QUOTA) for one in free.writes)
    assert not any(isinstance(one, KeyEquals) and one.key.startswith(QUOTA) for one in free.guards)


def test_what_a_parent_says_meanwhile_is_noticed() -> None:
    cluster = Cluster("/la/t", above=[PolicyLevel("/", Policies(max_topics=1))])
    cluster.rows.commit((), (Put(INHERITED, b"said"),))
    cluster.snapshot = cluster.loaded()
    made = cluster.plan(topic("/la/t/x"))
    assert UnchangedSince(INHERITED, cluster.snapshot.revision) in made.guards
    cluster.rows.commit((), (Put(INHERITED, b"said anew"),))
    assert not cluster.commit(made)


def test_a_large_subtree_moves_into_a_quota_in_one_transaction() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/q", max_topics=1_000))
    for number in range(200):
        cluster.do(CreateDirectory(path=path(f"/la/big/d{number}"), make_parents=True))
    cluster.do(topic("/la/big/d7/t"))
    move = MoveEntry(path=path("/la/big"), new_path=path("/la/q/big"))
    made = cluster.plan(move)
    assert ETCD_LIMITS.hold(len(made.guards) + 3, len(made.writes) + 3)
    cluster.do(topic("/la/big/d199/late"))
    assert not cluster.commit(made)
    cluster.do(move)


def test_a_quotas_mark_is_moved_and_removed_with_its_directory() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a", max_topics=2), topic("/la/a/x"))
    assert len(cluster.rows.under(QUOTA)) == 1
    cluster.do(MoveEntry(path=path("/la/a"), new_path=path("/la/b")))
    assert len(cluster.rows.under(QUOTA)) == 1
    cluster.do(set_quota("/la/b", max_topics=None))
    assert not cluster.rows.under(QUOTA)
    cluster.do(set_quota("/la/b", max_topics=2), topic("/la/b/y"))
    cluster.do(DeleteEntry(path=path("/la/b"), recursive=True), deletes_in_kafka=False)
    while cluster.snapshot.counts(2).directories:
        cluster.do(ReapDeleted(limit=10))
    assert not cluster.rows.under(QUOTA)


def test_sums_of_partitions_go_with_their_directories() -> None:
    cluster = Cluster()
    assert cluster.snapshot.partitions(ROOT_ID) == 0
    for _ in range(3):
        cluster.do(mkdir("/la/a"), mkdir("/la/a/b"), topic("/la/a/b/t", 3))
        sums = cluster.snapshot.tree.partitions.kept
        assert sums is not None
        assert sorted(sums.values()) == [3, 3, 3]
        cluster.do(DeleteEntry(path=path("/la/a"), recursive=True))
        while cluster.do(ReapDeleted(limit=1)).writes:
            pass
        sums = cluster.snapshot.tree.partitions.kept
        assert sums is not None
        assert dict(sums) == {}
