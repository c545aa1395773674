"""Making directories, topics, links and mounts: what comes to be, and what is refused and how."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from directory.namespace.command import (
    AdoptTopics,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    ObservedTopic,
    UpdateEntry,
)
from directory.namespace.entry import ROOT_ID, Directory, Kind, Mount, Policies, Provision
from directory.namespace.keys import GRANTS_MARK, claim_key, entry_key, mounted_key, retired_key
from directory.store.base import KeyEquals, Put
from resolver.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidNamespace,
    InvalidPath,
    KdirError,
    MountLoop,
    MountOverlaps,
    MountShadows,
    NotAuthoritative,
    PhysicalNameCollides,
    PhysicalNameRetired,
    PhysicalNameTaken,
    QuotaExceeded,
    ReadOnly,
)
from resolver.path import Path
from tests.support.trees import NOW_MS, Cluster, path, reported


def mkdir(text: str, *, parents: bool = True, **fields: object) -> CreateDirectory:
    return CreateDirectory(path=path(text), make_parents=parents, **fields)  # type: ignore[arg-type]


def topic(text: str, physical_name: str = "", **fields: object) -> CreateTopic:
    return CreateTopic(path=path(text), physical_name=physical_name, **fields)  # type: ignore[arg-type]


def link(text: str, *targets: str) -> CreateLink:
    return CreateLink(path=path(text), targets=tuple(map(path, targets)))


def mount(text: str, cluster_id: str = "kc-child") -> CreateMount:
    return CreateMount(path=path(text), cluster_id=cluster_id)


def refused(cluster: Cluster, command: object, error: type[KdirError], arguments: str) -> KdirError:
    before = cluster.rows.revision
    with pytest.raises(error, match=arguments) as raised:
        cluster.do(command)  # type: ignore[arg-type]
    assert cluster.rows.revision == before
    return raised.value


# -- directories ---------------------------------------------------------------------------------


def test_mkdir_makes_all_tiers_in_one_plan() -> None:
    cluster = Cluster()
    made = cluster.do(mkdir("/la/search/logs/raw"))
    assert cluster.show() == "search/\n  logs/\n    raw/"
    assert reported(made.changes) == [
        "+ dir /la/search",
        "+ dir /la/search/logs",
        "+ dir /la/search/logs/raw",
    ]
    assert made.path == path("/la/search/logs/raw")
    assert made.entry == cluster.entry("/la/search/logs/raw")
    assert isinstance(made.entry, Directory)
    assert (made.entry.changed_by, made.entry.changed_at_ms) == ("User:ana", NOW_MS)


def test_only_the_last_tier_gets_the_policies() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b", policies=Policies(owner="search"), closed=True))
    above, below = cluster.entry("/la/a"), cluster.entry("/la/a/b")
    assert isinstance(above, Directory)
    assert isinstance(below, Directory)
    assert (above.policies.owner, above.closed) == (None, False)
    assert (below.policies.owner, below.closed) == ("search", True)


def test_mkdir_p_of_what_exists_does_nothing() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"))
    again = cluster.plan(mkdir("/la/a", policies=Policies(owner="x")))
    assert (again.writes, again.guards, again.changes) == ((), (), ())
    assert again.entry == cluster.entry("/la/a")
    root = cluster.plan(mkdir("/la"))
    assert (root.writes, root.entry) == ((), Directory(entry_id=ROOT_ID))


def test_mkdir_of_what_exists_names_what_is_there() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), link("/la/l", "/ny"), mount("/la/m"))
    refused(cluster, mkdir("/la/a", parents=False), AlreadyExists, r"already exists \(directory\)")
    for parents in (True, False):
        refused(cluster, mkdir("/la/l", parents=parents), AlreadyExists, "link to /ny")
        wrong = refused(cluster, mkdir("/la/m", parents=parents), AlreadyExists, "mount of")
        assert wrong.metadata["standing"] == "mount"
    refused(cluster, mkdir("/la", parents=False), AlreadyExists, r"already exists \(directory\)")


def test_mkdir_without_parents_names_the_nearest_directory() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/tracking"))
    wrong = refused(
        cluster,
        mkdir("/la/trakcing/x", parents=False),
        InvalidNamespace,
        "/la/trakcing does not exist; the nearest directory that does is /la; did you mean "
        "/la/tracking?",
    )
    assert wrong.metadata == {
        "missing": "/la/trakcing",
        "nearest": "/la",
        "similar": "/la/tracking",
    }


def test_a_topic_and_a_container_may_share_a_name() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/orders"), mkdir("/la/orders"), topic("/la/orders/dlq"))
    cluster.do(topic("/la/l"), link("/la/l", "/ny"))
    assert cluster.show() == (
        "l [pending]\nl -> /ny\norders [pending]\norders/\n  dlq = orders.dlq [pending]"
    )


@pytest.mark.parametrize("text", ["/la/__mine", "/la/__mine/x", "/la/a/__x/y"])
def test_names_that_begin_with_two_underscores_are_the_systems(text: str) -> None:
    cluster = Cluster()
    refused(cluster, mkdir(text), InvalidArgument, "begin with '__'")


def test_nobody_makes_entries_in_a_system_directory() -> None:
    cluster = Cluster()
    cluster.do(adopt(("a", "b"), "x"), adopt(("a", "b"), "y"))
    assert "__adopted/" in cluster.show()
    for command in (
        topic("/la/__adopted/z"),
        mkdir("/la/__adopted/d"),
        link("/la/__adopted/l", "/"),
    ):
        refused(cluster, command, InvalidArgument, "'__adopted'")


def adopt(relative: tuple[str, ...], name: str) -> AdoptTopics:
    observed = ObservedTopic(
        physical_name=name, topic_id=name.encode(), partitions=1, replication_factor=1
    )
    return AdoptTopics(topics=((relative, observed),))


@pytest.mark.parametrize(
    "command", [mkdir("/ny/x"), topic("/ny/x"), link("/ny/x", "/"), mount("/ny/x"), mkdir("/lax")]
)
def test_what_is_not_below_the_mount_is_another_clusters(command: object) -> None:
    refused(Cluster(), command, NotAuthoritative, "not below /la")


@pytest.mark.parametrize(
    "command",
    [
        mkdir("/la/m/x"),
        mkdir("/la/m/x/y"),
        topic("/la/m/x"),
        topic("/la/m/x/y"),
        link("/la/m/x", "/"),
    ],
)
def test_what_lies_below_a_mount_is_the_childs(command: object) -> None:
    cluster = Cluster()
    cluster.do(mount("/la/m"))
    wrong = refused(cluster, command, NotAuthoritative, "/la/m is the mount of cluster kc-child")
    assert wrong.metadata == {"mount": "/la/m", "cluster_id": "kc-child"}


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (mkdir("/la/l/x"), "/ny/tracking/x"),
        (topic("/la/l/x"), "/ny/tracking/x"),
        (topic("/la/l/x/y"), "/ny/tracking/x/y"),
        (link("/la/l/x", "/"), "/ny/tracking/x"),
        (mount("/la/l/x"), "/ny/tracking/x"),
    ],
)
def test_what_lies_below_a_link_is_made_at_its_target(command: object, target: str) -> None:
    cluster = Cluster()
    cluster.do(link("/la/l", "/ny/tracking", "/sf"))
    wrong = refused(cluster, command, InvalidNamespace, f"/la/l is a link: use {target}$|{target} ")
    assert wrong.metadata["target"] == target


# -- topics --------------------------------------------------------------------------------------


def test_a_topic_waits_for_kafka() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/search"))
    made = cluster.do(topic("/la/search/clicks", partitions=12, replication_factor=3))
    found = cluster.topic("/la/search/clicks")
    assert made.entry == found
    assert found.physical_name == "search.clicks"
    assert (found.partitions, found.replication_factor) == (12, 3)
    assert found.provision is Provision.PENDING
    # Kafka was not asked: a topic of this name that is there is somebody else's.
    assert (found.provision_attempt, found.provision_message) == ("", "")
    assert cluster.rows.under(b"p/") == {b"p/search_clicks": b"search.clicks"}


def test_a_topic_takes_partitions_from_the_nearest_directory_that_says() -> None:
    cluster = Cluster()
    cluster.do(
        mkdir("/la/a", policies=Policies(partitions=6, replication_factor=3)),
        mkdir("/la/a/b", policies=Policies(partitions=9)),
        topic("/la/a/b/inherits"),
        topic("/la/a/b/own", policies=Policies(partitions=4)),
        topic("/la/a/b/asked", partitions=2, replication_factor=1),
        topic("/la/none"),
    )
    desired_config = {
        name: (found.partitions, found.replication_factor)
        for name in ("a/b/inherits", "a/b/own", "a/b/asked", "none")
        for found in [cluster.topic(f"/la/{name}")]
    }
    assert desired_config == {
        "a/b/inherits": (9, 3),
        "a/b/own": (4, 3),
        "a/b/asked": (2, 1),
        "none": (0, 0),
    }


@pytest.mark.parametrize(
    ("text", "nearest"), [("/la/x/t", "/la"), ("/la/a/x/t", "/la/a"), ("/la/a/b/x/y/t", "/la/a/b")]
)
def test_a_topic_in_a_directory_that_is_not_there(text: str, nearest: str) -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"))
    wrong = refused(
        cluster, topic(text), InvalidNamespace, f"nearest directory that does is {nearest}"
    )
    assert wrong.metadata["nearest"] == nearest


def test_a_topic_where_one_is() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    wrong = refused(
        cluster, topic("/la/t", "other"), AlreadyExists, r"/la/t already exists \(topic\)"
    )
    assert wrong.metadata == {"path": "/la/t", "standing": "topic"}
    refused(cluster, topic("/la"), AlreadyExists, "root directory")


def test_a_topic_where_a_cluster_is_mounted_could_never_be_resolved() -> None:
    cluster = Cluster()
    cluster.do(mount("/la/m"))
    refused(cluster, topic("/la/m"), AlreadyExists, "mount of cluster")


def test_default_names_that_are_taken_get_a_number() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), topic("/la/a.b"), topic("/la/a/b"), topic("/la/a_b"))
    assert cluster.topic("/la/a/b").physical_name == "a.b.2"
    # `a_b` collides with `a.b`, `a_b.2` with `a.b.2`.
    assert cluster.topic("/la/a_b").physical_name == "a_b.3"


@pytest.mark.parametrize(
    ("asked", "error", "free"),
    [
        ("x.y", PhysicalNameTaken, "x.y.2"),
        ("x_y", PhysicalNameCollides, "x_y.2"),
    ],
)
def test_a_physical_name_asked_for_is_refused_not_changed(
    asked: str, error: type[KdirError], free: str
) -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t", "x.y"))
    wrong = refused(cluster, topic("/la/u", asked), error, "is free")
    assert wrong.metadata["free"] == free
    cluster.do(topic("/la/u", free))
    assert cluster.topic("/la/u").physical_name == free


def test_a_deleted_name_stays_retired_for_a_day() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"), DeleteEntry(path=path("/la/t")))
    refused(cluster, topic("/la/u", "t"), PhysicalNameRetired, "'t' was deleted")
    cluster.do(topic("/la/t"))
    assert cluster.topic("/la/t").physical_name == "t.2"
    later = NOW_MS + 24 * 3600 * 1000
    cluster.do(topic("/la/u", "t"), now_ms=later)
    assert cluster.topic("/la/u").physical_name == "t"
    assert cluster.snapshot.fact(retired_key("t")) is None


def test_the_name_of_a_topic_in_a_removed_directory_counts_as_retired() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/d"), topic("/la/d/t"), DeleteEntry(path=path("/la/d"), recursive=True))
    refused(cluster, topic("/la/u", "d.t"), PhysicalNameRetired, "d.t.2")


@pytest.mark.parametrize("field", ["partitions", "replication_factor"])
@pytest.mark.parametrize("value", [-1, 2**31])
def test_sizes_out_of_bounds(field: str, value: int) -> None:
    command = replace(topic("/la/t"), **{field: value})  # type: ignore[arg-type]
    refused(Cluster(), command, InvalidArgument, f"topic.{field} is {value}")


def test_an_existing_kafka_topic_becomes_an_entry() -> None:
    cluster = Cluster()
    observed = ObservedTopic(
        physical_name="old.one",
        topic_id=b"i" * 16,
        partitions=5,
        replication_factor=2,
        config=MappingProxyType({"retention.ms": "1"}),
    )
    cluster.do(topic("/la/t", adopt_existing=observed))
    found = cluster.topic("/la/t")
    assert found.physical_name == "old.one"
    assert found.provision is Provision.ACTIVE
    assert found.adopted
    assert (found.topic_id, found.partitions) == (b"i" * 16, 5)
    assert found.observed_config == {"retention.ms": "1"}
    refused(cluster, topic("/la/u", adopt_existing=observed), PhysicalNameTaken, "of /la/t")
    refused(
        cluster, topic("/la/u", "x", adopt_existing=observed), InvalidArgument, "'x'.*'old.one'"
    )


def test_policies_are_checked() -> None:
    refused(
        Cluster(),
        topic("/la/t", policies=Policies(partitions=-1)),
        InvalidArgument,
        "policies.partitions: found -1; expected a whole number from 1",
    )
    refused(
        Cluster(),
        mkdir("/la/t", policies=Policies(manage=MappingProxyType({"fly": True}))),
        InvalidArgument,
        "policies.manage",
    )


# -- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "arguments"),
    [
        ((), "empty"),
        (("/ny", "/sf", "/ny"), "/ny is named twice"),
        (("/la/l",), "at or below the link /la/l itself"),
        (("/ny", "/la/l/x"), "target 2 is /la/l/x, at or below"),
    ],
)
def test_links_that_cannot_lead_anywhere(targets: tuple[str, ...], arguments: str) -> None:
    refused(Cluster(), link("/la/l", *targets), InvalidArgument, arguments)


def test_a_link_may_lead_above_itself_and_to_what_does_not_exist() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), link("/la/a/up", "/la/a", "/nowhere"), link("/la/lx", "/la/l"))
    assert cluster.show() == "a/\n  up -> /la/a | /nowhere\nlx -> /la/l"


def test_a_link_where_a_container_is() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/d"), mount("/la/m"), link("/la/l", "/ny"))
    for text in ("/la/d", "/la/m", "/la/l", "/la"):
        refused(cluster, link(text, "/sf"), AlreadyExists, "already exists|root directory")


# -- mounts --------------------------------------------------------------------------------------


def test_a_mount() -> None:
    cluster = Cluster()
    made = cluster.do(
        mkdir("/la/eu"),
        CreateMount(path=path("/la/eu/geo"), cluster_id="kc-1", cluster="geo", endpoints=("h:1",)),
    )
    assert cluster.show() == "eu/\n  geo <- kc-1"
    assert isinstance(made.entry, Mount)
    # Mounted anew, perhaps elsewhere, a child sees a later epoch.
    assert made.entry.epoch == NOW_MS
    assert reported(made.changes) == ["+ mount /la/eu/geo"]
    assert cluster.snapshot.fact(mounted_key("kc-1")) is not None


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (mkdir("/la/x"), "a directory that exists there"),
        (topic("/la/x"), "a topic that exists there"),
        (link("/la/x", "/ny"), "a link to /ny that exists there"),
    ],
)
def test_a_mount_never_hides_what_is_there(command: object, arguments: str) -> None:
    cluster = Cluster()
    cluster.do(command)  # type: ignore[arg-type]
    refused(cluster, mount("/la/x"), MountShadows, arguments)


def test_mounts_of_one_cluster_do_not_enclose_each_other() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"), mount("/la/a/b/m", "kc-1"))
    below = refused(cluster, mount("/la/a/b/m/x", "kc-2"), MountOverlaps, "below /la/a/b/m")
    assert below.metadata["overlaps"] == "/la/a/b/m"
    above = refused(cluster, mount("/la/a", "kc-2"), MountOverlaps, "above /la/a/b/m")
    assert above.metadata["overlaps"] == "/la/a/b/m"
    refused(cluster, mount("/la/a/b/m", "kc-2"), MountShadows, "the mount of cluster kc-1")


def test_a_child_is_mounted_once() -> None:
    cluster = Cluster()
    cluster.do(mount("/la/m", "kc-1"))
    wrong = refused(cluster, mount("/la/n", "kc-1"), MountLoop, "mounted at /la/m already.*/la/n")
    assert wrong.metadata["mounted_at"] == "/la/m"


def test_a_mount_needs_a_child_a_directory_and_a_name() -> None:
    cluster = Cluster()
    refused(cluster, mount("/la/m", ""), InvalidArgument, "cluster_id is empty")
    refused(cluster, mount("/la/x/m"), InvalidNamespace, "/la/x does not exist")
    refused(cluster, mount("/la"), AlreadyExists, "root directory")
    refused(cluster, mount("/la/__m"), InvalidArgument, "'__m'")


def test_two_mounts_of_one_child_at_the_same_moment() -> None:
    cluster = Cluster()
    first, second = cluster.plan(mount("/la/m", "kc-1")), cluster.plan(mount("/la/n", "kc-1"))
    assert cluster.commit(first)
    assert not cluster.commit(second)
    refused(cluster, mount("/la/n", "kc-1"), MountLoop, "/la/m already")


# -- policies of directories ---------------------------------------------------------------------


def test_nothing_is_made_below_a_read_only_directory() -> None:
    cluster = Cluster()
    cluster.do(
        mkdir("/la/a/b/open"),
        UpdateEntry(path=path("/la/a"), changes={"policies.read_only": True}),
        UpdateEntry(path=path("/la/a/b/open"), changes={"policies.read_only": False}),
    )
    for command in (
        mkdir("/la/a/b/x"),
        topic("/la/a/t"),
        topic("/la/a/b/t"),
        link("/la/a/l", "/"),
        mount("/la/a/m"),
    ):
        wrong = refused(cluster, command, ReadOnly, "/la/a is read-only")
        assert wrong.metadata["path"] == "/la/a"
    cluster.do(topic("/la/a/b/open/t"))
    cluster.do(topic("/la/t"))


def test_a_quota_counts_everything_below() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b", parents=True))
    cluster.do(
        UpdateEntry(path=path("/la/a"), changes={"policies.max_topics": 2}),
        topic("/la/a/one"),
        topic("/la/a/b/two"),
    )
    wrong = refused(cluster, topic("/la/a/b/three"), QuotaExceeded, "/la/a allows 2 topics.*2 used")
    assert wrong.metadata["limit"] == "2"
    cluster.do(topic("/la/elsewhere"))
    cluster.do(DeleteEntry(path=path("/la/a/one")), topic("/la/a/b/three"))


def test_system_topics_do_not_count() -> None:
    cluster = Cluster()
    cluster.do(
        UpdateEntry(path=path("/la"), changes={"policies.max_topics": 2}),
        topic("/la/x", "phys"),
        adopt(("x",), "y"),
    )
    assert "__adopted/" in cluster.show()
    cluster.do(topic("/la/z"))
    refused(cluster, topic("/la/q"), QuotaExceeded, "2 used")


# -- guards --------------------------------------------------------------------------------------


def test_a_create_is_guarded_by_what_it_read() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"))
    a, b = cluster.entry("/la/a"), cluster.entry("/la/a/b")
    assert a is not None
    assert b is not None
    made = cluster.plan(topic("/la/a/b/t"))
    encode = cluster.codec.encode
    assert set(made.guards) == {
        KeyEquals(entry_key(0, Kind.DIRECTORY, ""), None),
        KeyEquals(entry_key(ROOT_ID, Kind.DIRECTORY, "a"), encode(a)),
        KeyEquals(entry_key(a.entry_id, Kind.DIRECTORY, "b"), encode(b)),
        KeyEquals(entry_key(b.entry_id, Kind.TOPIC, "t"), None),
        KeyEquals(entry_key(b.entry_id, Kind.DIRECTORY, "t"), None),
        KeyEquals(claim_key("a.b.t"), None),
        KeyEquals(GRANTS_MARK, None),
    }


@pytest.mark.parametrize(
    "meanwhile",
    [
        DeleteEntry(path=path("/la/a"), recursive=True),
        MoveEntry(path=path("/la/a"), new_path=path("/la/z")),
        MoveEntry(path=path("/la/a/b"), new_path=path("/la/b")),
        UpdateEntry(path=path("/la/a"), changes={"policies.read_only": True}),
        UpdateEntry(path=path("/la"), changes={"policies.read_only": True}),
        topic("/la/a/b/t"),
        topic("/la/other", "a.b.t"),
        topic("/la/other", "a_b.t"),
    ],
)
def test_a_create_notices_what_happens_meanwhile(meanwhile: object) -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"))
    made = cluster.plan(topic("/la/a/b/t"))
    cluster.do(meanwhile)  # type: ignore[arg-type]
    assert not cluster.commit(made)


def test_what_is_there_and_cannot_be_read_is_not_written_over() -> None:
    cluster = Cluster()
    key = entry_key(ROOT_ID, Kind.TOPIC, "t")
    assert cluster.rows.commit((), (Put(key, b"\xff\xff"),))
    cluster.snapshot = cluster.loaded()
    refused(cluster, topic("/la/t"), AlreadyExists, "cannot be read")


def test_a_path_that_becomes_too_long_is_no_path() -> None:
    deep = Path(tuple("d" * 9 for _ in range(63)))
    cluster = Cluster(mount=str(deep))
    cluster.do(CreateTopic(path=deep.child("t")))
    with pytest.raises(InvalidPath):
        deep.join(("t", "u"))
