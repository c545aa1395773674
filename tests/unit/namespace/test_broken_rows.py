"""What a store should never hold, and may: it is put aside with a reason, the rest is served."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from directory.namespace.command import (
    Command,
    CreateDirectory,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    ReapDeleted,
    UpdateEntry,
)
from directory.namespace.entry import (
    DELETED_ID,
    ROOT_ID,
    Directory,
    Entry,
    Kind,
    Mount,
    Policies,
    Topic,
)
from directory.namespace.keys import MOUNTED, directory_range, entry_key, mounted_key
from directory.namespace.lookup import DirectoryAt, Missing, TopicAt, Unreadable, lookup
from directory.namespace.mounted import is_mount_unreadable, mounted_at
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Delete, Put, Write
from directory.wire.entry_codec import ProtoCodec, record_to_proto
from resolver.errors import MountLoop, UnreadableRecord
from tests.support.trees import Cluster, path

CODEC = ProtoCodec()
GOOD = Topic(entry_id=90, physical_name="good")


def put(parent_id: int, name: str, entry: Entry) -> Put:
    return Put(entry_key(parent_id, entry.kind, name), CODEC.encode(entry))


def loaded(writes: Iterable[Write]) -> Snapshot:
    rows = sorted((write.key, write.value) for write in writes if isinstance(write, Put))
    return Snapshot.load(CODEC, "i", 1, [rows[:1], rows[1:]])


def applied(writes: Iterable[Write]) -> Snapshot:
    return Snapshot.empty(CODEC, "i").apply(1, tuple(writes))


def both(*writes: Write) -> tuple[Snapshot, Snapshot]:
    every = (put(ROOT_ID, "good", GOOD), *writes)
    snapshots = (loaded(every), applied(every))
    for snapshot in snapshots:
        assert isinstance(lookup(snapshot, ("good",)), TopicAt)
    return snapshots


BAD_ROWS = [
    (entry_key(ROOT_ID, Kind.TOPIC, "bad"), b"\xff\xff\xff", "not a kdir.v1.Entry"),
    (entry_key(ROOT_ID, Kind.TOPIC, "bad"), b"", "entry_id: missing"),
    (entry_key(ROOT_ID, Kind.DIRECTORY, "bad"), b"\xff", "not a kdir.v1.Entry"),
    (
        entry_key(ROOT_ID, Kind.TOPIC, "bad"),
        CODEC.encode(Directory(entry_id=10)),
        "not a topic's record",
    ),
    (entry_key(ROOT_ID, Kind.DIRECTORY, "bad"), CODEC.encode(GOOD), "topic's record under"),
    (entry_key(ROOT_ID, Kind.TOPIC, "b d"), CODEC.encode(GOOD), "not a name"),
    (entry_key(ROOT_ID, Kind.DIRECTORY, "bé"), CODEC.encode(Directory(entry_id=10)), "not a name"),
    (entry_key(ROOT_ID, Kind.TOPIC, "é"), CODEC.encode(GOOD), "not a name"),
    (entry_key(ROOT_ID, Kind.TOPIC, "") + b"\xff", CODEC.encode(GOOD), "can't decode"),
    (entry_key(ROOT_ID, Kind.TOPIC, ""), CODEC.encode(GOOD), "not an entry key"),
    (b"e/", b"", "not an entry key"),
    (b"e/\0\0\0\0\0\0\0\1x", CODEC.encode(GOOD), "not an entry key"),
    (entry_key(0, Kind.DIRECTORY, ""), CODEC.encode(Directory(entry_id=7)), "root"),
    (entry_key(0, Kind.DIRECTORY, ""), b"\xff", "not a kdir.v1.Entry"),
    (
        entry_key(ROOT_ID, Kind.DIRECTORY, "bad"),
        CODEC.encode(Directory(entry_id=ROOT_ID)),
        "reserved",
    ),
    (
        entry_key(ROOT_ID, Kind.DIRECTORY, "bad"),
        CODEC.encode(Directory(entry_id=DELETED_ID)),
        "reserved",
    ),
]


@pytest.mark.parametrize(("key", "value", "reason"), BAD_ROWS)
def test_S21_one_bad_row_is_put_aside(key: bytes, value: bytes, reason: str) -> None:
    for snapshot in both(Put(key, value)):
        assert list(snapshot.unreadable_values) == [key]
        assert reason in snapshot.unreadable_values[key]
        assert snapshot.topic_count == 1
        assert snapshot.directory_count == 0
        healed = snapshot.apply(2, [Delete(key)])
        assert not healed.unreadable_values


def test_unreadable_entries_are_grouped_again_after_a_change_of_one() -> None:
    """To group many takes a tenth of a second, within a read."""
    bad = [entry_key(ROOT_ID, kind, "bad") for kind in (Kind.TOPIC, Kind.DIRECTORY)]
    for before in both(*(Put(key, b"\xff") for key in bad)):
        entries = before.unreadable_entries
        assert [one.name for one in entries[ROOT_ID]] == ["bad", "bad"]
        other = put(ROOT_ID, "other", Topic(entry_id=91, physical_name="other"))
        after = before.apply(2, [other, Put(b"f/fact", b"1"), Delete(other.key + b"x")])
        assert after.unreadable_entries is entries
        broken = after.apply(3, [Put(other.key, b"\xff")])
        assert len(broken.unreadable_entries[ROOT_ID]) == 3
        mended = broken.apply(4, [Delete(bad[1]), other])
        assert [one.is_topic for one in mended.unreadable_entries[ROOT_ID]] == [True]
        assert not mended.apply(5, [Delete(bad[0])]).unreadable_entries
        assert len(entries[ROOT_ID]) == 2


def test_what_is_put_aside_is_not_absent() -> None:
    bad = entry_key(ROOT_ID, Kind.DIRECTORY, "bad")
    for snapshot in both(Put(bad, b"\xff")):
        reason = snapshot.unreadable_values[bad]
        assert lookup(snapshot, ("bad",)) == Unreadable(("bad",), reason)
        assert lookup(snapshot, ("bad", "below", "it")) == Unreadable(("bad",), reason)
        assert lookup(snapshot, ("other",)) == Missing(())


def test_what_lies_in_a_directory_without_a_record_waits_for_it() -> None:
    lost = [
        put(50, "t", Topic(entry_id=91, physical_name="t")),
        put(50, "inner", Directory(entry_id=51)),
        put(51, "u", Topic(entry_id=92, physical_name="u")),
    ]
    for snapshot in both(*lost):
        (reason,) = snapshot.unreadable_values.values()
        assert list(snapshot.unreadable_values) == [directory_range(50)]
        assert "1 topic and 1 other entry" in reason
        assert snapshot.topic_count == 1
        assert snapshot.path_of(51) is None
        located = snapshot.locate("u")
        assert located is not None
        assert located.relative is None
        found = snapshot.apply(2, [put(ROOT_ID, "found", Directory(entry_id=50))])
        assert not found.unreadable_values
        assert (found.topic_count, found.directory_count) == (3, 2)
        assert found.locate("u") == located._replace(relative=("found", "inner", "u"))


def test_a_directory_in_two_places_is_in_one() -> None:
    twice = [
        put(ROOT_ID, "a", Directory(entry_id=50)),
        put(ROOT_ID, "b", Directory(entry_id=50)),
        put(50, "t", Topic(entry_id=91, physical_name="t")),
    ]
    for snapshot in both(*twice):
        (key,) = snapshot.unreadable_values
        assert key == entry_key(ROOT_ID, Kind.DIRECTORY, "b")
        assert "exists elsewhere too" in snapshot.unreadable_values[key]
        assert (snapshot.topic_count, snapshot.directory_count) == (2, 1)


def test_a_circle_of_directories_ends() -> None:
    circle = [
        put(51, "a", Directory(entry_id=50)),
        put(50, "b", Directory(entry_id=51)),
        put(50, "t", Topic(entry_id=91, physical_name="t")),
        put(52, "self", Directory(entry_id=52)),
    ]
    for snapshot in both(*circle):
        assert any("lie in itself" in reason for reason in snapshot.unreadable_values.values())
        assert (snapshot.topic_count, snapshot.directory_count) == (1, 0)
        for directory_id in (50, 51, 52):
            assert snapshot.path_of(directory_id) is None


def test_a_record_damaged_further_in_is_an_error_of_its_path_alone() -> None:
    # Its first bytes are right, so that a load takes it; applying reads all of a record.
    whole = CODEC.encode(Topic(entry_id=91, physical_name="damaged", changed_by="someone"))
    key = entry_key(ROOT_ID, Kind.TOPIC, "damaged")
    damaged = Put(key, whole[:-3])
    snapshot = loaded([put(ROOT_ID, "good", GOOD), damaged])
    found = lookup(snapshot, ("damaged",))
    assert isinstance(found, TopicAt)
    with pytest.raises(UnreadableRecord, match="/m/damaged cannot be read"):
        record_to_proto(found.record, "/m/damaged")
    with pytest.raises(UnreadableRecord, match="cannot be read"):
        snapshot.topic(ROOT_ID, "damaged")
    assert not snapshot.unreadable_values
    assert snapshot.locate("damaged") is None
    assert snapshot.locate("good") is not None
    assert list(snapshot.unreadable_values) == [key]
    healed = snapshot.apply(2, [Put(key, whole)])
    assert not healed.unreadable_values
    assert healed.locate("damaged") is not None
    assert list(applied([damaged]).unreadable_values) == [key]


def test_S21_a_record_damaged_into_one_of_another_kind_is_no_topic() -> None:
    whole = CODEC.encode(Topic(entry_id=91, physical_name="damaged"))
    mount = CODEC.encode(Mount(entry_id=91, cluster_id="kc-1", cluster="ny"))
    snapshot = loaded([Put(entry_key(ROOT_ID, Kind.TOPIC, "damaged"), whole + mount)])
    with pytest.raises(UnreadableRecord, match="not a topic's record"):
        snapshot.topic(ROOT_ID, "damaged")
    assert snapshot.readable_topic(ROOT_ID, "damaged") is None


def test_S21_a_physical_name_that_is_damaged_into_none_hides_no_other_topic() -> None:
    names = [f"n{number}J" for number in range(4)]
    rows = [put(ROOT_ID, one, Topic(entry_id=91, physical_name=one)) for one in names]
    damaged = Put(rows[1].key, rows[1].value.replace(b"\x03n1J", b"\x03n1\n"))  # one bit
    assert damaged.value != rows[1].value
    at = lookup(loaded([damaged]), ("n1J",))
    assert isinstance(at, TopicAt), "a load reads no names"
    with pytest.raises(UnreadableRecord, match=r"/m/n1J cannot be read: .*not a name: 'n1\\n'"):
        record_to_proto(at.record, "/m/n1J")
    for snapshot in both(rows[0], damaged, *rows[2:]):
        snapshot.index_physical_names()
        found = [snapshot.locate(one) is not None for one in (*names, "n1\n")]
        assert found == [True, False, True, True, False]
        assert list(snapshot.unreadable_values) == [damaged.key]
        assert "not a name: 'n1\\n'" in snapshot.unreadable_values[damaged.key]
        assert snapshot.readable_topic(ROOT_ID, "n1J") is None
        assert snapshot.apply(2, [rows[1]]).locate("n1J") is not None


def test_a_directory_whose_record_becomes_unreadable_keeps_its_entries() -> None:
    writes = [
        put(ROOT_ID, "a", Directory(entry_id=50)),
        put(50, "t", Topic(entry_id=91, physical_name="t")),
    ]
    for before in both(*writes):
        broken = before.apply(2, [Put(writes[0].key, b"\xff")])
        assert broken.topic_count == 1
        assert isinstance(lookup(broken, ("a", "t")), Unreadable)
        mended = broken.apply(3, [writes[0]])
        assert (mended.topic_count, len(mended.unreadable_values)) == (2, 0)
        assert isinstance(lookup(mended, ("a",)), DirectoryAt)


def test_S21_a_root_whose_record_cannot_be_read_forbids_all() -> None:
    closed = Directory(entry_id=ROOT_ID, closed=True, policies=Policies(read_only=True))
    for snapshot in both(Put(ROOT_KEY, CODEC.encode(closed)[:-1] + b"\xff")):
        root = snapshot.root.directory
        assert (root.closed, root.policies.read_only) == (True, True)
        assert root.policies.manage == dict.fromkeys(("create", "configs", "acls", "delete"), False)
        mended = snapshot.apply(2, [Put(ROOT_KEY, CODEC.encode(closed))])
        assert mended.root.directory == closed
        plain = snapshot.apply(2, [Delete(ROOT_KEY)])
        assert plain.root.directory == Directory(entry_id=ROOT_ID)


def test_S21_a_claim_without_a_mount_counts_only_while_entries_cannot_be_read() -> None:
    """Else it is left over, and would keep its child mounted for ever."""
    claim = Put(mounted_key("kc-1"), b"0000000000000010 1 /la/m")
    spoiled = Put(entry_key(ROOT_ID, Kind.MOUNT, "m"), b"\xff")
    for snapshot in both(claim):
        assert not is_mount_unreadable(snapshot, "kc-1")
    for snapshot in both(claim, spoiled):
        assert is_mount_unreadable(snapshot, "kc-1")
        assert not is_mount_unreadable(snapshot, "kc-2")


def test_S21_a_child_whose_unreadable_mount_was_removed_can_be_mounted_again() -> None:
    """Until then its claim stands, and the refusal names what cannot be read."""
    cluster = Cluster()
    cluster.do(
        CreateDirectory(path=path("/la/d")),
        CreateMount(path=path("/la/d/m"), cluster_id="kc-1"),
    )
    directory_id = cluster.snapshot.find_directory(("d",))
    assert directory_id is not None
    spoiled = Put(entry_key(directory_id, Kind.MOUNT, "m"), b"\xff")
    cluster.rows.commit((), [spoiled])
    cluster.snapshot = cluster.loaded()
    again = CreateMount(path=path("/la/n"), cluster_id="kc-1")
    with pytest.raises(MountLoop, match=r"may be mounted already.*/la/d/m; .*kdir verify /la"):
        cluster.plan(again)
    cluster.do(CreateMount(path=path("/la/other"), cluster_id="kc-2"))
    cluster.rows.commit((), [Delete(spoiled.key)])
    cluster.snapshot = cluster.loaded()
    late = cluster.plan(again)
    cluster.do(again)
    assert [mount.cluster_id for _, mount in cluster.snapshot.mounts()] == ["kc-1", "kc-2"]
    mount = cluster.entry("/la/n")
    assert isinstance(mount, Mount)
    assert mounted_at(cluster.snapshot, mount) == "/la/n"
    assert not cluster.commit(late)


@pytest.mark.parametrize(
    "command",
    [
        DeleteEntry(path=path("/la/d/x")),
        DeleteEntry(path=path("/la/d/x"), kind=Kind.DIRECTORY),
        DeleteEntry(path=path("/la/d/x/below")),
        UpdateEntry(path=path("/la/d/x"), changes={"read_only": True}),
        MoveEntry(path=path("/la/d/x"), new_path=path("/la/d/y")),
        CreateTopic(path=path("/la/d/x/below"), partitions=1),
    ],
)
def test_S21_what_cannot_be_read_does_not_count_as_absent_for_a_change(command: Command) -> None:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=path("/la/d/x"), make_parents=True))
    directory_id = cluster.snapshot.find_directory(("d",))
    assert directory_id is not None
    cluster.rows.commit((), [Put(entry_key(directory_id, Kind.DIRECTORY, "x"), b"\xff")])
    cluster.snapshot = cluster.loaded()
    with pytest.raises(UnreadableRecord, match="the record of /la/d/x cannot be read: "):
        cluster.plan(command)


def test_the_reaper_leaves_the_claim_of_a_childs_new_mount() -> None:
    """A mount is below a removed directory if an older version removed that while the mount's
    record could not be read.
    """
    cluster = Cluster()
    cluster.do(
        CreateDirectory(path=path("/la/d")),
        CreateMount(path=path("/la/d/m"), cluster_id="kc-1"),
        CreateMount(path=path("/la/d/k"), cluster_id="kc-2"),
    )
    directory_id = cluster.snapshot.find_directory(("d",))
    assert directory_id is not None
    records = [put(directory_id, at[-1], mount) for at, mount in cluster.snapshot.mounts()]
    claims = [Put(*row) for row in cluster.snapshot.facts(MOUNTED)]
    cluster.rows.commit((), [Put(one.key, b"\xff") for one in records])
    cluster.rows.commit((), [Delete(one.key) for one in claims])  # else nothing is removed
    cluster.snapshot = cluster.loaded()
    cluster.do(DeleteEntry(path=path("/la/d"), recursive=True))
    cluster.rows.commit((), [*records, *claims])  # a version runs again that can read them
    cluster.snapshot = cluster.loaded()
    cluster.do(CreateMount(path=path("/la/n"), cluster_id="kc-1"))
    claim = cluster.snapshot.fact(mounted_key("kc-1"))
    cluster.do(ReapDeleted())
    assert [mount.cluster_id for _, mount in cluster.snapshot.mounts()] == ["kc-1"]
    assert claim is not None
    assert cluster.snapshot.fact(mounted_key("kc-1")) == claim
    assert cluster.snapshot.fact(mounted_key("kc-2")) is None
