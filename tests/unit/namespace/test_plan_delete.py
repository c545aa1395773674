"""Removing entries, and the reaper: marked at once, finished in steps that may be cut anywhere."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from directory.namespace.command import (
    AdoptTopics,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    FinishDelete,
    ForgetRetired,
    MoveEntry,
    ObservedTopic,
    ReapDeleted,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.entry import DELETED_ID, Kind, Policies, Provision, Topic, etag_of
from directory.namespace.keys import (
    detached_key,
    entry_key,
    grants_key,
    mounted_key,
    parse_detached,
    retired_key,
)
from directory.namespace.removal_progress import Removal, removals
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write
from directory.store.transaction_limits import Limits
from resolver.errors import (
    Absent,
    EtagMismatch,
    HasMounts,
    InvalidArgument,
    InvalidNamespace,
    KdirError,
    NotAuthoritative,
    NotEmpty,
    PhysicalNameRetired,
    ReadOnly,
)
from tests.support.large_trees import ETCD_LIMITS
from tests.support.trees import NOW_MS, Cluster, path, reported

DAY_MS = 24 * 3600 * 1000


def mkdir(text: str) -> CreateDirectory:
    return CreateDirectory(path=path(text), make_parents=True)


def topic(text: str) -> CreateTopic:
    return CreateTopic(path=path(text))


def rm(text: str, **fields: object) -> DeleteEntry:
    return DeleteEntry(path=path(text), **fields)  # type: ignore[arg-type]


def became(cluster: Cluster, text: str, provision: Provision, topic_id: bytes = b"i" * 16) -> Topic:
    """Returns Kafka's word on a topic, as the reconciler commits it."""
    news = TopicObservation(
        path=path(text),
        entry_id=cluster.topic(text).entry_id,
        provision=provision,
        topic_id=topic_id,
    )
    cluster.do(RecordObservations(news=(news,)))
    return cluster.topic(text)


def refused(cluster: Cluster, command: object, error: type[KdirError], arguments: str) -> KdirError:
    before = cluster.rows.revision
    with pytest.raises(error, match=arguments) as raised:
        cluster.do(command)  # type: ignore[arg-type]
    assert cluster.rows.revision == before
    return raised.value


def change(cluster: Cluster, *writes: Write) -> None:
    """Commits writes that no plan made."""
    assert cluster.rows.commit((), writes)
    cluster.snapshot = cluster.snapshot.apply(cluster.rows.revision, writes)


def spoil(cluster: Cluster, kind: Kind, *relative: str, record: bytes = b"\xff") -> bytes:
    """Makes an entry's record unreadable; returns its key."""
    at = cluster.snapshot.find_directory(relative[:-1])
    assert at is not None
    key = entry_key(at, kind, relative[-1])
    assert key in cluster.rows.values
    change(cluster, Put(key, record))
    return key


def reap_all(cluster: Cluster, limit: int = 100, most: int = 1000) -> int:
    """Runs the reaper's steps until none has anything to do; returns how many it took."""
    for steps in range(most):
        if not cluster.do(ReapDeleted(limit=limit)).writes:
            return steps
    raise AssertionError("the reaper does not end")


def deleting(cluster: Cluster) -> dict[str, Topic]:
    """Returns what waits for Kafka, by its name below DELETED_ID."""
    node = cluster.snapshot.nodes.get(DELETED_ID)
    assert node is not None
    found = {name: cluster.snapshot.topic(DELETED_ID, name) for name in node.topics}
    return {name: one for name, one in found.items() if one is not None}


# -- topics --------------------------------------------------------------------------------------


def test_a_topic_goes_and_its_name_retires() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    made = cluster.do(rm("/la/t"))
    assert cluster.show() == ""
    assert reported(made.changes) == ["- topic /la/t"]
    assert (made.topic_count, made.directory_count) == (1, 0)
    assert cluster.rows.under(b"p/") == {}
    assert cluster.snapshot.fact(retired_key("t")) == str(NOW_MS + DAY_MS).encode()
    # It never reached Kafka: nothing there is to be left alone.
    assert cluster.rows.under(b"x/") == {}


def test_a_kafka_topic_that_stays_is_left_detached() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    became(cluster, "/la/t", Provision.ACTIVE)
    cluster.do(rm("/la/t"))
    assert cluster.show() == ""
    value = cluster.snapshot.fact(detached_key("t"))
    assert parse_detached(value or b"") == (b"i" * 16, ("t",))
    assert cluster.rows.under(b"p/") == {}


def test_a_kafka_topic_that_goes_too_waits_with_its_claim() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    found = became(cluster, "/la/t", Provision.ACTIVE)
    made = cluster.do(rm("/la/t"), deletes_in_kafka=True)
    name = f"{found.entry_id:016x}"
    assert cluster.show() == f"(removed)\n  {name} = t [deleting]"
    assert reported(made.changes) == ["- topic /la/t"]
    assert cluster.rows.under(b"p/") == {b"p/t": b"t"}
    refused(cluster, CreateTopic(path=path("/la/u"), physical_name="t"), PhysicalNameRetired, "t.2")

    finished = cluster.do(FinishDelete(topics=((name, found.entry_id),)))
    assert finished.changes == ()  # its removal was told when it was marked
    assert cluster.show() == ""
    assert cluster.rows.under(b"p/") == {}
    assert cluster.snapshot.fact(retired_key("t")) is not None
    assert cluster.snapshot.fact(detached_key("t")) is None
    assert cluster.plan(FinishDelete(topics=((name, found.entry_id),))).writes == ()


def test_finishing_another_topic_does_nothing() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    found = became(cluster, "/la/t", Provision.ACTIVE)
    cluster.do(rm("/la/t"), deletes_in_kafka=True)
    name = f"{found.entry_id:016x}"
    assert cluster.plan(FinishDelete(topics=((name, found.entry_id + 1),))).writes == ()
    assert cluster.plan(FinishDelete(topics=(("nobody", found.entry_id),))).writes == ()


@pytest.mark.parametrize(
    ("provision", "in_kafka", "waits", "left", "retired"),
    [
        (Provision.ACTIVE, True, True, False, False),
        # Left alone in Kafka its name is not free, for as long as that is so.
        (Provision.ACTIVE, False, False, True, False),
        (Provision.MISSING, True, True, False, False),
        (Provision.MISSING, False, False, False, True),
        # Another topic has the name in Kafka: nothing is done to it, whatever is allowed.
        (Provision.REPLACED, True, False, False, True),
        (Provision.REPLACED, False, False, False, True),
        # Kafka refused it: it never was there, and may be wished for again at once.
        (Provision.FAILED, True, False, False, False),
        (Provision.FAILED, False, False, False, False),
        (Provision.PENDING, False, False, False, True),
    ],
)
def test_what_becomes_of_kafkas_side(
    provision: Provision, *, in_kafka: bool, waits: bool, left: bool, retired: bool
) -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    became(cluster, "/la/t", provision)
    cluster.do(rm("/la/t"), deletes_in_kafka=in_kafka)
    assert bool(deleting(cluster)) is waits
    assert (cluster.snapshot.fact(detached_key("t")) is not None) is left
    assert (cluster.snapshot.fact(retired_key("t")) is not None) is retired


@pytest.mark.parametrize("attempted", [True, False])
def test_a_pending_topic_waits_only_if_kafka_may_have_it(*, attempted: bool) -> None:
    cluster = Cluster()
    made = cluster.do(topic("/la/t")).entry
    if attempted:
        assert made is not None
        news = TopicObservation(
            path=path("/la/t"), entry_id=made.entry_id, provision_attempt="asked"
        )
        cluster.do(RecordObservations(news=(news,)))
    cluster.do(rm("/la/t"), deletes_in_kafka=True)
    assert bool(deleting(cluster)) is attempted


def test_news_of_a_topic_that_waits_is_kept_and_not_reported() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    found = became(cluster, "/la/t", Provision.ACTIVE)
    cluster.do(rm("/la/t"), deletes_in_kafka=True)
    name = f"{found.entry_id:016x}"
    news = TopicObservation(
        path=path(f"/la/__deleted/{name}"),
        entry_id=found.entry_id,
        provision_message="Kafka said no",
    )
    made = cluster.do(RecordObservations(news=(news,)))
    assert made.changes == ()
    assert deleting(cluster)[name].provision_message == "Kafka said no"
    assert deleting(cluster)[name].provision is Provision.DELETING


def test_of_two_entries_with_one_name_the_topic_goes_first() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/orders"), topic("/la/orders"))
    cluster.do(rm("/la/orders"))
    assert cluster.show() == "orders/"
    cluster.do(topic("/la/orders"))
    cluster.do(rm("/la/orders", kind=Kind.DIRECTORY))
    assert cluster.show() == "orders = orders.2 [pending]"


# -- directories ---------------------------------------------------------------------------------


def test_an_empty_directory_goes_at_once() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"))
    made = cluster.do(rm("/la/a/b"))
    assert cluster.show() == "a/"
    assert reported(made.changes) == ["- dir /la/a/b"]
    assert (made.topic_count, made.directory_count) == (0, 1)
    assert cluster.plan(ReapDeleted()).writes == ()


def test_a_directory_that_holds_something_is_kept() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"), mkdir("/la/a/c"), topic("/la/a/t"))
    wrong = refused(cluster, rm("/la/a"), NotEmpty, "1 topic and 2 directories and links")
    assert (wrong.metadata["topics"], wrong.metadata["containers"]) == ("1", "2")
    cluster.do(mkdir("/la/l"), CreateLink(path=path("/la/l/x"), targets=(path("/ny"),)))
    refused(cluster, rm("/la/l"), NotEmpty, "/la/l holds 0 topics and 1 ")


def test_S21_a_directory_with_nothing_but_what_cannot_be_read_is_not_empty() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"), topic("/la/a/b/t"))
    spoil(cluster, Kind.DIRECTORY, "a", "b")
    refused(cluster, rm("/la/a"), NotEmpty, "0 topics and 0 .* 1 entry that cannot be read")
    assert cluster.do(rm("/la/a", recursive=True)).unreadable_count == 1
    # What lies in b is found by its directory's record only: so both stay for the reaper.
    removed = cluster.snapshot.nodes.get(DELETED_ID)
    assert removed is not None
    assert len(removed.containers) == 1


def test_S21_what_cannot_be_read_further_below_is_counted_in_a_removal() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b/c"), mkdir("/la/other/c"))
    spoil(cluster, Kind.DIRECTORY, "a", "b", "c")
    assert cluster.do(rm("/la/other", recursive=True)).unreadable_count == 0
    made = cluster.do(rm("/la/a", recursive=True))
    assert (made.directory_count, made.unreadable_count) == (2, 1)


def test_a_directory_is_moved_away_in_one_small_transaction() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"))
    cluster.do(*(topic(f"/la/a/b/t{number}") for number in range(50)))
    made = cluster.do(rm("/la/a", recursive=True))
    assert len(made.writes) == 3
    assert reported(made.changes) == ["- dir /la/a"]
    assert (made.topic_count, made.directory_count) == (50, 2)
    assert cluster.show().startswith("(removed)")
    # The path is free at once, and what comes there is another entry.
    before = made.entry
    cluster.do(mkdir("/la/a/b"), topic("/la/a/b/t1"))
    after = cluster.entry("/la/a")
    assert before is not None
    assert after is not None
    assert before.entry_id != after.entry_id
    assert cluster.topic("/la/a/b/t1").physical_name == "a.b.t1.2"


def test_mounts_at_or_below_are_named() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"))
    cluster.do(
        *(
            CreateMount(path=path(f"/la/a/b/m{number}"), cluster_id=f"kc-{number}")
            for number in range(7)
        )
    )
    wrong = refused(cluster, rm("/la/a", recursive=True), HasMounts, "/la/a/b/m0, ")
    named = wrong.metadata["mounts"].split(", ")
    assert named == [f"/la/a/b/m{number}" for number in range(5)]
    refused(cluster, rm("/la/a"), HasMounts, "unmount them first")


def test_S21_a_mount_that_cannot_be_read_keeps_the_directories_above_it() -> None:
    """Else the reaper would remove it, and its child would be unmounted."""
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"), mkdir("/la/other/c"), topic("/la/other/t"))
    cluster.do(CreateMount(path=path("/la/a/b/m"), cluster_id="kc-1"))
    key = spoil(cluster, Kind.MOUNT, "a", "b", "m")
    for loaded in (cluster.snapshot, cluster.loaded()):
        cluster.snapshot = loaded
        refused(cluster, rm("/la/a", recursive=True), HasMounts, "may be mounted below /la/a: ")
        refused(cluster, rm("/la/a/b"), HasMounts, "kdir verify /la")
    # Elsewhere, where it cannot be, nothing is in the way.
    cluster.do(rm("/la/other", recursive=True))
    # Nor once an operator has removed the key.
    change(cluster, Delete(key))
    cluster.do(rm("/la/a", recursive=True))
    # A directory above the mount that cannot be read hides it, too.
    cluster.do(mkdir("/la/d/e"), CreateMount(path=path("/la/d/e/m"), cluster_id="kc-2"))
    spoil(cluster, Kind.DIRECTORY, "d", "e")
    refused(cluster, rm("/la/d", recursive=True), HasMounts, "may be mounted below /la/d: ")


def test_a_mount_that_comes_meanwhile_saves_the_directory() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"), topic("/la/a/t"))
    made = cluster.plan(rm("/la/a", recursive=True))
    cluster.do(CreateMount(path=path("/la/a/b/m"), cluster_id="kc-1"))
    assert not cluster.commit(made)
    refused(cluster, rm("/la/a", recursive=True), HasMounts, "/la/a/b/m")


def test_a_mount_that_moves_in_meanwhile_saves_the_directory() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), topic("/la/a/t"), mkdir("/la/eu"))
    cluster.do(CreateMount(path=path("/la/eu/m"), cluster_id="kc-1"))
    made = cluster.plan(rm("/la/a", recursive=True))
    cluster.do(MoveEntry(path=path("/la/eu"), new_path=path("/la/a/eu")))
    assert not cluster.commit(made)


def test_umount() -> None:
    cluster = Cluster()
    cluster.do(CreateMount(path=path("/la/m"), cluster_id="kc-1"))
    made = cluster.do(rm("/la/m"))
    assert reported(made.changes) == ["- mount /la/m"]
    assert cluster.snapshot.fact(mounted_key("kc-1")) is None
    cluster.do(CreateMount(path=path("/la/n"), cluster_id="kc-1"))


def test_a_link_goes_and_its_target_stays() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), CreateLink(path=path("/la/l"), targets=(path("/la/a"),)))
    cluster.do(rm("/la/l", recursive=True))
    assert cluster.show() == "a/"


def test_a_topic_that_comes_meanwhile_saves_an_empty_directory() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"))
    made = cluster.plan(rm("/la/a"))
    cluster.do(topic("/la/a/t"))
    assert not cluster.commit(made)


def test_P13_nothing_is_made_in_a_removed_directory() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"), topic("/la/a/b/t"))
    late = cluster.plan(topic("/la/a/b/u"))
    cluster.do(rm("/la/a", recursive=True))
    assert not cluster.commit(late)
    reap_all(cluster)
    assert not cluster.commit(late)
    assert cluster.show() == ""


# -- what is refused -----------------------------------------------------------------------------


def test_the_root_stays() -> None:
    refused(Cluster(), rm("/la", recursive=True), InvalidArgument, "cannot be removed")


def test_what_is_not_there() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), CreateLink(path=path("/la/l"), targets=(path("/ny"),)))
    cluster.do(CreateMount(path=path("/la/m"), cluster_id="kc-1"), topic("/la/t"))
    refused(cluster, rm("/la/x"), Absent, "/la/x does not exist")
    wrong = refused(cluster, rm("/la/a/x/y"), Absent, "nearest directory that does is /la/a")
    assert wrong.metadata["nearest"] == "/la/a"
    refused(cluster, rm("/la/a", kind=Kind.TOPIC), Absent, "a directory, not a topic")
    refused(cluster, rm("/la/t", kind=Kind.DIRECTORY), Absent, "/la/t is a topic, not a directory")
    refused(cluster, rm("/la/m", kind=Kind.DIRECTORY), Absent, "is the mount of .*not a directory")
    refused(cluster, rm("/la/m/x"), NotAuthoritative, "/la/m is the mount")
    refused(cluster, rm("/la/l/x"), InvalidNamespace, "use /ny/x")
    refused(cluster, rm("/ny/x"), NotAuthoritative, "not below /la")


def test_another_etag() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"))
    seen = etag_of(cluster.topic("/la/t"))
    became(cluster, "/la/t", Provision.ACTIVE)
    wrong = refused(cluster, rm("/la/t", etag=seen), EtagMismatch, "has changed since")
    assert wrong.metadata["etag"] == etag_of(cluster.topic("/la/t"))
    cluster.do(rm("/la/t", etag=etag_of(cluster.topic("/la/t"))))


def test_read_only_at_above_and_below() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b/c"), topic("/la/a/b/c/t"))
    cluster.do(UpdateEntry(path=path("/la/a/b"), changes={"policies.read_only": True}))
    refused(cluster, rm("/la/a/b/c/t"), ReadOnly, "/la/a/b is read-only")
    refused(cluster, rm("/la/a/b", recursive=True), ReadOnly, "read-only")
    refused(cluster, rm("/la/a", recursive=True), ReadOnly, "/la/a/b is read-only")
    cluster.do(UpdateEntry(path=path("/la/a/b"), changes={"policies.read_only": None}))
    cluster.do(rm("/la/a", recursive=True))


@pytest.mark.parametrize(
    "meanwhile",
    [
        UpdateEntry(path=path("/la/a/b"), changes={"policies.read_only": True}),
        CreateDirectory(path=path("/la/a/c"), policies=Policies(read_only=True)),
        MoveEntry(path=path("/la/free"), new_path=path("/la/a/b/free")),
    ],
)
def test_a_directory_that_becomes_read_only_meanwhile_is_kept(meanwhile: object) -> None:
    cluster = Cluster()
    cluster.do(
        mkdir("/la/a/b"),
        mkdir("/la/free/x"),
        UpdateEntry(path=path("/la/free/x"), changes={"policies.read_only": True}),
    )
    late = cluster.plan(rm("/la/a", recursive=True))
    cluster.do(meanwhile)  # type: ignore[arg-type]
    assert not cluster.commit(late)


@pytest.mark.parametrize("kind", [Kind.TOPIC, Kind.DIRECTORY])
def test_S21_what_is_read_only_and_cannot_be_read_is_kept(kind: Kind) -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a/b"), mkdir("/la/other/x"))
    cluster.do(topic("/la/a/b/c") if kind is Kind.TOPIC else mkdir("/la/a/b/c"))
    cluster.do(UpdateEntry(path=path("/la/a/b/c"), changes={"policies.read_only": True}))
    key = spoil(cluster, kind, "a", "b", "c")
    (mark,) = cluster.rows.under(b"f/read_only/")
    for snapshot in (cluster.snapshot, cluster.loaded()):
        cluster.snapshot = snapshot
        refused(cluster, rm("/la/a", recursive=True), ReadOnly, f"{mark.decode()} .* kdir verify")
    # Where all can be read, the entry of the mark is not, nor once its key is removed.
    cluster.do(rm("/la/other", recursive=True))
    change(cluster, Delete(key))
    cluster.do(rm("/la/a", recursive=True))


def test_S21_a_read_only_topic_that_is_damaged_further_in_is_kept() -> None:
    """A load takes it for readable."""
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), topic("/la/a/t"))
    cluster.do(UpdateEntry(path=path("/la/a/t"), changes={"policies.read_only": True}))
    whole = cluster.codec.encode(cluster.topic("/la/a/t"))
    spoil(cluster, Kind.TOPIC, "a", "t", record=whole[:-3])
    cluster.snapshot = cluster.loaded()
    assert not cluster.snapshot.unreadable_values
    refused(cluster, rm("/la/a", recursive=True), ReadOnly, "may be read-only")


def test_many_read_only_entries_that_cannot_be_read_take_one_look_below() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), mkdir("/la/b/x"))
    names = [f"t{number}" for number in range(50)]
    for one in names:
        cluster.do(CreateTopic(path=path(f"/la/a/{one}"), policies=Policies(read_only=True)))
        spoil(cluster, Kind.TOPIC, "a", one)
    cluster.snapshot = cluster.loaded()
    with mock.patch.object(
        Snapshot, "has_unreadable_below", autospec=True, side_effect=Snapshot.has_unreadable_below
    ) as asked:
        cluster.plan(rm("/la/b", recursive=True))
    assert asked.call_count == 1
    refused(cluster, rm("/la/a", recursive=True), ReadOnly, "may be read-only")


def test_the_mark_of_a_read_only_directory_comes_and_goes() -> None:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=path("/la/a"), policies=Policies(read_only=True)))
    assert len(cluster.rows.under(b"f/read_only/")) == 1
    cluster.do(UpdateEntry(path=path("/la/a"), changes={"policies.read_only": False}))
    assert cluster.rows.under(b"f/read_only/") == {}


# -- the reaper ----------------------------------------------------------------------------------


def forest(cluster: Cluster) -> None:
    for name in ("a", "b/c", "b/c/d", "e"):
        cluster.do(mkdir(f"/la/x/{name}"))
        cluster.do(*(topic(f"/la/x/{name}/t{number}") for number in range(3)))
    cluster.do(CreateLink(path=path("/la/x/l"), targets=(path("/ny"),)), mkdir("/la/keep"))


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_the_reaper_leaves_nothing(limit: int) -> None:
    cluster = Cluster()
    forest(cluster)
    made = cluster.do(rm("/la/x", recursive=True))
    entries = made.topic_count + made.directory_count + 1
    steps = reap_all(cluster, limit)
    assert steps == -(-entries // limit)
    assert cluster.show() == "keep/"
    assert cluster.rows.under(b"p/") == {}
    assert cluster.rows.under(b"k/") == {}
    assert len(cluster.rows.under(b"r/")) == 12
    assert [key[-4:] for key in cluster.rows.under(b"e/")] == [b"keep"]


def test_the_reaper_reports_what_lay_below() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/x/y"), topic("/la/x/y/t"))
    found, inner = cluster.topic("/la/x/y/t"), cluster.entry("/la/x/y")
    assert inner is not None
    cluster.do(rm("/la/x", recursive=True))
    made = cluster.do(ReapDeleted())
    assert reported(made.changes) == [
        f"- topic /la/__deleted/{found.entry_id:016x} from /la/x/y/t",
        f"- dir /la/__deleted/{inner.entry_id:016x} from /la/x/y",
    ]
    assert made.changes[0].before == found


def test_R5_the_reaper_reports_no_path_below_a_former_mount() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/x/y"), topic("/la/x/y/t"), rm("/la/x", recursive=True))
    cluster.mount = path("/us/la")
    made = cluster.do(ReapDeleted())
    places = [change.path.segments[:3] for change in made.changes]
    assert places == [("us", "la", "__deleted")] * 2
    assert [change.path_before for change in made.changes] == [None, None]
    assert reap_all(cluster) == 0


def test_the_reaper_does_as_was_decided_at_the_time() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/kept"), mkdir("/la/gone"), topic("/la/kept/t"), topic("/la/gone/t"))
    for name in ("kept", "gone"):
        became(cluster, f"/la/{name}/t", Provision.ACTIVE)
        cluster.do(rm(f"/la/{name}", recursive=True), deletes_in_kafka=name == "gone")
    # By now the server may delete, or not: what counts is what the one who removed it was told.
    for now in (True, False):
        cluster.do(ReapDeleted(), deletes_in_kafka=now)
    assert [one.physical_name for one in deleting(cluster).values()] == ["gone.t"]
    assert [*cluster.rows.under(b"x/")] == [b"x/kept.t"]
    assert cluster.rows.under(b"p/") == {b"p/gone_t": b"gone.t"}
    for name, one in deleting(cluster).items():
        cluster.do(FinishDelete(topics=((name, one.entry_id),)))
    assert cluster.show() == ""
    assert cluster.rows.under(b"p/") == {}


def test_two_reapers_at_once_take_each_thing_once() -> None:
    cluster = Cluster()
    forest(cluster)
    cluster.do(rm("/la/x", recursive=True))
    while (first := cluster.plan(ReapDeleted(limit=2))).writes:
        second = cluster.plan(ReapDeleted(limit=3))
        assert cluster.commit(first)
        assert not cluster.commit(second)
    assert cluster.show() == "keep/"


def test_news_of_a_topic_in_a_removed_directory_does_not_stop_the_reaper() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/x"), topic("/la/x/t"))
    news = TopicObservation(
        path=path("/la/x/t"), entry_id=cluster.topic("/la/x/t").entry_id, drift_count=3
    )
    late = cluster.plan(RecordObservations(news=(news,)))
    cluster.do(rm("/la/x", recursive=True))
    assert not cluster.commit(late)
    assert cluster.plan(RecordObservations(news=(news,))).writes == ()
    reap_all(cluster)
    assert cluster.show() == ""


def test_names_whose_day_is_over_are_forgotten_and_no_others() -> None:
    cluster = Cluster()
    cluster.do(topic("/la/t"), rm("/la/t"))
    cluster.do(topic("/la/u"))
    cluster.do(rm("/la/u"), now_ms=NOW_MS + 5)
    forget = ForgetRetired(names=("t", "u", "never"))
    assert cluster.plan(forget, now_ms=NOW_MS + DAY_MS - 1).writes == ()
    cluster.do(forget, now_ms=NOW_MS + DAY_MS)
    assert [*cluster.rows.under(b"r/")] == [b"r/u"]
    late = cluster.plan(forget, now_ms=NOW_MS + DAY_MS + 5)
    cluster.do(CreateTopic(path=path("/la/u")), now_ms=NOW_MS + DAY_MS + 5)
    cluster.do(rm("/la/u"), now_ms=NOW_MS + DAY_MS + 6)
    assert not cluster.commit(late), "it was retired anew meanwhile"


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_writes=30, max_bytes=1 << 20),
        Limits(max_writes=12, max_guards=12, max_bytes=1 << 20),
        Limits(max_writes=1000, max_bytes=40_000),
    ],
)
@pytest.mark.parametrize("goes", [True, False])
def test_a_step_takes_what_one_transaction_holds(limits: Limits, *, goes: bool) -> None:
    cluster = Cluster()
    forest(cluster)
    for name in ("a", "b/c"):
        for number in range(3):
            became(cluster, f"/la/x/{name}/t{number}", Provision.ACTIVE)
    cluster.do(rm("/la/x", recursive=True), deletes_in_kafka=goes)
    steps = 0
    while (made := cluster.do(ReapDeleted(limit=1000, limits=limits))).writes:
        # The reaper's own guard and the event come with it.
        assert limits.hold(len(made.guards) + 1, len(made.writes) + 1)
        steps += 1
    assert 2 <= steps <= 9
    assert len(deleting(cluster)) == (6 if goes else 0)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_S21_many_records_that_cannot_be_read_are_removed_in_steps(*, is_loaded: bool) -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/x/y"), topic("/la/x/y/t"), mkdir("/la/z"), topic("/la/z/t"))
    at = cluster.snapshot.find_directory(("x", "y"))
    assert at is not None
    whole = cluster.codec.encode(cluster.topic("/la/x/y/t"))
    for number in range(150):
        bad = b"\xff" if number % 2 else whole[:-3]  # a load takes the second for readable
        change(cluster, Put(entry_key(at, Kind.TOPIC, f"t{number}"), bad))
        change(cluster, Put(grants_key(at, Kind.TOPIC, f"t{number}"), b""))
    if is_loaded:
        cluster.snapshot = cluster.loaded()
    cluster.do(rm("/la/x", recursive=True), rm("/la/z", recursive=True))
    while (made := cluster.do(ReapDeleted(limit=1000, limits=ETCD_LIMITS))).writes:
        assert ETCD_LIMITS.hold(len(made.guards) + 1, len(made.writes) + 1)
    for prefix in (b"e/", b"g/", b"k/removal/"):
        assert cluster.rows.under(prefix) == {}


def test_how_much_is_left_of_a_removal_is_known_without_counting() -> None:
    cluster = Cluster()
    forest(cluster)
    cluster.do(rm("/la/x", recursive=True), deletes_in_kafka=True)
    (one,) = removals(cluster.snapshot)
    assert one.removal == Removal(
        goes_in_kafka=True,
        path=path("/la/x"),
        entries=18,
        started_at_ms=NOW_MS,
        principal="User:ana",
    )
    assert one.left == 12 + 6
    cluster.do(ReapDeleted(limit=5))
    (one,) = removals(cluster.snapshot)
    assert one.left == 18 - 5
    reap_all(cluster)
    assert [*removals(cluster.snapshot)] == []


def test_adoption_does_not_take_in_what_is_being_removed() -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/x"), topic("/la/x/t"))
    became(cluster, "/la/x/t", Provision.ACTIVE)
    observed = ObservedTopic(
        physical_name="x.t", topic_id=b"i" * 16, partitions=1, replication_factor=1
    )
    adopt = AdoptTopics(topics=((("x.t",), observed),))
    cluster.do(rm("/la/x", recursive=True))
    assert cluster.plan(adopt).writes == ()
    reap_all(cluster)
    left_out = cluster.plan(adopt)
    assert left_out.writes == ()
    assert "left alone" in left_out.notes[0]
    # The name again with another id: somebody made a new topic.
    cluster.do(AdoptTopics(topics=((("x.t",), replace(observed, topic_id=b"j" * 16)),)))
    assert cluster.show() == "x.t [active]"
    assert cluster.rows.under(b"x/") == {}
