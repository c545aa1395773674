"""Grants go with their entry, and nobody who authorised on older ones gets anything done."""

from __future__ import annotations

import pytest

from directory.access.grant_tree import EntryPlace
from directory.access.grants import MOST_GRANTS, Grant, Operation, Permission
from directory.namespace.command import (
    AddGrants,
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    MoveTopics,
    ObservedTopic,
    RemoveGrants,
)
from directory.namespace.entry import EntryGrants, Kind, Policies
from directory.namespace.grant_rows import SHUT
from directory.namespace.keys import GRANTS, grants_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from directory.wire.entry_codec import change_to_proto
from resolver.errors import Absent, LimitExceeded, UnreadableRecord
from tests.support.trees import Cluster, path


def allow(who: str, operation: Operation = Operation.READ) -> Grant:
    return Grant.from_fields(f"User:{who}", "*", operation, Permission.ALLOW)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.do(CreateDirectory(path=path("/la/a/b"), make_parents=True))
    made.do(CreateTopic(path=path("/la/a/b/t")))
    return made


def grant(cluster: Cluster, where: str, *grants: Grant, kind: Kind | None = None) -> None:
    cluster.do(AddGrants(path=path(where), grants=grants, kind=kind))


def at(cluster: Cluster, *relative: str, is_topic: bool = False) -> tuple[Grant, ...]:
    return cluster.snapshot.grants.grants_at(EntryPlace(relative, is_topic))


def test_A8_of_three_grants_exactly_the_one_named_goes(cluster: Cluster) -> None:
    three = tuple(map(allow, "abc"))
    grant(cluster, "/la/a", *three)
    cluster.do(RemoveGrants(path=path("/la/a"), grants=(allow("b"), allow("nobody"))))
    assert at(cluster, "a") == (allow("a"), allow("c"))
    assert cluster.loaded().grants.grants_at(EntryPlace(("a",))) == (allow("a"), allow("c"))
    cluster.do(RemoveGrants(path=path("/la/a"), grants=three))
    assert cluster.rows.under(GRANTS) == {}


def test_twice_is_once(cluster: Cluster) -> None:
    grant(cluster, "/la/a", allow("a"))
    assert not cluster.plan(AddGrants(path=path("/la/a"), grants=(allow("a"),))).writes
    assert not cluster.plan(RemoveGrants(path=path("/la/a"), grants=(allow("b"),))).writes


def test_P6_a_new_entry_of_a_removed_ones_name_has_none_of_its_grants(cluster: Cluster) -> None:
    grant(cluster, "/la/a/b/t", allow("a"))
    grant(cluster, "/la/a/b", allow("b"))
    cluster.do(DeleteEntry(path=path("/la/a/b"), recursive=True))
    cluster.do(CreateDirectory(path=path("/la/a/b")), CreateTopic(path=path("/la/a/b/t")))
    assert at(cluster, "a", "b") == at(cluster, "a", "b", "t", is_topic=True) == ()


def leave_grants(cluster: Cluster, *places: tuple[Kind, str]) -> None:
    """Leaves grants in /la/a/b where no entry is, as after one whose record was removed."""
    node = cluster.snapshot.find_directory(("a", "b"))
    assert node is not None
    record = cluster.codec.encode_grants(EntryGrants(grants=(allow("a"),)))
    stray = [Put(grants_key(node, kind, name), record) for kind, name in places]
    cluster.rows.commit((), stray)
    cluster.snapshot = cluster.snapshot.apply(cluster.rows.revision, stray)


def test_grants_that_were_left_behind_go_with_the_first_entry_of_the_name(cluster: Cluster) -> None:
    leave_grants(cluster, (Kind.TOPIC, "new"), (Kind.DIRECTORY, "dir"))
    cluster.do(CreateTopic(path=path("/la/a/b/new")), CreateDirectory(path=path("/la/a/b/dir")))
    assert cluster.rows.under(GRANTS) == {}
    assert at(cluster, "a", "b", "new", is_topic=True) == at(cluster, "a", "b", "dir") == ()


def test_P6_a_moved_entry_gets_no_grants_that_were_left_behind(cluster: Cluster) -> None:
    cluster.do(CreateTopic(path=path("/la/a/u")), CreateTopic(path=path("/la/a/b/v")))
    leave_grants(cluster, (Kind.TOPIC, "moved"), (Kind.LINK, "v"), (Kind.TOPIC, "by_rules"))
    cluster.do(
        MoveEntry(path=path("/la/a/u"), new_path=path("/la/a/b/moved")),
        MoveEntry(path=path("/la/a/b/v"), new_path=path("/la/a/v"), leave_link=True),
    )
    moved = cluster.topic("/la/a/v").entry_id
    cluster.do(MoveTopics(moves=((path("/la/a/v"), moved, path("/la/a/b/by_rules")),)))
    assert cluster.topic("/la/a/b/by_rules").entry_id == moved
    assert cluster.rows.under(GRANTS) == {}
    assert at(cluster, "a", "b", "moved", is_topic=True) == at(cluster, "a", "b", "v") == ()


def test_they_move_with_their_entry_and_what_is_below(cluster: Cluster) -> None:
    grant(cluster, "/la/a", allow("a"))
    grant(cluster, "/la/a/b/t", allow("t"))
    cluster.do(MoveEntry(path=path("/la/a"), new_path=path("/la/z")))
    assert (at(cluster, "a"), at(cluster, "z")) == ((), (allow("a"),))
    assert at(cluster, "z", "b", "t", is_topic=True) == (allow("t"),)
    cluster.do(MoveEntry(path=path("/la/z/b/t"), new_path=path("/la/u")))
    assert at(cluster, "u", is_topic=True) == (allow("t"),)
    assert at(cluster, "z", "b", "t", is_topic=True) == ()


def test_topics_that_rules_move_keep_theirs(cluster: Cluster) -> None:
    seen = ObservedTopic(physical_name="q", topic_id=b"i" * 16, partitions=1, replication_factor=1)
    cluster.do(AdoptTopics(topics=((("q",), seen),)))
    grant(cluster, "/la/q", allow("a"))
    entry_id = cluster.topic("/la/q").entry_id
    cluster.do(MoveTopics(moves=((path("/la/q"), entry_id, path("/la/x/q")),)))
    assert at(cluster, "x", "q", is_topic=True) == (allow("a"),)


def test_a_topic_and_a_directory_of_one_name_have_their_own(cluster: Cluster) -> None:
    cluster.do(CreateTopic(path=path("/la/a/b")))
    grant(cluster, "/la/a/b", allow("t"))
    grant(cluster, "/la/a/b", allow("d"), kind=Kind.DIRECTORY)
    assert at(cluster, "a", "b", is_topic=True) == (allow("t"),)
    assert at(cluster, "a", "b") == (allow("d"),)


def test_N1_who_planned_on_older_grants_loses_the_race(cluster: Cluster) -> None:
    commands: list[Command] = [
        CreateTopic(path=path("/la/a/b/new")),
        DeleteEntry(path=path("/la/a/b/t")),
        MoveEntry(path=path("/la/a/b/t"), new_path=path("/la/t")),
        AddGrants(path=path("/la/a/b"), grants=(allow("x"),)),
    ]
    late = [cluster.plan(command) for command in commands]
    grant(cluster, "/la/a", Grant.from_fields("User:*", "*", Operation.ALL, Permission.DENY))
    assert [cluster.commit(made) for made in late] == [False] * len(late)
    late = [cluster.plan(command) for command in commands]
    cluster.do(
        RemoveGrants(
            path=path("/la/a"), grants=cluster.snapshot.grants.grants_at(EntryPlace(("a",)))
        )
    )
    assert [cluster.commit(made) for made in late] == [False] * len(late)


def test_grants_of_the_root_and_of_what_is_read_only(cluster: Cluster) -> None:
    cluster.do(CreateDirectory(path=path("/la/r"), policies=Policies(read_only=True)))
    grant(cluster, "/la", allow("root"))
    grant(cluster, "/la/r", allow("r"))
    assert (at(cluster), at(cluster, "r")) == ((allow("root"),), (allow("r"),))
    assert cluster.loaded().grants.root.rules.grants == (allow("root"),)


def test_P9_the_event_says_the_grants_before_and_after(cluster: Cluster) -> None:
    grant(cluster, "/la/a", allow("a"))
    made = cluster.plan(AddGrants(path=path("/la/a"), grants=(allow("b"),)))
    (change,) = made.changes
    event = change_to_proto(change, time_ms=1)
    assert (event.action, event.scope, event.path) == (2, 1, "/la/a")
    assert event.before == event.after
    assert [one.principal for one in event.grants_before.grants] == ["User:a"]
    assert [one.principal for one in event.grants_after.grants] == ["User:a", "User:b"]
    assert event.grants_after.change_count == 2
    (gone,) = cluster.plan(DeleteEntry(path=path("/la/a"), recursive=True)).changes
    event = change_to_proto(gone, time_ms=1)
    assert [one.principal for one in event.grants_before.grants] == ["User:a"]
    assert not event.HasField("grants_after")


def test_more_than_are_read_with_each_request_are_refused(cluster: Cluster) -> None:
    many = tuple(allow(f"u{number}") for number in range(MOST_GRANTS))
    grant(cluster, "/la/a", *many)
    with pytest.raises(LimitExceeded, match="grants: /la/a would have 1,001"):
        cluster.plan(AddGrants(path=path("/la/a"), grants=(allow("one-more"),)))


def test_what_is_not_there_has_none(cluster: Cluster) -> None:
    with pytest.raises(Absent):
        cluster.plan(AddGrants(path=path("/la/x"), grants=(allow("a"),)))


def test_grants_that_cannot_be_read_shut_everybody_out(cluster: Cluster) -> None:
    key = grants_key(1, Kind.DIRECTORY, "a")
    odd = [Put(key, b"\xff\xff")]
    cluster.rows.commit((), odd)
    after = cluster.snapshot.apply(cluster.rows.revision, odd)
    for snapshot in (after, cluster.loaded()):
        assert isinstance(snapshot, Snapshot)
        assert snapshot.grants.grants_at(EntryPlace(("a",))) == SHUT.grants
        assert key in snapshot.unreadable_values
        with pytest.raises(UnreadableRecord, match="cannot be read"):
            cluster.plan(AddGrants(path=path("/la/a"), grants=(allow("a"),)), snapshot)
