"""Changing fields: which there are, what they take, etags, and nothing where nothing differs."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from directory.namespace.command import (
    CLEARED,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    UpdateEntry,
)
from directory.namespace.effective_policies import set_fields, stamp_changed_fields
from directory.namespace.entry import (
    ROOT_ID,
    Directory,
    Kind,
    Link,
    LinkMode,
    LinkWrites,
    Mount,
    Policies,
    Stamp,
    Topic,
    etag_of,
)
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Put
from resolver.errors import Absent, EtagMismatch, InvalidArgument, KdirError, ReadOnly
from tests.support.trees import NOW_MS, Cluster, path, reported


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.do(
        CreateDirectory(path=path("/la/d")),
        CreateTopic(path=path("/la/d/t"), partitions=4),
        CreateLink(path=path("/la/l"), targets=(path("/ny"),)),
        CreateMount(path=path("/la/m"), cluster_id="kc-1"),
    )
    return made


def update(text: str, changes: dict[str, object], **fields: object) -> UpdateEntry:
    return UpdateEntry(path=path(text), changes=changes, **fields)  # type: ignore[arg-type]


def bare(policies: Policies) -> Policies:
    """Returns the policies without their stamps."""
    return replace(policies, stamps=MappingProxyType({}))


def refused(cluster: Cluster, command: object, error: type[KdirError], arguments: str) -> KdirError:
    before = cluster.rows.revision
    with pytest.raises(error, match=arguments) as raised:
        cluster.do(command)  # type: ignore[arg-type]
    assert cluster.rows.revision == before
    return raised.value


def test_an_update_changes_what_it_names_and_nothing_else(cluster: Cluster) -> None:
    cluster.do(update("/la/d", {"policies.owner": "search", "policies.tags.tier": "1"}))
    before = cluster.entry("/la/d")
    made = cluster.do(
        update(
            "/la/d", {"policies.contact": "#s", "policies.max_topics": 7, "directory.closed": True}
        ),
        now_ms=NOW_MS + 5,
        principal="User:bo",
    )
    after = cluster.entry("/la/d")
    assert isinstance(after, Directory)
    assert isinstance(before, Directory)
    assert after == made.entry
    assert bare(after.policies) == Policies(
        owner="search", contact="#s", max_topics=7, tags=MappingProxyType({"tier": "1"})
    )
    ana, bo = Stamp("User:ana", NOW_MS), Stamp("User:bo", NOW_MS + 5)
    assert after.policies.stamps == {
        "owner": ana,
        "tags[tier]": ana,
        "contact": bo,
        "max_topics": bo,
    }
    assert after.closed
    assert (after.changed_by, after.changed_at_ms) == ("User:bo", NOW_MS + 5)
    assert (after.entry_id, after.change_count) == (before.entry_id, before.change_count + 1)
    assert reported(made.changes) == ["~ dir /la/d"]
    assert (made.changes[0].before, made.changes[0].after) == (before, after)


def test_the_root_gets_a_record_when_something_is_set_on_it(cluster: Cluster) -> None:
    cluster.do(update("/la", {"policies.owner": "ops"}))
    cluster.do(update("/la", {"policies.contact": "#ops"}))
    assert bare(cluster.loaded().root.directory.policies) == Policies(owner="ops", contact="#ops")
    assert cluster.loaded().root.directory.entry_id == ROOT_ID


@pytest.mark.parametrize(
    ("changes", "policies"),
    [
        ({"policies.owner": ""}, Policies(owner="")),
        ({"policies.max_topics": 0}, Policies(max_topics=0)),
        ({"policies.read_only": False}, Policies(read_only=False)),
        ({"policies.manage.delete": True}, Policies(manage=MappingProxyType({"delete": True}))),
        (
            {"policies.topic_config.retention.ms": "5"},
            Policies(topic_config=MappingProxyType({"retention.ms": "5"})),
        ),
        (
            {"policies.topic_config.retention.ms": CLEARED},
            Policies(topic_config=MappingProxyType({"retention.ms": None})),
        ),
        (
            {"policies.topic_config": {"flush.ms": "1", "segment.ms": None}},
            Policies(topic_config=MappingProxyType({"flush.ms": "1", "segment.ms": None})),
        ),
        ({"policies": Policies(owner="x")}, Policies(owner="x")),
    ],
)
def test_unset_zero_empty_and_cleared_are_four_things(
    cluster: Cluster, changes: dict[str, object], policies: Policies
) -> None:
    cluster.do(update("/la/d", changes))
    found = cluster.entry("/la/d")
    assert isinstance(found, Directory)
    assert bare(found.policies) == policies
    assert set(found.policies.stamps) == set(set_fields(policies))
    assert cluster.loaded().container(ROOT_ID, "d") == found
    # And back: unset again, it is as if nobody had ever set it.
    cluster.do(update("/la/d", dict.fromkeys(changes)))
    found = cluster.entry("/la/d")
    assert isinstance(found, Directory)
    assert found.policies == Policies()


def test_fields_of_links(cluster: Cluster) -> None:
    cluster.do(
        update(
            "/la/l",
            {
                "link.targets": (path("/sf"), path("/ny")),
                "link.mode": LinkMode.UNION,
                "link.writes": LinkWrites.FOLLOW,
                "link.fall_back_on_absent": True,
            },
        )
    )
    found = cluster.entry("/la/l")
    assert isinstance(found, Link)
    assert found.targets == (path("/sf"), path("/ny"))
    assert (found.mode, found.writes, found.fall_back_on_absent) == (
        LinkMode.UNION,
        LinkWrites.FOLLOW,
        True,
    )
    cluster.do(update("/la/l", {"link.mode": None, "link.writes": None}))
    found = cluster.entry("/la/l")
    assert isinstance(found, Link)
    assert (found.mode, found.writes) == (LinkMode.FIRST, LinkWrites.STAY)


def test_a_changed_mount_gets_a_new_epoch(cluster: Cluster) -> None:
    before = cluster.entry("/la/m")
    cluster.do(update("/la/m", {"mount.endpoints": ("h:1", "h:2"), "mount.cluster": "geo"}))
    found = cluster.entry("/la/m")
    assert isinstance(before, Mount)
    assert isinstance(found, Mount)
    assert (found.endpoints, found.cluster) == (("h:1", "h:2"), "geo")
    assert found.epoch == before.epoch + 1


def test_partitions_only_grow(cluster: Cluster) -> None:
    refused(
        cluster, update("/la/d/t", {"topic.partitions": 3}), InvalidArgument, "has 4: Kafka never"
    )
    cluster.do(update("/la/d/t", {"topic.partitions": 8}))
    assert cluster.topic("/la/d/t").partitions == 8


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("/la/d", {}),
        ("/la/d", {"policies.owner": None, "directory.closed": False}),
        ("/la/d", {"policies.topic_config.flush.ms": None}),
        ("/la/d/t", {"topic.partitions": 4}),
        ("/la/l", {"link.targets": (path("/ny"),)}),
        ("/la/m", {"mount.cluster": ""}),
    ],
)
def test_no_difference_is_no_write(cluster: Cluster, text: str, changes: dict[str, object]) -> None:
    made = cluster.plan(update(text, changes))
    assert (made.writes, made.changes) == ((), ())
    assert made.entry == cluster.entry(text)


@pytest.mark.parametrize(
    ("field", "near"),
    [
        ("policies.ownr", "policies.owner"),
        ("policy.owner", "policies.owner"),
        ("owner", "policies.owner"),
        ("directory.close", "directory.closed"),
        ("link.target", "link.targets"),
        ("policies.topic_configs.retention.ms", "policies.topic_config"),
        ("policies.retention_ms", "policies."),
        ("", ""),
    ],
)
def test_an_unknown_field_names_the_nearest(cluster: Cluster, field: str, near: str) -> None:
    wrong = refused(cluster, update("/la/d", {field: "x"}), InvalidArgument, "no field that can be")
    assert wrong.metadata["near"].startswith(near)


@pytest.mark.parametrize(
    ("text", "field", "value", "arguments"),
    [
        ("/la/d", "policies.owner", 5, "policies.owner: found 5; expected a text"),
        ("/la/d", "policies.read_only", 1, "true or false"),
        ("/la/d", "policies.partitions", 0, "a whole number from 1"),
        ("/la/d", "policies.partitions", True, "a whole number from 1"),
        ("/la/d", "policies.max_topics", -1, "a whole number from 0"),
        ("/la/d", "policies.max_topics", "7", "found '7'"),
        ("/la/d", "policies.topic_config", "x", "a map of texts to texts"),
        ("/la/d", "policies.topic_config", {"": "x"}, "a map of texts to texts"),
        ("/la/d", "policies.topic_config.k", 5, "a text"),
        ("/la/d", "policies.topic_config.retention.m", "1", "did you mean retention.ms"),
        ("/la/d", "policies.topic_config.retention.ms", "7d", "a whole number from -1"),
        (
            "/la/d",
            "policies.topic_config.retention.ms",
            "",
            "found ''; expected a whole number from -1",
        ),
        ("/la/d", "policies.topic_config.retention.ms", str(2**63), "a whole number from -1"),
        ("/la/d", "policies.topic_config", {"cleanup.policy": "x"}, "of compact, delete"),
        ("/la/d", "policies", Policies(topic_config={"a.b": "1"}), "no topic config 'a.b'"),
        (
            "/la/d",
            "policies.topic_config",
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"},
            "above max.compaction.lag.ms 8",
        ),
        ("/la/d", "policies.topic_config.", "x", "the key after the last dot is missing"),
        ("/la/d", "policies.owner.x", "x", "policies.owner is no map"),
        ("/la/d", "policies.manage.delte", True, "'delte' is no aspect; expected delete"),
        ("/la/d", "policies.manage.delete", "yes", "true or false"),
        ("/la/d", "policies", "x", "expected policies"),
        ("/la/d", "policies", Policies(partitions=0), "policies.partitions: found 0"),
        ("/la/d", "link.targets", (), "a directory has no such field"),
        ("/la/d", "topic.partitions", 5, "a directory has no such field"),
        ("/la/l", "policies.owner", "x", "a link has no policies"),
        ("/la/m", "policies.owner", "x", "a mount has no policies"),
        ("/la/l", "link.targets", ("/ny",), "a list of paths"),
        ("/la/l", "link.targets", None, "cannot be unset"),
        ("/la/l", "link.targets", (), "link.targets is empty"),
        ("/la/l", "link.targets", (path("/la/l/x"),), "at or below the link"),
        ("/la/l", "link.mode", 1, "FIRST or UNION"),
        ("/la/d/t", "topic.partitions", None, "cannot be unset"),
        ("/la/d/t", "topic.partitions", 2**31, "a whole number"),
        ("/la/m", "mount.endpoints", "h:1", "a list of texts"),
        ("/la/m", "mount.epoch", 9, "no field that can be updated"),
        ("/la/d/t", "topic.physical_name", "x", "no field that can be updated"),
    ],
)
def test_wrong_values_name_the_field_and_what_would_be_right(
    cluster: Cluster, text: str, field: str, value: object, arguments: str
) -> None:
    refused(cluster, update(text, {field: value}), InvalidArgument, arguments)


def test_unsetting_a_config_that_nobody_knows_and_nobody_set_names_the_nearest(
    cluster: Cluster,
) -> None:
    for value in (None, CLEARED):
        changes: dict[str, object] = {"policies.topic_config.retention.mss": value}
        refused(cluster, update("/la/d", changes), InvalidArgument, "did you mean retention.ms")


def test_one_bad_field_changes_nothing(cluster: Cluster) -> None:
    changes = {"policies.owner": "x", "policies.max_topics": -1}
    refused(cluster, update("/la/d", changes), InvalidArgument, "max_topics")
    assert cluster.entry("/la/d", Kind.DIRECTORY) is not None


def test_another_etag(cluster: Cluster) -> None:
    seen = cluster.entry("/la/d")
    assert seen is not None
    command = update("/la/d", {"policies.owner": "a"}, etag=etag_of(seen))
    cluster.do(command)
    refused(cluster, command, EtagMismatch, "/la/d has changed since")


def test_P4_two_quick_updates_lose_none(cluster: Cluster) -> None:
    first = cluster.plan(update("/la/d", {"policies.owner": "a"}))
    second = cluster.plan(update("/la/d", {"policies.contact": "b"}))
    assert cluster.commit(first)
    assert not cluster.commit(second)
    cluster.do(update("/la/d", {"policies.contact": "b"}))
    found = cluster.entry("/la/d")
    assert isinstance(found, Directory)
    assert (found.policies.owner, found.policies.contact) == ("a", "b")


def test_read_only_can_be_ended_and_nothing_else_changed(cluster: Cluster) -> None:
    cluster.do(update("/la", {"policies.read_only": True}))
    desired_set: list[tuple[str, dict[str, object]]] = [
        ("/la/d", {"policies.owner": "x"}),
        ("/la/d/t", {"policies.owner": "x"}),
        ("/la", {"policies.owner": "x", "policies.read_only": None}),
        ("/la/m", {"mount.cluster": "x"}),
    ]
    for text, changes in desired_set:
        refused(cluster, update(text, changes), ReadOnly, "/la is read-only|itself is read-only")
    cluster.do(update("/la/d", {"policies.read_only": False}))
    cluster.do(update("/la/d/t", {"policies.owner": "x"}))
    cluster.do(update("/la", {"policies.read_only": None}), update("/la", {"policies.owner": "x"}))


def test_of_two_entries_with_one_name_the_kind_says_which(cluster: Cluster) -> None:
    cluster.do(CreateTopic(path=path("/la/d")))
    cluster.do(update("/la/d", {"policies.owner": "topic"}))
    cluster.do(update("/la/d", {"policies.owner": "dir"}, kind=Kind.DIRECTORY))
    topic, directory = cluster.entry("/la/d"), cluster.entry("/la/d", Kind.DIRECTORY)
    assert isinstance(topic, Topic)
    assert isinstance(directory, Directory)
    assert (topic.policies.owner, directory.policies.owner) == ("topic", "dir")
    refused(cluster, update("/la/d", {}, kind=Kind.LINK), Absent, "a directory, not a link")


def test_a_field_whose_setter_is_not_known_gets_none_by_another_change() -> None:
    old = Policies(owner="search")
    now = Stamp("User:bo", 5)
    assert stamp_changed_fields(replace(old, contact="#s"), old, now).stamps == {"contact": now}
    assert stamp_changed_fields(old, old, now) is old


def test_what_is_made_with_policies_says_who_set_them(cluster: Cluster) -> None:
    cluster.do(
        CreateDirectory(path=path("/la/e/f"), make_parents=True, policies=Policies(owner="x")),
        CreateTopic(path=path("/la/e/f/t"), policies=Policies(partitions=2)),
        principal="User:bo",
        now_ms=NOW_MS + 9,
    )
    bo = Stamp("User:bo", NOW_MS + 9)
    for text, stamps in {
        "/la/e": {},
        "/la/e/f": {"owner": bo},
        "/la/e/f/t": {"partitions": bo},
    }.items():
        found = cluster.entry(text)
        assert isinstance(found, Directory | Topic)
        assert found.policies.stamps == stamps


@pytest.mark.parametrize("aspect", ["configs", "acls"])
@pytest.mark.parametrize("text", ["/la/d", "/la/d/t"])
@pytest.mark.parametrize("way", ["a key", "the map", "all policies"])
def test_what_is_excluded_from_an_armed_directory_is_armed_again_by_a_plan_only(
    cluster: Cluster, aspect: str, text: str, way: str
) -> None:
    key = f"policies.manage.{aspect}"
    ways: dict[str, dict[str, object]] = {
        "a key": {key: None},
        "the map": {"policies.manage": MappingProxyType({})},
        "all policies": {"policies": Policies()},
    }
    unset = ways[way]
    cluster.do(update("/la", {key: True}), update(text, {key: False}))
    command = f"kdir arm {text} --aspect {aspect}"
    refused(cluster, update(text, unset), InvalidArgument, command)
    cluster.do(update(text, {key: True}))  # as arming does
    cluster.do(update(text, unset))
    # Where nothing above is armed, nothing is armed by it.
    cluster.do(update(text, {key: False}), update("/la", {key: False}))
    cluster.do(update(text, unset))


def test_what_is_only_done_when_it_is_asked_for_is_unset_as_before(cluster: Cluster) -> None:
    key = "policies.manage.delete"
    cluster.do(update("/la", {key: True}), update("/la/d", {key: False}))
    cluster.do(update("/la/d", {key: None}))


def test_S21_a_root_that_cannot_be_read_is_replaced_by_what_an_operator_names(
    cluster: Cluster,
) -> None:
    cluster.do(update("/la", {"policies.owner": "ana"}))
    cluster.rows.commit((), [Put(ROOT_KEY, b"\xff")])
    cluster.snapshot = cluster.loaded()
    refused: list[dict[str, object]] = [{"policies.owner": "bo"}]
    refused.append({"policies.read_only": True, "policies.owner": "bo"})
    for changes in refused:
        with pytest.raises(ReadOnly, match=r"the record of /la cannot be read .*read_only=false"):
            cluster.do(update("/la", changes))
    with pytest.raises(ReadOnly, match="the record of /la cannot be read"):
        cluster.do(CreateDirectory(path=path("/la/d/e")))
    cluster.do(update("/la", {"policies.read_only": False, "policies.owner": "bo"}))
    root = cluster.snapshot.root.directory
    assert (root.closed, root.policies.owner, root.policies.read_only) == (False, "bo", False)
    assert not root.policies.manage
    assert not cluster.snapshot.unreadable_values
    cluster.do(CreateDirectory(path=path("/la/d/e")))


def test_S21_a_root_that_was_replaced_meanwhile_is_not_replaced_again(cluster: Cluster) -> None:
    cluster.rows.commit((), [Put(ROOT_KEY, b"\xff")])
    cluster.snapshot = unreadable = cluster.loaded()
    cluster.do(update("/la", {"policies.read_only": False, "directory.closed": True}))
    late = cluster.plan(update("/la", {"policies.read_only": False}), unreadable)
    assert not cluster.rows.commit(late.guards, late.writes)
    assert cluster.loaded().root.directory.closed
